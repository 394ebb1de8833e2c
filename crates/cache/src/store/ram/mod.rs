//! Frames that several slots hold: who holds them, who pays, and where equal content or the same base block is found.
//!
//! Owns the arena, the pool of frames for I/O, a record for each of its frames, an account for each disk, two tables
//! (frames by content and frames by the block of a base image that they are), and what is known of the disks' guests,
//! so that whoever has the store at hand has that as well. Never decides what is cached. Every
//! frame in a slot belongs to one *sharing domain*: a trust group, or a base image that several disks stand on; it is
//! found within its domain only.
//!
//! Invariants: a frame is in a table only while a slot holds it; a frame found by its hash is handed out after all its
//! bytes were compared; what is in the table of bases came from a read of a block that its disk had never changed.
//! The charges of all disks together are the frames in slots: a disk pays for a frame that one of its slots alone
//! holds; the frames that several slots hold are paid for by domain, in proportion to the slots.

mod domains;
mod lookup;
mod places;
mod pool;

use crate::store::guests::Guests;
use crate::store::tier::Tier;
use crate::types::{DiskId, FramesIn, Shared};
use places::Places;
use pool::IoPool;
use std::collections::VecDeque;
use std::io;
use undercroft_host::{Arena, Frame, Held};

/// A domain's number; dense, from 1, reused when the last disk leaves.
pub(crate) type SharingDomain = u16;

/// The domain of a disk that holds nothing in common with others.
pub(crate) const ALONE: SharingDomain = 0;

/// How much a domain's disks may have to pay more for its frames before they are looked at: one part in so many.
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
pub(crate) const DEDUPLICATION_BYTES_PER_FRAME: usize = PAGE_BYTES + 2 * Places::BYTES_PER_FRAME;

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
    /// Frames that it brings into the pool for I/O.
    pool_part: u32,
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
    /// A secret key of the tables: guests choose block numbers, and must not be able to choose ones that collide.
    seed: u64,
    pages: Vec<Page>,
    contents: Places,
    bases: Places,
    rings: Vec<Ring>,
    accounts: Vec<Account>,
    /// Distinct frames in slots, and how many there may be.
    seated: u32,
    seats: u32,
    /// Frames that the tables have room for: at least `seats`, or 0 while there is nothing to be found.
    room: u32,
    /// Disks whose charge has gone up by what others did, in the order in which they are looked at.
    over: VecDeque<DiskId>,
    pool: IoPool,
    /// The guests of the disks.
    pub(crate) guests: Guests,
    /// What is below RAM, if anything is.
    tier: Option<Box<Tier>>,
}

impl Store {
    /// Reserves `frames` frames; with `on`, what they hold can be shared.
    ///
    /// # Errors
    /// What the arena says.
    pub(crate) fn new(frames: usize, within: &FramesIn, on: bool, seed: u64) -> io::Result<Self> {
        let arena = match within {
            FramesIn::Own => Arena::new(frames)?,
            FramesIn::Shared => Arena::new_shared(frames)?,
            FramesIn::Left(memory) => Arena::adopt(memory.clone(), frames)?,
        };
        let n = if on { arena.reserved() } else { 0 };
        let mut pages = Vec::new();
        pages.reserve_exact(n);
        let (contents, bases) = (Places::new(0, n), Places::new(0, n));
        let (rings, accounts, over) = (vec![Ring::default()], Vec::new(), VecDeque::new());
        let seed = seed.rotate_left(17) | 1;
        let pool = IoPool::default();
        let (seated, seats, room, guests) = (0, 0, 0, Guests::default());
        let tier = None;
        Ok(Self {
            arena,
            on,
            seed,
            pages,
            contents,
            bases,
            rings,
            accounts,
            seated,
            seats,
            room,
            over,
            pool,
            guests,
            tier,
        })
    }

    // ---- below RAM ----

    /// Whether there is something below RAM.
    #[inline]
    pub(crate) fn has_tier(&self) -> bool {
        self.tier.is_some()
    }

    /// What is below RAM.
    #[inline]
    pub(crate) fn tier(&self) -> Option<&Tier> {
        self.tier.as_deref()
    }

    /// The same, to use it.
    #[inline]
    pub(crate) fn tier_mut(&mut self) -> Option<&mut Tier> {
        self.tier.as_deref_mut()
    }

    /// Whether what is below RAM has something to do in spare time.
    #[inline]
    pub(crate) fn tier_presses(&self) -> bool {
        self.tier.as_ref().is_some_and(|tier| tier.ssd().has_more_to_drop())
    }

    /// From now on this is below RAM.
    pub(crate) fn set_tier(&mut self, tier: Tier) {
        self.tier = Some(Box::new(tier));
    }

    /// It is this time.
    #[inline]
    pub(crate) fn set_now(&mut self, now_ns: u64) {
        if let Some(tier) = &mut self.tier {
            tier.now_ns = now_ns;
        }
    }

    // ---- the arena ----

    pub(crate) fn take(&mut self) -> Option<Frame> {
        self.arena.take()
    }

    /// Takes frames for one operation; false if there are not so many.
    pub(crate) fn take_for_io(&mut self, n: usize, list: &mut Vec<Frame>) -> bool {
        self.arena.take_for_io(n, list)
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

    /// The arena, for those who hand its memory over to another process, or go on with another's.
    pub(crate) fn arena_mut(&mut self) -> &mut Arena {
        &mut self.arena
    }

    /// Gives memory of unused frames back to the kernel, all but `keep` of them.
    pub(crate) fn trim(&mut self, keep: usize) {
        self.arena.trim(keep);
    }

    /// The pool of frames for I/O.
    pub(crate) fn pool(&self) -> &IoPool {
        &self.pool
    }

    /// The pool, for disks that borrow of it and give back.
    pub(crate) fn pool_mut(&mut self) -> &mut IoPool {
        &mut self.pool
    }

    /// Frame `n` as another process has left it, for a slot of a disk of `domain`: also if another slot of the domain
    /// has it by now, as it had there. `None` if it cannot be had.
    pub(crate) fn claim(&mut self, n: u32, domain: SharingDomain) -> Option<Held> {
        if let Some(frame) = self.arena.claim(n) {
            return Some(self.arena.share(frame));
        }
        let has = |p: &Page| p.slots > 0 && p.domain == domain && domain != ALONE;
        let shared = self.pages.get(n as usize).is_some_and(has);
        if shared && self.arena.is_claimed_from() { self.arena.again_number(n) } else { None }
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
