//! What is to be forgotten of a table of guest pages: ranges of blocks, a part of the pages at a time.
//!
//! Owns the ranges, and which pages have been looked through. Never changes a page. Invariant: a page that has not been
//! looked through since a range came holds no block of the range, whatever its entry says; so what is to be forgotten
//! counts as forgotten at once, and the table is walked later.

use super::residency::{MEMBERS_MAX, Member};

/// See the head of the file.
#[derive(Debug)]
pub(super) struct Voids {
    /// Pages in all.
    pages: u32,
    /// The next page to look at.
    at: u32,
    /// Pages to look at from there on, round the end: those that were not looked at since the last range came.
    left: u32,
    /// The blocks to be forgotten of each member, from the first up to the one behind the last. Of several ranges, what
    /// includes all of them: to forget more than need be wastes a copy, nothing more.
    ranges: Box<[(u32, u32); MEMBERS_MAX]>,
}

impl Voids {
    /// Nothing is to be forgotten.
    pub fn new(pages: u32) -> Self {
        Self { pages, at: 0, left: 0, ranges: Box::new([(0, 0); MEMBERS_MAX]) }
    }

    /// Bytes beside the record itself.
    pub const fn bytes() -> usize {
        MEMBERS_MAX * size_of::<(u32, u32)>()
    }

    /// Whether there are pages to look at.
    #[inline]
    pub fn any(&self) -> bool {
        self.left > 0
    }

    /// Blocks `first..end` of a member are to be forgotten.
    pub fn add(&mut self, member: Member, first: u32, end: u32) {
        let range = &mut self.ranges[member.index()];
        *range = if range.0 < range.1 { (range.0.min(first), range.1.max(end)) } else { (first, end) };
        self.left = self.pages;
    }

    /// Whether an entry of `page` for this block would be one of those to be forgotten.
    #[inline]
    pub fn covers(&self, page: u32, member: Member, block: u32) -> bool {
        self.left > 0 && self.covers_slowly(page, member, block)
    }

    #[cold]
    fn covers_slowly(&self, page: u32, member: Member, block: u32) -> bool {
        let (first, end) = self.ranges[member.index()];
        let ahead = if page >= self.at { page - self.at } else { page + (self.pages - self.at) };
        (first..end).contains(&block) && ahead < self.left
    }

    /// The next page to look at, if there is one; the caller takes what is to be forgotten out of it, and then calls
    /// [`Voids::looked`].
    pub fn next(&self) -> Option<u32> {
        (self.left > 0).then_some(self.at)
    }

    /// That page has been dealt with.
    pub fn looked(&mut self) {
        self.at = if self.at + 1 == self.pages { 0 } else { self.at + 1 };
        self.left -= 1;
        if self.left == 0 {
            self.ranges.fill((0, 0));
        }
    }
}
