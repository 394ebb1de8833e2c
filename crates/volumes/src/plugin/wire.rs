//! Requests of the volume-plugin protocol, from bytes to calls, and the names that volumes can have.
//!
//! Owns the parser. Never acts on a call. Invariant: any bytes give a call with checked names, or an error with a
//! remedy.

use super::volume::VolumeOptions;
use crate::VolumeError;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Bytes of a request at most.
pub const BODY_BYTES_MAX: usize = 64 * 1024;
/// Bytes of a volume's name at most: those of a disk's.
const NAME_BYTES_MAX: usize = 64;
/// Bytes of what tells one user of a volume from another, at most.
const ID_BYTES_MAX: usize = 256;

/// What an engine asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PluginCall {
    /// What the plugin is.
    Activate,
    /// What it can do.
    Capabilities,
    /// All volumes.
    List,
    /// One volume.
    Get(String),
    /// Where one is mounted.
    Path(String),
    /// A new volume.
    Create(String, VolumeOptions),
    /// A volume goes, with all that it holds.
    Remove(String),
    /// A user comes.
    Mount {
        /// Of which volume.
        name: String,
        /// Who.
        id: String,
    },
    /// A user goes.
    Unmount {
        /// Of which volume.
        name: String,
        /// Who.
        id: String,
    },
}

/// What a request may have; others are left for later versions of the protocol.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Body {
    #[serde(rename = "Name")]
    name: Option<String>,
    #[serde(rename = "ID")]
    id: Option<String>,
    #[serde(rename = "Opts")]
    options: Option<BTreeMap<String, String>>,
}

/// Reads a request for `path`; `None` if nothing is there.
///
/// # Errors
/// It is none of the protocol, or no volume can have that name or those options.
pub fn parse_call(path: &str, bytes: &[u8]) -> Option<Result<PluginCall, VolumeError>> {
    let call = match path {
        "/Plugin.Activate" => return Some(Ok(PluginCall::Activate)),
        "/VolumeDriver.Capabilities" => return Some(Ok(PluginCall::Capabilities)),
        "/VolumeDriver.List" => return Some(Ok(PluginCall::List)),
        "/VolumeDriver.Get" => |b: Body| Ok(PluginCall::Get(name(b.name)?)),
        "/VolumeDriver.Path" => |b: Body| Ok(PluginCall::Path(name(b.name)?)),
        "/VolumeDriver.Remove" => |b: Body| Ok(PluginCall::Remove(name(b.name)?)),
        "/VolumeDriver.Create" => {
            |b: Body| Ok(PluginCall::Create(name(b.name)?, VolumeOptions::parse(&b.options.unwrap_or_default())?))
        }
        "/VolumeDriver.Mount" => |b: Body| Ok(PluginCall::Mount { name: name(b.name)?, id: id(b.id)? }),
        "/VolumeDriver.Unmount" => |b: Body| Ok(PluginCall::Unmount { name: name(b.name)?, id: id(b.id)? }),
        _ => return None,
    };
    Some(body(bytes).and_then(call))
}

fn body(bytes: &[u8]) -> Result<Body, VolumeError> {
    let wrong = |why: String| {
        VolumeError::new(
            format!("the request is none of the volume-plugin protocol: {why}"),
            "send a JSON object, like {\"Name\": \"db\", \"Opts\": {\"size\": \"8GiB\"}}",
        )
    };
    if bytes.len() > BODY_BYTES_MAX {
        return Err(wrong(format!("it is longer than {BODY_BYTES_MAX} bytes")));
    }
    // serde would take a list of the fields' values for the object.
    if bytes.iter().find(|b| !b.is_ascii_whitespace()) != Some(&b'{') {
        return Err(wrong("it is no JSON object".into()));
    }
    serde_json::from_slice(bytes).map_err(|e| wrong(e.to_string().chars().take(300).collect()))
}

/// Whether a volume can have that name: also the name of a disk, and of a folder that is not hidden.
pub(super) fn is_name(name: &str) -> bool {
    let first = name.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
    let known = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    first && name.len() <= NAME_BYTES_MAX && name.bytes().all(known)
}

