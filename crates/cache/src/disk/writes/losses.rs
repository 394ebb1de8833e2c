//! Changes that a disk acknowledged and then lost with its server, and which ports have not been told of it.
//!
//! Owns the rule by which flushes fail: that of errseq_t in Linux, with a port in place of an open file. Never knows
//! which bytes were lost. Invariants: after a loss, no flush of a port succeeds before one of its flushes, or one of
//! its writes that must be durable, has failed; a failed flush is not forgotten, since later ones say nothing of what
//! it was to make durable.

use crate::disk::{B, Cx, Disk};
use crate::fault_injection::{Bug, FaultInjection};
use crate::limits::PORTS_PER_DISK_MAX;
use crate::types::{IoError, Lost, ReqId};

/// A port of a disk.
#[derive(Clone, Copy, Debug)]
struct Port {
    id: u32,
    /// The loss it was told of last.
    seen: u32,
    /// Number of its last change that was acknowledged.
    wrote: u64,
}

/// Bytes that the table of ports takes at most.
pub(in crate::disk) const PORTS_BYTES: usize = PORTS_PER_DISK_MAX * size_of::<Port>();

/// What a disk lost, and who knows.
#[derive(Debug, Default)]
pub(in crate::disk) struct Losses {
    /// Losses so far.
    count: u32,
    /// The ports that are open. Should there be more than the table holds, those past its end share the last place.
    ports: Vec<Port>,
    /// Changes acknowledged, and how many of them a flush has vouched for.
    acked: u64,
    flushed: u64,
    /// Ports that closed with changes unflushed, and the last change acknowledged before.
    left: u32,
    left_at: u64,
    /// Ports that closed before they were told: as many that open are told in their place.
    debts: u32,
    /// A flush has failed: the image may have less than it was given, and those that succeed later do not tell.
    has_failed: bool,
}

/// How a disk stood when a flush began.
#[derive(Clone, Copy, Debug)]
pub(in crate::disk) struct Since {
    losses: u32,
    acked: u64,
}

impl Losses {
    pub(crate) fn memory_bytes(&self) -> usize {
        self.ports.capacity() * size_of::<Port>()
    }

    fn port(&mut self, id: u32) -> &mut Port {
        let at = match self.ports.iter().position(|p| p.id == id) {
            Some(at) => at,
            None => {
                self.open(id);
                self.ports.len() - 1
            }
        };
        &mut self.ports[at]
    }

    /// A port has come. It knows of what happened before, unless one that should have been told is gone: it may be the
    /// same client, connected again.
    pub(in crate::disk) fn open(&mut self, id: u32) {
        if self.ports.len() >= PORTS_PER_DISK_MAX || self.ports.iter().any(|p| p.id == id) {
            return;
        }
        let owed = self.debts > 0 && self.count > 0;
        self.debts -= u32::from(owed);
        self.ports.push(Port { id, seen: self.count.wrapping_sub(u32::from(owed)), wrote: 0 });
    }

    /// A port is gone.
    pub(crate) fn close(&mut self, id: u32) {
        let Some(at) = self.ports.iter().position(|p| p.id == id) else { return };
        let port = self.ports.swap_remove(at);
        if port.seen != self.count {
            self.debts = self.debts.saturating_add(1);
        } else if port.wrote > self.flushed {
            (self.left, self.left_at) = (self.left.saturating_add(1), port.wrote.max(self.left_at));
        }
    }

    /// A change by a port is about to be acknowledged.
    #[inline]
    pub(in crate::disk) fn wrote(&mut self, id: u32) {
        self.acked += 1;
        self.port(id).wrote = self.acked;
    }

    /// A flush begins now.
    pub(in crate::disk) fn since(&self) -> Since {
        Since { losses: self.count, acked: self.acked }
    }

    /// Changes that no flush has vouched for are lost.
    fn lose(&mut self) {
        self.count = self.count.wrapping_add(1);
        self.debts = self.debts.saturating_add(std::mem::take(&mut self.left));
    }

    /// Whether the port of `req` must be told now, by the failure of this request ([`IoError::Lost`]); it has been
    /// then.
    #[inline]
    pub(in crate::disk) fn tell(&mut self, req: ReqId) -> bool {
        if self.count == 0 {
            return false;
        }
        let count = self.count;
        std::mem::replace(&mut self.port(req.port).seen, count) != count
    }

    /// The failure of `req`, which told of a loss, was answered to a peer that had gone: the next one is to tell.
    #[cold]
    pub(in crate::disk) fn unheard(&mut self, req: ReqId) {
        let count = self.count;
        if let Some(port) = self.ports.iter_mut().find(|p| p.id == req.port && p.seen == count) {
            port.seen = count.wrapping_sub(1);
        }
    }

