//! How requests end: of several ranges, short of data, and when the process dies in the middle of saying so.
//!
//! Owns nothing. Every test asserts what the guest sees: used entries and statuses, each chain's exactly once.

use std::collections::HashMap;
use std::fs::File;
use undercroft_cache::IoError;
use undercroft_frontend::Port;
use undercroft_frontend::faults::{PortBug, StoreSite};
use undercroft_frontend::turns::SEND_BYTES;
use undercroft_frontend::vhost::limits::RANGES_MAX;
use undercroft_frontend::vhost::parts::{InflightArea, Profile, VhostPort};
use undercroft_porttest::faults::{die_at, living, plant};
use undercroft_porttest::vhost::rig::{DATA, INDIRECT, Rig, WRITE, eventfd, geometry, info};
use vhost::vhost_user::message::VhostUserInflight;

const IN: u32 = 0;
const OUT: u32 = 1;
const FLUSH: u32 = 4;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;
const OK: u8 = 0;
const IOERR: u8 = 1;

fn ranges(n: u64) -> Vec<u8> {
    let one = |i: u64| [(8 * i).to_le_bytes().to_vec(), 8u32.to_le_bytes().to_vec(), vec![0; 4]].concat();
    (0..n).flat_map(one).collect()
}

/// All orders of three.
const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

fn worst_of_three(kind: u32, fails: usize, order: [usize; 3]) -> u8 {
    let mut rig = Rig::new(geometry(1 << 20), 1, 64, 0);
    rig.guest.header(DATA, kind, 0);
    rig.guest.write(DATA + 0x100, &ranges(3));
    rig.guest.chain(0, 0, &[(DATA, 16, 0), (DATA + 0x100, 48, 0), (DATA + 0x200, 1, WRITE)]);
    rig.guest.offer(0, 0);
    let parts = rig.take();
    assert_eq!(parts.len(), 3);
    for (n, part) in order.into_iter().enumerate() {
        assert_eq!(rig.guest.used(0), [], "{n} of 3 parts are over");
        rig.failure = (part == fails).then_some(IoError::Io);
        rig.serve(parts[part]);
        rig.port.flush(SEND_BYTES);
    }
    assert_eq!(rig.guest.used(0), [(0, 1)]);
    rig.guest.read(DATA + 0x200, 1)[0]
}

#[test]
fn a_request_fails_whichever_of_its_ranges_does_and_whenever_it_ends() {
    for kind in [DISCARD, WRITE_ZEROES] {
        for order in ORDERS {
            for fails in 0..3 {
                assert_eq!(worst_of_three(kind, fails, order), IOERR, "range {fails}, ended in the order {order:?}");
            }
            assert_eq!(worst_of_three(kind, 3, order), OK);
        }
    }
}

#[test]
fn results_of_ranges_that_are_lost_are_seen() {
    for bug in [PortBug::LastRangeCounts, PortBug::LastRangeIgnored] {
        plant(Some(bug));
        let lost = ORDERS.iter().any(|&order| (0..3).any(|fails| worst_of_three(DISCARD, fails, order) == OK));
        plant(None);
        assert!(lost, "{bug:?} changes no answer");
    }
}

/// Some bytes twice are no failure; as many as asked for, but not all of them, are one.
#[test]
fn a_read_ends_well_if_all_of_its_data_came_however_often() {
    let mut rig = Rig::new(geometry(1 << 20), 1, 64, 0);
    rig.guest.header(DATA, IN, 7);
    for (pieces, status) in [
        (vec![(0, 512), (512, 4096), (512, 4096), (4608, 3584)], OK),
        (vec![(4608, 3584), (512, 4096), (0, 512)], OK),
        (vec![(0, 512), (512, 4096), (512, 3584)], IOERR),
        (vec![(0, 512), (4608, 3584)], IOERR),
        (vec![], IOERR),
    ] {
        rig.guest.chain(0, 0, &[(DATA, 16, 0), (DATA + 0x1000, 8192, WRITE), (DATA + 0x100, 1, WRITE)]);
        rig.guest.offer(0, 0);
        let mut out = Vec::new();
        rig.port.take(64, &mut out);
        let bytes = rig.disk[7 * 512..7 * 512 + 8192].to_vec();
        pieces.iter().for_each(|&(at, n)| rig.port.copy_out(out[0].id.tag, at, &bytes[at..at + n]));
        rig.port.reply(out[0].id.tag, Ok(()));
        rig.port.flush(SEND_BYTES);
        let written = if status == OK { 8193 } else { 1 };
        assert_eq!(rig.guest.used(0), [(0, written)], "{pieces:?}");
        assert_eq!(rig.guest.read(DATA + 0x100, 1), [status], "{pieces:?}");
        assert!(status != OK || rig.guest.read(DATA + 0x1000, 8192) == bytes);
    }
}

/// A guest whose device dies and comes back: the record outlives it, as the memory does.
struct Mortal {
    rig: Rig,
    said: VhostUserInflight,
    record: File,
    /// Heads whose chains are posted and not seen used, and those seen used, with how often.
    posted: Vec<u16>,
    seen: HashMap<u16, usize>,
}

impl Mortal {
    /// No device has seen the record yet: it is new.
    fn new() -> Mortal {
        let (said, record) = InflightArea::create(1, 16).unwrap();
        let rig = Rig::new(geometry(1 << 20), 1, 16, 0);
        Mortal { rig, said, record, posted: Vec::new(), seen: HashMap::new() }
    }

