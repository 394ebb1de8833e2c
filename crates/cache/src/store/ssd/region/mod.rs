//! One region of one device: the state of its part of the store.
//!
//! Owns all of it, and who may change what. Never looks at another region. Invariants: an entry of the index names a
//! slot of a segment of its owner, written or staged with the bytes that the disk holds; what a table of owners calls
//! clean has summaries on the device that name nothing else.

mod blocks;
mod changes;
mod cleaning;
mod handover;
mod io;
mod links;
mod parked;
mod quiet;
mod recovery;
mod sealing;
mod service;
mod tables;

pub use recovery::{Format, Media, NoRegion, Recovered};

use super::admission::{Admitting, Budget};
use super::format::{Layout, Summary};
use super::index::{Entry, Index, Item, OwnerOf};
use super::samples::Samples;
use super::segments::{Segments, State as Segment};
use super::sums::Sums;
use super::types::*;
use crate::fault_injection::{Bug, FaultInjection};
use crate::limits::{SSD_IO_FRAMES, SSD_QUIET_BYTES_PER_DAY, SSD_STAGED_MAX};
use cleaning::Cleaning;
use io::Jobs;
use links::Links;
use parked::ParkedBlocks;
use quiet::Writing;
use sealing::{Open, Run};
use std::collections::VecDeque;
use std::ops::Range;
use tables::Tables;
use undercroft_host::{Arena, IoBuf};

/// What the next table is to say of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing of it is to be recovered.
    Dirty,
    /// Its image has this stamp, and what the summaries name is what it holds.
    Clean(Stamp),
}

/// An owner.
struct Owner {
    identity: Identity,
    /// Stands for the identity in sums.
    tag: u64,
    blocks: u64,
    generation: u64,
    state: State,
    is_attached: bool,
    /// Segments that it may have.
    share: u32,
    /// Blocks of owners with the same number that are equal are kept once; 0 stands for none.
    domain: u16,
    /// Its entries in the index.
    entries: u64,
    /// The segment that its blocks go to.
    open: Option<u32>,
    /// What is pinned of it, and so many blocks of that belong to this region.
    pins: Pinned,
    pinned: u64,
    /// Changes under way, and what is left to be dropped of their blocks and of others.
    changing: Vec<Range<u64>>,
    dropping: Vec<Range<u64>>,
    stats: OwnerStats,
}

impl Owner {
    /// Whether a block is pinned.
    fn is_pinned(&self, block: u64) -> bool {
        let at = self.pins.partition_point(|&(first, _)| first <= block);
        at.checked_sub(1).is_some_and(|at| block < self.pins[at].1)
    }

    /// One without blocks, that nobody has attached.
    fn new(sums: &Sums, identity: Identity, blocks: u64, generation: u64, state: State) -> Self {
        Self {
            identity,
            tag: sums.tag(&identity),
            blocks,
            generation,
            state,
            is_attached: false,
            share: 0,
            domain: 0,
            entries: 0,
            open: None,
            pins: Pinned::default(),
            pinned: 0,
            changing: Vec::new(),
            dropping: Vec::new(),
            stats: OwnerStats::default(),
        }
    }
}

/// An entry of this owner has left the index.
fn leaves(owners: &mut [Option<Owner>], number: u16) {
    if let Some(owner) = &mut owners[usize::from(number)] {
        owner.entries -= 1;
    }
}

/// Bytes of the table of owners in memory.
pub(super) fn owner_bytes() -> u64 {
    (OWNERS_MAX * size_of::<Option<Owner>>()) as u64
}

/// Bytes that are kept of segments to compare blocks with, at most.
pub(super) fn link_bytes(layout: &Layout) -> u64 {
    Links::bytes_max(layout)
}

/// How far an orderly stop is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stop {
    /// No stop: what is under way ends, and nothing else begins.
    Resting,
    /// Open segments are completed.
    Sealing(Vec<(u16, Stamp)>),
    /// What was dropped is written down.
    Quiet,
    /// The last table is written.
    Table,
    Done,
}

