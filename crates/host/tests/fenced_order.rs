//! The order of a qcow2 image's tables behind the fence: the file after each single write that reached it, with QEMU's
//! check as the judge, and files that refuse to write a table.
//!
//! Owns a file that keeps a record and can be told to fail. Never stands for imago, which is the real one. Invariant:
//! what the record is replayed to is what a kill at that moment would have left.
#![cfg(feature = "imago")]

use imago::file::File;
use imago::io_buffers::{IoVector, IoVectorMut};
use imago::qcow2::Qcow2;
use imago::storage::drivers::CommonStorageHelper;
use imago::{DenyImplicitOpenGate, FormatAccess, FormatDriverBuilder, Storage, StorageOpenOptions};
use std::cell::Cell;
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, RwLock};
use undercroft_host::{Fence, FencedFile, Layout};
use undercroft_skips::by_length;

const SIZE: u64 = 8 << 20;
const EIO: i32 = 5;

thread_local! {
    /// The next question of this thread for an alignment waits.
    static HOLD: Cell<bool> = const { Cell::new(false) };
}

/// What reached the file, and what must not.
#[derive(Debug)]
struct Record {
    writes: Mutex<Vec<(u64, Vec<u8>)>>,
    bad: Mutex<Option<Range<u64>>>,
    /// Where a thread that is held waits: when it got there, and until it may go on.
    copied: Barrier,
    go: Barrier,
}

/// A file that keeps a record.
#[derive(Debug)]
struct Recorded {
    inner: File,
    record: Arc<Record>,
    /// What requests have to be aligned to.
    align: usize,
}

impl Recorded {
    /// Makes a change, alone, so that the record is in the order of the file.
    fn change(&self, offset: u64, data: Vec<u8>, change: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let range = offset..offset + data.len() as u64;
        let bad = self.record.bad.lock().unwrap().clone();
        if bad.is_some_and(|bad| bad.start < range.end && range.start < bad.end) {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        let mut writes = self.record.writes.lock().unwrap();
        change()?;
        writes.push((offset, data));
        Ok(())
    }
}

impl fmt::Display for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.inner, f)
    }
}

impl Storage for Recorded {
    fn mem_align(&self) -> usize {
        self.align
    }

    fn req_align(&self) -> usize {
        if HOLD.replace(false) {
            self.record.copied.wait();
            self.record.go.wait();
        }
        self.align
    }

    fn size(&self) -> io::Result<u64> {
        self.inner.size()
    }

    unsafe fn pure_readv(&self, bufv: IoVectorMut<'_>, offset: u64) -> io::Result<()> {
        // SAFETY: the caller's promises are passed on.
        unsafe { self.inner.pure_readv(bufv, offset) }
    }

    unsafe fn pure_writev(&self, bufv: IoVector<'_>, offset: u64) -> io::Result<()> {
        let mut data = vec![0; bufv.len() as usize];
        bufv.copy_into_slice(&mut data);
        // SAFETY: the caller's promises are passed on.
        self.change(offset, data, || unsafe { self.inner.pure_writev(bufv, offset) })
    }

    unsafe fn pure_write_zeroes(&self, offset: u64, length: u64) -> io::Result<()> {
        // SAFETY: the caller's promises are passed on.
        self.change(offset, vec![0; length as usize], || unsafe { self.inner.pure_write_zeroes(offset, length) })
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }

    unsafe fn invalidate_cache(&self) -> io::Result<()> {
        // SAFETY: the caller's promises are passed on.
        unsafe { self.inner.invalidate_cache() }
    }

    fn get_storage_helper(&self) -> &CommonStorageHelper {
        self.inner.get_storage_helper()
    }
}

fn qemu(program: &str, args: &[&str]) -> Option<i32> {
    let out = Command::new(program).args(args).output().expect("apt-get install qemu-utils");
    if !matches!(out.status.code(), Some(0 | 3)) {
        eprintln!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    }
    out.status.code()
}

fn word(data: &[u8], at: u64) -> u64 {
    u64::from_be_bytes(data[at as usize..][..8].try_into().unwrap())
}

fn half(data: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(data[at..at + 4].try_into().unwrap())
}

