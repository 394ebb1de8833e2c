//! Our side of `make bench-sim`: one policy at one size over one trace, and the traces that both sides read.
//!
//! - `sim_bench zipf|FILE... OUT`: writes a trace as oracleGeneral records (24 bytes), with the cache of the next
//!   access, which is what libCacheSim reads fastest.
//! - `sim_bench run POLICY BLOCKS TRACE`: replays it on one thread and prints a line of JSON: requests, misses, seconds
//!   of the replay with reading, and the engine's own memory.
//!
//! Reading the records is part of the time, as it is of libCacheSim's.

use std::collections::HashMap;
use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::time::Instant;
use undercroft_engine::{AnyPolicyKind, Replay};
use undercroft_trace::{TraceReader, synth};

const RECORD: usize = 24;
/// Records read at a time.
const RECORDS: usize = 8192;

fn write(blocks: &[u64], out: &str) -> Result<(), Box<dyn Error>> {
    let mut next = vec![-1i64; blocks.len()];
    let mut seen = HashMap::new();
    for (i, block) in blocks.iter().enumerate().rev() {
        if let Some(later) = seen.insert(*block, i as i64) {
            next[i] = later;
        }
    }
    let mut file = BufWriter::with_capacity(1 << 20, File::create(out)?);
    for (i, (block, next)) in blocks.iter().zip(next).enumerate() {
        file.write_all(&(i as u32 / 10_000).to_le_bytes())?;
        file.write_all(&block.to_le_bytes())?;
        file.write_all(&1u32.to_le_bytes())?;
        file.write_all(&next.to_le_bytes())?;
    }
    Ok(file.flush()?)
}

fn run(policy: AnyPolicyKind, capacity: u32, trace: &str) -> Result<(), Box<dyn Error>> {
    let started = Instant::now();
    let mut file = File::open(trace)?;
    let mut bytes = vec![0; RECORDS * RECORD];
    let mut blocks = Vec::with_capacity(RECORDS);
    let mut cache = Replay::new(policy, capacity);
    let (mut requests, mut misses, mut filled) = (0, 0, 0);
    loop {
        let read = file.read(&mut bytes[filled..])?;
        filled += read;
        let whole = filled - filled % RECORD;
        blocks.clear();
        blocks.extend(
            bytes[..whole].chunks_exact(RECORD).map(|r| u64::from_le_bytes(r[4..12].try_into().expect("8 bytes"))),
        );
        requests += blocks.len() as u64;
        misses += cache.feed(&blocks);
        bytes.copy_within(whole..filled, 0);
        filled -= whole;
        if read == 0 {
            break;
        }
    }
    println!(
        "{{\"policy\": \"{policy}\", \"capacity\": {capacity}, \"requests\": {requests}, \"misses\": {misses}, \
         \"seconds\": {:.4}, \"engine_bytes\": {}}}",
        started.elapsed().as_secs_f64(),
        cache.memory_bytes()
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["run", policy, capacity, trace] => run(policy.parse()?, capacity.parse()?, trace),
        ["zipf", out] => write(&synth::Zipf::new(1_000_000, 1.0, 42).take(20_000_000).collect::<Vec<_>>(), out),
        ["convert", trace, out] => {
            let blocks: Result<Vec<u64>, _> = TraceReader::open(trace)?.map(|a| a.map(|a| a.block)).collect();
            write(&blocks?, out)
        }
        _ => Err("usage: sim_bench zipf OUT | convert TRACE OUT | run POLICY BLOCKS TRACE".into()),
    }
}
