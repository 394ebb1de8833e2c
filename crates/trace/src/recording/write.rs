//! Writes a recording: row groups as rows come, what the file says about itself at the end.
//!
//! Owns the encoder. Never looks at a clock or drops a row. Invariant: what has been written and `bytes_bound` tell how
//! large the file becomes at most, so that the caller can see to the space before anything is written.

use super::columns::{self, HEADER_KEY, TRAILER_KEY};
use super::{
    DISKS_MAX, GAPS_MAX, GROUP_ROWS, RecordedDisk, RecordedFailure, RecordedOp, RecordingHeader, Row, Trailer, sum_of,
};
use crate::error::WriteError;
use bytes::Bytes;
use parquet::data_type::{ByteArray, ByteArrayType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use std::io::Write;
use std::sync::Arc;

/// Bytes that a row takes at most, whatever is in it.
const ROW_BYTES_MAX: u64 = 96;
/// Bytes of a row group besides its rows and names: headers of pages, and its part of the footer.
const GROUP_BYTES_MAX: u64 = 16 << 10;
/// Bytes of the end of the file besides what is counted by disks and row groups.
const FOOTER_BYTES_MAX: u64 = 8 << 10;
/// Bytes that a disk takes at the end of the file, names aside.
const DISK_BYTES_MAX: u64 = 768;
/// Bytes that a gap takes there.
const GAP_BYTES_MAX: u64 = 144;

/// Runs of one text that are written as such, and rows of one that are handed to the encoder at once.
const RUN_MIN: usize = 64;
const RUN_MAX: usize = 1024;

/// Writes one recording.
pub struct RecordingWriter<W: Write + Send> {
    file: SerializedFileWriter<W>,
    header: RecordingHeader,
    names: Vec<Names>,
    names_bytes: u64,
    sums: Vec<u64>,
    rows: u64,
    // Kept, so that a row group allocates nothing of its own.
    longs: Vec<i64>,
    ints: Vec<i32>,
    texts: Vec<ByteArray>,
    levels: Vec<i16>,
}

/// What stands in the rows of a disk.
struct Names {
    disk: ByteArray,
    vm: Option<ByteArray>,
    container: Option<ByteArray>,
}

impl<W: Write + Send> RecordingWriter<W> {
    /// Begins a file.
    ///
    /// # Errors
    /// There are too many disks, or `to` fails.
    pub fn new(to: W, header: RecordingHeader) -> Result<Self, WriteError> {
        let properties = Arc::new(columns::properties(&header.version)?);
        let file = SerializedFileWriter::new(to, columns::schema()?, properties)?;
        let disks = header.disks.clone();
        let mut writer = Self {
            file,
            header: RecordingHeader { disks: Vec::new(), ..header },
            names: Vec::new(),
            names_bytes: 0,
            sums: Vec::new(),
            rows: 0,
            longs: Vec::new(),
            ints: Vec::new(),
            texts: Vec::new(),
            levels: Vec::new(),
        };
        disks.into_iter().try_for_each(|d| writer.add_disk(d).map(drop))?;
        Ok(writer)
    }

    /// One more disk; returns its number for [`Row::disk`].
    ///
    /// # Errors
    /// There are [`DISKS_MAX`] already.
    pub fn add_disk(&mut self, disk: RecordedDisk) -> Result<u16, WriteError> {
        if self.names.len() >= DISKS_MAX {
            return Err(WriteError::TooManyDisks(DISKS_MAX));
        }
        let text = |s: &Option<String>| s.as_deref().map(ByteArray::from);
        let lengths = [Some(&disk.name), disk.vm.as_ref(), disk.container.as_ref()];
        self.names_bytes += lengths.into_iter().flatten().map(|n| n.len() as u64 + 8).sum::<u64>();
        self.names.push(Names {
            disk: ByteArray::from(disk.name.as_str()),
            vm: text(&disk.vm),
            container: text(&disk.container),
        });
        self.header.disks.push(disk);
        Ok((self.names.len() - 1) as u16)
    }

    /// What the file will say about its beginning.
    pub fn header(&self) -> &RecordingHeader {
        &self.header
    }

    /// Where it goes.
    pub fn file(&self) -> &W {
        self.file.inner()
    }

    /// Where it goes, for everything but writing.
    pub fn file_mut(&mut self) -> &mut W {
        self.file.inner_mut()
    }

    /// Rows written.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Bytes written.
    pub fn bytes(&self) -> u64 {
        self.file.bytes_written() as u64
    }

    /// Bytes of the whole file at most, if it ended after `rows` more, with up to `gaps` gaps.
    pub fn bytes_bound(&self, rows: usize) -> u64 {
        let groups = rows.div_ceil(GROUP_ROWS) as u64;
        let footer = FOOTER_BYTES_MAX
            + (self.sums.len() as u64 + groups) * GROUP_BYTES_MAX / 8
            + self.names.len() as u64 * DISK_BYTES_MAX
            + GAPS_MAX as u64 * GAP_BYTES_MAX
            + 4 * self.names_bytes;
        self.bytes() + rows as u64 * ROW_BYTES_MAX + groups * (GROUP_BYTES_MAX + 2 * self.names_bytes) + footer
    }

    /// Writes rows as one row group; [`GROUP_ROWS`] at most are good.
    ///
    /// # Errors
    /// The file cannot be written: it is of no use then.
    ///
    /// # Panics
    /// If a row names a disk that there is not.
    pub fn write(&mut self, rows: &[Row]) -> Result<(), WriteError> {
        if rows.is_empty() {
            return Ok(());
        }
        self.sums.push(sum_of(rows));
        self.rows += rows.len() as u64;
        let Self { file, names, longs, ints, texts, levels, .. } = self;
        let mut group = file.next_row_group()?;
        let mut to = Columns { group: &mut group, rows, longs, ints, texts, levels };
        // Static: nothing is counted when they are copied.
        let text = |name: &'static str| ByteArray::from(Bytes::from_static(name.as_bytes()));
        let (ops, failures) = (RecordedOp::ALL.map(|o| text(o.name())), RecordedFailure::ALL.map(|f| text(f.name())));
        to.longs(|r| r.time_ns as i64)?;
        to.texts(true, |r| r.disk, |r| names[usize::from(r.disk)].vm.as_ref())?;
        to.texts(true, |r| r.disk, |r| names[usize::from(r.disk)].container.as_ref())?;
        to.texts(false, |r| r.disk, |r| Some(&names[usize::from(r.disk)].disk))?;
        to.ints(|r| r.client as i32)?;
        to.texts(false, |r| r.op, |r| Some(&ops[r.op as usize]))?;
        to.longs(|r| r.offset_bytes as i64)?;
        to.longs(|r| r.length_bytes as i64)?;
        to.ints(|r| r.hit_blocks as i32)?;
        to.ints(|r| r.ahead_blocks as i32)?;
        to.ints(|r| r.joined_blocks as i32)?;
        to.ints(|r| r.miss_blocks as i32)?;
        to.nullable_longs(|r| r.latency_ns.map(|n| n as i64))?;
        to.texts(true, |r| r.failure, |r| r.failure.map(|f| &failures[f as usize]))?;
        group.close()?;
        Ok(())
    }

    /// Ends the file; returns how many bytes it has. The sums and the number of rows of `trailer` are filled in here.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(mut self, trailer: Trailer) -> Result<u64, WriteError> {
        self.say(trailer)?;
        self.file.finish()?;
        self.file.flush().map_err(WriteError::Flush)?;
        Ok(self.bytes())
    }

    /// As [`RecordingWriter::finish`], but gives back where it went.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn finish_into(mut self, trailer: Trailer) -> Result<W, WriteError> {
        self.say(trailer)?;
        Ok(self.file.into_inner()?)
    }

    /// What the file says about itself.
    fn say(&mut self, trailer: Trailer) -> Result<(), WriteError> {
        let trailer = Trailer { rows: self.rows, sums: std::mem::take(&mut self.sums), ..trailer };
        for (key, value) in
            [(HEADER_KEY, serde_json::to_string(&self.header)), (TRAILER_KEY, serde_json::to_string(&trailer))]
        {
            self.file.append_key_value_metadata(KeyValue::new(key.to_string(), value?));
        }
        Ok(())
    }
}

