//! Which disk block each page of a guest's memory holds, as far as its requests tell.
//!
//! Owns the table of guest pages: the block last moved through each, when, and a tag of its content. Never sees
//! content: a tag is a hash that the cache makes. Knows nothing of what is cached.
//! Invariant: a page has at most one block and a block at most one page; a tag belongs to the content that the disk
//! had when it was given, and the owner forgets a block before its content changes.
//!
//! The inference is Geiger's (Jones, Arpaci-Dusseau and Arpaci-Dusseau, ASPLOS 2006): a page that is used for another
//! block has been reused, so the guest evicted the first one.

use crate::structures::table::HashKey;

/// No block, and no page.
const NONE: u32 = u32::MAX;

/// What filled a page: pages of different kinds are evicted at different ages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A read.
    Read,
    /// A write: the page was made by the guest, and may be dirty again.
    Write,
    /// A read, and the guest kept the page longer than most: a copy of it was made once and not needed.
    Kept,
}

impl Class {
    /// All classes, in the order of their numbers.
    pub const ALL: [Class; 3] = [Class::Read, Class::Write, Class::Kept];
}

/// A page of the guest, 16 bytes. The lowest three bits of `tag` are the class and the mark `DOUBTFUL`.
#[derive(Clone, Copy, Debug)]
struct Page {
    block: u32,
    seq: u32,
    tag: u64,
}

const CLASS: u64 = 3;
/// A copy of the page did not verify: what that meant shows when the page is next seen.
const DOUBTFUL: u64 = 4;
const TAG: u64 = !(CLASS | DOUBTFUL);

/// What is known of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// The block.
    pub block: u64,
    /// The tag of its content, if it is known yet.
    pub tag: Option<u64>,
    /// Page transfers since it was put there.
    pub age: u32,
    /// What put it there.
    pub class: Class,
    /// Whether a copy of the page failed to verify.
    pub doubtful: bool,
}

impl Resident {
    /// Whether `tag` is that of the content.
    pub fn has_tag(&self, tag: u64) -> bool {
        self.tag == Some(kept(tag))
    }
}

/// See the head of the file. All memory is taken when it is made.
#[derive(Debug)]
pub struct Residency {
    pages: Vec<Page>,
    /// Page numbers by the hash of their block: linear probing, deletion by shifting back; at most two thirds full.
    cells: Vec<u32>,
    /// The page of each of the last transfers, by transfer number.
    order: Vec<u32>,
    key: HashKey,
    seq: u32,
    held: u32,
    /// How often of late the guest asked for what it was thought to hold: up with each time, down by one with each
    /// transfer of another block.
    surprise: u32,
}

/// What one block adds to `surprise`, from where on the table is not relied on, and the most.
const SURPRISE: u32 = 8;
const SURPRISED: u32 = 64;
const SURPRISE_MAX: u32 = 256;

/// Only the upper bits of a tag are kept.
fn kept(tag: u64) -> u64 {
    let tag = tag & TAG;
    if tag == 0 { TAG } else { tag }
}

impl Residency {
    /// A table for a guest of `pages` pages of memory. The hash key keeps guests from choosing blocks that collide.
    pub fn new(pages: u32, key: HashKey) -> Self {
        let cells = (pages as usize * 3 / 2).max(8);
        Self {
            pages: vec![Page { block: NONE, seq: 0, tag: 0 }; pages as usize],
            cells: vec![NONE; cells],
            order: vec![NONE; Self::order_len(pages)],
            key: key.derived(),
            seq: 0,
            held: 0,
            surprise: 0,
        }
    }

    fn order_len(pages: u32) -> usize {
        (pages as usize).next_power_of_two().max(64)
    }

    /// Bytes that a table for `pages` pages takes: 26 to 30 a page.
    pub fn bytes_for(pages: u32) -> u64 {
        let cells = (pages as usize * 3 / 2).max(8);
        let bytes = pages as usize * size_of::<Page>() + (cells + Self::order_len(pages)) * size_of::<u32>();
        (size_of::<Self>() + bytes) as u64
    }

    /// Pages of the guest.
    pub fn pages(&self) -> u32 {
        self.pages.len() as u32
    }

