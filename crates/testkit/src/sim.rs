//! One run of the deterministic simulation: a core, some disks, many clients, and everything that can go wrong.
//!
//! Owns the order of events, all of it drawn from the seed. Never uses time, threads or entropy.
//! Invariant: the same seed, steps and bug give the same run; so a failure replays.
//!
//! A run draws a configuration (disks with their sizes, alignments, faults; policies, capacities, budgets; how busy
//! the clients are), then steps: a request begins, an operation executes, a completion is delivered, or something
//! rarer happens (see `rare`). Now and then everything is brought to rest, and all that must hold then is checked.

mod judge;

use crate::alike::SimBase;
use crate::rng::Rng;
use crate::sim_disk::{SimDisk, SimGeometry};
use crate::sim_guest::SimGuest;
use crate::world::World;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use undercroft_cache::ContentKey;
use undercroft_cache::plant::{Bug, Plant, Planted, Sound};
use undercroft_cache::{
    AddDiskError, Core, CoreOptions, DiskId, DiskOptions, Event, GroupId, IoError, Op, ReqId, Request, disk_bytes,
};
use undercroft_engine::shares::Hint;
use undercroft_engine::{ExclusiveMode, PartRange, PolicyKind};
use undercroft_host::FRAME_BYTES;

const B: u64 = FRAME_BYTES as u64;

/// Blocks of the image in runs whose disks are all clones of one: more than any of them may keep, less than all may.
const CLONE_BLOCKS: u64 = 160;

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Fixes everything.
    pub seed: u64,
    /// Events.
    pub steps: u64,
    /// A bug to plant in the core.
    pub bug: Option<Bug>,
}

/// What a run that found nothing wrong has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Requests answered.
    pub answers: u64,
    /// Crashes survived.
    pub crashes: u64,
    /// The counters of all disks of all lives, summed.
    pub hits: u64,
    /// Blocks read from the disk.
    pub misses: u64,
    /// Blocks that joined a read.
    pub joined: u64,
    /// Reads that could not be published.
    pub stale: u64,
    /// Read-ahead hits.
    pub ahead: u64,
    /// Blocks evicted.
    pub evicted: u64,
    /// Failed operations.
    pub failures: u64,
    /// Blocks seen at rest whose frame other blocks held too.
    pub shared: u64,
    /// Blocks seen at rest that were zeroes and took no frame.
    pub zeroes: u64,
    /// Blocks of a base that another disk had in RAM.
    pub at_base: u64,
    /// Times that a disk was seen to keep more blocks than it has capacity for, at no more cost.
    pub beyond: u64,
    /// Times that a disk was seen at rest with blocks in more than one of its parts.
    pub parted: u64,
    /// Copies of guest pages that became cached.
    pub captures: u64,
    /// Guests' evictions of blocks that were cached.
    pub promoted: u64,
    /// Guest pages copied early.
    pub early: u64,
}

impl Outcome {
    /// Adds another run's counts.
    pub fn add(&mut self, o: &Outcome) {
        self.answers += o.answers;
        self.crashes += o.crashes;
        self.hits += o.hits;
        self.misses += o.misses;
        self.joined += o.joined;
        self.stale += o.stale;
        self.ahead += o.ahead;
        self.evicted += o.evicted;
        self.failures += o.failures;
        self.shared += o.shared;
        self.zeroes += o.zeroes;
        self.at_base += o.at_base;
        self.beyond += o.beyond;
        self.parted += o.parted;
        self.captures += o.captures;
        self.promoted += o.promoted;
        self.early += o.early;
    }

    /// That the runs came by every corner: a simulation that never joins a read tests no join.
    ///
    /// # Panics
    /// With the counts, if one of them is 0.
    pub fn assert_reached_everything(&self) {
        let Outcome { answers, crashes, hits, misses, joined, stale, ahead, evicted, failures, .. } = *self;
        let Outcome { shared, zeroes, at_base, beyond, parted, .. } = *self;
        assert!(parted > 0, "no disk had parts: {self:?}");
        assert!([shared, zeroes, at_base, beyond].iter().all(|&n| n > 0), "the runs shared too little: {self:?}");
        let Outcome { captures, promoted, early, .. } = *self;
        let all = [answers, crashes, hits, misses, joined, stale, ahead, evicted, failures, captures, promoted, early];
        assert!(all.iter().all(|&n| n > 0), "the runs missed something: {self:?}");
    }
}

