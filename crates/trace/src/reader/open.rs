//! The ways to begin a trace: a file, standard input, anything that can be read, a recording.
//!
//! Owns what is decompressed, and which reader a format gets. Never decodes. Invariant: what cannot be sought is read
//! once.

use super::choice::{blocks_of, format_of, note_of};
use super::{BATCH, Source, TraceReader};
use crate::blocks::{BLOCK_BYTES, Blocks};
use crate::compressed::decompressed;
use crate::error::{RecordingError, TraceError};
use crate::format::{Format, Told};
use crate::input::Input;
use crate::options::ReaderOptions;
use crate::options_error::OptionsError;
use crate::recording::Recording;
use crate::source::{Ahead, Counted, Progress};
use crate::tally::Tally;
use crate::tenants::Tenants;
use bytes::Bytes;
use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;

/// Bytes of a recording that is no file, or is compressed as a whole, at most: it is read from its end.
const RECORDING_BYTES_MAX: u64 = 1 << 30;

impl TraceReader<'static> {
    /// Opens a file, or standard input for `-`; its content or its name tells the format.
    ///
    /// # Errors
    /// [`TraceError::Open`] if the file cannot be opened, [`TraceError::Read`] if its first bytes cannot be read,
    /// [`TraceError::UnknownFormat`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, TraceError> {
        Self::open_with(path, &ReaderOptions::default())
    }

    /// Opens a file, or standard input for `-`, as `options` say.
    ///
    /// # Errors
    /// As [`TraceReader::open`]; [`TraceError::Options`] if they do not fit the format.
    pub fn open_with(path: impl AsRef<Path>, options: &ReaderOptions) -> Result<Self, TraceError> {
        let path = path.as_ref();
        if path == Path::new("-") {
            let progress = Progress::of(None);
            let input = Counted { inner: std::io::stdin(), progress: progress.clone() };
            return Self::of_static(input, "standard input", None, options, progress);
        }
        let name = path.display().to_string();
        let file = File::open(path).map_err(|source| TraceError::Open { name: name.clone(), source })?;
        Self::of_file(file, &name, Some(path), options)
    }

    /// Reads an open file from where it stands; `path` tells the format if nothing else does.
    pub(crate) fn of_file(
        mut file: File,
        name: &str,
        path: Option<&Path>,
        options: &ReaderOptions,
    ) -> Result<Self, TraceError> {
        let unreadable = |source| TraceError::Read { name: name.to_owned(), offset: 0, source };
        let metadata = file.metadata().map_err(unreadable)?;
        if metadata.is_dir() {
            let source = std::io::Error::from(std::io::ErrorKind::IsADirectory);
            return Err(TraceError::Open { name: name.to_owned(), source });
        }
        // a pipe cannot be read twice, and what cannot be sought is no plain recording
        if metadata.is_file() {
            let mut first = Vec::new();
            (&mut file).take(4).read_to_end(&mut first).map_err(unreadable)?;
            file.rewind().map_err(unreadable)?;
            let wanted = options.format.is_none_or(|f| f == Format::Recording);
            if wanted && first == crate::recording::MAGIC {
                return Self::of_recording(Recording::of_file(file, name)?, name, Some(metadata.len()), options);
            }
        }
        let progress = Progress::of(metadata.is_file().then_some(metadata.len()));
        let input = Counted { inner: file, progress: progress.clone() };
        Self::of_static(input, name, path, options, progress)
    }

    fn of_static(
        input: impl Read + Send + 'static,
        name: &str,
        path: Option<&Path>,
        options: &ReaderOptions,
        progress: Progress,
    ) -> Result<Self, TraceError> {
        let unreadable = |source| TraceError::Read { name: name.to_owned(), offset: 0, source };
        let mut inner = decompressed(input).map_err(unreadable)?;
        if options.ahead {
            inner = Box::new(Ahead::of(inner).map_err(unreadable)?);
        }
        Self::of_stream(inner, name, path, options, progress)
    }
}

impl<'a> TraceReader<'a> {
    /// Reads from anything; `name` appears in errors.
    ///
    /// # Errors
    /// [`TraceError::Read`] if the first bytes cannot be read; [`TraceError::Recording`] if it is to be a recording and
    /// is none.
    pub fn new(input: impl Read + Send + 'a, name: &str, format: Format) -> Result<Self, TraceError> {
        Self::with(input, name, &ReaderOptions { format: Some(format), ..ReaderOptions::default() })
    }

