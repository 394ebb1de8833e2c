//! Any policy, for simulators: one that serves guests, or one that is only studied, behind a pointer.
//!
//! Owns the sum of both tables, and the object-safe face of [`Policy`]. Never decides anything: a policy's code is the
//! same on either way. Invariant: a replay is one virtual call for a whole batch, so its loop knows the policy.

use super::served::{PolicyKind, ServedPolicy};
use super::set::{Makes, PolicySet, named};
use super::studied::StudiedPolicyKind;
use super::{Outcome, Policy, Seen, access};
use crate::names::UnknownName;
use crate::structures::array::Release;
use crate::structures::places::Places;
use crate::structures::slots::{ChainedSlots, Slot, Slots};
use crate::structures::table::HashKey;
use std::fmt;
use std::str::FromStr;

/// Any policy that the engine has. Only simulators can have all of them: the type of a disk's policy is [`PolicyKind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AnyPolicyKind {
    /// One that a disk may have.
    Served(PolicyKind),
    /// One that is only studied.
    Studied(StudiedPolicyKind),
}

impl AnyPolicyKind {
    /// How many there are.
    const COUNT: usize = PolicyKind::ALL.len() + StudiedPolicyKind::ALL.len();

    /// Every policy: those for disks, then the others, in the order in which help and tables list them.
    pub const ALL: [AnyPolicyKind; AnyPolicyKind::COUNT] = {
        let mut all = [AnyPolicyKind::Served(PolicyKind::DEFAULT); AnyPolicyKind::COUNT];
        let (served, mut n) = (PolicyKind::ALL.len(), 0);
        while n < all.len() {
            all[n] = if n < served {
                AnyPolicyKind::Served(PolicyKind::ALL[n])
            } else {
                AnyPolicyKind::Studied(StudiedPolicyKind::ALL[n - served])
            };
            n += 1;
        }
        all
    };

    /// The name used on the command line and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Served(kind) => kind.name(),
            Self::Studied(kind) => kind.name(),
        }
    }

    /// The policy, if a disk may have it.
    pub fn served(self) -> Option<PolicyKind> {
        match self {
            Self::Served(kind) => Some(kind),
            Self::Studied(_) => None,
        }
    }

    /// Slots that a cache under this policy can have at most: some need numbers for ghosts, too, several to a slot.
    pub fn slots_max(self) -> u32 {
        match self {
            Self::Studied(StudiedPolicyKind::Lirs2) => (1 << 28) - 1,
            Self::Studied(StudiedPolicyKind::Lirs | StudiedPolicyKind::ClockPro) => (1 << 30) - 1,
            _ => 1 << 30,
        }
    }

    /// The reference model that the policy is held against, if it has one.
    #[cfg(test)]
    pub(crate) fn model(self, capacity: usize) -> Option<Box<dyn super::model::ReferenceModel>> {
        match self {
            Self::Served(kind) => kind.model(capacity),
            Self::Studied(kind) => kind.model(capacity),
        }
    }
}

impl From<PolicyKind> for AnyPolicyKind {
    fn from(kind: PolicyKind) -> Self {
        Self::Served(kind)
    }
}

impl From<StudiedPolicyKind> for AnyPolicyKind {
    fn from(kind: StudiedPolicyKind) -> Self {
        Self::Studied(kind)
    }
}

impl PartialEq<PolicyKind> for AnyPolicyKind {
    fn eq(&self, other: &PolicyKind) -> bool {
        self.served() == Some(*other)
    }
}

impl PartialEq<StudiedPolicyKind> for AnyPolicyKind {
    fn eq(&self, other: &StudiedPolicyKind) -> bool {
        *self == Self::Studied(*other)
    }
}

impl fmt::Display for AnyPolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for AnyPolicyKind {
    type Err = UnknownName;

    /// The policy of that name, whether a disk may have it or only a simulator. Case, `-` and `_` do not matter.
    ///
    /// # Errors
    /// If there is none.
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        named(name, &Self::ALL, Self::name)
    }
}

impl PolicySet for AnyPolicyKind {}

impl Makes for AnyPolicyKind {
    type Policy = AnyPolicy;
    const FIFO: Self = Self::Served(PolicyKind::FIFO);

