//! The index: which block lies in which slot of the region, and what its bytes sum up to; 10 bytes an entry.
//!
//! Owns a table of buckets of eight entries, of a size fixed at the start; a block has two buckets. Keys are not
//! stored: a permutation of the block number, keyed by its owner, gives bucket and remainder, and the remainder is
//! stored; owners are told apart by whom the slot's segment belongs to. An entry that is a link names a slot of any
//! owner's whose bytes are those of the block, and says itself whose it is, in place of a fourth of the sum. Never does
//! I/O, never allocates after the start.
//! Invariants: a block has at most one entry that `find` gives; that is never the slot of another block or owner, nor a
//! link to a segment that was given up. An entry that finds no room is not taken: it is a cache.

use super::bytes::{Reader, Writer};
use super::permutation::{mix, permute, restore};
use super::types::{BLOCKS_MAX, OWNERS_MAX};
use std::ops::Range;
use undercroft_host::prefetch_lines;

const WAYS: usize = 8;
/// Bits of a block number.
const BITS: u32 = BLOCKS_MAX.trailing_zeros();
/// Of 1,000 places, those that are filled when every slot of the region holds a block.
const LOAD_PER_MILLE: u64 = 930;

/// The block was moved into RAM, or a guest holds it: first to go.
const HELD: u64 = 1;
/// The block was read since it was written.
const CHANCE: u64 = 2;
/// The entry lies in the second of its block's buckets.
const SECOND: u64 = 4;
/// The slot was written for another block of the same bytes.
const LINK: u64 = 8;
const FLAG_BITS: u32 = 4;
/// Bits of a link's sum: its owner's number is above them.
const LINK_SUM_BITS: u32 = 24;

const _: () = assert!(OWNERS_MAX < 1 << (32 - LINK_SUM_BITS));

/// Eight entries: flags, slot and remainder in 48 bits, and 32 bits of the sum of the block's bytes. An entry of slot 0
/// is none: slot 0 is the first segment's summary.
#[derive(Clone, Copy, Default)]
struct Bucket {
    low: [u32; WAYS],
    sums: [u32; WAYS],
    high: [u16; WAYS],
}

/// Bytes of a bucket.
const _: () = assert!(size_of::<Bucket>() == 10 * WAYS);

impl Bucket {
    #[inline]
    fn word(&self, way: usize) -> u64 {
        u64::from(self.low[way]) | u64::from(self.high[way]) << 32
    }

    #[inline]
    fn set(&mut self, way: usize, word: u64) {
        (self.low[way], self.high[way]) = (word as u32, (word >> 32) as u16);
    }
}

/// Who a slot belongs to: the index asks whoever keeps the segments.
pub(super) trait OwnerOf {
    /// The owner of the slot's segment.
    fn owner_of(&self, slot: u32) -> u16;

    /// Whether the slot holds what was last written there: its segment was not given up since.
    fn is_kept(&self, slot: u32) -> bool;
}

/// What tells whose an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Item {
    pub slot: u32,
    /// Of a link: its owner. Of any other entry: `None`, it is that of the slot's segment.
    pub link_of: Option<u16>,
}

impl Item {
    /// Whose the entry is.
    pub fn owner(self, owners: &impl OwnerOf) -> u16 {
        self.link_of.unwrap_or_else(|| owners.owner_of(self.slot))
    }
}

/// Where an entry lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct At {
    bucket: u32,
    way: u8,
}

/// What an entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Blocks from the start of the region's segments.
    pub slot: u32,
    /// Of a link, its lower bits: [`Entry::is_sum`] compares.
    sum: u32,
    pub held: bool,
    pub chance: bool,
    /// The slot was written for another block.
    pub is_link: bool,
}

impl Entry {
    /// Whether this is the sum that the entry was made with, as far as it says.
    pub fn is_sum(&self, sum: u32) -> bool {
        let bits = if self.is_link { LINK_SUM_BITS } else { 32 };
        (sum ^ self.sum) << (32 - bits) == 0
    }
}

/// See the head of the file.
pub(super) struct Index {
    buckets: Box<[Bucket]>,
    seed: u64,
    slot_bits: u32,
    /// The remainder is what is left of an image's product with the number of buckets, without so many bits.
    cut: u32,
    len: usize,
    held: usize,
    links: usize,
    /// Whence the next entry that has to go is taken, in turn.
    turn: usize,
}

