//! The load itself: keeps `depth` operations under way, times them, and holds the answers to what is known.
//!
//! Owns a run. Never speaks a protocol. Invariant: a sector has at most one change under way (with stamps), and
//! nothing is sent that the journal does not know.

use crate::journal::{Change, Journal, Record, read_all};
use crate::ledger::{Ledger, Promise, stamped};
use crate::pattern::{Pattern, Random};
use crate::stamp::SECTOR_BYTES;
use crate::target::{Done, Fault, Kind, Operation, Target, WrongData};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};
use undercroft_units::LatencyCounts;

/// Tries at finding a place that no change under way overlaps, before the operation becomes a read.
const PLACES_TRIED_MAX: usize = 8;

/// ESHUTDOWN: what an NBD server that is stopping answers to requests that come too late.
const SHUTTING_DOWN: u32 = 108;

/// What to do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Operations under way.
    pub depth: usize,
    /// Shortest operation in bytes.
    pub bytes_min: u32,
    /// Longest operation in bytes; lengths between are uniform, in steps of `bytes_step`.
    pub bytes_max: u32,
    /// The step.
    pub bytes_step: u32,
    /// Of 100 operations, how many write, write zeroes, discard; the others read.
    pub write_percent: u32,
    /// See `write_percent`.
    pub zero_percent: u32,
    /// See `write_percent`.
    pub discard_percent: u32,
    /// A flush after as many changes; 0 for none.
    pub flush_every: u64,
    /// How long to go on.
    pub duration: Option<Duration>,
    /// How many operations to do.
    pub operations: Option<u64>,
    /// Count errors instead of ending with the first.
    pub allow_errors: bool,
}

/// What answers are compared with.
pub enum Check {
    /// Nothing.
    None,
    /// A file with the disk's contents; for loads that only read.
    File(File),
    /// The stamps, and a journal for later.
    Stamps(Box<Book>),
}

/// The ledger and the journal of a stamped run.
pub struct Book {
    ledger: Ledger,
    journal: Journal,
    base: Option<File>,
    flushes: u64,
}

impl Book {
    /// Goes on with the journal at `path`, or starts one with `seed`.
    pub fn open(path: &Path, seed: u64, base: Option<File>) -> Result<Book> {
        let records = read_all(path)?;
        let mut journal = Journal::append_to(path)?;
        let mut ledger = Ledger::replay(&records)?;
        let mut flushes = 0;
        if records.is_empty() {
            ledger = Ledger::new(seed);
            journal.add(Record::Seed(seed));
        } else {
            // Whatever happened since, only what was flushed can be relied on.
            ledger.apply(Record::ServerLost)?;
            journal.add(Record::ServerLost);
            flushes = records.iter().filter(|r| matches!(r, Record::FlushIssued(_))).count() as u64;
        }
        journal.write_out()?;
        Ok(Book { ledger, journal, base, flushes })
    }

    fn note(&mut self, record: Record) -> Result<()> {
        self.journal.add(record);
        self.ledger.apply(record)
    }

    /// Counts for the report.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Latencies of reads.
    pub reads: LatencyCounts,
    /// Latencies of writes.
    pub writes: LatencyCounts,
    /// Latencies of all operations but flushes.
    pub all: LatencyCounts,
    /// Operations done, by kind; flushes included.
    pub done: BTreeMap<&'static str, u64>,
    /// Bytes moved by reads and writes.
    pub bytes: u64,
    /// Refused operations, by errno.
    pub errors: BTreeMap<u32, u64>,
    /// From the first submission to the last completion.
    pub elapsed: Duration,
    /// Why it ended early.
    pub fault: Option<Fault>,
}

#[derive(Clone, Default)]
struct Slot {
    operation: Option<Operation>,
    sequence: u64,
    floors: Vec<u64>,
}

/// A run under way.
pub struct Load<'t> {
    target: &'t mut dyn Target,
    plan: Plan,
    pattern: Pattern,
    random: Random,
    check: &'t mut Check,
    slots: Vec<Slot>,
    started: Vec<Instant>,
    free: Vec<usize>,
    changes_since_flush: u64,
    scratch: Vec<u8>,
    outcome: Outcome,
}

fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Read => "read",
        Kind::Write => "write",
        Kind::Flush => "flush",
        Kind::Discard => "discard",
        Kind::WriteZeroes => "write_zeroes",
    }
}

