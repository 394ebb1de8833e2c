//! Divides the store among all nodes of the tree, once an interval: measurements of the disks in, targets of the disks
//! out.
//!
//! Owns each node's controller, the targets and the event log. Never measures, never moves a limit. Invariant: after
//! each interval the targets of the disks sum to at most what the host has, and every difference to the targets before
//! is told by events.

use super::event::{Event, Events, Goal, Party};
use super::view::{Activity, ChildView};
use super::{Controller, Donor, Guarded, Paper, Target, Utility};
use crate::curve::{Curve, partitioned_by_weight};
use crate::names::UnknownName;
use crate::shares::{BLOCKS_MAX, Growth, Level, NodeId, Share, Tree};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Events that are kept.
const EVENTS_MAX: usize = 4096;
/// The part of a node's share from which on a move is told by itself: a two hundred and fifty-sixth.
const TOLD_PART: u64 = 256;

/// Rounds of `donor` by default: with one, space follows so slowly that more is missed than with fixed
/// shares on some loads (up to 10 %, S3-FIFO, two tenants in turn); with four, on none (`shares_table`; decision 0112).
const DONOR_ROUNDS: u32 = 4;

/// The controllers a node can be given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ControllerKind {
    /// By weight; what is not demanded is lent.
    Static,
    /// The rules of thin provisioning with so many rounds an interval, 1 to 4.
    Donor(u32),
    /// Where blocks save most misses.
    #[default]
    Utility,
    /// What the goals of the children take.
    Target,
    /// The growth rule of the per-file page cache.
    Paper,
}

impl ControllerKind {
    /// All, in the order of the documentation.
    pub const ALL: [Self; 5] = [Self::Static, Self::Donor(DONOR_ROUNDS), Self::Utility, Self::Target, Self::Paper];

    /// As configuration and API write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::Donor(_) => "donor",
            Self::Utility => "utility",
            Self::Target => "target",
            Self::Paper => "paper",
        }
    }

    fn make(self) -> Box<dyn Controller> {
        match self {
            Self::Static => Box::new(Guarded::lending()),
            Self::Donor(rounds) => Box::new(Guarded::earning(Donor::new(rounds))),
            Self::Utility => Box::new(Guarded::new(Utility::default())),
            Self::Target => Box::new(Target::default()),
            Self::Paper => Box::new(Guarded::earning(Paper::default())),
        }
    }
}

impl fmt::Display for ControllerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ControllerKind {
    type Err = UnknownName;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|k| k.name() == s)
            .ok_or_else(|| UnknownName::new("controller", s, Self::ALL.map(Self::name)))
    }
}

/// Measurements of one disk in an interval.
#[derive(Clone, Copy, Debug)]
pub struct Leaf<'a> {
    /// The disk.
    pub node: NodeId,
    /// Blocks it holds.
    pub held: u64,
    /// Blocks that it needs for operations under way, which are never lent. At most its ceiling.
    pub least: u64,
    /// What happened in the interval.
    pub seen: Activity,
    /// Its sampled misses by size, as a falling curve (see [`Curve::falling`]). `None` if nothing is known yet: then a
    /// disk that was used counts as one that wants all it can get.
    pub curve: Option<&'a Curve>,
}

/// What is known of a node for this interval.
#[derive(Clone, Debug)]
struct Known {
    held: u64,
    seen: Activity,
    curve: Curve,
    floor: u64,
    room: u64,
}

/// See the head of the file.
pub struct Governor {
    set: BTreeMap<NodeId, ControllerKind>,
    running: BTreeMap<NodeId, (Option<ControllerKind>, Box<dyn Controller>)>,
    goals: BTreeMap<NodeId, Goal>,
    targets: BTreeMap<NodeId, u64>,
    events: Events,
    /// Blocks that moved in steps too small for an event each, by giver and taker.
    drift: BTreeMap<(Option<NodeId>, Option<NodeId>), u64>,
    silences: BTreeMap<NodeId, Silence>,
    /// The last interval has changed a target.
    changed: bool,
    interval: u64,
}

/// Intervals without a request in which a disk demands what it had: a disk is not idle between two bursts.
const PATIENCE: u32 = 2;
/// What of that is left an interval later, once they are over.
const LEFT: f64 = 0.75;

