//! A host cache below a simulated guest, by the daemon's own engine: inclusive, exclusive, or perfectly exclusive.
//!
//! Owns the counts. Never decides: the index and `Exclusive` do. Invariant: what is counted as a hit would have been
//! served without the disk.

use crate::sim::guest::GuestMemory;
use undercroft_engine::curve::{Meter, Served};
use undercroft_engine::residency::Class;
use undercroft_engine::{
    Access, AnyPolicyKind, Copied, Departure, Exclusive, ExclusiveMode, ExclusiveStats, GuestTable, HashKey, Index,
    Outcome, Rescue, Tier,
};
use undercroft_trace::transfers::Transfer;

/// How the host keeps blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Whatever passes, by the policy alone.
    Inclusive,
    /// As the daemon does it.
    Exclusive(ExclusiveMode),
    /// Everything that the guest evicts, as if it told the host; the bound of what inference can do.
    Perfect,
    /// Whatever passes, but after every so many transfers the guest's memory is scanned, and what it holds is the first
    /// to go (Singleton).
    Scan(u32),
}

/// Blocks that a guest asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Blocks read.
    pub reads: u64,
    /// Blocks read that were cached.
    pub hits: u64,
}

/// The host's cache below one guest.
pub struct Host {
    placement: Placement,
    /// The index.
    pub index: Index<AnyPolicyKind>,
    /// The engine's knowledge of what the guest holds.
    table: GuestTable,
    /// What it decides for the disk.
    exclusive: Exclusive<AnyPolicyKind>,
    /// The counts.
    pub count: Count,
    /// The guest's pages never hold what was read: its file system is encrypted or compressed.
    pub opaque: bool,
    /// Blocks evicted since this list was last taken; filled if `tells`.
    pub evicted: Vec<u64>,
    /// Blocks copied from the guest's memory since this list was last taken; filled if `tells`.
    pub copied: Vec<u64>,
    /// Whether the two lists are filled.
    pub tells: bool,
    /// The miss-ratio meter, as a disk of the daemon that is exclusive of its guest has one; optional.
    pub meter: Option<Meter<AnyPolicyKind>>,
    /// Transfers since the last scan.
    unscanned: u32,
}

/// What a copy of a page turned out to be, whose content has the tag `now`.
fn copied(held: bool, now: Option<u64>) -> Copied {
    match now {
        _ if held => Copied::Held,
        Some(_) => Copied::Other,
        None => Copied::Zeroes,
    }
}

fn tag(block: u64, version: u64) -> u64 {
    (block << 20 | version & 0xf_ffff).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 8
}

impl Host {
    /// A host that keeps `blocks` blocks of a guest of `pages` pages.
    pub fn new(placement: Placement, policy: impl Into<AnyPolicyKind>, blocks: u32, pages: u32) -> Self {
        let policy = policy.into();
        let mode = match placement {
            Placement::Exclusive(mode) => mode,
            _ => ExclusiveMode::Capture,
        };
        let mut index = Index::new(policy, blocks);
        index.set_tiers(placement != Placement::Inclusive);
        let key = HashKey::from_seed(7);
        let mut table = GuestTable::new(pages, key);
        let member = table.join(mode).expect("a new table serves none");
        Self {
            placement,
            index,
            exclusive: Exclusive::new(&table, member, mode, policy, blocks, key),
            table,
            count: Count::default(),
            opaque: false,
            evicted: vec![],
            copied: vec![],
            tells: false,
            meter: None,
            unscanned: 0,
        }
    }

    /// The tag of what a page holds; `None` for zeroes.
    fn content(&self, guest: &impl GuestMemory, page: u32) -> Option<u64> {
        // made from what was read, and not the same
        guest.content(page).map(|(b, v)| if self.opaque { !tag(b, v) } else { tag(b, v) })
    }

    fn note(&mut self, outcome: Outcome) {
        if let Outcome::Fill { evicted: Some((block, _)), .. } = outcome
            && self.tells
        {
            self.evicted.push(block);
        }
    }

    fn note_copied(&mut self, block: u64) {
        if self.tells {
            self.copied.push(block);
        }
    }

    /// Makes what the guest holds the first to go.
    fn scan(&mut self, guest: &impl GuestMemory) {
        for page in 0..guest.pages() {
            // A page whose content is not that of the disk is not known by its hash.
            let known = guest.content(page).filter(|&(block, version)| !self.opaque && version == guest.version(block));
            if let Some(slot) = known.and_then(|(block, _)| self.index.peek(block))
                && self.index.tier(slot) == Tier::Hot
            {
                self.index.set_tier(slot, Tier::Cold);
            }
        }
    }

    /// The guest's memory is another from now on, of `pages` pages: nothing is known of it, as in the daemon when
    /// memory is mapped anew.
    pub fn remap(&mut self, pages: u32) {
        let Placement::Exclusive(mode) = self.placement else { return };
        let key = HashKey::from_seed(7);
        let (policy, blocks) = (self.index.kind(), self.index.capacity());
        self.table = GuestTable::new(pages, key);
        let member = self.table.join(mode).expect("a new table serves none");
        self.exclusive = Exclusive::new(&self.table, member, mode, policy, blocks, key);
        self.index.set_tiers(true);
    }

