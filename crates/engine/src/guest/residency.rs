//! Which disk block each page of a guest's memory holds, as far as the requests to its disks tell.
//!
//! Owns the table of guest pages: the block last moved through each and the disk that it is of, when, and a tag of its
//! content. Never sees content: a tag is a hash that the cache makes. Knows nothing of what is cached.
//! Invariant: a page has at most one block and a block at most one page; a tag belongs to the content that the disk
//! had when it was given, and the owner forgets a block before its content changes.
//!
//! The inference is Geiger's (Jones, Arpaci-Dusseau and Arpaci-Dusseau, ASPLOS 2006): a page that is used for another
//! block has been reused, so the guest evicted the first one. The pages are the guest's, so one table serves all of its
//! disks (docs/decisions/0189): a page that is used for a block of another disk has been reused as well.

mod cells;

use super::voids::Voids;
use crate::structures::array::Release;
use crate::structures::blank::Blank;
use crate::structures::table::HashKey;
use cells::{Cells, Group};

/// No block, and no page.
const NONE: u32 = u32::MAX;

/// Blocks that are forgotten one by one; of a longer range, the table is walked a part at a time.
const FORGET_AT_ONCE: u64 = 256;

/// Disks that one table can serve.
pub const MEMBERS_MAX: usize = 32;

/// One of the disks that a table serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member(u8);

impl Member {
    /// Number `n` of the disks of a table, if it can serve so many.
    pub fn new(n: usize) -> Option<Member> {
        (n < MEMBERS_MAX).then_some(Member(n as u8))
    }

    /// Its number.
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

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

/// A page of the guest, 16 bytes. The lowest eight bits of `tag` are the class, the mark `DOUBTFUL` and the member: so
/// that a page of several disks takes no more room than one of a single disk, and a look at it reads no more memory.
#[derive(Clone, Copy, Debug)]
struct Page {
    block: u32,
    seq: u32,
    tag: u64,
}

const NOTHING: Page = Page { block: NONE, seq: 0, tag: 0 };

const CLASS: u64 = 3;
/// A copy of the page did not verify: what that meant shows when the page is next seen.
const DOUBTFUL: u64 = 4;
/// Where the member's number begins.
const MEMBER_SHIFT: u32 = 3;
const TAG: u64 = !0xff;

impl Page {
    #[inline]
    fn member(&self) -> Member {
        Member((self.tag as u8) >> MEMBER_SHIFT)
    }

    #[inline]
    fn is(&self, member: Member, block: u32) -> bool {
        self.block == block && self.member() == member
    }
}

/// What is known of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// The disk.
    pub member: Member,
    /// The block of it.
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

/// The memory of a table, made in steps before it is one; see [`TableMemory`](super::TableMemory).
#[derive(Debug)]
pub(super) struct ResidencyMemory {
    pages: Blank<Page>,
    cells: Blank<u32>,
    order: Blank<u32>,
}

impl ResidencyMemory {
    /// That of a table for a guest of `pages` pages.
    pub fn new(pages: u32) -> Self {
        Self {
            pages: Blank::new(pages as usize, NOTHING),
            cells: Cells::blank(pages),
            order: Blank::new(Residency::order_len(pages), NONE),
        }
    }

    /// Goes on with making it, at most `bytes` bytes, which are counted off. Whether all is made.
    pub fn make(&mut self, bytes: &mut usize) -> bool {
        self.pages.make(bytes) && self.cells.make(bytes) && self.order.make(bytes)
    }

