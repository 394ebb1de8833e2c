//! Moves bytes between an NBD disk and its server, and brings the disk through the loss of a connection.
//!
//! Owns the order of sending and what a broken connection means for operations under way. Never blocks. Invariant:
//! before a flush succeeds, every change that it covers is either known to be with a server that has not been restarted
//! since, or was reported as lost.

use super::*;

impl Nbd {
    /// Does what can be done now; true if there may be more.
    pub(super) fn advance(&mut self) -> bool {
        let (mut woken, mut timer, mut readable, mut writable) = (false, false, false, false);
        let Ok(ready) = self.epoll.wait(Some(0)) else { return false };
        for r in ready {
            match r.token {
                TOKEN_WAKE => woken = true,
                TOKEN_TIMER => timer = true,
                _ => (readable, writable) = (r.readable, r.writable),
            }
        }
        if woken {
            self.wake.drain();
            while let Some(report) = self.connector.report() {
                match report {
                    Report::Up(connection) => self.connected(connection),
                    Report::Failed(why) => self.log_trouble(&why.to_string()),
                }
            }
        }
        let mut more = false;
        if readable || self.input.start < self.input.end {
            more = self.receive();
        }
        if writable || !self.queue.is_empty() {
            self.send();
        }
        if timer {
            self.tick();
        }
        more
    }

    /// Sends what is queued, as far as the socket takes it.
    pub(super) fn send(&mut self) {
        while !self.queue.is_empty() && matches!(self.link, Link::Up { .. }) {
            match self.send_some() {
                Ok(()) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return self.watch_for_room(true),
                Err(e) => return self.lost(&format!("sending failed: {}", std::io::Error::from(e))),
            }
        }
        self.watch_for_room(false);
    }

    fn send_some(&mut self) -> Result<(), Errno> {
        while self.heads.len() < self.queue.len().min(SEND_BATCH) {
            let head = self.request(self.queue[self.heads.len()]);
            self.heads.push_back(head);
        }
        let Link::Up { socket, .. } = &self.link else { return Ok(()) };
        let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
        let mut n = 0;
        let mut skip = self.sent;
        for (head, &slot) in self.heads.iter().zip(&self.queue) {
            for piece in std::iter::once(&head[..]).chain(payload(self.ops.peek(slot))) {
                let cut = skip.min(piece.len());
                skip -= cut;
                if cut < piece.len() && n < PIECES_MAX {
                    pieces[n] = IoSlice::new(&piece[cut..]);
                    n += 1;
                }
            }
        }
        let sent = sendmsg(
            socket,
            &pieces[..n],
            &mut SendAncillaryBuffer::default(),
            SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
        )?;
        self.sent += sent;
        while let Some(&slot) = self.queue.front() {
            let op = self.ops.get(slot);
            let whole = REQUEST_BYTES + payload_bytes(op);
            if self.heads.is_empty() || self.sent < whole {
                break;
            }
            self.sent -= whole;
            op.stage = Stage::Sent;
            self.queue.pop_front();
            self.heads.pop_front();
        }
        Ok(())
    }

    fn watch_for_room(&mut self, wanted: bool) {
        let Link::Up { socket, full, .. } = &mut self.link else { return };
        if *full == wanted {
            return;
        }
        let interest = if wanted { Interest::ReadWrite } else { Interest::Read };
        if self.epoll.modify(socket.as_fd(), TOKEN_SOCKET, interest, Trigger::Level).is_ok() {
            *full = wanted;
        }
    }

    /// Takes what the server sent; true if there may be more.
    fn receive(&mut self) -> bool {
        for _ in 0..limits::BATCH {
            if self.finished.len() >= limits::BATCH {
                return true;
            }
            let Link::Up { socket, replies, .. } = &mut self.link else { return false };
            let input = &mut self.input;
            let mut closed = None;
            match replies.take(&input.bytes[input.start..input.end], &mut self.ops, &mut self.answered) {
                Ok(used) => input.start += used,
                Err(violation) => closed = Some(format!("the server broke the protocol: {violation}")),
            }
            if closed.is_none() && self.answered.is_empty() {
                match fetch(socket, replies, input, &mut self.ops, &mut self.answered) {
                    Ok(0) => closed = Some("the server closed the connection".to_owned()),
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => return false,
                    Err(e) => closed = Some(format!("receiving failed: {}", std::io::Error::from(e))),
                }
            }
            if closed.is_none() && replies.is_shutting_down() {
                closed = Some("the server is shutting down".to_owned());
            }
            if let Some(why) = closed {
                self.lost(&why);
                return false;
            }
            self.settle();
        }
        true
    }

