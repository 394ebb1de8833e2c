//! Carries out the core's effects in the daemon: copies go to ports, operations to back ends, and replies are timed.
//!
//! Owns no state but the lists of what a turn touched. Never calls the core.
//! Invariant: whatever is submitted or replied here stands on a dirty list until the end of the turn.

use super::Disk;
use super::compare;
use super::ports::{Kind, PortSlot};
use super::ssd::Devices;
use super::tap::Tap;
use std::collections::VecDeque;
use undercroft_cache::{DiskId, Effects, Extent, Found, Io, IoDone, IoError, IoKind, IoTarget, Op, Paused, ReqId};
use undercroft_host::{faults, probes};

/// What a turn has to kick and flush before it ends.
#[derive(Default)]
pub(super) struct Dirty {
    pub(super) ports: Vec<u32>,
    pub(super) disks: VecDeque<u32>,
    /// Ports that slept when a request of theirs paused: they are to be visited again.
    pub(super) paused: Vec<u32>,
    /// Ports with much to send, in the order in which they are served: each turn sends so many bytes.
    pub(super) sending: VecDeque<u32>,
}

/// The effects of one call of the core.
pub(super) struct Live<'a> {
    pub(super) ports: &'a mut [Option<PortSlot>],
    pub(super) disks: &'a mut [Option<Disk>],
    pub(super) devices: &'a mut Devices,
    pub(super) dirty: &'a mut Dirty,
    /// Whether pages kept from guests are compared with their images first.
    pub(super) check_captures: bool,
    /// The request being applied, if any, until it is replied: at once then, served without a disk.
    pub(super) current: Option<ReqId>,
    /// Whether the read that was last said how it was found needed no disk.
    pub(super) all_found: bool,
    /// Replies given at once; they are timed together at the end of the batch.
    pub(super) at_once: &'a mut u32,
    /// Where the request is noted, if a recording is on.
    pub(super) tap: Option<&'a mut Tap>,
    /// Whether the request being applied is noted there.
    pub(super) noted: bool,
    /// The data of the next write to be submitted is not what the guest wrote: its memory was taken away.
    pub(super) torn: bool,
    /// Operations that do not go to the disk, and have failed.
    pub(super) refused: &'a mut Vec<IoDone>,
    pub(super) now_ns: u64,
}

/// A request's number in probes.
#[inline]
pub(super) fn number(req: ReqId) -> u64 {
    u64::from(req.port) << 32 | u64::from(req.tag)
}

/// What a request asks for, as probes give it.
#[inline]
pub(super) fn op_kind(op: Op) -> u8 {
    match op {
        Op::Read => probes::kind::READ,
        Op::Write { .. } => probes::kind::WRITE,
        Op::Flush => probes::kind::FLUSH,
        Op::Discard => probes::kind::DISCARD,
        Op::WriteZeroes { .. } => probes::kind::WRITE_ZEROES,
        Op::Status => probes::kind::STATUS,
    }
}

/// The same of an operation.
fn io_kind(kind: IoKind) -> u8 {
    match kind {
        IoKind::Read => probes::kind::READ,
        IoKind::Write { .. } => probes::kind::WRITE,
        IoKind::Flush => probes::kind::FLUSH,
        IoKind::Discard => probes::kind::DISCARD,
        IoKind::WriteZeroes { .. } => probes::kind::WRITE_ZEROES,
        IoKind::Status => probes::kind::STATUS,
    }
}

impl Live<'_> {
    #[inline]
    fn port(&mut self, req: ReqId) -> Option<&mut PortSlot> {
        let slot = self.ports.get_mut(req.port as usize).and_then(Option::as_mut);
        debug_assert!(slot.is_some(), "an effect for a port that is gone");
        slot
    }
}

