//! Settings and reports of the exclusive cache: its modes, its ways of learning contents, and its counts.
//!
//! Owns these types. Never decides. Invariant: a name that a mode has in configuration is read back as that mode.

use super::residency::Resident;
use crate::names::UnknownName;
use std::fmt;
use std::str::FromStr;

/// How a disk's cache is kept exclusive of its guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ExclusiveMode {
    /// Not at all: whatever passes is kept as the policy decides.
    Off,
    /// In the ways that turn out to pay, or not at all where none does.
    #[default]
    Auto,
    /// By copying pages when they are reused.
    Capture,
    /// By copying pages before they are evicted.
    Delayed,
}

impl ExclusiveMode {
    /// All modes.
    pub const ALL: [ExclusiveMode; 4] =
        [ExclusiveMode::Auto, ExclusiveMode::Off, ExclusiveMode::Capture, ExclusiveMode::Delayed];

    /// The name used in configuration and status.
    pub const fn name(self) -> &'static str {
        match self {
            ExclusiveMode::Off => "off",
            ExclusiveMode::Auto => "auto",
            ExclusiveMode::Capture => "capture",
            ExclusiveMode::Delayed => "delayed",
        }
    }

    /// The ways to begin with.
    pub fn ways(self) -> Ways {
        match self {
            ExclusiveMode::Off => Ways { capture: false, delay: false },
            ExclusiveMode::Auto => Ways { capture: true, delay: true },
            ExclusiveMode::Capture => Ways { capture: true, delay: false },
            ExclusiveMode::Delayed => Ways { capture: false, delay: true },
        }
    }
}

impl fmt::Display for ExclusiveMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ExclusiveMode {
    type Err = UnknownName;

    /// # Errors
    /// If no mode has that name.
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let known = || Self::ALL.iter().map(|m| m.name());
        Self::ALL.into_iter().find(|m| m.name() == s).ok_or_else(|| UnknownName::new("mode", s, known()))
    }
}

/// Which ways of learning content are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ways {
    /// Copy what a page holds when it is reused.
    pub capture: bool,
    /// Copy pages before they are evicted.
    pub delay: bool,
}

/// What became of the block that a page held before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// The page held no other block, as far as is known.
    None,
    /// This block is cached, and hot from now on.
    Kept(u64),
    /// It is not cached. The page may still hold it: copy it before the page is written to, compare the tag, and
    /// call [`Exclusive::captured`](super::Exclusive::captured).
    Capture(Resident),
    /// This block is not cached and cannot be had.
    Lost(u64),
    /// It is a block of another disk of the guest, which is to be told
    /// ([`Exclusive::departs`](super::Exclusive::departs)). The page may still hold it: where
    /// [`GuestTable::wants_copy`](super::GuestTable::wants_copy) says so, copy it before the page is written to.
    Other(Resident),
}

impl Departure {
    /// The block of the same disk that the guest holds no longer, if there is one.
    pub fn block(self) -> Option<u64> {
        match self {
            Departure::None | Departure::Other(_) => None,
            Departure::Kept(block) | Departure::Lost(block) => Some(block),
            Departure::Capture(what) => Some(what.block),
        }
    }
}

/// What a copy of a guest page turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copied {
    /// The block that the page was thought to hold.
    Held,
    /// Zeroes, where the block is none of them: the page was zeroed for another use.
    Zeroes,
    /// Something else.
    Other,
    /// Not known: it could not be made, or the block changed meanwhile.
    Nothing,
}

/// A page to copy now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// The page.
    pub page: u32,
    /// What it should hold.
    pub what: Resident,
}

/// Counts since the guest came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExclusiveStats {
    /// Pages whose reuse showed that the guest had evicted their block.
    pub evictions: u64,
    /// Evicted blocks that were cached already.
    pub evictions_cached: u64,
    /// Pages copied at reuse.
    pub captures_tried: u64,
    /// Copies at reuse that held the block.
    pub captures: u64,
    /// Copies at reuse that were all zeroes.
    pub captures_zeroed: u64,
    /// Pages copied early.
    pub early_tried: u64,
    /// Early copies that held the block.
    pub early: u64,
    /// Early copies that had to go before the eviction was proved.
    pub early_lapsed: u64,
    /// Pages copied because the guest began afresh.
    pub restart_tried: u64,
    /// Those of them that still held the block.
    pub restart_copied: u64,
    /// Gauge: page transfers after which pages filled by reads are copied.
    pub age_read: u32,
    /// Gauge: the same for pages filled by writes.
    pub age_write: u32,
    /// Gauge: page transfers after which a page whose first copy lapsed is copied again.
    pub age_again: u32,
    /// Gauge: pages of the guest that hold a known block of the disk.
    pub pages_held: u32,
    /// Gauge: pages of the guest that hold a known block of any of its disks that share the table.
    pub pages_held_by_all: u32,
    /// Gauge: pages of the guest.
    pub pages: u32,
}
