//! A file that appears when it is whole.
//!
//! Owns the temporary name and its end. Invariant: dropped without [`Target::commit`], nothing is left of it, and a
//! file that was there before is untouched.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// A file under a temporary name, standard output, or a device or pipe that was there before.
#[derive(Debug)]
pub struct Target {
    /// `None` for standard output.
    file: Option<File>,
    /// Temporary and final name.
    names: Option<(PathBuf, PathBuf)>,
}

impl Target {
    /// Begins a file; `-` is standard output.
    ///
    /// # Errors
    /// It is there already and may not be replaced, or it cannot be created.
    pub fn create(path: &Path, replace: bool) -> io::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self { file: None, names: None });
        }
        if let Ok(there) = std::fs::metadata(path) {
            if !there.is_file() && !there.is_dir() {
                let file = File::options().write(true).open(path)?;
                return Ok(Self { file: Some(file), names: None });
            }
            if there.is_dir() {
                return Err(io::Error::from(io::ErrorKind::IsADirectory));
            }
            if !replace {
                let what = "it is there already; name another file, or replace it with --force";
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
            }
        }
        let name = path.file_name().ok_or_else(|| io::Error::other("it has no file name"))?;
        for n in 0..100u32 {
            let mut hidden = std::ffi::OsString::from(".");
            hidden.push(name);
            hidden.push(format!(".{}-{n}.partial", std::process::id()));
            let temporary = path.with_file_name(hidden);
            match File::options().read(true).write(true).create_new(true).open(&temporary) {
                Ok(file) => return Ok(Self { file: Some(file), names: Some((temporary, path.to_owned())) }),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
        Err(io::Error::other("a hundred unfinished files of this name are in its directory; remove them"))
    }

    /// Whether it can be read and changed before it is whole.
    pub(super) fn is_file(&self) -> bool {
        self.names.is_some()
    }

    /// A file without a name in the directory for temporary files: it is gone when it is closed.
    pub(super) fn nameless() -> io::Result<Self> {
        let mut target = Self::create(&std::env::temp_dir().join("undercroft-trace"), true)?;
        if let Some((temporary, _)) = target.names.take() {
            std::fs::remove_file(temporary)?;
        }
        Ok(target)
    }

    /// Another file beside this one, under a temporary name, for the same final name.
    pub(super) fn beside(&self) -> io::Result<Self> {
        match &self.names {
            Some((_, path)) => Self::create(path, true),
            None => Self::nameless(),
        }
    }

    /// Gives it its name; returns how many bytes it has, 0 for what is no file.
    ///
    /// # Errors
    /// It cannot be written or renamed: nothing is left of it then.
    pub(crate) fn commit(mut self) -> io::Result<u64> {
        self.flush()?;
        let Some((temporary, path)) = &self.names else { return Ok(0) };
        let bytes = self.file.as_ref().map_or(Ok(0), |f| f.metadata().map(|m| m.len()))?;
        std::fs::rename(temporary, path)?;
        self.names = None;
        Ok(bytes)
    }

    pub(super) fn file(&mut self) -> io::Result<&mut File> {
        self.file.as_mut().ok_or_else(|| io::Error::other("standard output cannot be read"))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some((temporary, _)) = &self.names {
            let _ = std::fs::remove_file(temporary);
        }
    }
}

impl Write for Target {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match &mut self.file {
            Some(file) => file.write(buf),
            None => io::stdout().write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.file {
            Some(file) => file.flush(),
            None => io::stdout().flush(),
        }
    }
}

impl Read for Target {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.file()?.read(buf)
    }
}

impl Seek for Target {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file()?.seek(to)
    }
}
