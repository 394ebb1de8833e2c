//! The routes of the SSD store.
//!
//! Owns their paths and bodies. Never opens a device. Invariant: a daemon without an SSD store says so to each of them.

use super::Caller;
use super::answer::{Answer, Refused, Shared, bytes_of, call};
use axum::Extension;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::extract::{Query, State};
use axum::response::Json;
use serde::Deserialize;
use undercroft_api::body;
use undercroft_api::ssd::{SsdChangeBody, SsdStatus};
use undercroft_api::{ControlError, ControlErrorKind, Dropped, ErrorBody};

/// The SSD store: its files and devices, what it holds, what was written and why.
#[utoipa::path(get, path = "/v1/ssd", responses(
    (status = 200, body = SsdStatus),
    (status = 404, body = ErrorBody, description = "No SSD store is configured")))]
pub(super) async fn get_ssd(State(d): State<Shared>) -> Answer<SsdStatus> {
    call(d, |d| d.ssd()).await.map(Json).map_err(Refused)
}

/// Takes the SSD store into service or out of it. Out of it, its files and devices are closed, and what they hold is
/// given up; disks are served from RAM and their images alone.
#[utoipa::path(patch, path = "/v1/ssd", request_body = SsdChangeBody, responses(
    (status = 200, body = SsdStatus),
    (status = 400, body = ErrorBody),
    (status = 404, body = ErrorBody, description = "No SSD store is configured"),
    (status = 500, body = ErrorBody, description = "A file or device cannot be used")))]
pub(super) async fn patch_ssd(
    State(d): State<Shared>,
    Extension(by): Extension<Caller>,
    body: Result<Bytes, BytesRejection>,
) -> Answer<SsdStatus> {
    let body = body::parse_ssd(&bytes_of(body)?)?;
    call(d, move |d| d.set_ssd(body.in_service, &by)).await.map(Json).map_err(Refused)
}

/// What `POST /v1/ssd/drop` may be asked.
#[derive(Clone, Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DropQuery {
    /// The full name of the disk whose blocks are dropped; those of all disks if it is absent.
    #[param(required = false)]
    disk: Option<String>,
}

/// Drops what the SSD store holds, of one disk or of all.
#[utoipa::path(post, path = "/v1/ssd/drop", params(DropQuery), responses(
    (status = 200, body = Dropped),
    (status = 404, body = ErrorBody, description = "No SSD store is configured, or there is no such disk"),
    (status = 409, body = ErrorBody, description = "The SSD store is out of service")))]
pub(super) async fn drop_ssd(
    State(d): State<Shared>,
    Extension(by): Extension<Caller>,
    query: Result<Query<DropQuery>, QueryRejection>,
) -> Answer<Dropped> {
    let Query(query) = query
        .map_err(|e| ControlError::new(ControlErrorKind::Invalid, e.to_string(), "the only parameter is disk=NAME"))?;
    let dropped = call(d, move |d| d.drop_ssd(query.disk.as_deref(), &by)).await?;
    Ok(Json(Dropped { dropped_bytes: dropped }))
}
