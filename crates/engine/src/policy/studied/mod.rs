//! The policies that only simulators use.
//!
//! Owns the table of them; each has a file of its own. Owns also what several of them keep: heaps, histories, values by
//! slot. Never serves a guest: the time of a call and the memory of some are not bounded tightly enough.
//! Invariant: the type of a disk's policy cannot hold one.

mod cacheus;
mod clock_2q;
mod clock_pro;
mod frequencies;
mod heap;
mod history;
mod hyperbolic;
mod lecar;
mod lfu;
mod lfu_da;
mod lhd;
mod lirs;
mod lirs2;
mod lru_2;
mod mq;
mod mru;
mod per_slot;
mod random;
pub(crate) mod s4choice;
mod s4fifo;
pub(crate) mod s4queues;
#[cfg(test)]
mod s4tests;
mod slru;
mod two_q;
/// The reference models.
#[cfg(test)]
pub(crate) mod models {
    pub(crate) mod distances;
    pub(crate) mod learning;
}

use super::kinds::boxed;
use crate::structures::table::HashKey;

boxed! {
    /// The policies that only simulators use.
    StudiedPolicyKind:

    /// Any block, drawn at random.
    Random(random::Random) = "random";
    /// Most recently used.
    Mru(mru::Mru) = "mru";
    /// Least frequently used, ties first in, first out.
    Lfu(lfu::Lfu) = "lfu";
    /// Least frequently used with dynamic aging (Arlitt et al., 1999).
    LfuDa(lfu_da::LfuDa) = "lfu-da";
    /// Greedy dual size with frequency (Cherkasova, 1998); blocks of one size make it the same as LFU-DA.
    Gdsf(lfu_da::LfuDa) = "gdsf";
    /// Segmented LRU (Karedla, Love and Wherry, IEEE Computer 1994).
    Slru(slru::Slru) = "slru";
    /// 2Q (Johnson and Shasha, VLDB 1994).
    TwoQ(two_q::TwoQ) = "2q";
    /// LRU-K with K = 2 (O'Neil, O'Neil and Weikum, SIGMOD 1993).
    Lru2(lru_2::Lru2) = "lru-2";
    /// Multi-queue (Zhou, Philbin and Li, USENIX ATC 2001).
    Mq(mq::Mq) = "mq";
    /// Low inter-reference recency set (Jiang and Zhang, SIGMETRICS 2002).
    Lirs(lirs::Lirs) = "lirs";
    /// LIRS by the last two reuse distances (Zhong, Zhao and Jiang, SYSTOR 2021).
    Lirs2(lirs2::Lirs2) = "lirs2", model models::distances::Lirs2::new;
    /// CLOCK-Pro (Jiang, Chen and Zhang, USENIX ATC 2005).
    ClockPro(clock_pro::ClockPro) = "clock-pro";
    /// Clock2Q+ (Zhai et al.).
    Clock2QPlus(clock_2q::Clock2QPlus) = "clock2q+";
    /// Hyperbolic caching (Blankstein, Sen and Freedman, USENIX ATC 2017).
    Hyperbolic(hyperbolic::Hyperbolic) = "hyperbolic";
    /// LeCaR (Vietri et al., HotStorage 2018).
    LeCar(lecar::LeCar) = "lecar";
    /// CACHEUS (Rodriguez et al., FAST 2021).
    Cacheus(cacheus::Cacheus) = "cacheus", model models::learning::Cacheus::new;
    /// Least hit density (Beckmann, Chen and Cidon, NSDI 2018).
    Lhd(lhd::Lhd) = "lhd";
    // at the sizes of the tests there are no miniatures, so the knobs stay those of S3-FIFO
    /// S4-FIFO (Xia et al., OSDI 2026), its configuration chosen by miniature caches instead of the authors' model.
    S4Fifo(s4fifo::S4Fifo) = "s4-fifo", model crate::policy::served::models::segmented::S3Fifo::new;
}
