//! A panic of imago, planted where only damage leads it.
//!
//! imago 0.2.6 has assertions, but no change of an image's tables was found that is certain to break one. So this takes
//! a place that such a change does lead to, and where imago says so in its log: the panic begins in that call, with the
//! locks that imago holds there, and unwinds through imago as one of its own would.
//!
//! Owns the switch. Never panics unasked. Invariant: asked once, it panics once.

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Where imago gives clusters back, and how it ends saying that no refcounts cover some of them.
const PLACE: &str = "imago::qcow2::allocation";
const SAID: &str = " clusters: Not allocated";

static PLANTED: AtomicBool = AtomicBool::new(false);

/// imago panics when it gets to the place for the next time.
pub fn plant() {
    PLANTED.store(true, Ordering::Release);
}

/// Whether imago has not been there yet.
pub fn is_planted() -> bool {
    PLANTED.load(Ordering::Acquire)
}

/// What makes a panic of what imago says.
pub struct Planted;

impl<S: Subscriber> Layer<S> for Planted {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if event.metadata().target() != PLACE {
            return;
        }
        let mut message = Message(String::new());
        event.record(&mut message);
        if message.0.ends_with(SAID) && PLANTED.swap(false, Ordering::AcqRel) {
            panic!("planted: {}", message.0);
        }
    }
}

/// The words of an event.
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}
