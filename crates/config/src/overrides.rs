//! Values that the command line sets instead of the file, and how much is logged.
//!
//! Owns plain data. Never reads an argument. Invariant: where a value is `None`, that of the file holds.

use std::path::PathBuf;

/// What the command line says instead of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// The control socket.
    pub control_socket: Option<PathBuf>,
    /// The level of logging.
    pub log_level: Option<LogLevel>,
    /// The format of logs.
    pub log_format: Option<LogFormat>,
    /// Whether another process serves now, and is taken over from.
    pub take_over: bool,
}

/// Importance of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum LogLevel {
    /// What failed.
    Error,
    /// What will hurt.
    Warn,
    /// What starts, stops and changes.
    Info,
    /// What helps to find a fault.
    Debug,
    /// Everything.
    Trace,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people; without times and levels where the journal adds its own.
    Text,
    /// One JSON object a line.
    Json,
}