/// Runs a plan.
///
/// # Errors
/// What went wrong, with the step and the last events before it.
pub fn run(plan: Plan) -> Result<Outcome, String> {
    once(plan, false).map_err(|what| {
        // Once more, with notes: the same seed goes the same way.
        let again =
            once(plan, true).err().unwrap_or_else(|| "(the second run found nothing: not deterministic)".into());
        format!("seed {}: {what}\n{again}", plan.seed)
    })
}

/// Whether a plan finds anything wrong; quieter than [`run`].
pub fn finds(plan: Plan) -> Option<String> {
    once(plan, false).err()
}

/// The hints that disks are given: half of them have the disk fetch.
const HINTS: [Hint; 10] = {
    let [normal, sequential, random, no_reuse, dont_need, will_need] = Hint::ALL;
    [normal, sequential, random, no_reuse, dont_need, will_need, will_need, will_need, will_need, will_need]
};

thread_local! {
    /// Whether this thread is in a run: a failed assertion there is reported with its seed, not by the panic hook.
    static IN_RUN: Cell<bool> = const { Cell::new(false) };
}

/// Keeps assertions that fail within runs from being printed, and leaves all others to the hook that was there.
fn quieten() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let others = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !IN_RUN.with(Cell::get) {
                others(info);
            }
        }));
    });
}

fn once(plan: Plan, with_log: bool) -> Result<Outcome, String> {
    match plan.bug {
        None => once_with(plan, Sound, with_log),
        Some(bug) => once_with(plan, Planted(bug), with_log),
    }
}

fn once_with<P: Plant>(plan: Plan, plant: P, with_log: bool) -> Result<Outcome, String> {
    let mut step = 0;
    let mut log = Vec::new();
    quieten();
    IN_RUN.with(|r| r.set(true));
    let result = catch_unwind(AssertUnwindSafe(|| {
        let mut sim = Sim::new(plan.seed, plant, with_log);
        // Dropped also when an assertion fails, so the notes are passed out as they are made.
        while step < plan.steps && sim.world.violation.is_none() {
            step += 1;
            sim.step();
            if with_log && let Some(notes) = &mut sim.world.log {
                log.append(notes);
                let old = log.len().saturating_sub(200);
                log.drain(..old);
            }
        }
        if sim.world.violation.is_none() {
            sim.rest();
        }
        if with_log && let Some(notes) = &mut sim.world.log {
            log.append(notes);
        }
        sim.end()
    }));
    IN_RUN.with(|r| r.set(false));
    let what = match result {
        Ok(Ok(outcome)) => return Ok(outcome),
        Ok(Err(what)) => what,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
            format!("assertion: {}", text.unwrap_or_default())
        }
    };
    Err(format!("step {step}: {what}\n{}", log.join("\n")))
}

pub(crate) struct Sim<P: Plant> {
    pub(crate) rng: Rng,
    core: Option<Core<P>>,
    plant: P,
    core_options: CoreOptions,
    pub(crate) disk_options: Vec<DiskOptions>,
    pub(crate) world: World,
    /// Requests under way at most.
    busy: usize,
    now_ns: u64,
    /// Per disk: the step until which it stalls.
    stalled: Vec<u64>,
    /// Per disk: whether it is being removed.
    leaving: Vec<bool>,
    /// Per disk: the ranges of its parts.
    pub(crate) ranges: Vec<Vec<PartRange>>,
    steps: u64,
    pub(crate) outcome: Outcome,
    /// Without power cuts, writes and writes are what matters; some runs have none.
    crashes: bool,
    shares: bool,
    hints: bool,
    multi_block: u64,
    mostly_reads: bool,
    /// Whether hashes collide.
    weak: bool,
}

