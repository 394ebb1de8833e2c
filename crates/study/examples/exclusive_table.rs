//! What an exclusive host cache saves under a simulated guest, beside inclusive ones and the bound.
use undercroft_engine::{ExclusiveMode, PolicyKind};
use undercroft_study::sim::guest::{Guest, GuestOptions};
use undercroft_study::sim::host::{Host, Placement};
use undercroft_trace::synth::Zipf;

fn main() {
    let pages = 40_000u32;
    let loads: Vec<&str> = vec!["uniform", "zipf", "loop", "writes", "opaque", "anon", "mixed"];
    let ways = ExclusiveMode::Auto;
    let only: Option<String> = std::env::args().nth(1);
    for load in loads {
        if only.as_ref().is_some_and(|o| o != load) {
            continue;
        }
        for zeroing in [true, false] {
            if !zeroing && std::env::args().nth(2).is_some() {
                continue;
            }
            for n in [0.25, 0.5, 1.0] {
                let blocks = (f64::from(pages) * 1.15 * n) as u32;
                let set = (f64::from(pages) * 1.15 * if load == "loop" { 1.5 } else { 2.0 }) as u64;
                let mut line = format!("{load:8} zeroing {zeroing:5} N {n:.2}:");
                let arms = [
                    ("lru", Placement::Inclusive, PolicyKind::Lru),
                    ("s3", Placement::Inclusive, PolicyKind::S3Fifo),
                    ("wtlfu", Placement::Inclusive, PolicyKind::WTinyLfu),
                    ("d-lru", Placement::Perfect, PolicyKind::Lru),
                    ("d-s3", Placement::Perfect, PolicyKind::S3Fifo),
                    ("d-wt", Placement::Perfect, PolicyKind::WTinyLfu),
                    ("hx-lru", Placement::Exclusive(ways), PolicyKind::Lru),
                    ("hx-s3", Placement::Exclusive(ways), PolicyKind::S3Fifo),
                    ("hx-wt", Placement::Exclusive(ways), PolicyKind::WTinyLfu),
                ];
                let few = std::env::args().nth(2).is_some();
                for (name, placement, policy) in arms.into_iter().filter(|a| !few || a.0.ends_with("s3")) {
                    let mut guest = Guest::new(GuestOptions { pages, free_pages: pages / 50, zeroing });
                    let mut host = Host::new(placement, policy, blocks, pages);
                    host.opaque = load == "opaque";
                    let mut zipf = Zipf::new(set as u32, 0.99, 5);
                    let mut x = 88172645463325252u64;
                    let total = 25 * pages as u64;
                    let mut at_half = host.count;
                    for i in 0..total {
                        x ^= x << 13;
                        x ^= x >> 7;
                        x ^= x << 17;
                        let block = match load {
                            "uniform" | "writes" => (x >> 11) % set,
                            "zipf" | "opaque" => zipf.next().unwrap(),
                            "anon" => (x >> 11) % set,
                            // Scans of a part each, random reads between them.
                            "mixed" => {
                                if i / 20_000 % 2 == 0 {
                                    i % (set / 2)
                                } else {
                                    (x >> 11) % set
                                }
                            }
                            _ => i % set,
                        };
                        let write = load == "writes" && x % 10 < 3;
                        guest.access(block, write, &mut |g, t| {
                            host.transfer(g, t);
                        });
                        if load == "anon" && i % 4 == 0 {
                            // Memory of programs comes and goes: pages that the host sees nothing of.
                            guest.access(set + i / 4 % u64::from(pages / 4), false, &mut |_, _| {});
                        }
                        if i == total / 2 {
                            at_half = host.count
                        }
                    }
                    let c = host.count;
                    let hit = 100.0 * (c.hits - at_half.hits) as f64 / (c.reads - at_half.reads) as f64;
                    line += &format!(" {name} {hit:.0}");
                    if name == "hx-s3" {
                        let s = host.exclusive.stats();
                        line += &format!(
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
                        );
                    }
                }
                println!("{line}");
            }
        }
    }
}