/// See the head of the file.
pub struct Region<F: FaultInjection> {
    faults: F,
    /// Which of the store's devices it lies on.
    device: u16,
    layout: Layout,
    store: StoreId,
    boot: BootId,
    sums: Sums,
    index: Index,
    samples: Samples,
    links: Links,
    parked: ParkedBlocks,
    segments: Segments,
    owners: Vec<Option<Owner>>,
    /// Whether there may be owners with something to drop: all of them are looked at only then, since it is asked in
    /// every turn of the worker.
    may_drop: bool,
    next_generation: u64,
    arena: Arena,
    /// Frames of blocks that wait to be written, or to be found equal to others.
    staged: usize,
    open: Vec<Open>,
    runs: VecDeque<Run>,
    tables: Tables,
    cleaning: Option<Cleaning>,
    quiet: VecDeque<(u16, Stamp)>,
    writing: Option<Writing>,
    last_writing: u64,
    /// What may be written down of disks without changes, however little was admitted.
    quiet_budget: Budget,
    jobs: Jobs,
    admitting: Admitting,
    written: Written,
    mismatches: u64,
    service: Option<OutOfService>,
    /// A change of an owner that the device calls clean waits until this is true.
    given_up_is_recorded: bool,
    given_up_is_told: bool,
    is_stalled: bool,
    /// The device is told of segments that are free.
    discards: bool,
    stop: Option<Stop>,
    now: u64,
}

impl<F: FaultInjection> Region<F> {
    fn empty(faults: F, store: StoreId, boot: BootId, layout: Layout) -> std::io::Result<Self> {
        let slots = layout.segments * layout.segment_blocks;
        let seed = u64::from_le_bytes(std::array::from_fn(|n| store.0[n]));
        Ok(Self {
            faults,
            device: 0,
            store,
            boot,
            sums: Sums::new(store),
            index: Index::new(slots, seed),
            samples: Samples::new(slots),
            links: Links::default(),
            parked: ParkedBlocks::default(),
            segments: Segments::new(&layout),
            layout,
            owners: (0..OWNERS_MAX).map(|_| None).collect(),
            may_drop: false,
            next_generation: 1,
            arena: Arena::new(SSD_STAGED_MAX + SSD_IO_FRAMES)?,
            staged: 0,
            open: Vec::new(),
            runs: VecDeque::new(),
            tables: Tables::default(),
            cleaning: None,
            quiet: VecDeque::new(),
            writing: None,
            last_writing: 0,
            quiet_budget: Budget::new(SSD_QUIET_BYTES_PER_DAY, SSD_QUIET_BYTES_PER_DAY),
            jobs: Jobs::default(),
            admitting: Admitting::new(slots, seed),
            written: Written::default(),
            mismatches: 0,
            service: None,
            given_up_is_recorded: false,
            given_up_is_told: false,
            is_stalled: false,
            discards: true,
            stop: None,
            now: 0,
        })
    }

    /// Which of the store's devices it lies on.
    pub(super) fn set_device(&mut self, device: u16) {
        self.device = device;
    }

    /// Whether the device is to be told of segments that are free.
    pub(super) fn set_discards(&mut self, discards: bool) {
        self.discards = discards;
    }

    /// What decides on admission.
    pub(super) fn admitting(&mut self) -> &mut Admitting {
        &mut self.admitting
    }

    fn owner(&self, number: u16) -> &Owner {
        self.owners[usize::from(number)].as_ref().expect("an owner that was attached")
    }

    fn owner_mut(&mut self, number: u16) -> &mut Owner {
        self.owners[usize::from(number)].as_mut().expect("an owner that was attached")
    }

    /// Bytes that may still be written besides admitted blocks, so that all are at most a tenth more than those; pinned
    /// blocks that were written again are not counted, or nothing else would be.
    fn allowance(&self) -> i64 {
        let beside = self.written.total() - self.written.admitted - self.written.pins;
        (self.written.admitted / 10) as i64 - beside as i64
    }

