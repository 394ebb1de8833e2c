//! A list of ranges as it comes: from JSON to ranges in order, or an error that names the container and the range.
//!
//! Owns the notation. Never knows which disks there are. Invariants of [`RangeList`]: its ranges are in order, not
//! empty, and neither touch nor overlap.

use super::{ByteRange, RANGES_MAX, RangesError};
use crate::body::parse as parse_object;
use serde::{Deserialize, Serialize};
use undercroft_config::keys::NAME_BYTES_MAX;
use undercroft_config::{ControlError, ControlErrorKind};
use utoipa::ToSchema;

/// Bytes of a list at most: room for [`RANGES_MAX`] ranges, written generously.
pub const BODY_BYTES_MAX: usize = 8 << 20;

/// The extents of one container's files on one disk, as `undercroft ranges` prints them. Replaces what was said of that
/// container and that disk before; no ranges take it away.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RangeListBody {
    /// Full name of the disk: `VM:DISK`.
    #[schema(example = "web:root")]
    pub disk: String,
    /// The container of that disk's VM.
    #[schema(example = "shop")]
    pub container: String,
    /// Its ranges, in any order; ranges of one container may touch and overlap.
    pub ranges: Vec<RangeBody>,
}

/// Bytes of the virtual disk, from its first sector on (not of a partition).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RangeBody {
    /// The first byte.
    pub offset_bytes: u64,
    /// How many, at least 1.
    pub length_bytes: u64,
}

/// A list whose ranges are in order and apart from each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeList {
    pub(super) disk: String,
    pub(super) container: String,
    pub(super) ranges: Vec<ByteRange>,
}

impl RangeList {
    /// Checks what can be checked without knowing the disk; sorts, and joins what touches.
    ///
    /// # Errors
    /// A name that cannot be one, an empty range, one whose end does not fit into 64 bits, or more than [`RANGES_MAX`].
    pub fn new(body: RangeListBody) -> Result<Self, RangesError> {
        let RangeListBody { disk, container, ranges } = body;
        let bad = |error: String, remedy: &str| {
            RangesError::Unreadable(ControlError::new(ControlErrorKind::Invalid, error, remedy))
        };
        let can_be_one = |name: &str| {
            name.len() <= NAME_BYTES_MAX
                && name.starts_with(|c: char| c.is_ascii_alphanumeric())
                && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        };
        let shown = |text: &str| text.chars().take(80).collect::<String>();
        if !disk.split_once(':').is_some_and(|(vm, disk)| can_be_one(vm) && can_be_one(disk)) {
            let error = format!("\"{}\" is not the full name of a VM's disk", shown(&disk));
            return Err(bad(error, "write it as VM:DISK; `undercroft status` lists the disks"));
        }
        if !can_be_one(&container) {
            let error = format!("\"{}\" cannot be the name of a container", shown(&container));
            let remedy = format!(
                "name it without its VM: letters, digits, '-', '_' and '.', beginning with a letter or digit, at most \
                 {NAME_BYTES_MAX}"
            );
            return Err(bad(error, &remedy));
        }
        if ranges.len() > RANGES_MAX {
            return Err(RangesError::TooMany { container, disk, count: ranges.len() });
        }
        let mut sorted = Vec::with_capacity(ranges.len());
        for (number, r) in (1..).zip(&ranges) {
            let (offset, length) = (r.offset_bytes, r.length_bytes);
            if length == 0 {
                return Err(RangesError::Empty { container, number, offset });
            }
            match ByteRange::new(offset, length) {
                Some(range) => sorted.push(range),
                None => return Err(RangesError::Overflow { container, number, offset, length }),
            }
        }
        sorted.sort_unstable();
        sorted.dedup_by(|next, last| {
            let joins = next.start <= last.end;
            if joins {
                last.end = last.end.max(next.end);
            }
            joins
        });
        Ok(Self { disk, container, ranges: sorted })
    }

    /// Full name of the disk.
    pub fn disk(&self) -> &str {
        &self.disk
    }

    /// The container, without its VM.
    pub fn container(&self) -> &str {
        &self.container
    }

    /// The ranges: in order, apart from each other.
    pub fn ranges(&self) -> &[ByteRange] {
        &self.ranges
    }
}

