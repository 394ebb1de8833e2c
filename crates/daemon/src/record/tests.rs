//! Notes on their way from a tap to the file, step by step and without threads: nothing here depends on time.
//!
//! Owns what may be in the way: no memory, no disk, no time. Invariant: what a test expects, it builds without the code
//! under test.

use super::encoder::Encoder;
use super::gauges::Gauges;
use super::relay::{Relay, Stuck};
use super::spool::Spool;
use super::{Keeper, Order, Reason, Shared, create, keeper};
use crate::worker::{Chunk, Tap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use undercroft_cache::{DiskId, Found, IoError, Op, ReqId, Request};
use undercroft_host::nameless;
use undercroft_trace::recording::{
    RecordedDisk, RecordedFailure, Recording, RecordingHeader, RecordingWriter, Row, Trailer, VERSION,
};

const START: u64 = 1_000_000;

/// A tap, a relay and a converter, turned by hand.
struct Line {
    tap: Option<Tap>,
    chunks: Receiver<Chunk>,
    free_chunks: Sender<Chunk>,
    relay: Relay,
    encoder: Encoder,
    gauges: Arc<Gauges>,
    path: PathBuf,
}

impl Line {
    /// In `dir`; with so many chunks of memory, and a spool if `spooled`.
    fn new(dir: &Path, bytes_max: u64, spares: usize, spooled: bool) -> Self {
        let path = dir.join("a.parquet");
        let header = RecordingHeader {
            format: VERSION,
            version: "0".into(),
            block_bytes: 4096,
            sample: 1,
            disks: vec![RecordedDisk { name: "a".into(), ..RecordedDisk::default() }],
            ..RecordingHeader::default()
        };
        let mut writer = RecordingWriter::new(create(&path, false, |_, _| None).unwrap(), header).unwrap();
        let end = writer.bytes_bound(0);
        assert!(writer.file_mut().reserve(end).unwrap());
        let gauges = Arc::new(Gauges::default());
        let spool = spooled.then(|| Spool::new(nameless(dir).unwrap(), bytes_max, gauges.clone()).expect("a spool"));
        let (sender, messages) = keeper::messages();
        let file = spool.as_ref().map(Spool::file);
        let encoder = Encoder::new(bytes_max, writer, messages, gauges.clone(), file, 1);
        let ((to, chunks), (free_chunks, free)) = (channel(), channel());
        (0..2).for_each(|_| free_chunks.send(Chunk::default()).unwrap());
        let mut tap = Tap::new(0, START, 1, to, free);
        tap.watch(DiskId(3), 0);
        let relay = Relay::new(sender, gauges.clone(), spool, spares);
        Self { tap: Some(tap), chunks, free_chunks, relay, encoder, gauges, path }
    }

    fn tap(&mut self) -> &mut Tap {
        self.tap.as_mut().unwrap()
    }

    /// A read of block `n` that is a hit, at time `n`.
    fn hit(&mut self, n: u64) {
        let request = Request { id: id(n), disk: DiskId(3), op: Op::Read, offset: n * 4096, len: 4096 };
        assert!(self.tap().begin(&request, START + n));
    }

    /// Passes on what the tap has sent.
    fn pass(&mut self) -> Result<(), Box<Stuck>> {
        while self.relay.look()
            && let Ok(chunk) = self.chunks.try_recv()
        {
            let empty = self.relay.pass(chunk)?;
            self.free_chunks.send(empty).unwrap();
        }
        Ok(())
    }

    /// `hit` from `from` to `to`, passed on as it comes.
    fn hits(&mut self, from: u64, to: u64) -> Result<(), Box<Stuck>> {
        for n in from..to {
            self.hit(n);
            if n % 1000 == 0 {
                self.pass()?;
            }
        }
        self.pass()
    }

    fn step(&mut self) -> bool {
        let more = self.encoder.step().unwrap();
        if let Some(spool) = self.relay.spool() {
            spool.settle(false);
        }
        more
    }

    /// Ends it after `before` messages more, or after all; returns what is in the file.
    fn end(mut self, before: Option<u32>) -> (Vec<Row>, Trailer) {
        self.tap.take().unwrap().finish();
        while let Ok(chunk) = self.chunks.try_recv() {
            self.relay.last(chunk);
        }
        let mut done = 0;
        while before.is_none_or(|b| done < b) && self.step() {
            done += 1;
        }
        if before.is_some() {
            self.encoder.give_up();
        }
        self.encoder.write_rest().unwrap();
        let tally = self.encoder.finish(1 << 40, Reason::Stopped, vec![]).unwrap();
        assert_eq!(self.gauges.rows_done.load(Ordering::Relaxed), self.relay.counts().0, "nothing waits any more");
        assert_eq!(tally.bytes, std::fs::metadata(&self.path).unwrap().len());
        let mut recording = Recording::open(&self.path).unwrap();
        let trailer = recording.trailer().clone();
        let mut rows = Vec::new();
        while let Some(group) = recording.next_group().unwrap() {
            rows.extend(group);
        }
        assert_eq!(rows.len() as u64, tally.rows);
        (rows, trailer)
    }
}

fn id(n: u64) -> ReqId {
    ReqId { port: 7, tag: n as u32 }
}

/// What `Line::hit` is to leave in the file.
fn hit(n: u64) -> Row {
    Row {
        time_ns: n,
        disk: 0,
        client: 7,
        op: undercroft_trace::recording::RecordedOp::Read,
        offset_bytes: n * 4096,
        length_bytes: 4096,
        hit_blocks: 1,
        ahead_blocks: 0,
        joined_blocks: 0,
        miss_blocks: 0,
        latency_ns: None,
        failure: None,
    }
}

#[test]
fn rows_that_had_to_wait_on_the_disk_are_all_there_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let mut line = Line::new(dir.path(), 1 << 30, 3, true);
    let mut expected: Vec<Row> = (0..200_000).map(hit).collect();
    assert!(line.hits(0, 30_000).is_ok());
    // Converted in part, so that memory and the spool take turns.
    assert!(line.step() && line.step() && line.step() && line.step());
    assert!(line.hits(30_000, 200_000).is_ok());
    assert!(line.relay.spool().unwrap().waiting() > 20, "the spool was in use");
    assert!(line.relay.waiting() > 150_000 && line.gauges.spool_bytes.load(Ordering::Relaxed) > 1 << 20);
    // What does not fit into two words, and what was not found at once.
    let odd = Request { id: id(1), disk: DiskId(3), op: Op::Discard, offset: 1 << 60, len: u64::MAX >> 4 };
    assert!(line.tap().begin(&odd, START + (1 << 40)));
    let (op, latency_ns) = (undercroft_trace::recording::RecordedOp::Discard, None);
    let far = Row { op, latency_ns, offset_bytes: odd.offset, length_bytes: odd.len, hit_blocks: 0, ..hit(1 << 40) };
    expected.push(far);
    assert!(line.tap().begin(&Request { len: 8192, ..of_block(9) }, START + 9));
    line.tap().found(Found { ahead: 1, missed: 1, ..Found::default() });
    expected.push(Row { length_bytes: 8192, hit_blocks: 0, ahead_blocks: 1, miss_blocks: 1, ..hit(9) });
    assert!(line.tap().begin(&of_block(10), START + 10));
    line.tap().refused(IoError::ReadOnly);
    expected.push(Row { hit_blocks: 0, failure: Some(RecordedFailure::ReadOnly), ..hit(10) });
    let (rows, trailer) = line.end(None);
    assert!(rows == expected, "{} rows of {}", rows.len(), expected.len());
    assert_eq!((trailer.dropped, trailer.gaps), (0, vec![]));
}

