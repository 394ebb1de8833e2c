//! Sizes of caches as Python has them.
//!
//! Owns the step from a number or a text to a size; `undercroft_units` reads the text. Never guesses a footprint.

use crate::error::said;
use pyo3::prelude::*;
use undercroft_units::WrittenSize;

/// Blocks, or a text.
#[derive(FromPyObject)]
pub(crate) enum SizeArgument {
    Blocks(u64),
    Text(String),
}

impl SizeArgument {
    pub(crate) fn read(&self) -> PyResult<WrittenSize> {
        let text = match self {
            SizeArgument::Blocks(n) => &format!("{n}blocks"),
            SizeArgument::Text(text) => text,
        };
        text.parse().map_err(said)
    }
}
