//! Bodies of requests: from bytes of a client to what the daemon takes, or an error that helps.
//!
//! Owns parsing and its messages. Invariant: any bytes give a value or an error, never a panic; unknown fields are
//! errors.

use crate::ssd::SsdChangeBody;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use undercroft_config::keys::{self, Key, Kind};
use undercroft_config::{ControlError, ControlErrorKind, DiskSpec, NodeChange, Written};
use undercroft_units::Size;
use utoipa::ToSchema;
use utoipa::openapi::schema::{AdditionalProperties, Type};
use utoipa::openapi::{ObjectBuilder, RefOr, Schema};

/// Bytes of a request body at most.
pub const BODY_BYTES_MAX: usize = 64 * 1024;
/// Seconds within which the body of a request has to be there.
pub const BODY_SECONDS: u64 = 25;

/// What to change by hand on a disk, a VM, a container or the host; what is absent stays. Its fields are
/// the keys of the configuration that are set by hand ([`keys::all_settable`]).
#[derive(Debug)]
pub struct NodeChangeBody;

impl utoipa::PartialSchema for NodeChangeBody {
    fn schema() -> RefOr<Schema> {
        let mut object = ObjectBuilder::new().description(Some(
            "What to change by hand on a disk, a VM, a container or the host; what is absent stays.",
        ));
        for key in keys::all_settable() {
            let kind = match key.kind {
                Kind::Number => Type::Integer,
                Kind::Boolean => Type::Boolean,
                _ => Type::String,
            };
            let none = match key.live.by_hand() {
                Some(word) if !word.is_empty() => format!(" `{word}` takes it away."),
                _ => String::new(),
            };
            let text = format!("{} Allowed: {}.{none}", key.doc, key.range);
            object = object.property(key.name, ObjectBuilder::new().schema_type(kind).description(Some(text)));
        }
        object.additional_properties(Some(AdditionalProperties::FreeForm(false))).into()
    }
}

impl ToSchema for NodeChangeBody {}

/// Reads the body of `PATCH /v1/disks/{name}`.
///
/// # Errors
/// `Invalid`, with the field and the remedy.
pub fn parse_change(bytes: &[u8]) -> Result<NodeChange, ControlError> {
    let known: Vec<&'static Key> = keys::DISK.set_by_hand().collect();
    changed(parse_keys(bytes, &known)?, &known)
}

/// Reads the body of `PATCH /v1/nodes/{name}`.
///
/// # Errors
/// `Invalid`, with the field and the remedy.
pub fn parse_node(bytes: &[u8]) -> Result<NodeChange, ControlError> {
    let known = keys::all_settable();
    changed(parse_keys(bytes, &known)?, &known)
}

/// Reads the body of `PUT /v1/nodes/{name}`: everything that is set, the rest as where nothing is.
///
/// # Errors
/// `Invalid`, with the field and the remedy.
pub fn parse_whole_node(bytes: &[u8]) -> Result<NodeChange, ControlError> {
    Ok(parse_keys(bytes, &keys::all_settable())?.replacing())
}

