//! What dividing among 1,000 disks and 200 nodes costs: prints microseconds per division.
use std::time::Instant;
use undercroft_engine::shares::{Level, ShareSettings, Tree};

fn main() {
    for (vms, containers, disks) in [(50, 150, 1000), (200, 0, 1000), (1, 0, 1000)] {
        let mut tree = Tree::new("host", 16 << 20);
        let root = tree.root();
        let mut groups = vec![];
        for i in 0..vms {
            let settings = ShareSettings { weight: 1 + i * 37 % 1000, floor: 1000, ..ShareSettings::default() };
            groups.push(tree.add(root, Level::Vm, &format!("vm{i}"), settings).expect("fits"));
        }
        for i in 0..containers {
            let settings = ShareSettings { weight: 1 + i * 11 % 100, ..ShareSettings::default() };
            let vm = groups[i as usize % vms as usize];
            groups.push(tree.add(vm, Level::Container, &format!("c{i}"), settings).expect("fits"));
        }
        for i in 0..disks {
            let group = groups[(groups.len() - 1).saturating_sub(i as usize % groups.len())];
            let settings = ShareSettings { weight: 1 + i * 7919 % 10_000, ..ShareSettings::default() };
            tree.add(group, Level::Disk, &format!("d{i}"), settings).expect("fits");
        }
        let mut shares = 0;
        let rounds = 200;
        let start = Instant::now();
        for round in 0..rounds {
            let division = tree.divide(|id| {
                // a third idle, a third small, a third wants everything
                let x = format!("{id}").len() as u64 * 7919 + round;
                [0, x % 4096, 1 << 30][(x % 3) as usize]
            });
            shares += division.get(root).share;
        }
        let took = start.elapsed().as_micros() as f64 / rounds as f64;
        println!("{vms} VMs, {containers} containers, {disks} disks: {took:.0} us a division (shares {shares})");
    }
}
