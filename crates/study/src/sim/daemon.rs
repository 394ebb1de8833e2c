//! A recording of the daemon, replayed through the daemon's own data path with a disk that answers when it is told.
//!
//! Owns when operations complete, and the comparison of what the replay found with what the daemon found. Never holds a
//! byte of data: nothing is copied, so the frames of the core stay untouched and take no memory. Never decides: every
//! request goes through `Core::apply`, as in a worker. Invariant: every request put to the core is answered before the
//! end.
//!
//! The core is given what the recording says of each disk: size, capacity in blocks, policy, read-ahead, write
//! allocation, locks. The result names what cannot be reproduced: contents held once for several disks, a cache that is
//! exclusive of its guest's, shares that moved, pins that do not fit a smaller cache, what a rule had learnt before,
//! rows that are missing. Locks that were set anew while it was recorded are not in a recording.

use crate::sim::error::SimError;
use crate::sim::run::Go;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use undercroft_cache::{
    ByteRange, ContentKey, Core, CoreOptions, DiskId, DiskOptions, Effects, Event, Extent, Found, Geometry, Io, IoDone,
    IoError, Op, PinError, ReqId, Request, disk_bytes,
};
use undercroft_engine::locking::{LockMode, LockSettings};
use undercroft_engine::{ExclusiveMode, PolicyKind, UnknownName};
use undercroft_trace::recording::{
    self, RecordedDisk, RecordedFailure, RecordedLocks, Recording, RecordingHeader, Row,
};

/// Nanoseconds between two ticks of a core, as in a worker that is at work.
const TICK_NS: u64 = 250_000_000;
/// Ticks that are caught up with at most, after a long pause: what they do is done by then.
const TICKS_MAX: u64 = 64;
/// What an operation takes before the recording has told.
const FIRST_GUESS_NS: u64 = 100_000;
/// Bytes of a block of the daemon.
const BLOCK_BYTES: usize = 4096;
/// Blocks of a cache beyond which the guard of the rule that locks simulates a sample of them.
const GUARDED_WHOLE: u64 = 4096;
/// Alignment that every back end can do.
const ALIGN: u32 = 512;

/// When operations complete in a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DaemonTiming {
    /// When the daemon's reply went out, as recorded: requests overlap as they did.
    #[default]
    Recorded,
    /// Before the next request is put to the core: queue depth 1.
    OneByOne,
}

/// How to replay. What is not given is as recorded.
#[derive(Clone, Debug, Default)]
pub struct DaemonOptions {
    /// Another policy for every disk.
    pub policy: Option<PolicyKind>,
    /// Another capacity for every disk, in blocks.
    pub capacity_blocks: Option<u32>,
    /// When operations complete.
    pub timing: DaemonTiming,
}

/// How the blocks of reads were found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FoundBlocks {
    /// In RAM, those read ahead not counted.
    pub hit_blocks: u64,
    /// Among those read ahead.
    pub ahead_blocks: u64,
    /// Being read for somebody else.
    pub joined_blocks: u64,
    /// On the disk only.
    pub miss_blocks: u64,
}

impl FoundBlocks {
    fn add(&mut self, found: Found) {
        self.hit_blocks += u64::from(found.hits);
        self.ahead_blocks += u64::from(found.ahead);
        self.joined_blocks += u64::from(found.joined);
        self.miss_blocks += u64::from(found.missed);
    }

    /// Blocks in all.
    pub fn blocks(&self) -> u64 {
        self.hit_blocks + self.ahead_blocks + self.joined_blocks + self.miss_blocks
    }
}

/// What became of one disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DiskReplay {
    /// Its name.
    pub disk: String,
    /// The policy that was simulated.
    pub policy: &'static str,
    /// Blocks that it might cache in the simulation.
    pub capacity_blocks: u64,
    /// Requests replayed.
    pub requests: u64,
    /// Of those, reads that succeeded in the daemon.
    pub reads: u64,
    /// Reads whose blocks were all found in the same way as in the daemon.
    pub equal_reads: u64,
    /// The daemon's counts over those reads.
    pub recorded: FoundBlocks,
    /// The simulation's.
    pub simulated: FoundBlocks,
    /// Requests that were left out: the daemon refused them, or the image failed.
    pub left_out: u64,
}

/// What a replay came to.
#[derive(Debug, Default)]
pub struct DaemonReplay {
    /// One for each disk of the recording.
    pub disks: Vec<DiskReplay>,
    /// Known reasons for counts that differ from the daemon's; each a sentence.
    pub doubts: Vec<String>,
    /// Rows read.
    pub rows: u64,
    /// Whether it was ended before the recording was.
    pub stopped: bool,
    /// Why the recording could not be read to its end.
    pub broken: Option<SimError>,
}

