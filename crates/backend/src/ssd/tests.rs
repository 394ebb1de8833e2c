//! Files and devices of a store: made, found again, refused, and read and written through their regions.
//!
//! Owns the files. Tests that need direct I/O or a loop device are skipped where there is none.

use super::*;
use crate::Backend;
use std::fs;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;
use undercroft_cache::ssd::Media;
use undercroft_cache::{DiskId, Io, IoDone, IoError, IoKind, IoTarget, OpId};
use undercroft_config::SsdAdmission;
use undercroft_host::loop_device::LoopDevice;
use undercroft_host::{Arena, Epoll, FRAME_BYTES, Interest, IoBuf, Trigger};

const MIB: u64 = 1 << 20;
const SEGMENT: u64 = 256 << 10;

struct Place(tempfile::TempDir);

impl Place {
    /// A directory on a file system with direct I/O; `None`, and a skip, if there is none.
    fn new() -> Option<Self> {
        let place = Self(tempfile::tempdir().unwrap());
        match SsdDevices::open(&place.plan(&["probe"]), 1) {
            Err(SsdError::NotDirect { .. }) => {
                undercroft_skips::skip("the file system of the temporary directory has no direct I/O");
                None
            }
            _ => Some(place),
        }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn plan(&self, names: &[&str]) -> SsdPlan {
        SsdPlan {
            memory_bytes: 64 << 20,
            paths: names.iter().map(|n| self.at(n)).collect(),
            size_bytes: Some(16 * MIB),
            segment_bytes: SEGMENT,
            writes_per_day_bytes: None,
            admit: SsdAdmission::Second,
            format: false,
        }
    }
}

/// Why a plan is refused.
fn refused(plan: &SsdPlan, workers: u32) -> String {
    SsdDevices::open(plan, workers).expect_err("it is to be refused").to_string()
}

#[test]
fn what_is_missing_is_made_reserved_and_found_again() {
    let Some(place) = Place::new() else { return };
    let plan = place.plan(&["a", "b"]);
    let store = SsdDevices::open(&plan, 3).unwrap();
    assert_eq!(store.made(), Some("there was none"));
    let id = store.id();
    assert_ne!(id, SetId::default());
    for (info, name) in store.info().zip(["a", "b"]) {
        let meta = fs::metadata(place.at(name)).unwrap();
        assert_eq!((meta.len(), meta.permissions().mode() & 0o777), (16 * MIB, 0o600));
        assert!(std::os::unix::fs::MetadataExt::blocks(&meta) * 512 >= 16 * MIB, "its space is reserved");
        assert_eq!((info.used_bytes, info.is_device), (16 * MIB, false));
        assert_eq!(info.region_bytes, 21 * SEGMENT);
    }
    assert_eq!(store.regions(2).len(), 2);
    assert!(store.regions(3).is_empty(), "there is no fourth worker");
    drop(store);
    let again = SsdDevices::open(&plan, 3).unwrap();
    assert_eq!((again.id(), again.made()), (id, None));
}

/// Descriptors as another process gets them, which has none of this one's claims.
fn passed_on(store: SsdDevices) -> (SetId, Vec<Vec<OwnedFd>>) {
    let own = |of: Vec<BorrowedFd<'_>>| of.into_iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
    (store.id(), store.descriptors().map(own).collect())
}

#[test]
fn what_another_process_passes_on_is_its_store_or_nothing() {
    let Some(place) = Place::new() else { return };
    let plan = place.plan(&["a", "b"]);
    let (id, files) = passed_on(SsdDevices::open(&plan, 2).unwrap());
    let store = SsdDevices::passed(&plan, 2, id, files).unwrap();
    assert_eq!((store.id(), store.made(), store.regions(1).len()), (id, None, 2));
    store.claim().unwrap();
    let refused =
        |plan: &SsdPlan, workers, id, files| SsdDevices::passed(plan, workers, id, files).unwrap_err().to_string();
    let (id, mut files) = passed_on(store);
    let why = refused(&plan, 2, SetId::default(), files.iter().map(|of| vec![of[0].try_clone().unwrap()]).collect());
    assert!(why.contains("another store"), "{why}");
    let why = refused(&plan, 3, id, files.iter().map(|of| vec![of[0].try_clone().unwrap()]).collect());
    assert!(why.contains("workers"), "{why}");
    let why =
        refused(&place.plan(&["b", "a"]), 2, id, files.iter().map(|of| vec![of[0].try_clone().unwrap()]).collect());
    assert!(why.contains("another file is there now"), "{why}");
    files.pop();
    let why = refused(&plan, 2, id, files);
    assert!(why.contains("other files"), "{why}");
    // One that goes through the page cache, or is no file.
    for name in ["a", "/dev/null"] {
        let other = fs::File::options().read(true).write(true).open(place.at(name)).unwrap();
        let why = refused(&place.plan(&["a"]), 2, id, vec![vec![other.into()]]);
        assert!(why.contains("taking it over"), "{why}");
    }
}

#[test]
fn regions_keep_what_is_written_and_apart() {
    let Some(place) = Place::new() else { return };
    let plan = place.plan(&["a", "b"]);
    let store = SsdDevices::open(&plan, 2).unwrap();
    let mut regions: Vec<SsdRegion> = [store.regions(0), store.regions(1)].concat();
    let last = regions[0].bytes() - FRAME_BYTES as u64;
    for (region, n) in regions.iter_mut().zip(1..) {
        region.write_at(0, &[n; 5 * FRAME_BYTES]).unwrap();
        region.write_at(last, &[n; FRAME_BYTES]).unwrap();
        region.flush().unwrap();
    }
    drop((store, regions));
    let store = SsdDevices::open(&plan, 2).unwrap();
    for (region, n) in [store.regions(0), store.regions(1)].concat().iter_mut().zip(1..) {
        let mut bytes = vec![0; 100 * FRAME_BYTES];
        region.read_at(0, &mut bytes).unwrap();
        assert!(bytes[..5 * FRAME_BYTES].iter().all(|b| *b == n) && bytes[5 * FRAME_BYTES..].iter().all(|b| *b == 0));
        region.read_at(last, &mut bytes[..FRAME_BYTES]).unwrap();
        assert!(bytes[..FRAME_BYTES].iter().all(|b| *b == n), "region {n}");
        for (offset, len) in [(last, 2 * FRAME_BYTES), (512, FRAME_BYTES), (0, 512), (u64::MAX - 4095, FRAME_BYTES)] {
            assert!(region.read_at(offset, &mut vec![0; len]).is_err(), "{offset} and {len}");
            assert!(region.write_at(offset, &vec![0; len]).is_err(), "{offset} and {len}");
        }
    }
}

#[test]
fn many_places_are_read_as_one_by_one() {
    let Some(place) = Place::new() else { return };
    let store = SsdDevices::open(&place.plan(&["a"]), 1).unwrap();
    let mut region = store.regions(0).remove(0);
    let block = FRAME_BYTES as u64;
    for n in 0..100 {
        region.write_at(n * block, &[n as u8; FRAME_BYTES]).unwrap();
    }
    let outside = region.bytes();
    for count in [0, 1, 2, 7, 8, 9, 63, 100] {
        // From the end to the start, and one that is not there among them.
        let mut offsets: Vec<u64> = (0..count).rev().map(|n| n * block).collect();
        if let Some(third) = offsets.get_mut(2) {
            *third = outside;
        }
        let mut bytes = vec![0xee; count as usize * FRAME_BYTES];
        let read = region.read_many(&offsets, &mut bytes);
        assert_eq!(read, offsets.iter().map(|offset| *offset != outside).collect::<Vec<_>>());
        for (offset, bytes) in offsets.iter().zip(bytes.chunks(FRAME_BYTES)) {
            let expected = if *offset == outside { 0xee } else { (offset / block) as u8 };
            assert!(bytes.iter().all(|b| *b == expected), "{count} places, the one at {offset}");
        }
    }
}

#[test]
fn a_store_that_does_not_fit_is_made_anew_only_where_that_is_allowed() {
    let Some(place) = Place::new() else { return };
    let plan = place.plan(&["a", "b"]);
    let id = SsdDevices::open(&plan, 2).unwrap().id();
    let other = |change: &dyn Fn(&mut SsdPlan)| {
        let mut other = plan.clone();
        change(&mut other);
        other
    };
    let says = |plan: &SsdPlan, workers: u32, needle: &str| {
        let said = refused(plan, workers);
        assert!(said.contains(needle) && said.contains("set `format = true` in [ssd]"), "{said}");
    };
    says(&plan, 4, "it was made for 2 workers, and there are 4");
    says(&other(&|p| p.segment_bytes = 2 * SEGMENT), 2, "262144 bytes a segment, and there are 524288");
    says(&other(&|p| p.size_bytes = Some(8 * MIB)), 2, "made with 16777216 bytes, and is to have 8388608");
    says(&other(&|p| p.paths.reverse()), 2, "it was number 2 of 2 of the paths, and is number 1 of 2");
    says(&other(&|p| _ = p.paths.pop()), 2, "it was number 1 of 2 of the paths, and is number 1 of 1");
    says(&other(&|p| p.paths[1] = place.at("c")), 2, "c holds none, and others do");
    assert!(!place.at("c").exists(), "what came of nothing is gone");
    // All of these left it as it is.
    assert_eq!(SsdDevices::open(&plan, 2).unwrap().id(), id);
    let two = SsdDevices::open(&place.plan(&["c", "d"]), 2).unwrap().id();
    assert_ne!(two, id);
    says(&other(&|p| p.paths[1] = place.at("d")), 2, "d belongs to another store than the first");
    let anew = SsdDevices::open(&other(&|p| p.format = true), 4).unwrap();
    assert!(anew.made().is_some_and(|why| why.contains("2 workers")) && anew.id() != id);
    drop(anew);
    assert_eq!(SsdDevices::open(&other(&|p| p.format = true), 4).unwrap().made(), None, "once");
}

#[test]
fn nothing_that_holds_something_else_is_written_over() {
    let Some(place) = Place::new() else { return };
    let plan = SsdPlan { format: true, ..place.plan(&["a"]) };
    let marked = |offset: u64| {
        let file = File::create(place.at("a")).unwrap();
        file.set_len(16 * MIB).unwrap();
        file.write_all_at(b"mark", offset).unwrap();
        fs::read(place.at("a")).unwrap()
    };
    for (offset, whence) in [(0, "at its start"), (1080, "at its start"), (65_600, "within its first MiB")] {
        let before = marked(offset);
        let said = refused(&plan, 1);
        assert!(said.contains(whence) && said.contains("remove it: `rm "), "{said}");
        assert!(fs::read(place.at("a")).unwrap() == before, "{whence}");
    }
    let before = marked(16 * MIB - 4096);
    assert!(refused(&plan, 1).contains("within its last MiB"));
    assert!(fs::read(place.at("a")).unwrap() == before);
    fs::write(place.at("a"), "a text").unwrap();
    assert!(refused(&plan, 1).contains("holds something that is no SSD store"));
    // Zeroes alone hold nothing.
    File::create(place.at("a")).unwrap().set_len(16 * MIB).unwrap();
    SsdDevices::open(&SsdPlan { format: false, ..plan }, 1).unwrap();
}

#[test]
fn a_damaged_first_sector_is_a_store_that_does_not_fit() {
    let Some(place) = Place::new() else { return };
    let plan = place.plan(&["a"]);
    drop(SsdDevices::open(&plan, 1).unwrap());
    File::options().write(true).open(place.at("a")).unwrap().write_all_at(&[0xff], 60).unwrap();
    assert!(refused(&plan, 1).contains("its first sector is damaged"));
    SsdDevices::open(&SsdPlan { format: true, ..plan }, 1).unwrap();
}

#[test]
fn two_stores_cannot_have_one_file_and_no_disk_has_it() {
    let Some(place) = Place::new() else { return };
    let plan = place.plan(&["a"]);
    let store = SsdDevices::open(&plan, 1).unwrap();
    assert!(refused(&plan, 1).contains("it is in use by the SSD store"));
    let location = place.at("a").display().to_string();
    let spec = crate::ImageSpec { location, format: None, read_only: true };
    let Err(disk) = crate::open(&spec, &crate::OpenOptions::default()) else { panic!("a disk has it") };
    assert!(disk.to_string().contains("belongs to the SSD store"), "{disk}");
    let regions = store.regions(0);
    drop((store, regions));
    drop(SsdDevices::open(&plan, 1).unwrap());
}

/// What another process holds, a daemon or QEMU, is told by the kernel; here by its own lock on the same file.
#[test]
fn a_file_that_another_program_has_is_refused() {
    let Some(place) = Place::new() else { return };
    let plan = place.plan(&["a"]);
    drop(SsdDevices::open(&plan, 1).unwrap());
    let (other, _) = undercroft_host::DiskFile::open(&place.at("a"), false, undercroft_host::Direct::No).unwrap();
    assert_eq!(undercroft_host::claim(&other, false, true).unwrap(), undercroft_host::Claim::Held);
    let said = refused(&plan, 1);
    assert!(said.contains("each daemon needs files and devices of its own"), "{said}");
    drop(other);
    drop(SsdDevices::open(&plan, 1).unwrap());
}

#[test]
fn a_file_system_without_direct_io_is_refused_and_left_as_it_was() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
        return undercroft_skips::skip("there is no /dev/shm");
    };
    let place = Place(dir);
    match SsdDevices::open(&place.plan(&["a"]), 1) {
        Err(e @ SsdError::NotDirect { .. }) => {
            assert!(e.to_string().contains("tmpfs has none"), "{e}");
            assert!(!place.at("a").exists(), "what was made is gone");
        }
        Err(e) => panic!("{e}"),
        Ok(_) => undercroft_skips::skip("tmpfs of this kernel has direct I/O"),
    }
}

