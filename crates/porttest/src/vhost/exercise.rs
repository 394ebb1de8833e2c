//! The device under arbitrary guests, without a socket: what the fuzz target and a test run.
//!
//! Owns a guest made of bytes. Never uses a socket. Chains are mostly valid, some have one thing wrong, and now
//! and then the rings themselves are scribbled on. Invariants checked here: no panic, no request outside the disk, no
//! request answered twice or never; and as long as the guest has done nothing wrong, each chain comes back with the
//! right status, length and data, and no byte beside the writable buffers is touched.

use super::rig::{DATA, DATA_END, DATA_SPLIT, Guest, INDIRECT, NEXT, Rig, WRITE, geometry, info};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use undercroft_cache::{Geometry, IoError, Request};
use undercroft_frontend::Port;
use undercroft_frontend::turns::SEND_BYTES;
use undercroft_frontend::vhost::parts::{EVENT_IDX, FLUSH, InflightArea, Profile};

const DISK_BYTES: u64 = 256 * 1024;
const QUEUES: u16 = 2;
const SIZE: u16 = 16;
/// Steps of one run at most.
const STEPS_MAX: usize = 200;
/// Bytes around each buffer that must not change.
const GUARD: u64 = 16;

const IN: u32 = 0;
const OUT: u32 = 1;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;

/// Takes decisions from bytes; all zero once they are used up.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn below(&mut self, n: u8) -> u8 {
        self.byte() % n.max(1)
    }

    fn u64(&mut self) -> u64 {
        (0..8).fold(0, |n, _| n << 8 | u64::from(self.byte()))
    }

    /// A number that is often near a border.
    fn odd(&mut self) -> u64 {
        let near = [0, 1, 15, 16, 511, 512, 4096, DATA, DATA_SPLIT, DATA_END, u64::from(u32::MAX), 1 << 55, u64::MAX];
        match self.below(4) {
            0 => self.u64(),
            1 => u64::from(self.byte()),
            _ => near[usize::from(self.below(near.len() as u8))].wrapping_add(u64::from(self.below(5)).wrapping_sub(2)),
        }
    }
}

/// One buffer of a chain.
#[derive(Clone, Copy)]
struct Buffer {
    at: u64,
    len: u32,
    write: bool,
}

/// What a guest that has done nothing wrong expects.
struct Expected {
    queue: u16,
    head: u16,
    kind: u32,
    sector: u64,
    status: u64,
    /// Data buffers.
    data: Vec<Buffer>,
    bytes: u64,
    buffers: Vec<Buffer>,
    /// Nothing else was under way, in any queue: queues are served in no order, so only then is it known what the disk
    /// holds afterwards.
    alone: bool,
}

struct Exercise<'a> {
    choices: Choices<'a>,
    rig: Rig,
    features: u64,
    /// Requests taken and not answered.
    open: Vec<Request>,
    /// Whether the guest has kept to the rules so far.
    clean: bool,
    next_head: [u16; QUEUES as usize],
    next_data: u64,
}

/// Runs a device against the guest that `bytes` describe.
///
/// # Panics
/// If the device does anything that it must not.
pub fn exercise(bytes: &[u8]) {
    let mut choices = Choices(bytes);
    let read_only = choices.below(8) == 0;
    let without = if choices.below(2) == 0 { EVENT_IDX } else { 0 } | if choices.below(2) == 0 { FLUSH } else { 0 };
    let geometry = Geometry { read_only, can_discard: choices.below(2) == 0, ..geometry(DISK_BYTES) };
    let features = Profile::new(&info(geometry.clone())).features() & !without;
    let rig = Rig::new(geometry, QUEUES, SIZE, without);
    let (open, next_head) = (Vec::new(), [0; QUEUES as usize]);
    let mut run = Exercise { choices, rig, features, open, clean: true, next_head, next_data: DATA };
    for _ in 0..STEPS_MAX {
        if run.choices.0.is_empty() {
            break;
        }
        run.step();
    }
    run.end();
}

