//! The `undercroft` command. Owns the process: arguments in, exit code out.
#![forbid(unsafe_code)]

/// Large pages for tables: docs/decisions/0123-heap.md; memory for those in use alone: 0185-one-event-loop.md.
#[global_allocator]
static HEAP: undercroft_heap::Heap = undercroft_heap::Heap;

fn main() -> std::process::ExitCode {
    undercroft::cli::run(std::env::args_os(), &|plan, ready| Ok(undercroft_daemon::serve::run(plan, ready)?))
}
