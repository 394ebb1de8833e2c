//! What the API says of recordings, and how one is ordered.
//!
//! Owns the shapes. Never touches a file.

use super::body::{invalid, parse};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;
use undercroft_config::ControlError;
use undercroft_units::{Size, Time};
use utoipa::ToSchema;

/// Bytes of a recording, if nobody says how many.
pub const BYTES_DEFAULT: u64 = 1 << 30;
/// The smallest limit that leaves room for rows.
const BYTES_MIN: u64 = 1 << 20;
/// One of so many blocks at most.
pub const SAMPLE_MAX: u32 = 1 << 20;

/// A recording, under way or ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RecordingStatus {
    /// Its number, from 1.
    pub id: u64,
    /// The file.
    pub path: String,
    /// Whether it takes requests, or still writes recorded ones into the file.
    pub running: bool,
    /// Why it takes no more requests; absent while it does. The file is complete once `running` is false.
    pub ending: Option<String>,
    /// Why it ended, if it did and the file is whole: `stopped`, `duration`, `max-size`, `disk-full`, `client-gone`,
    /// `daemon-stopped`.
    pub ended: Option<String>,
    /// Why its file is of no use, if it is not.
    pub failed: Option<String>,
    /// How long it has run, in seconds.
    pub seconds: f64,
    /// Requests recorded.
    pub requests: u64,
    /// Of those, requests that are not in the file yet: writing it takes only processor time that nobody else wants.
    pub waiting: u64,
    /// Requests that should have been and were not: there was no place for them, or the daemon stopped.
    pub dropped: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Bytes of the spool beside the file, in which requests wait.
    pub waiting_bytes: u64,
    /// Blocks that recorded reads asked for.
    pub read_blocks: u64,
    /// Of those, blocks found in RAM.
    pub hit_blocks: u64,
}

/// What to record, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// The file: an absolute path. With `descriptor` it is only shown.
    pub path: PathBuf,
    /// The file was opened by who asks, and comes along with the order.
    pub descriptor: bool,
    /// Whether a file that holds something is overwritten.
    pub force: bool,
    /// Disks, by name; with `vms` empty too: all.
    pub disks: Vec<String>,
    /// VMs, by name.
    pub vms: Vec<String>,
    /// How long; until stopped if `None`.
    pub duration: Option<Duration>,
    /// Bytes of the file at most, and of what waits beside it to be converted.
    pub bytes_max: u64,
    /// One of so many blocks.
    pub sample: u32,
    /// The recording ends if nobody has asked for it for so long.
    pub lease: Option<Duration>,
}

/// What to record.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RecordBody {
    /// The file, as an absolute path that the daemon may write to: one that there is not yet, or that is empty.
    #[schema(example = "/var/tmp/web.parquet")]
    pub path: String,
    /// The file is open already, and its descriptor comes along with this request: `path` is only shown.
    #[serde(default)]
    pub descriptor: bool,
    /// Overwrite a file that holds something.
    #[serde(default)]
    pub force: bool,
    /// Disks to record, by name; without disks and VMs: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<String>,
    /// VMs to record.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vms: Vec<String>,
    /// End after this time: a text like `60s`; without: when it is stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "60s")]
    pub duration: Option<Time>,
    /// End before the file, with what waits beside it, is larger: a number of bytes or a text like `1GiB`, which is the
    /// default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "1GiB")]
    pub max_size: Option<Size>,
    /// Record requests to one of so many blocks only, chosen by a hash of their number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = 8)]
    pub sample: Option<u32>,
    /// End when nobody has asked for this recording for so long: a text like `10s`; without: go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "10s")]
    pub lease: Option<Time>,
}

impl Order {
    /// Everything, into `path`, overwritten, until somebody stops it or the file has `bytes_max`.
    pub fn all(path: PathBuf, bytes_max: u64) -> Self {
        Self {
            path,
            descriptor: false,
            force: true,
            disks: Vec::new(),
            vms: Vec::new(),
            duration: None,
            bytes_max,
            sample: 1,
            lease: None,
        }
    }
}

/// Reads the body of `POST /v1/recordings`.
///
/// # Errors
/// `Invalid`, with the field and the remedy.
pub fn parse_record(bytes: &[u8]) -> Result<Order, ControlError> {
    let fields = ["path", "descriptor", "force", "disks", "vms", "duration", "max_size", "sample", "lease"];
    let body: RecordBody = parse(bytes, &fields)?;
    if body.path.contains('\0') || !body.path.starts_with('/') {
        let shown: String = body.path.chars().take(100).collect();
        return Err(invalid(format!("path \"{shown}\" is not absolute"), "begin it with /"));
    }
    let bytes_max = body.max_size.map_or(BYTES_DEFAULT, |s| s.0);
    if bytes_max < BYTES_MIN {
        return Err(invalid(format!("max_size {} is too small", Size(bytes_max)), "give at least 1MiB"));
    }
    let sample = body.sample.unwrap_or(1);
    if !(1..=SAMPLE_MAX).contains(&sample) {
        return Err(invalid(format!("sample {sample} is out of range"), &format!("give 1 (all) to {SAMPLE_MAX}")));
    }
    let none = |time: Option<Time>, what: &str| match time.map(Time::duration) {
        Some(d) if d.is_zero() => {
            Err(invalid(format!("{what} is no time at all"), "give a text like 60s, or leave it out"))
        }
        d => Ok(d),
    };
    Ok(Order {
        path: PathBuf::from(body.path),
        descriptor: body.descriptor,
        force: body.force,
        disks: body.disks,
        vms: body.vms,
        duration: none(body.duration, "duration")?,
        bytes_max,
        sample,
        lease: none(body.lease, "lease")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn orders_are_read() {
        let order =
            parse_record(br#"{"path": "/x", "vms": ["web"], "duration": "60s", "max_size": "2MiB", "sample": 8}"#);
        let expected = Order {
            path: "/x".into(),
            descriptor: false,
            force: false,
            disks: vec![],
            vms: vec!["web".into()],
            duration: Some(Duration::from_secs(60)),
            bytes_max: 2 << 20,
            sample: 8,
            lease: None,
        };
        assert_eq!(order.unwrap(), expected);
        let order = parse_record(br#"{"path": "/x"}"#).unwrap();
        assert_eq!((order.bytes_max, order.sample, order.duration), (BYTES_DEFAULT, 1, None));
        assert!(parse_record(br#"{"path": "/x", "descriptor": true}"#).unwrap().descriptor);
    }

    #[test]
    fn bad_orders_name_field_and_remedy() {
        for (body, needle) in [
            ("{}", "missing field `path`"),
            (r#"{"path": "x"}"#, "is not absolute; begin it with /"),
            (r#"{"path": "/x", "max_size": 1000}"#, "too small; give at least 1MiB"),
            (r#"{"path": "/x", "sample": 0}"#, "sample 0 is out of range"),
            (r#"{"path": "/x", "duration": 0}"#, "duration is no time at all"),
            (r#"{"path": "/x", "vm": "a"}"#, "did you mean \"vms\"?"),
        ] {
            let e = parse_record(body.as_bytes()).expect_err(body).to_string();
            assert!(e.contains(needle), "{body}: {e}");
        }
    }
}