impl<P: Plant> Sim<P> {
    fn new(seed: u64, plant: P, with_log: bool) -> Self {
        let mut rng = Rng::new(seed);
        let clones = seed % 8 == 5;
        let disks = if clones { rng.between(3, 6) } else { rng.between(1, 3) } as usize;
        let mut sims = Vec::new();
        let mut disk_options = Vec::new();
        let io_frames = *rng.pick(&[1u32, 2, 3, 8, 16, 64, 64, 256]);
        let sharing = !rng.one_in(4);
        let image = rng.bits() >> 16;
        let image_bytes = rng.between(1, 170) * B + rng.below(2) * rng.below(B);
        let cluster = *rng.pick(&[B, B, 4 * B]);
        let mut bases = Vec::new();
        for _ in 0..disks {
            let align = *rng.pick(&[1u64, 512, 512, 512, 4096]);
            let blocks = *rng.pick(&[1u64, 4, 16, 40, 100, 160]);
            let partial = if rng.one_in(2) { 0 } else { rng.below(B) / align * align };
            let size = if clones { CLONE_BLOCKS * B } else { blocks * B + partial };
            let geometry = SimGeometry {
                size,
                align,
                can_discard: !rng.one_in(4),
                can_write_zeroes: !rng.one_in(3),
                zeroes_lie: rng.one_in(5),
                fails_one_in: *rng.pick(&[0, 0, 0, 30, 200]),
            };
            let mut options = options_for(&geometry, &mut rng);
            options.share =
                if sharing { *rng.pick(&[None, Some(GroupId(0)), Some(GroupId(0)), Some(GroupId(1))]) } else { None };
            if clones {
                (options.share, options.capacity_blocks) = (Some(GroupId(0)), *rng.pick(&[20, 40, 60]));
            }
            disk_options.push(options);
            if clones {
                let (base, medium) =
                    SimBase::new(image % 4, CLONE_BLOCKS * B, cluster, geometry.size, || rng.one_in(32));
                bases.push(Some(base));
                sims.push(SimDisk::with_content(geometry, medium));
            } else if rng.one_in(3) {
                bases.push(None);
                sims.push(SimDisk::new(geometry));
            } else {
                let (base, medium) = SimBase::new(image % 4, image_bytes, cluster, geometry.size, || rng.one_in(4));
                bases.push(Some(base));
                sims.push(SimDisk::with_content(geometry, medium));
            }
        }
        let mut content_key = ContentKey::from_seed(rng.bits());
        let weak = rng.one_in(3);
        if weak {
            // Unequal contents of equal hash: shared contents are compared, copies of guests' pages are not.
            content_key = content_key.weakened(rng.between(1, 4) as u32);
            disk_options.iter_mut().for_each(|o: &mut DiskOptions| o.exclusive = ExclusiveMode::Off);
        }
        let mut core_options = CoreOptions {
            memory_bytes: 0,
            io_frames_per_disk: io_frames,
            requests_per_disk: *rng.pick(&[4, 16, 64]),
            hash_seed: rng.bits(),
            contents: !rng.one_in(6),
            content_key,
            // Not for every seed: those of faults that were found long ago are to run as they did.
            step_bytes: if seed % 8 == 1 { [1, B, 3 * B, 16 * B][seed as usize / 8 % 4] } else { u64::MAX },
        };
        let needed: u64 = disk_options
            .iter()
            .map(|o: &DiskOptions| disk_bytes(&core_options, o.capacity_blocks, o.readahead_bytes))
            .sum();
        // A little more than needed for the arena's own, and sometimes room to grow.
        core_options.memory_bytes = needed + needed / 500 + 8192 + *rng.pick(&[0, 100 * B, 1000 * B]);
        let busy = *rng.pick(&[1usize, 2, 6, 12, 24]);
        let crashes = rng.one_in(2);
        let multi_block = *rng.pick(&[2, 4, 10, 90]);
        let mostly_reads = rng.one_in(3) || clones;
        let world = World::new(sims, rng.bits(), with_log);
        let mut sim = Self {
            rng,
            core: None,
            plant,
            core_options,
            disk_options,
            world,
            busy,
            now_ns: 0,
            stalled: vec![0; disks],
            leaving: vec![false; disks],
            ranges: vec![Vec::new(); disks],
            steps: 0,
            outcome: Outcome::default(),
            crashes,
            shares: seed % 4 == 3,
            hints: seed % 16 == 15,
            multi_block,
            mostly_reads,
            weak,
        };
        for (i, base) in bases.into_iter().enumerate() {
            let side = &mut sim.world.sides[i];
            side.base = base;
            side.group = sim.disk_options[i].share.map_or(10 + i as u64, |g| u64::from(g.0));
        }
        sim.boot();
        sim
    }

