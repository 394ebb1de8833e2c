//! Front ends: what guests and clients talk to. One folder per protocol.
//!
//! Owns sockets, rings and request tags. Never knows about caching or images.
//! Invariant: nothing a guest or client sends causes a panic, a hang of another disk, or memory past a fixed bound.

#![forbid(unsafe_code)]

pub mod budget;
mod buffers;
pub mod faults;
mod filled;
pub mod fuse;
pub mod nbd;
mod reach;
pub mod socket;
pub mod turns;
pub mod ublk;
pub mod vhost;

use std::fs::File;
use std::ops::{Deref, DerefMut};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use undercroft_cache::{DiskId, Extent, Geometry, IoError, Request};

/// One source of requests for one disk: a vhost-user device with all its queues, or one NBD connection. It is moved to
/// the worker thread that owns the disk and driven by it; everything that may wait (accepting, handshakes, vhost-user
/// messages) happens on other threads, which reach the port by sending closures to the worker.
pub trait Port: Send {
    /// Appends at most `budget` checked requests to `out` (their `id.tag` chosen here, their `id.port` and `disk` as
    /// given by `attach`). Malformed requests are answered inside. Returns whether there may be more at once.
    fn take(&mut self, budget: usize, out: &mut Vec<Request>) -> bool;

    /// Copies reply data of request `tag`; see `Effects::copy_out`. The same bytes may come more than once: the last
    /// ones count.
    fn copy_out(&mut self, tag: u32, at: usize, bytes: &[u8]);

    /// Copies write data of request `tag`; see `Effects::copy_in`.
    fn copy_in(&mut self, tag: u32, at: usize, bytes: &mut [u8]);

    /// Block-status answer of request `tag`.
    fn extents(&mut self, tag: u32, extents: &[Extent]);

    /// Request `tag` is finished; the tag is free again. A read is answered with success only if all of its data has
    /// been copied out since it was taken, whatever `result` says.
    fn reply(&mut self, tag: u32, result: Result<(), IoError>);

    /// Whether the last reply, [`IoError::Lost`], reached nobody, since the peer that had asked is gone; whoever comes
    /// in its place asks again.
    fn unheard(&self) -> bool {
        false
    }

    /// A request whose failure told of lost writes and was answered, but not sent or not visible when its peer went, so
    /// that it reached nobody either. Asked until there is none, after anything that may end a session, and before the
    /// port is dropped.
    fn take_unheard(&mut self) -> Option<u32> {
        None
    }

    /// Sends what the replies since the last time need: one notification, or what the socket takes, of which `most`
    /// bytes (more than 0). Called several times in a batch, so that the peer works while the rest is served.
    fn flush(&mut self, most: usize);

    /// Whether `flush` has left something that could go out at once, for it had sent as much as one call should.
    fn has_more_to_send(&self) -> bool {
        false
    }

    /// Bytes that `flush` copies to get rid of everything, as far as they are known.
    fn bytes_to_send(&self) -> usize {
        0
    }

    /// Prepares for sleep: turns notifications on. Returns true if requests came meanwhile (then do not sleep).
    fn arm(&mut self) -> bool;

    /// Ends the need for notifications while the worker polls.
    fn disarm(&mut self);

    /// The descriptors that wake the worker for this port, each with a token of the port's own. They are registered
    /// edge-triggered, for reading and (sockets) writing. Called again after `fds_changed` returned true.
    fn fds(&self) -> Vec<(BorrowedFd<'_>, PortInterest)>;

    /// Whether `fds` would now return something else than at the last call of `fds`.
    fn fds_changed(&mut self) -> bool;

    /// Requests taken and not yet replied.
    fn inflight(&self) -> usize;

    /// Whether the port is finished (peer gone, protocol violated) and can be dropped once `inflight` is 0.
    fn is_closed(&self) -> bool;

    /// Stops taking requests; those under way will still be replied. Called when the disk detaches or the daemon stops.
    fn shut(&mut self);

    /// The process is about to end, and with it what only this process can send: what has not been sent reaches nobody.
    /// Nothing to do for a port whose peer goes on with the process that follows, or that is told of all when it asks.
    fn process_ends(&mut self) {}

    /// Who is at the other end, for `status`; `None` while nobody is.
    fn peer(&self) -> Option<Peer>;

    /// For a downcast by the front end that created the port.
    fn as_any(&mut self) -> &mut dyn std::any::Any;
}

/// A port that copies from and to the memory of a guest. A front end without guest memory implements nothing of this.
pub trait GuestMemory: Port {
    /// Pages of guest memory that the port sees, if that has changed since the last call, or is mapped anew. 0 if there
    /// is none.
    fn memory_changed(&mut self) -> Option<u32>;

    /// Whether the guest has begun afresh since the last call: it was reset, so it uses nothing of what its pages hold.
    fn began_afresh(&mut self) -> bool;

    /// The page of guest memory that bytes `at .. at + 4096` of request `tag` are; see `Effects::guest_page`.
    fn page(&mut self, tag: u32, at: usize) -> Option<u32>;

    /// The same for the pages from byte `at` on, one after another: fills `pages`, and says how many of the first ones
    /// there are.
    fn pages(&mut self, tag: u32, at: usize, pages: &mut [u32]) -> usize;

    /// Copies a page of guest memory; false if there is none of that number.
    fn copy_page(&mut self, page: u32, to: &mut [u8; 4096]) -> bool;

    /// The files of the guest memory that the port sees, for the scanner, which reads them and never their mapping.
    fn files(&self) -> Vec<GuestFile>;

