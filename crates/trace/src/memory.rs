//! Which records of a program's memory accesses are read.
//!
//! Owns the choices. Never reads a record.

/// What a record that both loads and stores is taken for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Modifies {
    /// A load and then a store.
    #[default]
    Two,
    /// One access: a store where stores are read, which needs what is there as well, and a load otherwise.
    One,
}

/// Which records of a memory trace are read. The default is all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRecords {
    /// Instructions that are fetched.
    pub fetches: bool,
    /// Stores.
    pub stores: bool,
    /// Records that load and store.
    pub modifies: Modifies,
}

impl Default for MemoryRecords {
    fn default() -> Self {
        Self { fetches: true, stores: true, modifies: Modifies::Two }
    }
}

impl MemoryRecords {
    /// Loads alone, and what loads and stores, once: what "Impact of Hypervisor Cache Locking on Performance" (V.
    /// Suryanarayana, 2013) counts.
    pub const LOADS: Self = Self { fetches: false, stores: false, modifies: Modifies::One };
}
