//! An orderly restart by systemd: what is cached stays with the service manager between two processes, as memory and
//! the list of what is in it.
//!
//! Owns the names under which it is kept. Never serves anything. Invariants: the list is used once: whoever reads it
//! destroys it, so that a process that is started after a crash finds none; what is cached of an image is used only if
//! its files tell that nobody has changed them since.

use super::Service;
use super::arriving::Arrival;
use super::leaving::Rest;
use crate::systemd;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use undercroft_cache::KeptList;
use undercroft_config::ServePlan;
use undercroft_host::SharedMemory;

/// The name of the list.
const LIST: &str = "undercroft-list";
/// Those of the workers' memories begin like this.
const FRAMES: &str = "undercroft-frames-";

impl Service {
    /// Closes everything, and leaves what is cached to the service manager, for the next start. False if that is not
    /// asked for or cannot be: then nothing has changed.
    pub(super) fn leave_to_the_next_start(&self) -> bool {
        if !self.plan().store.keep || !systemd::can_keep() {
            return false;
        }
        let disks = self.disks();
        if disks.iter().any(|d| !d.residence().is_open()) {
            return false;
        }
        disks.iter().for_each(|d| {
            d.end_file();
            d.end_device();
        });
        let mut rest = Rest::default();
        if let Err(e) = self.come_to_rest(&mut rest) {
            tracing::warn!("what is cached does not stay: {e}");
            self.go_on(rest);
            return false;
        }
        match self.keep(&rest.snapshot) {
            Ok(blocks) => tracing::info!("left to the service manager: {blocks} cached blocks"),
            Err(e) => tracing::warn!("what is cached does not stay: {e}"),
        }
        // What was written down of these before is more than their images may have.
        for disk in rest.lost() {
            let id = disk.id();
            let _ = disk.host().worker.call(move |w| w.core().drop_ssd(id));
        }
        self.end_ssd_at_rest(&rest);
        for d in rest.disks {
            d.disk.vhost().take().into_iter().for_each(|server| server.leave());
        }
        true
    }

    fn keep(&self, snapshot: &KeptList) -> io::Result<usize> {
        let refused = || io::Error::other("the service manager takes nothing");
        for (n, worker) in self.workers.iter().enumerate() {
            let memory = worker.call(|w| w.core().frames_memory()).map_err(io::Error::other)?;
            let memory = memory.ok_or_else(|| io::Error::other("it is in memory of this process alone"))?;
            if !systemd::keep(&format!("{FRAMES}{n}"), memory.as_fd()) {
                return Err(refused());
            }
        }
        // Last: without it the rest is worth nothing.
        let list = SharedMemory::with(&snapshot.encode())?;
        if !systemd::keep(LIST, list.as_fd()) {
            return Err(refused());
        }
        Ok(snapshot.disks.iter().map(|d| d.kept.blocks.len()).sum())
    }
}

/// Of what was `kept`: what the last process has left to the service manager, if it can be used: the memories of the
/// workers, in order, and what is in them. Nothing of it is left there.
pub(super) fn found(mut kept: Vec<(String, OwnedFd)>, plan: &ServePlan) -> Option<(Vec<SharedMemory>, Arrival)> {
    kept.iter().for_each(|(name, _)| systemd::keep_no_more(name));
    let at = kept.iter().position(|(name, _)| name == LIST)?;
    let (_, list) = kept.swap_remove(at);
    match used(list, kept, plan) {
        Ok(found) => Some(found),
        Err(e) => {
            tracing::warn!("what was cached before the restart is not used: {e}");
            None
        }
    }
}

fn used(list: OwnedFd, mut kept: Vec<(String, OwnedFd)>, plan: &ServePlan) -> io::Result<(Vec<SharedMemory>, Arrival)> {
    // Taken first, so that it is used once whatever comes of it.
    let bytes = SharedMemory::from_passed(list)?.take()?;
    let mut snapshot = KeptList::decode(&bytes).map_err(io::Error::other)?;
    let workers = plan.daemon.workers.max(1);
    if !plan.store.keep || snapshot.memory_bytes != plan.disks_bytes() || snapshot.workers != workers as u64 {
        return Err(io::Error::other("the store is another now"));
    }
    let mut memories = Vec::new();
    for n in 0..workers {
        let name = format!("{FRAMES}{n}");
        let at = kept.iter().position(|(of, _)| *of == name).ok_or_else(|| io::Error::other("a part is missing"))?;
        memories.push(SharedMemory::from_passed(kept.swap_remove(at).1)?);
    }
    // Of the others nobody can say whether they were changed.
    snapshot.disks.retain(|d| d.image.is_some());
    Ok((memories, Arrival::from_manager(snapshot)))
}
