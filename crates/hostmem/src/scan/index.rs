//! The page-content index: which contents guests hold, and where.
//!
//! Owns a table of hashes with open addressing and, per source, the hash of every page as last seen, for look-ahead.
//! Never sees a page, only its hash. It is rebuilt pass by pass: a pass sees every page there is, an entry that a whole
//! pass has not seen is gone, and its place is used again. Invariants: `bytes() <= bytes_max`, also while the table
//! grows; an answer `Again` names a page that had the same hash in this very pass; `contains` never knows an entry that
//! was not seen in this pass or the one before.
//!
//! Look-ahead is that of Singleton, 4.5.1: contents that were found once lie mostly in files, and so beside one
//! another. After page p matched page b, page p+1 is compared with page b+1 before the table is asked.

use undercroft_cache::ContentHash;

/// Most sources: guests' memory regions.
pub const SOURCES_MAX: usize = 1 << 16;
/// Pages of a source that share one allocation of hashes.
const CHUNK: usize = 512;
/// Entries of the smallest table.
const SLOTS_MIN: usize = 1024;
/// Bits of a place that number the page.
const PAGE_BITS: u32 = 40;

/// Where a content is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Number of the source.
    pub source: u16,
    /// Number of the page in it, below 2^40.
    pub page: u64,
}

/// What is known of a content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// New in this pass.
    First,
    /// Another page had it already in this pass.
    Again(Place),
    /// New in this pass, and not remembered: the memory bound is reached.
    Full,
}

/// What a pass did, and what the index holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexStats {
    /// Pages seen in this pass.
    pub pages: u64,
    /// Of those, pages whose content had been seen in this pass already.
    pub again: u64,
    /// Of those, matches that look-ahead found without the table (Singleton, Table 4.2).
    pub lookahead_hits: u64,
    /// Look-aheads that failed: the table was asked after all.
    pub lookahead_misses: u64,
    /// Pages whose content was the same in the last pass.
    pub unchanged: u64,
    /// Contents not remembered for want of memory.
    pub full: u64,
}

/// 16 bytes. A generation of 0 is a slot that was never used.
#[derive(Clone, Copy, Default)]
struct Slot {
    hash: u64,
    /// Generation (8 bits), source (16), page (40).
    place: u64,
}

impl Slot {
    fn new(hash: u64, place: Place, generation: u8) -> Slot {
        let place = u64::from(generation) << 56 | u64::from(place.source) << PAGE_BITS | place.page;
        Slot { hash, place }
    }

    fn generation(self) -> u8 {
        (self.place >> 56) as u8
    }

    fn place(self) -> Place {
        Place { source: (self.place >> PAGE_BITS) as u16, page: self.place & ((1 << PAGE_BITS) - 1) }
    }
}

/// Hashes of a source's pages, 0 for unknown; allocated where there are pages.
#[derive(Default)]
struct Shadow {
    chunks: Vec<Option<Box<[u64; CHUNK]>>>,
}

/// The index.
pub struct ContentIndex {
    slots: Vec<Slot>,
    /// Slots that are not free: alive or dead.
    occupied: usize,
    /// Of this pass: 1 to 255, then 1 again after a purge.
    generation: u8,
    shadows: Vec<Shadow>,
    shadow_bytes: usize,
    bytes_max: usize,
    /// The place behind the page seen last in this pass. What is before it was seen in this pass, or is unknown.
    cursor: Place,
    /// The page seen last, and the page it matched.
    trail: Option<(Place, Place)>,
    stats: IndexStats,
}

impl ContentIndex {
    /// An empty one that never holds more than `bytes_max`.
    pub fn new(bytes_max: usize) -> Self {
        ContentIndex {
            slots: Vec::new(),
            occupied: 0,
            generation: 1,
            shadows: Vec::new(),
            shadow_bytes: 0,
            bytes_max,
            cursor: Place { source: 0, page: 0 },
            trail: None,
            stats: IndexStats::default(),
        }
    }

    /// Bytes held now.
    pub fn bytes(&self) -> usize {
        self.slots.len() * size_of::<Slot>() + self.shadow_bytes
    }

