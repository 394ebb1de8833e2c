//! What every list of names has in common: the error for a name that is not in it.
//!
//! Owns that error. Never knows a list: its owner says what it is a list of. Invariant: the sentence names all
//! that is known, so a user need not look it up.

use std::error::Error;
use std::fmt;

/// A name that is not in the list of those known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownName {
    /// What was named: "policy", "mode" and the like.
    pub what: &'static str,
    /// The name as it was given.
    pub name: String,
    /// All names that are known, in the order of the documentation.
    pub known: Vec<&'static str>,
}

impl UnknownName {
    pub(crate) fn new(what: &'static str, name: &str, known: impl IntoIterator<Item = &'static str>) -> Self {
        Self { what, name: name.to_owned(), known: known.into_iter().collect() }
    }
}

impl fmt::Display for UnknownName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown {} \"{}\"; known are {}", self.what, self.name, self.known.join(", "))
    }
}

impl Error for UnknownName {}
