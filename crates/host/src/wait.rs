//! What a thread sleeps on and is woken by: epoll, eventfd, the monotonic clock, its name.
//!
//! Owns the descriptors it makes. Never owns those it watches. Invariant: an `Epoll` reports tokens, never
//! descriptors, so a report that comes late, after the descriptor was closed and its number reused, cannot be
//! mistaken for another's.

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;
use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Reports that one call of [`Epoll::wait`] returns at most; the others follow at the next call.
const REPORTS_MAX: usize = 64;

/// Nanoseconds of the monotonic clock (`CLOCK_MONOTONIC`): never goes back, stands while the host is suspended.
#[inline]
pub fn now_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (t.tv_sec as u64) * 1_000_000_000 + t.tv_nsec as u64
}

/// Names the calling thread, for `top` and debuggers. The kernel keeps 15 bytes; the rest, and all from the first
/// zero byte on, is cut off.
pub fn set_thread_name(name: &str) {
    let bytes: Vec<u8> = name.bytes().take(15).take_while(|&b| b != 0).collect();
    if let Ok(name) = CString::new(bytes) {
        // A thread without a name works as well.
        let _ = rustix::thread::set_name(&name);
    }
}

/// A counter in the kernel that one thread signals and another sleeps on.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// Makes one: not signalled, non-blocking, closed on exec.
    ///
    /// # Errors
    /// What the kernel says: out of descriptors or memory.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Makes it readable; wakes whoever watches it, edge-triggered watchers at every signal.
    #[inline]
    pub fn signal(&self) {
        loop {
            match rustix::io::write(&self.0, &1u64.to_ne_bytes()) {
                Err(Errno::INTR) => {}
                // EAGAIN: the counter is full, so it is readable already. Nothing else can happen to an eventfd.
                _ => return,
            }
        }
    }

    /// Takes all signals given so far; true if there was one. It is not readable afterwards.
    #[inline]
    pub fn drain(&self) -> bool {
        let mut count = [0u8; 8];
        loop {
            match rustix::io::read(&self.0, &mut count) {
                Err(Errno::INTR) => {}
                Ok(n) => return n == count.len(),
                Err(_) => return false,
            }
        }
    }

    /// Another handle to the same counter.
    ///
    /// # Errors
    /// What the kernel says: out of descriptors.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self(self.0.try_clone()?))
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<EventFd> for OwnedFd {
    fn from(e: EventFd) -> OwnedFd {
        e.0
    }
}

/// What a descriptor is watched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Readable.
    Read,
    /// Writable.
    Write,
    /// Readable or writable.
    ReadWrite,
}

/// When a descriptor is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// As long as it is ready.
    Level,
    /// Once each time something new arrives: an eventfd need not be read.
    Edge,
}

/// One report of [`Epoll::wait`]. An error or a hang-up counts as readable and writable: the next read or write says
/// what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// As given to [`Epoll::add`].
    pub token: u64,
    /// It can be read from, was closed, or failed.
    pub readable: bool,
    /// It can be written to, was closed, or failed.
    pub writable: bool,
}

/// A set of watched descriptors, for one thread to sleep on.
pub struct Epoll {
    fd: OwnedFd,
    events: Box<[MaybeUninit<epoll::Event>]>,
}

// SAFETY: only the pointer variant of an event's data, which is never made here, keeps events from being `Send`.
unsafe impl Send for Epoll {}

