//! Shares of the SSD store: who has how much of it, by the same controllers as of RAM, and what more of either store
//! would bring.
//!
//! Owns what is known of disks below RAM, and a tree, a governor and shares for each worker, since a worker's part of
//! the store serves its own disks only. Never asks or tells a worker. Invariant: the shares of a worker's disks come to
//! at most the room of its store, and one grows only by what others have given up or nobody had.
//!
//! A disk's curve is what both stores together would miss, beyond the RAM that it has: RAM is divided first.

use super::ends::Ends;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use undercroft_cache::ssd::OwnerStats;
use undercroft_cache::{Core, DiskId};
use undercroft_config::{Layout, ServePlan, UNIT_BYTES, keys};
use undercroft_engine::control::{Activity, ControllerKind, Event, Governor, Leaf, Mover, Position};
use undercroft_engine::curve::{Benefit, Stacked, StoreTimes};
use undercroft_engine::shares::BLOCKS_MAX;
use undercroft_engine::{Curve, Telemetry};

/// The part of a worker's store by which a share changes in an interval at most: what grows is written to flash.
const STEP_PART: u64 = 32;
/// What is asked how much it would bring is a tenth of what a disk has.
const NEXT_PART: u64 = 10;

/// What a worker has counted of a disk, since it was added.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::service) struct Counted {
    /// Blocks that it may have in RAM, with those that it keeps its blocks together with.
    ram_blocks: u64,
    /// Blocks that the worker's store has room for.
    room: u64,
    /// What the store has of it, if it uses one.
    owner: Option<OwnerStats>,
    image_ns: u64,
    image_blocks: u64,
    below_ns: u64,
    below_blocks: u64,
}

impl Counted {
    /// What there is now.
    pub(super) fn of(core: &Core, id: DiskId) -> Self {
        let stats = core.stats(id);
        Self {
            ram_blocks: stats.capacity_blocks,
            room: core.ssd().map_or(0, |ssd| ssd.stats().iter().map(|s| s.room).sum()),
            owner: core.ssd_stats_of(id),
            image_ns: stats.backend_read_ns,
            image_blocks: stats.backend_read_bytes / UNIT_BYTES,
            below_ns: stats.ssd_read_ns,
            below_blocks: stats.ssd_hit_blocks,
        }
    }

    /// Blocks of both stores up to which the disk is to be measured; `None` if it has no share of the one below.
    pub(super) fn reach(&self, ram_most: u64) -> Option<u64> {
        self.owner.filter(|owner| owner.share_blocks > 0).map(|_| ram_most.saturating_add(self.room))
    }
}

/// What is measured of a disk in an interval.
pub(super) struct Interval<'a> {
    pub(super) worker: usize,
    pub(super) counted: Counted,
    pub(super) telemetry: Option<&'a Telemetry>,
    /// Disks that were measured together.
    pub(super) disks: u64,
    /// What a read that hits RAM takes.
    pub(super) hit_us: f64,
    pub(super) elapsed: Duration,
}

/// What is known of a disk.
#[derive(Clone, Debug, Default)]
pub(in crate::service) struct BelowDisk {
    worker: usize,
    counted: Counted,
    seen: Activity,
    /// Misses by blocks below, with the RAM that it has.
    beyond: Option<Curve>,
    /// Misses by blocks of both together.
    pub(in crate::service) both: Option<Curve>,
    /// Blocks that it has, and is to have; `None` until they have been divided.
    pub(in crate::service) share: Option<u64>,
    pub(in crate::service) target: u64,
    /// What more of each would bring, and of how many blocks.
    pub(in crate::service) next_ram: (u64, Benefit),
    pub(in crate::service) next_below: (u64, Benefit),
    /// Seconds that the interval took.
    pub(in crate::service) seconds: f64,
}

impl BelowDisk {
    /// Whether it uses the store.
    pub(in crate::service) fn is_below(&self) -> bool {
        self.share.is_some()
    }

    /// Blocks of it that are there.
    pub(in crate::service) fn cached(&self) -> u64 {
        self.counted.owner.map_or(0, |owner| owner.blocks)
    }