    /// Counts of the pass under way.
    pub fn stats(&self) -> IndexStats {
        self.stats
    }

    /// Begins a pass: what the one before the last saw last is gone now. Returns the counts of the pass that ends.
    pub fn begin_pass(&mut self) -> IndexStats {
        if self.generation >= u8::MAX - 1 {
            self.renumber();
        }
        self.generation += 1;
        self.cursor = Place { source: 0, page: 0 };
        self.trail = None;
        std::mem::take(&mut self.stats)
    }

    /// Generations start again: what is alive gets the lowest numbers, what is not goes.
    fn renumber(&mut self) {
        let last = self.generation;
        self.rebuild(self.slots.len(), |g| (g == last).then_some(1));
        self.generation = 1;
    }

    /// Forgets a source that is gone. What only it held stays for at most two passes.
    pub(crate) fn remove_source(&mut self, source: u16) {
        if let Some(shadow) = self.shadows.get_mut(usize::from(source)) {
            let held = shadow.chunks.iter().flatten().count() * CHUNK * 8
                + shadow.chunks.capacity() * size_of::<Option<Box<[u64; CHUNK]>>>();
            self.shadow_bytes -= held;
            *shadow = Shadow::default();
        }
        self.trail = None;
    }

    /// Brings the slots where these contents are looked up first into the processor's cache, all at the same time:
    /// `see` would wait for one after the other.
    pub fn warm(&self, hashes: impl Iterator<Item = ContentHash>) {
        let n = self.slots.len();
        let seen = hashes.filter_map(|h| chain(h.get(), n).next()).fold(0, |sum, i| sum ^ self.slots[i].place);
        std::hint::black_box(seen);
    }

    /// Page `place` has content `hash`; pages of a pass come in ascending order.
    ///
    /// # Panics
    /// If the page's number is 2^40 or above: a bug.
    pub fn see(&mut self, place: Place, hash: ContentHash) -> Seen {
        assert!(place.page >> PAGE_BITS == 0, "page {:#x} of a source", place.page);
        let hash = hash.get();
        self.stats.pages += 1;
        self.forget_up_to(place);
        if self.remember(place, hash) == Some(hash) {
            self.stats.unchanged += 1;
        }
        if let Some(expected) = self.expectation(place) {
            if self.shadow(expected) == Some(hash) {
                self.stats.lookahead_hits += 1;
                self.stats.again += 1;
                self.trail = Some((place, expected));
                return Seen::Again(expected);
            }
            self.stats.lookahead_misses += 1;
        }
        let seen = self.look_up(place, hash);
        self.trail = match seen {
            Seen::Again(at) => {
                self.stats.again += 1;
                Some((place, at))
            }
            Seen::Full => {
                self.stats.full += 1;
                None
            }
            Seen::First => None,
        };
        seen
    }

    /// The content that a page had when it was last seen, in this pass or the one before; `None` if that is not kept.
    pub(crate) fn last_hash(&self, place: Place) -> Option<ContentHash> {
        ContentHash::new(self.shadow(place)?)
    }

    /// Whether some guest holds this content: seen in this pass, or in the last.
    pub fn contains(&self, hash: ContentHash) -> bool {
        let hash = hash.get();
        let slots = chain(hash, self.slots.len()).map(|i| self.slots[i]);
        slots.take_while(|s| s.generation() != 0).any(|s| s.hash == hash && self.is_alive(s))
    }

    /// The page expected to be equal to `place`: the one behind the last match, if that page has been seen in this
    /// pass.
    fn expectation(&self, place: Place) -> Option<Place> {
        let (last, matched) = self.trail?;
        if last.source != place.source || last.page + 1 != place.page {
            return None;
        }
        let next = Place { source: matched.source, page: matched.page + 1 };
        (next < place).then_some(next)
    }

    fn shadow(&self, place: Place) -> Option<u64> {
        let chunks = &self.shadows.get(usize::from(place.source))?.chunks;
        let chunk = chunks.get(usize::try_from(place.page).ok()? / CHUNK)?.as_ref()?;
        Some(chunk[place.page as usize % CHUNK]).filter(|h| *h != 0)
    }