/// Reads a list.
///
/// # Errors
/// It is too long, no JSON of that form, or see [`RangeList::new`].
pub fn parse(bytes: &[u8]) -> Result<RangeList, RangesError> {
    if bytes.len() > BODY_BYTES_MAX {
        let error = format!("the list is longer than {BODY_BYTES_MAX} bytes");
        let remedy = "name fewer files, or give the container a disk of its own";
        return Err(RangesError::Unreadable(ControlError::new(ControlErrorKind::Invalid, error, remedy)));
    }
    let known = ["disk", "container", "ranges", "offset_bytes", "length_bytes"];
    RangeList::new(parse_object(bytes, &known).map_err(RangesError::Unreadable)?)
}

impl RangeList {
    /// As it is written.
    pub fn body(&self) -> RangeListBody {
        let written = |r: &ByteRange| RangeBody { offset_bytes: r.start, length_bytes: r.length() };
        RangeListBody {
            disk: self.disk.clone(),
            container: self.container.clone(),
            ranges: self.ranges.iter().map(written).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(ranges: &[(u64, u64)]) -> Result<RangeList, RangesError> {
        let ranges = ranges.iter().map(|&(offset_bytes, length_bytes)| RangeBody { offset_bytes, length_bytes });
        RangeList::new(RangeListBody { disk: "vm:root".into(), container: "web".into(), ranges: ranges.collect() })
    }

    #[test]
    fn what_touches_is_joined_and_the_order_does_not_matter() {
        let joined = list(&[(8192, 4096), (0, 100), (4096, 4096), (50, 70), (60, 1)]).unwrap();
        let bounds: Vec<_> = joined.ranges().iter().map(|r| (r.offset(), r.end())).collect();
        assert_eq!(bounds, [(0, 120), (4096, 12288)]);
        assert!(list(&[]).unwrap().ranges().is_empty());
    }

    #[test]
    fn bad_lists_name_container_range_and_remedy() {
        let body = |ranges: &str| format!(r#"{{"disk": "vm:root", "container": "web", "ranges": {ranges}}}"#);
        for (text, needles) in [
            (String::new(), vec!["no body"]),
            ("[]".into(), vec!["no object"]),
            (r#"{"disk": "vm:root", "container": "web"}"#.into(), vec!["missing field `ranges`"]),
            (
                body(r#"[{"offset_bytes": 4096, "length_bytes": 0}]"#),
                vec!["\"web\"", "range 1, at byte 4096", "leave it out"],
            ),
            (body(r#"[{"offset_bytes": 4096, "length": 1}]"#), vec!["unknown field \"length\"", "\"length_bytes\""]),
            (body(r#"[{"offset_bytes": -1, "length_bytes": 1}]"#), vec!["-1"]),
            (body(r#"[{"offset_bytes": 1.5, "length_bytes": 1}]"#), vec!["1.5"]),
            (
                body(
                    r#"[{"offset_bytes": 1, "length_bytes": 1},
                        {"offset_bytes": 18446744073709551615, "length_bytes": 2}]"#,
                ),
                vec!["\"web\"", "range 2", "64 bits", "whole virtual disk"],
            ),
            (r#"{"disk": "root", "container": "web", "ranges": []}"#.into(), vec!["\"root\"", "VM:DISK"]),
            (
                r#"{"disk": "vm:root", "container": "vm/web", "ranges": []}"#.into(),
                vec!["\"vm/web\"", "without its VM"],
            ),
        ] {
            let e = ControlError::from(parse(text.as_bytes()).expect_err(&text));
            for needle in needles {
                assert!(e.to_string().contains(needle), "{text}: {e}");
            }
        }
        let many: Vec<_> = (0..=RANGES_MAX as u64).map(|n| (n * 8192, 1)).collect();
        assert!(matches!(list(&many), Err(RangesError::TooMany { count, .. }) if count == RANGES_MAX + 1));
        assert_eq!(list(&many[1..]).unwrap().ranges().len(), RANGES_MAX);
        let longest = serde_json::to_string_pretty(&list(&many[1..]).unwrap().body()).unwrap();
        assert!(longest.len() + RANGES_MAX * 40 < BODY_BYTES_MAX, "the longest list does not fit into a body");
        assert!(parse(&vec![b' '; BODY_BYTES_MAX + 1]).unwrap_err().to_string().contains("longer than"));
    }
}