impl Exercise<'_> {
    fn step(&mut self) {
        match self.choices.below(24) {
            0..12 => {
                let expected = self.post();
                if self.choices.below(4) != 0 {
                    self.serve_all();
                    if self.clean {
                        self.check(&expected);
                    }
                    self.see_used();
                }
            }
            12..15 => {
                self.serve_all();
                self.see_used();
            }
            15 | 16 => {
                // One request out of order, perhaps with a failure.
                self.open.extend(self.rig.take());
                if !self.open.is_empty() {
                    let at = usize::from(self.choices.byte()) % self.open.len();
                    let failures = [None, Some(IoError::Io), Some(IoError::Unsupported), Some(IoError::NoSpace)];
                    self.rig.failure = failures[usize::from(self.choices.below(4))];
                    let request = self.open.swap_remove(at);
                    self.rig.serve(request);
                    self.rig.failure = None;
                    self.rig.port.flush(SEND_BYTES);
                }
            }
            17 => {
                self.rig.port.disarm();
                self.rig.port.arm();
            }
            18 => {
                // Scribbles on a ring or a table.
                self.clean = false;
                let queue = u16::from(self.choices.below(QUEUES as u8));
                let part = Guest::ring(queue)[usize::from(self.choices.below(3))];
                let at = part + u64::from(self.choices.byte());
                let bytes = [self.choices.byte(), self.choices.byte()];
                self.rig.guest.write(at, &bytes);
            }
            19 => {
                self.clean = false;
                let queue = u16::from(self.choices.below(QUEUES as u8));
                let index = self.choices.odd() as u16;
                self.rig.guest.set_available(queue, index);
            }
            20 => self.restart(),
            21 => self.reconnect(),
            22 => {
                // Memory goes and comes back.
                let whole = Arc::clone(&self.rig.guest.map);
                let region = &whole.regions()[usize::from(self.choices.below(3))];
                let less = whole.without(region.guest, region.user, region.len).expect("the region is there");
                self.rig.port.set_memory(Arc::new(less));
                self.serve_all();
                self.rig.port.set_memory(whole);
                // What was posted meanwhile may have been refused, rightly.
                self.clean = false;
            }
            _ => {
                let queue = u32::from(self.choices.below(QUEUES as u8));
                let on = self.choices.below(2) == 0;
                self.rig.port.enable(queue, on).expect("the queue is there");
                self.clean &= on;
            }
        }
    }

    fn serve_all(&mut self) {
        loop {
            self.open.extend(self.rig.take());
            if self.open.is_empty() {
                break;
            }
            for request in std::mem::take(&mut self.open) {
                self.rig.serve(request);
            }
            self.rig.port.flush(SEND_BYTES);
        }
        self.rig.port.flush(SEND_BYTES);
    }

    /// Looks past the used entries so far; those of a guest that broke the rules say nothing.
    fn see_used(&mut self) {
        if self.clean {
            (0..QUEUES).for_each(|queue| drop(self.rig.guest.used(queue)));
        }
    }

    /// Stops a queue and starts it again where it was, or with another base.
    fn restart(&mut self) {
        let queue = u16::from(self.choices.below(QUEUES as u8));
        let (done, base) = sync_channel(1);
        self.rig.port.stop(u32::from(queue), done).expect("the queue is there");
        self.serve_all();
        let mut base = base.try_recv().expect("a queue with nothing under way has stopped");
        if self.choices.below(4) == 0 {
            self.clean = false;
            base = self.choices.odd() as u16;
        }
        self.rig.start(queue, base, false);
    }

    /// The front end goes and another comes, with a record of requests under way that may be scribbled on.
    fn reconnect(&mut self) {
        self.clean = false;
        self.rig.port.sever();
        let (said, file) = InflightArea::create(QUEUES, SIZE).expect("memory");
        if self.choices.below(2) == 0 {
            for _ in 0..self.choices.below(64) {
                let at = u64::from(self.choices.byte()) * 2;
                let bytes = [self.choices.byte(), self.choices.byte()];
                std::os::unix::fs::FileExt::write_at(&file, &bytes, at).expect("memory");
            }
            // Believable otherwise.
            for queue in 0..u64::from(QUEUES) {
                std::os::unix::fs::FileExt::write_at(&file, &[1, 0, SIZE as u8, 0], 320 * queue + 8).expect("memory");
            }
        }
        let area = InflightArea::open(&said, file, ()).expect("the area is as large as it was made");
        self.rig.connect(self.features);
        self.rig.port.set_inflight(&area);
        let logged = self.choices.below(2) == 0;
        for queue in 0..QUEUES {
            self.rig.start(queue, self.rig.guest.offered(queue), logged);
        }
    }

    /// A place for `len` bytes of data with a guard on either side.
    fn place(&mut self, len: u32) -> u64 {
        let need = u64::from(len) + 2 * GUARD;
        if self.next_data + need > DATA_END - 0x1000 {
            self.next_data = DATA;
        }
        let at = self.next_data + GUARD;
        self.next_data += need;
        self.rig.guest.write(at - GUARD, &vec![0xa5; need as usize]);
        at
    }

    /// Cuts `len` bytes into buffers at random.
    fn cut(&mut self, len: u32, write: bool) -> Vec<Buffer> {
        let (mut buffers, mut left) = (Vec::new(), len);
        while left > 0 {
            let here = match self.choices.below(8) {
                0 if buffers.len() < 3 => (u32::from(self.choices.byte()) + 1).min(left),
                _ => left,
            };
            let at = self.place(here);
            buffers.push(Buffer { at, len: here, write });
            left -= here;
        }
        buffers
    }

    /// Posts one chain: valid, or with something wrong.
    fn post(&mut self) -> Expected {
        let queue = u16::from(self.choices.below(QUEUES as u8));
        let alone = self.open.is_empty() && (0..QUEUES).all(|q| self.rig.guest.outstanding(q) == 0);
        let kinds = [IN, IN, OUT, OUT, 4, GET_ID, DISCARD, WRITE_ZEROES];
        let kind = match self.choices.below(16) {
            0 => self.choices.odd() as u32,
            n => kinds[usize::from(n) % kinds.len()],
        };
        let sector = match self.choices.below(8) {
            0 => self.choices.odd(),
            _ => u64::from(self.choices.byte()),
        };
        let bytes = match kind {
            IN | OUT => 512 * u32::from(self.choices.below(20)) + u32::from(self.choices.below(32) == 0),
            GET_ID => u32::from(self.choices.below(32)),
            DISCARD | WRITE_ZEROES => 16 * (1 + u32::from(self.choices.below(4))),
            _ => 0,
        };
        let write = matches!(kind, IN | GET_ID);
        let mut buffers = self.cut(16, false);
        let mut header = kind.to_le_bytes().to_vec();
        header.extend([0; 4]);
        header.extend(sector.to_le_bytes());
        self.fill(&buffers, &header);
        let data = self.cut(bytes, write);
        let content: Vec<u8> = match kind {
            DISCARD | WRITE_ZEROES => (0..bytes / 16).flat_map(|_| self.range()).collect(),
            _ => (0..bytes).map(|i| (i ^ bytes) as u8).collect(),
        };
        self.fill(&data, &content);
        buffers.extend(&data);
        let status = self.place(1);
        buffers.push(Buffer { at: status, len: 1, write: true });
        let head = self.lay_out(queue, &buffers);
        self.rig.guest.offer(queue, head);
        Expected { queue, head, kind, sector, status, data, bytes: u64::from(bytes), buffers, alone }
    }

    fn fill(&self, buffers: &[Buffer], bytes: &[u8]) {
        let mut done = 0;
        for b in buffers {
            self.rig.guest.write(b.at, &bytes[done..done + b.len as usize]);
            done += b.len as usize;
        }
    }

    fn range(&mut self) -> Vec<u8> {
        let (sector, sectors, flags) = match self.choices.below(8) {
            0 => (self.choices.odd(), self.choices.odd() as u32, self.choices.odd() as u32),
            _ => (u64::from(self.choices.byte()), u32::from(self.choices.byte()), u32::from(self.choices.below(2))),
        };
        let mut bytes = sector.to_le_bytes().to_vec();
        bytes.extend(sectors.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes
    }

    /// Writes the descriptors of a chain, perhaps with one thing wrong. Returns the head.
    fn lay_out(&mut self, queue: u16, buffers: &[Buffer]) -> u16 {
        let ring = Guest::ring(queue)[0];
        let n = buffers.len() as u16;
        let indirect = n > 4 || self.choices.below(2) == 0;
        let first = self.next_head[usize::from(queue)];
        // Chains of up to four descriptors each; older ones are overwritten, but only a guest that waits for no answer
        // gets that far, and it has broken the rules.
        let step = if indirect { 1 } else { n };
        let head = if first + step > SIZE { 0 } else { first };
        self.next_head[usize::from(queue)] = head + step;
        if 4 * usize::from(self.rig.guest.outstanding(queue)) + 4 > usize::from(SIZE) || !self.open.is_empty() {
            self.clean = false;
        }
        let (table, at) = if indirect { (self.place(16 * u32::from(n)), 0) } else { (ring, head) };
        let wrong = (self.choices.below(6) == 0).then(|| at + u16::from(self.choices.below(n as u8)));
        for (i, b) in (at..).zip(buffers) {
            let more = i + 1 < at + n;
            let flags = if more { NEXT } else { 0 } | if b.write { WRITE } else { 0 };
            let mut d = (b.at, b.len, flags, if more { i + 1 } else { 0 });
            if wrong == Some(i) {
                self.clean = false;
                match self.choices.below(5) {
                    0 => d.0 = self.choices.odd(),
                    1 => d.1 = self.choices.odd() as u32,
                    2 => d.2 ^= 1 << self.choices.below(4),
                    3 => d.3 = self.choices.odd() as u16,
                    _ => d = (self.choices.odd(), self.choices.odd() as u32, self.choices.byte().into(), d.3),
                }
            }
            self.rig.guest.descriptor(table, i, d.0, d.1, d.2, d.3);
        }
        if indirect {
            let mut len = 16 * u32::from(n);
            if self.choices.below(16) == 0 {
                self.clean = false;
                len = self.choices.odd() as u32;
            }
            self.rig.guest.descriptor(ring, head, table, len, INDIRECT, 0);
        }
        head
    }

    /// Looks at what came back for a chain of a guest that has kept to the rules; everything posted has been served.
    fn check(&mut self, expected: &Expected) {
        let e = expected;
        let used = self.rig.guest.used(e.queue);
        // What was refused at once comes before what had to be served.
        let &(_, written) = used.iter().rfind(|(head, _)| *head == u32::from(e.head)).expect("a chain comes back");
        let status = self.rig.guest.read(e.status, 1)[0];
        let inside =
            e.sector.checked_mul(512).and_then(|at| at.checked_add(e.bytes)).is_some_and(|end| end <= DISK_BYTES);
        let whole = e.bytes.is_multiple_of(512);
        match e.kind {
            IN => {
                assert_eq!(status == 0, inside && whole, "status of a read");
                if status == 0 {
                    assert_eq!(u64::from(written), e.bytes + 1);
                    assert!(!e.alone || self.gather(&e.data) == self.on_disk(e), "a read brought other bytes");
                }
            }
            OUT if self.rig.disk_is_read_only() => assert_ne!(status, 0),
            OUT => {
                assert_eq!(status == 0, inside && whole, "status of a write");
                if status == 0 {
                    assert!(!e.alone || self.gather(&e.data) == self.on_disk(e), "a write left other bytes");
                }
            }
            4 => assert_eq!((status, written), (0, 1)),
            GET_ID => assert_eq!((status, u64::from(written)), (0, e.bytes.min(20) + 1)),
            DISCARD | WRITE_ZEROES => assert!(status <= 2),
            _ => assert_eq!(status, 2, "status of an unknown request"),
        }
        for b in &e.buffers {
            let guards = [b.at - GUARD, b.at + u64::from(b.len)];
            let intact = guards.iter().all(|&at| self.rig.guest.read(at, GUARD as usize) == [0xa5; GUARD as usize]);
            assert!(intact, "bytes beside a buffer were written");
        }
    }

    fn on_disk(&self, e: &Expected) -> &[u8] {
        &self.rig.disk[e.sector as usize * 512..][..e.bytes as usize]
    }

    fn gather(&self, buffers: &[Buffer]) -> Vec<u8> {
        buffers.iter().map(|b| self.rig.guest.read(b.at, b.len as usize)).collect::<Vec<_>>().concat()
    }

    /// Whatever happened, all requests come to an end, and the device can be set up again and works.
    fn end(&mut self) {
        self.serve_all();
        assert_eq!(self.rig.port.inflight(), 0);
        self.rig.port.sever();
        assert!(self.rig.port.is_at_rest(), "a request was lost");
        self.rig.guest = Guest::new(QUEUES, SIZE);
        self.rig.connect(self.features);
        (0..QUEUES).for_each(|queue| self.rig.start(queue, 0, false));
        self.rig.guest.header(DATA, IN, 1);
        self.rig.guest.chain(0, 0, &[(DATA, 16, 0), (DATA + 0x1000, 512, WRITE), (DATA + 0x100, 1, WRITE)]);
        self.rig.guest.offer(0, 0);
        self.serve_all();
        assert_eq!(self.rig.guest.used(0), [(0, 513)]);
        assert_eq!(self.rig.guest.read(DATA + 0x1000, 512), self.rig.disk[512..1024]);
    }
}