    /// Notes the hash of a page for look-ahead; returns the one before. Without memory for it, does nothing.
    fn remember(&mut self, place: Place, hash: u64) -> Option<u64> {
        let (source, page) = (usize::from(place.source), usize::try_from(place.page).ok()?);
        let entry = size_of::<Option<Box<[u64; CHUNK]>>>();
        if self.shadows.len() <= source {
            self.shadows.resize_with(source + 1, Shadow::default);
        }
        if self.shadows[source].chunks.len() <= page / CHUNK {
            let (had, want) = (self.shadows[source].chunks.capacity(), page / CHUNK + 1);
            if want > had {
                if (want - had).checked_mul(entry)? > self.shadow_room() {
                    return None;
                }
                let shadow = &mut self.shadows[source];
                shadow.chunks.reserve_exact(want - shadow.chunks.len());
                self.shadow_bytes += (shadow.chunks.capacity() - had) * entry;
            }
            self.shadows[source].chunks.resize_with(want, || None);
        }
        let room = self.shadow_room();
        let chunk = &mut self.shadows[source].chunks[page / CHUNK];
        if chunk.is_none() {
            if CHUNK * 8 > room {
                return None;
            }
            self.shadow_bytes += CHUNK * 8;
            *chunk = Some(Box::new([0; CHUNK]));
        }
        let old = std::mem::replace(&mut chunk.as_mut()?[page % CHUNK], hash);
        (old != 0).then_some(old)
    }

    /// Forgets the hashes of the pages that this pass left out before `place`: they are not there any more.
    fn forget_up_to(&mut self, place: Place) {
        let from = std::mem::replace(&mut self.cursor, Place { page: place.page + 1, ..place });
        for source in from.source..=place.source {
            let Some(shadow) = self.shadows.get_mut(usize::from(source)) else { return };
            let first = if source == from.source { from.page as usize } else { 0 };
            let end = if source == place.source { place.page as usize } else { usize::MAX };
            let end = end.min(shadow.chunks.len() * CHUNK);
            let mut page = first;
            while page < end {
                let chunk_end = (page / CHUNK + 1) * CHUNK;
                let chunk = &mut shadow.chunks[page / CHUNK];
                if page.is_multiple_of(CHUNK) && chunk_end <= end {
                    self.shadow_bytes -= if chunk.take().is_some() { CHUNK * 8 } else { 0 };
                } else if let Some(hashes) = chunk {
                    hashes[page % CHUNK..(end.min(chunk_end) - 1) % CHUNK + 1].fill(0);
                }
                page = chunk_end;
            }
        }
    }

    /// What look-ahead may still allocate: a quarter of all at most, so that it never starves the table.
    fn shadow_room(&self) -> usize {
        (self.bytes_max / 4).saturating_sub(self.shadow_bytes).min(self.bytes_max.saturating_sub(self.bytes()))
    }

    fn is_alive(&self, slot: Slot) -> bool {
        let g = slot.generation();
        g != 0 && g + 1 >= self.generation
    }

    fn look_up(&mut self, place: Place, hash: u64) -> Seen {
        let mut dead = None;
        for i in chain(hash, self.slots.len()) {
            let slot = self.slots[i];
            if slot.generation() == 0 {
                break;
            }
            if slot.hash == hash {
                if slot.generation() == self.generation {
                    return Seen::Again(slot.place());
                }
                self.slots[i] = Slot::new(hash, place, self.generation);
                return Seen::First;
            }
            if dead.is_none() && !self.is_alive(slot) {
                dead = Some(i);
            }
        }
        if let Some(i) = dead {
            self.slots[i] = Slot::new(hash, place, self.generation);
            return Seen::First;
        }
        if !self.make_room() {
            return Seen::Full;
        }
        self.put(Slot::new(hash, place, self.generation));
        Seen::First
    }

