//! Disks that were detached and are not gone yet, because their images do not answer.
//!
//! Owns who gets what they have, and when: nobody before they are gone, everybody without being asked after that. Never
//! waits for them while others want to change something. Invariant: `going_bytes` of the plan is what those have had
//! that are not gone.

use super::Service;
use super::disk::Going;
use super::waiting::WaitingDisk;
use undercroft_config::ServePlan;
use undercroft_units::Size;

impl Service {
    /// Serves the others of `plan` in the room that a disk of it leaves which is going, until it is gone. The caller
    /// holds `change`.
    pub(super) fn let_go(&self, plan: &ServePlan, name: &str, going: Going) {
        let bytes = self.leave(plan, name);
        let (service, disk) = (self.me.clone(), name.to_owned());
        let thread = std::thread::Builder::new().name("undercroft-going".into()).spawn(move || {
            going.wait();
            if let Some(service) = service.upgrade() {
                service.is_gone(&disk, bytes);
            }
        });
        if let Err(e) = thread {
            tracing::error!(
                disk = name,
                "there can be no thread that waits until it is gone: {e}; its {} are for nobody until a restart",
                Size(bytes)
            );
        }
    }

    /// Serves `plan` without a disk of it, and with what that has for nobody: so many bytes.
    fn leave(&self, plan: &ServePlan, name: &str) -> u64 {
        let without = plan.with_going(name);
        let bytes = without.going_bytes - plan.going_bytes;
        self.settle(without);
        bytes
    }

    /// What a try to serve a disk has left, which waited and is not wanted any more, goes as a detached disk does: the
    /// thread that tried sees it gone. The caller holds `change`.
    pub(super) fn let_go_waiting(&self, waiting: &WaitingDisk) {
        let bytes = self.leave(&self.plan(), waiting.name());
        self.forget_waiting(|name| name == waiting.name());
        waiting.leaves(bytes);
    }

    /// What a try to serve a disk had left is gone: the disk is tried again, or others have what it had.
    pub(super) fn left_is_gone(&self, waiting: &WaitingDisk) {
        let change = self.change.lock();
        if let Some(bytes) = waiting.nothing_left() {
            drop(change);
            self.is_gone(waiting.name(), bytes);
        }
    }

    /// Gives the others what a disk had.
    fn is_gone(&self, name: &str, bytes: u64) {
        let _change = self.change.lock();
        if self.is_stopping() {
            return;
        }
        self.release_given();
        self.settle(self.plan().with_gone(bytes));
        self.hurry_shares();
        tracing::info!(disk = name, "it is gone, and its {} are for the others", Size(bytes));
    }
}
