//! Shares that follow the load: measured, decided and moved while the daemon serves.
//!
//! Owns the thread, its pace, and the translation of what workers measure into what controllers see. Never decides
//! which disk gets what: the engine's controllers do. Invariants: at any time the sum over all disks of the share, or
//! of what the disk still holds if that is more, is at most the store; so a disk grows only after another has given,
//! and on another worker only after the kernel has the memory back. Fixed shares stay, and so do those of disks of
//! which nothing is known: what waits for its image, or is on a worker that does not answer, is lent to nobody.

use super::memory::{PAUSE, STEP_FRAMES_MAX};
use super::pools::Together;
use super::{ServedDisk, Service, capacity_blocks};
use crate::latency::Histogram;
use crate::worker::{Asker, Gone, ReadsBetween, Worker};
use below::{Counted, Interval};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use undercroft_cache::{AddDiskError, Core, DiskId, SetPartsError};
use undercroft_config::plan::DiskPlan;
use undercroft_config::{GoalPlan, ServePlan, UNIT_BYTES};
use undercroft_engine::control::{Activity, Leaf, Mover, Position};
use undercroft_engine::ranges::REST;
use undercroft_engine::{Curve, PartId, Telemetry};

mod below;
mod ends;
mod manager;

pub(super) use below::BelowDisk;
pub(super) use manager::{Measured, ShareManager};

/// Pause between two steps of a move.
const STEP: Duration = Duration::from_millis(250);
/// Shortest interval, however often settings change: whoever sets them on a VM's own socket must not set the pace of
/// others.
const HURRIED: Duration = Duration::from_secs(1);
/// Between two tries to pin what was more than a disk's share allowed.
const PINS_RETRY: Duration = Duration::from_secs(30);
/// Part of the store by which a share may change in one step.
const STEP_PART: u64 = 32;

/// A disk whose worker answers, its place in the plan, and the positions of its shares.
type Moving = (Arc<ServedDisk>, usize, Range<usize>);

/// What a worker says of a disk, or of a container's part of one, at the end of an interval.
struct Answer {
    part: PartId,
    telemetry: Option<Telemetry>,
    held_bytes: u64,
    fixed_bytes: u64,
    /// Bytes of a share for each point of the curve.
    sizes: Vec<u64>,
    working_set_bytes: u64,
    /// The disks that were measured together, the one that the measurement is told of first; empty for one alone.
    pool: Vec<DiskId>,
}

impl Service {
    /// Starts the thread that moves shares.
    pub(super) fn begin_shares(self: &Arc<Self>) -> std::io::Result<()> {
        let service: Weak<Self> = Arc::downgrade(self);
        let mut pins_tried = Instant::now();
        let thread = std::thread::Builder::new().name("undercroft-shares".into()).spawn(move || {
            while let Some(service) = service.upgrade() {
                if service.wait(STEP) {
                    return;
                }
                service.follow_file_hints();
                service.step_shares();
                if pins_tried.elapsed() >= PINS_RETRY {
                    pins_tried = Instant::now();
                    service.retry_pins();
                }
            }
        })?;
        self.running.lock().shares = Some(thread);
        Ok(())
    }

    /// The next interval ends soon: settings have changed.
    pub(super) fn hurry_shares(&self) {
        self.shares.lock().hurried = true;
    }

    /// One step: the end of an interval if it is time, and a piece of what is to be moved.
    fn step_shares(&self) {
        // Whoever changes disks goes first; the next step comes soon.
        let Some(_change) = self.change.try_lock() else { return };
        let plan = self.plan();
        let mut manager = self.shares.lock();
        let elapsed = manager.since.map_or(plan.shares.interval, |s| s.elapsed());
        let due = if manager.hurried { HURRIED.min(plan.shares.interval) } else { plan.shares.interval };
        if elapsed >= due {
            manager.since = Some(Instant::now());
            let hurried = std::mem::take(&mut manager.hurried);
            // All are asked, so that each answers for this interval alone the next time.
            let worked = self.workers.iter().filter(|w| w.take_has_worked(Asker::Shares)).count() > 0;
            if worked || hurried || !manager.rests(&plan) {
                self.end_interval(&mut manager, &plan, elapsed);
            } else {
                manager.governor.pass();
                manager.ends.note();
            }
        }
        if manager.moving {
            self.move_shares(&mut manager, ServePlan::clone(&plan));
        }
    }