impl Index {
    /// An empty index for slots below `slots`; `seed` keys the permutation.
    pub fn new(slots: u32, seed: u64) -> Self {
        let wanted = Self::buckets_for(slots);
        let buckets = vec![Bucket::default(); wanted as usize].into_boxed_slice();
        let slot_bits = 32 - slots.leading_zeros();
        let cut = wanted.ilog2();
        assert!(FLAG_BITS + slot_bits + (BITS - cut) <= 48, "an entry has 48 bits");
        Self { buckets, seed, slot_bits, cut, len: 0, held: 0, links: 0, turn: 0 }
    }

    fn buckets_for(slots: u32) -> u64 {
        u64::from(slots) * 1000 / LOAD_PER_MILLE / WAYS as u64 + 1
    }

    /// Bytes of the table of an index for so many slots.
    pub fn bytes_for(slots: u32) -> u64 {
        Self::buckets_for(slots) * size_of::<Bucket>() as u64
    }

    /// Bytes of the table.
    pub fn bytes(&self) -> usize {
        self.buckets.len() * size_of::<Bucket>()
    }

    /// Entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Entries that are held.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Entries that are links, also to segments that were given up.
    pub fn links(&self) -> usize {
        self.links
    }

    fn key(&self, owner: u16, second: bool) -> u64 {
        mix(self.seed ^ u64::from(owner) << 1 ^ u64::from(second))
    }

    /// Bucket and remainder of a block.
    #[inline]
    fn place(&self, owner: u16, block: u64, second: bool) -> (usize, u64) {
        let image = permute(self.key(owner, second), block);
        let product = u128::from(image) * self.buckets.len() as u128;
        // Images of one bucket are a number of buckets apart in this, so without its lowest bits they still differ.
        ((product >> BITS) as usize, (product as u64 & (BLOCKS_MAX - 1)) >> self.cut)
    }

    /// The block of which an entry is.
    fn block_of(&self, owner: u16, at: usize, word: u64) -> u64 {
        let least = (at as u128) << BITS | u128::from(word >> (FLAG_BITS + self.slot_bits)) << self.cut;
        // Of what another process has told, the last bucket may have an entry past the last image.
        let image = (least.div_ceil(self.buckets.len() as u128) as u64).min(BLOCKS_MAX - 1);
        restore(self.key(owner, word & SECOND != 0), image)
    }

    fn slot(&self, word: u64) -> u32 {
        ((word >> FLAG_BITS) & ((1 << self.slot_bits) - 1)) as u32
    }

    fn entry(&self, at: At) -> Entry {
        let bucket = &self.buckets[at.bucket as usize];
        let word = bucket.word(at.way as usize);
        Entry {
            slot: self.slot(word),
            sum: bucket.sums[at.way as usize],
            held: word & HELD != 0,
            chance: word & CHANCE != 0,
            is_link: word & LINK != 0,
        }
    }

    /// What tells whose an entry is; of slot 0, where there is none.
    fn item(&self, bucket: usize, way: usize) -> Item {
        let bucket = &self.buckets[bucket];
        let word = bucket.word(way);
        let link_of = (word & LINK != 0).then(|| (bucket.sums[way] >> LINK_SUM_BITS) as u16);
        Item { slot: self.slot(word), link_of }
    }

    /// Tells the processor which memory [`Index::find`] and [`Index::insert`] will need for a block.
    #[inline]
    pub fn prefetch(&self, owner: u16, block: u64) {
        for second in [false, true] {
            // 80 bytes from a multiple of 16 on lie in two lines.
            prefetch_lines::<2, _>(&self.buckets[self.place(owner, block, second).0]);
        }
    }

    /// The entry of a block.
    #[inline]
    pub fn find(&self, owners: &impl OwnerOf, owner: u16, block: u64) -> Option<(At, Entry)> {
        self.find_where(owners, owner, block, |item| item.link_of.is_none() || owners.is_kept(item.slot))
    }

    /// The entry of a block that is a link to a segment which was given up.
    pub fn find_link_to_nothing(&self, owners: &impl OwnerOf, owner: u16, block: u64) -> Option<At> {
        let found = self.find_where(owners, owner, block, |item| item.link_of.is_some() && !owners.is_kept(item.slot));
        found.map(|(at, _)| at)
    }

    #[inline]
    fn find_where(
        &self,
        owners: &impl OwnerOf,
        owner: u16,
        block: u64,
        is_wanted: impl Fn(Item) -> bool,
    ) -> Option<(At, Entry)> {
        for second in [false, true] {
            let (bucket, rest) = self.place(owner, block, second);
            for way in 0..WAYS {
                let word = self.buckets[bucket].word(way);
                let same = word >> (FLAG_BITS + self.slot_bits) == rest && (word & SECOND != 0) == second;
                if !same || self.slot(word) == 0 {
                    continue;
                }
                let item = self.item(bucket, way);
                if item.owner(owners) == owner && is_wanted(item) {
                    let at = At { bucket: bucket as u32, way: way as u8 };
                    return Some((at, self.entry(at)));
                }
            }
        }
        None
    }

