//! What the walk found: pieces of files on one disk, and what was left out.
//!
//! Owns the arithmetic of ranges. Never touches a file.

use crate::WholeDisk;
use std::collections::BTreeMap;
use std::path::PathBuf;
use undercroft_host::Place;

/// Bytes of the disk, `start` to `end`; `start < end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSpan {
    /// The first byte.
    pub start: u64,
    /// The first byte after it.
    pub end: u64,
}

/// A piece of a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FilePiece {
    /// Where it is.
    pub span: ByteSpan,
    /// Which of [`FoundRanges::files`].
    pub file: usize,
}

/// Extents that are in no range, of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// How many.
    pub extents: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct FoundRanges {
    /// The disk; none if there was no file.
    pub disk: Option<WholeDisk>,
    /// Every file with a piece, as it was found.
    pub files: Vec<PathBuf>,
    /// Their pieces.
    pub pieces: Vec<FilePiece>,
    /// Extents left out, by reason.
    pub left: BTreeMap<Place, Left>,
    /// Pieces that other files have too (reflinks).
    pub shared: u64,
    /// Files and directories that could not be looked at, with the reason: the first ones.
    pub problems: Vec<String>,
    /// How many those were.
    pub unread: u64,
    /// Directories that were not entered because another file system is mounted there.
    pub mounts: u64,
}

impl FoundRanges {
    /// The bytes of all pieces: in order, what touches or overlaps joined.
    pub fn spans(&self) -> Vec<ByteSpan> {
        spans(self.pieces.iter().map(|p| p.span).collect())
    }

    /// What was left out, in sentences.
    pub(crate) fn remarks(&self) -> Vec<String> {
        let mut said = Vec::new();
        for (place, left) in &self.left {
            let why = match place {
                Place::Blocks => "past the end of the disk",
                Place::Unwritten => "allocated but not written yet, so that there is nothing to read",
                Place::Unknown => "without a place on the disk yet, which comes when they are written back",
                Place::Inline => "within metadata or a block shared with other files",
                Place::Encoded => "compressed or encrypted, for which the file system tells no place",
            };
            said.push(format!("{} ({} bytes) left out: {why}", counted(left.extents, "extent"), left.bytes));
        }
        if self.shared > 0 {
            let what = counted(self.shared, "extent");
            said.push(format!("{what} shared with other files (reflinks): two containers cannot both have them"));
        }
        if self.mounts > 0 {
            let what = counted(self.mounts, "directory");
            said.push(format!("{what} left alone, where another file system is mounted: name them too if they count"));
        }
        said.extend(self.problems.iter().cloned());
        if self.unread > self.problems.len() as u64 {
            said.push(format!("and {} more", self.unread - self.problems.len() as u64));
        }
        said
    }
}

fn counted(n: u64, what: &str) -> String {
    match (n, what) {
        (1, _) => format!("1 {what}"),
        (_, "directory") => format!("{n} directories"),
        _ => format!("{n} {what}s"),
    }
}

/// Puts spans in order and joins what touches or overlaps.
pub fn spans(mut all: Vec<ByteSpan>) -> Vec<ByteSpan> {
    all.sort_unstable();
    all.dedup_by(|next, last| {
        let joins = next.start <= last.end;
        if joins {
            last.end = last.end.max(next.end);
        }
        joins
    });
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_joined_where_they_touch() {
        let span = |start, end| ByteSpan { start, end };
        let joined = spans(vec![span(8, 12), span(0, 4), span(4, 6), span(9, 10), span(20, 21)]);
        assert_eq!(joined, [span(0, 6), span(8, 12), span(20, 21)]);
    }

    #[test]
    fn what_is_left_out_is_said_with_its_count() {
        let mut found = FoundRanges { shared: 1, mounts: 2, unread: 2, ..FoundRanges::default() };
        found.left.insert(Place::Unwritten, Left { extents: 2, bytes: 8192 });
        found.problems.push("/a: permission denied".into());
        let said = found.remarks();
        assert!(said[0].starts_with("2 extents (8192 bytes) left out: allocated but not written"), "{said:?}");
        assert!(said[1].starts_with("1 extent shared") && said[2].starts_with("2 directories"), "{said:?}");
        assert_eq!(said[3..], ["/a: permission denied", "and 1 more"]);
    }
}
