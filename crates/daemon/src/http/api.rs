//! The routes of the API and their description.
//!
//! Owns paths, methods and HTTP status codes. Never blocks its thread: calls of the daemon run on threads for that.
//! Invariant: every answer but metrics is JSON, and every error is `{error, remedy}`.

use super::{Daemon, metrics};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, patch, post, put};
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;
use undercroft_api::body::{self, BODY_BYTES_MAX, BODY_SECONDS, DiskChangeBody, KsmChangeBody, StoreChangeBody};
use undercroft_api::ranges::{self, RangeBody, RangeList, RangeListBody};
use undercroft_api::record::{RecordBody, RecordingStatus, parse_record};
use undercroft_api::shares::{
    NodeChangeBody, NodeChanged, NodeStatus, ShareEvent, SharesStatus, parse_if_match, parse_node, parse_whole_node,
};
use undercroft_api::status::{
    CacheStatus, DiskCounters, DiskLatency, DiskState, DiskStatus, FrontendKind, FrontendStatus, KsmStatus,
    LatencyBucket, LatencySnapshot, LogStatus, NbdDataStatus, NbdListenerStatus, PressureDirection, PressureStatus,
    ReloadReport, SharingDomainStatus, SharingStatus, Status, StoreStatus, VersionInfo,
};
use undercroft_api::{API_VERSION, ControlError, ControlErrorKind, Dropped, ErrorBody, NodeSettings};
use undercroft_api::{ContainerRanges, RangesStatus, RangesTaken};
use undercroft_config::DiskSpec;
use undercroft_hostmem::ksm::{Numbers, Settings};
use utoipa::OpenApi;

/// How long a call may take before its client is told to look elsewhere; the call itself goes on.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Undercroft control API",
        version = "1",
        description = "Served over the control socket of `undercroft serve`: `curl --unix-socket /run/undercroft/control.sock http://localhost/v1/status`.",
        license(name = "Apache-2.0"),
    ),
    paths(
        get_status,
        get_disks,
        post_disk,
        get_disk,
        patch_disk,
        delete_disk,
        drop_cache,
        get_shares,
        get_node,
        patch_node,
        put_node,
        get_node_events,
        get_ranges,
        put_ranges,
        patch_store,
        patch_ksm,
        get_recordings,
        post_recording,
        get_recording,
        delete_recording,
        reload,
        stop,
        version,
        get_metrics,
        openapi_json
    ),
    components(schemas(
        Status,
        StoreStatus,
        PressureStatus,
        PressureDirection,
        KsmStatus,
        NbdDataStatus,
        NbdListenerStatus,
        Settings,
        Numbers,
        SharingDomainStatus,
        SharingStatus,
        DiskStatus,
        DiskState,
        LogStatus,
        FrontendStatus,
        FrontendKind,
        CacheStatus,
        DiskCounters,
        DiskLatency,
        LatencySnapshot,
        LatencyBucket,
        SharesStatus,
        NodeStatus,
        ShareEvent,
        NodeChangeBody,
        NodeSettings,
        NodeChanged,
        RangeListBody,
        RangeBody,
        RangesStatus,
        ContainerRanges,
        RangesTaken,
        RecordingStatus,
        RecordBody,
        ReloadReport,
        VersionInfo,
        DiskChangeBody,
        StoreChangeBody,
        KsmChangeBody,
        DiskSpec,
        ErrorBody,
        Dropped
    ))
)]
struct Description;

/// The description of the API, as it is committed in docs/openapi.json.
pub fn openapi() -> String {
    // Serialising what the macro made cannot fail; were it to, the drift test would show it.
    let mut text = Description::openapi().to_pretty_json().unwrap_or_default();
    text.push('\n');
    text
}

pub(super) type Shared = Arc<dyn Daemon>;
/// A refusal, as it goes over HTTP.
pub(super) struct Refused(ControlError);

impl From<ControlError> for Refused {
    fn from(e: ControlError) -> Self {
        Self(e)
    }
}

pub(super) type Answer<T> = Result<Json<T>, Refused>;

