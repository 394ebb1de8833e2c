//! The socket of the plugin: requests of engines in, answers out, until a signal.
//!
//! Owns the socket and an async runtime on the calling thread. Never does what is asked on that thread. Invariants: an
//! error is the protocol's `Err`, with words; the socket's file is gone when this is; what takes long is bounded by the
//! client's own patience, and goes on.

use super::driver::VolumeDriver;
use super::wire::{BODY_BYTES_MAX, parse_call};
use crate::VolumeError;
use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;
use undercroft_frontend::socket::{BoundSocket, SocketGuard, SocketPermissions, bind_unix};

/// Connections at a time; further ones wait in the kernel.
const CONNECTIONS_MAX: usize = 64;
/// How long the head of a request may take, and how long a connection may idle.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a connection may take for everything together.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(600);
/// How long what is under way may take once the plugin stops: making a file system is let finish.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause after a failed accept (out of descriptors, mostly).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often it is looked whether the daemon has all volumes.
const LOOK_PAUSE: Duration = Duration::from_secs(2);
/// What answers are.
const KIND: &str = "application/vnd.docker.plugins.v1.2+json";

/// A socket that listens, for a plugin that is ready.
#[derive(Debug)]
pub struct PluginServer {
    driver: Arc<VolumeDriver>,
    listener: std::os::unix::net::UnixListener,
    /// Removes the file while the socket listens still.
    guard: SocketGuard,
}

impl PluginServer {
    /// Listens at `socket`, for root alone; its directory is made if it is missing.
    ///
    /// # Errors
    /// Another plugin listens there, or it cannot be had.
    pub fn bind(socket: &Path, driver: VolumeDriver) -> Result<Self, VolumeError> {
        if let Some(dir) = socket.parent().filter(|dir| !dir.as_os_str().is_empty()) {
            let made = DirBuilder::new().recursive(true).mode(0o755).create(dir);
            made.map_err(VolumeError::os(format!("make the directory of the socket {}", dir.display())))?;
        }
        let bound = bind_unix(socket, SocketPermissions::default());
        let BoundSocket { guard, listener } =
            bound.map_err(|e| VolumeError::new(e.to_string(), "only one plugin has a socket"))?;
        Ok(Self { driver: Arc::new(driver), listener, guard })
    }
}

/// Serves until SIGINT or SIGTERM. What is mounted stays so.
///
/// # Errors
/// There can be no threads, or signals cannot be caught.
pub fn serve(server: PluginServer) -> Result<(), VolumeError> {
    let PluginServer { driver, listener, guard } = server;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_name("undercroft-volume")
        .max_blocking_threads(CONNECTIONS_MAX + 1)
        .build()
        .map_err(VolumeError::os("start the plugin".into()))?;
    let served = runtime.block_on(run(driver, listener, guard));
    runtime.shutdown_timeout(STOP_TIMEOUT);
    served.map_err(VolumeError::os("serve the plugin".into()))
}

async fn run(
    driver: Arc<VolumeDriver>,
    listener: std::os::unix::net::UnixListener,
    guard: SocketGuard,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::UnixListener::from_std(listener)?;
    let (mut interrupted, mut ended) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let looking = tokio::spawn(look_after(driver.clone()));
    let router = Router::new().fallback(answer).layer(DefaultBodyLimit::max(BODY_BYTES_MAX)).with_state(driver);
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let accepted = async {
            let place = places.clone().acquire_owned().await.ok()?;
            Some((listener.accept().await, place))
        };
        tokio::select! {
            _ = interrupted.recv() => break,
            _ = ended.recv() => break,
            accepted = accepted => match accepted {
                Some((Ok((io, _)), place)) => {
                    let router = router.clone();
                    tokio::spawn(async move {
                        let _place = place;
                        let _ = tokio::time::timeout(CONNECTION_TIMEOUT, connection(io, router)).await;
                    });
                }
                Some((Err(e), _)) => {
                    tracing::warn!("a connection could not be accepted: {e}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
                None => break,
            },
        }
    }
    looking.abort();
    drop(guard);
    Ok(())
}

async fn look_after(driver: Arc<VolumeDriver>) {
    loop {
        let looking = driver.clone();
        let _ = tokio::task::spawn_blocking(move || looking.look_after()).await;
        tokio::time::sleep(LOOK_PAUSE).await;
    }
}

async fn connection(io: UnixStream, router: Router) {
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(io), TowerToHyperService::new(router));
    let _ = serving.await;
}

async fn answer(
    State(driver): State<Arc<VolumeDriver>>,
    method: Method,
    uri: Uri,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let path: String = uri.path().chars().take(100).collect();
    if method != Method::POST {
        return refused(StatusCode::METHOD_NOT_ALLOWED, &format!("{path} does not take {method}; send POST"));
    }
    let bytes = match body {
        Ok(bytes) => bytes,
        Err(_) => {
            let text =
                format!("the request cannot be read, or is longer than {BODY_BYTES_MAX} bytes; send a small one");
            return refused(StatusCode::BAD_REQUEST, &text);
        }
    };
    let call = match parse_call(&path, &bytes) {
        None => return refused(StatusCode::NOT_FOUND, &format!("there is nothing at {path}; this is a volume plugin")),
        Some(Err(e)) => return refused(StatusCode::BAD_REQUEST, &e.to_string()),
        Some(Ok(call)) => call,
    };
    let shown = format!("{call:?}");
    match tokio::task::spawn_blocking(move || driver.call(call)).await {
        Ok(Ok(done)) => said(StatusCode::OK, &done),
        Ok(Err(e)) => {
            tracing::warn!("{shown}: {e}");
            refused(StatusCode::INTERNAL_SERVER_ERROR, &e.to_string())
        }
        Err(_) => refused(StatusCode::INTERNAL_SERVER_ERROR, "the plugin failed; look into its log and report it"),
    }
}

fn refused(status: StatusCode, error: &str) -> Response {
    said(status, &json!({ "Err": error }))
}

fn said(status: StatusCode, body: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, KIND)], body.to_string()).into_response()
}
