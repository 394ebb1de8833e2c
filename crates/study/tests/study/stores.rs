//! Both stores: against a plain model of RAM and an SSD that is a queue of segments, against a core that is driven by
//! hand with real bytes, and against the definition of what is counted.

use std::collections::{HashMap, VecDeque};
use std::io;
use undercroft_cache::ssd::{BootId, Format, Identity, Known, Media, Region, Ssd, Stamp, StoreId};
use undercroft_cache::{
    ContentKey, Core, CoreOptions, DiskId, DiskOptions, Geometry, Io, IoKind, IoTarget, NoFaults, Op, disk_bytes,
};
use undercroft_engine::{ExclusiveMode, PolicyKind};
use undercroft_study::sim::stores::{Admission, Restart, StoresPlan, StoresResult, simulate_stores};
use undercroft_study::sim::{Go, Reference, SweepOptions};
use undercroft_testkit::front::{Front, NoData, request};
use undercroft_trace::synth::Zipf;

const B: u64 = 4096;
/// Sixteen segments of 256 KiB, and what comes before them.
const SSD: u64 = (16 << 18) + (256 << 10);
/// Blocks of data of a segment.
const OF_SEGMENT: usize = 63;
const RAM: u32 = 100;

fn plan(admission: Admission) -> StoresPlan {
    StoresPlan { ram_blocks: RAM, ssd_bytes: SSD, admission, ..StoresPlan::new(PolicyKind::Lru) }
}

fn reads(n: usize, keys: u32, seed: u64) -> Vec<Reference> {
    Zipf::new(keys, 0.8, seed).take(n).map(Reference::read).collect()
}

fn simulated(trace: &[Reference], plans: &[StoresPlan]) -> Vec<StoresResult> {
    let trace = trace.iter().copied().map(Ok);
    let done = simulate_stores(trace, plans, &SweepOptions::default(), &mut |_| Go::On).expect("it runs");
    assert!(!done.stopped && done.broken.is_none());
    for r in &done.results {
        assert_eq!(r.counts.ram_hits + r.counts.ssd_hits + r.counts.misses, r.counts.reads);
        assert_eq!(r.counts.reads + r.counts.writes, done.accesses);
        assert_eq!(r.mismatches, 0, "the store gave what it had not been given");
        assert_eq!(r.written.admitted_bytes, r.admitted_blocks * B);
        assert!(r.written.total() * 10 <= r.written.admitted_bytes * 11 + (1 << 20), "{:?}", r.written);
    }
    done.results
}

/// A block on the SSD of the model.
#[derive(Clone, Copy, Default)]
struct Entry {
    segment: u64,
    chance: bool,
    held: bool,
}

/// RAM is a list, the newest last; the SSD a queue of lists, the oldest first, the last of them open.
#[derive(Default)]
struct Model {
    ram: Vec<u64>,
    segments: VecDeque<(u64, Vec<u64>)>,
    has_open: bool,
    begun: u64,
    entries: HashMap<u64, Entry>,
    admitted: i64,
    beside: i64,
    counts: [u64; 3],
}

impl Model {
    fn access(&mut self, block: u64) {
        if let Some(at) = self.ram.iter().position(|b| *b == block) {
            self.ram.remove(at);
            self.ram.push(block);
            self.counts[0] += 1;
            return;
        }
        if self.ram.len() == RAM as usize {
            let gone = self.ram.remove(0);
            match self.entries.get_mut(&gone) {
                Some(entry) => entry.held = false,
                None => self.put(gone, false),
            }
        }
        self.ram.push(block);
        match self.entries.get_mut(&block) {
            Some(entry) => {
                (entry.chance, entry.held) = (true, true);
                self.counts[1] += 1;
            }
            None => self.counts[2] += 1,
        }
        while 16 - self.segments.len() < 4 {
            self.clean();
        }
    }

