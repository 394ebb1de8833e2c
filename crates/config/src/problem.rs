//! What is wrong with a configuration: where, what, and what to do about it.
//!
//! Owns the form of such messages. Invariant: every problem names the thing and has a remedy.

use serde::Serialize;
use std::fmt;
use std::path::PathBuf;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Whether it prevents serving.
    pub severity: Severity,
    /// Line in the file, from 1; `None` if it comes from the command line, the API or the whole file.
    pub line: Option<usize>,
    /// What it is about: `disk "web:root", policy`.
    pub place: String,
    /// What is wrong; a phrase without a full stop.
    pub error: String,
    /// What to do about it; likewise.
    pub remedy: String,
}

/// How bad a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// It works, but probably not as meant.
    Warning,
    /// A disk cannot be served as things stand, others can; a fault nevertheless, and told as one.
    #[serde(rename = "error")]
    Disk,
    /// It cannot work.
    Error,
}

/// All that is wrong with one configuration; at least one error among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems {
    /// The file; `None` for a command line or an API call.
    pub file: Option<PathBuf>,
    /// In the order of the file.
    pub problems: Vec<Problem>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.place.is_empty() {
            write!(f, "{}: ", self.place)?;
        }
        write!(f, "{}; {}", self.error, self.remedy)
    }
}

impl fmt::Display for Problems {
    /// One problem a line: `FILE:LINE: error: PLACE: what; remedy`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, p) in self.problems.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            if let Some(file) = &self.file {
                write!(f, "{}:", file.display())?;
                if let Some(line) = p.line {
                    write!(f, "{line}:")?;
                }
                f.write_str(" ")?;
            }
            match p.severity {
                Severity::Error | Severity::Disk => write!(f, "error: {p}")?,
                Severity::Warning => write!(f, "warning: {p}")?,
            }
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}
