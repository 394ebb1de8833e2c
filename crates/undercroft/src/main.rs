//! The `undercroft` command. Owns the process: arguments in, exit code out.
#![forbid(unsafe_code)]

use undercroft::{cli, serve, systemd};

fn main() -> std::process::ExitCode {
    cli::run(std::env::args_os(), &|plan, ready| {
        let served = match plan.disks.len() {
            1 => "serving 1 disk".to_string(),
            n => format!("serving {n} disks"),
        };
        serve::run(plan, |_service| {
            systemd::ready(&served);
            ready();
        })?;
        Ok(())
    })
}
