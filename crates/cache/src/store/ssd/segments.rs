//! The segments of a region: whose they are, in which order they were begun, what is done with them.
//!
//! Owns a record for each segment, a queue of them for each owner, and the free ones; fixed memory. Never does I/O.
//! Invariants: a segment with I/O of the store under way, or to which the index has links, is not free; an owner's
//! queue is in the order of sequences; a sequence is never used again.

use super::bytes::{Reader, Writer};
use super::format::Layout;
use super::index::OwnerOf;
use super::permutation::mix;
use super::types::OWNERS_MAX;
use std::collections::VecDeque;

/// No segment.
const NONE: u32 = u32::MAX;
/// No owner.
const NOBODY: u16 = u16::MAX;

/// What is done with a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Nobody has it.
    Free,
    /// Blocks are written to it.
    Open,
    /// It is complete, and its summary was written.
    Sealed,
    /// It is being emptied.
    Evicting,
    /// Nothing in it is wanted any more; free when its I/O is done.
    Doomed,
    /// The device is being told so; free when that is done.
    Discarding,
}

/// A segment's record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub sequence: u64,
    pub generation: u64,
    /// The sum of its summary on the device.
    pub sum: u64,
    next: u32,
    pub owner: u16,
    pub state: State,
    /// I/O of the store's under way in it.
    pub busy: u8,
    /// Its summary on the device may name blocks that the index does not have there any more.
    pub lost: bool,
    /// The index may have links to it.
    pub is_linked: bool,
}

/// The queue of an owner.
#[derive(Clone, Copy, Debug)]
struct Queue {
    head: u32,
    tail: u32,
    len: u32,
}

/// See the head of the file.
pub(super) struct Segments {
    all: Box<[Segment]>,
    /// Free ones: those of which the device knows it, or that were never used, and the others.
    free: VecDeque<u32>,
    stale: VecDeque<u32>,
    queues: Box<[Queue]>,
    /// Those that were given up while there were links to them: they are not free before those were taken out.
    linked: Vec<u32>,
    /// Of a segment: to find that of a slot without a division.
    shift: u32,
    pub next_sequence: u64,
}

impl OwnerOf for Segments {
    #[inline]
    fn owner_of(&self, slot: u32) -> u16 {
        self.all[(slot >> self.shift) as usize].owner
    }

    #[inline]
    fn is_kept(&self, slot: u32) -> bool {
        self.all[(slot >> self.shift) as usize].is_kept()
    }
}

impl Segment {
    /// Whether its slots hold what was last written there.
    pub fn is_kept(&self) -> bool {
        matches!(self.state, State::Open | State::Sealed | State::Evicting)
    }
}

impl Segments {
    pub fn new(layout: &Layout) -> Self {
        let none = Segment {
            sequence: 0,
            generation: 0,
            sum: 0,
            next: NONE,
            owner: NOBODY,
            state: State::Free,
            busy: 0,
            lost: false,
            is_linked: false,
        };
        let queue = Queue { head: NONE, tail: NONE, len: 0 };
        Self {
            all: vec![none; layout.segments as usize].into_boxed_slice(),
            free: (0..layout.segments).collect(),
            stale: VecDeque::new(),
            queues: vec![queue; OWNERS_MAX].into_boxed_slice(),
            linked: Vec::new(),
            shift: layout.segment_blocks.trailing_zeros(),
            next_sequence: 1,
        }
    }