    fn end_interval(&self, manager: &mut ShareManager, plan: &Arc<ServePlan>, elapsed: Duration) {
        // Most intervals find the tree as they left it, and to build it anew takes long with many disks.
        if !manager.is_of(plan)
            && let Err(misfit) = manager.follow(plan)
        {
            let what = format!("{}; {}", misfit.error, misfit.remedy);
            if manager.problem.as_ref() != Some(&what) {
                tracing::warn!("shares stay as they are: {what}");
                manager.problem = Some(what);
            }
            return;
        }
        manager.problem = None;
        self.measure_disks(manager, plan, elapsed);
        manager.below.divide(plan);
        manager.raise_floors(plan);
        let ShareManager { layout, governor, measured, .. } = &mut *manager;
        let tree = layout.tree();
        governor.set(tree.root(), Some(plan.shares.controller));
        for (name, id) in layout.groups() {
            let node = plan.nodes.iter().find(|n| n.name == name);
            governor.set(id, node.and_then(|n| n.controller));
            governor.set_goal(id, node.and_then(|n| n.goal).map(GoalPlan::goal));
        }
        let by_name = plan.by_name();
        for (name, id) in layout.disks() {
            governor.set_goal(id, by_name.get(name).and_then(|d| d.goal).map(GoalPlan::goal));
        }
        // What a disk has by its `size` is never lent, so nobody is promised it.
        let fixed = |name: &str| by_name.get(name).filter(|d| d.share_fixed).map_or(0, |d| d.share_bytes / UNIT_BYTES);
        let mut leaves = Vec::with_capacity(measured.len());
        for (name, m) in measured.iter() {
            let Some(node) = layout.disk(name) else { continue };
            let least = m.least_units().max(fixed(name));
            leaves.push(Leaf { node, held: m.held_units, least, seen: m.seen, curve: Some(&m.curve) });
        }
        // Of a disk that waits, has just come, or is on a worker that does not answer, nothing is known: it keeps its
        // own.
        for (_, name, bytes) in plan.disks.iter().flat_map(DiskPlan::leaves).filter(|l| !measured.contains_key(&l.1)) {
            let Some(node) = layout.disk(&name) else { continue };
            let held = bytes / UNIT_BYTES;
            leaves.push(Leaf { node, held, least: held, seen: Activity::default(), curve: None });
        }
        let targets = governor.interval(tree, &leaves);
        let by_name: BTreeMap<_, _> = layout.disks().map(|(name, id)| (id, name.to_string())).collect();
        manager.targets = targets.into_iter().filter_map(|(id, t)| Some((by_name.get(&id)?.clone(), t))).collect();
        manager.moving = true;
        manager.ends.note();
    }

    /// What every disk did since this was asked last.
    fn measure_disks(&self, manager: &mut ShareManager, plan: &ServePlan, elapsed: Duration) {
        let most = plan.disks_bytes() / UNIT_BYTES;
        manager.measured.clear();
        let by_name = plan.by_name();
        let mut told = self.ask_disks(move |w, id| answer(w, id, most));
        share_out(&mut told);
        for (served, answer) in told {
            let name = &served.info().name;
            let (Some(answer), Some(disk)) = (answer, by_name.get(name.as_str())) else { continue };
            let Answered { reads, counted, answers } = answer;
            // Of a disk with parts: what reads of all of it took.
            let times = Times::of(&reads, elapsed, p99_for(plan, disk));
            // What its parts would do with more of the SSD store is not known.
            let whole = answers.first().filter(|_| answers.len() == 1);
            let interval = Interval {
                worker: served.worker_number(),
                counted,
                telemetry: whole.and_then(|a| a.telemetry.as_ref()),
                disks: whole.map_or(1, |a| a.pool.len().max(1) as u64),
                hit_us: times.hit_us,
                elapsed,
            };
            manager.below.note(name, &interval);
            let leaves: Vec<_> = disk.leaves().collect();
            for answer in answers {
                let Some((_, leaf, _)) = leaves.iter().find(|l| l.0 == answer.part.0) else { continue };
                manager.measured.extend(answer.measured(&times).map(|m| (leaf.clone(), m)));
            }
        }
    }

