//! A disk that is slow, unfair and unreliable within the limits of what real ones may do.
//!
//! Owns a medium, and the operations under way. Never answers an operation at once, nor in order.
//!
//! The faults it has:
//! - Two phases. An operation takes effect at some later step (*execute*), perhaps in two parts, and its completion
//!   comes at another still later step (*deliver*); the order is anybody's guess in both.
//! - An operation may fail. A write or zeroes that fails has written any subset of its sectors; a read that fails has
//!   filled its buffer with rubbish.
//! - It may stall: nothing executes, nothing is delivered, until it goes on.
//! - Writes go to a volatile cache. A flush makes durable what had been *delivered* when it was *sent*, and no more.
//!   A write with FUA is durable when it is executed.
//! - In a crash, each volatile sector is kept or lost on its own; operations under way are executed, in part, or not.
//! - A discard zeroes some sectors and not others. Write-zeroes may turn out unsupported.
//! - A sector may be bad: no read that touches it succeeds. Writes of it do.
//! - Another program may write to it ([`SimDisk::written_elsewhere`]), or it may lose what is volatile while it runs
//!   ([`SimDisk::lose`]).
//! - What it tells of its allocation is true if `honest`, but it need not tell all, or anything.
//!
//! It refuses, as a violation, what the contract of `undercroft_cache::Io` forbids: operations past the end, or not
//! aligned, or without the memory they need, or of a kind the disk does not have.

use crate::model::SECTOR;
use crate::rng::Rng;
use crate::space::Space;
use std::collections::HashMap;
use std::rc::Rc;
use undercroft_cache::{DiskId, Extent, Io, IoDone, IoError, IoKind};
use undercroft_host::{FRAME_BYTES, IoBuf};

/// What a simulated disk is like.
#[derive(Clone, Debug)]
pub struct SimGeometry {
    /// Bytes, all of them reachable.
    pub size: u64,
    /// Alignment of offsets and lengths.
    pub align: u64,
    /// Whether it takes discards.
    pub can_discard: bool,
    /// Whether it says that it takes write-zeroes.
    pub can_write_zeroes: bool,
    /// Whether write-zeroes fail as unsupported all the same.
    pub zeroes_lie: bool,
    /// One operation in so many fails; 0 for none.
    pub fails_one_in: u64,
}

/// What an operation was that failed.
#[derive(Clone, Copy, Debug)]
pub struct Failure {
    /// When its failure was delivered.
    pub at: u64,
    /// What it did.
    pub kind: IoKind,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Its error.
    pub error: IoError,
    /// How many operations had been delivered then.
    pub nth: u64,
}

const B: u64 = FRAME_BYTES as u64;

/// Failures that are remembered, unless those who may need them are older.
const FAILURES: usize = 64;

struct Op {
    io: Io,
    number: u64,
    sent: u64,
    /// Bytes executed.
    progress: u64,
    /// Others that took effect or were delivered while it could have been.
    passed: u64,
    outcome: Option<(Result<(), IoError>, Vec<Extent>)>,
}

struct Volatile {
    sector: usize,
    number: u64,
    bytes: Box<[u8]>,
}

/// See the head of the file.
pub struct SimDisk {
    /// What it is like; the rate of failures may be changed.
    pub geometry: SimGeometry,
    /// Bytes of the disk that make reads fail which touch their sectors.
    pub bad: Vec<u64>,
    /// Whether it tells the truth about its allocation, or anything.
    pub honest: bool,
    /// An operation that so many others passed, taking effect or being delivered, is the next.
    pub patience: u64,
    /// One read in so many has a bit that was not written; 0 for none.
    pub garbles_one_in: u64,
    /// Operations delivered so far.
    pub deliveries: u64,
    /// Failures delivered: reads, writes, flushes, discards and zeroes, statuses; reads of bad sectors once more.
    pub failures_of: [u64; 6],
    /// The last failures delivered.
    pub failed: Vec<Failure>,
    space: Rc<Space>,
    live: Vec<u8>,
    durable: Vec<u8>,
    volatile: Vec<Volatile>,
    delivered: HashMap<u64, u64>,
    ops: Vec<Op>,
    /// Completions of which the core has dealt with a part.
    rests: Vec<IoDone>,
    numbers: u64,
    /// Failures delivered so far.
    pub failures: u64,
    /// Counts changes of what it holds, as a file's time of modification does.
    pub changes: u64,
}

