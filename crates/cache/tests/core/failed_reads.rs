//! Reads that fail: only the requests fail that need what could not be read, and nobody is given a byte twice.

use undercroft_cache::{Core, CoreOptions, DiskId, DiskOptions, Geometry, Io, IoError, IoKind, Op, ReqId};
use undercroft_engine::PolicyKind;
use undercroft_testkit::front::{Client, Front, request};

const DISK: DiskId = DiskId(0);
const B: u64 = 4096;

/// Who was given what. Per request and byte: how often it was copied out.
struct Copied(Vec<Vec<u8>>);

impl Client for Copied {
    fn take(&mut self, req: ReqId, at: usize, bytes: &[u8]) {
        let copied = &mut self.0[req.tag as usize];
        copied.resize(copied.len().max(at + bytes.len()), 0);
        copied[at..at + bytes.len()].iter_mut().for_each(|n| *n += 1);
    }
    fn give(&mut self, _req: ReqId, _at: usize, bytes: &mut [u8]) {
        bytes.fill(1);
    }
}

/// A disk with bad sectors.
struct Rig {
    core: Core,
    front: Front<Copied>,
    bad: Vec<u64>,
    /// Reads as they came to the disk.
    reads: Vec<(u64, u64)>,
}

impl Rig {
    fn new(readahead_bytes: u32, bad: &[u64]) -> Self {
        let mut core = Core::new(CoreOptions::new(64 << 20)).unwrap();
        let options = DiskOptions::new(&Geometry::new(1 << 20), PolicyKind::Lru, 64);
        core.add_disk(DISK, DiskOptions { readahead_bytes, ..options }).unwrap();
        let front = Front::noting(Copied(vec![Vec::new(); 64]));
        Self { core, front, bad: bad.to_vec(), reads: Vec::new() }
    }

    fn begin(&mut self, tag: u32, op: Op, offset: u64, len: u64) {
        self.front.ask(&mut self.core, request(tag, DISK, op, offset, len));
    }

    fn read(&mut self, tag: u32, offset: u64, len: u64) {
        self.begin(tag, Op::Read, offset, len);
    }

    /// Completes the operation that was submitted first, or whichever touches `at`.
    fn complete(&mut self, at: Option<u64>) {
        let touches = |io: &Io| at.is_none_or(|at| (io.offset..io.offset + io.len).contains(&at));
        let i = self.front.ios.iter().position(touches).expect("an operation under way");
        self.front.end(&mut self.core, i, |io| {
            if io.kind != IoKind::Read {
                return Ok(());
            }
            self.reads.push((io.offset, io.len));
            let range = io.offset..io.offset + io.len;
            if self.bad.iter().any(|b| range.contains(&(b / 512 * 512))) { Err(IoError::Io) } else { Ok(()) }
        });
    }

    fn complete_all(&mut self) {
        while !self.front.ios.is_empty() {
            self.complete(None);
        }
        self.core.check();
        assert!(self.core.is_idle(DISK));
    }

    /// The answer to a request, and how often each of its bytes was copied out at least and at most.
    fn answer(&self, tag: u32, len: u64) -> (Result<(), IoError>, u8, u8) {
        let mut answers = self.front.answers.iter().filter(|r| r.0 == tag);
        let (answer, again) = (answers.next().expect("an answer"), answers.next());
        assert_eq!(again, None);
        let copied = &self.front.client.0[tag as usize];
        let least = if (copied.len() as u64) < len { 0 } else { copied.iter().copied().min().unwrap_or(0) };
        (answer.1, least, copied.iter().copied().max().unwrap_or(0))
    }
}

/// Who joined a read that fails has the bytes that he had, and is given the others once.
#[test]
fn a_reader_that_joined_a_failed_read_is_given_each_byte_once() {
    let mut rig = Rig::new(0, &[5 * B]);
    rig.read(1, 0, 8 * B);
    // Of blocks 7, which is joined, and 8 to 11, which come by themselves.
    rig.read(2, 7 * B, 5 * B);
    rig.complete(Some(9 * B));
    rig.complete_all();
    assert_eq!(rig.answer(1, 8 * B), (Err(IoError::Io), 0, 0), "it needs block 5");
    assert_eq!(rig.answer(2, 5 * B), (Ok(()), 1, 1));
    assert_eq!(rig.reads, [(8 * B, 4 * B), (0, 8 * B), (7 * B, B)]);
}

/// A bad sector fails the requests of this sector; those of others in its block are read sector by sector.
#[test]
fn a_bad_sector_fails_only_who_needs_this_sector() {
    let mut rig = Rig::new(0, &[3 * B + 1024]);
    let asked =
        [(1, 3 * B, 1024), (2, 3 * B + 1024, 512), (3, 3 * B + 1000, 100), (4, 3 * B + 1536, 2560), (5, 3 * B + 8, 4)];
    for (tag, offset, len) in asked {
        rig.read(tag, offset, len);
    }
    // Another request whose last part is in that block, and one that goes past it.
    rig.read(6, B, 2 * B + 512);
    rig.read(7, B, 4 * B);
    rig.complete_all();
    let answers: Vec<_> = asked.iter().map(|&(tag, _, len)| rig.answer(tag, len).0.is_ok()).collect();
    assert_eq!(answers, [true, false, false, true, true]);
    for (tag, _, len) in [asked[0], asked[3], asked[4], (6, 0, 2 * B + 512)] {
        assert_eq!(rig.answer(tag, len), (Ok(()), 1, 1), "request {tag}");
    }
    assert!(rig.answer(7, 4 * B).0.is_err());
    assert!(rig.front.client.0[7].iter().all(|&n| n <= 1));
}

/// What is read ahead fails nobody, though the bad sector is 20 blocks further on.
#[test]
fn read_ahead_that_fails_fails_no_reader() {
    let mut rig = Rig::new(256 << 10, &[30 * B]);
    for n in 0..3 {
        rig.read(n, u64::from(n) * B, B);
        if n < 2 {
            rig.complete_all();
        }
    }
    // The third proves a stream; its read-ahead is under way, and joined.
    assert!(rig.front.ios.iter().any(|io| io.offset == 3 * B && io.len > B), "something is read ahead");
    for n in 3..40 {
        rig.read(n, u64::from(n) * B, B);
    }
    rig.complete_all();
    for n in 0..40 {
        let right = if n == 30 { (Err(IoError::Io), 0, 0) } else { (Ok(()), 1, 1) };
        assert_eq!(rig.answer(n, B), right, "block {n}");
    }
}

/// A part of a block is written though another sector of the block cannot be read; not if a sector is that it needs.
#[test]
fn a_bad_sector_fails_only_partial_writes_that_need_it() {
    let mut rig = Rig::new(0, &[2 * B + 2048]);
    let writes = [
        (1, 2 * B + 100, 50, true),
        (2, 2 * B + 1000, 2600, true),
        (3, 2 * B + 2000, 100, false),
        (4, 2 * B + 2048, 100, false),
        (5, 2 * B + 2560, 100, true),
        (6, 2 * B + 600, 1400, true),
    ];
    for (tag, offset, len, good) in writes {
        rig.begin(tag, Op::Write { fua: false }, offset, len);
        rig.complete_all();
        assert_eq!(rig.answer(tag, 0).0.is_ok(), good, "write {tag}");
    }
    // What was not read is not cached.
    rig.read(10, 2 * B, 512);
    assert_eq!(rig.front.ios.len(), 1);
    rig.complete_all();
    assert_eq!(rig.answer(10, 512), (Ok(()), 1, 1));
}