fn of_block(n: u64) -> Request {
    Request { id: id(n), disk: DiskId(3), op: Op::Read, offset: n * 4096, len: 4096 }
}

#[test]
fn an_answer_finds_its_row_wherever_that_waits() {
    let dir = tempfile::tempdir().unwrap();
    let mut line = Line::new(dir.path(), 1 << 30, 1, true);
    let mut expected: Vec<Row> = (0..60_000).map(hit).collect();
    // One of each: answered on its own buffer, from another buffer in the spool, after all was converted, and never.
    let late = [5, 10_000, 30_000, 50_000];
    for n in 0..60_000u64 {
        line.hit(n);
        if late.contains(&n) {
            line.tap().wait_for(id(n), START + n);
        }
        let answers = match n {
            100 => Some(5),
            59_999 => Some(30_000),
            _ => None,
        };
        if let Some(of) = answers {
            let found = Found { joined: 1, ..Found::default() };
            line.tap().found_late(id(of), found);
            line.tap().replied_late(id(of), Ok(()), START + of + 777);
            expected[of as usize] = Row { hit_blocks: 0, joined_blocks: 1, latency_ns: Some(777), ..hit(of) };
        }
        if n % 1000 == 0 {
            assert!(line.pass().is_ok());
        }
    }
    assert!(line.pass().is_ok());
    while line.step() {}
    line.tap().replied_late(id(10_000), Err(IoError::Io), START + 10_000 + 5);
    let io = Some(RecordedFailure::Io);
    expected[10_000] = Row { hit_blocks: 0, latency_ns: Some(5), failure: io, ..hit(10_000) };
    expected[50_000] = Row { hit_blocks: 0, failure: Some(RecordedFailure::Unanswered), ..hit(50_000) };
    let (rows, trailer) = line.end(None);
    assert!(rows == expected, "{} rows", rows.len());
    assert_eq!(trailer.dropped, 0);
}

