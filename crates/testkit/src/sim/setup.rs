//! What a run is like: the disks with their sizes and faults, the core over them, how busy the clients are.
//!
//! Owns the drawing of it. Never runs a step. Invariant: everything comes from the seed; what came to the simulation
//! later is drawn from numbers of its own, so that the seeds of old faults run as they did.

use super::extras::Extras;
use super::ssd::SsdRun;
use super::successor::{self, Left};
use super::{Sim, locks};
use crate::alike::SimBase;
use crate::outcome::Outcome;
use crate::rng::Rng;
use crate::sim_disk::{SimDisk, SimGeometry};
use crate::space::Space;
use crate::world::World;
use undercroft_cache::fault_injection::FaultInjection;
use undercroft_cache::{ContentKey, Core, CoreOptions, DiskId, DiskOptions, FramesIn, GroupId, disk_bytes, limits};
use undercroft_engine::shares::Hint;
use undercroft_engine::{ExclusiveMode, PolicyKind};
use undercroft_host::FRAME_BYTES;

const B: u64 = FRAME_BYTES as u64;

/// Frames that operations of one disk may have, where that is divided: more than what a part is at least.
const DIVIDED_FRAMES: u32 = 4 * limits::IO_FRAMES_LEAST as u32;

/// Blocks of the image in runs whose disks are all clones of one: more than any of them may keep, less than all may.
const CLONE_BLOCKS: u64 = 160;

/// The disks of a run.
#[derive(Default)]
struct Drawn {
    disks: Vec<SimDisk>,
    options: Vec<DiskOptions>,
    bases: Vec<Option<SimBase>>,
}

/// What the disks of a run have in common.
struct Ground {
    /// They are all clones of one image.
    clones: bool,
    /// The first one is large, and nearly empty.
    sparse: bool,
    /// Some belong to trust groups.
    sharing: bool,
    /// The images that they stand on.
    image: u64,
    image_bytes: u64,
    cluster: u64,
}

impl Ground {
    fn new(clones: bool, sparse: bool, rng: &mut Rng) -> Self {
        let sharing = !rng.one_in(4);
        let image = rng.bits() >> 16;
        let image_bytes = rng.between(1, 170) * B + rng.below(2) * rng.below(B);
        let cluster = *rng.pick(&[B, B, 4 * B]);
        Self { clones, sparse, sharing, image, image_bytes, cluster }
    }

    /// Draws one more disk.
    fn disk(&self, drawn: &mut Drawn, rng: &mut Rng) {
        let (clones, first) = (self.clones, drawn.disks.is_empty());
        let align = *rng.pick(&[1u64, 512, 512, 512, 4096]);
        let blocks = *rng.pick(&[1u64, 4, 16, 40, 100, 160]);
        let partial = if rng.one_in(2) { 0 } else { rng.below(B) / align * align };
        let blocks = if clones { CLONE_BLOCKS } else { blocks };
        let size = if clones { blocks * B } else { blocks * B + partial };
        let islands = (self.sparse && !clones && first).then(|| Space::sparse(blocks.min(40), partial));
        let size = islands.as_ref().map_or(size, |i| i.1);
        let geometry = SimGeometry {
            size,
            align,
            can_discard: !rng.one_in(4),
            can_write_zeroes: !rng.one_in(3),
            zeroes_lie: rng.one_in(5),
            fails_one_in: *rng.pick(&[0, 0, 0, 30, 200]),
        };
        let mut options = options_for(&geometry, rng);
        options.group =
            if self.sharing { *rng.pick(&[None, Some(GroupId(0)), Some(GroupId(0)), Some(GroupId(1))]) } else { None };
        if clones {
            (options.group, options.capacity_blocks) = (Some(GroupId(0)), *rng.pick(&[20, 40, 60]));
        }
        drawn.options.push(options);
        if let Some((space, _)) = islands {
            drawn.bases.push(None);
            drawn.disks.push(SimDisk::sparse(geometry, space));
        } else if clones {
            let (base, medium) =
                SimBase::new(self.image % 4, blocks * B, self.cluster, geometry.size, || rng.one_in(32));
            drawn.bases.push(Some(base));
            drawn.disks.push(SimDisk::with_content(geometry, medium));
        } else if rng.one_in(3) {
            drawn.bases.push(None);
            drawn.disks.push(SimDisk::new(geometry));
        } else {
            let (base, medium) =
                SimBase::new(self.image % 4, self.image_bytes, self.cluster, geometry.size, || rng.one_in(4));
            drawn.bases.push(Some(base));
            drawn.disks.push(SimDisk::with_content(geometry, medium));
        }
    }
}