    fn make(self, capacity: u32, key: HashKey) -> AnyPolicy {
        match self {
            Self::Served(kind) => AnyPolicy::Served(kind.make(capacity, key)),
            Self::Studied(kind) => AnyPolicy::Studied(kind, kind.make(capacity, key)),
        }
    }

    fn of(policy: &AnyPolicy) -> Self {
        match policy {
            AnyPolicy::Served(policy) => Self::Served(PolicyKind::of(policy)),
            AnyPolicy::Studied(kind, _) => Self::Studied(*kind),
        }
    }
}

/// A studied policy in a box. `Send`, as every index is.
pub(crate) type Boxed = Box<dyn StudiedPolicy + Send + Sync>;

/// What holds any policy.
pub(crate) enum AnyPolicy {
    Served(ServedPolicy),
    Studied(StudiedPolicyKind, Boxed),
}

/// [`Policy`] as a trait object; each method is that of the same name there.
pub(crate) trait StudiedPolicy {
    fn touch(&mut self, places: &mut Places, slot: Slot, block: u64);
    fn miss(&mut self, block: u64) -> Seen;
    fn victim(
        &mut self,
        places: &mut Places,
        keys: &[u64],
        may_evict: &dyn Fn(Slot) -> bool,
        seen: Seen,
    ) -> Option<Slot>;
    fn insert(&mut self, places: &mut Places, slot: Slot, block: u64, seen: Seen);
    fn remove(&mut self, places: &mut Places, slot: Slot);
    fn forget(&mut self, block: u64);
    fn moved(&mut self, places: &mut Places, from: Slot, to: Slot);
    fn resize(&mut self, places: &mut Places, capacity: u32, keys: &[u64]);
    fn limit(&mut self, places: &mut Places, limit: u32);
    fn replay(&mut self, slots: &mut ChainedSlots, places: &mut Places, blocks: &[u64]) -> u64;
    fn coldest_first(&self, places: &Places, visit: &mut dyn FnMut(Slot));
    fn memory_bytes(&self) -> usize;
    fn check(&self, places: &Places, occupied: u32);
}

impl<P: Policy> StudiedPolicy for P {
    fn touch(&mut self, places: &mut Places, slot: Slot, block: u64) {
        Policy::touch(self, places, slot, block);
    }
    fn miss(&mut self, block: u64) -> Seen {
        Policy::miss(self, block)
    }
    fn victim(
        &mut self,
        places: &mut Places,
        keys: &[u64],
        may_evict: &dyn Fn(Slot) -> bool,
        seen: Seen,
    ) -> Option<Slot> {
        Policy::victim(self, places, keys, may_evict, seen)
    }
    fn insert(&mut self, places: &mut Places, slot: Slot, block: u64, seen: Seen) {
        Policy::insert(self, places, slot, block, seen);
    }
    fn remove(&mut self, places: &mut Places, slot: Slot) {
        Policy::remove(self, places, slot);
    }
    fn forget(&mut self, block: u64) {
        Policy::forget(self, block);
    }
    fn moved(&mut self, places: &mut Places, from: Slot, to: Slot) {
        Policy::moved(self, places, from, to);
    }
    fn resize(&mut self, places: &mut Places, capacity: u32, keys: &[u64]) {
        Policy::resize(self, places, capacity, keys);
    }
    fn limit(&mut self, places: &mut Places, limit: u32) {
        Policy::limit(self, places, limit);
    }
    fn replay(&mut self, slots: &mut ChainedSlots, places: &mut Places, blocks: &[u64]) -> u64 {
        Policy::replay(self, slots, places, blocks)
    }
    fn coldest_first(&self, places: &Places, visit: &mut dyn FnMut(Slot)) {
        Policy::coldest_first(self, places, visit);
    }
    fn memory_bytes(&self) -> usize {
        Policy::memory_bytes(self)
    }
    fn check(&self, places: &Places, occupied: u32) {
        Policy::check(self, places, occupied);
    }
}