#[test]
fn file_and_spool_together_stay_below_the_limit_and_nothing_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let limit = 64 << 20;
    let mut line = Line::new(dir.path(), limit, 1, true);
    let mut n = 0;
    let stuck = loop {
        match line.hits(n, n + 10_000) {
            Ok(()) => n += 10_000,
            Err(stuck) => break *stuck,
        }
        let used = |gauge: &std::sync::atomic::AtomicU64| gauge.load(Ordering::Relaxed);
        assert!(used(&line.gauges.spool_bytes) + used(&line.gauges.claimed_bytes) <= limit);
        assert!(n < 10_000_000, "no limit holds");
    };
    let Stuck(reason, chunk) = stuck;
    assert_eq!(reason, Reason::MaxSize);
    let blocks = std::os::unix::fs::MetadataExt::blocks(&line.relay.spool().unwrap().file().metadata().unwrap());
    assert!(blocks * 512 <= limit && n > 1_000_000, "{blocks} blocks, {n} rows");
    let noted = line.relay.counts().0 + chunk.head.rows;
    line.relay.last(chunk);
    while line.step() {}
    if let Some(spool) = line.relay.spool() {
        spool.settle(true);
        assert_eq!(std::os::unix::fs::MetadataExt::blocks(&spool.file().metadata().unwrap()), 0, "it gives all back");
    }
    assert_eq!(line.gauges.spool_bytes.load(Ordering::Relaxed), 0);
    let (rows, trailer) = line.end(None);
    assert!(rows.len() as u64 >= noted && trailer.dropped == 0);
    assert!(rows.iter().enumerate().all(|(n, r)| *r == hit(n as u64)));
}

#[test]
fn slots_are_used_again_so_that_a_spool_in_use_stays_small() {
    let dir = tempfile::tempdir().unwrap();
    let mut line = Line::new(dir.path(), 1 << 30, 0, true);
    let mut most = 0;
    for n in 0..100 {
        assert!(line.hits(n * 10_000, (n + 1) * 10_000).is_ok());
        most = most.max(line.gauges.spool_bytes.load(Ordering::Relaxed));
        while line.step() {}
    }
    assert!(most <= 2 << 20, "{most} bytes for what was converted soon");
    let (rows, trailer) = line.end(None);
    assert!(rows.iter().enumerate().all(|(n, r)| *r == hit(n as u64)));
    assert_eq!((rows.len(), trailer.dropped), (1_000_000, 0));
}

#[test]
fn what_there_is_no_time_for_is_counted_and_the_file_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let mut line = Line::new(dir.path(), 1 << 30, 1, true);
    assert!(line.hits(0, 100_000).is_ok());
    let (rows, trailer) = line.end(Some(10));
    assert!(rows.len() > 10_000 && rows.len() < 90_000, "{}", rows.len());
    assert!(rows.iter().enumerate().all(|(n, r)| *r == hit(n as u64)), "what is there is the beginning");
    assert_eq!(trailer.dropped, 100_000 - rows.len() as u64);
    let [gap] = trailer.gaps[..] else { panic!("{:?}", trailer.gaps) };
    assert_eq!((gap.dropped, gap.from_ns), (trailer.dropped, rows.len() as u64), "from the first row that is missing");
    assert!(gap.to_ns >= 99_999);
}

