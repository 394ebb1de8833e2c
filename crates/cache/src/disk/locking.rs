//! Locks of a disk: what is pinned or named by a profile, the rule that chooses others, the table of its misses, and
//! the victim buffer.
//!
//! Owns what was set, in bytes of the image, and the table. Never evicts, never reads a block: the index keeps what is
//! locked when it comes. Invariants: what the index has to lock of the disk is what was set, wherever its blocks begin
//! and whichever index they stand in; what counts for all disks of an index (the budget, the victim buffer) stands with
//! the index, and changes only when it is set of one of them, or a disk with settings of its own joins them; what locks
//! take in memory comes out of the disk's share.

use super::members::Members;
use super::residents::{Residents, online_blocks};
use super::settings::Settings;
use super::{B, Disk};
use crate::fault_injection::{Bug, FaultInjection};
use crate::store::ram::Store;
use crate::types::{BlockReport, ByteRange, LockReport, PinError};
use undercroft_engine::locking::{LockMode, LockSettings, MissTable, Missed};
use undercroft_engine::{HashKey, LockOptions, Tier};

/// Bytes that a range takes: here, in the index, and with the SSD store for the disk and its base.
const RANGE_BYTES: usize = 4 * size_of::<ByteRange>();

/// See the head of the file.
#[derive(Debug, Default)]
pub(super) struct Locking {
    settings: LockSettings,
    /// Pinned, sorted by where they begin; and named by a profile.
    pins: Vec<ByteRange>,
    profile: Vec<ByteRange>,
    /// Blocks that pins name, as they are counted now.
    pinned_blocks: u64,
    misses: Option<Box<MissTable>>,
}

/// What is set of locks for all disks whose blocks stand in one index. In a pool each of these is what was set last of
/// any disk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Common {
    options: LockOptions,
    victim_blocks: u16,
}

impl Common {
    /// What the settings of a disk alone say.
    pub(super) fn of(settings: LockSettings) -> Self {
        let LockSettings { budget_permille, keep_held, victim_blocks, .. } = settings;
        Self { options: LockOptions { permille: budget_permille, keep_held }, victim_blocks }
    }

    /// A disk's settings are others than `before`: what has changed counts for all from now on.
    fn follow(&mut self, before: LockSettings, now: LockSettings) {
        let (was, is) = (Self::of(before), Self::of(now));
        if is.options.permille != was.options.permille {
            self.options.permille = is.options.permille;
        }
        if is.options.keep_held != was.options.keep_held {
            self.options.keep_held = is.options.keep_held;
        }
        if is.victim_blocks != was.victim_blocks {
            self.victim_blocks = is.victim_blocks;
        }
    }

    /// The settings of a disk, with what counts of them.
    fn in_force(self, settings: LockSettings) -> LockSettings {
        let Self { options: LockOptions { permille, keep_held }, victim_blocks } = self;
        LockSettings { budget_permille: permille, keep_held, victim_blocks, ..settings }
    }
}

impl Locking {
    /// Whether there is nothing to tell an index.
    pub(super) fn is_off(&self) -> bool {
        !self.is_on() && self.settings.victim_blocks == 0
    }

    /// A block was missed by a read.
    #[inline]
    pub(super) fn missed(&mut self, block: u64) {
        if let Some(misses) = &mut self.misses {
            misses.count(block);
        }
    }

    /// Whether a rule chooses what is locked while the disk runs.
    pub(super) fn is_online(&self) -> bool {
        self.settings.mode == LockMode::Online
    }

    /// Whether the index has anything to lock.
    pub(super) fn is_on(&self) -> bool {
        self.settings.mode != LockMode::Off || !self.pins.is_empty()
    }

    /// Blocks that pins name.
    pub(super) fn pinned_blocks(&self) -> u64 {
        self.pinned_blocks
    }

    /// What the table has counted says nothing of the disk's blocks any more.
    pub(super) fn forget_misses(&mut self, key: HashKey) {
        if let Some(misses) = &mut self.misses {
            **misses = MissTable::new(misses.entries(), key);
        }
    }

