//! What a disk is like and how it is to be used: size, alignment, options, hint.
//!
//! Owns what was set when the disk was added, and the little of it that changes later. Never touches a block.
//! Invariants: the size that can be reached and the lead are multiples of the alignment; a hint makes blocks the first
//! to be evicted only where contents are known, because the tier for such blocks takes memory that is promised only
//! there.

use super::B;
use crate::types::{CoreOptions, DiskId, DiskOptions};
use undercroft_engine::shares::{Admission, Hint};
use undercroft_engine::{ExclusiveMode, HashKey};

/// See the head of the file.
#[derive(Debug)]
pub(super) struct Settings {
    id: DiskId,
    closing: bool,
    contents: bool,
    can_write_zeroes: bool,
    first_to_go: bool,
    readahead_changed: bool,
    shifts: bool,
    hint: Hint,
    lead: u64,
    size: u64,
    align: u64,
    hash_seed: u64,
    options: DiskOptions,
}

impl Settings {
    pub(super) fn new(id: DiskId, options: DiskOptions, core: &CoreOptions) -> Self {
        let align = u64::from(options.align);
        Self {
            id,
            closing: false,
            contents: core.contents,
            can_write_zeroes: options.can_write_zeroes,
            first_to_go: false,
            readahead_changed: false,
            shifts: false,
            hint: Hint::Normal,
            lead: 0,
            size: options.size_bytes / align * align,
            align,
            hash_seed: core.hash_seed,
            options,
        }
    }

    #[inline]
    pub(super) fn id(&self) -> DiskId {
        self.id
    }

    /// Bytes that are counted before the disk's first one, less than a block: so blocks begin where pages of the guest
    /// do. Everything in this crate's disks counts from there; requests and operations count from the first byte.
    #[inline]
    pub(super) fn lead(&self) -> u64 {
        self.lead
    }

    /// Takes another lead, a multiple of the alignment.
    pub(super) fn set_lead(&mut self, lead: u64) {
        self.size = self.size - self.lead + lead;
        (self.lead, self.shifts) = (lead, false);
    }

    /// Whether the lead is to change once nothing of the disk is under way.
    #[inline]
    pub(super) fn shifts(&self) -> bool {
        self.shifts
    }

    /// The lead is to change, or not any more.
    pub(super) fn set_shifts(&mut self, shifts: bool) {
        self.shifts = shifts;
    }

    /// Bytes that can be reached: the size, cut to the alignment, and the lead.
    #[inline]
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Blocks of the disk, the last one perhaps partial.
    pub(super) fn blocks(&self) -> u64 {
        self.size.div_ceil(B)
    }

    /// Bytes of `block` that exist, the lead included: the last one may be partial.
    #[inline]
    pub(super) fn block_bytes(&self, block: u64) -> u64 {
        B.min(self.size - block * B)
    }

    /// Whether all of `block` is on the disk.
    #[inline]
    pub(super) fn is_whole(&self, block: u64) -> bool {
        self.block_bytes(block) == B && (block > 0 || self.lead == 0)
    }

    /// Whether bytes `offset..offset+len` are all on the disk.
    #[inline]
    pub(super) fn contains(&self, offset: u64, len: u64) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.size)
    }

    /// Unit of offsets and lengths of operations, in bytes.
    #[inline]
    pub(super) fn align(&self) -> u64 {
        self.align
    }

    /// What was asked for when the disk was added, but for read-ahead and exclusivity: those as they are now.
    #[inline]
    pub(super) fn options(&self) -> &DiskOptions {
        &self.options
    }

    /// The key of hash tables whose keys a guest can choose.
    pub(super) fn hash_key(&self) -> HashKey {
        HashKey::from_seed(self.hash_seed)
    }

    /// Whether contents are known by their hashes.
    #[inline]
    pub(super) fn contents(&self) -> bool {
        self.contents
    }

    /// Whether the back end writes zeroes itself, as far as is known.
    pub(super) fn can_write_zeroes(&self) -> bool {
        self.can_write_zeroes
    }

    /// The back end promised to write zeroes and cannot: from now on the core does.
    pub(super) fn write_zeroes_failed(&mut self) {
        self.can_write_zeroes = false;
    }

    /// Whether new requests are refused, because the disk is being removed.
    #[inline]
    pub(super) fn is_closing(&self) -> bool {
        self.closing
    }

    /// From now on new requests are refused.
    pub(super) fn close(&mut self) {
        self.closing = true;
    }

    /// Takes another reach of read-ahead, in bytes; false if it is the one there was.
    pub(super) fn set_readahead(&mut self, bytes: u32) -> bool {
        let changes = self.options.readahead_bytes != bytes;
        self.options.readahead_bytes = bytes;
        self.readahead_changed |= changes;
        changes
    }

    /// Whether read-ahead was changed since the disk was added.
    pub(super) fn is_readahead_changed(&self) -> bool {
        self.readahead_changed
    }

    /// Takes another mode of exclusivity.
    pub(super) fn set_exclusive(&mut self, mode: ExclusiveMode) {
        self.options.exclusive = mode;
    }

    /// How the disk will be used, by the last hint.
    pub(super) fn hint(&self) -> Hint {
        self.hint
    }

    /// Whether what is read or written is the first to go, by the hint.
    #[inline]
    pub(super) fn first_to_go(&self) -> bool {
        self.first_to_go
    }

    /// Takes another hint; false if it is the one there was.
    pub(super) fn set_hint(&mut self, hint: Hint) -> bool {
        self.first_to_go = self.contents && hint.admission() == Admission::FirstToGo;
        std::mem::replace(&mut self.hint, hint) != hint
    }
}
