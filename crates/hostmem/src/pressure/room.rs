//! How much memory of the daemon's control group copies to guests may still take.
//!
//! A page of shared memory is charged to the control group of the process that touches it first. Guests that are not
//! preallocated have pages that nobody has touched yet; a copy to one is charged to the daemon's group, for as long as
//! the guest lives, and a group that is full kills. Owns the number of bytes that copies may touch first until the
//! group is looked at again. Never reads a file or a page. Invariant: what is taken between two looks is at most what
//! was there.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

/// No limit.
const FREE: i64 = i64::MAX;

/// See the head of the file. Shared by whoever watches memory and all that copy to guests.
#[derive(Debug)]
pub struct GuestRoom {
    left: AtomicI64,
    /// Whether somebody was refused since the last look.
    refused: AtomicBool,
}

impl Default for GuestRoom {
    fn default() -> Self {
        GuestRoom { left: AtomicI64::new(FREE), refused: AtomicBool::new(false) }
    }
}

impl GuestRoom {
    /// Until the next look, `bytes` may be touched first; `None` if nothing limits us. Returns whether somebody waits.
    pub fn set(&self, bytes: Option<u64>) -> bool {
        self.left.store(bytes.map_or(FREE, |b| i64::try_from(b).unwrap_or(FREE - 1)), Ordering::Relaxed);
        self.refused.swap(false, Ordering::Relaxed)
    }

    /// Whether it has to be asked at all.
    #[inline]
    pub fn is_limited(&self) -> bool {
        self.left.load(Ordering::Relaxed) != FREE
    }

    /// Takes `bytes`, all or nothing.
    pub fn take(&self, bytes: u64) -> bool {
        if bytes == 0 || !self.is_limited() {
            return true;
        }
        let wanted = i64::try_from(bytes).unwrap_or(FREE - 1);
        let less = |left: i64| if left == FREE { Some(FREE) } else { left.checked_sub(wanted).filter(|l| *l >= 0) };
        let got = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok();
        if !got {
            self.refused.store(true, Ordering::Relaxed);
        }
        got
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_taken_between_two_looks_than_there_was() {
        let room = GuestRoom::default();
        assert!(!room.is_limited() && room.take(1 << 60), "nothing limits us");
        assert!(!room.set(Some(10_000)) && room.is_limited());
        assert!(room.take(8192) && !room.take(4096) && room.take(1000) && room.take(0));
        assert!(room.set(Some(4096)), "somebody was refused");
        assert!(room.take(4096) && !room.take(1));
        assert!(room.set(None) && !room.is_limited() && room.take(u64::MAX));
        room.set(Some(0));
        std::thread::scope(|s| {
            room.set(Some(1000));
            let takers: Vec<_> = (0..4).map(|_| s.spawn(|| (0..1000).filter(|_| room.take(1)).count())).collect();
            assert_eq!(takers.into_iter().map(|t| t.join().unwrap()).sum::<usize>(), 1000);
        });
    }
}
