//! What the API says of shares, and what can be changed about them.
//!
//! Owns the shapes. Never decides. Sizes are bytes of the store, metadata included.

use super::body::{invalid, parse, policy};
use super::{ControlError, NodeChange, NodeSettings};
use serde::{Deserialize, Serialize};
use undercroft_config::GoalPlan;
use undercroft_config::goal::GOALS;
use undercroft_config::keys::{self, nearest};
use undercroft_engine::shares::Hint;
use undercroft_units::Size;
use utoipa::ToSchema;

/// How the store is divided.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SharesStatus {
    /// Who divides, where nothing else is set.
    pub controller: String,
    /// How often.
    pub interval_seconds: f64,
    /// Intervals so far.
    pub intervals: u64,
    /// Whether shares are on their way to their targets.
    pub moving: bool,
    /// Why shares stay as they are, if they do.
    pub problem: Option<String>,
    /// The host, then VMs, containers and disks, each after what it belongs to.
    pub nodes: Vec<NodeStatus>,
}

/// The host, a VM, a container or a disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeStatus {
    /// `host`, `VM`, `VM/CONTAINER`, or the full name of a disk.
    pub name: String,
    /// `host`, `vm`, `container` or `disk`.
    pub level: String,
    /// What it belongs to.
    pub parent: Option<String>,
    /// Its part of what its siblings and it contend for.
    pub weight: u32,
    /// What it has whenever it wants it.
    pub floor_bytes: u64,
    /// What is set as its floor: more than `floor_bytes` where it does not fit into what is above it any more, less
    /// where its disks need more.
    #[serde(default)]
    pub set_floor_bytes: u64,
    /// What it never has more of.
    pub ceiling_bytes: Option<u64>,
    /// Who divides its share, if that is set here.
    pub controller: Option<String>,
    /// What it is to reach: `hit 90%`, `p99 2ms` or `iops 5000`.
    #[serde(default)]
    pub goal: Option<String>,
    /// The replacement policy that is set here: of a VM or a container, that of what is below it and names none.
    #[serde(default)]
    pub policy: Option<String>,
    /// The stores that are set here.
    #[serde(default)]
    pub store: Option<String>,
    /// A disk: how it will be used.
    #[serde(default)]
    pub hint: Option<String>,
    /// Rises whenever what is set for it changes, by whomever; its `ETag`.
    #[serde(default)]
    pub version: u64,
    /// What it has when everybody wants all they can get.
    pub entitled_bytes: u64,
    /// What it has.
    pub share_bytes: u64,
    /// What it is to have.
    pub target_bytes: u64,
    /// Blocks read in the last interval.
    pub requests: u64,
    /// Those that were not kept from before.
    pub misses: u64,
    /// Of these, those that read-ahead had brought in time.
    pub read_ahead_hits: u64,
    /// What would have to be kept for hardly a miss to be left that any size saves.
    pub working_set_bytes: u64,
    /// A disk: misses of an interval like the last ones by size, as (bytes, misses).
    pub curve: Vec<(u64, f64)>,
    /// Whether the curve is that of the disk's policy; otherwise it is LRU's, until enough has been seen.
    pub curve_of_policy: bool,
}

/// A node that was changed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeChanged {
    /// How it is now.
    #[serde(flatten)]
    pub node: NodeStatus,
    /// What was set until then.
    pub previous: NodeSettings,
}

/// A part of the store that changed hands, or a finding.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ShareEvent {
    /// Rises by one with every event.
    pub sequence: u64,
    /// The number of the interval after which it was decided.
    pub interval: u64,
    /// Whose share was divided.
    pub node: String,
    /// Who gave; absent: it was free.
    pub from: Option<String>,
    /// Who took; absent: it is free now.
    pub to: Option<String>,
    /// How much; 0 for a finding.
    pub bytes: u64,
    /// How long ago it was decided, where that is still known.
    #[serde(default)]
    pub seconds_ago: Option<u64>,
    /// What was decided.
    #[serde(default)]
    pub decided: String,
    /// What was seen that led to it.
    #[serde(default)]
    pub seen: String,
    /// What it should bring, where that is known.
    #[serde(default)]
    pub expected: Option<String>,
    /// All of it on one line.
    pub text: String,
}

/// What to change on a node; what is absent stays.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeChangeBody {
    /// New weight, 1 to 10000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u64>,
    /// New floor: a number of bytes or a text like `1GiB`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "256MiB")]
    pub floor: Option<Size>,
    /// New ceiling: a number of bytes or a text like `1GiB`; `none` takes it away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "1GiB")]
    pub ceiling: Option<String>,
    /// New controller: one of `static`, `donor`, `utility`, `target`, `paper`; `inherit`: as above it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "utility")]
    pub controller: Option<String>,
    /// New goal, where `target` divides: `hit 90%`, `p99 2ms` or `iops 5000`; `none` takes it away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "p99 2ms")]
    pub goal: Option<String>,
    /// New replacement policy, of a VM or a container for what is below it and names none; `inherit`: that of what is
    /// above it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "s3-fifo")]
    pub policy: Option<String>,
    /// Which stores its blocks may be in, and those of what is below it and names none: `ram`; `inherit`: as above it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "ram")]
    pub store: Option<String>,
    /// A disk: how it will be used: `normal`, `sequential`, `random`, `noreuse`, `dontneed` or `willneed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "sequential")]
    pub hint: Option<String>,
}

