//! The control thread: accepts on the control socket and, if asked for, serves metrics over TCP.
//!
//! Owns the only async runtime of the daemon. Never trusts a client to be quick, short or well-behaved: connections,
//! heads, bodies and calls are all bounded. Invariant: the socket's file is gone when the server is.

use super::control_stream::ControlStream;
use super::{Caller, Daemon, routes, scope};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use hyper::body::{Frame, SizeHint};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, watch};
use undercroft_api::body::BODY_SECONDS;
use undercroft_config::DaemonPlan;
use undercroft_frontend::socket::{
    BoundSocket, SocketError, SocketGuard, SocketPermissions, bind_tcp, bind_unix, tcp_place,
};
use undercroft_host::{Closing, Passed, refuse_descriptors};

/// Connections to the control socket at a time; further ones wait in the kernel.
const CONNECTIONS_MAX: usize = 64;
/// Connections to each VM's own control socket at a time.
const VM_CONNECTIONS_MAX: usize = 8;
/// Connections to the metrics listener at a time.
const METRICS_CONNECTIONS_MAX: usize = 16;
/// How long a client may take to send the head of a request, and how long a connection may idle.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a client may take to send the body of a request, all of it.
const BODY_TIMEOUT: Duration = Duration::from_secs(BODY_SECONDS);
/// How long a connection may take for everything together.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(600);
/// Bytes of a connection's read buffer at most; the head of a request must fit.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// How long answers under way may take once the server stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause after a failed accept (out of descriptors, mostly).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why control cannot listen: names the thing and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The control socket. (No source: whoever prints the sources of an error would say it twice.)
    #[error("control: {0}")]
    Socket(SocketError),
    /// The runtime directory.
    #[error("the runtime directory {dir} cannot be used: {reason}; set daemon.runtime_dir, or give --control PATH")]
    RuntimeDir {
        /// Which.
        dir: String,
        /// Why.
        reason: String,
    },
    /// The metrics listener.
    #[error("metrics cannot be served on {addr}: {source}; choose another address for daemon.metrics")]
    Metrics {
        /// Where.
        addr: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The thread.
    #[error("the control thread cannot start: {0}")]
    Thread(io::Error),
}

impl From<SocketError> for ListenError {
    fn from(e: SocketError) -> Self {
        Self::Socket(e)
    }
}

/// Sockets that control listens on; bound before anything is opened, so that a second daemon fails early.
#[derive(Debug)]
pub struct ControlListeners {
    control: BoundSocket,
    /// Of single VMs, with their names.
    vms: Vec<(String, BoundSocket)>,
    metrics: Option<TcpListener>,
}

impl ControlListeners {
    /// Binds what the plan names. Makes the runtime directory if a socket goes there.
    ///
    /// # Errors
    /// See [`ListenError`]; nothing is left behind but the directory.
    pub fn bind(plan: &DaemonPlan) -> Result<Self, ListenError> {
        let mut sockets = plan.vm_controls.iter().map(|c| &c.socket).chain([&plan.control_socket]);
        if sockets.any(|s| s.starts_with(&plan.runtime_dir)) {
            prepare_runtime_dir(&plan.runtime_dir)?;
        }
        let access = SocketPermissions { mode: plan.control_access.mode(), gid: plan.control_access.gid };
        let control = bind_unix(&plan.control_socket, access)?;
        let mut vms = Vec::with_capacity(plan.vm_controls.len());
        for c in &plan.vm_controls {
            let access = SocketPermissions { mode: c.access.mode(), gid: c.access.gid };
            vms.push((c.vm.clone(), bind_unix(&c.socket, access)?));
        }
        let metrics = plan.metrics.map(|addr| bind_tcp(addr).map_err(|source| ListenError::Metrics { addr, source }));
        Ok(ControlListeners { control, vms, metrics: metrics.transpose()? })
    }

    /// The listeners, for another process to go on with, and where they listen as `plan` says.
    ///
    /// # Errors
    /// What the kernel says: out of descriptors.
    pub fn passable(&self, plan: &DaemonPlan) -> io::Result<Vec<(String, OwnedFd)>> {
        let bound = std::iter::once(&self.control).chain(self.vms.iter().map(|(_, b)| b));
        let unix = bound.map(|b| Ok((b.guard.path().to_string_lossy().into_owned(), b.listener.as_fd())));
        let metrics = self.metrics.iter().zip(plan.metrics).map(|(l, at)| Ok((tcp_place(at), l.as_fd())));
        unix.chain(metrics).map(|l| l.and_then(|(at, fd)| Ok((at, fd.try_clone_to_owned()?)))).collect()
    }

