//! A pair of sockets between two daemons: whole letters, with descriptors.
//!
//! Owns our end. Never waits longer than it is told. Invariant: a letter that is received is as it was sent, and has no
//! more than so many bytes and descriptors.

use std::io::{self, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use undercroft_host::client_socket::receive;
use undercroft_host::send_with_descriptors;

/// Bytes of a text at most: some kilobytes for each of the most disks.
const TEXT_BYTES_MAX: u64 = 256 << 20;
/// Bytes of a list of blocks at most: that of a store of more than a terabyte.
const LIST_BYTES_MAX: u64 = 16 << 30;
/// Descriptors at most.
const DESCRIPTORS_MAX: u64 = 1 << 20;
/// Descriptors that go with one byte.
const RIGHTS_MAX: usize = 200;
/// Between two looks for room or for news.
const PAUSE: Duration = Duration::from_micros(200);

/// One letter.
#[derive(Debug, Default)]
pub(crate) struct Letter {
    pub(crate) text: Vec<u8>,
    pub(crate) list: Vec<u8>,
    pub(crate) descriptors: Vec<OwnedFd>,
}

/// Our end.
#[derive(Debug)]
pub(crate) struct Channel(UnixStream);

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the other process does not answer")
}

impl Channel {
    /// A channel over a connected socket.
    pub(crate) fn new(socket: UnixStream) -> io::Result<Self> {
        socket.set_nonblocking(false)?;
        Ok(Self(socket))
    }

    fn limit(&self, give_up: Instant) -> io::Result<()> {
        let left = give_up.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        self.0.set_read_timeout(Some(left))?;
        self.0.set_write_timeout(Some(left))
    }

    /// Sends a letter.
    pub(crate) fn send(&self, letter: &Letter, give_up: Instant) -> io::Result<()> {
        self.limit(give_up)?;
        let lens = [letter.text.len(), letter.list.len(), letter.descriptors.len()];
        let mut socket = &self.0;
        socket.write_all(&lens.map(|n| (n as u64).to_le_bytes()).concat())?;
        socket.write_all(&letter.text)?;
        socket.write_all(&letter.list)?;
        for some in letter.descriptors.chunks(RIGHTS_MAX) {
            let fds: Vec<BorrowedFd<'_>> = some.iter().map(AsFd::as_fd).collect();
            loop {
                match send_with_descriptors(socket, &[0], &fds) {
                    Ok(_) => break,
                    Err(rustix::io::Errno::AGAIN) if Instant::now() < give_up => std::thread::sleep(PAUSE),
                    Err(rustix::io::Errno::AGAIN) => return Err(late()),
                    Err(e) => return Err(e.into()),
                }
            }
        }
        Ok(())
    }

    /// The next letter.
    ///
    /// # Errors
    /// The other process has ended, does not answer, or sends what is no letter.
    pub(crate) fn receive(&self, give_up: Instant) -> io::Result<Letter> {
        self.limit(give_up)?;
        let mut head = [0; 24];
        let mut socket = &self.0;
        socket.read_exact(&mut head).map_err(|e| if e.kind() == io::ErrorKind::WouldBlock { late() } else { e })?;
        let mut lens = head.chunks_exact(8).filter_map(|n| n.try_into().ok().map(u64::from_le_bytes));
        let mut len = |most| lens.next().filter(|&n| n <= most).ok_or_else(|| io::Error::other("this is no letter"));
        let (text, list, mut count) = (len(TEXT_BYTES_MAX)?, len(LIST_BYTES_MAX)?, len(DESCRIPTORS_MAX)? as usize);
        let text = read(socket, text)?;
        let list = read(socket, list)?;
        let mut descriptors = Vec::new();
        while count > 0 {
            let mut came = Vec::new();
            match receive(socket, &mut [IoSliceMut::new(&mut [0])], &mut came) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) if came.is_empty() || came.len() > count => {
                    return Err(io::Error::other("descriptors are missing"));
                }
                Ok(_) => {
                    count -= came.len();
                    descriptors.append(&mut came);
                }
                Err(rustix::io::Errno::AGAIN) if Instant::now() < give_up => std::thread::sleep(PAUSE),
                Err(rustix::io::Errno::AGAIN) => return Err(late()),
                Err(e) => return Err(e.into()),
            }
        }
        Ok(Letter { text, list, descriptors })
    }
}

/// Reads so many bytes; takes no memory for those that do not come.
fn read(from: impl Read, len: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let got = from.take(len).read_to_end(&mut bytes)? as u64;
    if got == len { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    #[test]
    fn letters_arrive_with_all_their_descriptors() {
        let (a, b) = UnixStream::pair().unwrap();
        let (a, b) = (Channel::new(a).unwrap(), Channel::new(b).unwrap());
        let files: Vec<OwnedFd> = (0..450).map(|_| File::open("/dev/null").unwrap().into()).collect();
        let sent = std::thread::spawn(move || {
            let first = Letter { text: b"one".into(), list: vec![7; 1 << 20], descriptors: files };
            a.send(&first, soon()).unwrap();
            a.send(&Letter { text: b"two".into(), ..Letter::default() }, soon()).unwrap();
        });
        let first = b.receive(soon()).unwrap();
        assert_eq!((&first.text[..], first.list.len(), first.descriptors.len()), (&b"one"[..], 1 << 20, 450));
        assert_eq!(b.receive(soon()).unwrap().text, b"two");
        sent.join().unwrap();
        assert!(b.receive(soon()).is_err(), "the other one has gone");
    }

    #[test]
    fn who_says_nothing_or_nonsense_is_not_waited_for() {
        let (mut a, b) = UnixStream::pair().unwrap();
        let b = Channel::new(b).unwrap();
        let e = b.receive(Instant::now() + Duration::from_millis(20)).unwrap_err();
        assert!(e.to_string().contains("does not answer"), "{e}");
        a.write_all(&[255; 24]).unwrap();
        assert!(b.receive(soon()).unwrap_err().to_string().contains("no letter"));
    }
}