    fn boot(&mut self) {
        let mut core = Core::with_plant(self.core_options.clone(), self.plant).expect("address space for a small core");
        for (i, o) in self.disk_options.iter().enumerate() {
            if let Err(e) = core.add_disk(DiskId(i as u32), o.clone()) {
                panic!("the ceiling was made for these disks: {e}");
            }
            if let Some(base) = &self.world.sides[i].base {
                core.set_base(DiskId(i as u32), base.told());
            }
        }
        self.core = Some(core);
        for d in 0..self.world.sides.len() {
            self.guest_changes(d);
        }
    }

    pub(crate) fn core(&mut self) -> &mut Core<P> {
        self.core.as_mut().expect("a core, but in the middle of a crash")
    }

    fn apply(&mut self, event: Event) {
        let now = self.now_ns;
        let Self { core, world, .. } = self;
        core.as_mut().expect("a core").apply(event, now, world);
    }

    fn step(&mut self) {
        self.steps += 1;
        self.world.tick();
        if self.shares {
            self.judge_parts();
        }
        self.now_ns += self.rng.below(2_000_000);
        if !self.world.paused.is_empty() && self.rng.one_in(2) {
            self.resume();
        }
        // What cannot be done gives way to what comes after it.
        let _ = match self.rng.below(1000) {
            0..350 => self.request() || self.execute() || self.deliver(),
            350..660 => self.execute() || self.deliver() || self.request(),
            660..940 => self.deliver() || self.execute() || self.request(),
            940..965 => self.spare(),
            965..985 => self.guest_lives(),
            _ => self.rare(),
        };
        let m = self.core().memory();
        if m.frames_bytes + m.metadata_bytes > m.ceiling_bytes || m.promised_bytes > m.ceiling_bytes {
            self.world.violate(format!("over the ceiling: {m:?}"));
        }
        if self.steps.is_multiple_of(256) {
            self.core().check();
        }
    }

    fn any_disk(&mut self) -> usize {
        self.rng.below(self.world.sides.len() as u64) as usize
    }

    /// A client begins a request, if it may.
    fn request(&mut self) -> bool {
        let d = self.any_disk();
        if self.world.requests.len() >= self.busy || self.core().room(DiskId(d as u32)) == 0 {
            return false;
        }
        let geometry = self.world.sides[d].disk.geometry.clone();
        let fua = self.rng.one_in(6);
        // Some guests hardly write: then more stays of what a disk stands on.
        let op = match self.rng.below(100) {
            _ if self.mostly_reads && !self.rng.one_in(16) => Op::Read,
            0..46 => Op::Read,
            46..80 => Op::Write { fua },
            80..87 => Op::Flush,
            87..92 => Op::WriteZeroes { unmap: self.rng.one_in(2), fua },
            92..97 => Op::Discard,
            _ => Op::Status,
        };
        let (mut offset, mut len) = self.range(d, geometry.size);
        if op == Op::Flush {
            (offset, len) = (0, 0);
        } else if op == Op::Read && self.rng.one_in(3) {
            // The sequential client.
            let side = &mut self.world.sides[d];
            offset = side.sequential;
            len = (if self.multi_block > 4 { 4 * B } else { B }).min(geometry.size - offset);
            side.sequential = (offset + len) % geometry.size;
        }
        let mut must = None;
        if self.rng.one_in(200) {
            (offset, must) = (geometry.size.saturating_sub(self.rng.below(B)), Some(IoError::Invalid));
            len = B + 1 + self.rng.below(u64::MAX / 2);
            if op == Op::Flush {
                must = None;
            }
        }
        if self.disk_options[d].read_only && matches!(op, Op::Write { .. } | Op::WriteZeroes { .. } | Op::Discard) {
            must = Some(IoError::ReadOnly);
        }
        if self.leaving[d] {
            must = Some(IoError::Shutdown);
        }
        let req = Request { id: ReqId { port: 0, tag: 0 }, disk: DiskId(d as u32), op, offset, len };
        let Some(req) = self.world.start(req, must) else { return false };
        self.apply(Event::Request(req));
        true
    }

