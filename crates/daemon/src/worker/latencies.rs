//! The latencies of one disk, by kind of request, as its worker sees them: from taking a request to its reply.
//!
//! Owns four histograms. Never reads a clock. Invariant: every finished read, write and flush is in exactly one.

use crate::latency::Histogram;

/// Latencies since the disk was added.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    /// Reads served wholly from RAM at once.
    pub read_hit: Histogram,
    /// Reads that waited for the disk.
    pub read_miss: Histogram,
    /// Writes.
    pub write: Histogram,
    /// Flushes.
    pub flush: Histogram,
}
