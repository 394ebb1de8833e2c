//! Disks become block devices, and cease to be: devices of the kernel, and the ports behind them.
//!
//! Owns the device of one disk and the link that leads to it. Never serves a request: the port does. Invariants: there
//! is at most one device of a disk, as the kernel itself knows whose a device is (`mark`); one that a dead daemon has
//! left is gone on with if it is what the disk is, and taken away otherwise; while a device is started, stopped or
//! taken over, its port serves it.

use super::device::KernelDevice;
use super::error::UblkError;
use super::link;
use super::mark::Mark;
use super::port::{DeviceLimits, NewBlockPort, UblkPort};
use super::rules::{DeviceRules, TRANSFER_BYTES_MAX};
use crate::budget::Budget;
use crate::reach::{Closed, TellsClosed, detach_port, with_port};
use crate::{AnyPort, DiskInfo, MakePort, PortHost};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use undercroft_host::EventFd;
use undercroft_host::ublk::{
    DeviceInfo, DeviceState, Ended, NewDevice, Params, UblkControl, UblkQueue, block_path, devices, feature,
};

/// What a device has to do for us, with the words for it.
const NEEDED: [(u64, &str); 3] = [
    (feature::USER_COPY, "UBLK_F_USER_COPY"),
    (feature::USER_RECOVERY, "UBLK_F_USER_RECOVERY"),
    (feature::USER_RECOVERY_REISSUE, "UBLK_F_USER_RECOVERY_REISSUE"),
];
/// What is used where there is.
const WANTED: u64 = feature::NO_AUTO_PART_SCAN;
/// How long a start may take, or the end of a recovery.
const START_WAIT: Duration = Duration::from_secs(30);
/// How long a stop may take: requests under way are answered first.
const STOP_WAIT: Duration = Duration::from_secs(10);
/// How long the kernel may take until it has done with a server that is gone: if that had all requests under way that
/// there can be, it looks after 30 s.
const DEAD_WAIT: Duration = Duration::from_secs(40);
/// How long a server may take to end that is there.
const LIVING_WAIT: Duration = Duration::from_secs(5);
/// How long the node of a new device may take to appear.
const NODE_WAIT: Duration = Duration::from_secs(5);
/// How long what was written through the page cache may take to reach the disk before the device is stopped.
const SYNC_WAIT: Duration = Duration::from_secs(10);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(5);

/// What is said of a device besides its disk.
#[derive(Clone)]
pub struct UblkOptions {
    /// Whose it is.
    pub mark: Mark,
    /// The memory for data that devices, files and NBD connections share.
    pub budget: Arc<Budget>,
    /// Bounds.
    pub limits: DeviceLimits,
}

/// A disk that is a block device.
pub struct UblkServer {
    host: Arc<dyn PortHost>,
    port: u32,
    closed: Closed,
    id: u32,
    link: PathBuf,
}

/// Opens the control node, and looks whether the driver can do what is needed.
fn control() -> Result<(UblkControl, u64), UblkError> {
    let failed = |e: io::Error| match e.kind() {
        io::ErrorKind::NotFound => UblkError::NoDriver,
        io::ErrorKind::PermissionDenied => UblkError::NotPermitted,
        io::ErrorKind::Unsupported => UblkError::TooOld("UBLK_U_CMD_GET_FEATURES"),
        _ if matches!(e.raw_os_error(), Some(6 | 19)) => UblkError::NoDriver,
        _ => UblkError::Os { device: undercroft_host::ublk::UBLK_CONTROL.into(), what: "use", source: e },
    };
    let control = UblkControl::open().map_err(failed)?;
    let features = control.features().map_err(failed)?;
    match NEEDED.iter().find(|(bit, _)| features & bit == 0) {
        Some((_, name)) => Err(UblkError::TooOld(name)),
        None => Ok((control, features)),
    }
}

/// Whether this process can make block devices here.
///
/// # Errors
/// There is no driver, or it is too old, or it is not for this process to use.
pub fn probe() -> Result<(), UblkError> {
    control().map(drop)
}

/// Something failed with a device.
fn os(id: u32, what: &'static str) -> impl Fn(io::Error) -> UblkError {
    move |e| match e.kind() {
        io::ErrorKind::PermissionDenied => UblkError::NotPermitted,
        _ => UblkError::Os { device: block_path(id), what, source: e },
    }
}

