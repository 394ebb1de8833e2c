//! Who holds what: from the hash of every page to what is held more than once.
//!
//! Owns the counting. Never sees a page. A list that is sorted once, not an index: the report wants every holder of
//! every content, and 16 bytes a page is the least that says so. Invariants: `give_back` over all holders is the number
//! of pages less the number of contents; every figure is at most the holder's pages.

use undercroft_cache::ContentHash;

/// Who holds a page: guests come first, then files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holder {
    /// The memory of guest number so.
    Guest(u32),
    /// The page cache of file number so.
    File(u32),
}

impl Holder {
    const FILE: u32 = 1 << 31;

    fn code(self) -> u32 {
        match self {
            Holder::Guest(n) => n,
            Holder::File(n) => n | Self::FILE,
        }
    }
}

/// What a guest holds, in pages that are not zero.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GuestTally {
    /// All of them.
    pub pages: u64,
    /// Those beyond the first of their content in this guest.
    pub same_guest: u64,
    /// Those whose content another guest holds too.
    pub other_guests: u64,
    /// Those whose content is in the page cache too.
    pub page_cache: u64,
    /// This guest's part of what is held more than once: of n equal pages of guests, each counts (n-1)/n.
    pub give_back: f64,
}

/// What the page cache of a file holds, in pages that are not zero.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FileTally {
    /// All of them.
    pub pages: u64,
    /// Those whose content a guest holds too: cached twice.
    pub in_guests: u64,
    /// Of the others, those beyond the first of their content in all files.
    pub same_files: u64,
    /// This file's part of what is held more than once: all that guests hold; of n equal pages that no guest holds,
    /// each counts (n-1)/n.
    pub give_back: f64,
}

/// The list.
#[derive(Debug, Default)]
pub struct Tally {
    pages: Vec<(u64, u32)>,
}

/// All of it, counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counted {
    /// By guest.
    pub guests: Vec<GuestTally>,
    /// By file.
    pub files: Vec<FileTally>,
    /// Different contents.
    pub contents: u64,
}

impl Tally {
    /// Notes a page that is not zero.
    pub fn add(&mut self, hash: ContentHash, holder: Holder) {
        self.pages.push((hash.get(), holder.code()));
    }

    /// Pages noted.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Whether none was.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Counts; `guests` and `files` are how many there are of each.
    ///
    /// # Panics
    /// If a holder was noted that is not among them: a bug.
    pub fn count(mut self, guests: usize, files: usize) -> Counted {
        self.pages.sort_unstable();
        let mut all = Counted {
            guests: vec![GuestTally::default(); guests],
            files: vec![FileTally::default(); files],
            contents: 0,
        };
        for content in self.pages.chunk_by(|a, b| a.0 == b.0) {
            all.contents += 1;
            // Sorted: guests come before files.
            let (held, cached) = content.split_at(content.partition_point(|p| p.1 < Holder::FILE));
            let several = held.first().map(|p| p.1) != held.last().map(|p| p.1);
            for of_one in held.chunk_by(|a, b| a.1 == b.1) {
                let n = of_one.len() as u64;
                let guest = &mut all.guests[of_one[0].1 as usize];
                guest.pages += n;
                guest.same_guest += n - 1;
                guest.other_guests += if several { n } else { 0 };
                guest.page_cache += if cached.is_empty() { 0 } else { n };
                guest.give_back += n as f64 * (held.len() - 1) as f64 / held.len() as f64;
            }
            for (i, of_one) in cached.chunk_by(|a, b| a.1 == b.1).enumerate() {
                let n = of_one.len() as u64;
                let file = &mut all.files[(of_one[0].1 - Holder::FILE) as usize];
                file.pages += n;
                if held.is_empty() {
                    file.same_files += if i == 0 { n - 1 } else { n };
                    file.give_back += n as f64 * (cached.len() - 1) as f64 / cached.len() as f64;
                } else {
                    file.in_guests += n;
                    file.give_back += n as f64;
                }
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Holder::{File, Guest};
    use proptest::prelude::*;

    fn count(pages: &[(u64, Holder)], guests: usize, files: usize) -> Counted {
        let mut tally = Tally::default();
        pages.iter().for_each(|(h, holder)| tally.add(ContentHash::new(*h).unwrap(), *holder));
        tally.count(guests, files)
    }

    #[test]
    fn every_kind_of_double() {
        let all = count(
            &[
                (1, Guest(0)),
                (1, Guest(0)),
                (1, Guest(1)),
                (2, Guest(0)),
                (2, File(0)),
                (3, Guest(1)),
                (4, File(0)),
                (4, File(1)),
                (5, File(1)),
            ],
            2,
            2,
        );
        let third = 2.0 / 3.0;
        let first = GuestTally { pages: 3, same_guest: 1, other_guests: 2, page_cache: 1, give_back: 2.0 * third };
        assert_eq!(all.guests[0], first);
        assert_eq!(all.guests[1], GuestTally { pages: 2, other_guests: 1, give_back: third, ..Default::default() });
        assert_eq!(all.files[0], FileTally { pages: 2, in_guests: 1, same_files: 0, give_back: 1.5 });
        assert_eq!(all.files[1], FileTally { pages: 2, in_guests: 0, same_files: 1, give_back: 0.5 });
        assert_eq!(all.contents, 5);
    }

    proptest! {
        #[test]
        fn the_parts_add_up(pages in proptest::collection::vec((1u64..40, 0u32..3, any::<bool>()), 0..200)) {
            let pages: Vec<_> =
                pages.into_iter().map(|(h, n, file)| (h, if file { File(n) } else { Guest(n) })).collect();
            let all = count(&pages, 3, 3);
            let held: u64 =
                all.guests.iter().map(|g| g.pages).sum::<u64>() + all.files.iter().map(|f| f.pages).sum::<u64>();
            prop_assert_eq!(held, pages.len() as u64);
            let back: f64 = all.guests.iter().map(|g| g.give_back).sum::<f64>()
                + all.files.iter().map(|f| f.give_back).sum::<f64>();
            prop_assert!((back - (held - all.contents) as f64).abs() < 1e-6);
            for g in &all.guests {
                prop_assert!(
                    g.same_guest <= g.pages
                        && g.other_guests <= g.pages
                        && g.page_cache <= g.pages
                        && g.give_back <= g.pages as f64
                );
            }
            for f in &all.files {
                prop_assert!(f.in_guests + f.same_files <= f.pages && f.give_back <= f.pages as f64);
            }
        }
    }
}
