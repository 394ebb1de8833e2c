//! The one interface to what carries file operations out: io_uring, or threads where it is missing.
//!
//! Owns the choice between the two. Never knows what the bytes mean.
//! Invariant: an operation submitted comes back from `poll` exactly once, with its buffer.

use crate::file::OpenFile;
use crate::operation::{Action, FileDone, FileOp};
use crate::pool::Pool;
use crate::ring::Ring;
use crate::wait::{Epoll, Interest, Trigger};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// How the engine for a file is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineChoice {
    /// io_uring; threads where the kernel has none or forbids it.
    #[default]
    Auto,
    /// io_uring or an error.
    IoUring,
    /// Threads with blocking calls.
    Threads,
}

/// Serves operations on one file, asynchronously.
pub struct Engine<T: Send + 'static>(Kind<T>);

#[expect(clippy::large_enum_variant, reason = "one per disk, moved once")]
enum Kind<T: Send + 'static> {
    Ring {
        ring: Ring<T>,
        /// For what this kernel's io_uring cannot do; its thread starts with the first such operation.
        lane: Pool<T>,
        /// Readable when the ring or the lane has something.
        either: Epoll,
    },
    Pool(Pool<T>),
}

/// Threads of an engine without io_uring: enough to keep a disk busy, few enough for a daemon with many disks.
const POOL_THREADS: usize = 8;

impl<T: Send + 'static> Engine<T> {
    /// An engine for `file`. The second value says why it is not io_uring, if `Auto` chose so.
    ///
    /// # Errors
    /// What the kernel says: out of descriptors or memory, or no io_uring where it was demanded.
    pub fn new(file: Arc<OpenFile>, choice: EngineChoice) -> io::Result<(Self, Option<String>)> {
        if choice != EngineChoice::Threads {
            match Self::with_ring(&file) {
                Ok(engine) => return Ok((engine, None)),
                Err(e) if choice == EngineChoice::IoUring => return Err(e),
                Err(e) => return Ok((Self(Kind::Pool(Pool::new(file, POOL_THREADS)?)), Some(e.to_string()))),
            }
        }
        Ok((Self(Kind::Pool(Pool::new(file, POOL_THREADS)?)), None))
    }

    fn with_ring(file: &Arc<OpenFile>) -> io::Result<Self> {
        let ring = Ring::new(Arc::clone(file))?;
        let lane = Pool::new(Arc::clone(file), 1)?;
        let either = Epoll::new()?;
        either.add(ring.as_fd(), 0, Interest::Read, Trigger::Level)?;
        either.add(lane.as_fd(), 1, Interest::Read, Trigger::Level)?;
        Ok(Self(Kind::Ring { ring, lane, either }))
    }

    /// Takes an operation over; it starts at the next `kick`.
    #[inline]
    pub fn submit(&mut self, op: FileOp<T>) {
        match &mut self.0 {
            Kind::Ring { lane, .. } if matches!(op.action, Action::Map | Action::DeviceDiscard) => lane.submit(op),
            Kind::Ring { ring, .. } => ring.submit(op),
            Kind::Pool(pool) => pool.submit(op),
        }
    }

    /// Whether others wait for the thread that starts operations; see [`Ring::set_shared`]. A pool of threads starts
    /// everything by itself.
    #[inline]
    pub fn set_shared(&mut self, shared: bool) {
        if let Kind::Ring { ring, .. } = &mut self.0 {
            ring.set_shared(shared);
        }
    }

    /// Starts what was submitted: one system call at most where nothing overflows.
    #[inline]
    pub fn kick(&mut self) {
        if let Kind::Ring { ring, .. } = &mut self.0 {
            ring.kick();
        }
    }

    /// Whether the last `kick` has left operations for the next one; see [`Ring::set_shared`].
    #[inline]
    pub fn holds_back(&self) -> bool {
        matches!(&self.0, Kind::Ring { ring, .. } if ring.holds_back())
    }

    /// Hands over at most `max` finished operations; true if there may be more. No system call if there are none.
    #[inline]
    pub fn poll(&mut self, max: usize, mut done: impl FnMut(FileDone<T>)) -> bool {
        match &mut self.0 {
            Kind::Ring { ring, lane, .. } => {
                // The lane first: it has something rarely, and must not wait behind a ring that always has.
                let mut room = max;
                let more = lane.poll(max, &mut |d| {
                    room -= 1;
                    done(d);
                });
                ring.poll(room, &mut done) || more
            }
            Kind::Pool(pool) => pool.poll(max, &mut done),
        }
    }

    /// Operations submitted and not yet handed over.
    pub fn inflight(&self) -> usize {
        match &self.0 {
            Kind::Ring { ring, lane, .. } => ring.inflight() + lane.inflight(),
            Kind::Pool(pool) => pool.inflight(),
        }
    }

    /// `io_uring` or `threads`.
    pub fn name(&self) -> &'static str {
        match self.0 {
            Kind::Ring { .. } => "io_uring",
            Kind::Pool(_) => "threads",
        }
    }
}