    /// Goes on with every operation whose request has been answered.
    fn settle(&mut self) {
        if self.answered.is_empty() {
            return;
        }
        if self.trouble.since_ns != 0 {
            self.trouble = Trouble::default();
        }
        for i in 0..self.answered.len() {
            let slot = self.answered[i];
            let op = self.ops.peek(slot);
            let part = op.step == Step::Part && op.error.is_none();
            if part && op.io.kind == IoKind::Read && !op.is_covered() {
                self.answered.clear();
                return self.lost("the server broke the protocol: it left out a part of the data");
            }
            if part && op.io.kind == IoKind::Status && op.extents.is_empty() {
                self.answered.clear();
                return self.lost("the server broke the protocol: it answered without block status");
            }
            self.answered(slot);
        }
        self.answered.clear();
    }

    /// The connection is of no use any more: everything under way waits for the next one.
    pub(super) fn lost(&mut self, why: &str) {
        let Link::Up { since_ns: up_ns, .. } = self.link else { return };
        // Dropping the socket closes it, which also ends its being watched.
        self.link = Link::Down { gave_up: false };
        (self.sent, self.input.start, self.input.end) = (0, 0, 0);
        self.heads.clear();
        self.answered.clear();
        let (now, asked_ns) = (now_ns(), self.ops.iter_mut().map(|op| op.since_ns).min());
        let idle_ns = asked_ns.unwrap_or(now).saturating_sub(up_ns);
        let patience_ns = self.options.give_up_after.as_nanos() as u64;
        let pause = self.trouble.breaks(now, idle_ns, asked_ns.is_some(), patience_ns);
        self.log_trouble(why);
        self.distrust_unflushed_changes();
        for op in self.ops.iter_mut() {
            // From the start: parts acknowledged may be lost like whole operations.
            (op.stage, op.step, op.progress, op.error) = (Stage::Queued, Step::Part, 0, None);
        }
        self.queue = self.ops.in_order().into();
        self.connector.reconnect(pause);
        self.arm_timer();
        self.tick();
        // This may be called outside of a turn: what failed here must be fetched.
        self.wake.signal();
    }

    /// The server may have crashed and lost what no flush has vouched for: says so, and fails the flushes under way
    /// that would.
    fn distrust_unflushed_changes(&mut self) {
        let mut lost = self.unflushed.lose();
        // Where there is no flush, no flush was relied on. The ranges are forgotten all the same: that is always right.
        lost.unflushed &= self.export.flags & SEND_FLUSH != 0;
        if lost.unflushed {
            tracing::warn!(
                image = self.location,
                ranges = lost.ranges.len(),
                "writes that were acknowledged and not flushed may be lost with the connection: they are read again, \
                 and the next flush of each guest and client fails once"
            );
            for slot in self.ops.in_order() {
                if self.ops.peek(slot).io.kind == IoKind::Flush {
                    self.finish(slot, Err(IoError::Io));
                }
            }
        }
        self.report_lost(lost);
    }

    /// Adds to what the worker is to be told.
    fn report_lost(&mut self, lost: Lost) {
        if lost.ranges.is_empty() {
            return;
        }
        let all = self.lost.get_or_insert_default();
        all.unflushed |= lost.unflushed;
        lost.ranges.into_iter().for_each(|r| unflushed::join(&mut all.ranges, r));
        self.wake.signal();
    }

    fn log_trouble(&mut self, why: &str) {
        if self.trouble.logged != why {
            tracing::warn!(image = self.location, "no connection to the NBD server: {why}; trying again");
            why.clone_into(&mut self.trouble.logged);
        }
    }

    fn connected(&mut self, connection: Connection) {
        let Connection { socket, export } = connection;
        if matches!(self.link, Link::Up { .. } | Link::Dead) {
            return;
        }
        let kept = READ_ONLY | SEND_TRIM | SEND_WRITE_ZEROES;
        let changed = if export.size_bytes == self.export.size_bytes {
            (export.flags & kept != self.export.flags & kept || export.block_min.unwrap_or(1) > self.geometry.align)
                .then(|| "the export has other properties than before".to_owned())
        } else {
            let (was, is) = (self.export.size_bytes, export.size_bytes);
            Some(format!("the export had {was} bytes and now has {is}"))
        };
        if let Some(what) = changed {
            tracing::error!(
                image = self.location,
                "{what}: it may be another disk, so this one is out of service; detach it and attach it again"
            );
            self.link = Link::Dead;
            self.report_lost(Lost { ranges: std::iter::once(0..self.geometry.size_bytes).collect(), unflushed: false });
            return self.fail_all();
        }
        if let Err(e) = self.epoll.add(socket.as_fd(), TOKEN_SOCKET, Interest::Read, Trigger::Level) {
            self.log_trouble(&format!("the connection cannot be watched: {e}"));
            return self.connector.reconnect(PAUSE_MAX);
        }
        tracing::info!(image = self.location, operations = self.ops.len(), "connected to the NBD server again");
        self.export = export;
        self.link = Link::up(socket, export);
        self.send();
    }