    /// Blocks that the guest seems to hold.
    pub fn held(&self) -> u32 {
        self.held
    }

    /// Page transfers so far, modulo 2^32.
    pub fn now(&self) -> u32 {
        self.seq
    }

    /// The most transfers back that [`Residency::transferred`] remembers.
    pub fn memory(&self) -> u32 {
        self.order.len() as u32
    }

    /// What `page` holds.
    #[inline]
    pub fn get(&self, page: u32) -> Option<Resident> {
        let p = self.pages.get(page as usize)?;
        (p.block != NONE).then(|| self.describe(p))
    }

    #[inline]
    fn describe(&self, p: &Page) -> Resident {
        Resident {
            block: u64::from(p.block),
            tag: Some(p.tag & TAG).filter(|&t| t != 0),
            age: self.seq.wrapping_sub(p.seq),
            class: Class::ALL[((p.tag & CLASS) as usize).min(2)],
            doubtful: p.tag & DOUBTFUL != 0,
        }
    }

    /// The page that holds `block`.
    #[inline]
    pub fn page_of(&self, block: u64) -> Option<u32> {
        let block = u32::try_from(block).ok().filter(|&b| b != NONE)?;
        self.find(block).map(|at| self.cells[at])
    }

    /// Whether the guest will hardly ask for `block` soon, because it holds it. Nothing is said of any block while more
    /// than one transfer in nine is of a block that the guest was thought to hold: it has dropped its cache, or gives
    /// memory back.
    pub fn is_at_guest(&self, block: u64) -> bool {
        self.surprise < SURPRISED && self.page_of(block).is_some()
    }

    /// Whether `tag` is the tag of what `page` holds.
    pub fn matches(&self, page: u32, tag: u64) -> bool {
        self.pages.get(page as usize).is_some_and(|p| p.block != NONE && p.tag & TAG == kept(tag))
    }

    /// `page` holds `block` from now on, with content of this tag, if it is known. Another page that held the block
    /// has lost it, unnoticed. Returns what `page` held before, if that was another block.
    ///
    /// Blocks past 2^32 - 2 (16 TiB) and pages past the end are not followed.
    pub fn transfer(&mut self, page: u32, block: u64, class: Class, tag: Option<u64>) -> Option<Resident> {
        let old = *self.pages.get(page as usize)?;
        let block = u32::try_from(block).unwrap_or(NONE);
        self.seq = self.seq.wrapping_add(1);
        let left = (old.block != NONE && old.block != block).then(|| {
            let seen = self.describe(&old);
            self.unlink(old.block);
            seen
        });
        if block == NONE {
            self.pages[page as usize].block = NONE;
            return left;
        }
        if old.block != block {
            match self.find(block) {
                Some(at) => {
                    let former = std::mem::replace(&mut self.cells[at], page);
                    self.pages[former as usize].block = NONE;
                    self.surprise = (self.surprise + SURPRISE).min(SURPRISE_MAX);
                }
                None => {
                    self.link(block, page);
                    self.surprise = self.surprise.saturating_sub(1);
                }
            }
        }
        let tag = tag.map_or(0, kept) | class as u64;
        self.pages[page as usize] = Page { block, seq: self.seq, tag };
        let at = self.seq as usize & (self.order.len() - 1);
        self.order[at] = page;
        left
    }

    /// The page of transfer number `seq`, if that was the last one that concerned the page and is not too long ago.
    pub fn transferred(&self, seq: u32) -> Option<(u32, Resident)> {
        let page = self.order[seq as usize & (self.order.len() - 1)];
        let p = self.pages.get(page as usize)?;
        (p.block != NONE && p.seq == seq).then(|| (page, self.describe(p)))
    }

    /// The content of `block` has this tag; noted if a page holds the block and its tag was not known.
    pub fn learn(&mut self, block: u64, tag: u64) {
        if let Some(page) = self.page_of(block) {
            let p = &mut self.pages[page as usize];
            if p.tag & TAG == 0 {
                p.tag |= kept(tag);
            }
        }
    }

    /// A page of this block turned out to be kept for long.
    pub fn set_class(&mut self, page: u32, class: Class) {
        if let Some(p) = self.pages.get_mut(page as usize) {
            p.tag = p.tag & !CLASS | class as u64;
        }
    }