impl Epoll {
    /// Makes an empty one.
    ///
    /// # Errors
    /// What the kernel says: out of descriptors or memory.
    pub fn new() -> io::Result<Self> {
        let fd = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { fd, events: vec![MaybeUninit::uninit(); REPORTS_MAX].into_boxed_slice() })
    }

    /// Watches `fd`; reports it as `token`.
    ///
    /// # Errors
    /// What the kernel says: watched already (`AlreadyExists`), a kind of descriptor that cannot be watched (a plain
    /// file), out of memory or over the user's limit of watches.
    pub fn add(&self, fd: BorrowedFd<'_>, token: u64, interest: Interest, trigger: Trigger) -> io::Result<()> {
        Ok(epoll::add(&self.fd, fd, epoll::EventData::new_u64(token), flags(interest, trigger))?)
    }

    /// Changes what a watched descriptor is watched for, and re-arms an edge.
    ///
    /// # Errors
    /// What the kernel says: not watched (`NotFound`).
    pub fn modify(&self, fd: BorrowedFd<'_>, token: u64, interest: Interest, trigger: Trigger) -> io::Result<()> {
        Ok(epoll::modify(&self.fd, fd, epoll::EventData::new_u64(token), flags(interest, trigger))?)
    }

    /// Watches `fd` no more. A descriptor of which no copy is left open leaves by itself when closed.
    ///
    /// # Errors
    /// What the kernel says: not watched (`NotFound`).
    pub fn remove(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::delete(&self.fd, fd)?)
    }

    /// Sleeps until something is ready, at most `timeout_ns` nanoseconds (`None`: as long as it takes; 0: only looks).
    /// The reports, none after the time or a signal; at most 64, fairly among the watched.
    ///
    /// # Errors
    /// None in a sane process: bad descriptors cannot get here.
    pub fn wait(&mut self, timeout_ns: Option<u64>) -> io::Result<impl Iterator<Item = Ready> + use<'_>> {
        let timeout = timeout_ns
            .map(|ns| Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 as _ });
        let ready: &[epoll::Event] = match epoll::wait(&self.fd, &mut self.events[..], timeout.as_ref()) {
            Ok((ready, _)) => ready,
            Err(Errno::INTR) => &[],
            Err(e) => return Err(e.into()),
        };
        Ok(ready.iter().map(|e| {
            let flags = e.flags; // the struct is packed: no reference into it
            let both = flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP);
            Ready {
                token: e.data.u64(),
                readable: both || flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::RDHUP),
                writable: both || flags.contains(epoll::EventFlags::OUT),
            }
        }))
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl std::fmt::Debug for Epoll {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Epoll").field(&self.fd).finish()
    }
}

fn flags(interest: Interest, trigger: Trigger) -> epoll::EventFlags {
    let mut f = match interest {
        Interest::Read => epoll::EventFlags::IN | epoll::EventFlags::RDHUP,
        Interest::Write => epoll::EventFlags::OUT,
        Interest::ReadWrite => epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::OUT,
    };
    if trigger == Trigger::Edge {
        f |= epoll::EventFlags::ET;
    }
    f
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    fn tokens(e: &mut Epoll, timeout_ns: Option<u64>) -> Vec<u64> {
        e.wait(timeout_ns).unwrap().map(|r| r.token).collect()
    }

    #[test]
    fn a_level_is_reported_until_drained() {
        let (mut ep, ev) = (Epoll::new().unwrap(), EventFd::new().unwrap());
        ep.add(ev.as_fd(), 7, Interest::Read, Trigger::Level).unwrap();
        assert_eq!(tokens(&mut ep, Some(0)), [0u64; 0]);
        ev.signal();
        assert_eq!(tokens(&mut ep, None), [7]);
        assert_eq!(tokens(&mut ep, None), [7]);
        assert!(ev.drain());
        assert!(!ev.drain());
        assert_eq!(tokens(&mut ep, Some(1)), [0u64; 0]);
    }

    #[test]
    fn an_edge_is_reported_once_per_signal_without_a_read() {
        let (mut ep, ev) = (Epoll::new().unwrap(), EventFd::new().unwrap());
        ep.add(ev.as_fd(), 9, Interest::Read, Trigger::Edge).unwrap();
        for _ in 0..3 {
            ev.signal();
            assert_eq!(tokens(&mut ep, None), [9]);
            assert_eq!(tokens(&mut ep, Some(0)), [0u64; 0]);
        }
        ep.remove(ev.as_fd()).unwrap();
        ev.signal();
        assert_eq!(tokens(&mut ep, Some(0)), [0u64; 0]);
    }

    #[test]
    fn a_signal_from_another_thread_ends_the_sleep() {
        let (mut ep, ev) = (Epoll::new().unwrap(), EventFd::new().unwrap());
        ep.add(ev.as_fd(), 1, Interest::Read, Trigger::Edge).unwrap();
        let other = ev.try_clone().unwrap();
        let t = std::thread::spawn(move || {
            set_thread_name("a name longer than the kernel keeps");
            other.signal();
        });
        assert_eq!(tokens(&mut ep, None), [1]);
        t.join().unwrap();
    }

    #[test]
    fn a_closed_peer_reads_as_readable() {
        let (mut ep, (a, b)) = (Epoll::new().unwrap(), std::os::unix::net::UnixStream::pair().unwrap());
        ep.add(a.as_fd(), 3, Interest::Read, Trigger::Level).unwrap();
        drop(b);
        let r: Vec<Ready> = ep.wait(None).unwrap().collect();
        assert_eq!(r.len(), 1);
        assert!(r[0].readable);
    }

    #[test]
    fn the_clock_does_not_go_back() {
        let mut last = now_ns();
        for _ in 0..1000 {
            let t = now_ns();
            assert!(t >= last);
            last = t;
        }
    }
}