/// Every route, over a daemon.
pub fn router(daemon: Arc<dyn Daemon>) -> Router {
    Router::new()
        .route("/v1/status", get(get_status))
        .route("/v1/disks", get(get_disks).post(post_disk))
        .route("/v1/disks/{name}", get(get_disk).patch(patch_disk).delete(delete_disk))
        .route("/v1/disks/{name}/drop-cache", post(drop_cache))
        .route("/v1/shares", get(get_shares))
        .route("/v1/nodes/{name}", get(get_node).patch(patch_node).put(put_node))
        .route("/v1/nodes/{name}/events", get(get_node_events))
        .route("/v1/disks/{name}/ranges", get(get_ranges))
        .route("/v1/ranges", put(put_ranges).layer(DefaultBodyLimit::max(ranges::BODY_BYTES_MAX)))
        .route("/v1/store", patch(patch_store))
        .route("/v1/ksm", patch(patch_ksm))
        .route("/v1/recordings", get(get_recordings).post(post_recording))
        .route("/v1/recordings/{id}", get(get_recording).delete(delete_recording))
        .route("/v1/reload", post(reload))
        .route("/v1/stop", post(stop))
        .route("/v1/version", get(version))
        .route("/metrics", get(get_metrics))
        .route("/openapi.json", get(openapi_json))
        .fallback(not_found)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(daemon)
}

/// Metrics alone, for the TCP listener.
pub fn metrics_router(daemon: Arc<dyn Daemon>) -> Router {
    Router::new()
        .route("/metrics", get(get_metrics))
        .fallback(not_found)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(0))
        .with_state(daemon)
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let Self(e) = self;
        let status = match e.kind {
            ControlErrorKind::NotFound => StatusCode::NOT_FOUND,
            ControlErrorKind::Invalid => StatusCode::BAD_REQUEST,
            ControlErrorKind::Forbidden => StatusCode::FORBIDDEN,
            ControlErrorKind::Stale => StatusCode::PRECONDITION_FAILED,
            ControlErrorKind::Conflict => StatusCode::CONFLICT,
            ControlErrorKind::Failed => StatusCode::INTERNAL_SERVER_ERROR,
            ControlErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        };
        (status, Json(ErrorBody { error: e.error, remedy: e.remedy, current: e.current })).into_response()
    }
}

/// Runs a call of the daemon on a thread where it may block.
pub(super) async fn call<T: Send + 'static>(
    daemon: Shared,
    f: impl FnOnce(&dyn Daemon) -> Result<T, ControlError> + Send + 'static,
) -> Result<T, ControlError> {
    blocking(move || f(&*daemon)).await
}

async fn blocking<T: Send + 'static>(
    f: impl FnOnce() -> Result<T, ControlError> + Send + 'static,
) -> Result<T, ControlError> {
    let task = tokio::task::spawn_blocking(f);
    match tokio::time::timeout(CALL_TIMEOUT, task).await {
        Ok(Ok(result)) => result,
        // A panic in the daemon's code: reported by its own message, and the connection lives.
        Ok(Err(_)) => Err(ControlError::new(
            ControlErrorKind::Failed,
            "the call failed inside the daemon",
            "look into its log and report it",
        )),
        Err(_) => Err(ControlError::new(
            ControlErrorKind::Unavailable,
            format!("the daemon has not answered for {} s", CALL_TIMEOUT.as_secs()),
            "an image may be stalled: see stalled_ops in the status; the call itself goes on",
        )),
    }
}

pub(super) fn name_of(path: Result<Path<String>, PathRejection>) -> Result<String, ControlError> {
    path.map(|Path(name)| name).map_err(|_| {
        ControlError::new(
            ControlErrorKind::Invalid,
            "the name in the path is no text",
            "write it as UTF-8, with %XX for special characters",
        )
    })
}

pub(super) fn bytes_of(body: Result<Bytes, BytesRejection>) -> Result<Bytes, ControlError> {
    body.map_err(|_| {
        ControlError::new(
            ControlErrorKind::Invalid,
            format!(
                "the body cannot be read, took more than {BODY_SECONDS} s, or is longer than {BODY_BYTES_MAX} bytes"
            ),
            "send a small JSON object; GET /openapi.json describes it",
        )
    })
}

/// Everything about the daemon and its disks.
#[utoipa::path(get, path = "/v1/status", responses((status = 200, body = Status)))]
async fn get_status(State(d): State<Shared>) -> Answer<Status> {
    call(d, |d| Ok(d.status())).await.map(Json).map_err(Refused)
}

