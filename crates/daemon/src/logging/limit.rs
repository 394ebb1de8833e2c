//! Limits the number of lines that one place in the program logs, in all and about one peer.
//!
//! Owns a fixed table of allowances. Never decides by level what matters: lines of all levels up to `info` count alike,
//! and `debug` and `trace` are not limited. Invariants: a peer that does the same thing for ever leads to [`PEER`]
//! lines, and all peers at one place together to [`PLACE`]; lines that are left out are counted, and their number is
//! logged. Lines of the main thread, which are about start and stop, are not limited.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Filter};
use undercroft_host::now_ns;

/// Lines at once, and nanoseconds until there may be one more: of one peer or disk, at one place of the program.
const PEER: Rate = Rate { burst: 5, every_ns: 2_000_000_000 };
/// The same for all of them at one place together.
const PLACE: Rate = Rate { burst: 40, every_ns: 250_000_000 };
/// Allowances kept; places and peers that fall together share one.
const SLOTS: usize = 1024;
/// Characters of a line that stands for those left out.
const EXAMPLE_CHARS: usize = 160;
/// Lines about lines left out in one go.
const SAID_MAX: usize = 16;
/// Fields that say who is meant.
const WHO: [&str; 7] = ["disk", "peer", "image", "export", "vm", "socket", "listen"];
/// Where this module and the writer speak: not limited.
pub(super) const OWN_TARGET: &str = "undercroft_daemon::logging";

/// Lines left out since the program began.
pub(super) static LEFT_OUT: AtomicU64 = AtomicU64::new(0);

#[derive(Clone, Copy, Debug)]
struct Rate {
    burst: u64,
    every_ns: u64,
}

/// An allowance.
#[derive(Clone, Debug, Default)]
struct Slot {
    /// Lines given in advance of time: 0 is a full allowance.
    used: u64,
    since_ns: u64,
    left_out: u64,
    example: String,
}

impl Slot {
    fn has_room(&mut self, rate: Rate, now_ns: u64) -> bool {
        let back = now_ns.saturating_sub(self.since_ns) / rate.every_ns;
        self.used = self.used.saturating_sub(back);
        self.since_ns = if self.used == 0 { now_ns } else { self.since_ns + back * rate.every_ns };
        self.used < rate.burst
    }
}

/// The allowances.
#[derive(Debug)]
pub(super) struct Limits {
    slots: Mutex<Vec<Slot>>,
    hash: RandomState,
}

impl Default for Limits {
    fn default() -> Self {
        Self { slots: Mutex::new(vec![Slot::default(); SLOTS]), hash: RandomState::new() }
    }
}

impl Limits {
    /// Whether a line from `place` about `who` may be logged; `example` gives its text if not.
    fn allows(&self, place: usize, who: &str, now_ns: u64, example: impl FnOnce() -> String) -> bool {
        let at = |who: Option<&str>| self.hash.hash_one((place, who)) as usize % SLOTS;
        let (peer, all) = (at(Some(who)), at(None));
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let place_ok = slots[all].has_room(PLACE, now_ns);
        // Without a peer there is only the place.
        let peer_ok = who.is_empty() || slots[peer].has_room(PEER, now_ns);
        if place_ok && peer_ok {
            slots[all].used += 1;
            if peer != all && !who.is_empty() {
                slots[peer].used += 1;
            }
            return true;
        }
        let slot = &mut slots[if peer_ok { all } else { peer }];
        if slot.left_out == 0 {
            slot.example = example();
        }
        slot.left_out += 1;
        LEFT_OUT.fetch_add(1, Ordering::Relaxed);
        false
    }

    /// How many lines were left out since this was asked last, each with the first of them; and of how many more kinds.
    pub(super) fn left_out(&self) -> (Vec<(u64, String)>, u64) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let mut said: Vec<(u64, String)> = Vec::new();
        let mut rest = 0;
        for slot in slots.iter_mut().filter(|s| s.left_out > 0) {
            let n = std::mem::take(&mut slot.left_out);
            let example = std::mem::take(&mut slot.example);
            if said.len() < SAID_MAX { said.push((n, example)) } else { rest += n }
        }
        (said, rest)
    }
}

/// Finds who is meant, and the message.
#[derive(Default)]
struct Reader {
    who: String,
    message: String,
}

impl Visit for Reader {
    fn record_str(&mut self, field: &Field, value: &str) {
        if self.who.is_empty() && WHO.contains(&field.name()) {
            self.who = value.to_string();
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        } else if self.who.is_empty() && WHO.contains(&field.name()) {
            self.who = format!("{value:?}");
        }
    }
}

/// The filter in front of the log.
#[derive(Debug)]
pub(super) struct Limiter(pub(super) &'static Limits);

impl<S: Subscriber> Filter<S> for Limiter {
    fn enabled(&self, _meta: &Metadata<'_>, _cx: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _cx: &Context<'_, S>) -> bool {
        let meta = event.metadata();
        if *meta.level() > Level::INFO || meta.target() == OWN_TARGET || std::thread::current().name() == Some("main") {
            return true;
        }
        let mut said = Reader::default();
        event.record(&mut said);
        let place = std::ptr::from_ref(meta).addr();
        self.0.allows(place, &said.who, now_ns(), || {
            let whom = if said.who.is_empty() { String::new() } else { format!("{}: ", said.who) };
            format!("{whom}{}", said.message).chars().take(EXAMPLE_CHARS).collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn one_peer_gets_a_few_lines_and_then_one_every_other_second() {
        let limits = Limits::default();
        let mut n = 0;
        // A hundred lines a second for a minute.
        for tick in 0..6000 {
            n += u64::from(limits.allows(1, "10.0.0.1", SECOND + tick * SECOND / 100, || "refused".into()));
        }
        assert!((30..=36).contains(&n), "{n} lines");
        let (said, rest) = limits.left_out();
        assert_eq!((said, rest), (vec![(6000 - n, "refused".to_string())], 0));
        assert_eq!(limits.left_out(), (vec![], 0), "said once");
    }

    #[test]
    fn many_peers_at_one_place_get_no_more_than_the_place() {
        let limits = Limits::default();
        let mut n = 0;
        for tick in 0..6000u64 {
            let who = format!("peer {tick}");
            n += u64::from(limits.allows(1, &who, SECOND + tick * SECOND / 100, String::new));
        }
        assert!(n <= 40 + 4 * 60 + 1, "{n} lines in a minute");
        assert!(n >= 4 * 60, "{n} lines in a minute");
    }

    #[test]
    fn a_flood_at_one_place_leaves_another_alone() {
        let limits = Limits::default();
        (0..1000).for_each(|_| _ = limits.allows(1, "a", SECOND, String::new));
        assert!(limits.allows(2, "b", SECOND, String::new));
        assert!(limits.allows(1, "a", 20 * SECOND, String::new), "its time comes again");
    }
}