    /// Why requests of the guest wait although nothing is under way, if they do; see
    /// [`undercroft_hostmem::pressure::GuestRoom`].
    fn waits(&self) -> Option<&'static str>;

    /// Harm that the guest's front end has done, for which it is to be dropped: it took memory away that we share, or
    /// made us wait for it. Asked when [`undercroft_host::faults`] has changed.
    fn harm(&self) -> Option<&'static str>;

    /// Ends the connection and forgets the front end, and serves the next one. Requests under way are still replied.
    fn drop_peer(&mut self);

    /// Whether the memory that data of request `tag` is copied from was taken away, so that what was copied is nothing
    /// that the guest wrote. Asked after `copy_in`, once there has been harm.
    fn is_torn(&mut self, tag: u32) -> bool;
}

/// A port as its worker owns it. Every call of it is one dynamic call, those of [`GuestMemory`] included.
pub enum AnyPort {
    /// One that sees no guest memory.
    Plain(Box<dyn Port>),
    /// One that does.
    Guest(Box<dyn GuestMemory>),
}

impl AnyPort {
    /// A port that sees no guest memory.
    pub fn plain(port: impl Port + 'static) -> AnyPort {
        AnyPort::Plain(Box::new(port))
    }

    /// A port that sees the memory of a guest.
    pub fn guest(port: impl GuestMemory + 'static) -> AnyPort {
        AnyPort::Guest(Box::new(port))
    }

    /// The guest's memory, if the port sees any.
    #[inline]
    pub fn memory(&self) -> Option<&dyn GuestMemory> {
        match self {
            AnyPort::Plain(_) => None,
            AnyPort::Guest(port) => Some(&**port),
        }
    }

    /// The guest's memory, for calls that change it.
    #[inline]
    pub fn memory_mut(&mut self) -> Option<&mut dyn GuestMemory> {
        match self {
            AnyPort::Plain(_) => None,
            AnyPort::Guest(port) => Some(&mut **port),
        }
    }
}

impl Deref for AnyPort {
    type Target = dyn Port;

    #[inline]
    fn deref(&self) -> &(dyn Port + 'static) {
        match self {
            AnyPort::Plain(port) => &**port,
            AnyPort::Guest(port) => &**port,
        }
    }
}

impl DerefMut for AnyPort {
    #[inline]
    fn deref_mut(&mut self) -> &mut (dyn Port + 'static) {
        match self {
            AnyPort::Plain(port) => &mut **port,
            AnyPort::Guest(port) => &mut **port,
        }
    }
}

/// Who is at the other end of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Which protocol it speaks.
    pub protocol: Protocol,
    /// What is known of it: `4 queues, 128MiB of memory`, `127.0.0.1:51342`.
    pub name: String,
}

/// A piece of guest memory: a part of a file that its front end shares.
#[derive(Clone, Debug)]
pub struct GuestFile {
    /// The file.
    pub file: Arc<File>,
    /// Where the piece begins in it, in bytes.
    pub offset: u64,
    /// The guest physical address of its first byte.
    pub guest: u64,
    /// Bytes.
    pub len: u64,
}

/// Protocols of front ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// vhost-user-blk.
    VhostUser,
    /// Network block device.
    Nbd,
    /// A file of the host (FUSE).
    Fuse,
    /// A block device of the host (ublk).
    Ublk,
}

/// What a descriptor of a port is watched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortInterest {
    /// Readable: an eventfd (never read, edge-triggered).
    Read,
    /// Readable and writable: a socket.
    ReadWrite,
}

/// What a front end tells its peers about a disk.
#[derive(Clone, Debug)]
pub struct DiskInfo {
    /// The disk's name in the configuration: its NBD export name.
    pub name: String,
    /// Its id in the worker's core; goes into every request.
    pub disk: DiskId,
    /// What the back end is like.
    pub geometry: Geometry,
    /// Serial number that guests see, at most 20 bytes of printable ASCII.
    pub serial: String,
}

/// Builds a port, given its id, on the worker's thread.
pub type MakePort = Box<dyn FnOnce(u32) -> AnyPort + Send>;

/// What a front end has done to its port, on the worker's thread.
pub type OnPort = Box<dyn FnOnce(&mut dyn Port) + Send>;

/// The way from a front end's own threads to the worker that owns one disk; one instance per disk.
pub trait PortHost: Send + Sync {
    /// A number of the worker's, the same for all of its disks and no other's: who calls hosts of one number at a time
    /// waits for the same thread.
    fn worker(&self) -> usize {
        0
    }

    /// Lets `make` build a port, given its id, and moves it to the worker. Returns the id; `u32::MAX` if there is no
    /// port, because the worker does not answer or the disk is gone, whatever has taken its number since.
    fn attach(&self, make: MakePort) -> u32;

    /// Runs `f` on the worker thread with the port, between two turns, and returns when it has run; false if the port
    /// is gone. After `f`, the worker looks at the port's descriptors and requests afresh.
    fn with(&self, port: u32, f: OnPort) -> bool;

    /// The guest at a port of the disk starts to run: a queue of it is about to be started. Called on a front end's own
    /// thread, before the port hears of it; returns at once.
    fn guest_starts(&self) {}

    /// The guest has stopped while its memory is logged, and all of its requests are answered: it goes on elsewhere, as
    /// a rule. Called as the other one, after its last queue has come to rest; the front end hears of that when `until`
    /// is dropped, which is to be soon, since a hypervisor waits for it.
    fn guest_moves(&self, _until: Box<dyn Send>) {}

    /// Shuts the port, waits until its requests under way are finished, drops it, returns.
    fn detach(&self, port: u32);
}
