//! The API on a VM's own control socket: what is below that VM, and nothing else.
//!
//! Owns who may do what there. Invariants: what can be set is listed here, by key; only ranges, pins, and settings of
//! containers and disks of the VM that divide what the VM has, and who divides it, or say which of its blocks are kept
//! in that, are in these lists; no other VM's name is ever in an answer, whether there is one of that name or not, and
//! no path of the host that the VM's owner has not named.
//!
//! The rule for what is refused: a name that is not below the VM does not exist here (404), with the same words whether
//! there is one of that name on the host or not; a call that is the host's alone is forbidden (403), whatever it names.
//!
//! Two sets of people set shares: whoever runs the host says what each VM has, and whoever runs a VM says how that is
//! divided within it (the two levels of derivative clouds). The VM's weight, floor, ceiling and goal belong to the
//! former, and so do those keys of disks that take from others whatever the VM has: a size is a promise that the host
//! makes, which nothing that is set here takes the place of; polling and read-ahead cost its processors and its
//! storage.

use super::answer::{Answer, Refused, Shared, blocks_of, bytes_of, call, name_of, not_found, wrong_method};
use super::locks::{block_of, with_version};
use super::nodes::{changed, expected, list_of, tagged};
use super::{Caller, Daemon, api, description};
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{HeaderMap, Uri};
use axum::response::{Json, Response};
use axum::routing::{any, get, put};
use axum::{Extension, Router};
use std::path::PathBuf;
use std::sync::Arc;
use undercroft_api::NodeChange;
use undercroft_api::body::{BODY_BYTES_MAX, parse_node, parse_whole_node};
use undercroft_api::hot_set;
use undercroft_api::ranges;
use undercroft_api::shares::{NodeStatus, ShareEvent, SharesStatus};
use undercroft_api::{BlockStatus, MissesStatus, PinsStatus, ProfileTaken, RangesStatus, RangesTaken};
use undercroft_api::{ControlError, ControlErrorKind, NodeSettings};

/// What can be set for containers and disks of the VM: a key that is not here is the host's, also one that comes later.
const BELOW: [&str; 13] = [
    "weight",
    "floor",
    "ceiling",
    "controller",
    "goal",
    "policy",
    "store",
    "hint",
    "lock",
    "lock_budget",
    "lock_held",
    "miss_table",
    "victim_buffer",
];
/// What can be set for the VM itself: how what it has is divided and kept, not how much that is.
const ITSELF: [&str; 3] = ["controller", "policy", "store"];

/// What a VM's own socket reaches.
#[derive(Clone)]
pub(super) struct Scope {
    daemon: Shared,
    vm: Arc<str>,
    /// Where the rest can be done.
    host: Arc<PathBuf>,
}

/// The routes of a VM's own socket.
pub(super) fn router(daemon: Arc<dyn Daemon>, vm: &str, host: PathBuf) -> Router {
    Router::new()
        .route("/v1/shares", get(get_shares))
        .route("/v1/nodes/{name}", get(get_node).patch(patch_node).put(put_node))
        .route("/v1/nodes/{name}/events", get(get_node_events))
        .route("/v1/disks/{name}/ranges", get(get_ranges))
        .route("/v1/nodes/{name}/misses", get(get_node_misses))
        .route(
            "/v1/disks/{name}/pins",
            get(get_pins).put(put_pins).layer(DefaultBodyLimit::max(hot_set::BODY_BYTES_MAX)),
        )
        .route(
            "/v1/disks/{name}/lock-profile",
            put(put_lock_profile).layer(DefaultBodyLimit::max(hot_set::BODY_BYTES_MAX)),
        )
        .route("/v1/disks/{name}/blocks/{offset}", get(get_block))
        .route("/v1/disks/{name}/misses", get(get_misses))
        .route("/v1/ranges", put(put_ranges).layer(DefaultBodyLimit::max(ranges::BODY_BYTES_MAX)))
        .route("/v1/version", get(api::version))
        .route("/openapi.json", get(description::openapi_json))
        .route("/v1/status", any(refuse))
        .route("/v1/disks", any(refuse))
        .route("/v1/disks/{name}", any(refuse))
        .route("/v1/disks/{name}/drop-cache", any(refuse))
        .route("/v1/disks/{name}/hot-set", any(refuse))
        .route("/v1/disks/{name}/warm", any(refuse))
        .route("/v1/store", any(refuse))
        .route("/v1/ssd", any(refuse))
        .route("/v1/ssd/drop", any(refuse))
        .route("/v1/ksm", any(refuse))
        .route("/v1/recordings", any(refuse))
        .route("/v1/recordings/{id}", any(refuse))
        .route("/v1/reload", any(refuse))
        .route("/v1/upgrade", any(refuse))
        .route("/v1/stop", any(refuse))
        .route("/metrics", any(refuse))
        .fallback(not_found)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(Scope { daemon, vm: vm.into(), host: Arc::new(host) })
}

