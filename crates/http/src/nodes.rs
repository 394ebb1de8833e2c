//! The routes of shares, nodes and ranges.
//!
//! Owns their paths and headers. Never decides who may do what: `scope` does for VMs' own sockets. Invariant: a node's
//! version is its `ETag`.

use super::Caller;
use super::answer::{Answer, Refused, Shared, blocking, bytes_of, call, name_of};
use axum::Extension;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Json, Response};
use undercroft_api::body::{NodeChangeBody, parse_if_match, parse_node, parse_whole_node};
use undercroft_api::ranges::{self, RangeList, RangeListBody};
use undercroft_api::{
    ControlError, ControlErrorKind, ErrorBody, NodeChanged, NodeStatus, RangesStatus, RangesTaken, ShareEvent,
    SharesStatus,
};

/// How the store is divided among VMs, containers and disks, and what each would gain by more.
#[utoipa::path(get, path = "/v1/shares", responses((status = 200, body = SharesStatus)))]
pub(super) async fn get_shares(State(d): State<Shared>) -> Answer<SharesStatus> {
    call(d, |d| Ok(d.shares())).await.map(Json).map_err(Refused)
}

/// One node.
#[utoipa::path(get, path = "/v1/nodes/{name}",
    params(("name" = String, Path, description = "`host`, `VM`, `VM%2FCONTAINER`, or the full name of a disk")),
    responses((status = 200, body = NodeStatus, description = "Its version is the \
        `ETag`"), (status = 404, body = ErrorBody)))]
pub(super) async fn get_node(
    State(d): State<Shared>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, Refused> {
    let name = name_of(name)?;
    Ok(tagged(call(d, move |d| d.node(&name)).await?))
}

/// Changes what is set for a VM, a container or a disk, or the controller of the host. Touches nothing that is set
/// above or below it; shares follow within seconds. Without `If-Match` the last writer wins, and is told what was set
/// before.
#[utoipa::path(patch, path = "/v1/nodes/{name}", request_body = NodeChangeBody,
    params(("name" = String, Path, description = "`host`, `VM`, `VM%2FCONTAINER`, or the full name of a disk"),
        ("If-Match" = Option<String>, Header, description = "`ETag` of an earlier answer: change nothing if it has \
            changed since")),
    responses((status = 200, body = NodeChanged, description = "Its version is the `ETag`"),
        (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 412, body = ErrorBody, description = "It has changed meanwhile; `current` is what is set now")))]
pub(super) async fn patch_node(
    State(d): State<Shared>,
    Extension(by): Extension<Caller>,
    name: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Refused> {
    let (name, expected, change) = (name_of(name)?, expected(&headers)?, parse_node(&bytes_of(body)?)?);
    Ok(changed(call(d, move |d| d.change_node(&name, change, expected, &by)).await?))
}

/// The same, but what is not named goes back to what holds where nothing is set.
#[utoipa::path(put, path = "/v1/nodes/{name}", request_body = NodeChangeBody,
    params(("name" = String, Path, description = "`host`, `VM`, `VM%2FCONTAINER`, or the full name of a disk"),
        ("If-Match" = Option<String>, Header, description = "`ETag` of an earlier answer: change nothing if it has \
            changed since")),
    responses((status = 200, body = NodeChanged, description = "Its version is the `ETag`"),
        (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 412, body = ErrorBody, description = "It has changed meanwhile; `current` is what is set now")))]
pub(super) async fn put_node(
    State(d): State<Shared>,
    Extension(by): Extension<Caller>,
    name: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Refused> {
    let (name, expected, change) = (name_of(name)?, expected(&headers)?, parse_whole_node(&bytes_of(body)?)?);
    Ok(changed(call(d, move |d| d.change_node(&name, change, expected, &by)).await?))
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

/// What moved to, from and within a node, and why; the oldest first.
#[utoipa::path(get, path = "/v1/nodes/{name}/events",
    params(("name" = String, Path, description = "`host`, `VM`, `VM%2FCONTAINER`, or the full name of a disk")),
    responses((status = 200, body = Vec<ShareEvent>), (status = 404, body = ErrorBody)))]
pub(super) async fn get_node_events(
    State(d): State<Shared>,
    name: Result<Path<String>, PathRejection>,
) -> Answer<Vec<ShareEvent>> {
    let name = name_of(name)?;
    call(d, move |d| d.share_events(&name, None)).await.map(Json).map_err(Refused)
}

/// What containers have of a disk, where they share it by ranges.
#[utoipa::path(get, path = "/v1/disks/{name}/ranges",
    params(("name" = String, Path, description = "Full name of the disk")),
    responses((status = 200, body = RangesStatus), (status = 404, body = ErrorBody)))]
pub(super) async fn get_ranges(
    State(d): State<Shared>,
    name: Result<Path<String>, PathRejection>,
) -> Answer<RangesStatus> {
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
pub(super) async fn put_ranges(
    State(d): State<Shared>,
    Extension(by): Extension<Caller>,
    body: Result<Bytes, BytesRejection>,
) -> Answer<RangesTaken> {
    let list = list_of(body).await?;
    call(d, move |d| d.set_ranges(list, &by)).await.map(Json).map_err(Refused)
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