/// An operation under way: when it completes, in which order it was sent, and what it is.
struct Due(u64, u64, Box<Io>);

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}
impl Eq for Due {}
impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

/// A request without an answer yet.
#[derive(Clone, Copy)]
struct Open {
    disk: u16,
    recorded: Option<Found>,
    blocks: u32,
}

/// Carries out what the core asks for.
struct World {
    disks: Vec<DiskReplay>,
    under_way: BinaryHeap<Reverse<Due>>,
    sent: u64,
    /// When what is submitted now completes.
    completes_ns: u64,
    /// The core's time.
    clock_ns: u64,
    /// When the next tick is due.
    tick_ns: u64,
    /// Requests under way, by their tags, and the replies to them.
    open: HashMap<u32, (Open, Option<Found>)>,
}

impl Effects for World {
    fn copy_out(&mut self, _req: ReqId, _at: usize, _bytes: &[u8]) {}

    fn copy_in(&mut self, _req: ReqId, _at: usize, _bytes: &mut [u8]) {}

    fn submit(&mut self, io: Io) {
        self.sent += 1;
        self.under_way.push(Reverse(Due(self.completes_ns, self.sent, Box::new(io))));
    }

    fn found(&mut self, req: ReqId, found: Found) {
        if let Some(open) = self.open.get_mut(&req.tag) {
            open.1 = Some(found);
        }
    }

    fn extents(&mut self, _req: ReqId, _extents: &[Extent]) {}

    fn reply(&mut self, req: ReqId, result: Result<(), IoError>) {
        let Some((open, found)) = self.open.remove(&req.tag) else { return };
        let disk = &mut self.disks[usize::from(open.disk)];
        disk.requests += 1;
        if result.is_err() {
            disk.left_out += 1;
            return;
        }
        let Some(recorded) = open.recorded else { return };
        // A read that found all of its blocks cached has no entry.
        let found = found.unwrap_or(Found { hits: open.blocks, ..Found::default() });
        disk.reads += 1;
        disk.equal_reads += u64::from(found == recorded);
        disk.recorded.add(recorded);
        disk.simulated.add(found);
    }
}

/// Replays a recording. `watch` is told how many rows have been replayed, and may end it.
///
/// # Errors
/// The recording says of its disks what cannot be. Damage further on is told in [`DaemonReplay::broken`].
pub fn replay(
    recording: &mut Recording,
    options: &DaemonOptions,
    watch: &mut dyn FnMut(u64) -> Go,
) -> Result<DaemonReplay, SimError> {
    let header = recording.header().clone();
    let mut doubts = doubts(recording);
    let (mut core, disks, of_locks) = core(&header, options)?;
    doubts.extend(of_locks);
    let mut world = World {
        disks,
        under_way: BinaryHeap::new(),
        sent: 0,
        completes_ns: 0,
        clock_ns: 0,
        tick_ns: TICK_NS,
        open: HashMap::new(),
    };
    let (mut rows, mut stopped, mut broken) = (0u64, false, None);
    let mut guess_ns = FIRST_GUESS_NS;
    loop {
        let group = match recording.next_group() {
            Ok(Some(group)) => group,
            Ok(None) => break,
            Err(e) => {
                broken = Some(e.into());
                break;
            }
        };
        for row in &group {
            // Rows of different workers alternate in pieces; a core's own clock never goes back.
            let now_ns = row.time_ns.max(world.clock_ns);
            let until_ns = if options.timing == DaemonTiming::OneByOne { u64::MAX } else { now_ns };
            pass(&mut core, &mut world, until_ns, now_ns);
            world.clock_ns = now_ns;
            guess_ns = row.latency_ns.unwrap_or(guess_ns);
            let completes_ns = now_ns.saturating_add(guess_ns);
            put(&mut core, &mut world, row, rows as u32, completes_ns);
            rows += 1;
        }
        if watch(rows) == Go::Stop {
            stopped = true;
            break;
        }
    }
    while complete_one(&mut core, &mut world, u64::MAX) {}
    if !world.open.is_empty() {
        doubts.push(format!("{} requests of the replay had no answer at its end", world.open.len()));
    }
    Ok(DaemonReplay { disks: world.disks, doubts, rows, stopped, broken })
}

