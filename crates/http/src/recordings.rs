//! The routes of recordings.
//!
//! Owns their paths. Never writes a file: the daemon does. Invariant: a recording is known by its number.

use super::answer::{Answer, Refused, Shared, bytes_of, call};
use axum::Extension;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Json;
use undercroft_api::record::{RecordBody, RecordingStatus, parse_record};
use undercroft_api::{ControlError, ControlErrorKind, ErrorBody};
use undercroft_host::Passed;

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
pub(super) async fn get_recordings(State(d): State<Shared>) -> Answer<Vec<RecordingStatus>> {
    call(d, |d| Ok(d.recordings())).await.map(Json).map_err(Refused)
}

/// Begins to record what guests ask for, a row for each request, into a Parquet file that the daemon writes.
///
/// With `descriptor`, the client has opened that file, and passes its descriptor along (SCM_RIGHTS) with the first byte
/// of the request: then it does not matter whose file it is, or where. A second descriptor may follow, of an empty file
/// on the same disk that has no name: rows wait in it until they are converted.
#[utoipa::path(post, path = "/v1/recordings", request_body = RecordBody, responses(
    (status = 201, body = RecordingStatus),
    (status = 400, body = ErrorBody),
    (status = 404, body = ErrorBody, description = "A disk or VM that there is not"),
    (status = 409, body = ErrorBody, description = "A recording is under way or begins, or the file holds something"),
    (status = 500, body = ErrorBody, description = "The daemon cannot write the file")))]
pub(super) async fn post_recording(
    State(d): State<Shared>,
    Extension(passed): Extension<Passed>,
    body: Result<Bytes, BytesRejection>,
) -> Result<(StatusCode, Json<RecordingStatus>), Refused> {
    let order = parse_record(&bytes_of(body)?)?;
    let status = call(d, move |d| d.record(order, &passed)).await?;
    Ok((StatusCode::CREATED, Json(status)))
}

/// How a recording stands. Renews its lease.
#[utoipa::path(get, path = "/v1/recordings/{id}", params(("id" = u64, Path, description = "Its number")),
    responses((status = 200, body = RecordingStatus), (status = 404, body = ErrorBody)))]
pub(super) async fn get_recording(
    State(d): State<Shared>,
    id: Result<Path<u64>, PathRejection>,
) -> Answer<RecordingStatus> {
    let id = number_of(id)?;
    call(d, move |d| d.recording(id)).await.map(Json).map_err(Refused)
}

/// Ends a recording. Waits up to two seconds for its file to be whole; if `running` is still true then, ask again.
#[utoipa::path(delete, path = "/v1/recordings/{id}", params(("id" = u64, Path, description = "Its number")),
    responses((status = 200, body = RecordingStatus), (status = 404, body = ErrorBody)))]
pub(super) async fn delete_recording(
    State(d): State<Shared>,
    id: Result<Path<u64>, PathRejection>,
) -> Answer<RecordingStatus> {
    let id = number_of(id)?;
    call(d, move |d| d.end_recording(id)).await.map(Json).map_err(Refused)
}
