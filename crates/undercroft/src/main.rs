//! The `undercroft` command. Owns the process: arguments in, exit code out.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    undercroft::cli::run(std::env::args_os(), &|plan, ready| Ok(undercroft::serve::run(plan, ready)?))
}
