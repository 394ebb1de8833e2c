//! One turn of a worker: completions, requests, kicks, replies; and going to sleep.
//!
//! Owns the loop. Never looks inside a request: `serve` and `reap` do. Invariants: the work of a turn is bounded in
//! bytes, so that no disk keeps another waiting; a port that may have work is either active (visited by the loop) or
//! armed (its descriptor wakes the loop).

use super::effects::Live;
use super::ports::PortSlot;
use super::serve::LARGE_BYTES;
use super::{STALL_NS, Worker};
use undercroft_cache::{Core, DiskId, Event, ReqId, limits};
use undercroft_frontend::turns::{LONE_SEND_BYTES, QUANTUM_BYTES, REQUEST_BYTES, SEND_BYTES};
use undercroft_frontend::{AnyPort, MakePort, OnPort, Port, PortInterest};
use undercroft_host::{Interest, Trigger, faults, now_ns};

/// Kinds of epoll tokens.
pub(super) const MAILBOX: u8 = 0;
pub(super) const BACKEND: u8 = 1;
pub(super) const PORT: u8 = 2;
pub(super) const SSD: u8 = 3;

/// Nanoseconds between two ticks of the core.
const TICK_NS: u64 = 250_000_000;
/// Nanoseconds between two ticks of a worker that has nothing under way.
const QUIET_NS: u64 = 1_000_000_000;
/// A busy worker looks for news of sleeping ports, back ends and the mailbox this often, in nanoseconds.
const NEWS_NS: u64 = 50_000;

/// Pieces of what need not come before the replies that one turn does, with a look at small disks after each.
const SPARE_STEPS: usize = 2;

/// An epoll token: what it is, whose, and a number of the owner's.
pub(super) fn token(kind: u8, id: u32, sub: u16) -> u64 {
    u64::from(kind) << 56 | u64::from(sub) << 32 | u64::from(id)
}

impl Worker {
    /// Runs until [`Worker::stop`] was called and the last disk is gone.
    pub(super) fn run(mut self) {
        let mut idle_since_ns = None;
        let mut slept = false;
        loop {
            self.now_ns = now_ns();
            let mut busy = self.reap();
            if self.send_large() {
                self.hear_of_sleepers();
            }
            busy |= self.serve();
            self.finish_turn();
            if self.flows.is_crowded() {
                self.glance();
            }
            if faults() != self.faults {
                self.drop_harmful();
            }
            for _ in 0..SPARE_STEPS {
                if self.core.wants_spare() {
                    self.use_spare_time();
                    self.glance();
                }
            }
            // One event does a bounded part of that, and so does a turn's sending and starting.
            let unstarted = !self.dirty.disks.is_empty();
            let busy = busy | self.core.wants_spare() | !self.dirty.sending.is_empty() | unstarted;
            if self.leaving {
                self.let_go();
            }
            if self.stopping && self.disks.iter().all(Option::is_none) && self.ports.iter().all(Option::is_none) {
                return;
            }
            if self.now_ns >= self.tick_ns {
                self.tick_ns = self.now_ns + TICK_NS;
                self.apply(Event::Tick);
                self.finish_turn();
                self.flows.tick();
                self.look_for_stalls();
                if let Some(tap) = &mut self.tap {
                    tap.hand_over(self.now_ns);
                }
            }
            if busy {
                self.seen.work();
                if let (Some(since), true) = (idle_since_ns, slept) {
                    self.polling.learn(self.now_ns.saturating_sub(since));
                }
                (idle_since_ns, slept) = (None, false);
                if self.flows.is_crowded() {
                    // The turn was a long one, and what sleeps may have waited since it began.
                    self.now_ns = now_ns();
                }
                if self.now_ns >= self.news_ns {
                    self.sleep(0);
                    self.news_ns = self.now_ns + NEWS_NS;
                }
                continue;
            }
            let since = *idle_since_ns.get_or_insert(self.now_ns);
            if self.now_ns - since < self.polling.window_ns() {
                if self.now_ns >= self.news_ns {
                    self.sleep(0);
                    self.news_ns = self.now_ns + NEWS_NS;
                }
                std::hint::spin_loop();
                continue;
            }
            if !self.flows.is_empty() {
                // `serve` arms and retires the ports that had nothing to say; some still have.
                continue;
            }
            let quiet = self.busy_disks.is_empty() && self.devices.inflight() == 0 && !self.leaving;
            self.sleep(if quiet { QUIET_NS } else { self.tick_ns.saturating_sub(self.now_ns) });
            slept = true;
            self.news_ns = self.now_ns + NEWS_NS;
        }
    }