fn changed(change: NodeChange, known: &[&'static Key]) -> Result<NodeChange, ControlError> {
    if change.is_empty() {
        let names: Vec<&str> = known.iter().map(|k| k.name).collect();
        return Err(invalid("nothing is to be changed".into(), &format!("give {}", names.join(", "))));
    }
    Ok(change)
}

/// An object as it comes, none of its fields twice.
struct Fields(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> serde::de::Visitor<'de> for Object {
            type Value = Fields;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields: Vec<(String, Value)> = Vec::new();
                while let Some((name, value)) = map.next_entry::<String, Value>()? {
                    if fields.iter().any(|(known, _)| *known == name) {
                        let shown: String = name.chars().take(60).collect();
                        return Err(serde::de::Error::custom(format!("duplicate field `{shown}`")));
                    }
                    fields.push((name, value));
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

/// Reads an object of keys, each with a value of its kind.
fn parse_keys(bytes: &[u8], known: &[&'static Key]) -> Result<NodeChange, ControlError> {
    let names: Vec<&str> = known.iter().map(|k| k.name).collect();
    let Fields(object) = parse(bytes, &names)?;
    let mut change = NodeChange::default();
    for (name, value) in object {
        let Some(key) = known.iter().find(|k| k.name == name) else {
            return Err(unknown_field(&name, &names));
        };
        if !value.is_null() {
            change = change.with(key.name, written(key, value)?);
        }
    }
    Ok(change)
}

/// A value of a key.
fn written(key: &Key, value: Value) -> Result<Written, ControlError> {
    let wrong = |e: serde_json::Error| {
        let text: String = e.to_string().chars().take(300).collect();
        invalid(format!("{}: {text}", key.name), &format!("allowed is {}", key.range))
    };
    match (key.kind, value) {
        (_, Value::String(text)) => Written::parse(key, &text).map_err(|e| invalid(e.error, &e.remedy)),
        (Kind::Size, value) => serde_json::from_value(value).map(Written::Size).map_err(wrong),
        (Kind::Time, value) => serde_json::from_value(value).map(Written::Time).map_err(wrong),
        (Kind::Number, value) => serde_json::from_value(value).map(Written::Number).map_err(wrong),
        (Kind::Percentage, value) => serde_json::from_value(value).map(Written::Percent).map_err(wrong),
        (Kind::Boolean, value) => serde_json::from_value(value).map(Written::Boolean).map_err(wrong),
        (_, value) => serde_json::from_value(value).map(Written::Text).map_err(wrong),
    }
}

/// Reads an `If-Match`: versions of which one has to be the current one; `None` if any is good (`*`).
///
/// # Errors
/// `Invalid` if there is something else than versions in it.
pub fn parse_if_match(text: &str) -> Result<Option<Vec<u64>>, ControlError> {
    if text.trim() == "*" {
        return Ok(None);
    }
    let version = |tag: &str| {
        let tag = tag.trim();
        tag.strip_prefix('"').and_then(|t| t.strip_suffix('"')).unwrap_or(tag).parse::<u64>().ok()
    };
    text.split(',').map(version).collect::<Option<Vec<u64>>>().map(Some).ok_or_else(|| {
        let shown: String = text.chars().take(60).collect();
        invalid(
            format!("If-Match: {shown} is no version of a node"),
            "send the ETag of an answer about it as it was, or *",
        )
    })
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

/// Reads the body of `PATCH /v1/ssd`.
///
/// # Errors
/// `Invalid`, with the field and the remedy.
pub fn parse_ssd(bytes: &[u8]) -> Result<SsdChangeBody, ControlError> {
    parse(bytes, &["in_service"])
}

/// Reads the body of `POST /v1/disks`.
///
/// # Errors
/// `Invalid`, with the field and the remedy.
pub fn parse_disk(bytes: &[u8]) -> Result<DiskSpec, ControlError> {
    let mut known: Vec<&str> = keys::DISK.keys.iter().map(|k| k.name).collect();
    known.extend(["vm", "keep"]);
    parse(bytes, &known)
}

pub(super) fn invalid(error: String, remedy: &str) -> ControlError {
    ControlError::new(ControlErrorKind::Invalid, error, remedy)
}

fn unknown_field(field: &str, known: &[&str]) -> ControlError {
    let shown: String = field.chars().take(60).collect();
    let remedy = keys::instead_of(field, known.iter().copied());
    let remedy = remedy.unwrap_or_else(|| format!("known are {}", known.join(", ")));
    invalid(format!("unknown field \"{shown}\""), &remedy)
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
            Some(field) => unknown_field(field, known),
            None => invalid(
                format!("the body is not what is expected here: {text}"),
                "send a JSON object; GET /openapi.json describes it",
            ),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use undercroft_units::{GIB, Percent};

    #[test]
    fn changes_are_read() {
        let all = parse_change(br#"{"size": "1GiB", "policy": "ARC", "poll": "50us", "weight": 7}"#).unwrap();
        let expected = NodeChange::default()
            .with("size", Written::Size(Size(GIB)))
            .with("policy", Written::Text("ARC".into()))
            .with("poll", Written::Time(Duration::from_micros(50).into()))
            .with("weight", Written::Number(7));
        assert_eq!(all, expected);
        assert_eq!(parse_change(br#"{"poll": 0}"#).unwrap().values().next().unwrap().0, "poll");
        let away = parse_node(br#"{"ceiling": "none", "policy": "inherit", "size": 1, "goal": null}"#).unwrap();
        let expected = NodeChange::default()
            .with("ceiling", Written::Nothing)
            .with("policy", Written::Nothing)
            .with("size", Written::Size(Size(1)));
        assert_eq!(away, expected);
        assert!(parse_whole_node(b"{}").unwrap().replace);
        let locks = parse_change(br#"{"lock": "online", "lock_budget": 30, "lock_held": true, "pins": "none"}"#);
        let expected = NodeChange::default()
            .with("lock", Written::Text("online".into()))
            .with("lock_budget", Written::Percent(Percent(3000)))
            .with("lock_held", Written::Boolean(true))
            .with("pins", Written::Nothing);
        assert_eq!(locks.unwrap(), expected);
        let texts = parse_change(br#"{"lock_budget": "12.5%", "lock_held": "false"}"#).unwrap();
        let expected = [("lock_budget", Written::Percent(Percent(1250))), ("lock_held", Written::Boolean(false))];
        assert_eq!(texts.values().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn bad_bodies_name_field_and_remedy() {
        for (body, needle) in [
            ("", "no body"),
            ("{}", "nothing is to be changed; give fuse, policy, size, weight"),
            ("{\"sise\": 1}", "unknown field \"sise\"; did you mean \"size\"?"),
            ("{\"xyzzy\": 1}", "unknown field \"xyzzy\"; known are fuse, policy, size, weight"),
            ("{\"controller\": \"static\"}", "unknown field \"controller\""),
            ("{\"size\": \"512M\"}", "write 512MiB"),
            ("{\"size\": -1}", "a size is a number of bytes or a text like"),
            ("{\"poll\": 50}", "like \"50us\""),
            ("{\"weight\": 1.5}", "weight: invalid type"),
            ("{\"lock_budget\": 0.25}", "a percentage is a text like \"5%\", or a whole number"),
            ("{\"lock_budget\": \"101%\"}", "is more than 100%"),
            ("{\"lock_held\": \"no\"}", "lock_held must be true or false"),
            ("{\"weight\": \"much\"}", "weight must be a whole number, not \"much\"; allowed is 1 to 10000"),
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
        assert!(parse_ssd(br#"{"in_service": true}"#).unwrap().in_service);
        assert!(parse_ssd(b"{}").unwrap_err().to_string().contains("missing field `in_service`"));
        let e = parse_ssd(br#"{"in_servce": true}"#).unwrap_err();
        assert!(e.to_string().contains("did you mean \"in_service\"?"), "{e}");
        assert!(!parse_ksm(br#"{"manage": false, "unmerge": true}"#).unwrap().manage);
        assert!(parse_ksm(br#"{"manage": true, "unmerge": true}"#).unwrap_err().to_string().contains("contradiction"));
        let e = parse_disk(br#"{"name": "a", "image": "/x", "polcy": "lru"}"#).unwrap_err();
        assert!(e.to_string().contains("did you mean \"policy\"?"), "{e}");
        let e = parse_disk(br#"{"name": "a", "image": "/x", "share_base": true}"#).unwrap_err();
        assert!(e.to_string().contains("unknown field \"share_base\"; it is called \"deduplicate_base\" now"), "{e}");
        let e = parse_disk(br#"{"name": "a"}"#).unwrap_err();
        assert!(e.to_string().contains("missing field `image`"), "{e}");
        let e = parse_disk(br#"{"name": "a", "image": "/x", "lines": {}}"#).unwrap_err();
        assert!(e.to_string().contains("unknown field \"lines\""), "{e}");
    }
}
