//! Configuration: what a file, a command line or an API call asks for, made into a plan with every default filled in.
//!
//! Owns the notation and its checks. Never opens a socket or writes a file; `resolve` looks at images only to say early
//! what would fail later. There are two steps: `reader` reads the text into `spec`, which has values as they are
//! written, with their lines; `resolve` checks these and makes a `plan`. Invariant: no text makes it panic, and for a
//! wrong one all problems are named at once.

#![forbid(unsafe_code)]

pub mod change;
mod checks;
mod daemon;
mod disk;
mod error;
mod fields;
pub mod goal;
pub mod image;
pub mod images;
pub mod images_only;
pub mod keys;
pub mod ksm;
pub mod list_files;
pub mod live;
mod locks;
pub mod machine;
mod nbd;
mod nodes;
mod overrides;
pub mod pin_list;
pub mod plan;
pub mod pools;
pub mod pressure;
pub mod problem;
pub mod reader;
pub mod reference;
pub mod resolve;
mod scan;
pub mod shares;
pub mod spec;
mod ssd;
mod store;
pub mod stores;
pub mod tls;
pub mod written;

pub use change::PlanChange;
pub use error::{ControlError, ControlErrorKind};
pub use fields::KeyChange;
pub use goal::GoalPlan;
pub use image::{ImageFormat, ImageSpec};
pub use keys::UNIT_BYTES;
pub use ksm::{Advisor, KsmPlan};
pub use list_files::{ListFault, ListRead, read_list, read_lists};
pub use live::{NodeChange, NodeSet, NodeSettings};
pub use machine::Machine;
pub use pin_list::PinList;
pub use plan::{
    BaseDeduplication, DaemonPlan, DiskPlan, LogFormat, LogLevel, LogPlan, NbdLimits, NbdListen, NbdListener, NodePlan,
    Overrides, PartPlan, ScanPlan, ServePlan, SharesPlan, SocketAccess, SsdAdmission, SsdPlan, StorePlan, VmControl,
};
pub use pools::Pools;
pub use pressure::PressurePlan;
pub use problem::{Problem, Problems, Severity};
pub use resolve::{Resolution, resolve};
pub use shares::{Layout, Misfit};
pub use spec::{DiskSpec, ScanSpec, ServeSpec};
pub use stores::StoreChoice;
pub use written::{Written, WrittenError};

use std::io::Read;
use std::path::Path;

/// Reads a configuration file as it was written, checking only what can be checked without looking round.
///
/// # Errors
/// A single problem if the file cannot be read at all.
pub(crate) fn read_file(file: &Path) -> Result<(ServeSpec, Vec<Problem>), Problems> {
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
            format!("the configuration is longer than {}", undercroft_units::Size(limit)),
            "is it the right file?",
        ));
    }
    let text = String::from_utf8(bytes).map_err(|e| {
        fail(format!("byte {} of the configuration is no UTF-8", e.utf8_error().valid_up_to()), "is it the right file?")
    })?;
    Ok(reader::read(&text, file))
}

/// Reads a configuration file and makes a plan of it; `overrides` count more than the file.
///
/// # Errors
/// A single problem if the file cannot be read at all; everything else is in the resolution.
pub fn load(file: &Path, machine: &Machine, overrides: &Overrides) -> Result<Resolution, Problems> {
    let (mut spec, problems) = read_file(file)?;
    spec.overrides = overrides.clone();
    Ok(resolve(&spec, machine, problems))
}

impl ServePlan {
    /// The disk that `spec` asks for beside those of this plan, its share worked out.
    ///
    /// # Errors
    /// Everything that is wrong with it, by itself or beside the others.
    pub fn plan_disk(&self, spec: DiskSpec) -> Result<DiskPlan, Problems> {
        let mut plan = self.with_disk(&spec, &Machine::here())?;
        plan.disks.pop().ok_or_else(|| Problems { file: None, problems: Vec::new() })
    }

    /// Reads the configuration file again: the plan that can be reached without a restart, and the way there.
    ///
    /// # Errors
    /// Everything that is wrong with the file; or that there is none.
    pub fn reread(&self) -> Result<(ServePlan, PlanChange), Problems> {
        let Some(file) = &self.config_file else {
            let problem = Problem {
                severity: Severity::Error,
                line: None,
                place: String::new(),
                error: "there is no configuration file to read again".to_string(),
                remedy:
                    "this daemon was started with --image: change disks with `undercroft set`, or serve from a file"
                        .to_string(),
            };
            return Err(Problems { file: None, problems: vec![problem] });
        };
        let (wanted, _warnings) = load(file, &Machine::here(), &self.overrides)?.accept_waiting()?;
        let change = self.difference(&wanted);
        let result = change.result.clone().unwrap_or_else(|| self.clone());
        Ok((result, change))
    }
}
