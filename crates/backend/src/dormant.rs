//! The back end of a disk whose image is not open: its guest does not run here yet, or runs elsewhere now.
//!
//! Owns operations that come meanwhile. Never opens or reads an image. Invariant: each operation comes back once: from
//! the back end that takes this one's place, to which it is handed, or failed from here.

use super::Backend;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use undercroft_cache::{Geometry, Io, IoDone, IoError};
use undercroft_host::EventFd;

/// See the head of the file.
pub struct Dormant {
    geometry: Geometry,
    /// What a disk says that cannot be opened; `None` while operations wait.
    refusal: Option<String>,
    held: Vec<Io>,
    failed: Vec<IoDone>,
    wake: EventFd,
}

impl Dormant {
    /// A disk of that geometry. With `refusal`, which says why, operations fail; without, they wait.
    ///
    /// # Errors
    /// What the kernel says: out of descriptors.
    pub fn new(geometry: Geometry, refusal: Option<String>) -> io::Result<Dormant> {
        Ok(Dormant { geometry, refusal, held: Vec::new(), failed: Vec::new(), wake: EventFd::new()? })
    }
}

impl Backend for Dormant {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&mut self, io: Io) {
        if self.refusal.is_none() {
            return self.held.push(io);
        }
        let Io { op, disk, buf, .. } = io;
        self.failed.push(IoDone { op, disk, buf, result: Err(IoError::Io), extents: Vec::new() });
        self.wake.signal();
    }

    fn kick(&mut self) {}

    fn poll(&mut self, done: &mut Vec<IoDone>) -> bool {
        self.wake.drain();
        done.append(&mut self.failed);
        false
    }

    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    fn describe(&self) -> String {
        "not open".to_owned()
    }

    fn inflight(&self) -> usize {
        self.held.len() + self.failed.len()
    }

    fn refusal(&self) -> Option<String> {
        self.refusal.clone()
    }

    fn is_open(&self) -> bool {
        false
    }

    fn take_held(&mut self) -> Vec<Io> {
        std::mem::take(&mut self.held)
    }
}

impl Drop for Dormant {
    fn drop(&mut self) {
        // Their frames may outlive their arena.
        self.held.drain(..).for_each(std::mem::forget);
        self.failed.drain(..).for_each(std::mem::forget);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use undercroft_cache::{DiskId, IoKind, IoTarget, OpId};
    use undercroft_host::IoBuf;

    fn flush(op: u64) -> Io {
        let (op, disk, target, kind) = (OpId(op), DiskId(0), IoTarget::Image, IoKind::Flush);
        Io { op, disk, target, kind, offset: 0, len: 0, buf: IoBuf::default() }
    }

    #[test]
    fn operations_wait_or_fail_and_none_is_lost() {
        let geometry =
            Geometry { size_bytes: 4096, align: 512, read_only: false, can_discard: false, can_write_zeroes: false };
        let mut waits = Dormant::new(geometry.clone(), None).unwrap();
        waits.submit(flush(1));
        waits.submit(flush(2));
        let mut done = Vec::new();
        assert!(!waits.poll(&mut done) && done.is_empty() && waits.inflight() == 2 && waits.refusal().is_none());
        let held = waits.take_held();
        assert_eq!((held.len(), waits.inflight()), (2, 0));
        let mut fails = Dormant::new(geometry, Some("locked".into())).unwrap();
        held.into_iter().for_each(|io| fails.submit(io));
        fails.poll(&mut done);
        assert_eq!(
            done.iter().map(|d| (d.op, d.result)).collect::<Vec<_>>(),
            [1, 2].map(|n| (OpId(n), Err(IoError::Io)))
        );
        assert_eq!((fails.inflight(), fails.refusal().as_deref()), (0, Some("locked")));
    }
}
