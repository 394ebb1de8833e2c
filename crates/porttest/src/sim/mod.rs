//! Ports in the loop: real vhost-user, NBD, FUSE and ublk ports on rings, streams and queues in memory, over the real
//! core, over simulated disks, in one run that a seed fixes.
//!
//! Owns the order of events, all of it drawn from the seed. Never uses time, threads or entropy. Invariant: the same
//! seed, steps and bug give the same run; so a failure replays.
//!
//! Clients post and send, what they send arrives in pieces, disks execute operations and deliver their completions in
//! any order, some with failures, some of what they read cannot be read at all. The process dies at any single store to
//! the record of requests under way or to the used ring, and a fresh one finds both; hosts lose their power; front ends
//! break off and come back; guests start anew, mask their notifications, give memory back, and post chains that make
//! no sense. What is checked: all data against a model of what each sector may hold; each chain seen used, and each
//! request answered, exactly once, with the right status; no sleeper left unwoken; nobody starved; no memory taken from
//! the host to copy what a guest gave back.

mod coverage;
mod life;
mod losses;
mod migrations;
mod port;
mod rest;
mod serve;
mod storms;
#[cfg(test)]
mod tests;
mod traffic;
mod world;

use crate::faults::{Switched, die_at, plant};
use crate::work::Violation;
pub use coverage::Coverage;
use losses::STEPS_BETWEEN;
use port::{Peer, SimPort};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use undercroft_cache::{ContentKey, Core, CoreOptions, DiskId, DiskOptions, Event, Geometry};
use undercroft_engine::{ExclusiveMode, PolicyKind};
use undercroft_frontend::DiskInfo;
use undercroft_frontend::faults::PortBug;
use undercroft_frontend::turns::{Flows, Turn};
use undercroft_testkit::rng::Rng;
use undercroft_testkit::sim_disk::{SimDisk, SimGeometry};
use world::{B, Side, World};

/// How far behind the beginnings of 4096 bytes a guest's pages begin: partitions at sector 63, file systems of 1 KiB
/// blocks, and others.
const PAGINGS: [u64; 4] = [1024, 512, 2048, 3584];
/// How many times as long runs are in which they do: with these, two of five runs at least come that far.
const PAGING_TIMES: u64 = 3;
/// Capacity of disks of guests that give memory back: enough for a table of the guest's pages.
const FEW_BLOCKS: u32 = 64;
/// Of the times that guests give memory back, one in so many has one begin afresh.
const AFRESH: u64 = 8;
/// Sets the order in which guests give memory back apart from all else.
const BALLOON: u64 = 0xba11;
/// Sets the order in which guests migrate apart from all else.
const MIGRATION: u64 = 0x319a;
/// Notes that are kept of a run that goes wrong.
const NOTES: usize = 5000;

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Fixes everything that happens.
    pub seed: u64,
    /// Events; twice as many where pages of guests lie across blocks.
    pub steps: u64,
    /// A bug that the ports have.
    pub bug: Option<PortBug>,
    /// The core loses data on the way to the ports, which must not be covered up.
    pub lossy: bool,
}

/// What a run that found nothing wrong has done.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Events.
    pub steps: u64,
    /// Requests answered.
    pub answers: u64,
    /// Deaths of the process, power cuts among them.
    pub kills: u64,
    /// Which rare things have met.
    pub coverage: Coverage,
}

/// Runs a plan.
///
/// # Errors
/// What went wrong, with the last events before it.
pub fn run(plan: Plan) -> Result<Outcome, Violation> {
    once(plan, false).map_err(|what| {
        // Once more, with notes: the same seed goes the same way.
        let again = once(plan, true).err();
        let again = again.map_or_else(|| "(not seen again: not deterministic)".to_string(), |what| what.to_string());
        format!("seed {}: {what}\n{again}", plan.seed).into()
    })
}

