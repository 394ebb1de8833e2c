//! Drives a back end as a worker does, and compares it with a byte array.
//!
//! Owns the frames and the bookkeeping of operations under way. Never guesses: each completion is checked against the
//! operation it names. Invariant: operations that may overlap are never under way together, so the model is exact.

use crate::planted::Planted;
use std::collections::HashMap;
use std::path::Path;
use std::process::{Command, Output};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use undercroft_backend::{Backend, OpenError, OpenOptions};
use undercroft_cache::{DiskId, Extent, Io, IoDone, IoError, IoKind, IoTarget, OpId};
use undercroft_config::{ImageFormat, ImageSpec};
use undercroft_host::{Arena, Epoll, FRAME_BYTES, Interest, IoBuf, Trigger, now_ns};

/// How long any single operation may take before a test gives up; far beyond what a working one needs.
const PATIENCE_NS: u64 = 60_000_000_000;

/// Small, seeded random numbers (xorshift64*).
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n
    }
}

/// Bytes that differ from place to place and from seed to seed.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut r = Rng::new(seed);
    let mut v = Vec::with_capacity(len + 8);
    while v.len() < len {
        v.extend_from_slice(&r.next().to_le_bytes());
    }
    v.truncate(len);
    v
}

/// What an operation that is done brought.
pub struct Outcome {
    pub result: Result<(), IoError>,
    pub data: Vec<u8>,
    pub extents: Vec<Extent>,
}

/// A back end under test.
pub struct Harness {
    pub backend: Box<dyn Backend>,
    arena: Arena,
    epoll: Epoll,
    next: u64,
    /// Operations under way: their length.
    under_way: HashMap<u64, u64>,
    finished: HashMap<u64, Outcome>,
    done: Vec<IoDone>,
}

impl Harness {
    pub fn new(backend: Box<dyn Backend>) -> Self {
        // Warnings of the back ends belong to a failed test's output.
        let log = tracing_subscriber::fmt().with_test_writer().with_ansi(false).finish();
        let _ = log.with(Planted).try_init();
        let epoll = Epoll::new().unwrap();
        epoll.add(backend.wake_fd(), 0, Interest::Read, Trigger::Level).unwrap();
        Self {
            backend,
            arena: Arena::new(16384).unwrap(),
            epoll,
            next: 0,
            under_way: HashMap::new(),
            finished: HashMap::new(),
            done: Vec::new(),
        }
    }

    pub fn size(&self) -> u64 {
        self.backend.geometry().size_bytes
    }

    /// Submits an operation with the buffer at `head` of its first frame. Returns its number.
    pub fn start(&mut self, kind: IoKind, offset: u64, len: u64, data: Option<&[u8]>, head: u32) -> u64 {
        let mut buf = IoBuf::default();
        if matches!(kind, IoKind::Read | IoKind::Write { .. }) {
            let frames = (head as usize + len as usize).div_ceil(FRAME_BYTES);
            buf = IoBuf { frames: (0..frames).map(|_| self.arena.take().unwrap()).collect(), head, len: len as u32 };
            match data {
                Some(d) => buf.copy_from(d),
                None => buf.copy_from(&vec![0xa5; len as usize]),
            }
        }
        self.next += 1;
        self.under_way.insert(self.next, len);
        self.backend.submit(Io {
            op: OpId(self.next),
            disk: DiskId(3),
            target: IoTarget::Image,
            kind,
            offset,
            len,
            buf,
        });
        self.next
    }

    /// Takes what is finished; sleeps for it if `wait`.
    pub fn turn(&mut self, wait: bool) {
        self.backend.kick();
        let start = now_ns();
        loop {
            let more = self.backend.poll(&mut self.done);
            let got = !self.done.is_empty();
            for d in self.done.drain(..) {
                assert_eq!(d.disk, DiskId(3));
                let len = self.under_way.remove(&d.op.0).expect("an operation came back that is not under way");
                let mut data = Vec::new();
                if d.buf.len > 0 {
                    assert_eq!(u64::from(d.buf.len), len);
                    data = vec![0; len as usize];
                    d.buf.copy_to(&mut data);
                }
                d.buf.frames.into_iter().for_each(|f| self.arena.put(f));
                let twice = self.finished.insert(d.op.0, Outcome { result: d.result, data, extents: d.extents });
                assert!(twice.is_none(), "an operation came back twice");
            }
            assert_eq!(self.backend.inflight(), self.under_way.len());
            if more {
                continue;
            }
            if got || !wait || self.under_way.is_empty() {
                return;
            }
            assert!(now_ns() - start < PATIENCE_NS, "operations {:?} never came back", self.under_way);
            let _ = self.epoll.wait(Some(1_000_000_000)).unwrap().count();
        }
    }