    pub(super) fn apply(&mut self, event: Event) {
        let mut fx = Live {
            ports: &mut self.ports,
            disks: &mut self.disks,
            devices: &mut self.devices,
            dirty: &mut self.dirty,
            check_captures: self.check_captures,
            current: None,
            all_found: false,
            at_once: &mut 0,
            tap: self.tap.as_deref_mut(),
            noted: false,
            torn: false,
            refused: &mut self.refused,
            now_ns: self.now_ns,
        };
        self.core.apply(event, self.now_ns, &mut fx);
    }

    /// Lets the core do what the replies should not wait for.
    pub(super) fn use_spare_time(&mut self) {
        let start = now_ns();
        let copies = self.copying.allows(start);
        self.apply(Event::Spare { copies });
        self.copying.spend(now_ns().saturating_sub(start));
        self.hand_over();
    }

    /// Kicks the back ends and flushes the ports that were touched since the last time. Not within a turn's visits.
    pub(super) fn finish_turn(&mut self) {
        self.devices.kick();
        // What a back end holds back waits for the next turn.
        for _ in 0..self.dirty.disks.len() {
            let Some(id) = self.dirty.disks.pop_front() else { break };
            if self.starts_long(id) {
                self.glance_beside(id);
                self.kick(id);
                self.glance_beside(id);
            } else {
                self.kick(id);
            }
        }
        self.flush_ports();
        self.wake_paused();
    }

    /// The same between two requests. What takes long to start waits for the end of the turn while other disks have
    /// work, so that they are looked at before and after it.
    pub(super) fn hand_over(&mut self) {
        self.devices.kick();
        let mut i = 0;
        while let Some(&id) = self.dirty.disks.get(i) {
            if self.starts_long(id) {
                i += 1;
            } else {
                self.dirty.disks.remove(i);
                self.kick(id);
            }
        }
        self.flush_ports();
        self.wake_paused();
    }

    /// Has ports visited that paused while they slept, after an operation or a tick.
    fn wake_paused(&mut self) {
        while let Some(id) = self.dirty.paused.pop() {
            if let Some(slot) = self.ports[id as usize].as_mut() {
                slot.wake(id, &mut self.flows, self.now_ns);
            }
        }
    }

    /// Whether to start what was submitted for a disk takes long, and others may wait for that.
    fn starts_long(&self, id: u32) -> bool {
        let bytes = self.disks[id as usize].as_ref().map_or(0, |d| d.to_start);
        bytes > LARGE_BYTES && !self.flows.is_lone(id)
    }

    /// Starts the operations of a disk submitted since the last time.
    fn kick(&mut self, id: u32) {
        let Some(d) = self.disks[id as usize].as_mut() else { return };
        d.backend.set_shared(!self.flows.is_lone(id));
        d.backend.kick();
        d.dirty = d.backend.holds_back();
        if d.dirty {
            self.dirty.disks.push_back(id);
        } else {
            d.to_start = 0;
        }
        if !d.listed {
            d.listed = true;
            d.progress_ns = self.now_ns;
            self.busy_disks.push(id);
        }
    }