/// An operation that the contract of [`Io`] forbids.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an operation that {why}: {kind:?} of {len} bytes at {offset}")]
pub struct ContractBroken {
    why: &'static str,
    kind: IoKind,
    len: u64,
    offset: u64,
}

impl SimDisk {
    /// A disk full of zeroes.
    pub fn new(geometry: SimGeometry) -> Self {
        let medium = vec![0; geometry.size as usize];
        Self::with_content(geometry, medium)
    }

    /// A disk that holds `medium`, durably.
    pub(crate) fn with_content(geometry: SimGeometry, medium: Vec<u8>) -> Self {
        let space = Rc::new(Space::dense(geometry.size));
        Self {
            geometry,
            bad: Vec::new(),
            honest: false,
            patience: u64::MAX,
            garbles_one_in: 0,
            deliveries: 0,
            failures_of: [0; 6],
            failed: Vec::new(),
            space,
            live: medium.clone(),
            durable: medium,
            volatile: Vec::new(),
            delivered: HashMap::new(),
            ops: Vec::new(),
            rests: Vec::new(),
            numbers: 0,
            failures: 0,
            changes: 0,
        }
    }

    /// A disk full of zeroes of which only what `space` names is kept.
    pub(crate) fn sparse(geometry: SimGeometry, space: Space) -> Self {
        let medium = vec![0; space.medium_bytes() as usize];
        Self { space: Rc::new(space), ..Self::with_content(geometry, medium) }
    }

    /// Where its bytes are on the medium.
    pub fn space(&self) -> &Space {
        &self.space
    }

    /// Operations under way of a kind that `is` accepts.
    pub(crate) fn has_under_way(&self, is: impl Fn(&Io) -> bool) -> bool {
        self.ops.iter().any(|op| is(&op.io))
    }

    /// What a read of the whole disk would find now; of a sparse one, of what is kept.
    pub fn medium(&self) -> &[u8] {
        &self.live
    }

    /// Operations under way, and completions of which the core has dealt with a part.
    pub fn under_way(&self) -> usize {
        self.ops.len() + self.rests.len()
    }

    /// The core has dealt with a part of a completion: the rest is delivered like another one.
    pub fn deliver_later(&mut self, rest: IoDone) {
        self.rests.push(rest);
    }

    /// Takes an operation.
    ///
    /// # Errors
    /// How it breaks the contract.
    pub fn submit(&mut self, io: Io, now: u64) -> Result<(), ContractBroken> {
        let refused = self.refusal(&io);
        self.numbers += 1;
        self.ops.push(Op { io, number: self.numbers, sent: now, progress: 0, passed: 0, outcome: None });
        match refused {
            Some(why) => {
                let io = &self.ops[self.ops.len() - 1].io;
                Err(ContractBroken { why, kind: io.kind, len: io.len, offset: io.offset })
            }
            None => Ok(()),
        }
    }

