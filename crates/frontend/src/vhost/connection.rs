//! The control connection of a front end: whole messages in, replies out, without ever waiting for the peer.
//!
//! Owns the socket, what has come of a message, and what of a reply has not gone yet. Never knows what a message means,
//! but for its length. Invariant: holds at most one message and one reply, each of at most [`MESSAGE_BYTES_MAX`] bytes
//! and [`DESCRIPTORS_MAX`] descriptors, and takes nothing of a message before the reply to the last one is out.

use super::limits::{DESCRIPTORS_MAX, MESSAGE_BYTES_MAX};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use undercroft_host::client_socket;
use vhost::vhost_user::message::{FrontendReq, MAX_MSG_SIZE};

/// Bytes of a message's head: request, flags, and the length of what follows, each of 32 bits.
pub(super) const HEAD_BYTES: usize = 12;

/// Bytes that arrived or go out together, and the descriptors that travel with the first of them.
#[derive(Debug, Default)]
pub struct Message {
    bytes: Vec<u8>,
    descriptors: Vec<OwnedFd>,
    /// Descriptors that belong to nothing: more than a message may bring, or not with its first byte.
    others: Vec<OwnedFd>,
}

impl Message {
    fn word(&self, at: usize) -> Option<u32> {
        self.bytes.get(at..at + 4).and_then(|w| w.try_into().ok()).map(u32::from_ne_bytes)
    }

    /// Bytes still to come; 0 if the message is whole. One whose head says more than a message may have ends with its
    /// head: that is refused, and the rest of it never looked at.
    fn missing(&self) -> usize {
        match self.word(8) {
            None => HEAD_BYTES - self.bytes.len(),
            Some(len) if len as usize > MAX_MSG_SIZE => 0,
            Some(len) => (HEAD_BYTES + len as usize).saturating_sub(self.bytes.len()),
        }
    }

    /// What came with it.
    pub(super) fn descriptors(&self) -> &[OwnedFd] {
        &self.descriptors
    }

    /// All that is closed with it.
    pub(super) fn brought(&self) -> impl Iterator<Item = &OwnedFd> {
        self.descriptors.iter().chain(&self.others)
    }

    /// Whether it hands over where marks in the log of dirty memory are told of, which the vhost crate does not know;
    /// and whether it asks for an answer.
    pub(super) fn is_log_call(&self) -> Option<bool> {
        const NEED_REPLY: u32 = 8;
        let is = self.word(0) == Some(FrontendReq::SET_LOG_FD.into()) && self.missing() == 0;
        is.then(|| self.word(4).is_some_and(|flags| flags & NEED_REPLY != 0))
    }

    /// A message of this request, as a front end sends it that wants no answer, with a number or without.
    pub(super) fn of(request: FrontendReq, number: Option<u64>) -> Message {
        const VERSION: u32 = 1;
        let bytes = if number.is_some() { 8 } else { 0 };
        let head = [u32::from(request), VERSION, bytes].map(u32::to_ne_bytes).concat();
        let body = number.map(u64::to_ne_bytes);
        Message { bytes: head.into_iter().chain(body.into_iter().flatten()).collect(), ..Message::default() }
    }

    /// The answer to a message of this request that asked for one: all went well.
    pub(super) fn done(request: FrontendReq) -> Message {
        const REPLY: u32 = 1 | 4;
        let words = [u32::from(request), REPLY, 8, 0, 0];
        Message { bytes: words.map(u32::to_ne_bytes).concat(), ..Message::default() }
    }

    /// Whether it hands over how a queue is notified.
    pub(super) fn is_for_a_queue(&self) -> bool {
        let queue = [
            FrontendReq::SET_VRING_KICK,
            FrontendReq::SET_VRING_CALL,
            FrontendReq::SET_VRING_ERR,
            FrontendReq::SET_LOG_FD,
        ];
        queue.iter().any(|&request| self.word(0) == Some(request.into()))
    }

    /// Which of `queues` queues have to come to rest before the message can be answered.
    pub(super) fn stops(&self, queues: u16) -> Range<u32> {
        let is = |request: FrontendReq| self.word(0) == Some(request.into());
        if is(FrontendReq::GET_VRING_BASE) {
            let index = self.word(HEAD_BYTES).unwrap_or(u32::MAX);
            return index..index.saturating_add(1);
        }
        let all = is(FrontendReq::RESET_DEVICE) || is(FrontendReq::RESET_OWNER);
        0..if all { u32::from(queues) } else { 0 }
    }
}

/// What came of looking for a message.
#[derive(Debug)]
pub enum MessageArrival {
    /// A whole one.
    Message(Message),
    /// Nothing, or a part of one: more may come.
    Part,
    /// The peer has gone; whether in the middle of a message.
    End(Gone),
}

