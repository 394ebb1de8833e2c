//! The socket of a client that may be anybody: what it sends is taken without ever waiting for whoever stands behind
//! the descriptors that it passes along.
//!
//! Owns the socket, and those descriptors until they are closed or taken ([`Passed`]). Never blocks. Invariant: no
//! descriptor that nobody took is closed on the thread that reads, nor on the one that drops the socket: see
//! [`Closing`].
//!
//! A unix socket takes descriptors (`SCM_RIGHTS`) whether its reader wants them or not: those for which the reader has
//! no room are closed by the kernel in its name. Since Linux 6.16 a socket can refuse them (`SO_PASSRIGHTS`); before,
//! there has to be room for as many as one message can bring.

use crate::aside::Closing;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, sockopt,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::{MaybeUninit, take};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

/// Descriptors that one message can bring (the kernel's `SCM_MAX_FD`), and one that a read can bring.
const RIGHTS_MAX: usize = 253;
/// Descriptors that are kept of a client that may pass some: a file, and one that goes with it.
const PASSED_MAX: usize = 2;
/// The socket option, which `libc` does not have yet.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Has a unix socket refuse descriptors, and those that it accepts. False if the kernel cannot (before 6.16), or it is
/// no unix socket.
pub fn refuse_descriptors(socket: impl AsFd) -> bool {
    let (no, fd) = (0 as libc::c_int, socket.as_fd().as_raw_fd());
    let bytes = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the option's value is an integer that outlives the call.
    unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, SO_PASSRIGHTS, (&raw const no).cast(), bytes) == 0 }
}

/// Receives without blocking into `parts`, and what descriptors come along into `descriptors`; 0 bytes at the end of
/// the stream.
///
/// # Errors
/// What the kernel says.
pub fn receive(
    socket: impl AsFd,
    parts: &mut [IoSliceMut<'_>],
    descriptors: &mut Vec<OwnedFd>,
) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(RIGHTS_MAX))];
    let mut room = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let bytes = rustix::net::recvmsg(socket, parts, &mut room, flags)?.bytes;
    for came in room.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = came {
            descriptors.extend(passed);
        }
    }
    Ok(bytes)
}

/// Sends `bytes` without blocking, and `descriptors` along with the first of them; how many bytes went.
///
/// # Errors
/// `PERM` if the other side refuses descriptors; `TOOBIG` if there are more than a message can bring; else what the
/// kernel says.
pub fn send_with_descriptors(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(RIGHTS_MAX))];
    let mut along = SendAncillaryBuffer::new(&mut space);
    if !along.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::TOOBIG);
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut along, flags)
}

/// What a client has passed along: it is kept until somebody takes it, or nobody can any more.
#[derive(Clone, Debug, Default)]
pub struct Passed(Arc<Kept>);

#[derive(Debug, Default)]
struct Kept {
    descriptors: Mutex<Vec<OwnedFd>>,
    closing: Closing,
}

impl Passed {
    fn new(closing: &Closing) -> Passed {
        Passed(Arc::new(Kept { descriptors: Mutex::default(), closing: closing.clone() }))
    }

    /// Keeps what came, if there are not too many; else returns it.
    fn keep(&self, came: Vec<OwnedFd>) -> Vec<OwnedFd> {
        let mut kept = self.0.descriptors.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() + came.len() > PASSED_MAX {
            return came;
        }
        kept.extend(came);
        Vec::new()
    }

    /// All that came and was not taken, in order. Whoever takes a descriptor closes it, where that may take long.
    #[must_use]
    pub fn take(&self) -> Vec<OwnedFd> {
        take(&mut *self.0.descriptors.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let left = take(self.descriptors.get_mut().unwrap_or_else(PoisonError::into_inner));
        if !left.is_empty() {
            self.closing.close(left);
        }
    }
}

/// A client's connected socket, unix or TCP.
#[derive(Debug)]
pub struct ClientSocket {
    /// `None` only in `drop`.
    socket: Option<OwnedFd>,
    /// Where what it may pass along is kept; `None` if it may pass nothing.
    passed: Option<Passed>,
    /// It may bring descriptors.
    takes_descriptors: bool,
    /// It has closed its end, and all that it sent was read.
    ended: bool,
    descriptors: Vec<OwnedFd>,
    closing: Closing,
}

impl ClientSocket {
    /// Takes over a connected socket, which must be nonblocking. What has to be closed of it is counted in `closing`.
    pub fn new(socket: OwnedFd, closing: &Closing) -> ClientSocket {
        let is_unix = sockopt::socket_domain(&socket) != Ok(AddressFamily::INET)
            && sockopt::socket_domain(&socket) != Ok(AddressFamily::INET6);
        let takes_descriptors = is_unix && !refuse_descriptors(&socket);
        ClientSocket::with_care(socket, takes_descriptors, closing)
    }

