//! What a worker keeps for each port: its disk, its descriptors, when its requests began.
//!
//! Owns requests between two visits only. Never talks to the core. Invariant: a port is in the queues of `turns`
//! exactly if `active` is set; a port with requests that wait or are paused is active, or waits for room.

use super::guests::SeenMemory;
use std::sync::mpsc::Sender;
use undercroft_cache::{DiskId, Op, Request};
use undercroft_frontend::AnyPort;
use undercroft_frontend::turns::{Backlog, Flows};

/// Classes of requests that are timed apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
    Flush,
    Other,
}

/// A port on its worker.
pub(super) struct PortSlot {
    pub(super) port: AnyPort,
    pub(super) disk: DiskId,
    /// Whether replies wait to be flushed.
    pub(super) dirty: bool,
    /// Whether it stands among those with much to send.
    pub(super) sends: bool,
    /// Whether the port is visited.
    pub(super) active: bool,
    /// Requests taken that are not finished.
    pub(super) backlog: Backlog,
    /// Whether it waits, off the active list, until its disk has room for requests.
    pub(super) starved: bool,
    /// The guest memory that it sees, if it sees any.
    pub(super) memory: Option<SeenMemory>,
    /// When it last had a request, or was sent much, in nanoseconds.
    pub(super) worked_ns: u64,
    /// Who waits for the port to be gone.
    pub(super) leaving: Vec<Sender<()>>,
    /// Start and kind of the request under each tag. Tags are dense, so this stops growing soon.
    starts: Vec<(u64, Kind)>,
}

impl PortSlot {
    pub(super) fn new(port: AnyPort, disk: DiskId) -> Self {
        Self {
            port,
            disk,
            dirty: false,
            sends: false,
            active: false,
            backlog: Backlog::default(),
            starved: false,
            memory: None,
            worked_ns: 0,
            leaving: Vec::new(),
            starts: Vec::with_capacity(256),
        }
    }

    /// Has the port visited from now on, if it is not.
    pub(super) fn wake(&mut self, id: u32, flows: &mut Flows, now_ns: u64) {
        self.worked_ns = now_ns;
        if !self.active {
            self.active = true;
            self.port.disarm();
            flows.add(self.disk.0, id);
        }
    }

    /// Notes when a request came and of which kind it is.
    #[inline]
    pub(super) fn start(&mut self, request: &Request, now_ns: u64) {
        let kind = match request.op {
            Op::Read => Kind::Read,
            Op::Write { .. } => Kind::Write,
            Op::Flush => Kind::Flush,
            Op::Discard | Op::WriteZeroes { .. } | Op::Status => Kind::Other,
        };
        let tag = request.id.tag as usize;
        if tag >= self.starts.len() {
            self.starts.resize(tag + 1, (0, Kind::Other));
        }
        self.starts[tag] = (now_ns, kind);
    }

    /// When the request under `tag` came, and its kind.
    #[inline]
    pub(super) fn started(&self, tag: u32) -> (u64, Kind) {
        self.starts.get(tag as usize).copied().unwrap_or((u64::MAX, Kind::Other))
    }
}
