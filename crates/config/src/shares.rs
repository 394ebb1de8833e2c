//! How the memory of the store is divided among VMs, containers and disks.
//!
//! Owns the way from a plan to the tree of shares and back. Never moves anything: `service` does. Invariants: the
//! shares together never exceed the memory; every disk gets at least `SHARE_BYTES_MIN`; the same plan always gives the
//! same shares.

use super::keys::{SHARE_BYTES_MIN, UNIT_BYTES};
use super::plan::{DiskPlan, NodePlan, ServePlan};
use super::stores::StoreChoice;
use std::collections::{BTreeMap, BTreeSet};
use undercroft_engine::shares::{BLOCKS_MAX, Claim, Level, NodeId, ShareSettings, Tree, TreeError, fill};
use undercroft_units::Size;

/// Why the disks do not fit: a sentence each for what and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// What is wrong.
    pub error: String,
    /// What to do.
    pub remedy: String,
}

/// Where every node of a plan stands in a tree of shares. A node keeps its id for as long as it is in the plan.
#[derive(Clone, Debug)]
pub struct Layout {
    tree: Tree,
    /// VMs as `VM`, containers as `VM/CONTAINER`.
    groups: BTreeMap<String, NodeId>,
    /// Disks by full name.
    disks: BTreeMap<String, NodeId>,
}

/// What a node is to be.
struct Wish<'a> {
    parent: Option<String>,
    level: Level,
    name: &'a str,
    settings: ShareSettings,
    /// What it, or the disks below it, has before anything is divided: sizes, and what every disk needs.
    promised: u64,
    /// The VM that it is below.
    within: Option<&'a str>,
}

/// Where a floor that does not fit is refused. Elsewhere it is kept as far as it goes, for somebody else has set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strict<'a> {
    /// Everywhere: a configuration that is read.
    Everywhere,
    /// Below this VM, and for VMs themselves.
    Within(&'a str),
    /// For VMs, and disks without one: whoever runs the host need not know what is set below.
    OnHost,
    /// Nowhere: what is missing is in use by a disk that is going, and comes back.
    Nowhere,
}

impl Strict<'_> {
    fn holds(self, within: Option<&str>) -> bool {
        let on_host = || self != Strict::Nowhere;
        within.map_or_else(on_host, |vm| self == Strict::Everywhere || self == Strict::Within(vm))
    }
}

impl Default for Layout {
    fn default() -> Self {
        Self { tree: Tree::new("host", 0), groups: BTreeMap::new(), disks: BTreeMap::new() }
    }
}

impl Layout {
    /// The tree.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The node of a disk.
    pub fn disk(&self, name: &str) -> Option<NodeId> {
        self.disks.get(name).copied()
    }

    /// Every disk by full name, with its node.
    pub fn disks(&self) -> impl Iterator<Item = (&str, NodeId)> {
        self.disks.iter().map(|(name, id)| (name.as_str(), *id))
    }

    /// Every VM and container by name, with its node.
    pub fn groups(&self) -> impl Iterator<Item = (&str, NodeId)> {
        self.groups.iter().map(|(name, id)| (name.as_str(), *id))
    }

    /// The node called `name`: `host`, `VM`, `VM/CONTAINER`, or the full name of a disk.
    pub fn find(&self, name: &str) -> Option<NodeId> {
        self.groups.get(name).or_else(|| self.disks.get(name)).copied().or((name == "host").then(|| self.tree.root()))
    }

    /// What a node is called.
    pub fn name_of(&self, node: NodeId) -> String {
        let of = |map: &BTreeMap<String, NodeId>| map.iter().find(|(_, id)| **id == node).map(|(name, _)| name.clone());
        of(&self.groups).or_else(|| of(&self.disks)).unwrap_or_else(|| "host".to_string())
    }

    /// Makes the tree that of `plan`. What it says of shares is not looked at, but for fixed ones. Floors below VMs
    /// that do not fit are kept as far as they go, in the order of names.
    ///
    /// # Errors
    /// What does not fit together on the host; the tree may then be anything between.
    pub fn follow(&mut self, plan: &ServePlan) -> Result<(), Misfit> {
        if plan.going_bytes == 0 {
            return self.follow_as(plan, plan.disks_bytes(), Strict::OnHost);
        }
        self.follow_as(plan, plan.room_bytes(), Strict::Nowhere).map_err(|m| Misfit {
            error: format!("{}; disks that are being detached have {} still", m.error, Size(plan.going_bytes)),
            remedy: "look at the storage of the disk that does not go, and try again when it is gone".to_string(),
        })
    }

