//! The engine's side of the Python package `undercroft`: the module `undercroft._undercroft`.
//!
//! Owns the way between Python's objects and the crates of the laboratory, and nothing they do; `python/undercroft`
//! beside it makes of this what people use. Never holds the interpreter while it reads, simulates or computes.
//! Invariant: whatever Python hands over, the answer is a result or an exception, never a panic.
#![forbid(unsafe_code)]

mod arrays;
mod curve;
mod error;
mod partition;
mod simulate;
mod size;
mod source;
mod watch;

use pyo3::prelude::*;
use undercroft_study::sim::{Policies, Rule};
use undercroft_trace::Format;
use undercroft_units::Size;

/// The names of policies in a list like `lru,s3-fifo`, `disk` or `all`.
#[pyfunction]
fn policies(list: &str) -> PyResult<Vec<&'static str>> {
    let policies: Policies = list.parse().map_err(error::said)?;
    Ok(policies.0.into_iter().map(Rule::name).collect())
}

/// The names of the formats that traces may have, each with what it is.
#[pyfunction]
fn formats() -> Vec<(&'static str, &'static str)> {
    Format::ALL.map(|f| (f.name(), f.about())).to_vec()
}

/// The bytes in a size like `512MiB`.
#[pyfunction]
fn size_bytes(text: &str) -> PyResult<u64> {
    text.parse::<Size>().map(|s| s.0).map_err(|e| error::said(e.to_string()))
}

#[pymodule]
fn _undercroft(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("Error", module.py().get_type::<error::Error>())?;
    module.add_class::<source::Source>()?;
    module.add_class::<source::Batches>()?;
    module.add_class::<curve::Curve>()?;
    module.add_function(wrap_pyfunction!(policies, module)?)?;
    module.add_function(wrap_pyfunction!(formats, module)?)?;
    module.add_function(wrap_pyfunction!(size_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(simulate::footprint, module)?)?;
    module.add_function(wrap_pyfunction!(simulate::cells, module)?)?;
    module.add_function(wrap_pyfunction!(simulate::simulate, module)?)?;
    module.add_function(wrap_pyfunction!(curve::blocks, module)?)?;
    module.add_function(wrap_pyfunction!(curve::estimate, module)?)?;
    module.add_function(wrap_pyfunction!(partition::divide, module)?)
}
