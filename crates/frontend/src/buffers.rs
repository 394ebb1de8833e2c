//! Buffers of one connection: payloads of writes and data of replies, recycled.
//!
//! Owns every byte that a connection holds for requests. Never knows what is in them. Invariants: buffers handed out
//! and idle ones together hold at most `bytes_max`, or one buffer if that alone is more; what is beyond a small reserve
//! was granted by the sum that all connections share (see `budget`); no call clears more than [`STEP_BYTES`] of memory.

use crate::budget::Account;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Bytes kept free before a buffer's data, for the header of a reply.
pub const HEADROOM: usize = 32;

/// Bytes that each connection may hold outside of the sum, so that one with a small request always goes on: a buffer
/// for 128 KiB, with the room before its data.
pub const RESERVE_BYTES: usize = (128 << 10) + HEADROOM;

/// Bytes of data in the smallest buffer: one block of the cache.
const SMALLEST: usize = 4096;
/// Classes of buffers, each twice as large as the one before: 4 KiB to 32 MiB.
const CLASSES: usize = 14;

/// Bytes of a new buffer that one call clears: to clear 16 MiB takes 2.6 ms, for which other guests would wait.
const STEP_BYTES: usize = 64 * 1024;

/// A buffer with room for a header before its data; empty if none is held.
pub type Buffer = Vec<u8>;

/// Buffers of one connection.
#[derive(Debug)]
pub struct Buffers {
    idle: [Vec<Buffer>; CLASSES],
    /// A large one that is being made, and its class; it counts as idle with all of its bytes.
    making: Option<(usize, Buffer)>,
    idle_bytes: usize,
    held_bytes: usize,
    bytes_max: usize,
    /// The connection's part of the sum of all connections; without one there is no such bound.
    account: Option<Arc<Account>>,
    /// Bytes that were granted from it.
    granted_bytes: usize,
}

fn class(len: usize) -> usize {
    let blocks = len.div_ceil(SMALLEST).max(1);
    let class = blocks.next_power_of_two().trailing_zeros() as usize;
    assert!(class < CLASSES, "a buffer of {len} bytes was asked for");
    class
}

fn size(class: usize) -> usize {
    HEADROOM + (SMALLEST << class)
}

impl Buffers {
    /// No buffers yet; at most `bytes_max` bytes of them later, and `requests` of them at a time.
    pub fn new(bytes_max: usize, requests: usize, account: Option<Arc<Account>>) -> Self {
        let mut idle: [Vec<Buffer>; CLASSES] = Default::default();
        // The lists never grow on the hot path.
        idle[0].reserve(requests);
        Self { idle, making: None, idle_bytes: 0, held_bytes: 0, bytes_max, account, granted_bytes: 0 }
    }

    /// Whether a buffer for `len` bytes of data can be had now. If not for want of what all connections share, the
    /// account is called when it can.
    #[inline]
    pub fn has_room(&mut self, len: usize) -> bool {
        let class = class(len);
        let fits = self.held_bytes == 0 || self.held_bytes + size(class) <= self.bytes_max;
        fits && (self.idle_class(class).is_some() || self.makes(class) || self.is_granted(size(class)))
    }

    /// The class of the idle buffer to use for one of `class`: a larger one only where it will be the only one held.
    #[inline]
    fn idle_class(&self, class: usize) -> Option<usize> {
        if !self.idle[class].is_empty() {
            return Some(class);
        }
        let larger = self.held_bytes == 0 && size(class) > STEP_BYTES;
        (class + 1..CLASSES).find(|&c| larger && !self.idle[c].is_empty())
    }

    /// Whether a buffer of `class` is being made.
    fn makes(&self, class: usize) -> bool {
        self.making.as_ref().is_some_and(|m| m.0 == class)
    }

    /// Makes a buffer for `len` bytes, for which there has to be room. Each call makes a step, so that none takes long.
    /// Returns whether the buffer is complete; until it is, this has to be called again, and no buffer may be taken.
    #[inline]
    pub fn make(&mut self, len: usize) -> bool {
        let class = class(len);
        size(class) <= HEADROOM + 2 * STEP_BYTES || self.idle_class(class).is_some() || self.make_large(class)
    }

    #[cold]
    fn make_large(&mut self, class: usize) -> bool {
        let whole = size(class);
        if !self.makes(class) {
            self.drop_unmade();
            while self.held_bytes + self.idle_bytes + whole > self.bytes_max && self.drop_largest_idle() {}
            self.idle_bytes += whole;
        }
        let mut buffer = self.making.take().map_or_else(|| Vec::with_capacity(whole), |m| m.1);
        buffer.resize((buffer.len() + STEP_BYTES).min(whole), 0);
        if buffer.len() < whole {
            self.making = Some((class, buffer));
            return false;
        }
        self.idle[class].push(buffer);
        true
    }

