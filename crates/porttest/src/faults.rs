//! The switches for planted bugs, the countdown to the store at which a process dies, who looks on between a write and
//! its mark, and what a guest does between two looks at what it asks for.
//!
//! Owns one of each for each thread. Never knows what a bug does: the port asks. Invariant: a test that plants a bug,
//! or has a guest do something, takes that out again, and so leaves its thread as it was.

use crate::shadow::Shadow;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Weak};
use undercroft_frontend::faults::{PortBug, PortFaults, StoreSite};

thread_local! {
    static PLANTED: Cell<Option<PortBug>> = const { Cell::new(None) };
    static STORES_LEFT: Cell<Option<u64>> = const { Cell::new(None) };
    static ONLOOKERS: RefCell<Vec<Weak<Shadow>>> = const { RefCell::new(Vec::new()) };
    static AT_FETCHES: RefCell<Option<Deed>> = const { RefCell::new(None) };
}

/// What a guest does.
type Deed = Box<dyn FnMut()>;

/// What unwinds from the store at which the process dies.
struct Died(StoreSite);

/// The bug and the death that are switched on for the thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct Switched;

impl PortFaults for Switched {
    fn has(bug: PortBug) -> bool {
        PLANTED.get() == Some(bug)
    }

    fn store(site: StoreSite) {
        match STORES_LEFT.get() {
            Some(0) => {
                STORES_LEFT.set(None);
                // Without the panic hook: nothing went wrong.
                resume_unwind(Box::new(Died(site)));
            }
            Some(n) => STORES_LEFT.set(Some(n - 1)),
            None => {}
        }
    }

    fn meanwhile() {
        ONLOOKERS.with_borrow_mut(|all| {
            all.retain(|shadow| shadow.upgrade().inspect(|s| s.sync()).is_some());
        });
    }

    fn fetch() {
        AT_FETCHES.with_borrow_mut(|deed| {
            if let Some(deed) = deed {
                deed();
            }
        });
    }
}

/// Has a guest's memory copied whenever one may look between a write of a port and its mark.
pub(crate) fn look_on(shadow: &Arc<Shadow>) {
    ONLOOKERS.with_borrow_mut(|all| all.push(Arc::downgrade(shadow)));
}

/// Plants a bug in all ports of this thread, or takes it out.
pub fn plant(bug: Option<PortBug>) {
    PLANTED.set(bug);
}

/// Has a guest do something whenever a port of this thread is about to read a part of what it asks for, and once more
/// when all of that is read; or nothing.
pub fn at_fetches(deed: Option<Box<dyn FnMut()>>) {
    AT_FETCHES.set(deed);
}

/// Has the process die instead of the `n`th store from now (0 is the next), or live.
pub fn die_at(n: Option<u64>) {
    STORES_LEFT.set(n);
}

/// Runs what may store; tells where the process died, if it did. What `f` works on is of no more use then, but to be
/// dropped.
///
/// # Errors
/// Where it died.
pub fn living<R>(f: impl FnOnce() -> R) -> Result<R, StoreSite> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(result) => Ok(result),
        Err(payload) => match payload.downcast::<Died>() {
            Ok(died) => Err(died.0),
            Err(other) => resume_unwind(other),
        },
    }
}