    /// Blocks found there in the last interval, and not found.
    pub(in crate::service) fn hits_and_misses(&self) -> (u64, u64) {
        (self.seen.requests - self.seen.misses, self.seen.misses)
    }

    /// An interval has ended.
    fn note(&mut self, now: &Interval<'_>) {
        let before = std::mem::replace(&mut self.counted, now.counted);
        let since = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
        let found = |of: &Counted| of.owner.map_or((0, 0), |owner| (owner.hits, owner.misses));
        let ((hits, misses), (hits_before, misses_before)) = (found(&now.counted), found(&before));
        let (hits, misses) = (since(hits, hits_before), since(misses, misses_before));
        let disks = now.disks.max(1);
        let ram_blocks = now.counted.ram_blocks / disks;
        self.worker = now.worker;
        self.seconds = now.elapsed.as_secs_f64().max(1e-3);
        self.both = now.telemetry.and_then(|t| t.deep.clone());
        self.beyond = self.both.as_ref().map(|both| both.beyond(ram_blocks));
        self.seen = Activity {
            requests: hits + misses,
            misses,
            distinct: now.telemetry.map_or(0, |t| t.distinct).min(hits + misses),
            iops: (hits + misses) as f64 / self.seconds,
            ..Activity::default()
        };
        let mean = |ns: u64, blocks: u64| if blocks == 0 { 0.0 } else { ns as f64 / blocks as f64 / 1e3 };
        let image_blocks = since(now.counted.image_blocks, before.image_blocks);
        let below_blocks = since(now.counted.below_blocks, before.below_blocks);
        let times = StoreTimes {
            ram_us: now.hit_us,
            // Of an interval without one, what it was on average.
            below_us: match below_blocks {
                0 => mean(now.counted.below_ns, now.counted.below_blocks),
                n => mean(since(now.counted.below_ns, before.below_ns), n),
            },
            image_us: match image_blocks {
                0 => mean(now.counted.image_ns, now.counted.image_blocks),
                n => mean(since(now.counted.image_ns, before.image_ns), n),
            },
        };
        let below_blocks = self.share.unwrap_or(0);
        let steps = [ram_blocks, below_blocks].map(|blocks| (blocks / NEXT_PART).max(u64::from(blocks > 0)));
        (self.next_ram, self.next_below) = Default::default();
        if let Some(t) = now.telemetry {
            // Of disks that keep their blocks together, sizes are those of all.
            let part = || Curve::falling(t.curve.points().iter().map(|&(blocks, misses)| (blocks / disks, misses)));
            let own = (disks > 1).then(part);
            let disk =
                Stacked { ram: own.as_ref().unwrap_or(&t.curve), both: self.both.as_ref(), ram_blocks, below_blocks };
            self.next_ram = (steps[0], disk.next_ram(steps[0], times));
            self.next_below = (steps[1], disk.next_below(steps[1], times));
        }
    }
}

/// See the head of the file.
#[derive(Default)]
pub(in crate::service) struct BelowShares {
    disks: BTreeMap<String, BelowDisk>,
    workers: BTreeMap<usize, WorkerShares>,
}

impl BelowShares {
    /// What is known of a disk.
    pub(in crate::service) fn of(&self, name: &str) -> Option<&BelowDisk> {
        self.disks.get(name)
    }

    /// What moved to, from and within a node, of all nodes for `host`, with how long ago that was; a disk by its full
    /// name. With `within`, only of what was divided in that VM.
    pub(in crate::service) fn events(&self, name: &str, within: Option<&str>) -> Vec<(&Event, Option<Duration>)> {
        let mut all = Vec::new();
        for worker in self.workers.values() {
            all.extend(worker.events(name, within).map(|e| (e, worker.ends.ago(e.interval))));
        }
        all
    }

    /// Whether nothing would move in an interval in which no disk has anything to do.
    pub(super) fn rests(&self) -> bool {
        self.workers.values().all(|w| w.governor.rests())
            && self.disks.values().all(|d| d.share.is_none_or(|share| share == d.target))
    }

    /// A disk was measured.
    pub(super) fn note(&mut self, name: &str, interval: &Interval<'_>) {
        self.disks.entry(name.to_string()).or_default().note(interval);
    }

