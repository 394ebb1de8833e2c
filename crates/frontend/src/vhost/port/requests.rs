//! One request of a guest from its chain to its answer: what the chain asks for, its slot, its status.
//!
//! Owns no state of its own: slots, maps and queues are the port's. Never chooses the queue to be served, and never
//! copies data of reads and writes. Invariants: a chain that was counted as taken is answered at once or has a slot
//! until its answer; a slot is given back once; for a request of a former session no memory of the guest is written.

use super::super::chain::{Chain, walk};
use super::super::request::{Action, Status, decode};
use super::super::ring::Broken;
use super::VhostPort;
use super::queue::report;
use crate::faults::{PortBug, PortFaults};
use crate::filled::BLOCK;
use std::io::Write;
use undercroft_cache::{IoError, Op, ReqId, Request};

impl<F: PortFaults> VhostPort<F> {
    /// Takes one chain of queue `index`, of which there must be one. Of several ranges those for which there is no
    /// `room` wait for the next turn. Returns false if the chain has to wait.
    pub(super) fn take_one(&mut self, index: u16, room: usize, out: &mut Vec<Request>) -> Result<bool, Broken> {
        let Self { queues, maps, spans, ranges, hint, disk, whole_at, room: guest_room, holes, .. } = self;
        let queue = &mut queues[usize::from(index)];
        let ring = queue.ring.as_mut().expect("a running queue has a ring");
        let repeated = queue.again.pop();
        let head = match repeated {
            Some(head) => head,
            None => {
                F::fetch();
                ring.pop()?
            }
        };
        let map = maps.current();
        let chain = walk::<F>(ring, map, head, hint, spans)?;
        let action = decode::<F>(map, spans, &chain, disk, ranges);
        // What the guest asked for is known: whatever it writes there from now on, nobody looks at it.
        F::fetch();
        if !Self::is_whole(maps, whole_at) {
            // Nobody may have posted this: the worker drops the front end before it looks here again.
            return Ok(false);
        }
        // Missing pages are charged to us when we touch them, and stay so; only asked where a control group limits us.
        let touched = match action {
            Action::Read { len, .. } | Action::Write { len, .. } if guest_room.is_limited() => len,
            _ => 0,
        };
        self.waits = touched > 0 && holes.matter(map, u64::from(touched)) && !guest_room.take(map.absent_bytes(spans));
        if self.waits {
            match repeated {
                Some(head) => queue.again.push(head),
                None => ring.set_next_available(ring.next_available().wrapping_sub(1)),
            }
            return Ok(false);
        }
        if let (None, Some(log)) = (repeated, &mut queue.log) {
            log.taken::<F>(head);
        }
        queue.under_way += 1;
        match action {
            Action::Answer(status) => self.answer(index, head, &chain, status, 0),
            Action::Serial => {
                let written = self.put_serial(&chain);
                self.answer(index, head, &chain, Status::Ok, written);
            }
            Action::Ranges => {
                let tag = self.hold(index, head, &chain);
                self.begin_ranges(tag, room, out);
            }
            Action::Read { .. } | Action::Write { .. } | Action::Flush => {
                let tag = self.hold(index, head, &chain);
                self.begin(tag, &chain, &action, out);
            }
        }
        Ok(true)
    }

    /// Gives a chain back at once; `written` bytes were put in its buffers beside the status.
    fn answer(&mut self, index: u16, head: u16, chain: &Chain, status: Status, written: u32) {
        let map = self.maps.current();
        if self.logging.marks().is_some() {
            self.put_status_marked(map, chain.status, status.code());
        } else {
            map.put_byte(chain.status, status.code());
        }
        if self.queues[usize::from(index)].give_back::<F>(head, written + 1) {
            self.dirty.push(index);
        }
    }

    /// Writes the disk's serial number to the chain's buffers; returns the bytes that had room.
    fn put_serial(&mut self, chain: &Chain) -> u32 {
        let serial = &self.disk.serial;
        let mut done = 0;
        for span in &self.spans[chain.readable..] {
            let here = (serial.len() - done).min(span.len as usize);
            self.put_bytes(*span, &serial[done..done + here]);
            done += here;
        }
        done as u32
    }

    /// A slot for a chain until its answer.
    #[inline]
    fn hold(&mut self, index: u16, head: u16, chain: &Chain) -> u32 {
        let map = self.maps.hold();
        let (tag, slot) = self.slots.take();
        slot.head = head;
        slot.queue = index;
        slot.session = self.session;
        slot.map = map;
        slot.status = chain.status;
        slot.written = 1;
        tag
    }

