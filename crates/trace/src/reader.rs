//! A trace as an iterator of accesses.
//!
//! Owns the unfolding of records into accesses. Never holds more of a trace than one record, or
//! one row group of a recording.
//! Invariant: after an error the iterator has ended.

use crate::Access;
use crate::compressed::decompressed;
use crate::error::Error;
use crate::format::recording::Runs;
use crate::format::{Decode, Format, Run};
use crate::input::Input;
use crate::recording::Recording;
use bytes::Bytes;
use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;

/// Bytes of a recording that is no file, or is compressed as a whole, at most: it is read from its end.
const RECORDING_BYTES_MAX: u64 = 1 << 30;

/// Reads a trace, compressed with zstd or xz or not at all.
pub struct Reader<'a> {
    source: Source<'a>,
    /// What is left of the record at hand.
    run: Option<Run>,
    ended: bool,
}

/// Where records come from.
enum Source<'a> {
    Stream { input: Input<'a>, decoder: Box<dyn Decode> },
    Recording(Box<Runs>),
}

impl Source<'_> {
    fn next(&mut self) -> Result<Option<Run>, Error> {
        match self {
            Source::Stream { input, decoder } => decoder.next(input),
            Source::Recording(runs) => runs.next(),
        }
    }
}

impl Reader<'static> {
    /// Opens a file; its content or its name tells the format.
    ///
    /// # Errors
    /// [`Error::UnknownFormat`], or as [`Reader::open_as`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let format = match first_bytes(path.as_ref()) {
            Some(format) => format,
            None => Format::of_path(path.as_ref())?,
        };
        Self::open_as(path, format)
    }

    /// Opens a file of a format that the caller knows.
    ///
    /// # Errors
    /// [`Error::Open`] if the file cannot be opened, [`Error::Read`] if its first bytes cannot be read.
    pub fn open_as(path: impl AsRef<Path>, format: Format) -> Result<Self, Error> {
        let name = path.as_ref().display().to_string();
        let mut file = File::open(path).map_err(|source| Error::Open { name: name.clone(), source })?;
        if format == Format::Recording {
            let plain = content(&mut file) == Some(Format::Recording);
            let rewound = file.rewind();
            rewound.map_err(|source| Error::Read { name: name.clone(), offset: 0, source })?;
            if plain {
                return Ok(Self::of_recording(Recording::of_file(file, &name)?));
            }
        }
        Reader::new(file, &name, format)
    }

    fn of_recording(recording: Recording) -> Self {
        Self { source: Source::Recording(Box::new(Runs::new(recording))), run: None, ended: false }
    }
}

/// The format that the first bytes of a file tell.
fn first_bytes(path: &Path) -> Option<Format> {
    content(&mut File::open(path).ok()?)
}

fn content(file: &mut File) -> Option<Format> {
    let mut first = Vec::new();
    file.take(4).read_to_end(&mut first).ok()?;
    Format::of_content(&first)
}

impl<'a> Reader<'a> {
    /// Reads from anything; `name` appears in errors.
    ///
    /// # Errors
    /// [`Error::Read`] if the first bytes cannot be read; [`Error::Recording`] if it is to be a recording and is none.
    pub fn new(input: impl Read + 'a, name: &str, format: Format) -> Result<Self, Error> {
        let unreadable = |source| Error::Read { name: name.to_owned(), offset: 0, source };
        let mut inner = decompressed(input).map_err(unreadable)?;
        let Some(decoder) = format.decoder() else {
            let mut bytes = Vec::new();
            inner.by_ref().take(RECORDING_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
            if bytes.len() as u64 > RECORDING_BYTES_MAX {
                let what =
                    "it is larger than 1 GiB and no plain file; unpack it to a file, which is read piece by piece";
                return Err(Error::Recording { name: name.to_owned(), what: what.into() });
            }
            return Ok(Reader::of_recording(Recording::of_bytes(Bytes::from(bytes), name)?));
        };
        Ok(Self { source: Source::Stream { input: Input::new(inner, name), decoder }, run: None, ended: false })
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
            None => match self.source.next() {
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