    /// A range of a disk: hot or anywhere, whole blocks, sectors or bytes, short or long.
    fn range(&mut self, d: usize, size: u64) -> (u64, u64) {
        let blocks = size.div_ceil(B);
        let hot = if self.rng.one_in(2) { blocks.min(4) } else { blocks };
        let unit = match self.rng.below(10) {
            0..6 => B,
            6..9 => 512,
            _ => 1,
        };
        let most = if self.rng.one_in(3) { self.multi_block * B } else { B };
        let offset = self.rng.below(hot * B) / unit * unit;
        let len = self.rng.between(1, most).div_ceil(unit) * unit;
        let offset = offset.min(size - 1) / unit * unit;
        if self.rng.one_in(60) {
            return (0, size);
        }
        let _ = d;
        (offset, len.min(size - offset))
    }

    /// The replies are out: the core does what could wait.
    fn spare(&mut self) -> bool {
        let copies = !self.rng.one_in(5);
        self.world.note(|| format!("spare time, copies {copies}"));
        self.apply(Event::Spare { copies });
        true
    }

    /// One of the requests that were paused goes on. False if none is.
    fn resume(&mut self) -> bool {
        let n = self.world.paused.len() as u64;
        if n == 0 {
            return false;
        }
        let paused = self.world.paused.swap_remove(self.rng.below(n) as usize);
        self.world.note(|| format!("resume {paused:?}"));
        self.apply(Event::Resume(paused));
        self.leave(paused.disk.0 as usize);
        true
    }

    /// Something happens inside a guest.
    fn guest_lives(&mut self) -> bool {
        let d = self.any_disk();
        let World { sides, guest_rng, .. } = &mut self.world;
        match &mut sides[d].guest {
            Some(guest) => guest.live(guest_rng),
            None => return false,
        }
        true
    }

    /// A guest comes, goes, or has its memory mapped anew.
    fn guest_changes(&mut self, d: usize) {
        let guest = if self.rng.one_in(4) { None } else { Some(SimGuest::new(&mut self.rng)) };
        let pages = guest.as_ref().map_or(0, SimGuest::pages);
        let side = &mut self.world.sides[d];
        side.memory += 1;
        side.guest = guest;
        self.world.note(|| format!("guest of disk {d}: {pages} pages"));
        self.core().set_guest(DiskId(d as u32), pages);
    }

    fn running_disk(&mut self) -> Option<usize> {
        let d = self.any_disk();
        (self.stalled[d] <= self.steps).then_some(d)
    }

    fn execute(&mut self) -> bool {
        let Some(d) = self.running_disk() else { return false };
        self.world.sides[d].disk.execute(&mut self.rng)
    }

    fn deliver(&mut self) -> bool {
        let Some(d) = self.running_disk() else { return false };
        let now = self.world.tick();
        let Some(done) = self.world.sides[d].disk.deliver(&mut self.rng, now) else { return false };
        self.world.note(|| format!("deliver {:?} {:?}", done.op, done.result));
        self.apply(Event::IoDone(done));
        self.leave(d);
        true
    }

