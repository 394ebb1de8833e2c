//! What the core does for a sequential miss, apart from the kernel and the disk: nanoseconds a block, by stage.
//!
//! `cargo run --release -p undercroft-cache --example miss_cost`. A disk of 1 GiB is read from its beginning to its end
//! again and again by a guest of 64 MiB (or 2 MiB, as small as the buffers of the benchmark's driver) below a cache of
//! 32 MiB. `ask`: putting the request to the core and starting the operation; `done`: dealing with the finished
//! operation; `spare`: what is done when the reply is out, hashes and copies of guest pages among it. What a disk would
//! do, filling the frames, is not counted, but is done, so that the data is where a device leaves it.

use std::time::{Duration, Instant};
use undercroft_cache::{ContentKey, Core, CoreOptions, DiskId, DiskOptions, Event, Geometry, Io, Op, ReqId};
use undercroft_engine::{ExclusiveMode, PolicyKind};
use undercroft_testkit::front::{Client, Front, block_request};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 256 * 1024;
const CACHE: u32 = 8 * 1024;
const DISK: DiskId = DiskId(0);
/// Blocks of a round.
const ROUND: u64 = 1024;

/// What is compared.
struct Arm {
    name: &'static str,
    mode: ExclusiveMode,
    contents: bool,
    pages: usize,
    copies: bool,
}

/// A guest whose reads go through its pages one after another.
struct Guest {
    first: usize,
    memory: Vec<[u8; BLOCK]>,
    copies: bool,
}

impl Client for Guest {
    #[inline]
    fn take(&mut self, _req: ReqId, at: usize, bytes: &[u8]) {
        let page = (self.first + at / BLOCK) % self.memory.len();
        if self.copies {
            self.memory[page][..bytes.len()].copy_from_slice(bytes);
        } else {
            self.memory[page][..8].copy_from_slice(&bytes[..8]);
        }
    }
    fn give(&mut self, _req: ReqId, _at: usize, _bytes: &mut [u8]) {}
    #[inline]
    fn page(&mut self, _req: ReqId, at: usize) -> Option<u32> {
        Some(((self.first + at / BLOCK) % self.memory.len()) as u32)
    }
    fn copy_page(&mut self, _disk: DiskId, page: u32, to: &mut [u8; BLOCK]) -> bool {
        to.copy_from_slice(&self.memory[page as usize]);
        true
    }
}

/// What the disk holds: some MiB of noise again and again, and in each block its number.
fn fill(io: &mut Io, noise: &[[u8; BLOCK]]) {
    for (piece, block) in io.buf.pieces_mut().zip(io.offset / BLOCK as u64..) {
        piece.copy_from_slice(&noise[block as usize % noise.len()]);
        piece[..8].copy_from_slice(&block.to_le_bytes());
    }
}

/// A core with a full cache, its guest, and where the guest reads next.
struct Rig {
    core: Core,
    front: Front<Guest>,
    noise: Vec<[u8; BLOCK]>,
    block: u64,
}