/// Puts a row to the core; what it needs of the image completes at `completes_ns`.
fn put(core: &mut Core, world: &mut World, row: &Row, tag: u32, completes_ns: u64) {
    let now_ns = world.clock_ns;
    let op = match row.op {
        recording::RecordedOp::Read => Op::Read,
        recording::RecordedOp::Write => Op::Write { fua: false },
        recording::RecordedOp::Flush => Op::Flush,
        recording::RecordedOp::Discard => Op::Discard,
        recording::RecordedOp::WriteZeroes => Op::WriteZeroes { unmap: true, fua: false },
    };
    let disk = DiskId(row.disk.into());
    // Without room a worker leaves requests with the guest; so does the replay, until operations have completed.
    while core.room(disk) == 0 && complete_one(core, world, now_ns) {}
    if row.failure.is_some_and(|f| f != RecordedFailure::Unanswered) {
        world.disks[usize::from(row.disk)].left_out += 1;
        return;
    }
    let recorded =
        Found { hits: row.hit_blocks, ahead: row.ahead_blocks, joined: row.joined_blocks, missed: row.miss_blocks };
    let counts = row.op == recording::RecordedOp::Read && row.failure.is_none();
    let blocks = u32::try_from(row.blocks(BLOCK_BYTES as u32).1).unwrap_or(u32::MAX);
    let open = Open { disk: row.disk, recorded: counts.then_some(recorded), blocks };
    world.open.insert(tag, (open, None));
    let id = ReqId { port: row.client, tag };
    let request = Request { id, disk, op, offset: row.offset_bytes, len: row.length_bytes };
    world.completes_ns = completes_ns;
    core.apply(Event::Request(request), now_ns, world);
    if core.wants_spare() {
        core.apply(Event::Spare { copies: false }, now_ns, world);
    }
}

/// Completes what is due by `until_ns`, and gives the ticks that are due by `now_ns`, in the order of their times.
fn pass(core: &mut Core, world: &mut World, until_ns: u64, now_ns: u64) {
    // After a long pause there is nothing left for a tick to do.
    let behind = now_ns.saturating_sub(world.tick_ns) / TICK_NS;
    world.tick_ns += behind.saturating_sub(TICKS_MAX) * TICK_NS;
    loop {
        let due_ns = world.under_way.peek().map(|Reverse(due)| due.0).filter(|&at| at <= until_ns);
        let tick_ns = (world.tick_ns <= now_ns && world.tick_ns < u64::MAX).then_some(world.tick_ns);
        match (due_ns, tick_ns) {
            (Some(due), tick) if tick.is_none_or(|tick| due <= tick) => {
                complete_one(core, world, now_ns);
            }
            (_, Some(tick)) => {
                world.clock_ns = world.clock_ns.max(tick);
                world.completes_ns = world.clock_ns;
                core.apply(Event::Tick, world.clock_ns, world);
                world.tick_ns = tick.saturating_add(TICK_NS);
            }
            _ => return,
        }
    }
}

/// Completes the operation that is due first, at its time or at `now_ns` if that comes before; false if there is none.
fn complete_one(core: &mut Core, world: &mut World, now_ns: u64) -> bool {
    let Some(Reverse(Due(at_ns, _, io))) = world.under_way.pop() else { return false };
    world.clock_ns = at_ns.min(now_ns).max(world.clock_ns);
    // What this leads to was waiting for it, and is part of the same request's time.
    world.completes_ns = world.clock_ns;
    let done = IoDone { op: io.op, disk: io.disk, buf: io.buf, result: Ok(()), extents: vec![] };
    core.apply(Event::IoDone(done), world.clock_ns, world);
    true
}

fn bad(disk: &RecordedDisk, what: String) -> SimError {
    SimError::Options(format!("the recorded disk {}: {what}", disk.name))
}