    /// A fresh device that finds the record; it may die of that as well.
    fn revive(&mut self) -> Result<(), StoreSite> {
        let wake_fd = eventfd();
        self.rig.port = VhostPort::with_faults(9, Profile::new(&info(geometry(1 << 20))), 1, wake_fd);
        let area = InflightArea::open(&self.said, self.record.try_clone().unwrap(), ()).unwrap();
        self.rig.connect(Profile::new(&info(geometry(1 << 20))).features());
        self.rig.port.set_inflight(&area);
        let base = self.rig.guest.used_index(0);
        let rig = &mut self.rig;
        living(|| rig.start(0, base, true))
    }

    fn post(&mut self, head: u16, kind: u32, indirect: bool) {
        let at = DATA + 0x4000 * u64::from(head);
        let guest = &mut self.rig.guest;
        guest.header(at, kind, 8 * u64::from(head));
        guest.write(at + 0x200, &ranges(RANGES_MAX as u64)[..48]);
        let data = match kind {
            IN => (at + 0x1000, 4096, WRITE),
            OUT => (at + 0x1000, 4096, 0),
            _ => (at + 0x200, 48, 0),
        };
        let buffers = [(at, 16, 0), data, (at + 0x100, 1, WRITE)];
        if indirect {
            guest.chain(at + 0x800, 0, &buffers);
            guest.descriptor(0, head, at + 0x800, 48, INDIRECT, 0);
        } else {
            guest.chain(0, head, &buffers);
        }
        guest.offer(0, head);
        self.posted.push(head);
    }

    /// Serves what there is in two halves, each published on its own.
    fn turn(&mut self) -> Result<(), StoreSite> {
        let rig = &mut self.rig;
        living(|| {
            let mut out = Vec::new();
            while rig.port.take(64, &mut out) {}
            // The last one first: an order in which positions alone would tell nothing.
            out.reverse();
            let half = out.len() / 2;
            for (n, r) in out.into_iter().enumerate() {
                if n == half {
                    rig.port.flush(SEND_BYTES);
                }
                rig.port.reply(r.id.tag, Ok(()));
            }
            rig.port.flush(SEND_BYTES);
        })
    }

    /// A fresh device, and what it serves first.
    fn begin(&mut self) -> Result<(), StoreSite> {
        self.revive()?;
        self.turn()
    }

    fn look(&mut self) {
        for (head, _) in self.rig.guest.used(0) {
            let head = u16::try_from(head).expect("the head of a chain");
            *self.seen.entry(head).or_default() += 1;
            assert!(self.posted.contains(&head), "chain {head} was never posted");
        }
    }
}

/// Three batches of chains; the device dies at store number `n`, once more at store `again` of its next life, and lives
/// on. The first stores are those to the head of the new record. Returns where it died, and what was wrong.
fn life(n: u64, again: Option<u64>) -> (Vec<StoreSite>, Option<String>) {
    let mut m = Mortal::new();
    let mut died = Vec::new();
    die_at(Some(n));
    for (first, kind) in [(0, OUT), (4, FLUSH), (8, DISCARD)] {
        m.post(first, kind, false);
        m.post(first + 3, kind, true);
        let mut next = again;
        let mut result = if first == 0 { m.begin() } else { m.turn() };
        while let Err(site) = result {
            died.push(site);
            m.look();
            die_at(next.take());
            result = m.begin();
        }
        m.look();
    }
    die_at(None);
    let wrong: Vec<_> = m.posted.iter().filter(|h| m.seen.get(h) != Some(&1)).collect();
    (died, (!wrong.is_empty()).then(|| format!("chains {wrong:?} were not seen used exactly once: {:?}", m.seen)))
}

#[test]
fn death_at_any_store_leaves_every_chain_to_be_seen_used_exactly_once() {
    let mut sites = Vec::new();
    for n in 0.. {
        let (died, wrong) = life(n, None);
        assert_eq!(wrong, None, "killed at store {n}: {died:?}");
        if died.is_empty() {
            break;
        }
        sites.extend(died);
        // And once more, at any of the first stores of the next life: recovery among them.
        for again in 0..12 {
            let (died, wrong) = life(n, Some(again));
            assert_eq!(wrong, None, "killed at store {n}, and at store {again} of the next life: {died:?}");
            sites.extend(died);
        }
    }
    // No device sleeps here, and no guest migrates: the simulation of ports has to die at both (its `coverage`).
    let elsewhere = |s: &&StoreSite| matches!(s, StoreSite::Wish | StoreSite::DirtyMark);
    for site in StoreSite::ALL.iter().filter(|s| !elsewhere(s)) {
        assert!(sites.contains(site), "never killed at {site:?}");
    }
}

#[test]
fn mistakes_in_the_order_of_the_stores_are_seen() {
    for bug in [PortBug::MarkGoesEarly, PortBug::IndexBeforeEntry, PortBug::TakenUnmarked] {
        plant(Some(bug));
        let seen = std::panic::catch_unwind(|| (0..200).any(|n| life(n, None).1.is_some())).unwrap_or(true);
        plant(None);
        die_at(None);
        assert!(seen, "{bug:?} loses and repeats nothing");
    }
}
