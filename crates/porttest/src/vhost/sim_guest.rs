//! A guest of the simulation: its driver on rings in memory, its memory, and the device that serves it.
//!
//! Owns one port, and what outlives it: memory and the record of requests under way. Never looks at the disk.
//! Invariant: each chain that it posts is seen used exactly once, by a driver that sleeps until it is told.

use super::rig::{DATA, DATA_SPLIT, Guest, INDIRECT, NEXT, WRITE, eventfd, signals};
use crate::faults::{Switched, living, look_on};
use crate::shadow::Shadow;
use crate::work::{Finished, Verb, Violation, Work};
use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use undercroft_frontend::faults::StoreSite;
use undercroft_frontend::vhost::limits::RANGES_MAX;
use undercroft_frontend::vhost::parts::{EVENT_IDX, FLUSH, InflightArea, LOG_ALL, Profile, VhostPort};
use undercroft_frontend::{DiskInfo, GuestMemory, Port};
use undercroft_testkit::rng::{Rng, fill_pattern};
use vhost::vhost_user::message::VhostUserInflight;

/// Chains that the guest has memory for, and how much each.
const PLACES: usize = 32;
const PLACE_BYTES: u64 = 0x4800;
/// Where things are in a chain's place.
const STATUS: u64 = 0x40;
const TABLE: u64 = 0x100;
const RANGES: u64 = 0x400;
const BUFFER: u64 = 0x800;
/// Bytes of a page of the guest, and how many of them one chain has at most whose data are whole pages.
const PAGE: u64 = 4096;
pub(crate) const PAGES_MAX: u64 = 3;
/// What work is marked with whose data are whole pages.
pub(crate) const WHOLE_PAGES: &str = "whole pages";
/// Bytes of data in one chain at most.
pub(crate) const DATA_MAX: u64 = PLACE_BYTES - BUFFER;

/// One chain posted.
struct Chain {
    work: Work,
    place: u64,
    descriptors: Vec<u16>,
    /// Data buffers in order.
    pieces: Vec<(u64, u32)>,
}

/// A virtqueue as the driver sees it.
#[derive(Default)]
struct SimQueue {
    free: Vec<u16>,
    /// By head.
    posted: BTreeMap<u16, Chain>,
    /// The driver's end of the call descriptor; none while it is masked.
    call: Option<File>,
    /// The driver was told before the descriptor was taken away.
    told: bool,
    /// A kick has been given and not been seen.
    kicked: bool,
}

/// See the head of the file.
pub(crate) struct SimGuest {
    /// The device, until it dies.
    pub port: VhostPort<Switched>,
    guest: Guest,
    disk: Profile,
    features: u64,
    event_idx: bool,
    said: VhostUserInflight,
    record: File,
    wake_fd: File,
    errors: Vec<File>,
    queues: Vec<SimQueue>,
    places: Vec<u64>,
    id: u32,
    /// Used entries seen.
    pub seen: u64,
}

fn profile(info: &DiskInfo) -> Profile {
    Profile::new(info)
}

impl SimGuest {
    /// A guest that has just begun, on port `id`.
    pub(crate) fn new(id: u32, info: &DiskInfo, rng: &mut Rng) -> SimGuest {
        let disk = profile(info);
        let queues = rng.between(1, 3) as u16;
        let size = *rng.pick(&[4u16, 8, 16, 64]);
        let mut without = 0;
        if rng.one_in(3) {
            without |= EVENT_IDX;
        }
        if rng.one_in(3) {
            without |= FLUSH;
        }
        let features = disk.features() & !without & !LOG_ALL;
        let (said, record) = InflightArea::create(queues, size).expect("memory");
        let wake_fd = eventfd();
        let port = VhostPort::with_faults(id, disk.clone(), queues, wake_fd.try_clone().expect("a descriptor is free"));
        let mut guest = Guest::new(queues, size);
        if rng.one_in(3) {
            // Soon the indices wrap.
            (0..queues).for_each(|queue| guest.begin_at(queue, u16::MAX - rng.below(40) as u16));
        }
        SimGuest {
            port,
            guest,
            disk,
            features,
            event_idx: features & EVENT_IDX != 0,
            said,
            record,
            wake_fd,
            errors: (0..queues).map(|_| eventfd()).collect(),
            queues: (0..queues).map(|_| SimQueue { free: (0..size).collect(), ..SimQueue::default() }).collect(),
            places: (0..PLACES as u64).map(|n| DATA + n * PLACE_BYTES).collect(),
            id,
            seen: 0,
        }
    }

