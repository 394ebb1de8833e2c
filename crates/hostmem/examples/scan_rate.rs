//! How fast one core scans: copy, zero check, hash, index; from shared memory, private memory and the page cache.
//!
//! `cargo run --release -p undercroft --example scan_rate [MIB]` prints GB/s of processor time, unthrottled: the best
//! of several passes. Half of the memory is new to a pass, half repeats it in order, as files in two guests would. Owns
//! nothing but memory of its own; the private memory is this process's, read as another's would be.

use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use undercroft_host::foreign::{Batch, CachedFile, PAGE_BYTES, PageRun, Piece, Process, SharedFile};
use undercroft_host::idle::thread_cpu_ns;
use undercroft_hostmem::scan::hash::{PageHash, is_zero};
use undercroft_hostmem::scan::index::{ContentIndex, Place};
use undercroft_hostmem::scan::source::Source;

/// Walks over all of it for each figure.
const ROUNDS: usize = 12;

fn main() -> io::Result<()> {
    let mib: usize = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(128);
    let bytes = mib << 20;
    let mut memory = vec![0u8; bytes + PAGE_BYTES];
    let from = memory.as_ptr().align_offset(PAGE_BYTES);
    let mut state = 1u64;
    for (n, page) in memory[from..from + bytes].chunks_exact_mut(PAGE_BYTES).enumerate() {
        // The second half repeats the first.
        let n = n % (bytes / PAGE_BYTES / 2).max(1);
        for word in page.as_chunks_mut::<8>().0 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(n as u64 | 1);
            *word = state.to_ne_bytes();
        }
        state = n as u64;
    }
    let shared = File::from(rustix::fs::memfd_create("scan_rate", rustix::fs::MemfdFlags::CLOEXEC)?);
    (&shared).write_all(&memory[from..from + bytes])?;
    let path = std::env::current_dir()?.join("scan_rate.tmp");
    let mut file = File::options().write(true).create_new(true).open(&path)?;
    file.write_all(&memory[from..from + bytes])?;
    let file = File::open(&path)?;
    std::fs::remove_file(&path)?;

    let unusable = || io::Error::other("this kernel or file system does not offer it");
    let shared = Arc::new(SharedFile::new(shared)?.ok_or_else(unusable)?);
    let cached = Arc::new(CachedFile::new(file)?.ok_or_else(unusable)?);
    let process = Arc::new(Process::open(std::process::id())?);
    let first = (memory.as_ptr() as usize + from) / PAGE_BYTES;
    let run = PageRun { first: first as u64, count: (bytes / PAGE_BYTES) as u64 };
    println!("{:<28} {:>8} {:>8} {:>8} {:>8}   look-ahead", "GB/s of one core", "copy", "+zero", "+hash", "+index");
    let whole = PageRun { first: 0, count: shared.pages() };
    rate("shared memory (memfd)", || Ok(Source::of_shared(shared.clone(), whole)))?;
    rate("private memory", || Source::of_process(process.clone(), run, None))?;
    rate("page cache of a file", || Ok(Source::of_cached(cached.clone())))?;
    drop(memory);
    Ok(())
}

/// Measures one kind of source, with one step of the work more each time. The best of several rounds counts: the others
/// tell what else the machine was doing.
fn rate(name: &str, source: impl Fn() -> io::Result<Source>) -> io::Result<()> {
    let hash = PageHash::new();
    let mut batch = Batch::new()?;
    let mut figures = Vec::new();
    let mut ahead = String::new();
    for depth in 0..4 {
        let mut index = ContentIndex::new(1 << 30);
        let mut best = 0f64;
        for _ in 0..ROUNDS {
            index.begin_pass();
            let mut source = source()?;
            let (mut pages, mut sum, mut fresh) = (0u64, 0u64, Vec::new());
            let began = thread_cpu_ns();
            while let Some(mut runs) = source.look()? {
                while !runs.is_empty() {
                    source.copy(&mut runs, Piece::Whole, &mut batch)?;
                    pages += batch.len() as u64;
                    fresh.clear();
                    for (i, number) in batch.numbers().iter().enumerate() {
                        let page = batch.page(i);
                        if depth > 0 && is_zero(page) {
                            sum += 1;
                        } else if depth > 1 {
                            fresh.push((Place { source: 0, page: source.number(*number) }, hash.of(page)));
                        }
                    }
                    if depth > 2 {
                        index.warm(fresh.iter().map(|(_, content)| *content));
                        fresh.iter().for_each(|(place, content)| {
                            index.see(*place, *content);
                        });
                    }
                }
            }
            std::hint::black_box((sum, &fresh));
            let ns = thread_cpu_ns().saturating_sub(began).max(1);
            best = best.max((pages * PAGE_BYTES as u64) as f64 / ns as f64);
        }
        figures.push(best);
        let stats = index.stats();
        ahead = format!("{} of {} matches", stats.lookahead_hits, stats.again);
    }
    let figures: String = figures.iter().map(|f| format!(" {f:>8.2}")).collect();
    println!("{name:<28}{figures}   {ahead}");
    Ok(())
}