    /// Where metrics are served over TCP: the real port, if 0 was asked for.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().and_then(|l| l.local_addr().ok())
    }
}

/// Makes the runtime directory if it is missing, and checks that nobody else could put sockets there.
///
/// # Errors
/// It cannot be made, is no directory, or belongs to another user.
pub fn prepare_runtime_dir(dir: &Path) -> Result<(), ListenError> {
    let fail = |reason: String| ListenError::RuntimeDir { dir: dir.display().to_string(), reason };
    // Sockets have modes of their own; others may search the directory so that a group can reach those it is given.
    match std::fs::DirBuilder::new().recursive(true).mode(0o755).create(dir) {
        Ok(()) => {}
        Err(e) => return Err(fail(e.to_string())),
    }
    let meta = std::fs::symlink_metadata(dir).map_err(|e| fail(e.to_string()))?;
    let me = rustix::process::geteuid().as_raw();
    if meta.file_type().is_symlink() && dir.starts_with("/tmp") {
        return Err(fail("it is a symbolic link that somebody else may have made".into()));
    }
    if dir.starts_with("/tmp") && meta.uid() != me {
        return Err(fail(format!("it belongs to user {}, not to user {me}", meta.uid())));
    }
    Ok(())
}

/// The running control thread.
#[derive(Debug)]
pub struct ControlServer {
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
    /// Dropped while the sockets still listen: see [`SocketGuard`].
    guards: Vec<SocketGuard>,
}