/// Runs a plan once, without events to read unless `with_log`.
///
/// # Errors
/// What went wrong.
pub fn once(plan: Plan, with_log: bool) -> Result<Outcome, Violation> {
    plant(plan.bug);
    let (mut step, mut log) = (0, Vec::new());
    let result = catch_unwind(AssertUnwindSafe(|| {
        let mut sim = Sim::new(&plan, with_log);
        // Hundreds of pages have to be asked for until blocks are counted from where pages begin.
        let steps = if sim.paging.is_some() { PAGING_TIMES * plan.steps } else { plan.steps };
        while step < steps && sim.world.violation.is_none() {
            step += 1;
            sim.step();
            // Dropped also when an assertion fails, so the notes are passed out as they are made.
            if let Some(notes) = &mut sim.world.log {
                log.append(notes);
                log.drain(..log.len().saturating_sub(NOTES));
            }
        }
        if sim.world.violation.is_none() {
            sim.rest();
        }
        log.extend(sim.world.log.take().unwrap_or_default());
        sim.end()
    }));
    plant(None);
    die_at(None);
    let what = match result {
        Ok(Ok(outcome)) => return Ok(outcome),
        Ok(Err(what)) => what.to_string(),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
            format!("assertion: {}", text.unwrap_or_default())
        }
    };
    Err(format!("step {step}: {what}\n{}", log.join("\n")).into())
}

struct Sim {
    rng: Rng,
    core: Option<Core>,
    core_options: CoreOptions,
    disk_options: Vec<DiskOptions>,
    world: World,
    now_ns: u64,
    steps: u64,
    /// Work under way of one port at most.
    busy: usize,
    kills: u64,
    /// One store in so many of those that may kill does.
    deadly: u64,
    /// Whose turn it is, and the turn under way with what it has cost.
    flows: Flows<Switched>,
    turn: Option<Turn>,
    turn_bytes: i64,
    /// Disks lose what was not flushed, now and then.
    loses: bool,
    /// Front ends connect anew, again and again, while they are to be told of a loss.
    told_to_nobody: bool,
    /// Guests read and write whole pages that begin so many bytes after a multiple of 4096, and little else happens, so
    /// that there is time for the core to count blocks from there.
    paging: Option<u64>,
    /// Guests give memory back, so much at a time that blocks are often gone before they are copied.
    balloons: Option<Rng>,
    /// Guests migrate, while all else happens.
    migrations: Option<Rng>,
    /// Of the clients of a disk, some use it as a file, or as a block device.
    files: bool,
    devices: bool,
    /// A loss that is to be reported once more, by a planted bug.
    lost_again: Option<(usize, Vec<Range<u64>>)>,
}

/// A disk, and how the core is to serve it, drawn.
fn drawn_disk(rng: &mut Rng, d: u32) -> (Side, DiskOptions) {
    let blocks = *rng.pick(&[4u64, 16, 40, 100, 600]);
    let partial = if rng.one_in(2) { 0 } else { rng.below(8) * 512 };
    let mut geometry = SimGeometry {
        size: blocks * B + partial,
        align: *rng.pick(&[1, 512, 512]),
        can_discard: !rng.one_in(4),
        can_write_zeroes: !rng.one_in(3),
        zeroes_lie: rng.one_in(5),
        fails_one_in: *rng.pick(&[0, 0, 0, 30, 200]),
    };
    let mut bad = None;
    if rng.one_in(3) {
        geometry.fails_one_in = 0;
        let block = rng.below(blocks);
        bad = Some(block * B..(block + 1) * B);
    }
    let told = Geometry {
        size_bytes: geometry.size,
        align: geometry.align as u32,
        read_only: false,
        can_discard: geometry.can_discard,
        can_write_zeroes: geometry.can_write_zeroes,
    };
    let options = DiskOptions::new(&told, *rng.pick(&PolicyKind::ALL), *rng.pick(&[0, 2, 20, 64, 300]));
    let options = DiskOptions {
        readahead_bytes: *rng.pick(&[0, 64 << 10, 512 << 10]),
        write_allocate: !rng.one_in(3),
        exclusive: *rng.pick(&ExclusiveMode::ALL),
        ..options
    };
    let info = DiskInfo { name: format!("disk {d}"), disk: DiskId(d), geometry: told, serial: "simulated".into() };
    (Side::new(info, SimDisk::new(geometry), bad), options)
}

