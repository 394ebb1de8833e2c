//! The routes of disks.
//!
//! Owns their paths. Never touches a disk: the daemon does. Invariant: a change is made as a whole or not at all.

use super::Caller;
use super::answer::{Answer, Refused, Shared, bytes_of, call, name_of};
use axum::Extension;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Json;
use undercroft_api::body::{self, NodeChangeBody};
use undercroft_api::{DiskStatus, Dropped, ErrorBody};
use undercroft_config::DiskSpec;

/// All disks.
#[utoipa::path(get, path = "/v1/disks", responses((status = 200, body = Vec<DiskStatus>)))]
pub(super) async fn get_disks(State(d): State<Shared>) -> Answer<Vec<DiskStatus>> {
    call(d, |d| Ok(d.status().disks)).await.map(Json).map_err(Refused)
}

/// Attaches a disk while the others go on.
#[utoipa::path(post, path = "/v1/disks", request_body = DiskSpec, responses(
    (status = 201, body = DiskStatus),
    (status = 400, body = ErrorBody, description = "Every problem of the disk, one a line"),
    (status = 409, body = ErrorBody, description = "The name is taken"),
    (status = 500, body = ErrorBody, description = "The image does not open")))]
pub(super) async fn post_disk(
    State(d): State<Shared>,
    Extension(by): Extension<Caller>,
    body: Result<Bytes, BytesRejection>,
) -> Result<(StatusCode, Json<DiskStatus>), Refused> {
    let spec = body::parse_disk(&bytes_of(body)?)?;
    let disk = call(d, move |d| d.add_disk(spec, &by)).await?;
    Ok((StatusCode::CREATED, Json(disk)))
}

/// One disk.
#[utoipa::path(get, path = "/v1/disks/{name}",
    params(("name" = String, Path, description = "Full name of the disk: `VM:DISK`, or the bare name")),
    responses((status = 200, body = DiskStatus), (status = 404, body = ErrorBody)))]
pub(super) async fn get_disk(State(d): State<Shared>, name: Result<Path<String>, PathRejection>) -> Answer<DiskStatus> {
    let name = name_of(name)?;
    call(d, move |d| d.disk(&name)).await.map(Json).map_err(Refused)
}

/// Changes a disk while it serves: all of it or nothing.
#[utoipa::path(patch, path = "/v1/disks/{name}", request_body = NodeChangeBody,
    params(("name" = String, Path, description = "Full name of the disk")),
    responses((status = 200, body = DiskStatus), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(super) async fn patch_disk(
    State(d): State<Shared>,
    Extension(by): Extension<Caller>,
    name: Result<Path<String>, PathRejection>,
    body: Result<Bytes, BytesRejection>,
) -> Answer<DiskStatus> {
    let name = name_of(name)?;
    let change = body::parse_change(&bytes_of(body)?)?;
    call(d, move |d| d.change_disk(&name, change, &by)).await.map(Json).map_err(Refused)
}

/// Detaches a disk: requests under way are finished first.
#[utoipa::path(delete, path = "/v1/disks/{name}",
    params(("name" = String, Path, description = "Full name of the disk")),
    responses((status = 204), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub(super) async fn delete_disk(
    State(d): State<Shared>,
    Extension(by): Extension<Caller>,
    name: Result<Path<String>, PathRejection>,
) -> Result<StatusCode, Refused> {
    let name = name_of(name)?;
    call(d, move |d| d.remove_disk(&name, &by)).await.map(|()| StatusCode::NO_CONTENT).map_err(Refused)
}

/// Drops what is cached of a disk. Loses nothing: everything is on the image.
#[utoipa::path(post, path = "/v1/disks/{name}/drop-cache",
    params(("name" = String, Path, description = "Full name of the disk")),
    responses((status = 200, body = Dropped), (status = 404, body = ErrorBody)))]
pub(super) async fn drop_cache(State(d): State<Shared>, name: Result<Path<String>, PathRejection>) -> Answer<Dropped> {
    let name = name_of(name)?;
    call(d, move |d| d.drop_cache(&name)).await.map(|dropped_bytes| Json(Dropped { dropped_bytes })).map_err(Refused)
}