/// All disks.
#[utoipa::path(get, path = "/v1/disks", responses((status = 200, body = Vec<DiskStatus>)))]
async fn get_disks(State(d): State<Shared>) -> Answer<Vec<DiskStatus>> {
    call(d, |d| Ok(d.status().disks)).await.map(Json).map_err(Refused)
}

/// Attaches a disk while the others go on.
#[utoipa::path(post, path = "/v1/disks", request_body = DiskSpec, responses(
    (status = 201, body = DiskStatus),
    (status = 400, body = ErrorBody, description = "Every problem of the disk, one a line"),
    (status = 409, body = ErrorBody, description = "The name is taken"),
    (status = 500, body = ErrorBody, description = "The image does not open")))]
async fn post_disk(
    State(d): State<Shared>,
    body: Result<Bytes, BytesRejection>,
) -> Result<(StatusCode, Json<DiskStatus>), Refused> {
    let spec = body::parse_disk(&bytes_of(body)?)?;
    let disk = call(d, move |d| d.add_disk(spec)).await?;
    Ok((StatusCode::CREATED, Json(disk)))
}

/// One disk.
#[utoipa::path(get, path = "/v1/disks/{name}",
    params(("name" = String, Path, description = "Full name of the disk: `VM:DISK`, or the bare name")),
    responses((status = 200, body = DiskStatus), (status = 404, body = ErrorBody)))]
async fn get_disk(State(d): State<Shared>, name: Result<Path<String>, PathRejection>) -> Answer<DiskStatus> {
    let name = name_of(name)?;
    call(d, move |d| d.disk(&name)).await.map(Json).map_err(Refused)
}

/// Changes a disk while it serves: all of it or nothing.
#[utoipa::path(patch, path = "/v1/disks/{name}", request_body = DiskChangeBody,
    params(("name" = String, Path, description = "Full name of the disk")),
    responses((status = 200, body = DiskStatus), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
async fn patch_disk(
    State(d): State<Shared>,
    name: Result<Path<String>, PathRejection>,
    body: Result<Bytes, BytesRejection>,
) -> Answer<DiskStatus> {
    let name = name_of(name)?;
    let change = body::parse_change(&bytes_of(body)?)?;
    call(d, move |d| d.change_disk(&name, change)).await.map(Json).map_err(Refused)
}

/// Detaches a disk: requests under way are finished first.
#[utoipa::path(delete, path = "/v1/disks/{name}",
    params(("name" = String, Path, description = "Full name of the disk")),
    responses((status = 204), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)))]
async fn delete_disk(
    State(d): State<Shared>,
    name: Result<Path<String>, PathRejection>,
) -> Result<StatusCode, Refused> {
    let name = name_of(name)?;
    call(d, move |d| d.remove_disk(&name)).await.map(|()| StatusCode::NO_CONTENT).map_err(Refused)
}

/// Drops what is cached of a disk. Loses nothing: everything is on the image.
#[utoipa::path(post, path = "/v1/disks/{name}/drop-cache",
    params(("name" = String, Path, description = "Full name of the disk")),
    responses((status = 200, body = Dropped), (status = 404, body = ErrorBody)))]
async fn drop_cache(State(d): State<Shared>, name: Result<Path<String>, PathRejection>) -> Answer<Dropped> {
    let name = name_of(name)?;
    call(d, move |d| d.drop_cache(&name)).await.map(|dropped_bytes| Json(Dropped { dropped_bytes })).map_err(Refused)
}

/// How the store is divided among VMs, containers and disks, and what each would gain by more.
#[utoipa::path(get, path = "/v1/shares", responses((status = 200, body = SharesStatus)))]
async fn get_shares(State(d): State<Shared>) -> Answer<SharesStatus> {
    call(d, |d| Ok(d.shares())).await.map(Json).map_err(Refused)
}

/// One node.
#[utoipa::path(get, path = "/v1/nodes/{name}",
    params(("name" = String, Path, description = "`host`, `VM`, `VM%2FCONTAINER`, or the full name of a disk")),
    responses((status = 200, body = NodeStatus, description = "Its version is the `ETag`"), (status = 404, body = ErrorBody)))]
