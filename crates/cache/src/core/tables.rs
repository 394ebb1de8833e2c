//! The tables of guests' pages: whether there is room for one, who pays for it, and what becomes of one that serves
//! nobody any more.
//!
//! Owns the order: blocks go before a table comes in their place; it serves nobody before all of it is made; the memory
//! of a former one goes before another comes, or is taken up again by a guest of as many pages. Never reads guest
//! memory. Invariants: each disk pays in proportion to what its share allows, but for those that the table brings
//! nothing; all memory of a table is paid for at any time; a guest whose table was dropped for lack of room gets a new
//! one once there is room for it; no call and no event does more than a bounded part of what a table takes, however
//! large it is.

use super::Core;
use crate::disk::{Disk, Raised};
use crate::fault_injection::FaultInjection;
use crate::limits::{
    EVICTION_BYTES, SHRINK_BLOCKS_PER_EVENT, TABLE_BYTES_MIN, TABLE_GIVE_BACK_BYTES, TABLE_GIVE_BACK_RATE,
};
use crate::store::ToKernel;
use crate::store::guests::{GuestNumber, LEFT_BYTES, NO_GUEST, Unused};
use crate::types::DiskId;
use undercroft_engine::{ExclusiveMode, GuestTable, HashKey, TableMemory};
use undercroft_host::FRAME_BYTES;

/// A table that was dropped for lack of room comes back once there is so much more than it needs: one part in so many.
/// A share that moves to and fro would otherwise empty it each time.
const MORE_PART: u64 = 4;

/// A disk and its part in a table.
struct Payer {
    disk: DiskId,
    /// What the table may take of its share; 0 for a disk that has no room for a part.
    room: u64,
}

/// What a guest's table takes, and who would pay.
struct Plan {
    payers: Vec<Payer>,
    /// Bytes of the table, and of all that its disks take for it.
    bytes: u64,
    needed: u64,
    /// The most that may be spent on it, and what of that is left for the table.
    allowed: u64,
    room: u64,
    /// Some disk pays for a table that it has left, or for one that is not made yet.
    owes: bool,
    key: Option<HashKey>,
}

impl Plan {
    /// Whether there is room; more is asked for if there was none when last looked, and there is no table.
    fn fits(&self, refused: bool) -> bool {
        let needed = if refused { self.needed + self.needed / MORE_PART } else { self.needed };
        needed <= self.allowed && self.bytes <= self.room
    }

    /// The part of one who pays.
    fn part(&self, of: &Payer) -> u64 {
        (u128::from(self.bytes) * u128::from(of.room)).div_ceil(u128::from(self.room.max(1))) as u64
    }
}

impl<P: FaultInjection> Core<P> {
    /// Looks whether there is room for the tables of all guests, and who pays for them, as shares are now. What takes
    /// long is left to spare time.
    pub(crate) fn fit_guests(&mut self) {
        for guest in 0..self.arena.guests.numbers() {
            self.fit_guest(guest, 0);
        }
        self.hurry_tables();
    }

    /// A guest has come or changed, or one of its disks: its table follows, as far as that takes no longer than an
    /// event may.
    pub(super) fn follow_guest(&mut self, guest: GuestNumber) {
        self.fit_guest(guest, self.blocks_at_once());
        if !self.arena.guests.unused.is_empty() {
            self.step_tables(self.options.step_bytes);
        }
        self.hurry_tables();
        self.make_room(0);
    }

    /// In a core that does everything at once, tables do not wait for spare time either.
    fn hurry_tables(&mut self) {
        while self.options.step_bytes == u64::MAX && self.arena.guests.are_busy() {
            self.step_tables(u64::MAX);
        }
    }

    /// Blocks that may go for a table in one event.
    fn blocks_at_once(&self) -> u32 {
        if self.options.step_bytes == u64::MAX { u32::MAX } else { SHRINK_BLOCKS_PER_EVENT }
    }

