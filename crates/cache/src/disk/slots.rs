//! The slots of a disk: which frame a cached block has, and how many there may be.
//!
//! Owns how frames come into slots and leave them, and how a disk takes on another capacity or limit. Never starts I/O.
//! Invariants: the first of disk.rs; a slot without a block has no frame; frames beyond the limit leave before others
//! come.

use crate::disk::reads::fetch::Fetch;
use crate::disk::{B, Cx, Disk};
use crate::fault_injection::{Bug, FaultInjection};
use crate::limits::SLOTS_PER_BLOCK_MAX;
use crate::store::ram::Store;
use crate::types::Effects;
use undercroft_engine::shares::{Admission, Hint, ReadAhead};
use undercroft_engine::{HashKey, Index, Outcome, PartId};
use undercroft_host::{Frame, Held};

impl<P: FaultInjection> Disk<P> {
    /// Deals with what the index had to evict.
    #[inline]
    pub(crate) fn make_room(&mut self, outcome: Outcome, arena: &mut Store) {
        if let Outcome::Fill { evicted: Some((block, slot)), .. } = outcome {
            // The slot is the newcomer's already.
            let newcomers = self.plant.has(Bug::NewcomersPartPays);
            let part = if newcomers { self.index.part_of_slot(slot) } else { self.index.part_of_block(block) };
            self.count_evicted(block);
            self.vacate(slot, part, arena);
            let Self { side, index, .. } = self;
            if let Some(e) = &mut side.exclusive {
                e.lapses(index);
            }
        }
    }

    /// Counts an eviction of `block`.
    fn count_evicted(&mut self, block: u64) {
        self.stats.evicted_blocks += 1;
        if let Some(parts) = &mut self.parts {
            parts.evicted(self.index.part_of_block(block));
        }
    }

    /// Frees the frame of a slot, if it has one; it was that of a block of `part`.
    #[inline]
    pub(crate) fn vacate(&mut self, slot: u32, part: PartId, arena: &mut Store) {
        if let Some(held) = self.frames[slot as usize].take() {
            self.resident -= 1;
            if let Some(parts) = &mut self.parts {
                parts.went(part);
            }
            self.set_hash(slot, 0);
            self.sharing.moved = true;
            arena.unseat(held, self.id, self.plant.has(Bug::ChargeLost));
        }
    }

    /// Notes the hash of the content in a slot; 0 if it is not known.
    #[inline]
    pub(crate) fn set_hash(&mut self, slot: u32, hash: u64) {
        if let Some(h) = self.hashes.get_mut(slot as usize) {
            *h = hash;
        }
    }

    /// Forgets a block: the index does, and its frame is freed.
    pub(crate) fn drop_block(&mut self, block: u64, arena: &mut Store) {
        let part = self.index.part_of_block(block);
        if let Some(slot) = self.index.remove(block) {
            self.vacate(slot, part, arena);
        }
    }

    /// Forgets every cached block that overlaps bytes `from..to`. Costs no more than the blocks cached.
    pub(crate) fn drop_cached(&mut self, from: u64, to: u64, arena: &mut Store) {
        let (first, end) = (from / B, to.div_ceil(B));
        if end - first <= u64::from(self.index.len()) {
            for b in first..end {
                self.drop_block(b, arena);
            }
        } else {
            // Rare and large: one list of the blocks concerned, since the index cannot be walked and changed at once.
            let hit: Vec<u64> = self.index.iter().map(|(b, _)| b).filter(|b| (first..end).contains(b)).collect();
            for b in hit {
                self.drop_block(b, arena);
            }
        }
    }

    /// The frame of `block`, if it is cached.
    #[inline]
    pub(crate) fn cached(&self, block: u64) -> Option<&Held> {
        self.frames[self.index.peek(block)? as usize].as_ref()
    }