    /// Sends the replies given since the last time.
    pub(super) fn flush_ports(&mut self) {
        while let Some(id) = self.dirty.ports.pop() {
            if let Some(s) = self.ports[id as usize].as_mut() {
                s.dirty = false;
                if s.port.bytes_to_send() <= LARGE_BYTES {
                    s.port.flush(SEND_BYTES);
                    self.leaving |= s.port.is_closed() || !s.leaving.is_empty();
                }
                // Replies with much data wait for the end of the turn.
                if (s.port.bytes_to_send() > LARGE_BYTES || s.port.has_more_to_send()) && !s.sends {
                    s.sends = true;
                    self.dirty.sending.push_back(id);
                }
            }
        }
    }

    /// Sends replies with much data, port by port, until the turn has sent [`QUANTUM_BYTES`], or more for a disk that
    /// is alone. Their disks are charged, so that a turn which sends for a disk copies the less for it.
    ///
    /// Whether it sent while another disk may want something. What this takes is no idle time: that begins at its end.
    pub(super) fn send_large(&mut self) -> bool {
        let (mut had, mut beside) = (0, false);
        while let Some(id) = self.dirty.sending.pop_front() {
            let Some(s) = self.ports.get_mut(id as usize).and_then(Option::as_mut).filter(|s| s.sends) else {
                continue;
            };
            let before = s.port.bytes_to_send();
            s.port.flush(if self.flows.is_lone(s.disk.0) { LONE_SEND_BYTES } else { SEND_BYTES });
            self.now_ns = now_ns();
            s.worked_ns = self.now_ns;
            let sent = before.saturating_sub(s.port.bytes_to_send());
            let (disk, cost) = (s.disk.0, REQUEST_BYTES + sent as i64);
            self.flows.charge(disk, cost);
            had += cost;
            beside |= !self.flows.is_lone(disk);
            s.sends = s.port.has_more_to_send();
            if s.sends {
                self.dirty.sending.push_back(id);
            }
            self.leaving |= s.port.is_closed() || !s.leaving.is_empty();
            self.glance_beside(disk);
            if had >= if self.flows.is_lone(disk) { LONE_SEND_BYTES as i64 } else { QUANTUM_BYTES } {
                break;
            }
        }
        beside
    }

    /// Looks, if some time has passed since, whether what sleeps wants something.
    pub(super) fn hear_of_sleepers(&mut self) {
        self.now_ns = now_ns();
        if self.now_ns >= self.news_ns {
            self.sleep(0);
            self.news_ns = self.now_ns + NEWS_NS;
        }
    }

    /// Says once when an image stops answering, and once when it answers again.
    fn look_for_stalls(&mut self) {
        for disk in self.disks.iter_mut().flatten() {
            let waits = disk.listed && self.now_ns.saturating_sub(disk.progress_ns) > STALL_NS;
            if waits != disk.stalled {
                disk.stalled = waits;
                if waits {
                    tracing::warn!(
                        disk = disk.name,
                        operations = disk.backend.inflight(),
                        "the image has not answered for 5s; its requests wait, other disks go on. Look at the storage \
                         below it"
                    );
                } else {
                    tracing::info!(disk = disk.name, "the image answers again");
                }
            }
        }
    }

    /// Waits for events, at most `timeout_ns` nanoseconds, and notes which ports have work.
    fn sleep(&mut self, timeout_ns: u64) {
        let mut tokens = [0u64; limits::BATCH];
        let mut n = 0;
        if timeout_ns > 0 {
            self.seen.sleep(self.core.frames_bytes());
        }
        match self.epoll.wait(Some(timeout_ns)) {
            Ok(ready) => {
                for (r, t) in ready.zip(&mut tokens) {
                    *t = r.token;
                    n += 1;
                }
            }
            // Cannot happen to a descriptor of our own; going on would spin for ever.
            Err(e) => panic!("epoll_wait failed: {e}"),
        }
        if timeout_ns > 0 {
            self.seen.wake();
            self.now_ns = now_ns();
        }
        for &token in &tokens[..n] {
            let id = token as u32;
            match (token >> 56) as u8 {
                MAILBOX => self.read_mail(),
                PORT => {
                    if let Some(slot) = self.ports.get_mut(id as usize).and_then(Option::as_mut) {
                        slot.wake(id, &mut self.flows, self.now_ns);
                        // A socket that can be written to again may have replies waiting.
                        if !slot.dirty {
                            slot.dirty = true;
                            self.dirty.ports.push(id);
                        }
                    }
                }
                BACKEND => {
                    if let Some(d) = self.disks.get_mut(id as usize).and_then(Option::as_mut)
                        && !d.listed
                    {
                        d.listed = true;
                        self.busy_disks.push(id);
                    }
                }
                _ => {}
            }
        }
    }

