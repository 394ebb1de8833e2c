//! Hints: what is known beforehand of how a disk will be used.
//!
//! Owns the six hints of posix_fadvise and what each means for size, admission and read-ahead. Never applies them: the
//! controllers ask for growth, the data path for the rest. Invariant: a hint holds for every later access, until
//! another is set; it changes where blocks are kept and what is read ahead, never what a guest reads.

use crate::names::UnknownName;
use std::fmt;
use std::str::FromStr;

/// How a disk, or a part of one, will be used (POSIX.1-2008, posix_fadvise; kept for later accesses as in the per-file
/// page cache, where advice belongs to the file).
///
/// | hint | growth | admission | read-ahead |
/// |---|---|---|---|
/// | normal | by utility | as the policy decides | as configured |
/// | sequential | none | first to go | twice as far |
/// | random | by utility | as the policy decides | none |
/// | noreuse | none | first to go | as configured |
/// | dontneed | none, and gives up what it has | never | none |
/// | willneed | up to its entitlement at once, then by utility | always | as configured; fetched at once if it fits |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Hint {
    /// Nothing is known.
    #[default]
    Normal,
    /// Read from lower to higher blocks: read-ahead serves it, space does not.
    Sequential,
    /// Read in no order: read-ahead would fetch blocks in vain.
    Random,
    /// Each block is wanted once.
    NoReuse,
    /// Not wanted in the near future: nothing of it is kept.
    DontNeed,
    /// Wanted in the near future: space is there before the first miss shows the need.
    WillNeed,
}

/// How a node's share may grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Growth {
    /// As far as blocks save misses.
    ByUtility,
    /// No farther than its floor asks; what it has is taken when others gain by it.
    Floor,
    /// Nothing is kept: not even the floor is demanded.
    Nothing,
    /// Its entitlement is demanded whatever it did so far.
    Entitled,
}

/// What becomes of a block that was absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// As the policy decides.
    ByPolicy,
    /// Kept, but the first to be evicted.
    FirstToGo,
    /// Passed through.
    Never,
    /// Kept whatever a filter of the policy says.
    Always,
}

/// How far is read ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadAhead {
    /// As configured.
    Configured,
    /// Twice that.
    Double,
    /// Not at all.
    Off,
}

impl Hint {
    /// All, in the order of the documentation.
    pub const ALL: [Self; 6] =
        [Self::Normal, Self::Sequential, Self::Random, Self::NoReuse, Self::DontNeed, Self::WillNeed];

    /// As configuration and API write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Sequential => "sequential",
            Self::Random => "random",
            Self::NoReuse => "noreuse",
            Self::DontNeed => "dontneed",
            Self::WillNeed => "willneed",
        }
    }

    /// What it means for the size of the share.
    pub(crate) fn growth(self) -> Growth {
        match self {
            Self::Normal | Self::Random => Growth::ByUtility,
            Self::Sequential | Self::NoReuse => Growth::Floor,
            Self::DontNeed => Growth::Nothing,
            Self::WillNeed => Growth::Entitled,
        }
    }

    /// What it means for a block that was absent.
    pub fn admission(self) -> Admission {
        match self {
            Self::Normal | Self::Random => Admission::ByPolicy,
            Self::Sequential | Self::NoReuse => Admission::FirstToGo,
            Self::DontNeed => Admission::Never,
            Self::WillNeed => Admission::Always,
        }
    }

    /// What it means for read-ahead.
    pub fn read_ahead(self) -> ReadAhead {
        match self {
            Self::Normal | Self::NoReuse | Self::WillNeed => ReadAhead::Configured,
            Self::Sequential => ReadAhead::Double,
            Self::Random | Self::DontNeed => ReadAhead::Off,
        }
    }
}

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Hint {
    type Err = UnknownName;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|hint| hint.name() == s);
        known.ok_or_else(|| UnknownName::new("hint", s, Self::ALL.map(Self::name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hint_is_read_back_from_its_name_and_others_are_refused_with_the_list() {
        for hint in Hint::ALL {
            assert_eq!(hint.name().parse(), Ok(hint));
        }
        let error = "Sequential ".parse::<Hint>().expect_err("no such hint");
        assert!(error.to_string().contains("willneed"), "{error}");
    }
}
