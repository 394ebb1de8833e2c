//! Parts of a disk as people write them: `0..64MiB`, `1GiB+16MiB`.
//!
//! Owns the notation. Never knows a disk. Invariant: a span has at least one byte.

use std::fmt;
use std::str::FromStr;
use undercroft_units::Size;

/// Bytes of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSpan {
    /// The first one.
    pub start: u64,
    /// The one after the last.
    pub end: u64,
}

/// A text is no part of a disk.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DiskSpanError(String);

impl FromStr for DiskSpan {
    type Err = DiskSpanError;

    fn from_str(text: &str) -> Result<Self, DiskSpanError> {
        let size = |text: &str| text.parse::<Size>().map(|s| s.0).map_err(|e| DiskSpanError(e.to_string()));
        let (start, end) = if let Some((start, end)) = text.split_once("..") {
            (size(start)?, Some(size(end)?))
        } else if let Some((start, length)) = text.split_once('+') {
            let start = size(start)?;
            (start, start.checked_add(size(length)?))
        } else {
            return Err(DiskSpanError("write it as START..END or START+LENGTH, like 0..64MiB or 1GiB+16MiB".into()));
        };
        let end = end.ok_or_else(|| DiskSpanError("it ends past what 64 bits count".into()))?;
        if end <= start {
            return Err(DiskSpanError(format!("there is no byte in it: it begins at {start} and ends at {end}")));
        }
        Ok(Self { start, end })
    }
}

impl fmt::Display for DiskSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", Size(self.start), Size(self.end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_to_write_it_are_read() {
        let span = |start, end| Ok(DiskSpan { start, end });
        assert_eq!("0..64MiB".parse(), span(0, 64 << 20));
        assert_eq!("1GiB+16MiB".parse(), span(1 << 30, (1 << 30) + (16 << 20)));
        assert_eq!("1.5GiB..2GiB".parse(), span(3 << 29, 2 << 30));
        assert_eq!("4096+1".parse(), span(4096, 4097));
        assert_eq!(DiskSpan { start: 0, end: 3 << 29 }.to_string(), "0B..1536MiB");
    }

    #[test]
    fn what_is_none_says_what_to_write() {
        for (text, says) in [
            ("64MiB", "write it as START..END or START+LENGTH"),
            ("0..64M", "ambiguous; write 64MiB"),
            ("..64MiB", "is not a size"),
            ("1MiB..1MiB", "there is no byte in it"),
            ("2MiB..1MiB", "there is no byte in it"),
            ("1MiB+0", "there is no byte in it"),
            ("18446744073709551615+1", "past what 64 bits count"),
            ("-1..5", "is not a size"),
        ] {
            let e = text.parse::<DiskSpan>().expect_err(text).to_string();
            assert!(e.contains(says), "{text}: {e}");
        }
    }
}