    /// Puts a hash that is not there into the first free slot.
    fn put(&mut self, slot: Slot) {
        let free = chain(slot.hash, self.slots.len()).find(|i| self.slots[*i].generation() == 0);
        self.slots[free.expect("a fifth of the slots is free")] = slot;
        self.occupied += 1;
    }

    /// Sees to it that one more slot can be used: four fifths at most are.
    fn make_room(&mut self) -> bool {
        let n = self.slots.len();
        if self.occupied < n / 5 * 4 {
            return true;
        }
        let alive = self.slots.iter().filter(|s| self.is_alive(**s)).count();
        // Grow only if clearing out the dead would not win a quarter.
        let wanted = if alive < n / 5 * 3 && n > 0 { n } else { (n + n / 2).max(SLOTS_MIN) };
        // The old table and the new are there together for a moment.
        let bytes = self.bytes().saturating_add(wanted * size_of::<Slot>());
        if bytes > self.bytes_max {
            return false;
        }
        self.rebuild(wanted, Some);
        self.occupied < self.slots.len() / 5 * 4
    }

    /// A new table of `n` slots with what is alive, its generations changed by `renumber`; `None` leaves an entry out.
    fn rebuild(&mut self, n: usize, renumber: impl Fn(u8) -> Option<u8>) {
        let old = std::mem::replace(&mut self.slots, vec![Slot::default(); n]);
        self.occupied = 0;
        for slot in old {
            if self.is_alive(slot)
                && let Some(generation) = renumber(slot.generation())
            {
                self.put(Slot::new(slot.hash, slot.place(), generation));
            }
        }
    }
}

/// The slots of a table of `n` where a hash may be, in order. Its upper bits say which is the first, so that a table of
/// any size is filled evenly.
fn chain(hash: u64, n: usize) -> impl Iterator<Item = usize> {
    let home = ((u128::from(hash) * n as u128) >> 64) as usize;
    (home..n).chain(0..home)
}

