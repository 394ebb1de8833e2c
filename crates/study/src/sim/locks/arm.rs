//! What is locked of a simulated cache, as people write it: `none`, `static:10%`, `online:30%+12`, `buffer:12`.
//!
//! Owns the notation and its bounds. Never locks. Invariant: an arm is read back from its text, and whatever it locks,
//! something of the cache is left for all other blocks.

use std::fmt;
use std::str::FromStr;
use undercroft_engine::{LOCK_PERMILLE_MAX, LockOptions, VICTIMS_MAX};
use undercroft_units::{Percent, UnitError};

/// Blocks of a victim buffer, if nobody says.
const BUFFER_BLOCKS: u32 = 12;

/// How blocks come to be locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockChoice {
    /// Those that were missed most in a first run, for good.
    Static,
    /// By the daemon's rule, without a first run.
    Online,
    /// Those that were hit most in a first run: a control.
    Hits,
    /// As many of those that were read in a first run, by chance: a control.
    Random,
}

impl LockChoice {
    const ALL: [LockChoice; 4] = [LockChoice::Static, LockChoice::Online, LockChoice::Hits, LockChoice::Random];

    fn name(self) -> &'static str {
        match self {
            LockChoice::Static => "static",
            LockChoice::Online => "online",
            LockChoice::Hits => "hits",
            LockChoice::Random => "random",
        }
    }

    /// How much of the cache, if nobody says.
    fn percent(self) -> Percent {
        Percent(if self == LockChoice::Online { 3000 } else { 1000 })
    }

    /// Whether a first run says what is locked.
    pub(super) fn needs_profile(self) -> bool {
        self != LockChoice::Online
    }
}

/// One way to lock blocks of a cache, perhaps with a victim buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockingArm {
    /// How blocks come to be locked, and how much of the cache may be.
    pub lock: Option<(LockChoice, Percent)>,
    /// Blocks of the victim buffer, which the cache gives; 0: there is none.
    pub buffer: u32,
}

impl LockingArm {
    /// Neither locks nor a buffer: what others are compared with.
    pub const NONE: LockingArm = LockingArm { lock: None, buffer: 0 };

    /// Blocks of the buffer in a cache of `blocks`, of which it has half at most.
    pub(super) fn buffer_in(self, blocks: u32) -> u32 {
        self.buffer.min(blocks / 2)
    }

    /// How many blocks a first run is to name for a cache of `blocks`; 0 where none is made.
    pub(super) fn named_in(self, blocks: u32) -> usize {
        let Some((_, percent)) = self.lock.filter(|(choice, _)| choice.needs_profile()) else { return 0 };
        let most = LockOptions { permille: LOCK_PERMILLE_MAX, keep_held: false }.max(self.left_in(blocks));
        let wanted = (u64::from(blocks) * u64::from(percent.0)).div_ceil(10_000);
        wanted.min(most.into()) as usize
    }

    /// What may be locked in a cache that may hold `limit` blocks, of which a first run has named `named`.
    pub(super) fn options(self, limit: u32, named: usize) -> Option<LockOptions> {
        let (choice, percent) = self.lock?;
        let permille = if choice.needs_profile() {
            // The blocks that are named fill the budget: otherwise each other block would be looked up among them.
            (named as u64 * 1000).div_ceil(u64::from(self.left_in(limit).max(1)))
        } else {
            percent.0.div_ceil(10).into()
        };
        Some(LockOptions { permille: permille.min(LOCK_PERMILLE_MAX.into()) as u16, keep_held: false })
    }

    /// Blocks that are not the buffer's, in a cache that may hold `blocks`.
    fn left_in(self, blocks: u32) -> u32 {
        blocks - self.buffer_in(blocks)
    }
}

/// A text names no arm, or one that makes no sense.
#[derive(Debug, thiserror::Error)]
pub enum LockingArmError {
    /// Nobody knows it.
    #[error(
        "\"{0}\" locks nothing; known are none, static:10%, online:30%, hits:10%, random:10%, buffer:12, and both, \
         which is online:30%+12"
    )]
    Unknown(String),
    /// A percentage that is none.
    #[error("{arm}: {source}")]
    Percent {
        /// The text.
        arm: String,
        /// What is wrong.
        source: UnitError,
    },
    /// Nothing would be left.
    #[error("{arm}: {percent} leaves too little unlocked; lock at most {}% of a cache", LOCK_PERMILLE_MAX / 10)]
    TooMuch {
        /// The text.
        arm: String,
        /// How much was to be locked.
        percent: Percent,
    },
    /// No such buffer.
    #[error("{0}: a victim buffer has 1 to {VICTIMS_MAX} blocks, written like buffer:12 or online:30%+12")]
    Buffer(String),
}

