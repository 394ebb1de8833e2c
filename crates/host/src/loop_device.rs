//! Loop devices: a file as a block device of the kernel, until nobody uses it any more.
//!
//! Owns the calls of the loop driver. Never mounts anything. Invariant: every device that is made here goes by itself
//! when the last one who has it open or mounted is gone, however that ends (`LO_FLAGS_AUTOCLEAR`).

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::c_ulong;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use crate::AlignedBuffer;

/// Where a free device is asked for.
pub const LOOP_CONTROL: &str = "/dev/loop-control";
/// Bytes of a device's name for its file, at most; the kernel cuts it there.
pub const LOOP_NAME_BYTES_MAX: usize = 63;

/// Free devices that others take before we do, one after the other, before we give up.
const TRIES_MAX: usize = 64;
/// Bytes of the first block, which a look reads.
const LOOK_BYTES: usize = 4096;

const LOOP_CTL_GET_FREE: c_ulong = 0x4C82;
const LOOP_CONFIGURE: c_ulong = 0x4C0A;
const LOOP_GET_STATUS64: c_ulong = 0x4C05;
const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// `struct loop_info64` of linux/loop.h.
#[repr(C)]
#[derive(Clone, Copy)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

const NOTHING: Info = Info {
    device: 0,
    inode: 0,
    rdevice: 0,
    offset: 0,
    size_limit: 0,
    number: 0,
    encrypt_type: 0,
    encrypt_key_size: 0,
    flags: 0,
    file_name: [0; 64],
    crypt_name: [0; 64],
    encrypt_key: [0; 32],
    init: [0; 2],
};

/// `struct loop_config`.
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

/// A loop device that is held open.
#[derive(Debug)]
pub struct LoopDevice {
    file: File,
    path: String,
}

/// What the kernel knows of a loop device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopInfo {
    /// What whoever made it called its file.
    pub name: String,
    /// Whether it refuses writes.
    pub read_only: bool,
    /// Whether it goes with its last user.
    pub goes_alone: bool,
    /// Whether it reads and writes its file past the page cache.
    pub direct: bool,
}

/// Why there is no loop device.
#[derive(Debug)]
pub enum LoopError {
    /// The control device cannot be opened.
    Control(io::Error),
    /// The node of a device cannot be opened.
    Node {
        /// Which.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// The driver refused.
    Driver(io::Error),
}

fn open(path: &str, flags: OFlags) -> io::Result<File> {
    Ok(rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())?.into())
}

impl LoopDevice {
    /// Makes a free loop device of `backing`, with direct I/O below it; the kernel keeps `backing` as it was opened,
    /// its locks included, until the device goes. `name` is what the device says its file is called.
    ///
    /// # Errors
    /// See [`LoopError`]. No device is left.
    pub fn attach(backing: &File, name: &str, read_only: bool) -> Result<Self, LoopError> {
        let control = open(LOOP_CONTROL, OFlags::RDWR).map_err(LoopError::Control)?;
        let mut info = NOTHING;
        let bytes = &name.as_bytes()[..name.len().min(LOOP_NAME_BYTES_MAX)];
        info.file_name[..bytes.len()].copy_from_slice(bytes);
        info.flags = LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO | if read_only { LO_FLAGS_READ_ONLY } else { 0 };
        let config = Config { fd: backing.as_raw_fd() as u32, block_size: 0, info, reserved: [0; 8] };
        let mut last = io::Error::from(Errno::BUSY);
        for _ in 0..TRIES_MAX {
            // SAFETY: the call takes no argument.
            let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
            if number < 0 {
                return Err(LoopError::Driver(io::Error::last_os_error()));
            }
            let path = format!("/dev/loop{number}");
            let flags = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
            let file = open(&path, flags).map_err(|source| LoopError::Node { path: path.clone(), source })?;
            // SAFETY: the argument is a `loop_config` as the driver reads it, which lives until the call returns.
            if unsafe { libc::ioctl(file.as_raw_fd(), LOOP_CONFIGURE, &raw const config) } == 0 {
                return Ok(Self { file, path });
            }
            last = io::Error::last_os_error();
            if Errno::from_io_error(&last) != Some(Errno::BUSY) {
                break;
            }
        }
        Err(LoopError::Driver(last))
    }

    /// Its node, `/dev/loop3`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// What the kernel says of it now.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn info(&self) -> io::Result<LoopInfo> {
        info_of(&self.file)
    }
}

/// What is known of the loop device at `path`; `None` if it has no file.
///
/// # Errors
/// What the kernel says; `path` may be no loop device.
pub fn loop_info(path: &str) -> io::Result<Option<LoopInfo>> {
    match info_of(&open(path, OFlags::RDONLY)?) {
        Ok(info) => Ok(Some(info)),
        Err(e) if Errno::from_io_error(&e) == Some(Errno::NXIO) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Reads the first block of a device past the page cache.
///
/// # Errors
/// What the kernel says: of a loop device whose file is served by nobody, that there was an input/output error.
pub fn look_at(path: &str) -> io::Result<()> {
    let file = open(path, OFlags::RDONLY | OFlags::DIRECT)?;
    file.read_exact_at(&mut AlignedBuffer::default().bytes_mut()[..LOOK_BYTES], 0)
}

fn info_of(file: &File) -> io::Result<LoopInfo> {
    let mut info = NOTHING;
    // SAFETY: the argument is a `loop_info64`, which the driver fills; any bytes are a good one.
    if unsafe { libc::ioctl(file.as_raw_fd(), LOOP_GET_STATUS64, &raw mut info) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let end = info.file_name.iter().position(|b| *b == 0).unwrap_or(info.file_name.len());
    Ok(LoopInfo {
        name: String::from_utf8_lossy(&info.file_name[..end]).into_owned(),
        read_only: info.flags & LO_FLAGS_READ_ONLY != 0,
        goes_alone: info.flags & LO_FLAGS_AUTOCLEAR != 0,
        direct: info.flags & LO_FLAGS_DIRECT_IO != 0,
    })
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    /// The sizes that the kernel's header has.
    #[test]
    fn what_the_driver_reads_is_as_long_as_it_thinks() {
        assert_eq!((size_of::<Info>(), size_of::<Config>()), (232, 304));
    }

    #[test]
    fn a_file_is_a_device_until_it_is_let_go() {
        let mut file = tempfile::tempfile_in("/var/tmp").unwrap();
        file.write_all(&[7; 1 << 20]).unwrap();
        file.sync_all().unwrap();
        let name = "undercroft:test-of-loop-devices";
        let device = match LoopDevice::attach(&file, name, true) {
            Ok(device) => device,
            Err(LoopError::Control(e) | LoopError::Node { source: e, .. }) => {
                return undercroft_skips::skip(format_args!("there are no loop devices to use: {e}"));
            }
            Err(e) => panic!("{e:?}"),
        };
        let info = device.info().unwrap();
        assert_eq!((info.name.as_str(), info.read_only, info.goes_alone), (name, true, true));
        look_at(device.path()).unwrap();
        let mut bytes = [0; 8];
        File::open(device.path()).unwrap().read_exact(&mut bytes).unwrap();
        assert_eq!(bytes, [7; 8]);
        let path = device.path().to_owned();
        drop(device);
        let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while loop_info(&path).unwrap().is_some_and(|i| i.name == name) {
            assert!(std::time::Instant::now() < end, "the device stays");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}