    /// Goes on with tables that are to come or to go, for as long as it takes to copy `left` bytes; what is left of
    /// them.
    #[cold]
    pub(super) fn step_tables(&mut self, left: u64) -> u64 {
        let mut left = left;
        if let Some(mut unused) = self.arena.guests.unused.pop_front() {
            let taker = self.taker(&unused);
            let back = left.saturating_mul(TABLE_GIVE_BACK_RATE).clamp(FRAME_BYTES as u64, TABLE_GIVE_BACK_BYTES);
            let (bytes, cost) = match (taker, self.options.step_bytes) {
                (_, u64::MAX) => (u64::MAX, 0),
                (Some(_), _) => (left.max(TABLE_BYTES_MIN), left),
                (None, _) => (back, back / TABLE_GIVE_BACK_RATE),
            };
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            let done = match taker {
                Some(_) => unused.memory.make(bytes),
                None => unused.memory.give_back(&mut ToKernel, bytes),
            };
            left = left.saturating_sub(cost);
            match done {
                true => self.settle(unused, taker),
                // each in its turn, so that nobody keeps the others from coming
                false => self.arena.guests.unused.push_back(unused),
            }
        }
        if let Some(guest) = self.arena.guests.next_waiting() {
            let blocks = (left / EVICTION_BYTES).clamp(1, u64::from(self.blocks_at_once())) as u32;
            self.fit_guest(guest, blocks);
            left = left.saturating_sub(u64::from(blocks) * EVICTION_BYTES);
        }
        left
    }

    /// The guest that memory which serves nobody is made for: one of as many pages that has no table, whose disks pay
    /// for it.
    fn taker(&self, unused: &Unused) -> Option<GuestNumber> {
        let mut guests = unused.payers.iter().map(|p| self.disk(p.0).map(|d| d.guest()));
        let guest = guests.next().flatten().filter(|&guest| guests.all(|g| g == Some(guest)))?;
        let known = self.arena.guests.known(guest)?;
        let as_large = known.pages == unused.memory.pages() && !known.refused && !unused.goes;
        (as_large && self.arena.guests.table(guest).is_none()).then_some(guest)
    }

    /// The memory of a table is made, for `guest`, or is gone.
    fn settle(&mut self, unused: Unused, guest: Option<GuestNumber>) {
        let Unused { memory, payers, .. } = unused;
        let Some(guest) = guest else {
            // before anybody has the room
            drop(memory);
            return self.let_off(&payers);
        };
        let plan = self.plan(guest, true);
        let Some(key) = plan.key.filter(|_| plan.fits(false)) else {
            // There was room when it was begun. Now it goes.
            return self.arena.guests.unused.push_back(Unused { memory, payers, goes: true });
        };
        self.arena.guests.set_table(guest, Box::new(GuestTable::over(memory, key)));
        payers.iter().for_each(|p| self.with_disk(p.0, |d, _| d.keep_part(p.1)));
        self.arena.guests.wait_for(guest);
    }

    /// These disks pay no longer for what they had a part in: their guests may have another table.
    fn let_off(&mut self, payers: &[(DiskId, u64)]) {
        for &(disk, bytes) in payers {
            self.with_disk(disk, |d, arena| d.forgiven(bytes, arena));
            let guest = self.disk(disk).map_or(NO_GUEST, |d| d.guest());
            self.arena.guests.wait_for(guest);
        }
    }

    /// A disk goes for good: all that it pays for tables of others, or of former guests, is settled at once.
    pub(super) fn settle_debts(&mut self, id: DiskId) {
        loop {
            if let Some(Unused { memory, payers, .. }) = self.arena.guests.take_unused_of(id) {
                drop(memory);
                self.let_off(&payers);
                continue;
            }
            let Some(guest) = self.arena.guests.owed_by(id) else { return };
            self.fit_guest(guest, u32::MAX);
            if self.arena.guests.owed_by(id) == Some(guest) {
                self.retire(guest);
            }
        }
    }