    /// Moves what is to be moved, by one step.
    fn move_shares(&self, manager: &mut ShareManager, mut plan: ServePlan) {
        let total = plan.room_bytes() / UNIT_BYTES;
        let over = self.over_shares().div_ceil(UNIT_BYTES);
        let (moving, mut positions) = self.positions(manager, &plan);
        let mover = Mover { blocks_per_tick: (total / STEP_PART).max(1) };
        manager.moving = mover.tick(total.saturating_sub(over), &mut positions);
        let (before, mut moved) = (plan.disks.clone(), Vec::new());
        for (disk, at, leaves) in moving {
            let shares: Vec<u64> = positions[leaves].iter().map(|p| p.limit * UNIT_BYTES).collect();
            if plan.disks[at].leaves().map(|l| l.2 / UNIT_BYTES * UNIT_BYTES).ne(shares.iter().copied()) {
                plan.disks[at].set_leaves(&shares);
                moved.push((disk, at));
            }
        }
        if moved.is_empty() {
            return;
        }
        // Of disks that keep their blocks together all are moved at once.
        let together = Together::new(&plan, &self.disks());
        let mut groups: BTreeMap<usize, (Arc<ServedDisk>, Vec<usize>)> = BTreeMap::new();
        for (disk, at) in moved {
            let mates: Vec<usize> = together.with(&disk.info().name).iter().map(|m| m.at).collect();
            let all = if mates.is_empty() { vec![at] } else { mates };
            groups.entry(all[0]).or_insert((disk, all));
        }
        let all = groups.values().map(|(_, all)| all.clone()).collect();
        manager.moving |= move_groups(&mut plan.disks, &before, all, |all, wanted, had| {
            let disk = &groups[&all[0]].0;
            let id = disk.id();
            disk.host().worker.call(move |w| set_shares(w.core(), id, wanted, &had))
        });
        self.adopt(plan);
    }

    /// Where every share of `plan` is and where it is to go; those that can move with their disks, and the places of
    /// these in the plan. Others stay where they are, but what they have is not for anybody else.
    fn positions(&self, manager: &mut ShareManager, plan: &ServePlan) -> (Vec<Moving>, Vec<Position>) {
        let places: HashMap<&str, usize> = plan.disks.iter().enumerate().map(|(at, p)| (p.name.as_str(), at)).collect();
        let (mut moving, mut positions, mut holds) = (Vec::new(), Vec::new(), HashMap::new());
        for (disk, held) in self.ask_disks(|w, id| held_bytes(w.core(), id)) {
            let Some(&at) = places.get(disk.info().name.as_str()) else { continue };
            let p = &plan.disks[at];
            let first = positions.len();
            for (number, leaf, bytes) in p.leaves() {
                let share = bytes / UNIT_BYTES;
                let target = if p.share_fixed { share } else { *manager.targets.get(&leaf).unwrap_or(&share) };
                let held = held.iter().find(|h| h.0.0 == number).map_or(0, |h| h.1 / UNIT_BYTES);
                positions.push(Position { limit: share, held, target });
                holds.insert(leaf, held);
            }
            moving.push((disk, at, first..positions.len()));
        }
        let disks = self.disks();
        let served: HashSet<&str> = disks.iter().map(|d| d.info().name.as_str()).collect();
        let answered: HashSet<usize> = moving.iter().map(|m| m.1).collect();
        for (_, p) in plan.disks.iter().enumerate().filter(|(at, _)| !answered.contains(at)) {
            for (_, leaf, bytes) in p.leaves() {
                let share = bytes / UNIT_BYTES;
                // On a worker that does not answer: what it held when that was asked last.
                let held = manager.held.get(&leaf).copied().filter(|_| served.contains(p.name.as_str())).unwrap_or(0);
                positions.push(Position { limit: share, held, target: share });
                holds.insert(leaf, held);
            }
        }
        manager.held = holds;
        (moving, positions)
    }

    /// Bytes that workers have beyond the shares of their disks, after a little time to give them back: what has been
    /// given is for others when the kernel has it. A worker alone sees to its ceiling itself.
    fn over_shares(&self) -> u64 {
        if self.workers.len() < 2 {
            return 0;
        }
        let over = || self.workers.iter().map(|w| w.call(|w| w.core().over_shares_bytes()).unwrap_or(0)).sum();
        let (mut left, begun): (u64, _) = (over(), Instant::now());
        while left > 0 && begun.elapsed() < STEP / 8 && self.give_back_some(STEP_FRAMES_MAX) {
            std::thread::sleep(PAUSE);
            left = over();
        }
        left
    }