    /// How many ports are to be told by another process, because some have not been told here: those, in whose place
    /// others that come are told, and all that are open, since it does not know which of them have been.
    pub(in crate::disk) fn untold(&self) -> u32 {
        let is_told = |port: &Port| port.seen == self.count;
        if self.debts == 0 && self.ports.iter().all(is_told) {
            return 0;
        }
        self.debts.saturating_add(self.ports.len() as u32)
    }

    /// Another process has lost changes, and left so many ports to be told: those that are open here, and others in the
    /// place of the rest.
    pub(in crate::disk) fn owe(&mut self, untold: u32) {
        if untold > 0 {
            self.count = self.count.wrapping_add(1);
            self.debts = self.debts.saturating_add(untold.saturating_sub(self.ports.len() as u32));
        }
    }

    /// A flush has ended on the disk. How it is to be answered: with success only if it vouches for all it should.
    pub(in crate::disk) fn flush_ended(
        &mut self,
        req: ReqId,
        since: Since,
        failed: Option<IoError>,
    ) -> Option<IoError> {
        if self.vouches(since, failed) {
            return None;
        }
        if self.tell(req) { Some(IoError::Lost) } else { failed.or(Some(IoError::Io)) }
    }

    /// A flush that no port has asked for has ended. If it failed, the flush of a port that would have is told of it as
    /// of a loss: an image reports an error once. Whether it vouches for all that was acknowledged before.
    pub(in crate::disk) fn own_flush_ended(&mut self, since: Since, failed: Option<IoError>, tells: bool) -> bool {
        if failed.is_some() && tells {
            self.lose();
        }
        self.vouches(since, failed)
    }

    fn vouches(&mut self, since: Since, failed: Option<IoError>) -> bool {
        self.has_failed |= failed.is_some();
        if failed.is_some() || since.losses != self.count {
            return false;
        }
        self.flushed = self.flushed.max(since.acked);
        if self.left_at <= self.flushed {
            self.left = 0;
        }
        true
    }

    /// Whether a flush has failed.
    pub(in crate::disk) fn has_failed(&self) -> bool {
        self.has_failed
    }
}

impl<P: FaultInjection> Disk<P> {
    /// The last flush of the image failed when it was closed, which the core did not see.
    pub(crate) fn note_failed_flush(&mut self) {
        self.losses.has_failed = true;
    }