    /// Whether a write is durable when it is answered, whatever it says.
    pub(crate) fn writes_through(&self) -> bool {
        self.features & FLUSH == 0
    }

    /// What is under way.
    pub(crate) fn works(&mut self) -> impl Iterator<Item = &mut Work> {
        self.queues.iter_mut().flat_map(|q| q.posted.values_mut()).map(|c| &mut c.work)
    }

    /// Chains under way.
    pub(crate) fn under_way(&self) -> usize {
        self.queues.iter().map(|q| q.posted.len()).sum()
    }

    /// A front end comes and sets the device up as it was, with the record of what was under way.
    ///
    /// # Errors
    /// Where the process died, if it did.
    pub(crate) fn connect(&mut self) -> Result<(), StoreSite> {
        let area = InflightArea::open(&self.said, self.record.try_clone().expect("a descriptor is free"), ());
        let area = area.expect("the record is as it was made");
        // While it migrates, in the order of QEMU: the log comes last.
        let logging = if self.migrates() { LOG_ALL } else { 0 };
        self.port.set_features(self.features | logging);
        self.port.set_memory(Arc::clone(&self.guest.map));
        self.port.set_inflight(&area);
        for queue in 0..self.queues.len() as u16 {
            self.start(queue, self.guest.used_index(queue))?;
        }
        self.set_log()
    }

    /// Hands the log over, if there is one.
    fn set_log(&mut self) -> Result<(), StoreSite> {
        let port = &mut self.port;
        self.guest.shadow.as_ref().map_or(Ok(()), |shadow| living(|| port.set_log(shadow.log())))
    }

    /// Whether its memory is logged.
    pub(crate) fn migrates(&self) -> bool {
        self.guest.shadow.is_some()
    }

    /// Its memory is logged from now on.
    ///
    /// # Errors
    /// Where the process died, if it did.
    pub(crate) fn begin_migration(&mut self) -> Result<(), StoreSite> {
        let shadow = Arc::new(Shadow::new(Arc::clone(&self.guest.map)));
        look_on(&shadow);
        self.guest.shadow = Some(shadow);
        self.set_log()?;
        let (port, features) = (&mut self.port, self.features | LOG_ALL);
        living(|| port.set_features(features))
    }

    /// It does not migrate after all.
    ///
    /// # Errors
    /// Where the process died, if it did.
    pub(crate) fn end_migration(&mut self) -> Result<(), StoreSite> {
        self.guest.shadow = None;
        let (port, features) = (&mut self.port, self.features);
        living(|| port.set_features(features))
    }

    /// A page of its memory that differs from the copy, after that was brought up to date.
    pub(crate) fn differs(&self) -> Option<u64> {
        let shadow = self.guest.shadow.as_ref()?;
        shadow.sync();
        shadow.difference()
    }

    /// It goes on with a device that finds an empty record, with its rings where they stopped. All must have stopped.
    ///
    /// # Errors
    /// Where the process died, if it did.
    pub(crate) fn go_on_elsewhere(&mut self, bases: &[u16]) -> Result<(), StoreSite> {
        self.port.sever();
        self.guest.shadow = None;
        (self.said, self.record) = InflightArea::create(self.queues.len() as u16, self.guest.size).expect("memory");
        let area = InflightArea::open(&self.said, self.record.try_clone().expect("a descriptor is free"), ());
        self.port.set_features(self.features);
        self.port.set_memory(Arc::clone(&self.guest.map));
        self.port.set_inflight(&area.expect("the record is as it was made"));
        bases.iter().zip(0..).try_for_each(|(&base, queue)| self.start(queue, base))
    }