#[test]
fn no_room_is_said_and_what_there_is_given_back() {
    let Some(place) = Place::new() else { return };
    let plan = SsdPlan { size_bytes: Some(1 << 50), ..place.plan(&["a", "b"]) };
    let said = refused(&plan, 1);
    assert!(said.contains("No space for") || said.contains("reserving its space"), "{said}");
    assert!(!place.at("a").exists() && !place.at("b").exists());
}

#[test]
fn what_is_too_small_or_no_file_is_refused() {
    let Some(place) = Place::new() else { return };
    let plan = SsdPlan { segment_bytes: 2 * MIB, ..place.plan(&["a"]) };
    let said = refused(&plan, 2);
    assert!(said.contains("16MiB are too few for 2 workers and segments of 2MiB; give it at least 34MiB"), "{said}");
    fs::create_dir(place.at("dir")).unwrap();
    assert!(refused(&place.plan(&["dir"]), 1).contains("a directory"));
    assert!(refused(&place.plan(&["no/where"]), 1).contains("making it"));
}

/// Waits for everything that a back end has.
fn drain(backend: &mut dyn Backend) -> Vec<IoDone> {
    let mut epoll = Epoll::new().unwrap();
    epoll.add(backend.wake_fd(), 0, Interest::Read, Trigger::Level).unwrap();
    let mut all = Vec::new();
    backend.kick();
    while backend.inflight() > 0 {
        if !backend.poll(&mut all) && backend.inflight() > 0 {
            let _ = epoll.wait(Some(10_000_000_000)).unwrap().count();
        }
    }
    all.sort_by_key(|d| d.op.0);
    all
}

