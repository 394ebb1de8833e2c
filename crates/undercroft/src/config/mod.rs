//! Configuration: what a file, a command line or an API call asks for, made into a plan with every default filled in.
//!
//! Owns the notation and its checks. Never opens a socket or writes a file; `resolve` looks at images only to say early
//! what would fail later. Two steps: read low (`reader`, `spec`: as written, with lines), then build high (`resolve`,
//! `plan`). Invariant: no text makes it panic, and a bad one gets all its problems named at once.

pub mod change;
pub mod images;
pub mod images_only;
pub mod keys;
pub mod machine;
pub mod plan;
pub mod problem;
pub mod reader;
pub mod reference;
pub mod resolve;
pub mod shares;
pub mod spec;

pub use change::PlanChange;
pub use machine::Machine;
pub use plan::{DaemonPlan, DiskPlan, LogFormat, LogLevel, LogPlan, NbdListen, ServePlan, SocketAccess, StorePlan};
pub use problem::{Problem, Problems, Severity};
pub use resolve::{Resolution, resolve};
pub use spec::{DiskSpec, ServeSpec};

use std::io::Read;
use std::path::Path;

/// Reads a configuration file as it was written, checking only what can be checked without looking round.
///
/// # Errors
/// A single problem if the file cannot be read at all.
pub fn read_file(file: &Path) -> Result<(ServeSpec, Vec<Problem>), Problems> {
    let fail = |error: String, remedy: &str| {
        let (place, remedy) = (String::new(), remedy.to_string());
        let problem = Problem { severity: Severity::Error, line: None, place, error, remedy };
        Problems { file: Some(file.to_path_buf()), problems: vec![problem] }
    };
    let mut bytes = Vec::new();
    let limit = keys::FILE_BYTES_MAX;
    let opened = std::fs::File::open(file);
    let read = opened.and_then(|f| f.take(limit + 1).read_to_end(&mut bytes));
    if let Err(e) = read {
        let remedy = match e.kind() {
            std::io::ErrorKind::NotFound => {
                "give the path of a configuration file, or use `undercroft serve --image IMAGE`"
            }
            std::io::ErrorKind::PermissionDenied => "change its mode, or run as a user who may read it",
            _ => "give the path of a TOML file",
        };
        return Err(fail(format!("the configuration cannot be read: {e}"), remedy));
    }
    if bytes.len() as u64 > limit {
        return Err(fail(
            format!("the configuration is longer than {}", crate::units::Size(limit)),
            "is it the right file?",
        ));
    }
    let text = String::from_utf8(bytes).map_err(|e| {
        fail(format!("byte {} of the configuration is no UTF-8", e.utf8_error().valid_up_to()), "is it the right file?")
    })?;
    Ok(reader::read(&text, file))
}

/// Reads a configuration file and makes a plan of it.
///
/// # Errors
/// A single problem if the file cannot be read at all; everything else is in the resolution.
pub fn load(file: &Path, machine: &Machine) -> Result<Resolution, Problems> {
    let (spec, problems) = read_file(file)?;
    Ok(resolve(&spec, machine, problems))
}