impl Sim {
    fn new(plan: &Plan, with_log: bool) -> Sim {
        let mut rng = Rng::new(plan.seed);
        // Not drawn: seeds of faults that were found are to run as they did.
        let balloons = plan.seed % 10 == 7;
        let paging = (plan.seed % 5 == 1).then(|| PAGINGS[(plan.seed / 5 % 4) as usize]).or(balloons.then_some(0));
        let drawn = rng.between(1, 3) as u32;
        // One disk's guests see enough pages in one life of the daemon.
        let disks = if paging.is_some_and(|behind| behind != 0) { 1 } else { drawn };
        let (mut sides, mut disk_options) = (Vec::new(), Vec::new());
        for d in 0..disks {
            let (mut side, mut options) = drawn_disk(&mut rng, d);
            if let Some(behind) = paging {
                // So that there is a table of the guest's pages.
                options.capacity_blocks = options.capacity_blocks.max(64);
                if options.exclusive == ExclusiveMode::Off {
                    options.exclusive = ExclusiveMode::Auto;
                }
                if balloons {
                    // Kept to however few copies hold their block; and blocks that have to go.
                    options.exclusive = ExclusiveMode::Capture;
                    options.capacity_blocks = FEW_BLOCKS;
                }
                side.behind = behind;
            }
            sides.push(side);
            disk_options.push(options);
        }
        let core_options = CoreOptions {
            memory_bytes: 64 << 20,
            io_frames_per_disk: *rng.pick(&[1u32, 2, 8, 64, 256]),
            io_frames_guaranteed: undercroft_cache::limits::IO_FRAMES_GUARANTEED as u32,
            requests_per_disk: *rng.pick(&[4, 16, 64, 1024]),
            hash_seed: rng.bits(),
            contents: !rng.one_in(6),
            content_key: ContentKey::from_seed(rng.bits()),
            // Not drawn either.
            step_bytes: [u64::MAX, 1, 12 * 1024][(plan.seed % 3) as usize],
            frames: undercroft_cache::FramesIn::Own,
        };
        let mut world = World::new(sides, Rng::new(rng.bits()), with_log);
        world.loses_one_in = if plan.lossy { 20 } else { 0 };
        let mut sim = Sim {
            busy: *rng.pick(&[2, 8, 24]),
            deadly: *rng.pick(&[0, 1, 1, 4]) * u64::from(paging.is_none()),
            rng,
            core: None,
            core_options,
            disk_options,
            world,
            now_ns: 0,
            steps: 0,
            kills: 0,
            flows: Flows::default(),
            turn: None,
            turn_bytes: 0,
            loses: plan.seed.is_multiple_of(2),
            // Not drawn either.
            told_to_nobody: plan.seed % 8 == 6,
            paging,
            // Where pages are copied at all; with an order of its own, for the same reason.
            balloons: balloons.then(|| Rng::new(plan.seed ^ BALLOON)),
            migrations: (plan.seed % 4 == 1).then(|| Rng::new(plan.seed ^ MIGRATION)),
            // Not drawn either.
            files: plan.seed % 7 == 5,
            devices: plan.seed % 7 == 1,
            lost_again: None,
        };
        sim.boot();
        sim.add_ports();
        sim.open_ports();
        sim
    }

    /// A core with all disks.
    fn boot(&mut self) {
        let mut core = Core::new(self.core_options.clone()).expect("address space for a small core");
        for (d, options) in self.disk_options.iter().enumerate() {
            core.add_disk(DiskId(d as u32), options.clone()).expect("the disks are small");
        }
        self.core = Some(core);
    }

    /// Of each disk a guest, or not, and some clients.
    fn add_ports(&mut self) {
        for d in 0..self.world.sides.len() {
            let guest = !self.rng.one_in(5);
            let clients = if guest { self.rng.below(3) } else { self.rng.between(1, 3) };
            for n in 0..clients + u64::from(guest) {
                let id = self.world.ports.len() as u32;
                let info = self.world.sides[d].info.clone();
                let peer = if guest && n == 0 {
                    Peer::Guest(Box::new(crate::vhost::sim_guest::SimGuest::new(id, &info, &mut self.rng)))
                } else if self.files && n % 2 == u64::from(guest) {
                    Peer::File(Box::new(crate::fuse::sim_file::SimFile::new(id, &info, &mut self.rng)))
                } else if self.devices && n % 2 == u64::from(guest) {
                    Peer::Device(Box::new(crate::ublk::sim_device::SimBlockDevice::new(id, &info, &mut self.rng)))
                } else {
                    Peer::Client(Box::new(crate::nbd::sim_client::SimClient::new(id, &info, &mut self.rng)))
                };
                self.world.ports.push(SimPort::new(peer, d));
                self.activate(id as usize);
            }
        }
        for p in 0..self.world.ports.len() {
            if let Peer::Guest(guest) = &mut self.world.ports[p].peer {
                let result = guest.connect();
                self.world.lived(result);
                self.after_message(p);
            }
        }
    }

    fn core(&mut self) -> &mut Core {
        self.core.as_mut().expect("a core, but in the middle of a death")
    }

    fn apply(&mut self, event: Event) {
        let (now, world) = (self.now_ns, &mut self.world);
        self.core.as_mut().expect("a core").apply(event, now, world);
    }