    fn start(&mut self, queue: u16, base: u16) -> Result<(), StoreSite> {
        let index = u32::from(queue);
        let q = &mut self.queues[usize::from(queue)];
        let call = q.call.get_or_insert_with(eventfd).try_clone().ok();
        let (port, size, error) = (&mut self.port, self.guest.size, self.errors[usize::from(queue)].try_clone().ok());
        living(|| {
            port.set_size(index, u32::from(size)).expect("size");
            port.set_base(index, u32::from(base)).expect("base");
            port.set_addresses(index, Guest::addresses(queue)).expect("addresses");
            port.start(index, eventfd(), true).expect("start");
            port.set_call(index, call).expect("call");
            port.set_error(index, error).expect("error");
            port.enable(index, true).expect("enable");
        })
    }

    /// The process has died: a fresh device takes its place and finds the record.
    ///
    /// # Errors
    /// Where it died again.
    pub(crate) fn revive(&mut self) -> Result<(), StoreSite> {
        self.wake_fd = eventfd();
        let wake_fd = self.wake_fd.try_clone().expect("a descriptor is free");
        self.port = VhostPort::with_faults(self.id, self.disk.clone(), self.queues.len() as u16, wake_fd);
        self.connect()
    }

    /// The front end's connection breaks, and it comes back at once.
    ///
    /// # Errors
    /// Where the process died, if it did.
    pub(crate) fn reconnect(&mut self) -> Result<(), StoreSite> {
        self.port.sever();
        self.connect()
    }

    /// The machine starts anew: nothing is left of what was under way, nor of the record. The device must be at rest.
    pub(crate) fn reboot(&mut self) -> Vec<Work> {
        let size = self.guest.size;
        let mut works = Vec::new();
        self.port.reset();
        for q in &mut self.queues {
            works.extend(std::mem::take(&mut q.posted).into_values().map(|c| c.work));
            *q = SimQueue { free: (0..size).collect(), ..SimQueue::default() };
        }
        self.guest = Guest::new(self.queues.len() as u16, size);
        (self.said, self.record) = InflightArea::create(self.queues.len() as u16, size).expect("memory");
        self.places = (0..PLACES as u64).map(|n| DATA + n * PLACE_BYTES).collect();
        works
    }

    /// Stops every queue, the next step of a reset; true once all have come to rest.
    pub(crate) fn stop(&mut self) -> Vec<std::sync::mpsc::Receiver<u16>> {
        let port = &mut self.port;
        let stop = |queue| {
            let (done, rest) = sync_channel(1);
            port.stop(queue, done).expect("the queue is there");
            rest
        };
        (0..self.queues.len() as u32).map(stop).collect()
    }

    /// Stops a queue that has nothing under way and starts it where it stopped. False if it is not at rest.
    ///
    /// # Errors
    /// Where the process died, if it did.
    pub(crate) fn restart(&mut self, rng: &mut Rng) -> Result<bool, StoreSite> {
        let queue = rng.below(self.queues.len() as u64) as u16;
        if !self.queues[usize::from(queue)].posted.is_empty() {
            return Ok(false);
        }
        let (done, base) = sync_channel(1);
        let port = &mut self.port;
        living(|| port.stop(u32::from(queue), done).expect("the queue is there"))?;
        let base = base.try_recv().expect("a queue with nothing under way stops at once");
        self.start(queue, base)?;
        Ok(true)
    }

    /// The call descriptor of a queue is taken away, or given back: what came meanwhile has to be announced then.
    pub(crate) fn mask(&mut self, rng: &mut Rng) -> bool {
        let queue = rng.below(self.queues.len() as u64) as usize;
        let q = &mut self.queues[queue];
        let masked = match q.call.take() {
            Some(old) => {
                // What it had been told already is not lost.
                q.told |= signals(&old) > 0;
                true
            }
            None => {
                q.call = Some(eventfd());
                false
            }
        };
        let call = q.call.as_ref().and_then(|c| c.try_clone().ok());
        self.port.set_call(queue as u32, call).expect("the queue is there");
        masked
    }

    /// Whether a call descriptor is taken away.
    pub(crate) fn is_masked(&self) -> bool {
        self.queues.iter().any(|q| q.call.is_none())
    }

