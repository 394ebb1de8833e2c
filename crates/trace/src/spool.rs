//! The data of a pipe, kept in a file so that it can be read more than once.
//!
//! Owns a file without a name: it is gone when this is dropped, and when the program dies. Never unpacks: what is
//! compressed is kept so. Invariant: never more bytes than were allowed.

use crate::error::{SpoolError, TraceError};
use crate::options::ReaderOptions;
use crate::reader::TraceReader;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// Bytes copied at once.
const BUFFER_BYTES: usize = 1 << 20;
/// Names tried for the file.
const NAMES: u32 = 1000;

/// A pipe that has been copied to a file without a name.
#[derive(Debug)]
pub struct Spool {
    file: File,
    name: String,
    /// What the pipe is called; its name may tell the format.
    path: Option<PathBuf>,
    /// Bytes kept.
    bytes: u64,
}

impl Spool {
    /// Whether a trace can be read only once: standard input (`-`), and what is there and neither a file nor a
    /// directory.
    pub fn is_needed(path: &Path) -> bool {
        path == Path::new("-") || path.metadata().is_ok_and(|m| !m.is_file() && !m.is_dir())
    }

    /// Keeps all of a pipe, or of standard input for `-`, in `directory`: at most `bytes_max`. `watch` is told of the
    /// bytes so far now and then, and ends it by returning false: what came until then is the trace.
    ///
    /// # Errors
    /// [`TraceError::Open`] and [`TraceError::Read`] of the pipe; [`TraceError::Spool`] if it does not fit or cannot be
    /// kept.
    pub fn of(
        path: &Path,
        directory: &Path,
        bytes_max: u64,
        watch: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Self, TraceError> {
        if path == Path::new("-") {
            return Self::fill(&mut std::io::stdin().lock(), "standard input", None, directory, bytes_max, watch);
        }
        let name = path.display().to_string();
        let mut pipe = File::open(path).map_err(|source| TraceError::Open { name: name.clone(), source })?;
        Self::fill(&mut pipe, &name, Some(path.to_owned()), directory, bytes_max, watch)
    }

    fn fill(
        pipe: &mut dyn Read,
        name: &str,
        path: Option<PathBuf>,
        directory: &Path,
        bytes_max: u64,
        watch: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Self, TraceError> {
        let failed = |what| TraceError::Spool { name: name.to_owned(), what };
        let unwritable = |source| failed(SpoolError::Unwritable { directory: directory.to_owned(), source });
        let mut file = without_name(directory).map_err(unwritable)?;
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut bytes = 0;
        while watch(bytes) {
            let n = match pipe.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => n,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(source) => return Err(TraceError::Read { name: name.to_owned(), offset: bytes, source }),
            };
            bytes += n as u64;
            if bytes > bytes_max {
                return Err(failed(SpoolError::TooLarge(bytes_max)));
            }
            file.write_all(&buffer[..n]).map_err(unwritable)?;
        }
        Ok(Self { file, name: name.to_owned(), path, bytes })
    }

    /// Bytes kept.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads it from its beginning, as [`TraceReader::open_with`] would have read the pipe.
    ///
    /// # Errors
    /// Those of [`TraceReader::open_with`].
    pub fn reader(&self, options: &ReaderOptions) -> Result<TraceReader<'static>, TraceError> {
        // opened anew, as a copy of the descriptor would share its place in the file
        let file = File::open(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        let file = file.map_err(|source| TraceError::Open { name: self.name.clone(), source })?;
        TraceReader::of_file(file, &self.name, self.path.as_deref(), options)
    }
}

/// A new file that has lost its name already.
fn without_name(directory: &Path) -> std::io::Result<File> {
    for number in 0..NAMES {
        let path = directory.join(format!("undercroft-spool-{}-{number}", std::process::id()));
        match OpenOptions::new().read(true).write(true).create_new(true).open(&path) {
            Ok(file) => {
                std::fs::remove_file(&path)?;
                return Ok(file);
            }
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spooled(bytes: &[u8], most: u64) -> Result<Spool, TraceError> {
        let directory = tempfile::tempdir().expect("a directory");
        let path = Some(PathBuf::from("a.lis"));
        let kept = Spool::fill(&mut { bytes }, "a.lis", path, directory.path(), most, &mut |_| true);
        let left = directory.path().read_dir().expect("it can be read").count();
        assert_eq!(left, 0, "nothing has a name");
        kept
    }

    #[test]
    fn a_pipe_is_read_twice_at_once_and_its_name_tells_the_format() {
        let spool = spooled(b"7 2 0 0\n3 1 0 1\n", 16).expect("it fits");
        let read = || spool.reader(&ReaderOptions::default()).expect("opens").map(|a| a.expect("sound").block);
        let (one, two) = (read(), read());
        assert_eq!(one.zip(two).collect::<Vec<_>>(), [(7, 7), (8, 8), (3, 3)]);
        assert_eq!(spool.bytes(), 16);
    }

    #[test]
    fn what_does_not_fit_is_named_with_what_to_do() {
        let said = spooled(b"7 2 0 0\n3 1 0 1\n", 15).expect_err("one byte more").to_string();
        assert!(said.contains("a.lis") && said.contains("write it to a file"), "{said}");
        let nowhere = Spool::fill(&mut &b""[..], "x", None, Path::new("/proc/none"), 1, &mut |_| true);
        assert!(nowhere.expect_err("no directory").to_string().contains("/proc/none"));
    }
}
