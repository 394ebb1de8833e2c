//! The crates' errors as Python's exceptions.
//!
//! Owns the class `undercroft.Error` and what it tells besides its message: `file`, `record` and `offset`, `None` where
//! they do not apply. What the system says of a file is an `OSError` instead. Invariant: no message is lost, and what
//! names an option of the command line names the argument here.

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use std::fmt::Display;
use std::io;
use undercroft_trace::TraceError;

pyo3::create_exception!(
    undercroft,
    Error,
    PyValueError,
    "What cannot be done, or read: a sentence that says what to do. Of a damaged trace, `file`, `record` (from 1) and\n\
     `offset` (in bytes, after decompression) say where; they are None otherwise."
);

/// An error in words.
pub(crate) fn said(what: impl Display) -> PyErr {
    located(&what.to_string(), None, None, None)
}

fn located(what: &str, file: Option<&str>, record: Option<u64>, offset: Option<u64>) -> PyErr {
    let error = Error::new_err(what.to_owned());
    let told = Python::attach(|py| {
        let value = error.value(py);
        value.setattr("file", file)?;
        value.setattr("record", record)?;
        value.setattr("offset", offset)
    });
    told.err().unwrap_or(error)
}

/// What the system said, as Python knows it: `FileNotFoundError` and its like.
fn of_system(source: &io::Error, name: &str) -> Option<PyErr> {
    let number = source.raw_os_error()?;
    let text = source.to_string();
    let text = text.split(" (os error").next().unwrap_or_default().to_owned();
    Some(PyOSError::new_err((number, text, name.to_owned())))
}

/// What is wrong with a trace.
pub(crate) fn of_trace(error: &TraceError) -> PyErr {
    let what = error.to_string();
    match error {
        TraceError::Open { name, source } | TraceError::Write { name, source } => {
            of_system(source, name).unwrap_or_else(|| located(&what, Some(name), None, None))
        }
        TraceError::Read { name, offset, source } => {
            of_system(source, name).unwrap_or_else(|| located(&what, Some(name), None, Some(*offset)))
        }
        TraceError::Record { name, record, offset, .. } => located(&what, Some(name), Some(*record), Some(*offset)),
        TraceError::UnknownFormat { name, .. } => {
            located(&what.replace("(--format)", "(format=)"), Some(name), None, None)
        }
        TraceError::Options { .. } => {
            said(what.replace("(--key-size)", "(key_size=)").replace("(--block-size)", "(block_size=)"))
        }
        TraceError::Columns { name, .. } => located(
            &what.replace("(--columns)", "(columns=)").replace("--columns ", "columns="),
            Some(name),
            None,
            None,
        ),
        TraceError::Recording { name, .. } | TraceError::Nothing { name, .. } | TraceError::Spool { name, .. } => {
            located(&what, Some(name), None, None)
        }
        TraceError::Unfit { name, request, .. } => located(&what, Some(name), Some(*request), None),
    }
}

/// Why there is no result, or not the whole one.
pub(crate) fn of_simulation(error: &undercroft_study::sim::SimError) -> PyErr {
    match error {
        undercroft_study::sim::SimError::Trace(error) => of_trace(error),
        undercroft_study::sim::SimError::Threads { .. } => said(error.to_string().replace("--jobs", "jobs=")),
        other => said(other.to_string()),
    }
}
