//! The index of one disk: which block sits in which slot, and the one call through which anybody reaches a policy.
//!
//! Owns the map from block to slot and the policy, or several if the disk has parts (see `parts`). Never knows where a
//! slot's bytes are.
//! Invariant: at most `capacity` slots are occupied, each by one block; a block has at most one slot; the policies'
//! queues hold exactly the occupied slots, but for those that stand in the tiers below them (see `tiers`).

pub(crate) mod parts;
pub mod ranges;
pub(crate) mod tiers;

use self::parts::{Parts, policy_of};
use self::ranges::{PartId, REST};
use self::tiers::Tiers;
use crate::policy::{
    Arc, Cacheus, Car, Clock, Clock2QPlus, ClockPro, Fifo, Hyperbolic, LeCar, Lfu, LfuDa, Lhd, Lirs, Lirs2, Lru, Lru2,
    Mq, Mru, Policy, PolicyKind, Random, S3Fifo, S4Fifo, Seen, Sieve, Slru, Studied, TwoQ, WTinyLfu,
};
use crate::structures::places::Places;
use crate::structures::slots::{Map, Slot, Slots};
use crate::structures::table::{Fill, HashKey};

/// Why a block is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A guest reads it.
    Read,
    /// A guest writes it.
    Write,
    /// A guest reads or writes it through a page of its own cache: from now on the guest holds it. In an index with
    /// tiers the block is then the first to go; elsewhere it is a read.
    Take,
}

/// What the index decided about one access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The block is in this slot (or on its way there).
    Hit(Slot),
    /// The block was absent and has now been given this slot; the block that had to make room, if any.
    Fill {
        /// The slot now holding the accessed block.
        slot: Slot,
        /// The block and slot that were evicted; its slot may equal `slot`.
        evicted: Option<(u64, Slot)>,
    },
    /// The block was absent and is not to be cached (the policy refuses it, or nothing may be evicted).
    Bypass,
}

/// The seed of [`Index::new`]: a fixed one, so that simulations repeat.
pub(crate) const SIMULATION_SEED: u64 = 0;

/// See the head of the file. After construction only what says so allocates.
///
/// What a hit reads comes first, in as few lines of the processor's cache as it takes: with a thousand disks each has
/// left it when its next request comes.
#[repr(C)]
pub struct Index {
    /// Neither tiers nor parts: one question for both on the way to a hit.
    pub(crate) plain: bool,
    /// Slots that may be occupied now; at most the capacity.
    pub(crate) limit: u32,
    /// With more slots occupied than this, some must go: the limit, but with parts 0 or the largest number.
    pub(crate) line: u32,
    pub(crate) tiers: Option<Box<Tiers>>,
    pub(crate) parts: Option<Box<Parts>>,
    pub(crate) slots: Slots,
    pub(crate) places: Places,
    /// The policy of the disk, or of its part 0.
    pub(crate) policy: AnyPolicy,
}

/// The policy of an index. An enum rather than a trait object: each policy's code is compiled into `access` as a whole.
/// Those that only simulators use share one variant, and the time to compile them everywhere is saved.
pub(crate) enum AnyPolicy {
    Fifo(Fifo),
    Lru(Lru),
    Clock(Clock),
    Arc(Arc),
    Car(Car),
    S3Fifo(S3Fifo),
    Sieve(Sieve),
    WTinyLfu(WTinyLfu),
    Studied(PolicyKind, Studied),
}

/// `with_policy!(&mut self.policy, p => expression)`: the expression with `p` bound to the policy in use.
macro_rules! with_policy {
    ($policy:expr, $p:ident => $do:expr) => {
        match $policy {
            AnyPolicy::Fifo($p) => $do,
            AnyPolicy::Lru($p) => $do,
            AnyPolicy::Clock($p) => $do,
            AnyPolicy::Arc($p) => $do,
            AnyPolicy::Car($p) => $do,
            AnyPolicy::S3Fifo($p) => $do,
            AnyPolicy::Sieve($p) => $do,
            AnyPolicy::WTinyLfu($p) => $do,
            AnyPolicy::Studied(_, $p) => $do,
        }
    };
}
pub(crate) use with_policy;

impl AnyPolicy {
    pub(crate) fn new(kind: PolicyKind, capacity: u32, key: HashKey) -> Self {
        match kind {
            PolicyKind::Fifo => Self::Fifo(Fifo::new(capacity, key)),
            PolicyKind::Lru => Self::Lru(Lru::new(capacity, key)),
            PolicyKind::Clock => Self::Clock(Clock::new(capacity, key)),
            PolicyKind::Arc => Self::Arc(Arc::new(capacity, key)),
            PolicyKind::Car => Self::Car(Car::new(capacity, key)),
            PolicyKind::S3Fifo => Self::S3Fifo(S3Fifo::new(capacity, key)),
            PolicyKind::Sieve => Self::Sieve(Sieve::new(capacity, key)),
            PolicyKind::WTinyLfu => Self::WTinyLfu(WTinyLfu::new(capacity, key)),
            kind => Self::Studied(kind, studied(kind, capacity, key)),
        }
    }

