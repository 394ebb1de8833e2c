//! The client of the control socket, for the command line.
//!
//! Owns one request and its answer; nothing stays open. Never retries. Invariants: an error says whether no daemon
//! listens, or the daemon refused, and what to do; descriptors go with the first byte of their request.

use super::ErrorBody;
use super::NodeChanged;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::UnixStream;
use undercroft_host::send_with_descriptors;

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
    send(socket, method, path, body, None, Vec::new())
}

/// Sends one request, and the descriptors of `files` along with it; reads the answer as JSON.
///
/// # Errors
/// See [`ClientError`].
pub fn request_with_files<T: DeserializeOwned>(
    socket: &Path,
    method: Method,
    path: &str,
    body: String,
    files: Vec<File>,
) -> Result<T, ClientError> {
    let text = send(socket, method, path, Some(body), None, files)?;
    read(socket, &text)
}

/// Changes a node; with `version` only if it is still of that one.
///
/// # Errors
/// See [`ClientError`].
pub fn change_node(socket: &Path, path: &str, body: String, version: Option<u64>) -> Result<NodeChanged, ClientError> {
    let text = send(socket, Method::PATCH, path, Some(body), version, Vec::new())?;
    read(socket, &text)
}

/// Puts something in the place of what is there; with `version` only if that is still of that one.
///
/// # Errors
/// See [`ClientError`].
pub fn put_json<T: DeserializeOwned>(
    socket: &Path,
    path: &str,
    body: String,
    version: Option<u64>,
) -> Result<T, ClientError> {
    let text = send(socket, Method::PUT, path, Some(body), version, Vec::new())?;
    read(socket, &text)
}

fn send(
    socket: &Path,
    method: Method,
    path: &str,
    body: Option<String>,
    version: Option<u64>,
    files: Vec<File>,
) -> Result<String, ClientError> {
    let bad = |reason: String| ClientError::Bad { socket: socket.to_path_buf(), reason };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| bad(e.to_string()))?;
    let work = async {
        let stream = UnixStream::connect(socket).await.map_err(|e| no_daemon(socket, &e))?;
        let exchanged = exchange(Passing { stream, files }, method, path, body, version).await;
        let (status, text) = exchanged.map_err(|e| bad(format!("{e:#}")))?;
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

/// The path of the block of a disk that has this byte.
pub fn block_path(name: &str, byte: u64) -> String {
    format!("{}/blocks/{byte}", disk_path(name))
}

/// Where what the SSD store holds of a disk, or of all, is dropped.
pub fn ssd_drop_path(disk: Option<&str>) -> String {
    disk.map_or("/v1/ssd/drop".to_owned(), |name| format!("/v1/ssd/drop?disk={}", escaped(name)))
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

/// A connection on which files go along with the first byte.
struct Passing {
    stream: UnixStream,
    files: Vec<File>,
}

impl AsyncRead for Passing {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, to)
    }
}

impl AsyncWrite for Passing {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        while !self.files.is_empty() {
            ready!(self.stream.poll_write_ready(cx))?;
            let files: Vec<_> = self.files.iter().map(AsFd::as_fd).collect();
            let send = || Ok(send_with_descriptors(&self.stream, bytes, &files)?);
            match self.stream.try_io(Interest::WRITABLE, send) {
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                sent => {
                    self.files.clear();
                    return Poll::Ready(sent);
                }
            }
        }
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

async fn exchange(
    stream: Passing,
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
