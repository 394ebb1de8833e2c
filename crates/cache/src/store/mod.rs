//! Where the content of cached blocks is kept, in RAM and on SSDs; and what a core's disks know together of
//! their guests.
//!
//! Owns one module for each, and how memory of tables goes back to the kernel. Never decides what is kept. Invariant:
//! what a store holds is also on the disk it came from.

pub(crate) mod guests;
pub(crate) mod ram;
pub mod ssd;
pub(crate) mod tier;

use std::mem::MaybeUninit;
use undercroft_engine::Release;
use undercroft_host::give_back;

/// Gives memory of tables back to the kernel.
pub(crate) struct ToKernel;

impl Release for ToKernel {
    fn release<T>(&mut self, spare: &mut [MaybeUninit<T>]) {
        give_back(spare);
    }
}