    /// Tells an index what is to be locked of its present disk, whose this is: in a pool, the member `ordinal`.
    fn tell(&self, disk: &Settings, ordinal: Option<u16>, residents: &mut Residents) {
        let on = self.is_on();
        if let (Some(ordinal), Some(members)) = (ordinal, residents.members_mut()) {
            members.note_locks(ordinal, on, self.pinned_blocks);
        }
        let any = on || residents.members().is_some_and(Members::have_locks);
        let common = residents.common();
        let index = residents.index_mut();
        index.set_locks(any.then_some(common.options));
        if on {
            let of = |ranges| blocks_of(ranges, disk.lead());
            index.set_pins(of(&self.pins));
            index.set_profile(of(&self.profile));
        } else if any {
            index.unlock_all();
        }
        index.set_victims(u32::from(common.victim_blocks));
        residents.set_online(self.is_online(), ordinal.is_some(), disk.hash_key());
    }

    /// Blocks' worth of memory that is used: of the table what it may come to.
    pub(super) fn overhead_blocks(&self) -> u32 {
        self.overhead_with(self.pins.len() + self.profile.len())
    }

    /// The same with so many ranges.
    fn overhead_with(&self, ranges: usize) -> u32 {
        let table = self.misses.as_ref().map_or(0, |m| MissTable::bytes_max(m.entries()));
        (table as u64 + (ranges * RANGE_BYTES) as u64).div_ceil(B) as u32
    }

    /// Blocks' worth of memory more that it takes to have so many pins and ranges of a profile.
    fn more_with(&self, pins: usize, profile: usize) -> u32 {
        self.overhead_with(pins + profile).saturating_sub(self.overhead_blocks())
    }

    pub(super) fn memory_bytes(&self) -> usize {
        (self.pins.capacity() + self.profile.capacity()) * size_of::<ByteRange>()
            + self.misses.as_ref().map_or(0, |m| m.memory_bytes())
    }
}

/// Blocks, as they are counted with `lead`, that ranges of the image touch.
fn blocks_of(ranges: &[ByteRange], lead: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
    ranges.iter().map(move |r| {
        let (from, to) = (r.offset + lead, r.end() + lead);
        (from / B, to.div_ceil(B) - from / B)
    })
}

/// How many blocks these are; one that several ranges touch counts once.
fn count_blocks(ranges: &[ByteRange], lead: u64) -> u64 {
    let mut blocks: Vec<(u64, u64)> = blocks_of(ranges, lead).map(|(first, count)| (first, first + count)).collect();
    blocks.sort_unstable();
    let (mut counted, mut end) = (0, 0);
    for (first, last) in blocks {
        counted += last.saturating_sub(first.max(end));
        end = end.max(last);
    }
    counted
}

impl<P: FaultInjection> Disk<P> {
    /// Takes other settings of its locks.
    pub(crate) fn set_locking(&mut self, settings: LockSettings, arena: &mut Store) {
        let before = self.locking.settings;
        if settings == before {
            return;
        }
        self.locking.settings = settings;
        if settings.miss_entries != before.miss_entries {
            let entries = usize::from(settings.miss_entries);
            let key = self.settings.hash_key();
            self.locking.misses = (entries > 0).then(|| Box::new(MissTable::new(entries, key)));
        }
        if settings.mode != LockMode::Static {
            self.locking.profile = Vec::new();
        }
        self.residents.common_mut().follow(before, settings);
        self.apply_locking();
        self.account_overhead(arena);
    }

    /// Blocks' worth of memory that other settings take at most, beside what is used.
    pub(crate) fn locking_blocks(&self, settings: LockSettings) -> u32 {
        let entries = usize::from(settings.miss_entries);
        let table = if entries > 0 { MissTable::bytes_max(entries) as u64 } else { 0 };
        let rule = if settings.mode == LockMode::Online { online_blocks(self.residents.index().limit()) } else { 0 };
        table.div_ceil(B) as u32 + rule
    }

    /// What was set of its locks.
    pub(crate) fn locking(&self) -> LockSettings {
        self.locking.settings
    }

    /// Blocks of the budget now, of all disks of its pool; whether or not anything is to be locked.
    fn lock_budget(&self) -> u64 {
        self.residents.index().budget_of(self.residents.common().options).into()
    }

    /// Blocks of the other disks of its pool that are pinned.
    fn pinned_of_others(&self) -> u64 {
        let members = self.residents.members().zip(self.ordinal());
        members.map_or(0, |(members, ordinal)| members.pinned_beside(ordinal))
    }

    fn check_ranges(&self, ranges: &[ByteRange]) -> Result<(), PinError> {
        let size_bytes = self.image_bytes();
        match ranges.iter().find(|r| r.bytes == 0 || r.end() > size_bytes) {
            Some(&range) => Err(PinError::OutOfDisk { range, size_bytes }),
            None => Ok(()),
        }
    }

