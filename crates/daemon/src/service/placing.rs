//! Chooses the worker of a disk, its trust group and its base image, and brings its share and settings to that worker.
//!
//! Owns the numbers of groups and bases, which never change. Never opens an image. Invariant: disks of one VM,
//! and disks that can hold frames in common, are on one worker.

use super::disk::{self, ServedDisk};
use super::pools::Together;
use super::residence;
use super::{ROOM_WAIT, Service, ServiceError, capacity_blocks, io_needs, lock, memory, shares};
use crate::worker::{AddDiskError, Gone};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;
use undercroft_cache::{Base, GroupId, LayerId, SetPartsError};
use undercroft_config::plan::BaseDeduplication;
use undercroft_config::{ControlError, ControlErrorKind, DiskPlan, ServePlan};
use undercroft_units::human_size;

/// Numbers of trust groups and bases; they stay.
#[derive(Default)]
pub(super) struct SharingNumbers {
    /// Images below disks with those who hold their blocks in common.
    bases: Vec<(LayerId, Option<GroupId>)>,
    /// Names of trust groups.
    groups: Vec<String>,
}

impl Service {
    /// The number of a trust group; `None` if nothing is deduplicated.
    pub(super) fn group(&self, trust: &str) -> Option<GroupId> {
        if !self.plan().store.deduplicate {
            return None;
        }
        let groups = &mut self.sharing.lock().groups;
        let n = groups.iter().position(|g| g == trust).unwrap_or_else(|| {
            groups.push(trust.to_string());
            groups.len() - 1
        });
        Some(GroupId(n as u32))
    }

    /// The name of a trust group.
    pub(super) fn group_name(&self, group: GroupId) -> String {
        self.sharing.lock().groups.get(group.0 as usize).cloned().unwrap_or_default()
    }

    /// The number of an image for those who hold its blocks in common with a disk of `plan`, of group `group`.
    pub(super) fn base_for(&self, image: LayerId, plan: &DiskPlan, group: Option<GroupId>) -> LayerId {
        let own = (image, group.filter(|_| plan.deduplicate_base == BaseDeduplication::Group));
        let bases = &mut self.sharing.lock().bases;
        let n = bases.iter().position(|b| *b == own).unwrap_or_else(|| {
            bases.push(own);
            bases.len() - 1
        });
        LayerId(n as u64)
    }

    /// Waits until worker `n` has room for a disk: those that have been told to give need a moment for it.
    pub(super) fn make_room(&self, n: usize, plan: &DiskPlan, blocks: u32) -> Result<(), AddDiskError> {
        let (needs, give_up) = (io_needs(plan), Instant::now() + ROOM_WAIT);
        loop {
            match self.workers[n].call(move |w| w.core().may_add(blocks, needs)) {
                Ok(Err(e)) if Instant::now() >= give_up || *lock(&self.stop.0) => return Err(e.into()),
                Ok(Err(_)) => {}
                Ok(Ok(())) | Err(_) => return Ok(()),
            }
            let _ = self.workers[n].give_back(memory::STEP_FRAMES_MAX);
            std::thread::sleep(memory::PAUSE);
        }
    }

    /// Puts an opened disk on the worker of those of its VM, or of those that it can share with; otherwise on the one
    /// that has something of it cached, or has the fewest disks.
    pub(super) fn put_on_worker(&self, mut opened: disk::Opened) -> Result<Arc<ServedDisk>, ServiceError> {
        let plan = opened.plan.clone();
        let plan = &plan;
        let blocks = capacity_blocks(plan);
        if blocks == 0 {
            return Err(ServiceError::TooSmall { disk: plan.name.clone(), share: human_size(plan.share_bytes) });
        }
        let mut load = vec![0usize; self.workers.len()];
        self.disks().iter().for_each(|d| load[d.worker_number()] += 1);
        let group = self.group(&plan.trust);
        if let Some(base) = &mut opened.base {
            base.layer = self.base_for(base.layer, plan, group);
        }
        let layer = opened.base.as_ref().map(|b| b.layer);
        let disks = self.disks();
        let like = |same: &dyn Fn(&ServedDisk) -> bool| disks.iter().find(|d| same(d)).map(|d| d.worker_number());
        // Disks of a VM may keep their blocks together, now or once nothing is set for them any more.
        let served = self.plan();
        let of_vm = |d: &ServedDisk| plan.vm.is_some() && served.find(&d.info().name).is_some_and(|p| p.vm == plan.vm);
        let together = like(&of_vm)
            .or_else(|| like(&|d| layer.is_some() && d.layer() == layer))
            .or_else(|| like(&|d| group.is_some() && d.group() == group));
        let answers = |n: &usize| !self.workers[*n].is_silent();
        // What is cached of it already is some worker's.
        let told = lock(&self.places).remove(&plan.name).filter(|n| *n < self.workers.len());
        let before = told.or_else(|| self.place_in_ssd(&opened));
        let least = || (0..load.len()).filter(answers).min_by_key(|&n| load[n]);
        let n = together.or(before).filter(answers).or_else(least).unwrap_or(0);
        let no_room = |source| ServiceError::Attach { disk: plan.name.clone(), source };
        self.make_room(n, plan, blocks).map_err(no_room)?;
        let served = Arc::new(ServedDisk::attach(opened, self.workers[n].clone(), n, blocks, group)?);
        residence::watch(&self.me, &served);
        if self.plan().ssd.is_wanted() {
            served.tell_when_gone(self.me.clone());
            self.use_ssd(&served, true);
        }
        Ok(served)
    }

