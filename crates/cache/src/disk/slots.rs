//! How frames come into the slots of a disk and leave them: by eviction, or because their content may be out of date.
//!
//! Owns how frames come into slots and leave them, one by one and all at once. Never starts I/O.
//! Invariants: the first of the disk (`mod.rs`); every frame that leaves a slot is given back to the store.

use crate::disk::reads::fetch::Fetch;
use crate::disk::{B, Cx, Disk};
use crate::fault_injection::{Bug, FaultInjection};
use crate::store::ram::Store;
use crate::types::{Effects, KeptBlock, KeptBlocks};
use undercroft_engine::shares::Hint;
use undercroft_engine::{Outcome, PartId, Placed};
use undercroft_host::{Frame, Held};

/// Blocks of another process that are looked up together before they are put in: so many loads of memory overlap.
const RESTORED_AT_ONCE: usize = 32;

impl<P: FaultInjection> Disk<P> {
    /// Deals with what the index had to evict.
    #[inline]
    pub(crate) fn make_room(&mut self, outcome: Outcome, arena: &mut Store) {
        if let Outcome::Fill { evicted: Some((key, slot)), .. } = outcome {
            // The slot is the newcomer's already.
            let newcomers = self.faults.has(Bug::NewcomersPartPays);
            let part = if newcomers { self.residents.part_of_slot(slot) } else { self.residents.part_of_block(key) };
            self.count_evicted(key);
            self.offer_evicted(slot, key, arena);
            self.vacate(slot, key, part, arena);
            self.side.lapses(self.residents.index_mut(), arena);
        }
    }

    /// Counts an eviction of the block with this key, which may be another disk's of the pool.
    fn count_evicted(&mut self, key: u64) {
        match self.residents.members_mut() {
            Some(members) => members.evicted(key),
            None => {
                self.stats.evicted_blocks += 1;
                self.measuring.evicted(|| self.residents.part_of_block(key));
            }
        }
    }

    /// Frees the frame of a slot, if it has one; it was that of the block with this key, which is of `part`.
    #[inline]
    pub(super) fn vacate(&mut self, slot: u32, key: u64, part: PartId, arena: &mut Store) {
        if let Some(held) = self.residents.take(slot, key) {
            self.measuring.went(part);
            self.sharing.moves();
            let owner = self.owner(key);
            arena.unseat(held, owner, self.faults.has(Bug::ChargeLost));
        }
    }

    /// Forgets a block: the index does, and its frame is freed.
    pub(super) fn drop_block(&mut self, block: u64, arena: &mut Store) {
        let part = self.residents.part_of_block(block);
        if let Some(slot) = self.residents.index_mut().remove(block) {
            self.vacate(slot, self.key(block), part, arena);
        }
    }

    /// Forgets every cached block that overlaps bytes `from..to`. Costs no more than the blocks cached.
    pub(super) fn drop_cached(&mut self, from: u64, to: u64, arena: &mut Store) {
        let (first, end) = (from / B, to.div_ceil(B));
        if !self.faults.has(Bug::BelowKeepsLost)
            && let Some(tier) = arena.tier_mut()
        {
            tier.invalidate(self.settings.id(), first, end);
        }
        if end - first <= u64::from(self.residents.index().len()) {
            for b in first..end {
                self.drop_block(b, arena);
            }
        } else {
            // Rare and large: one list of the blocks concerned, since the index cannot be walked and changed at once.
            let hit: Vec<u64> =
                self.residents.index().iter().map(|(b, _)| b).filter(|b| (first..end).contains(b)).collect();
            for b in hit {
                self.drop_block(b, arena);
            }
        }
    }

    /// Moves a frame into the slot of `block`, in place of what was there; frees it if the block has no slot. Its
    /// content is what the disk holds, and does not change any more. It is hashed later if the guest's table, the
    /// scanner or deduplication needs the hash.
    pub(super) fn install<E: Effects>(&mut self, block: u64, frame: Frame, cx: &mut Cx<'_, E>) {
        self.install_as(block, frame, false, cx);
    }