    /// Takes an owner in: the one that is known by this identity, or a new one.
    pub(super) fn attach(&mut self, known: &Known) -> Result<(u16, Kept), TooManyOwners> {
        let same = |o: &Option<Owner>| o.as_ref().is_some_and(|o| o.identity == known.identity && !o.is_attached);
        let mut kept = Kept::New;
        if let Some(number) = self.owners.iter().position(same) {
            let number = number as u16;
            match self.why_not(number, known) {
                None => {
                    self.admitting.attach(number);
                    let owner = self.owner_mut(number);
                    owner.is_attached = true;
                    owner.stats = OwnerStats::default();
                    return Ok((number, Kept::Blocks(owner.entries)));
                }
                Some(why) => {
                    kept = Kept::Dropped(why);
                    self.drop_owner(number);
                }
            }
        }
        let free = (0..OWNERS_MAX).find(|n| self.owners[*n].is_none() && !self.tables.may_be_clean(*n as u16));
        let number = free.ok_or(TooManyOwners)?;
        let generation = self.next_generation;
        self.next_generation += 1;
        self.admitting.attach(number as u16);
        let owner = Owner::new(&self.sums, known.identity, known.blocks, generation, State::Dirty);
        self.owners[number] = Some(Owner { is_attached: true, ..owner });
        Ok((number as u16, kept))
    }

    /// Blocks of an image that nobody has attached.
    pub(super) fn kept_of(&self, identity: &Identity) -> u64 {
        let same = |o: &&Owner| o.identity == *identity && !o.is_attached;
        self.owners.iter().flatten().filter(same).map(|o| o.entries).sum()
    }

    /// Why nothing may be kept of an owner that comes back.
    fn why_not(&self, number: u16, known: &Known) -> Option<WhyDropped> {
        let owner = self.owner(number);
        let stamp = match owner.state {
            State::Clean(stamp) => Some(stamp),
            State::Dirty => None,
        };
        if known.stamp.is_none() {
            return Some(WhyDropped::NoStamp);
        }
        if owner.blocks != known.blocks {
            return Some(WhyDropped::Size);
        }
        let is_other = stamp != known.stamp;
        let ignored = self.faults.has(Bug::SsdStampNotCompared);
        (is_other && !ignored).then_some(WhyDropped::Stamp)
    }

    /// An owner goes; what is clean of it may come back. Nothing of it is pinned.
    pub(super) fn detach(&mut self, number: u16) {
        let keeps_pins = self.faults.has(Bug::SsdPinsOutliveDetach);
        self.quiet.retain(|(n, _)| *n != number);
        self.unpark_all_of(number);
        self.admitting.detach(number);
        let owner = self.owner_mut(number);
        if owner.state == State::Dirty || !owner.dropping.is_empty() {
            self.drop_owner(number);
        } else {
            (owner.is_attached, owner.share, owner.domain) = (false, 0, 0);
            owner.changing.clear();
            if !keeps_pins {
                (owner.pins, owner.pinned) = (Pinned::default(), 0);
            }
        }
    }

    /// An owner goes, and all that is its own.
    pub(super) fn drop_owner(&mut self, number: u16) {
        self.forget_blocks(number);
        self.admitting.detach(number);
        self.owners[usize::from(number)] = None;
        if self.tables.may_be_clean(number) {
            self.tables.is_wanted = true;
        }
    }

    /// Drops all blocks of an owner.
    fn forget_blocks(&mut self, number: u16) {
        self.abort_quiet(number);
        self.unpark_all_of(number);
        if self.segments.of(number) == 0 && self.owner(number).entries == 0 {
            return;
        }
        // Its own, and links to its segments.
        let Self { index, segments, owners, faults, .. } = self;
        index.remove_where(|item| {
            let keeps = item.link_of.is_some() && faults.has(Bug::SsdLinkOutlivesDisk);
            let of = item.owner(segments);
            let is_gone = of == number && !keeps || segments.owner_of(item.slot) == number;
            if is_gone {
                leaves(owners, of);
            }
            is_gone
        });
        self.owner_mut(number).open = None;
        while let Some(segment) = self.segments.oldest(number) {
            self.abandon(segment);
            self.segments.unlinked(segment);
            self.segments.give_up_oldest(number);
        }
    }