    /// Bytes of its tables.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.all)
            + (self.free.capacity() + self.stale.capacity()) * size_of::<u32>()
            + size_of_val(&*self.queues)
    }

    /// The most that [`Segments::bytes`] says of a region of this layout: each list of free ones may grow to twice what
    /// it needs.
    pub fn bytes_max(layout: &Layout) -> u64 {
        let each = size_of::<Segment>() + 2 * 2 * size_of::<u32>();
        u64::from(layout.segments) * each as u64 + (OWNERS_MAX * size_of::<Queue>()) as u64
    }

    pub fn number_of(&self, slot: u32) -> u32 {
        slot >> self.shift
    }

    /// The slots of a segment.
    pub fn slots(&self, segment: u32) -> std::ops::Range<u32> {
        segment << self.shift..(segment + 1) << self.shift
    }

    pub fn get(&self, segment: u32) -> &Segment {
        &self.all[segment as usize]
    }

    pub fn get_mut(&mut self, segment: u32) -> &mut Segment {
        &mut self.all[segment as usize]
    }

    pub fn free(&self) -> usize {
        self.free.len() + self.stale.len()
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Segments of an owner.
    pub fn of(&self, owner: u16) -> u32 {
        self.queues[usize::from(owner)].len
    }

    /// The oldest one of an owner.
    pub fn oldest(&self, owner: u16) -> Option<u32> {
        Some(self.queues[usize::from(owner)].head).filter(|n| *n != NONE)
    }

    /// Those of an owner, oldest first.
    pub fn queue(&self, owner: u16) -> impl Iterator<Item = u32> + '_ {
        std::iter::successors(self.oldest(owner), |n| Some(self.all[*n as usize].next).filter(|n| *n != NONE))
    }

    /// Segments of lower sequences are no longer the owner's.
    pub fn floor(&self, owner: u16) -> u64 {
        self.oldest(owner).map_or(self.next_sequence, |n| self.get(n).sequence)
    }

    /// A number that stands for all summaries of an owner's complete segments.
    pub fn digest(&self, owner: u16) -> u64 {
        let complete = self.queue(owner).map(|n| self.get(n)).filter(|it| it.state == State::Sealed);
        complete.fold(0, |all, it| all.wrapping_add(mix(it.sequence ^ mix(it.sum))))
    }

    /// The one that its owner began after this one.
    pub fn after(&self, segment: u32) -> Option<u32> {
        Some(self.get(segment).next).filter(|n| *n != NONE)
    }

    /// Segments that wait until links to them are taken out.
    pub fn waiting(&self) -> usize {
        self.linked.len()
    }

    /// The same, which do not wait any more: whoever takes them sees to it, and says so.
    pub fn take_waiting(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.linked)
    }

    /// The index has no links to a segment.
    pub fn unlinked(&mut self, segment: u32) {
        self.get_mut(segment).is_linked = false;
        self.settle(segment);
    }

    /// Begins a free segment for an owner.
    pub fn begin(&mut self, owner: u16, generation: u64) -> Option<u32> {
        let segment = self.free.pop_front().or_else(|| self.stale.pop_front())?;
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        self.append(segment, owner, sequence, generation, State::Open);
        Some(segment)
    }

    /// Takes a recovered segment in, whose summary has this sum; those of an owner in the order of their sequences.
    pub fn recover(&mut self, segment: u32, owner: u16, sequence: u64, generation: u64, sum: u64) {
        self.append(segment, owner, sequence, generation, State::Sealed);
        self.get_mut(segment).sum = sum;
        self.next_sequence = self.next_sequence.max(sequence + 1);
    }

    /// After recovery: those that are nobody's are free.
    pub fn recovered(&mut self) {
        self.free.clear();
        self.stale = (0..self.all.len() as u32).filter(|n| self.all[*n as usize].state == State::Free).collect();
    }

    /// The records of all segments, for another process. Nothing is under way in any, and those that are somebody's are
    /// complete, or of a device that is out of service: there it does not matter.
    pub fn write(&self, to: &mut Writer) {
        to.u64(self.next_sequence);
        for list in [&self.free, &self.stale] {
            to.u32(list.len() as u32);
            list.iter().for_each(|n| _ = to.u32(*n));
        }
        for owner in 0..OWNERS_MAX as u16 {
            to.u32(self.of(owner));
            for n in self.queue(owner) {
                let it = self.get(n);
                debug_assert!(it.busy == 0, "{it:?} is at rest");
                to.u32(n).u64(it.sequence).u64(it.generation).u64(it.sum).u8(it.lost.into());
            }
        }
    }

    /// Takes over the records of another process, if each segment is there once and those of an owner are in order.
    /// Without `with_lost` it forgets of which the summaries name blocks that are gone: a bug.
    pub fn read(&mut self, from: &mut Reader<'_>, with_lost: bool) -> Option<()> {
        self.next_sequence = from.number()?;
        let all = self.all.len();
        let mut is_told = vec![false; all];
        let mut tell = |n: u32| {
            let was = is_told.get_mut(n as usize).map(|is| std::mem::replace(is, true));
            (was == Some(false)).then_some(n)
        };
        for list in [&mut self.free, &mut self.stale] {
            list.clear();
            for _ in 0..from.u32()? {
                list.push_back(tell(from.u32()?)?);
            }
        }
        let mut count = self.free();
        for owner in 0..OWNERS_MAX as u16 {
            let mut last = 0;
            for _ in 0..from.u32()? {
                let n = tell(from.u32()?)?;
                let (sequence, generation, sum, lost) = (from.number()?, from.number()?, from.u64()?, from.flag()?);
                if sequence <= last || sequence >= self.next_sequence {
                    return None;
                }
                last = sequence;
                self.append(n, owner, sequence, generation, State::Sealed);
                let it = self.get_mut(n);
                (it.sum, it.lost) = (sum, lost && with_lost);
                count += 1;
            }
        }
        (count == all).then_some(())
    }

    fn append(&mut self, segment: u32, owner: u16, sequence: u64, generation: u64, state: State) {
        let (sum, next, busy, lost, is_linked) = (0, NONE, 0, false, false);
        *self.get_mut(segment) = Segment { sequence, generation, sum, next, owner, state, busy, lost, is_linked };
        let queue = &mut self.queues[usize::from(owner)];
        let last = std::mem::replace(&mut queue.tail, segment);
        queue.len += 1;
        if last == NONE { queue.head = segment } else { self.get_mut(last).next = segment }
    }

    /// Takes the oldest segment from its owner: no entry of the index names it any more, but for links. Free, as soon
    /// as its I/O is done, and links to it are taken out.
    pub fn give_up_oldest(&mut self, owner: u16) {
        let queue = &mut self.queues[usize::from(owner)];
        let segment = queue.head;
        queue.head = self.all[segment as usize].next;
        queue.len -= 1;
        if queue.head == NONE {
            queue.tail = NONE;
        }
        let it = self.get_mut(segment);
        (it.sequence, it.owner, it.state) = (0, NOBODY, State::Doomed);
        if it.is_linked {
            self.linked.push(segment);
        }
        self.settle(segment);
    }

    /// I/O of the store's in a segment begins.
    pub fn begin_io(&mut self, segment: u32) {
        self.get_mut(segment).busy += 1;
    }

    /// It is done. Whether the segment is still wanted.
    pub fn end_io(&mut self, segment: u32) -> bool {
        self.get_mut(segment).busy -= 1;
        self.settle(segment);
        !matches!(self.get(segment).state, State::Doomed | State::Discarding | State::Free)
    }

    /// A free segment of which the device does not know it, if so many others are free: that one is not about to be
    /// used. It is not free until the operation ends that the caller begins in it.
    pub fn discard(&mut self, others: usize) -> Option<u32> {
        if self.free() <= others {
            return None;
        }
        let segment = self.stale.pop_back()?;
        self.get_mut(segment).state = State::Discarding;
        Some(segment)
    }

    fn settle(&mut self, segment: u32) {
        let it = self.get_mut(segment);
        if it.busy > 0 || it.is_linked && it.state == State::Doomed {
            return;
        }
        match std::mem::replace(&mut it.state, State::Free) {
            State::Doomed => self.stale.push_back(segment),
            State::Discarding => self.free.push_back(segment),
            other => it.state = other,
        }
    }
}