    /// Gives back every call descriptor.
    pub(crate) fn unmask(&mut self) {
        for (n, q) in self.queues.iter_mut().enumerate().filter(|(_, q)| q.call.is_none()) {
            q.call = Some(eventfd());
            let call = q.call.as_ref().and_then(|c| c.try_clone().ok());
            self.port.set_call(n as u32, call).expect("the queue is there");
        }
    }

    /// The front end describes the same memory anew.
    ///
    /// # Errors
    /// Where the process died, if it did.
    pub(crate) fn remap(&mut self) -> Result<(), StoreSite> {
        let (port, map) = (&mut self.port, Arc::new((*self.guest.map).clone()));
        living(|| port.set_memory(map))
    }

    /// A balloon takes memory that no chain uses now, and the host has it back at once.
    pub(crate) fn give_back(&mut self, rng: &mut Rng) {
        if !self.places.is_empty() {
            let place = *rng.pick(&self.places);
            self.guest.give_back(place, PLACE_BYTES);
        }
    }

    /// Copies a page as the device does for the cache.
    ///
    /// # Errors
    /// If memory was taken from the host for that.
    pub(crate) fn copy_page(&mut self, page: u32, to: &mut [u8; PAGE as usize]) -> Result<bool, Violation> {
        let held = self.guest.held_bytes();
        let copied = self.port.copy_page(page, to);
        match self.guest.held_bytes() {
            now if now == held => Ok(copied),
            now => Err(format!("to copy page {page} took {} bytes of the host's memory", now - held).into()),
        }
    }

    /// Whether something has happened that wakes the worker.
    pub(crate) fn wakes(&mut self) -> bool {
        let kicks = self.queues.iter_mut().any(|q| std::mem::take(&mut q.kicked));
        signals(&self.wake_fd) > 0 || kicks
    }

    /// Queues, and the entries of each.
    pub(crate) fn shape(&self) -> (u16, u16) {
        (self.queues.len() as u16, self.guest.size)
    }

    /// Whether there is room for a chain in a queue.
    pub(crate) fn has_room(&self, queue: u16) -> bool {
        !self.queues[usize::from(queue)].free.is_empty() && !self.places.is_empty()
    }

    /// Posts a chain for some work; gives it back if there is no room for it.
    pub(crate) fn post(&mut self, mut work: Work, queue: u16, rng: &mut Rng) -> Result<(), Work> {
        if !self.has_room(queue) {
            return Err(work);
        }
        let at = rng.below(self.places.len() as u64) as usize;
        let place = self.places.swap_remove(at);
        let (buffers, pieces) = self.lay_out(&mut work, place, rng);
        let q = &mut self.queues[usize::from(queue)];
        let ring = Guest::ring(queue)[0];
        let n = buffers.len();
        let indirect = n > q.free.len() || n <= 16 && rng.one_in(2);
        let mut descriptors = Vec::new();
        let take = |free: &mut Vec<u16>, rng: &mut Rng| free.swap_remove(rng.below(free.len() as u64) as usize);
        if indirect {
            work.mark("indirect");
            self.guest.chain(place + TABLE, 0, &buffers);
            descriptors.push(take(&mut q.free, rng));
            self.guest.descriptor(ring, descriptors[0], place + TABLE, 16 * n as u32, INDIRECT, 0);
        } else {
            descriptors.extend((0..n).map(|_| take(&mut q.free, rng)));
            for (i, &(addr, len, flags)) in buffers.iter().enumerate() {
                let next = descriptors.get(i + 1).copied();
                let flags = flags | if next.is_some() { NEXT } else { 0 };
                self.guest.descriptor(ring, descriptors[i], addr, len, flags, next.unwrap_or(0));
            }
        }
        let head = descriptors[0];
        if self.guest.offered(queue) == u16::MAX {
            work.mark("wrap");
        }
        let before = self.guest.offered(queue);
        let kick = if self.event_idx {
            self.guest.offer_live(queue, head)
        } else {
            self.guest.offer(queue, head);
            self.guest.used_flags(queue) & 1 == 0
        };
        debug_assert_eq!(self.guest.offered(queue), before.wrapping_add(1));
        q.kicked |= kick;
        q.posted.insert(head, Chain { work, place, descriptors, pieces });
        Ok(())
    }

