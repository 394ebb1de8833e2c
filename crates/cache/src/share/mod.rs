//! Frames that several slots hold: who holds them, who pays, and where equal content or the same base block is found.
//!
//! Owns the arena, a record for each of its frames, an account for each disk, and two tables: frames by content and
//! frames by the block of a base image that they are. Never decides what is cached. Every frame in a slot belongs to
//! one *sharing domain*: a trust group, or a base image that several disks stand on; it is found within its domain
//! only.
//!
//! Invariants: a frame is in a table only while a slot holds it; a frame found by its hash is handed out after all its
//! bytes were compared; what is in the table of bases came from a read of a block that its disk had never changed.
//! The charges of all disks together are the frames in slots: a disk pays for a frame that one of its slots alone
//! holds; the frames that several slots hold are paid for by domain, in proportion to the slots.

mod places;

use crate::content::ContentHash;
use crate::types::{DiskId, GroupId, LayerId, Shared, SharingDomainReport};
use places::Places;
use std::collections::VecDeque;
use std::io;
use undercroft_host::{Arena, Frame, Held};

/// A domain's number; dense, from 1, reused when the last disk leaves.
pub(crate) type SharingDomain = u16;

/// Belongs to a disk that shares nothing.
pub(crate) const ALONE: SharingDomain = 0;

/// Frames of equal hash whose bytes are compared at most: equal hashes of unequal contents do not happen, but for
/// tests that make them.
const COMPARES_MAX: u32 = 4;

/// Prices of a domain's frames that go up unnoticed at most: one part in so many.
const DRIFT_PART: u32 = 64;

/// What is known of a frame in a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Page {
    /// Its place in the table of contents; 0 if it is not there.
    content: u32,
    /// Its block in the base image, + 1; 0 if it is none.
    base: u32,
    /// Slots that hold it.
    slots: u16,
    /// The numbers of their disks, exclusive-or: with one slot left, its disk.
    disks: u16,
    domain: SharingDomain,
}

/// Bytes of a frame's record.
pub(crate) const PAGE_BYTES: usize = size_of::<Page>();

/// Bytes of metadata per frame that sharing takes.
pub(crate) const SHARE_BYTES_PER_FRAME: usize = PAGE_BYTES + 2 * Places::BYTES_PER_FRAME;

/// How much larger than needed the tables may be: one part in so many.
const TABLE_SLACK_PART: u32 = 64;

/// What a disk holds and may hold.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Account {
    /// Frames that one of the disk's slots alone holds.
    pub alone: u32,
    /// Slots with the page of zeroes.
    pub zeroes: u32,
    /// Slots with frames that other slots hold too: of its group, of its base.
    pub shared: [u32; 2],
    domains: [SharingDomain; 2],
    /// Frames that the disk is promised.
    frames: u32,
    /// Frames that it pays for at most now.
    limit: u32,
    /// Whether it stands on the list of those to look at.
    listed: bool,
}

#[derive(Debug, Default)]
struct Ring {
    key: Option<Shared>,
    members: Vec<DiskId>,
    /// Frames that several slots hold.
    frames: u32,
    /// Those slots.
    slots: u32,
    /// Shared frames given up since the members were last looked at.
    drift: u32,
}

/// See the head of the file.
pub(crate) struct Store {
    arena: Arena,
    /// Whether anything but the arena is in use.
    on: bool,
    /// Guests choose block numbers; they should not be able to choose ones that collide.
    seed: u64,
    pages: Vec<Page>,
    contents: Places,
    bases: Places,
    rings: Vec<Ring>,
    accounts: Vec<Account>,
    /// Distinct frames in slots, and how many there may be.
    seated: u32,
    seats: u32,
    /// Frames that the tables have room for; at least `seats`.
    room: u32,
    /// Disks whose charge has gone up by what others did, each in its turn.
    over: VecDeque<DiskId>,
}

