//! The shadow cache: how many hits an inclusive cache of the same size and policy would have had. A small copy of such
//! a cache, without data, is given a sample of the blocks.
//!
//! Owns the miniature and the comparison with the cache in use, over the same sampled blocks. Never changes the cache.
//! Invariant: whether a block is sampled depends on its number and the key alone, so both see all accesses to it.
//!
//! Miniature simulation by spatial sampling: Waldspurger et al., "Cache modeling and optimization using miniature
//! simulations", USENIX ATC 2017.

use crate::index::{Access, Index};
use crate::policy::{Outcome, PolicySet};
use crate::structures::table::HashKey;

/// Slots of the miniature, at least and at most.
const SLOTS_MIN: u32 = 256;
const SLOTS_MAX: u32 = 8192;
/// One in so many blocks is sampled, if that leaves enough slots.
const SAMPLED: u32 = 32;
/// Bytes per slot, at most.
const SLOT_BYTES: usize = 80;
/// Sampled reads per slot after which the two are compared, and at least so many.
const WINDOW_PER_SLOT: u64 = 1;
const WINDOW_MIN: u64 = 1024;
/// The cache in use is behind if it hits less by more than one in so many reads.
const BEHIND_PART: u64 = 50;
/// Windows in a row that the cache in use must be behind.
const BEHIND_WINDOWS: u32 = 2;
/// Windows after a change that do not count: the cache has to fill with what it now prefers.
const GRACE_WINDOWS: u32 = 2;
/// Where the cache in use must save more to be worth its table: sampled reads after which it is looked at, the least
/// number that count, and that after which all counts are halved.
const LEAD_EVERY: u64 = 128;
const LEAD_READS: u64 = 4 * LEAD_EVERY;
const LEAD_MEMORY: u64 = 2048;
/// It leads if it hits more by one in so many reads.
const LEAD_PART: u64 = 100;
/// Windows until an exclusive cache is tried again; twice as many after each try that fails.
const RETRY_WINDOWS: u32 = 16;
const RETRY_WINDOWS_MAX: u32 = 256;

/// What the comparison says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Go on.
    Stay,
    /// Be inclusive.
    Inclusive,
    /// Try to be exclusive.
    Exclusive,
}

#[derive(Clone, Copy, Debug, Default)]
struct Window {
    reads: u64,
    hits: u64,
    shadow_hits: u64,
}

impl Window {
    fn add(&mut self, hit: bool, shadow: bool) {
        self.reads += 1;
        self.hits += u64::from(hit);
        self.shadow_hits += u64::from(shadow);
    }
}

/// See the head of the file.
pub(crate) struct ShadowCache<K: PolicySet> {
    index: Index<K>,
    key: HashKey,
    /// A block is sampled if its hash is below this.
    threshold: u64,
    sampled: u32,
    window: Window,
    behind: u32,
    /// Windows until a verdict may come.
    wait: u32,
    retry: u32,
    inclusive: bool,
    /// The cache in use must hit more, not just as often.
    must_lead: bool,
    /// What counts for that.
    lead: Window,
    /// It has just changed, and fills with what it now prefers.
    changing: bool,
}

impl<K: PolicySet> std::fmt::Debug for ShadowCache<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShadowCache").field("window", &self.window).field("inclusive", &self.inclusive).finish()
    }
}

impl<K: PolicySet> ShadowCache<K> {
    /// For a cache of `capacity` slots.
    pub fn new(kind: K, capacity: u32, key: HashKey) -> Self {
        let key = key.derived();
        let (slots, sampled) = Self::scale(capacity);
        Self {
            index: Index::with_hash_key(kind, slots, key),
            key: key.derived(),
            threshold: u64::MAX / u64::from(sampled),
            sampled,
            window: Window::default(),
            behind: 0,
            wait: GRACE_WINDOWS,
            retry: RETRY_WINDOWS,
            inclusive: false,
            must_lead: false,
            lead: Window::default(),
            changing: false,
        }
    }

    /// The policy of the miniature.
    pub fn kind(&self) -> K {
        self.index.kind()
    }

    /// The cache in use is under `kind` from now on, and has `capacity` slots: so is the miniature, within its bounds.
    /// It keeps what it has, as far as that fits, and the two are compared from now on. Takes time in proportion to the
    /// slots of the miniature, at most [`SLOTS_MAX`].
    pub fn follow(&mut self, kind: K, capacity: u32) {
        let (slots, sampled) = Self::scale(capacity);
        let as_before = kind == self.index.kind();
        if as_before && (slots, sampled) == (self.index.capacity(), self.sampled) {
            return;
        }
        if !as_before {
            self.index.switch(kind);
        }
        if slots != self.index.capacity() {
            self.index.resize(slots, |_| true, |_, _| {}, |_, _| {});
        }
        (self.sampled, self.threshold) = (sampled, u64::MAX / u64::from(sampled));
        (self.window, self.lead, self.behind) = (Window::default(), Window::default(), 0);
        if !self.inclusive {
            self.wait = self.wait.max(GRACE_WINDOWS);
        }
    }

