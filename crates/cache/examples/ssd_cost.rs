//! What the store on SSDs costs: bytes of memory for each block, nanoseconds of its calls, bytes written for each byte
//! admitted, and how long it takes to recover a region from a real file.
//!
//! `cargo run --release -p undercroft-cache --example ssd_cost -- FILE [GiB [direct]]`; the file is made, and removed
//! at the end. With `direct` it is read and written with O_DIRECT, as the daemon does.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::Instant;
use undercroft_cache::NoFaults;
use undercroft_cache::ssd::{
    Admission, BootId, Format, Hint, Identity, Kept, Known, Media, Offered, Region, Ssd, SsdDone, SsdFound, SsdIoKind,
    Stamp, StoreId,
};

const SEGMENT: u32 = 2 << 20;
const BOOT: BootId = BootId([1; 16]);

/// Of Linux on x86-64.
const O_DIRECT: i32 = 0o40000;
const ALIGN: usize = 4096;

/// A region in a file. Everything passes through one aligned buffer, which direct I/O asks for.
struct OfFile {
    file: File,
    bytes: u64,
    buffer: Vec<u8>,
}

impl OfFile {
    fn new(file: &File, bytes: u64) -> OfFile {
        OfFile { file: file.try_clone().unwrap(), bytes, buffer: Vec::new() }
    }

    /// The buffer, `len` bytes of it.
    fn aligned(&mut self, len: usize) -> &mut [u8] {
        if self.buffer.len() < len + ALIGN {
            self.buffer = vec![0; len + ALIGN];
        }
        let at = self.buffer.as_ptr().align_offset(ALIGN);
        &mut self.buffer[at..at + len]
    }

    /// Reads into pieces that follow each other in the file.
    fn read<'a>(&mut self, offset: u64, pieces: impl Iterator<Item = &'a mut [u8]>, len: usize) -> io::Result<()> {
        let file = self.file.try_clone()?;
        let mut from: &[u8] = {
            let buffer = self.aligned(len);
            file.read_exact_at(buffer, offset)?;
            buffer
        };
        for piece in pieces {
            let (head, rest) = from.split_at(piece.len());
            piece.copy_from_slice(head);
            from = rest;
        }
        Ok(())
    }

    /// Writes pieces one behind the other.
    fn write<'a>(&mut self, offset: u64, pieces: impl Iterator<Item = &'a [u8]>, len: usize) -> io::Result<()> {
        let file = self.file.try_clone()?;
        let buffer = self.aligned(len);
        let mut at = 0;
        for piece in pieces {
            buffer[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        file.write_all_at(buffer, offset)
    }
}

impl Media for OfFile {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        let len = to.len();
        self.read(offset, std::iter::once(to), len)
    }

    fn write_at(&mut self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.write(offset, std::iter::once(from), from.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// Does all that the store wants done.
fn pump(ssd: &mut Ssd, to: &mut OfFile) {
    while let Some(mut io) = ssd.next_io() {
        let len = io.buf.pieces().map(<[u8]>::len).sum();
        match io.kind {
            SsdIoKind::Read => to.read(io.offset, io.buf.pieces_mut(), len).unwrap(),
            SsdIoKind::Write => to.write(io.offset, io.buf.pieces(), len).unwrap(),
            SsdIoKind::Flush => to.flush().unwrap(),
            SsdIoKind::Discard => {}
        }
        ssd.io_done(SsdDone { id: io.id, device: io.device, buf: io.buf, is_done: true });
    }
}

fn per(since: Instant, n: u64) -> u128 {
    since.elapsed().as_nanos() / u128::from(n)
}

fn main() {
    let mut args = std::env::args().skip(1);
    let path = args.next().expect("a file to make");
    let gib: u64 = args.next().map_or(10, |n| n.parse().expect("a number of GiB"));
    let is_direct = args.next().is_some_and(|word| word == "direct");
    let flags = if is_direct { O_DIRECT } else { 0 };
    let file = OpenOptions::new().read(true).write(true).create_new(true).custom_flags(flags).open(&path).unwrap();
    file.set_len(gib << 30).unwrap();
    let media = || OfFile::new(&file, gib << 30);
    let mut device = media();
    let format = Format { store: StoreId([7; 16]), segment_bytes: SEGMENT };
    let region = Region::format(&mut media(), format, BOOT, NoFaults).unwrap();
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
    let caches = if is_direct {
        ["direct I/O, first", "direct I/O, again"]
    } else {
        ["not in the page cache", "in the page cache"]
    };
    for cache in caches {
        if cache.starts_with("not") {
            // As root only; otherwise both are of the page cache.
            let _ = std::fs::write("/proc/sys/vm/drop_caches", "1");
        }
        let start = Instant::now();
        let (region, _) = Region::recover(&mut media(), SEGMENT, BOOT, NoFaults).unwrap();
        let took = start.elapsed();
        let mut ssd: Ssd = Ssd::new(vec![region]);
        let kept = ssd.attach(&known).map(|(_, kept)| kept);
        println!("recovery, {cache}: {} ms, {kept:?} of {blocks} blocks", took.as_millis());
        assert!(matches!(kept, Ok(Kept::Blocks(n)) if n + n / 100 >= blocks));
    }
    std::fs::remove_file(&path).unwrap();
}
