//! Ctrl-C, for commands that take a while.
//!
//! Owns the signals. Never ends anything itself but at the second one. Invariant: the first asks whoever looks at the
//! flag to stop and to show what is done; the second ends the program at once.

use super::Failure;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Set by Ctrl-C and by SIGTERM.
///
/// # Errors
/// The signals cannot be caught.
pub fn interrupt() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // the second one first: it looks whether the first has been
        let caught = signal_hook::flag::register_conditional_shutdown(signal, 130, stop.clone())
            .and_then(|_| signal_hook::flag::register(signal, stop.clone()));
        caught.map_err(|e| Failure::Said(format!("cannot catch Ctrl-C: {e}")))?;
    }
    Ok(stop)
}