    /// Whether these ranges can be pinned, in place of those that are; and how many blocks' worth of memory more that
    /// takes.
    pub(crate) fn may_pin(&self, ranges: &[ByteRange]) -> Result<u32, PinError> {
        self.check_ranges(ranges)?;
        let others = if self.faults.has(Bug::PinsOfOthersUncounted) { 0 } else { self.pinned_of_others() };
        let left = self.lock_budget().saturating_sub(others);
        let pinned = count_blocks(ranges, self.settings.lead());
        if pinned > left {
            return Err(PinError::OverBudget { pinned_bytes: pinned * B, budget_bytes: left * B });
        }
        Ok(self.locking.more_with(ranges.len(), self.locking.profile.len()))
    }

    /// Whether a profile can name these ranges, in place of those that it names; and how many blocks' worth of memory
    /// more that takes.
    pub(crate) fn may_name(&self, ranges: &[ByteRange]) -> Result<u32, PinError> {
        self.check_ranges(ranges)?;
        let takes = self.locking.settings.mode == LockMode::Static;
        Ok(if takes { self.locking.more_with(self.locking.pins.len(), ranges.len()) } else { 0 })
    }

    /// Pins these ranges, in place of those that are.
    pub(crate) fn set_pins(&mut self, mut ranges: Vec<ByteRange>, arena: &mut Store) {
        ranges.sort_unstable_by_key(|r| r.offset);
        ranges.shrink_to_fit();
        self.locking.pins = ranges;
        self.apply_locking();
        self.pin_below(arena);
        self.account_overhead(arena);
    }

    /// The profile says that these are to be locked, in place of those that it named before. Nothing unless the mode is
    /// static.
    pub(crate) fn set_profile(&mut self, mut ranges: Vec<ByteRange>, arena: &mut Store) {
        if self.locking.settings.mode == LockMode::Static {
            ranges.sort_unstable_by_key(|r| r.offset);
            ranges.shrink_to_fit();
            self.locking.profile = ranges;
            self.apply_locking();
            self.account_overhead(arena);
        }
    }

    /// What its profile names.
    pub(crate) fn lock_profile(&self) -> &[ByteRange] {
        &self.locking.profile
    }

    /// Tells the SSD store what is pinned: the second home of what RAM has no room for.
    pub(crate) fn pin_below(&self, arena: &mut Store) {
        let Some(tier) = arena.tier_mut() else { return };
        let mut blocks: Vec<(u64, u64)> =
            blocks_of(&self.locking.pins, 0).map(|(first, count)| (first, first + count)).collect();
        blocks.sort_unstable();
        blocks.dedup_by(|next, kept| {
            let joins = next.0 <= kept.1;
            if joins {
                kept.1 = kept.1.max(next.1);
            }
            joins
        });
        tier.set_pins(self.settings.id(), blocks);
    }

    /// What is pinned.
    pub(crate) fn pins(&self) -> &[ByteRange] {
        &self.locking.pins
    }

    /// Tells the index what is to be locked of the disk: after a change, and when its blocks stand in another index, or
    /// are counted from elsewhere. The index is with it.
    pub(super) fn apply_locking(&mut self) {
        let ordinal = self.ordinal();
        let Self { locking, settings, residents, .. } = self;
        if ordinal.is_none() {
            *residents.common_mut() = Common::of(locking.settings);
        }
        locking.pinned_blocks = count_blocks(&locking.pins, settings.lead());
        locking.tell(settings, ordinal, residents);
    }

    /// A planted bug: as much stays locked as can be, whatever the budget says.
    pub(super) fn keep_locks(&mut self) {
        if self.residents.index().locks().is_some() {
            let options = self.residents.common().options;
            let options = LockOptions { permille: undercroft_engine::LOCK_PERMILLE_MAX, ..options };
            self.residents.index_mut().set_locks(Some(options));
        }
    }

    /// The same of an index that another disk of its pool has, where this one is the present disk. What is set of it
    /// and is not what nobody has set counts for all from now on.
    pub(super) fn lock_in(&self, residents: &mut Residents) {
        residents.common_mut().follow(LockSettings::default(), self.locking.settings);
        self.locking.tell(&self.settings, self.ordinal(), residents);
    }