    pub(crate) fn kind(&self) -> PolicyKind {
        match self {
            AnyPolicy::Fifo(_) => PolicyKind::Fifo,
            AnyPolicy::Lru(_) => PolicyKind::Lru,
            AnyPolicy::Clock(_) => PolicyKind::Clock,
            AnyPolicy::Arc(_) => PolicyKind::Arc,
            AnyPolicy::Car(_) => PolicyKind::Car,
            AnyPolicy::S3Fifo(_) => PolicyKind::S3Fifo,
            AnyPolicy::Sieve(_) => PolicyKind::Sieve,
            AnyPolicy::WTinyLfu(_) => PolicyKind::WTinyLfu,
            AnyPolicy::Studied(kind, _) => *kind,
        }
    }
}

/// A policy for simulators.
fn studied(kind: PolicyKind, capacity: u32, key: HashKey) -> Studied {
    match kind {
        PolicyKind::Random => Box::new(Random::new(capacity, key)),
        PolicyKind::Mru => Box::new(Mru::new()),
        PolicyKind::Lfu => Box::new(Lfu::new(capacity)),
        PolicyKind::LfuDa | PolicyKind::Gdsf => Box::new(LfuDa::new(capacity)),
        PolicyKind::Slru => Box::new(Slru::new(capacity)),
        PolicyKind::TwoQ => Box::new(TwoQ::new(capacity, key)),
        PolicyKind::Lru2 => Box::new(Lru2::new(capacity, key)),
        PolicyKind::Mq => Box::new(Mq::new(capacity, key)),
        PolicyKind::Lirs => Box::new(Lirs::new(capacity, key)),
        PolicyKind::Lirs2 => Box::new(Lirs2::new(capacity, key)),
        PolicyKind::ClockPro => Box::new(ClockPro::new(capacity, key)),
        PolicyKind::Clock2QPlus => Box::new(Clock2QPlus::new(capacity, key)),
        PolicyKind::Hyperbolic => Box::new(Hyperbolic::new(capacity, key)),
        PolicyKind::LeCar => Box::new(LeCar::new(capacity, key)),
        PolicyKind::Cacheus => Box::new(Cacheus::new(capacity, key)),
        PolicyKind::Lhd => Box::new(Lhd::new(capacity, key)),
        PolicyKind::S4Fifo => Box::new(S4Fifo::new(capacity, key)),
        PolicyKind::Fifo
        | PolicyKind::Lru
        | PolicyKind::Clock
        | PolicyKind::Arc
        | PolicyKind::Car
        | PolicyKind::S3Fifo
        | PolicyKind::Sieve
        | PolicyKind::WTinyLfu => unreachable!("{kind} has a variant of its own"),
    }
}

#[inline]
fn access_with(
    slots: &mut Slots,
    places: &mut Places,
    policy: &mut impl Policy,
    block: u64,
    hash: u64,
    limit: u32,
    may_evict: impl Fn(Slot) -> bool,
) -> Outcome {
    if let Some(slot) = slots.find(block, hash) {
        policy.touch(places, slot, block);
        return Outcome::Hit(slot);
    }
    miss_with(slots, places, policy, block, hash, limit, may_evict)
}

pub(crate) fn miss_with(
    slots: &mut Slots<impl Map>,
    places: &mut Places,
    policy: &mut impl Policy,
    block: u64,
    hash: u64,
    limit: u32,
    may_evict: impl Fn(Slot) -> bool,
) -> Outcome {
    if limit == 0 {
        return Outcome::Bypass;
    }
    let seen = policy.miss(block);
    let (slot, evicted) = if slots.len() >= limit {
        let Some(slot) = policy.victim(places, slots.keys(), may_evict, seen) else { return Outcome::Bypass };
        (slot, Some((slots.replace(slot, block, hash), slot)))
    } else {
        (slots.insert(block, hash), None)
    };
    policy.insert(places, slot, block, seen);
    Outcome::Fill { slot, evicted }
}

impl Index {
    /// An empty index of `capacity` slots (may be 0: every access is then a bypass), with a hash key that is the same
    /// every time.
    pub fn new(kind: PolicyKind, capacity: u32) -> Self {
        Self::with_hash_key(kind, capacity, HashKey::from_seed(SIMULATION_SEED))
    }