/// How a peer went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// Between two messages.
    Between,
    /// In the middle of one.
    Within,
}

/// A connected front end.
#[derive(Debug)]
pub struct ControlConnection {
    socket: UnixStream,
    message: Message,
    reply: Message,
    /// Bytes of the reply that are out.
    sent: usize,
}

impl ControlConnection {
    /// A connection that has just been accepted.
    pub fn new(socket: UnixStream) -> ControlConnection {
        ControlConnection { socket, message: Message::default(), reply: Message::default(), sent: 0 }
    }

    /// Gives up the socket: what is unread in it may keep whoever closes it.
    pub(super) fn into_socket(self) -> UnixStream {
        self.socket
    }

    /// Another handle to the socket.
    ///
    /// # Errors
    /// What the kernel says: out of descriptors.
    pub(super) fn try_clone(&self) -> io::Result<UnixStream> {
        self.socket.try_clone()
    }

    /// Takes what has come of the next message.
    pub fn receive(&mut self) -> MessageArrival {
        loop {
            let missing = self.message.missing();
            if missing == 0 {
                return MessageArrival::Message(std::mem::take(&mut self.message));
            }
            match receive_some(&self.socket, missing, &mut self.message) {
                Ok(0) if self.message.bytes.is_empty() => return MessageArrival::End(Gone::Between),
                Ok(0) => return MessageArrival::End(Gone::Within),
                // No front end sends these, and each byte could bring as many as the process can have.
                Ok(_) if self.message.others.len() > DESCRIPTORS_MAX => return MessageArrival::End(Gone::Within),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return MessageArrival::Part,
                Err(_) => return MessageArrival::End(Gone::Between),
            }
        }
    }

    /// Gives up what has come of the next message, if anything has: to be dropped where that may wait.
    pub(super) fn rest(&mut self) -> Option<Message> {
        Some(std::mem::take(&mut self.message)).filter(|m| !m.bytes.is_empty())
    }

    /// Has `reply` go out; the one before it must be out.
    pub fn reply(&mut self, reply: Message) {
        debug_assert!(self.sent == self.reply.bytes.len(), "a reply while another is on its way");
        (self.reply, self.sent) = (reply, 0);
    }

    /// Sends what there is room for. Whether all is out.
    ///
    /// # Errors
    /// The peer has gone.
    pub fn send(&mut self) -> io::Result<bool> {
        while self.sent < self.reply.bytes.len() {
            let descriptors = if self.sent == 0 { &self.reply.descriptors[..] } else { &[] };
            match send_some(&self.socket, &self.reply.bytes[self.sent..], descriptors) {
                Ok(n) => self.sent += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(e) => return Err(e.into()),
            }
        }
        (self.reply, self.sent) = (Message::default(), 0);
        Ok(true)
    }

    /// Whether nothing of a message has come, and nothing of a reply is left to go.
    pub(super) fn is_between(&self) -> bool {
        self.message.bytes.is_empty() && self.sent == self.reply.bytes.len()
    }

    /// Whether the peer has closed its end.
    pub(super) fn hung_up(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        poll(&mut fds, Some(&now)).is_ok_and(|n| n > 0)
    }
}

impl AsFd for ControlConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Appends at most `most` bytes that have come to `message`, and the descriptors that came with its first byte. Those
/// that come later belong to nothing, but are kept with it: where there is no room for them the kernel closes them,
/// here, which could wait for whoever serves them.
fn receive_some(socket: &UnixStream, most: usize, message: &mut Message) -> Result<usize, Errno> {
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let most = most.min(bytes.len());
    let first = message.bytes.is_empty();
    let mut came = Vec::new();
    let got = client_socket::receive(socket, &mut [IoSliceMut::new(&mut bytes[..most])], &mut came);
    if first && message.descriptors.is_empty() {
        message.descriptors.extend(came.drain(..came.len().min(DESCRIPTORS_MAX)));
    }
    message.others.append(&mut came);
    let got = got?;
    message.bytes.extend_from_slice(&bytes[..got]);
    Ok(got)
}

fn send_some(socket: &UnixStream, bytes: &[u8], descriptors: &[OwnedFd]) -> Result<usize, Errno> {
    let fds: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(Errno::INVAL);
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags)
}

/// Puts a whole message into a socket that nobody else writes to and whose reader has taken all that came before, so
/// that there is room for it.
pub(super) fn pass(to: &UnixStream, message: &Message) -> io::Result<()> {
    let sent = send_some(to, &message.bytes, &message.descriptors)?;
    if sent != message.bytes.len() {
        return Err(io::Error::other("a pair of sockets has no room for one message"));
    }
    Ok(())
}