impl Effects for Live<'_> {
    #[inline]
    fn copy_out(&mut self, req: ReqId, at: usize, bytes: &[u8]) {
        if let Some(slot) = self.port(req) {
            slot.port.copy_out(req.tag, at, bytes);
        }
    }

    #[inline]
    fn copy_in(&mut self, req: ReqId, at: usize, bytes: &mut [u8]) {
        if let Some(slot) = self.port(req) {
            slot.port.copy_in(req.tag, at, bytes);
            // Nobody has done harm since this process began, as a rule.
            if faults() != 0 && slot.port.memory_mut().is_some_and(|memory| memory.is_torn(req.tag)) {
                self.torn = true;
            }
        }
    }

    #[inline]
    fn guest_page(&mut self, req: ReqId, at: usize) -> Option<u32> {
        self.port(req)?.port.memory_mut()?.page(req.tag, at)
    }

    #[inline]
    fn guest_pages(&mut self, req: ReqId, at: usize, pages: &mut [u32]) -> usize {
        let memory = self.port(req).and_then(|slot| slot.port.memory_mut());
        memory.map_or(0, |memory| memory.pages(req.tag, at, pages))
    }

    #[inline]
    fn copy_guest_page(&mut self, disk: DiskId, page: u32, to: &mut [u8; 4096]) -> bool {
        let port = self.disks.get(disk.0 as usize).and_then(Option::as_ref).and_then(|d| d.guest_port);
        let slot = port.and_then(|id| self.ports.get_mut(id as usize)).and_then(Option::as_mut);
        let memory = slot.filter(|s| s.disk == disk).and_then(|s| s.port.memory_mut());
        memory.is_some_and(|memory| memory.copy_page(page, to))
    }

    #[inline]
    fn captured(&mut self, disk: DiskId, at: u64, bytes: &[u8; 4096]) -> bool {
        probes::capture(disk.0, at / 4096);
        if !self.check_captures {
            return true;
        }
        let Some(disk) = self.disks.get_mut(disk.0 as usize).and_then(Option::as_mut) else { return true };
        compare::with_image(disk, at, bytes)
    }

    fn submit(&mut self, io: Io) {
        // An operation is submitted right after its data was copied.
        if self.torn && matches!(io.kind, IoKind::Write { .. }) {
            self.torn = false;
            let Io { op, disk, buf, .. } = io;
            self.refused.push(IoDone { op, disk, buf, result: Err(IoError::Io), extents: Vec::new() });
            return;
        }
        let id = io.disk.0;
        if let IoTarget::Ssd(device) = io.target {
            probes::submit(id, io.op.0, io_kind(io.kind), io.offset, io.len);
            return self.devices.submit(device, io);
        }
        let Some(disk) = self.disks.get_mut(id as usize).and_then(Option::as_mut) else {
            panic!("the core submitted an operation for disk {id}, which is gone");
        };
        probes::submit(id, io.op.0, io_kind(io.kind), io.offset, io.len);
        disk.to_start += io.buf.len as usize;
        disk.backend.submit(io);
        if !disk.dirty {
            disk.dirty = true;
            self.dirty.disks.push_back(id);
        }
    }

    fn found(&mut self, req: ReqId, found: Found) {
        self.all_found = found.joined == 0 && found.missed == 0;
        probes::found(number(req), found.hits, found.joined, found.missed);
        match &mut self.tap {
            Some(tap) if self.current != Some(req) => tap.found_late(req, found),
            Some(tap) if self.noted => tap.found(found),
            _ => {}
        }
    }

    fn paused(&mut self, req: ReqId, paused: Paused) {
        // Memory that is gone stays gone: the copy that completes the operation finds it so again.
        self.torn = false;
        if let Some(slot) = self.port(req) {
            let active = slot.active;
            if slot.backlog.pause(req.tag, paused, active) {
                self.dirty.paused.push(req.port);
            }
        }
    }

    /// The rest comes before what finished later, and after a look at the disks that want little.
    fn unfinished(&mut self, done: IoDone) {
        if let Some(disk) = self.disks.get_mut(done.disk.0 as usize).and_then(Option::as_mut) {
            disk.done.push_front(done);
        }
    }

    fn extents(&mut self, req: ReqId, extents: &[Extent]) {
        if let Some(slot) = self.port(req) {
            slot.port.extents(req.tag, extents);
        }
    }

    fn unheard(&mut self, req: ReqId) -> bool {
        self.port(req).is_some_and(|slot| slot.port.unheard())
    }

    #[inline]
    fn reply(&mut self, req: ReqId, result: Result<(), IoError>) {
        let now_ns = self.now_ns;
        let at_once = self.current == Some(req);
        let Some(slot) = self.ports.get_mut(req.port as usize).and_then(Option::as_mut) else {
            debug_assert!(false, "a reply to a port that is gone");
            return;
        };
        probes::reply(number(req), result.is_ok());
        slot.port.reply(req.tag, result);
        if at_once {
            self.current = None;
        }
        if let Some(tap) = &mut self.tap {
            match result {
                _ if !at_once => tap.replied_late(req, result, now_ns),
                Err(e) if self.noted => tap.refused(e),
                _ => {}
            }
        }
        if !slot.dirty {
            slot.dirty = true;
            self.dirty.ports.push(req.port);
        }
        let (start_ns, kind) = slot.started(req.tag);
        let all_found = std::mem::take(&mut self.all_found);
        if at_once && kind == Kind::Read {
            *self.at_once += 1;
            probes::hit(number(req));
        } else if let Some(disk) = self.disks.get_mut(slot.disk.0 as usize).and_then(Option::as_mut) {
            let took_ns = now_ns.saturating_sub(start_ns);
            match kind {
                // A long one, in steps.
                Kind::Read if all_found => {
                    disk.latencies.read_hit.record(took_ns);
                    probes::hit(number(req));
                }
                Kind::Read => disk.latencies.read_miss.record(took_ns),
                Kind::Write => disk.latencies.write.record(took_ns),
                Kind::Flush => disk.latencies.flush.record(took_ns),
                Kind::Other => {}
            }
        }
    }
}