    /// What the cores say of their disks: one call for each worker, however many disks it has.
    fn ask_disks<T: Send + 'static>(
        &self,
        ask: impl Fn(&mut Worker, DiskId) -> T + Clone + Send + 'static,
    ) -> Vec<(Arc<ServedDisk>, T)> {
        let mut answers = Vec::new();
        let disks = self.disks();
        for (n, worker) in self.workers.iter().enumerate() {
            let own: Vec<_> = disks.iter().filter(|d| d.worker_number() == n).cloned().collect();
            let (ids, ask): (Vec<DiskId>, _) = (own.iter().map(|d| d.id()).collect(), ask.clone());
            let told = worker.call(move |w| ids.into_iter().map(|id| ask(w, id)).collect::<Vec<_>>());
            answers.extend(own.into_iter().zip(told.unwrap_or_default()));
        }
        answers
    }
}

/// What one disk and each of its parts did since this was asked last; measuring begins with the first question.
fn answer(w: &mut Worker, id: DiskId, most: u64) -> Option<Answered> {
    let reads = w.reads_between(id)?;
    let core = w.core();
    let counted = Counted::of(core, id);
    let held = held_bytes(core, id);
    let whole = held.len() == 1;
    let pool = core.pool(id).to_vec();
    let answers = held.into_iter().map(|(part, held_bytes)| {
        // Disks that keep their blocks together are measured once.
        let first = pool.first().is_none_or(|&first| first == id);
        let telemetry = match whole {
            true if first => core.telemetry(id),
            true => None,
            false => core.part_telemetry(id, part),
        };
        if telemetry.is_none() && first {
            if whole {
                core.measure(id, Some(most));
            } else {
                core.measure_part(id, part, Some(most));
            }
        }
        if whole && first {
            core.measure_reach(id, counted.reach(most));
        }
        // What operations may take is the disk's own.
        let fixed = core.bytes_for(id, 0);
        let disks = pool.len().max(1) as u64;
        let (own, fixed_bytes) = if part == REST { (0, fixed / disks) } else { (fixed, 0) };
        let bytes_for = |blocks: u64| core.bytes_for(id, blocks) - own;
        let points = telemetry.as_ref().map_or(&[][..], |t| t.curve.points());
        let sizes = points.iter().map(|p| bytes_for(p.0)).collect();
        // Of a disk that nobody reads nothing is known: not even what it would take to keep no block.
        let working_set = telemetry.as_ref().map_or(0, |t| t.working_set);
        let working_set_bytes = if working_set == 0 { 0 } else { bytes_for(working_set) };
        Answer { part, telemetry, held_bytes, fixed_bytes, sizes, working_set_bytes, pool: pool.clone() }
    });
    let answers = answers.collect();
    Some(Answered { reads, counted, answers })
}

/// Bytes of the store that a disk holds, or itself and each of its parts.
fn held_bytes(core: &Core, id: DiskId) -> Vec<(PartId, u64)> {
    let fixed = core.bytes_for(id, 0);
    let parts = core.part_stats(id);
    if parts.is_empty() {
        // Of several disks that keep their blocks together an equal part for each, as the plan has it.
        let held = core.pool_stats(id);
        return vec![(REST, core.bytes_for(id, held.charged_blocks) / held.disks.max(1))];
    }
    let own = |part| if part == REST { 0 } else { fixed };
    parts.iter().map(|p| (p.part, core.bytes_for(id, p.charged_blocks) - own(p.part))).collect()
}

/// The shares of a disk with parts in blocks.
pub(super) fn part_blocks(core: &Core, id: DiskId, plan: &DiskPlan) -> Vec<(PartId, u32)> {
    let fixed = core.bytes_for(id, 0);
    let blocks = |(number, _, bytes): (u8, String, u64)| {
        let bytes = if number == 0 { bytes } else { bytes + fixed };
        (PartId(number), core.blocks_for(id, bytes))
    };
    plan.leaves().map(blocks).collect()
}

