//! The `undercroft` command. Owns the process: arguments in, exit code out.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    undercroft::cli::run(std::env::args_os(), &|_plan, _ready| {
        anyhow::bail!("this build has no data path: build it from a complete tree")
    })
}
