//! Hints of disks that are files, asked for and told by an extended attribute.
//!
//! Owns the way from the file to the plan and back. Never keeps a worker waiting: a program is answered when its wish
//! is noted. Invariant: what a file says of its disk's hint is what the plan says, once a change is done.

use super::Service;
use super::pinning::ListChange;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use undercroft_config::{DiskPlan, NodeChange, Written};
use undercroft_engine::shares::Hint;
use undercroft_frontend::fuse::FileHint;
use undercroft_http::Caller;

/// The hint of a disk, as its file says it; `asked` is set when another one is asked for.
pub(super) fn file_hint(plan: &DiskPlan, asked: &Arc<AtomicBool>) -> Arc<FileHint> {
    let hint = FileHint::new(Hint::ALL.map(Hint::name).to_vec(), Arc::clone(asked));
    hint.set(plan.settings.hint.name());
    Arc::new(hint)
}

impl Service {
    /// Sets the hints that were asked for since the last time, as `undercroft set` would.
    pub(super) fn follow_file_hints(&self) {
        if !self.hints_asked.load(Ordering::Relaxed) {
            return;
        }
        // Whoever changes disks goes first; the next step comes soon.
        let Some(_change) = self.change.try_lock() else { return };
        self.hints_asked.store(false, Ordering::Relaxed);
        for disk in self.disks() {
            let asked = disk.file().as_ref().and_then(|f| Some((f.hint().take_asked()?, f.path().to_owned())));
            let Some((hint, path)) = asked else { continue };
            let (now, name) = (self.plan(), &disk.info().name);
            let change = NodeChange::default().with("hint", Written::Text(hint.to_owned()));
            let reached = now
                .with_change(name, &change)
                .and_then(|plan| self.reach(&now, plan, name, &ListChange::default(), &Caller::File(path)));
            if let Err(e) = reached {
                tracing::error!(disk = name, "the hint {hint}, which its file was given, is not set: {e}");
            }
        }
    }

    /// Has every file say what its disk's hint is now.
    pub(super) fn tell_file_hints(&self) {
        let plan = self.plan();
        let by_name = plan.by_name();
        for disk in self.disks() {
            let own = by_name.get(disk.info().name.as_str());
            if let (Some(own), Some(file)) = (own, disk.file().as_ref()) {
                file.hint().set(own.settings.hint.name());
            }
        }
    }
}
