//! Answers: how a call of the daemon becomes one, and what is refused.
//!
//! Owns HTTP status codes, and the threads on which calls may block. Never knows a route. Invariant: every error is
//! `{error, remedy}`.

use super::Daemon;
use axum::body::Bytes;
use axum::extract::Path;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Json, Response};
use std::sync::Arc;
use std::time::Duration;
use undercroft_api::body::{BODY_BYTES_MAX, BODY_SECONDS};
use undercroft_api::hot_set::{self, HotSet};
use undercroft_api::{ControlError, ControlErrorKind, ErrorBody};

/// How long a call may take before its client is told to look elsewhere; the call itself goes on.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) type Shared = Arc<dyn Daemon>;
/// A refusal, as it goes over HTTP.
pub(super) struct Refused(pub(super) ControlError);

impl From<ControlError> for Refused {
    fn from(e: ControlError) -> Self {
        Self(e)
    }
}

pub(super) type Answer<T> = Result<Json<T>, Refused>;

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

pub(super) async fn blocking<T: Send + 'static>(
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

/// A list of blocks. It may be long: it is read on a thread where it keeps no other request waiting.
pub(super) async fn blocks_of(body: Result<Bytes, BytesRejection>) -> Result<HotSet, ControlError> {
    let bytes = body.map_err(|_| {
        ControlError::new(
            ControlErrorKind::Invalid,
            format!(
                "the list of blocks cannot be read, took more than {BODY_SECONDS} s, or is longer than {} bytes",
                hot_set::BODY_BYTES_MAX
            ),
            "name fewer ranges",
        )
    })?;
    blocking(move || hot_set::parse(&bytes)).await
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