    /// What happens now and then.
    fn rare(&mut self) -> bool {
        let d = self.any_disk();
        let id = DiskId(d as u32);
        // Not for every seed: those of faults that were found long ago are to run as they did.
        if self.shares && self.rng.one_in(8) {
            self.change_parts(d);
            return true;
        }
        match self.rng.below(40) {
            0..8 => {
                if self.rng.one_in(4) {
                    self.now_ns += 6_000_000_000;
                }
                self.apply(Event::Tick);
            }
            8..14 => {
                let blocks = *self.rng.pick(&[0, 1, 5, 20, 64, 200]) as u32;
                self.world.note(|| format!("capacity of disk {d}: {blocks}"));
                match self.core().set_capacity(id, blocks) {
                    Ok(()) => self.disk_options[d].capacity_blocks = blocks,
                    Err(AddDiskError::NoMemory { needed_bytes, left_bytes }) if needed_bytes > left_bytes => {}
                    Err(AddDiskError::Unknown(_)) => {}
                    Err(e) => self.world.violate(format!("a change of capacity was refused: {e}")),
                }
            }
            38 => {
                let blocks = *self.rng.pick(&[0, 1, 7, 40, u32::MAX]);
                self.world.note(|| format!("limit of disk {d}: {blocks}"));
                self.core().set_limit(id, blocks);
            }
            14..20 => {
                let kind = *self.rng.pick(&PolicyKind::ALL);
                self.world.note(|| format!("policy of disk {d}: {kind}"));
                self.core().set_policy(id, kind);
            }
            20..23 => {
                self.world.note(|| format!("invalidate disk {d}"));
                self.core().invalidate(id);
                let base = self.world.sides[d].base.as_ref().map(SimBase::told);
                if let Some(base) = base.filter(|_| self.rng.one_in(2)) {
                    self.core().set_base(id, base);
                }
            }
            23..28 => self.stalled[d] = self.steps + self.rng.below(400),
            28..30 => {
                let side = &mut self.world.sides[d];
                side.disk.geometry.fails_one_in = *self.rng.pick(&[0, 0, 20, 200]);
            }
            30..32 => {
                self.leaving[d] = true;
                self.world.note(|| format!("disk {d} leaves"));
                self.core().begin_shutdown(id);
                self.leave(d);
            }
            32..34 if self.crashes => self.crash(),
            // Not for every seed: those of faults that were found long ago are to run as they did.
            32..34 if self.shares && self.hints && self.rng.one_in(4) => {
                let hint = *self.rng.pick(&HINTS);
                self.world.note(|| format!("hint of disk {d}: {hint}"));
                self.core().set_hint(id, hint);
            }
            32..34 if self.shares => self.move_share(d),
            34..36 => self.rest(),
            36 => self.world.sides[d].sequential = 0,
            37 => self.count_guest(d),
            39 => {
                self.count_guest(d);
                self.guest_changes(d);
            }
            _ => {}
        }
        true
    }

    /// A small step of a disk's share, as a controller would take it; now and then a large one.
    fn move_share(&mut self, d: usize) {
        let now = self.disk_options[d].capacity_blocks;
        let step = self.rng.below(u64::from(now) / 4 + 4) as u32;
        let blocks = match self.rng.below(8) {
            0 => self.rng.below(200) as u32,
            1..5 => now.saturating_sub(step),
            _ => now + step,
        };
        self.world.note(|| format!("share of disk {d}: {blocks}"));
        match self.core().set_share(DiskId(d as u32), blocks) {
            Ok(()) => self.disk_options[d].capacity_blocks = blocks,
            Err(AddDiskError::NoMemory { needed_bytes, left_bytes }) if needed_bytes > left_bytes => {}
            Err(AddDiskError::Unknown(_)) => {}
            Err(e) => self.world.violate(format!("a step of a share was refused: {e}")),
        }
    }

    /// Removes a disk that is to leave, if it can, and adds it again with other options.
    fn leave(&mut self, d: usize) {
        let id = DiskId(d as u32);
        if !self.leaving[d] || !self.core().is_idle(id) {
            return;
        }
        self.count(d);
        self.ranges[d].clear();
        self.core().remove_disk(id);
        // Without it, the others have what they are promised and no more.
        self.core().check();
        self.leaving[d] = false;
        let room = self.disk_options[d].clone();
        let mut options = options_for(&self.world.sides[d].disk.geometry, &mut self.rng);
        options.readahead_bytes = room.readahead_bytes;
        options.share = room.share;
        if self.weak {
            options.exclusive = ExclusiveMode::Off;
        }
        if self.core().add_disk(id, options.clone()).is_err() {
            options.capacity_blocks = 0;
            if let Err(e) = self.core().add_disk(id, options.clone()) {
                return self.world.violate(format!("a disk does not fit where it was: {e}"));
            }
        }
        if let Some(base) = self.world.sides[d].base.as_ref().map(SimBase::told) {
            self.core().set_base(id, base);
        }
        self.disk_options[d] = options;
        self.guest_changes(d);
    }

