//! `[store]`: the RAM that caches, checked and filled in.
//!
//! Owns its rules. Never allocates. Invariant: the floor is at most the memory.

use super::checks::Checker;
use super::fields::{Field, field};
use super::keys;
use super::spec::StoreSpec;
use undercroft_units::Size;

/// The RAM that caches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorePlan {
    /// Hard ceiling in bytes, for data and metadata of all disks together.
    pub memory_bytes: u64,
    /// What of it is never given back when the machine is short of memory; at most `memory_bytes`.
    pub floor_bytes: u64,
    /// Whether equal content is held once.
    pub deduplicate: bool,
    /// Whether what is cached can be handed over to another process.
    pub keep: bool,
}

/// The floor of a store without one is this part of its memory.
pub const FLOOR_PART_DEFAULT: u64 = 4;

/// Its keys.
pub(crate) const FIELDS: &[Field<StorePlan>] = &[
    field!(StorePlan, memory, memory_bytes, |b| Size(*b).to_string()),
    field!(StorePlan, floor, floor_bytes, |b| Size(*b).to_string()),
    field!(StorePlan, deduplicate, deduplicate, |b| b.to_string()),
    field!(StorePlan, keep, keep, |b| b.to_string()),
];

impl Checker<'_> {
    pub(crate) fn store(&mut self, spec: &StoreSpec) -> StorePlan {
        let memory_bytes = self.memory(spec);
        let deduplicate = spec.deduplicate.unwrap_or(true);
        let keep = spec.keep.unwrap_or(false);
        StorePlan { memory_bytes, floor_bytes: self.floor(spec, memory_bytes), deduplicate, keep }
    }

    fn memory(&mut self, spec: &StoreSpec) -> u64 {
        let line = spec.lines.get("memory").copied();
        let machine_bytes = self.machine.memory_bytes;
        let usual = keys::memory_default(self.machine.usable_bytes());
        let Size(bytes) = spec.memory.unwrap_or(usual);
        let roughly = undercroft_units::human_size(machine_bytes);
        if bytes < keys::MEMORY_BYTES_MIN {
            let error = format!("memory is {}, too little to serve from", Size(bytes));
            self.error(line, "store", error, format!("give at least {}", Size(keys::MEMORY_BYTES_MIN)));
        } else if bytes > machine_bytes {
            let error = format!("memory is {}, but this machine has {roughly} to give", Size(bytes));
            let remedy = format!("give less; leave room for the guests: {usual}");
            self.error(line, "store", error, remedy);
        } else if bytes > machine_bytes / 10 * 9 {
            let error = format!("memory is {}, nearly all of the machine's {roughly}", Size(bytes));
            self.warning(line, "store", error, "leave room for the guests and the kernel");
        } else if let Some(limit) = self.machine.limit_bytes.filter(|limit| bytes > limit / 10 * 9) {
            // No error: limits change while it runs, and a daemon whose limit was lowered has to come up again.
            let limit = undercroft_units::human_size(limit);
            let error = format!("memory is {}, but a control group limits this process to {limit}", Size(bytes));
            self.warning(
                line,
                "store",
                error,
                "give less, or raise the limit; the store grows as far as there is room",
            );
        }
        bytes
    }

    fn floor(&mut self, spec: &StoreSpec, memory_bytes: u64) -> u64 {
        let Some(Size(floor)) = spec.floor else { return memory_bytes / FLOOR_PART_DEFAULT };
        if floor > memory_bytes {
            let error = format!("floor is {}, but the memory of the store is {}", Size(floor), Size(memory_bytes));
            self.error(spec.lines.get("floor").copied(), "store", error, "make floor smaller or memory larger");
        }
        floor.min(memory_bytes)
    }
}
