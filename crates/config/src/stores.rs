//! Which stores the blocks of a node of the tree of shares may be in.
//!
//! Owns the words for it. Never moves a block. Invariant: what a daemon does not have is refused when it is asked for,
//! never taken for something else later.

use super::written::WrittenError;
use std::fmt;
use std::str::FromStr;

/// A store, or several. A node that names none has what is above it; the host has all there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreChoice {
    /// The RAM store alone.
    Ram,
    /// The SSD store alone.
    Ssd,
    /// Both.
    Both,
}

impl StoreChoice {
    /// As configuration and API write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ram => "ram",
            Self::Ssd => "ssd",
            Self::Both => "both",
        }
    }
}

impl fmt::Display for StoreChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl StoreChoice {
    /// The choice that a text names.
    ///
    /// # Errors
    /// It names none, or one that needs an SSD store where there is none (`has_ssd`).
    pub(crate) fn among(text: &str, has_ssd: bool) -> Result<Self, WrittenError> {
        let choice = text.parse()?;
        if choice == Self::Ram || has_ssd {
            return Ok(choice);
        }
        Err(WrittenError {
            error: format!("store \"{choice}\" needs an SSD store, and this daemon has none"),
            remedy: "say `ram`, or leave it out: then it has whatever stores there are; or add `[ssd]`".to_string(),
        })
    }
}

impl FromStr for StoreChoice {
    type Err = WrittenError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "ram" => Ok(Self::Ram),
            "ssd" => Ok(Self::Ssd),
            "both" => Ok(Self::Both),
            _ => {
                let shown: String = text.chars().take(60).collect();
                let remedy = "known are ram, ssd, both".to_string();
                Err(WrittenError { error: format!("unknown store \"{shown}\""), remedy })
            }
        }
    }
}
