//! Ctrl-C, for commands that take a while.
//!
//! Owns the signals. Never ends anything itself but at the second one. Invariant: the first asks whoever looks at the
//! flag to stop and to show what is done; the second ends the program at once; none is lost between.

use super::Failure;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use signal_hook::flag;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Set by Ctrl-C and by SIGTERM. Called before the program has other threads.
///
/// # Errors
/// The signals cannot be caught.
pub fn interrupt() -> Result<Arc<AtomicBool>, Failure> {
    caught().map_err(|e| Failure::Said(format!("cannot catch Ctrl-C: {e}")))
}

/// What comes while handlers are added is held back until all are there: with only a part of them it would do nothing.
fn caught() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let held = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM]);
    let before = held.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let added = held.iter().try_for_each(|signal| {
        // the second one first: it looks whether the first has been
        flag::register_conditional_shutdown(signal as i32, 130, stop.clone())?;
        flag::register(signal as i32, stop.clone()).map(drop)
    });
    before.thread_set_mask()?;
    added.map(|()| stop)
}