    /// What the guest's table takes, and who would pay, as things are now; `owing`: those as well who pay for another.
    fn plan(&mut self, guest: GuestNumber, owing: bool) -> Plan {
        let known = self.arena.guests.known(guest);
        let (pages, disks) = known.map_or((0, Vec::new()), |k| (k.pages, k.disks.clone()));
        let bytes = GuestTable::bytes_for(pages) + if disks.len() > 1 { LEFT_BYTES } else { 0 };
        let payers = Vec::with_capacity(disks.len());
        let mut plan = Plan { payers, bytes, needed: bytes, allowed: 0, room: 0, owes: false, key: None };
        for disk in disks {
            self.bring_index(disk);
            let Some(d) = self.disk(disk).filter(|d| d.exclusive_mode() != ExclusiveMode::Off) else { continue };
            if !d.wants_table() {
                continue;
            }
            if d.owed_bytes() > 0 && !owing {
                plan.owes = true;
                continue;
            }
            let (own, most) = d.table_room();
            let payer = Payer { disk, room: most.saturating_sub(own) };
            plan.needed += own;
            plan.allowed += most;
            plan.room += payer.room;
            plan.key = plan.key.or(Some(d.hash_key()));
            plan.payers.push(payer);
        }
        plan
    }

    /// Gives a guest its table if there is room for it, takes it away if there is none any more, and divides it among
    /// those who pay. Whoever pays more makes room first: at most about `blocks` blocks each, and the rest in spare
    /// time.
    fn fit_guest(&mut self, guest: GuestNumber, blocks: u32) {
        let Some(known) = self.arena.guests.known(guest) else { return };
        let (pages, refused, disks) = (known.pages, known.refused, known.disks.clone());
        for &disk in &disks {
            let off = self.disk(disk).is_none_or(|d| d.exclusive_mode() == ExclusiveMode::Off);
            if off {
                continue;
            }
            self.with_disk(disk, |d, arena| match d.wants_table() {
                true => d.keep_part(arena.guests.take_back(guest, disk)),
                false => d.give_up_table(pages, arena),
            });
        }
        let plan = self.plan(guest, false);
        let exists = self.arena.guests.table(guest).is_some();
        if plan.owes && !exists {
            // Once that is settled.
            return;
        }
        if plan.payers.is_empty() {
            return self.retire(guest);
        }
        let fits = plan.fits(!exists && refused);
        if let Some(known) = self.arena.guests.known_mut(guest) {
            known.refused = !fits;
        }
        if fits {
            return self.divide(guest, &plan, blocks);
        }
        for payer in &plan.payers {
            self.with_disk(payer.disk, |d, arena| d.leave_table(Some((plan.needed, plan.allowed)), arena));
        }
        self.retire(guest);
    }

    /// A guest's table serves nobody any more, if there is one. Its disks pay for it until its memory is gone, or
    /// serves them again.
    fn retire(&mut self, guest: GuestNumber) {
        let disks = self.arena.guests.known(guest).map_or(Vec::new(), |k| k.disks.clone());
        for disk in disks {
            if self.disk(disk).is_some_and(|d| d.member().is_some() || d.table_part() > 0) {
                self.with_disk(disk, |d, arena| d.leave_table(None, arena));
            }
        }
        self.arena.guests.retire(guest);
    }

    /// Divides a guest's table among those who have room for it.
    fn divide(&mut self, guest: GuestNumber, plan: &Plan, blocks: u32) {
        let exists = self.arena.guests.table(guest).is_some();
        let moves = |d: &Disk<P>, p: &Payer| {
            let part = plan.part(p);
            let member = d.member().is_some() != (p.room > 0) || d.wants_to_follow();
            member || d.table_part().abs_diff(part) > part / 16
        };
        // What is paid in all must not become less than the table takes: so all parts change, or none.
        let paid: u64 = plan.payers.iter().filter_map(|p| self.disk(p.disk)).map(|d| d.table_part()).sum();
        let mut changes = false;
        for p in &plan.payers {
            self.bring_index(p.disk);
            changes |= self.disk(p.disk).is_some_and(|d| moves(d, p));
        }
        if exists && paid >= plan.bytes && !changes {
            return self.forgive(guest);
        }
        let (mut ready, mut stuck) = (true, true);
        for p in plan.payers.iter().filter(|p| p.room > 0) {
            self.with_disk(p.disk, |d, arena| {
                let raised = d.raise_table_part(plan.part(p), blocks, arena);
                ready &= raised == Raised::Ready;
                stuck &= raised != Raised::Moved;
            });
        }
        self.make_room(0);
        if !ready {
            // A tick tries again what nothing can be done for now.
            if !stuck || blocks == 0 {
                self.arena.guests.wait_for(guest);
            }
            return;
        }
        if !exists {
            return self.begin_table(guest, plan);
        }
        for p in &plan.payers {
            self.with_disk(p.disk, |d, arena| {
                if p.room == 0 {
                    let (own, most) = d.table_room();
                    return d.leave_table(Some((own, most)), arena);
                }
                if d.member().is_some() || d.enter_table(arena) {
                    d.set_table_part(plan.part(p), arena);
                    if d.wants_to_follow() {
                        d.follow_slots(arena);
                    }
                } else {
                    d.leave_table(Some((u64::MAX, 0)), arena);
                }
            });
        }
        self.forgive(guest);
    }