impl Store {
    /// Reserves `frames` frames; with `on`, what they hold can be shared.
    ///
    /// # Errors
    /// What the arena says.
    pub(crate) fn new(frames: usize, on: bool, seed: u64) -> io::Result<Self> {
        let arena = Arena::new(frames)?;
        let n = if on { arena.reserved() } else { 0 };
        let mut pages = Vec::new();
        pages.reserve_exact(n);
        let (contents, bases) = (Places::new(0, n), Places::new(0, n));
        let (rings, accounts, over) = (vec![Ring::default()], Vec::new(), VecDeque::new());
        let seed = seed.rotate_left(17) | 1;
        Ok(Self { arena, on, seed, pages, contents, bases, rings, accounts, seated: 0, seats: 0, room: 0, over })
    }

    // ---- the arena ----

    pub(crate) fn take(&mut self) -> Option<Frame> {
        self.arena.take()
    }

    pub(crate) fn put(&mut self, frame: Frame) {
        self.arena.put(frame);
    }

    pub(crate) fn share(&mut self, frame: Frame) -> Held {
        self.arena.share(frame)
    }

    pub(crate) fn again(&mut self, held: &Held) -> Option<Held> {
        self.arena.again(held)
    }

    /// Gives back a handle that is in no slot.
    pub(crate) fn release(&mut self, held: Held) {
        self.arena.release(held);
    }

    /// The arena, for those who count its frames.
    pub(crate) fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Gives memory of unused frames back to the kernel, all but `keep` of them.
    pub(crate) fn trim(&mut self, keep: usize) {
        self.arena.trim(keep);
    }

    // ---- domains ----

    /// A disk comes, and shares with `group`.
    pub(crate) fn enter(&mut self, disk: DiskId, group: Option<GroupId>, frames: u32) {
        let i = disk.0 as usize;
        if self.accounts.len() <= i {
            self.accounts.resize_with(i + 1, Account::default);
        }
        self.accounts[i] = Account { listed: self.accounts[i].listed, ..Account::default() };
        if let Some(group) = group.filter(|_| self.on) {
            self.accounts[i].domains[0] = self.join(disk, Shared::Group(group));
        }
        self.set_frames(disk, frames, frames);
    }

    /// The disk stands on a base from now on; it has nothing of it yet.
    pub(crate) fn stand_on(&mut self, disk: DiskId, layer: LayerId) -> SharingDomain {
        let i = disk.0 as usize;
        if self.accounts[i].domains[1] != ALONE {
            self.quit(disk, 1);
        }
        let domain = self.join(disk, Shared::Layer(layer));
        self.accounts[i].domains[1] = domain;
        domain
    }

    /// The disk has given up everything and goes. What it paid for and others hold is theirs to pay or to give up,
    /// before [`Store::fit`]: see [`Store::overdrawn`].
    pub(crate) fn leave(&mut self, disk: DiskId) {
        self.set_frames(disk, 0, 0);
        self.quit(disk, 0);
        self.quit(disk, 1);
    }

    /// Frames in slots for which nobody would pay if the disks were promised `less` frames less in all.
    pub(crate) fn overdrawn(&self, less: u32) -> u32 {
        (self.seated + less).saturating_sub(self.seats)
    }

    /// Makes the tables as large as the frames that disks are promised need them, if they are too small or much larger.
    pub(crate) fn fit(&mut self) {
        let needed = self.seats.max(self.seated);
        let slack = needed / TABLE_SLACK_PART + 16;
        if !self.on || (needed <= self.room && self.room - needed <= slack) {
            return;
        }
        self.room = needed;
        let (room, end) = (self.room as usize, self.arena.reserved());
        // The old ones go before the new ones come.
        (self.contents, self.bases) = (Places::new(0, end), Places::new(0, end));
        (self.contents, self.bases) = (Places::new(room, end), Places::new(room, end));
        let Self { pages, contents, bases, seed, .. } = self;
        for (n, page) in pages.iter().enumerate() {
            if page.content != 0 {
                contents.insert(n as u32, page.content);
            }
            if page.base != 0 {
                bases.insert(n as u32, page.base_hash(*seed));
            }
        }
    }

