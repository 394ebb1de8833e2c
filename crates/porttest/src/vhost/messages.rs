//! The vhost-user session under arbitrary messages, over a pair of sockets: what the fuzz target and a test run.
//!
//! Owns a port that serves nothing but what it is asked for at once. Never starts a thread. Messages are mostly of
//! the right form, with the descriptors that belong to them, in any order and with any numbers, and come in pieces;
//! they go through the connection and the handler that the event loop uses. Invariants checked here: no panic, no hang,
//! no request outside the disk; and after the session the port is at rest.

use super::rig::{eventfd, geometry, info};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::fs::File;
use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use undercroft_cache::{Op, Request};
use undercroft_frontend::turns::SEND_BYTES;
use undercroft_frontend::vhost::VhostOptions;
use undercroft_frontend::vhost::parts::{
    ControlConnection, Exchange, Mappings, MessageArrival, Profile, Session, VhostPort,
};
use undercroft_frontend::{MakePort, OnPort, Port, PortHost};

const DISK_BYTES: u64 = 64 * 1024;
const QUEUES: u16 = 2;
/// Messages of one run at most: their replies have to fit the socket.
const MESSAGES_MAX: usize = 64;
/// Bytes of guest memory behind each region.
const MEMORY_BYTES: u64 = 64 * 1024;

/// A port on no worker.
struct Here(Mutex<VhostPort>);

impl PortHost for Here {
    fn attach(&self, _: MakePort) -> u32 {
        0
    }

    fn with(&self, _: u32, f: OnPort) -> bool {
        let mut port = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        f(&mut *port);
        // As the worker does after every message: it looks at the port, which may have requests now.
        serve(&mut port);
        port.arm();
        true
    }

    fn detach(&self, _: u32) {}
}

/// A few turns: rings that lie in the record of requests under way may never be empty.
fn serve(port: &mut VhostPort) {
    let mut requests = Vec::new();
    for _ in 0..8 {
        port.take(64, &mut requests);
        for r in requests.drain(..) {
            let inside = r.offset.checked_add(r.len).is_some_and(|end| end <= DISK_BYTES);
            assert!(inside, "request past the end of the disk: {r:?}");
            execute(&r, port);
        }
        port.flush(SEND_BYTES);
    }
}

/// Serves one request from a disk of zeroes.
fn execute(r: &Request, port: &mut VhostPort) {
    let mut block = [0; 4096];
    let (mut at, end) = (r.offset, r.offset + r.len);
    while at < end && matches!(r.op, Op::Read | Op::Write { .. }) {
        let next = (at / 4096 * 4096 + 4096).min(end);
        let (from, piece) = ((at - r.offset) as usize, &mut block[..(next - at) as usize]);
        match r.op {
            Op::Read => port.copy_out(r.id.tag, from, piece),
            _ => port.copy_in(r.id.tag, from, piece),
        }
        at = next;
    }
    port.reply(r.id.tag, Ok(()));
}

