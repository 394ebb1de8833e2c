//! How a server reaches the port that it gave to a worker.
//!
//! Owns what tells a port from another one that has its number by now. Never owns a port. Invariant: what is meant for
//! a port is done to that port or to none.

use crate::{Port, PortHost};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;

/// Whether a port is closed, known to whoever has a copy of this. Another port may have its number then.
#[derive(Clone, Debug, Default)]
pub(crate) struct Closed(Arc<AtomicBool>);

impl Closed {
    /// Whether it is.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// It is.
    pub(crate) fn close(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn is(&self, other: &Closed) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// A port that tells when it is closed.
pub(crate) trait TellsClosed: Port {
    /// What tells it.
    fn closed(&mut self) -> &Closed;
}

/// Runs `f` on the worker with the port of that number of which `closed` tells; `None` if it is gone.
pub(crate) fn with_port<P: TellsClosed + 'static, R: Send + 'static>(
    host: &dyn PortHost,
    port: u32,
    closed: &Closed,
    f: impl FnOnce(&mut P) -> R + Send + 'static,
) -> Option<R> {
    let ((tx, rx), closed) = (channel(), closed.clone());
    let on_port = Box::new(move |port: &mut dyn Port| {
        if let Some(port) = port.as_any().downcast_mut::<P>()
            && port.closed().is(&closed)
        {
            let _ = tx.send(f(port));
        }
    });
    host.with(port, on_port);
    rx.try_recv().ok()
}

/// Takes the port away, and returns when its requests under way are finished; nothing is done if it has closed by
/// itself.
pub(crate) fn detach_port(host: &dyn PortHost, port: u32, closed: &Closed) {
    if !closed.is_closed() {
        host.detach(port);
    }
}