    fn crash(&mut self) {
        self.world.note(|| "CRASH".into());
        let power_cut = self.rng.one_in(2);
        for d in 0..self.world.sides.len() {
            self.count(d);
        }
        let Some(mut core) = self.core.take() else { return };
        self.world.requests.clear();
        self.world.paused.clear();
        for d in 0..self.world.sides.len() {
            let now = self.world.tick();
            let side = &mut self.world.sides[d];
            side.disk.crash(power_cut, &mut self.rng).into_iter().for_each(|buf| core.reclaim(buf));
            if let Err(what) = side.model.restart(side.disk.medium(), now) {
                self.world.violate(format!("disk {d}: {what}"));
            }
            self.stalled[d] = 0;
            self.leaving[d] = false;
            self.ranges[d].clear();
        }
        drop(core);
        self.outcome.crashes += 1;
        self.boot();
    }

    /// Every disk does what it was told, and what follows from it.
    fn finish_operations(&mut self) {
        loop {
            for d in 0..self.world.sides.len() {
                self.stalled[d] = 0;
                while self.world.sides[d].disk.under_way() > 0 && self.world.violation.is_none() {
                    self.world.sides[d].disk.execute(&mut self.rng);
                    let now = self.world.tick();
                    if let Some(done) = self.world.sides[d].disk.deliver(&mut self.rng, now) {
                        self.world.note(|| format!("deliver {:?} {:?}", done.op, done.result));
                        self.apply(Event::IoDone(done));
                    }
                }
            }
            if self.world.violation.is_some() || !self.resume() {
                return;
            }
        }
    }

    /// Lets everything under way end, then checks what must hold when nothing is.
    fn rest(&mut self) {
        self.world.note(|| "rest".into());
        self.finish_operations();
        if self.world.violation.is_some() {
            return;
        }
        if let Some(p) = self.world.requests.values().next() {
            let what = format!("{:?} was never answered", p.req);
            return self.world.violate(what);
        }
        if self.shares {
            // What is over goes by now.
            (0..3).for_each(|_| self.apply(Event::Tick));
            // Hints may have begun to fetch.
            self.finish_operations();
            self.judge_parts_at_rest();
        }
        self.core().check();
        for d in 0..self.world.sides.len() {
            let id = DiskId(d as u32);
            let Self { core, world, .. } = self;
            let Some(core) = core.as_ref() else { return };
            let s = core.stats(id);
            if !core.is_idle(id) || s.inflight_requests != 0 || s.inflight_ops != 0 {
                world.violate(format!("disk {d} is not idle at rest: {s:?}"));
            }
            let medium = world.sides[d].disk.medium();
            let mut bad = None;
            core.for_each_cached(id, |block, bytes| {
                let at = (block * B) as usize;
                if medium.get(at..at + bytes.len()) != Some(bytes) {
                    bad = Some(block);
                }
            });
            if let Some(block) = bad {
                world.violate(format!("at rest, block {block} of disk {d} is not cached as it is on the disk"));
            }
        }
        self.judge_shares();
        for d in 0..self.world.sides.len() {
            self.leave(d);
        }
    }

    fn end(mut self) -> Result<Outcome, String> {
        for d in 0..self.world.sides.len() {
            self.count(d);
            for buf in self.world.sides[d].disk.crash(false, &mut self.rng) {
                self.core().reclaim(buf);
            }
        }
        self.outcome.answers = self.world.answers;
        self.outcome.captures = self.world.captures;
        match self.world.violation.take() {
            Some(what) => Err(what),
            None => Ok(self.outcome),
        }
    }
}

fn options_for(g: &SimGeometry, rng: &mut Rng) -> DiskOptions {
    DiskOptions {
        size_bytes: g.size + rng.below(g.align),
        align: g.align as u32,
        read_only: rng.one_in(30),
        can_discard: g.can_discard,
        can_write_zeroes: g.can_write_zeroes,
        policy: *rng.pick(&PolicyKind::ALL),
        capacity_blocks: *rng.pick(&[0, 1, 2, 7, 20, 64, 128, 300]),
        readahead_bytes: *rng.pick(&[0, 64 << 10, 512 << 10]),
        write_allocate: !rng.one_in(3),
        exclusive: *rng.pick(&ExclusiveMode::ALL),
        share: None,
    }
}