    /// The same; `apart`: it is not to be known as a block of the base.
    pub(super) fn install_as<E: Effects>(&mut self, block: u64, frame: Frame, apart: bool, cx: &mut Cx<'_, E>) {
        let slot = self.residents.slot(block);
        let wanted = self.side.wants_hash(block, cx.arena);
        if slot.is_none() && !wanted {
            return cx.arena.put(frame);
        }
        let mut held = cx.arena.share(frame);
        let Some(slot) = slot else { return self.learn_later(block, held, cx) };
        let again = if wanted { cx.arena.again(&held) } else { None };
        let (domain, base) = if apart { self.domain_for_copy(block) } else { self.domain_for(block) };
        if let Some(equal) = base.and_then(|n| cx.arena.again_base(domain, n)) {
            // Another disk on the same base has read it meanwhile.
            cx.arena.release(std::mem::replace(&mut held, equal));
        }
        if !self.put_in_slot(slot, held, domain, cx.arena) {
            self.stats.bypassed_blocks += 1;
            self.drop_block(block, cx.arena);
        } else if let Some(held) = self.residents.page(slot) {
            if let Some(n) = base {
                cx.arena.register_base(held, n);
            }
            if again.is_none() && !cx.arena.is_registered(held) {
                self.learn_in_slot_later(block, cx.arena);
            }
        }
        if let Some(again) = again {
            self.learn_later(block, again, cx);
        }
    }

    /// Evicts a block. False if there is none that may go.
    pub(super) fn evict_one(&mut self, arena: &mut Store) -> bool {
        let locked = self.residents.index().locked_keys().next().filter(|_| self.faults.has(Bug::ShrinkTakesLocked));
        if let Some(block) = locked.and_then(|key| self.block(key)) {
            self.drop_block(block, arena);
            return true;
        }
        let Some((key, slot)) = self.residents.index_mut().evict(|_| true) else { return false };
        self.count_evicted(key);
        self.offer_evicted(slot, key, arena);
        self.vacate(slot, key, self.residents.part_of_block(key), arena);
        true
    }

    // ---- all of it ----

    /// Frees all frames that are not with an operation: the disk goes.
    pub(crate) fn release(&mut self, arena: &mut Store) {
        self.release_later(arena);
        self.vacate_all(arena);
        while let Some(frame) = self.near.pop_ahead() {
            arena.put(frame);
        }
        // Of a core that is dropped with requests under way.
        self.segments.drain().flat_map(|s| s.frames).for_each(|frame| arena.put(frame));
        self.note_loan(arena);
    }

    /// Its cached blocks, those first that would go last; `most` of them.
    pub(crate) fn hottest(&self, most: usize) -> Vec<u64> {
        self.residents.hottest(most)
    }

    /// Its cached blocks and where their pages are, those first that would go first.
    pub(crate) fn kept(&self, arena: &Store) -> KeptBlocks {
        let tell = |placed: Placed| {
            let frame = arena.arena().number_of(self.residents.page(placed.slot)?).unwrap_or(KeptBlock::ZEROES);
            Some(KeptBlock { block: placed.block, frame, tier: placed.tier })
        };
        let lead_bytes = self.settings.lead() as u32;
        KeptBlocks { lead_bytes, blocks: self.residents.index().coldest().filter_map(tell).collect() }
    }

