//! The routes of hot sets.
//!
//! Owns their paths. Never fetches a block. Invariant: a set is read as a whole before anything is done with it.

use super::Caller;
use super::answer::{Answer, Refused, Shared, blocks_of, call, name_of};
use axum::Extension;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::response::Json;
use serde::Deserialize;
use undercroft_api::hot_set::{HotSet, Warming};
use undercroft_api::{ControlError, ControlErrorKind, ErrorBody};

/// Which blocks of a disk its cache would keep longest: numbers, no data. For `POST /v1/disks/{name}/warm` of the
/// daemon to which its guest migrates.
#[utoipa::path(get, path = "/v1/disks/{name}/hot-set",
    params(("name" = String, Path, description = "Full name of the disk")),
    responses((status = 200, body = HotSet), (status = 404, body = ErrorBody)))]
pub(super) async fn get_hot_set(State(d): State<Shared>, name: Result<Path<String>, PathRejection>) -> Answer<HotSet> {
    let name = name_of(name)?;
    call(d, move |d| d.hot_set(&name)).await.map(Json).map_err(Refused)
}

/// What `POST /v1/disks/{name}/warm` may be asked.
#[derive(Clone, Copy, Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct WarmQuery {
    /// Bytes to be fetched at most; as many as the disk's cache has room for if it is left out.
    #[param(required = false)]
    budget_bytes: Option<u64>,
}

/// Fetches what was hot elsewhere, the hottest first, where the disk's cache has room; nothing is evicted for it. Goes
/// on after the answer; for a disk whose guest does not run here yet it begins when it does.
#[utoipa::path(post, path = "/v1/disks/{name}/warm", request_body = HotSet,
    params(("name" = String, Path, description = "Full name of the disk"), WarmQuery),
    responses((status = 200, body = Warming), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(super) async fn post_warm(
    State(d): State<Shared>,
    Extension(by): Extension<Caller>,
    name: Result<Path<String>, PathRejection>,
    query: Result<Query<WarmQuery>, QueryRejection>,
    body: Result<Bytes, BytesRejection>,
) -> Answer<Warming> {
    let name = name_of(name)?;
    let Query(query) = query.map_err(|e| {
        let remedy = "the only parameter is budget_bytes=N";
        ControlError::new(ControlErrorKind::Invalid, e.to_string(), remedy)
    })?;
    let set = blocks_of(body).await?;
    call(d, move |d| d.warm(&name, set, query.budget_bytes, &by)).await.map(Json).map_err(Refused)
}