impl ControlServer {
    /// Serves the API on a thread of its own until stopped or dropped.
    ///
    /// # Errors
    /// The thread or its runtime cannot start.
    pub fn start(listeners: ControlListeners, daemon: Arc<dyn Daemon>) -> Result<Self, ListenError> {
        let ControlListeners { control: BoundSocket { listener, guard }, vms, metrics } = listeners;
        listener.set_nonblocking(true).map_err(ListenError::Thread)?;
        let (mut sockets, mut guards) = (vec![(listener, None)], vec![guard]);
        for (vm, BoundSocket { listener, guard }) in vms {
            listener.set_nonblocking(true).map_err(ListenError::Thread)?;
            sockets.push((listener, Some(vm)));
            guards.push(guard);
        }
        if let Some(metrics) = &metrics {
            metrics.set_nonblocking(true).map_err(ListenError::Thread)?;
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .thread_name("undercroft-call")
            .max_blocking_threads(CONNECTIONS_MAX + METRICS_CONNECTIONS_MAX + VM_CONNECTIONS_MAX * (sockets.len() - 1))
            .build()
            .map_err(ListenError::Thread)?;
        let (stop, stopped) = watch::channel(false);
        let thread = std::thread::Builder::new()
            .name("undercroft-ctl".to_string())
            .spawn(move || {
                runtime.block_on(serve(sockets, metrics, daemon, stopped));
                // Calls that hang on a stalled image must not hold up the end.
                runtime.shutdown_timeout(Duration::from_millis(100));
            })
            .map_err(ListenError::Thread)?;
        Ok(ControlServer { stop, thread: Some(thread), guards })
    }

    /// Removes the sockets, stops accepting, lets answers under way out and ends the thread.
    pub fn stop(mut self) {
        self.join();
    }

    fn join(&mut self) {
        self.guards.clear();
        let _ = self.stop.send(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        self.join();
    }
}

/// Serves the host's control socket, which comes first and is nobody's, those of VMs, and metrics.
async fn serve(
    sockets: Vec<(std::os::unix::net::UnixListener, Option<String>)>,
    metrics: Option<TcpListener>,
    daemon: Arc<dyn Daemon>,
    stopped: watch::Receiver<bool>,
) {
    let path = |l: &std::os::unix::net::UnixListener| {
        l.local_addr().ok().and_then(|a| a.as_pathname().map(Path::to_path_buf)).unwrap_or_default()
    };
    let host: PathBuf = sockets.first().map_or_else(PathBuf::new, |(l, _)| path(l));
    let mut accepting = tokio::task::JoinSet::new();
    for (listener, vm) in sockets {
        let listener = match tokio::net::UnixListener::from_std(listener) {
            Ok(listener) => Arc::new(listener),
            Err(e) => {
                tracing::error!("a control socket cannot be served: {e}");
                continue;
            }
        };
        let at = listener.local_addr().ok().and_then(|a| a.as_pathname().map(Path::to_path_buf)).unwrap_or_default();
        // Only whoever runs the host may have the daemon take a file of his. Where the kernel cannot refuse
        // descriptors, the streams take care.
        let takes = vm.is_none();
        if !takes {
            refuse_descriptors(&*listener);
        }
        let closing = Closing::default();
        let next = move || {
            let (listener, path, closing) = (listener.clone(), at.clone(), closing.clone());
            async move {
                while !closing.has_room() {
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
                let (io, _) = listener.accept().await?;
                let peer = io.peer_cred()?;
                let by = Caller::Socket { path, uid: peer.uid(), pid: peer.pid() };
                let (io, passed) = if takes {
                    ControlStream::taking(io, &closing)?
                } else {
                    (ControlStream::new(io, &closing)?, Passed::default())
                };
                Ok((io, by, passed))
            }
        };
        let (router, connections_max) = match &vm {
            None => (routes::router(daemon.clone()), CONNECTIONS_MAX),
            Some(vm) => (scope::router(daemon.clone(), vm, host.clone()), VM_CONNECTIONS_MAX),
        };
        accepting.spawn(accept(next, router, connections_max, stopped.clone()));
    }
    let metrics = metrics.and_then(|l| {
        tokio::net::TcpListener::from_std(l).inspect_err(|e| tracing::error!("metrics cannot be served: {e}")).ok()
    });
    if let Some(listener) = metrics {
        let listener = Arc::new(listener);
        let next = move || {
            let listener = listener.clone();
            async move { listener.accept().await.map(|(io, _)| (io, Caller::Metrics, Passed::default())) }
        };
        accepting.spawn(accept(next, routes::metrics_router(daemon), METRICS_CONNECTIONS_MAX, stopped));
    }
    while accepting.join_next().await.is_some() {}
}

/// Accepts until stopped, then waits for the answers under way, a little.
async fn accept<Io, F>(next: impl Fn() -> F, router: Router, connections_max: usize, mut stopped: watch::Receiver<bool>)
where
    Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = io::Result<(Io, Caller, Passed)>>,
{
    let router = router.layer(axum::middleware::from_fn(with_timed_body));
    let places = Arc::new(Semaphore::new(connections_max));
    loop {
        let accepted = async {
            let place = places.clone().acquire_owned().await.ok()?;
            Some((next().await, place))
        };
        let (io, by, passed, place) = tokio::select! {
            () = stop_of(&mut stopped) => break,
            accepted = accepted => match accepted {
                Some((Ok((io, by, passed)), place)) => (io, by, passed, place),
                Some((Err(e), _)) => {
                    tracing::warn!("control: a connection could not be accepted: {e}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
                None => break,
            },
        };
        let router = router.clone().layer(axum::Extension(by)).layer(axum::Extension(passed));
        let stopped = stopped.clone();
        tokio::spawn(async move {
            let _place = place;
            let _ = tokio::time::timeout(CONNECTION_TIMEOUT, connection(io, router, stopped)).await;
        });
    }
    let all = u32::try_from(connections_max).unwrap_or(u32::MAX);
    let _ = tokio::time::timeout(STOP_TIMEOUT, places.acquire_many(all)).await;
}

/// Gives the body of a request a bounded time.
async fn with_timed_body(request: Request, next: Next) -> Response {
    next.run(request.map(|body| Body::new(TimedBody { body, end: Box::pin(tokio::time::sleep(BODY_TIMEOUT)) }))).await
}

/// The body of a request that has to be there in time, all of it.
struct TimedBody {
    body: Body,
    end: Pin<Box<tokio::time::Sleep>>,
}

impl hyper::body::Body for TimedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Pending if self.end.as_mut().poll(cx).is_ready() => {
                Poll::Ready(Some(Err(axum::Error::new(io::Error::from(io::ErrorKind::TimedOut)))))
            }
            other => other,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Waits until the server stops.
async fn stop_of(stopped: &mut watch::Receiver<bool>) {
    let _ = stopped.wait_for(|s| *s).await;
}

/// Serves one connection to its end; once the server stops, to the end of the request under way.
async fn connection<Io>(io: Io, router: Router, mut stopped: watch::Receiver<bool>)
where
    Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = TowerToHyperService::new(router);
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(io), service);
    tokio::pin!(serving);
    tokio::select! {
        _ = serving.as_mut() => return,
        () = stop_of(&mut stopped) => serving.as_mut().graceful_shutdown(),
    }
    let _ = serving.await;
}
