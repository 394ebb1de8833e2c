//! Worker threads: each owns some disks, with their core, back ends and ports, and runs their event loop.
//!
//! Owns the order in which things happen in the data path. Never blocks on a disk or a peer, and holds no lock: other
//! threads reach a worker by sending it closures. Invariant: everything that a turn submitted is kicked, and every
//! reply of a turn is flushed, before the worker sleeps.

mod compare;
mod copying;
#[cfg(test)]
mod departure_tests;
mod effects;
mod exchange;
#[cfg(test)]
mod fairness_tests;
mod guests;
mod handle;
mod latencies;
mod notes;
mod polling;
mod ports;
mod reap;
mod serve;
mod ssd;
mod tap;
mod turn;

pub(crate) use handle::{Asker, GuestNews};
pub use handle::{CALL_WAIT, DiskHost, Gone, WorkerHandle};
pub use latencies::Latencies;
pub(crate) use latencies::{ReadsBetween, Told};
pub use notes::{Damaged, Note, read as read_notes};
pub use tap::{CHUNKS, Chunk, End, Head, Tap};

pub use compare::Compared;
use copying::Copying;
use effects::Dirty;
pub(crate) use exchange::{LaidDown, NotExchanged};
use handle::{Mailbox, Seen};
use polling::Polling;
use ports::PortSlot;
pub use ssd::Device;
use ssd::Devices;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use undercroft_backend::Backend;
use undercroft_cache::{
    Core, CoreOptions, DiskId, DiskOptions, DiskStats, ExclusiveReport, IoDone, LockReport, Request, limits,
};
use undercroft_frontend::turns::Flows;
use undercroft_frontend::{GuestFile, Peer};
use undercroft_host::{Epoll, Interest, Trigger};

/// How a worker is set up.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// Thread name, at most 15 bytes.
    pub name: String,
    /// The core's memory and limits.
    pub core: CoreOptions,
    /// Longest time that an idle worker looks for new requests before it sleeps, in nanoseconds; 0 sleeps at once.
    pub poll_ns_max: u64,
    /// Percent of one processor that copying and hashing guest memory may take.
    pub copy_cpu_percent: u32,
    /// Whether pages kept from guests are compared with their images first.
    pub check_captures: bool,
}

/// A disk on its worker.
pub(crate) struct Disk {
    /// Which of all disks that the worker has had it is: its number in the core is that of others before and after.
    life: u64,
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) latencies: Box<Latencies>,
    /// How far those of its reads were told.
    pub(crate) told: Told,
    /// Bound for polling that this disk asks for, in nanoseconds.
    pub(crate) poll_ns_max: u64,
    /// Whether operations were submitted since the last kick.
    dirty: bool,
    /// Bytes of those.
    to_start: usize,
    /// Finished operations that the core has not heard of yet: they were too many for one turn.
    done: VecDeque<IoDone>,
    /// Whether the disk stands on the worker's list of disks with operations under way.
    listed: bool,
    /// When an operation last finished, or the first one was started, in nanoseconds.
    progress_ns: u64,
    /// Whether the log says that the image does not answer.
    stalled: bool,
    /// For the log.
    name: String,
    /// What was compared with the image, if that is asked for.
    compared: Compared,
    /// The port through which the memory of the disk's guest is seen.
    guest_port: Option<u32>,
    /// Who waits for the disk to be idle so that it can go; it gets the back end, to close it on its own time.
    leaving: Option<Sender<Box<dyn Backend>>>,
}

/// One worker: see the module.
pub struct Worker {
    core: Core,
    /// Disks that there have been.
    lives: u64,
    disks: Vec<Option<Disk>>,
    /// What the core's SSD store lies on.
    devices: Devices,
    ports: Vec<Option<PortSlot>>,
    /// Ports that are visited, because they had work lately.
    flows: Flows,
    /// Disks with operations under way.
    busy_disks: Vec<u32>,
    dirty: Dirty,
    /// Whether a port waits for its disk to have room.
    starved: bool,
    /// When a busy worker looks for what has woken next.
    news_ns: u64,
    /// What others may know of it without waking it.
    seen: Arc<Seen>,
    /// Whether a port or a disk may wait to be removed.
    leaving: bool,
    epoll: Epoll,
    mailbox: Mailbox,
    polling: Polling,
    copying: Copying,
    check_captures: bool,
    /// Memories of guests that its ports have seen.
    memories: u64,
    /// Operations that failed before they reached a disk.
    refused: Vec<IoDone>,
    /// Harm done by peers, when it was last looked for.
    faults: u64,
    /// Where requests are noted while a recording is on.
    tap: Option<Box<Tap>>,
    /// Set by `stop`: the worker ends when everything is gone.
    stopping: bool,
    now_ns: u64,
    tick_ns: u64,
    // Scratch space of a turn, kept so that no turn allocates.
    requests: Vec<Request>,
    done: Vec<IoDone>,
}

