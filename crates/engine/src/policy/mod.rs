//! The replacement policies: the list of them by name, and what an index asks of one.
//!
//! Owns the names and the contract. Each policy owns its queues and ghosts; what it keeps per slot stands in flat
//! arrays that all policies of one index share (`places`). It never knows where a block is (the index does) nor what is
//! in it. Invariant: the slots in the queues of an index's policies are exactly its occupied slots, each in one.

mod boxed;
mod search;
mod served;
mod studied;

use crate::structures::places::Places;
use crate::structures::slots::{ChainedSlots, Slot};
use std::fmt;
use std::str::FromStr;

pub(crate) use boxed::Studied;
pub(crate) use search::{Search, oldest};
pub(crate) use served::{
    arc::Arc, car::Car, clock::Clock, fifo::Fifo, lru::Lru, s3fifo::S3Fifo, sieve::Sieve, wtinylfu::WTinyLfu,
};
pub(crate) use studied::{
    cacheus::Cacheus, clock_2q::Clock2QPlus, clock_pro::ClockPro, hyperbolic::Hyperbolic, lecar::LeCar, lfu::Lfu,
    lfu_da::LfuDa, lhd::Lhd, lirs::Lirs, lirs2::Lirs2, lru_2::Lru2, mq::Mq, mru::Mru, random::Random, s4fifo::S4Fifo,
    slru::Slru, two_q::TwoQ,
};

#[cfg(test)]
pub(crate) use studied::{
    s4choice::CONFIGURATIONS,
    s4queues::{Knobs, Queues as S4Queues},
};

/// What a policy still knows of a block that is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Nothing.
    Never,
    /// It was evicted from among those accessed once of late.
    Once,
    /// It was evicted from among those accessed more than once.
    Often,
}

/// What an index asks of its policy. A slot is named by its number; the index passes the block where the policy may
/// need it. A miss is, in this order: `miss`, then `victim` if no slot is free, then `insert`; after a `victim` that
/// finds none the miss ends there.
pub(crate) trait Policy {
    /// A hit on an occupied slot.
    fn touch(&mut self, places: &mut Places, slot: Slot, block: u64);

    /// A miss: consults (and adapts to) the ghosts, if the policy has any.
    #[inline]
    fn miss(&mut self, _block: u64) -> Seen {
        Seen::Never
    }

    /// Chooses an occupied slot to free and takes it out of the queues; `None` if the search came to its limit.
    /// `keys` are the blocks by slot; `seen` is what `miss` said, `Never` if the eviction is not for a miss.
    ///
    /// Slots that `may_evict` refuses keep their place. While it refuses none, the choice is the textbook's.
    fn victim(
        &mut self,
        places: &mut Places,
        keys: &[u64],
        may_evict: impl Fn(Slot) -> bool,
        seen: Seen,
    ) -> Option<Slot>;

    /// A slot (in no queue before) now holds `block`, which was absent.
    fn insert(&mut self, places: &mut Places, slot: Slot, block: u64, seen: Seen);

    /// An occupied slot is freed by somebody else's wish; nothing is remembered of its block.
    fn remove(&mut self, places: &mut Places, slot: Slot);

    /// Forgets the ghost of an absent block, if the policy has any.
    #[inline]
    fn forget(&mut self, _block: u64) {}

    /// The block in `from` is in `to` (free before) now.
    fn moved(&mut self, places: &mut Places, from: Slot, to: Slot);

    /// The policy is to have up to `capacity` slots now; `keys` are the blocks by slot.
    fn resize(&mut self, _places: &mut Places, _capacity: u32, _keys: &[u64]) {}

    /// At most `limit` slots are to be occupied from now on, fewer than there are: sizes of queues follow, tables and
    /// ghosts stay. More may be occupied for a while.
    fn limit(&mut self, _places: &mut Places, _limit: u32) {}

    /// Reads of `blocks` one after another, as `replay` says; returns the misses.
    #[inline]
    fn replay(&mut self, slots: &mut ChainedSlots, places: &mut Places, blocks: &[u64]) -> u64
    where
        Self: Sized,
    {
        crate::study::replay::replay_with(slots, places, self, blocks)
    }

    /// Blocks of these hashes come next, and these slots (or `NIL`) are likely to be touched: reads what that needs, to
    /// no other effect.
    #[inline]
    fn ahead(&self, _places: &Places, _slots: &[Slot], _hashes: &[u64]) {}

    /// Calls `visit` with every slot in the queues, in the order in which they would be evicted if nothing were
    /// accessed any more, as far as the policy can tell.
    fn coldest_first(&self, places: &Places, visit: &mut dyn FnMut(Slot));

    /// Bytes of memory held besides the places.
    fn memory_bytes(&self) -> usize;

    /// Panics if an invariant is broken; `occupied` is the number of slots that should be in the queues.
    fn check(&self, places: &Places, occupied: u32);
}