    fn follow_as(&mut self, plan: &ServePlan, total_bytes: u64, strict: Strict<'_>) -> Result<(), Misfit> {
        let (groups, disks) = wishes(plan);
        self.tree.set_total(total_bytes / UNIT_BYTES);
        let gone = |have: &BTreeMap<String, NodeId>, want: &dyn Fn(&str) -> bool| -> Vec<String> {
            have.keys().filter(|n| !want(n)).cloned().collect()
        };
        // A disk that has moved to another container is another node.
        let moved = |name: &str, tree: &Tree, groups: &BTreeMap<String, NodeId>, id: NodeId| {
            let parent = disks.get(name).and_then(|w| w.parent.as_ref());
            let there = parent.map_or(Some(tree.root()), |p| groups.get(p).copied());
            tree.node(id).ok().and_then(|n| n.parent()) != there
        };
        for name in gone(&self.disks, &|n| disks.contains_key(n) && !moved(n, &self.tree, &self.groups, self.disks[n]))
        {
            if let Some(id) = self.disks.remove(&name) {
                let _ = self.tree.remove(id);
            }
        }
        for name in gone(&self.groups, &|n| groups.contains_key(n)).into_iter().rev() {
            if let Some(id) = self.groups.remove(&name) {
                let _ = self.tree.remove(id);
            }
        }
        // Everything without floors first: a floor is checked against what all weights and ceilings give its parent.
        let bare = |s: &ShareSettings| ShareSettings { floor: 0, ..*s };
        for (name, wish) in &groups {
            self.place(name, wish, bare(&wish.settings), plan)?;
        }
        for (name, wish) in &disks {
            self.place(name, wish, bare(&wish.settings), plan)?;
        }
        let all =
            || groups.iter().chain(&disks).filter_map(|(name, wish)| Some((self.find_as(name, wish.level)?, wish)));
        let mut floors: Vec<(NodeId, ShareSettings, u64)> = Vec::new();
        for (id, wish) in all() {
            let sure = if strict.holds(wish.within) { wish.settings.floor } else { wish.promised };
            floors.push((id, wish.settings, sure));
        }
        for &(id, settings, floor) in floors.iter().filter(|(_, _, sure)| *sure > 0) {
            self.tree.change(id, ShareSettings { floor, ..settings }).map_err(|e| misfit(&e, plan))?;
        }
        for &(id, settings, sure) in floors.iter().filter(|(_, settings, sure)| settings.floor > *sure) {
            let room = match self.tree.change(id, settings) {
                Ok(()) => continue,
                Err(TreeError::FloorsAboveParent { entitled: whole, others, .. })
                | Err(TreeError::FloorsAboveCeiling { ceiling: whole, others, .. }) => whole.saturating_sub(others),
                Err(e) => return Err(misfit(&e, plan)),
            };
            let floor = room.clamp(sure, settings.floor);
            self.tree.change(id, ShareSettings { floor, ..settings }).map_err(|e| misfit(&e, plan))?;
        }
        if let Some(short) = self.tree.shortfalls().first() {
            return Err(shortfall(&self.name_of(short.node), short.floors, short.entitled));
        }
        Ok(())
    }

    /// Lets a disk have at least `units`, whatever its floor, if that fits; until the tree follows a plan again.
    pub fn raise_floor(&mut self, disk: &str, units: u64) {
        let Some(id) = self.disk(disk) else { return };
        if let Ok(node) = self.tree.node(id)
            && node.settings().floor < units
        {
            let floor = units.min(node.settings().ceiling.unwrap_or(units));
            // Where it does not fit, the floor stays as it is set.
            let _ = self.tree.change(id, ShareSettings { floor, ..*node.settings() });
        }
    }

    fn find_as(&self, name: &str, level: Level) -> Option<NodeId> {
        if level == Level::Disk { self.disks.get(name) } else { self.groups.get(name) }.copied()
    }

    fn place(&mut self, name: &str, wish: &Wish<'_>, settings: ShareSettings, plan: &ServePlan) -> Result<(), Misfit> {
        if let Some(id) = self.find_as(name, wish.level) {
            return self.tree.change(id, settings).map_err(|e| misfit(&e, plan));
        }
        let root = self.tree.root();
        let parent = wish.parent.as_ref().and_then(|p| self.groups.get(p)).copied().unwrap_or(root);
        let added = match self.tree.add(parent, wish.level, wish.name, settings) {
            Err(TreeError::Duplicate { .. }) => {
                self.tree.add(parent, wish.level, &format!("{} ({})", wish.name, wish.level), settings)
            }
            other => other,
        };
        let id = added.map_err(|e| misfit(&e, plan))?;
        if wish.level == Level::Disk { &mut self.disks } else { &mut self.groups }.insert(name.to_string(), id);
        Ok(())
    }

