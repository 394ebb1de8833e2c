//! The `undercroft` command. Owns the process: arguments in, exit code out.
#![forbid(unsafe_code)]

/// Large pages for tables: docs/decisions/0123-heap.md.
#[global_allocator]
static HEAP: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> std::process::ExitCode {
    undercroft::cli::run(std::env::args_os(), &|plan, ready| Ok(undercroft_daemon::serve::run(plan, ready)?))
}