async fn get_node(State(d): State<Shared>, name: Result<Path<String>, PathRejection>) -> Result<Response, Refused> {
    let name = name_of(name)?;
    Ok(tagged(call(d, move |d| d.node(&name)).await?))
}

/// Changes what is set for a VM, a container or a disk, or the controller of the host. Touches nothing that is set
/// above or below it; shares follow within seconds. Without `If-Match` the last writer wins, and is told what was set
/// before.
#[utoipa::path(patch, path = "/v1/nodes/{name}", request_body = NodeChangeBody,
    params(("name" = String, Path, description = "`host`, `VM`, `VM%2FCONTAINER`, or the full name of a disk"),
        ("If-Match" = Option<String>, Header, description = "`ETag` of an earlier answer: change nothing if it has changed since")),
    responses((status = 200, body = NodeChanged, description = "Its version is the `ETag`"),
        (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 412, body = ErrorBody, description = "It has changed meanwhile; `current` is what is set now")))]
async fn patch_node(
    State(d): State<Shared>,
    name: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Refused> {
    let (name, expected, change) = (name_of(name)?, expected(&headers)?, parse_node(&bytes_of(body)?)?);
    Ok(changed(call(d, move |d| d.change_node(&name, change, expected)).await?))
}

/// The same, but what is not named goes back to what holds where nothing is set.
#[utoipa::path(put, path = "/v1/nodes/{name}", request_body = NodeChangeBody,
    params(("name" = String, Path, description = "`host`, `VM`, `VM%2FCONTAINER`, or the full name of a disk"),
        ("If-Match" = Option<String>, Header, description = "`ETag` of an earlier answer: change nothing if it has changed since")),
    responses((status = 200, body = NodeChanged, description = "Its version is the `ETag`"),
        (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 412, body = ErrorBody, description = "It has changed meanwhile; `current` is what is set now")))]
async fn put_node(
    State(d): State<Shared>,
    name: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Refused> {
    let (name, expected, change) = (name_of(name)?, expected(&headers)?, parse_whole_node(&bytes_of(body)?)?);
    Ok(changed(call(d, move |d| d.change_node(&name, change, expected)).await?))
}

/// The versions that a client expects, if it cares.
pub(super) fn expected(headers: &HeaderMap) -> Result<Option<Vec<u64>>, ControlError> {
    let Some(value) = headers.get(header::IF_MATCH) else { return Ok(None) };
    parse_if_match(&String::from_utf8_lossy(value.as_bytes()))
}

/// A node with its version as the tag.
pub(super) fn tagged(node: NodeStatus) -> Response {
    ([(header::ETAG, format!("\"{}\"", node.version))], Json(node)).into_response()
}

/// The same for one that was changed.
pub(super) fn changed(node: NodeChanged) -> Response {
    ([(header::ETAG, format!("\"{}\"", node.node.version))], Json(node)).into_response()
}

/// What containers have of a disk, where they share it by ranges.
#[utoipa::path(get, path = "/v1/disks/{name}/ranges",
    params(("name" = String, Path, description = "Full name of the disk")),
    responses((status = 200, body = RangesStatus), (status = 404, body = ErrorBody)))]
async fn get_ranges(State(d): State<Shared>, name: Result<Path<String>, PathRejection>) -> Answer<RangesStatus> {
    let name = name_of(name)?;
    call(d, move |d| d.ranges(&name)).await.map(Json).map_err(Refused)
}

/// Replaces what a container has of a disk: the list that `undercroft ranges` prints inside the guest. No ranges take
/// it away.
#[utoipa::path(put, path = "/v1/ranges", request_body = RangeListBody, responses(
    (status = 200, body = RangesTaken),
    (status = 400, body = ErrorBody, description = "An empty range, one past the end of the disk, or too many"),
    (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody, description = "Another container has some of these bytes, or the whole disk")))]
async fn put_ranges(State(d): State<Shared>, body: Result<Bytes, BytesRejection>) -> Answer<RangesTaken> {
    let list = list_of(body).await?;
    call(d, move |d| d.set_ranges(list)).await.map(Json).map_err(Refused)
}

