//! Memory accesses of a program, packed, from what Valgrind's Lackey says while it runs.
//!
//! Owns the file. Never runs the program. Invariant: as of every trace that is written, there is no file of the name
//! before it is whole.

use super::packed::{Packed, Packing};
use super::target::Target;
use crate::error::TraceError;
use crate::format::packed_record;
use std::io::{self, Write};
use std::path::Path;

/// Writes one trace of memory accesses ([`crate::Format::Memory`]).
pub struct MemoryWriter {
    name: String,
    to: Packed,
    records: u64,
}

impl MemoryWriter {
    /// Begins a file, or standard output for `-`.
    ///
    /// # Errors
    /// The file is there already and may not be replaced (`replace`), or it cannot be created.
    pub fn create(path: &Path, packing: Packing, replace: bool) -> Result<Self, TraceError> {
        let name = if path == Path::new("-") { "standard output".to_owned() } else { path.display().to_string() };
        let begun = Target::create(path, replace).and_then(|target| Packed::new(target, packing));
        match begun {
            Ok(to) => Ok(Self { name, to, records: 0 }),
            Err(source) => Err(TraceError::Write { name, source }),
        }
    }

    /// Takes a line that Lackey has written. Whether it is one of an access; others are Valgrind's own words.
    ///
    /// # Errors
    /// The file cannot be written: it is of no use then.
    pub fn line(&mut self, line: &[u8]) -> Result<bool, TraceError> {
        let Some(record) = packed_record(line) else { return Ok(false) };
        self.to.write_all(&record.to_le_bytes()).map_err(|source| failed(&self.name, source))?;
        self.records += 1;
        Ok(true)
    }

    /// Accesses so far.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Gives the file its name; returns how many bytes it has, 0 for what is no file.
    ///
    /// # Errors
    /// It cannot be written or renamed: nothing is left of it then.
    pub fn finish(self) -> Result<u64, TraceError> {
        let Self { name, to, .. } = self;
        to.finish().and_then(Target::commit).map_err(|source| failed(&name, source))
    }
}

fn failed(name: &str, source: io::Error) -> TraceError {
    TraceError::Write { name: name.to_owned(), source }
}