/// What a disk demands though it asks for nothing.
#[derive(Clone, Copy, Debug, Default)]
struct Silence {
    /// Intervals without a request.
    intervals: u32,
    /// What it demanded in the last one with requests, as far as it had that.
    demand: u64,
}

impl Silence {
    /// Another interval without a request has passed; what it demands.
    fn goes_on(&mut self) -> u64 {
        self.intervals += 1;
        if self.intervals > PATIENCE {
            self.demand = (self.demand as f64 * LEFT) as u64;
        }
        self.demand
    }
}

impl Default for Governor {
    fn default() -> Self {
        Self::new()
    }
}

impl Governor {
    /// With [`ControllerKind::default`] at every node.
    pub fn new() -> Self {
        Self {
            set: BTreeMap::new(),
            running: BTreeMap::new(),
            goals: BTreeMap::new(),
            targets: BTreeMap::new(),
            events: Events::new(EVENTS_MAX),
            drift: BTreeMap::new(),
            silences: BTreeMap::new(),
            changed: true,
            interval: 0,
        }
    }

    /// Sets the controller of `node`, and of the nodes below that have none of their own; `None`: that of the node
    /// above.
    pub fn set(&mut self, node: NodeId, kind: Option<ControllerKind>) {
        match kind {
            Some(kind) => self.set.insert(node, kind),
            None => self.set.remove(&node),
        };
    }

    /// A controller made by the caller divides the share of `node` (of none below) from now on.
    pub fn install(&mut self, node: NodeId, controller: Box<dyn Controller>) {
        self.running.insert(node, (None, controller));
    }

    /// What `node` is to reach, where [`ControllerKind::Target`] divides the share of its parent.
    pub fn set_goal(&mut self, node: NodeId, goal: Option<Goal>) {
        match goal {
            Some(goal) => self.goals.insert(node, goal),
            None => self.goals.remove(&node),
        };
    }

    /// The log.
    pub fn events(&self) -> &Events {
        &self.events
    }

    /// Blocks that came to and left `node` in steps too small for an event each, since an event last told of them.
    pub fn untold(&self, node: NodeId) -> (u64, u64) {
        let (mut came, mut left) = (0, 0);
        for (&(from, to), &blocks) in &self.drift {
            came += if to == Some(node) { blocks } else { 0 };
            left += if from == Some(node) { blocks } else { 0 };
        }
        (came, left)
    }

    /// The target of a node, in blocks.
    pub fn target(&self, node: NodeId) -> u64 {
        self.targets.get(&node).copied().unwrap_or(0)
    }

