//! What is asked of the whole daemon: its status, its store and KSM, and to load its configuration anew, to upgrade
//! or to stop.
//!
//! Owns how these are read and answered. Never blocks its thread: calls of the daemon run on threads for that.
//! Invariant: every answer but metrics is JSON.

use super::answer::{Answer, Refused, Shared, bytes_of, call};
use super::{Caller, metrics};
use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use serde::Deserialize;
use undercroft_api::body::{self, KsmChangeBody, StoreChangeBody};
use undercroft_api::{
    API_VERSION, ControlError, ControlErrorKind, ErrorBody, KsmStatus, ReloadReport, Status, StoreStatus, VersionInfo,
};

/// Everything about the daemon and its disks.
#[utoipa::path(get, path = "/v1/status", responses((status = 200, body = Status)))]
pub(super) async fn get_status(State(d): State<Shared>) -> Answer<Status> {
    call(d, |d| Ok(d.status())).await.map(Json).map_err(Refused)
}

/// Changes what the store may hold at most, within its floor and its ceiling. What is cached and fits stays.
#[utoipa::path(patch, path = "/v1/store", request_body = StoreChangeBody, responses(
    (status = 200, body = StoreStatus),
    (status = 400, body = ErrorBody, description = "Below the floor or above the ceiling")))]
pub(super) async fn patch_store(
    State(d): State<Shared>,
    Extension(by): Extension<Caller>,
    body: Result<Bytes, BytesRejection>,
) -> Answer<StoreStatus> {
    let bytes = body::parse_store(&bytes_of(body)?)?;
    call(d, move |d| d.set_memory(bytes, &by)).await.map(Json).map_err(Refused)
}

/// Sets the kernel's merging of equal pages (KSM) up as the configuration says, or puts back what was found. Merging
/// lets guests find out whether another guest holds the same page.
#[utoipa::path(patch, path = "/v1/ksm", request_body = KsmChangeBody, responses(
    (status = 200, body = KsmStatus),
    (status = 400, body = ErrorBody),
    (status = 500, body = ErrorBody, description = "This kernel has none, the daemon may not, or another daemon \
        does")))]
pub(super) async fn patch_ksm(
    State(d): State<Shared>,
    Extension(by): Extension<Caller>,
    body: Result<Bytes, BytesRejection>,
) -> Answer<KsmStatus> {
    let body = body::parse_ksm(&bytes_of(body)?)?;
    call(d, move |d| d.manage_ksm(body.manage, body.unmerge, &by)).await.map(Json).map_err(Refused)
}

/// What `POST /v1/reload` may be asked.
#[derive(Clone, Copy, Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ReloadQuery {
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
pub(super) async fn reload(
    State(d): State<Shared>,
    Extension(by): Extension<Caller>,
    query: Result<Query<ReloadQuery>, QueryRejection>,
) -> Answer<ReloadReport> {
    let Query(query) = query.map_err(|e| {
        let remedy = "the only parameter is detach_most=true";
        ControlError::new(ControlErrorKind::Invalid, e.to_string(), remedy)
    })?;
    call(d, move |d| d.reload(query.detach_most, &by)).await.map(Json).map_err(Refused)
}

/// Has a new process of the program serve from now on: guests stay connected, NBD clients connect anew. There is an
/// answer only if that fails; else the connection is closed with the process that served, and the next one is to the
/// new process.
#[utoipa::path(post, path = "/v1/upgrade", responses(
    (status = 409, body = ErrorBody, description = "Something that is served cannot go to another process"),
    (status = 500, body = ErrorBody, description = "The new process does not serve; all goes on as before")))]
pub(super) async fn upgrade(State(d): State<Shared>, Extension(by): Extension<Caller>) -> Result<StatusCode, Refused> {
    call(d, move |d| Err(d.upgrade(&by))).await.map_err(Refused)
}

/// Begins an orderly stop, as SIGTERM does.
#[utoipa::path(post, path = "/v1/stop", responses((status = 202, description = "It is stopping")))]
pub(super) async fn stop(State(d): State<Shared>, Extension(by): Extension<Caller>) -> Result<StatusCode, Refused> {
    call(d, move |d| {
        d.stop(&by);
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
pub(super) async fn get_metrics(State(d): State<Shared>) -> Result<Response, Refused> {
    let (status, shares) = call(d, |d| Ok((d.status(), d.shares()))).await?;
    let text = metrics::encode(&status, &shares);
    Ok(([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], Body::from(text)).into_response())
}