/// Gives a disk and its parts, or disks that keep their blocks together, the shares of their plans, moving gradually,
/// from those of `before`. Returns the plans with what they have got: less than was wanted where others still hold what
/// they have been told to give.
fn set_shares(
    core: &mut Core,
    id: DiskId,
    mut plans: Vec<DiskPlan>,
    before: &[DiskPlan],
) -> Result<Vec<DiskPlan>, SetPartsError> {
    loop {
        let set = if plans.iter().all(|p| p.parts.is_empty()) {
            let share_bytes = plans.iter().map(|p| p.share_bytes).sum();
            let most = plans.iter().fold(0u32, |sum, p| sum.saturating_add(capacity_blocks(p)));
            core.set_share(id, core.blocks_for(id, share_bytes).min(most))
        } else {
            let shares = part_blocks(core, id, &plans[0]);
            match core.set_part_shares(id, &shares) {
                Err(SetPartsError::Disk(e)) => Err(e),
                Err(e) => return Err(e),
                Ok(()) => Ok(()),
            }
        };
        let (needed, left) = match set {
            Ok(()) => return Ok(plans),
            Err(AddDiskError::NoMemory { needed_bytes, left_bytes }) if needed_bytes > left_bytes => {
                (needed_bytes, left_bytes)
            }
            Err(e) => return Err(SetPartsError::Disk(e)),
        };
        // As much as is left, in whole units: those that grow grow less.
        let mut over = (needed - left).div_ceil(UNIT_BYTES) * UNIT_BYTES;
        for (plan, before) in plans.iter_mut().zip(before) {
            let mut leaves: Vec<u64> = plan.leaves().map(|l| l.2).collect();
            for (leaf, had) in leaves.iter_mut().zip(before.leaves().map(|l| l.2)) {
                let less = over.min(leaf.saturating_sub(had));
                *leaf -= less;
                over -= less;
            }
            plan.set_leaves(&leaves);
        }
        if over > 0 {
            return Err(SetPartsError::Disk(AddDiskError::NoMemory { needed_bytes: needed, left_bytes: left }));
        }
    }
}

/// What came of a move: the plans of what disks have got, or why they have what they had.
type Moved = Result<Result<Vec<DiskPlan>, SetPartsError>, Gone>;

/// Moves the shares of `before` to those of `plans` with `set`, disk by disk and group by group of those that keep
/// their blocks together, those that shrink first; `plans` are what was got then. Whether it has to be tried again: who
/// gives has not given all of it yet, or his worker does not answer. What others have moved stands, or it would be
/// given twice.
fn move_groups(
    plans: &mut [DiskPlan],
    before: &[DiskPlan],
    mut groups: Vec<Vec<usize>>,
    mut set: impl FnMut(&[usize], Vec<DiskPlan>, Vec<DiskPlan>) -> Moved,
) -> bool {
    let of = |plans: &[DiskPlan], all: &[usize]| all.iter().map(|&at| plans[at].clone()).collect::<Vec<_>>();
    let sum = |plans: &[DiskPlan], all: &[usize]| all.iter().map(|&at| plans[at].share_bytes).sum::<u64>();
    groups.sort_by_key(|all| sum(plans, all) > sum(before, all));
    let mut again = false;
    for all in groups {
        let why = match set(&all, of(plans, &all), of(before, &all)) {
            Ok(Ok(got)) => {
                for (&at, got) in all.iter().zip(got) {
                    again |= got.share_bytes < plans[at].share_bytes;
                    plans[at] = got;
                }
                continue;
            }
            Ok(Err(refused)) => refused.to_string(),
            Err(gone) => gone.to_string(),
        };
        tracing::debug!(disk = before[all[0]].name, "its share waits: {why}");
        all.iter().for_each(|&at| plans[at].clone_from(&before[at]));
        again = true;
    }
    again
}

/// What a disk answered.
struct Answered {
    /// Its reads since it was asked last.
    reads: ReadsBetween,
    counted: Counted,
    /// What it and its ranges were measured to need.
    answers: Vec<Answer>,
}

/// Gives each disk of those that were measured together an equal part of what was measured: to whoever divides by
/// curves, as many disks with such parts are the same as one with the whole, since each has the part of the misses at
/// the part of the size.
fn share_out(told: &mut [(Arc<ServedDisk>, Option<Answered>)]) {
    let mut whole: HashMap<(usize, DiskId), (Telemetry, Vec<u64>, u64)> = HashMap::new();
    for (disk, answer) in told.iter() {
        let Some(Answered { answers, .. }) = answer else { continue };
        if let Some(Answer { telemetry: Some(t), sizes, working_set_bytes, pool, .. }) = answers.first()
            && pool.first() == Some(&disk.id())
        {
            let key = (disk.worker_number(), disk.id());
            whole.insert(key, (t.clone(), sizes.clone(), *working_set_bytes));
        }
    }
    for (disk, answer) in told.iter_mut() {
        let Some(Answered { answers, .. }) = answer else { continue };
        for answer in answers.iter_mut().filter(|a| !a.pool.is_empty()) {
            let Some((t, sizes, working_set_bytes)) = whole.get(&(disk.worker_number(), answer.pool[0])) else {
                continue;
            };
            let disks = answer.pool.len() as u64;
            let points = t.curve.points().iter().map(|&(blocks, misses)| (blocks, misses / disks as f64));
            answer.telemetry = Some(Telemetry {
                requests: t.requests / disks,
                misses: t.misses / disks,
                ahead: t.ahead / disks,
                distinct: t.distinct / disks,
                curve: Curve::falling(points),
                of_policy: t.of_policy,
                working_set: t.working_set / disks,
                deep: t.deep.as_ref().map(|deep| {
                    Curve::falling(deep.points().iter().map(|&(n, misses)| (n / disks, misses / disks as f64)))
                }),
            });
            answer.sizes = sizes.iter().map(|bytes| bytes / disks).collect();
            answer.working_set_bytes = working_set_bytes / disks;
        }
    }
}