    /// The disk may hold in some ranges what it held before the last changes of them. Costs no more than the blocks
    /// cached.
    pub(crate) fn lose<E>(&mut self, lost: &Lost, cx: &mut Cx<'_, E>) {
        // A change under way is sent again, but what its frames hold beside its own bytes may be lost ones.
        if !self.faults.has(Bug::LossKeepsWrites) {
            self.epoch = self.epoch.wrapping_add(1);
        }
        for range in &lost.ranges {
            let lead = self.settings.lead();
            let from = range.start.saturating_add(lead);
            let to = range.end.saturating_add(lead).min(self.settings.size());
            if from >= to {
                continue;
            }
            let (first, end) = (from / B, to.div_ceil(B));
            self.leave_base(first, end);
            self.doubt(first, end, cx.arena);
            self.make_stale(first, end, cx.arena);
            if !self.faults.has(Bug::LossKeepsCache) {
                self.drop_cached(from, to, cx.arena);
            }
        }
        if lost.unflushed && !self.faults.has(Bug::LossNotTold) {
            self.losses.lose();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn req(id: u32) -> ReqId {
        ReqId { port: id, tag: 7 }
    }

    /// Loses everything unflushed.
    fn lose(l: &mut Losses) {
        l.lose();
    }

    fn flush(l: &mut Losses, id: u32) -> bool {
        let since = l.since();
        !l.tell(req(id)) && l.flush_ended(req(id), since, None).is_none()
    }

    #[test]
    fn every_port_is_told_once_whoever_wrote() {
        let mut l = Losses::default();
        (1..=3).for_each(|id| l.open(id));
        l.wrote(1);
        assert!(flush(&mut l, 2));
        l.wrote(1);
        lose(&mut l);
        assert!(!flush(&mut l, 2), "it would vouch for what another port wrote");
        assert!(flush(&mut l, 2));
        assert!(!flush(&mut l, 1), "that another was told is no news to this one");
        assert!(flush(&mut l, 1));
        lose(&mut l);
        lose(&mut l);
        assert!(!flush(&mut l, 3));
        assert!(flush(&mut l, 3), "several losses are told together");
        l.open(4);
        assert!(flush(&mut l, 4), "it came afterwards");
    }

    #[test]
    fn a_flush_under_way_fails_and_tells() {
        let mut l = Losses::default();
        l.open(1);
        l.wrote(1);
        let since = l.since();
        lose(&mut l);
        assert_eq!(l.flush_ended(req(1), since, None), Some(IoError::Lost));
        // Another that was under way then fails as well, and tells of nothing.
        assert_eq!(l.flush_ended(req(1), since, None), Some(IoError::Io));
        assert!(flush(&mut l, 1));
        // One that fails for another reason tells as well.
        lose(&mut l);
        let since = l.since();
        assert_eq!(l.flush_ended(req(1), since, Some(IoError::NoSpace)), Some(IoError::Lost));
        assert!(flush(&mut l, 1));
        assert_eq!(l.flush_ended(req(1), l.since(), Some(IoError::NoSpace)), Some(IoError::NoSpace));
    }

    #[test]
    fn a_flush_of_nobodys_that_fails_is_told_to_every_port() {
        let mut l = Losses::default();
        (1..=2).for_each(|id| l.open(id));
        l.wrote(1);
        let since = l.since();
        assert!(l.own_flush_ended(since, None, true) && !l.has_failed());
        assert!(flush(&mut l, 1) && flush(&mut l, 2), "nothing is to be told");
        l.wrote(1);
        let (since, of_port) = (l.since(), l.since());
        assert!(!l.own_flush_ended(since, Some(IoError::Io), true));
        assert_eq!(l.flush_ended(req(1), of_port, None), Some(IoError::Lost), "one that was under way");
        assert!(!flush(&mut l, 2), "it wrote nothing, and may flush what another wrote");
        assert!(flush(&mut l, 1) && flush(&mut l, 2));
        assert!(l.has_failed(), "what was lost stays lost");
        // What a port closed with is vouched for as by its own flush.
        l.wrote(2);
        l.close(2);
        let since = l.since();
        assert!(l.own_flush_ended(since, None, true));
        lose(&mut l);
        l.open(3);
        assert!(flush(&mut l, 3));
    }

    #[test]
    fn what_nobody_heard_is_told_again() {
        let mut l = Losses::default();
        l.open(1);
        l.wrote(1);
        lose(&mut l);
        assert!(!flush(&mut l, 1));
        assert!(flush(&mut l, 1));
        l.unheard(req(1));
        assert!(!flush(&mut l, 1) && flush(&mut l, 1));
        // A later loss has to be told anyway, once.
        lose(&mut l);
        l.unheard(req(1));
        assert!(!flush(&mut l, 1) && flush(&mut l, 1));
    }

    #[test]
    fn who_left_untold_is_told_when_he_comes_back() {
        let mut l = Losses::default();
        l.open(1);
        l.open(2);
        l.wrote(1);
        l.wrote(2);
        lose(&mut l);
        l.close(1);
        l.open(7);
        assert!(!flush(&mut l, 7) && flush(&mut l, 7));
        l.open(8);
        assert!(flush(&mut l, 8), "one debt, one report");
        assert!(!flush(&mut l, 2));
    }

    #[test]
    fn who_left_before_the_loss_with_changes_unflushed_is_told_too() {
        let mut l = Losses::default();
        l.open(1);
        l.wrote(1);
        l.close(1);
        lose(&mut l);
        l.open(2);
        assert!(!flush(&mut l, 2));
        // But not if a flush of whomever came between.
        l.wrote(2);
        l.open(3);
        l.close(2);
        assert!(flush(&mut l, 3));
        lose(&mut l);
        l.open(4);
        assert!(flush(&mut l, 4));
        // A flush that began before the change does not vouch for it.
        let since = l.since();
        l.wrote(4);
        assert!(!l.tell(req(4)) && l.flush_ended(req(4), since, None).is_none());
        l.close(4);
        lose(&mut l);
        l.open(5);
        assert!(!flush(&mut l, 5));
    }

    #[test]
    fn another_process_tells_who_was_not_told() {
        let mut l = Losses::default();
        (1..=3).for_each(|id| l.open(id));
        l.wrote(1);
        assert_eq!(l.untold(), 0);
        lose(&mut l);
        assert!(!flush(&mut l, 1));
        l.close(2);
        // One that is gone, and two that are open; which of them has been told is not known there.
        assert_eq!(l.untold(), 3);
        let mut next = Losses::default();
        next.open(1);
        next.owe(l.untold());
        assert!(!flush(&mut next, 1) && flush(&mut next, 1));
        for id in [5, 6] {
            next.open(id);
            assert!(!flush(&mut next, id) && flush(&mut next, id), "port {id}");
        }
        next.open(7);
        assert!(flush(&mut next, 7) && next.untold() == 0);
        next.owe(0);
        assert!(flush(&mut next, 1), "nothing was lost");
    }

    #[test]
    fn ports_past_the_end_of_the_table_share_a_place() {
        let mut l = Losses::default();
        (0..2 * PORTS_PER_DISK_MAX as u32).for_each(|id| l.wrote(id));
        assert!(l.memory_bytes() <= PORTS_BYTES);
        lose(&mut l);
        assert!(!flush(&mut l, 2 * PORTS_PER_DISK_MAX as u32));
        l.close(2 * PORTS_PER_DISK_MAX as u32);
        assert!(!flush(&mut l, 0));
    }
}