    /// Goes on with giving it back, at most `bytes` bytes, which are counted off. Whether all has gone.
    pub fn give_back(&mut self, by: &mut impl Release, bytes: &mut usize) -> bool {
        self.pages.give_back(by, bytes) && self.cells.give_back(by, bytes) && self.order.give_back(by, bytes)
    }
}

/// See the head of the file. All memory is taken when it is made.
#[derive(Debug)]
pub struct Residency {
    pages: Vec<Page>,
    /// The page of each block.
    cells: Cells,
    /// What was last hashed of blocks that came, and of blocks that went.
    came: Group,
    went: Group,
    /// The page of each of the last transfers, by transfer number.
    order: Vec<u32>,
    seq: u32,
    held: u32,
    /// How often of late the guest asked for what it was thought to hold: up with each time, down by one with each
    /// transfer of another block. See `is_surprised`.
    surprise: u32,
    /// The same for a longer time, and up only where more than one transfer in four is such: see
    /// [`Residency::has_dropped`].
    asked_again: u32,
    voids: Voids,
    /// Of those held, the blocks of each member.
    held_by: [u32; MEMBERS_MAX],
}

/// What one block adds to `surprise`, from where on the table is not relied on, and the most.
const SURPRISE: u32 = 8;
const SURPRISED: u32 = 64;
const SURPRISE_MAX: u32 = 256;

/// What one block adds to `asked_again`, and the most.
const ASKED_AGAIN: u32 = 3;
const ASKED_AGAIN_MAX: u32 = 2048;
/// The guest has dropped its cache once `asked_again` is one in so many of the blocks that it was thought to hold, at
/// least and at most so much.
const DROPPED_PART: u32 = 32;
const DROPPED: std::ops::RangeInclusive<u32> = 64..=1024;

/// Only the upper bits of a tag are kept.
fn kept(tag: u64) -> u64 {
    let tag = tag & TAG;
    if tag == 0 { TAG } else { tag }
}

/// A block that can be followed.
#[inline]
fn followed(block: u64) -> Option<u32> {
    u32::try_from(block).ok().filter(|&b| b != NONE)
}

impl Residency {
    /// A table made of this memory, all of it. The hash key keeps guests from choosing blocks that collide.
    pub(super) fn over(memory: ResidencyMemory, key: HashKey) -> Self {
        let entries = memory.pages.take();
        let pages = entries.len() as u32;
        Self {
            pages: entries,
            cells: Cells::over(memory.cells, pages, key.derived()),
            came: Group::NONE,
            went: Group::NONE,
            order: memory.order.take(),
            seq: 0,
            held: 0,
            surprise: 0,
            asked_again: 0,
            voids: Voids::new(pages),
            held_by: [0; MEMBERS_MAX],
        }
    }

    /// The memory, of which all is to be made anew.
    pub(super) fn into_memory(self) -> ResidencyMemory {
        ResidencyMemory {
            pages: Blank::over(self.pages, NOTHING),
            cells: self.cells.into_blank(),
            order: Blank::over(self.order, NONE),
        }
    }

    fn order_len(pages: u32) -> usize {
        (pages as usize).next_power_of_two().max(64)
    }

    /// Bytes that a table for `pages` pages takes: 26 to 30 a page, however many disks it serves.
    pub fn bytes_for(pages: u32) -> u64 {
        let bytes = pages as usize * size_of::<Page>() + Self::order_len(pages) * size_of::<u32>();
        (size_of::<Self>() + bytes + Cells::bytes_for(pages) + Voids::bytes()) as u64
    }

    /// Pages of the guest.
    pub fn pages(&self) -> u32 {
        self.pages.len() as u32
    }

    /// Blocks that the guest seems to hold; while a part of the table is still to be forgotten, some more than that.
    pub fn held(&self) -> u32 {
        self.held
    }

    /// Blocks of one disk among those.
    pub fn held_by(&self, member: Member) -> u32 {
        self.held_by[member.index()]
    }

    /// Page transfers so far, modulo 2^32.
    pub fn now(&self) -> u32 {
        self.seq
    }

    /// The most transfers back that [`Residency::transferred`] remembers.
    pub fn memory(&self) -> u32 {
        self.order.len() as u32
    }

    /// Whether an entry is to be forgotten, and counts as forgotten.
    #[inline]
    fn is_void(&self, page: u32, p: &Page) -> bool {
        self.voids.covers(page, p.member(), p.block)
    }

    /// What `page` holds.
    #[inline]
    pub fn get(&self, page: u32) -> Option<Resident> {
        let p = self.pages.get(page as usize)?;
        (p.block != NONE && !self.is_void(page, p)).then(|| self.describe(p))
    }

    /// The block of a disk that `page` holds, be it one that is to be forgotten.
    #[inline]
    pub(super) fn block_at(&self, member: Member, page: u32) -> Option<u64> {
        let p = self.pages.get(page as usize)?;
        (p.block != NONE && p.member() == member).then_some(u64::from(p.block))
    }

    #[inline]
    fn describe(&self, p: &Page) -> Resident {
        Resident {
            member: p.member(),
            block: u64::from(p.block),
            tag: Some(p.tag & TAG).filter(|&t| t != 0),
            age: self.seq.wrapping_sub(p.seq),
            class: Class::ALL[((p.tag & CLASS) as usize).min(2)],
            doubtful: p.tag & DOUBTFUL != 0,
        }
    }

    /// The page that holds a disk's `block`.
    #[inline]
    pub fn page_of(&self, member: Member, block: u64) -> Option<u32> {
        let page = self.find(member, followed(block)?, &mut { Group::NONE })?;
        (!self.is_void(page, &self.pages[page as usize])).then_some(page)
    }

