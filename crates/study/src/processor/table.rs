//! One trace through caches of several sizes, each without locks and in all the ways that are compared with that.
//!
//! Owns the list of what is run, and its rows. Never reads a trace. Invariant: all rows of a size are of the same
//! references.

use super::arms::{Arms, ArmsOptions, LockArm};
use super::cache::Counts;
use super::online::OnlineLocks;
use super::optimum::{optimum_misses, policy_misses};
use super::profile::Profile;
use super::shape::Shape;
use super::victim::Room;
use super::{Control, LineReference};
use rayon::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};
use undercroft_engine::AnyPolicyKind;
use undercroft_engine::probability::ProbabilityRule;

/// What is run.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// The caches.
    pub shapes: Vec<Shape>,
    /// Locks and victim buffers.
    pub arms: ArmsOptions,
    /// References of the same program with another input, whose profile is a control.
    pub other: Option<Vec<LineReference>>,
    /// Whether locks that follow the phase are run.
    pub online: bool,
    /// Whether the fewest misses that are possible are counted.
    pub optimum: bool,
    /// Other replacement than LRU, in each set by itself.
    pub policies: Vec<AnyPolicyKind>,
}

/// What a row is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// LRU, or replacement by probability, with or without locks and victim buffer.
    Arm(LockArm, Option<Room>, Option<ProbabilityRule>),
    /// Locks that follow the phase.
    Online,
    /// Another policy.
    Policy(AnyPolicyKind),
    /// The fewest possible.
    Optimum,
}

impl Way {
    /// Its name in tables and for programs.
    pub fn name(self) -> String {
        let room = |room| match room {
            Some(Room::Carved) => " (carved)",
            Some(Room::Extra) => " (extra)",
            None => "",
        };
        match self {
            Way::Arm(arm, from, None) => format!("{}{}", arm.name(), room(from)),
            Way::Arm(LockArm::Plain, _, Some(rule)) => rule.name().into(),
            Way::Arm(arm, from, Some(rule)) => format!("{}, {}{}", rule.name(), arm.name(), room(from)),
            Way::Online => "online lock".into(),
            Way::Policy(kind) => kind.name().into(),
            Way::Optimum => "optimum".into(),
        }
    }
}

/// One way through one cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// The cache.
    pub shape: Shape,
    /// What was done.
    pub way: Way,
    /// Lines that were to be locked, in percent, if the way has a number for it.
    pub percent: Option<f64>,
    /// Lines that could be locked, in percent of all: fewer where the table or the sets have no more.
    pub locked_percent: f64,
    /// What was counted. Lines written back are counted for LRU with and without locks alone.
    pub counts: Counts,
}

/// References of which the fewest misses can be counted.
const REFERENCES_MAX: usize = u32::MAX as usize - 3;

/// Why there is nothing to show.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum WantedError {
    /// No references.
    #[error("the trace has no reference of the kinds that are counted")]
    Empty,
    /// More than can be counted by their positions.
    #[error("the trace has more than {REFERENCES_MAX} references: without --limit, no fewest misses of so many")]
    Many,
    /// As much is to be locked as leaves a set without a way.
    #[error("to lock {0} % of {1} ways leaves no way unlocked: at most {2} % can be locked")]
    Percent(f64, u32, f64),
    /// The table has more entries than the cache lines.
    #[error("a miss table of {table} entries is larger than the cache, which has {lines} lines")]
    Table {
        /// Entries.
        table: usize,
        /// Lines of the smallest cache.
        lines: u64,
    },
    /// The victim buffer takes all.
    #[error(
        "a victim buffer of {victim} lines leaves a cache of {lines} lines with {sets} sets less than a line a set"
    )]
    Victim {
        /// Lines of the buffer.
        victim: u32,
        /// Lines of the cache.
        lines: u64,
        /// Its sets.
        sets: u32,
    },
}