    /// An owner may have so many blocks: whole segments, one at least if it may have any.
    pub(super) fn set_share(&mut self, number: u16, blocks: u64) {
        let share = blocks.div_ceil(u64::from(self.layout.data_blocks()));
        let room = u64::from(self.layout.data_blocks()) * self.segments.len() as u64;
        self.admitting.set_room(number, blocks.min(room));
        let owner = self.owner_mut(number);
        owner.share = share.min(u64::from(u32::MAX)) as u32;
        owner.stats.share_blocks = blocks;
    }

    /// These blocks of an owner are pinned, `here` of them in this region.
    pub(super) fn set_pins(&mut self, number: u16, pins: &Pinned, here: u64) {
        let owner = self.owner_mut(number);
        (owner.pins, owner.pinned) = (Pinned::clone(pins), here);
    }

    /// An entry of an owner has left the index: what its segment's summary says of it is not true any more, unless it
    /// was a link.
    fn removed(&mut self, number: u16, entry: &Entry, is_recorded: bool) {
        if !entry.is_link {
            self.segments.get_mut(self.segments.number_of(entry.slot)).lost |= is_recorded;
        }
        self.owner_mut(number).entries -= 1;
    }

    /// An entry had to leave the index for another.
    fn pushed_out(&mut self, item: Item) {
        let number = item.owner(&self.segments);
        if item.link_of.is_none() {
            self.segments.get_mut(self.segments.number_of(item.slot)).lost = true;
        }
        leaves(&mut self.owners, number);
    }

    /// What is wrong with the region's own tables, by a look at all of them: for tests.
    pub(super) fn wrong(&self) -> Option<String> {
        let mut entries = vec![0; OWNERS_MAX];
        for item in self.index.items() {
            let segment = self.segments.get(self.segments.number_of(item.slot));
            let number = usize::from(item.owner(&self.segments));
            match self.owners.get(number) {
                Some(Some(_)) => entries[number] += 1,
                _ => return Some(format!("{item:?} is an entry, and belongs to nobody: {segment:?}")),
            }
            if item.link_of.is_some() && !segment.is_linked {
                return Some(format!("{item:?} is a link to a segment that has none: {segment:?}"));
            }
        }
        let there = self.parked.all().find(|(number, block)| self.find_whole(*number, *block).is_some());
        if let Some((_, block)) = there {
            return Some(format!("block {block} waits to be written, and has an entry"));
        }
        let owners = self.owners.iter().zip(entries).filter_map(|(owner, n)| Some((owner.as_ref()?.entries, n)));
        let (is, counted) = owners.into_iter().find(|(is, counted)| is != counted)?;
        Some(format!("an owner has {counted} entries, and {is} by its account"))
    }

    fn table_bytes(&self) -> usize {
        self.index.bytes() + self.samples.bytes() + self.segments.bytes() + self.admitting.bytes()
    }

    /// Numbers of the device.
    pub(super) fn stats(&self) -> SsdStats {
        let bytes = self.table_bytes();
        SsdStats {
            blocks: self.index.len() as u64,
            held: self.index.held() as u64,
            linked: self.index.links() as u64,
            room: u64::from(self.layout.data_blocks()) * self.segments.len() as u64,
            staged: self.staged as u64,
            segments: self.segments.len() as u64,
            free_segments: self.segments.free() as u64,
            written: self.written,
            budget_left: self.admitting.left(),
            mismatches: self.mismatches,
            memory: (bytes + self.arena.committed_bytes()) as u64,
            out_of_service: self.service,
        }
    }

    /// Bytes of tables for each block that there is room for, in thousandths: all but the staged blocks.
    pub(super) fn table_bytes_per_block_per_mille(&self) -> u64 {
        self.table_bytes() as u64 * 1000 / (u64::from(self.layout.data_blocks()) * self.segments.len() as u64)
    }

    /// Numbers of an owner.
    pub(super) fn owner_stats(&self, number: u16) -> OwnerStats {
        let owner = self.owner(number);
        OwnerStats {
            blocks: owner.entries,
            segments: u64::from(self.segments.of(number)),
            is_clean: owner.state != State::Dirty,
            ..owner.stats
        }
    }
}