    fn scale(capacity: u32) -> (u32, u32) {
        let slots = (capacity / SAMPLED).clamp(SLOTS_MIN, SLOTS_MAX).min(capacity);
        (slots, (capacity / slots.max(1)).max(1))
    }

    /// Bytes for a cache of `capacity` slots, at most.
    pub fn bytes_for(capacity: u32) -> u64 {
        let (slots, _) = Self::scale(capacity);
        (slots as usize * SLOT_BYTES + size_of::<Self>()) as u64
    }

    /// The cache in use may keep so many blocks from now on.
    pub fn set_limit(&mut self, limit: u32) {
        self.index.set_limit(limit / self.sampled);
    }

    /// Whether the cache in use is inclusive at present.
    pub fn is_inclusive(&self) -> bool {
        self.inclusive
    }

    /// Whether the cache in use must hit more than an inclusive one, from now on, because it costs more.
    pub fn set_must_lead(&mut self, must: bool) {
        (self.must_lead, self.lead) = (must, Window::default());
    }

    /// The cache in use is exclusive from now on, whatever was found before.
    pub fn begin_anew(&mut self) {
        (self.inclusive, self.behind, self.changing) = (false, 0, false);
        (self.wait, self.retry) = (GRACE_WINDOWS, RETRY_WINDOWS);
        self.window = Window::default();
        self.set_must_lead(false);
    }

    /// Whether accesses to this block are compared: [`ShadowCache::observe`] is called for those alone.
    #[inline]
    pub fn samples(&self, block: u64) -> bool {
        self.key.hash(block) <= self.threshold
    }

    /// A sampled block was read or written; `hit` says whether a read found it cached, `shows` whether the cache in use
    /// can have gained anything yet by what it prefers.
    pub fn observe(&mut self, block: u64, write: bool, hit: bool, shows: bool) -> Verdict {
        let access = if write { Access::Write } else { Access::Read };
        let shadow = matches!(self.index.access(block, access, |_| true), Outcome::Hit(_));
        if write {
            return Verdict::Stay;
        }
        if self.must_lead && shows && !self.inclusive && !self.changing && self.falls_behind(hit, shadow) {
            return self.give_way();
        }
        let w = &mut self.window;
        w.add(hit, shadow);
        if w.reads < WINDOW_MIN.max(WINDOW_PER_SLOT * u64::from(self.index.capacity())) {
            return Verdict::Stay;
        }
        let w = std::mem::take(w);
        self.judge(w)
    }

    /// A block was read or written, and whether it was found says nothing of what the cache keeps: read-ahead had
    /// brought it, or another reader's request. A cache would keep it all the same.
    #[inline]
    pub fn passed(&mut self, block: u64, write: bool) {
        if self.samples(block) {
            let access = if write { Access::Write } else { Access::Read };
            self.index.access(block, access, |_| true);
        }
    }

    /// Of a cache that must lead: whether it does not, over the latest reads.
    fn falls_behind(&mut self, hit: bool, shadow: bool) -> bool {
        let w = &mut self.lead;
        w.add(hit, shadow);
        if !w.reads.is_multiple_of(LEAD_EVERY) || w.reads < LEAD_READS {
            return false;
        }
        let leads = w.hits > w.shadow_hits + w.reads / LEAD_PART;
        if w.reads >= LEAD_MEMORY {
            *w = Window { reads: w.reads / 2, hits: w.hits / 2, shadow_hits: w.shadow_hits / 2 };
        }
        !leads
    }

    fn judge(&mut self, w: Window) -> Verdict {
        if self.wait > 0 {
            self.wait -= 1;
            if self.wait == 0 && self.inclusive {
                self.inclusive = false;
                (self.behind, self.wait, self.changing) = (0, GRACE_WINDOWS, true);
                return Verdict::Exclusive;
            }
            return Verdict::Stay;
        }
        self.changing = false;
        if w.shadow_hits <= w.hits + w.reads / BEHIND_PART {
            self.behind = 0;
            // it has held out for a window: the next failure is a new one
            self.retry = RETRY_WINDOWS;
            return Verdict::Stay;
        }
        self.behind += 1;
        if self.behind < BEHIND_WINDOWS {
            return Verdict::Stay;
        }
        self.give_way()
    }

