//! The core and its disks as a caller sees them: scenarios by hand, beside the simulation's by chance.
//!
//! Owns the list of them, in one program: the core is generic, and each program that uses it compiles it once more.
//! Never reaches past the crate's interface. Invariant: no scenario depends on another that runs beside it; what counts
//! allocations is a program of its own (`allocations.rs`).

mod data_path;
mod deduplication;
mod exclusive;
mod failed_reads;
mod fetch;
mod guest_disks;
mod io_pool;
mod kept;
mod locks;
mod long_reads;
mod maps;
mod memory;
mod mixed;
mod offset;
mod parts;
mod pools;
mod ssd;
mod ssd_store;
mod steps;
