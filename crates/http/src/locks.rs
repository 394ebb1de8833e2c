//! The routes of locked blocks: what is pinned of a disk, what misses most, what is known of a block.
//!
//! Owns their paths. Never locks a block. Invariant: a list is read as a whole before anything is done with it.

use super::Caller;
use super::answer::{Answer, Refused, Shared, blocks_of, call, name_of};
use super::nodes::expected;
use axum::Extension;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Json, Response};
use undercroft_api::hot_set::HotSet;
use undercroft_api::{BlockStatus, ControlError, ControlErrorKind, ErrorBody, MissesStatus, PinsStatus, ProfileTaken};

/// What is pinned of a disk.
#[utoipa::path(get, path = "/v1/disks/{name}/pins",
    params(("name" = String, Path, description = "Full name of the disk")),
    responses((status = 200, body = PinsStatus, description = "Its version is the `ETag`"),
        (status = 404, body = ErrorBody)))]
pub(super) async fn get_pins(
    State(d): State<Shared>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, Refused> {
    let name = name_of(name)?;
    Ok(with_version(call(d, move |d| d.pins(&name)).await?))
}

/// Pins with their version as the tag.
pub(super) fn with_version(pins: PinsStatus) -> Response {
    ([(header::ETAG, format!("\"{}\"", pins.version))], Json(pins)).into_response()
}

/// Pins blocks in place of all that are pinned of the disk; no ranges unpin all. Blocks are locked from when they are
/// read next: never evicted. They stay pinned until the disk is detached or the daemon ends, also over an upgrade; a
/// reload puts those of the configuration (`pins`) in their place, where it has any. Without `If-Match` the last writer
/// wins.
#[utoipa::path(put, path = "/v1/disks/{name}/pins", request_body = HotSet,
    params(("name" = String, Path, description = "Full name of the disk"),
        ("If-Match" = Option<String>, Header, description = "`ETag` of an earlier answer: change nothing if something \
            else is pinned since")),
    responses((status = 200, body = PinsStatus, description = "Its version is the `ETag`"),
        (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "They are more than may be locked; nothing was changed"),
        (status = 412, body = ErrorBody, description = "Something else is pinned since; nothing was changed")))]
pub(super) async fn put_pins(
    State(d): State<Shared>,
    Extension(by): Extension<Caller>,
    name: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Refused> {
    let (name, expected) = (name_of(name)?, expected(&headers)?);
    let list = blocks_of(body).await?;
    Ok(with_version(call(d, move |d| d.set_pins(&name, list, expected, &by)).await?))
}

/// Names the blocks that are locked where `lock` is `static`, in place of those named before; what is past the budget
/// is not locked. It holds as long as that mode, also over an upgrade where the configuration sets the mode; a reload
/// puts that of the configuration (`lock_profile`) in its place, where it has one.
#[utoipa::path(put, path = "/v1/disks/{name}/lock-profile", request_body = HotSet,
    params(("name" = String, Path, description = "Full name of the disk")),
    responses((status = 200, body = ProfileTaken), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "`lock` is not `static`")))]
pub(super) async fn put_lock_profile(
    State(d): State<Shared>,
    Extension(by): Extension<Caller>,
    name: Result<Path<String>, PathRejection>,
    body: Result<Bytes, BytesRejection>,
) -> Answer<ProfileTaken> {
    let (name, list) = (name_of(name)?, blocks_of(body).await?);
    call(d, move |d| d.set_lock_profile(&name, list, &by)).await.map(Json).map_err(Refused)
}

/// What is known of the block that has a byte of the disk: where it is, and why.
#[utoipa::path(get, path = "/v1/disks/{name}/blocks/{offset}",
    params(("name" = String, Path, description = "Full name of the disk"),
        ("offset" = u64, Path, description = "The byte, from the disk's first one on")),
    responses((status = 200, body = BlockStatus), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(super) async fn get_block(
    State(d): State<Shared>,
    place: Result<Path<(String, String)>, PathRejection>,
) -> Answer<BlockStatus> {
    let (name, byte) = block_of(place)?;
    call(d, move |d| d.block(&name, byte)).await.map(Json).map_err(Refused)
}

/// The blocks of a disk that miss most.
#[utoipa::path(get, path = "/v1/disks/{name}/misses",
    params(("name" = String, Path, description = "Full name of the disk")),
    responses((status = 200, body = MissesStatus), (status = 404, body = ErrorBody)))]
pub(super) async fn get_misses(
    State(d): State<Shared>,
    name: Result<Path<String>, PathRejection>,
) -> Answer<MissesStatus> {
    let name = name_of(name)?;
    call(d, move |d| {
        // A VM, which is a node as well, is no disk.
        d.disk(&name)?;
        d.misses(&name)
    })
    .await
    .map(Json)
    .map_err(Refused)
}

/// The blocks that miss most of all disks of a VM, a container or the host: as many as the largest table of these
/// disks has.
#[utoipa::path(get, path = "/v1/nodes/{name}/misses",
    params(("name" = String, Path, description = "`host`, `VM`, `VM%2FCONTAINER`, or the full name of a disk")),
    responses((status = 200, body = MissesStatus), (status = 404, body = ErrorBody)))]
pub(super) async fn get_node_misses(
    State(d): State<Shared>,
    name: Result<Path<String>, PathRejection>,
) -> Answer<MissesStatus> {
    let name = name_of(name)?;
    call(d, move |d| d.misses(&name)).await.map(Json).map_err(Refused)
}

/// The disk and the byte that a path names.
pub(super) fn block_of(place: Result<Path<(String, String)>, PathRejection>) -> Result<(String, u64), ControlError> {
    let wrong = |error: String| {
        let remedy = "name a byte of the disk as a whole number, like /v1/disks/NAME/blocks/1048576";
        ControlError::new(ControlErrorKind::Invalid, error, remedy)
    };
    let Path((name, byte)) = place.map_err(|_| wrong("the path is no text".to_owned()))?;
    let shown: String = byte.chars().take(40).collect();
    byte.parse().map(|byte| (name, byte)).map_err(|_| wrong(format!("\"{shown}\" is no byte of a disk")))
}