    /// Waits for one operation.
    pub fn wait(&mut self, op: u64) -> Outcome {
        loop {
            if let Some(o) = self.finished.remove(&op) {
                return o;
            }
            self.turn(true);
        }
    }

    /// Takes one that is finished already, if it is.
    pub fn take(&mut self, op: u64) -> Option<Outcome> {
        self.finished.remove(&op)
    }

    pub fn run(&mut self, kind: IoKind, offset: u64, len: u64) -> Outcome {
        let op = self.start(kind, offset, len, None, 0);
        self.wait(op)
    }

    pub fn read(&mut self, offset: u64, len: u64) -> Vec<u8> {
        let o = self.run(IoKind::Read, offset, len);
        assert_eq!(o.result, Ok(()), "read of {len} at {offset}");
        o.data
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) {
        assert_eq!(self.try_write(offset, data), Ok(()));
    }

    pub fn try_write(&mut self, offset: u64, data: &[u8]) -> Result<(), IoError> {
        let op = self.start(IoKind::Write { fua: false }, offset, data.len() as u64, Some(data), 0);
        self.wait(op).result
    }

    pub fn flush(&mut self) {
        assert_eq!(self.run(IoKind::Flush, 0, 0).result, Ok(()));
    }

    /// The whole disk.
    pub fn read_all(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        while (all.len() as u64) < self.size() {
            let n = (self.size() - all.len() as u64).min(1 << 20);
            let part = self.read(all.len() as u64, n);
            all.extend_from_slice(&part);
        }
        all
    }
}

/// `steps` random operations, up to 16 under way, each on a range that no other one under way touches; every read is
/// compared with `model`, which is kept up to date.
pub fn storm(h: &mut Harness, model: &mut [u8], seed: u64, steps: usize) {
    storm_apart(h, model, seed, steps, 1);
}

/// A storm in which operations under way do not even share an aligned range of `apart` bytes.
pub fn storm_apart(h: &mut Harness, model: &mut [u8], seed: u64, steps: usize, apart: u64) {
    let g = h.backend.geometry().clone();
    assert_eq!(model.len() as u64, g.size_bytes);
    let align = u64::from(g.align.max(1));
    let mut rng = Rng::new(seed);
    let mut under_way: Vec<(u64, IoKind, u64, u64)> = Vec::new();
    for step in 0..steps {
        while under_way.len() >= 16 || (!under_way.is_empty() && rng.below(4) == 0) {
            settle(h, model, &mut under_way, seed, step);
        }
        let len_max = [1, 8, 64, 300][rng.below(4) as usize] * 4096 / align;
        let units = g.size_bytes / align;
        let len = (1 + rng.below(len_max)).min(units) * align;
        let offset = rng.below(units - len / align + 1) * align;
        let mut kind = match rng.below(20) {
            0..8 => IoKind::Read,
            8..15 => IoKind::Write { fua: rng.below(8) == 0 },
            15 => IoKind::Flush,
            16 => IoKind::Discard,
            17 => IoKind::WriteZeroes { unmap: rng.below(2) == 0, fua: rng.below(4) == 0 },
            _ => IoKind::Status,
        };
        if (kind == IoKind::Discard && !g.can_discard)
            || (matches!(kind, IoKind::WriteZeroes { .. }) && !g.can_write_zeroes)
        {
            kind = IoKind::Read;
        }
        let (offset, len) = if kind == IoKind::Flush { (0, 0) } else { (offset, len) };
        let end = (offset + len).next_multiple_of(apart);
        if under_way.iter().any(|&(_, _, o, l)| offset / apart * apart < o + l && o < end) {
            continue;
        }
        let head = (rng.below(4096 / align) * align) as u32;
        let data = matches!(kind, IoKind::Write { .. }).then(|| pattern(rng.next(), len as usize));
        if let Some(d) = &data {
            model[offset as usize..][..len as usize].copy_from_slice(d);
        }
        if matches!(kind, IoKind::WriteZeroes { .. }) {
            model[offset as usize..][..len as usize].fill(0);
        }
        let op = h.start(kind, offset, len, data.as_deref(), head);
        under_way.push((op, kind, offset, len));
        if rng.below(3) == 0 {
            h.turn(false);
        }
    }
    while !under_way.is_empty() {
        settle(h, model, &mut under_way, seed, steps);
    }
}