/// Takes all that is in a socket.
pub(super) fn take_all(from: &UnixStream) -> Message {
    let mut all = Message::default();
    while receive_some(from, MESSAGE_BYTES_MAX, &mut all).is_ok_and(|n| n > 0) {}
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    fn pair() -> (ControlConnection, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (ControlConnection::new(ours), theirs)
    }

    fn message(request: FrontendReq, body: &[u8]) -> Vec<u8> {
        let head = [u32::from(request), 1, body.len() as u32];
        [head.map(u32::to_ne_bytes).concat(), body.to_vec()].concat()
    }

    #[test]
    fn a_message_in_pieces_is_whole_once_its_last_byte_is_there() {
        let (mut connection, mut peer) = pair();
        let bytes = message(FrontendReq::GET_VRING_BASE, &[3, 0, 0, 0, 0, 0, 0, 0]);
        for &b in &bytes[..bytes.len() - 1] {
            peer.write_all(&[b]).unwrap();
            assert!(matches!(connection.receive(), MessageArrival::Part));
        }
        // The rest comes together with the next message, of which nothing may be taken.
        let next = message(FrontendReq::GET_FEATURES, &[]);
        peer.write_all(&[&bytes[bytes.len() - 1..], &next].concat()).unwrap();
        let MessageArrival::Message(whole) = connection.receive() else { panic!("not whole") };
        assert_eq!((&whole.bytes, whole.stops(4)), (&bytes, 3..4));
        let MessageArrival::Message(second) = connection.receive() else { panic!("the second was lost") };
        assert_eq!((&second.bytes, second.stops(4)), (&next, 0..0));
        peer.write_all(&bytes[..5]).unwrap();
        drop(peer);
        assert!(matches!(connection.receive(), MessageArrival::End(Gone::Within)));
    }

    #[test]
    fn a_message_that_says_it_is_endless_ends_with_its_head() {
        let (mut connection, mut peer) = pair();
        let mut bytes = message(FrontendReq::GET_FEATURES, &[]);
        bytes[8..].copy_from_slice(&u32::MAX.to_ne_bytes());
        peer.write_all(&[&bytes[..], &[7; 100]].concat()).unwrap();
        let MessageArrival::Message(head) = connection.receive() else { panic!("it is waited for") };
        assert_eq!(head.bytes, bytes);
    }

    #[test]
    fn descriptors_belong_to_the_message_whose_first_byte_they_came_with() {
        let (mut connection, peer) = pair();
        let bytes = message(FrontendReq::SET_VRING_CALL, &[0; 8]);
        let fds = [OwnedFd::from(peer.try_clone().unwrap())];
        send_some(&peer, &bytes[..4], &fds).unwrap();
        send_some(&peer, &bytes[4..], &fds).unwrap();
        let MessageArrival::Message(whole) = connection.receive() else { panic!("not whole") };
        assert_eq!((whole.descriptors.len(), whole.others.len()), (1, 1), "all are closed with the message");
        assert_eq!(whole.brought().count(), 2);
    }

    /// Each byte of a message may bring 253 descriptors, and it may have 4096 bytes.
    #[test]
    fn a_front_end_that_sends_descriptors_which_belong_to_nothing_is_cut_off() {
        let (mut connection, peer) = pair();
        let bytes = message(FrontendReq::SET_VRING_CALL, &[0; 8]);
        let fds: Vec<_> = (0..DESCRIPTORS_MAX).map(|_| OwnedFd::from(peer.try_clone().unwrap())).collect();
        for &b in &bytes[..3] {
            send_some(&peer, &[b], &fds).unwrap();
        }
        assert!(matches!(connection.receive(), MessageArrival::End(Gone::Within)));
        let rest = connection.rest().unwrap();
        assert_eq!(rest.brought().count(), 3 * DESCRIPTORS_MAX, "closed where that may take a while");
    }

    #[test]
    fn a_reply_that_nobody_reads_is_kept_and_one_that_is_read_goes_out() {
        let (mut connection, mut peer) = pair();
        let size = 2000;
        let mut replies = 0;
        loop {
            connection.reply(Message { bytes: vec![replies as u8; size], descriptors: Vec::new(), others: Vec::new() });
            replies += 1;
            if !connection.send().unwrap() {
                break;
            }
        }
        assert!(!connection.send().unwrap(), "it does not wait");
        for n in 0..replies {
            let mut bytes = vec![0; size];
            peer.set_nonblocking(false).unwrap();
            let _ = connection.send().unwrap();
            peer.read_exact(&mut bytes).unwrap();
            assert_eq!(bytes, vec![n as u8; size]);
        }
        drop(peer);
        connection.reply(Message { bytes: vec![1], descriptors: Vec::new(), others: Vec::new() });
        assert!(connection.send().is_err());
    }
}
