//! Traces, written: to a file that appears when it is whole, or to standard output.
//!
//! Owns which formats can be written and what each keeps. Never reads a trace. Invariant: until [`Writer::finish`] has
//! returned, there is no file of the name that was asked for, or the one that was there before.

mod index;
mod memory;
mod packed;
mod target;
mod text;

pub use memory::MemoryWriter;
pub use packed::Packing;
use target::Target;

use crate::access::{AccessKind, TraceRequest};
use crate::blocks::{BLOCK_BYTES, Blocks, TENANT_SHIFT, Unit};
use crate::error::{TraceError, UnfitRequest};
use crate::format::Format;
use crate::options_error::OptionsError;
use crate::recording::{self, DiskEnd, GROUP_ROWS, RecordedDisk, RecordedOp, RecordingHeader, Row, Trailer, VERSION};
use crate::tenants::Tenants;
use index::Indexed;
use packed::Packed;
use std::io::{self, Write};
use std::path::Path;

/// Formats that can be written.
pub const WRITTEN: [Format; 7] =
    [Format::OracleGeneral, Format::Lcs, Format::Csv, Format::Recording, Format::U64Le, Format::U32Le, Format::ArcLis];

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Requests taken.
    pub requests: u64,
    /// Records made of them.
    pub records: u64,
    /// Bytes of the file; 0 for standard output.
    pub bytes: u64,
}

/// Writes one trace.
///
/// oracleGeneral, lcs, u32 and u64 hold an access to a block in each record; CSV, `.lis` and recordings hold whole
/// requests. Times are kept as far as the format has them (oracleGeneral and lcs: seconds), and shifted to begin at 0
/// if they are too large for it; tenants by number in lcs, by name in CSV and recordings, and as part of the block's
/// number elsewhere; reads and writes in lcs, CSV and recordings (there, what is neither is a read).
pub struct Writer {
    name: String,
    format: Format,
    blocks: Blocks,
    sink: Sink,
    written: Written,
    /// Subtracted from all times; known at the first request.
    base_ns: Option<u64>,
    line: Vec<u8>,
}

enum Sink {
    /// Bytes as they come.
    Stream(Box<Packed>),
    /// Records that name the next access of their block.
    Indexed(Box<Indexed>),
    Recording {
        writer: Box<recording::RecordingWriter<Target>>,
        rows: Vec<Row>,
    },
}

impl Writer {
    /// Begins a file, or standard output for `-`. `blocks` is that of the trace that the requests are from.
    ///
    /// # Errors
    /// The format cannot be written or compressed, the file is there already and may not be replaced (`replace`), or it
    /// cannot be created.
    pub fn create(
        path: &Path,
        format: Format,
        packing: Packing,
        blocks: Blocks,
        replace: bool,
    ) -> Result<Self, TraceError> {
        let name = if path == Path::new("-") { "standard output".to_owned() } else { path.display().to_string() };
        let failed = |source: io::Error| TraceError::Write { name: name.clone(), source };
        if !WRITTEN.contains(&format) {
            let written = WRITTEN.map(Format::name).join(", ");
            return Err(TraceError::Options { what: OptionsError::NotWritten { format: format.name(), written } });
        }
        if format == Format::Recording && packing != Packing::None {
            return Err(TraceError::Options { what: OptionsError::PackedParquet });
        }
        let target = Target::create(path, replace).map_err(failed)?;
        let sink = match format {
            Format::OracleGeneral | Format::Lcs => {
                Sink::Indexed(Box::new(Indexed::new(target, packing, format == Format::Lcs).map_err(failed)?))
            }
            Format::Recording => {
                let header = RecordingHeader {
                    format: VERSION,
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                    block_bytes: if blocks.unit == Unit::Keys || blocks.whole {
                        BLOCK_BYTES
                    } else {
                        blocks.block_bytes
                    },
                    sample: 1,
                    ..RecordingHeader::default()
                };
                let writer = recording::RecordingWriter::new(target, header);
                let writer = writer.map_err(|e| failed(io::Error::other(e)))?;
                Sink::Recording { writer: Box::new(writer), rows: Vec::new() }
            }
            _ => Sink::Stream(Box::new(Packed::new(target, packing).map_err(failed)?)),
        };
        Ok(Self { name, format, blocks, sink, written: Written::default(), base_ns: None, line: Vec::new() })
    }

    /// The file, as errors name it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Adds requests; `tenants` are those of their trace.
    ///
    /// # Errors
    /// The file cannot be written, or a request does not fit the format: it is of no use then.
    pub fn write(&mut self, requests: &[TraceRequest], tenants: &Tenants) -> Result<(), TraceError> {
        for r in requests {
            self.written.requests += 1;
            let time_ns = r.time_ns.saturating_sub(*self.base_ns.get_or_insert_with(|| base(self.format, r.time_ns)));
            let result = self.request(&TraceRequest { time_ns, ..*r }, tenants);
            result.map_err(|bad| match bad {
                Bad::Io(source) => TraceError::Write { name: self.name.clone(), source },
                Bad::Unfit(what) => TraceError::Unfit { name: self.name.clone(), request: self.written.requests, what },
            })?;
        }
        Ok(())
    }