    fn any_port(&mut self) -> usize {
        self.rng.below(self.world.ports.len() as u64) as usize
    }

    fn step(&mut self) {
        self.steps += 1;
        self.world.tick();
        self.now_ns += self.rng.below(2_000_000);
        if self.lost_again.is_some()
            && self.rng.one_in(40)
            && let Some((d, ranges)) = self.lost_again.take()
        {
            self.report_lost(d, ranges);
        }
        let _ = match self.rng.below(1000) {
            0..280 => self.ask(),
            280..480 => self.serve(),
            480..620 => self.execute() || self.serve(),
            620..760 => self.deliver() || self.execute(),
            760..900 => self.listen(),
            900..940 => self.arrive(),
            940..960 => {
                self.world.flush_ports();
                true
            }
            960..970 => self.spare(),
            _ => self.rare(),
        };
        if self.told_to_nobody && self.steps.is_multiple_of(STEPS_BETWEEN) && self.world.dead.is_none() {
            self.lose_and_reconnect();
        }
        if self.world.dead.is_some() {
            self.start_anew(false);
            self.migrate_after_death();
        }
        if self.steps.is_multiple_of(8) {
            self.migrate_now_and_then();
        }
        if self.paging.is_some() && self.steps.is_multiple_of(16) {
            self.look_at_blocks();
            self.give_memory_back();
        }
        self.wake();
        self.let_go();
        if self.steps.is_multiple_of(64) {
            self.world.judge_patience();
            self.judge_answers();
        }
        if self.steps.is_multiple_of(256) {
            self.core().check();
        }
    }

    /// Notes where the blocks of each disk begin.
    fn look_at_blocks(&mut self) {
        for d in 0..self.world.sides.len() {
            let offset = self.core().exclusive(DiskId(d as u32)).map_or(0, |r| u64::from(r.block_offset));
            let before = std::mem::replace(&mut self.world.sides[d].block_offset, offset);
            if offset != before && offset != 0 {
                self.world.note(|| format!("blocks of disk {d} begin {offset} bytes after multiples of 4096"));
                self.world.coverage.met("blocks begin", format!("{offset} bytes after multiples of 4096"));
            }
        }
    }

    /// A guest gives memory back, where some do.
    fn give_memory_back(&mut self) {
        if self.balloons.is_some() {
            // Only blocks whose contents are known are copied.
            self.spare();
        }
        let Some(rng) = &mut self.balloons else { return };
        self.world.ports.iter_mut().filter_map(SimPort::guest).for_each(|guest| guest.give_back(rng));
        if rng.one_in(AFRESH) {
            // What is known of its pages is looked through, those that it has given back among them.
            let d = rng.below(self.world.sides.len() as u64) as u32;
            self.core().restart_guest(DiskId(d));
        }
    }

    /// The next stores may be the last.
    fn arm_death(&mut self) {
        if self.deadly > 0 && self.rng.one_in(60 * self.deadly) {
            die_at(Some(self.rng.below(24)));
        }
    }

    fn execute(&mut self) -> bool {
        let d = self.rng.below(self.world.sides.len() as u64) as usize;
        self.world.sides[d].execute(&mut self.rng)
    }

    fn deliver(&mut self) -> bool {
        let d = self.rng.below(self.world.sides.len() as u64) as usize;
        let now = self.world.tick();
        let Some(done) = self.world.sides[d].deliver(&mut self.rng, now) else { return false };
        self.world.note(|| format!("deliver {:?} {:?}", done.op, done.result));
        self.world.sides[d].answered = self.steps;
        self.arm_death();
        self.apply(Event::IoDone(done));
        if self.rng.one_in(2) {
            self.world.flush_ports();
        }
        die_at(None);
        true
    }

    fn spare(&mut self) -> bool {
        let copies = !self.rng.one_in(5);
        self.apply(Event::Spare { copies });
        true
    }

    fn end(mut self) -> Result<Outcome, Violation> {
        let mut bufs = Vec::new();
        for side in &mut self.world.sides {
            bufs.extend(side.disk.crash(false, &mut self.rng));
            bufs.extend(side.bad_ops.drain(..).map(|io| io.buf));
        }
        bufs.append(&mut self.world.grave);
        bufs.into_iter().for_each(|buf| self.core().reclaim(buf));
        match self.world.violation.take() {
            Some(what) => Err(what.into()),
            None => Ok(Outcome {
                steps: self.steps,
                answers: self.world.answers,
                kills: self.kills,
                coverage: self.world.coverage,
            }),
        }
    }
}