    /// Marks an entry as read since it was written.
    #[inline]
    pub fn give_chance(&mut self, at: At) {
        self.change_flags(at, CHANCE, 0);
    }

    /// Marks an entry as held, or not.
    pub fn set_held(&mut self, at: At, held: bool) {
        let was = self.entry(at).held;
        self.held = self.held + usize::from(held) - usize::from(was);
        if held { self.change_flags(at, HELD, 0) } else { self.change_flags(at, 0, HELD) }
    }

    fn change_flags(&mut self, at: At, set: u64, clear: u64) {
        let bucket = &mut self.buckets[at.bucket as usize];
        let word = bucket.word(at.way as usize);
        bucket.set(at.way as usize, word & !clear | set);
    }

    /// Takes an entry out.
    pub fn remove(&mut self, at: At) {
        let entry = self.entry(at);
        self.held -= usize::from(entry.held);
        self.links -= usize::from(entry.is_link);
        self.buckets[at.bucket as usize].set(at.way as usize, 0);
        self.len -= 1;
    }

    /// Puts in a block that has no entry, of a slot of its owner's. The entry that had to go for it, if one had.
    pub fn insert(&mut self, owners: &impl OwnerOf, owner: u16, block: u64, slot: u32, sum: u32) -> Option<Item> {
        debug_assert!(owners.owner_of(slot) == owner);
        self.put(owners, owner, block, (slot, sum, 0))
    }

    /// Puts in a block that has no entry, as a link to a slot of anybody's. The entry that had to go for it, if
    /// one had.
    pub fn insert_link(&mut self, owners: &impl OwnerOf, owner: u16, block: u64, slot: u32, sum: u32) -> Option<Item> {
        self.links += 1;
        let sum = sum & ((1 << LINK_SUM_BITS) - 1) | u32::from(owner) << LINK_SUM_BITS;
        self.put(owners, owner, block, (slot, sum, LINK))
    }

    fn put(&mut self, owners: &impl OwnerOf, owner: u16, block: u64, entry: (u32, u32, u64)) -> Option<Item> {
        let (slot, sum, flags) = entry;
        debug_assert!(slot != 0 && block < BLOCKS_MAX && self.find(owners, owner, block).is_none());
        let places = [false, true].map(|second| self.place(owner, block, second));
        let free =
            places.map(|(bucket, _)| (0..WAYS).filter(|w| self.slot(self.buckets[bucket].word(*w)) == 0).count());
        let mut second = free[1] > free[0];
        let mut gone = None;
        if free == [0, 0] {
            match self.make_room(owners, places.map(|(bucket, _)| bucket)) {
                Some(in_second) => second = in_second,
                None => {
                    let has_held = |n: usize| (0..WAYS).any(|w| self.buckets[places[n].0].word(w) & HELD != 0);
                    second = !has_held(0) && has_held(1);
                    gone = Some(self.push_out(owners, places[usize::from(second)].0));
                }
            }
        }
        let (bucket, rest) = places[usize::from(second)];
        let way = (0..WAYS).find(|w| self.slot(self.buckets[bucket].word(*w)) == 0).expect("room was made");
        let flags = flags | if second { SECOND } else { 0 };
        let word = rest << (FLAG_BITS + self.slot_bits) | u64::from(slot) << FLAG_BITS | flags;
        self.buckets[bucket].set(way, word);
        self.buckets[bucket].sums[way] = sum;
        self.len += 1;
        gone
    }

    /// Moves one entry of two full buckets into its other bucket, if one of them has room there. Which of the two has
    /// room then.
    fn make_room(&mut self, owners: &impl OwnerOf, full: [usize; 2]) -> Option<bool> {
        for (n, bucket) in full.into_iter().enumerate() {
            for way in 0..WAYS {
                let word = self.buckets[bucket].word(way);
                let owner = self.item(bucket, way).owner(owners);
                let block = self.block_of(owner, bucket, word);
                let (other, rest) = self.place(owner, block, word & SECOND == 0);
                let Some(free) = (0..WAYS).find(|w| self.slot(self.buckets[other].word(*w)) == 0) else { continue };
                let shift = FLAG_BITS + self.slot_bits;
                let moved = rest << shift | word & ((1 << shift) - 1) ^ SECOND;
                let sum = self.buckets[bucket].sums[way];
                self.buckets[other].set(free, moved);
                self.buckets[other].sums[free] = sum;
                self.buckets[bucket].set(way, 0);
                return Some(n == 1);
            }
        }
        None
    }

