//! A file goes on with another process: the connection to the kernel stays, and with it everybody who has it open.
//!
//! Owns what of a file has to be told, and what the next process checks of it. Never mounts, and never receives a
//! message. Invariants: one process at a time receives; a file is gone on with only if it is the same for those who
//! have it open; a process that only may begin, or leaves, does not unmount.
//!
//! What a process had received and not answered when it died is asked again: the kernel is told to
//! (FUSE_NOTIFY_RESEND). A write that is done once more then is right for the same reason as one of a guest that is
//! found in its record of requests under way: nobody was told that it was done, so that it may as well be done later,
//! after others that came beside it.

use super::device::FuseDevice;
use super::port::{FileTimes, FusePort};
use super::rules::TRANSFER_BYTES_MAX;
use super::server::{FuseError, FuseOptions, FuseServer, Mounted, Waiting, others, port_of};
use super::wire;
use crate::reach::{Closed, TellsClosed, with_port};
use crate::{DiskInfo, PortHost};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use undercroft_host::fuse;

/// What the next process has to know of a file, besides its descriptor. What else was agreed on with the kernel when it
/// was mounted is a bound of ours (requests nobody waits for), and nothing that has to stay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileState {
    /// Whose file it is.
    pub disk: String,
    /// Where it is.
    pub path: PathBuf,
    /// If an empty file was made to mount over: its device and inode.
    pub made: Option<(u64, u64)>,
    /// The number of its file system.
    pub device: u64,
    /// Bytes.
    pub size_bytes: u64,
    /// Whether the kernel refuses writes.
    pub read_only: bool,
    /// Whether other users may reach it.
    pub others: bool,
    /// Bytes of one request at most.
    pub transfer_bytes: u64,
    /// If nothing of it was under way when it was left: its times. Else there may be requests without an answer.
    pub rest: Option<FileTimes>,
}

/// Who keeps the descriptors of files while no process serves them.
pub trait FileKeeper: Send + Sync {
    /// Keeps a connection from now on, if that can be.
    fn keep(&self, device: BorrowedFd<'_>, state: &FileState) -> Option<Arc<dyn KeptFile>>;
}

/// A connection that somebody keeps.
pub trait KeptFile: Send + Sync {
    /// What the next process is told of it, from now on.
    fn note(&self, state: &FileState);

    /// It is kept no longer.
    fn forget(&self);

    /// What is kept beside the connection, for another process that goes on with it.
    fn descriptor(&self) -> BorrowedFd<'_>;
}

/// Why a file is not gone on with; `None` if nothing speaks against it.
fn why_not(state: &FileState, device: BorrowedFd<'_>, info: &DiskInfo, options: &FuseOptions) -> Option<String> {
    let mode = |read_only| if read_only { "read-only" } else { "writable" };
    let size_bytes = super::rules::FileRules::new(&info.geometry, 1).size_bytes;
    if size_bytes != state.size_bytes {
        return Some(format!("the disk has {size_bytes} bytes now, and had {}", state.size_bytes));
    }
    if info.geometry.read_only != state.read_only {
        return Some(format!("the disk is {} now, and was {}", mode(!state.read_only), mode(state.read_only)));
    }
    if others(options) != state.others {
        return Some("`disk_group` is given now and was not, or the other way round".into());
    }
    if state.transfer_bytes > TRANSFER_BYTES_MAX as u64 {
        let bytes = state.transfer_bytes;
        return Some(format!("requests of {bytes} bytes were agreed on, and this version takes {TRANSFER_BYTES_MAX}"));
    }
    if !fuse::is_connected(device) || fuse::mounted_device(&state.path) != Some(state.device) {
        return Some("it was unmounted".into());
    }
    None
}

/// Takes away a file that nobody goes on with: the mount, and the file that was made for it.
pub fn take_away(state: &FileState) {
    drop(Mounted::found(state));
}

impl TellsClosed for FusePort<FuseDevice> {
    fn closed(&mut self) -> &Closed {
        self.device().closed()
    }
}

impl FuseServer {
    /// Goes on with a file that another process has left, or leaves, once this one begins. Until then it is that one's.
    ///
    /// # Errors
    /// `NotTaken` if it is not what it was.
    pub fn take_over(
        state: FileState,
        device: OwnedFd,
        kept: Option<Arc<dyn KeptFile>>,
        info: &DiskInfo,
        host: Arc<dyn PortHost>,
        options: FuseOptions,
    ) -> Result<FuseServer, FuseError> {
        if let Some(why) = why_not(&state, device.as_fd(), info, &options) {
            return Err(FuseError::NotTaken { path: state.path, why });
        }
        let hint = options.hint.clone();
        let waits = Some(Waiting { device, info: info.clone(), options });
        let (mounted, closed) = (Mounted::of_another(&state), Closed::default());
        Ok(FuseServer { host, port: u32::MAX, closed, mounted, state, kept, waits, hint })
    }