/// A core with the disks of the recording, and what of their locks does not fit.
fn core(header: &RecordingHeader, options: &DaemonOptions) -> Result<(Core, Vec<DiskReplay>, Vec<String>), SimError> {
    if header.block_bytes as usize != BLOCK_BYTES {
        let what = format!("its blocks have {} bytes; the data path knows only {BLOCK_BYTES}", header.block_bytes);
        return Err(SimError::Options(format!("the recording cannot be replayed: {what}")));
    }
    let mut planned = vec![];
    let mut limits =
        CoreOptions { hash_seed: 0, contents: false, content_key: ContentKey::from_seed(0), ..CoreOptions::new(0) };
    for disk in &header.disks {
        let policy = match options.policy {
            Some(policy) => policy,
            None if disk.policy.is_empty() => {
                return Err(bad(disk, "the recording does not say what its policy was; give one (--policy)".into()));
            }
            None => disk.policy.parse().map_err(|e: UnknownName| bad(disk, e.to_string()))?,
        };
        // What disks have together is that of each; the first brings it.
        let follows = first_of(header, planned.len()).is_some_and(|first| first < planned.len());
        let recorded = if follows { 0 } else { disk.capacity_blocks };
        let capacity = options.capacity_blocks.map_or(recorded, u64::from);
        let too_large =
            |what: &str| bad(disk, format!("{what} of {capacity} blocks cannot be simulated; give a smaller --size"));
        let capacity = u32::try_from(capacity)
            .ok()
            .filter(|&n| n <= undercroft_units::SLOTS_MAX)
            .ok_or_else(|| too_large("a cache"))?;
        let readahead_bytes = u32::try_from(disk.readahead_bytes).unwrap_or(u32::MAX);
        let align = if disk.align_bytes.is_power_of_two() { disk.align_bytes.min(BLOCK_BYTES as u32) } else { ALIGN };
        let plan = DiskOptions {
            readahead_bytes,
            io_disks: disks_with(header, planned.len()),
            write_allocate: disk.write_allocate,
            exclusive: ExclusiveMode::Off,
            ..DiskOptions::new(&Geometry { align, ..Geometry::new(disk.size_bytes) }, policy, capacity)
        };
        limits.memory_bytes += disk_bytes(&limits, capacity, &plan);
        planned.push(plan);
    }
    // Room for what the core itself takes beside its disks.
    limits.memory_bytes += limits.memory_bytes / 64 + (1 << 20);
    let mut core =
        Core::new(limits).map_err(|e| SimError::Options(format!("the addresses of the caches cannot be had: {e}")))?;
    let mut disks = vec![];
    for (n, (disk, plan)) in header.disks.iter().zip(planned).enumerate() {
        disks.push(DiskReplay {
            disk: disk.name.clone(),
            policy: plan.policy.name(),
            capacity_blocks: plan.capacity_blocks.into(),
            ..DiskReplay::default()
        });
        let id = DiskId(n as u32);
        core.add_disk(id, plan).map_err(|e| bad(disk, e.to_string()))?;
        let first = first_of(header, n).unwrap_or(n);
        core.join_pool(id, DiskId(first as u32)).map_err(|e| bad(disk, e.to_string()))?;
        if header.store_bytes > 0 && first == n {
            // The daemon measures every disk, and what it measures with takes blocks from the disk's share.
            core.measure(id, Some(header.store_bytes / BLOCK_BYTES as u64));
        }
    }
    let mut doubts = vec![];
    for (n, disk) in header.disks.iter().enumerate() {
        let lacks = set_locks(&mut core, DiskId(n as u32), disk)?;
        doubts.extend(lacks.into_iter().map(|what| format!("{}: {what}", disk.name)));
    }
    for (n, disk) in disks.iter_mut().enumerate() {
        disk.capacity_blocks = core.stats(DiskId(n as u32)).capacity_blocks;
    }
    Ok((core, disks, doubts))
}

/// Locks of a disk as they were when it was recorded, as far as they fit: in a smaller cache pins may be too many. What
/// they lack, in words.
fn set_locks(core: &mut Core, id: DiskId, disk: &RecordedDisk) -> Result<Vec<String>, SimError> {
    let was = &disk.locks;
    if was.mode.is_empty() {
        return Ok(vec![]);
    }
    let mode = was.mode.parse().map_err(|e: UnknownName| bad(disk, e.to_string()))?;
    let &RecordedLocks { budget_permille, keep_held, miss_entries, victim_blocks, .. } = was;
    core.set_locking(id, LockSettings { mode, budget_permille, keep_held, miss_entries, victim_blocks });
    let ranges = |all: &[(u64, u64)]| -> Vec<ByteRange> {
        all.iter().map(|&(offset, bytes)| ByteRange { offset, bytes }).collect()
    };
    let mut lacks = vec![];
    let pins = ranges(&was.pins);
    match core.set_pins(id, &pins) {
        Err(PinError::OverBudget { pinned_bytes, budget_bytes }) => {
            lacks.push(format!(
                "its pins are {pinned_bytes} bytes, and {budget_bytes} may be locked in the simulated cache: no more \
                 of them are pinned"
            ));
            let fitting = first_blocks(&pins, budget_bytes / BLOCK_BYTES as u64);
            core.set_pins(id, &fitting).map_err(|e| bad(disk, e.to_string()))?;
        }
        Err(PinError::NoRoom) => lacks.push("the list of its pins does not fit into the simulated cache".into()),
        other => other.map_err(|e| bad(disk, e.to_string()))?,
    }
    match core.set_lock_profile(id, &ranges(&was.profile)) {
        Err(PinError::NoRoom) => lacks.push("its profile does not fit into the simulated cache".into()),
        other => other.map_err(|e| bad(disk, e.to_string()))?,
    }
    Ok(lacks)
}

