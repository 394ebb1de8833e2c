//! `undercroft serve`: from a plan to a process that serves, and to its end.
//!
//! Owns signals, readiness and the order of start and stop. Never serves itself. Invariants: nobody is told that we are
//! ready before every socket listens; the first SIGTERM or SIGINT drains and stops, the second ends at once.

use crate::service::{Service, ServiceError};
use crate::systemd;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;
use undercroft_config::ServePlan;
use undercroft_http::{Caller, ControlListeners, ControlServer, Daemon, ListenError, server::prepare_runtime_dir};

/// How long an orderly stop may take. The unit's `TimeoutStopSec` is longer.
const STOP_WAIT: Duration = Duration::from_secs(60);

/// Why serving ended with a failure.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Something cannot be served; one error for each.
    #[error("{}", lines(.0))]
    Start(Vec<ServiceError>),
    /// The control socket, the metrics listener or the directory for sockets cannot be had.
    #[error(transparent)]
    Control(#[from] ListenError),
    /// Nothing can be taken over.
    #[error("cannot take over from the process that serves: {0}")]
    TakeOver(std::io::Error),
    /// Signals cannot be caught.
    #[error("cannot catch signals: {0}")]
    Signals(std::io::Error),
}

fn lines(errors: &[ServiceError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// Ends a process that does not take over: whoever it is that serves goes on as soon as this one is gone.
fn leave(why: &dyn std::fmt::Display) -> ! {
    tracing::error!("this process does not take over: {why}");
    crate::logging::flush();
    std::process::exit(1);
}

/// Serves `plan` until a signal or the API stops it. `ready` is called once, when everything listens.
///
/// # Errors
/// Everything that keeps it from starting; nothing is left behind then.
pub fn run(plan: ServePlan, ready: &mut dyn FnMut()) -> Result<(), ServeError> {
    // Before any thread starts, so that each inherits the handlers' flags and none dies of a signal.
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(ServeError::Signals)?;
    // A file that may not grow (RLIMIT_FSIZE) is an error of that write, not the end of the process.
    let full = Arc::new(std::sync::atomic::AtomicBool::new(false));
    signal_hook::flag::register(SIGXFSZ, full).map_err(ServeError::Signals)?;
    let (service, control, metrics) =
        if plan.overrides.take_over { take_over(plan).unwrap_or_else(|e| leave(&e)) } else { start(plan)? };
    let handle = signals.handle();
    let on_signal = reloader(service.clone()).and_then(|reload| {
        let service = service.clone();
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            let mut stopping = false;
            for signal in signals.forever() {
                match signal {
                    // One that waits its turn reads the file as it is then.
                    SIGHUP => _ = reload.try_send(()),
                    _ if stopping => {
                        tracing::warn!("second signal: ending at once");
                        crate::logging::flush();
                        std::process::exit(128 + signal);
                    }
                    _ => {
                        stopping = true;
                        tracing::info!("stopping: finishing what is under way");
                        systemd::stopping();
                        service.request_stop();
                    }
                }
            }
        })
    });
    let on_signal = match on_signal {
        Ok(t) => t,
        Err(e) => {
            service.shut_down();
            return Err(ServeError::Signals(e));
        }
    };
    service.say_ready(metrics);
    ready();
    systemd::ready(&service.summary());
    while !service.wait(Duration::from_secs(3600)) {}
    end_within(STOP_WAIT);
    control.stop();
    service.shut_down();
    handle.close();
    let _ = on_signal.join();
    tracing::info!("stopped");
    Ok(())
}

/// What serves, what answers, and where metrics are.
type Running = (Arc<Service>, ControlServer, Option<SocketAddr>);

/// Serves a plan.
fn start(plan: ServePlan) -> Result<Running, ServeError> {
    // The control socket first: it keeps a second daemon of the same configuration away.
    let listeners = ControlListeners::bind(&plan.daemon)?;
    let passable = listeners.passable(&plan.daemon).map_err(ServeError::TakeOver)?;
    let mut places = plan.disks.iter().flat_map(|d| d.socket.iter().chain(&d.file).chain(&d.device));
    if places.any(|place| place.starts_with(&plan.daemon.runtime_dir)) {
        prepare_runtime_dir(&plan.daemon.runtime_dir)?;
    }
    let service = Service::start(plan).map_err(ServeError::Start)?;
    control(service, listeners, passable)
}

/// Serves a plan in place of the process that is at the other end of the standard input.
fn take_over(plan: ServePlan) -> Result<Running, ServeError> {
    let daemon = plan.daemon.clone();
    let (service, mut arrival) = Service::arrive(plan).map_err(ServeError::TakeOver)?;
    let listeners = ControlListeners::bind(&daemon)?;
    let passable = listeners.passable(&daemon).map_err(ServeError::TakeOver)?;
    arrival.serve(&service).map_err(ServeError::Start)?;
    let running = control(service, listeners, passable)?;
    arrival.begin(&running.0).map_err(ServeError::TakeOver)?;
    Ok(running)
}

fn control(
    service: Arc<Service>,
    listeners: ControlListeners,
    passable: Vec<(String, OwnedFd)>,
) -> Result<Running, ServeError> {
    service.may_be_followed(passable);
    let metrics = listeners.metrics_addr();
    let daemon: Arc<dyn Daemon> = service.clone();
    match ControlServer::start(listeners, daemon) {
        Ok(control) => Ok((service, control, metrics)),
        Err(e) => {
            service.shut_down();
            Err(e.into())
        }
    }
}

/// Ends the process after `limit` whatever still runs then: a worker or an image that does not answer must not keep the
/// supervisor waiting until it kills.
fn end_within(limit: Duration) {
    let end = move || {
        std::thread::sleep(limit);
        tracing::error!(
            "not stopped after {limit:?}: something still does not answer; ending without it. Writes that were \
             acknowledged are on their images"
        );
        std::process::exit(1);
    };
    if let Err(e) = std::thread::Builder::new().name("deadline".into()).spawn(end) {
        tracing::warn!("the stop has no deadline: there can be no thread for it: {e}");
    }
}

/// Reads the configuration again whenever told to, on a thread of its own: that may take as long as an image needs to
/// open, and a signal to stop is heard meanwhile.
fn reloader(service: Arc<Service>) -> std::io::Result<SyncSender<()>> {
    let (told, tell) = sync_channel(1);
    let run = move || {
        while tell.recv().is_ok() && !service.is_stopping() {
            systemd::reloading();
            if let Err(e) = service.reload(false, &Caller::Signal) {
                tracing::error!("the configuration was not reloaded: {e}");
            }
            // A daemon that stops is not ready again.
            if !service.is_stopping() {
                systemd::ready(&service.summary());
            }
        }
    };
    std::thread::Builder::new().name("reload".into()).spawn(run).map(|_| told)
}