    fn put(&mut self, block: u64, again: bool) {
        if !self.has_open {
            self.begun += 1;
            self.segments.push_back((self.begun, Vec::new()));
            (self.has_open, self.beside) = (true, self.beside + B as i64);
        }
        let (segment, blocks) = self.segments.back_mut().expect("the open one");
        blocks.push(block);
        self.entries.insert(block, Entry { segment: *segment, ..Entry::default() });
        *(if again { &mut self.beside } else { &mut self.admitted }) += B as i64;
        if blocks.len() == OF_SEGMENT {
            (self.has_open, self.beside) = (false, self.beside + B as i64);
        }
    }

    /// The oldest segment is emptied: what was read since and is not in RAM is written again, as far as is allowed.
    fn clean(&mut self) {
        let (segment, blocks) = self.segments.front().cloned().expect("there are some");
        let mut allowance = self.admitted / 10 - self.beside - 2 * B as i64;
        let mut again = Vec::new();
        for block in blocks {
            let Some(entry) = self.entries.get(&block).filter(|e| e.segment == segment) else { continue };
            if entry.chance && !entry.held && allowance >= B as i64 {
                allowance -= B as i64;
                again.push(block);
            } else {
                self.entries.remove(&block);
            }
        }
        while let Some(block) = again.pop() {
            self.put(block, true);
        }
        self.segments.pop_front();
    }
}

#[test]
fn everything_admitted_is_a_queue_below_a_list() {
    for seed in 1..4 {
        let trace = reads(60_000, 4000, seed);
        let mut model = Model::default();
        trace.iter().for_each(|r| model.access(r.block));
        let done = simulated(&trace, &[plan(Admission::All)]).remove(0);
        assert_eq!(done.counts.ram_hits, model.counts[0]);
        // Where both buckets of a block are full, the index of the store drops one.
        let off = done.counts.ssd_hits.abs_diff(model.counts[1]);
        assert!(off <= 60, "{} on the SSD, {} in the model", done.counts.ssd_hits, model.counts[1]);
        assert!(model.counts[1] > 10_000, "the SSD plays a part: {:?}", model.counts);
        let written = done.written.total().abs_diff((model.admitted + model.beside) as u64);
        assert!(written <= 60 * B, "{:?}, {} in the model", done.written, model.admitted + model.beside);
        assert!(done.written.cleaning_bytes > 100 * B, "{:?}", done.written);
    }
}

/// A device with all of its bytes.
struct Whole(Vec<u8>);