    /// The cache in use is to be inclusive, and is tried again later.
    fn give_way(&mut self) -> Verdict {
        self.inclusive = true;
        self.wait = self.retry;
        self.retry = (self.retry * 2).min(RETRY_WINDOWS_MAX);
        self.lead = Window::default();
        Verdict::Inclusive
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::PolicyKind;

    fn observe(shadow: &mut ShadowCache<PolicyKind>, block: u64, hit: bool) -> Verdict {
        if shadow.samples(block) { shadow.observe(block, false, hit, true) } else { Verdict::Stay }
    }

    /// A loop that fits: the shadow hits always. The cache in use hits never, or always.
    fn verdicts(rounds: u64, hit: impl Fn(u64) -> bool) -> Vec<(u64, Verdict)> {
        let mut shadow = ShadowCache::new(PolicyKind::Lru, 16_384, HashKey::from_seed(3));
        let mut seen = vec![];
        for n in 0..rounds {
            for block in 0..10_000u64 {
                let v = observe(&mut shadow, block, hit(n));
                if v != Verdict::Stay {
                    seen.push((n, v));
                }
            }
        }
        seen
    }

    #[test]
    fn a_cache_that_is_behind_becomes_inclusive_and_tries_again_ever_more_rarely() {
        let seen = verdicts(1500, |_| false);
        let kinds: Vec<_> = seen.iter().map(|s| s.1).collect();
        assert_eq!(kinds[..4], [Verdict::Inclusive, Verdict::Exclusive, Verdict::Inclusive, Verdict::Exclusive]);
        let away = |i: usize| seen[2 * i + 1].0 - seen[2 * i].0;
        assert!(away(1) > away(0) * 3 / 2, "{seen:?}");
    }

    #[test]
    fn what_read_ahead_brings_is_kept_by_the_shadow_cache_too() {
        let mut shadow = ShadowCache::new(PolicyKind::Lru, 16_384, HashKey::from_seed(3));
        let mut inclusive = false;
        // Every second pass over a loop that fits comes by read-ahead; what does not is never found.
        for n in 0..60 {
            for block in 0..10_000u64 {
                if n % 2 == 0 {
                    shadow.passed(block, false);
                } else {
                    inclusive |= observe(&mut shadow, block, false) == Verdict::Inclusive;
                }
            }
            // Not by what it brought itself: it would be behind from its second pass on otherwise as well.
            if n == 1 {
                assert_eq!(
                    shadow.window.shadow_hits, shadow.window.reads,
                    "all of the first pass that counts is there"
                );
            }
        }
        assert!(inclusive);
    }

    #[test]
    fn one_that_keeps_up_stays() {
        assert_eq!(verdicts(200, |_| true), []);
        // one miss in a hundred is not behind
        assert_eq!(verdicts(200, |n| n % 100 != 0), []);
    }

    /// Sampled reads, about, until a cache that hits as often as `hit` says gives way to an inclusive one that hits
    /// half of the time.
    fn until_it_gives_way(must_lead: bool, hit: impl Fn(u64) -> bool) -> Option<u64> {
        let mut shadow = ShadowCache::new(PolicyKind::Lru, 16_384, HashKey::from_seed(3));
        shadow.set_must_lead(must_lead);
        // Every second read is of a block that was never read before.
        let block = |n: u64| if n.is_multiple_of(2) { n / 2 % 4000 } else { 1 << 32 | n };
        let at = (0..400_000).find(|&n| observe(&mut shadow, block(n), hit(n)) == Verdict::Inclusive);
        at.map(|n| n / u64::from(shadow.sampled))
    }

    #[test]
    fn one_that_must_lead_gives_way_where_it_does_not_and_stays_where_it_does() {
        // The inclusive one has to read the blocks once.
        let as_often = |n: u64| n >= 8000 && n.is_multiple_of(2);
        assert_eq!(until_it_gives_way(false, as_often), None);
        let at = until_it_gives_way(true, as_often);
        assert!(at.is_some_and(|at| (300..2000).contains(&at)), "{at:?}");
        assert_eq!(until_it_gives_way(true, |n| n % 10 < 7), None, "it hits two reads in ten more");
    }

    #[test]
    fn its_memory_is_bounded() {
        for capacity in [0, 1, 300, 10_000, 1 << 22] {
            let shadow = ShadowCache::new(PolicyKind::Arc, capacity, HashKey::from_seed(1));
            assert!(
                (shadow.index.memory_bytes() + size_of::<ShadowCache<PolicyKind>>()) as u64
                    <= ShadowCache::<PolicyKind>::bytes_for(capacity) + 1024
            );
        }
    }
}
