//! Why a share changed: the reasons, and a bounded log of every move.
//!
//! Owns what is kept of a move; `words` says it in sentences. Never decides. Invariant: the log keeps the last
//! `capacity` events; sequence numbers rise by one, so that a reader sees which ones it missed.

use crate::shares::NodeId;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

/// A node as an event remembers it: the node may be gone when the event is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Party {
    /// The node.
    pub node: NodeId,
    /// Its name.
    pub name: Arc<str>,
}

/// Why. Misses are those of one interval.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// Shares go by weight, floors and demands.
    ByWeight {
        /// What the taker now has.
        share: u64,
        /// Its weight.
        weight: u32,
    },
    /// Floors, ceilings, the number of nodes or the whole changed.
    Fitted,
    /// The blocks save the taker more misses than they saved the giver.
    Gain {
        /// Misses that the taker saves.
        saves: f64,
        /// Misses that the giver has more.
        costs: f64,
    },
    /// Moving would not have paid for itself of late: shares go by weight, and what is not demanded is lent.
    Guarded {
        /// Misses of late if blocks had moved, as the curves tell.
        misses: f64,
        /// And with shares by weight.
        by_weight: f64,
    },
    /// Moving would have paid for itself of late: the controller is in charge again.
    Resumed {
        /// Misses of late if blocks had moved, as the curves tell.
        misses: f64,
        /// And with shares by weight.
        by_weight: f64,
    },
    /// The taker's requests and misses are above the marks of heavy load, the giver's below.
    Heavy {
        /// Requests of the taker.
        requests: u64,
        /// Its misses.
        misses: u64,
        /// What the giver did not use.
        remaining: u64,
    },
    /// The taker filled its share for two intervals and hardly anything remains.
    Hot {
        /// Intervals in a row.
        intervals: u32,
        /// What remains of the taker's share.
        remaining: u64,
        /// What the giver did not use.
        giver_remaining: u64,
    },
    /// Few requests and yet many misses: another replacement policy may help, size will not.
    ReplacementNotSize {
        /// Requests.
        requests: u64,
        /// Misses.
        misses: u64,
    },
    /// A goal needs this size.
    Needed {
        /// The goal.
        goal: Goal,
        /// What it takes.
        blocks: u64,
    },
    /// All goals together need more than there is: each gets its part by weight.
    Infeasible {
        /// The goal.
        goal: Goal,
        /// What this one would take; `None`: no size does it.
        needs: Option<u64>,
        /// What all goals would take together.
        together: u64,
        /// What there is.
        total: u64,
    },
    /// The rule of the per-file page cache let it grow.
    Grown {
        /// Accesses.
        accesses: u64,
        /// Misses.
        misses: u64,
        /// Misses that read-ahead had foreseen.
        read_ahead: u64,
    },
    /// The reaper took from what was not used lately.
    Reaped {
        /// Intervals since the giver was used.
        idle: u32,
    },
}

/// What a node is to reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// At least this part of the requests hit: 0 to 1.
    HitRatio(f64),
    /// 99 of 100 requests take no longer, in microseconds.
    P99LatencyUs(f64),
    /// At least so many requests per second.
    Iops(f64),
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HitRatio(ratio) => write!(f, "a hit ratio of {:.1} %", ratio * 100.0),
            Self::P99LatencyUs(us) => write!(f, "a p99 latency of {us:.0} us"),
            Self::Iops(iops) => write!(f, "{iops:.0} requests per second"),
        }
    }
}

/// One move of blocks, or one finding.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Rises by one with every event.
    pub sequence: u64,
    /// The number of the interval.
    pub interval: u64,
    /// The node whose share was divided.
    pub node: Party,
    /// Who gave; `None`: what was free.
    pub from: Option<Party>,
    /// Who took; `None`: it is free now.
    pub to: Option<Party>,
    /// Blocks moved; 0 for a finding.
    pub blocks: u64,
    /// Why.
    pub reason: Reason,
}

/// The log. See the head of the file.
#[derive(Clone, Debug)]
pub struct Events {
    kept: VecDeque<Event>,
    capacity: usize,
    next: u64,
}

impl Events {
    /// A log of the last `capacity` events.
    pub fn new(capacity: usize) -> Self {
        Self { kept: VecDeque::with_capacity(capacity), capacity, next: 0 }
    }

    /// Adds one; its sequence number is given here.
    pub fn add(&mut self, mut event: Event) {
        event.sequence = self.next;
        self.next += 1;
        if self.capacity == 0 {
            return;
        }
        if self.kept.len() == self.capacity {
            self.kept.pop_front();
        }
        self.kept.push_back(event);
    }

    /// What is kept from `sequence` on, oldest first.
    pub fn since(&self, sequence: u64) -> impl Iterator<Item = &Event> {
        self.kept.iter().filter(move |e| e.sequence >= sequence)
    }

    /// What is kept about `node` as giver, taker or the one divided, oldest first.
    pub fn about(&self, node: NodeId) -> impl Iterator<Item = &Event> {
        let is = move |p: &Party| p.node == node;
        self.kept
            .iter()
            .filter(move |e| is(&e.node) || e.from.as_ref().is_some_and(is) || e.to.as_ref().is_some_and(is))
    }

    /// The number that the next event gets.
    #[cfg(test)]
    pub(crate) fn next_sequence(&self) -> u64 {
        self.next
    }
}