    /// Puts a read, a write or a flush to the core.
    #[inline]
    fn begin(&mut self, tag: u32, chain: &Chain, action: &Action, out: &mut Vec<Request>) {
        let slot = self.slots.get(tag);
        let (op, offset, len) = match *action {
            Action::Read { offset, len } => {
                slot.spans.extend_from_slice(&self.spans[chain.readable..]);
                slot.written = len + 1;
                slot.filled.begin(len as usize);
                if F::has(PortBug::BlocksAtMultiples) {
                    slot.filled.begins_at(offset as usize % BLOCK);
                }
                debug_assert!(slot.holds(len));
                (Op::Read, offset, len)
            }
            Action::Write { offset, len, first, skip } => {
                slot.spans.extend_from_slice(&self.spans[first..chain.readable]);
                if let Some(span) = slot.spans.first_mut() {
                    span.offset += u64::from(skip);
                    span.len -= skip;
                }
                debug_assert!(slot.holds(len));
                (Op::Write { fua: self.fua }, offset, len)
            }
            _ => (Op::Flush, 0, 0),
        };
        self.under_way += 1;
        out.push(self.request(tag, op, offset, u64::from(len)));
    }

    /// Puts each range found to the core, as far as there is `room`; the others wait.
    fn begin_ranges(&mut self, whole: u32, room: usize, out: &mut Vec<Request>) {
        self.slots.get(whole).parts = self.ranges.len() as u16;
        for n in 0..self.ranges.len() {
            let range = self.ranges[n];
            let map = self.maps.hold();
            let (part, slot) = self.slots.take();
            slot.parent = Some(whole);
            slot.session = self.session;
            slot.map = map;
            let op = match range.op {
                Op::WriteZeroes { unmap, .. } => Op::WriteZeroes { unmap, fua: self.fua },
                op => op,
            };
            let request = self.request(part, op, range.offset, range.len);
            if n < room {
                out.push(request)
            } else {
                self.rest.push_back(request)
            }
            self.under_way += 1;
        }
    }

    #[inline]
    fn request(&self, tag: u32, op: Op, offset: u64, len: u64) -> Request {
        Request { id: ReqId { port: self.id, tag }, disk: self.disk.disk, op, offset, len }
    }

    /// Gives a slot back that nothing refers to any more.
    pub(super) fn release(&mut self, tag: u32) {
        let slot = self.slots.get(tag);
        let (map, orphan) = (slot.map, slot.session != self.session);
        self.maps.release(map);
        self.slots.put(tag);
        self.orphans -= usize::from(orphan);
        if self.held_up && self.orphans == 0 {
            self.held_up = false;
            // Our own: it never blocks.
            let _ = (&self.wake_fd).write(&1u64.to_ne_bytes());
        }
    }

    /// A request is finished, with all its parts.
    pub(super) fn finish(&mut self, tag: u32, result: Result<(), IoError>) {
        let slot = self.slots.get(tag);
        if slot.session == self.session {
            let mut status = Status::from(result);
            if status == Status::Ok && !slot.filled.is_whole() && !F::has(PortBug::ShortReadSent) {
                // What was in the buffers before is not what the disk holds.
                tracing::error!(disk = self.disk.name, "a read was answered without all of its data: I/O error");
                status = Status::IoError;
            }
            if F::has(PortBug::LossUnsaid) && slot.spans.is_empty() && slot.failed.is_none() {
                status = Status::Ok;
            }
            // Of a failed read nothing but the status is sure to be there.
            let written = if status == Status::Ok { slot.written } else { 1 };
            let (at, queue, head) = (slot.status, slot.queue, slot.head);
            let map = self.maps.get(slot.map);
            if self.logging.marks().is_some() {
                self.put_status_marked(map, at, status.code());
            } else {
                map.put_byte(at, status.code());
            }
            if self.queues[usize::from(queue)].give_back::<F>(head, written) {
                self.dirty.push(queue);
            }
        }
        self.release(tag);
    }

    /// Takes a queue out of service until the driver sets it up again.
    pub(super) fn break_queue(&mut self, index: u16, broken: Broken) {
        if !Self::is_whole(&self.maps, &mut self.whole_at) {
            return;
        }
        let queue = &mut self.queues[usize::from(index)];
        queue.broken = Some(broken);
        report(&self.disk, index, queue, broken);
        // Whoever waits for it to stop waits no longer for what it will not serve.
        queue.settle();
    }
}