    /// Has a disk share blocks of the image that it stands on, after that was opened again.
    pub(super) fn set_base_of(&self, disk: &ServedDisk, plan: &DiskPlan, base: Option<Base>) {
        let shares = self.plan().store.deduplicate && plan.deduplicate_base != BaseDeduplication::Nobody;
        if let Some(mut base) = base.filter(|_| shares) {
            base.layer = self.base_for(base.layer, plan, disk.group());
            let id = disk.id();
            if disk.host().worker.call(move |w| w.core().set_base(id, base)) == Ok(true) {
                self.use_ssd_for_base(disk);
            }
        }
    }

    /// Makes the disks that are served now have the shares and settings of `plan`, and returns the plan of what they
    /// have then. A disk that cannot be told anything, because its worker does not answer, stays as it is, and so does
    /// the share of one that waits while a try has left something on a worker: what these have is not for others, who
    /// get what that leaves.
    ///
    /// # Errors
    /// Such a disk is one that the change is `of`, or leaves too little for a disk that comes or for a new size; then
    /// everything is as it was.
    pub(super) fn apply(&self, plan: ServePlan, of: impl Fn(&DiskPlan) -> bool) -> Result<ServePlan, ControlError> {
        let now = self.plan();
        let mut silent = BTreeSet::new();
        loop {
            let reached = self.reachable(&plan, &now, &silent, &of).inspect_err(|_| {
                // Those that were told already are told otherwise.
                _ = self.carry_out(&now, &now, &silent);
            })?;
            match self.carry_out(&now, &reached, &silent) {
                Ok(()) => return Ok(reached),
                Err(more) => silent.extend(more),
            }
        }
    }

    /// Makes `plan` what is served, as far as workers answer. With it no disk comes, and none gets another size, so
    /// that there is room for it.
    pub(super) fn settle(&self, plan: ServePlan) {
        match self.apply(plan, |_| false) {
            Ok(plan) => self.adopt(plan),
            Err(e) => tracing::error!("shares stay as they are: {e}"),
        }
    }

    /// What of `plan` can be reached while workers are `silent`, from `now`.
    fn reachable(
        &self,
        plan: &ServePlan,
        now: &ServePlan,
        silent: &BTreeSet<usize>,
        of: &impl Fn(&DiskPlan) -> bool,
    ) -> Result<ServePlan, ControlError> {
        let disks = self.disks();
        let untold: Vec<_> = disks.iter().filter(|d| silent.contains(&d.worker_number())).collect();
        let left: Vec<_> = self.all_waiting().into_iter().filter(|w| w.has_left()).collect();
        let names = untold.iter().map(|d| d.info().name.clone()).chain(left.iter().map(|w| w.name().to_owned()));
        let standing: BTreeSet<String> = names.collect();
        if standing.is_empty() {
            return Ok(plan.clone());
        }
        let stays = |name: &str| plan.disks.iter().any(|d| d.name == name && of(d)) && !now.has_alike(plan, name);
        if let Some(disk) = untold.iter().find(|d| stays(&d.info().name)) {
            return Err(ServiceError::Silent { worker: disk.worker_number() }.into());
        }
        if let Some(waiting) = left.iter().find(|w| stays(w.name())) {
            return Err(self.waits(waiting));
        }
        plan.clone().around(now, &standing).map_err(|misfit| {
            let why = untold.first().map(|d| ServiceError::Silent { worker: d.worker_number() }.to_string());
            let error = why.into_iter().chain([misfit.error]).collect::<Vec<_>>().join("; ");
            ControlError::new(ControlErrorKind::Unavailable, error, misfit.remedy)
        })
    }

