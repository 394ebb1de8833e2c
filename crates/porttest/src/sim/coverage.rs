//! Which rare things have met in the runs: a simulation that never kills a process between a flush and its answer says
//! nothing about that.
//!
//! Owns the counts. Never decides what happens. Invariant: every pair that is wanted stands in `WANTED`, and a test
//! fails if the runs of `make test` never came by one of them.

use std::collections::BTreeMap;

/// Pairs that the runs must come by: what happened, and to what.
const WANTED: &[(&str, &str)] = &[
    ("killed", "at Counter"),
    ("killed", "at Mark"),
    ("killed", "at Unmark"),
    ("killed", "at Link"),
    ("killed", "at BatchHead"),
    ("killed", "at LogIndex"),
    ("killed", "at UsedEntry"),
    ("killed", "at UsedIndex"),
    ("killed", "at Wish"),
    ("killed", "while recovering"),
    ("killed", "under a read"),
    ("killed", "under a write"),
    ("killed", "under a flush"),
    ("killed", "under several ranges"),
    ("killed", "under an indirect table"),
    ("killed", "under scattered buffers"),
    ("killed", "under an NBD request"),
    ("killed", "with calls masked"),
    ("killed", "with an operation executed"),
    ("reconnected", "under a write"),
    ("reconnected", "under a flush"),
    ("reconnected", "under several ranges"),
    ("power cut", "after FUA"),
    ("power cut", "after a flush"),
    ("failed", "read"),
    ("failed", "write"),
    ("failed", "flush"),
    ("failed", "several ranges"),
    ("failed", "NBD zeroes with FUA"),
    ("failed", "NBD trim with FUA"),
    ("failed", "NBD prefetch of several steps"),
    ("bad sector", "beside a healthy read"),
    ("refused", "over virtio"),
    ("refused", "over NBD"),
    ("queue broken", "with chains under way"),
    ("queue stopped", "and started"),
    ("memory mapped anew", "with chains under way"),
    ("masked", "with chains under way"),
    ("arrived in pieces", "write"),
    ("arrived in pieces", "structured read"),
    ("left in pieces", "structured read"),
    ("left in pieces", "unaligned read"),
    ("no room for replies", "with requests under way"),
    ("half-closed", "with requests under way"),
    ("hung up", "with requests under way"),
    ("rubbish sent", "with requests under way"),
    ("in two regions", "read"),
    ("in two regions", "write"),
    ("wrap", "of the available index"),
    ("storm", "with a request in every queue"),
    ("lost writes", "told over virtio"),
    ("lost writes", "told over NBD"),
    ("lost writes", "told by a structured reply"),
    ("lost writes", "a failure answered to nobody"),
    ("lost writes", "a failure that was not visible when its session ended"),
    ("lost writes", "under a flush"),
    ("flood", "beside another port's requests"),
    ("requests waited", "for the next visit of their port"),
    ("paused", "and resumed"),
    ("paused", "while its port slept"),
    ("finished operation", "in steps"),
    ("blocks begin", "512 bytes after multiples of 4096"),
    ("blocks begin", "1024 bytes after multiples of 4096"),
    ("blocks begin", "2048 bytes after multiples of 4096"),
    ("blocks begin", "3584 bytes after multiples of 4096"),
    ("blocks begin elsewhere", "a long read over virtio"),
    ("blocks begin elsewhere", "a long read over NBD"),
    ("memory given back", "before it was to be copied"),
    ("killed", "at DirtyMark"),
    ("migration", "memory compared"),
    ("migration", "with chains under way"),
    ("migration", "of a guest at rest"),
    ("slept", "guest"),
    ("slept", "client"),
    ("slept", "file"),
    ("slept", "device"),
    ("full", "file"),
    ("full", "device"),
    ("unmounted", "with requests under way"),
    ("stopped", "with requests under way"),
    ("killed", "under a request of a file"),
    ("killed", "under a request of a device"),
    ("asked again", "of a file"),
    ("asked again", "of a device"),
    ("came to rest", "a file under load"),
    ("came to rest", "a device under load"),
    ("passed on", "a file under load"),
    ("passed on", "a device under load"),
    ("refused", "over FUSE"),
    ("refused", "over ublk"),
    ("lost writes", "told over FUSE"),
    ("lost writes", "told over ublk"),
];

/// How often each pair was met.
#[derive(Clone, Debug, Default)]
pub struct Coverage(BTreeMap<(&'static str, String), u64>);

impl Coverage {
    /// A pair was met.
    pub(super) fn met(&mut self, what: &'static str, with: impl Into<String>) {
        *self.0.entry((what, with.into())).or_default() += 1;
    }

    /// Adds another run's.
    pub fn add(&mut self, other: Coverage) {
        for (pair, n) in other.0 {
            *self.0.entry(pair).or_default() += n;
        }
    }

    /// Wanted pairs that were not met.
    pub fn missing(&self) -> Vec<(&'static str, &'static str)> {
        WANTED.iter().copied().filter(|&(what, with)| !self.0.contains_key(&(what, with.to_owned()))).collect()
    }

    /// The matrix, for people.
    pub fn lines(&self) -> String {
        self.0.iter().map(|((what, with), n)| format!("{n:>9}  {what} {with}\n")).collect()
    }
}
