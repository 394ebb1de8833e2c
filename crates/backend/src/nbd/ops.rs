//! Operations on their way to an NBD server and back, and the number that each goes by on the wire.
//!
//! Owns every operation between submission and completion. Never touches a socket. Invariant: a cookie names at most
//! one operation ever, since it has the slot's generation in it; what comes for an older one is not mistaken for it.

use undercroft_cache::{Extent, Io, IoError};

/// How far an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// In the queue, or being sent.
    Queued,
    /// The server has it all.
    Sent,
    /// The last part of the answer has begun: nothing more may come.
    Answered,
}

/// What the request on the wire asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A part of the operation itself.
    Part,
    /// A flush after a write that must be durable, for a server without FUA.
    Flush,
}

/// An operation under way. It may need several requests, one after the other.
#[derive(Debug)]
pub struct Op {
    /// The operation.
    pub io: Io,
    /// Order of submission.
    pub seq: u64,
    /// How far the request is.
    pub stage: Stage,
    /// What the request is.
    pub step: Step,
    /// Bytes done by earlier requests.
    pub progress: u64,
    /// Bytes that this request covers.
    pub step_len: u32,
    /// Parts of this request's range that reply data has come for: sorted, disjoint, not touching.
    pub covered: Vec<(u32, u32)>,
    /// The server's verdict on this request so far.
    pub error: Option<IoError>,
    /// Block status so far.
    pub extents: Vec<Extent>,
    /// What this request, a flush, vouches for.
    pub acked_before: u64,
    /// When the operation was submitted.
    pub since_ns: u64,
    /// Whether it has been logged as stalled.
    pub stalled: bool,
}

impl Op {
    /// Notes that reply data comes for bytes `from..to` of the request's range; false if some of it came before, or
    /// it is outside.
    pub fn cover(&mut self, from: u32, to: u32) -> bool {
        if from >= to || to > self.step_len {
            return false;
        }
        let i = self.covered.partition_point(|&(_, end)| end < from);
        // Everything before `i` ends before `from`.
        match self.covered.get(i).copied() {
            Some((start, end)) if end == from => {
                // Joins the one before; and perhaps the one after.
                match self.covered.get(i + 1).copied() {
                    Some((next, _)) if next < to => return false,
                    Some((next, next_end)) if next == to => {
                        self.covered[i] = (start, next_end);
                        self.covered.remove(i + 1);
                    }
                    _ => self.covered[i].1 = to,
                }
            }
            Some((start, _)) if start < to => return false,
            Some((start, _)) if start == to => self.covered[i].0 = from,
            _ => self.covered.insert(i, (from, to)),
        }
        true
    }

    /// Whether data has come for all of the request's range.
    pub fn is_covered(&self) -> bool {
        self.covered == [(0, self.step_len)]
    }
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    op: Option<Op>,
}

/// All operations under way.
#[derive(Debug, Default)]
pub struct Ops {
    slots: Vec<Slot>,
    free: Vec<u32>,
    next_seq: u64,
    len: usize,
}

impl Ops {
    /// Takes an operation over; returns its slot.
    pub fn add(&mut self, io: Io, since_ns: u64) -> u32 {
        let n = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[n as usize];
        slot.generation = slot.generation.wrapping_add(1);
        self.next_seq += 1;
        self.len += 1;
        slot.op = Some(Op {
            io,
            seq: self.next_seq,
            stage: Stage::Queued,
            step: Step::Part,
            progress: 0,
            step_len: 0,
            covered: Vec::new(),
            error: None,
            extents: Vec::new(),
            acked_before: 0,
            since_ns,
            stalled: false,
        });
        n
    }

    /// The operation in a slot that is in use.
    ///
    /// # Panics
    /// If the slot is free: a bug.
    pub fn get(&mut self, slot: u32) -> &mut Op {
        self.slots[slot as usize].op.as_mut().expect("a slot in use")
    }