    /// The same with a hash key of the caller's: a daemon passes [`HashKey::random`], so that a guest cannot choose
    /// blocks that collide. Only W-TinyLFU's decisions depend on the key, and hardly.
    pub fn with_hash_key(kind: PolicyKind, capacity: u32, key: HashKey) -> Self {
        // the largest number means "no slot" within
        assert!(capacity < u32::MAX, "an index has fewer than 2^32 - 1 slots");
        Self::with_policy(AnyPolicy::new(kind, capacity, key), capacity, key)
    }

    /// The same with a policy made for that capacity and key.
    pub(crate) fn with_policy(policy: AnyPolicy, capacity: u32, key: HashKey) -> Self {
        Self {
            slots: Slots::new(capacity, Fill::Half, key),
            places: Places::new(capacity),
            policy,
            limit: capacity,
            line: capacity,
            plain: true,
            tiers: None,
            parts: None,
        }
    }

    /// The policy in use; of part 0, if there are parts.
    pub fn kind(&self) -> PolicyKind {
        self.policy.kind()
    }

    /// Slots in all.
    pub fn capacity(&self) -> u32 {
        self.slots.capacity()
    }

    /// Slots occupied.
    pub fn len(&self) -> u32 {
        self.slots.len()
    }

    /// Whether no slot is occupied.
    pub fn is_empty(&self) -> bool {
        self.slots.len() == 0
    }

    /// The one way to a policy: looks `block` up, tells the policy, and on a miss makes room for it.
    ///
    /// A slot for which `may_evict` is false is never evicted (its I/O is under way). The policies do not yet treat
    /// reads and writes differently.
    #[inline]
    pub fn access(&mut self, block: u64, access: Access, may_evict: impl Fn(Slot) -> bool) -> Outcome {
        let hash = self.slots.hash(block);
        if !self.plain {
            return self.access_apart(block, hash, access, may_evict);
        }
        let Self { slots, places, policy, limit, .. } = self;
        with_policy!(policy, p => access_with(slots, places, p, block, hash, *limit, may_evict))
    }

    /// Slots that may be occupied now: what [`Index::set_limit`] said.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Lets at most `limit` slots be occupied from now on, without rebuilding anything: what is over goes by
    /// [`Index::evict`], which the caller calls at its own pace; until then the number of blocks does not grow. At
    /// most the capacity; a change of capacity sets it to that.
    pub fn set_limit(&mut self, limit: u32) {
        self.limit = limit.min(self.capacity());
        self.line = self.limit;
        if self.parts.is_some() {
            return self.limit_parts();
        }
        with_policy!(&mut self.policy, p => p.limit(&mut self.places, self.limit));
    }

    /// Blocks that are over a limit, that of the index or that of their part.
    pub fn excess(&self) -> u32 {
        match &self.parts {
            Some(parts) => parts.over(),
            None => self.len().saturating_sub(self.limit),
        }
    }