    /// Whether `more` bytes may be allocated. Buffers that are not in use go first where memory is short.
    fn is_granted(&mut self, more: usize) -> bool {
        let Some(account) = self.account.clone() else { return true };
        self.granted_bytes += account.granted();
        let wants = |b: &Self| (b.held_bytes + b.idle_bytes + more).saturating_sub(RESERVE_BYTES + b.granted_bytes);
        if wants(self) > 0 && account.take(wants(self), false) {
            self.granted_bytes += wants(self);
        }
        while wants(self) > 0 && self.drop_largest_idle() {}
        let wanted = wants(self);
        let granted = wanted == 0 || account.take(wanted, true);
        self.granted_bytes += if granted { wanted } else { 0 };
        granted
    }

    /// Frees an idle buffer, of the largest there are; false if there is none.
    fn drop_largest_idle(&mut self) -> bool {
        if self.drop_unmade() {
            return true;
        }
        let buffer = self.idle.iter_mut().rev().find_map(Vec::pop);
        self.idle_bytes -= buffer.as_ref().map_or(0, Vec::len);
        buffer.is_some()
    }

    /// Frees the buffer that is being made; false if there is none.
    fn drop_unmade(&mut self) -> bool {
        let unmade = self.making.take();
        self.idle_bytes -= unmade.as_ref().map_or(0, |m| size(m.0));
        unmade.is_some()
    }

    /// Gives back what was granted and is not used.
    fn settle(&mut self) {
        let Some(account) = &self.account else { return };
        let used = (self.held_bytes + self.idle_bytes).saturating_sub(RESERVE_BYTES);
        let excess = self.granted_bytes.saturating_sub(used);
        self.granted_bytes -= excess;
        account.give(excess);
    }

    /// Whether the account has called: `tend` is due.
    #[inline]
    pub fn was_called(&self) -> bool {
        self.account.as_ref().is_some_and(|a| a.was_called())
    }

    /// Takes what was granted, and gives idle buffers back where memory is short. False if the connection has to end:
    /// its client kept others waiting.
    pub fn tend(&mut self) -> bool {
        let Some(account) = self.account.clone() else { return true };
        let granted = account.granted();
        self.granted_bytes += granted;
        if account.is_short() && granted == 0 {
            while self.drop_largest_idle() {}
            self.settle();
        }
        !account.has_ended()
    }

    /// Says whether the connection waits for its client, in case others want the memory that it holds.
    #[inline]
    pub fn set_waits_for_client(&self, waits: bool) {
        if let Some(account) = self.account.as_ref().filter(|_| self.granted_bytes > 0) {
            account.set_waits_for_client(waits);
        }
    }

    /// So many bytes of data were moved from or to the client.
    #[inline]
    pub fn moved(&self, bytes: usize) {
        if let Some(account) = self.account.as_ref().filter(|_| self.granted_bytes > 0) {
            account.moved(bytes);
        }
    }