/// An image in use behind a fence.
struct Image {
    _dir: tempfile::TempDir,
    path: PathBuf,
    before: Vec<u8>,
    access: Option<FormatAccess<FencedFile<Recorded>>>,
    fence: Arc<Fence>,
    record: Arc<Record>,
    l1: u64,
    reftable: Range<u64>,
}

impl Image {
    fn new(options: &str, prepare: &[&str]) -> Self {
        Self::aligned(options, prepare, 512)
    }

    fn aligned(options: &str, prepare: &[&str], align: usize) -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let path = dir.path().join("a.qcow2");
        let name = path.to_str().unwrap();
        assert_eq!(qemu("qemu-img", &["create", "-q", "-f", "qcow2", "-o", options, name, &SIZE.to_string()]), Some(0));
        if !prepare.is_empty() {
            assert_eq!(qemu("qemu-io", &["-f", "qcow2", "-c", "write -P 17 0 1M", name]), Some(0));
            assert_eq!(qemu(prepare[0], &[&prepare[1..], &[name]].concat()), Some(0));
        }
        let before = std::fs::read(&path).unwrap();
        let cluster = 1u64 << half(&before, 20);
        let layout = Layout {
            l1_offset: word(&before, 40),
            l1_entries: half(&before, 36),
            reftable_offset: word(&before, 48),
            reftable_clusters: half(&before, 56),
            refcount_bits: 1 << half(&before, 96),
        };
        let l1 = &before[layout.l1_offset as usize..][..layout.l1_entries as usize * 8];
        let fence = Fence::in_order(cluster, Vec::new(), &layout, l1);
        fence.allow_writes();
        let record = Arc::new(Record {
            writes: Mutex::default(),
            bad: Mutex::default(),
            copied: Barrier::new(2),
            go: Barrier::new(2),
        });
        let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        let options = StorageOpenOptions::new().filename(&path).write(true);
        let inner = File::from_open_file(file, options).unwrap();
        let inner = Recorded { inner, record: Arc::clone(&record), align };
        let file = FencedFile::new(inner, Arc::clone(&fence));
        let image = Qcow2::<FencedFile<Recorded>>::builder(file).write(true).backing(None).data_file(None);
        let access = Some(FormatAccess::new(image.open(DenyImplicitOpenGate::default()).unwrap()));
        let reftable = layout.reftable_offset..layout.reftable_offset + u64::from(layout.reftable_clusters) * cluster;
        Self { _dir: dir, path, before, access, fence, record, l1: layout.l1_offset, reftable }
    }

    fn access(&self) -> &FormatAccess<FencedFile<Recorded>> {
        self.access.as_ref().unwrap()
    }

    /// As the back end does: what needs a new L2 table comes after a flush.
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if self.fence.lacks_table(offset, data.len() as u64) {
            self.access().flush()?;
        }
        self.access().write(data, offset)
    }

    fn bad(&self, range: Option<Range<u64>>) {
        *self.record.bad.lock().unwrap() = range;
    }

    /// Judges the file as it was after each write, or after every so many.
    fn judge(&self, every: usize, what: &str) {
        let writes = self.record.writes.lock().unwrap().clone();
        let mut file = self.before.clone();
        let copy = self.path.with_extension("killed");
        for (i, (offset, data)) in writes.iter().enumerate() {
            let end = *offset as usize + data.len();
            file.resize(file.len().max(end), 0);
            file[*offset as usize..end].copy_from_slice(data);
            if i % every == 0 || i + 1 == writes.len() {
                std::fs::write(&copy, &file).unwrap();
                let code = qemu("qemu-img", &["check", "-f", "qcow2", copy.to_str().unwrap()]);
                assert!(matches!(code, Some(0 | 3)), "{what}: after write {i} of {}, at {offset:#x}", writes.len());
            }
        }
    }

    /// Forgets the image as a kill does, and says what QEMU reads from it.
    fn killed(mut self) -> Vec<u8> {
        std::mem::forget(self.access.take());
        let (image, raw) = (self.path.to_str().unwrap(), self.path.with_extension("raw"));
        assert!(matches!(qemu("qemu-img", &["check", "-f", "qcow2", image]), Some(0 | 3)));
        assert_eq!(qemu("qemu-img", &["convert", "-f", "qcow2", "-O", "raw", image, raw.to_str().unwrap()]), Some(0));
        std::fs::read(raw).unwrap()
    }
}