impl Scope {
    fn forbidden(&self, what: &str) -> ControlError {
        let error = format!(
            "{what} cannot be seen or changed on this control socket, which is for what is below VM \"{}\"",
            self.vm
        );
        let remedy = format!("the host's control socket, {}, may do it", self.host.display());
        ControlError::new(ControlErrorKind::Forbidden, error, remedy)
    }

    /// Whether a full name is that of the VM, or of something in it.
    fn owns(&self, name: &str) -> bool {
        let rest = name.strip_prefix(&*self.vm);
        rest.is_some_and(|r| r.is_empty() || r.starts_with(['/', ':']))
    }

    /// The nodes of the VM.
    fn nodes(&self, daemon: &dyn Daemon) -> Vec<NodeStatus> {
        let mut nodes = daemon.shares().nodes;
        // A disk that belongs to no VM can have the VM's name once a reload has taken the VM away: this socket stays.
        nodes.retain(|n| if n.name == *self.vm { n.level == "vm" } else { self.owns(&n.name) });
        for node in nodes.iter_mut().filter(|n| n.name == *self.vm) {
            node.parent = None;
        }
        nodes
    }

    /// The full name of a node of the VM; its containers and disks can be named without it, where that is one of them.
    fn name(&self, daemon: &dyn Daemon, name: &str) -> Result<String, ControlError> {
        let known = self.nodes(daemon);
        let there = |name: &str| known.iter().any(|n| n.name == name);
        if there(name) {
            return Ok(name.to_string());
        }
        let below = |sign: char| Some(format!("{}{sign}{name}", self.vm)).filter(|full| there(full));
        match (below(':'), below('/')) {
            (Some(disk), Some(container)) => Err(ControlError::new(
                ControlErrorKind::Invalid,
                format!("\"{name}\" is both disk \"{disk}\" and container \"{container}\""),
                "give the full name of the one that is meant",
            )),
            (Some(full), None) | (None, Some(full)) => Ok(full),
            (None, None) => Err(ControlError::no_node(name, known.iter().map(|n| n.name.as_str()))),
        }
    }

    /// The full name of a disk of the VM, where only disks are meant; it can be named without the VM.
    fn disk(&self, daemon: &dyn Daemon, name: &str) -> Result<String, ControlError> {
        let mut known = self.nodes(daemon);
        // What a container has of a disk by ranges is a node, but no disk.
        known.retain(|n| n.level == "disk" && !n.name.contains('['));
        let full = format!("{}:{name}", self.vm);
        let found = known.iter().find(|n| n.name == name || n.name == full);
        found.map(|n| n.name.clone()).ok_or_else(|| ControlError::no_disk(name, known.iter().map(|n| n.name.as_str())))
    }