    /// The same for a client that may pass a few descriptors, and what it passes. One that passes more is cut off.
    pub fn taking(socket: OwnedFd, closing: &Closing) -> (ClientSocket, Passed) {
        let (passed, mut client) = (Passed::new(closing), ClientSocket::with_care(socket, true, closing));
        client.passed = Some(passed.clone());
        (client, passed)
    }

    fn with_care(socket: OwnedFd, takes_descriptors: bool, closing: &Closing) -> ClientSocket {
        ClientSocket {
            socket: Some(socket),
            passed: None,
            takes_descriptors,
            ended: false,
            descriptors: Vec::new(),
            closing: closing.clone(),
        }
    }

    /// Receives into `first`, then `second` (which may be empty); 0 at the end of the stream.
    ///
    /// # Errors
    /// `AGAIN` if there is nothing now; `PROTO` if it passes descriptors that it may not pass: the connection is of no
    /// use any more; else what the kernel says.
    #[inline]
    pub fn receive(&mut self, first: &mut [u8], second: &mut [u8]) -> Result<usize, Errno> {
        if self.takes_descriptors {
            return self.receive_with_descriptors(first, second);
        }
        if second.is_empty() {
            rustix::net::recv(self.as_fd(), first, RecvFlags::DONTWAIT).map(|(n, _)| n)
        } else {
            rustix::io::readv(self.as_fd(), &mut [IoSliceMut::new(first), IoSliceMut::new(second)])
        }
    }

    fn receive_with_descriptors(&mut self, first: &mut [u8], second: &mut [u8]) -> Result<usize, Errno> {
        if !self.descriptors.is_empty() {
            return Err(Errno::PROTO);
        }
        let mut came = Vec::new();
        let got = receive(self.as_fd(), &mut [IoSliceMut::new(first), IoSliceMut::new(second)], &mut came);
        self.ended |= got == Ok(0) && came.is_empty() && !(first.is_empty() && second.is_empty());
        self.descriptors = match &self.passed {
            Some(passed) => passed.keep(came),
            None => came,
        };
        if self.descriptors.is_empty() { got } else { Err(Errno::PROTO) }
    }
}

impl AsFd for ClientSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_ref().map(AsFd::as_fd).expect("a socket is there until it is dropped")
    }
}

