//! Bodies of requests: from bytes of a client to what the daemon takes, or an error that helps.
//!
//! Owns parsing and its messages. Invariant: any bytes give a value or an error, never a panic; unknown fields are
//! errors.

use super::{ControlError, ControlErrorKind, DiskChange};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use undercroft_config::DiskSpec;
use undercroft_config::keys::{self, nearest};
use undercroft_engine::PolicyKind;
use undercroft_units::{Size, Time};
use utoipa::ToSchema;

/// Bytes of a request body at most.
pub const BODY_BYTES_MAX: usize = 64 * 1024;
/// Seconds within which the body of a request has to be there.
pub const BODY_SECONDS: u64 = 25;

/// What to change on a disk; what is absent stays.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskChangeBody {
    /// New share of the store: a number of bytes or a text like `1GiB`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "1GiB")]
    pub size: Option<Size>,
    /// New replacement policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "arc")]
    pub policy: Option<String>,
    /// New bound of polling: a text like `50us`; 0 is off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "50us")]
    pub poll: Option<Time>,
}

/// Reads the body of `PATCH /v1/disks/{name}`.
///
/// # Errors
/// `Invalid`, with the field and the remedy.
pub fn parse_change(bytes: &[u8]) -> Result<DiskChange, ControlError> {
    let body: DiskChangeBody = parse(bytes, &["size", "policy", "poll"])?;
    let change = DiskChange {
        share_bytes: body.size.map(|s| s.0),
        policy: body.policy.as_deref().map(policy).transpose()?,
        poll: body.poll.map(poll).transpose()?,
    };
    if change == DiskChange::default() {
        return Err(invalid("nothing is to be changed".into(), "give size, policy or poll"));
    }
    Ok(change)
}

/// What to change on the store.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StoreChangeBody {
    /// What it may hold at most, within its floor and its ceiling: a number of bytes or a text like `1GiB`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "1GiB")]
    pub memory: Option<Size>,
}

/// Reads the body of `PATCH /v1/store`: bytes that the store may hold at most.
///
/// # Errors
/// `Invalid`, with the field and the remedy.
pub fn parse_store(bytes: &[u8]) -> Result<u64, ControlError> {
    let body: StoreChangeBody = parse(bytes, &["memory"])?;
    body.memory.map(|m| m.0).ok_or_else(|| invalid("nothing is to be changed".into(), "give memory"))
}

/// Whether KSM is to be managed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct KsmChangeBody {
    /// Set it up as the configuration says (true), or put back what was found (false).
    pub manage: bool,
    /// With `manage: false`: make all merged pages of the machine private again first.
    #[serde(default)]
    pub unmerge: bool,
}

/// Reads the body of `PATCH /v1/ksm`.
///
/// # Errors
/// `Invalid`, with the field and the remedy.
pub fn parse_ksm(bytes: &[u8]) -> Result<KsmChangeBody, ControlError> {
    let body: KsmChangeBody = parse(bytes, &["manage", "unmerge"])?;
    if body.manage && body.unmerge {
        return Err(invalid(
            "managing and unmerging at once is a contradiction".into(),
            "give unmerge with manage: false",
        ));
    }
    Ok(body)
}

/// Reads the body of `POST /v1/disks`.
///
/// # Errors
/// `Invalid`, with the field and the remedy.
pub fn parse_disk(bytes: &[u8]) -> Result<DiskSpec, ControlError> {
    let mut known: Vec<&str> = keys::DISK.keys.iter().map(|k| k.name).collect();
    known.push("vm");
    parse(bytes, &known)
}

/// A policy by its name.
///
/// # Errors
/// `Invalid`, with the known names.
pub fn policy(name: &str) -> Result<PolicyKind, ControlError> {
    name.parse().map_err(|_| {
        let known: Vec<&str> = PolicyKind::ALL.iter().map(|k| k.name()).collect();
        let shown: String = name.chars().take(60).collect();
        let hint = nearest(name, known.iter().copied()).map_or(String::new(), |n| format!("did you mean \"{n}\"? "));
        invalid(format!("unknown policy \"{shown}\""), &format!("{hint}known are {}", known.join(", ")))
    })
}

fn poll(time: Time) -> Result<std::time::Duration, ControlError> {
    if time.duration() > keys::POLL_MAX {
        let remedy = format!("give at most {}; 0 turns it off", Time::from(keys::POLL_MAX));
        return Err(invalid(format!("poll is {time}, too long to burn a processor for"), &remedy));
    }
    Ok(time.duration())
}

pub(super) fn invalid(error: String, remedy: &str) -> ControlError {
    ControlError::new(ControlErrorKind::Invalid, error, remedy)
}

pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8], known: &[&str]) -> Result<T, ControlError> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(invalid("the request has no body".into(), "send a JSON object; GET /openapi.json describes it"));
    }
    // serde would take a list of the fields' values for the object, without their names.
    if bytes.iter().find(|b| !b.is_ascii_whitespace()) != Some(&b'{') {
        let remedy = "send a JSON object; GET /openapi.json describes it";
        return Err(invalid("the body is not what is expected here: it is no object".into(), remedy));
    }
    serde_json::from_slice(bytes).map_err(|e| {
        let text: String = e.to_string().chars().take(300).collect();
        let unknown = text.strip_prefix("unknown field `").and_then(|rest| rest.split('`').next());
        match unknown {
            Some(field) => {
                let remedy = match nearest(field, known.iter().copied()) {
                    Some(near) => format!("did you mean \"{near}\"?"),
                    None => format!("known are {}", known.join(", ")),
                };
                invalid(format!("unknown field \"{field}\""), &remedy)
            }
            None => invalid(
                format!("the body is not what is expected here: {text}"),
                "send a JSON object; GET /openapi.json describes it",
            ),
        }
    })
}

/// Puts any bytes through every parser but that of ranges, which has its own, for the fuzzer.
///
/// # Panics
/// If an error has no words, or a value breaks its bounds: that is a bug.
pub fn check_bytes(data: &[u8]) {
    let told = |e: ControlError| assert!(!e.error.is_empty() && !e.remedy.is_empty(), "an error without words");
    match parse_change(data) {
        Ok(change) => {
            assert!(change != DiskChange::default(), "an empty change was let through");
            assert!(change.poll.is_none_or(|p| p <= keys::POLL_MAX), "poll is past its bound");
        }
        Err(e) => told(e),
    }
    if let Err(e) = parse_store(data) {
        told(e);
    }
    match parse_ksm(data) {
        Ok(body) => assert!(!(body.manage && body.unmerge), "a contradiction was let through"),
        Err(e) => told(e),
    }
    super::shares::check_bytes(data);
    match super::record::parse_record(data) {
        Ok(order) => assert!(order.path.is_absolute() && order.sample > 0, "an order that cannot be carried out"),
        Err(e) => told(e),
    }
    match parse_disk(data) {
        Ok(spec) => assert!(spec.lines.is_empty(), "lines came from outside"),
        Err(e) => told(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;
    use undercroft_units::GIB;

    #[test]
    fn changes_are_read() {
        let all = parse_change(br#"{"size": "1GiB", "policy": "ARC", "poll": "50us"}"#).unwrap();
        let expected =
            DiskChange { share_bytes: Some(GIB), policy: Some(PolicyKind::Arc), poll: Some(Duration::from_micros(50)) };
        assert_eq!(all, expected);
        assert_eq!(parse_change(br#"{"poll": 0}"#).unwrap().poll, Some(Duration::ZERO));
    }

    #[test]
    fn bad_bodies_name_field_and_remedy() {
        for (body, needle) in [
            ("", "no body"),
            ("{}", "nothing is to be changed; give size, policy or poll"),
            ("{\"sise\": 1}", "unknown field \"sise\"; did you mean \"size\"?"),
            ("{\"color\": 1}", "unknown field \"color\"; known are size, policy, poll"),
            ("{\"size\": \"512M\"}", "write 512MiB"),
            ("{\"size\": -1}", "a size is a number of bytes or a text like"),
            ("{\"policy\": \"lur\"}", "did you mean \"lru\"?"),
            ("{\"poll\": \"1s\"}", "too long to burn a processor for; give at most 10ms"),
            ("{\"poll\": 50}", "like \"50us\""),
            ("[1]", "the body is not what is expected"),
            ("{\"size\": 1", "EOF"),
            ("\u{FEFF}{}", "the body is not what is expected"),
        ] {
            let e = parse_change(body.as_bytes()).expect_err(body);
            assert_eq!(e.kind, ControlErrorKind::Invalid);
            assert!(e.to_string().contains(needle), "{body}: {e}");
        }
        assert_eq!(parse_store(br#"{"memory": "1GiB"}"#).unwrap(), GIB);
        let e = parse_store(br#"{"memry": 1}"#).unwrap_err();
        assert!(e.to_string().contains("did you mean \"memory\"?"), "{e}");
        assert!(parse_store(b"{}").unwrap_err().to_string().contains("nothing is to be changed; give memory"));
        assert!(!parse_ksm(br#"{"manage": false, "unmerge": true}"#).unwrap().manage);
        assert!(parse_ksm(br#"{"manage": true, "unmerge": true}"#).unwrap_err().to_string().contains("contradiction"));
        let e = parse_disk(br#"{"name": "a", "image": "/x", "polcy": "lru"}"#).unwrap_err();
        assert!(e.to_string().contains("did you mean \"policy\"?"), "{e}");
        let e = parse_disk(br#"{"name": "a"}"#).unwrap_err();
        assert!(e.to_string().contains("missing field `image`"), "{e}");
        let e = parse_disk(br#"{"name": "a", "image": "/x", "lines": {}}"#).unwrap_err();
        assert!(e.to_string().contains("unknown field \"lines\""), "{e}");
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            check_bytes(&bytes);
        }
    }
}
