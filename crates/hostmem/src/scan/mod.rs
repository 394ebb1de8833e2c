//! What guests keep in their memory: the scanner, its index, when it runs, and the report of what is held twice.
//!
//! Owns the search for guests and the walk over their memory, at the lowest priority and under a ceiling of processor
//! time. Never writes to a guest, never brings a page into memory that was not there. Invariant: a page is copied
//! first; what is hashed and compared is the copy.

pub mod arguments;
pub mod control;
pub mod duplicates;
pub mod hash;
pub mod index;
pub mod scanner;
pub mod source;
pub mod tally;
pub mod throttle;
pub mod vm;
