//! A trace as an iterator of accesses.
//!
//! Owns the unfolding of records into accesses. Never holds more of a trace than one record.
//! Invariant: after an error the iterator has ended.

use crate::Access;
use crate::compressed::decompressed;
use crate::error::Error;
use crate::format::{Decode, Format, Run};
use crate::input::Input;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Reads a trace, compressed with zstd or xz or not at all.
pub struct Reader<'a> {
    input: Input<'a>,
    decoder: Box<dyn Decode>,
    /// What is left of the record at hand.
    run: Option<Run>,
    ended: bool,
}

impl Reader<'static> {
    /// Opens a file; its name tells the format.
    ///
    /// # Errors
    /// [`Error::UnknownFormat`], or as [`Reader::open_as`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let format = Format::of_path(path.as_ref())?;
        Self::open_as(path, format)
    }

    /// Opens a file of a format that the caller knows.
    ///
    /// # Errors
    /// [`Error::Open`] if the file cannot be opened, [`Error::Read`] if its first bytes cannot be read.
    pub fn open_as(path: impl AsRef<Path>, format: Format) -> Result<Self, Error> {
        let name = path.as_ref().display().to_string();
        let file = File::open(path).map_err(|source| Error::Open { name: name.clone(), source })?;
        Reader::new(file, &name, format)
    }
}

impl<'a> Reader<'a> {
    /// Reads from anything; `name` appears in errors.
    ///
    /// # Errors
    /// [`Error::Read`] if the first bytes cannot be read.
    pub fn new(input: impl Read + 'a, name: &str, format: Format) -> Result<Self, Error> {
        let inner = decompressed(input).map_err(|source| Error::Read { name: name.to_owned(), offset: 0, source })?;
        Ok(Self { input: Input::new(inner, name), decoder: format.decoder(), run: None, ended: false })
    }
}

impl Iterator for Reader<'_> {
    type Item = Result<Access, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let run = match self.run.take() {
            Some(run) => run,
            None => match self.decoder.next(&mut self.input) {
                Ok(Some(run)) => run,
                Ok(None) => {
                    self.ended = true;
                    return None;
                }
                Err(error) => {
                    self.ended = true;
                    return Some(Err(error));
                }
            },
        };
        if run.blocks > 1 {
            // no overflow: decoders check that the whole run is within the numbers there are
            let first = Access { block: run.first.block + 1, ..run.first };
            self.run = Some(Run { first, blocks: run.blocks - 1 });
        }
        Some(Ok(run.first))
    }
}