    fn refusal(&self, io: &Io) -> Option<&'static str> {
        let g = &self.geometry;
        if io.offset.checked_add(io.len).is_none_or(|end| end > g.size) {
            return Some("goes past the end of the disk");
        }
        let data = matches!(io.kind, IoKind::Read | IoKind::Write { .. });
        let aligned = io.offset.is_multiple_of(g.align) && io.len.is_multiple_of(g.align);
        if !aligned && !matches!(io.kind, IoKind::Flush | IoKind::Status) {
            return Some("is not aligned");
        }
        let room = (io.buf.frames.len() * FRAME_BYTES) as u64;
        if data && (io.len == 0 || u64::from(io.buf.len) != io.len || u64::from(io.buf.head) + io.len > room) {
            return Some("has not the memory it needs");
        }
        if data && io.buf.head as usize >= FRAME_BYTES {
            return Some("begins past its first frame");
        }
        if !data && !io.buf.frames.is_empty() {
            return Some("has memory it does not need");
        }
        if io.kind == IoKind::Discard && !g.can_discard {
            return Some("discards on a disk that cannot");
        }
        if matches!(io.kind, IoKind::WriteZeroes { .. }) && !g.can_write_zeroes {
            return Some("zeroes on a disk that cannot");
        }
        None
    }

    /// Lets one operation take effect, in whole or in part. False if none waits.
    pub fn execute(&mut self, rng: &mut Rng) -> bool {
        let Some(i) = self.any_op(rng, false) else { return false };
        let fails = self.geometry.fails_one_in > 0 && rng.one_in(self.geometry.fails_one_in);
        let fails = fails || self.is_bad(&self.ops[i].io);
        let mut op = self.ops.swap_remove(i);
        if fails {
            self.fail(&mut op, rng);
        } else {
            let whole = op.io.len - op.progress;
            let mut part = whole;
            if whole > SECTOR as u64 && rng.one_in(4) {
                // In two parts, cut between sectors.
                let from = op.io.offset + op.progress;
                part = ((from + rng.below(whole)).next_multiple_of(SECTOR as u64) - from).min(whole);
            }
            self.progress(&mut op, part, rng);
        }
        self.ops.push(op);
        true
    }

    /// One of the operations that have been executed, or that have not.
    fn any_op(&mut self, rng: &mut Rng, executed: bool) -> Option<usize> {
        let those = || (0..self.ops.len()).filter(|&i| self.ops[i].outcome.is_some() == executed);
        let n = those().count() as u64;
        if n == 0 {
            return None;
        }
        let chosen = those().nth(rng.below(n) as usize)?;
        if self.patience == u64::MAX {
            return Some(chosen);
        }
        let longest = those().max_by_key(|&i| (self.ops[i].passed, u64::MAX - self.ops[i].number))?;
        let chosen = if self.ops[longest].passed >= self.patience { longest } else { chosen };
        self.ops.iter_mut().filter(|op| op.outcome.is_some() == executed).for_each(|op| op.passed += 1);
        self.ops[chosen].passed = 0;
        Some(chosen)
    }

    fn is_bad(&self, io: &Io) -> bool {
        io.kind == IoKind::Read
            && self.bad.iter().any(|b| {
                let sector = b / SECTOR as u64 * SECTOR as u64;
                sector < io.offset + io.len && io.offset < sector + SECTOR as u64
            })
    }

    /// Executes the next `len` bytes of an operation.
    fn progress(&mut self, op: &mut Op, len: u64, rng: &mut Rng) {
        let (from, to) = (op.io.offset + op.progress, op.io.offset + op.progress + len);
        op.progress += len;
        let mut extents = Vec::new();
        match op.io.kind {
            IoKind::Read => {
                for piece in self.space.pieces(from, len) {
                    let skip = piece.at - op.io.offset;
                    match piece.medium {
                        Some(at) => read_into(&mut op.io.buf, skip, &self.live[at as usize..(at + piece.len) as usize]),
                        None => read_into(&mut op.io.buf, skip, &vec![0; piece.len as usize]),
                    }
                }
            }
            IoKind::Write { fua } => self.write(op, from, to, fua),
            IoKind::WriteZeroes { .. } if self.geometry.zeroes_lie => {
                op.outcome = Some((Err(IoError::Unsupported), extents));
                return;
            }
            IoKind::WriteZeroes { fua, .. } => self.zero(op.number, from, to, fua, |_| true),
            IoKind::Discard => self.zero(op.number, from, to, false, |_| rng.one_in(2)),
            IoKind::Flush => self.flush(op.sent),
            IoKind::Status if self.honest => {
                op.progress = op.io.len;
                op.outcome = Some(self.tell(op.io.offset, op.io.len, rng));
                return;
            }
            IoKind::Status => {
                let first = rng.between(1, op.io.len);
                extents.push(Extent { len: first, hole: rng.one_in(2), zero: false });
                if first < op.io.len {
                    extents.push(Extent { len: op.io.len - first, hole: false, zero: false });
                }
            }
        }
        if op.progress == op.io.len || op.io.kind == IoKind::Flush {
            op.outcome = Some((Ok(()), extents));
        }
    }

    /// An operation fails: a change has been made to any sectors of the rest of it, a read has found rubbish.
    fn fail(&mut self, op: &mut Op, rng: &mut Rng) {
        let (mut at, end) = (op.io.offset + op.progress, op.io.offset + op.io.len);
        match op.io.kind {
            IoKind::Write { .. } => {
                while at < end {
                    let next = end.min((at / SECTOR as u64 + 1) * SECTOR as u64);
                    if rng.one_in(2) {
                        self.write(op, at, next, false);
                    }
                    at = next;
                }
            }
            IoKind::WriteZeroes { .. } | IoKind::Discard => {
                self.zero(op.number, at, end, false, |_| rng.one_in(2));
            }
            IoKind::Read => op.io.buf.pieces_mut().for_each(|p| p.fill(0xee)),
            IoKind::Flush | IoKind::Status => {}
        }
        let error = if rng.one_in(4) { IoError::NoSpace } else { IoError::Io };
        op.outcome = Some((Err(error), Vec::new()));
    }

    /// What is allocated in a range, and what is zero: the truth, but perhaps not all of it.
    fn tell(&self, offset: u64, len: u64, rng: &mut Rng) -> (Result<(), IoError>, Vec<Extent>) {
        if rng.one_in(6) {
            return (Err(IoError::Unsupported), Vec::new());
        }
        let mut extents: Vec<Extent> = Vec::new();
        let most = rng.below(8) as usize;
        for piece in self.space.pieces(offset, len) {
            let (mut at, end) = (piece.at, piece.at + piece.len);
            while at < end && extents.len() < most {
                let next = if piece.medium.is_some() { end.min((at / B + 1) * B) } else { end };
                let zero = piece.medium.is_none_or(|m| {
                    let from = (m + (at - piece.at)) as usize;
                    self.live[from..from + (next - at) as usize].iter().all(|&b| b == 0)
                });
                let extent = Extent { len: next - at, hole: zero && rng.one_in(2), zero: zero && !rng.one_in(4) };
                match extents.last_mut() {
                    Some(last) if (last.hole, last.zero) == (extent.hole, extent.zero) => last.len += extent.len,
                    _ => extents.push(extent),
                }
                at = next;
            }
        }
        (Ok(()), extents)
    }

    fn write(&mut self, op: &Op, from: u64, to: u64, fua: bool) {
        for (start, medium, len) in self.space.clone().kept(from, to - from) {
            let (mut skip, mut at) = ((start - op.io.offset) as usize, medium as usize);
            let end = (medium + len) as usize;
            for piece in op.io.buf.pieces() {
                if skip >= piece.len() {
                    skip -= piece.len();
                    continue;
                }
                let n = (piece.len() - skip).min(end - at);
                self.live[at..at + n].copy_from_slice(&piece[skip..skip + n]);
                (at, skip) = (at + n, 0);
            }
            self.note(op.number, medium, medium + len, fua);
        }
    }

    fn zero(&mut self, number: u64, from: u64, to: u64, fua: bool, mut take: impl FnMut(u64) -> bool) {
        for (_, medium, len) in self.space.clone().kept(from, to - from) {
            let (mut at, end) = (medium, medium + len);
            while at < end {
                let next = end.min((at / SECTOR as u64 + 1) * SECTOR as u64);
                if take(at) {
                    self.live[at as usize..next as usize].fill(0);
                    self.note(number, at, next, fua);
                }
                at = next;
            }
        }
    }

    /// Another program has written zeroes or a pattern to it, durably, and the core was not told.
    pub(crate) fn written_elsewhere(&mut self, offset: u64, bytes: &[u8]) {
        self.changes += 1;
        for (start, medium, len) in self.space.clone().kept(offset, bytes.len() as u64) {
            let (from, n) = ((start - offset) as usize, len as usize);
            self.live[medium as usize..][..n].copy_from_slice(&bytes[from..from + n]);
            for sector in medium as usize / SECTOR..((medium + len) as usize).div_ceil(SECTOR) {
                self.volatile.retain(|v| v.sector != sector);
                let now: Box<[u8]> = Self::sector_of(&self.live, sector).into();
                self.durable[sector * SECTOR..][..now.len()].copy_from_slice(&now);
            }
        }
    }

    /// The sectors of the medium that hold what is volatile, in order.
    pub fn volatile_sectors(&self) -> Vec<usize> {
        let mut those: Vec<usize> = self.volatile.iter().map(|v| v.sector).collect();
        those.sort_unstable();
        those.dedup();
        those
    }

    /// It loses what is volatile of some sectors, of those that `may` allows: they hold what was durable. Returns them.
    pub fn lose(&mut self, may: impl Fn(usize) -> bool, rng: &mut Rng) -> Vec<usize> {
        let mut lost = self.volatile_sectors();
        lost.retain(|&s| may(s) && !rng.one_in(4));
        self.changes += 1;
        for &sector in &lost {
            let old: Box<[u8]> = Self::sector_of(&self.durable, sector).into();
            self.live[sector * SECTOR..][..old.len()].copy_from_slice(&old);
        }
        self.volatile.retain(|v| lost.binary_search(&v.sector).is_err());
        lost
    }

    fn sector_of(medium: &[u8], sector: usize) -> &[u8] {
        &medium[sector * SECTOR..medium.len().min((sector + 1) * SECTOR)]
    }

    /// Sectors have changed: they are volatile, or durable at once.
    fn note(&mut self, number: u64, from: u64, to: u64, fua: bool) {
        self.changes += 1;
        for sector in from as usize / SECTOR..(to as usize).div_ceil(SECTOR) {
            let bytes: Box<[u8]> = Self::sector_of(&self.live, sector).into();
            if fua {
                self.volatile.retain(|v| v.sector != sector);
                self.durable[sector * SECTOR..][..bytes.len()].copy_from_slice(&bytes);
            } else {
                self.volatile.push(Volatile { sector, number, bytes });
            }
        }
        // The disk writes its cache back in its own time.
        while self.volatile.len() > 4096 {
            for v in self.volatile.drain(..2048) {
                self.durable[v.sector * SECTOR..][..v.bytes.len()].copy_from_slice(&v.bytes);
            }
        }
    }

    fn flush(&mut self, sent: u64) {
        let mut left: Vec<Volatile> = Vec::new();
        for v in std::mem::take(&mut self.volatile) {
            if self.delivered.get(&v.number).is_some_and(|&d| d < sent) {
                left.retain(|l| l.sector != v.sector);
                self.durable[v.sector * SECTOR..][..v.bytes.len()].copy_from_slice(&v.bytes);
            } else {
                left.push(v);
            }
        }
        if left.is_empty() {
            self.delivered.clear();
        }
        self.volatile = left;
    }

    /// Whether one of the last `recent` operations delivered failed, of those that `is` accepts.
    pub(crate) fn failed_lately(&self, recent: u64, is: impl Fn(&Failure) -> bool) -> bool {
        self.failed.iter().rev().take_while(|f| self.deliveries - f.nth < recent).any(is)
    }

    /// Forgets failures delivered before `oldest`, once there are many.
    pub(crate) fn forget_failures(&mut self, oldest: u64) {
        if self.failed.len() > FAILURES {
            self.failed.retain(|f| f.at >= oldest);
        }
    }

    /// Delivers the completion of one executed operation.
    pub fn deliver(&mut self, rng: &mut Rng, now: u64) -> Option<IoDone> {
        if !self.rests.is_empty() && (self.ops.is_empty() || rng.one_in(2)) {
            return Some(self.rests.swap_remove(rng.below(self.rests.len() as u64) as usize));
        }
        let next = self.any_op(rng, true)?;
        let mut op = self.ops.swap_remove(next);
        if op.io.kind == IoKind::Read && self.garbles_one_in > 0 && rng.one_in(self.garbles_one_in) {
            let frames = op.io.buf.frames.len() as u64;
            let frame = &mut op.io.buf.frames[rng.below(frames) as usize];
            frame.bytes_mut()[rng.below(FRAME_BYTES as u64) as usize] ^= 1 << rng.below(8);
        }
        let (result, extents) = op.outcome?;
        if !matches!(op.io.kind, IoKind::Read | IoKind::Flush | IoKind::Status) {
            self.delivered.insert(op.number, now);
        }
        self.deliveries += 1;
        if let Err(error) = result {
            self.failures += 1;
            let Io { kind, offset, len, .. } = op.io;
            let which = match kind {
                IoKind::Read => 0,
                IoKind::Write { .. } => 1,
                IoKind::Flush => 2,
                IoKind::Discard | IoKind::WriteZeroes { .. } => 3,
                IoKind::Status => 4,
            };
            self.failures_of[which] += 1;
            self.failures_of[5] += u64::from(self.is_bad(&op.io));
            self.failed.push(Failure { at: now, kind, offset, len, error, nth: self.deliveries });
        }
        Some(IoDone { op: op.io.op, disk: op.io.disk, buf: op.io.buf, result, extents })
    }

    /// The host dies. With `power_cut`, what is volatile is kept or lost sector by sector. Returns the memory of the
    /// operations that were under way.
    pub fn crash(&mut self, power_cut: bool, rng: &mut Rng) -> Vec<IoBuf> {
        self.crash_of(power_cut, rng).into_iter().map(|(_, buf)| buf).collect()
    }

    /// The same, with the disk that each operation was for.
    pub(crate) fn crash_of(&mut self, power_cut: bool, rng: &mut Rng) -> Vec<(DiskId, IoBuf)> {
        for _ in 0..rng.below(self.ops.len() as u64 + 1) {
            self.execute(rng);
        }
        for v in self.volatile.drain(..) {
            if !power_cut || rng.one_in(2) {
                self.durable[v.sector * SECTOR..][..v.bytes.len()].copy_from_slice(&v.bytes);
            }
        }
        self.delivered.clear();
        self.live.clone_from(&self.durable);
        let ops = self.ops.drain(..).map(|op| (op.io.disk, op.io.buf));
        ops.chain(self.rests.drain(..).map(|rest| (rest.disk, rest.buf))).collect()
    }

    /// All that it holds is durable from now on.
    pub(crate) fn sync(&mut self) {
        self.volatile.clear();
        self.durable.clone_from(&self.live);
    }

    /// Reads at once, as before anything serves it.
    pub(crate) fn read_now(&self, offset: u64, to: &mut [u8]) {
        to.copy_from_slice(&self.live[offset as usize..][..to.len()]);
    }

    /// Writes at once, durably.
    pub(crate) fn write_now(&mut self, offset: u64, from: &[u8]) {
        for medium in [&mut self.live, &mut self.durable] {
            medium[offset as usize..][..from.len()].copy_from_slice(from);
        }
    }
}

/// Copies `bytes` to the buffer from its byte `skip` on.
fn read_into(buf: &mut IoBuf, skip: u64, bytes: &[u8]) {
    let (mut skip, mut at) = (skip as usize, 0);
    for piece in buf.pieces_mut() {
        if skip >= piece.len() {
            skip -= piece.len();
            continue;
        }
        let n = (piece.len() - skip).min(bytes.len() - at);
        piece[skip..skip + n].copy_from_slice(&bytes[at..at + n]);
        (at, skip) = (at + n, 0);
    }
}