    /// A copy of the page did not verify.
    pub fn doubt(&mut self, page: u32) {
        if let Some(p) = self.pages.get_mut(page as usize) {
            p.tag |= DOUBTFUL;
        }
    }

    /// Whether the block's page was filled by a write whose content is not known yet.
    pub fn awaits_tag(&self, block: u64) -> bool {
        let Some(page) = self.page_of(block) else { return false };
        let p = &self.pages[page as usize];
        p.tag & TAG == 0 && p.tag & CLASS == Class::Write as u64
    }

    /// Forgets which page holds `block`: its content changes.
    pub fn forget(&mut self, block: u64) {
        let Ok(block) = u32::try_from(block) else { return };
        if block != NONE
            && let Some(page) = self.unlink(block)
        {
            self.pages[page as usize].block = NONE;
        }
    }

    /// Forgets blocks `first..end`; costs no more than the pages of the guest.
    pub fn forget_range(&mut self, first: u64, end: u64) {
        if self.held == 0 {
            return;
        }
        if end - first <= self.pages.len() as u64 {
            (first..end).for_each(|b| self.forget(b));
        } else {
            for page in 0..self.pages.len() {
                let block = self.pages[page].block;
                if block != NONE && (first..end).contains(&u64::from(block)) {
                    self.forget(u64::from(block));
                }
            }
        }
    }

    /// Forgets everything: the guest was reset, or its memory is mapped elsewhere.
    pub fn clear(&mut self) {
        self.pages.fill(Page { block: NONE, seq: 0, tag: 0 });
        self.cells.fill(NONE);
        self.order.fill(NONE);
        self.held = 0;
    }

    #[inline]
    fn home(&self, block: u32) -> usize {
        // the upper half of a product: uniform over any number of cells
        ((u128::from(self.key.hash(u64::from(block))) * self.cells.len() as u128) >> 64) as usize
    }

    /// The cell of a block that has a page.
    #[inline]
    fn find(&self, block: u32) -> Option<usize> {
        let mut at = self.home(block);
        loop {
            let page = *self.cells.get(at)?;
            if page == NONE {
                return None;
            }
            if self.pages[page as usize].block == block {
                return Some(at);
            }
            at = self.after(at);
        }
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        if at + 1 == self.cells.len() { 0 } else { at + 1 }
    }

    fn link(&mut self, block: u32, page: u32) {
        let mut at = self.home(block);
        while self.cells[at] != NONE {
            at = self.after(at);
        }
        self.cells[at] = page;
        self.held += 1;
    }

    /// Takes a block out of the table; returns the page it had, which the caller changes.
    fn unlink(&mut self, block: u32) -> Option<u32> {
        let mut hole = self.find(block)?;
        let page = self.cells[hole];
        let mut at = hole;
        loop {
            at = self.after(at);
            let other = self.cells[at];
            if other == NONE {
                break;
            }
            let home = self.home(self.pages[other as usize].block);
            // it may move back unless its home lies between the hole and where it is
            let stays = if hole <= at { hole < home && home <= at } else { hole < home || home <= at };
            if !stays {
                self.cells[hole] = other;
                hole = at;
            }
        }
        self.cells[hole] = NONE;
        self.held -= 1;
        Some(page)
    }