impl<'t> Load<'t> {
    /// Prepares a run. `target` has `plan.depth` tags with buffers of at least `plan.bytes_max`.
    pub fn new(
        target: &'t mut dyn Target,
        plan: Plan,
        pattern: Pattern,
        random: Random,
        check: &'t mut Check,
    ) -> Load<'t> {
        let depth = plan.depth;
        let now = Instant::now();
        Load {
            target,
            plan,
            pattern,
            random,
            check,
            slots: vec![Slot::default(); depth],
            started: vec![now; depth],
            free: (0..depth).rev().collect(),
            changes_since_flush: 0,
            scratch: Vec::new(),
            outcome: Outcome::default(),
        }
    }

    /// Runs to the end of the plan, or until the server fails.
    pub fn run(mut self) -> Outcome {
        // Buffers that are never stamped must not be all zeroes: a server may take a short cut for those.
        if !matches!(self.check, Check::Stamps(_)) && self.plan.write_percent > 0 {
            let mut noise = vec![0u8; self.plan.bytes_max as usize];
            for tag in 0..self.plan.depth {
                noise.chunks_mut(8).for_each(|w| w.copy_from_slice(&self.random.next().to_le_bytes()[..w.len()]));
                self.target.fill(tag, &noise);
            }
        }
        let begin = Instant::now();
        if let Err(fault) = self.turns(begin) {
            if matches!(fault, Fault::Gone(_) | Fault::Silent)
                && let Check::Stamps(book) = self.check
                && let Err(e) = book.journal.write_out()
            {
                self.outcome.fault = Some(e.into());
            } else {
                self.outcome.fault = Some(fault);
            }
        }
        self.outcome.elapsed = begin.elapsed();
        self.outcome
    }

    fn turns(&mut self, begin: Instant) -> Result<(), Fault> {
        let end = self.plan.duration.map(|d| begin + d);
        let mut left = self.plan.operations.unwrap_or(u64::MAX);
        let mut done: Vec<Done> = Vec::with_capacity(self.plan.depth);
        let mut now = begin;
        loop {
            if end.is_none_or(|end| now < end) {
                while left > 0
                    && let Some(tag) = self.free.pop()
                {
                    self.start(tag, now)?;
                    left -= 1;
                }
            }
            if let Check::Stamps(book) = self.check {
                book.journal.write_out()?;
            }
            if self.free.len() == self.plan.depth {
                return Ok(());
            }
            self.target.send()?;
            done.clear();
            self.target.reap(&mut done)?;
            now = Instant::now();
            for d in &done {
                self.finish(*d, now)?;
            }
        }
    }

    fn choose(&mut self) -> (Kind, u64, u32) {
        let p = &self.plan;
        if p.flush_every > 0 && self.changes_since_flush >= p.flush_every {
            self.changes_since_flush = 0;
            return (Kind::Flush, 0, 0);
        }
        let steps = (p.bytes_max - p.bytes_min) / p.bytes_step + 1;
        let length = if steps == 1 {
            p.bytes_min
        } else {
            p.bytes_min + self.random.below(u64::from(steps)) as u32 * p.bytes_step
        };
        let mut kind = Kind::Read;
        if p.write_percent + p.zero_percent + p.discard_percent > 0 {
            let dice = self.random.below(100) as u32;
            kind = if dice < p.write_percent {
                Kind::Write
            } else if dice < p.write_percent + p.zero_percent {
                Kind::WriteZeroes
            } else if dice < p.write_percent + p.zero_percent + p.discard_percent {
                Kind::Discard
            } else {
                Kind::Read
            };
        }
        let mut offset = self.pattern.next(u64::from(length), &mut self.random);
        if kind != Kind::Read && matches!(self.check, Check::Stamps(_)) {
            let mut tried = 0;
            while self.overlaps_change(offset, length) {
                tried += 1;
                if tried == PLACES_TRIED_MAX {
                    return (Kind::Read, offset, length);
                }
                offset = self.pattern.next(u64::from(length), &mut self.random);
            }
        }
        (kind, offset, length)
    }

    fn overlaps_change(&self, offset: u64, length: u32) -> bool {
        self.slots.iter().filter_map(|s| s.operation.as_ref()).any(|o| {
            !matches!(o.kind, Kind::Read | Kind::Flush)
                && o.offset < offset + u64::from(length)
                && offset < o.offset + u64::from(o.length)
        })
    }

    fn start(&mut self, tag: usize, now: Instant) -> Result<(), Fault> {
        let (kind, offset, length) = self.choose();
        let operation = Operation { kind, offset, length, tag };
        if !matches!(kind, Kind::Read | Kind::Flush) {
            self.changes_since_flush += 1;
        }
        if let Check::Stamps(book) = self.check {
            let (sector, count) = (offset / SECTOR_BYTES as u64, length / SECTOR_BYTES as u32);
            let slot = &mut self.slots[tag];
            match kind {
                Kind::Read => {
                    slot.floors.clear();
                    let floors = sector..sector + u64::from(count);
                    slot.floors.extend(floors.map(|s| book.ledger.floor(s, Promise::Acknowledged)));
                }
                Kind::Flush => {
                    book.flushes += 1;
                    slot.sequence = book.flushes;
                    book.note(Record::FlushIssued(slot.sequence))?;
                }
                Kind::Write | Kind::WriteZeroes | Kind::Discard => {
                    let change = match kind {
                        Kind::Write => Change::Stamps,
                        Kind::Discard => Change::Discard,
                        _ => Change::Zeroes,
                    };
                    slot.sequence = book.ledger.next_sequence();
                    book.note(Record::Issued { sequence: slot.sequence, change, sector, count })?;
                    if kind == Kind::Write {
                        stamped(&book.ledger, sector, count, slot.sequence, &mut self.scratch);
                        self.target.fill(tag, &self.scratch);
                    }
                }
            }
        }
        self.slots[tag].operation = Some(operation);
        self.started[tag] = now;
        self.target.submit(&operation)
    }

    fn finish(&mut self, done: Done, now: Instant) -> Result<(), Fault> {
        let tag = done.tag;
        let taken = self.slots.get_mut(tag).and_then(|s| s.operation.take());
        let operation = taken.ok_or_else(|| Fault::Protocol(format!("tag {tag} came back, but was not under way")))?;
        self.free.push(tag);
        let kind = operation.kind;
        let mut going = None;
        match done.result {
            Ok(()) => {
                let ns = (now - self.started[tag]).as_nanos() as u64;
                match kind {
                    Kind::Read => self.outcome.reads.record(ns),
                    Kind::Write => self.outcome.writes.record(ns),
                    _ => {}
                }
                if kind != Kind::Flush {
                    self.outcome.all.record(ns);
                }
                if matches!(kind, Kind::Read | Kind::Write) {
                    self.outcome.bytes += u64::from(operation.length);
                }
                *self.outcome.done.entry(name(kind)).or_default() += 1;
                if kind == Kind::Read {
                    self.compare(&operation)?;
                }
            }
            Err(errno) => {
                *self.outcome.errors.entry(errno).or_default() += 1;
                if errno == SHUTTING_DOWN {
                    going = Some(Fault::Gone("it says that it is shutting down".to_owned()));
                } else if !self.plan.allow_errors {
                    let what = format!("{} of {}+{}", name(kind), operation.offset, operation.length);
                    return Err(Fault::Own(anyhow::anyhow!("error {errno} for a {what}")));
                }
            }
        }
        if let Check::Stamps(book) = self.check {
            let sequence = self.slots[tag].sequence;
            match (kind, done.result) {
                (Kind::Read, _) | (Kind::Flush, Err(_)) => {}
                (Kind::Flush, Ok(())) => book.note(Record::FlushAcknowledged(sequence))?,
                (_, Ok(())) => book.note(Record::Acknowledged(sequence))?,
                (_, Err(_)) => book.note(Record::Refused(sequence))?,
            }
        }
        going.map_or(Ok(()), Err)
    }

    fn compare(&mut self, o: &Operation) -> Result<(), Fault> {
        match self.check {
            Check::None => Ok(()),
            Check::File(file) => {
                let length = o.length as usize;
                self.scratch.resize(2 * length, 0);
                let (got, want) = self.scratch.split_at_mut(length);
                self.target.fetch(o.tag, got);
                file.read_exact_at(want, o.offset).context("the file to compare with is too short")?;
                match got.iter().zip(want.iter()).position(|(g, w)| g != w) {
                    None => Ok(()),
                    Some(i) => Err(WrongData::NotOfTheFile(o.offset + i as u64).into()),
                }
            }
            Check::Stamps(book) => {
                self.scratch.resize(o.length as usize, 0);
                self.target.fetch(o.tag, &mut self.scratch);
                let mut base = [0; SECTOR_BYTES];
                let first = o.offset / SECTOR_BYTES as u64;
                for (i, bytes) in self.scratch.chunks_exact(SECTOR_BYTES).enumerate() {
                    let sector = first + i as u64;
                    if let Some(file) = &book.base {
                        read_padded(file, sector * SECTOR_BYTES as u64, &mut base)?;
                    }
                    let base = book.base.is_some().then_some(&base[..]);
                    book.ledger.judge(sector, bytes, self.slots[o.tag].floors[i], base).map_err(WrongData::Broken)?;
                }
                Ok(())
            }
        }
    }
}

/// Reads from a file that is taken to go on with zeroes after its end.
pub fn read_padded(file: &File, offset: u64, into: &mut [u8]) -> std::io::Result<()> {
    let mut at = 0;
    while at < into.len() {
        match file.read_at(&mut into[at..], offset + at as u64)? {
            0 => {
                into[at..].fill(0);
                break;
            }
            n => at += n,
        }
    }
    Ok(())
}
