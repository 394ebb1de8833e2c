//! Miss counts against those of independent programs on the long traces: every row of P6 and of the Zipf trace.
//!
//! Takes about a minute of processor time when optimised, much more otherwise: `scripts/test.sh` deselects `long::` and
//! runs it with `--long` alone. By hand: `cargo test --release -p undercroft-engine --test golden_long`.

mod reference;

mod long {
    use super::reference;

    #[test]
    fn miss_counts() {
        reference::verify(reference::rows(|row| row.trace == "arc-P6" || row.trace.starts_with("zipf")));
    }

    /// As `miss_counts_of_lirs2` in `golden`.
    #[test]
    fn miss_counts_of_lirs2() {
        reference::verify(reference::pinned(
            undercroft_engine::StudiedPolicyKind::Lirs2,
            &[
                ("arc-P6", 12_672_123, 7_737, 12_151_722),
                ("arc-P6", 12_672_123, 77_377, 4_355_857),
                ("zipf-1.0-1m-20m", 20_000_000, 10_000, 6_731_077),
                ("zipf-1.0-1m-20m", 20_000_000, 100_000, 3_625_873),
            ],
        ));
    }
}