impl TellsClosed for UblkPort<KernelDevice> {
    fn closed(&mut self) -> &Closed {
        self.device().closed()
    }
}

impl UblkServer {
    /// Makes `info`'s disk a block device to which `path` leads: the one that a process before has left of it, or a new
    /// one.
    ///
    /// # Errors
    /// See [`UblkError`]. Nothing is left behind that was not there.
    pub fn start(
        path: &Path,
        info: &DiskInfo,
        host: Arc<dyn PortHost>,
        options: &UblkOptions,
    ) -> Result<UblkServer, UblkError> {
        link::look(path)?;
        let (control, features) = control()?;
        let rules = DeviceRules::new(&info.geometry);
        let making = Making { control: &control, info, host: &host, options, rules };
        let (id, port, closed) = match making.found()? {
            Some(left) => making.take_over(left)?,
            None => making.make(features)?,
        };
        let server = UblkServer { host, port, closed, id, link: path.to_owned() };
        if let Err(e) = link::make(path, &block_path(id)) {
            server.stop();
            return Err(e);
        }
        tracing::info!(
            disk = info.name,
            "the disk is the block device {}, {}",
            block_path(id).display(),
            path.display()
        );
        Ok(server)
    }

    /// The link that leads to it.
    pub fn path(&self) -> &Path {
        &self.link
    }

    /// The device.
    pub fn device(&self) -> PathBuf {
        block_path(self.id)
    }

    /// Whether it is there still: somebody may have stopped it.
    pub fn is_there(&self) -> bool {
        !self.closed.is_closed()
    }

    /// Takes the device away, once its requests under way are answered and what was written through the page cache has
    /// come. Who has it open gets errors from then on.
    pub fn stop(self) {
        sync(self.id);
        let control = control().ok().map(|(control, _)| control);
        if let Some(control) = &control
            && let Err(e) = control.stop(self.id, STOP_WAIT)
            && e.kind() != io::ErrorKind::NotFound
        {
            tracing::error!("{} cannot be stopped: {e}", self.device().display());
        }
        detach_port(&*self.host, self.port, &self.closed);
        link::remove(&self.link, &self.device());
        if let Some(control) = control {
            delete(&control, self.id);
        }
    }

    /// Leaves the device to the next process: who uses it waits for that.
    pub fn leave(self) {
        self.with(|port| port.device().leave());
        detach_port(&*self.host, self.port, &self.closed);
        tracing::info!("{} is left to the next process", self.device().display());
    }

    /// Runs `f` on the worker with the port; `None` if that is gone.
    fn with<R: Send + 'static>(&self, f: impl FnOnce(&mut UblkPort<KernelDevice>) -> R + Send + 'static) -> Option<R> {
        with_port(&*self.host, self.port, &self.closed, f)
    }

    /// Comes to rest, or goes on. What is asked meanwhile waits in the kernel.
    pub fn rest(&self, rests: bool) {
        self.with(move |port| port.rest(rests));
    }

    /// Whether it has come to rest.
    pub fn is_at_rest(&self) -> bool {
        self.with(|port| port.is_at_rest()).unwrap_or(true)
    }
}

/// Has the kernel write what its page cache holds of a device, and waits for that for a while.
fn sync(id: u32) {
    let (tx, rx) = channel();
    let path = block_path(id);
    let write_back = move || {
        let result = std::fs::File::open(&path).and_then(|device| device.sync_all());
        let _ = tx.send(result);
    };
    let started = std::thread::Builder::new().name("ublk-sync".into()).spawn(write_back);
    match started.map(|_| rx.recv_timeout(SYNC_WAIT)) {
        Ok(Ok(Ok(()))) => {}
        Ok(Ok(Err(e))) if e.kind() == io::ErrorKind::NotFound => {}
        Ok(Ok(Err(e))) => tracing::error!("what was written to {} is not all there: {e}", block_path(id).display()),
        _ => tracing::error!("what was written to {} did not all come in time", block_path(id).display()),
    }
}

/// Takes a device away whose queue is closed.
fn delete(control: &UblkControl, id: u32) {
    match control.delete(id, STOP_WAIT) {
        Ok(Ended::Gone) => {}
        Ok(Ended::Going) => {
            tracing::info!("{} goes when the last program that has it open closes it", block_path(id).display());
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => tracing::error!("{} cannot be taken away: {e}", block_path(id).display()),
    }
}

/// What making a device needs.
struct Making<'a> {
    control: &'a UblkControl,
    info: &'a DiskInfo,
    host: &'a Arc<dyn PortHost>,
    options: &'a UblkOptions,
    rules: DeviceRules,
}