/// Feeds the messages that `data` describes to a session. Returns how many of them it took.
///
/// # Panics
/// If the session or the port does anything that it must not.
pub fn fuzz_messages(data: &[u8]) -> usize {
    let profile = Profile::new(&info(geometry(DISK_BYTES)));
    let host = Arc::new(Here(Mutex::new(VhostPort::new(0, profile.clone(), QUEUES, eventfd()))));
    let Ok((ours, theirs)) = UnixStream::pair() else { return 0 };
    let options = VhostOptions { queues: QUEUES, queue_size: 64, ..VhostOptions::default() };
    let session = Session::new(host.clone(), 0, profile, &options, &Mappings::default());
    let Ok(mut exchange) = Exchange::new(session) else { return 0 };
    let mut connection = ControlConnection::new(theirs);
    let (mut left, mut rest) = (MESSAGES_MAX, data);
    let memory = memory();
    let mut taken = 0;
    let mut goes = true;
    while let Some((message, after)) = next(rest)
        && left > 0
        && goes
    {
        (left, rest) = (left - 1, after);
        // In two pieces, of which the first may be empty or all of it: half a message must do nothing.
        let cut = after.len() % (message.bytes.len() + 1);
        for (piece, first) in [(&message.bytes[..cut], true), (&message.bytes[cut..], cut == 0)] {
            goes = goes && send(&ours, piece, if first { message.descriptor } else { Descriptor::None }, &memory);
            goes = goes && take(&mut connection, &mut exchange, &mut taken);
        }
    }
    let _ = ours.shutdown(Shutdown::Write);
    if goes {
        take(&mut connection, &mut exchange, &mut taken);
    }
    let mut port = host.0.lock().unwrap_or_else(PoisonError::into_inner);
    port.sever();
    // What a request of several ranges had still to do.
    serve(&mut port);
    assert!(port.is_at_rest(), "a request was lost");
    drop((exchange, connection));
    let mut replies = Vec::new();
    let mut ours = ours;
    // A session that was ended with messages unread resets the connection; what it said before may be lost.
    let _ = ours.read_to_end(&mut replies);
    taken
}

/// Handles what has come. Whether the session goes on.
fn take(connection: &mut ControlConnection, exchange: &mut Exchange, taken: &mut usize) -> bool {
    loop {
        match connection.receive() {
            MessageArrival::Message(message) => {
                let (reply, end) = exchange.handle(&message);
                connection.reply(reply);
                // The replies of one run fit the socket.
                if end.is_some() || !connection.send().unwrap_or(false) {
                    return false;
                }
                *taken += 1;
            }
            MessageArrival::Part => return true,
            MessageArrival::End(_) => return false,
        }
    }
}

fn memory() -> File {
    let fd = rustix::fs::memfd_create("fuzz", rustix::fs::MemfdFlags::CLOEXEC).expect("memory");
    rustix::fs::ftruncate(&fd, MEMORY_BYTES).expect("memory");
    File::from(fd)
}

/// What travels with a message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Descriptor {
    None,
    Eventfd,
    Memory,
}

struct Message {
    bytes: Vec<u8>,
    descriptor: Descriptor,
}

/// Takes the next message out of the input: a byte for the request, one for what is odd about it, then the numbers of
/// its body, of which most are small.
fn next(data: &[u8]) -> Option<(Message, &[u8])> {
    let (&[request, odd], rest) = data.split_first_chunk()?;
    let request = request % 46;
    // Numbers of 32 and 64 bits in the body, and what comes along.
    let (words, longs, descriptor) = match request {
        2 | 16 => (0, 1, Descriptor::None),
        5 => (2, 4, Descriptor::Memory),
        6 => (0, 2, Descriptor::Memory),
        7 => (0, 1, Descriptor::Eventfd),
        8 | 10 | 18 => (2, 0, Descriptor::None),
        9 => (2, 4, Descriptor::None),
        11 => (2, 0, Descriptor::None),
        12..=14 => (0, 1, Descriptor::Eventfd),
        24 => (3, 0, Descriptor::None),
        31 | 32 => (1, 2, if request == 32 { Descriptor::Memory } else { Descriptor::None }),
        37 | 38 => (0, 5, if request == 37 { Descriptor::Memory } else { Descriptor::None }),
        _ => (0, 0, Descriptor::None),
    };
    let mut rest = rest;
    let mut number = || {
        let (&first, after) = rest.split_first().unwrap_or((&0, rest));
        rest = after;
        match first >> 5 {
            0..=3 => u64::from(first & 31),
            4 => u64::from(first & 31) << 12,
            5 => 0x7f00_0000_0000 + (u64::from(first & 31) << 11),
            6 => MEMORY_BYTES,
            _ => u64::MAX - u64::from(first & 31),
        }
    };
    let mut body = Vec::new();
    let offered = match request {
        2 => Profile::new(&info(geometry(DISK_BYTES))).features(),
        16 => Profile::protocol_features().bits(),
        _ => 0,
    };
    (0..words).for_each(|_| body.extend((number() as u32).to_le_bytes()));
    (0..longs).for_each(|_| body.extend((offered ^ number()).to_le_bytes()));
    if request == 31 || request == 32 {
        // The record of requests under way: two sizes of 64 bits, two of 16.
        body.rotate_left(4);
    }
    let mut bytes = u32::from(request).to_le_bytes().to_vec();
    bytes.extend((1u32 | if odd & 1 != 0 { 8 } else { 0 }).to_le_bytes());
    let said = if odd & 0xf0 == 0xf0 { u32::from(odd & 15) * 40 } else { body.len() as u32 };
    bytes.extend(said.to_le_bytes());
    bytes.extend(body);
    let descriptor = if odd & 6 == 6 { Descriptor::None } else { descriptor };
    Some((Message { bytes, descriptor }, rest))
}

