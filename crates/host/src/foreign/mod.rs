//! Other programs' memory and the page cache, looked at without disturbing them.
//!
//! Owns the calls that copy pages of another process, of a shared memory file or of a file's page cache into private
//! memory, and those that say which pages there are. Never writes to any of them, never trusts a byte before it was
//! copied. Invariant: a page that is not in memory (a hole, a page swapped out, a page of a file that is not cached) is
//! neither read nor allocated: every reader asks the kernel first.

mod batch;
mod cached;
mod kpage;
mod maps;
mod pagemap;
mod process;
mod shared;

pub use batch::{BATCH_PAGES, Batch, Copied, PageRun, Piece};
pub use cached::{CachedFile, WINDOW_PAGES};
pub use kpage::{FrameFlags, KPageFlags};
pub use maps::{Mapping, parse_maps};
pub use pagemap::{Extent, PageFlags, Pagemap, entry_flags, entry_frame, soft_dirty_is_built_in};
pub use process::{FileOfProcess, Process, processes};
pub use shared::SharedFile;

/// Bytes in one page, everywhere here.
pub const PAGE_BYTES: usize = 4096;
