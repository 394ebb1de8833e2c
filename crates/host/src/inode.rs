//! What tells one inode from another that had its number before.
//!
//! Owns one question to the file system. Never changes a file. Invariant: no answer is made up where there is none.

use std::fs::File;
use std::os::fd::AsRawFd;

/// The generation of a file's inode, which differs where its number is used again; `None` if its file system has none.
pub fn inode_generation(file: &File) -> Option<u32> {
    /// `_IOR('v', 1, long)`; file systems write 32 bits.
    const FS_IOC_GETVERSION: libc::Ioctl = 0x8008_7601_u32 as libc::Ioctl;
    let mut generation: libc::c_long = 0;
    // SAFETY: the descriptor is open, and the call writes a `long` at most at the pointer, which `generation` has.
    let r = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_GETVERSION, std::ptr::from_mut(&mut generation)) };
    (r == 0).then_some(generation as u32)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_one_generation_or_none() {
        let path = std::env::temp_dir().join(format!("undercroft-inode-{}", std::process::id()));
        let file = File::create(&path).unwrap();
        assert_eq!(inode_generation(&file), inode_generation(&File::open(&path).unwrap()));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(inode_generation(&File::open("/dev/null").unwrap()), None);
    }
}