/// What a worker says about one of its disks.
#[derive(Clone, Debug)]
pub struct DiskReport {
    /// The core's counters.
    pub stats: DiskStats,
    /// The disks that it keeps its blocks together with, it among them; empty if it keeps them apart.
    pub pool: Vec<DiskId>,
    /// Latencies of its requests.
    pub latencies: Latencies,
    /// What serves it.
    pub backend: String,
    /// Why requests that change the image, or all of them, fail for good.
    pub refusal: Option<String>,
    /// Operations under way of an image that has answered none for [`STALL_NS`], or those that its back end finds late.
    pub stalled_ops: u64,
    /// Who is connected.
    pub peers: Vec<Peer>,
    /// How the cache stands to the guest's.
    pub exclusive: ExclusiveReport,
    /// What is locked of it.
    pub locks: LockReport,
    /// What was compared with the image, if that is asked for.
    pub compared: Compared,
    /// Why requests of one of its guests wait although the image answers.
    pub waits: Option<&'static str>,
    /// Whether it is being detached.
    pub leaving: bool,
    /// Whether the worker does not answer, so that this is what it said last.
    pub silent: bool,
}

/// An image that finishes nothing for this long, while operations are under way, is said to be stalled; nanoseconds.
pub const STALL_NS: u64 = 5_000_000_000;

/// Why a disk could not be added to a worker.
#[derive(Debug, thiserror::Error)]
pub enum AddDiskError {
    /// The core refused it.
    #[error(transparent)]
    Core(#[from] undercroft_cache::AddDiskError),
    /// The kernel refused to watch the back end's descriptor.
    #[error("cannot watch the back end for completions: {0}")]
    Watch(std::io::Error),
    /// No free place.
    #[error("this daemon already serves {} disks, its limit; start a second daemon for more", limits::DISKS_MAX)]
    TooMany,
}

impl Worker {
    /// Adds a disk with its back end; returns its id.
    ///
    /// # Errors
    /// If the core has no room, or the kernel refuses to watch the descriptor; the back end is dropped then.
    pub fn add_disk(
        &mut self,
        name: String,
        backend: Box<dyn Backend>,
        options: DiskOptions,
        poll_ns_max: u64,
    ) -> Result<DiskId, AddDiskError> {
        let place = self.disks.iter().position(Option::is_none).unwrap_or(self.disks.len());
        if place >= limits::DISKS_MAX {
            return Err(AddDiskError::TooMany);
        }
        let id = DiskId(place as u32);
        self.core.add_disk(id, options)?;
        if let Err(e) =
            self.epoll.add(backend.wake_fd(), turn::token(turn::BACKEND, id.0, 0), Interest::Read, Trigger::Level)
        {
            self.core.remove_disk(id);
            return Err(AddDiskError::Watch(e));
        }
        self.lives += 1;
        let disk = Disk {
            life: self.lives,
            backend,
            latencies: Box::default(),
            told: Told::default(),
            poll_ns_max,
            dirty: false,
            to_start: 0,
            done: VecDeque::new(),
            listed: false,
            progress_ns: 0,
            stalled: false,
            name,
            compared: Compared::default(),
            guest_port: None,
            leaving: None,
        };
        if place == self.disks.len() {
            self.disks.push(Some(disk));
        } else {
            self.disks[place] = Some(disk);
        }
        self.update_polling();
        Ok(id)
    }