    /// The guest reads or writes all of one of its pages, which is parts of these blocks: no page is known to hold any
    /// of them, so the policy alone decides. Whether all of them were cached.
    pub fn pass(&mut self, blocks: std::ops::Range<u64>, write: bool) -> bool {
        let mut hit = true;
        for block in blocks {
            let outcome = self.index.access(block, if write { Access::Write } else { Access::Read }, |_| true);
            hit &= matches!(outcome, Outcome::Hit(_));
            self.note(outcome);
        }
        if !write {
            self.count.reads += 1;
            self.count.hits += u64::from(hit);
        }
        hit
    }

    /// Whether the guest was found to be opaque, and whether the cache is inclusive at present.
    pub fn found(&self) -> (bool, bool) {
        (self.exclusive.is_opaque(), self.exclusive.is_inclusive())
    }

    /// What was done to keep the cache exclusive.
    pub fn exclusive_stats(&self) -> ExclusiveStats {
        self.exclusive.stats(&self.table)
    }

    /// The guest has begun afresh, and has not used its memory yet.
    pub fn restart(&mut self, guest: &impl GuestMemory) {
        if !matches!(self.placement, Placement::Exclusive(_)) {
            return;
        }
        self.exclusive.restart(&mut self.table, &self.index);
        self.rescue(guest);
    }

    /// Copies what is to be copied of a guest that has begun afresh, or has dropped its cache.
    fn rescue(&mut self, guest: &impl GuestMemory) {
        loop {
            match self.exclusive.rescue(&mut self.table, &mut self.index) {
                Rescue::Done => return,
                Rescue::Later => {}
                Rescue::Copy(due) => {
                    let held = self.content(guest, due.page).is_some_and(|now| due.what.has_tag(now));
                    if held {
                        let outcome = self.index.place(due.what.block, Tier::Hot, |_| true);
                        self.note(outcome);
                        self.note_copied(due.what.block);
                        self.exclusive.lapses(&mut self.table, &mut self.index);
                    }
                    self.exclusive.rescued(&mut self.table, &due, held);
                }
            }
        }
    }

    /// A request of the guest, before the content of its page changes; whether the block was cached.
    pub fn transfer(&mut self, guest: &impl GuestMemory, t: Transfer) -> bool {
        let class = if t.write { Class::Write } else { Class::Read };
        let version = guest.version(t.block) + u64::from(t.write);
        if t.write {
            self.table.residency_mut().forget(self.exclusive.member(), t.block);
        }
        if let Placement::Scan(every) = self.placement {
            self.unscanned += 1;
            if self.unscanned >= every {
                self.unscanned = 0;
                self.scan(guest);
            }
        }
        if matches!(self.placement, Placement::Inclusive | Placement::Scan(_)) {
            let outcome = self.index.access(t.block, if t.write { Access::Write } else { Access::Read }, |_| true);
            if !t.write {
                self.count.reads += 1;
                self.count.hits += u64::from(matches!(outcome, Outcome::Hit(_)));
            }
            self.note(outcome);
            return matches!(outcome, Outcome::Hit(_));
        }
        let found = self.index.peek(t.block).is_some();
        let hashed = self.exclusive.wants_hash(class).then(|| tag(t.block, version));
        if hashed.is_some() {
            self.exclusive.hashed();
        }
        let moved =
            undercroft_engine::Transfer { page: t.page, block: t.block, class, tag: hashed, found: Some(found) };
        let left = self.exclusive.arrives(&mut self.table, &mut self.index, moved);
        if let Some(meter) = &mut self.meter {
            if t.write {
                meter.arrived(t.block);
            } else {
                meter.observe_taken(t.block, if found { Served::Hit } else { Served::Miss });
            }
            if let Some(left) = left.block() {
                meter.left(left);
            }
        }
        if let Departure::Capture(what) = left {
            let now = self.content(guest, t.page);
            let same = now.is_some_and(|now| what.has_tag(now));
            let held = self.placement == Placement::Perfect || same;
            self.exclusive.captured(&mut self.table, &what, copied(held, now));
            if held {
                let outcome = self.index.place(what.block, Tier::Hot, |_| true);
                self.note(outcome);
                self.note_copied(what.block);
                self.exclusive.lapses(&mut self.table, &mut self.index);
            }
        }
        let outcome = self.index.access(t.block, Access::Take, |_| true);
        self.note(outcome);
        self.exclusive.lapses(&mut self.table, &mut self.index);
        if !t.write {
            self.count.reads += 1;
            self.count.hits += u64::from(matches!(outcome, Outcome::Hit(_)));
        }
        self.rescue(guest);
        while let Some(due) = self.exclusive.due(&mut self.table, &mut self.index) {
            let now = self.content(guest, due.page);
            let held = now.is_some_and(|n| self.table.residency().matches(due.page, n));
            if held {
                let outcome = self.index.place(due.what.block, Tier::Probation, |_| true);
                self.note(outcome);
                self.note_copied(due.what.block);
            }
            self.exclusive.copied(&mut self.table, &mut self.index, &due, copied(held, now));
        }
        matches!(outcome, Outcome::Hit(_))
    }
}
