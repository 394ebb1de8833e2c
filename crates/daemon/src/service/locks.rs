//! The service's locks, and the order in which one thread may take several of them.
//!
//! Owns that order, here and nowhere else. Never waits for anything but a lock. Invariant: a thread takes locks in
//! rising order of [`Rank`], so that no two threads wait for each other; where assertions are on, each taking checks
//! it.
//!
//! `plan` and `disks` are read-write locks that are held for a copy only, under any of these; `stop` is held for a look
//! only, and nothing is taken under it.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

/// Between two tries to take a lock that is waited for with a limit.
const TRY_PAUSE: Duration = Duration::from_millis(10);

/// The locks, in order: whoever holds one takes only those after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// Held while disks come, go or change: one change at a time.
    Change,
    /// The recording under way, or the last one.
    Recorder,
    /// Versions of what is set. Taken before the plan is read for it, so that it never sees an older one than before.
    Versions,
    /// What divides the store, and moves it.
    Shares,
    /// Held while disks are told what they may hold.
    Limits,
    /// Disks that wait.
    Waiting,
    /// Listeners and threads that run beside the workers.
    Running,
    /// The kernel's merging of pages.
    Ksm,
    /// The files and devices of the SSD store.
    Ssd,
    /// Numbers of trust groups and bases.
    Sharing,
}

/// A lock with its place in the order.
pub(super) struct Ordered<T> {
    rank: Rank,
    inner: Mutex<T>,
}

impl<T> Ordered<T> {
    pub(super) fn new(rank: Rank, value: T) -> Self {
        Self { rank, inner: Mutex::new(value) }
    }

    /// Waits for it. What a thread left behind that ended within is taken as it is.
    pub(super) fn lock(&self) -> Held<'_, T> {
        let place = Place::take(self.rank);
        Held { guard: self.inner.lock().unwrap_or_else(|p| p.into_inner()), _place: place }
    }

    /// Waits for it, at most `limit`: for who must not wait for a thread that does not go on.
    pub(super) fn lock_within(&self, limit: Duration) -> Option<Held<'_, T>> {
        let end = Instant::now() + limit;
        loop {
            let held = self.try_lock();
            if held.is_some() || Instant::now() >= end {
                return held;
            }
            std::thread::sleep(TRY_PAUSE);
        }
    }

    /// Takes it, if nobody has it.
    pub(super) fn try_lock(&self) -> Option<Held<'_, T>> {
        let guard = match self.inner.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(p)) => p.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Held { guard, _place: Place::take(self.rank) })
    }
}

/// A lock that is held.
pub(super) struct Held<'a, T> {
    guard: MutexGuard<'a, T>,
    _place: Place,
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// The place of a held lock among those that the thread holds; nothing where assertions are off.
struct Place {
    #[cfg(debug_assertions)]
    rank: Rank,
}

#[cfg(debug_assertions)]
thread_local! {
    static HELD: std::cell::RefCell<Vec<Rank>> = const { std::cell::RefCell::new(Vec::new()) };
}

impl Place {
    #[cfg(debug_assertions)]
    fn take(rank: Rank) -> Self {
        HELD.with_borrow_mut(|held| {
            assert!(held.iter().all(|h| *h < rank), "{rank:?} is taken under {held:?}: see the order of `Rank`");
            held.push(rank);
        });
        Self { rank }
    }

    #[cfg(not(debug_assertions))]
    fn take(_rank: Rank) -> Self {
        Self {}
    }
}

#[cfg(debug_assertions)]
impl Drop for Place {
    fn drop(&mut self) {
        // Guards may go in any order.
        HELD.with_borrow_mut(|held| held.retain(|h| *h != self.rank));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_taken_in_order_and_again_after_they_were_given_back() {
        let (change, ksm) = (Ordered::new(Rank::Change, 1), Ordered::new(Rank::Ksm, 2));
        for _ in 0..2 {
            let first = change.lock();
            let second = ksm.lock();
            drop(first);
            assert!(ksm.try_lock().is_none());
            assert!(ksm.lock_within(TRY_PAUSE).is_none());
            drop(second);
            assert!(ksm.lock_within(Duration::ZERO).is_some());
        }
        *ksm.lock() += 1;
        assert_eq!((*change.lock(), *ksm.lock()), (1, 3));
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "Change is taken under [Ksm]")]
    fn the_wrong_order_is_noticed() {
        let (change, ksm) = (Ordered::new(Rank::Change, 1), Ordered::new(Rank::Ksm, 2));
        let _second = ksm.lock();
        let _first = change.lock();
    }
}