    /// What every disk and every part of one is entitled to, in bytes, by name.
    fn entitled(&self) -> BTreeMap<&str, u64> {
        let division = self.tree.divide(|_| BLOCKS_MAX);
        self.disks.iter().map(|(name, &id)| (name.as_str(), division.get(id).share * UNIT_BYTES)).collect()
    }
}

type Wishes<'a> = BTreeMap<String, Wish<'a>>;

/// What the tree is to consist of: groups by path, parents before children in the order of the map, and disks by name.
fn wishes(plan: &ServePlan) -> (Wishes<'_>, Wishes<'_>) {
    let units = |bytes: u64| bytes / UNIT_BYTES;
    let (mut groups, mut disks) = (Wishes::new(), Wishes::new());
    let set = |node: &NodePlan| ShareSettings {
        weight: node.weight,
        floor: units(node.floor_bytes),
        ceiling: node.ceiling_bytes.map(units),
        ..ShareSettings::default()
    };
    for node in &plan.nodes {
        let (level, parent) = match node.name.split_once('/') {
            None => (Level::Vm, None),
            Some((vm, _)) => (Level::Container, Some(vm.to_string())),
        };
        let name = node.name.split_once('/').map_or(node.name.as_str(), |(_, container)| container);
        let within = node.name.split_once('/').map(|(vm, _)| vm);
        groups.insert(node.name.clone(), Wish { parent, level, name, settings: set(node), promised: 0, within });
    }
    for disk in &plan.disks {
        let parent = match (&disk.vm, &disk.container) {
            (Some(vm), Some(container)) => Some(format!("{vm}/{container}")),
            (vm, _) => vm.clone(),
        };
        if let Some(vm) = &disk.vm {
            let wish = |level, parent: Option<String>, name| {
                let within = parent.is_some().then_some(vm.as_str());
                Wish { parent, level, name, settings: ShareSettings::default(), promised: 0, within }
            };
            groups.entry(vm.clone()).or_insert_with(|| wish(Level::Vm, None, vm));
            if let Some(container) = &disk.container {
                let path = format!("{vm}/{container}");
                groups.entry(path).or_insert_with(|| wish(Level::Container, Some(vm.clone()), container));
            }
        }
        let fixed = disk.share_fixed.then(|| units(disk.share_bytes));
        let least = units(SHARE_BYTES_MIN);
        // Whose blocks are to be on SSDs alone has of RAM what its operations take, or was promised.
        let is_on_ssd = plan.store_of(disk) == Some(StoreChoice::Ssd);
        let in_ram = is_on_ssd.then_some(units(disk.floor_bytes));
        let settings = ShareSettings {
            weight: disk.weight,
            floor: fixed.unwrap_or(units(disk.floor_bytes)).max(least),
            ceiling: fixed.or(in_ram).or(disk.ceiling_bytes.map(units)).map(|c| c.max(least)),
            hint: disk.settings.hint,
        };
        // What every disk needs, and what was promised to one by its size, is taken before anything is divided.
        let promised = fixed.unwrap_or(least).max(least);
        let mut above = parent.clone();
        while let Some(group) = above.as_ref().and_then(|name| groups.get_mut(name)) {
            group.promised += promised;
            above.clone_from(&group.parent);
        }
        let (level, within) = (Level::Disk, disk.vm.as_deref());
        for (part, (_, name, _)) in disk.parts.iter().zip(disk.leaves().skip(1)) {
            let Some(vm) = &disk.vm else { continue };
            let path = format!("{vm}/{}", part.container);
            let group = |name| Wish {
                parent: Some(vm.clone()),
                level: Level::Container,
                name,
                settings: ShareSettings::default(),
                promised: 0,
                within,
            };
            groups.entry(path.clone()).or_insert_with(|| group(&part.container));
            let settings = ShareSettings { hint: disk.settings.hint, ..ShareSettings::default() };
            // Its name within its container, where other disks may have ranges, too.
            let wish = Wish { parent: Some(path), level, name: &disk.name, settings, promised: 0, within };
            disks.insert(name, wish);
        }
        disks.insert(disk.name.clone(), Wish { parent, level, name: &disk.name, settings, promised, within });
    }
    for group in groups.values_mut() {
        group.settings.floor = group.settings.floor.max(group.promised);
    }
    (groups, disks)
}