    /// The memory of a guest's table is to be made: there is room for it, and those who will be members pay for it.
    fn begin_table(&mut self, guest: GuestNumber, plan: &Plan) {
        let Some(pages) = self.arena.guests.known(guest).map(|k| k.pages) else { return };
        let mut payers = Vec::with_capacity(plan.payers.len());
        for p in plan.payers.iter().filter(|p| p.room > 0) {
            self.with_disk(p.disk, |d, _| payers.push((p.disk, d.owe_part())));
        }
        self.arena.guests.unused.push_back(Unused { memory: TableMemory::new(pages), payers, goes: false });
    }

    /// Those who have left a table pay for it no more, if its members pay for all of it.
    fn forgive(&mut self, guest: GuestNumber) {
        if self.arena.guests.former(guest).is_empty() {
            return;
        }
        let members = self.disks.iter().flatten().filter(|d| d.guest() == guest && d.member().is_some());
        let paid: u64 = members.map(|d| d.table_part()).sum();
        let Some(table) = self.arena.guests.table(guest) else { return };
        if paid < GuestTable::bytes_for(table.residency().pages()) {
            return;
        }
        let former = self.arena.guests.forgive(guest);
        self.let_off(&former);
    }

    /// Checks the tables of guests against their disks; for tests.
    ///
    /// # Panics
    /// With what is broken.
    pub(super) fn check_guests(&self) {
        let guests = &self.arena.guests;
        assert!(!guests.any_left(), "a block that left its guest was told to nobody");
        let unused = guests.unused.iter().map(|unused| &unused.payers[..]);
        let former = (0..guests.numbers()).map(|guest| guests.former(guest));
        let owed: Vec<(DiskId, u64)> = unused.chain(former).flatten().copied().collect();
        for d in self.disks.iter().flatten() {
            let owed: u64 = owed.iter().filter(|p| p.0 == d.id()).map(|p| p.1).sum();
            assert!(owed == d.owed_bytes(), "a disk pays {} for tables of others, of {owed}", d.owed_bytes());
            assert!(owed == 0 || d.member().is_none(), "a disk is a member of a table, and pays for another");
        }
        let sum = |payers: &[(DiskId, u64)]| payers.iter().map(|p| p.1).sum::<u64>();
        for Unused { memory, payers, .. } in &guests.unused {
            assert!(sum(payers) >= GuestTable::bytes_for(memory.pages()), "memory of a table is not paid for");
        }
        for guest in 0..guests.numbers() {
            let disks = self.disks.iter().flatten().filter(|d| d.guest() == guest);
            let (members, paid) = disks.fold((0, 0), |(members, paid), d| {
                let right = d.member().is_none_or(|m| guests.disk_of(guest, m) == Some(d.id()));
                assert!(right, "a disk is another's member of their guest's table");
                (members + usize::from(d.member().is_some()), paid + d.table_part())
            });
            let Some(table) = guests.table(guest) else {
                assert!(members == 0, "a disk is a member of a table that there is not");
                continue;
            };
            table.residency().check();
            assert!(members == table.members(), "a table serves a disk that is not its guest's");
            let paid = paid + sum(guests.former(guest));
            assert!(paid >= GuestTable::bytes_for(table.residency().pages()), "a table is not paid for");
        }
    }
}