fn errno(result: io::Result<()>) -> Option<i32> {
    result.err().and_then(|e| e.raw_os_error())
}

#[test]
fn after_every_single_write_the_image_is_sound() {
    for (options, prepare, every, align) in [
        ("cluster_size=4096", &[][..], 1, 512),
        ("cluster_size=4096,refcount_bits=2", &["qemu-img", "snapshot", "-c", "one"][..], 1, 4096),
        ("cluster_size=512,refcount_bits=64", &[][..], 3, 512),
        // Tables of several kinds in what is written at once.
        ("cluster_size=512,refcount_bits=64", &[][..], 3, 4096),
        ("cluster_size=512,refcount_bits=1", &[][..], 3, 512),
        ("cluster_size=1024,refcount_bits=8", &["qemu-img", "snapshot", "-c", "one"][..], 3, 4096),
    ] {
        let image = Image::aligned(options, prepare, align);
        // All over the disk, so that each write needs a table, and past what one refcount block, and one refcount
        // table, can count.
        for i in 0..96u64 {
            image.write(i * 7 % 64 * (SIZE / 64) + i / 64 * 4096, &[i as u8 | 1; 32768]).unwrap();
            if i % 20 == 19 {
                image.access().flush().unwrap();
            }
        }
        assert!(!image.fence.owes() && !image.fence.tripped());
        // Each judgement is a program that begins: at length as said, else one of three.
        image.judge(by_length(3, 1) * every, &format!("{options}, aligned to {align}"));
        image.killed();
    }
}

/// Entries of L2 tables that reached the file before the refcounts of their clusters; in images with clusters of 512
/// bytes and refcounts of 16 bits.
fn named_too_early(image: &Image) -> usize {
    const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
    let mut file = image.before.clone();
    let mut early = 0;
    for (offset, data) in image.record.writes.lock().unwrap().iter() {
        let end = *offset as usize + data.len();
        file.resize(file.len().max(end), 0);
        file[*offset as usize..end].copy_from_slice(data);
        if data.len() != 512 || !(0..256).any(|i| word(&file, image.l1 + i * 8) & OFFSET == *offset) {
            continue;
        }
        let table = word(&file, 48);
        let refcount = |cluster: u64| match word(&file, table + cluster / 256 * 8) {
            0 => 0,
            block => word(&file, block + cluster % 256 * 2 / 8 * 8) >> (48 - cluster % 4 * 16) & 0xffff,
        };
        let named = (0..64).map(|i| word(data, i * 8) & OFFSET).filter(|at| *at != 0);
        early += named.filter(|at| refcount(at / 512) == 0).count();
    }
    early
}

/// As the back end does: alone where a table is missing, and flushes not beside what allocates. imago first writes the
/// refcounts and then the tables, without stopping allocation in between, so it fails without that in most runs.
#[test]
fn after_every_write_of_many_threads_the_image_is_sound() {
    for round in 0..12 {
        let image = Image::new("cluster_size=512", &["qemu-img", "snapshot", "-c", "one"]);
        let (alone, apart, done) = (RwLock::new(()), RwLock::new(()), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for t in 0..4u64 {
                let (image, alone, apart, done) = (&image, &alone, &apart, &done);
                scope.spawn(move || {
                    while t == 0 && done.load(Ordering::Relaxed) < 3 {
                        let (_beside, _apart) = (alone.read().unwrap(), apart.write().unwrap());
                        image.access().flush().unwrap();
                        std::thread::yield_now();
                    }
                    for i in 0..400 * t.min(1) {
                        let offset = (i * 3 + t) * 7 % 32 * 32768 + (i / 10 * 4 + t) % 64 * 512;
                        if image.fence.lacks_table(offset, 512) {
                            let _alone = alone.write().unwrap();
                            image.write(offset, &[t as u8; 512]).unwrap();
                        } else {
                            let (_beside, _apart) = (alone.read().unwrap(), apart.read().unwrap());
                            image.access().write(&[t as u8; 512][..], offset).unwrap();
                        }
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                });
            }
        });
        assert_eq!(named_too_early(&image), 0, "round {round}");
        if round == 0 {
            image.judge(40, "threads");
        }
        image.killed();
    }
}

