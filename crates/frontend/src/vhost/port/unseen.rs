//! Failures that tell of lost writes and that a guest was answered and cannot see yet, and those that it never will.
//!
//! Owns the tags of those requests. Never sees another failure. Invariants: a failure is here from its answer until
//! the driver can see it, or until its session has ended; then the worker is told of it once. No answer of success
//! costs more than a look whether anything is here.

/// A request that failed.
#[derive(Clone, Copy, Debug)]
struct Unseen {
    tag: u32,
    queue: u16,
    /// The request of several ranges of which it was one, while that is not answered.
    whole: Option<u32>,
}

/// See the head of the file.
#[derive(Debug, Default)]
pub(super) struct Failures {
    unseen: Vec<Unseen>,
    unheard: Vec<u32>,
}

impl Failures {
    /// Whether a failure has been answered that cannot be seen yet.
    #[inline]
    pub(super) fn any(&self) -> bool {
        !self.unseen.is_empty()
    }

    /// Request `tag` failed and told of a loss, alone or as a part of `whole`, of which `queue` has the chain.
    #[cold]
    pub(super) fn failed(&mut self, tag: u32, queue: u16, whole: Option<u32>) {
        self.unseen.push(Unseen { tag, queue, whole });
    }

    /// The last part of `whole` has been answered.
    pub(super) fn answered(&mut self, whole: u32) {
        self.unseen.iter_mut().filter(|u| u.whole == Some(whole)).for_each(|u| u.whole = None);
    }

    /// Everything that the queues of which `shows` says so were given back can be seen now.
    pub(super) fn published(&mut self, shows: impl Fn(u16) -> bool) {
        self.unseen.retain(|u| u.whole.is_some() || !shows(u.queue));
    }

    /// What cannot be seen yet of the queues of which `ends` says so never will be.
    pub(super) fn end(&mut self, ends: impl Fn(u16) -> bool) {
        let unheard = &mut self.unheard;
        self.unseen.retain(|u| {
            let goes = ends(u.queue);
            unheard.extend(goes.then_some(u.tag));
            !goes
        });
    }

    /// A failure that nobody saw and nobody will.
    pub(super) fn take_unheard(&mut self) -> Option<u32> {
        self.unheard.pop()
    }
}