    fn request(&mut self, r: &TraceRequest, tenants: &Tenants) -> Result<(), Bad> {
        let line = &mut self.line;
        line.clear();
        let (first, count) = self.blocks.of(r);
        match &mut self.sink {
            Sink::Indexed(indexed) => {
                let whole = self.blocks.whole || self.blocks.unit == Unit::Keys;
                let bytes = if whole { r.bytes } else { u64::from(self.blocks.block_bytes) };
                self.written.records += count;
                for block in first..=first.saturating_add(count - count.min(1)) {
                    if count > 0 {
                        indexed.push(r, block, bytes.max(1))?;
                    }
                }
                return Ok(());
            }
            Sink::Recording { writer, rows } => {
                self.written.records += 1;
                rows.push(row(r, &self.blocks)?);
                let known = writer.header().disks.len();
                for n in known..tenants.len().max(1) {
                    let name = tenants.names().get(n).map_or("trace", |n| n).to_owned();
                    writer
                        .add_disk(RecordedDisk { name, ..RecordedDisk::default() })
                        .map_err(|e| Bad::Unfit(e.into()))?;
                }
                if rows.len() == GROUP_ROWS {
                    writer.write(rows).map_err(|e| Bad::Io(e.into_io()))?;
                    rows.clear();
                }
                return Ok(());
            }
            Sink::Stream(to) => match self.format {
                Format::U64Le | Format::U32Le => {
                    let last = first.saturating_add(count.saturating_sub(1));
                    let narrow = self.format == Format::U32Le;
                    if narrow && last > u64::from(u32::MAX) {
                        return Err(Bad::Unfit(UnfitRequest::Block(last)));
                    }
                    for n in 0..count {
                        let bytes = (first + n).to_le_bytes();
                        to.write_all(if narrow { &bytes[..4] } else { &bytes })?;
                    }
                    self.written.records += count;
                    return Ok(());
                }
                Format::ArcLis if count == 0 => return Ok(()),
                Format::ArcLis => text::arc_lis(first, count, self.written.records, line),
                _ => {
                    if self.written.records == 0 {
                        text::csv_names(&self.blocks, line);
                    }
                    text::csv(r, first, &self.blocks, tenants, line);
                }
            },
        }
        self.written.records += 1;
        if let Sink::Stream(to) = &mut self.sink {
            to.write_all(line)?;
        }
        Ok(())
    }

    /// Ends the file and gives it its name.
    ///
    /// # Errors
    /// The file cannot be written: there is none then.
    pub fn finish(self) -> Result<Written, TraceError> {
        let Self { name, sink, mut written, blocks, mut line, format, .. } = self;
        let failed = |source: io::Error| TraceError::Write { name: name.clone(), source };
        let finish = move || -> io::Result<u64> {
            match sink {
                Sink::Stream(mut to) => {
                    if format == Format::Csv && written.records == 0 {
                        line.clear();
                        text::csv_names(&blocks, &mut line);
                        to.write_all(&line)?;
                    }
                    to.finish()?.commit()
                }
                Sink::Indexed(indexed) => indexed.finish()?.commit(),
                Sink::Recording { mut writer, rows } => {
                    writer.write(&rows).map_err(recording::WriteError::into_io)?;
                    let disks = writer.header().disks.iter().map(|_| DiskEnd::default()).collect();
                    let end = rows.last().map_or(0, |r| r.time_ns);
                    let reason = "converted".to_owned();
                    let trailer = Trailer { ended_ns: end, reason, disks, ..Trailer::default() };
                    writer.finish_into(trailer).map_err(recording::WriteError::into_io)?.commit()
                }
            }
        };
        written.bytes = finish().map_err(failed)?;
        Ok(written)
    }
}

enum Bad {
    Io(io::Error),
    Unfit(UnfitRequest),
}

impl From<io::Error> for Bad {
    fn from(e: io::Error) -> Self {
        Bad::Io(e)
    }
}

/// What is subtracted from all times so that they fit the format; 0 if they fit.
fn base(format: Format, first_ns: u64) -> u64 {
    let max_ns = match format {
        // half of what there is, so that what follows fits, too
        Format::OracleGeneral | Format::Lcs => u64::from(u32::MAX) / 2 * index::NS_PER_S,
        Format::Recording => i64::MAX as u64 / 2,
        _ => u64::MAX,
    };
    if first_ns > max_ns { first_ns } else { 0 }
}

/// A request as a row; a key is the block of that number.
fn row(r: &TraceRequest, blocks: &Blocks) -> Result<Row, Bad> {
    let block_bytes = u64::from(BLOCK_BYTES);
    let (offset_bytes, length_bytes) = match blocks.unit {
        Unit::Bytes => (r.address, r.bytes),
        Unit::Keys if r.address.saturating_add(u64::from(r.keys)) <= 1 << TENANT_SHIFT => {
            (r.address * block_bytes, u64::from(r.keys) * block_bytes)
        }
        Unit::Keys => return Err(Bad::Unfit(UnfitRequest::Key(r.address))),
    };
    Ok(Row {
        time_ns: r.time_ns,
        disk: r.tenant,
        client: 0,
        op: if r.kind == AccessKind::Write { RecordedOp::Write } else { RecordedOp::Read },
        offset_bytes,
        length_bytes,
        hit_blocks: 0,
        ahead_blocks: 0,
        joined_blocks: 0,
        miss_blocks: 0,
        latency_ns: None,
        failure: None,
    })
}