fn a_worker_writes_and_reads(region: &SsdRegion) {
    let (mut backend, no_ring) = region.backend().unwrap();
    assert_eq!(backend.describe() == "io_uring", no_ring.is_none());
    let mut arena = Arena::new(64).unwrap();
    let io = |arena: &mut Arena, number: u64, kind, offset, blocks: u32| {
        let has_buffer = matches!(kind, IoKind::Read | IoKind::Write { .. });
        let frames = (0..blocks * u32::from(has_buffer)).map(|_| arena.take().unwrap());
        let mut buf = IoBuf { frames: frames.collect(), head: 0, len: 0 };
        buf.len = (buf.frames.len() * FRAME_BYTES) as u32;
        let len = u64::from(blocks) * FRAME_BYTES as u64;
        Io { op: OpId(number), disk: DiskId(0), target: IoTarget::Image, kind, offset, len, buf }
    };
    let results = |arena: &mut Arena, backend: &mut dyn Backend, written: &[u64]| {
        let mut results = Vec::new();
        for done in drain(backend) {
            let mut there = vec![0; done.buf.len as usize];
            done.buf.copy_to(&mut there);
            assert!(!written.contains(&done.op.0) || there.iter().all(|b| *b == 7), "what was written");
            results.push(done.result);
            done.buf.frames.into_iter().for_each(|f| arena.put(f));
        }
        assert_eq!(arena.available(), 64, "every buffer came back");
        results
    };
    let (write, last) = (IoKind::Write { fua: false }, region.bytes() - FRAME_BYTES as u64);
    let mut first = io(&mut arena, 1, write, SEGMENT, 16);
    first.buf.copy_from(&[7; 16 * FRAME_BYTES]);
    backend.submit(first);
    backend.submit(io(&mut arena, 2, write, last, 16));
    backend.submit(io(&mut arena, 3, IoKind::Read, last + FRAME_BYTES as u64, 1));
    backend.submit(io(&mut arena, 4, IoKind::Read, 512, 1));
    let outside = Err(IoError::Invalid);
    assert_eq!(results(&mut arena, &mut *backend, &[]), [Ok(()), outside, outside, outside]);
    backend.submit(io(&mut arena, 5, IoKind::Flush, 0, 0));
    backend.submit(io(&mut arena, 6, IoKind::Read, SEGMENT, 16));
    assert_eq!(results(&mut arena, &mut *backend, &[6]), [Ok(()), Ok(())]);
    backend.submit(io(&mut arena, 7, IoKind::Discard, SEGMENT, 64));
    backend.submit(io(&mut arena, 8, IoKind::Discard, region.bytes(), 64));
    backend.submit(io(&mut arena, 9, IoKind::Status, 0, 1));
    assert_eq!(results(&mut arena, &mut *backend, &[]), [Ok(()), outside, Err(IoError::Unsupported)]);
}