    /// Writes what the device is to read, and says where everything is.
    #[expect(clippy::type_complexity)]
    fn lay_out(&mut self, work: &mut Work, place: u64, rng: &mut Rng) -> (Vec<(u64, u32, u16)>, Vec<(u64, u32)>) {
        let kind = match work.verb {
            Verb::Read => 0,
            Verb::Write => 1,
            Verb::Flush => 4,
            Verb::Serial => 8,
            Verb::Discard => 11,
            Verb::Zeroes => 13,
            _ => *rng.pick(&[0, 1, 2, 77, 13]),
        };
        let sector = match work.verb {
            Verb::Read | Verb::Write => work.parts[0].offset / 512,
            Verb::Wrong => self.disk.size_bytes / 512 + rng.below(3),
            _ => 0,
        };
        self.guest.header(place, kind, sector);
        self.guest.write(place + STATUS, &[0xee]);
        let mut buffers = if rng.one_in(6) { vec![(place, 5, 0), (place + 5, 11, 0)] } else { vec![(place, 16, 0)] };
        let mut pieces = Vec::new();
        match work.verb {
            Verb::Read | Verb::Write => {
                pieces = self.pieces(work, place, rng);
                let flags = if work.verb == Verb::Read { WRITE } else { 0 };
                buffers.extend(pieces.iter().map(|&(at, len)| (at, len, flags)));
            }
            Verb::Serial => {
                pieces.push((place + BUFFER, 20));
                buffers.push((place + BUFFER, 20, WRITE));
            }
            Verb::Discard | Verb::Zeroes => {
                let mut bytes = Vec::new();
                for part in &work.parts {
                    bytes.extend((part.offset / 512).to_le_bytes());
                    bytes.extend(((part.len / 512) as u32).to_le_bytes());
                    let unmap = work.verb == Verb::Zeroes && work.unmap;
                    bytes.extend(u32::from(unmap).to_le_bytes());
                }
                debug_assert!(bytes.len() <= 16 * RANGES_MAX);
                self.guest.write(place + RANGES, &bytes);
                buffers.push((place + RANGES, bytes.len() as u32, 0));
            }
            // Past the end, of no whole sectors, where there is no memory, or of a kind that there is not.
            Verb::Wrong => match kind {
                0 => buffers.push((if rng.one_in(2) { 0x8_0000 } else { place + BUFFER }, 1024, WRITE)),
                1 => buffers.push((place + BUFFER, 1 + rng.below(3000) as u32, 0)),
                13 => buffers.push((place + RANGES, 1 + rng.below(15) as u32, 0)),
                _ => {}
            },
            Verb::Flush | Verb::Cache | Verb::Extents => {}
        }
        buffers.push((place + STATUS, 1, WRITE));
        (buffers, pieces)
    }

