//! The data structures that index, policies, guest tables and curves are made of: flat arrays, fixed memory.
//!
//! Owns the arrays that grow in place or are made in steps, the hash tables, the map from block to slot, lists over
//! arrays of links, ghosts and the frequency sketch. Never decides which block is kept, and uses no other module of the
//! crate. Invariant: nothing here allocates but where it is made or resized.

pub(crate) mod array;
pub(crate) mod blank;
pub(crate) mod chains;
pub(crate) mod ghosts;
pub(crate) mod list;
pub(crate) mod places;
pub(crate) mod sketch;
pub(crate) mod slots;
pub(crate) mod table;