#[test]
fn without_a_spool_memory_is_the_limit_and_what_is_missing_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let mut line = Line::new(dir.path(), 1 << 30, 2, false);
    let mut noted = 0;
    for n in 0..50_000 {
        noted += u64::from(line.tap().begin(&of_block(n), START + n));
        assert!(line.pass().is_ok());
    }
    assert!(noted < 30_000 && noted > 10_000, "{noted}");
    while line.step() {}
    assert!(line.pass().is_ok(), "what is converted makes room");
    line.hit(50_000);
    let (rows, trailer) = line.end(None);
    assert_eq!((rows.len() as u64, trailer.dropped), (noted + 1, 50_000 - noted));
    assert_eq!((rows[noted as usize - 1], rows[noted as usize]), (hit(noted - 1), hit(50_000)));
    assert_eq!(trailer.gaps.iter().map(|g| g.dropped).sum::<u64>(), trailer.dropped);
    assert_eq!((trailer.gaps[0].from_ns, trailer.gaps[0].to_ns), (noted, 49_999));
}

#[test]
fn a_full_disk_ends_it_and_what_waits_there_still_becomes_rows() {
    let dir = tempfile::tempdir().unwrap();
    let run = |words: &[&str]| std::process::Command::new(words[0]).args(&words[1..]).status();
    let shown = dir.path().display().to_string();
    if !run(&["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", &shown]).is_ok_and(|s| s.success()) {
        return undercroft_skips::skip("only root can mount a small file system");
    }
    let mut line = Line::new(dir.path(), 1 << 30, 1, true);
    let stuck = line.hits(0, 10_000_000).expect_err("the disk is full");
    let Stuck(reason, chunk) = *stuck;
    assert_eq!(reason, Reason::DiskFull);
    let noted = line.relay.counts().0 + chunk.head.rows;
    line.relay.last(chunk);
    assert!(noted > 100_000, "{noted}");
    while line.encoder.step().unwrap() {
        line.relay.spool().unwrap().settle(true);
    }
    let (rows, trailer) = line.end(None);
    assert!(rows.len() as u64 >= noted && trailer.dropped == 0, "{} rows of {noted}", rows.len());
    assert!(rows.iter().enumerate().all(|(n, r)| *r == hit(n as u64)));
    assert!(run(&["umount", "-l", &shown]).is_ok());
}

#[test]
fn a_daemon_that_stops_converts_for_a_while_and_counts_the_rest() {
    for (grace, all) in [(Duration::from_secs(3600), true), (Duration::ZERO, false)] {
        let dir = tempfile::tempdir().unwrap();
        let mut line = Line::new(dir.path(), 1 << 30, 1, true);
        assert!(line.hits(0, 100_000).is_ok());
        line.tap.take().unwrap().finish();
        let shared = Arc::new(Shared::new(grace));
        shared.hurry.store(true, Ordering::Relaxed);
        let Line { chunks, relay, encoder, gauges, path, .. } = line;
        let order = Order::all(path.clone(), 1 << 30);
        let (_more, late) = channel();
        let mut keeper = Keeper {
            order,
            shared,
            chunks,
            late,
            returns: vec![],
            places: vec![],
            disks: 1,
            relay,
            gauges,
            start_ns: START,
            began: Instant::now(),
        };
        while let Ok(chunk) = keeper.chunks.try_recv() {
            keeper.relay.last(chunk);
        }
        let (reason, tally) = keeper.convert(encoder, Reason::Stopped, 1 << 40, vec![]).unwrap();
        let trailer = Recording::open(&path).unwrap().trailer().clone();
        assert_eq!((trailer.reason.as_str(), trailer.rows), (reason.name(), tally.rows));
        assert_eq!(trailer.rows + trailer.dropped, 100_000);
        let expected = if all { (Reason::Stopped, 0) } else { (Reason::DaemonStopped, 100_000 - tally.rows) };
        assert_eq!((reason, tally.dropped), expected);
        assert_eq!(tally.rows == 100_000, all);
        assert_eq!(trailer.gaps.len(), usize::from(!all));
    }
}