#[cfg(test)]
mod tests {
    use super::exercise;

    /// Found by fuzzing: requests of two queues under way together, on the same sectors.
    #[test]
    fn queues_are_served_in_no_order() {
        exercise(&[
            255, 229, 254, 0, 0, 85, 255, 1, 0, 0, 0, 255, 255, 255, 85, 85, 111, 111, 229, 48, 0, 0, 251, 85, 85, 85,
            125, 18, 85, 255, 8, 111, 0, 47, 142, 85,
        ]);
    }

    /// Found by fuzzing: a buffer that lies in two regions of memory.
    #[test]
    fn buffers_cross_from_one_region_into_the_next() {
        for n in 0..8 {
            // Reads and writes of nearly 10 KiB, one after the other, through all of the memory for data.
            exercise(&[0x21, 6, 42, 0x60, 0xa9, n].repeat(400));
        }
    }

    /// Found by fuzzing: an indirect table that lies in two regions, one of its entries too.
    #[test]
    fn tables_cross_from_one_region_into_the_next() {
        exercise(include_bytes!("../../../../fuzz/seeds/virtio_chain/table-in-two-regions"));
    }

    #[test]
    fn arbitrary_guests_do_no_harm() {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        for run in undercroft_skips::inputs(0..3000) {
            let bytes: Vec<u8> = (0..run % 1200)
                .map(|_| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    (state >> 32) as u8
                })
                .collect();
            exercise(&bytes);
        }
    }
}