/// Whether the sizes of the disks fit into the memory, and leave every other disk the least share.
fn check_sizes(plan: &ServePlan) -> Result<(), Misfit> {
    let fixed: u128 = plan.disks.iter().filter(|d| d.share_fixed).map(|d| u128::from(d.share_bytes)).sum();
    let memory = Size(plan.disks_bytes());
    let shown = |n: u128| Size(u64::try_from(n).unwrap_or(u64::MAX));
    let Some(left) = u128::from(memory.0).checked_sub(fixed) else {
        return Err(Misfit {
            error: format!("the sizes of the disks add up to {}, but {}", shown(fixed), memory_is(plan)),
            remedy: "make sizes smaller or memory larger".to_string(),
        });
    };
    let fit = usize::try_from(left / u128::from(SHARE_BYTES_MIN)).unwrap_or(usize::MAX);
    match plan.disks.iter().filter(|d| !d.share_fixed).nth(fit) {
        None => Ok(()),
        Some(poor) => Err(Misfit {
            error: format!(
                "the disks with a size leave {} of {memory} memory, too little for disk \"{}\"",
                shown(left),
                poor.name
            ),
            remedy: format!("every disk needs at least {}: make memory larger or sizes smaller", Size(SHARE_BYTES_MIN)),
        }),
    }
}

/// What there is for disks, in words.
fn memory_is(plan: &ServePlan) -> String {
    let beside = if plan.ssd.memory_bytes > 0 { " without what the SSD store takes of it" } else { "" };
    format!("memory{beside} is {}", Size(plan.disks_bytes()))
}

fn bytes(units: u64) -> Size {
    Size(units.saturating_mul(UNIT_BYTES))
}

fn shortfall(node: &str, floors: u64, entitled: u64) -> Misfit {
    let whose = if node == "host" { "the store".to_string() } else { format!("\"{node}\"") };
    Misfit {
        error: format!(
            "{whose} has {} for what is below it, too little for floors and sizes of {}",
            bytes(entitled),
            bytes(floors)
        ),
        remedy: format!(
            "make memory larger, floors and sizes smaller, or weights more alike; every disk needs at least {}",
            Size(SHARE_BYTES_MIN)
        ),
    }
}

fn no_room_beside_standing(least: u64, total: u64) -> Misfit {
    Misfit {
        error: format!(
            "disks that cannot be changed now keep what they have; with that, {} of the store would be needed, and \
             there are {}",
            bytes(least),
            bytes(total)
        ),
        remedy: "ask for less, or try again when `undercroft status` shows no disk as stalled or waiting".to_string(),
    }
}

fn misfit(e: &TreeError, plan: &ServePlan) -> Misfit {
    match e {
        TreeError::CeilingBelowFloor { node, floor, ceiling } => Misfit {
            error: format!("\"{node}\": its ceiling of {} is below its floor of {}", bytes(*ceiling), bytes(*floor)),
            remedy: "raise the ceiling or lower the floor".to_string(),
        },
        TreeError::FloorsAboveCeiling { node, floor, parent, ceiling, others } => Misfit {
            error: format!(
                "\"{node}\": a floor of {} does not fit: \"{parent}\" has a ceiling of {}, and what else is in it has \
                 floors of {}",
                bytes(*floor),
                bytes(*ceiling),
                bytes(*others)
            ),
            remedy: "lower the floors or raise that ceiling".to_string(),
        },
        TreeError::FloorsAboveParent { floor, parent, entitled, others, .. } => {
            let of_store = &**parent == "host";
            let sum = floor.saturating_add(*others);
            if of_store && plan.disks.iter().all(|d| d.vm.is_none()) && *entitled == plan.disks_bytes() / UNIT_BYTES {
                let what = memory_is(plan);
                let error = format!("the sizes and floors of the disks add up to {}, but {what}", bytes(sum));
                return Misfit { error, remedy: "make sizes smaller or memory larger".to_string() };
            }
            shortfall(parent, sum, *entitled)
        }
        other => Misfit { error: other.to_string(), remedy: "change the disks or VMs it names".to_string() },
    }
}

/// Gives every disk without a fixed share what it is entitled to by weights, floors and ceilings. Changes nothing if
/// they do not fit.
///
/// # Errors
/// Sizes and floors add up to more than there is, at any node, or leave less than the least share for a disk.
pub fn divide(plan: &mut ServePlan) -> Result<(), Misfit> {
    divide_from(plan, &[], Strict::Everywhere)
}

