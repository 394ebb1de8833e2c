//! What clients and guests do.
//!
//! Owns the choice of requests. Never looks at what the core holds. Invariant: a request is one that a front end may
//! pass on, or one that the core must refuse.

use super::Sim;
use crate::world::World;
use undercroft_cache::fault_injection::FaultInjection;
use undercroft_cache::{DiskId, Event, IoError, Op, ReqId, Request};
use undercroft_host::FRAME_BYTES;

const B: u64 = FRAME_BYTES as u64;
/// Requests that may go on before one that was paused earlier.
const PASSED_MAX: u64 = 32;

impl<P: FaultInjection> Sim<P> {
    /// A client begins a request, if it may.
    pub(super) fn request(&mut self) -> bool {
        let d = self.any_disk();
        if self.world.requests.len() >= self.busy || self.core().room(DiskId(d as u32)) == 0 {
            return false;
        }
        let geometry = self.world.sides[d].disk.geometry.clone();
        let fua = self.rng.one_in(6);
        // Some guests hardly write: then more stays of what a disk stands on.
        let op = match self.rng.below(100) {
            _ if self.mostly_reads && !self.rng.one_in(16) => Op::Read,
            0..46 => Op::Read,
            46..80 => Op::Write { fua },
            80..87 => Op::Flush,
            87..92 => Op::WriteZeroes { unmap: self.rng.one_in(2), fua },
            92..97 => Op::Discard,
            _ => Op::Status,
        };
        let (mut offset, mut len) = self.range(d);
        if op == Op::Flush {
            (offset, len) = (0, 0);
        } else if op == Op::Read && self.rng.one_in(3) {
            // The sequential client.
            let side = &mut self.world.sides[d];
            let size = side.disk.space().medium_bytes();
            offset = side.sequential;
            len = (if self.multi_block > 4 { 4 * B } else { B }).min(size - offset);
            side.sequential = (offset + len) % size;
            (offset, len) = self.on_disk(d, offset, len);
        }
        if !self.world.sides[d].disk.space().is_dense() && self.extras.rng.one_in(8) {
            // What takes no memory may be as long as the disk.
            let zeroes = geometry.can_write_zeroes && !geometry.zeroes_lie;
            match op {
                Op::Discard | Op::Status => (offset, len) = (0, geometry.size),
                Op::WriteZeroes { .. } if zeroes => (offset, len) = (0, geometry.size),
                _ => {}
            }
        }
        if op != Op::Flush && self.world.sides[d].disk.space().is_dense() {
            (offset, len) = self.extras.across((offset, len), geometry.size, self.steps);
        }
        let mut must = None;
        if self.rng.one_in(200) {
            (offset, must) = (geometry.size.saturating_sub(self.rng.below(B)), Some(IoError::Invalid));
            len = B + 1 + self.rng.below(u64::MAX / 2);
            if op == Op::Flush {
                must = None;
            }
        }
        if self.disk_options[d].read_only && matches!(op, Op::Write { .. } | Op::WriteZeroes { .. } | Op::Discard) {
            must = Some(IoError::ReadOnly);
        }
        if self.leaving[d] {
            must = Some(IoError::Shutdown);
        }
        let req = Request { id: ReqId { port: 0, tag: 0 }, disk: DiskId(d as u32), op, offset, len };
        let Some(req) = self.world.start(req, must) else { return false };
        let watched = self.watch_locks(&req);
        self.apply(Event::Request(req));
        self.judge_watched(watched);
        true
    }

    /// A range of a disk: hot or anywhere, whole blocks, sectors or bytes, short or long.
    fn range(&mut self, d: usize) -> (u64, u64) {
        let size = self.world.sides[d].disk.space().medium_bytes();
        let (offset, len) = self.range_of_medium(size);
        self.on_disk(d, offset, len)
    }

    /// Where on the disk bytes of its medium are, as far as they are one range there.
    fn on_disk(&self, d: usize, offset: u64, len: u64) -> (u64, u64) {
        let space = self.world.sides[d].disk.space();
        if space.is_dense() {
            return (offset, len);
        }
        let (offset, left) = space.place(offset);
        (offset, len.min(left))
    }

    fn range_of_medium(&mut self, size: u64) -> (u64, u64) {
        let blocks = size.div_ceil(B);
        let hot = if self.rng.one_in(2) { blocks.min(4) } else { blocks };
        let unit = match self.rng.below(10) {
            0..6 => B,
            6..9 => 512,
            _ => 1,
        };
        let most = if self.rng.one_in(3) { self.multi_block * B } else { B };
        let offset = self.rng.below(hot * B) / unit * unit;
        let len = self.rng.between(1, most).div_ceil(unit) * unit;
        let offset = offset.min(size - 1) / unit * unit;
        if self.rng.one_in(60) {
            return (0, size);
        }
        (offset, len.min(size - offset))
    }

    /// The replies are out: the core does what could wait.
    pub(super) fn spare(&mut self) -> bool {
        let copies = !self.rng.one_in(5);
        self.world.note(|| format!("spare time, copies {copies}"));
        self.apply(Event::Spare { copies });
        true
    }

    /// One of the requests that were paused goes on. False if none is.
    pub(super) fn resume(&mut self) -> bool {
        let n = self.world.paused.len() as u64;
        if n == 0 {
            return false;
        }
        let mut i = self.rng.below(n) as usize;
        let World { paused, resumed, .. } = &mut self.world;
        let longest = (0..paused.len()).min_by_key(|&i| paused[i].at).unwrap_or(i);
        // In any order that leaves none out: a worker goes on with each paused request.
        if *resumed - paused[longest].at >= PASSED_MAX {
            i = longest;
        }
        let paused = self.world.goes_on(i);
        self.world.note(|| format!("resume {paused:?}"));
        self.apply(Event::Resume(paused));
        self.leave(paused.disk.0 as usize);
        true
    }
}