    /// The operation in a slot that is in use, to look at.
    ///
    /// # Panics
    /// If the slot is free: a bug.
    pub fn peek(&self, slot: u32) -> &Op {
        self.slots[slot as usize].op.as_ref().expect("a slot in use")
    }

    /// Gives an operation back.
    ///
    /// # Panics
    /// If the slot is free: a bug.
    pub fn remove(&mut self, slot: u32) -> Op {
        let op = self.slots[slot as usize].op.take().expect("a slot in use");
        self.free.push(slot);
        self.len -= 1;
        op
    }

    /// What the operation goes by on the wire. A new request of the same operation gets a new one.
    pub fn new_cookie(&mut self, slot: u32) -> u64 {
        let s = &mut self.slots[slot as usize];
        s.generation = s.generation.wrapping_add(1);
        u64::from(s.generation) << 32 | u64::from(slot)
    }

    /// The slot of an operation that the server has been sent and may speak of.
    pub fn find(&self, cookie: u64) -> Option<u32> {
        let n = cookie as u32;
        let slot = self.slots.get(n as usize)?;
        let known = slot.generation == (cookie >> 32) as u32;
        (known && slot.op.as_ref().is_some_and(|o| o.stage == Stage::Sent)).then_some(n)
    }

    /// Slots in use, in order of submission.
    pub fn in_order(&self) -> Vec<u32> {
        let mut all: Vec<(u64, u32)> =
            self.slots.iter().enumerate().filter_map(|(i, s)| s.op.as_ref().map(|o| (o.seq, i as u32))).collect();
        all.sort_unstable();
        all.into_iter().map(|(_, i)| i).collect()
    }

    /// The operations under way.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Op> {
        self.slots.iter_mut().filter_map(|s| s.op.as_mut())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use undercroft_cache::{DiskId, IoKind, IoTarget, OpId};
    use undercroft_host::IoBuf;

    fn io() -> Io {
        Io {
            op: OpId(1),
            disk: DiskId(1),
            target: IoTarget::Image,
            kind: IoKind::Read,
            offset: 0,
            len: 0,
            buf: IoBuf::default(),
        }
    }

    #[test]
    fn a_cookie_of_an_earlier_request_is_unknown() {
        let mut ops = Ops::default();
        let a = ops.add(io(), 0);
        let first = ops.new_cookie(a);
        assert_eq!(ops.find(first), None, "not sent yet");
        ops.get(a).stage = Stage::Sent;
        assert_eq!(ops.find(first), Some(a));
        let second = ops.new_cookie(a);
        assert_eq!((ops.find(first), ops.find(second)), (None, Some(a)));
        ops.remove(a);
        assert_eq!(ops.find(second), None);
        let b = ops.add(io(), 0);
        assert_eq!(a, b);
        ops.get(b).stage = Stage::Sent;
        assert_eq!(ops.find(second), None);
    }

    #[test]
    fn coverage_is_exact_in_every_order() {
        // All ways to cut 0..6 into pieces of 1, 2 and 3, in all orders; then every overlap is refused.
        let pieces = [(0u32, 1u32), (1, 3), (3, 6)];
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut ops = Ops::default();
            let n = ops.add(io(), 0);
            let op = ops.get(n);
            op.step_len = 6;
            for (i, &p) in order.iter().enumerate() {
                assert!(!op.is_covered());
                let (from, to) = pieces[p];
                assert!(op.cover(from, to), "{order:?}");
                for (a, b) in (0..6).flat_map(|a| (a + 1..7).map(move |b| (a, b))) {
                    let taken = order[..=i].iter().any(|&q| pieces[q].0 < b && a < pieces[q].1);
                    let mut copy = op.covered.clone();
                    std::mem::swap(&mut copy, &mut op.covered);
                    let before = copy.clone();
                    op.covered = copy;
                    assert_eq!(op.cover(a, b), !taken, "{order:?} {i} {a}..{b} over {before:?}");
                    op.covered = before;
                }
            }
            assert!(op.is_covered());
            assert!(!op.cover(5, 7) && !op.cover(6, 6));
        }
    }
}
