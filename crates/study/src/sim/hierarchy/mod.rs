//! Hierarchies of caches: which blocks each level is asked for, holds, and passes on.
//!
//! Owns the shape of a hierarchy and its counts. Never decides what a level keeps: that is an index of the engine, and,
//! for a host below a guest whose memory it sees, the engine's `Exclusive`. Invariant: what a level misses is what the
//! next one is asked for, and the last one's misses are the disk's reads.

mod hinted;
#[cfg(test)]
mod hinted_tests;
mod hints;
mod pages;
mod stack;
#[cfg(test)]
mod tests;

use crate::sim::error::SimError;
use crate::sim::grid::check_slots;
use crate::sim::reference::Reference;
use hinted::Hinted;
pub use hints::{HintWindow, Hints};
use pages::Pages;
use serde::Serialize;
use stack::Stack;
use std::sync::Arc;
use undercroft_engine::{AnyPolicyKind, ExclusiveMode};

/// Which of the blocks that pass a level it keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keeps {
    /// Whatever is read or written through it, as if there were nothing above. What the level above evicts is not told,
    /// and a block may be in both.
    #[default]
    Passing,
    /// What the level above evicts, which hands it down; a block that is read goes up and is dropped (Wong and Wilkes,
    /// "My cache or yours?", USENIX ATC 2002). No block is in both.
    Demoted,
    /// What the guest above evicts, copied from its memory at that moment, always: the bound of what inference can do.
    Captured,
    /// What the guest above seems to evict, as the daemon finds it out (`exclusive.rs` of the engine).
    Inferred(ExclusiveMode),
    /// Whatever passes; after every so many transfers the guest's memory is scanned, and what it holds is the first to
    /// go (Sharma and Kulkarni, "Singleton", HPDC 2012).
    Scanned(u32),
    /// Blocks of the ranges that hints assign to it; all levels then keep by hints, and need [`Hints`] (Yadgar, Factor
    /// and Schuster, "Karma", FAST 2007).
    Hinted,
}

impl Keeps {
    /// Whether it needs to see the guest's pages.
    fn sees_pages(self) -> bool {
        matches!(self, Keeps::Captured | Keeps::Inferred(_) | Keeps::Scanned(_))
    }
}

/// What a level does with a block that is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Writes {
    /// Keeps it and passes it on at once.
    #[default]
    Through,
    /// Keeps it, and passes it on when it is evicted.
    Back,
    /// Passes it on at once, and keeps nothing: a cached copy is dropped.
    Around,
}

/// The cache of the first level, if that is a guest's page cache rather than an index of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinuxGuest {
    /// Pages of its memory that background reclaim keeps free.
    pub free_pages: u32,
    /// Whether a page is zeroed when it is allocated.
    pub zeroing: bool,
}

/// One level.
#[derive(Clone, Debug, PartialEq)]
pub struct LevelOptions {
    /// What results call it.
    pub name: String,
    /// Blocks that it holds.
    pub blocks: u32,
    /// Its policy.
    pub policy: AnyPolicyKind,
    /// Which blocks it keeps; ignored for the first level.
    pub keeps: Keeps,
    /// What it does with writes.
    pub writes: Writes,
    /// For the first level only: it is the page cache of a Linux guest (with lists of its own; `policy` means nothing,
    /// and writes go back).
    pub linux: Option<LinuxGuest>,
}

impl LevelOptions {
    /// A level that keeps what passes, and writes through.
    pub fn new(name: impl Into<String>, policy: impl Into<AnyPolicyKind>, blocks: u32) -> Self {
        let name = name.into();
        Self { name, blocks, policy: policy.into(), keeps: Keeps::Passing, writes: Writes::Through, linux: None }
    }
}

/// What one level, or the disk, was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LevelCounts {
    /// Blocks that the level above, or the client, wanted to read.
    pub reads: u64,
    /// Of those, blocks that it did not have.
    pub read_misses: u64,
    /// Blocks written to it: by the client, or passed on by the level above.
    pub writes: u64,
    /// Of those, blocks that it did not hold.
    pub write_misses: u64,
    /// Blocks handed down to it by the level above, or copied from there.
    pub demotions: u64,
    /// Blocks evicted.
    pub evictions: u64,
}

/// One operation of a device for one access of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceStep {
    /// Which device: the level's number, or the number of levels for the disk.
    pub device: usize,
    /// Whether it stores a block rather than reading one.
    pub write: bool,
    /// Whether the client waits for it.
    pub awaited: bool,
}

enum Shape {
    /// Levels that see no pages.
    Stack(Stack),
    /// A guest, a host that sees its pages or at least its transfers, and what is below.
    Pages(Box<Pages>),
    /// Levels among which ranges of blocks are shared out.
    Hinted(Hinted),
}

/// Caches below each other, and what each of them counted.
pub struct Hierarchy {
    shape: Shape,
    names: Vec<String>,
    steps: Vec<DeviceStep>,
}

