//! Policies and sizes as people list them.
//!
//! Owns the two notations, for the command line and for Python. Never acts. Invariant: a list names each policy once.

use crate::size::CacheSize;
use std::str::FromStr;
use undercroft_engine::PolicyKind;
use undercroft_units::{Percent, Size};

/// Policies, as people list them: `lru,arc`, `disk` for those that a disk may have, or `all`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policies(pub Vec<PolicyKind>);

impl FromStr for Policies {
    type Err = String;

    /// # Errors
    /// A sentence that lists the known names.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut kinds = vec![];
        for word in text.split(',').map(str::trim) {
            match word {
                "all" => kinds.extend(PolicyKind::every()),
                "disk" => kinds.extend(PolicyKind::ALL),
                _ => kinds.push(PolicyKind::from_name(word)?),
            }
        }
        Ok(Policies(without_repeats(kinds)))
    }
}

/// A size of a simulated cache: `1GiB`, `10%` of the footprint, `1000blocks`.
#[derive(Clone, Debug, PartialEq)]
pub struct SimSize {
    /// As it was written.
    pub text: String,
    /// What it means.
    pub size: CacheSize,
}

impl FromStr for SimSize {
    type Err = String;

    /// # Errors
    /// A sentence that says what to write instead.
    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let blocks = text.strip_suffix("blocks").or_else(|| text.strip_suffix("block"));
        let size = if text.ends_with('%') {
            CacheSize::Share(text.parse::<Percent>().map_err(|e| e.to_string())?.value() / 100.0)
        } else if let Some(blocks) = blocks {
            let number = blocks.trim().parse();
            CacheSize::Blocks(
                number.map_err(|_| format!("\"{text}\" is not a number of blocks; write it like 1000blocks"))?,
            )
        } else {
            CacheSize::Bytes(text.parse::<Size>().map_err(|e| format!("{e}, 10% or 1000blocks"))?.0)
        };
        Ok(SimSize { text: text.to_string(), size })
    }
}

/// The same policies, each where it stands first.
pub fn without_repeats(kinds: impl IntoIterator<Item = PolicyKind>) -> Vec<PolicyKind> {
    let mut once = vec![];
    for kind in kinds {
        if !once.contains(&kind) {
            once.push(kind);
        }
    }
    once
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_each_notation() {
        let size = |text: &str| text.parse::<SimSize>().map(|s| s.size);
        assert_eq!(size("1GiB"), Ok(CacheSize::Bytes(1 << 30)));
        assert_eq!(size(" 10% "), Ok(CacheSize::Share(0.1)));
        assert_eq!(size("0.1%"), Ok(CacheSize::Share(0.001)));
        assert_eq!(size("1000blocks"), Ok(CacheSize::Blocks(1000)));
        assert_eq!(size("1 block"), Ok(CacheSize::Blocks(1)));
        for (bad, needle) in [
            ("512M", "write 512MiB"),
            ("0%", "write it like 5%"),
            ("xblocks", "1000blocks"),
            ("", "10% or 1000blocks"),
            ("-1%", "%"),
        ] {
            let said = size(bad).expect_err(bad);
            assert!(said.contains(needle), "{bad}: {said}");
        }
    }

    #[test]
    fn policies_are_listed_once() {
        let list = |text: &str| text.parse::<Policies>().map(|p| p.0);
        assert_eq!(list("lru, arc,LRU"), Ok(vec![PolicyKind::Lru, PolicyKind::Arc]));
        assert_eq!(list("disk,lru").map(|p| p.len()), Ok(PolicyKind::ALL.len()));
        assert_eq!(list("all").map(|p| p.len()), Ok(PolicyKind::ALL.len() + PolicyKind::STUDIED.len()));
        assert!(list("lru,lur").expect_err("no such policy").contains("known are fifo, lru"));
        assert!(list("").is_err());
    }
}