#[test]
fn a_worker_stays_within_its_region() {
    let Some(place) = Place::new() else { return };
    let store = SsdDevices::open(&place.plan(&["a"]), 2).unwrap();
    let mut other = store.regions(1).remove(0);
    other.write_at(0, &[9; FRAME_BYTES]).unwrap();
    a_worker_writes_and_reads(&store.regions(0)[0]);
    let mut bytes = vec![0; 32 * FRAME_BYTES];
    other.read_at(0, &mut bytes).unwrap();
    assert!(bytes[..FRAME_BYTES].iter().all(|b| *b == 9) && bytes[FRAME_BYTES..].iter().all(|b| *b == 0));
    store.regions(0)[0].read_at(SEGMENT, &mut bytes[..FRAME_BYTES]).unwrap();
    assert!(bytes[..FRAME_BYTES].iter().all(|b| *b == 0), "discarded");
}

/// A block device of a file.
fn loop_device(file: &Path) -> Option<LoopDevice> {
    let backing = File::options().read(true).write(true).open(file).unwrap();
    match LoopDevice::attach(&backing, "undercroft-test", false) {
        Ok(device) => Some(device),
        Err(e) => {
            undercroft_skips::skip(format_args!("there is no loop device: {e:?}"));
            None
        }
    }
}