/// Waits until at least one operation under way is finished, and checks all that are.
fn settle(h: &mut Harness, model: &mut [u8], under_way: &mut Vec<(u64, IoKind, u64, u64)>, seed: u64, step: usize) {
    h.turn(true);
    let mut left = Vec::new();
    let mut discarded = Vec::new();
    for (op, kind, offset, len) in under_way.drain(..) {
        let Some(o) = h.take(op) else {
            left.push((op, kind, offset, len));
            continue;
        };
        assert_eq!(o.result, Ok(()), "seed {seed} step {step}: {kind:?} of {len} at {offset}");
        let expected = &model[offset as usize..][..len as usize];
        match kind {
            IoKind::Read if o.data != expected => {
                let at = o.data.iter().zip(expected).position(|(a, b)| a != b).unwrap();
                let (got, expected) = (&o.data[at..], &expected[at..]);
                let differing = got.iter().zip(expected).filter(|(a, b)| a != b).count();
                let all_zero = |b: &[u8]| b.iter().take(64).all(|&b| b == 0);
                panic!(
                    "seed {seed} step {step}: read of {len} at {offset} differs at byte {at} and {differing} in all; \
                     zeroes read: {}, expected: {}",
                    all_zero(got),
                    all_zero(expected)
                );
            }
            IoKind::Status => {
                let sum: u64 = o.extents.iter().map(|e| e.len).sum();
                assert!(!o.extents.is_empty() && sum <= len && o.extents.iter().all(|e| e.len > 0));
                let mut at = 0;
                for e in &o.extents {
                    let part = &expected[at as usize..][..e.len as usize];
                    assert!(!e.zero || part.iter().all(|&b| b == 0), "seed {seed} step {step}: data called zeroes");
                    at += e.len;
                }
            }
            IoKind::Discard => discarded.push((offset, len)),
            _ => {}
        }
    }
    *under_way = left;
    for (offset, len) in discarded {
        // Whatever it reads now, it has to go on reading.
        let now = h.read(offset, len);
        model[offset as usize..][..len as usize].copy_from_slice(&now);
    }
}

pub fn spec(path: &Path, format: ImageFormat, read_only: bool) -> ImageSpec {
    ImageSpec { location: path.to_str().unwrap().to_owned(), format: Some(format), read_only }
}

pub fn open(path: &Path, format: ImageFormat) -> Harness {
    Harness::new(undercroft_backend::open(&spec(path, format, false), &OpenOptions::default()).unwrap())
}

pub fn open_error(spec: &ImageSpec) -> OpenError {
    match undercroft_backend::open(spec, &OpenOptions::default()) {
        Ok(b) => panic!("{spec:?} was opened as {}", b.describe()),
        Err(e) => e,
    }
}

/// Runs a program to its end; panics with its output if it fails.
pub fn run(program: &str, args: &[&str]) -> String {
    let out = try_run(program, args);
    assert!(
        out.status.success(),
        "{program} {args:?}: {}{}",
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8_lossy(&out.stdout).into_owned()
}

pub fn try_run(program: &str, args: &[&str]) -> Output {
    Command::new(program)
        .args(args)
        .output()
        .unwrap_or_else(|e| panic!("{program} does not run ({e}): apt-get install qemu-utils nbdkit libnbd-bin"))
}

/// Panics with the first place where two disks differ.
pub fn assert_same(got: &[u8], expected: &[u8], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    if let Some(at) = got.iter().zip(expected).position(|(a, b)| a != b) {
        let differing = got.iter().zip(expected).filter(|(a, b)| a != b).count();
        let zeroes = got[at..].iter().take_while(|&&b| b == 0).count();
        panic!("{what}: {differing} bytes differ, the first at {at:#x} (from there on, {zeroes} zeroes were read)");
    }
}