fn percent_of(text: &str, arm: &str) -> Result<Percent, LockingArmError> {
    let percent: Percent = text.parse().map_err(|source| LockingArmError::Percent { arm: arm.to_string(), source })?;
    if percent.0 > u32::from(LOCK_PERMILLE_MAX) * 10 {
        return Err(LockingArmError::TooMuch { arm: arm.to_string(), percent });
    }
    Ok(percent)
}

fn buffer_of(text: &str, arm: &str) -> Result<u32, LockingArmError> {
    let blocks = text.trim().parse().ok().filter(|n| (1..=VICTIMS_MAX).contains(n));
    blocks.ok_or_else(|| LockingArmError::Buffer(arm.to_string()))
}

impl FromStr for LockingArm {
    type Err = LockingArmError;

    /// # Errors
    /// A sentence that says what is known, or what is wrong.
    fn from_str(text: &str) -> Result<Self, LockingArmError> {
        let text = text.trim();
        let (name, value) = match text.split_once(':') {
            Some((name, value)) => (name.trim(), Some(value)),
            None => (text, None),
        };
        match (name, value) {
            ("none", None) => return Ok(Self::NONE),
            ("buffer", value) => {
                let buffer = value.map_or(Ok(BUFFER_BLOCKS), |value| buffer_of(value, text))?;
                return Ok(Self { lock: None, buffer });
            }
            _ => {}
        }
        let both = name == "both";
        let named = LockChoice::ALL.into_iter().find(|choice| choice.name() == name);
        let choice = named.or(both.then_some(LockChoice::Online));
        let choice = choice.ok_or_else(|| LockingArmError::Unknown(text.to_string()))?;
        let parts = value.map(|value| value.split_once('+').map_or((value, None), |(of, more)| (of, Some(more))));
        let (percent, buffer) = match parts {
            None => (choice.percent(), None),
            Some((percent, buffer)) => (percent_of(percent, text)?, buffer),
        };
        let buffer = match buffer {
            Some(blocks) => buffer_of(blocks, text)?,
            None if both => BUFFER_BLOCKS,
            None => 0,
        };
        Ok(Self { lock: Some((choice, percent)), buffer })
    }
}

impl fmt::Display for LockingArm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match (self.lock, self.buffer) {
            (None, 0) => "none".to_string(),
            (None, blocks) => format!("buffer:{blocks}"),
            (Some((choice, percent)), 0) => format!("{}:{percent}", choice.name()),
            (Some((choice, percent)), blocks) => format!("{}:{percent}+{blocks}", choice.name()),
        };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> LockingArm {
        text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    #[test]
    fn an_arm_is_read_back_and_what_is_left_out_has_a_default() {
        for text in ["none", "buffer:7", "static:5%", "online:0.5%", "hits:10%", "random:90%", "static:10%+12"] {
            assert_eq!(read(text).to_string(), text);
        }
        for (short, whole) in [
            ("static", "static:10%"),
            (" random ", "random:10%"),
            ("hits:20", "hits:20%"),
            ("online", "online:30%"),
            ("buffer", "buffer:12"),
            ("both", "online:30%+12"),
            ("both:20%", "online:20%+12"),
            ("both:20% + 8", "online:20%+8"),
        ] {
            assert_eq!(read(short), read(whole), "{short}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        for (text, said) in [
            ("lock", "known are none, static:10%"),
            ("none:5%", "known are none"),
            ("static:x", "static:x: \"x\" is not a percentage"),
            ("online:90.01%", "online:90.01%: 90.01% leaves too little unlocked; lock at most 90%"),
            ("static:100%+12", "leaves too little unlocked"),
            ("buffer:0", "buffer:0: a victim buffer has 1 to 4096 blocks"),
            ("buffer:10%", "1 to 4096 blocks"),
            ("online:30%+5000", "1 to 4096 blocks"),
            ("online:30%+", "1 to 4096 blocks"),
        ] {
            let error = text.parse::<LockingArm>().expect_err(text).to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn blocks_that_are_named_fill_the_budget_and_leave_a_block() {
        for (text, blocks, count) in [
            ("static:10%", 1000, 100),
            ("static:10%", 15, 2),
            ("static:90%", 15, 13),
            ("static:90%", 2, 1),
            ("static:90%", 1, 0),
            ("static:90%", 0, 0),
            ("random:0.01%", 4096, 1),
            ("hits:90%+12", 100, 79),
        ] {
            let arm = read(text);
            let named = arm.named_in(blocks);
            assert_eq!(named, count, "{text} of {blocks}");
            let options = arm.options(blocks, named).expect("it locks");
            let max = options.max(blocks - arm.buffer_in(blocks)) as usize;
            assert!(max >= named && max <= named + blocks as usize / 1000 + 1, "{text} of {blocks}: {max}");
        }
        assert_eq!(read("online:0.05%").options(10_000, 0).map(|o| o.permille), Some(1));
        assert_eq!(read("online").named_in(10_000), 0);
        assert!(read("buffer").options(100, 0).is_none() && read("buffer").named_in(100) == 0);
    }
}
