//! A guest's cache under a policy of the engine, as its host sees it: slots are pages of memory.
//!
//! Owns what is in the pages and which are dirty. Never sees the host. Invariant: a slot of the index is a page, and a
//! page that a block leaves is given to the next one at once.

use crate::sim::guest::GuestMemory;
use std::collections::HashMap;
use undercroft_engine::{Access, AnyPolicyKind, Index, Outcome};
use undercroft_trace::transfers::Transfer;

/// A guest's cache that a policy of the engine manages.
pub struct PolicyGuest {
    index: Index<AnyPolicyKind>,
    /// What each page holds, block and version; dirty ones have the largest version there is.
    content: Vec<Option<(u64, u64)>>,
    versions: HashMap<u64, u64>,
    write_back: bool,
}

/// The version of content that only the guest has.
const DIRTY: u64 = u64::MAX;

impl GuestMemory for PolicyGuest {
    fn content(&self, page: u32) -> Option<(u64, u64)> {
        self.content.get(page as usize).copied().flatten()
    }

    fn version(&self, block: u64) -> u64 {
        self.versions.get(&block).copied().unwrap_or(0)
    }

    fn pages(&self) -> u32 {
        // A guest without a cache still reads into a page.
        self.index.capacity().max(1)
    }
}

impl PolicyGuest {
    /// An empty guest of `pages` pages; with `write_back`, a written block goes to the disk when it leaves, otherwise
    /// at once.
    pub fn new(policy: impl Into<AnyPolicyKind>, pages: u32, write_back: bool) -> Self {
        let content = vec![None; pages.max(1) as usize];
        Self { index: Index::new(policy.into(), pages), content, versions: HashMap::new(), write_back }
    }

    /// The guest reads or writes `block`; `on` is called for each transfer from or to the disk, before the page's
    /// content changes. Whether it was cached.
    pub fn access(&mut self, block: u64, write: bool, on: &mut impl FnMut(&Self, Transfer)) -> bool {
        let outcome = self.index.access(block, if write { Access::Write } else { Access::Read }, |_| true);
        let (page, hit) = match outcome {
            Outcome::Hit(slot) => (slot, true),
            Outcome::Fill { slot, .. } => (slot, false),
            // Through a page that is used for nothing else.
            Outcome::Bypass => (0, false),
        };
        if !hit {
            self.clean(page, on);
        }
        if write {
            self.write(block, page, matches!(outcome, Outcome::Bypass), on);
        } else if !hit {
            on(self, Transfer { block, page, write: false });
            let version = self.version(block);
            self.put(page, block, version);
        }
        hit
    }

    fn put(&mut self, page: u32, block: u64, version: u64) {
        self.content[page as usize] = Some((block, version));
    }

    fn write(&mut self, block: u64, page: u32, kept_nowhere: bool, on: &mut impl FnMut(&Self, Transfer)) {
        if self.write_back && !kept_nowhere {
            self.put(page, block, DIRTY);
            return;
        }
        on(self, Transfer { block, page, write: true });
        let version = self.versions.entry(block).or_insert(0);
        *version += 1;
        let version = *version;
        self.put(page, block, version);
    }

    /// Writes what a page holds, if only the guest has it.
    fn clean(&mut self, page: u32, on: &mut impl FnMut(&Self, Transfer)) {
        if let Some((block, DIRTY)) = self.content[page as usize] {
            on(self, Transfer { block, page, write: true });
            let version = self.versions.entry(block).or_insert(0);
            *version += 1;
            let version = *version;
            self.put(page, block, version);
        }
    }

    /// Writes everything that only the guest has, in the order of pages.
    pub fn flush(&mut self, on: &mut impl FnMut(&Self, Transfer)) {
        for page in 0..self.content.len() as u32 {
            self.clean(page, on);
        }
    }
}
