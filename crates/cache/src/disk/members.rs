//! The disks whose blocks stand in one index: who owns which, and how many blocks each has.
//!
//! Owns the numbers of members (ordinals), the counts of each, and whether anything is to be locked of it. Never holds
//! a page. Invariants: a member's ordinal stays while it is a member, and two members never have the same; the blocks
//! of all members together are the pages that the index's slots hold.

use crate::types::DiskId;
use undercroft_engine::ORIGIN_STEP;

/// A disk of a pool.
#[derive(Clone, Copy, Debug)]
struct Member {
    id: DiskId,
    /// Its pages.
    resident: u32,
    /// Blocks of it that were evicted.
    evicted: u64,
    /// It may hold frames in common with other disks.
    deduplicates: bool,
    /// Blocks of it may be locked.
    locks: bool,
    /// Blocks of it that are pinned.
    pinned_blocks: u64,
}

/// See the head of the file.
#[derive(Debug, Default)]
pub(super) struct Members {
    /// By ordinal.
    of: Vec<Option<Member>>,
}

impl Members {
    /// A disk with `resident` pages becomes a member; its ordinal.
    pub(super) fn enter(&mut self, id: DiskId, resident: u32, deduplicates: bool) -> u16 {
        let member = Some(Member { id, resident, evicted: 0, deduplicates, locks: false, pinned_blocks: 0 });
        match self.of.iter().position(Option::is_none) {
            Some(free) => {
                self.of[free] = member;
                free as u16
            }
            None => {
                self.of.push(member);
                (self.of.len() - 1) as u16
            }
        }
    }

    /// A member without pages leaves.
    pub(super) fn leave(&mut self, ordinal: u16) {
        let gone = self.of[usize::from(ordinal)].take();
        debug_assert!(gone.is_some_and(|m| m.resident == 0), "a disk leaves its pool with pages in it");
    }

    fn at(&mut self, ordinal: u16) -> &mut Member {
        self.of[usize::from(ordinal)].as_mut().expect("a key of the index is that of a member")
    }

    /// Who owns a key.
    pub(super) fn owner(&self, key: u64) -> DiskId {
        self.of[usize::from(ordinal_of(key))].as_ref().expect("a key of the index is that of a member").id
    }

    /// A page of the owner of `key` has come.
    pub(super) fn came(&mut self, key: u64) {
        self.at(ordinal_of(key)).resident += 1;
    }

    /// A page of the owner of `key` has gone.
    pub(super) fn went(&mut self, key: u64) {
        self.at(ordinal_of(key)).resident -= 1;
    }

    /// The block of a key was evicted.
    pub(super) fn evicted(&mut self, key: u64) {
        self.at(ordinal_of(key)).evicted += 1;
    }

    /// Blocks of a member that others evicted since this was asked last.
    pub(super) fn take_evicted(&mut self, ordinal: u16) -> u64 {
        std::mem::take(&mut self.at(ordinal).evicted)
    }

    /// Pages of a member, and blocks of it that others evicted and it has not counted yet.
    pub(super) fn counts(&self, ordinal: u16) -> (u32, u64) {
        self.of[usize::from(ordinal)].map_or((0, 0), |m| (m.resident, m.evicted))
    }

    /// Whether any may hold frames in common with other disks.
    pub(super) fn deduplicate(&self) -> bool {
        self.of.iter().flatten().any(|m| m.deduplicates)
    }

    /// Whether anything is to be locked of a member, and how many of its blocks are pinned.
    pub(super) fn note_locks(&mut self, ordinal: u16, locks: bool, pinned_blocks: u64) {
        let member = self.at(ordinal);
        (member.locks, member.pinned_blocks) = (locks, pinned_blocks);
    }

    /// What was noted of that.
    pub(super) fn locks(&self, ordinal: u16) -> (bool, u64) {
        self.of[usize::from(ordinal)].map_or((false, 0), |m| (m.locks, m.pinned_blocks))
    }

    /// Whether anything is to be locked of any member.
    pub(super) fn have_locks(&self) -> bool {
        self.of.iter().flatten().any(|m| m.locks)
    }

    /// Blocks that are pinned of all members but this one.
    pub(super) fn pinned_beside(&self, ordinal: u16) -> u64 {
        let others = self.of.iter().enumerate().filter(|&(n, _)| n != usize::from(ordinal));
        others.filter_map(|(_, member)| *member).map(|m| m.pinned_blocks).sum()
    }

    /// The members.
    pub(super) fn ids(&self) -> impl Iterator<Item = DiskId> + Clone + '_ {
        self.of.iter().flatten().map(|m| m.id)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.of.iter().flatten().count()
    }

    /// Bytes of metadata held now.
    pub(super) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.of.capacity() * size_of::<Option<Member>>()
    }

    /// Checks the counts against the keys of all slots with a page; for tests.
    pub(super) fn check(&self, keys: impl Iterator<Item = u64>) {
        let mut found = vec![0; self.of.len()];
        keys.for_each(|key| found[usize::from(ordinal_of(key))] += 1);
        for (ordinal, &found) in found.iter().enumerate() {
            let counted = self.of[ordinal].map_or(0, |m| m.resident);
            assert!(counted == found, "member {ordinal} of a pool has {found} blocks, and {counted} are counted");
        }
    }
}

/// The ordinal of the member that owns a key.
fn ordinal_of(key: u64) -> u16 {
    (key / ORIGIN_STEP) as u16
}

/// The origin that a member's blocks are counted from.
pub(super) fn origin(ordinal: u16) -> u64 {
    u64::from(ordinal) * ORIGIN_STEP
}