impl<P: FaultInjection> Sim<P> {
    pub(super) fn new(seed: u64, faults: P, with_log: bool) -> Self {
        let mut rng = Rng::new(seed);
        let mut extras = Extras::new(seed);
        let clones = seed % 8 == 5;
        let disks = extras.disks(if clones { rng.between(3, 6) } else { rng.between(1, 3) } as usize);
        let io_frames = *rng.pick(&[1u32, 2, 3, 8, 16, 64, 64, 256]);
        let ground = Ground::new(clones, extras.sparse, &mut rng);
        let mut drawn = Drawn::default();
        (0..disks).for_each(|_| ground.disk(&mut drawn, &mut rng));
        let Drawn { disks: mut sims, options: mut disk_options, bases } = drawn;
        sims.iter_mut().zip(&mut disk_options).for_each(|(disk, options)| extras.shape(disk, options));
        let ssd = SsdRun::below(&mut disk_options, seed);
        let mut content_key = ContentKey::from_seed(rng.bits());
        let weak = rng.one_in(3) && !extras.opaque;
        if weak {
            // Unequal contents of equal hash: shared contents are compared, copies of guests' pages are not.
            content_key = content_key.weakened(rng.between(1, 4) as u32);
            disk_options.iter_mut().for_each(|o: &mut DiskOptions| o.exclusive = ExclusiveMode::Off);
        }
        let mut core_options = CoreOptions {
            memory_bytes: 0,
            io_frames_per_disk: extras.divided.as_ref().map_or(io_frames, |_| DIVIDED_FRAMES),
            io_frames_guaranteed: extras.guaranteed.unwrap_or(limits::IO_FRAMES_GUARANTEED as u32),
            requests_per_disk: *rng.pick(&[4, 16, 64]),
            hash_seed: rng.bits(),
            contents: !rng.one_in(6) || extras.opaque,
            content_key,
            // Not for every seed: those of faults that were found long ago are to run as they did.
            step_bytes: if seed % 8 == 1 { [1, B, 3 * B, 16 * B][seed as usize / 8 % 4] } else { u64::MAX },
            frames: FramesIn::Own,
        };
        let needed: u64 = disk_options.iter().map(|o| disk_bytes(&core_options, o.capacity_blocks, o)).sum();
        // A little more than needed for the arena's own, and sometimes room to grow.
        core_options.memory_bytes = needed + needed / 500 + 8192 + *rng.pick(&[0, 100 * B, 1000 * B]);
        let busy = *rng.pick(&[1usize, 2, 6, 12, 24]);
        let crashes = rng.one_in(2) && !extras.opaque && (extras.offsets.is_none() || seed.is_multiple_of(2));
        let multi_block = if extras.opaque { 40 } else { *rng.pick(&[2, 4, 10, 90]) };
        let multi_block = multi_block.max(if extras.offsets.is_some() { 20 } else { 0 });
        let mostly_reads = rng.one_in(3) || clones || extras.opaque;
        let (world, on) = (World::new(sims, rng.bits(), with_log), extras.on);
        let mut sim = Self {
            rng,
            core: None,
            faults,
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
            shares: seed % 4 == 3 && !extras.opaque || extras.mixes,
            hints: seed % 16 == 15,
            multi_block,
            mostly_reads,
            weak,
            extras,
            ssd,
            succession: successor::drawn(seed),
            hinted: vec![Hint::Normal; disks],
            scanned: vec![false; disks],
            measured: vec![None; disks],
            locks: locks::drawn(seed, on, disks),
        };
        sim.world.sides.iter_mut().take(sim.extras.disks_of_first()).for_each(|side| side.guest_of = 0);
        sim.world.sides.iter_mut().enumerate().for_each(|(d, side)| side.opaque = sim.extras.is_opaque(d, seed));
        if sim.extras.loses {
            sim.world.ports = 3;
        }
        sim.stand_on(bases);
        sim.boot();
        sim
    }

    /// Disks stand on their bases, and those that share contents are told apart from the others.
    fn stand_on(&mut self, bases: Vec<Option<SimBase>>) {
        for (i, base) in bases.into_iter().enumerate() {
            let side = &mut self.world.sides[i];
            side.base = base;
            side.group = self.disk_options[i].group.map_or(10 + i as u64, |g| u64::from(g.0));
        }
    }

    pub(super) fn boot(&mut self) {
        self.boot_after(None);
    }

    /// Starts a core, which goes on with what another has left.
    pub(super) fn boot_after(&mut self, left: Option<Left>) {
        let options = CoreOptions { frames: self.frames_after(left.as_ref()), ..self.core_options.clone() };
        let mut core = Core::with_faults(options, self.faults).expect("address space for a small core");
        for (i, o) in self.disk_options.iter().enumerate() {
            if let Err(e) = core.add_disk(DiskId(i as u32), o.clone()) {
                panic!("the ceiling was made for these disks: {e}");
            }
            if let Some(base) = &self.world.sides[i].base {
                core.set_base(DiskId(i as u32), base.told());
            }
        }
        self.core = Some(core);
        match left {
            Some(left) => self.take_over(left),
            None => self.boot_ssd(),
        }
        self.world.forget_guests();
        for d in 0..self.world.sides.len() {
            (self.hinted[d], self.scanned[d], self.measured[d]) = (Hint::Normal, false, None);
            self.forget_locks(d);
            self.open_ports(d);
        }
        for d in 0..self.world.sides.len() {
            if self.extras.opaque {
                // Few blocks are kept, so that most that a guest evicts are not cached.
                self.core().set_limit(DiskId(d as u32), 7);
            }
            if self.world.sides[d].guest_of == d {
                self.guest_changes(d);
            }
        }
    }
}

/// How the core is to serve a disk.
pub(super) fn options_for(g: &SimGeometry, rng: &mut Rng) -> DiskOptions {
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
        group: None,
        io_disks: 1,
    }
}