    /// Reads from anything, as `options` say; `name` appears in errors.
    ///
    /// # Errors
    /// As [`TraceReader::new`]; [`TraceError::UnknownFormat`] if neither they nor the content tell the format;
    /// [`TraceError::Options`] if they do not fit it.
    pub fn with(input: impl Read + Send + 'a, name: &str, options: &ReaderOptions) -> Result<Self, TraceError> {
        let unreadable = |source| TraceError::Read { name: name.to_owned(), offset: 0, source };
        let progress = Progress::of(None);
        let input = Counted { inner: input, progress: progress.clone() };
        let inner = decompressed(input).map_err(unreadable)?;
        Self::of_stream(inner, name, None, options, progress)
    }

    fn of_stream(
        mut inner: Box<dyn Read + Send + 'a>,
        name: &str,
        path: Option<&Path>,
        options: &ReaderOptions,
        progress: Progress,
    ) -> Result<Self, TraceError> {
        if options.format == Some(Format::Recording) {
            return TraceReader::of_recording_bytes(inner.as_mut(), name, options);
        }
        let mut input = Box::new(Input::new(inner, name));
        let head = input.head().to_vec();
        let format = match options.format {
            Some(format) => format,
            None => format_of(&head, path, name, &options.csv).map_err(|e| input.take_failed().unwrap_or(e))?,
        };
        let refused = |what| match format {
            Format::Csv => TraceError::Columns { name: name.to_owned(), what },
            _ => TraceError::Options { what },
        };
        let told = Told { event: options.event, memory: options.memory, csv: &options.csv, head: &head };
        let mut begun = (format.spec().begin)(told).map_err(|e| refused(e.into()))?;
        let blocks = blocks_of(format, &begun, options).map_err(refused)?;
        let Some(decoder) = begun.decoder.take() else {
            return TraceReader::of_recording_bytes(&mut input, name, options);
        };
        let source = Source::Stream { input, decoder, key_bytes: options.key_bytes };
        let mut reader = Self::begin(name, source, format, blocks, options, progress);
        reader.note = note_of(&mut begun, options, blocks);
        Ok(reader)
    }

    fn of_recording_bytes(
        input: &mut (dyn Read + '_),
        name: &str,
        options: &ReaderOptions,
    ) -> Result<Self, TraceError> {
        let mut bytes = Vec::new();
        let read = input.take(RECORDING_BYTES_MAX + 1).read_to_end(&mut bytes);
        read.map_err(|source| TraceError::Read { name: name.to_owned(), offset: bytes.len() as u64, source })?;
        if bytes.len() as u64 > RECORDING_BYTES_MAX {
            return Err(TraceError::Recording { name: name.to_owned(), what: RecordingError::TooLarge });
        }
        let length = bytes.len() as u64;
        TraceReader::of_recording(Recording::of_bytes(Bytes::from(bytes), name)?, name, Some(length), options)
    }

    fn of_recording(
        recording: Recording,
        name: &str,
        length: Option<u64>,
        options: &ReaderOptions,
    ) -> Result<Self, TraceError> {
        let header = recording.header();
        // Sizes in blocks are of blocks of one size, whatever the file is.
        let unsaid = if options.keys_are_blocks { BLOCK_BYTES } else { header.block_bytes };
        let block_bytes = options.block_bytes.unwrap_or(unsaid);
        let wrong = if options.key_bytes.is_some() {
            Some(OptionsError::RecordingHasNoKeys)
        } else if block_bytes == 0 {
            Some(OptionsError::NoBytes)
        } else if header.sample > 1 && block_bytes != header.block_bytes {
            Some(OptionsError::SampleIsSplit(header.block_bytes))
        } else {
            None
        };
        if let Some(what) = wrong {
            return Err(TraceError::Options { what });
        }
        let mut tenants = Tenants::default();
        for disk in &header.disks {
            let number = tenants.add(&disk.name);
            number.map_err(|e| TraceError::Recording { name: name.to_owned(), what: e.into() })?;
        }
        let source = Source::Recording(Box::new(recording));
        let blocks = Blocks::of_bytes(block_bytes);
        let mut reader = Self::begin(name, source, Format::Recording, blocks, options, Progress::of(length));
        reader.tenants = tenants;
        Ok(reader)
    }

    fn begin(
        name: &str,
        source: Source<'a>,
        format: Format,
        blocks: Blocks,
        options: &ReaderOptions,
        progress: Progress,
    ) -> Self {
        Self {
            name: name.to_owned(),
            source,
            format,
            blocks,
            lenient: options.lenient,
            tenants: Tenants::default(),
            tally: Tally::default(),
            note: None,
            progress,
            requests: Vec::with_capacity(BATCH),
            at: 0,
            within: None,
            accesses: Vec::new().into_iter(),
            failed: None,
            ended: false,
            count: 0,
            latest_ns: 0,
        }
    }
}
