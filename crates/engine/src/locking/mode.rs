//! How blocks of a disk come to be locked: the modes and the settings.
//!
//! Owns these types. Never decides. Invariant: a name that a mode has in configuration is read back as that mode.

use crate::names::UnknownName;
use std::fmt;
use std::str::FromStr;

/// How blocks of a disk come to be locked; pinned ones are locked under every mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LockMode {
    /// None but those that are pinned.
    #[default]
    Off,
    /// Those that a profile names, for as long as the disk runs.
    Static,
    /// Those that miss often, while that pays ([`online`](super::online)).
    Online,
}

impl LockMode {
    /// All modes.
    pub const ALL: [LockMode; 3] = [LockMode::Off, LockMode::Static, LockMode::Online];

    /// The name used in configuration and status.
    pub const fn name(self) -> &'static str {
        match self {
            LockMode::Off => "off",
            LockMode::Static => "static",
            LockMode::Online => "online",
        }
    }
}

impl fmt::Display for LockMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for LockMode {
    type Err = UnknownName;

    /// # Errors
    /// If no mode has that name.
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let known = || Self::ALL.iter().map(|m| m.name());
        Self::ALL.into_iter().find(|m| m.name() == s).ok_or_else(|| UnknownName::new("lock mode", s, known()))
    }
}

/// What is set of a disk's locks, its miss table and its victim buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockSettings {
    /// How blocks come to be locked.
    pub mode: LockMode,
    /// How much may be, in thousandths of what the disk may keep: 1 to [`LOCK_PERMILLE_MAX`](crate::LOCK_PERMILLE_MAX).
    pub budget_permille: u16,
    /// Whether a block stays locked although the guest holds it as well.
    pub keep_held: bool,
    /// Blocks that the table of misses shows; 0: there is none.
    pub miss_entries: u16,
    /// Blocks of the victim buffer; 0: there is none.
    pub victim_blocks: u16,
}

/// The budget, if nobody says: a quarter.
pub const BUDGET_PERMILLE: u16 = 250;

impl Default for LockSettings {
    /// Nothing is locked but what is pinned, a quarter at most; no table, no buffer.
    fn default() -> Self {
        let budget_permille = BUDGET_PERMILLE;
        Self { mode: LockMode::Off, budget_permille, keep_held: false, miss_entries: 0, victim_blocks: 0 }
    }
}
