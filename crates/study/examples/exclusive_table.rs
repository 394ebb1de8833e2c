//! What an exclusive host cache saves under a simulated guest, beside inclusive ones and the bound.
//!
//! `exclusive_table [LOAD [few]]`: a line for each load, way of allocating pages and size of the host's cache (N times
//! the guest's), hits in percent of the second half for each arm; with `few`, S3-FIFO and zeroing guests alone.

use undercroft_engine::{ExclusiveMode, PolicyKind};
use undercroft_study::sim::guest::{GuestOptions, SimulatedGuest};
use undercroft_study::sim::host::{Host, Placement};
use undercroft_trace::synth::Zipf;

/// Pages of the guest's page cache.
const PAGES: u32 = 40_000;
/// Blocks that fill the guest's memory: its cache, and a little more.
const GUEST_BLOCKS: f64 = PAGES as f64 * 1.15;
const LOADS: [&str; 7] = ["uniform", "zipf", "loop", "writes", "opaque", "anon", "mixed"];
const AUTO: Placement = Placement::Exclusive(ExclusiveMode::Auto);
/// Name, placement and policy of each arm: inclusive, perfectly exclusive, and as the daemon does it.
const ARMS: [(&str, Placement, PolicyKind); 9] = [
    ("lru", Placement::Inclusive, PolicyKind::Lru),
    ("s3", Placement::Inclusive, PolicyKind::S3Fifo),
    ("wtlfu", Placement::Inclusive, PolicyKind::WTinyLfu),
    ("d-lru", Placement::Perfect, PolicyKind::Lru),
    ("d-s3", Placement::Perfect, PolicyKind::S3Fifo),
    ("d-wt", Placement::Perfect, PolicyKind::WTinyLfu),
    ("hx-lru", AUTO, PolicyKind::Lru),
    ("hx-s3", AUTO, PolicyKind::S3Fifo),
    ("hx-wt", AUTO, PolicyKind::WTinyLfu),
];

fn main() {
    let only = std::env::args().nth(1);
    let few = std::env::args().nth(2).is_some();
    for load in LOADS.into_iter().filter(|load| only.as_ref().is_none_or(|o| o == load)) {
        for zeroing in [true, false].into_iter().filter(|zeroing| *zeroing || !few) {
            for n in [0.25, 0.5, 1.0] {
                let mut line = format!("{load:8} zeroing {zeroing:5} N {n:.2}:");
                for (name, placement, policy) in ARMS.into_iter().filter(|a| !few || a.0.ends_with("s3")) {
                    let host = Host::new(placement, policy, (GUEST_BLOCKS * n) as u32, PAGES);
                    line += &arm(load, zeroing, name, host);
                }
                println!("{line}");
            }
        }
    }
}

/// Runs a load through a guest above `host`; what the table says of it.
fn arm(load: &str, zeroing: bool, name: &str, mut host: Host) -> String {
    let mut guest = SimulatedGuest::new(GuestOptions { pages: PAGES, free_pages: PAGES / 50, zeroing });
    host.opaque = load == "opaque";
    let blocks = (GUEST_BLOCKS * if load == "loop" { 1.5 } else { 2.0 }) as u64;
    let mut zipf = Zipf::new(blocks as u32, 0.99, 5);
    // xorshift64 (Marsaglia 2003)
    let mut x = 88_172_645_463_325_252u64;
    let total = 25 * u64::from(PAGES);
    let mut at_half = host.count;
    for i in 0..total {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        let random = (x >> 11) % blocks;
        let block = match load {
            "uniform" | "writes" | "anon" => random,
            "zipf" | "opaque" => zipf.next().unwrap(),
            // scans of a part each, random reads between them
            "mixed" if i / 20_000 % 2 == 0 => i % (blocks / 2),
            "mixed" => random,
            _ => i % blocks,
        };
        let write = load == "writes" && x % 10 < 3;
        guest.access(block, write, &mut |g, t| {
            host.transfer(g, t);
        });
        if load == "anon" && i % 4 == 0 {
            // memory of programs comes and goes: pages that the host sees nothing of
            guest.access(blocks + i / 4 % u64::from(PAGES / 4), false, &mut |_, _| {});
        }
        if i == total / 2 {
            at_half = host.count;
        }
    }
    let c = host.count;
    let hits = 100.0 * (c.hits - at_half.hits) as f64 / (c.reads - at_half.reads) as f64;
    let details = if name == "hx-s3" { details(&host) } else { String::new() };
    format!(" {name} {hits:.0}{details}")
}

/// What the exclusive cache counted of the guest's evictions.
fn details(host: &Host) -> String {
    let s = host.exclusive_stats();
    format!(
        " [ev {} cached {} cap {}/{} early {}/{} lapsed {} A {} {} {} tiers {:?}]",
        s.evictions,
        s.evictions_cached,
        s.captures,
        s.captures_tried,
        s.early,
        s.early_tried,
        s.early_lapsed,
        s.age_read,
        s.age_write,
        s.age_again,
        host.index.tier_lens()
    )
}
