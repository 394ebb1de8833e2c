//! A disk's hint as an extended attribute of its file: what it says, and what was asked for.
//!
//! Owns the cell that the port of a file, on a worker, and the service share. Never knows what a hint means, nor
//! changes a setting: the service does, in its own time. Invariant: what it says and what is taken from it is one of
//! its words; what was asked for last is what is taken.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Nothing is asked for.
const NOTHING: usize = usize::MAX;

/// See the head of the file.
#[derive(Debug)]
pub struct FileHint {
    words: Vec<&'static str>,
    now: AtomicUsize,
    asked: AtomicUsize,
    /// Set when something is asked for of any file that shares it.
    any: Arc<AtomicBool>,
}

impl FileHint {
    /// The hint of a disk that may have any of `words`, of which it has the first. `any` is set whenever another one is
    /// asked for.
    pub fn new(words: Vec<&'static str>, any: Arc<AtomicBool>) -> FileHint {
        FileHint { words, now: AtomicUsize::new(0), asked: AtomicUsize::new(NOTHING), any }
    }

    /// What the disk has.
    pub fn now(&self) -> &'static str {
        self.words.get(self.now.load(Ordering::Relaxed)).copied().unwrap_or_default()
    }

    /// The disk has this one now. Nothing changes if it is none of the words.
    pub fn set(&self, now: &str) {
        if let Some(n) = self.words.iter().position(|w| *w == now) {
            self.now.store(n, Ordering::Relaxed);
        }
    }

    /// Somebody who may write to the file wants the disk to have this one. False if it is none of the words.
    #[must_use]
    pub fn ask(&self, wanted: &[u8]) -> bool {
        let Some(n) = self.words.iter().position(|w| w.as_bytes() == wanted) else { return false };
        self.asked.store(n, Ordering::Relaxed);
        self.any.store(true, Ordering::Release);
        true
    }

    /// What was asked for last, if it was not taken yet.
    pub fn take_asked(&self) -> Option<&'static str> {
        self.words.get(self.asked.swap(NOTHING, Ordering::Acquire)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_last_is_taken_once() {
        let any = Arc::new(AtomicBool::new(false));
        let cell = FileHint::new(vec!["a", "bc"], any.clone());
        assert_eq!((cell.now(), cell.take_asked()), ("a", None));
        for word in ["bc", "a"] {
            assert!(cell.ask(b"bc") && cell.ask(word.as_bytes()));
            assert!(any.swap(false, Ordering::Acquire));
            assert_eq!((cell.take_asked(), cell.take_asked()), (Some(word), None));
            cell.set(word);
            cell.set("b");
            assert_eq!(cell.now(), word);
        }
        assert!(!cell.ask(b"b") && !cell.ask(b"") && !any.load(Ordering::Acquire));
        assert_eq!(cell.take_asked(), None);
    }
}