    /// Bytes of metadata held now, the arena's own not counted.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.pages.len() * PAGE_BYTES + self.contents.memory_bytes() + self.bases.memory_bytes()
    }

    /// The disk leaves its base, of which it holds nothing any more.
    pub(crate) fn leave_base(&mut self, disk: DiskId) {
        self.quit(disk, 1);
    }

    fn join(&mut self, disk: DiskId, key: Shared) -> SharingDomain {
        let same = self.rings.iter().position(|r| r.key == Some(key));
        let free = || self.rings.iter().skip(1).position(|r| r.key.is_none()).map(|n| n + 1);
        let n = same.or_else(free).unwrap_or(self.rings.len());
        if n == self.rings.len() {
            self.rings.push(Ring::default());
        }
        let ring = &mut self.rings[n];
        ring.key = Some(key);
        ring.members.push(disk);
        n as SharingDomain
    }

    fn quit(&mut self, disk: DiskId, which: usize) {
        let account = &mut self.accounts[disk.0 as usize];
        let domain = std::mem::take(&mut account.domains[which]);
        if domain == ALONE {
            return;
        }
        assert!(account.shared[which] == 0, "a disk leaves a domain while it holds frames of it");
        let ring = &mut self.rings[domain as usize];
        ring.members.retain(|&m| m != disk);
        if ring.members.is_empty() {
            assert!(ring.frames == 0 && ring.slots == 0, "the last disk of a domain leaves frames behind");
            *ring = Ring::default();
        }
    }

    /// The domain of the disk's group; [`ALONE`] if it shares nothing.
    pub(crate) fn group_of(&self, disk: DiskId) -> SharingDomain {
        self.accounts.get(disk.0 as usize).map_or(ALONE, |a| a.domains[0])
    }

    /// How many frames the disk is promised, and how many it may keep now.
    pub(crate) fn set_frames(&mut self, disk: DiskId, frames: u32, limit: u32) {
        let account = &mut self.accounts[disk.0 as usize];
        self.seats = self.seats - account.frames + frames;
        account.frames = frames;
        account.limit = limit;
        if self.seats > self.room {
            self.fit();
        }
    }

    // ---- slots ----

    /// Whether another frame may be put into slots: the frames of all disks together are not used up.
    pub(crate) fn has_seat(&self) -> bool {
        self.seated < self.seats
    }

    /// Whether a slot holds the page already, so that one more costs no frame.
    pub(crate) fn is_seated(&self, held: &Held) -> bool {
        self.arena.number_of(held).is_none_or(|n| self.pages.get(n as usize).is_some_and(|p| p.slots > 0))
    }

    /// A handle goes into a slot of `disk`. The first slot of a frame decides its domain.
    pub(crate) fn seat(&mut self, held: &Held, disk: DiskId, domain: SharingDomain) {
        if !self.on {
            return;
        }
        let Some(n) = self.arena.number_of(held) else {
            self.accounts[disk.0 as usize].zeroes += 1;
            return;
        };
        if self.pages.len() <= n as usize {
            // within what was reserved
            self.pages.resize(n as usize + 1, Page::default());
        }
        let page = &mut self.pages[n as usize];
        page.slots += 1;
        let first = page.disks;
        page.disks ^= disk.0 as u16;
        match page.slots {
            1 => {
                page.domain = domain;
                self.seated += 1;
                self.accounts[disk.0 as usize].alone += 1;
            }
            slots => {
                let domain = page.domain;
                let ring = &mut self.rings[domain as usize];
                ring.slots += 1;
                if slots == 2 {
                    ring.slots += 1;
                    ring.frames += 1;
                    let a = &mut self.accounts[first as usize];
                    a.alone -= 1;
                    a.shared[a.which(domain)] += 1;
                }
                let a = &mut self.accounts[disk.0 as usize];
                a.shared[a.which(domain)] += 1;
            }
        }
    }

    /// A handle leaves a slot of `disk`, and is given back. With `forgetful`, a planted bug, the last slot does not
    /// pay.
    pub(crate) fn unseat(&mut self, held: Held, disk: DiskId, forgetful: bool) {
        if !self.on {
            self.arena.release(held);
            return;
        }
        let Some(n) = self.arena.number_of(&held) else {
            self.accounts[disk.0 as usize].zeroes -= 1;
            return;
        };
        let page = &mut self.pages[n as usize];
        page.slots -= 1;
        page.disks ^= disk.0 as u16;
        let Page { slots, disks, domain, .. } = *page;
        if slots == 0 {
            self.accounts[disk.0 as usize].alone -= 1;
            self.seated -= 1;
            self.forget(n);
        } else {
            let a = &mut self.accounts[disk.0 as usize];
            a.shared[a.which(domain)] -= 1;
            let ring = &mut self.rings[domain as usize];
            ring.slots -= 1;
            ring.drift += 1;
            if slots == 1 {
                ring.slots -= 1;
                ring.frames -= 1;
                let last = DiskId(u32::from(disks));
                let a = &mut self.accounts[disks as usize];
                a.shared[a.which(domain)] -= 1;
                if !forgetful {
                    a.alone += 1;
                }
                if last != disk && self.charge(last) > u64::from(self.accounts[disks as usize].limit) {
                    self.look_at(last);
                }
            }
            if self.rings[domain as usize].drift > self.rings[domain as usize].slots / DRIFT_PART {
                self.look_at_domain(domain);
            }
        }
        self.arena.release(held);
    }

    /// Takes a frame that no slot holds any more out of the tables.
    fn forget(&mut self, n: u32) {
        let Self { pages, contents, bases, seed, .. } = self;
        let page = pages[n as usize];
        if page.content != 0 {
            contents.remove(n, |m| pages[m as usize].content);
        }
        if page.base != 0 {
            bases.remove(n, |m| pages[m as usize].base_hash(*seed));
        }
        pages[n as usize] = Page::default();
    }

    // ---- looking up ----

    /// Another frame of the domain with the same bytes as `held`, whose hash is `hash`; one more handle to it.
    /// `compare` and `within` are false for planted bugs.
    pub(crate) fn find_equal(
        &mut self,
        domain: SharingDomain,
        hash: ContentHash,
        held: &Held,
        compare: bool,
        within: bool,
    ) -> Option<Held> {
        if domain == ALONE {
            return None;
        }
        let Self { arena, pages, contents, .. } = self;
        let wanted = place_of(if within { domain } else { ALONE }, hash);
        let mut tries = 0;
        let n = contents.find(wanted, |n| {
            let page = &pages[n as usize];
            if page.content != wanted || (within && page.domain != domain) || arena.number_of(held) == Some(n) {
                return false;
            }
            tries += 1;
            tries <= COMPARES_MAX && (!compare || arena.is_equal(n, held))
        })?;
        arena.again_number(n)
    }

    /// Lets a frame that a slot holds be found by its content, if it cannot be yet.
    pub(crate) fn register(&mut self, held: &Held, hash: ContentHash, within: bool) {
        let Some(n) = self.arena.number_of(held) else { return };
        let page = &mut self.pages[n as usize];
        assert!(page.slots > 0, "a frame that no slot holds cannot be found");
        if page.content == 0 && page.domain != ALONE {
            page.content = place_of(if within { page.domain } else { ALONE }, hash);
            self.contents.insert(n, page.content);
        }
    }

    /// Whether the frame can be found by its content.
    pub(crate) fn is_registered(&self, held: &Held) -> bool {
        self.arena.number_of(held).is_some_and(|n| self.pages.get(n as usize).is_some_and(|p| p.content != 0))
    }

    /// The domain of a frame that a slot holds.
    pub(crate) fn domain_of(&self, held: &Held) -> SharingDomain {
        self.arena.number_of(held).map_or(ALONE, |n| self.pages[n as usize].domain)
    }

    /// The frame that holds `block` of the base `domain`, if it is in a slot of some disk.
    fn find_base(&self, domain: SharingDomain, block: u32) -> Option<u32> {
        if domain == ALONE {
            return None;
        }
        let wanted = Page { base: block + 1, domain, ..Page::default() };
        self.bases.find(wanted.base_hash(self.seed), |n| {
            let page = &self.pages[n as usize];
            page.base == wanted.base && page.domain == domain
        })
    }

    /// Whether `block` of the base `domain` is in a slot of some disk.
    pub(crate) fn has_base(&self, domain: SharingDomain, block: u32) -> bool {
        self.find_base(domain, block).is_some()
    }

    /// One more handle to the frame that holds `block` of the base `domain`.
    pub(crate) fn again_base(&mut self, domain: SharingDomain, block: u32) -> Option<Held> {
        let n = self.find_base(domain, block)?;
        self.arena.again_number(n)
    }

    /// Lets a frame that a slot holds be found as `block` of its domain, which is a base.
    pub(crate) fn register_base(&mut self, held: &Held, block: u32) {
        let Some(n) = self.arena.number_of(held) else { return };
        let page = &mut self.pages[n as usize];
        assert!(page.slots > 0 && page.domain != ALONE, "a base block that no slot holds");
        if page.base == 0 {
            page.base = block + 1;
            self.bases.insert(n, page.base_hash(self.seed));
        }
    }

    // ---- charges ----

    /// What the disk pays for, in frames, rounded up.
    pub(crate) fn charge(&self, disk: DiskId) -> u64 {
        let Some(a) = self.accounts.get(disk.0 as usize) else { return 0 };
        let part = |k: usize| {
            let ring = &self.rings[a.domains[k] as usize];
            (u64::from(a.shared[k]) * u64::from(ring.frames)).div_ceil(u64::from(ring.slots).max(1))
        };
        u64::from(a.alone) + part(0) + part(1)
    }

    /// The disk's account.
    pub(crate) fn account(&self, disk: DiskId) -> Account {
        self.accounts.get(disk.0 as usize).copied().unwrap_or_default()
    }

    /// Puts the disk on the list of those whose charge may have passed their share.
    pub(crate) fn look_at(&mut self, disk: DiskId) {
        let a = &mut self.accounts[disk.0 as usize];
        if !a.listed {
            a.listed = true;
            self.over.push_back(disk);
        }
    }

    fn look_at_domain(&mut self, domain: SharingDomain) {
        self.rings[domain as usize].drift = 0;
        for i in 0..self.rings[domain as usize].members.len() {
            self.look_at(self.rings[domain as usize].members[i]);
        }
    }

    /// Puts every disk on the list: one found no frame left.
    pub(crate) fn look_at_all(&mut self) {
        for domain in 1..self.rings.len() {
            self.look_at_domain(domain as SharingDomain);
        }
    }

    /// How many disks are on the list.
    #[inline]
    pub(crate) fn to_look_at(&self) -> usize {
        self.over.len()
    }

    /// Takes a disk off the list.
    pub(crate) fn next_to_look_at(&mut self) -> Option<DiskId> {
        let disk = self.over.pop_front()?;
        self.accounts[disk.0 as usize].listed = false;
        Some(disk)
    }

    /// The domains, and what is shared in them.
    pub(crate) fn report(&self) -> Vec<SharingDomainReport> {
        self.rings
            .iter()
            .filter_map(|r| {
                let (shared_frames, shared_blocks) = (u64::from(r.frames), u64::from(r.slots));
                Some(SharingDomainReport { what: r.key?, disks: r.members.clone(), shared_frames, shared_blocks })
            })
            .collect()
    }

    /// Distinct frames in slots.
    pub(crate) fn seated(&self) -> u32 {
        self.seated
    }

    /// Checks the tables and accounts against the slots of all disks; for tests.
    ///
    /// # Panics
    /// With what is broken.
    pub(crate) fn check<'a>(&self, slots: impl Iterator<Item = (DiskId, &'a Held)>) {
        if !self.on {
            return;
        }
        let mut pages = vec![(0u16, 0u16); self.pages.len()];
        let mut zeroes = vec![0; self.accounts.len()];
        let mut held: Vec<Vec<u32>> = vec![Vec::new(); self.accounts.len()];
        for (disk, handle) in slots {
            match self.arena.number_of(handle) {
                None => zeroes[disk.0 as usize] += 1,
                Some(n) => {
                    pages[n as usize].0 += 1;
                    pages[n as usize].1 ^= disk.0 as u16;
                    held[disk.0 as usize].push(n);
                }
            }
        }
        for (page, &(slots, disks)) in self.pages.iter().zip(&pages) {
            assert!(page.slots == slots && page.disks == disks, "the slots of a frame are miscounted");
            assert!(slots > 0 || *page == Page::default(), "a frame that no slot holds is remembered");
        }
        let mut rings = vec![(0u32, 0u32); self.rings.len()];
        for page in self.pages.iter().filter(|p| p.slots > 1) {
            rings[page.domain as usize].0 += 1;
            rings[page.domain as usize].1 += u32::from(page.slots);
        }
        for (ring, &(frames, slots)) in self.rings.iter().zip(&rings) {
            assert!(ring.frames == frames && ring.slots == slots, "what a domain shares is miscounted");
        }
        let mut alone = 0;
        for (i, a) in self.accounts.iter().enumerate() {
            let mut now = Account { domains: a.domains, ..Account::default() };
            for &n in &held[i] {
                let page = &self.pages[n as usize];
                assert!(a.domains.contains(&page.domain), "a disk holds a frame of a domain that it is not in");
                if page.slots == 1 { now.alone += 1 } else { now.shared[a.which(page.domain)] += 1 }
            }
            assert!((now.alone, now.shared) == (a.alone, a.shared), "disk {i} is charged {a:?}, but holds {now:?}");
            assert!(zeroes[i] == a.zeroes, "blocks of zeroes are miscounted");
            alone += a.alone;
        }
        let shared: u32 = self.rings.iter().map(|r| r.frames).sum();
        assert!(alone + shared == self.seated, "the charges are not the frames in use");
        assert!(self.seated <= self.seats, "{} frames in slots, {} paid for", self.seated, self.seats);
        let known = |t: &Places, is: fn(&Page) -> bool| {
            assert!(t.iter().all(|n| is(&self.pages[n as usize])), "a table names a frame that is not in it");
            assert!(t.iter().count() == self.pages.iter().filter(|p| is(p)).count(), "a table lacks a frame");
        };
        known(&self.contents, |p| p.content != 0);
        known(&self.bases, |p| p.base != 0);
    }
}

impl Account {
    /// Which of its two domains: the group's, or the base's.
    fn which(&self, domain: SharingDomain) -> usize {
        usize::from(self.domains[0] != domain)
    }
}

impl Page {
    fn base_hash(&self, seed: u64) -> u32 {
        mix((u64::from(self.domain) << 32 | u64::from(self.base)).wrapping_mul(seed) ^ seed)
    }
}

/// Where a content of a domain stands in the table of contents: never 0.
fn place_of(domain: SharingDomain, hash: ContentHash) -> u32 {
    mix(hash.get() ^ u64::from(domain).wrapping_mul(0x9e37_79b9_7f4a_7c15)).max(1)
}

/// The mixing step of splitmix64 (Steele, Lea and Flood, OOPSLA 2014), cut to 32 bits.
fn mix(mut z: u64) -> u32 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 32) as u32
}
