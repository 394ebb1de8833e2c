//! A port of the simulation: who is at its other end, and what the worker knows of it.
//!
//! Owns what a port has besides its disk. Never decides what is asked for, or judges an answer. Invariant: a port that
//! is visited is `active`.

use super::losses::Told;
use super::serve::Waited;
use crate::faults::Switched;
use crate::fuse::sim_file::SimFile;
use crate::nbd::sim_client::SimClient;
use crate::ublk::sim_device::SimBlockDevice;
use crate::vhost::sim_guest::SimGuest;
use crate::work::Work;
use undercroft_frontend::turns::Backlog;
use undercroft_frontend::{GuestMemory, Port};

/// Who is at a port.
pub(super) enum Peer {
    Guest(Box<SimGuest>),
    Client(Box<SimClient>),
    File(Box<SimFile>),
    Device(Box<SimBlockDevice>),
}

/// What clients of NBD speak, for the matrix.
pub(super) const OVER_NBD: &str = "NBD";

impl Peer {
    /// What it speaks, for the matrix.
    pub(super) fn over(&self) -> &'static str {
        match self {
            Peer::Guest(_) => "virtio",
            Peer::Client(_) => OVER_NBD,
            Peer::File(_) => "FUSE",
            Peer::Device(_) => "ublk",
        }
    }

    /// Whether it has begun to go.
    pub(super) fn is_leaving(&self) -> bool {
        match self {
            Peer::Guest(_) => false,
            Peer::Client(c) => c.leaving,
            Peer::File(f) => f.unmounted,
            Peer::Device(b) => b.stopped,
        }
    }
}

/// One port and its peer.
pub(super) struct SimPort {
    pub peer: Peer,
    pub disk: usize,
    /// The worker visits it.
    pub active: bool,
    /// It waits, unvisited, until its disk has room for requests.
    pub starved: bool,
    /// It has replies to send.
    pub dirty: bool,
    /// Requests taken that are not finished.
    pub backlog: Backlog<Switched>,
    /// What it has waited for since it was visited.
    pub waited: Waited,
    /// What its client knows of lost writes.
    pub told: Told,
    /// When its client seemed to have been told: what was under way then may have been what told it.
    pub told_at: u64,
}

impl SimPort {
    /// A port that nobody visits yet.
    pub(super) fn new(peer: Peer, disk: usize) -> SimPort {
        SimPort {
            peer,
            disk,
            active: false,
            starved: false,
            dirty: false,
            backlog: Backlog::default(),
            waited: Waited::default(),
            told: Told::default(),
            told_at: 0,
        }
    }

    pub(super) fn port(&mut self) -> &mut dyn Port {
        match &mut self.peer {
            Peer::Guest(g) => g.as_port(),
            Peer::Client(c) => c.as_port(),
            Peer::File(f) => f.as_port(),
            Peer::Device(b) => b.as_port(),
        }
    }

    /// The guest's memory, if there is a guest.
    pub(super) fn memory(&mut self) -> Option<&mut dyn GuestMemory> {
        match &mut self.peer {
            Peer::Guest(g) => Some(&mut g.port),
            Peer::Client(_) | Peer::File(_) | Peer::Device(_) => None,
        }
    }

    /// The guest, if there is one.
    pub(super) fn guest(&mut self) -> Option<&mut SimGuest> {
        match &mut self.peer {
            Peer::Guest(g) => Some(g),
            Peer::Client(_) | Peer::File(_) | Peer::Device(_) => None,
        }
    }

    pub(super) fn under_way(&self) -> usize {
        match &self.peer {
            Peer::Guest(g) => g.under_way(),
            Peer::Client(c) => c.under_way(),
            Peer::File(f) => f.under_way(),
            Peer::Device(b) => b.under_way(),
        }
    }

    pub(super) fn works(&mut self) -> Box<dyn Iterator<Item = &mut Work> + '_> {
        match &mut self.peer {
            Peer::Guest(g) => Box::new(g.works()),
            Peer::Client(c) => Box::new(c.works()),
            Peer::File(f) => Box::new(f.works()),
            Peer::Device(b) => Box::new(b.works()),
        }
    }
}