    fn fail_all(&mut self) {
        self.queue.clear();
        for slot in self.ops.in_order() {
            self.finish(slot, Err(IoError::Io));
        }
    }

    /// Looks for operations that wait too long.
    fn tick(&mut self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.timer, &mut count);
        let now = now_ns();
        let stall_ns = self.options.stall_after.as_nanos() as u64;
        let before = self.stalled;
        for op in self.ops.iter_mut() {
            if !op.stalled && now.saturating_sub(op.since_ns) >= stall_ns {
                op.stalled = true;
                self.stalled += 1;
            }
        }
        if before == 0 && self.stalled > 0 {
            let (operations, seconds) = (self.stalled, self.options.stall_after.as_secs_f32());
            tracing::warn!(image = self.location, operations, "the NBD server has not answered for {seconds} s");
        }
        let patience_ns = self.options.give_up_after.as_nanos() as u64;
        if let Link::Down { gave_up } = &mut self.link
            && !*gave_up
            && now.saturating_sub(self.trouble.since_ns) >= patience_ns
        {
            *gave_up = true;
            tracing::error!(
                image = self.location,
                operations = self.ops.len(),
                "the NBD server has been gone for {} s: operations fail until it is back",
                self.options.give_up_after.as_secs_f32()
            );
            self.fail_all();
        }
        if self.ops.is_empty() && !matches!(self.link, Link::Down { gave_up: false }) {
            self.set_timer(Duration::ZERO);
            self.timer_armed = false;
        }
    }

    /// Lets `tick` be called from time to time while something is under way.
    pub(super) fn arm_timer(&mut self) {
        if self.timer_armed {
            return;
        }
        let shorter = self.options.stall_after.min(self.options.give_up_after);
        self.set_timer((shorter / 4).clamp(Duration::from_millis(10), Duration::from_secs(1)));
        self.timer_armed = true;
    }

    fn set_timer(&self, interval: Duration) {
        let every = Timespec { tv_sec: interval.as_secs() as i64, tv_nsec: interval.subsec_nanos().into() };
        let spec = Itimerspec { it_interval: every, it_value: every };
        // Cannot fail: the descriptor is a timer and the time is in range.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec);
    }
}

/// Bytes of data behind the head of an operation's request.
fn payload_bytes(op: &Op) -> usize {
    match op.io.kind {
        IoKind::Write { .. } if op.step == Step::Part => op.step_len as usize,
        _ => 0,
    }
}

/// The data behind the head of an operation's request.
fn payload(op: &Op) -> impl Iterator<Item = &[u8]> {
    let mut skip = op.progress as usize;
    let mut left = payload_bytes(op);
    op.io.buf.pieces().filter_map(move |p| {
        let from = skip.min(p.len());
        skip -= from;
        let n = (p.len() - from).min(left);
        left -= n;
        (n > 0).then(|| &p[from..from + n])
    })
}

/// Receives once: data straight into the buffer it is for, what follows into `input`. Returns how many bytes came.
fn fetch(
    socket: &OwnedFd,
    replies: &mut Replies,
    input: &mut Input,
    ops: &mut Ops,
    answered: &mut Vec<u32>,
) -> Result<usize, Errno> {
    if let Some((slot, at, left)) = replies.wants_data()
        && input.start == input.end
    {
        let mut pieces: [IoSliceMut<'_>; PIECES_MAX] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
        let (mut n, mut skip, mut room) = (0, at as usize, 0);
        for p in ops.get(slot).io.buf.pieces_mut() {
            let from = skip.min(p.len());
            skip -= from;
            let take = (p.len() - from).min(left as usize - room);
            if take > 0 && n < PIECES_MAX - 1 {
                pieces[n] = IoSliceMut::new(&mut p[from..from + take]);
                (n, room) = (n + 1, room + take);
            }
        }
        if room == left as usize {
            pieces[n] = IoSliceMut::new(&mut input.bytes);
            n += 1;
        }
        let got = rustix::io::readv(socket, &mut pieces[..n])?;
        (input.start, input.end) = (0, got.saturating_sub(room));
        replies.direct(got.min(room) as u32, answered);
        return Ok(got);
    }
    input.bytes.copy_within(input.start..input.end, 0);
    (input.start, input.end) = (0, input.end - input.start);
    let got = rustix::io::read(socket, &mut input.bytes[input.end..])?;
    input.end += got;
    Ok(got)
}
