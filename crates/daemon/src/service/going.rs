//! Disks that were detached and are not gone yet, because their images do not answer.
//!
//! Owns who gets what they have, and when: nobody before they are gone, everybody without being asked after that. Never
//! waits for them while others want to change something. Invariant: `going_bytes` of the plan is what those have had
//! that are not gone.

use super::Service;
use super::disk::Going;
use undercroft_units::Size;

impl Service {
    /// Serves the others in the room that a disk leaves which is going, until it is gone. The caller holds `change`.
    pub(super) fn let_go(&self, name: &str, going: Going) {
        let before = self.plan();
        let plan = before.with_going(name);
        let bytes = plan.going_bytes - before.going_bytes;
        self.apply(&plan);
        self.adopt(plan);
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

    /// Gives the others what a disk had.
    fn is_gone(&self, name: &str, bytes: u64) {
        let _change = self.change.lock();
        if self.is_stopping() {
            return;
        }
        self.release_given();
        let plan = self.plan().with_gone(bytes);
        self.apply(&plan);
        self.adopt(plan);
        self.hurry_shares();
        tracing::info!(disk = name, "it is gone, and its {} are for the others", Size(bytes));
    }
}