    /// Puts blocks that another process has left into slots, as far as there are free ones; where there are not enough,
    /// the first get none. A page that a disk of another domain has is not put in again. How many have one now.
    pub(crate) fn restore(&mut self, kept: &KeptBlocks, arena: &mut Store) -> u64 {
        let KeptBlocks { lead_bytes, blocks: kept } = kept;
        if !self.faults.has(Bug::OffsetNotKept) && !self.count_from(u64::from(*lead_bytes), arena) {
            return 0;
        }
        let index = self.residents.index();
        let free = index.limit().saturating_sub(index.len()) as usize;
        let end = self.size_blocks();
        let mut count = 0;
        for batch in kept[kept.len().saturating_sub(free)..].chunks(RESTORED_AT_ONCE) {
            // Their places come from memory side by side.
            let batch = batch.iter().filter(|k| k.block < end);
            batch.clone().for_each(|k| _ = std::hint::black_box(self.residents.slot(k.block)));
            for k in batch {
                count += u64::from(self.restore_one(k, arena));
            }
        }
        count
    }

    fn restore_one(&mut self, k: &KeptBlock, arena: &mut Store) -> bool {
        let (domain, _) = self.domain_for(k.block);
        let held = match k.frame {
            KeptBlock::ZEROES => Some(Held::zeroes()),
            n => arena.claim(n, domain),
        };
        let Some(held) = held else { return false };
        let Outcome::Fill { slot, .. } = self.residents.index_mut().place(k.block, k.tier, |_| false) else {
            arena.release(held);
            return false;
        };
        let is_in = self.put_in_slot(slot, held, domain, arena);
        if !is_in {
            self.drop_block(k.block, arena);
        }
        is_in
    }

    /// Forgets everything cached, and the base: what the disk holds may be another content now. Nothing submitted
    /// before will be published.
    pub(crate) fn invalidate(&mut self, arena: &mut Store) {
        self.forget_cached(true, arena);
    }

    /// The same of a disk that holds what it held: its base stays.
    pub(crate) fn drop_cache(&mut self, arena: &mut Store) {
        self.forget_cached(false, arena);
    }

    fn forget_cached(&mut self, and_base: bool, arena: &mut Store) {
        if !self.faults.has(Bug::InvalidateKeepsReads) {
            self.make_stale(0, u64::MAX, arena);
            self.note_loan(arena);
        }
        self.epoch = self.epoch.wrapping_add(1);
        if let Some(tier) = arena.tier_mut() {
            tier.drop_all(self.settings.id());
        }
        self.forget_guest(arena);
        self.vacate_all(arena);
        self.forget_unlearned();
        if and_base {
            self.forget_base(arena);
            // How often another content's blocks missed says nothing.
            self.locking.forget_misses(self.settings.hash_key());
            self.residents.forget_chosen();
        }
        self.streams.clear();
        self.fetch = Fetch::under(self.settings.hint());
        if self.measuring.has_parts() && !self.faults.has(Bug::PartsForgotten) {
            self.residents.index_mut().forget_all();
            return self.apply_limit(arena);
        }
        if !self.is_pooled() {
            self.residents.forget_index(self.settings.hash_key());
            self.apply_locking();
        }
        self.apply_limit(arena);
    }

    /// Frees the frames of all slots of the disk; in a pool, the slots too.
    fn vacate_all(&mut self, arena: &mut Store) {
        if self.is_pooled() {
            if self.faults.has(Bug::PoolKeepsInvalid) {
                return;
            }
            let own: Vec<u64> = self.residents.index().iter().map(|(block, _)| block).collect();
            return own.into_iter().for_each(|block| self.drop_block(block, arena));
        }
        for slot in 0..self.residents.index().capacity() {
            self.vacate(slot, 0, self.residents.part_of_slot(slot), arena);
        }
    }

    /// How the disk will be used from now on. What is kept stays, but for a disk of which nothing is to be kept: that
    /// goes with the next steps.
    pub(crate) fn set_hint(&mut self, hint: Hint, arena: &mut Store) {
        if !self.settings.set_hint(hint) {
            return;
        }
        self.fetch = Fetch::under(hint);
        self.limit_streams();
        // What the guest held before is not known after a time without a look.
        self.forget_guest(arena);
        self.set_scanned(self.side.scanned());
        self.apply_limit(arena);
    }
}