    /// An error without what is no business of the VM's.
    fn discreet(&self, daemon: &dyn Daemon, e: ControlError) -> ControlError {
        let others = daemon.shares().nodes.into_iter().filter(|n| n.level != "host" && !self.owns(&n.name));
        let named = |text: &str, name: &str| text.contains(&format!("\"{name}\""));
        match others.into_iter().any(|n| named(&e.error, &n.name) || named(&e.remedy, &n.name)) {
            false => e,
            true => ControlError::new(
                e.kind,
                "it does not fit beside what others on this host were promised",
                "ask for less, or ask whoever runs the host for more",
            ),
        }
    }

    fn change(
        &self,
        daemon: &dyn Daemon,
        name: &str,
        change: NodeChange,
        versions: Option<Vec<u64>>,
        by: &Caller,
    ) -> Result<super::NodeChanged, ControlError> {
        let name = self.name(daemon, name)?;
        let itself = *name == *self.vm;
        if itself && change.replace {
            return Err(self.forbidden(&format!("weight, floor, ceiling and goal of VM \"{name}\" itself")));
        }
        let settable: &[&str] = if itself { &ITSELF } else { &BELOW };
        let of_the_host: Vec<&str> = change.keys().filter(|key| !settable.contains(key)).collect();
        if !of_the_host.is_empty() {
            let whose = if itself { format!("VM \"{name}\" itself") } else { format!("\"{name}\"") };
            return Err(self.forbidden(&format!("{} of {whose}", of_the_host.join(", "))));
        }
        let change = change.keeping_size();
        let mut done = daemon.change_node(&name, change, versions, by).map_err(|mut e| {
            e.current.iter_mut().for_each(|set| keep_private(set));
            self.discreet(daemon, e)
        })?;
        keep_private(&mut done.previous);
        if done.node.name == *self.vm {
            done.node.parent = None;
        }
        Ok(done)
    }
}

/// Keys whose values are paths on the host, which are no business of the VM's.
const PATHS: [&str; 3] = ["fuse", "pins", "lock_profile"];

/// Takes these out of what is set.
fn keep_private(set: &mut NodeSettings) {
    PATHS.iter().for_each(|key| _ = set.keys.remove(*key));
}

/// Takes them out of what is said of pins.
fn without_paths(pins: PinsStatus) -> PinsStatus {
    let problem = pins.problem.map(|_| "whoever runs the host can see why on the host's control socket".to_string());
    PinsStatus { file: None, problem, ..pins }
}

async fn refuse(State(s): State<Scope>, uri: Uri) -> Refused {
    let path: String = uri.path().chars().take(100).collect();
    s.forbidden(&path).into()
}

async fn get_shares(State(s): State<Scope>) -> Answer<SharesStatus> {
    call(s.daemon.clone(), move |d| {
        let all = d.shares();
        let problem = all.problem.map(|_| "whoever runs the host can see why on the host's control socket".to_string());
        Ok(SharesStatus { nodes: s.nodes(d), problem, ..all })
    })
    .await
    .map(Json)
    .map_err(Refused::from)
}

async fn get_node(State(s): State<Scope>, name: Result<Path<String>, PathRejection>) -> Result<Response, Refused> {
    let name = name_of(name)?;
    let node = call(s.daemon.clone(), move |d| {
        let name = s.name(d, &name)?;
        let found = s.nodes(d).into_iter().find(|n| n.name == name);
        found.ok_or_else(|| ControlError::no_node(&name, []))
    });
    Ok(tagged(node.await?))
}

