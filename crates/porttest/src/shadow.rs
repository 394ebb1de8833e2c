//! What the front end of a guest that migrates has on the other side: a copy of the guest's memory that learns of
//! changes from logs alone.
//!
//! Owns the copy, the log that the device marks, and the log of what the guest itself writes, which a hypervisor gets
//! from the kernel. Never looks at memory that is not marked. Invariant: after a look at both logs the copy is the
//! guest's memory, if everything that was written is marked.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use undercroft_frontend::vhost::parts::{DirtyLog, GuestMap, MemoryRegion};
use vhost::vhost_user::message::VhostUserLog;
use vm_memory::{FileOffset, MmapRegion, VolatileMemory};

const PAGE: u64 = 4096;

/// See the head of the file.
pub(crate) struct Shadow {
    map: Arc<GuestMap>,
    file: File,
    log: MmapRegion<()>,
    state: Mutex<State>,
}

struct State {
    /// Pages that the guest has written, by their number; all to begin with.
    own: Vec<bool>,
    copy: Vec<u8>,
}

impl Shadow {
    /// A copy that has still to be made of the memory of `map`.
    pub(crate) fn new(map: Arc<GuestMap>) -> Shadow {
        let bytes = DirtyLog::bytes_for(&map);
        let fd = rustix::fs::memfd_create("log", rustix::fs::MemfdFlags::CLOEXEC).expect("memory");
        rustix::fs::ftruncate(&fd, bytes).expect("memory");
        let file = File::from(fd);
        let place = FileOffset::new(file.try_clone().expect("a descriptor is free"), 0);
        let log = MmapRegion::from_file(place, bytes as usize).expect("memory");
        let pages = bytes as usize * 8;
        let state = State { own: vec![true; pages], copy: vec![0; pages * PAGE as usize] };
        Shadow { map, file, log, state: Mutex::new(state) }
    }

    /// The log, as the device maps it.
    pub(crate) fn log(&self) -> DirtyLog {
        let file = self.file.try_clone().expect("a descriptor is free");
        let said = VhostUserLog::new(DirtyLog::bytes_for(&self.map), 0);
        DirtyLog::open(&said, file, &self.map, ()).expect("the log fits the memory")
    }

    /// The guest, or who gives its memory back, has written `len` bytes at `at`.
    pub(crate) fn wrote(&self, at: u64, len: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let pages = at / PAGE..(at + len).div_ceil(PAGE);
        pages.for_each(|page| state.own[page as usize] = true);
    }

    /// Copies what is marked, and takes the marks away first.
    pub(crate) fn sync(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State { own, copy } = &mut *state;
        for byte in 0..self.log.len() {
            let word = self.log.get_atomic_ref::<AtomicU8>(byte).expect("inside the log");
            let marks = word.swap(0, Ordering::SeqCst);
            for bit in 0..8 {
                let page = byte * 8 + bit;
                if std::mem::take(&mut own[page]) || marks >> bit & 1 == 1 {
                    read_page(&self.map, page as u64 * PAGE, &mut copy[page * PAGE as usize..][..PAGE as usize]);
                }
            }
        }
    }

    /// The first page that differs from the copy, if one does.
    pub(crate) fn difference(&self) -> Option<u64> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut now = [0; PAGE as usize];
        state.copy.chunks_exact(PAGE as usize).zip(0..).find_map(|(copy, page)| {
            now.fill(0);
            read_page(&self.map, page * PAGE, &mut now);
            (now != copy).then_some(page * PAGE)
        })
    }
}

/// Reads a page of the guest; where there is no memory nothing is read. From the file, since a look through a mapping
/// would take memory for a page that the guest gave back.
fn read_page(map: &GuestMap, at: u64, to: &mut [u8]) {
    let holds = |r: &&MemoryRegion| (r.guest..r.guest + r.len).contains(&at);
    if let Some(r) = map.regions().iter().find(holds) {
        let place = r.mapping.file_offset().expect("all of it is of files");
        place.file().read_exact_at(to, at - r.guest).expect("regions are whole pages");
    }
}