    /// Whether the guest will hardly ask for a disk's `block` soon, because it holds it. Nothing is said of any block
    /// while more than one transfer in nine is of a block that the guest was thought to hold.
    pub fn is_at_guest(&self, member: Member, block: u64) -> bool {
        !self.is_surprised() && self.page_of(member, block).is_some()
    }

    /// Whether the guest asked of late for much of what it was thought to hold: eight blocks in a row, or a few more
    /// among others. Any guest does now and then, since pages that it has freed count as held until it uses them.
    #[inline]
    fn is_surprised(&self) -> bool {
        self.surprise >= SURPRISED
    }

    /// Whether the guest asks for so much of what it was thought to hold, and for so long, that it must have dropped
    /// its cache or a large part of it: for more than one transfer in four, in excess of that by a thirty-second part
    /// of what it was thought to hold. A guest that asks for one in ten, as one does that reclaims many pages at a
    /// time, never comes there; one that has dropped all is found out before it has overwritten a twentieth of its
    /// pages.
    #[inline]
    pub fn has_dropped(&self) -> bool {
        self.asked_again >= (self.held / DROPPED_PART).clamp(*DROPPED.start(), *DROPPED.end())
    }

    /// Whether `tag` is the tag of what `page` holds.
    pub fn matches(&self, page: u32, tag: u64) -> bool {
        self.get(page).is_some_and(|what| what.has_tag(tag))
    }

    /// `page` holds `block` of a disk from now on, with content of this tag, if it is known. Another page that held the
    /// block has lost it, unnoticed. Returns what `page` held before, if that was another block, of whatever disk.
    ///
    /// Blocks past 2^32 - 2 (16 TiB) and pages past the end are not followed.
    #[inline]
    pub fn transfer(
        &mut self,
        member: Member,
        page: u32,
        block: u64,
        class: Class,
        tag: Option<u64>,
    ) -> Option<Resident> {
        let old = *self.pages.get(page as usize)?;
        self.seq = self.seq.wrapping_add(1);
        let block = followed(block).filter(|&b| !self.is_refused(member, page, b));
        let stays = block.is_some_and(|b| old.is(member, b));
        let mut left = None;
        if old.block != NONE && !stays {
            left = (!self.is_void(page, &old)).then(|| self.describe(&old));
            self.unlink(page, &old);
        }
        let Some(block) = block else { return left };
        if !stays {
            let mut group = self.came;
            match self.find(member, block, &mut group) {
                Some(former) => {
                    self.cells.replace(member, block, &mut group, former, page);
                    if !self.is_void(former, &self.pages[former as usize]) {
                        self.surprise = (self.surprise + SURPRISE).min(SURPRISE_MAX);
                        self.asked_again = (self.asked_again + ASKED_AGAIN).min(ASKED_AGAIN_MAX);
                    }
                    self.pages[former as usize].block = NONE;
                }
                None => {
                    self.cells.insert(member, block, &mut group, page);
                    self.held += 1;
                    self.held_by[member.index()] += 1;
                    self.surprise = self.surprise.saturating_sub(1);
                    self.asked_again = self.asked_again.saturating_sub(1);
                }
            }
            self.came = group;
        }
        let tag = tag.map_or(0, kept) | u64::from(member.0) << MEMBER_SHIFT | class as u64;
        self.pages[page as usize] = Page { block, seq: self.seq, tag };
        let at = self.seq as usize & (self.order.len() - 1);
        self.order[at] = page;
        left
    }

    /// `page` is used for something that is not followed. Returns what it held before, of whatever disk.
    pub fn vacate(&mut self, page: u32) -> Option<Resident> {
        let old = *self.pages.get(page as usize)?;
        self.seq = self.seq.wrapping_add(1);
        if old.block == NONE {
            return None;
        }
        let left = (!self.is_void(page, &old)).then(|| self.describe(&old));
        self.unlink(page, &old);
        left
    }

    /// Whether `page` may not take `block` yet, because it could not be told from what is to be forgotten. Then no page
    /// is known to hold it.
    #[inline]
    fn is_refused(&mut self, member: Member, page: u32, block: u32) -> bool {
        let refused = self.voids.covers(page, member, block);
        if refused && !self.pages[page as usize].is(member, block) {
            self.forget(member, u64::from(block));
        }
        refused
    }

