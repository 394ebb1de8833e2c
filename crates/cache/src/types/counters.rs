//! The counters of a disk: what each counts, in what unit, and the name of its metric.
//!
//! Owns the table; [`DiskStats`](super::DiskStats), the status of a disk and the metrics are made from it. Never
//! counts. Invariants: a counter only grows, and neither it nor its metric ever changes its meaning, so a new one gets
//! a new name; what is said here stands in docs/openapi.json and docs/metrics.md.

/// Calls the macro `$to` with all counters of a disk, in the order in which the status has them. Each is
/// `/// what it counts`, `name: Unit, "its metric";`, where the unit is one of the metrics' (docs/metrics.md);
/// a counter of `Seconds` counts nanoseconds, and its metric seconds.
#[macro_export]
macro_rules! disk_counters {
    ($to:ident) => {
        $to! {
            /// Read requests finished.
            reads: Number, "undercroft_disk_read_requests_total";
            /// Write requests finished.
            writes: Number, "undercroft_disk_write_requests_total";
            /// Flush requests finished.
            flushes: Number, "undercroft_disk_flush_requests_total";
            /// Discard requests finished.
            discards: Number, "undercroft_disk_discard_requests_total";
            /// Write-zeroes requests finished.
            write_zeroes: Number, "undercroft_disk_write_zeroes_requests_total";
            /// Requests answered with an error.
            errors: Number, "undercroft_disk_request_errors_total";
            /// Bytes that read requests asked for.
            read_bytes: Bytes, "undercroft_disk_read_bytes_total";
            /// Bytes that write requests brought.
            write_bytes: Bytes, "undercroft_disk_written_bytes_total";
            /// Blocks (4 KiB) of read requests found in RAM.
            hit_blocks: Blocks, "undercroft_cache_hits_total";
            /// Blocks of read requests that were not in RAM: read from the image, or from the SSD store.
            miss_blocks: Blocks, "undercroft_cache_misses_total";
            // Neither a hit nor a miss.
            /// Blocks of read requests that joined a read under way.
            joined_blocks: Blocks, "undercroft_cache_joins_total";
            /// Blocks of read requests found among those read ahead; hits too.
            readahead_hit_blocks: Blocks, "undercroft_cache_readahead_hits_total";
            /// Blocks read ahead and dropped unused.
            readahead_wasted_blocks: Blocks, "undercroft_cache_readahead_wasted_total";
            /// Blocks evicted.
            evicted_blocks: Blocks, "undercroft_cache_evictions_total";
            /// Blocks that the policy or a full cache refused.
            bypassed_blocks: Blocks, "undercroft_cache_bypasses_total";
            /// Reads sent to the image.
            backend_reads: Number, "undercroft_backend_reads_total";
            /// Writes sent to the image.
            backend_writes: Number, "undercroft_backend_writes_total";
            /// Bytes read from the image, read-ahead included.
            backend_read_bytes: Bytes, "undercroft_backend_read_bytes_total";
            /// Bytes written to the image.
            backend_write_bytes: Bytes, "undercroft_backend_written_bytes_total";
            /// Operations that the image failed.
            backend_errors: Number, "undercroft_backend_errors_total";
            /// Fills dropped because the block was written meanwhile.
            stale_fills: Blocks, "undercroft_cache_stale_fills_total";
            /// Blocks of read requests that another disk on the same base had in RAM; hits too.
            shared_hit_blocks: Blocks, "undercroft_cache_shared_hit_blocks_total";
            /// Blocks whose content was hashed, to be shared.
            hashed_blocks: Blocks, "undercroft_cache_hashed_blocks_total";
            /// Blocks that the SSD store did not give in time, so that they were read from the image as well.
            ssd_late_blocks: Blocks, "undercroft_cache_ssd_late_blocks_total";
            /// Blocks read from the SSD store, read-ahead included.
            ssd_hit_blocks: Blocks, "undercroft_cache_ssd_hit_blocks_total";
            /// What reads of blocks from the image took, together, read-ahead included.
            backend_read_ns: Seconds, "undercroft_backend_read_seconds_total";
            /// What reads of blocks from the SSD store took, together, read-ahead included.
            ssd_read_ns: Seconds, "undercroft_cache_ssd_read_seconds_total";
        }
    };
}
