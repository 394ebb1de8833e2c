//! A guest whose transfers, and perhaps pages, the host sees; and the levels below the host.
//!
//! Owns the order of what happens: the host looks at a page before its content changes. Never decides: the guest's
//! lists or index, the host's index and the engine's `Exclusive` do.

use super::stack::Stack;
use super::{DeviceStep, Keeps, LevelCounts, LevelOptions, Writes};
use crate::sim::guest::{GuestOptions, SimulatedGuest};
use crate::sim::guest_policy::PolicyGuest;
use crate::sim::host::{Host, Placement};
use undercroft_trace::transfers::Transfer;

enum Top {
    Linux(Box<SimulatedGuest>),
    Policy(Box<PolicyGuest>),
}

/// A guest's cache, the host's cache below it, and the levels below that.
pub(super) struct Pages {
    top: Top,
    host: Host,
    below: Stack,
    counts: [LevelCounts; 2],
    /// Transfers of one access, and whether the host had their blocks.
    passed: Vec<(Transfer, bool)>,
}

impl Pages {
    pub fn new(guest: &LevelOptions, host: &LevelOptions, below: Stack) -> Self {
        let top = match guest.linux {
            Some(linux) => Top::Linux(Box::new(SimulatedGuest::new(GuestOptions {
                pages: guest.blocks,
                free_pages: linux.free_pages,
                zeroing: linux.zeroing,
            }))),
            None => {
                let back = guest.writes == Writes::Back;
                Top::Policy(Box::new(PolicyGuest::new(guest.policy, guest.blocks, back)))
            }
        };
        let placement = match host.keeps {
            Keeps::Passing | Keeps::Demoted => Placement::Inclusive,
            Keeps::Captured => Placement::Perfect,
            Keeps::Inferred(mode) => Placement::Exclusive(mode),
            Keeps::Scanned(every) => Placement::Scan(every),
            Keeps::Hinted => unreachable!("such levels see no pages: the hierarchy chose another shape"),
        };
        let mut host = Host::new(placement, host.policy, host.blocks, guest.blocks.max(1));
        host.tells = true;
        Self { top, host, below, counts: [LevelCounts::default(); 2], passed: vec![] }
    }

    pub fn access(&mut self, block: u64, write: bool, steps: &mut Vec<DeviceStep>) {
        let Self { top, host, passed, .. } = self;
        match top {
            Top::Linux(guest) => guest.access(block, write, &mut |g, t| passed.push((t, host.transfer(g, t)))),
            Top::Policy(guest) => {
                guest.access(block, write, &mut |g, t| passed.push((t, host.transfer(g, t))));
            }
        }
        let fetched = self.passed.iter().any(|(t, _)| !t.write && t.block == block);
        if write {
            self.counts[0].writes += 1;
            steps.push(DeviceStep { device: 0, write: true, awaited: true });
        } else {
            self.counts[0].reads += 1;
            self.counts[0].read_misses += u64::from(fetched);
            if !fetched {
                steps.push(DeviceStep { device: 0, write: false, awaited: true });
            }
        }
        // The client waits for what it reads, and for a write that goes through.
        self.pass_on(Some((block, write)), steps);
        if fetched {
            steps.push(DeviceStep { device: 0, write: true, awaited: false });
        }
    }

    /// What the transfers lead to at and below the host.
    fn pass_on(&mut self, asked: Option<(u64, bool)>, steps: &mut Vec<DeviceStep>) {
        let mut passed = std::mem::take(&mut self.passed);
        for (t, hit) in passed.drain(..) {
            let awaited = asked == Some((t.block, t.write));
            let counts = &mut self.counts[1];
            if t.write {
                counts.writes += 1;
                counts.write_misses += u64::from(!hit);
                steps.push(DeviceStep { device: 1, write: true, awaited });
                let held = self.host.index.peek(t.block).is_some();
                self.below.write(0, t.block, awaited, held, steps);
            } else {
                counts.reads += 1;
                counts.read_misses += u64::from(!hit);
                if hit {
                    steps.push(DeviceStep { device: 1, write: false, awaited });
                } else {
                    self.below.read(0, t.block, steps);
                    steps.push(DeviceStep { device: 1, write: true, awaited: false });
                }
            }
        }
        self.passed = passed;
        let mut evicted = std::mem::take(&mut self.host.evicted);
        self.counts[1].evictions += evicted.len() as u64;
        if self.below.takes_demoted(0) {
            for &block in &evicted {
                // It may have come back within the same access.
                if self.host.index.peek(block).is_none() {
                    self.below.demote(0, block, false, steps);
                }
            }
        }
        evicted.clear();
        self.host.evicted = evicted;
        let mut copied = std::mem::take(&mut self.host.copied);
        for block in copied.drain(..) {
            if self.host.index.peek(block).is_some() {
                self.below.taken_above(block, steps);
            }
        }
        self.host.copied = copied;
    }

    pub fn flush(&mut self, steps: &mut Vec<DeviceStep>) {
        let Self { top, host, passed, .. } = self;
        if let Top::Policy(guest) = top {
            guest.flush(&mut |g, t| passed.push((t, host.transfer(g, t))));
        }
        self.pass_on(None, steps);
        self.below.flush(steps);
    }

    pub fn counts(&self) -> Vec<LevelCounts> {
        let mut counts = self.counts.to_vec();
        // What the host copies from the guest's pages, at their reuse or before.
        let stats = self.host.exclusive_stats();
        counts[1].demotions = stats.captures + stats.early;
        counts.extend(self.below.counts());
        counts
    }

    #[cfg(test)]
    pub fn held(&self) -> Vec<Vec<u64>> {
        let mut host: Vec<u64> = self.host.index.iter().map(|(block, _)| block).collect();
        host.sort_unstable();
        let mut all = vec![vec![], host];
        all.extend(self.below.held());
        all
    }
}
