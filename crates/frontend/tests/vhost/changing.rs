//! A guest that changes what it asks for while that is read: what was checked is what is done.
//!
//! Owns what changes, and when. Never changes where a status goes, so that each chain can be answered. Invariant:
//! whatever the guest writes meanwhile, what goes to the disk is something that it asked for, inside the disk; its
//! chain comes back once, and says what was done.

use super::*;
use std::cell::Cell;
use std::ops::Range;
use std::panic::catch_unwind;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use undercroft_cache::Request;
use undercroft_frontend::faults::PortBug;
use undercroft_frontend::vhost::parts::MemoryWindow;
use undercroft_porttest::faults::{at_fetches, plant};
use undercroft_skips::by_length;
use vm_memory::Bytes;

/// What a word is in turn: a part of one request, of another, and nonsense. Two of them differ in one byte, or whatever
/// their bytes make when they are mixed is nonsense, too: to read a number byte by byte is no mistake.
type Versions = [u64; 3];

/// Together with `LENGTHS` or `COUNTS`: more than a sector of the last one is past the end of the disk.
const SECTORS: Versions = [0xff, 0x7ff, 0x8000_0000_0000_07ff];
const LENGTHS: Versions = [4096, 512, 0xff00_0200];
const COUNTS: Versions = [8, 1, 0xff00_0001];

/// What makes nonsense of a kind of request, and of an address.
const NO_KIND: u64 = 0x0100_0000;
const NOWHERE: u64 = 0x80_0000;

/// What can be asked for by any of the versions that make sense: offsets and lengths, in bytes.
const PLACES: [(u64, u64); 3] = [(0xff * 512, 4096), (0xff * 512, 512), (0x7ff * 512, 512)];

/// Buffers of 4 KiB that a request can have: to write from, with what stands in them, and to read to.
const SOURCES: [(u64, u8); 2] = [(BUFFER, 0x11), (BUFFER + 0x2000, 0x22)];
const TARGETS: [u64; 2] = [BUFFER + 0x4000, BUFFER + 0x6000];

/// What stands in the latter before a read.
static UNTOUCHED: [u8; 4096] = [0xee; 4096];

/// Of which kind the two requests are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// A read and a write: each has a buffer of its own in the chain.
    Data,
    /// A discard and a write of zeroes, of one range or two.
    Ranges,
}

/// Words of 8 bytes in the guest's memory that change.
#[derive(Clone)]
struct Words(Vec<(MemoryWindow, Versions)>);

impl Words {
    fn new(guest: &Guest, words: Vec<(u64, Versions)>) -> Words {
        let window = |at: u64| {
            let holds = |r: &&MemoryRegion| (r.guest..r.guest + r.len).contains(&at);
            let region = guest.map.regions().iter().find(holds).expect("the words are in memory");
            MemoryWindow::new(Arc::clone(&region.mapping), (at - region.guest) as usize, 8).expect("all of each is")
        };
        Words(words.into_iter().map(|(at, versions)| (window(at), versions)).collect())
    }

    /// Gives one word the value of a version, or all of them.
    fn set(&self, which: Option<usize>, version: usize) {
        for (n, (window, versions)) in self.0.iter().enumerate() {
            if which.is_none_or(|which| which == n) {
                window.slice().store(versions[version].to_le(), 0, Ordering::Release).expect("words are aligned");
            }
        }
    }
}

/// A change of one word or of all, and when it is made and taken back: before which reading of the device.
#[derive(Clone, Debug, Default)]
struct Change {
    which: Option<usize>,
    from: usize,
    to: usize,
    during: Range<usize>,
}

/// A device, and a guest with one request that changes.
struct Scene {
    rig: Rig,
    shape: Shape,
    words: Words,
    /// For whoever reads what is wrong.
    change: Change,
}