fn name(name: Option<String>) -> Result<String, VolumeError> {
    let name = name.unwrap_or_default();
    if is_name(&name) {
        return Ok(name);
    }
    let shown: String = name.chars().take(80).collect();
    Err(VolumeError::new(
        format!("{shown:?} cannot be the name of a volume"),
        format!(
            "use letters, digits, '-', '_' and '.', the first a letter or a digit, at most {NAME_BYTES_MAX} altogether"
        ),
    ))
}

fn id(id: Option<String>) -> Result<String, VolumeError> {
    let id = id.unwrap_or_default();
    if id.len() > ID_BYTES_MAX || id.chars().any(char::is_control) {
        return Err(VolumeError::new("the ID of the request is too long, or no text", "send what tells users apart"));
    }
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(path: &str, body: &str) -> Result<PluginCall, String> {
        parse_call(path, body.as_bytes()).expect(path).map_err(|e| e.to_string())
    }

    #[test]
    fn calls_are_read() {
        let mount = parse("/VolumeDriver.Mount", r#"{"Name": "db", "ID": "b87d", "More": [1]}"#).unwrap();
        assert_eq!(mount, PluginCall::Mount { name: "db".into(), id: "b87d".into() });
        assert_eq!(parse("/VolumeDriver.List", "").unwrap(), PluginCall::List);
        assert_eq!(parse("/VolumeDriver.Get", r#"{"Name": "a.b-c_1"}"#).unwrap(), PluginCall::Get("a.b-c_1".into()));
        let made = parse("/VolumeDriver.Create", r#"{"Name": "db", "Opts": {"size": "8GiB", "weight": "200"}}"#);
        let Ok(PluginCall::Create(name, options)) = made else { panic!("{made:?}") };
        assert_eq!((name.as_str(), options.size_bytes), ("db", 8 << 30));
        assert!(parse_call("/VolumeDriver.Nothing", b"{}").is_none());
    }

    #[test]
    fn bad_requests_are_named() {
        let create = |opts: &str| parse("/VolumeDriver.Create", &format!("{{\"Name\": \"db\", \"Opts\": {opts}}}"));
        for (body, needle) in [
            ("", "no JSON object"),
            ("[\"db\"]", "no JSON object"),
            ("{\"Name\": 7}", "invalid type"),
            ("{\"Name\": \"db\"", "EOF"),
            ("{}", "\"\" cannot be the name"),
            ("{\"Name\": \"../etc\"}", "cannot be the name"),
            ("{\"Name\": \"a/b\"}", "cannot be the name"),
            ("{\"Name\": \".hidden\"}", "cannot be the name"),
            ("{\"Name\": \"d\\u0000b\"}", "cannot be the name"),
        ] {
            let e = parse("/VolumeDriver.Remove", body).unwrap_err();
            assert!(e.contains(needle), "{body}: {e}");
        }
        let long = format!("{{\"Name\": \"{}\"}}", "a".repeat(65));
        assert!(parse("/VolumeDriver.Get", &long).unwrap_err().contains("at most 64"));
        let huge = format!("{{\"Name\": \"db\"{}}}", " ".repeat(BODY_BYTES_MAX));
        assert!(parse("/VolumeDriver.Get", &huge).unwrap_err().contains("longer than"));
        for (opts, needle) in [
            ("null", "-o size=8GiB"),
            ("{\"size\": \"8\"}", "too small"),
            ("{\"size\": \"8G\"}", "write 8GiB"),
            ("{\"size\": \"-1\"}", "size"),
            ("{\"size\": \"1000TiB\"}", "too large"),
            ("{\"size\": \"8GiB\", \"wieght\": \"1\"}", "did you mean \"weight\"?"),
            ("{\"size\": \"8GiB\", \"weight\": \"much\"}", "whole number"),
            ("{\"size\": \"8GiB\", \"fs\": \"ntfs\"}", "ext4 or xfs"),
            ("{\"size\": \"8GiB\", \"image\": \"/etc/passwd\"}", "unknown option \"image\""),
        ] {
            let e = create(opts).unwrap_err();
            assert!(e.contains(needle), "{opts}: {e}");
        }
    }
}