    /// Begins to serve a file that was taken over.
    ///
    /// # Errors
    /// The kernel does not ask again what the process before was asked, or the worker does not answer. Then the file is
    /// still that one's, or nobody's.
    pub fn begin(&mut self) -> Result<(), FuseError> {
        let Some(Waiting { device, info, options }) = self.waits.take() else { return Ok(()) };
        let path = || self.state.path.clone();
        if self.state.rest.is_none() {
            rustix::io::write(&device, &wire::ask_again()).map_err(|e| match e {
                Errno::INVAL => FuseError::NotAskedAgain(path()),
                e => FuseError::Os { path: path(), what: "have the kernel ask again for", source: e.into() },
            })?;
        }
        let times = self.state.rest.take();
        if let Some(kept) = &self.kept {
            // From the first message on there may be some without an answer.
            kept.note(&self.state);
        }
        let (make, closed) = port_of(&self.state.path, &info, options, device, self.kept.clone(), times)?;
        let port = self.host.attach(make);
        if port == u32::MAX {
            return Err(FuseError::NoWorker(path()));
        }
        (self.port, self.closed) = (port, closed);
        self.mounted = Mounted::found(&self.state);
        tracing::info!(disk = self.state.disk, "the file {} is gone on with", self.state.path.display());
        Ok(())
    }

    /// Runs `f` on the worker with the port; `None` if that is gone.
    fn with<R: Send + 'static>(&self, f: impl FnOnce(&mut FusePort<FuseDevice>) -> R + Send + 'static) -> Option<R> {
        with_port(&*self.host, self.port, &self.closed, f)
    }

    /// Comes to rest, or goes on. What is asked meanwhile waits in the kernel.
    pub fn rest(&self, rests: bool) {
        self.with(move |port| port.rest(rests));
    }

    /// Whether it has come to rest: all that it was asked is answered.
    pub fn is_at_rest(&self) -> bool {
        self.with(|port| port.is_at_rest()).unwrap_or(true)
    }

    /// What another process needs to go on with the file, which is at rest; nothing if it was unmounted.
    pub fn tell(&self) -> Option<io::Result<(FileState, OwnedFd)>> {
        let (device, times) = self.with(|port| (port.device().passable(), port.times()))?;
        let state = FileState { rest: Some(times), ..self.state.clone() };
        Some(device.map(|device| (state, device)))
    }

    /// Who keeps it, if somebody does.
    pub fn kept(&self) -> Option<&Arc<dyn KeptFile>> {
        self.kept.as_ref()
    }

    /// Leaves the file as it is, mounted, to the process that gets its descriptor next. It comes back, to be stopped,
    /// if nobody keeps that.
    #[must_use]
    pub fn leave(mut self) -> Option<Self> {
        let Some(kept) = self.kept.clone().filter(|_| self.is_mounted()) else { return Some(self) };
        let left = self.with(|port| {
            port.device().leave();
            port.is_at_rest().then(|| port.times())
        });
        let Some(rest) = left else { return Some(self) };
        if rest.is_none() {
            let path = self.path().display();
            tracing::warn!("{path}: requests are still under way; the next process has the kernel ask them again");
        }
        kept.note(&FileState { rest, ..self.state.clone() });
        self.mounted.leave();
        self.host.detach(self.port);
        None
    }
}