    /// Takes an entry out of a full bucket: a link to nothing, a held one, one that was not read again, or the next in
    /// turn.
    fn push_out(&mut self, owners: &impl OwnerOf, bucket: usize) -> Item {
        self.turn = self.turn.wrapping_add(1);
        let word = |way: usize| self.buckets[bucket].word(way);
        let is_of_nothing = |w: &usize| word(*w) & LINK != 0 && !owners.is_kept(self.slot(word(*w)));
        let way = (0..WAYS).find(is_of_nothing).or_else(|| (0..WAYS).find(|w| word(*w) & HELD != 0));
        let way = way.or_else(|| (0..WAYS).find(|w| word((w + self.turn) % WAYS) & CHANCE == 0).map(|w| w + self.turn));
        let way = way.unwrap_or(self.turn) % WAYS;
        let gone = self.item(bucket, way);
        self.remove(At { bucket: bucket as u32, way: way as u8 });
        gone
    }

    /// Takes all entries out of which this is true, looking at the whole table.
    pub fn remove_where(&mut self, is_gone: impl FnMut(Item) -> bool) {
        self.remove_some(0..self.buckets.len(), is_gone);
    }

    /// The same of these buckets, as far as there are so many. Whether there are more after them.
    pub fn remove_some(&mut self, buckets: Range<usize>, mut is_gone: impl FnMut(Item) -> bool) -> bool {
        let end = buckets.end.min(self.buckets.len());
        for bucket in buckets.start.min(end)..end {
            for way in 0..WAYS {
                let item = self.item(bucket, way);
                if item.slot != 0 && is_gone(item) {
                    self.remove(At { bucket: bucket as u32, way: way as u8 });
                }
            }
        }
        end < self.buckets.len()
    }

    /// All entries.
    pub fn items(&self) -> impl Iterator<Item = Item> + '_ {
        let all = (0..self.buckets.len()).flat_map(|bucket| (0..WAYS).map(move |way| (bucket, way)));
        all.map(|(bucket, way)| self.item(bucket, way)).filter(|item| item.slot != 0)
    }

    /// The table, for another process.
    pub fn write(&self, to: &mut Writer) {
        to.0.reserve(self.bytes() + 16);
        to.u64(self.buckets.len() as u64).u64(self.turn as u64);
        for bucket in &self.buckets {
            let mut bytes = [0; 10 * WAYS];
            let (words, high) = bytes.split_at_mut(8 * WAYS);
            let words = words.as_chunks_mut().0.iter_mut();
            words.zip(bucket.low.iter().chain(&bucket.sums)).for_each(|(to, n)| *to = n.to_le_bytes());
            high.as_chunks_mut().0.iter_mut().zip(&bucket.high).for_each(|(to, n)| *to = n.to_le_bytes());
            to.bytes(&bytes);
        }
    }

    /// Takes over the table of another process, of an index of as many slots and the same seed, if this is true of all
    /// its entries.
    pub fn read(&mut self, from: &mut Reader<'_>, is_right: impl Fn(Item) -> bool) -> Option<()> {
        if from.u64()? != self.buckets.len() as u64 {
            return None;
        }
        self.turn = from.u64()? as usize;
        (self.len, self.held, self.links) = (0, 0, 0);
        for bucket in 0..self.buckets.len() {
            let (it, bytes) = (&mut self.buckets[bucket], from.array::<{ 10 * WAYS }>()?);
            let (words, high) = bytes.split_at(8 * WAYS);
            let words = words.as_chunks().0.iter();
            it.low.iter_mut().chain(&mut it.sums).zip(words).for_each(|(n, from)| *n = u32::from_le_bytes(*from));
            it.high.iter_mut().zip(high.as_chunks().0).for_each(|(n, from)| *n = u16::from_le_bytes(*from));
            for way in 0..WAYS {
                let word = self.buckets[bucket].word(way);
                let item = self.item(bucket, way);
                if item.slot != 0 {
                    self.len += 1;
                    self.held += usize::from(word & HELD != 0);
                    self.links += usize::from(word & LINK != 0);
                    let rest = word >> (FLAG_BITS + self.slot_bits);
                    (rest < BLOCKS_MAX >> self.cut && is_right(item)).then_some(())?;
                }
            }
        }
        Some(())
    }

    /// Takes all entries out.
    pub fn clear(&mut self) {
        self.buckets.fill(Bucket::default());
        (self.len, self.held, self.links) = (0, 0, 0);
    }
}

#[cfg(test)]
mod tests;
