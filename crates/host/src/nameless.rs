//! Files without a name: nobody else can open them, and their space comes back when they are closed.
//!
//! Owns nothing beside the file that it returns. Invariant: whatever becomes of the process, no name of such a file
//! stays in its directory, but for one that was killed within a few calls on a file system without `O_TMPFILE`.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::path::Path;

/// Names to try where a file cannot be without one.
const TRIES: u32 = 16;

/// A file of directory `dir`, to read and write, that never had a name, or has lost it. It bypasses the page cache
/// (`O_DIRECT`) where the file system can do that.
///
/// # Errors
/// If no file can be created there.
pub fn nameless(dir: &Path) -> io::Result<File> {
    made(dir, OFlags::DIRECT).or_else(|_| made(dir, OFlags::empty()))
}

fn made(dir: &Path, more: OFlags) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | more;
    let mode = Mode::RUSR | Mode::WUSR;
    let fd = match rustix::fs::open(dir, flags | OFlags::TMPFILE, mode) {
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT) => {
            let mut tried = 0;
            loop {
                let path = dir.join(format!(".undercroft-spool.{}.{tried}", std::process::id()));
                match rustix::fs::open(&path, flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW, mode) {
                    Ok(fd) => {
                        rustix::fs::unlink(&path)?;
                        break fd;
                    }
                    Err(Errno::EXIST) if tried < TRIES => tried += 1,
                    Err(e) => return Err(e.into()),
                }
            }
        }
        other => other?,
    };
    Ok(File::from(fd))
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileExt, MetadataExt};

    #[test]
    fn it_has_no_name_and_can_be_read_and_written() {
        let dir = tempfile::tempdir().unwrap();
        for direct in [OFlags::empty(), OFlags::DIRECT] {
            let Ok(file) = made(dir.path(), direct) else { continue };
            let mut block = crate::AlignedBuffer::default();
            block.bytes_mut()[..4096].fill(7);
            file.write_all_at(&block.bytes()[..4096], 4096).unwrap();
            file.read_exact_at(&mut block.bytes_mut()[..4096], 0).unwrap();
            assert_eq!((block.bytes()[9], file.metadata().unwrap().nlink()), (0, 0));
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(nameless(&dir.path().join("none")).is_err() && nameless(dir.path()).is_ok());
    }
}