    fn read_mail(&mut self) {
        self.mailbox.acknowledge();
        // Bounded: a caller that floods the worker must not stop the disks.
        for _ in 0..limits::BATCH {
            match self.mailbox.try_next() {
                Some(command) => command(self),
                None => return,
            }
        }
        self.mailbox.again();
    }

    /// Adds a port for a disk; `make` builds it, given its id.
    pub(super) fn add_port(&mut self, disk: DiskId, make: MakePort) -> u32 {
        let place = self.ports.iter().position(Option::is_none).unwrap_or(self.ports.len());
        let id = place as u32;
        let mut slot = PortSlot::new(make(id), disk);
        if self.disks.get(disk.0 as usize).is_none_or(|d| d.as_ref().is_none_or(|d| d.leaving.is_some())) {
            slot.port.shut();
            self.leaving = true;
        }
        if place == self.ports.len() {
            self.ports.push(Some(slot));
        } else {
            self.ports[place] = Some(slot);
        }
        self.core.open_port(disk, id);
        self.watch_port(id);
        id
    }

    /// The same if the disk is still the one of that life; else `make` comes back.
    pub(super) fn add_port_in_life(&mut self, disk: DiskId, life: u64, make: MakePort) -> Result<u32, MakePort> {
        if self.life(disk) == Some(life) { Ok(self.add_port(disk, make)) } else { Err(make) }
    }

    /// Looks at ports in the next turn whose peers wait for memory: there may be some again.
    pub(crate) fn wake_ports(&mut self) {
        for (id, slot) in self.ports.iter_mut().enumerate() {
            if let Some(slot) = slot.as_mut().filter(|s| s.port.memory().is_some_and(|m| m.waits().is_some())) {
                slot.wake(id as u32, &mut self.flows, self.now_ns);
            }
        }
    }

    /// Registers the descriptors of a port afresh and looks at it in the next turn.
    pub(super) fn watch_port(&mut self, id: u32) {
        let Some(slot) = self.ports[id as usize].as_mut() else { return };
        for (n, (fd, interest)) in slot.port.fds().into_iter().enumerate() {
            let interest = match interest {
                PortInterest::Read => Interest::Read,
                PortInterest::ReadWrite => Interest::ReadWrite,
            };
            if let Err(e) = self.epoll.add(fd, token(PORT, id, n as u16), interest, Trigger::Edge) {
                tracing::error!("cannot watch a descriptor of a guest's queue or client: {e}; it will not be served");
            }
        }
        slot.port.fds_changed();
        slot.wake(id, &mut self.flows, self.now_ns);
    }

    /// Runs `f` on a port between two turns. False if there is none.
    pub(super) fn with_port(&mut self, id: u32, f: OnPort) -> bool {
        self.change_port(id, |port| f(&mut **port))
    }

    fn change_port(&mut self, id: u32, f: impl FnOnce(&mut AnyPort)) -> bool {
        let Some(slot) = self.ports.get_mut(id as usize).and_then(Option::as_mut) else { return false };
        // `f` may close descriptors of which the guest holds copies; those would stay registered for ever.
        unwatch(&self.epoll, &*slot.port);
        f(&mut slot.port);
        hear_unheard(&mut self.core, slot, id);
        self.look_at_guest(id);
        self.watch_port(id);
        true
    }