impl Media for Whole {
    fn bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        to.copy_from_slice(&self.0[offset as usize..][..to.len()]);
        Ok(())
    }

    fn write_at(&mut self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.0[offset as usize..][..from.len()].copy_from_slice(from);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Whole {
    /// Does what an operation asks for; of an image, each block has its number in all of its words.
    fn serve(&mut self, io: &mut Io) {
        let mut at = io.offset as usize;
        match io.kind {
            IoKind::Read => {
                for piece in io.buf.pieces_mut() {
                    match io.target {
                        IoTarget::Ssd(_) => piece.copy_from_slice(&self.0[at..][..piece.len()]),
                        IoTarget::Image => {
                            let number = (at as u64 / B).to_le_bytes();
                            piece.chunks_mut(8).for_each(|word| word.copy_from_slice(&number));
                        }
                    }
                    at += piece.len();
                }
            }
            IoKind::Write { .. } if io.target != IoTarget::Image => {
                for piece in io.buf.pieces() {
                    self.0[at..][..piece.len()].copy_from_slice(piece);
                    at += piece.len();
                }
            }
            _ => {}
        }
    }
}

#[test]
fn a_core_driven_by_hand_over_a_device_with_bytes_finds_the_same() {
    let disk_blocks = 10_000;
    let mut trace = reads(40_000, 4000, 7);
    trace.iter_mut().skip(3).step_by(9).for_each(|r| r.write = true);
    for (policy, admission) in [(PolicyKind::Lru, Admission::All), (PolicyKind::S3Fifo, Admission::Second)] {
        let mut whole = Whole(vec![0; SSD as usize]);
        let format = Format { store: StoreId(*b"a simulated one "), segment_bytes: 256 << 10 };
        let region = Region::format(&mut whole, format, BootId([1; 16]), NoFaults).unwrap();
        let disk = DiskOptions {
            exclusive: ExclusiveMode::Off,
            ..DiskOptions::new(&Geometry::new(disk_blocks * B), policy, RAM)
        };
        let mut limits =
            CoreOptions { hash_seed: 0, contents: false, content_key: ContentKey::from_seed(0), ..CoreOptions::new(0) };
        limits.memory_bytes = disk_bytes(&limits, RAM, &disk) * 2 + (1 << 20);
        let mut core = Core::new(limits).unwrap();
        core.add_disk(DiskId(0), disk).unwrap();
        let mut ssd = Ssd::new(vec![region]);
        ssd.set_admission(admission);
        let room = ssd.stats()[0].room;
        core.set_ssd(ssd);
        let known = Known { identity: Identity([1; 64]), stamp: Some(Stamp([0; 64])), blocks: disk_blocks };
        core.use_ssd(DiskId(0), &known).unwrap();
        core.set_ssd_share(DiskId(0), room);
        let mut front = Front::new(NoData);
        for r in &trace {
            let op = if r.write { Op::Write { fua: false } } else { Op::Read };
            front.ask(&mut core, request(0, DiskId(0), op, r.block * B, B));
            while !front.ios.is_empty() {
                front.end(&mut core, 0, |io| {
                    whole.serve(io);
                    Ok(())
                });
            }
        }
        let done = simulated(&trace, &[StoresPlan { policy, ..plan(admission) }]).remove(0);
        let (stats, of_store) = (core.stats(DiskId(0)), core.ssd().unwrap().stats()[0]);
        assert_eq!((done.counts.ram_hits, done.counts.ssd_hits), (stats.hit_blocks, stats.ssd_hit_blocks));
        assert_eq!((done.ssd_blocks, done.written.total()), (of_store.blocks, of_store.written.total()));
        assert!(done.counts.ssd_hits > 1000 && done.counts.writes > 4000, "{:?}", done.counts);
    }
}

#[test]
fn rules_and_budgets_bound_what_is_written() {
    let mut trace = reads(60_000, 4000, 5);
    // A minute for all of it.
    trace.iter_mut().enumerate().for_each(|(i, r)| r.time_ns = i as u64 * 1_000_000);
    let none = StoresPlan { ssd_bytes: 0, ..plan(Admission::All) };
    let budget = StoresPlan { writes_per_day: Some(1 << 30), ..plan(Admission::All) };
    let plans = [plan(Admission::All), plan(Admission::Second), plan(Admission::None), none, budget];
    let done = simulated(&trace, &plans);
    let [all, second, nothing, no_ssd, budget] = &done[..] else { panic!("one for each") };
    assert!(second.written.total() < all.written.total() / 2, "{:?} {:?}", second.written, all.written);
    assert_eq!((nothing.written.total(), nothing.counts), (0, no_ssd.counts));
    assert!(nothing.counts.misses > all.counts.misses && nothing.counts.ssd_hits == 0);
    let of = |r: &StoresResult, why: &str| r.refused.iter().find(|(reason, _)| *reason == why).unwrap().1;
    assert!(of(second, "rule") > 1000 && of(all, "rule") == 0);
    // An hour's bytes at once, which is what the bucket holds; in a minute hardly more comes.
    let most = (1 << 30) / 24 + (1 << 20) + 64 * B;
    assert!(budget.written.total() <= most && of(budget, "budget") > 1000, "{:?}", budget.written);
    assert!((all.seconds - 60.0).abs() < 0.01 && all.written_per_day().unwrap() > 1e9, "{}", all.seconds);
    // Not a byte of it depends on what runs beside it.
    let alone = SweepOptions { jobs: Some(1), ..SweepOptions::default() };
    let again = simulate_stores(trace.iter().copied().map(Ok), &plans, &alone, &mut |_| Go::On).unwrap();
    assert_eq!(again.results, done);
}

#[test]
fn after_a_restart_the_ssd_is_warm() {
    let trace = reads(80_000, 4000, 11);
    let restart = Some(Restart { at: 40_000, count: 10_000 });
    let [with, without] =
        [restart, None].map(|restart| simulated(&trace, &[StoresPlan { restart, ..plan(Admission::All) }]).remove(0));
    let after = with.restart.as_ref().expect("it was started again");
    assert!((700..=1008).contains(&after.recovered_blocks), "{}", after.recovered_blocks);
    assert_eq!((after.warm.len(), after.cold.len(), after.at), (20, 20, 40_000));
    let ratio = |of: &[undercroft_study::sim::stores::StoresCounts]| of[0].hit_ratio();
    assert!(ratio(&after.warm) > ratio(&after.cold) + 0.1, "{:?}", after);
    assert_eq!(after.warm.iter().chain(&after.cold).map(|c| c.reads).sum::<u64>(), 20_000);
    assert!(without.restart.is_none() && with.counts.misses < without.counts.misses + 500);
    // One that never comes, and one of RAM alone.
    let late = Some(Restart { at: 100_000, count: 10 });
    assert_eq!(simulated(&trace, &[StoresPlan { restart: late, ..plan(Admission::All) }])[0].counts, without.counts);
    let ram = simulated(&trace, &[StoresPlan { restart, ssd_bytes: 0, ..plan(Admission::All) }]).remove(0);
    let after = ram.restart.expect("it was started again");
    assert_eq!((after.recovered_blocks, &after.warm), (0, &after.cold));
}

#[test]
fn a_warm_up_is_not_counted_and_far_blocks_are_blocks() {
    let far: Vec<Reference> =
        reads(40_000, 4000, 3).into_iter().map(|r| Reference { block: r.block | (r.block % 3) << 52, ..r }).collect();
    let near = reads(40_000, 4000, 3);
    let (far_done, near_done) = (simulated(&far, &[plan(Admission::All)]), simulated(&near, &[plan(Admission::All)]));
    assert_eq!(far_done[0].counts.ram_hits, near_done[0].counts.ram_hits);
    assert!(far_done[0].counts.ssd_hits.abs_diff(near_done[0].counts.ssd_hits) < 100);
    let options = SweepOptions { warm_up: 30_000, ..SweepOptions::default() };
    let plans = [plan(Admission::All)];
    let warm = simulate_stores(near.iter().copied().map(Ok), &plans, &options, &mut |_| Go::On).unwrap();
    let (warm, whole) = (&warm.results[0], &near_done[0]);
    assert_eq!(warm.counts.reads, 10_000);
    assert!(warm.counts.misses < whole.counts.misses / 2 && warm.written.total() < whole.written.total() / 2);
}

#[test]
fn the_device_takes_what_the_store_writes_about_itself_and_no_byte_of_data() {
    // 40,000 blocks of an SSD of 32,768.
    let trace: Vec<Reference> = (0..42_000).map(Reference::read).collect();
    let plan = StoresPlan { ssd_bytes: 128 << 20, ..plan(Admission::All) };
    let done = simulated(&trace, &[plan]).remove(0);
    assert!(done.ssd_blocks > 28_000, "{}", done.ssd_blocks);
    assert!(done.device_bytes <= 17 * done.room_blocks + (136 << 10), "{}", done.device_bytes);
    assert!(done.table_bytes <= 12 * done.room_blocks + (2 << 20), "{}", done.table_bytes);
}

#[test]
fn stores_that_cannot_be_are_refused() {
    let none = || std::iter::empty::<Result<Reference, undercroft_trace::TraceError>>();
    let small = StoresPlan { ssd: "1MiB".into(), ssd_bytes: 1 << 20, ..plan(Admission::All) };
    let said = simulate_stores(none(), &[small], &SweepOptions::default(), &mut |_| Go::On).expect_err("too small");
    assert!(said.to_string().contains("1MiB") && said.to_string().contains("four segments"), "{said}");
}
