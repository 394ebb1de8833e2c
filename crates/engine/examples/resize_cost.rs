//! What the longest step costs while an index grows by a quarter and then shrinks to half, for each policy that a disk
//! may have: microseconds, in steps of 1,024 units; all steps together, and all at once. Arguments: sizes in GiB.
use std::time::{Duration, Instant};
use undercroft_engine::{Access, HashKey, Index, KeepAll, PolicyKind};

fn steps(index: &mut Index, to: u32) -> String {
    let mut took = Vec::new();
    index.begin_resize(to);
    loop {
        let began = Instant::now();
        let done = index.step(1024, &mut KeepAll, |_, _| {});
        took.push(began.elapsed());
        if done {
            break;
        }
    }
    took.sort();
    let us = |d: Duration| d.as_secs_f64() * 1e6;
    let (n, all) = (took.len(), took.iter().sum::<Duration>());
    let (longest, rare) = (us(took[n - 1]), us(took[n * 999 / 1000]));
    format!("longest {longest:.0}, 99.9 % {rare:.0}, all {:.0} in {n}", us(all))
}

fn main() {
    let sizes: Vec<u32> = std::env::args().skip(1).map(|gib| gib.parse().expect("a number of GiB")).collect();
    for gib in if sizes.is_empty() { vec![1, 4, 16] } else { sizes } {
        for kind in PolicyKind::ALL {
            let blocks = gib << 18;
            let mut index = Index::with_room(kind, blocks, blocks * 2, HashKey::from_seed(0));
            for i in 0..u64::from(blocks) * 5 / 2 {
                let block = if i % 3 == 0 { i / 3 } else { i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 };
                index.access(block % (u64::from(blocks) * 3 / 2), Access::Read, |_| true);
            }
            println!("{gib} GiB {kind} grows: {}", steps(&mut index, blocks / 4 * 5));
            while index.len() > blocks / 2 {
                index.evict(|_| true);
            }
            println!("{gib} GiB {kind} shrinks: {}", steps(&mut index, blocks / 2));
            let began = Instant::now();
            index.resize(blocks, |_| true, |_, _| {}, |_, _| {});
            println!("{gib} GiB {kind} doubles at once: {:.0}", began.elapsed().as_secs_f64() * 1e6);
        }
    }
}