/// Reads the body of `PATCH /v1/nodes/{name}`.
///
/// # Errors
/// `Invalid`, with the field and the remedy.
pub fn parse_node(bytes: &[u8]) -> Result<NodeChange, ControlError> {
    let change = parse_settings(bytes)?;
    if change == NodeChange::default() {
        return Err(invalid(
            "nothing is to be changed".into(),
            "give weight, floor, ceiling, controller, goal, policy, store or hint",
        ));
    }
    Ok(change)
}

/// Reads the body of `PUT /v1/nodes/{name}`: everything that is set, the rest as where nothing is.
///
/// # Errors
/// `Invalid`, with the field and the remedy.
pub fn parse_whole_node(bytes: &[u8]) -> Result<NodeChange, ControlError> {
    Ok(NodeChange { replace: true, ..parse_settings(bytes)? })
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

fn parse_settings(bytes: &[u8]) -> Result<NodeChange, ControlError> {
    let body: NodeChangeBody =
        parse(bytes, &["weight", "floor", "ceiling", "controller", "goal", "policy", "store", "hint"])?;
    let most = u64::from(keys::WEIGHT_MAX);
    let weight = match body.weight {
        Some(w) if !(1..=most).contains(&w) => {
            return Err(invalid(format!("weight {w} is out of range"), &format!("give 1 to {most}")));
        }
        w => w.map(|w| w as u32),
    };
    let ceiling_bytes = match body.ceiling.as_deref() {
        None => None,
        Some("none") => Some(None),
        Some(text) => {
            let size: Size =
                text.parse().map_err(|e| invalid(format!("ceiling: {e}"), "give a size like 1GiB, or none"))?;
            Some(Some(size.0))
        }
    };
    let controller = match body.controller.as_deref() {
        None => None,
        Some("inherit") => Some(None),
        Some(name) => Some(Some(name.parse().map_err(|_| {
            let near = nearest(name, keys::CONTROLLERS).map_or(String::new(), |n| format!("did you mean \"{n}\"? "));
            let shown: String = name.chars().take(60).collect();
            let remedy = format!("{near}known are {}, and inherit", keys::CONTROLLERS.join(", "));
            invalid(format!("unknown controller \"{shown}\""), &remedy)
        })?)),
    };
    let goal = match body.goal.as_deref() {
        None => None,
        Some("none") => Some(None),
        Some(text) => {
            let goal = text.parse::<GoalPlan>().map_err(|e| {
                let (error, remedy) = e.split_once("; ").unwrap_or((&e, GOALS));
                invalid(format!("goal: {error}"), &format!("{remedy}, or `none`"))
            })?;
            Some(Some(goal))
        }
    };
    let policy = match body.policy.as_deref() {
        None => None,
        Some("inherit") => Some(None),
        Some(name) => Some(Some(policy(name)?)),
    };
    let store = match body.store.as_deref() {
        None => None,
        Some("inherit") => Some(None),
        Some(text) => Some(Some(
            text.parse()
                .map_err(|(error, remedy): (String, &str)| invalid(error, &format!("{remedy}, or `inherit`")))?,
        )),
    };
    let hint = body.hint.as_deref().map(|text| {
        text.parse::<Hint>().map_err(|_| {
            let shown: String = text.chars().take(60).collect();
            let known = Hint::ALL.map(Hint::name);
            let near = nearest(text, known).map_or(String::new(), |n| format!("did you mean \"{n}\"? "));
            invalid(format!("unknown hint \"{shown}\""), &format!("{near}known are {}", known.join(", ")))
        })
    });
    let floor_bytes = body.floor.map(|s| s.0);
    Ok(NodeChange {
        weight,
        floor_bytes,
        ceiling_bytes,
        controller,
        goal,
        policy,
        store,
        hint: hint.transpose()?,
        replace: false,
    })
}

/// Puts any bytes through the parsers of nodes, for the fuzzer.
///
/// # Panics
/// If an error has no words, or a value breaks its bounds: that is a bug.
pub fn check_bytes(data: &[u8]) {
    let told = |e: ControlError| assert!(!e.error.is_empty() && !e.remedy.is_empty(), "an error without words");
    let holds =
        |c: &NodeChange| assert!(c.weight.is_none_or(|w| (1..=keys::WEIGHT_MAX).contains(&w)), "weight out of range");
    match (parse_node(data), parse_whole_node(data)) {
        (Ok(part), Ok(whole)) => {
            holds(&part);
            assert_eq!(NodeChange { replace: true, ..part }, whole, "PATCH and PUT read a body differently");
        }
        (Err(e), Ok(whole)) => {
            assert_eq!(whole, NodeChange { replace: true, ..NodeChange::default() }, "only PUT takes this: {e}");
            told(e);
        }
        (Ok(_), Err(e)) => panic!("only PATCH takes this: {e}"),
        (Err(e), Err(also)) => {
            told(e);
            told(also);
        }
    }
    match std::str::from_utf8(data).map(parse_if_match) {
        Ok(Ok(versions)) => assert!(versions.is_none_or(|v| !v.is_empty()), "no version is enough"),
        Ok(Err(e)) => told(e),
        Err(_) => {}
    }
}