impl Policy for AnyPolicy {
    #[inline]
    fn access(
        &mut self,
        slots: &mut Slots,
        places: &mut Places,
        block: u64,
        hash: u64,
        limit: u32,
        may_evict: impl Fn(Slot) -> bool,
    ) -> Outcome {
        match self {
            Self::Served(p) => p.access(slots, places, block, hash, limit, may_evict),
            Self::Studied(..) => access::access(slots, places, self, block, hash, limit, may_evict),
        }
    }
    #[inline]
    fn touch(&mut self, places: &mut Places, slot: Slot, block: u64) {
        match self {
            Self::Served(p) => Policy::touch(p, places, slot, block),
            Self::Studied(_, p) => p.as_mut().touch(places, slot, block),
        }
    }
    #[inline]
    fn miss(&mut self, block: u64) -> Seen {
        match self {
            Self::Served(p) => Policy::miss(p, block),
            Self::Studied(_, p) => p.as_mut().miss(block),
        }
    }
    #[inline]
    fn victim(
        &mut self,
        places: &mut Places,
        keys: &[u64],
        may_evict: impl Fn(Slot) -> bool,
        seen: Seen,
    ) -> Option<Slot> {
        match self {
            Self::Served(p) => Policy::victim(p, places, keys, may_evict, seen),
            Self::Studied(_, p) => p.as_mut().victim(places, keys, &may_evict, seen),
        }
    }
    #[inline]
    fn insert(&mut self, places: &mut Places, slot: Slot, block: u64, seen: Seen) {
        match self {
            Self::Served(p) => Policy::insert(p, places, slot, block, seen),
            Self::Studied(_, p) => p.as_mut().insert(places, slot, block, seen),
        }
    }
    fn remove(&mut self, places: &mut Places, slot: Slot) {
        match self {
            Self::Served(p) => Policy::remove(p, places, slot),
            Self::Studied(_, p) => p.as_mut().remove(places, slot),
        }
    }
    fn forget(&mut self, block: u64) {
        match self {
            Self::Served(p) => Policy::forget(p, block),
            Self::Studied(_, p) => p.as_mut().forget(block),
        }
    }
    fn moved(&mut self, places: &mut Places, from: Slot, to: Slot) {
        match self {
            Self::Served(p) => Policy::moved(p, places, from, to),
            Self::Studied(_, p) => p.as_mut().moved(places, from, to),
        }
    }
    fn resize(&mut self, places: &mut Places, capacity: u32, keys: &[u64]) {
        match self {
            Self::Served(p) => Policy::resize(p, places, capacity, keys),
            Self::Studied(_, p) => p.as_mut().resize(places, capacity, keys),
        }
    }
    fn step(&mut self, places: &mut Places, left: &mut u32) -> bool {
        match self {
            Self::Served(p) => Policy::step(p, places, left),
            Self::Studied(..) => true,
        }
    }
    fn reserve(&mut self, most: u32) {
        match self {
            Self::Served(p) => Policy::reserve(p, most),
            Self::Studied(..) => {}
        }
    }
    fn release(&mut self, by: &mut impl Release, bytes: &mut usize) {
        match self {
            Self::Served(p) => Policy::release(p, by, bytes),
            Self::Studied(..) => {}
        }
    }
    fn limit(&mut self, places: &mut Places, limit: u32) {
        match self {
            Self::Served(p) => Policy::limit(p, places, limit),
            Self::Studied(_, p) => p.as_mut().limit(places, limit),
        }
    }
    fn replay(&mut self, slots: &mut ChainedSlots, places: &mut Places, blocks: &[u64]) -> u64 {
        match self {
            Self::Served(p) => Policy::replay(p, slots, places, blocks),
            Self::Studied(_, p) => p.as_mut().replay(slots, places, blocks),
        }
    }
    fn coldest_first(&self, places: &Places, visit: &mut dyn FnMut(Slot)) {
        match self {
            Self::Served(p) => Policy::coldest_first(p, places, visit),
            Self::Studied(_, p) => p.as_ref().coldest_first(places, visit),
        }
    }
    fn memory_bytes(&self) -> usize {
        match self {
            Self::Served(p) => Policy::memory_bytes(p),
            Self::Studied(_, p) => p.as_ref().memory_bytes(),
        }
    }
    fn check(&self, places: &Places, occupied: u32) {
        match self {
            Self::Served(p) => Policy::check(p, places, occupied),
            Self::Studied(_, p) => p.as_ref().check(places, occupied),
        }
    }
}