impl Scene {
    fn new(shape: Shape) -> Scene {
        let rig = rig();
        let table = Guest::ring(0)[0];
        // The two words of a descriptor.
        let address = |n: u64, at: [u64; 2]| (table + 16 * n, [at[0], at[1], at[1] | NOWHERE]);
        let rest = |n: u64, lengths: Versions, flags: u16| {
            (table + 16 * n + 8, lengths.map(|len| len | u64::from(flags | NEXT) << 32 | (n + 1) << 48))
        };
        let kinds = |a: u32, b: u32| (HEADER, [u64::from(a), u64::from(b), u64::from(b) | NO_KIND]);
        let (header, source, status) = ((HEADER, 16, 0), (SOURCES[0].0, 4096, 0), (STATUS, 1, WRITE));
        let mut words = Vec::new();
        match shape {
            Shape::Data => {
                rig.guest.chain(table, 0, &[header, source, (TARGETS[0], 4096, WRITE), status]);
                SOURCES.iter().for_each(|&(at, byte)| rig.guest.write(at, &[byte; 4096]));
                words.extend([kinds(IN, OUT), (HEADER + 8, SECTORS)]);
                words.extend([address(1, SOURCES.map(|(at, _)| at)), rest(1, LENGTHS, 0)]);
                words.extend([address(2, TARGETS), rest(2, LENGTHS, WRITE)]);
            }
            Shape::Ranges => {
                rig.guest.chain(table, 0, &[header, source, status]);
                words.push(kinds(DISCARD, WRITE_ZEROES));
                words.extend([address(1, [BUFFER, BUFFER + 16]), rest(1, [32, 16, 0xff00_0010], 0)]);
                // The first two of three ranges, or the second one, or the last two.
                words.extend((0..3).flat_map(|n| [(BUFFER + 16 * n, SECTORS), (BUFFER + 16 * n + 8, COUNTS)]));
            }
        }
        let words = Words::new(&rig.guest, words);
        words.set(None, 0);
        Scene { rig, shape, words, change: Change::default() }
    }

    /// The guest posts its request. Whatever that is by the time at which it is read: it is one that the guest asked
    /// for, or is refused, and the guest is told so. Returns what went to the disk.
    fn serve(&mut self) -> Vec<Request> {
        let Scene { rig, shape, change, .. } = self;
        rig.taken.clear();
        rig.guest.write(STATUS, &[0xff]);
        TARGETS.iter().for_each(|&at| rig.guest.write(at, &UNTOUCHED));
        rig.guest.offer(0, 0);
        let requests = rig.take();
        for r in &requests {
            assert!(PLACES.contains(&(r.offset, r.len)), "nobody asked for {r:?}: {change:?}");
            if matches!(r.op, Op::Write { .. }) {
                rig.disk[range(r)].fill(0);
            }
            rig.serve(*r);
        }
        rig.port.flush(SEND_BYTES);
        let (used, status) = (rig.guest.used(0), rig.guest.read(STATUS, 1)[0]);
        let targets = TARGETS.map(|at| rig.guest.read(at, 4096));
        let untouched = targets.iter().all(|target| *target == UNTOUCHED);
        let (good, written) = match (*shape, &requests[..]) {
            (_, []) => (matches!(status, IOERR | UNSUPP) && untouched, 1),
            (Shape::Data, [r]) if r.op == Op::Read => {
                (status == OK && is_filled(&targets, &rig.disk[range(r)]), r.len as u32 + 1)
            }
            (Shape::Data, [r]) if r.op == Op::Write { fua: false } => {
                let bytes = &rig.disk[range(r)];
                let whole = SOURCES.iter().any(|&(_, byte)| bytes.iter().all(|&b| b == byte));
                (status == OK && whole && untouched, 1)
            }
            (Shape::Ranges, [r] | [r, _]) => {
                let may = [Op::Discard, Op::WriteZeroes { unmap: false, fua: false }];
                let alike = requests.iter().all(|other| other.op == r.op);
                (status == OK && may.contains(&r.op) && alike && untouched, 1)
            }
            _ => (false, 1),
        };
        assert!(good, "status {status} after {requests:?}: {change:?}");
        assert_eq!(used, [(0, written)], "one chain in, one out, after {requests:?}: {change:?}");
        requests
    }

