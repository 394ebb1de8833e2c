//! Guests as people run them, beyond one page cache over one file system of 4 KiB blocks: what an exclusive cache
//! brings below each, by the daemon's own engine.
//!
//! Where nothing can be learned of a guest, exclusive is as good as inclusive: each row says by how many points it may
//! be worse. `cargo test -p undercroft-study --test study guest_kinds -- --nocapture` prints the table of decision
//! 0192.

mod kinds;
mod pools;

use kinds::{Folios, Grouped, Hotplugged, Kind, Plain, Split};
use pools::{Database, Mapped, Swapping};
use undercroft_engine::{ExclusiveMode, PolicyKind};
use undercroft_study::sim::host::{Host, Placement};

/// Pages of a guest.
pub const PAGES: u32 = 8192;
/// Blocks that it uses.
pub const SET: u64 = 2 * PAGES as u64;

const AUTO: Placement = Placement::Exclusive(ExclusiveMode::Auto);

/// Steps of a run, for each page of the guest.
const STEPS: u64 = 20;

/// What a run showed.
struct Run {
    /// Hits of the last half, in percent of what was read then.
    hits: f64,
    opaque: bool,
    inclusive: bool,
}

fn run(mut guest: impl Kind, part: f64, placement: Placement) -> Run {
    let blocks = (f64::from(PAGES) * part) as u32;
    let mut host = Host::new(placement, PolicyKind::DEFAULT, blocks, guest.pages());
    let steps = STEPS * u64::from(PAGES) / guest.pages_a_step();
    let (mut x, mut half) = (88_172_645_463_325_252u64, host.count);
    for i in 0..steps {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        if i == steps / 2 {
            half = host.count;
        }
        guest.step(i as f64 / steps as f64, x >> 11, &mut host);
    }
    let (opaque, inclusive) = host.found();
    let hits = 100.0 * (host.count.hits - half.hits) as f64 / (host.count.reads - half.reads) as f64;
    Run { hits, opaque, inclusive }
}

/// Runs a guest with caches of a fourth and of half of its pages, exclusive and inclusive, guests that zero pages and
/// those that do not: exclusive may be worse by `points`, and must be better by `gains` of a hundred reads.
fn row<G: Kind>(name: &str, guest: impl Fn(bool) -> G, points: f64, gains: f64) {
    for zeroing in [false, true] {
        for part in [0.25, 0.5] {
            let exclusive = run(guest(zeroing), part, AUTO);
            let inclusive = run(guest(zeroing), part, Placement::Inclusive).hits;
            let found = match (exclusive.opaque, exclusive.inclusive) {
                (true, true) => "opaque, inclusive",
                (true, false) => "opaque",
                (false, true) => "inclusive",
                (false, false) => "exclusive",
            };
            let hits = exclusive.hits;
            println!("| {name} | {zeroing} | {part} | {hits:.1} | {inclusive:.1} | {found} |");
            assert!(hits > inclusive - points, "{name} {zeroing} {part}: {hits:.1}, inclusive {inclusive:.1}");
            assert!(hits > inclusive + gains, "{name} {zeroing} {part}: {hits:.1}, inclusive {inclusive:.1}");
        }
    }
}

#[test]
fn a_plain_page_cache() {
    row("page cache", Plain::new, 0.0, 10.0);
}

#[test]
fn a_file_system_whose_pages_lie_across_blocks() {
    row("pages across blocks", Split::new, 1.0, -1.0);
}

#[test]
fn large_folios() {
    row("folios of 64 KiB", Folios::new, 0.0, 8.0);
}

#[test]
fn control_groups_in_the_guest() {
    row("two control groups", Grouped::new, 0.0, 1.0);
}

#[test]
fn memory_that_is_added_later() {
    row("memory added", Hotplugged::new, 0.0, 5.0);
}

#[test]
fn a_swap_disk() {
    row("swap disk", Swapping::new, 0.0, 15.0);
}

#[test]
fn readers_of_mapped_files() {
    row("mapped files", Mapped::new, 0.0, 8.0);
}

#[test]
fn a_database_with_a_pool_and_a_log() {
    row("database", Database::new, 0.0, 8.0);
}