/// One row group under way.
struct Columns<'a, 'w, W: Write + Send> {
    group: &'a mut SerializedRowGroupWriter<'w, W>,
    rows: &'a [Row],
    longs: &'a mut Vec<i64>,
    ints: &'a mut Vec<i32>,
    texts: &'a mut Vec<ByteArray>,
    levels: &'a mut Vec<i16>,
}

/// The next column, of one type.
macro_rules! column {
    ($self:ident, $type:ty, $values:expr, $levels:expr) => {{
        let column = $self.group.next_column()?;
        let mut column = column.ok_or_else(|| ParquetError::General("the schema has too few columns".into()))?;
        column.typed::<$type>().write_batch($values, $levels, None)?;
        column.close()
    }};
}

impl<W: Write + Send> Columns<'_, '_, W> {
    fn longs(&mut self, of: impl Fn(&Row) -> i64) -> Result<(), ParquetError> {
        self.longs.clear();
        self.longs.extend(self.rows.iter().map(of));
        column!(self, Int64Type, self.longs, None)
    }

    fn ints(&mut self, of: impl Fn(&Row) -> i32) -> Result<(), ParquetError> {
        self.ints.clear();
        self.ints.extend(self.rows.iter().map(of));
        column!(self, Int32Type, self.ints, None)
    }