impl Wanted {
    /// Looks for what makes no sense.
    ///
    /// # Errors
    /// See [`WantedError`].
    pub fn check(&self) -> Result<(), WantedError> {
        for shape in &self.shapes {
            let ways = shape.ways();
            let most = 100.0 * f64::from(ways - 1) / f64::from(ways);
            if let Some(percent) = self.arms.percents.iter().find(|p| !(0.0..=most).contains(*p)) {
                return Err(WantedError::Percent(*percent, ways, most.floor()));
            }
            let (table, lines) = (self.arms.table, shape.lines());
            if !self.arms.percents.is_empty() && table as u64 > lines {
                return Err(WantedError::Table { table, lines });
            }
            let (victim, sets) = (self.arms.victim_lines, shape.sets());
            if self.arms.rooms.contains(&Room::Carved) && u64::from(victim) > lines - u64::from(sets) {
                return Err(WantedError::Victim { victim, lines, sets });
            }
        }
        Ok(())
    }
}

/// All rows, those of each shape together and the one without locks first. What was stopped leaves its shape out.
///
/// # Errors
/// See [`WantedError`].
pub fn rows(references: &[LineReference], wanted: &Wanted, stop: &AtomicBool) -> Result<Vec<Row>, WantedError> {
    if references.is_empty() {
        return Err(WantedError::Empty);
    }
    if wanted.optimum && references.len() > REFERENCES_MAX {
        return Err(WantedError::Many);
    }
    wanted.check()?;
    let blocks: Vec<u64> = references.iter().map(|reference| reference.block()).collect();
    let of_shape = |shape: &Shape| of_shape(*shape, references, &blocks, wanted, stop);
    Ok(wanted.shapes.par_iter().filter_map(of_shape).flatten().collect())
}

fn profile(references: &[LineReference], shape: Shape) -> Profile {
    let mut profile = Profile::new(shape);
    references.iter().for_each(|reference| profile.access(*reference));
    profile
}

fn of_shape(
    shape: Shape,
    references: &[LineReference],
    blocks: &[u64],
    wanted: &Wanted,
    stop: &AtomicBool,
) -> Option<Vec<Row>> {
    let go_on = || (!stop.load(Ordering::Relaxed)).then_some(());
    go_on()?;
    let other = wanted
        .other
        .as_ref()
        .map(|other| profile(other, shape).by_misses().into_iter().map(|(block, _)| block).collect());
    let options = ArmsOptions { other, ..wanted.arms.clone() };
    let mut arms = Arms::new(shape, &profile(references, shape), &options);
    go_on()?;
    arms.run(references);
    let mut rows: Vec<Row> = arms
        .results()
        .into_iter()
        .map(|r| Row {
            shape,
            way: Way::Arm(r.arm, r.room, r.rule),
            percent: r.percent,
            locked_percent: r.locked_percent,
            counts: r.counts,
        })
        .collect();
    let plain = |way, misses| {
        let counts = Counts { references: blocks.len() as u64, misses, ..Counts::default() };
        Row { shape, way, percent: None, locked_percent: 0.0, counts }
    };
    if wanted.online {
        go_on()?;
        let mut locks = OnlineLocks::new(shape);
        references.iter().for_each(|reference| _ = locks.access(*reference));
        rows.push(plain(Way::Online, locks.result().misses));
    }
    for kind in &wanted.policies {
        go_on()?;
        rows.push(plain(Way::Policy(*kind), policy_misses(blocks, shape, *kind)));
    }
    if wanted.optimum {
        go_on()?;
        rows.push(plain(Way::Optimum, optimum_misses(blocks, shape)));
    }
    Some(rows)
}

/// Whether a row is of the cache that others are compared with.
pub fn is_plain(row: &Row) -> bool {
    row.way == Way::Arm(LockArm::Plain, None, None)
}

/// Whether a row is there for comparison alone.
pub fn is_control(row: &Row) -> bool {
    matches!(row.way, Way::Arm(LockArm::Control(Control::Hits | Control::Random | Control::Other), ..))
}