    /// Drops the peers that have done harm; others never notice.
    #[cold]
    fn drop_harmful(&mut self) {
        // Read before the ports are asked, so that what happens meanwhile is looked at again.
        self.faults = faults();
        for id in 0..self.ports.len() as u32 {
            let Some(slot) = self.ports[id as usize].as_ref() else { continue };
            let Some(why) = slot.port.memory().and_then(|memory| memory.harm()) else { continue };
            let disk = self.disks.get(slot.disk.0 as usize).and_then(Option::as_ref).map_or("", |d| &d.name);
            tracing::error!(disk, "a front end was disconnected: {why}");
            self.change_port(id, |port| {
                if let Some(memory) = port.memory_mut() {
                    memory.drop_peer();
                }
            });
        }
    }

    /// Lets ports and disks go that are shut and have nothing under way.
    pub(super) fn let_go(&mut self) {
        self.leaving = false;
        for n in 0..self.ports.len() {
            let Some(slot) = self.ports[n].as_mut() else { continue };
            let disk_leaves = self.disks[slot.disk.0 as usize].as_ref().is_none_or(|d| d.leaving.is_some());
            if slot.port.is_closed() || !slot.leaving.is_empty() || disk_leaves {
                if slot.port.inflight() > 0 {
                    // Replies under way bring us back here.
                    continue;
                }
                slot.port.flush(SEND_BYTES);
                unwatch(&self.epoll, &*slot.port);
                if let Some(disk) = self.disks.get_mut(slot.disk.0 as usize).and_then(Option::as_mut)
                    && disk.guest_port == Some(n as u32)
                {
                    disk.guest_port = None;
                    self.core.leave_guest(slot.disk);
                }
                hear_unheard(&mut self.core, slot, n as u32);
                self.core.close_port(slot.disk, n as u32);
                if let Some(slot) = self.ports[n].take() {
                    self.flows.remove(slot.disk.0, n as u32);
                    slot.leaving.into_iter().for_each(|to| _ = to.send(()));
                }
            }
        }
        for n in 0..self.disks.len() {
            let id = DiskId(n as u32);
            let Some(disk) = self.disks[n].as_ref().filter(|d| d.leaving.is_some()) else { continue };
            let used = self.ports.iter().flatten().any(|s| s.disk == id);
            if !used {
                self.core.begin_shutdown(id);
            }
            if used || !self.core.is_idle(id) || disk.backend.inflight() > 0 {
                self.leaving = true;
                continue;
            }
            self.part_from_ssd(id);
            self.core.remove_disk(id);
            if let Some(tap) = &mut self.tap {
                tap.forget(id);
            }
            if let Some(mut disk) = self.disks[n].take() {
                let _ = self.epoll.remove(disk.backend.wake_fd());
                self.busy_disks.retain(|&b| b != n as u32);
                if let Some(to) = disk.leaving.take() {
                    let _ = to.send(disk.backend);
                }
            }
            self.update_polling();
        }
    }
}

impl Worker {
    /// Shuts a port and answers on `to` when it is gone; at once if there is none.
    pub(super) fn detach_port(&mut self, id: u32, to: std::sync::mpsc::Sender<()>) {
        match self.ports.get_mut(id as usize).and_then(Option::as_mut) {
            Some(slot) => {
                slot.port.shut();
                slot.leaving.push(to);
                slot.wake(id, &mut self.flows, self.now_ns);
                self.leaving = true;
            }
            None => _ = to.send(()),
        }
    }
}

/// Tells the core of failures that a port answered and that its peer, which is gone, cannot have seen.
fn hear_unheard(core: &mut Core, slot: &mut PortSlot, id: u32) {
    while let Some(tag) = slot.port.take_unheard() {
        core.unheard(slot.disk, ReqId { port: id, tag });
    }
}

/// Takes the descriptors of a port out of the set. One that was closed already left by itself.
fn unwatch(epoll: &undercroft_host::Epoll, port: &dyn Port) {
    for (fd, _) in port.fds() {
        let _ = epoll.remove(fd);
    }
}
