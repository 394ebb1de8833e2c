//! One trace through the same cache in several ways at once: without locks and with, with a victim buffer and without,
//! and with locks that were chosen in other ways, for comparison.
//!
//! Owns the caches. Never chooses what is locked in them but by the profile that it is given. Invariant: all see the
//! same references.

use super::LineReference;
use super::cache::{Cache, CacheOptions, Counts};
use super::lock::{LOCKED_MAX, LockSet};
use super::profile::Profile;
use super::shape::Shape;
use super::victim::{Room, VICTIM_LINES};
use undercroft_engine::probability::ProbabilityRule;
use undercroft_trace::finished;

/// What a cache is compared with the others for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockArm {
    /// Neither locks nor a victim buffer.
    Plain,
    /// Locks of the blocks that miss most.
    Lock,
    /// A victim buffer.
    Victim,
    /// Both.
    Both,
    /// All of the cache locked, by the blocks that miss most: nothing else is cached.
    Whole,
    /// A control: as many locks, chosen in this way.
    Control(Control),
}

impl LockArm {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            LockArm::Plain => "none",
            LockArm::Lock => "lock",
            LockArm::Victim => "victim buffer",
            LockArm::Both => "lock and victim buffer",
            LockArm::Whole => "whole cache locked",
            LockArm::Control(Control::Hits) => "lock by hits",
            LockArm::Control(Control::Random) => "random lock",
            LockArm::Control(Control::Other) => "lock by another input's profile",
        }
    }
}

/// How else blocks may be chosen that are locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Those that are hit most.
    Hits,
    /// Any that are referenced.
    Random,
    /// Those that missed most with another input of the program.
    Other,
}

/// How the arms are made.
#[derive(Clone, Debug)]
pub struct ArmsOptions {
    /// Lines that are locked, in percent of all: an arm for each, and one for each control.
    pub percents: Vec<f64>,
    /// Entries of the miss table.
    pub table: usize,
    /// Whether what is locked is there before the first reference.
    pub preload: bool,
    /// Lines of the victim buffer.
    pub victim_lines: u32,
    /// Where they come from: an arm for each.
    pub rooms: Vec<Room>,
    /// For the random control.
    pub seed: u64,
    /// Blocks by their misses with another input, if there is one.
    pub other: Option<Vec<u64>>,
    /// Whether there is an arm with all of the cache locked.
    pub whole: bool,
    /// Rules of replacement besides LRU: those arms that are no controls, once more for each.
    pub rules: Vec<ProbabilityRule>,
}

impl Default for ArmsOptions {
    fn default() -> Self {
        Self {
            percents: vec![5.0],
            table: LOCKED_MAX,
            preload: false,
            victim_lines: VICTIM_LINES,
            rooms: vec![Room::Carved, Room::Extra],
            seed: 1,
            other: None,
            whole: false,
            rules: vec![],
        }
    }
}

/// What became of an arm.
#[derive(Clone, Debug, PartialEq)]
pub struct ArmResult {
    /// Which.
    pub arm: LockArm,
    /// Where its victim buffer's lines come from, if it has one.
    pub room: Option<Room>,
    /// How lines are replaced, if not by LRU.
    pub rule: Option<ProbabilityRule>,
    /// Lines that were to be locked, in percent of all, if any were.
    pub percent: Option<f64>,
    /// Lines that it could lock, in percent of all: fewer than asked for where the table or the sets have no more.
    pub locked_percent: f64,
    /// What it counted.
    pub counts: Counts,
}

struct Running {
    arm: LockArm,
    room: Option<Room>,
    rule: Option<ProbabilityRule>,
    percent: Option<f64>,
    locked_percent: f64,
    cache: Cache,
}

/// See the head of the file.
pub struct Arms {
    arms: Vec<Running>,
}

impl Arms {
    /// All arms, by a profile of the same trace in the same cache.
    pub fn new(shape: Shape, profile: &Profile, options: &ArmsOptions) -> Self {
        let choose = |ranked: &[u64], percent| LockSet::choose(ranked.iter().copied(), shape, percent, options.table);
        let references = profile.counts().references;
        let make = |arm, percent, locks: LockSet, room: Option<Room>, rule: Option<ProbabilityRule>| Running {
            arm,
            room,
            rule,
            percent,
            locked_percent: locks.percent_of(shape),
            cache: Cache::new(
                shape,
                CacheOptions {
                    locks,
                    preload: options.preload,
                    victim: room.map(|room| (options.victim_lines, room)),
                    probability: rule.map(|rule| (rule, references)),
                },
            ),
        };
        let none = LockSet::default;
        let blocks = |ranked: Vec<(u64, u64)>| ranked.into_iter().map(|(block, _)| block).collect::<Vec<_>>();
        let by_misses = blocks(profile.by_misses());
        let mut controls = vec![
            (Control::Hits, blocks(profile.by_hits())),
            (Control::Random, shuffled(profile.blocks(), options.seed)),
        ];
        controls.extend(options.other.clone().map(|other| (Control::Other, other)));
        let mut arms = vec![];
        for rule in std::iter::once(None).chain(options.rules.iter().copied().map(Some)) {
            arms.push(make(LockArm::Plain, None, none(), None, rule));
            arms.extend(options.rooms.iter().map(|room| make(LockArm::Victim, None, none(), Some(*room), rule)));
            for percent in &options.percents {
                let (locks, percent) = (choose(&by_misses, *percent), Some(*percent));
                arms.push(make(LockArm::Lock, percent, locks.clone(), None, rule));
                let both = |room: &Room| make(LockArm::Both, percent, locks.clone(), Some(*room), rule);
                arms.extend(options.rooms.iter().map(both));
                let control = |(of, ranked): &(Control, Vec<u64>)| {
                    make(LockArm::Control(*of), percent, choose(ranked, percent.unwrap_or(0.0)), None, None)
                };
                arms.extend(controls.iter().filter(|_| rule.is_none()).map(control));
            }
            if options.whole && rule.is_none() {
                let locks = LockSet::whole(by_misses.iter().copied(), shape);
                arms.push(make(LockArm::Whole, Some(100.0), locks, None, None));
            }
        }
        Self { arms }
    }

    /// All references, for each.
    pub fn run(&mut self, references: &[LineReference]) {
        // One after the other: each has its own lines in the processor's cache.
        for arm in &mut self.arms {
            references.iter().for_each(|reference| _ = arm.cache.access(*reference));
        }
    }

    /// What became of each.
    pub fn results(&self) -> Vec<ArmResult> {
        let result = |running: &Running| {
            let Running { arm, room, rule, percent, locked_percent, .. } = *running;
            ArmResult { arm, room, rule, percent, locked_percent, counts: running.cache.counts() }
        };
        self.arms.iter().map(result).collect()
    }
}

/// Blocks in an order that the seed alone decides.
pub(super) fn shuffled(blocks: impl Iterator<Item = u64>, seed: u64) -> Vec<u64> {
    let mut blocks: Vec<_> = blocks.map(|block| (finished(block ^ finished(seed)), block)).collect();
    blocks.sort_unstable();
    blocks.into_iter().map(|(_, block)| block).collect()
}