    /// Whether there are any such.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.slots.len() > self.line
    }

    /// Where `block` is, without telling the policy.
    #[inline]
    pub fn peek(&self, block: u64) -> Option<Slot> {
        self.slots.find(block, self.slots.hash(block))
    }

    /// The block in an occupied slot.
    pub fn block_of(&self, slot: Slot) -> Option<u64> {
        self.slots.block_of(slot)
    }

    /// Forgets `block` (and any ghost of it); returns the slot it had.
    pub fn remove(&mut self, block: u64) -> Option<Slot> {
        match self.peek(block) {
            Some(slot) => {
                if !self.leave_tier(slot) {
                    let part = self.part_of_slot(slot);
                    let policy = policy_of(&mut self.policy, &mut self.parts, part);
                    with_policy!(policy, p => p.remove(&mut self.places, slot));
                }
                self.slots.free(slot);
                self.note_freed(slot);
                Some(slot)
            }
            None => {
                let part = self.part_of_block(block);
                with_policy!(policy_of(&mut self.policy, &mut self.parts, part), p => p.forget(block));
                None
            }
        }
    }

    /// Every occupied slot with its block, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Slot)> + '_ {
        self.slots.iter()
    }

    /// Evicts one block, for a cache that gives memory back. `None` if nothing may go, or nothing that the policy's
    /// bounded search came across: try again when I/O has completed.
    pub fn evict(&mut self, may_evict: impl Fn(Slot) -> bool) -> Option<(u64, Slot)> {
        let part = self.parts.as_ref().map_or(REST, |parts| parts.worst());
        let slot = self.victim_of(part, &may_evict)?;
        let block = self.slots.free(slot);
        self.note_freed(slot);
        Some((block, slot))
    }

    /// A slot of `part` that is to be freed for nobody in particular, taken out of its tier or policy.
    pub(crate) fn victim_of(&mut self, part: PartId, may_evict: &impl Fn(Slot) -> bool) -> Option<Slot> {
        match self.tier_victim(part, 0, may_evict) {
            Some(slot) => Some(slot),
            None => self.hot_victim(part, may_evict, Seen::Never),
        }
    }

    /// Changes the capacity. Growing keeps every slot number. Shrinking first evicts down to the new capacity
    /// (calling `evicted`), then moves blocks out of slots past the end: `moved(from, to)` for each.
    /// Slots for which `may_evict` is false are neither evicted nor moved; where they stand in the way the index
    /// shrinks as far as it can and returns the capacity reached: call again later.
    ///
    /// Allocates, and takes time in proportion to the capacity (the tables are rebuilt).
    pub fn resize(
        &mut self,
        capacity: u32,
        may_evict: impl Fn(Slot) -> bool,
        mut evicted: impl FnMut(u64, Slot),
        mut moved: impl FnMut(Slot, Slot),
    ) -> u32 {
        assert!(capacity < u32::MAX, "an index has fewer than 2^32 - 1 slots");
        while self.len() > capacity {
            match self.evict(&may_evict) {
                Some((block, slot)) => evicted(block, slot),
                None => break,
            }
        }
        let reached = if capacity > self.capacity() {
            self.slots.grow(capacity);
            capacity
        } else {
            let Self { places, policy, tiers, parts, .. } = self;
            self.slots.shrink(capacity.max(self.slots.len()), may_evict, |from, to| {
                let part = parts.as_mut().map_or(REST, |parts| parts.moved(from, to));
                if !tiers.as_mut().is_some_and(|t| t.moved(part, from, to)) {
                    with_policy!(policy_of(policy, parts, part), p => p.moved(places, from, to));
                }
                moved(from, to);
            })
        };
        self.places.resize(reached);
        if let Some(tiers) = &mut self.tiers {
            tiers.resize(reached);
        }
        (self.limit, self.line) = (reached, reached);
        if self.parts.is_some() {
            self.fit_parts();
        } else {
            with_policy!(&mut self.policy, p => p.resize(&mut self.places, reached, self.slots.keys()));
        }
        reached
    }

    /// Changes the policy (of part 0, if there are parts) and keeps every block in its slot, coldest first as far as
    /// the old policy can tell. Ghosts and counts of the old policy are lost. Allocates, and takes time in proportion
    /// to the capacity.
    pub fn switch(&mut self, kind: PolicyKind) {
        self.switch_part(REST, kind);
    }

    /// The blocks in the order in which they would go if nothing were accessed any more, as far as the policy knows.
    #[cfg(test)]
    pub(crate) fn coldest_first(&self) -> Vec<u64> {
        let mut order = vec![];
        let see = &mut |slot: Slot| order.push(self.slots.keys()[slot as usize]);
        with_policy!(&self.policy, p => p.coldest_first(&self.places, see));
        order
    }

    /// Bytes of memory that the index and its policies (ghosts included) hold.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + self.slots.memory_bytes()
            + self.places.memory_bytes()
            + with_policy!(&self.policy, p => p.memory_bytes())
            + self.tiers.as_ref().map_or(0, |t| t.memory_bytes())
            + self.parts.as_ref().map_or(0, |p| p.memory_bytes())
    }

    /// Checks the invariants of index and policy; for tests. Panics with what is broken. Takes time in proportion to
    /// the capacity.
    pub fn check(&self) {
        self.slots.check();
        assert!(self.limit <= self.capacity(), "more blocks are allowed than there are slots");
        assert_eq!(self.plain, self.tiers.is_none() && self.parts.is_none(), "the index takes the wrong way to a hit");
        let in_tiers = self.tiers.as_ref().map_or(0, |t| t.check(|slot| self.slots.block_of(slot).is_some()));
        let mut marked = 0;
        let mut see = |policy: &AnyPolicy, in_policy: u32, of_part: &dyn Fn(Slot) -> bool| {
            with_policy!(policy, p => {
                p.check(&self.places, in_policy);
                let mut ordered = 0;
                p.coldest_first(&self.places, &mut |slot| {
                    assert!(self.slots.block_of(slot).is_some(), "the policy queues slot {slot}, which is free");
                    assert!(of_part(slot), "the policy queues slot {slot}, which is of another part");
                    ordered += 1;
                    marked += usize::from(self.places.marks[slot as usize] != 0);
                });
                assert_eq!(ordered, in_policy, "slots that the policy can name");
            });
        };
        match &self.parts {
            None => {
                see(&self.policy, self.slots.len() - in_tiers, &|_| true);
                assert_eq!(self.line, self.limit, "the line is not the limit");
            }
            Some(parts) => parts.check(self, see),
        }
        let all = self.places.marks.iter().filter(|&&mark| mark != 0).count();
        assert_eq!(all, marked, "a slot that no policy queues has a mark");
    }
}