#[test]
fn a_block_device_is_used_whole_and_alone() {
    let Some(place) = Place::new() else { return };
    File::create(place.at("backing")).unwrap().set_len(64 * MIB).unwrap();
    let Some(device) = loop_device(&place.at("backing")) else { return };
    let path = PathBuf::from(device.path());
    let plan = SsdPlan { paths: vec![path.clone()], size_bytes: None, ..place.plan(&[]) };
    let store = SsdDevices::open(&plan, 2).unwrap();
    let info = store.info().next().unwrap();
    assert!(info.is_device && info.used_bytes == 64 * MIB, "{info:?}");
    a_worker_writes_and_reads(&store.regions(1)[0]);
    let busy = rustix::fs::open(&path, rustix::fs::OFlags::RDWR | rustix::fs::OFlags::EXCL, rustix::fs::Mode::empty());
    assert_eq!(busy.err(), Some(rustix::io::Errno::BUSY), "nobody can mount it");
    let id = store.id();
    drop(store);
    assert_eq!(SsdDevices::open(&plan, 2).unwrap().id(), id);
    let part = SsdPlan { size_bytes: Some(32 * MIB), format: true, ..plan.clone() };
    assert_eq!(SsdDevices::open(&part, 2).unwrap().info().next().unwrap().used_bytes, 32 * MIB);
    // As if the kernel had mounted it.
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::EXCL;
    let mounted = rustix::fs::open(&path, flags, rustix::fs::Mode::empty()).unwrap();
    assert!(refused(&part, 2).contains("in use by the kernel"));
    drop(mounted);
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(&vec![0; MIB as usize], 0).unwrap();
    file.write_all_at(b"\x53\xef", 1080).unwrap();
    file.sync_all().unwrap();
    drop(file);
    let said = refused(&part, 2);
    assert!(said.contains("is not written over") && said.contains("blkdiscard"), "{said}");
}