    /// Cuts the data into buffers, and fills them.
    fn pieces(&mut self, work: &mut Work, place: u64, rng: &mut Rng) -> Vec<(u64, u32)> {
        let len = work.data_len() as u64;
        let count = if rng.one_in(2) { 1 } else { rng.between(2, 6) };
        // A page cache's pages lie anywhere in memory, each in one piece.
        let (unit, data) = match work.marks.contains(&WHOLE_PAGES) {
            true => (PAGE, (place + BUFFER).next_multiple_of(PAGE)),
            false => (1, place + BUFFER),
        };
        let mut cuts: Vec<u64> = (1..count).map(|_| rng.below(len / unit) * unit).chain([0, len]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        let mut pieces: Vec<(u64, u32)> = cuts.windows(2).map(|c| (data + c[0], (c[1] - c[0]) as u32)).collect();
        if pieces.len() > 1 {
            work.mark("scattered");
        }
        if rng.one_in(3) {
            // In another order in memory than in the chain.
            let mut at = data;
            for piece in pieces.iter_mut().rev() {
                piece.0 = at;
                at += u64::from(piece.1);
            }
        }
        if pieces.iter().any(|&(at, len)| at < DATA_SPLIT && at + u64::from(len) > DATA_SPLIT) {
            work.mark("in two regions");
        }
        let mut offset = work.parts[0].offset;
        for &(at, len) in &pieces {
            // What a read finds here was never on a disk.
            let mut bytes = vec![0xa5; len as usize];
            if work.verb == Verb::Write {
                fill_pattern(work.parts[0].change, offset, &mut bytes);
            }
            self.guest.write(at, &bytes);
            offset += u64::from(len);
        }
        pieces
    }

    /// Posts a chain that cannot be answered: its queue is out of service from then on.
    pub(crate) fn break_queue(&mut self, rng: &mut Rng) -> bool {
        let queue = rng.below(self.queues.len() as u64) as u16;
        let Some(&head) = self.queues[usize::from(queue)].free.last() else { return false };
        let ring = Guest::ring(queue)[0];
        match rng.below(4) {
            // A loop, a table that is not in memory, no place for the status, a descriptor that is not there.
            0 => self.guest.descriptor(ring, head, DATA, 16, NEXT, head),
            1 => self.guest.descriptor(ring, head, 0x8_0000, 64, INDIRECT, 0),
            2 => self.guest.descriptor(ring, head, DATA, 16, 0, 0),
            _ => self.guest.descriptor(ring, head, DATA, 16, NEXT, self.guest.size),
        }
        self.guest.offer(queue, head);
        self.queues[usize::from(queue)].kicked = true;
        true
    }

    /// Whether the device has said that a queue is out of service.
    pub(crate) fn is_broken(&self) -> bool {
        self.errors.iter().any(|e| signals(e) > 0)
    }

    /// Whether the driver has been told of something.
    pub(crate) fn is_told(&mut self) -> bool {
        let mut told = false;
        for q in &mut self.queues {
            told |= std::mem::take(&mut q.told);
            told |= q.call.as_ref().is_some_and(|c| signals(c) > 0);
        }
        told
    }

    /// The driver looks at what has been used, and asks to be told of the next.
    ///
    /// # Errors
    /// What the device has done wrong.
    pub(crate) fn look(&mut self) -> Result<Vec<Finished>, Violation> {
        let mut all = Vec::new();
        for queue in 0..self.queues.len() as u16 {
            loop {
                let used = self.guest.used(queue);
                let again = !used.is_empty();
                for (head, written) in used {
                    self.seen += 1;
                    all.push(self.take_back(queue, head, written)?);
                }
                if self.event_idx {
                    self.guest.ask(queue);
                }
                if !again {
                    break;
                }
            }
        }
        Ok(all)
    }

    fn take_back(&mut self, queue: u16, head: u32, written: u32) -> Result<Finished, Violation> {
        let q = &mut self.queues[usize::from(queue)];
        let chain = u16::try_from(head).ok().and_then(|head| q.posted.remove(&head));
        let Some(Chain { work, place, descriptors, pieces }) = chain else {
            return Err(format!("queue {queue}: chain {head} is used, and was not posted, or was used before").into());
        };
        q.free.extend(descriptors);
        self.places.push(place);
        let status = self.guest.read(place + STATUS, 1)[0];
        let ok = status == 0;
        let expected = match work.verb {
            Verb::Read if ok => work.data_len() as u32 + 1,
            Verb::Serial => 21,
            _ => 1,
        };
        if status > 2 || written != expected {
            return Err(format!("{work:?}: status {status}, {written} bytes written").into());
        }
        let mut data = Vec::new();
        if matches!(work.verb, Verb::Read | Verb::Serial) {
            pieces.iter().for_each(|&(at, len)| data.extend(self.guest.read(at, len as usize)));
        }
        if work.verb == Verb::Serial && (!ok || data != self.disk.serial) {
            return Err(format!("another serial number: {data:?}").into());
        }
        Ok(Finished { work, ok, data })
    }

    /// The port, for the worker.
    pub(crate) fn as_port(&mut self) -> &mut dyn Port {
        &mut self.port
    }
}
