//! A session leaves for another process, or comes from one, while its front end stays connected.
//!
//! Owns the order: described, at rest, told; and on the other side said, then started. Never waits longer than it is
//! told. Invariants: of a session that is lent no queue runs; one that is not taken elsewhere goes on where it was.

use super::VhostServer;
use super::established::{Established, QueueState, again, start};
use super::exchange::Exchange;
use super::port::RestNotice;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};
use undercroft_host::EventFd;
use vhost::vhost_user::Error;

/// Between two looks whether a message is through.
const PAUSE: Duration = Duration::from_millis(2);

/// A device that is lent: nobody is accepted, no queue runs.
pub struct LentDevice {
    listener: OwnedFd,
    front: Option<LentFront>,
}

struct LentFront {
    exchange: Exchange,
    /// To start again where they were.
    queues: Vec<QueueState>,
    told: Option<(OwnedFd, Established)>,
}

/// A session that was taken over, whose queues do not run yet.
pub struct Starter {
    exchange: Exchange,
    queues: Vec<QueueState>,
}

impl LentDevice {
    /// What the other process needs: the listener, and the connection of the front end with what establishes its
    /// session.
    ///
    /// # Errors
    /// What the kernel says: out of descriptors.
    pub fn tell(&mut self) -> io::Result<(OwnedFd, Option<(OwnedFd, Established)>)> {
        Ok((self.listener.try_clone()?, self.front.as_mut().and_then(|front| front.told.take())))
    }
}

impl VhostServer {
    /// Lends the device: its session comes to rest within the time, and nobody is accepted.
    ///
    /// # Errors
    /// Why it does not; then all goes on as before.
    pub fn lend(&self, give_up: Instant) -> io::Result<LentDevice> {
        let late = || io::Error::new(io::ErrorKind::TimedOut, "requests or a message of its front end are under way");
        let (event_loop, key) = self.place().ok_or_else(|| io::Error::other("it is being stopped"))?;
        let lent = loop {
            match event_loop.lend(key) {
                Some(lent) => break lent,
                None if Instant::now() >= give_up => return Err(late()),
                None => std::thread::sleep(PAUSE),
            }
        };
        let listener = OwnedFd::from(lent.listener);
        let Some((exchange, connection)) = lent.front else { return Ok(LentDevice { listener, front: None }) };
        let described = exchange.session().describe();
        let mut told = match described {
            Ok(told) => told,
            Err(e) => {
                event_loop.take_back(key, Some(exchange), None);
                return Err(e);
            }
        };
        let rested = rest(&exchange, &mut told.queues, give_up);
        let queues = again(&told.queues);
        match (rested, queues) {
            (true, Ok(queues)) => {
                let front = LentFront { exchange, queues, told: Some((connection.into(), told)) };
                Ok(LentDevice { listener, front: Some(front) })
            }
            (rested, _) => {
                // It may wait for an image that does not answer, and whoever asked does not.
                std::thread::spawn(move || {
                    let end = go_on(&exchange, told.queues, rested);
                    event_loop.take_back(key, Some(exchange), end);
                });
                Err(late())
            }
        }
    }

    /// Goes on with a device that was lent.
    pub fn take_back(&self, lent: LentDevice) {
        let Some((event_loop, key)) = self.place() else { return };
        match lent.front {
            None => event_loop.take_back(key, None, None),
            Some(LentFront { exchange, queues, .. }) => {
                let end = start(queues, &exchange).err();
                event_loop.take_back(key, Some(exchange), end);
            }
        }
    }

    /// Takes over a front end that is connected to another process, which serves it no more. Its queues run when it is
    /// told to start.
    ///
    /// # Errors
    /// Something is refused; the front end is disconnected then.
    pub fn adopt(&self, connection: OwnedFd, told: Established) -> io::Result<Starter> {
        let (event_loop, key) = self.place().ok_or_else(|| io::Error::other("it is being stopped"))?;
        let (mut exchange, connection) = event_loop.adopt(key, UnixStream::from(connection))?;
        let welcomed = exchange.session().welcome(connection);
        match welcomed.and_then(|()| told.say(&mut exchange)) {
            Ok(queues) => Ok(Starter { exchange, queues }),
            Err(e) => {
                let why = io::Error::other(e.to_string());
                event_loop.take_back(key, Some(exchange), Some(e));
                Err(why)
            }
        }
    }

    /// Starts the queues of a session that was taken over, and goes on with its front end.
    pub fn begin(&self, starter: Starter) {
        let Some((event_loop, key)) = self.place() else { return };
        let Starter { exchange, queues } = starter;
        let end = start(queues, &exchange).err();
        event_loop.take_back(key, Some(exchange), end);
    }
}

/// Has all queues come to rest, and notes where. Whether they did within the time.
fn rest(exchange: &Exchange, queues: &mut [QueueState], give_up: Instant) -> bool {
    let Ok(wake) = EventFd::new().map(Arc::new) else { return false };
    let mut waits = Vec::new();
    {
        let session = exchange.session();
        for q in queues.iter_mut().filter(|q| q.started) {
            let (to, from) = sync_channel(1);
            let notice = RestNotice::waking(to, Arc::clone(&wake));
            if session.begin_stop(u32::from(q.index), notice).is_err() {
                return false;
            }
            waits.push((q, from));
        }
    }
    for (q, from) in waits {
        match from.recv_timeout(give_up.saturating_duration_since(Instant::now())) {
            Ok(base) => q.base = base,
            Err(_) => return false,
        }
    }
    true
}

/// Starts queues again, some of which may not have come to rest: those are waited for as long as that takes, since
/// nothing can be said of where they stand before.
fn go_on(exchange: &Exchange, mut queues: Vec<QueueState>, rested: bool) -> Option<Error> {
    if !rested && !rest(exchange, &mut queues, Instant::now() + Duration::from_secs(3600)) {
        return Some(Error::BackendInternalError);
    }
    start(queues, exchange).err()
}