    /// All disks that answer were measured: divides each worker's store anew, and moves shares by a step.
    pub(super) fn divide(&mut self, plan: &Arc<ServePlan>) {
        let known: BTreeSet<&str> = plan.disks.iter().map(|d| d.name.as_str()).collect();
        self.disks.retain(|name, _| known.contains(name.as_str()));
        let mut users: BTreeMap<usize, (u64, BTreeSet<String>)> = BTreeMap::new();
        for (name, disk) in self.disks.iter().filter(|(_, d)| d.counted.owner.is_some()) {
            let (room, names) = users.entry(disk.worker).or_default();
            *room = disk.counted.room.max(*room);
            names.insert(name.clone());
        }
        self.workers.retain(|n, _| users.contains_key(n));
        for (n, (room, names)) in users {
            self.workers.entry(n).or_default().divide(plan, room, names, &mut self.disks);
        }
    }
}

/// The store of one worker.
#[derive(Default)]
struct WorkerShares {
    layout: Layout,
    governor: Governor,
    ends: Ends,
    /// What `layout` is of.
    followed: Option<(Arc<ServePlan>, u64, BTreeSet<String>)>,
}

impl WorkerShares {
    fn divide(
        &mut self,
        plan: &Arc<ServePlan>,
        room: u64,
        names: BTreeSet<String>,
        disks: &mut BTreeMap<String, BelowDisk>,
    ) {
        self.follow(plan, room, &names);
        for name in names.iter().filter(|name| self.layout.disk(name).is_none()) {
            // Of RAM alone, or the store is too small for so many.
            if let Some(disk) = disks.get_mut(name) {
                (disk.share, disk.target, disk.next_below) = (None, 0, Default::default());
            }
        }
        self.decide(disks);
        self.ends.note();
        self.begin(room, disks);
        let mut own: Vec<&mut BelowDisk> =
            disks.iter_mut().filter(|(name, _)| self.layout.disk(name).is_some()).map(|(_, d)| d).collect();
        // What a disk has beyond its share goes when its room is wanted, so it keeps nobody waiting.
        let of = |d: &&mut BelowDisk| Position { limit: d.share.unwrap_or(0), held: 0, target: d.target };
        let mut positions: Vec<Position> = own.iter().map(of).collect();
        let step = (room / STEP_PART).max(plan.ssd.segment_bytes / UNIT_BYTES);
        Mover { blocks_per_tick: step }.tick(room, &mut positions);
        own.iter_mut().zip(positions).for_each(|(disk, p)| disk.share = Some(p.limit));
    }