/// The same for a plan that changes while it runs: disks that are in `before` keep what they have of the store as far
/// as the others' entitlements allow, and others have what they are entitled to. From there shares move gradually.
///
/// # Errors
/// As [`divide`], but floors only where `strict` says.
pub fn divide_from(plan: &mut ServePlan, before: &[DiskPlan], strict: Strict<'_>) -> Result<(), Misfit> {
    divide_around(plan, before, strict, &BTreeSet::new())
}

/// The same where the disks of `standing` have what they had in `before`, whatever they are entitled to.
///
/// # Errors
/// As [`divide_from`], or what these leave is too little for the others.
pub(crate) fn divide_around(
    plan: &mut ServePlan,
    before: &[DiskPlan],
    strict: Strict<'_>,
    standing: &BTreeSet<String>,
) -> Result<(), Misfit> {
    check_sizes(plan)?;
    plan.note_io_disks(before);
    let mut layout = Layout::default();
    layout.follow_as(plan, plan.disks_bytes(), strict)?;
    if plan.going_bytes > 0 {
        // It fits; now as far as there is room today.
        layout = Layout::default();
        layout.follow(plan)?;
    }
    let (_, wishes) = wishes(plan);
    let entitled = layout.entitled();
    let had: BTreeMap<String, u64> =
        before.iter().flat_map(DiskPlan::leaves).map(|(_, name, bytes)| (name, bytes)).collect();
    // A size that has been set holds at once, whatever it was before: the others make room.
    let fixed: BTreeSet<&str> = plan.disks.iter().filter(|d| d.share_fixed).map(|d| d.name.as_str()).collect();
    let claim = |(name, stands): &(String, bool)| {
        let (name, settings) = (name.as_str(), wishes[name].settings);
        let entitled = entitled.get(name).map_or(0, |bytes| bytes / UNIT_BYTES);
        let ceiling = settings.ceiling.unwrap_or(BLOCKS_MAX);
        let had = had.get(name).filter(|_| !fixed.contains(name)).map_or(entitled, |bytes| bytes / UNIT_BYTES);
        let (sure, most) = (had.min(entitled), had.max(entitled).min(ceiling));
        let steps = if *stands { [had; 3] } else { [settings.floor.min(sure), sure, most] };
        Claim { weight: settings.weight, steps }
    };
    let leaves = plan.disks.iter().flat_map(|d| d.leaves().map(|(_, name, _)| (name, standing.contains(&d.name))));
    let leaves: Vec<(String, bool)> = leaves.collect();
    let mut claims: Vec<Claim> = leaves.iter().map(claim).collect();
    keep_ceilings(&layout, leaves.iter().map(|(name, _)| name.as_str()), &mut claims);
    let (least, total) = (claims.iter().map(|c| c.steps[0]).sum(), layout.tree().total());
    if least > total && !standing.is_empty() {
        return Err(no_room_beside_standing(least, total));
    }
    let mut shares = fill(total, &claims).into_iter().map(|units| units * UNIT_BYTES);
    for disk in &mut plan.disks {
        let leaves: Vec<u64> = shares.by_ref().take(1 + disk.parts.len()).collect();
        if !disk.share_fixed {
            disk.set_leaves(&leaves);
        }
    }
    Ok(())
}

/// Lets what is below a VM or a container with a ceiling claim no more than that together, `names` by `names`: a disk
/// that comes to it takes what it is entitled to from its neighbours there, though the host has room.
fn keep_ceilings<'a>(layout: &Layout, names: impl Iterator<Item = &'a str>, claims: &mut [Claim]) {
    let leaves = names.enumerate().filter_map(|(n, name)| Some((layout.disk(name)?, n)));
    let at: BTreeMap<NodeId, usize> = leaves.collect();
    // What a VM has is what its containers have at most: these first.
    let (containers, vms): (Vec<_>, Vec<_>) = layout.groups().partition(|(name, _)| name.contains('/'));
    for (_, group) in containers.into_iter().chain(vms) {
        let Some(ceiling) = layout.tree().node(group).ok().and_then(|node| node.settings().ceiling) else { continue };
        let below: Vec<usize> = layout.tree().below(group).iter().filter_map(|id| at.get(id).copied()).collect();
        let own: Vec<Claim> = below.iter().map(|&n| claims[n]).collect();
        // One that stands may have more than that.
        let least = own.iter().map(|c| c.steps[0]).sum();
        for (n, most) in below.into_iter().zip(fill(ceiling.max(least), &own)) {
            claims[n].steps = claims[n].steps.map(|step| step.min(most));
        }
    }
}
