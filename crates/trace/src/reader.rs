//! A trace as accesses: one by one, in batches, or as the requests it is made of.
//!
//! Owns the unfolding of requests into accesses. Never holds more of a trace than one batch, or one row group of a
//! recording. Invariant: everything before a damaged record is given, then the error, then nothing any more.

use crate::access::{Access, Request};
use crate::blocks::{Blocks, Unit};
use crate::compressed::decompressed;
use crate::error::Error;
use crate::format::{Context, Decode, Format, Sink, recording};
use crate::input::Input;
use crate::options::Options;
use crate::recording::Recording;
use crate::source::{Ahead, Counted, Progress};
use crate::tally::Tally;
use crate::tenants::Tenants;
use bytes::Bytes;
use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;

/// Accesses of a batch at most, and requests decoded at once: few enough to stay in the first-level cache.
pub const BATCH: usize = 1024;
/// Bytes of a recording that is no file, or is compressed as a whole, at most: it is read from its end.
const RECORDING_BYTES_MAX: u64 = 1 << 30;

/// Reads a trace, compressed with zstd, gzip or xz or not at all. Take accesses from it as an iterator or with
/// [`Reader::next_batch`], or requests with [`Reader::next_requests`].
pub struct Reader<'a> {
    name: String,
    source: Source<'a>,
    format: Format,
    blocks: Blocks,
    lenient: bool,
    tenants: Tenants,
    tally: Tally,
    /// What was taken for what, as the file does not say.
    note: Option<String>,
    progress: Progress,
    /// Requests decoded, and which of them is next.
    requests: Vec<Request>,
    at: usize,
    /// What is left of that one: its next block, and how many.
    within: Option<(u64, u64)>,
    /// What the iterator gives next.
    accesses: std::vec::IntoIter<Access>,
    /// What is wrong after the requests at hand.
    failed: Option<Error>,
    ended: bool,
    /// Requests decoded so far, and the latest time of any.
    count: u64,
    latest_ns: u64,
}

/// Where requests come from.
enum Source<'a> {
    Stream { input: Box<Input<'a>>, decoder: Box<dyn Decode>, key_bytes: Option<u32> },
    Recording(Box<Recording>),
}

impl Reader<'static> {
    /// Opens a file, or standard input for `-`; its content or its name tells the format.
    ///
    /// # Errors
    /// [`Error::UnknownFormat`], [`Error::Open`] if the file cannot be opened, [`Error::Read`] if its first bytes cannot
    /// be read.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_with(path, &Options::default())
    }

    /// Opens a file, or standard input for `-`, as `options` say.
    ///
    /// # Errors
    /// As [`Reader::open`]; [`Error::Options`] if they do not fit the format.
    pub fn open_with(path: impl AsRef<Path>, options: &Options) -> Result<Self, Error> {
        let path = path.as_ref();
        if path == Path::new("-") {
            let progress = Progress::of(None);
            let input = Counted { inner: std::io::stdin(), progress: progress.clone() };
            return Self::of_static(input, "standard input", None, options, progress);
        }
        let name = path.display().to_string();
        let file = File::open(path).map_err(|source| Error::Open { name: name.clone(), source })?;
        Self::of_file(file, &name, Some(path), options)
    }

    /// Reads an open file from where it stands; `path` tells the format if nothing else does.
    pub(crate) fn of_file(mut file: File, name: &str, path: Option<&Path>, options: &Options) -> Result<Self, Error> {
        let unreadable = |source| Error::Read { name: name.to_owned(), offset: 0, source };
        let metadata = file.metadata().map_err(unreadable)?;
        if metadata.is_dir() {
            let source = std::io::Error::from(std::io::ErrorKind::IsADirectory);
            return Err(Error::Open { name: name.to_owned(), source });
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
        options: &Options,
        progress: Progress,
    ) -> Result<Self, Error> {
        let unreadable = |source| Error::Read { name: name.to_owned(), offset: 0, source };
        let mut inner = decompressed(input).map_err(unreadable)?;
        if options.ahead {
            inner = Box::new(Ahead::of(inner).map_err(unreadable)?);
        }
        Self::of_stream(inner, name, path, options, progress)
    }
}

