//! Finding a frame that some slot holds: by its content, or as a block of a base image.
//!
//! Owns the use of the two tables, and their size. Never puts a frame into a slot, never charges anybody.
//! Invariants: a frame is found within its domain only; one found by its hash is handed out after all its bytes were
//! compared; a frame that no slot holds is in neither table. Planted bugs break the first two on purpose.

use super::places::Places;
use super::{ALONE, PAGE_BYTES, Page, SharingDomain, Store};
use crate::content::ContentHash;
use undercroft_host::Held;

/// Frames of equal hash whose bytes are compared at most: equal hashes of unequal contents do not happen, but for
/// tests that make them.
const COMPARES_MAX: u32 = 4;

/// How much larger than needed the tables may be: one part in so many.
const TABLE_SLACK_PART: u32 = 64;

impl Store {
    /// Another frame of the domain with the same bytes as `held`, whose hash is `hash`; one more handle to it.
    /// `compare` and `within` are false for planted bugs.
    pub(crate) fn find_equal(
        &mut self,
        domain: SharingDomain,
        hash: ContentHash,
        held: &Held,
        compare: bool,
        within: bool,
    ) -> Option<Held> {
        if domain == ALONE {
            return None;
        }
        let Self { arena, pages, contents, .. } = self;
        let wanted = place_of(if within { domain } else { ALONE }, hash);
        let mut tries = 0;
        let n = contents.find(wanted, |n| {
            let page = &pages[n as usize];
            if page.content != wanted || (within && page.domain != domain) || arena.number_of(held) == Some(n) {
                return false;
            }
            tries += 1;
            tries <= COMPARES_MAX && (!compare || arena.is_equal(n, held))
        })?;
        arena.again_number(n)
    }

    /// Lets a frame that a slot holds be found by its content, if it cannot be yet.
    pub(crate) fn register(&mut self, held: &Held, hash: ContentHash, within: bool) {
        let Some(n) = self.arena.number_of(held) else { return };
        let page = &self.pages[n as usize];
        assert!(page.slots > 0, "a frame that no slot holds cannot be found");
        if page.content == 0 && page.domain != ALONE {
            let content = place_of(if within { page.domain } else { ALONE }, hash);
            self.be_ready();
            self.pages[n as usize].content = content;
            self.contents.insert(n, content);
        }
    }

    /// Whether the frame can be found by its content.
    pub(crate) fn is_registered(&self, held: &Held) -> bool {
        self.arena.number_of(held).is_some_and(|n| self.pages.get(n as usize).is_some_and(|p| p.content != 0))
    }

    /// The domain of a frame that a slot holds.
    pub(crate) fn domain_of(&self, held: &Held) -> SharingDomain {
        self.arena.number_of(held).map_or(ALONE, |n| self.pages[n as usize].domain)
    }

    /// The frame that holds `block` of the base `domain`, if it is in a slot of some disk.
    fn find_base(&self, domain: SharingDomain, block: u32) -> Option<u32> {
        if domain == ALONE {
            return None;
        }
        let wanted = Page { base: block + 1, domain, ..Page::default() };
        self.bases.find(wanted.base_hash(self.seed), |n| {
            let page = &self.pages[n as usize];
            page.base == wanted.base && page.domain == domain
        })
    }

    /// Whether `block` of the base `domain` is in a slot of some disk.
    pub(crate) fn has_base(&self, domain: SharingDomain, block: u32) -> bool {
        self.find_base(domain, block).is_some()
    }

    /// Whether the frame, which a slot holds, is known as `block` of the base `domain`, and how many slots hold it.
    pub(crate) fn is_base_block(&self, held: &Held, domain: SharingDomain, block: u64) -> Option<u16> {
        let n = self.arena.number_of(held)?;
        let page = self.pages.get(n as usize)?;
        (page.domain == domain && domain != ALONE && u64::from(page.base) == block + 1).then_some(page.slots)
    }

    /// One more handle to the frame that holds `block` of the base `domain`.
    pub(crate) fn again_base(&mut self, domain: SharingDomain, block: u32) -> Option<Held> {
        let n = self.find_base(domain, block)?;
        self.arena.again_number(n)
    }

    /// Lets a frame that a slot holds be found as `block` of its domain, which is a base.
    pub(crate) fn register_base(&mut self, held: &Held, block: u32) {
        let Some(n) = self.arena.number_of(held) else { return };
        let page = &self.pages[n as usize];
        assert!(page.slots > 0 && page.domain != ALONE, "a base block that no slot holds");
        if page.base == 0 {
            self.be_ready();
            let page = &mut self.pages[n as usize];
            page.base = block + 1;
            self.bases.insert(n, page.base_hash(self.seed));
        }
    }

    /// Takes a frame that no slot holds any more out of the tables.
    pub(super) fn forget(&mut self, n: u32) {
        let Self { pages, contents, bases, seed, .. } = self;
        let page = pages[n as usize];
        if page.content != 0 {
            contents.remove(n, |m| pages[m as usize].content);
        }
        if page.base != 0 {
            bases.remove(n, |m| pages[m as usize].base_hash(*seed));
        }
        pages[n as usize] = Page::default();
    }

    /// Makes the tables as large as the frames that disks are promised need them, if they are too small or much larger.
    /// While nothing can be found there are none: of a thousand disks that come one after the other, each would have
    /// them made anew.
    pub(crate) fn fit(&mut self) {
        if self.contents.is_empty() && self.bases.is_empty() {
            if self.room != 0 {
                let end = self.arena.reserved();
                (self.room, self.contents, self.bases) = (0, Places::new(0, end), Places::new(0, end));
            }
        } else {
            self.make_fit();
        }
    }

    /// Has tables before the first frame is put into them.
    #[inline]
    fn be_ready(&mut self) {
        if self.room == 0 {
            self.make_fit();
        }
    }

    fn make_fit(&mut self) {
        let needed = self.seats.max(self.seated);
        let slack = needed / TABLE_SLACK_PART + 16;
        if !self.on || (needed <= self.room && self.room - needed <= slack) {
            return;
        }
        self.room = needed;
        let (room, end) = (self.room as usize, self.arena.reserved());
        let none = self.contents.is_empty() && self.bases.is_empty();
        // The old ones go before the new ones come.
        (self.contents, self.bases) = (Places::new(0, end), Places::new(0, end));
        (self.contents, self.bases) = (Places::new(room, end), Places::new(room, end));
        if none {
            return;
        }
        let Self { pages, contents, bases, seed, .. } = self;
        for (n, page) in pages.iter().enumerate() {
            if page.content != 0 {
                contents.insert(n as u32, page.content);
            }
            if page.base != 0 {
                bases.insert(n as u32, page.base_hash(*seed));
            }
        }
    }

    /// Bytes of metadata held now, the arena's own not counted.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.pages.len() * PAGE_BYTES + self.contents.memory_bytes() + self.bases.memory_bytes()
    }
}

impl Page {
    fn base_hash(&self, seed: u64) -> u32 {
        mix((u64::from(self.domain) << 32 | u64::from(self.base)).wrapping_mul(seed) ^ seed)
    }
}

/// Where a content of a domain stands in the table of contents: never 0.
fn place_of(domain: SharingDomain, hash: ContentHash) -> u32 {
    mix(hash.get() ^ u64::from(domain).wrapping_mul(0x9e37_79b9_7f4a_7c15)).max(1)
}

/// The mixing step of splitmix64 (Steele, Lea and Flood, OOPSLA 2014), cut to 32 bits.
fn mix(mut z: u64) -> u32 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 32) as u32
}