    /// What becomes readable when the account calls.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.account.as_ref().map(|a| a.fd())
    }

    /// A buffer for `len` bytes of data, which start at [`HEADROOM`]. What is in it is of no meaning.
    #[inline]
    pub fn take(&mut self, len: usize) -> Buffer {
        let class = class(len);
        let buffer = match self.idle_class(class).and_then(|c| self.idle[c].pop()) {
            Some(buffer) => {
                self.idle_bytes -= buffer.len();
                buffer
            }
            None => self.grow(class),
        };
        self.held_bytes += buffer.len();
        buffer
    }

    #[cold]
    fn grow(&mut self, class: usize) -> Buffer {
        while self.held_bytes + self.idle_bytes + size(class) > self.bytes_max && self.drop_largest_idle() {}
        vec![0; size(class)]
    }

    /// Takes a buffer back.
    #[inline]
    pub fn give(&mut self, buffer: Buffer) {
        if buffer.is_empty() {
            return;
        }
        self.held_bytes -= buffer.len();
        let short = self.account.as_ref().is_some_and(|a| a.is_short());
        // One larger than the bound is kept where it is the only one: its like comes next, as a rule.
        let alone = self.held_bytes == 0 && buffer.len() > self.bytes_max;
        while alone && !short && self.drop_largest_idle() {}
        if !short && (alone || self.held_bytes + self.idle_bytes + buffer.len() <= self.bytes_max) {
            self.idle_bytes += buffer.len();
            self.idle[class(buffer.len() - HEADROOM)].push(buffer);
        } else {
            drop(buffer);
            self.settle();
        }
    }

    /// Bytes handed out.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        if let Some(account) = &self.account {
            account.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::{BUDGET_BYTES_MIN, Budget};
    use std::time::Duration;

    #[test]
    fn every_length_fits_its_buffer_and_not_a_smaller_one() {
        for len in (1..40_000).chain([1 << 20, (1 << 20) + 1, (32 << 20) - 1, 32 << 20]) {
            let c = class(len);
            assert!(size(c) >= HEADROOM + len);
            assert!(c == 0 || size(c - 1) < HEADROOM + len, "{len}");
        }
        assert_eq!(class(32 << 20), CLASSES - 1);
    }

    #[test]
    fn the_bound_holds_whatever_is_asked_for_and_idle_buffers_give_way() {
        let max = 1 << 20;
        let mut b = Buffers::new(max, 16, None);
        let mut held = Vec::new();
        let mut x = 1u64;
        for _ in 0..20_000 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let len = (x >> 33) as usize % (300 << 10) + 1;
            if x >> 60 < 8 && b.has_room(len) {
                held.push(b.take(len));
            } else if !held.is_empty() {
                b.give(held.swap_remove((x >> 40) as usize % held.len()));
            }
            let real: usize = held.iter().map(Vec::len).sum();
            assert_eq!(real, b.held_bytes);
            let idle: usize = b.idle.iter().flatten().map(Vec::len).sum();
            assert_eq!(idle, b.idle_bytes);
            assert!(held.len() <= 1 || real + idle <= max);
        }
        held.drain(..).for_each(|h| b.give(h));
        assert_eq!(b.held_bytes(), 0);
        // One buffer larger than the bound may be had alone.
        assert!(b.has_room(32 << 20));
        let large = b.take(32 << 20);
        assert_eq!(b.idle_bytes, 0);
        assert!(!b.has_room(1));
        b.give(large);
        assert_eq!(b.idle_bytes, size(CLASSES - 1), "it is kept for the next one, alone");
        let small = b.take(4096);
        assert_eq!(b.idle_bytes, 0);
        b.give(small);
    }

    #[test]
    fn a_large_buffer_is_cleared_in_steps_and_used_again() {
        let mut b = Buffers::new(4 << 20, 16, None);
        let len = 16 << 20;
        let (mut calls, mut cleared) = (0, 0);
        loop {
            assert!(b.has_room(len));
            let ready = b.make(len);
            calls += 1;
            let now = b.making.as_ref().map_or(size(class(len)), |m| m.1.len());
            assert!(now - cleared <= STEP_BYTES && b.idle_bytes == size(class(len)));
            cleared = now;
            if ready {
                break;
            }
        }
        assert_eq!(calls, size(class(len)).div_ceil(STEP_BYTES));
        let at = {
            let first = b.take(len);
            let at = first.as_ptr();
            b.give(first);
            at
        };
        for len in [len, 8 << 20, len] {
            assert!(b.has_room(len) && b.make(len), "one as large is there");
            let again = b.take(len);
            assert_eq!(again.as_ptr(), at);
            assert!(!b.has_room(1));
            b.give(again);
        }
        // Others give way to it, and it gives way to others.
        assert!(b.has_room(1) && b.make(1));
        let small = b.take(1);
        assert_eq!(b.idle_bytes, 0);
        b.give(small);
        assert!(b.has_room(len) && !b.make(len) && b.making.is_some());
        assert!(b.make(100 << 10));
        let small = b.take(100 << 10);
        assert!(b.making.is_none());
        b.give(small);
    }

    #[test]
    fn buffers_are_used_again() {
        let mut b = Buffers::new(1 << 20, 16, None);
        let first = b.take(4096);
        let at = first.as_ptr();
        b.give(first);
        let again = b.take(100);
        assert_eq!(again.as_ptr(), at);
    }

    #[test]
    fn what_is_allocated_beyond_the_reserve_was_granted() {
        let budget = Budget::new(BUDGET_BYTES_MIN, Duration::from_secs(10));
        let mut all: Vec<_> =
            (0..40).map(|_| (Buffers::new(4 << 20, 16, Some(budget.open("disk").unwrap())), Vec::new())).collect();
        let mut x = 1u64;
        let mut refused = 0;
        for _ in 0..20_000 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let (b, held) = &mut all[(x >> 33) as usize % 40];
            if b.was_called() {
                assert!(b.tend());
            }
            let len = if x >> 62 == 0 { (x >> 20) as usize % (32 << 20) } else { (x >> 20) as usize % (64 << 10) } + 1;
            match held.len() {
                0..4 if x >> 61 & 1 == 0 || held.is_empty() => match b.has_room(len) {
                    true => held.push(b.take(len)),
                    false => refused += 1,
                },
                n => b.give(held.swap_remove((x >> 40) as usize % n)),
            }
            let beyond = |b: &Buffers| (b.held_bytes + b.idle_bytes).saturating_sub(RESERVE_BYTES);
            assert!(all.iter().map(|(b, _)| beyond(b)).sum::<usize>() <= budget.used_bytes());
            assert!(all.iter().all(|(b, _)| beyond(b) <= b.granted_bytes));
        }
        assert!(refused > 100);
        // One small request is never refused to a connection without others, however short memory is.
        for (b, held) in &mut all {
            held.drain(..).for_each(|h| b.give(h));
            assert!(b.has_room(100 << 10));
        }
        drop(all);
        assert_eq!(budget.used_bytes(), 0);
    }
}