    /// Moves a frame into the slot of `block`, in place of what was there; frees it if the block has no slot. It holds
    /// what the disk does, and from here on nobody changes it. Its content is hashed later, if somebody wants to know.
    pub(crate) fn install<E: Effects>(&mut self, block: u64, frame: Frame, cx: &mut Cx<'_, E>) {
        let slot = self.index.peek(block);
        let wanted = self.wants_hash(block);
        if slot.is_none() && !wanted {
            return cx.arena.put(frame);
        }
        let mut held = cx.arena.share(frame);
        let Some(slot) = slot else { return self.learn_later(block, held, cx) };
        let again = if wanted { cx.arena.again(&held) } else { None };
        let (domain, base) = self.domain_for(block);
        if let Some(equal) = base.and_then(|n| cx.arena.again_base(domain, n)) {
            // Another disk on the same base has read it meanwhile.
            cx.arena.release(std::mem::replace(&mut held, equal));
        }
        if !self.put_in_slot(slot, held, domain, cx.arena) {
            self.stats.bypassed_blocks += 1;
            self.drop_block(block, cx.arena);
        } else if let Some(held) = &self.frames[slot as usize] {
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

    // ---- capacity ----

    /// Frames that the disk may hold, operations included.
    pub(crate) fn frames_max(&self) -> u64 {
        u64::from(self.frames_promised()) + (self.allowance.demand + self.allowance.ahead + self.allowance.later) as u64
    }

    /// Bytes of the core's ceiling that are this disk's.
    pub(crate) fn promised_bytes(&self) -> u64 {
        self.promised_bytes_for(self.paid)
    }

    /// The same with a capacity of `blocks`.
    pub(crate) fn promised_bytes_for(&self, blocks: u32) -> u64 {
        self.allowance.bytes() + u64::from(blocks) * self.block_bytes_promised
    }

    /// Frees all frames that are not with an operation: the disk goes.
    pub(crate) fn release(&mut self, arena: &mut Store) {
        self.release_later(arena);
        self.vacate_all(arena);
        while let Some((_, frame)) = self.ring.pop() {
            arena.put(frame);
        }
        // Of a core that is dropped with requests under way.
        self.segments.drain().flat_map(|s| s.frames).for_each(|frame| arena.put(frame));
    }

    /// Forgets everything cached; nothing submitted before will be published.
    pub(crate) fn invalidate(&mut self, arena: &mut Store) {
        if !self.plant.has(Bug::InvalidateKeepsReads) {
            self.make_stale(0, u64::MAX, arena);
        }
        self.epoch = self.epoch.wrapping_add(1);
        self.forget_guest();
        self.vacate_all(arena);
        self.forget_base(arena);
        self.streams.clear();
        self.fetch = Fetch::under(self.hint);
        if self.parts.is_some() && !self.plant.has(Bug::PartsForgotten) {
            self.index.forget_all();
            return self.apply_limit(arena);
        }
        let (kind, capacity, tiers) = (self.index.kind(), self.index.capacity(), self.index.has_tiers());
        // The old index's memory goes before the new one's comes.
        self.index = Index::new(kind, 0);
        self.index = Index::with_hash_key(kind, capacity, HashKey::from_seed(self.hash_seed));
        self.index.set_tiers(tiers);
        self.apply_limit(arena);
    }

    fn vacate_all(&mut self, arena: &mut Store) {
        for slot in 0..self.frames.len() as u32 {
            self.vacate(slot, self.index.part_of_slot(slot), arena);
        }
    }

    /// Gives the disk another capacity; the slots stand in the same proportion to it as before.
    pub(crate) fn set_capacity(&mut self, blocks: u32) {
        let slots = match self.blocks {
            0 => blocks,
            before => (u64::from(self.target) * u64::from(blocks) / u64::from(before)) as u32,
        };
        self.target = slots.max(blocks).min(u32::MAX - 1);
        self.blocks = blocks;
        self.paid = self.paid.max(blocks);
    }

    /// Gives the disk another capacity, as one of many small steps: the slots stay as they are while they will do, and
    /// are a quarter more than needed when they will not, so that few steps rebuild anything.
    pub(crate) fn set_share(&mut self, blocks: u32) {
        let per_block = if self.sharing.is_on() { SLOTS_PER_BLOCK_MAX } else { 2 };
        if blocks > self.target || self.target > blocks.saturating_mul(per_block) {
            self.target = blocks.saturating_add(blocks / 4).min(u32::MAX - 1);
        }
        self.blocks = blocks;
        self.paid = self.paid.max(blocks);
    }

    /// The meter has another size: the disk pays for it.
    pub(crate) fn account_meter(&mut self, arena: &mut Store) {
        self.overhead = self.overhead_blocks();
        self.apply_limit(arena);
    }

    /// How the disk will be used from now on. What is kept stays, but for a disk of which nothing is to be kept: that
    /// goes with the next steps.
    pub(crate) fn set_hint(&mut self, hint: Hint, arena: &mut Store) {
        if std::mem::replace(&mut self.hint, hint) == hint {
            return;
        }
        // A place among the first to go takes memory that is promised only where contents are known.
        self.first_to_go = self.contents && hint.admission() == Admission::FirstToGo;
        self.fetch = Fetch::under(hint);
        self.limit_streams();
        let pages = self.side.exclusive.as_ref().map(|e| e.residency().pages());
        match pages {
            // What the guest held before is not known after a time without a look.
            Some(pages) => self.set_guest(pages, arena),
            None => self.set_scanned(self.side.scanned()),
        }
        self.apply_limit(arena);
    }

    /// How far streams look, by what is configured, the hint, and the frames there are for it.
    fn limit_streams(&mut self) {
        let bytes = self.options.readahead_bytes;
        let frames = self.allowance.ahead;
        match self.hint.read_ahead() {
            ReadAhead::Configured => self.streams.set_max(bytes, frames / 2),
            // One stream has all frames for it; where there are several, waste makes each look less far.
            ReadAhead::Double => self.streams.set_max(bytes.saturating_mul(2), frames),
            ReadAhead::Off => self.streams.set_max(0, 0),
        }
    }

    /// Bytes of metadata beyond those promised that read-ahead as it is configured takes.
    pub(crate) fn ahead_more_bytes(&self) -> usize {
        self.allowance.more_bytes(self.allowance.ahead_for(self.options.readahead_bytes))
    }

    /// Gives read-ahead the frames that its configuration asks for, as they come free; their metadata is promised.
    pub(crate) fn follow_readahead(&mut self, arena: &mut Store) {
        self.allowance.promise_more(self.ahead_more_bytes());
        self.ahead_target = self.allowance.ahead_for(self.options.readahead_bytes);
        self.ring.allow(self.ahead_target);
        self.ops.allow(self.allowance.with_ahead(self.ahead_target).ops_of_any_kind());
        self.move_ahead(arena);
        self.limit_streams();
    }

    /// Moves frames between requests and read-ahead, as far as they are free; blocks that nobody has used yet go.
    fn move_ahead(&mut self, arena: &mut Store) {
        let (now, wanted) = (self.allowance.ahead, self.ahead_target);
        if wanted == now {
            return;
        }
        let reached = if wanted > now {
            now + (wanted - now).min(self.allowance.demand - self.demand_used)
        } else {
            while self.ahead_used > wanted && self.drop_oldest_ahead(arena) {
                self.stats.readahead_wasted_blocks += 1;
            }
            let kept = if self.plant.has(Bug::AheadCutUnderWay) { 0 } else { self.ahead_used };
            wanted.max(kept)
        };
        self.allowance.split(reached);
        self.limit_streams();
    }

    /// Lets the disk keep at most `limit` frames for now.
    pub(crate) fn set_limit(&mut self, limit: u32, arena: &mut Store) {
        self.limit = limit;
        self.apply_limit(arena);
    }

    /// Whether there is something to do for `resize_step`.
    #[inline]
    pub(crate) fn is_resizing(&self) -> bool {
        self.target != self.index.capacity()
            || self.index.is_over()
            || self.paid != self.blocks
            || self.ahead_target != self.allowance.ahead
    }

    /// Blocks that are to go.
    pub(crate) fn excess(&self) -> u32 {
        let excess = match self.parts {
            Some(_) if self.plant.has(Bug::PartKeepsExcess) => self.index.len().saturating_sub(self.index.limit()),
            _ => self.index.excess(),
        };
        excess.max(self.index.len().saturating_sub(self.target))
    }

    /// Moves towards the capacity and the limit asked for: to a larger one at once, to a smaller one by evicting at
    /// most `step` blocks. The index rebuilds its tables once, when few enough are left.
    pub(crate) fn resize_step(&mut self, step: u32, arena: &mut Store) {
        self.move_ahead(arena);
        self.apply_limit(arena);
        for _ in 0..step {
            if self.excess() == 0 {
                break;
            }
            let Some((block, slot)) = self.index.evict(|_| true) else { break };
            self.count_evicted(block);
            self.vacate(slot, self.index.part_of_block(block), arena);
            if self.sharing.is_on() {
                // What one slot less saves depends on who else holds its frame.
                self.apply_limit(arena);
            }
        }
        let have = self.index.capacity();
        if self.excess() > 0 {
            return;
        }
        if have == self.target {
            self.pay_less(arena);
            return self.apply_limit(arena);
        }
        if self.target > have {
            self.frames.reserve_exact((self.target - have) as usize);
            self.frames.resize_with(self.target as usize, || None);
            if self.contents {
                self.hashes.reserve_exact((self.target - have) as usize);
                self.hashes.resize(self.target as usize, 0);
            }
        }
        let Self { index, frames, hashes, plant, .. } = self;
        let reached = index.resize(
            self.target,
            |_| true,
            |_, _| unreachable!("all that had to go went before"),
            |from, to| {
                assert!(frames[to as usize].is_none(), "a block moved into a slot that is taken");
                frames[to as usize] = frames[from as usize].take();
                if !hashes.is_empty() {
                    hashes[to as usize] = std::mem::take(&mut hashes[from as usize]);
                }
                if plant.has(Bug::MoveLosesFrame) {
                    frames.swap(0, to as usize);
                }
            },
        );
        assert!(reached == self.target, "an index without locked slots did not reach its capacity");
        assert!(self.frames[reached as usize..].iter().all(Option::is_none), "a shrunk slot still has a frame");
        self.frames.truncate(reached as usize);
        self.frames.shrink_to_fit();
        self.hashes.truncate(reached as usize);
        self.hashes.shrink_to_fit();
        self.pay_less(arena);
        self.apply_limit(arena);
        self.check_guest_table(arena);
    }

    /// The disk pays for its capacity alone, once others pay for what they hold together with it, or have given it up.
    fn pay_less(&mut self, arena: &mut Store) {
        let frames = self.frames_promised();
        let now = std::mem::replace(&mut self.paid, self.blocks);
        let unpaid = arena.overdrawn(frames.saturating_sub(self.frames_promised()));
        if unpaid > 0 && !self.plant.has(Bug::PaysLessEarly) {
            self.paid = now;
            arena.look_at_all();
        }
    }
}
