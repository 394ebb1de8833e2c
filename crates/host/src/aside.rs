//! Letting go of what may keep the thread that does so: big mappings, and sockets and descriptors of others.
//!
//! Owns the threads for that. Never looks at what it is given. Invariants: [`release`] and [`Closing::close`] return at
//! once; things that wait for the kernel alone share one thread, in order; what may wait for another process has a
//! thread of its own, and whoever gives us such things is held to [`Closing::MAX`] at a time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, LazyLock};

/// Something to be dropped.
type Thing = Box<dyn Send>;

/// Drops `thing` on a thread that does nothing else: for what takes the kernel long, such as freeing the memory of a
/// guest that nobody else maps any more (about 0.1 s for each GiB), and waits for nobody else.
pub fn release(thing: impl Send + 'static) {
    static THREAD: LazyLock<Option<Sender<Thing>>> = LazyLock::new(|| {
        let (to, things) = channel::<Thing>();
        let run = move || things.into_iter().for_each(drop);
        std::thread::Builder::new().name("release".into()).spawn(run).is_ok().then_some(to)
    });
    // Without a thread it is dropped here, late but surely.
    if let Some(to) = &*THREAD {
        let _ = to.send(Box::new(thing));
    }
}

/// What is being closed of one tenant: the users of one socket that we listen at.
///
/// Closing a unix socket drops the descriptors in messages that nobody has read. If one of them is the last handle of a
/// TCP socket with `SO_LINGER` set and data unsent, that waits for as long as its owner chose; closing a file of FUSE
/// waits for its server.
#[derive(Clone, Debug, Default)]
pub struct Closing(Arc<AtomicUsize>);

impl Closing {
    /// Things of one tenant that may be closing before its next clients have to wait.
    pub const MAX: usize = 64;

    /// Whether another client may come, of whom something will have to be closed one day.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.count() < Self::MAX
    }

    /// Things closing now.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Drops `thing` on a thread of its own, which may take as long as another process likes.
    pub fn close(&self, thing: impl Send + 'static) {
        let one = One::new(self);
        // Dropped here if there can be no thread: this is better than keeping descriptors for ever.
        let _ = std::thread::Builder::new().name("closing".into()).spawn(move || drop((thing, one)));
    }
}

/// One thing that is being closed.
struct One(Closing);

impl One {
    fn new(of: &Closing) -> One {
        of.0.fetch_add(1, Ordering::Relaxed);
        One(of.clone())
    }
}

impl Drop for One {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    /// Tells on which thread it is dropped, and then waits to be allowed to go.
    struct Slow(Sender<Option<String>>, std::sync::mpsc::Receiver<()>);

    impl Drop for Slow {
        fn drop(&mut self) {
            let _ = self.0.send(std::thread::current().name().map(str::to_owned));
            let _ = self.1.recv();
        }
    }

    #[test]
    fn what_takes_long_is_dropped_elsewhere_and_counted_until_it_is_gone() {
        let (name_to, names) = channel();
        let closing = Closing::default();
        let gates: Vec<_> = (0..Closing::MAX)
            .map(|n| {
                assert!(closing.has_room(), "{n} are closing");
                let (gate, goes) = channel();
                closing.close(Slow(name_to.clone(), goes));
                gate
            })
            .collect();
        assert!(!closing.has_room(), "as many as there may be");
        let (gate, goes) = channel();
        release(Slow(name_to, goes));
        let mut seen: Vec<_> = (0..=Closing::MAX).map(|_| names.recv().unwrap().unwrap()).collect();
        seen.sort();
        seen.dedup();
        assert_eq!(seen, ["closing", "release"], "none waits for another");
        drop((gates, gate));
        while !closing.has_room() {
            std::thread::yield_now();
        }
    }
}