/// A list of ranges; reading a long one takes a while, so it is done on a thread where that is fine.
pub(super) async fn list_of(body: Result<Bytes, BytesRejection>) -> Result<RangeList, ControlError> {
    let bytes = body.map_err(|_| {
        ControlError::new(
            ControlErrorKind::Invalid,
            format!("the list cannot be read, or is longer than {} bytes", ranges::BODY_BYTES_MAX),
            "name fewer files, or give the container a disk of its own",
        )
    })?;
    blocking(move || Ok(ranges::parse(&bytes)?)).await
}

/// What moved to, from and within a node, and why; the oldest first.
#[utoipa::path(get, path = "/v1/nodes/{name}/events",
    params(("name" = String, Path, description = "`host`, `VM`, `VM%2FCONTAINER`, or the full name of a disk")),
    responses((status = 200, body = Vec<ShareEvent>), (status = 404, body = ErrorBody)))]
async fn get_node_events(
    State(d): State<Shared>,
    name: Result<Path<String>, PathRejection>,
) -> Answer<Vec<ShareEvent>> {
    let name = name_of(name)?;
    call(d, move |d| d.share_events(&name, None)).await.map(Json).map_err(Refused)
}

/// Changes what the store may hold at most, within its floor and its ceiling. What is cached and fits stays.
#[utoipa::path(patch, path = "/v1/store", request_body = StoreChangeBody, responses(
    (status = 200, body = StoreStatus),
    (status = 400, body = ErrorBody, description = "Below the floor or above the ceiling")))]
async fn patch_store(State(d): State<Shared>, body: Result<Bytes, BytesRejection>) -> Answer<StoreStatus> {
    let bytes = body::parse_store(&bytes_of(body)?)?;
    call(d, move |d| d.set_memory(bytes)).await.map(Json).map_err(Refused)
}

/// Sets the kernel's merging of equal pages (KSM) up as the configuration says, or puts back what was found. Merging
/// lets guests find out whether another guest holds the same page.
#[utoipa::path(patch, path = "/v1/ksm", request_body = KsmChangeBody, responses(
    (status = 200, body = KsmStatus),
    (status = 400, body = ErrorBody),
    (status = 500, body = ErrorBody, description = "This kernel has none, the daemon may not, or another daemon does")))]
async fn patch_ksm(State(d): State<Shared>, body: Result<Bytes, BytesRejection>) -> Answer<KsmStatus> {
    let body = body::parse_ksm(&bytes_of(body)?)?;
    call(d, move |d| d.manage_ksm(body.manage, body.unmerge)).await.map(Json).map_err(Refused)
}

fn number_of(path: Result<Path<u64>, PathRejection>) -> Result<u64, ControlError> {
    path.map(|Path(id)| id).map_err(|_| {
        ControlError::new(
            ControlErrorKind::NotFound,
            "recordings are known by their numbers",
            "GET /v1/recordings lists the last one",
        )
    })
}

/// The recording under way, or else the last one.
#[utoipa::path(get, path = "/v1/recordings", responses((status = 200, body = Vec<RecordingStatus>)))]
async fn get_recordings(State(d): State<Shared>) -> Answer<Vec<RecordingStatus>> {
    call(d, |d| Ok(d.recordings())).await.map(Json).map_err(Refused)
}

/// Begins to record what guests ask for, a row for each request, into a Parquet file that the daemon writes.
#[utoipa::path(post, path = "/v1/recordings", request_body = RecordBody, responses(
    (status = 201, body = RecordingStatus),
    (status = 400, body = ErrorBody),
    (status = 404, body = ErrorBody, description = "A disk or VM that there is not"),
    (status = 409, body = ErrorBody, description = "A recording is under way, or the file holds something"),
    (status = 500, body = ErrorBody, description = "The daemon cannot write the file")))]
async fn post_recording(
    State(d): State<Shared>,
    body: Result<Bytes, BytesRejection>,
) -> Result<(StatusCode, Json<RecordingStatus>), Refused> {
    let order = parse_record(&bytes_of(body)?)?;
    let status = call(d, move |d| d.record(order)).await?;
    Ok((StatusCode::CREATED, Json(status)))
}

/// How a recording stands. Renews its lease.
#[utoipa::path(get, path = "/v1/recordings/{id}", params(("id" = u64, Path, description = "Its number")),
    responses((status = 200, body = RecordingStatus), (status = 404, body = ErrorBody)))]