/// A flush has taken its copy of a refcount block before a table in a cluster that the block counts is allocated, and
/// writes it only after the table was named.
#[test]
fn an_older_copy_of_the_refcounts_does_not_undo_what_a_new_table_needs() {
    let image = Image::new("cluster_size=4096", &[]);
    image.write(0, &[1; 4096]).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // imago asks for the alignment of requests between taking the copy and writing it.
            HOLD.set(true);
            image.access().flush().unwrap();
        });
        image.record.copied.wait();
        let before = image.record.writes.lock().unwrap().len();
        // Waits for the flush with its data, when its table has been named already.
        let write = scope.spawn(|| image.access().write(&[2u8; 4096][..], 4 << 20).unwrap());
        let named = |(offset, data): &(u64, Vec<u8>)| {
            let range = *offset..*offset + data.len() as u64;
            range.contains(&(image.l1 + 16)) && word(data, image.l1 + 16 - offset) != 0
        };
        while !image.record.writes.lock().unwrap()[before..].iter().any(named) {
            std::thread::yield_now();
        }
        image.record.go.wait();
        write.join().unwrap();
    });
    image.judge(1, "an older copy");
    image.killed();
}

#[test]
fn an_entry_that_cannot_be_written_stops_all_that_would_build_on_it() {
    // Entries of the L1 table; of the refcount table, of which 32 KiB of clusters need a new one each.
    for table in ["L1 table", "refcount table"] {
        let image = Image::new("cluster_size=512,refcount_bits=64", &[]);
        image.write(0, &[1; 4096]).unwrap();
        image.access().flush().unwrap();
        let bad = if table == "L1 table" { image.l1..image.l1 + 2048 } else { image.reftable.clone() };
        image.bad(Some(bad));
        let place = |i: u64| 64 * 1024 + i * 32768;
        let failed = (0..32).find(|i| errno(image.write(place(*i), &[2; 32768])) == Some(EIO)).expect(table);
        assert!(image.fence.owes(), "{table}");
        // Before, a second attempt found the table in memory and succeeded, and so did the flush.
        for _ in 0..2 {
            assert_eq!(errno(image.write(place(failed), &[2; 32768])), Some(EIO), "{table}");
            assert_eq!(errno(image.access().flush()), Some(EIO), "{table}");
            assert_eq!(errno(image.write(0, &[3; 512])), Some(EIO), "{table}: nothing else is written meanwhile");
        }
        let mut now = vec![0; 4096];
        image.access().read(&mut now, 0).unwrap();
        assert!(now == [1; 4096], "{table}: reads go on");
        image.bad(None);
        for i in 0..24 {
            image.write(place(i), &[4 + i as u8; 32768]).unwrap();
        }
        image.access().flush().unwrap();
        assert!(!image.fence.owes() && !image.fence.tripped(), "{table}");
        image.judge(1, table);
        let now = image.killed();
        for i in 0..24 {
            assert!(now[place(i) as usize..][..32768] == [4 + i as u8; 32768], "{table}: {i} is gone");
        }
        assert!(now[..4096] == [1; 4096]);
    }
}

#[test]
fn a_refcount_table_whose_place_cannot_be_written_ends_writes() {
    let image = Image::new("cluster_size=512,refcount_bits=64", &[]);
    image.bad(Some(0..512));
    let failed = (0..256).find(|i| errno(image.write(i * 32768, &[9; 32768])) == Some(EIO)).unwrap();
    assert!(failed > 32, "more than a refcount table of one cluster counts");
    image.bad(None);
    assert!(image.fence.owes() && !image.fence.tripped());
    assert!(image.write(0, &[1; 512]).is_err() && image.access().flush().is_err());
    let mut now = vec![0; 4096];
    image.access().read(&mut now, 0).unwrap();
    assert!(now == [9; 4096]);
    image.judge(40, "place");
    image.killed();
}

#[test]
fn without_a_new_table_nothing_is_read_or_written_in_addition() {
    let image = Image::new("cluster_size=65536", &["qemu-io", "-f", "qcow2", "-c", "write 0 64k"]);
    assert!(!image.fence.lacks_table(0, SIZE));
    for i in 0..64u64 {
        image.write(i * 65536, &[1; 65536]).unwrap();
    }
    assert_eq!(image.record.writes.lock().unwrap().len(), 64, "one write each");
}