    /// Shuts the ports of the disk, and when all that they have taken is answered and the disk is idle takes it out and
    /// sends its back end to `to`. An unknown disk drops `to`.
    ///
    /// The core is not told to refuse requests before the last port is gone: what a turn had taken from a guest and had
    /// no time for is still to be put to it, and a request that is refused is an I/O error in the guest.
    pub fn remove_disk(&mut self, id: DiskId, to: Sender<Box<dyn Backend>>) {
        let Some(disk) = self.disks.get_mut(id.0 as usize).and_then(Option::as_mut) else { return };
        disk.leaving = Some(to);
        // What is fetched unasked would keep it from coming to rest.
        self.core.want_nothing(id);
        for (n, slot) in self.ports.iter_mut().enumerate() {
            if let Some(slot) = slot.as_mut().filter(|s| s.disk == id) {
                slot.port.shut();
                slot.wake(n as u32, &mut self.flows, self.now_ns);
            }
        }
        self.leaving = true;
    }

    /// Which of all disks that the worker has had this one is; `None` if there is none of that id.
    pub(crate) fn life(&self, id: DiskId) -> Option<u64> {
        self.disks.get(id.0 as usize)?.as_ref().map(|d| d.life)
    }

    /// The core, for commands that change or read it.
    pub fn core(&mut self) -> &mut Core {
        &mut self.core
    }

    /// The reads of a disk since this was asked last, or since it was added.
    pub(crate) fn reads_between(&mut self, id: DiskId) -> Option<ReadsBetween> {
        let disk = self.disks.get_mut(id.0 as usize)?.as_mut()?;
        Some(disk.told.between(&disk.latencies))
    }

    /// What there is to say about a disk; `None` if there is none of that id.
    pub fn report(&mut self, id: DiskId) -> Option<DiskReport> {
        let exclusive = self.core.exclusive(id)?;
        // Which blocks miss most is asked for by itself.
        let locks = self.core.lock_summary(id);
        let d = self.disks.get(id.0 as usize)?.as_ref()?;
        Some(DiskReport {
            stats: self.core.stats(id),
            pool: self.core.pool(id).to_vec(),
            latencies: (*d.latencies).clone(),
            backend: d.backend.describe(),
            refusal: d.backend.refusal(),
            stalled_ops: if d.stalled { d.backend.inflight() } else { d.backend.stalled_ops() } as u64,
            peers: self.ports.iter().flatten().filter(|s| s.disk == id).filter_map(|s| s.port.peer()).collect(),
            exclusive,
            locks,
            compared: d.compared,
            waits: self.ports.iter().flatten().filter(|s| s.disk == id).find_map(|s| s.port.memory()?.waits()),
            leaving: d.leaving.is_some(),
            silent: false,
        })
    }

    /// The guest memory that the disk's front ends share.
    pub(crate) fn guest_files(&self, id: DiskId) -> Vec<GuestFile> {
        let ports = self.ports.iter().flatten().filter(|s| s.disk == id);
        ports.filter_map(|s| s.port.memory()).flat_map(|memory| memory.files()).collect()
    }

    /// Changes the polling bound that a disk asks for, in nanoseconds.
    pub(crate) fn set_poll(&mut self, id: DiskId, poll_ns_max: u64) {
        if let Some(d) = self.disks.get_mut(id.0 as usize).and_then(Option::as_mut) {
            d.poll_ns_max = poll_ns_max;
        }
        self.update_polling();
    }

    fn update_polling(&mut self) {
        let bound = self.disks.iter().flatten().map(|d| d.poll_ns_max).max().unwrap_or(0);
        self.polling.set_bound(bound);
    }

    /// Nanoseconds of processor time that copying and hashing contents has taken on this worker.
    pub(crate) fn copying_ns(&self) -> u64 {
        self.copying.spent_ns()
    }

    /// Requests of the tap's disks are noted from now on.
    pub fn record(&mut self, tap: Tap) {
        self.tap = Some(Box::new(tap));
    }

    /// The tap of a recording under way.
    pub(crate) fn tap(&mut self) -> Option<&mut Tap> {
        self.tap.as_deref_mut()
    }

    /// Requests are noted no longer; what has been is handed over.
    pub(crate) fn end_record(&mut self) {
        if let Some(tap) = self.tap.take() {
            tap.finish();
        }
    }

    /// Asks the worker to end when its last disk has gone.
    pub fn stop(&mut self) {
        self.stopping = true;
    }
}