impl std::fmt::Debug for ContentIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ContentIndex({} of {} slots, pass {})", self.occupied, self.slots.len(), self.generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn at(source: u16, page: u64) -> Place {
        Place { source, page }
    }

    fn hash(n: u64) -> ContentHash {
        // Spread like a hash, and never 0.
        ContentHash::new(n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1).unwrap()
    }

    #[test]
    fn an_entry_not_seen_for_a_whole_pass_is_gone() {
        let mut index = ContentIndex::new(1 << 20);
        index.see(at(0, 1), hash(1));
        index.begin_pass();
        assert!(index.contains(hash(1)), "known from the last pass");
        index.begin_pass();
        assert!(!index.contains(hash(1)));
        assert_eq!(index.see(at(0, 2), hash(1)), Seen::First);
    }

    #[test]
    fn only_this_pass_makes_a_match() {
        let mut index = ContentIndex::new(1 << 20);
        assert_eq!(index.see(at(0, 1), hash(1)), Seen::First);
        assert_eq!(index.see(at(0, 2), hash(1)), Seen::Again(at(0, 1)));
        index.begin_pass();
        assert_eq!(index.see(at(0, 2), hash(1)), Seen::First, "the other page may have changed since");
        assert_eq!(index.stats(), IndexStats { pages: 1, unchanged: 1, ..Default::default() });
    }

    #[test]
    fn look_ahead_follows_a_file_through_two_guests() {
        let mut index = ContentIndex::new(1 << 20);
        (0..100).for_each(|n| assert_ne!(index.see(at(0, 1000 + n), hash(n)), Seen::Full));
        for n in 0..100 {
            assert_eq!(index.see(at(1, 5 + n), hash(n)), Seen::Again(at(0, 1000 + n)));
        }
        let stats = index.stats();
        assert_eq!((stats.again, stats.lookahead_hits, stats.lookahead_misses), (100, 99, 0));
        // A page out of line costs one miss, and the next match leads on.
        assert_eq!(index.see(at(1, 105), hash(7)), Seen::Again(at(0, 1007)));
        assert_eq!(index.see(at(1, 106), hash(8)), Seen::Again(at(0, 1008)));
        let stats = index.stats();
        assert_eq!((stats.lookahead_hits, stats.lookahead_misses), (100, 1));
    }

    #[test]
    fn look_ahead_does_not_trust_the_last_pass() {
        let mut index = ContentIndex::new(1 << 20);
        for (n, h) in [(0, 1), (1, 2), (10, 1), (11, 2)] {
            index.see(at(0, n), hash(h));
        }
        index.begin_pass();
        // Source 1 comes before what source 2 held in the last pass.
        index.see(at(0, 0), hash(1));
        index.see(at(0, 1), hash(9));
        assert_eq!(index.see(at(0, 10), hash(1)), Seen::Again(at(0, 0)));
        assert_eq!(index.see(at(0, 11), hash(2)), Seen::First, "page 1 has changed");
    }

    #[test]
    fn look_ahead_does_not_trust_a_page_that_is_gone() {
        let mut index = ContentIndex::new(1 << 20);
        for n in [0, 1, 2, 600, 1300] {
            index.see(at(0, n), hash(n));
        }
        index.begin_pass();
        index.see(at(0, 0), hash(0));
        index.see(at(0, 2), hash(2));
        assert_eq!(index.see(at(1, 0), hash(0)), Seen::Again(at(0, 0)));
        assert_eq!(index.see(at(1, 1), hash(1)), Seen::First, "page 1 of source 0 was not seen in this pass");
        let before = index.bytes();
        index.begin_pass();
        index.see(at(2, 0), hash(0));
        assert!(index.bytes() < before, "hashes of pages that are gone take no memory");
    }

    #[test]
    fn the_bound_holds_and_is_reported() {
        let bytes_max = 100_000;
        let mut index = ContentIndex::new(bytes_max);
        for pass in 0..6 {
            let mut full = 0;
            for n in 0..20_000 {
                full += u64::from(index.see(at(0, n), hash(pass * 100_000 + n)) == Seen::Full);
                assert!(index.bytes() <= bytes_max);
            }
            // What the last pass saw is kept to the end of this one; every second pass finds room.
            assert_eq!(full < 20_000, pass % 2 == 0);
            assert!(full > 15_000);
            assert_eq!(index.begin_pass().full, full);
        }
    }

    #[test]
    fn a_source_that_goes_gives_its_memory_back() {
        let mut index = ContentIndex::new(1 << 20);
        index.see(at(0, 1), hash(1));
        let before = index.bytes();
        (0..5000).for_each(|n| assert_ne!(index.see(at(1, n), hash(1)), Seen::Full));
        assert!(index.bytes() > before);
        index.remove_source(1);
        index.remove_source(77);
        assert_eq!(index.bytes(), before);
    }

    proptest! {
        /// Against a map, over many passes: generations wrap round, entries die, tables are rebuilt.
        #[test]
        fn as_a_map_would(
            passes in proptest::collection::vec(proptest::collection::vec((0u64..400, 0u64..300), 0..200), 1..20),
            skip in 0usize..300,
        ) {
            let mut index = ContentIndex::new(1 << 22);
            for _ in 0..skip {
                index.begin_pass();
            }
            let mut last: BTreeMap<u64, Place> = BTreeMap::new();
            for mut pages in passes {
                pages.sort_unstable();
                pages.dedup_by_key(|p| p.0);
                let mut now: BTreeMap<u64, Place> = BTreeMap::new();
                let mut content: BTreeMap<Place, u64> = BTreeMap::new();
                for (page, h) in pages {
                    let place = at((page / 100) as u16, page % 100);
                    match index.see(place, hash(h)) {
                        Seen::First => prop_assert!(!now.contains_key(&h)),
                        Seen::Again(other) => prop_assert_eq!(content.get(&other), Some(&h)),
                        Seen::Full => prop_assert!(false),
                    }
                    now.entry(h).or_insert(place);
                    content.insert(place, h);
                    prop_assert!(index.bytes() <= 1 << 22);
                }
                for h in 0..300 {
                    prop_assert_eq!(index.contains(hash(h)), now.contains_key(&h) || last.contains_key(&h));
                }
                last = now;
                index.begin_pass();
            }
        }
    }
}