/// A device with its port: number, the worker's name for the port, and what tells that it is closed.
type Served = (u32, u32, Closed);

impl Making<'_> {
    /// The device that a process before has left of this disk. What is left and of no use is taken away.
    fn found(&self) -> Result<Option<DeviceInfo>, UblkError> {
        let all = devices().map_err(os(0, "look for"))?;
        for id in all {
            let Ok(info) = self.control.info(id) else { continue };
            if info.mark != self.options.mark.number() {
                continue;
            }
            let why = match info.state {
                // It was not started yet, or stopped, and not taken away.
                DeviceState::Dead | DeviceState::Other(_) => "it was not served",
                _ => match self.differs(&info) {
                    None => return Ok(Some(info)),
                    Some(why) => {
                        self.wait_for_end_of(&info)?;
                        why
                    }
                },
            };
            tracing::warn!(
                disk = self.info.name,
                "{}, which a process before has left, is taken away: {why}; who has it open gets errors",
                block_path(id).display()
            );
            let _ = self.control.stop(id, STOP_WAIT);
            delete(self.control, id);
        }
        Ok(None)
    }

    /// Why a device is not what the disk is.
    fn differs(&self, info: &DeviceInfo) -> Option<&'static str> {
        let now = self.rules.params();
        let was = match self.control.params(info.id) {
            Ok(params) => params,
            Err(_) => return Some("the kernel does not tell what it is like"),
        };
        let Params { sectors, read_only, block_bytes, .. } = was;
        if info.queues != 1 || NEEDED.iter().any(|(bit, _)| info.features & bit == 0) {
            return Some("it was made by another version of this program");
        }
        if sectors != now.sectors {
            return Some("the disk has another size now");
        }
        if read_only != now.read_only || block_bytes != now.block_bytes {
            return Some("the disk is read-only now and was not, or the other way round, or has other sectors");
        }
        let longer = was.transfer_sectors_max > now.transfer_sectors_max
            || was.discard_sectors_max > now.discard_sectors_max
            || was.zeroes_sectors_max > now.zeroes_sectors_max;
        longer.then_some("longer requests were agreed on than the disk takes now")
    }

    /// Waits until the kernel has done with the process that served a device.
    fn wait_for_end_of(&self, info: &DeviceInfo) -> Result<(), UblkError> {
        self.until_dead(info, || match self.control.info(info.id) {
            Ok(now) => Ok((now.state != DeviceState::Live).then_some(())),
            Err(e) => Err(os(info.id, "ask after")(e)),
        })
    }

    /// Tries until `done` has something, as long as the process that served a device may take to be dead for good.
    fn until_dead<R>(
        &self,
        info: &DeviceInfo,
        mut done: impl FnMut() -> Result<Option<R>, UblkError>,
    ) -> Result<R, UblkError> {
        let begun = Instant::now();
        let mut said = false;
        loop {
            if let Some(result) = done()? {
                return Ok(result);
            }
            let lives = Path::new(&format!("/proc/{}", info.server)).exists();
            let waited = begun.elapsed();
            if waited > DEAD_WAIT || lives && waited > LIVING_WAIT {
                return Err(UblkError::InUse { device: block_path(info.id), server: info.server });
            }
            if waited > Duration::from_secs(1) && !said {
                said = true;
                tracing::info!(
                    disk = self.info.name,
                    "waiting for the kernel, which has not done with the process that served {}",
                    block_path(info.id).display()
                );
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Goes on with a device.
    fn take_over(&self, left: DeviceInfo) -> Result<Served, UblkError> {
        let id = left.id;
        self.until_dead(&left, || match self.control.begin_recovery(id) {
            Ok(()) => Ok(Some(())),
            Err(e) if e.kind() == io::ErrorKind::ResourceBusy => Ok(None),
            Err(e) => Err(os(id, "take over")(e)),
        })?;
        let (port, closed) = self.serve(id, left.depth)?;
        if let Err(e) = self.control.end_recovery(id, START_WAIT) {
            self.host.detach(port);
            return Err(os(id, "take over")(e));
        }
        tracing::info!(disk = self.info.name, "{} is gone on with", block_path(id).display());
        Ok((id, port, closed))
    }

    /// Makes a device and starts it.
    fn make(&self, features: u64) -> Result<Served, UblkError> {
        let needed = NEEDED.iter().fold(0, |all, (bit, _)| all | bit);
        let new = NewDevice {
            depth: self.options.limits.requests_max,
            transfer_bytes_max: TRANSFER_BYTES_MAX,
            features: needed | WANTED & features,
            mark: self.options.mark.number(),
        };
        let made = self.control.add(&new).map_err(os(0, "make"))?;
        let id = made.id;
        let served = self.started(&made);
        served.inspect_err(|_| {
            let _ = self.control.stop(id, STOP_WAIT);
            delete(self.control, id);
        })
    }

    fn started(&self, made: &DeviceInfo) -> Result<Served, UblkError> {
        let id = made.id;
        if let Some((_, name)) = NEEDED.iter().find(|(bit, _)| made.features & bit == 0) {
            return Err(UblkError::TooOld(name));
        }
        self.control.set_params(id, self.rules.params()).map_err(os(id, "set up"))?;
        let (port, closed) = self.serve(id, made.depth)?;
        if let Err(e) = self.control.start(id, START_WAIT) {
            self.host.detach(port);
            return Err(os(id, "start")(e));
        }
        Ok((id, port, closed))
    }

    /// Has the worker of the disk serve the queue of a device.
    fn serve(&self, id: u32, depth: u16) -> Result<(u32, Closed), UblkError> {
        let failed = os(id, "serve");
        let queue = open(id, depth).map_err(&failed)?;
        let (make, closed, begun) = self.port_of(id, queue).map_err(&failed)?;
        match self.host.attach(make) {
            u32::MAX => Err(UblkError::NoWorker(block_path(id))),
            port => match begun.try_recv().unwrap_or(Ok(())) {
                Ok(()) => Ok((port, closed)),
                Err(e) => {
                    self.host.detach(port);
                    Err(failed(e))
                }
            },
        }
    }

    /// What makes the port of a device, and tells whether its queue could be begun.
    fn port_of(&self, id: u32, queue: UblkQueue) -> io::Result<(MakePort, Closed, Receiver<io::Result<()>>)> {
        let (tx, begun) = channel();
        let closed = Closed::default();
        let (wake, account) = (EventFd::new()?, Some(self.options.budget.open(&self.info.name)?));
        let (disk, rules, bytes_max) = (self.info.disk, self.rules, self.options.limits.bytes_max);
        let (path, tells) = (block_path(id).display().to_string(), closed.clone());
        let make = move |port| {
            let mut queue = queue;
            let result = queue.begin();
            let _ = tx.send(result);
            let device = KernelDevice::new(queue, wake, tells);
            AnyPort::plain(UblkPort::new(NewBlockPort { port, disk, rules, bytes_max, path, device, account }))
        };
        Ok((Box::new(make), closed, begun))
    }
}

/// Opens the queue of a device, whose node may take a moment to appear.
fn open(id: u32, depth: u16) -> io::Result<UblkQueue> {
    let give_up = Instant::now() + NODE_WAIT;
    loop {
        match UblkQueue::open(id, depth) {
            Err(e) if e.kind() == io::ErrorKind::NotFound && Instant::now() < give_up => std::thread::sleep(PAUSE),
            result => return result,
        }
    }
}

/// Whether there are devices of ublk, whosever they are.
pub fn are_there() -> bool {
    devices().is_ok_and(|all| !all.is_empty())
}

/// Takes away what a process before has left of this daemon's disks, that `wanted` does not name and nobody serves.
pub fn sweep(own: Mark, wanted: &[Mark]) {
    let left = devices().unwrap_or_default();
    if left.is_empty() {
        return;
    }
    let Ok((control, _)) = control() else { return };
    for id in left {
        let Ok(info) = control.info(id) else { continue };
        let named = wanted.iter().any(|mark| mark.number() == info.mark);
        if !own.is_of_same_daemon(info.mark) || named || info.state == DeviceState::Live {
            continue;
        }
        tracing::info!("{}, which a process before has left, is taken away: no disk is it", block_path(id).display());
        let _ = control.stop(id, STOP_WAIT);
        delete(&control, id);
    }
}