async fn get_recording(State(d): State<Shared>, id: Result<Path<u64>, PathRejection>) -> Answer<RecordingStatus> {
    let id = number_of(id)?;
    call(d, move |d| d.recording(id)).await.map(Json).map_err(Refused)
}

/// Ends a recording. Waits up to two seconds for its file to be whole; if `running` is still true then, ask again.
#[utoipa::path(delete, path = "/v1/recordings/{id}", params(("id" = u64, Path, description = "Its number")),
    responses((status = 200, body = RecordingStatus), (status = 404, body = ErrorBody)))]
async fn delete_recording(State(d): State<Shared>, id: Result<Path<u64>, PathRejection>) -> Answer<RecordingStatus> {
    let id = number_of(id)?;
    call(d, move |d| d.end_recording(id)).await.map(Json).map_err(Refused)
}

/// What `POST /v1/reload` may be asked.
#[derive(Clone, Copy, Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ReloadQuery {
    /// Detach the disks that the file no longer has, also if they are all or most of those that are served.
    #[serde(default)]
    #[param(required = false)]
    detach_most: bool,
}

/// Reads the configuration file again and does what can be done live, as SIGHUP does.
#[utoipa::path(post, path = "/v1/reload", params(ReloadQuery), responses(
    (status = 200, body = ReloadReport),
    (status = 400, body = ErrorBody, description = "The file is bad, and nothing was changed; or there is none"),
    (status = 409, body = ErrorBody, description = "The file has lost all or most of the disks; nothing was changed")))]
async fn reload(State(d): State<Shared>, query: Result<Query<ReloadQuery>, QueryRejection>) -> Answer<ReloadReport> {
    let Query(query) = query.map_err(|e| {
        let remedy = "the only parameter is detach_most=true";
        ControlError::new(ControlErrorKind::Invalid, e.to_string(), remedy)
    })?;
    call(d, move |d| d.reload(query.detach_most)).await.map(Json).map_err(Refused)
}

/// Begins an orderly stop, as SIGTERM does.
#[utoipa::path(post, path = "/v1/stop", responses((status = 202, description = "It is stopping")))]
async fn stop(State(d): State<Shared>) -> Result<StatusCode, Refused> {
    call(d, |d| {
        d.stop();
        Ok(StatusCode::ACCEPTED)
    })
    .await
    .map_err(Refused)
}

/// Versions of the program and of this API.
#[utoipa::path(get, path = "/v1/version", responses((status = 200, body = VersionInfo)))]
pub(super) async fn version() -> Json<VersionInfo> {
    Json(VersionInfo { version: env!("CARGO_PKG_VERSION").to_string(), api: API_VERSION.to_string() })
}

/// Metrics in the text format of Prometheus.
#[utoipa::path(get, path = "/metrics", responses((status = 200, body = String, content_type = "text/plain")))]
async fn get_metrics(State(d): State<Shared>) -> Result<Response, Refused> {
    let (status, shares) = call(d, |d| Ok((d.status(), d.shares()))).await?;
    let text = metrics::encode(&status, &shares);
    Ok(([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], Body::from(text)).into_response())
}

/// This description.
#[utoipa::path(get, path = "/openapi.json", responses((status = 200, content_type = "application/json")))]
pub(super) async fn openapi_json() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], openapi()).into_response()
}

pub(super) async fn not_found(uri: Uri) -> Refused {
    let path: String = uri.path().chars().take(100).collect();
    Refused(ControlError::new(
        ControlErrorKind::NotFound,
        format!("there is nothing at {path}"),
        "GET /openapi.json lists what there is",
    ))
}

pub(super) async fn wrong_method(method: Method, uri: Uri) -> Response {
    let path: String = uri.path().chars().take(100).collect();
    let body = ErrorBody {
        error: format!("{path} does not take {method}"),
        remedy: "GET /openapi.json lists what there is".to_string(),
        current: None,
    };
    (StatusCode::METHOD_NOT_ALLOWED, Json(body)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_description_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            committed == openapi(),
            "docs/openapi.json is out of date: run `undercroft openapi > docs/openapi.json`"
        );
    }

    #[test]
    fn the_description_has_the_version_of_the_api() {
        assert_eq!(Description::openapi().info.version, API_VERSION);
    }
}