/// The first of these ranges, that touch no more than so many blocks together.
fn first_blocks(ranges: &[ByteRange], blocks: u64) -> Vec<ByteRange> {
    let (bytes, mut left, mut first) = (BLOCK_BYTES as u64, blocks, vec![]);
    for range in ranges {
        let from = range.offset / bytes;
        let end = range.end().min((from + left) * bytes);
        if end <= range.offset {
            break;
        }
        first.push(ByteRange { offset: range.offset, bytes: end - range.offset });
        left -= end.div_ceil(bytes) - from;
    }
    first
}

/// The first disk of the recording that keeps its blocks together with disk `n`, `n` itself perhaps.
fn first_of(header: &RecordingHeader, n: usize) -> Option<usize> {
    let with = header.disks[n].together_with.as_ref()?;
    header.disks.iter().position(|d| d.together_with.as_ref() == Some(with))
}

/// Disks of the recording that keep their blocks together with disk `n`, it among them.
fn disks_with(header: &RecordingHeader, n: usize) -> u32 {
    let together = |with: &String| header.disks.iter().filter(|d| d.together_with.as_ref() == Some(with)).count();
    header.disks[n].together_with.as_ref().map_or(1, together).max(1) as u32
}

/// What a recording does not say of the locks of disk `n`.
fn lock_doubts(header: &RecordingHeader, n: usize) -> Vec<&'static str> {
    let disk = &header.disks[n];
    let is_online = disk.locks.mode == LockMode::Online.name();
    let mut all = vec![];
    if is_online && disk.cached_blocks > 0 {
        all.push("what the rule that locks had counted and locked before the recording is not in it");
    }
    if is_online && disk.capacity_blocks > GUARDED_WHOLE {
        all.push(
            "the rule that locks watches a sample of the blocks, which depends on a secret of the daemon; the \
             simulation has another",
        );
    }
    let common = |disk: &RecordedDisk| (disk.locks.budget_permille, disk.locks.keep_held, disk.locks.victim_blocks);
    let together = |other: &RecordedDisk| other.together_with.is_some() && other.together_with == disk.together_with;
    if header.disks.iter().any(|other| together(other) && common(other) != common(disk)) {
        all.push(
            "disks that keep their blocks together have different settings of locks, of which those hold that were set \
             last; the recording does not say which",
        );
    }
    all
}

/// Why the daemon may have found other blocks than a simulation can.
fn doubts(recording: &Recording) -> Vec<String> {
    let (header, trailer) = (recording.header(), recording.trailer());
    let mut all = vec![];
    if header.sample > 1 {
        all.push(format!(
            "only one of {} blocks is in the recording; simulate a cache of that part of the size",
            header.sample
        ));
    }
    if trailer.dropped > 0 {
        all.push(format!("{} requests are missing: the recorder could not keep up", trailer.dropped));
    }
    for (n, disk) in header.disks.iter().enumerate() {
        let name = &disk.name;
        let mut doubt = |what: &str| all.push(format!("{name}: {what}"));
        if disk.cached_blocks > 0 {
            doubt("its cache was not empty when the recording began");
        }
        if disk.exclusive != "off" {
            doubt("its cache may have been kept exclusive of the guest's, which a recording does not show");
        }
        if let Some(with) = &disk.together_with
            && header.disks.iter().all(|d| d.name != *with)
        {
            doubt("it kept its blocks together with those of a disk that is not in the recording");
        }
        if disk.shares_content {
            doubt(
                "blocks of equal content took memory once, and those of zeroes none, so more were cached than its \
                 capacity says",
            );
        }
        if let Some(end) = trailer.disks.get(n)
            && (end.capacity_blocks != disk.capacity_blocks || end.policy != disk.policy)
        {
            doubt("its capacity or policy changed while it was recorded");
        }
        if disk.policy == PolicyKind::WTinyLfu.name() {
            doubt("W-TinyLFU's sketch is keyed by a secret of the daemon; the simulation has another");
        }
        lock_doubts(header, n).into_iter().for_each(doubt);
    }
    all
}