impl<'a> Reader<'a> {
    /// Reads from anything; `name` appears in errors.
    ///
    /// # Errors
    /// [`Error::Read`] if the first bytes cannot be read; [`Error::Recording`] if it is to be a recording and is none.
    pub fn new(input: impl Read + Send + 'a, name: &str, format: Format) -> Result<Self, Error> {
        Self::with(input, name, &Options { format: Some(format), ..Options::default() })
    }

    /// Reads from anything, as `options` say; `name` appears in errors.
    ///
    /// # Errors
    /// As [`Reader::new`]; [`Error::UnknownFormat`] if neither they nor the content tell the format; [`Error::Options`]
    /// if they do not fit it.
    pub fn with(input: impl Read + Send + 'a, name: &str, options: &Options) -> Result<Self, Error> {
        let unreadable = |source| Error::Read { name: name.to_owned(), offset: 0, source };
        let progress = Progress::of(None);
        let input = Counted { inner: input, progress: progress.clone() };
        let inner = decompressed(input).map_err(unreadable)?;
        Self::of_stream(inner, name, None, options, progress)
    }

    fn of_stream(
        mut inner: Box<dyn Read + Send + 'a>,
        name: &str,
        path: Option<&Path>,
        options: &Options,
        progress: Progress,
    ) -> Result<Self, Error> {
        if options.format == Some(Format::Recording) {
            return Reader::of_recording_bytes(inner.as_mut(), name, options);
        }
        let mut input = Box::new(Input::new(inner, name));
        let head = input.head().to_vec();
        let format = match options.format {
            Some(format) => format,
            None => format_of(&head, path, name, options).map_err(|e| input.take_failed().unwrap_or(e))?,
        };
        let blocks = format.blocks(options, &head).map_err(|e| match e {
            Error::Options { what } if format == Format::Csv => Error::Columns { name: name.to_owned(), what },
            other => other,
        })?;
        let Some(decoder) = format.decoder(options, &head, blocks.unit) else {
            return Reader::of_recording_bytes(&mut input, name, options);
        };
        let source = Source::Stream { input, decoder, key_bytes: options.key_bytes };
        let mut reader = Self::begin(name, source, format, blocks, options, progress);
        reader.note = format.note(options, &head, blocks);
        Ok(reader)
    }

