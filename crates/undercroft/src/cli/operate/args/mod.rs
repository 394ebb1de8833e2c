//! The arguments of operators' commands.
//!
//! Owns what all of them share. Never acts. Invariant: every command teaches by examples.

mod daemon;
mod guests;
mod keys;
mod locks;
mod memory;
mod ssd;

pub use daemon::{
    AttachArgs, AttachForm, CheckArgs, DropCacheArgs, ReloadArgs, ServeArgs, StatusArgs, StopArgs, UpgradeArgs,
};
pub use guests::{RangesArgs, RecordArgs};
pub use locks::{MissesArgs, PinArgs};
pub use memory::{DuplicatesArgs, KsmArgs, KsmCommand, SetArgs, SharesArgs, WhyArgs};
pub use ssd::{SsdArgs, SsdCommand};

use clap::{Args, ValueHint};
use std::path::PathBuf;

/// How to reach the daemon.
#[derive(Clone, Debug, Args)]
pub struct ControlArgs {
    /// Control socket of the daemon, or of one VM [default: /run/undercroft/control.sock for root, else
    /// $XDG_RUNTIME_DIR/undercroft/control.sock, else /tmp/undercroft-UID/control.sock]
    #[arg(
        long,
        value_name = "SOCKET",
        env = "UNDERCROFT_CONTROL",
        hide_env_values = true,
        value_hint = ValueHint::FilePath
    )]
    pub control: Option<PathBuf>,
}