    fn nullable_longs(&mut self, of: impl Fn(&Row) -> Option<i64>) -> Result<(), ParquetError> {
        self.longs.clear();
        self.levels.clear();
        for value in self.rows.iter().map(of) {
            self.levels.push(i16::from(value.is_some()));
            self.longs.extend(value);
        }
        column!(self, Int64Type, self.longs, Some(&self.levels[..]))
    }

    /// A column of few different texts; rows of the same `key` have the same one. Long runs of one are not copied row
    /// by row, which is most of what texts cost.
    fn texts<'t, K: PartialEq>(
        &mut self,
        nullable: bool,
        key: impl Fn(&Row) -> K,
        of: impl Fn(&Row) -> Option<&'t ByteArray>,
    ) -> Result<(), ParquetError> {
        let column = self.group.next_column()?;
        let mut column = column.ok_or_else(|| ParquetError::General("the schema has too few columns".into()))?;
        let to = column.typed::<ByteArrayType>();
        let (texts, levels) = (&mut *self.texts, &mut *self.levels);
        let mut write = |texts: &mut Vec<ByteArray>, levels: &mut Vec<i16>, rows: usize| {
            to.write_batch(&texts[..rows.min(texts.len())], nullable.then_some(&levels[..rows.min(levels.len())]), None)
        };
        texts.clear();
        levels.clear();
        for run in self.rows.chunk_by(|a, b| key(a) == key(b)) {
            let text = of(&run[0]);
            let level = i16::from(text.is_some());
            if run.len() < RUN_MIN {
                texts.extend(text.into_iter().flat_map(|t| std::iter::repeat_n(t, run.len())).cloned());
                levels.extend(std::iter::repeat_n(level, run.len()));
                continue;
            }
            if !levels.is_empty() {
                write(texts, levels, usize::MAX)?;
                texts.clear();
                levels.clear();
            }
            let most = run.len().min(RUN_MAX);
            texts.extend(text.into_iter().flat_map(|t| std::iter::repeat_n(t, most)).cloned());
            levels.resize(most, level);
            for piece in run.chunks(RUN_MAX) {
                write(texts, levels, piece.len())?;
            }
            texts.clear();
            levels.clear();
        }
        if !levels.is_empty() {
            write(texts, levels, usize::MAX)?;
        }
        column.close()
    }
}