    fn of_recording_bytes(input: &mut (dyn Read + '_), name: &str, options: &Options) -> Result<Self, Error> {
        let mut bytes = Vec::new();
        let read = input.take(RECORDING_BYTES_MAX + 1).read_to_end(&mut bytes);
        read.map_err(|source| Error::Read { name: name.to_owned(), offset: bytes.len() as u64, source })?;
        if bytes.len() as u64 > RECORDING_BYTES_MAX {
            let what = "it is larger than 1 GiB and no plain file; unpack it to a file, which is read piece by piece";
            return Err(Error::Recording { name: name.to_owned(), what: what.into() });
        }
        let length = bytes.len() as u64;
        Reader::of_recording(Recording::of_bytes(Bytes::from(bytes), name)?, name, Some(length), options)
    }

    fn of_recording(recording: Recording, name: &str, length: Option<u64>, options: &Options) -> Result<Self, Error> {
        let header = recording.header();
        let block_bytes = options.block_bytes.unwrap_or(header.block_bytes);
        let wrong = if options.key_bytes.is_some() {
            "a recording says where bytes are: its keys have no size to be told"
        } else if block_bytes == 0 {
            "a block has at least one byte"
        } else if header.sample > 1 && block_bytes != header.block_bytes {
            "the recording is a sample of its blocks, so that it cannot be split into blocks of another size"
        } else {
            ""
        };
        if !wrong.is_empty() {
            return Err(Error::Options { what: wrong.into() });
        }
        let mut tenants = Tenants::default();
        for disk in &header.disks {
            let number = tenants.add(&disk.name);
            number.map_err(|what| Error::Recording { name: name.to_owned(), what })?;
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
        options: &Options,
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

    /// The file, as errors name it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// How its requests become accesses.
    pub fn blocks(&self) -> Blocks {
        self.blocks
    }

    /// Whose accesses have come so far.
    pub fn tenants(&self) -> &Tenants {
        &self.tenants
    }

    /// What was left out or out of order so far.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// What the reader took for what, in words, where neither the format nor the options say it: the columns of a CSV
    /// file.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// How much of the file has been read; the handle may be kept and looked at by others.
    pub fn progress(&self) -> Progress {
        self.progress.clone()
    }

    /// The recording that is read, if it is one.
    pub fn recording(&self) -> Option<&Recording> {
        match &self.source {
            Source::Recording(recording) => Some(recording),
            Source::Stream { .. } => None,
        }
    }

    /// Adds the next accesses to `out`, [`BATCH`] at most, and says how many; 0 at the end. This costs less than the
    /// iterator, which looks for the end and for an error at each access. Clear `out` between calls to use it again.
    ///
    /// # Errors
    /// As the iterator; nothing comes after an error.
    pub fn next_batch(&mut self, out: &mut Vec<Access>) -> Result<usize, Error> {
        let before = out.len();
        let limit = before + BATCH;
        out.reserve(BATCH);
        while out.len() == before {
            if self.at == self.requests.len() && !self.refill()? {
                return Ok(0);
            }
            self.split(out, limit);
        }
        Ok(out.len() - before)
    }

    /// Splits the requests at hand into accesses, up to `limit` of them in `out`.
    fn split(&mut self, out: &mut Vec<Access>, limit: usize) {
        let blocks = self.blocks;
        let rest = &self.requests[self.at..];
        let plain = &rest[..rest.len().min(limit - out.len())];
        let one_each = blocks.unit == Unit::Keys && !blocks.own_disks && plain.iter().all(|r| r.keys == 1);
        if one_each && self.within.is_none() {
            // most traces of keys: no branch for an access
            out.extend(plain.iter().map(|r| Blocks::access(r, r.address)));
            self.at += plain.len();
            return;
        }
        while self.at < self.requests.len() && out.len() < limit {
            let r = &self.requests[self.at];
            let (block, count) = self.within.take().unwrap_or_else(|| blocks.of(r));
            if count == 1 {
                out.push(Blocks::access(r, block));
                self.at += 1;
                continue;
            }
            let n = count.min((limit - out.len()) as u64);
            // no overflow: requests that do not fit the numbers there are have been refused
            out.extend((0..n).map(|i| Blocks::access(r, block + i)));
            if n < count {
                self.within = Some((block + n, count - n));
            } else {
                self.at += 1;
            }
        }
    }

    /// Replaces `out` with the next requests, as the trace has them, and says how many; 0 at the end. What has been
    /// taken as accesses does not come again.
    ///
    /// # Errors
    /// As the iterator; nothing comes after an error.
    pub fn next_requests(&mut self, out: &mut Vec<Request>) -> Result<usize, Error> {
        out.clear();
        self.within = None;
        if self.at == self.requests.len() && !self.refill()? {
            return Ok(0);
        }
        if self.at == 0 {
            std::mem::swap(out, &mut self.requests);
            self.requests.clear();
        } else {
            out.extend_from_slice(&self.requests[self.at..]);
            self.at = self.requests.len();
        }
        Ok(out.len())
    }

    /// Decodes the next requests; false at the end.
    fn refill(&mut self) -> Result<bool, Error> {
        self.requests.clear();
        self.at = 0;
        if let Some(error) = self.failed.take() {
            self.ended = true;
            return Err(error);
        }
        if self.ended {
            return Ok(false);
        }
        if let Err(error) = self.decode() {
            let error = self.with_hint(error);
            if self.requests.is_empty() {
                self.ended = true;
                return Err(error);
            }
            self.failed = Some(error);
        }
        if self.requests.is_empty() {
            self.ended = true;
            if self.count == 0 && self.tally.skipped > 0 {
                let first = self.tally.first.first().cloned().unwrap_or_default();
                return Err(Error::Nothing { name: self.name.clone(), skipped: self.tally.skipped, first });
            }
            return Ok(false);
        }
        self.look_at_times();
        Ok(true)
    }

    fn decode(&mut self) -> Result<(), Error> {
        match &mut self.source {
            Source::Stream { input, decoder, key_bytes } => {
                let (out, tenants) = (&mut self.requests, &mut self.tenants);
                let sink = Sink { out, tenants, blocks: self.blocks, key_bytes: *key_bytes };
                let (tally, lenient) = (&mut self.tally, self.lenient);
                decoder.fill(&mut Context { input, sink, tally, lenient, max: BATCH })
            }
            Source::Recording(recording) => {
                while self.requests.is_empty() {
                    let more = recording::next_group(recording, &self.blocks, &mut self.requests);
                    let more = match more {
                        Err(error) if self.lenient => {
                            self.tally.skip(&error);
                            false
                        }
                        other => other?,
                    };
                    let (done, all) = recording.groups();
                    let total = self.progress.total().unwrap_or(0);
                    self.progress.set((total as u128 * done as u128 / all.max(1) as u128) as u64);
                    if !more {
                        break;
                    }
                }
                Ok(())
            }
        }
    }

    fn look_at_times(&mut self) {
        let mut latest = self.latest_ns;
        for (n, r) in self.requests.iter().enumerate() {
            if r.time_ns < latest {
                let tally = &mut self.tally;
                if tally.backwards == 0 {
                    tally.first_backwards = self.count + n as u64 + 1;
                }
                tally.backwards += 1;
                tally.back_ns_max = tally.back_ns_max.max(latest - r.time_ns);
            } else {
                latest = r.time_ns;
            }
        }
        self.latest_ns = latest;
        self.count += self.requests.len() as u64;
    }

    /// Adds to an error about a record what the file looks like, if that is another format.
    #[cold]
    fn with_hint(&self, error: Error) -> Error {
        let (Error::Record { name, record, offset, what }, Source::Stream { input, .. }) = (&error, &self.source)
        else {
            return error;
        };
        match Format::of_content(input.head_seen()) {
            Some(other) if other != self.format && self.format != Format::Csv => {
                let what = format!("{what}; it is read as {}, but looks like {other}", self.format);
                Error::Record { name: name.clone(), record: *record, offset: *offset, what }
            }
            _ => error,
        }
    }
}

/// The format that content and name tell.
fn format_of(head: &[u8], path: Option<&Path>, name: &str, options: &Options) -> Result<Format, Error> {
    if let Some(format) = Format::of_magic(head) {
        return Ok(format);
    }
    let named = path.and_then(|p| Format::of_path(p).ok());
    match named {
        // each of the published traces is called .csv
        Some(Format::Csv) if options.csv == Default::default() => Ok(Format::of_content(head).unwrap_or(Format::Csv)),
        Some(format) => Ok(format),
        None => Format::of_content(head).ok_or_else(|| {
            let known = Format::ALL.map(Format::name).join(", ");
            Error::UnknownFormat { name: name.to_owned(), known }
        }),
    }
}

impl Iterator for Reader<'_> {
    type Item = Result<Access, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(access) = self.accesses.next() {
            return Some(Ok(access));
        }
        let mut batch = Vec::with_capacity(BATCH);
        match self.next_batch(&mut batch) {
            Ok(0) => None,
            Ok(_) => {
                self.accesses = batch.into_iter();
                self.accesses.next().map(Ok)
            }
            Err(error) => Some(Err(error)),
        }
    }
}
