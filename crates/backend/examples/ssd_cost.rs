//! What the store on SSDs costs: bytes of memory for each block, nanoseconds of its calls, bytes written for each byte
//! admitted, and how long it takes to recover a region from a real file, as the daemon does.
//!
//! `cargo run --release -p undercroft-backend --example ssd_cost -- FILE [GiB]`; the file is made, and removed at the
//! end.

use std::time::Instant;
use undercroft_backend::ssd::{SsdDevices, SsdRegion};
use undercroft_cache::NoFaults;
use undercroft_cache::ssd::{
    Admission, BootId, Format, Hint, Identity, Kept, Known, Media, Offered, Region, Ssd, SsdDone, SsdFound, SsdIoKind,
    Stamp, StoreId,
};
use undercroft_config::{SsdAdmission, SsdPlan};

const SEGMENT: u32 = 2 << 20;
const BOOT: BootId = BootId([1; 16]);

/// Does all that the store wants done.
fn pump(ssd: &mut Ssd, to: &mut SsdRegion) {
    let mut bytes = Vec::new();
    while let Some(mut io) = ssd.next_io(0) {
        bytes.clear();
        bytes.resize(io.buf.len as usize, 0);
        match io.kind {
            SsdIoKind::Read => {
                to.read_at(io.offset, &mut bytes).unwrap();
                let mut from = &bytes[..];
                for piece in io.buf.pieces_mut() {
                    let (now, rest) = from.split_at(piece.len());
                    piece.copy_from_slice(now);
                    from = rest;
                }
            }
            SsdIoKind::Write => {
                io.buf.copy_to(&mut bytes);
                to.write_at(io.offset, &bytes).unwrap();
            }
            SsdIoKind::Flush => to.flush().unwrap(),
            SsdIoKind::Discard => {}
        }
        ssd.io_done(SsdDone { id: io.id, device: io.device, buf: io.buf, is_done: true });
    }
}

/// The most memory that this process has had, in MiB.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).expect("KiB") >> 10
}

fn per(since: Instant, n: u64) -> u128 {
    since.elapsed().as_nanos() / u128::from(n)
}

/// Ends with a message.
fn refuse(why: &str) -> ! {
    eprintln!("ssd_cost: {why}");
    std::process::exit(2);
}

/// Takes the region over twice, and says how long that took.
fn recover(device: &mut SsdRegion, known: &Known, blocks: u64) {
    for turn in ["first", "again"] {
        // The peak begins anew.
        std::fs::write("/proc/self/clear_refs", "5").unwrap();
        let before = peak_mib();
        let start = Instant::now();
        let (region, _) = Region::recover(device, SEGMENT, BOOT, NoFaults).unwrap();
        let (took, peak) = (start.elapsed(), peak_mib() - before);
        let mut ssd: Ssd = Ssd::new(vec![region]);
        let kept = ssd.attach(known).map(|(_, kept)| kept);
        println!(
            "recovery, {turn}: {} ms, {peak} MiB of memory at most, {kept:?} of {blocks} blocks",
            took.as_millis()
        );
        assert!(matches!(kept, Ok(Kept::Blocks(n)) if n + n / 100 >= blocks));
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let (Some(path), Ok(gib)) = (args.next(), args.next().map_or(Ok(10), |n| n.parse::<u64>())) else {
        refuse("usage: ssd_cost FILE [GiB]")
    };
    // It is written over and removed: never a store or a device that somebody has.
    if std::fs::symlink_metadata(&path).is_ok() {
        refuse(&format!("{path} is there already: name a file that can be made"));
    }
    let plan = SsdPlan {
        memory_bytes: u64::MAX,
        paths: vec![path.clone().into()],
        size_bytes: Some(gib << 30),
        segment_bytes: SEGMENT.into(),
        writes_per_day_bytes: None,
        admit: SsdAdmission::All,
        format: false,
    };
    let devices = SsdDevices::open(&plan, 1).unwrap_or_else(|e| refuse(&e.to_string()));
    let mut device = devices.regions(0).remove(0);
    let format = Format { store: StoreId([7; 16]), segment_bytes: SEGMENT };
    let region = Region::format(&mut device, format, BOOT, NoFaults).unwrap();
    let mut ssd: Ssd = Ssd::new(vec![region]);
    ssd.set_admission(Admission::All);
    let known = Known { identity: Identity([1; 64]), stamp: Some(Stamp([2; 64])), blocks: 1 << 30 };
    let (owner, _) = ssd.attach(&known).unwrap();
    ssd.set_share(owner, 1 << 30);
    let room = ssd.stats()[0].room;
    println!("{room} blocks; bytes of memory per block: {:.2}", ssd.table_bytes_per_block_per_mille() as f64 / 1000.0);
    let mut bytes = [0u8; 4096];
    let spread = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 34;
    let mut offering = std::time::Duration::ZERO;
    // One and a half times what there is room for; what was admitted lately is read now and then.
    let offers = room * 3 / 2;
    for n in 0..offers {
        bytes[..8].copy_from_slice(&n.to_le_bytes());
        let start = Instant::now();
        let offered = ssd.offer(owner, spread(n), &bytes, Hint::default(), n * 1000);
        offering += start.elapsed();
        if n % 8 == 0 {
            ssd.lookup(owner, spread(n - n / 4));
        }
        if n % 64 == 63 || offered != Offered::Admitted {
            pump(&mut ssd, &mut device);
        }
    }
    println!("offer: {} ns, sum and copy among it", offering.as_nanos() / u128::from(offers));
    let start = Instant::now();
    let found = (0..1_000_000).filter(|n| ssd.lookup(owner, spread(offers - 1 - n % room)).is_some()).count();
    println!("lookup: {} ns, {found} of 1000000 found", per(start, 1_000_000));
    let last = (1..room).map(|n| spread(offers - n)).find_map(|block| match ssd.lookup(owner, block) {
        Some(SsdFound::Stored { offset, token, .. }) => Some((block, offset, token)),
        _ => None,
    });
    let (block, offset, token) = last.expect("a block on the device");
    device.read_at(offset, &mut bytes).unwrap();
    let start = Instant::now();
    for _ in 0..100_000 {
        std::hint::black_box(ssd.verify(owner, block, token, &bytes));
    }
    println!("verify: {} ns", per(start, 100_000));
    let written = ssd.stats()[0].written;
    println!("{written:?}: {} bytes written for 1000 admitted", written.amplification_per_mille());
    ssd.stop(&[(owner, Stamp([2; 64]))]);
    while !ssd.is_stopped() {
        pump(&mut ssd, &mut device);
    }
    let blocks = ssd.stats()[0].blocks;
    drop(ssd);
    recover(&mut device, &known, blocks);
    std::fs::remove_file(&path).unwrap();
}