async fn patch_node(
    State(s): State<Scope>,
    Extension(by): Extension<Caller>,
    name: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Refused> {
    let (name, versions, change) = (name_of(name)?, expected(&headers)?, parse_node(&bytes_of(body)?)?);
    Ok(changed(call(s.daemon.clone(), move |d| s.change(d, &name, change, versions, &by)).await?))
}

async fn put_node(
    State(s): State<Scope>,
    Extension(by): Extension<Caller>,
    name: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Refused> {
    let (name, versions, change) = (name_of(name)?, expected(&headers)?, parse_whole_node(&bytes_of(body)?)?);
    Ok(changed(call(s.daemon.clone(), move |d| s.change(d, &name, change, versions, &by)).await?))
}

async fn get_node_events(State(s): State<Scope>, name: Result<Path<String>, PathRejection>) -> Answer<Vec<ShareEvent>> {
    let name = name_of(name)?;
    call(s.daemon.clone(), move |d| d.share_events(&s.name(d, &name)?, Some(&s.vm)))
        .await
        .map(Json)
        .map_err(Refused::from)
}

async fn get_ranges(State(s): State<Scope>, name: Result<Path<String>, PathRejection>) -> Answer<RangesStatus> {
    let name = name_of(name)?;
    call(s.daemon.clone(), move |d| d.ranges(&s.disk(d, &name)?)).await.map(Json).map_err(Refused::from)
}

async fn put_ranges(
    State(s): State<Scope>,
    Extension(by): Extension<Caller>,
    body: Result<Bytes, BytesRejection>,
) -> Answer<RangesTaken> {
    let list = list_of(body).await?;
    call(s.daemon.clone(), move |d| {
        s.disk(d, list.disk())?;
        d.set_ranges(list, &by).map_err(|e| s.discreet(d, e))
    })
    .await
    .map(Json)
    .map_err(Refused::from)
}

async fn get_pins(State(s): State<Scope>, name: Result<Path<String>, PathRejection>) -> Result<Response, Refused> {
    let name = name_of(name)?;
    let pins = call(s.daemon.clone(), move |d| d.pins(&s.disk(d, &name)?)).await?;
    Ok(with_version(without_paths(pins)))
}

async fn put_pins(
    State(s): State<Scope>,
    Extension(by): Extension<Caller>,
    name: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Refused> {
    let (name, versions) = (name_of(name)?, expected(&headers)?);
    let list = blocks_of(body).await?;
    let pins = call(s.daemon.clone(), move |d| {
        let name = s.disk(d, &name)?;
        d.set_pins(&name, list, versions, &by).map_err(|e| too_many(&name, e))
    });
    Ok(with_version(without_paths(pins.await?)))
}

/// Why pins were refused that are more than there is room for, with what the VM's owner may do.
fn too_many(name: &str, e: ControlError) -> ControlError {
    match e.kind {
        ControlErrorKind::Conflict => ControlError {
            remedy: format!(
                "pin less, or set a larger budget (`undercroft set {name} --lock-budget PERCENT`), or ask whoever runs \
                 the host for a larger share"
            ),
            ..e
        },
        _ => e,
    }
}

async fn put_lock_profile(
    State(s): State<Scope>,
    Extension(by): Extension<Caller>,
    name: Result<Path<String>, PathRejection>,
    body: Result<Bytes, BytesRejection>,
) -> Answer<ProfileTaken> {
    let (name, list) = (name_of(name)?, blocks_of(body).await?);
    let taken = call(s.daemon.clone(), move |d| d.set_lock_profile(&s.disk(d, &name)?, list, &by)).await;
    taken.map(Json).map_err(Refused::from)
}

async fn get_block(
    State(s): State<Scope>,
    place: Result<Path<(String, String)>, PathRejection>,
) -> Answer<BlockStatus> {
    let (name, byte) = block_of(place)?;
    call(s.daemon.clone(), move |d| d.block(&s.disk(d, &name)?, byte)).await.map(Json).map_err(Refused::from)
}

async fn get_misses(State(s): State<Scope>, name: Result<Path<String>, PathRejection>) -> Answer<MissesStatus> {
    let name = name_of(name)?;
    call(s.daemon.clone(), move |d| d.misses(&s.disk(d, &name)?)).await.map(Json).map_err(Refused::from)
}

async fn get_node_misses(State(s): State<Scope>, name: Result<Path<String>, PathRejection>) -> Answer<MissesStatus> {
    let name = name_of(name)?;
    let misses = call(s.daemon.clone(), move |d| d.misses(&s.name(d, &name)?).map_err(|e| s.discreet(d, e)));
    misses.await.map(Json).map_err(Refused::from)
}
