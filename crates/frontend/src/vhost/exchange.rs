//! One message and its answer: whole messages through the handler of the `vhost` crate, which only knows how to wait
//! for them.
//!
//! Owns a pair of sockets between us and the handler. Never talks to the front end. The handler checks the message,
//! calls the session and answers; it reads a socket and writes to it, so it is given one that holds exactly one whole
//! message and has room for one reply. Invariant: handling a message never waits for a peer.

use super::connection::{Message, pass, take_all};
use super::session::Session;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use vhost::vhost_user::message::FrontendReq;
use vhost::vhost_user::{BackendReqHandler, Error};

/// The handler of one session.
pub struct Exchange {
    handler: BackendReqHandler<Mutex<Session>>,
    session: Arc<Mutex<Session>>,
    /// Our end of the pair.
    ours: UnixStream,
}

impl Exchange {
    /// For a front end that has just connected.
    ///
    /// # Errors
    /// What the kernel says: out of descriptors.
    pub fn new(session: Session) -> io::Result<Exchange> {
        let (ours, theirs) = UnixStream::pair()?;
        let session = Arc::new(Mutex::new(session));
        Ok(Exchange { handler: BackendReqHandler::from_stream(theirs, Arc::clone(&session)), session, ours })
    }

    /// The session.
    pub(super) fn session(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles a whole message. Returns the reply, which may be empty, and why the session ends, if it does.
    pub fn handle(&mut self, message: &Message) -> (Message, Option<Error>) {
        if let Some(answer) = message.is_log_call() {
            return match self.set_log_call(message) {
                Ok(()) if answer && self.session().acknowledges() => (Message::done(FrontendReq::SET_LOG_FD), None),
                result => (Message::default(), result.err()),
            };
        }
        let result = pass(&self.ours, message).map_err(Error::SocketError);
        let result = result.and_then(|()| self.handler.handle_request());
        (take_all(&self.ours), result.err())
    }

    /// Handles the one message of the protocol that the vhost crate does not know.
    fn set_log_call(&mut self, message: &Message) -> Result<(), Error> {
        let [call] = message.descriptors() else { return Err(Error::IncorrectFds) };
        let call = call.try_clone().map_err(Error::ReqHandlerError)?;
        self.session().set_log_fd(call.into())
    }
}