    /// What there is to say of its locks, but for the blocks that missed most. Takes no time in proportion to anything.
    pub(crate) fn lock_summary(&self) -> LockReport {
        let index = self.residents.index();
        let (buffered, buffer, buffer_hits) = index.victims();
        let (locked, max) = index.locked();
        LockReport {
            settings: self.residents.common().in_force(self.locking.settings),
            locked_blocks: index.locked_of_present().into(),
            pool_locked_blocks: locked.into(),
            budget_blocks: if self.faults.has(Bug::BudgetUntold) { max.into() } else { self.lock_budget() },
            settling: index.is_moving() || self.is_resizing(),
            pinned_blocks: self.locking.pinned_blocks,
            others_pinned_blocks: self.pinned_of_others(),
            buffered_blocks: buffered.into(),
            buffer_blocks: buffer.into(),
            buffer_hits,
            online: self.residents.online_stats(),
            misses: self.locking.misses.as_ref().map_or(0, |m| m.misses()),
            most_missed: Vec::new(),
        }
    }

    /// What there is to say of its locks.
    pub(crate) fn lock_report(&self) -> LockReport {
        let misses = self.locking.misses.as_ref();
        let most_missed = misses.map_or_else(Vec::new, |m| self.in_image(m.top()));
        LockReport { most_missed, ..self.lock_summary() }
    }

    /// Checks that the index has locks only if something is to be locked of the disk; for tests.
    pub(super) fn check_locks_alone(&self) {
        let (locks, on) = (self.residents.index().locks().is_some(), self.locking.is_on());
        assert!(locks == on, "a disk alone has locks: {locks}, and is to have some: {on}");
    }

    /// The same of the pool whose index is with this disk, and what that knows of its disks; for tests.
    pub(super) fn check_locks_of(&self, disks: &[&Self]) {
        let Some(members) = self.residents.members() else { return };
        let known = |d: &&Self| {
            let noted = d.ordinal().map(|ordinal| members.locks(ordinal));
            noted == Some((d.locking.is_on(), d.locking.pinned_blocks))
        };
        assert!(disks.iter().all(known), "what is to be locked of a disk of a pool is not what its index knows");
        let (locks, on) = (self.residents.index().locks().is_some(), members.have_locks());
        assert!(locks == on, "a pool has locks: {locks}, and is to have some: {on}");
    }

    /// The same blocks counted from the image's first byte, in bytes.
    fn in_image(&self, missed: Vec<Missed>) -> Vec<Missed> {
        let lead = self.settings.lead();
        missed.into_iter().map(|m| Missed { block: (m.block * B).saturating_sub(lead), ..m }).collect()
    }

    /// Blocks that are locked, in bytes from the start of the image: where each begins.
    pub(crate) fn locked_at(&self) -> Vec<u64> {
        let lead = self.settings.lead();
        let own = self.residents.index().locked_keys().filter_map(|key| self.block(key));
        let mut all: Vec<u64> = own.map(|block| (block * B).saturating_sub(lead)).collect();
        all.sort_unstable();
        all
    }

    /// What is known of the block in which this byte of the image is.
    pub(crate) fn block_report(&mut self, byte: u64, arena: &mut Store) -> BlockReport {
        let at = byte + self.settings.lead();
        let block = at / B;
        let lead = self.settings.lead();
        let of_block = |r: &ByteRange| r.offset + lead < (block + 1) * B && r.end() + lead > block * B;
        let pinned_by = self.locking.pins.iter().copied().find(of_block);
        let named_by_profile = self.locking.profile.iter().any(of_block);
        let guest_holds = self.side.is_at_guest(block, arena);
        let on_ssd = self.is_below(block, arena);
        let index = self.residents.index();
        let slot = index.peek(block);
        let cached = slot.filter(|&slot| self.residents.page(slot).is_some());
        let tier = cached.map(|slot| index.tier(slot));
        let part = index.part_of_block(block);
        let (part_locked, part_budget) = index.part_locked(part);
        BlockReport {
            offset: (block * B).saturating_sub(self.settings.lead()),
            cached: cached.is_some(),
            on_its_way: cached.is_none() && (slot.is_some() || self.near.contains(block)),
            locked: cached.is_some_and(|slot| index.is_locked(slot)),
            buffered: cached.is_some_and(|slot| index.is_buffered(slot)),
            first_to_go: tier == Some(Tier::Cold),
            on_probation: tier == Some(Tier::Probation),
            part,
            part_locked_blocks: part_locked.into(),
            part_budget_blocks: part_budget.into(),
            policy: index.part_kind(part).unwrap_or(index.kind()),
            guest_holds,
            on_ssd,
            pinned_by,
            named_by_profile,
            chosen: self.residents.is_chosen(self.key(block)),
            missed: self.locking.misses.as_ref().and_then(|m| m.of(block)),
            keeps_nothing: index.limit() == 0,
        }
    }
}
