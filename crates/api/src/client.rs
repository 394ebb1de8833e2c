//! The client of the control socket, for the command line.
//!
//! Owns one request and its answer; nothing stays open. Never retries. Invariant: an error says whether no daemon
//! listens, or the daemon refused, and what to do.

use super::ErrorBody;
use super::NodeChanged;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes of an answer at most.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;
/// How long an answer may take: longer than the daemon lets its own calls take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(90);

/// Why a request got no good answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error("no daemon answers at {socket}: {reason}; {remedy}")]
    NoDaemon {
        /// The control socket.
        socket: PathBuf,
        /// Why.
        reason: String,
        /// What to do.
        remedy: String,
    },
    /// The daemon said no.
    #[error("{}; {}", .0.error, .0.remedy)]
    Refused(ErrorBody),
    /// Something else.
    #[error("the daemon at {socket} gave no good answer: {reason}; is it of the same version?")]
    Bad {
        /// The control socket.
        socket: PathBuf,
        /// Why.
        reason: String,
    },
}

/// Sends one request and reads the answer as text.
///
/// # Errors
/// See [`ClientError`].
pub fn request(socket: &Path, method: Method, path: &str, body: Option<String>) -> Result<String, ClientError> {
    send(socket, method, path, body, None)
}

/// Changes a node; with `version` only if it is still of that one.
///
/// # Errors
/// See [`ClientError`].
pub fn change_node(socket: &Path, path: &str, body: String, version: Option<u64>) -> Result<NodeChanged, ClientError> {
    let text = send(socket, Method::PATCH, path, Some(body), version)?;
    read(socket, &text)
}

fn send(
    socket: &Path,
    method: Method,
    path: &str,
    body: Option<String>,
    version: Option<u64>,
) -> Result<String, ClientError> {
    let bad = |reason: String| ClientError::Bad { socket: socket.to_path_buf(), reason };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| bad(e.to_string()))?;
    let work = async {
        let stream = tokio::net::UnixStream::connect(socket).await.map_err(|e| no_daemon(socket, &e))?;
        let exchanged = exchange(stream, method, path, body, version).await;
        let (status, text) = exchanged.map_err(|e| bad(e.to_string()))?;
        if status.is_success() {
            return Ok(text);
        }
        match serde_json::from_str(&text) {
            Ok(error) => Err(ClientError::Refused(error)),
            Err(_) => Err(bad(format!("HTTP status {status}"))),
        }
    };
    runtime.block_on(async {
        match tokio::time::timeout(ANSWER_TIMEOUT, work).await {
            Ok(result) => result,
            Err(_) => Err(bad(format!("nothing came for {} s", ANSWER_TIMEOUT.as_secs()))),
        }
    })
}

/// Sends one request and reads the answer as JSON.
///
/// # Errors
/// See [`ClientError`].
pub fn request_json<T: DeserializeOwned>(
    socket: &Path,
    method: Method,
    path: &str,
    body: Option<String>,
) -> Result<T, ClientError> {
    let text = request(socket, method, path, body)?;
    read(socket, &text)
}

fn read<T: DeserializeOwned>(socket: &Path, text: &str) -> Result<T, ClientError> {
    serde_json::from_str(text)
        .map_err(|e| ClientError::Bad { socket: socket.to_path_buf(), reason: format!("its JSON is unexpected: {e}") })
}

/// The path of a disk in the API.
pub fn disk_path(name: &str) -> String {
    format!("/v1/disks/{}", escaped(name))
}

/// The path of a VM, a container or a disk as a node of the tree of shares.
pub fn node_path(name: &str) -> String {
    format!("/v1/nodes/{}", escaped(name))
}

fn escaped(name: &str) -> String {
    let mut path = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':') {
            path.push(byte as char);
        } else {
            path.push_str(&format!("%{byte:02X}"));
        }
    }
    path
}

fn no_daemon(socket: &Path, e: &std::io::Error) -> ClientError {
    let (reason, remedy) = match e.kind() {
        std::io::ErrorKind::NotFound => (
            "there is no such socket".to_string(),
            "start one with `undercroft serve`, or name its socket with --control or UNDERCROFT_CONTROL",
        ),
        std::io::ErrorKind::ConnectionRefused => (
            "the socket is left over from a daemon that is gone".to_string(),
            "start one with `undercroft serve`; it replaces the socket",
        ),
        std::io::ErrorKind::PermissionDenied => (
            "this user may not use the socket".to_string(),
            "use sudo, or set daemon.control_group to a group you are in, and the daemon, too",
        ),
        _ => (e.to_string(), "name its socket with --control or UNDERCROFT_CONTROL"),
    };
    ClientError::NoDaemon { socket: socket.to_path_buf(), reason, remedy: remedy.to_string() }
}

async fn exchange(
    stream: tokio::net::UnixStream,
    method: Method,
    path: &str,
    body: Option<String>,
    version: Option<u64>,
) -> anyhow::Result<(StatusCode, String)> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let driver = tokio::spawn(connection);
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "localhost")
        .header("content-type", "application/json");
    if let Some(version) = version {
        request = request.header("if-match", format!("\"{version}\""));
    }
    let request = request.body(Full::new(Bytes::from(body.unwrap_or_default())))?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
    let bytes = body.map_err(|e| anyhow::anyhow!("{e}"))?.to_bytes();
    drop(sender);
    driver.abort();
    Ok((status, String::from_utf8(bytes.to_vec())?))
}