fn send(to: &UnixStream, bytes: &[u8], descriptor: Descriptor, memory: &File) -> bool {
    if bytes.is_empty() {
        return true;
    }
    let event = eventfd();
    let fds: &[BorrowedFd<'_>] = match descriptor {
        Descriptor::None => &[],
        Descriptor::Eventfd => &[event.as_fd()],
        Descriptor::Memory => &[memory.as_fd()],
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return false;
    }
    let parts = [IoSlice::new(bytes)];
    rustix::net::sendmsg(to, &parts, &mut ancillary, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arbitrary_messages_do_no_harm() {
        let mut state = 0x2545_f491_4f6c_dd1du64;
        for run in undercroft_skips::inputs(0..400) {
            let bytes: Vec<u8> = (0..run % 300)
                .map(|_| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    (state >> 32) as u8
                })
                .collect();
            fuzz_messages(&bytes);
        }
    }

    /// The messages of a front end that starts a queue: what the others are variations of.
    #[test]
    fn a_queue_is_set_up_and_stopped() {
        let all = [
            [3, 0].as_slice(),
            &[2, 0, 0],
            &[16, 0, 0],
            // One region of memory of 64 KiB at guest address 0, at 0x7f0000000000 of the front end.
            &[5, 0, 1, 0, 0, 0xc0, 0xa0, 0],
            &[8, 0, 0, 16],
            &[10, 0, 0, 0],
            &[9, 0, 0, 0, 0xa0, 0xa2, 0xa1, 0],
            &[12, 0, 0],
            &[13, 0, 0],
            &[18, 0, 0, 1],
            &[11, 0, 0, 0],
        ];
        assert_eq!(fuzz_messages(&all.concat()), all.len(), "a message of a plain start was refused");
    }

    /// The same while its guest migrates: the log is 4 KiB of which 2 bytes are needed, and the used ring is logged.
    #[test]
    fn a_log_is_handed_over_and_used() {
        let all = [
            [3, 0].as_slice(),
            &[2, 0, 0],
            &[16, 0, 0],
            &[5, 0, 1, 0, 0, 0xc0, 0xa0, 0],
            &[6, 0, 0x81, 0x81],
            &[7, 0, 0],
            &[8, 0, 0, 16],
            &[10, 0, 0, 0],
            &[9, 0, 0, 1, 0xa0, 0xa2, 0xa1, 0x82],
            &[12, 0, 0],
            &[18, 0, 0, 1],
            &[11, 0, 0, 0],
        ];
        assert_eq!(fuzz_messages(&all.concat()), all.len(), "a message of a migration was refused");
        // A log of 1 byte is too small; one that ends past its file, or whose end wraps.
        for log in [[6, 0, 0x01, 0x00], [6, 0, 0x92, 0x00], [6, 0, 0x82, 0xe5]] {
            let all = [all[..4].concat(), log.to_vec()].concat();
            assert_eq!(fuzz_messages(&all), 4, "{log:?}");
        }
    }
}
