//! A trace as accesses: one by one, in batches, or as the requests it is made of.
//!
//! Owns the unfolding of requests into accesses; `open` has the ways to begin, `choice` what a trace is read as. Never
//! holds more of a trace than one batch, or one row group of a recording. Invariant: everything before a damaged record
//! is given, then the error, then nothing any more.

mod choice;
mod open;

use crate::access::{Access, TraceRequest};
use crate::blocks::{Blocks, Unit};
use crate::damage::Damage;
use crate::error::TraceError;
use crate::format::{Context, Decode, Format, Sink, recording};
use crate::input::Input;
use crate::recording::Recording;
use crate::source::Progress;
use crate::tally::Tally;
use crate::tenants::Tenants;

/// Accesses of a batch at most, and requests decoded at once: few enough to stay in the first-level cache.
pub const BATCH: usize = 1024;

/// Reads a trace, compressed with zstd, gzip or xz or not at all. Take accesses from it as an iterator or with
/// [`TraceReader::next_batch`], or requests with [`TraceReader::next_requests`].
pub struct TraceReader<'a> {
    name: String,
    source: Source<'a>,
    format: Format,
    blocks: Blocks,
    lenient: bool,
    tenants: Tenants,
    tally: Tally,
    /// How columns and sizes were interpreted where the file does not say.
    note: Option<String>,
    progress: Progress,
    /// Requests decoded, and which of them is next.
    requests: Vec<TraceRequest>,
    at: usize,
    /// The rest of that request: its next block, and how many blocks are left.
    within: Option<(u64, u64)>,
    /// What the iterator gives next.
    accesses: std::vec::IntoIter<Access>,
    /// The error that follows the requests at hand.
    failed: Option<TraceError>,
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

impl<'a> TraceReader<'a> {
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

    /// The tenants seen so far.
    pub fn tenants(&self) -> &Tenants {
        &self.tenants
    }

    /// Records left out and times out of order so far.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// How the reader interpreted what neither the format nor the options say, in words: the columns of a CSV file.
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
    pub fn next_batch(&mut self, out: &mut Vec<Access>) -> Result<usize, TraceError> {
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
    pub fn next_requests(&mut self, out: &mut Vec<TraceRequest>) -> Result<usize, TraceError> {
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
    fn refill(&mut self) -> Result<bool, TraceError> {
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
                return Err(TraceError::Nothing { name: self.name.clone(), skipped: self.tally.skipped, first });
            }
            return Ok(false);
        }
        self.look_at_times();
        Ok(true)
    }

    fn decode(&mut self) -> Result<(), TraceError> {
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

    /// Adds to an error about a record that the file looks like another format, if it does.
    #[cold]
    fn with_hint(&self, error: TraceError) -> TraceError {
        let (TraceError::Record { name, record, offset, what }, Source::Stream { input, .. }) = (&error, &self.source)
        else {
            return error;
        };
        match Format::of_content(input.head_seen()) {
            Some(other) if other != self.format && self.format != Format::Csv => {
                let (read_as, like) = (self.format.name(), other.name());
                let what = Damage::OtherFormat { damage: Box::new(what.clone()), read_as, like };
                TraceError::Record { name: name.clone(), record: *record, offset: *offset, what }
            }
            _ => error,
        }
    }
}

impl Iterator for TraceReader<'_> {
    type Item = Result<Access, TraceError>;

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