/// Readable (level-triggered) when `poll` has something.
impl<T: Send + 'static> AsFd for Engine<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Kind::Ring { either, .. } => either.as_fd(),
            Kind::Pool(pool) => pool.as_fd(),
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::frame::{Arena, FRAME_BYTES};
    use crate::io_buf::IoBuf;
    use crate::operation::Region;
    use rustix::io::Errno;
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    fn scratch(bytes: u64) -> Arc<OpenFile> {
        let dir = std::env::temp_dir();
        let path = dir.join(format!("undercroft-engine-{}-{:?}", std::process::id(), std::thread::current().id()));
        let f = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        f.set_len(bytes).unwrap();
        Arc::new(f.into())
    }

    /// Each kind of engine, and the ring once more with threads of the kernel for long operations.
    fn engines(file: &Arc<OpenFile>) -> Vec<Engine<u32>> {
        [(EngineChoice::Auto, false), (EngineChoice::Auto, true), (EngineChoice::Threads, false)]
            .into_iter()
            .map(|(choice, shared)| {
                let (mut engine, _) = Engine::new(Arc::clone(file), choice).unwrap();
                engine.set_shared(shared);
                engine
            })
            .collect()
    }

    fn buf(a: &mut Arena, head: u32, len: u32) -> IoBuf {
        let frames = (head as usize + len as usize).div_ceil(FRAME_BYTES);
        IoBuf { frames: (0..frames).map(|_| a.take().unwrap()).collect(), head, len }
    }

    fn give_back(a: &mut Arena, b: IoBuf) {
        b.frames.into_iter().for_each(|f| a.put(f));
    }

    /// Sleeps on the engine's descriptor until everything is back.
    fn drain(e: &mut Engine<u32>) -> Vec<FileDone<u32>> {
        let mut ep = Epoll::new().unwrap();
        ep.add(e.as_fd(), 0, Interest::Read, Trigger::Level).unwrap();
        let mut all = Vec::new();
        e.kick();
        while e.inflight() > 0 {
            if !e.poll(64, |d| all.push(d)) && e.inflight() > 0 {
                let _ = ep.wait(Some(10_000_000_000)).unwrap().count();
            }
        }
        all
    }

    fn pattern(seed: u32, len: usize) -> Vec<u8> {
        (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8).collect()
    }

    #[test]
    fn written_bytes_are_where_they_belong_and_read_back() {
        let file = scratch(4 << 20);
        for mut e in engines(&file) {
            let mut a = Arena::new(3000).unwrap();
            // One frame whole and in part, several with a head, and more than one call of the kernel takes.
            let shapes = [(0u32, 4096u32), (512, 1024), (1536, 9000), (100, 1 << 20), (0, 3)];
            let mut at = 7u64;
            for (i, (head, len)) in shapes.into_iter().enumerate() {
                let mut b = buf(&mut a, head, len);
                b.copy_from(&pattern(i as u32, len as usize));
                e.submit(FileOp {
                    token: i as u32,
                    action: Action::Write { dsync: i % 2 == 0 },
                    offset: at,
                    len: len.into(),
                    buf: b,
                });
                at += u64::from(len) + 11;
            }
            for d in drain(&mut e) {
                assert_eq!(d.result, Ok(()), "write {}", d.token);
                give_back(&mut a, d.buf);
            }
            let mut at = 7u64;
            for (i, (head, len)) in shapes.into_iter().enumerate() {
                let mut there = vec![0; len as usize];
                file.read_exact_at(&mut there, at).unwrap();
                assert!(there == pattern(i as u32, len as usize), "write {i} is not in the file");
                let b = buf(&mut a, head, len);
                e.submit(FileOp { token: i as u32, action: Action::Read, offset: at, len: len.into(), buf: b });
                at += u64::from(len) + 11;
            }
            for d in drain(&mut e) {
                assert_eq!(d.result, Ok(()));
                let mut back = vec![0; d.buf.len as usize];
                d.buf.copy_to(&mut back);
                assert!(back == pattern(d.token, back.len()), "read {} differs", d.token);
                give_back(&mut a, d.buf);
            }
            assert_eq!(a.available(), 3000);
            file.set_len(0).unwrap();
            file.set_len(4 << 20).unwrap();
        }
    }

    #[test]
    fn more_than_the_queue_holds_comes_back_once_each() {
        let file = scratch(1 << 20);
        for mut e in engines(&file) {
            let mut a = Arena::new(2048).unwrap();
            for i in 0..2000u32 {
                let b = buf(&mut a, 0, 4096);
                e.submit(FileOp {
                    token: i,
                    action: Action::Read,
                    offset: u64::from(i % 256) << 12,
                    len: 4096,
                    buf: b,
                });
            }
            let mut seen: Vec<u32> = drain(&mut e)
                .into_iter()
                .map(|d| {
                    assert_eq!(d.result, Ok(()));
                    give_back(&mut a, d.buf);
                    d.token
                })
                .collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..2000).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_read_past_the_end_fails_and_gives_its_buffer_back() {
        let file = scratch(4096 + 512);
        for mut e in engines(&file) {
            let mut a = Arena::new(2).unwrap();
            let b = buf(&mut a, 0, 4096);
            e.submit(FileOp { token: 1, action: Action::Read, offset: 4096, len: 4096, buf: b });
            let mut d = drain(&mut e);
            assert_eq!(d[0].result, Err(Errno::IO));
            assert_eq!(d[0].buf.frames.len(), 1);
            give_back(&mut a, d.remove(0).buf);
        }
    }

    #[test]
    fn holes_are_punched_and_mapped() {
        let file = scratch(0);
        for mut e in engines(&file) {
            file.set_len(0).unwrap();
            file.write_all_at(&vec![7; 1 << 20], 0).unwrap();
            let op = |token, action, offset, len| FileOp { token, action, offset, len, buf: IoBuf::default() };
            e.submit(op(0, Action::PunchHole, 64 << 10, 128 << 10));
            e.submit(op(1, Action::Sync, 0, 0));
            for d in drain(&mut e) {
                assert_eq!(d.result, Ok(()));
            }
            e.submit(op(2, Action::Map, 0, 1 << 20));
            let d = drain(&mut e);
            assert_eq!(
                d[0].regions,
                [
                    Region { len: 64 << 10, hole: false },
                    Region { len: 128 << 10, hole: true },
                    Region { len: 832 << 10, hole: false }
                ]
            );
            e.submit(op(3, Action::Map, 70 << 10, 10 << 10));
            assert_eq!(drain(&mut e)[0].regions, [Region { len: 10 << 10, hole: true }]);
        }
    }

    #[test]
    fn dropping_an_engine_with_operations_under_way_is_harmless() {
        let file = scratch(1 << 20);
        for mut e in engines(&file) {
            let mut a = Arena::new(64).unwrap();
            for i in 0..64u32 {
                let b = buf(&mut a, 0, 4096);
                e.submit(FileOp { token: i, action: Action::Read, offset: 0, len: 4096, buf: b });
                if i == 40 {
                    e.kick();
                }
            }
            drop(e); // the frames are lost to the arena, not handed out again
            assert_eq!(a.available(), 0);
        }
    }
}