    /// The page of transfer number `seq`, if that was the last one that concerned the page and is not too long ago.
    pub fn transferred(&self, seq: u32) -> Option<(u32, Resident)> {
        let page = self.order[seq as usize & (self.order.len() - 1)];
        let p = self.pages.get(page as usize)?;
        (p.block != NONE && p.seq == seq && !self.is_void(page, p)).then(|| (page, self.describe(p)))
    }

    /// The content of a disk's `block` has this tag; noted if a page holds the block and its tag was not known.
    pub fn learn(&mut self, member: Member, block: u64, tag: u64) {
        if let Some(page) = self.page_of(member, block) {
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
    pub fn awaits_tag(&self, member: Member, block: u64) -> bool {
        let Some(page) = self.page_of(member, block) else { return false };
        let p = &self.pages[page as usize];
        p.tag & TAG == 0 && p.tag & CLASS == Class::Write as u64
    }

    /// Forgets which page holds a disk's `block`: its content changes.
    pub fn forget(&mut self, member: Member, block: u64) {
        if let Some(block) = followed(block)
            && let Some(page) = self.find(member, block, &mut { Group::NONE })
        {
            self.unlink(page, &{ self.pages[page as usize] });
        }
    }

    /// Forgets blocks `first..end` of a disk. All of it counts as forgotten at once; of a long range, the table is
    /// walked later ([`Residency::sweep`]), and until then some pages take no block of the range.
    pub fn forget_range(&mut self, member: Member, first: u64, end: u64) {
        if self.held_by(member) == 0 {
            return;
        }
        if end.saturating_sub(first) <= FORGET_AT_ONCE {
            (first..end).for_each(|b| self.forget(member, b));
        } else if let Ok(first) = u32::try_from(first) {
            self.voids.add(member, first, u32::try_from(end).unwrap_or(NONE));
        }
    }

    /// Forgets everything of a disk.
    pub fn forget_member(&mut self, member: Member) {
        self.forget_range(member, 0, u64::MAX);
    }

    /// Whether there is something to do for [`Residency::sweep`].
    #[inline]
    pub fn wants_sweep(&self) -> bool {
        self.voids.any()
    }

    /// Looks through at most `pages` pages for what is to be forgotten.
    pub fn sweep(&mut self, pages: u32) {
        for _ in 0..pages {
            let Some(page) = self.voids.next() else { return };
            let p = self.pages[page as usize];
            if p.block != NONE && self.is_void(page, &p) {
                self.unlink(page, &p);
            }
            self.voids.looked();
        }
    }

    /// Forgets everything of all disks: the memory is mapped elsewhere. As [`Residency::forget_member`] of each.
    pub fn forget_all(&mut self) {
        (0..MEMBERS_MAX).filter_map(Member::new).for_each(|member| self.forget_member(member));
    }

    /// Calls `see` with every page that holds a block of a disk, as far as is known, and the block; for tests.
    pub fn for_each(&self, member: Member, mut see: impl FnMut(u32, u64)) {
        for page in 0..self.pages() {
            if let Some(what) = self.get(page).filter(|what| what.member == member) {
                see(page, what.block);
            }
        }
    }

    /// The page of a block, be it one that is to be forgotten.
    #[inline]
    fn find(&self, member: Member, block: u32, group: &mut Group) -> Option<u32> {
        self.cells.find(member, block, group, |page| self.pages[page as usize].is(member, block))
    }

    /// Takes the block that `page` holds out of the table.
    #[inline]
    fn unlink(&mut self, page: u32, held: &Page) {
        let Self { cells, pages, went, .. } = self;
        let block_of = |page: u32| (pages[page as usize].member(), pages[page as usize].block);
        cells.remove(held.member(), held.block, went, page, block_of);
        self.pages[page as usize].block = NONE;
        self.held -= 1;
        self.held_by[held.member().index()] -= 1;
    }

    /// Checks the invariants; for tests. Panics with what is broken.
    pub fn check(&self) {
        let (mut held, mut held_by) = (0, [0; MEMBERS_MAX]);
        for (n, p) in self.pages.iter().enumerate() {
            if p.block != NONE {
                held += 1;
                held_by[p.member().index()] += 1;
                let page = self.find(p.member(), p.block, &mut { Group::NONE });
                assert_eq!(page, Some(n as u32), "block {} is found at its page", p.block);
            }
        }
        assert_eq!(held, self.held, "pages that hold a block");
        assert_eq!(held_by, self.held_by, "pages that hold a block of each disk");
        let block_of = |page: u32| (self.pages[page as usize].member(), self.pages[page as usize].block);
        self.cells.check(held as usize, block_of);
    }
}

#[cfg(test)]
mod tests;