    /// Divides the store after an interval; returns the targets of all disks, in the order of [`Tree::below`]. Disks
    /// that are not in `leaves` count as idle; leaves that are no disk of the tree are ignored.
    pub fn interval(&mut self, tree: &Tree, leaves: &[Leaf<'_>]) -> Vec<(NodeId, u64)> {
        self.forget(tree);
        let told: BTreeMap<NodeId, &Leaf<'_>> = leaves.iter().map(|leaf| (leaf.node, leaf)).collect();
        let curves: BTreeMap<NodeId, Curve> =
            tree.leaves().into_iter().map(|id| (id, worth(tree, id, told.get(&id).copied()))).collect();
        let demands: BTreeMap<NodeId, u64> = curves
            .iter()
            .map(|(&id, worth)| {
                let leaf = told.get(&id).copied();
                (id, self.with_silence(tree, id, leaf, demand(tree, id, leaf, worth)))
            })
            .collect();
        let division = tree.divide(|id| demands[&id]);
        let entitled_demand = |id: NodeId| division.get(id);
        let known = know(tree, &told, curves, &entitled_demand);

        let nodes = tree.below(tree.root());
        let root = tree.root();
        let all = tree.total().min(known[&root].room);
        self.changed = self.targets.insert(root, all) != Some(all);
        for &id in &nodes {
            let node = tree.node(id).expect("listed by the tree");
            if node.children().is_empty() {
                continue;
            }
            let views: Vec<ChildView<'_>> = node
                .children()
                .iter()
                .map(|&child| {
                    let (settings, share) = (tree.node(child).expect("listed by the tree"), division.get(child));
                    let known = &known[&child];
                    ChildView {
                        node: child,
                        name: settings.name(),
                        weight: settings.settings().weight,
                        floor: known.floor,
                        room: known.room,
                        entitled: share.entitled,
                        demand: share.demand,
                        hint: settings.settings().hint,
                        now: self.targets.get(&child).copied().unwrap_or(0),
                        held: known.held,
                        seen: known.seen,
                        curve: &known.curve,
                        goal: self.goals.get(&child).copied(),
                    }
                })
                .collect();
            let total = self.targets[&id];
            let verdict = self.controller(tree, id).decide(total, &views);
            assert!(verdict.targets.iter().sum::<u64>() <= total, "a controller gave out more than there is");
            let party = |i: usize| Party { node: views[i].node, name: views[i].name.clone() };
            for mut m in verdict.moves {
                if m.blocks > 0 {
                    let key = (m.from.map(|i| views[i].node), m.to.map(|i| views[i].node));
                    let Some(blocks) = self.told(key, m.blocks, total) else { continue };
                    m.blocks = blocks;
                }
                self.events.add(Event {
                    sequence: 0,
                    interval: self.interval,
                    node: Party { node: id, name: node.name().clone() },
                    from: m.from.map(party),
                    to: m.to.map(party),
                    blocks: m.blocks,
                    reason: m.reason,
                });
            }
            for (view, &target) in views.iter().zip(&verdict.targets) {
                self.changed |= self.targets.insert(view.node, target) != Some(target);
            }
        }
        self.interval += 1;
        nodes
            .into_iter()
            .filter(|&id| tree.node(id).is_ok_and(|n| n.level() == Level::Disk))
            .map(|id| (id, self.target(id)))
            .collect()
    }

    /// Whether another interval without requests leaves every target where it is: the last one was such and did, and
    /// no disk demands any more what it had before it fell silent.
    pub fn rests(&self) -> bool {
        !self.changed && self.silences.values().all(|s| s.intervals > 0 && s.demand == 0)
    }

    /// An interval without requests has passed after which nothing is divided, because all [`rests`](Self::rests).
    pub fn pass(&mut self) {
        self.interval += 1;
    }

    /// What a disk demands, `demand` if it is not silent.
    fn with_silence(&mut self, tree: &Tree, id: NodeId, leaf: Option<&Leaf<'_>>, demand: u64) -> u64 {
        let had = self.target(id);
        let silence = self.silences.entry(id).or_default();
        if leaf.is_some_and(|l| l.seen.requests > 0) {
            *silence = Silence { intervals: 0, demand: demand.min(had) };
            return demand;
        }
        let remembered = silence.goes_on();
        // Of others a hint says what they demand.
        if growth(tree, id) == Growth::ByUtility { demand.max(remembered) } else { demand }
    }

    /// How many blocks an event tells of if so many more move: small steps add up, those in the other direction count
    /// against them, until they are worth telling. Curves are measured, so shares follow them to and fro by a few
    /// blocks.
    fn told(&mut self, (from, to): (Option<NodeId>, Option<NodeId>), blocks: u64, total: u64) -> Option<u64> {
        let back = self.drift.remove(&(to, from)).unwrap_or(0);
        if back > blocks {
            self.drift.insert((to, from), back - blocks);
            return None;
        }
        let moved = self.drift.remove(&(from, to)).unwrap_or(0) + blocks - back;
        if moved * TOLD_PART < total {
            self.drift.insert((from, to), moved);
            return None;
        }
        Some(moved)
    }

    /// The controller of a node: its own, or a new one of the kind set for it or above it.
    fn controller(&mut self, tree: &Tree, id: NodeId) -> &mut dyn Controller {
        let mut at = Some(id);
        let mut kind = ControllerKind::default();
        while let Some(node) = at {
            if let Some(&set) = self.set.get(&node) {
                kind = set;
                break;
            }
            at = tree.node(node).ok().and_then(|n| n.parent());
        }
        let fits = self.running.get(&id).is_some_and(|(running, _)| running.is_none_or(|k| k == kind));
        if !fits {
            self.running.insert(id, (Some(kind), kind.make()));
        }
        self.running.get_mut(&id).expect("just there").1.as_mut()
    }

    /// Forgets what belongs to nodes that are gone.
    fn forget(&mut self, tree: &Tree) {
        let lives = |id: &NodeId| tree.node(*id).is_ok();
        self.set.retain(|id, _| lives(id));
        self.running.retain(|id, _| lives(id));
        self.goals.retain(|id, _| lives(id));
        self.targets.retain(|id, _| lives(id));
        self.silences.retain(|id, _| lives(id));
        for ((from, to), blocks) in std::mem::take(&mut self.drift) {
            // what has gone to or come from one that is gone is free, or was
            *self.drift.entry((from.filter(lives), to.filter(lives))).or_default() += blocks;
        }
        self.drift.remove(&(None, None));
    }
}

fn growth(tree: &Tree, id: NodeId) -> Growth {
    tree.node(id).expect("listed by the tree").settings().hint.growth()
}

/// What blocks save a disk in an interval like the past one: the shape of its curve, which may remember more than that
/// interval, at the past one's rate; without the misses that read-ahead foresaw, and flat where a hint says so.
fn worth(tree: &Tree, id: NodeId, leaf: Option<&Leaf<'_>>) -> Curve {
    let Some(leaf) = leaf else { return Curve::flat(0.0) };
    let waited = if leaf.seen.misses == 0 { 1.0 } else { leaf.seen.waited() as f64 / leaf.seen.misses as f64 };
    let Some(curve) = leaf.curve else { return Curve::flat(leaf.seen.waited() as f64) };
    let curve =
        if curve.requests() > 0.0 { curve.scaled_to(waited * leaf.seen.requests as f64) } else { Curve::flat(0.0) };
    match growth(tree, id) {
        Growth::ByUtility | Growth::Entitled => curve,
        Growth::Floor | Growth::Nothing => Curve::flat(curve.misses_at(leaf.held)),
    }
}

/// What a disk could use.
fn demand(tree: &Tree, id: NodeId, leaf: Option<&Leaf<'_>>, worth: &Curve) -> u64 {
    let floor = tree.node(id).expect("listed by the tree").settings().floor;
    let used = leaf.is_some_and(|l| l.seen.requests > 0);
    let wanted = match growth(tree, id) {
        Growth::Nothing => 0,
        Growth::Floor => {
            if used {
                floor
            } else {
                0
            }
        }
        Growth::Entitled => BLOCKS_MAX,
        Growth::ByUtility if used && leaf.is_some_and(|l| l.curve.is_none()) => BLOCKS_MAX,
        Growth::ByUtility => worth.enough(),
    };
    wanted.max(leaf.map_or(0, |l| l.least))
}

/// What is known of every node: of disks what is told, of others what those below are together.
fn know(
    tree: &Tree,
    told: &BTreeMap<NodeId, &Leaf<'_>>,
    mut curves: BTreeMap<NodeId, Curve>,
    share: &dyn Fn(NodeId) -> Share,
) -> BTreeMap<NodeId, Known> {
    let mut known: BTreeMap<NodeId, Known> = BTreeMap::new();
    for id in tree.below(tree.root()).into_iter().rev() {
        let node = tree.node(id).expect("listed by the tree");
        let (settings, Share { entitled, room, .. }) = (node.settings(), share(id));
        let found = if node.level() == Level::Disk {
            let (held, seen) = told.get(&id).map_or((0, Activity::default()), |l| (l.held, l.seen));
            let curve = curves.remove(&id).expect("every disk has one");
            let (floor, room) = match settings.hint.growth() {
                Growth::Nothing => (0, 0),
                Growth::Entitled => (settings.floor.max(entitled), room),
                Growth::ByUtility | Growth::Floor => (settings.floor, room),
            };
            let least = told.get(&id).map_or(0, |leaf| leaf.least);
            let room = room.max(least);
            Known { held, seen, curve, floor: floor.max(least).min(room), room }
        } else {
            let below: Vec<(u32, &Known)> = node
                .children()
                .iter()
                .map(|&child| (tree.node(child).expect("listed by the tree").settings().weight, &known[&child]))
                .collect();
            let sum = |of: &dyn Fn(&Known) -> u64| below.iter().fold(0u64, |sum, (_, k)| sum.saturating_add(of(k)));
            let room = room.min(sum(&|k| k.room));
            Known {
                held: sum(&|k| k.held),
                seen: below.iter().fold(Activity::default(), |sum, (_, k)| sum.plus(&k.seen)),
                curve: partitioned_by_weight(below.iter().map(|(weight, k)| (*weight, &k.curve))),
                floor: settings.floor.max(sum(&|k| k.floor).min(entitled)).min(room),
                room,
            }
        };
        known.insert(id, found);
    }
    known
}
