//! Why a change or a call is refused, and what is to be done about it.
//!
//! Owns the words that name what is not there. Never refuses anything itself. Invariant: no error is without a remedy.

use crate::Problems;
use crate::keys::nearest;
use crate::live::NodeSettings;

/// Why a control call failed: what, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}; {remedy}")]
pub struct ControlError {
    /// Which kind; becomes the HTTP status.
    pub kind: ControlErrorKind,
    /// What is wrong; names the thing.
    pub error: String,
    /// What to do about it.
    pub remedy: String,
    /// `Stale`: what is set now.
    pub current: Option<Box<NodeSettings>>,
}

/// Kinds of control errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlErrorKind {
    /// There is no such thing (404).
    NotFound,
    /// The request makes no sense (400).
    Invalid,
    /// Not on this socket (403).
    Forbidden,
    /// It was changed meanwhile (412).
    Stale,
    /// It contradicts what there is (409).
    Conflict,
    /// It was tried and failed (500).
    Failed,
    /// The daemon is stopping, or a disk does not answer (503).
    Unavailable,
}

impl ControlError {
    /// An error of any kind.
    pub fn new(kind: ControlErrorKind, error: impl Into<String>, remedy: impl Into<String>) -> Self {
        ControlError { kind, error: error.into(), remedy: remedy.into(), current: None }
    }

    /// There is no disk of that name among `known`; names the nearest one.
    pub fn no_disk<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Self {
        let known: Vec<&str> = known.into_iter().collect();
        let remedy = match nearest(name, known.iter().copied()) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None if known.is_empty() => "no disks are served; add one with `undercroft attach`".to_string(),
            None => "`undercroft status` lists the disks".to_string(),
        };
        let shown: String = name.chars().take(100).collect();
        Self::new(ControlErrorKind::NotFound, format!("there is no disk \"{shown}\""), remedy)
    }

    /// Somebody else has changed the node since the version that was expected.
    pub fn stale(name: &str, expected: &[u64], current: NodeSettings) -> Self {
        let wanted: Vec<_> = expected.iter().map(ToString::to_string).collect();
        let error = format!(
            "what is set for \"{name}\" is not of version {} any more: {} (version {})",
            wanted.join(" or "),
            current,
            current.version
        );
        let remedy = format!("nothing has been changed; look at that, then try again with version {}", current.version);
        let mut e = Self::new(ControlErrorKind::Stale, error, remedy);
        e.current = Some(Box::new(current));
        e
    }

    /// There is no node of that name among `known`; names the nearest one.
    pub fn no_node<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Self {
        let shown: String = name.chars().take(160).collect();
        let remedy = match nearest(name, known) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => "`undercroft shares` lists VMs, containers and disks".to_string(),
        };
        Self::new(ControlErrorKind::NotFound, format!("there is no VM, container or disk \"{shown}\""), remedy)
    }

    /// There is no VM of that name among `known`; names the nearest one.
    pub fn no_vm<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Self {
        let shown: String = name.chars().take(100).collect();
        let remedy = match nearest(name, known) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => "`undercroft status` lists the disks with their VMs".to_string(),
        };
        Self::new(ControlErrorKind::NotFound, format!("there is no VM \"{shown}\" with a disk"), remedy)
    }

    /// There is no recording of that number.
    pub fn no_recording(id: u64) -> Self {
        let remedy = "GET /v1/recordings lists the last one";
        Self::new(ControlErrorKind::NotFound, format!("there is no recording {id}"), remedy)
    }
}

impl From<Problems> for ControlError {
    fn from(problems: Problems) -> Self {
        let kind = ControlErrorKind::Invalid;
        match problems.problems.as_slice() {
            [one] if problems.file.is_none() => {
                let place = if one.place.is_empty() { String::new() } else { format!("{}: ", one.place) };
                Self::new(kind, format!("{place}{}", one.error), one.remedy.clone())
            }
            _ => Self::new(kind, problems.to_string(), "correct what is named; nothing has been changed"),
        }
    }
}