impl Rig {
    fn new(arm: &Arm) -> Self {
        let options = CoreOptions { contents: arm.contents, ..CoreOptions::new(96 << 20) };
        let mut core = Core::new(options).unwrap_or_else(|e| panic!("no address space: {e}"));
        let disk = DiskOptions::new(&Geometry::new(BLOCKS * BLOCK as u64), PolicyKind::S3Fifo, CACHE);
        let disk = DiskOptions { readahead_bytes: 0, exclusive: arm.mode, ..disk };
        core.add_disk(DISK, disk).unwrap_or_else(|e| panic!("{e}"));
        core.set_guest(DISK, arm.pages as u32);
        let mut state = 1u64;
        let mut byte = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as u8
        };
        let noise = (0..8192).map(|_| std::array::from_fn(|_| byte())).collect();
        let front = Front::new(Guest { first: 0, memory: vec![[1; BLOCK]; arm.pages], copies: arm.copies });
        Self { core, front, noise, block: 0 }
    }

    /// Reads so many blocks; the time that each stage took.
    fn read(&mut self, unit: u64) -> [Duration; 3] {
        let Self { core, front, noise, block } = self;
        let began = Instant::now();
        front.ask(core, block_request(DISK, Op::Read, *block, unit));
        let mut took = [began.elapsed(), Duration::ZERO, Duration::ZERO];
        while !front.ios.is_empty() {
            let mut began = None;
            front.end_in_part(core, 0, |io| {
                fill(io, noise);
                began = Some(Instant::now());
                Ok(())
            });
            took[1] += began.map_or(Duration::ZERO, |began| began.elapsed());
        }
        let began = Instant::now();
        while core.wants_spare() {
            core.apply(Event::Spare { copies: true }, 0, front);
        }
        took[2] = began.elapsed();
        front.client.first = (front.client.first + unit as usize) % front.client.memory.len();
        *block = (*block + unit) % BLOCKS;
        took
    }

    fn stats(&mut self) -> (u64, u64) {
        let stats = self.core.exclusive(DISK).map(|known| known.stats).unwrap_or_default();
        (stats.captures + stats.early, stats.evictions)
    }
}

/// Nanoseconds a block of the three stages, the lower quartile of many short rounds by their sum; and copies kept of
/// 100 evictions.
fn cost(arm: &Arm, unit: u64, rounds: u64) -> ([f64; 3], u64) {
    let mut rig = Rig::new(arm);
    // Until the cache and the guest's table are full.
    (0..4 * u64::from(CACHE) / unit).for_each(|_| _ = rig.read(unit));
    let before = rig.stats();
    let mut all: Vec<[f64; 3]> = (0..rounds)
        .map(|_| {
            let mut sum = [Duration::ZERO; 3];
            for _ in 0..ROUND / unit {
                let took = rig.read(unit);
                (0..3).for_each(|stage| sum[stage] += took[stage]);
            }
            sum.map(|took| took.as_nanos() as f64 / ROUND as f64)
        })
        .collect();
    all.sort_by(|a, b| a.iter().sum::<f64>().total_cmp(&b.iter().sum()));
    let after = rig.stats();
    (all[all.len() / 4], (after.0 - before.0) * 100 / (after.1 - before.1).max(1))
}

/// Nanoseconds that the hash of a page takes, the least of several rounds, of so many pages one after another.
fn hash_cost(pages: usize) -> f64 {
    let key = ContentKey::from_seed(1);
    let memory: Vec<[u8; BLOCK]> = (0..pages).map(|n| [n as u8; BLOCK]).collect();
    let mut least = f64::MAX;
    for _ in 0..100 {
        let began = Instant::now();
        let all = memory.iter().fold(0, |all, page| all ^ key.hash(page).get());
        std::hint::black_box(all);
        least = least.min(began.elapsed().as_nanos() as f64 / pages as f64);
    }
    least
}

fn main() {
    let off = Arm { name: "inclusive", mode: ExclusiveMode::Off, contents: true, pages: 16384, copies: true };
    let arms = [
        Arm { name: "nothing copied, no contents", contents: false, copies: false, ..off },
        Arm { name: "no contents", contents: false, ..off },
        Arm { name: "exclusive, 2 MiB", mode: ExclusiveMode::Auto, pages: 512, ..off },
        Arm { name: "exclusive, 64 MiB", mode: ExclusiveMode::Auto, ..off },
        off,
    ];
    println!("hash of a page: {:.0} ns from the cache, {:.0} from memory\n", hash_cost(16), hash_cost(16384));
    let rounds = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(200);
    println!("{:40}{:>8}{:>8}{:>8}{:>8}{:>8}", "ns a block", "ask", "done", "spare", "all", "kept %");
    for (unit, size) in [(16, "64 KiB"), (64, "256 KiB")] {
        for arm in &arms {
            let ([ask, done, spare], kept) = cost(arm, unit, rounds);
            let (name, all) = (format!("{size}: {}", arm.name), ask + done + spare);
            println!("{name:40}{ask:8.0}{done:8.0}{spare:8.0}{all:8.0}{kept:8}");
        }
    }
}