    /// Checks the invariants; for tests. Panics with what is broken.
    pub fn check(&self) {
        let mut held = 0;
        for (n, p) in self.pages.iter().enumerate() {
            if p.block != NONE {
                held += 1;
                let at = self.find(p.block);
                assert_eq!(at.map(|at| self.cells[at]), Some(n as u32), "block {} is found at its page", p.block);
            }
        }
        assert_eq!(held, self.held, "pages that hold a block");
        assert_eq!(self.cells.iter().filter(|&&c| c != NONE).count(), held as usize, "cells in use");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn a_reused_page_gives_up_its_block_and_a_moved_block_its_page() {
        let mut r = Residency::new(4, HashKey::from_seed(1));
        assert_eq!(r.transfer(0, 10, Class::Read, Some(80)), None);
        assert_eq!(r.transfer(1, 11, Class::Write, None), None);
        assert_eq!(r.transfer(1, 11, Class::Read, Some(88)), None, "the same block again is no eviction");
        let left = r.transfer(0, 12, Class::Read, None).unwrap();
        assert_eq!((left.block, left.tag, left.age, left.class), (10, Some(80), 3, Class::Read));
        assert_eq!(r.page_of(10), None);
        assert_eq!(r.transfer(2, 11, Class::Read, None), None, "block 11 has moved to page 2");
        assert_eq!((r.page_of(11), r.get(1), r.held()), (Some(2), None, 2));
        r.check();
    }

    #[test]
    fn tags_follow_content_and_are_forgotten_with_it() {
        let mut r = Residency::new(8, HashKey::from_seed(1));
        r.transfer(3, 7, Class::Write, None);
        assert!(r.awaits_tag(7) && !r.matches(3, 0));
        r.learn(7, 0xabcd_ef00);
        assert!(r.matches(3, 0xabcd_ef00) && !r.matches(3, 0xabcd_ee00) && !r.awaits_tag(7));
        r.learn(7, 0x1111_1100);
        assert!(r.matches(3, 0xabcd_ef00), "a known tag is not replaced");
        r.forget_range(0, 1 << 40);
        assert_eq!((r.get(3), r.held()), (None, 0));
        assert_eq!(r.transfer(3, u64::from(u32::MAX), Class::Read, None), None, "too far out to be followed");
        assert_eq!(r.get(3), None);
        assert_eq!(r.transfer(9, 1, Class::Read, None), None, "no such page");
        r.check();
    }

    #[test]
    fn a_guest_that_asks_for_what_it_was_thought_to_hold_is_not_relied_on() {
        let mut r = Residency::new(64, HashKey::from_seed(1));
        (0..20).for_each(|n| _ = r.transfer(n, u64::from(n), Class::Read, None));
        assert!(r.is_at_guest(7) && !r.is_at_guest(30));
        // its cache was dropped: it reads the same blocks again, into other pages
        (0..8).for_each(|n| _ = r.transfer(30 + n, u64::from(n), Class::Read, None));
        assert!(!r.is_at_guest(15), "eight surprises in a row");
        (100..150).for_each(|n| _ = r.transfer(40, n, Class::Read, None));
        assert!(r.is_at_guest(15), "and trusted again after other transfers");
    }

    #[test]
    fn transfers_are_found_by_number_until_they_are_overtaken() {
        let mut r = Residency::new(16, HashKey::from_seed(3));
        r.transfer(5, 50, Class::Read, None);
        let first = r.now();
        assert_eq!(r.transferred(first).map(|(p, h)| (p, h.block, h.age)), Some((5, 50, 0)));
        r.transfer(5, 50, Class::Write, None);
        assert_eq!(r.transferred(first), None);
        assert_eq!(r.transferred(r.now()).map(|(p, h)| (p, h.class)), Some((5, Class::Write)));
    }

    #[test]
    fn agrees_with_a_plain_model() {
        let mut r = Residency::new(97, HashKey::from_seed(5));
        let (mut of_page, mut of_block) = (HashMap::new(), HashMap::new());
        let mut x = 1u64;
        for step in 0..200_000u32 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (page, block) = ((x >> 40) as u32 % 97, (x >> 20) % 150);
            if x >> 60 == 0 {
                r.forget(block);
                if let Some(p) = of_block.remove(&block) {
                    of_page.remove(&p);
                }
            } else {
                let left = r.transfer(page, block, Class::Read, None).map(|l| l.block);
                let old = of_page.insert(page, block).filter(|&b| b != block);
                if let Some(b) = old {
                    of_block.remove(&b);
                }
                assert_eq!(left, old, "step {step}");
                if let Some(p) = of_block.insert(block, page).filter(|&p| p != page) {
                    of_page.remove(&p);
                }
            }
            if step % 4096 == 0 {
                r.check();
            }
        }
        for (&b, &p) in &of_block {
            assert_eq!(r.page_of(b), Some(p));
        }
        assert_eq!(r.held() as usize, of_block.len());
        r.clear();
        r.check();
    }
}
