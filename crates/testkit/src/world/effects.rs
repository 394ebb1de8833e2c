//! What the core asks of the world: data to clients and from them, operations of disks, answers.
//!
//! Owns the core's side of the world, and checks every call as it comes. Never calls the core. Invariant: what the core
//! does for a request that is not under way, or past its end, is a violation.

use super::{Resumable, World};
use crate::coverage::Seen;
use crate::rng::fill_pattern;
use undercroft_cache::{DiskId, Effects, Extent, Found, Io, IoDone, IoError, IoKind, IoTarget, Op, Paused, ReqId};
use undercroft_host::FRAME_BYTES;

impl Effects for World {
    fn found(&mut self, req: ReqId, found: Found) {
        if let Some(p) = self.requests.get_mut(&req.tag) {
            p.found = Some(found);
        }
    }

    fn copy_out(&mut self, req: ReqId, at: usize, bytes: &[u8]) {
        let Some(p) = self.requests.get_mut(&req.tag) else {
            return self.violate(format!("data for {req:?}, which is not under way"));
        };
        if p.req.op != Op::Read || bytes.is_empty() || at + bytes.len() > p.data.len() {
            let what = format!("data past the end of {:?}", p.req);
            return self.violate(what);
        }
        p.data[at..at + bytes.len()].copy_from_slice(bytes);
        p.copied[at..at + bytes.len()].iter_mut().for_each(|n| *n = n.saturating_add(1));
        let side = &self.sides[p.req.disk.0 as usize];
        let opaque = side.opaque;
        let sees = side.sees.filter(|_| p.memory == side.memory);
        if let Some(guest) = sees.and_then(|id| self.memories.get_mut(&id)) {
            let mut done = 0;
            while done < bytes.len() {
                let (page, skip) = ((at + done) / FRAME_BYTES, (at + done) % FRAME_BYTES);
                let here = (FRAME_BYTES - skip).min(bytes.len() - done);
                if let Some(&page) = p.pages.get(page) {
                    guest.fill(page, skip, &bytes[done..done + here], opaque);
                }
                done += here;
            }
        }
    }

    fn guest_page(&mut self, req: ReqId, at: usize) -> Option<u32> {
        let p = self.requests.get(&req.tag)?;
        let side = &self.sides[p.req.disk.0 as usize];
        if !at.is_multiple_of(FRAME_BYTES) || p.memory != side.memory || at + FRAME_BYTES > p.data.len() {
            return None;
        }
        let page = p.pages.get(at / FRAME_BYTES).copied()?;
        let (disk, place) = (p.req.disk.0 as usize, p.req.offset + at as u64);
        self.guest(disk)?.moves(page, disk, place);
        Some(page)
    }

    fn copy_guest_page(&mut self, disk: DiskId, page: u32, to: &mut [u8; FRAME_BYTES]) -> bool {
        let sees = self.sides[disk.0 as usize].sees;
        let guest = sees.and_then(|id| self.memories.get_mut(&id));
        guest.is_some_and(|g| g.copy(page, to, &mut self.guest_rng))
    }

    fn captured(&mut self, disk: DiskId, at: u64, bytes: &[u8; FRAME_BYTES]) -> bool {
        self.captures += 1;
        self.captures_across += u64::from(!at.is_multiple_of(FRAME_BYTES as u64));
        self.see(Seen::Capture, disk.0 as usize);
        self.note(|| format!("  captured what disk {} has at {at}", disk.0));
        let now = self.time;
        let side = &mut self.sides[disk.0 as usize];
        // As a read at this moment: it must be what the disk holds, or may hold.
        if let Err(what) = side.model.check_read(at, bytes, now, now) {
            self.violate(format!("a captured page is not the block: {what}"));
        }
        true
    }

    fn copy_in(&mut self, req: ReqId, at: usize, bytes: &mut [u8]) {
        let Some(p) = self.requests.get_mut(&req.tag) else {
            return self.violate(format!("fetching from {req:?}, which is not under way"));
        };
        if !matches!(p.req.op, Op::Write { .. }) || at + bytes.len() > p.copied.len() {
            let what = format!("fetching past the end of {:?}", p.req);
            return self.violate(what);
        }
        p.copied[at..at + bytes.len()].iter_mut().for_each(|n| *n += 1);
        fill_pattern(p.number, p.req.offset + at as u64, bytes);
    }

    fn submit(&mut self, io: Io) {
        self.note(|| format!("  submit {:?} disk {} {:?} {}+{}", io.op, io.disk.0, io.kind, io.offset, io.len));
        self.time += 1;
        let now = self.time;
        if let Some(device) = device_of(&io) {
            if let Err(why) = self.devices[device].submit(io, now) {
                self.violate(why);
            }
            return;
        }
        let side = &mut self.sides[io.disk.0 as usize];
        let changes = matches!(io.kind, IoKind::Write { .. } | IoKind::WriteZeroes { .. } | IoKind::Discard);
        if let Some(base) = side.base.as_mut().filter(|_| changes) {
            base.change(io.offset, io.len);
        }
        if io.kind == IoKind::Flush && side.expects_flush {
            side.own_flushes.push(io.op);
        }
        if let Err(why) = self.sides[io.disk.0 as usize].disk.submit(io, now) {
            self.violate(why);
        }
    }

    fn paused(&mut self, req: ReqId, paused: Paused) {
        self.note(|| format!("  paused {req:?}"));
        let deliveries = self.sides[paused.disk.0 as usize].disk.deliveries;
        self.paused.push(Resumable { paused, tag: req.tag, at: self.resumed, deliveries });
    }

    fn unfinished(&mut self, done: IoDone) {
        self.note(|| format!("  a part of an operation, {:?} is left", done.op));
        self.sides[done.disk.0 as usize].disk.deliver_later(done);
    }

    fn extents(&mut self, req: ReqId, extents: &[Extent]) {
        let Some(p) = self.requests.get_mut(&req.tag) else {
            return self.violate(format!("extents for {req:?}, which is not under way"));
        };
        let sum: u64 = extents.iter().map(|e| e.len).sum();
        if p.req.op != Op::Status || sum == 0 || sum > p.req.len {
            let what = format!("extents of {sum} bytes for {:?}", p.req);
            return self.violate(what);
        }
        p.copied = vec![1];
        let (mut at, start) = (p.req.offset, p.start);
        let side = &self.sides[p.req.disk.0 as usize];
        for e in extents {
            if e.zero && side.disk.honest && !side.model.may_be_zero(at, e.len, start) {
                let what = format!("{} bytes at {at} were said to be zero, and cannot have been since {start}", e.len);
                return self.violate(what);
            }
            at += e.len;
        }
    }

    fn reply(&mut self, req: ReqId, result: Result<(), IoError>) {
        self.note(|| format!("  reply {req:?} {result:?}"));
        self.time += 1;
        self.answers += 1;
        let Some(p) = self.requests.remove(&req.tag) else {
            return self.violate(format!("an answer for {req:?}, which is not under way"));
        };
        if p.req.op == Op::Status && p.must.is_none() && result.is_ok() && p.req.len > 0 && p.copied.is_empty() {
            return self.violate(format!("{:?} was answered without extents", p.req));
        }
        if let Err(what) = self.judge(p, result) {
            self.violate(what);
        }
    }
}

/// The device that an operation is for, if it is not for an image.
fn device_of(io: &Io) -> Option<usize> {
    match io.target {
        IoTarget::Ssd(device) => Some(usize::from(device)),
        IoTarget::Image => None,
    }
}