    /// See [`BelowShares::events`].
    fn events<'a>(&'a self, name: &str, within: Option<&str>) -> Box<dyn Iterator<Item = &'a Event> + 'a> {
        let (layout, events) = (&self.layout, self.governor.events());
        let inside = within.map(|vm| layout.find(vm).map_or(Vec::new(), |vm| layout.tree().below(vm)));
        let of_it = move |e: &&Event| inside.as_ref().is_none_or(|nodes| nodes.contains(&e.node.node));
        match layout.find(name).or_else(|| layout.disk(name)) {
            _ if name == keys::HOST => Box::new(events.since(0).filter(of_it)),
            Some(id) => Box::new(events.about(id).filter(of_it)),
            None => Box::new(std::iter::empty()),
        }
    }

    /// Makes the tree that of the plan, for these disks.
    fn follow(&mut self, plan: &Arc<ServePlan>, room: u64, names: &BTreeSet<String>) {
        let is_same = |(of, had, disks): &(Arc<ServePlan>, u64, BTreeSet<String>)| {
            Arc::ptr_eq(of, plan) && *had == room && disks == names
        };
        if self.followed.as_ref().is_some_and(is_same) {
            return;
        }
        let below = plan.below(room * UNIT_BYTES, |disk| names.contains(&disk.name));
        if let Err(misfit) = self.layout.follow(&below) {
            tracing::warn!("the SSD store is too small for its disks, and admits nothing of them: {}", misfit.error);
            self.layout = Layout::default();
        }
        self.followed = Some((plan.clone(), room, names.clone()));
        for (name, id) in self.layout.groups() {
            let node = plan.nodes.iter().find(|n| n.name == name);
            self.governor.set(id, node.and_then(|n| n.controller).map(without_goals));
        }
        self.governor.set(self.layout.tree().root(), Some(without_goals(plan.shares.controller)));
    }

    /// Where shares are to go.
    fn decide(&mut self, disks: &mut BTreeMap<String, BelowDisk>) {
        let Self { layout, governor, .. } = self;
        let mut leaves = Vec::new();
        for (name, node) in layout.disks() {
            let Some(disk) = disks.get(name) else { continue };
            let (held, seen, curve) = (disk.cached(), disk.seen, disk.beyond.as_ref());
            leaves.push(Leaf { node, held, least: 0, seen, curve });
        }
        let targets: BTreeMap<_, _> = governor.interval(layout.tree(), &leaves).into_iter().collect();
        for (name, node) in layout.disks() {
            if let (Some(disk), Some(target)) = (disks.get_mut(name), targets.get(&node)) {
                disk.target = *target;
            }
        }
    }

    /// A disk that is new begins with what it is entitled to, as far as nobody has that.
    fn begin(&self, room: u64, disks: &mut BTreeMap<String, BelowDisk>) {
        let entitled = self.layout.tree().divide(|_| BLOCKS_MAX);
        let has = |name: &str| disks.get(name).and_then(|d| d.share).unwrap_or(0);
        let mut free = room.saturating_sub(self.layout.disks().map(|(name, _)| has(name)).sum());
        for (name, node) in self.layout.disks() {
            let Some(disk) = disks.get_mut(name).filter(|d| d.share.is_none()) else { continue };
            let share = entitled.get(node).share.min(free);
            free -= share;
            disk.share = Some(share);
        }
    }
}