    /// Makes the disks of workers that are not `silent` have the shares and settings of `plan`, from `now`: those that
    /// shrink first, so that the sum never passes the store.
    ///
    /// # Errors
    /// Workers that do not answer, too: what their disks would give is not given, so nobody has got it.
    fn carry_out(&self, now: &ServePlan, plan: &ServePlan, silent: &BTreeSet<usize>) -> Result<(), BTreeSet<usize>> {
        let more: BTreeSet<usize> = self.join_pools(plan).difference(silent).copied().collect();
        if !more.is_empty() {
            return Err(more);
        }
        let mut disks = self.disks();
        let (together, before) = (Together::new(plan, &disks), Together::new(now, &disks));
        disks.retain(|d| !silent.contains(&d.worker_number()));
        let (wanted, had) = (plan.by_name(), now.by_name());
        let share = |p: &DiskPlan| together.share_bytes(plan, p);
        let share_now = |p: &DiskPlan| {
            // Of disks that have come together, or are apart now: what each had.
            let same = before.with(&p.name).len() == together.with(&p.name).len();
            let had_bytes = |name: &str| had.get(name).map_or(0, |d| d.share_bytes);
            match had.get(p.name.as_str()) {
                Some(was) if same => before.share_bytes(now, was),
                _ => {
                    let mates = together.with(&p.name).iter();
                    mates.map(|m| had_bytes(&plan.disks[m.at].name)).sum::<u64>().max(had_bytes(&p.name))
                }
            }
        };
        let wanted = disks.iter().filter_map(|d| Some((d, *wanted.get(d.info().name.as_str())?)));
        let (mut growing, others): (Vec<_>, Vec<_>) = wanted.partition(|(_, p)| share(p) > share_now(p));
        let given = others.iter().any(|(_, p)| share(p) < share_now(p));
        // One that could not have it the last time waits as well.
        let deadline = Instant::now() + ROOM_WAIT;
        for (disk, p) in others {
            match Self::change(plan, &together, disk, p) {
                Err(Unchanged::Refused(refused)) if waits(&refused) => growing.push((disk, p)),
                Err(Unchanged::Refused(refused)) => unchanged(p, &refused),
                Err(Unchanged::Silent) => return Err([disk.worker_number()].into()),
                Ok(()) => {}
            }
        }
        if given {
            // Also for a disk that is not here yet.
            self.release_given();
        }
        for (disk, p) in growing {
            self.grow(plan, &together, disk, p, deadline).map_err(|Silent| BTreeSet::from([disk.worker_number()]))?;
        }
        Ok(())
    }

    /// Makes a disk have more, once those on its worker that have been told to give have given: blocks go, and tables
    /// become smaller, step by step.
    fn grow(
        &self,
        plan: &ServePlan,
        together: &Together,
        disk: &ServedDisk,
        p: &DiskPlan,
        deadline: Instant,
    ) -> Result<(), Silent> {
        loop {
            let refused = match Self::change(plan, together, disk, p) {
                Ok(()) => return Ok(()),
                Err(Unchanged::Silent) => return Err(Silent),
                Err(Unchanged::Refused(refused)) => refused,
            };
            if !waits(&refused) || Instant::now() >= deadline || *lock(&self.stop.0) {
                unchanged(p, &refused);
                return Ok(());
            }
            let _ = disk.host().worker.give_back(memory::STEP_FRAMES_MAX);
            std::thread::sleep(memory::PAUSE);
        }
    }

    /// Makes a disk have the share and the settings of `plan`, where it is `p`; the share with those that it keeps its
    /// blocks together with. A worker that is gone has nothing to change any more.
    fn change(plan: &ServePlan, together: &Together, disk: &ServedDisk, p: &DiskPlan) -> Result<(), Unchanged> {
        let (id, blocks) = (disk.id(), together.capacity_blocks(plan, p));
        let share_bytes = together.share_bytes(plan, p);
        let parted = p.clone();
        let policies: Vec<_> = p.parts.iter().map(|part| (part.number, plan.part_policy(p, part))).collect();
        let (policy, settings, poll_ns) = (p.policy, p.settings, p.poll.as_nanos() as u64);
        let changed = disk.host().worker.call(move |w| {
            w.set_poll(id, poll_ns);
            if w.core().policy(id) != Some(policy) {
                w.core().set_policy(id, policy);
            }
            // Before its share: what they take comes out of it.
            w.core().set(id, &settings);
            if parted.parts.is_empty() {
                // What its operations may take stays what it was when it came: a smaller share has fewer blocks for
                // that.
                let blocks = blocks.min(w.core().blocks_for(id, share_bytes));
                return w.core().set_capacity(id, blocks).map_err(SetPartsError::Disk);
            }
            for now in w.core().part_stats(id) {
                if let Some(&(_, policy)) = policies.iter().find(|(n, kind)| *n == now.part.0 && *kind != now.policy) {
                    w.core().set_part_policy(id, now.part, policy);
                }
            }
            let shares = shares::part_blocks(w.core(), id, &parted);
            w.core().set_part_shares(id, &shares)
        });
        match changed {
            Ok(changed) => changed.map_err(Unchanged::Refused),
            Err(Gone::Silent) => Err(Unchanged::Silent),
            Err(Gone::Ended) => Ok(()),
        }
    }
}

/// Why a disk is as it was.
enum Unchanged {
    /// Its core refuses.
    Refused(SetPartsError),
    /// Its worker does not answer, so that nothing of it was done.
    Silent,
}

/// The worker of a disk does not answer.
struct Silent;

/// Whether what is refused may be had when others have given.
fn waits(refused: &SetPartsError) -> bool {
    matches!(refused, SetPartsError::Disk(undercroft_cache::AddDiskError::NoMemory { .. }))
}

fn unchanged(p: &DiskPlan, refused: &SetPartsError) {
    tracing::error!(disk = p.name, "cannot change its share: {refused}");
}