    /// How often the guest's memory is read for a request, and once more for the moment after that.
    fn fetches(&mut self) -> usize {
        let count = Rc::new(Cell::new(0));
        let counted = Rc::clone(&count);
        at_fetches(Some(Box::new(move || counted.set(counted.get() + 1))));
        self.serve();
        at_fetches(None);
        count.get()
    }

    /// The same as `serve`, with a change in the middle.
    fn serve_changing(&mut self, change: Change) -> Vec<Request> {
        self.words.set(None, change.from);
        self.change = change.clone();
        let (words, count) = (self.words.clone(), Cell::new(0));
        at_fetches(Some(Box::new(move || {
            let now = count.replace(count.get() + 1);
            if now == change.during.start {
                words.set(change.which, change.to);
            } else if now == change.during.end {
                words.set(change.which, change.from);
            }
        })));
        let requests = self.serve();
        at_fetches(None);
        requests
    }
}

/// What of the disk a request is about.
fn range(r: &Request) -> Range<usize> {
    r.offset as usize..(r.offset + r.len) as usize
}

/// Whether one of the buffers begins with these bytes, and nothing else was written.
fn is_filled(targets: &[Vec<u8>; 2], bytes: &[u8]) -> bool {
    let holds = |target: &[u8]| target[..bytes.len()] == *bytes && target[bytes.len()..] == UNTOUCHED[bytes.len()..];
    (0..2).any(|n| holds(&targets[n]) && targets[1 - n] == UNTOUCHED)
}

/// Serves a request for each change that a guest can make between two readings, whether or not it takes it back later.
/// Returns what went to the disk, each once.
fn every_change(shape: Shape) -> Vec<(Op, u64, u64)> {
    let mut scene = Scene::new(shape);
    let (fetches, words) = (scene.fetches(), scene.words.0.len());
    let mut seen = Vec::new();
    for which in (0..words).map(Some).chain([None]) {
        for (from, to) in [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)] {
            for (start, end) in (0..fetches).flat_map(|start| (start + 1..=fetches).map(move |end| (start, end))) {
                for r in scene.serve_changing(Change { which, from, to, during: start..end }) {
                    let what = (r.op, r.offset, r.len);
                    if !seen.contains(&what) {
                        seen.push(what);
                    }
                }
            }
        }
    }
    seen
}

#[test]
fn a_request_that_changes_at_any_reading_is_done_as_it_was_checked() {
    for shape in [Shape::Data, Shape::Ranges] {
        let seen = every_change(shape);
        // Each of the places by each of the kinds, that from parts of both requests among them: the changes are made.
        assert_eq!(seen.len(), 2 * PLACES.len(), "{shape:?}: {seen:?}");
    }
}

/// The same without a say in when it is read: what has no place where a test can change it is found here.
#[test]
fn a_request_that_changes_without_pause_is_done_as_it_was_checked() {
    /// Ends the guest's other thread, also when a check fails.
    struct End<'a>(&'a AtomicBool);

    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    for shape in [Shape::Data, Shape::Ranges] {
        let mut scene = Scene::new(shape);
        let (words, over) = (scene.words.clone(), AtomicBool::new(false));
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let mut random = 1u64;
                while !over.load(Ordering::Relaxed) {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let [which, version] = [random >> 40 & 0xff, random >> 60].map(|n| n as usize);
                    // Nonsense now and then: most requests are to come to something.
                    words.set(Some(which % words.0.len()), [0, 1, 0, 1, 0, 1, 0, 2][version % 8]);
                }
            });
            let _end = End(&over);
            for _ in 0..by_length(20_000, 200_000) {
                scene.serve();
            }
        });
    }
}

#[test]
fn what_is_read_twice_is_seen() {
    for bug in PortBug::READ_TWICE {
        plant(Some(bug));
        let goes_wrong = |shape: Shape| catch_unwind(|| every_change(shape)).is_err();
        let seen = [Shape::Data, Shape::Ranges].into_iter().any(goes_wrong);
        plant(None);
        at_fetches(None);
        assert!(seen, "{bug:?} changes nothing");
    }
}