/// The replacement policies: [`PolicyKind::ALL`] for disks, [`PolicyKind::STUDIED`] for simulators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PolicyKind {
    /// First in, first out.
    Fifo,
    /// Least recently used.
    Lru,
    /// Second chance with one reference bit (Corbató, 1968).
    Clock,
    /// Adaptive replacement cache (Megiddo and Modha, FAST 2003).
    Arc,
    /// Clock with adaptive replacement (Bansal and Modha, FAST 2004).
    Car,
    /// Three static FIFO queues (Yang et al., SOSP 2023).
    S3Fifo,
    /// SIEVE (Zhang et al., NSDI 2024).
    Sieve,
    /// Window TinyLFU (Einziger, Friedman and Manes, ACM ToS 2017).
    WTinyLfu,
    /// Any block, by lot.
    Random,
    /// Most recently used.
    Mru,
    /// Least frequently used, ties first in, first out.
    Lfu,
    /// Least frequently used with dynamic aging (Arlitt et al., 1999).
    LfuDa,
    /// Greedy dual size with frequency (Cherkasova, 1998); blocks of one size make it the same as LFU-DA.
    Gdsf,
    /// Segmented LRU (Karedla, Love and Wherry, IEEE Computer 1994).
    Slru,
    /// 2Q (Johnson and Shasha, VLDB 1994).
    TwoQ,
    /// LRU-K with K = 2 (O'Neil, O'Neil and Weikum, SIGMOD 1993).
    Lru2,
    /// Multi-queue (Zhou, Philbin and Li, USENIX ATC 2001).
    Mq,
    /// Low inter-reference recency set (Jiang and Zhang, SIGMETRICS 2002).
    Lirs,
    /// LIRS by the last two reuse distances (Zhong, Zhao and Jiang, SYSTOR 2021).
    Lirs2,
    /// CLOCK-Pro (Jiang, Chen and Zhang, USENIX ATC 2005).
    ClockPro,
    /// Clock2Q+ (Zhai et al.).
    Clock2QPlus,
    /// Hyperbolic caching (Blankstein, Sen and Freedman, USENIX ATC 2017).
    Hyperbolic,
    /// LeCaR (Vietri et al., HotStorage 2018).
    LeCar,
    /// CACHEUS (Rodriguez et al., FAST 2021).
    Cacheus,
    /// Least hit density (Beckmann, Chen and Cidon, NSDI 2018).
    Lhd,
    /// S4-FIFO (Xia et al., OSDI 2026), its configuration chosen by miniature caches instead of the authors' model.
    S4Fifo,
}

impl PolicyKind {
    /// The policies that a disk may have, in the order in which help and tables list them: their memory and the time
    /// of each call are bounded, and each is held against a naive reference model.
    pub const ALL: [PolicyKind; 8] = [
        PolicyKind::Fifo,
        PolicyKind::Lru,
        PolicyKind::Clock,
        PolicyKind::Arc,
        PolicyKind::Car,
        PolicyKind::S3Fifo,
        PolicyKind::Sieve,
        PolicyKind::WTinyLfu,
    ];

    /// Those for simulators alone.
    pub const STUDIED: [PolicyKind; 18] = [
        PolicyKind::Random,
        PolicyKind::Mru,
        PolicyKind::Lfu,
        PolicyKind::LfuDa,
        PolicyKind::Gdsf,
        PolicyKind::Slru,
        PolicyKind::TwoQ,
        PolicyKind::Lru2,
        PolicyKind::Mq,
        PolicyKind::Lirs,
        PolicyKind::Lirs2,
        PolicyKind::ClockPro,
        PolicyKind::Clock2QPlus,
        PolicyKind::Hyperbolic,
        PolicyKind::LeCar,
        PolicyKind::Cacheus,
        PolicyKind::Lhd,
        PolicyKind::S4Fifo,
    ];

    /// Every policy: those for disks, then the others.
    pub fn every() -> impl Iterator<Item = PolicyKind> + Clone {
        Self::ALL.into_iter().chain(Self::STUDIED)
    }

    /// What a disk gets if nobody says otherwise; docs/decisions/0010 has the table behind the choice.
    pub const DEFAULT: PolicyKind = PolicyKind::S3Fifo;

    /// The name used in configuration, on the command line and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            PolicyKind::Fifo => "fifo",
            PolicyKind::Lru => "lru",
            PolicyKind::Clock => "clock",
            PolicyKind::Arc => "arc",
            PolicyKind::Car => "car",
            PolicyKind::S3Fifo => "s3-fifo",
            PolicyKind::Sieve => "sieve",
            PolicyKind::WTinyLfu => "w-tinylfu",
            PolicyKind::Random => "random",
            PolicyKind::Mru => "mru",
            PolicyKind::Lfu => "lfu",
            PolicyKind::LfuDa => "lfu-da",
            PolicyKind::Gdsf => "gdsf",
            PolicyKind::Slru => "slru",
            PolicyKind::TwoQ => "2q",
            PolicyKind::Lru2 => "lru-2",
            PolicyKind::Mq => "mq",
            PolicyKind::Lirs => "lirs",
            PolicyKind::Lirs2 => "lirs2",
            PolicyKind::ClockPro => "clock-pro",
            PolicyKind::Clock2QPlus => "clock2q+",
            PolicyKind::Hyperbolic => "hyperbolic",
            PolicyKind::LeCar => "lecar",
            PolicyKind::Cacheus => "cacheus",
            PolicyKind::Lhd => "lhd",
            PolicyKind::S4Fifo => "s4-fifo",
        }
    }
}

impl PolicyKind {
    /// The policy of that name, whether a disk may have it or only a simulator. Case, `-` and `_` do not matter.
    ///
    /// # Errors
    /// A sentence that lists the known names.
    pub fn from_name(name: &str) -> Result<Self, String> {
        Self::find(name, Self::every())
    }

    fn find(name: &str, known: impl Iterator<Item = Self> + Clone) -> Result<Self, String> {
        let plain = |s: &str| s.to_ascii_lowercase().replace(['-', '_'], "");
        known.clone().find(|k| plain(k.name()) == plain(name)).ok_or_else(|| {
            let known: Vec<_> = known.map(Self::name).collect();
            format!("unknown policy \"{name}\"; known are {}", known.join(", "))
        })
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for PolicyKind {
    type Err = String;

    /// The policy of that name that a disk may have; [`PolicyKind::from_name`] knows the others too.
    ///
    /// # Errors
    /// A sentence that lists the known names.
    fn from_str(s: &str) -> Result<Self, String> {
        Self::find(s, Self::ALL.into_iter())
    }
}