impl Answer {
    fn measured(self, times: &Times) -> Option<Measured> {
        let t = self.telemetry?;
        let seen = Activity {
            iops: times.reads_per_second,
            hit_us: times.hit_us,
            miss_us: times.miss_us,
            slow_misses: times.slow_misses,
            ..Activity::from(&t)
        };
        let points = self.sizes.iter().zip(t.curve.points()).map(|(bytes, p)| (bytes / UNIT_BYTES, p.1));
        Some(Measured {
            seen,
            // What operations may take comes before the first block.
            curve: Curve::falling(std::iter::once((0, t.curve.misses_at(0))).chain(points)),
            held_units: self.held_bytes / UNIT_BYTES,
            fixed_units: self.fixed_bytes.div_ceil(UNIT_BYTES),
            working_set_bytes: self.working_set_bytes,
            of_policy: t.of_policy,
        })
    }
}

/// The p99 latency that a disk is to reach: its own goal, its container's or its VM's, whichever is the nearest.
fn p99_for(plan: &ServePlan, disk: &DiskPlan) -> Option<Duration> {
    let group = |name: &str| plan.nodes.iter().find(|n| n.name == name).and_then(|n| n.goal);
    let container = || group(&format!("{}/{}", disk.vm.as_ref()?, disk.container.as_ref()?));
    match disk.goal.or_else(container).or_else(|| group(disk.vm.as_ref()?)) {
        Some(GoalPlan::P99(time)) => Some(time),
        _ => None,
    }
}

/// What reads of a disk took in an interval.
struct Times {
    reads_per_second: f64,
    hit_us: f64,
    miss_us: f64,
    /// Part of the reads that waited for the disk that took longer than the goal allows.
    slow_misses: f64,
}

impl Times {
    fn of(reads: &ReadsBetween, elapsed: Duration, p99: Option<Duration>) -> Self {
        let misses = reads.misses.as_deref();
        let missed = misses.map_or(0, Histogram::count);
        Self {
            reads_per_second: (reads.hits + missed) as f64 / elapsed.as_secs_f64().max(1e-3),
            hit_us: reads.hit_ns / 1e3,
            miss_us: misses.map_or(0.0, |m| m.mean_ns() / 1e3),
            slow_misses: misses.zip(p99).map_or(0.0, |(m, most)| m.part_above(most.as_nanos() as u64)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::plan_for_tests::plan;

    #[test]
    fn a_worker_that_falls_silent_leaves_what_others_have_moved_as_it_is() {
        let before = plan(&["grows", "silent", "gives"]).disks;
        let share = |disk: &DiskPlan, bytes: u64| DiskPlan { share_bytes: bytes, ..disk.clone() };
        let had: Vec<u64> = before.iter().map(|d| d.share_bytes).collect();
        let wanted = [had[0] + 200, had[1] - 100, had[2] - 300];
        let mut plans: Vec<_> = before.iter().zip(wanted).map(|(disk, bytes)| share(disk, bytes)).collect();
        let mut asked = Vec::new();
        let again = move_groups(&mut plans, &before, vec![vec![0], vec![1], vec![2]], |all, wanted, _| {
            asked.push(all[0]);
            match all[0] {
                0 => Ok(Ok(vec![share(&before[0], had[0] + 150)])),
                1 => Err(Gone::Silent),
                _ => Ok(Ok(wanted)),
            }
        });
        assert!(again);
        assert_eq!(asked, [1, 2, 0], "those that shrink come first");
        let bytes: Vec<u64> = plans.iter().map(|d| d.share_bytes).collect();
        assert_eq!(bytes, [had[0] + 150, had[1], had[2] - 300]);
    }
}