impl Hierarchy {
    /// A hierarchy of empty levels, the client's first.
    ///
    /// # Errors
    /// Levels that do not go together, or that want hints where there are none.
    pub fn new(levels: &[LevelOptions], hints: Option<&Arc<Hints>>) -> Result<Self, SimError> {
        let bad = |what: String| Err(SimError::Options(what));
        let Some(first) = levels.first() else { return bad("a hierarchy has at least one level".into()) };
        if let Some(level) = levels.iter().skip(1).find(|l| l.linux.is_some()) {
            return bad(format!("level {}: only the first level can be a guest's page cache", level.name));
        }
        if let Some(level) = levels.iter().skip(2).find(|l| l.keeps.sees_pages()) {
            return bad(format!("level {}: only the second level sees the pages of the first", level.name));
        }
        for level in levels {
            check_slots(level.policy, level.blocks.into())?;
        }
        let pages = first.linux.is_some() || levels.get(1).is_some_and(|l| l.keeps.sees_pages());
        if pages {
            let Some(host) = levels.get(1) else {
                return bad(format!("level {}: a guest's page cache needs a level below it", first.name));
            };
            if host.keeps == Keeps::Demoted {
                return bad(format!(
                    "level {}: a Linux guest hands nothing down; use captured, inferred or passing",
                    host.name
                ));
            }
            if host.writes != Writes::Through {
                return bad(format!(
                    "level {}: a host below a guest whose transfers it sees writes through",
                    host.name
                ));
            }
            if first.linux.is_none() && first.writes == Writes::Around {
                return bad(format!("level {}: a guest whose pages are seen writes through or back", first.name));
            }
            if let Some(guest) = first.linux
                && (first.blocks < 16 || guest.free_pages.saturating_mul(2) > first.blocks || guest.free_pages < 2)
            {
                return bad(format!(
                    "level {}: a guest's page cache has at least 16 pages, of which 2 to a half are kept free",
                    first.name
                ));
            }
        }
        let wants_hints = levels.iter().skip(1).any(|l| l.keeps == Keeps::Hinted);
        if wants_hints {
            if let Some(level) = levels.iter().skip(1).find(|l| l.keeps != Keeps::Hinted) {
                return bad(format!(
                    "level {}: where one level keeps what hints say, all below the first do",
                    level.name
                ));
            }
            if let Some(level) = levels.iter().find(|l| l.linux.is_some() || l.writes != Writes::Through) {
                return bad(format!(
                    "level {}: levels that keep what hints say write through, and none is a guest",
                    level.name
                ));
            }
        }
        let names = levels.iter().map(|l| l.name.clone()).collect();
        let shape = if wants_hints {
            let Some(hints) = hints else { return bad("levels keep what hints say, and there are none".into()) };
            Shape::Hinted(Hinted::new(levels, hints.clone()))
        } else if pages {
            Shape::Pages(Box::new(Pages::new(&levels[0], &levels[1], Stack::new(&levels[2..], 2))))
        } else {
            Shape::Stack(Stack::new(levels, 0))
        };
        Ok(Self { shape, names, steps: vec![] })
    }

    /// One access of the client; what the devices do for it, in the order in which the client waits for them.
    pub fn access(&mut self, reference: Reference) -> &[DeviceStep] {
        self.steps.clear();
        match &mut self.shape {
            Shape::Stack(stack) if reference.write => stack.write(0, reference.block, true, false, &mut self.steps),
            Shape::Stack(stack) => stack.read(0, reference.block, &mut self.steps),
            Shape::Pages(pages) => pages.access(reference.block, reference.write, &mut self.steps),
            Shape::Hinted(hinted) => hinted.access(reference.block, reference.write, &mut self.steps),
        }
        &self.steps
    }

    /// Writes down everything that only a level has, from the first level on.
    pub fn flush(&mut self) {
        self.steps.clear();
        match &mut self.shape {
            Shape::Stack(stack) => stack.flush(&mut self.steps),
            Shape::Pages(pages) => pages.flush(&mut self.steps),
            Shape::Hinted(_) => {}
        }
    }

    /// The names of the levels.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// What each level was asked for, and at last the disk.
    pub fn counts(&self) -> Vec<LevelCounts> {
        match &self.shape {
            Shape::Stack(stack) => stack.counts(),
            Shape::Pages(pages) => pages.counts(),
            Shape::Hinted(hinted) => hinted.counts(),
        }
    }

    /// The blocks that each level holds, for tests; not those of a guest's page cache.
    #[cfg(test)]
    pub(crate) fn held(&self) -> Vec<Vec<u64>> {
        match &self.shape {
            Shape::Stack(stack) => stack.held(),
            Shape::Pages(pages) => pages.held(),
            Shape::Hinted(hinted) => hinted.held(),
        }
    }
}
