//! Control commands: devices are made, started, stopped and taken over.
//!
//! Owns the control node. Never serves a request of a device. Invariants: every command ends within its time, by the
//! kernel or by giving up on it; what the kernel may still write then is leaked.

use super::wire::{self, DeviceInfo, INFO_BYTES, NewDevice, PARAMS_BYTES, Params, command};
use super::{ANY_DEVICE, UBLK_CONTROL};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// How long a command may take that waits for nobody.
const SHORT: Duration = Duration::from_secs(10);

/// The control node, opened.
#[derive(Debug)]
pub struct UblkControl(File);

/// Whether a device is gone, or goes once the last who has it open closes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Gone.
    Gone,
    /// It goes with its last user.
    Going,
}

impl UblkControl {
    /// Opens the control node.
    ///
    /// # Errors
    /// `NotFound` if there is no driver, `PermissionDenied` if this process may not use it.
    pub fn open() -> io::Result<Self> {
        Ok(Self(OpenOptions::new().read(true).write(true).open(UBLK_CONTROL)?))
    }

    /// What the driver can do; `Unsupported` before Linux 6.5, which does not tell.
    ///
    /// # Errors
    /// See above, and what the kernel says.
    pub fn features(&self) -> io::Result<u64> {
        match self.run(command::GET_FEATURES, ANY_DEVICE, vec![0; 8], 0, SHORT) {
            Ok(bytes) => Ok(u64::from_ne_bytes(std::array::from_fn(|i| bytes[i]))),
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Err(e),
            Err(e) => Err(io::Error::new(io::ErrorKind::Unsupported, e)),
        }
    }

    /// Makes a device, which is not started.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn add(&self, new: &NewDevice) -> io::Result<DeviceInfo> {
        self.run(command::ADD_DEV, ANY_DEVICE, new.encode(ANY_DEVICE).to_vec(), 0, SHORT).and_then(|b| info(&b))
    }

    /// What the kernel knows of a device.
    ///
    /// # Errors
    /// `NotFound` if there is none of that number.
    pub fn info(&self, id: u32) -> io::Result<DeviceInfo> {
        self.run(command::GET_DEV_INFO, id, vec![0; INFO_BYTES], 0, SHORT).and_then(|b| info(&b))
    }

    /// Says what a device that is not started is like.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set_params(&self, id: u32, params: &Params) -> io::Result<()> {
        self.run(command::SET_PARAMS, id, params.encode().to_vec(), 0, SHORT).map(drop)
    }

    /// What a device is like.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn params(&self, id: u32) -> io::Result<Params> {
        let mut ask = vec![0; PARAMS_BYTES];
        ask[..4].copy_from_slice(&(PARAMS_BYTES as u32).to_ne_bytes());
        let bytes = self.run(command::GET_PARAMS, id, ask, 0, SHORT)?;
        bytes.as_slice().try_into().map(Params::parse).map_err(io::Error::other)
    }

    /// Starts a device. Its queue has to be served meanwhile: the kernel may read from it.
    ///
    /// # Errors
    /// `TimedOut`, or what the kernel says.
    pub fn start(&self, id: u32, within: Duration) -> io::Result<()> {
        self.run(command::START_DEV, id, Vec::new(), std::process::id().into(), within).map(drop)
    }

    /// Stops a device: requests under way have to be answered meanwhile, all others fail.
    ///
    /// # Errors
    /// `TimedOut`, or what the kernel says.
    pub fn stop(&self, id: u32, within: Duration) -> io::Result<()> {
        self.run(command::STOP_DEV, id, Vec::new(), 0, within).map(drop)
    }

    /// Takes a device away that was stopped and whose queue is closed.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn delete(&self, id: u32, within: Duration) -> io::Result<Ended> {
        match self.run(command::DEL_DEV_ASYNC, id, Vec::new(), 0, within) {
            Ok(_) => Ok(if self.info(id).is_ok() { Ended::Going } else { Ended::Gone }),
            // Linux before 6.9 waits for the last user.
            Err(e) if is_unknown(&e) => match self.run(command::DEL_DEV, id, Vec::new(), 0, within) {
                Err(e) if matches!(e.kind(), io::ErrorKind::TimedOut) => Ok(Ended::Going),
                other => other.map(|_| Ended::Gone),
            },
            Err(e) => Err(e),
        }
    }

    /// Begins to take a device over whose server is gone.
    ///
    /// # Errors
    /// `ResourceBusy` while the server is there, or the kernel has not done with it.
    pub fn begin_recovery(&self, id: u32) -> io::Result<()> {
        self.run(command::START_USER_RECOVERY, id, Vec::new(), 0, SHORT).map(drop)
    }

    /// The new queue is served: who uses the device goes on.
    ///
    /// # Errors
    /// `TimedOut`, or what the kernel says.
    pub fn end_recovery(&self, id: u32, within: Duration) -> io::Result<()> {
        self.run(command::END_USER_RECOVERY, id, Vec::new(), std::process::id().into(), within).map(drop)
    }

    /// Runs one command to its end; the buffer comes back as the kernel left it.
    fn run(&self, op: u32, id: u32, buffer: Vec<u8>, data: u64, within: Duration) -> io::Result<Vec<u8>> {
        let mut buffer = buffer;
        let mut ring: IoUring<squeue::Entry128, cqueue::Entry> = IoUring::builder().build(2)?;
        let at = if buffer.is_empty() { 0 } else { buffer.as_mut_ptr() as u64 };
        let words = wire::control(id, at, buffer.len() as u16, data);
        let entry = opcode::UringCmd80::new(types::Fd(self.0.as_raw_fd()), op).cmd(words).build();
        // SAFETY: the buffer that the command names is not touched until its completion has come, and is leaked below
        // if that does not come; the node is open as long as `self` is. There is room for one entry.
        unsafe { ring.submission().push(&entry) }.map_err(io::Error::other)?;
        let end = std::time::Instant::now() + within;
        let result = loop {
            if let Some(completion) = ring.completion().next() {
                break completion.result();
            }
            let left = end.saturating_duration_since(std::time::Instant::now());
            if left.is_zero() {
                // The kernel may write there yet.
                std::mem::forget(buffer);
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the ublk driver does not answer"));
            }
            let wait = types::Timespec::new().sec(left.as_secs()).nsec(left.subsec_nanos());
            match ring.submitter().submit_with_args(1, &types::SubmitArgs::new().timespec(&wait)) {
                Err(e) if !matches!(e.raw_os_error(), Some(libc::EINTR | libc::ETIME | libc::EBUSY | libc::EAGAIN)) => {
                    std::mem::forget(buffer);
                    return Err(e);
                }
                _ => {}
            }
        };
        if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(buffer) }
    }
}

fn is_unknown(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL))
}

fn info(bytes: &[u8]) -> io::Result<DeviceInfo> {
    bytes.try_into().map(DeviceInfo::parse).map_err(io::Error::other)
}