/// Goals are reached with RAM; below, nodes that have some are divided by what it saves.
fn without_goals(kind: ControllerKind) -> ControllerKind {
    if kind == ControllerKind::Target { ControllerKind::Utility } else { kind }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::plan_for_tests::plan;
    use undercroft_config::StoreChoice;

    const ROOM: u64 = 20_000;
    const SEGMENT: u64 = (2 << 20) / UNIT_BYTES;

    /// What the disks of a worker did, an interval after the other.
    struct Load {
        shares: BelowShares,
        plan: Arc<ServePlan>,
        intervals: u64,
    }

    impl Load {
        fn new(names: &[&str]) -> Self {
            Self { shares: BelowShares::default(), plan: Arc::new(plan(names)), intervals: 0 }
        }

        /// An interval in which each disk asked for 1000 blocks, 100 of RAM's size among them.
        fn interval(&mut self, disks: &[(&str, Curve)]) {
            self.intervals += 1;
            for (name, both) in disks {
                let misses = 1000 * self.intervals;
                let owner = OwnerStats { share_blocks: 1, misses, ..OwnerStats::default() };
                let counted = Counted {
                    ram_blocks: 100,
                    room: ROOM,
                    owner: Some(owner),
                    image_ns: misses * 2_000_000,
                    image_blocks: misses,
                    below_ns: 100_000,
                    below_blocks: 1,
                };
                let told = Telemetry {
                    requests: 1000,
                    misses: 1000,
                    ahead: 0,
                    distinct: 1000,
                    curve: both.clone(),
                    of_policy: false,
                    working_set: 0,
                    deep: Some(both.clone()),
                };
                let interval = Interval {
                    worker: 0,
                    counted,
                    telemetry: Some(&told),
                    disks: 1,
                    hit_us: 10.0,
                    elapsed: Duration::from_secs(2),
                };
                self.shares.note(name, &interval);
            }
            let before: BTreeMap<String, u64> = self.all().into_iter().collect();
            self.shares.divide(&self.plan);
            let after = self.all();
            assert!(after.iter().map(|d| d.1).sum::<u64>() <= ROOM, "{after:?}");
            for (name, share) in after.iter().filter(|(name, _)| before.contains_key(name)) {
                assert!(
                    share.abs_diff(before[name]) <= (ROOM / STEP_PART).max(SEGMENT),
                    "{name}: {before:?} {after:?}"
                );
            }
        }

        fn all(&self) -> Vec<(String, u64)> {
            let of = |(name, d): (&String, &BelowDisk)| Some((name.clone(), d.share?));
            self.shares.disks.iter().filter_map(of).collect()
        }

        fn share(&self, name: &str) -> u64 {
            self.shares.of(name).and_then(|d| d.share).unwrap_or(0)
        }
    }

    /// Reads of so many blocks in a loop: all of them miss in less.
    fn looping(blocks: u64) -> Curve {
        Curve::new(1000.0, [(blocks - 1, 1000.0), (blocks, 0.0)])
    }

    /// Nothing is read twice.
    fn scan() -> Curve {
        Curve::flat(1000.0)
    }

    #[test]
    fn what_a_scan_cannot_use_goes_to_a_working_set_in_small_steps() {
        let mut load = Load::new(&["a", "b"]);
        let disks = [("a", looping(15_100)), ("b", scan())];
        load.interval(&disks);
        assert_eq!(
            (load.share("a") + load.share("b"), load.share("a").abs_diff(ROOM / 2) <= 2 * SEGMENT),
            (ROOM, true)
        );
        let mut intervals = 0;
        while load.share("a") < 15_000 {
            load.interval(&disks);
            intervals += 1;
            assert!(intervals < 100, "{:?}", load.all());
        }
        assert!(intervals > 5 && load.share("b") >= keys::SHARE_BYTES_MIN / UNIT_BYTES);
        let told = load.shares.events("a", None);
        let gains = told.iter().filter(|(e, ago)| ago.is_some() && e.to.as_ref().is_some_and(|to| &*to.name == "a"));
        assert!(gains.count() > 0 && load.shares.events("nobody", None).is_empty(), "{told:?}");
        assert!(
            load.shares.events("host", None).len() >= told.len() && load.shares.events("host", Some("vm")).is_empty()
        );
        // The other way round as well.
        let disks = [("b", looping(15_100)), ("a", scan())];
        (0..100).for_each(|_| load.interval(&disks));
        assert!(load.share("b") >= 15_000, "{:?}", load.all());
    }

    #[test]
    fn ram_that_a_disk_has_counts_before_what_is_below() {
        let mut load = Load::new(&["a", "b"]);
        // All of it fits into RAM: nothing below is of use.
        let disks = [("a", looping(90)), ("b", looping(17_000))];
        (0..60).for_each(|_| load.interval(&disks));
        assert!(load.share("b") >= 16_900, "{:?}", load.all());
    }

    #[test]
    fn a_disk_of_ram_alone_has_nothing_and_one_that_goes_leaves_its_share() {
        let mut load = Load::new(&["a", "b"]);
        let mut plan = ServePlan::clone(&load.plan);
        plan.disks[1].store = Some(StoreChoice::Ram);
        load.plan = Arc::new(plan.clone());
        let disks = [("a", looping(15_100)), ("b", looping(15_100))];
        load.interval(&disks);
        assert_eq!((load.share("a"), load.share("b")), (ROOM, 0));
        plan.disks[1].store = None;
        plan.disks.remove(0);
        load.plan = Arc::new(plan);
        load.interval(&disks[1..]);
        assert_eq!((load.share("a"), load.share("b")), (0, ROOM));
    }

    #[test]
    fn what_more_would_bring_is_told_for_a_second() {
        let mut load = Load::new(&["a"]);
        let even = Curve::new(1000.0, [(40_000, 0.0)]);
        load.interval(&[("a", even.clone())]);
        load.interval(&[("a", even)]);
        let disk = load.shares.of("a").unwrap();
        let (blocks, ram) = disk.next_ram;
        assert_eq!((blocks, ram.ram_hits.round() as u64), (10, 0));
        let (blocks, below) = disk.next_below;
        assert_eq!((blocks, below.image_reads.round()), (ROOM / 10, 50.0));
        assert_eq!(below.saved_us.map(f64::round), Some(50.0 * 1900.0));
        assert!((disk.seconds - 2.0).abs() < 1e-9);
    }
}
