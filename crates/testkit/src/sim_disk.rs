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
//!
//! It refuses, as a violation, what the contract of `undercroft_cache::Io` forbids: operations past the end, or not
//! aligned, or without the memory they need, or of a kind the disk does not have.

use crate::model::SECTOR;
use crate::rng::Rng;
use std::collections::HashMap;
use undercroft_cache::{Extent, Io, IoDone, IoError, IoKind};
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

struct Op {
    io: Io,
    number: u64,
    sent: u64,
    /// Bytes executed.
    progress: u64,
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
    live: Vec<u8>,
    durable: Vec<u8>,
    volatile: Vec<Volatile>,
    delivered: HashMap<u64, u64>,
    ops: Vec<Op>,
    numbers: u64,
    /// Failures delivered so far.
    pub failures: u64,
}

impl SimDisk {
    /// A disk full of zeroes.
    pub fn new(geometry: SimGeometry) -> Self {
        let medium = vec![0; geometry.size as usize];
        Self::with_content(geometry, medium)
    }

    /// A disk that holds `medium`, durably.
    pub fn with_content(geometry: SimGeometry, medium: Vec<u8>) -> Self {
        Self {
            geometry,
            live: medium.clone(),
            durable: medium,
            volatile: Vec::new(),
            delivered: HashMap::new(),
            ops: Vec::new(),
            numbers: 0,
            failures: 0,
        }
    }

    /// What a read of the whole disk would find now.
    pub fn medium(&self) -> &[u8] {
        &self.live
    }

    /// Operations under way.
    pub fn under_way(&self) -> usize {
        self.ops.len()
    }

    /// Takes an operation.
    ///
    /// # Errors
    /// How it breaks the contract.
    pub fn submit(&mut self, io: Io, now: u64) -> Result<(), String> {
        let refused = self.refusal(&io);
        self.numbers += 1;
        self.ops.push(Op { io, number: self.numbers, sent: now, progress: 0, outcome: None });
        match refused {
            Some(why) => {
                let io = &self.ops[self.ops.len() - 1].io;
                Err(format!("an operation that {why}: {:?} of {} bytes at {}", io.kind, io.len, io.offset))
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
    fn any_op(&self, rng: &mut Rng, executed: bool) -> Option<usize> {
        let those = || (0..self.ops.len()).filter(|&i| self.ops[i].outcome.is_some() == executed);
        let n = those().count() as u64;
        if n == 0 { None } else { those().nth(rng.below(n) as usize) }
    }

    /// Executes the next `len` bytes of an operation.
    fn progress(&mut self, op: &mut Op, len: u64, rng: &mut Rng) {
        let (from, to) = (op.io.offset + op.progress, op.io.offset + op.progress + len);
        op.progress += len;
        let mut extents = Vec::new();
        match op.io.kind {
            IoKind::Read => read_into(&mut op.io.buf, from - op.io.offset, &self.live[from as usize..to as usize]),
            IoKind::Write { fua } => self.write(op, from, to, fua),
            IoKind::WriteZeroes { .. } if self.geometry.zeroes_lie => {
                op.outcome = Some((Err(IoError::Unsupported), extents));
                return;
            }
            IoKind::WriteZeroes { fua, .. } => self.zero(op.number, from, to, fua, |_| true),
            IoKind::Discard => self.zero(op.number, from, to, false, |_| rng.one_in(2)),
            IoKind::Flush => self.flush(op.sent),
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

    fn write(&mut self, op: &Op, from: u64, to: u64, fua: bool) {
        let mut skip = (from - op.io.offset) as usize;
        let mut at = from as usize;
        for piece in op.io.buf.pieces() {
            if skip >= piece.len() {
                skip -= piece.len();
                continue;
            }
            let n = (piece.len() - skip).min(to as usize - at);
            self.live[at..at + n].copy_from_slice(&piece[skip..skip + n]);
            (at, skip) = (at + n, 0);
        }
        self.note(op.number, from, to, fua);
    }

    fn zero(&mut self, number: u64, from: u64, to: u64, fua: bool, mut take: impl FnMut(u64) -> bool) {
        let mut at = from;
        while at < to {
            let next = to.min((at / SECTOR as u64 + 1) * SECTOR as u64);
            if take(at) {
                self.live[at as usize..next as usize].fill(0);
                self.note(number, at, next, fua);
            }
            at = next;
        }
    }

    fn sector_of(medium: &[u8], sector: usize) -> &[u8] {
        &medium[sector * SECTOR..medium.len().min((sector + 1) * SECTOR)]
    }

    /// Sectors have changed: they are volatile, or durable at once.
    fn note(&mut self, number: u64, from: u64, to: u64, fua: bool) {
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

    /// Delivers the completion of one executed operation.
    pub fn deliver(&mut self, rng: &mut Rng, now: u64) -> Option<IoDone> {
        let op = self.ops.swap_remove(self.any_op(rng, true)?);
        let (result, extents) = op.outcome?;
        if !matches!(op.io.kind, IoKind::Read | IoKind::Flush | IoKind::Status) {
            self.delivered.insert(op.number, now);
        }
        self.failures += u64::from(result.is_err());
        Some(IoDone { op: op.io.op, disk: op.io.disk, buf: op.io.buf, result, extents })
    }

    /// The host dies. With `power_cut`, what is volatile is kept or lost sector by sector. Returns the memory of the
    /// operations that were under way.
    pub fn crash(&mut self, power_cut: bool, rng: &mut Rng) -> Vec<IoBuf> {
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
        self.ops.drain(..).map(|op| op.io.buf).collect()
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