impl Drop for ClientSocket {
    fn drop(&mut self) {
        let things = (self.socket.take(), std::mem::take(&mut self.descriptors));
        if self.takes_descriptors && !(self.ended && things.1.is_empty()) {
            self.closing.close(things);
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    /// A TCP socket that keeps whoever closes its last handle for 100 s: its peer takes nothing, and lives.
    fn lingering() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        while stream.write(&[7; 65536]).is_ok() {}
        sockopt::set_socket_linger(&stream, Some(std::time::Duration::from_secs(100))).unwrap();
        (stream.into(), peer)
    }

    fn send_with(socket: &UnixStream, bytes: &[u8], fds: &[OwnedFd]) -> Result<usize, Errno> {
        send_with_descriptors(socket, bytes, &fds.iter().map(AsFd::as_fd).collect::<Vec<_>>())
    }

    /// Ends by itself within the test's time only if nobody waits for the lingering socket.
    #[test]
    fn descriptors_that_nobody_asked_for_keep_neither_the_reader_nor_who_closes() {
        let closing = Closing::default();
        for reads in [true, false] {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let mut client = ClientSocket::with_care(ours.into(), true, &closing);
            let (fd, peer) = lingering();
            let mut fds = vec![fd];
            fds.extend((1..RIGHTS_MAX).map(|_| OwnedFd::from(theirs.try_clone().unwrap())));
            assert_eq!(send_with(&theirs, b"x", &fds), Ok(1));
            drop(fds);
            if reads {
                let mut byte = [0; 8];
                for _ in 0..2 {
                    assert_eq!(client.receive(&mut byte, &mut []), Err(Errno::PROTO));
                }
                assert_eq!(client.descriptors.len(), RIGHTS_MAX, "room for all");
            }
            drop(client);
            assert_eq!(closing.count(), 1, "it is being closed elsewhere");
            // Its data has nowhere to go any more: the one who waits is let go.
            drop(peer);
            while closing.count() > 0 {
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn a_client_that_may_pass_a_few_is_cut_off_when_it_passes_more() {
        let closing = Closing::default();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (mut client, passed) = ClientSocket::taking(ours.into(), &closing);
        let file = |text: &str| {
            let file = rustix::fs::memfd_create(text, rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            rustix::io::write(&file, text.as_bytes()).unwrap();
            file
        };
        let text = |fd: &OwnedFd| {
            let mut text = [0; 8];
            let n = rustix::io::pread(fd, &mut text, 0).unwrap();
            String::from_utf8(text[..n].to_vec()).unwrap()
        };
        let mut bytes = [0; 8];
        for _ in 0..2 {
            assert_eq!(send_with(&theirs, b"go", &[file("one"), file("two")]), Ok(2));
            assert_eq!(client.receive(&mut bytes, &mut []), Ok(2));
            assert_eq!(passed.take().iter().map(text).collect::<Vec<_>>(), ["one", "two"]);
        }
        assert!(passed.take().is_empty());
        assert_eq!(send_with(&theirs, b"go", &[file("three")]), Ok(2));
        assert_eq!(client.receive(&mut bytes, &mut []), Ok(2));
        assert_eq!(send_with(&theirs, b"go", &[file("four"), file("five")]), Ok(2));
        assert_eq!(client.receive(&mut bytes, &mut []), Err(Errno::PROTO));
        assert_eq!(passed.take().iter().map(text).collect::<Vec<_>>(), ["three"]);
    }

    /// Ends by itself within the test's time only if nobody waits for the lingering socket.
    #[test]
    fn what_was_passed_and_not_taken_keeps_nobody() {
        let closing = Closing::default();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (mut client, passed) = ClientSocket::taking(ours.into(), &closing);
        let (fd, peer) = lingering();
        assert_eq!(send_with(&theirs, b"x", &[fd]), Ok(1));
        assert_eq!(client.receive(&mut [0; 8], &mut []), Ok(1));
        drop(theirs);
        assert_eq!(client.receive(&mut [0; 8], &mut []), Ok(0));
        drop(client);
        assert_eq!(closing.count(), 0, "whoever has what was passed may still take it");
        drop(passed);
        assert_eq!(closing.count(), 1);
        drop(peer);
        while closing.count() > 0 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn who_goes_in_good_order_needs_no_thread() {
        let closing = Closing::default();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut client = ClientSocket::with_care(ours.into(), true, &closing);
        theirs.write_all(b"hello").unwrap();
        drop(theirs);
        let (mut a, mut b) = ([0; 2], [0; 8]);
        assert_eq!(client.receive(&mut a, &mut b), Ok(5));
        assert_eq!((&a, &b[..3]), (b"he", &b"llo"[..]));
        assert_eq!(client.receive(&mut a, &mut b), Ok(0));
        assert!(client.ended);
    }

    #[test]
    fn a_kernel_that_can_refuses_them_at_the_sender() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let can = refuse_descriptors(&ours);
        let mut client = ClientSocket::new(ours.into(), &Closing::default());
        assert_ne!(client.takes_descriptors, can);
        let fd = OwnedFd::from(theirs.try_clone().unwrap());
        let (sent, received) = (send_with(&theirs, b"x", &[fd]), client.receive(&mut [0; 8], &mut []));
        // Before Linux 6.16 they are received, and closed with the connection.
        let expected = if can { (Err(Errno::PERM), Err(Errno::AGAIN)) } else { (Ok(1), Err(Errno::PROTO)) };
        assert_eq!((sent, received), expected);
    }
}
