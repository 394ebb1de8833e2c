//! Reads a recording, a row group at a time.
//!
//! Owns what is believed of a file. Never believes its numbers: sizes are bounded before anything is read, and no row
//! of a row group is given before its sum agrees. Invariant: any bytes give rows or an error.

use super::columns::{self, HEADER_KEY, TRAILER_KEY};
use super::{DISKS_MAX, RecordedFailure, RecordedOp, RecordingHeader, Row, Trailer, VERSION, sum_of};
use crate::error::{RecordingError, TraceError};
use bytes::Bytes;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_typed_column_reader};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, FileReader, RowGroupReader};
use parquet::file::serialized_reader::SerializedFileReader;
use std::collections::HashMap;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The first and the last four bytes of a Parquet file.
pub(crate) const MAGIC: [u8; 4] = *b"PAR1";
/// Rows of a row group at most: 16 times what the daemon writes.
const ROWS_MAX: i64 = 1 << 20;
/// Bytes of one column of a row group at most.
const COLUMN_BYTES_MAX: i64 = 64 << 20;
/// Bytes of the end of the file at most.
const FOOTER_BYTES_MAX: u32 = 64 << 20;

/// A recording that is being read.
pub struct Recording {
    file: Box<dyn FileReader>,
    name: String,
    header: RecordingHeader,
    trailer: Trailer,
    disks: HashMap<Vec<u8>, u16>,
    /// Where each column stands in the file.
    places: Vec<usize>,
    next_group: usize,
}

impl Recording {
    /// Opens a file.
    ///
    /// # Errors
    /// It cannot be opened, is no recording, or is damaged or cut short.
    pub fn open(path: impl AsRef<std::path::Path>) -> Result<Self, TraceError> {
        let name = path.as_ref().display().to_string();
        let file = File::open(path).map_err(|source| TraceError::Open { name: name.clone(), source })?;
        Self::of_file(file, &name)
    }

    /// Reads a file; `name` appears in errors.
    ///
    /// # Errors
    /// As for [`Recording::open`].
    pub fn of_file(file: File, name: &str) -> Result<Self, TraceError> {
        let bytes = file.metadata().map(|m| m.len());
        let bytes = bytes.map_err(|source| TraceError::Read { name: name.into(), offset: 0, source })?;
        Self::begin(file, bytes, name)
    }

    /// Reads what is in memory.
    ///
    /// # Errors
    /// It is no recording, or is damaged or cut short.
    pub fn of_bytes(bytes: Bytes, name: &str) -> Result<Self, TraceError> {
        let length = bytes.len() as u64;
        Self::begin(bytes, length, name)
    }

    fn begin(source: impl ChunkReader + 'static, bytes: u64, name: &str) -> Result<Self, TraceError> {
        let bad = |what| TraceError::Recording { name: name.to_owned(), what };
        check_ends(&source, bytes).map_err(&bad)?;
        let file = guarded(|| SerializedFileReader::new(source)).map_err(&bad)?;
        let metadata = file.metadata().file_metadata();
        let text = |key: &str| {
            let all = metadata.key_value_metadata().map_or(&[][..], |m| m);
            all.iter().find(|kv| kv.key == key).and_then(|kv| kv.value.as_deref())
        };
        let said = |key| move |source| RecordingError::Said { key, source };
        let header = text(HEADER_KEY).ok_or_else(|| bad(RecordingError::NotOurs(HEADER_KEY)))?;
        let header: RecordingHeader = serde_json::from_str(header).map_err(said(HEADER_KEY)).map_err(&bad)?;
        let trailer = text(TRAILER_KEY).ok_or_else(|| bad(RecordingError::Unsaid(TRAILER_KEY)))?;
        let trailer: Trailer = serde_json::from_str(trailer).map_err(said(TRAILER_KEY)).map_err(&bad)?;
        if header.format != VERSION {
            return Err(bad(RecordingError::Version { found: header.format, known: VERSION }));
        }
        if header.disks.len() > DISKS_MAX || header.block_bytes == 0 || trailer.sums.len() != file.num_row_groups() {
            return Err(bad(RecordingError::Contradiction));
        }
        let schema = metadata.schema_descr();
        let mut places = Vec::new();
        for (name, physical, nullable) in columns::ALL {
            let place = schema.columns().iter().position(|c| c.name() == name);
            let fits = |at: &usize| {
                let c = schema.column(*at);
                c.physical_type() == physical && c.max_rep_level() == 0 && c.max_def_level() == i16::from(nullable)
            };
            places.push(place.filter(fits).ok_or_else(|| bad(RecordingError::Column(name)))?);
        }
        let disks = header.disks.iter().enumerate().map(|(n, d)| (d.name.clone().into_bytes(), n as u16)).collect();
        Ok(Self { file: Box::new(file), name: name.to_owned(), header, trailer, disks, places, next_group: 0 })
    }

    /// What was known at the beginning.
    pub fn header(&self) -> &RecordingHeader {
        &self.header
    }

    /// What was known at the end.
    pub fn trailer(&self) -> &Trailer {
        &self.trailer
    }

    /// How many row groups have been read, and how many there are.
    pub fn groups(&self) -> (usize, usize) {
        let all = self.file.num_row_groups();
        (self.next_group.min(all), all)
    }

    /// The rows of the next row group; `None` after the last.
    ///
    /// # Errors
    /// The file is damaged; what comes after cannot be read then.
    pub fn next_group(&mut self) -> Result<Option<Vec<Row>>, TraceError> {
        let n = self.next_group;
        if n >= self.file.num_row_groups() {
            return Ok(None);
        }
        self.next_group += 1;
        let read = guarded(|| self.read_group(n));
        let rows = read
            .and_then(|rows| if sum_of(&rows) == self.trailer.sums[n] { Ok(rows) } else { Err(RecordingError::Sum) });
        let rows = rows.map_err(|what| {
            self.next_group = usize::MAX;
            let what = RecordingError::Group { number: n, what: Box::new(what) };
            TraceError::Recording { name: self.name.clone(), what }
        })?;
        Ok(Some(rows))
    }

    fn read_group(&self, n: usize) -> Result<Vec<Row>, ParquetError> {
        let group = self.file.get_row_group(n)?;
        let count = group.metadata().num_rows();
        if !(0..=ROWS_MAX).contains(&count) {
            return Err(ParquetError::General(format!("{count} rows are too many")));
        }
        for c in group.metadata().columns() {
            let sizes = [c.compressed_size(), c.uncompressed_size()];
            if sizes.iter().any(|s| !(0..=COLUMN_BYTES_MAX).contains(s)) {
                return Err(ParquetError::General(format!("a column of {} bytes makes no sense", sizes[1])));
            }
        }
        let from = Columns { group: &*group, places: &self.places, rows: count as usize };
        let disk = |name: &ByteArray| self.disks.get(name.data()).copied();
        let time = from.required::<Int64Type>(0)?;
        let disks = from.texts(3, disk)?;
        let client = from.required::<Int32Type>(4)?;
        let op = from.texts(5, |name| RecordedOp::ALL.into_iter().find(|o| o.name().as_bytes() == name.data()))?;
        let (offset, length) = (from.required::<Int64Type>(6)?, from.required::<Int64Type>(7)?);
        let [hit, ahead, joined, miss] = [8, 9, 10, 11].map(|c| from.required::<Int32Type>(c));
        let (hit, ahead, joined, miss) = (hit?, ahead?, joined?, miss?);
        let mut latency = from.optional::<Int64Type>(12)?;
        let mut failure = from.optional::<ByteArrayType>(13)?;
        let known = |f: &ByteArray| RecordedFailure::ALL.into_iter().find(|k| k.name().as_bytes() == f.data());
        (0..count as usize)
            .map(|i| {
                Ok(Row {
                    time_ns: time[i] as u64,
                    disk: disks[i],
                    client: client[i] as u32,
                    op: op[i],
                    offset_bytes: offset[i] as u64,
                    length_bytes: length[i] as u64,
                    hit_blocks: hit[i] as u32,
                    ahead_blocks: ahead[i] as u32,
                    joined_blocks: joined[i] as u32,
                    miss_blocks: miss[i] as u32,
                    latency_ns: latency.next(i)?.map(|n| n as u64),
                    failure: failure.next(i)?.map(|f| known(&f).ok_or_else(|| unknown(&f))).transpose()?,
                })
            })
            .collect()
    }
}

fn unknown(name: &ByteArray) -> ParquetError {
    ParquetError::General(format!("\"{}\" is not known", name.data().escape_ascii()))
}

/// A library that meets bytes which it never thought of may panic; for us that is a damaged file.
fn guarded<T>(f: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, RecordingError> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(result) => Ok(result?),
        Err(_) => Err(RecordingError::Undecodable),
    }
}

/// Looks at both ends: most files that are no recordings, or not whole, show there.
fn check_ends(source: &impl ChunkReader, bytes: u64) -> Result<(), RecordingError> {
    if bytes < 12 || source.get_bytes(0, 4)? != MAGIC[..] {
        return Err(RecordingError::NoParquet);
    }
    let end = source.get_bytes(bytes - 8, 8)?;
    if end[4..] != MAGIC {
        return Err(RecordingError::EndsEarly);
    }
    let footer = u32::from_le_bytes([end[0], end[1], end[2], end[3]]);
    if u64::from(footer) > bytes - 12 || footer > FOOTER_BYTES_MAX {
        return Err(RecordingError::End(footer));
    }
    Ok(())
}

/// The columns of one row group.
struct Columns<'a> {
    group: &'a dyn RowGroupReader,
    places: &'a [usize],
    rows: usize,
}

/// A column with nulls, value by value.
struct Nullable<T> {
    levels: Vec<i16>,
    values: std::vec::IntoIter<T>,
}

impl<T> Nullable<T> {
    fn next(&mut self, row: usize) -> Result<Option<T>, ParquetError> {
        if self.levels[row] == 0 {
            return Ok(None);
        }
        let value = self.values.next();
        value.map(Some).ok_or_else(|| ParquetError::General("a column ends early".into()))
    }
}

impl Columns<'_> {
    fn column<T: DataType>(&self, column: usize) -> Result<ColumnReaderImpl<T>, ParquetError> {
        let reader: ColumnReader = self.group.get_column_reader(self.places[column])?;
        Ok(get_typed_column_reader(reader))
    }

    fn required<T: DataType>(&self, column: usize) -> Result<Vec<T::T>, ParquetError> {
        let mut values = Vec::new();
        let (rows, n, _) = self.column::<T>(column)?.read_records(self.rows, None, None, &mut values)?;
        self.whole(column, rows, n == self.rows && values.len() == n)?;
        Ok(values)
    }

    fn optional<T: DataType>(&self, column: usize) -> Result<Nullable<T::T>, ParquetError> {
        let (mut values, mut levels) = (Vec::new(), Vec::new());
        let (rows, _, _) = self.column::<T>(column)?.read_records(self.rows, Some(&mut levels), None, &mut values)?;
        self.whole(column, rows, levels.len() == self.rows)?;
        Ok(Nullable { levels, values: values.into_iter() })
    }

    /// Texts that stand for something; mostly the same one many times.
    fn texts<T: Copy>(&self, column: usize, of: impl Fn(&ByteArray) -> Option<T>) -> Result<Vec<T>, ParquetError> {
        let mut last: Option<(ByteArray, T)> = None;
        let mut found = Vec::with_capacity(self.rows.min(1 << 16));
        for text in self.required::<ByteArrayType>(column)? {
            let value = match &last {
                Some((known, value)) if known.data() == text.data() => *value,
                _ => of(&text).ok_or_else(|| unknown(&text))?,
            };
            last = Some((text, value));
            found.push(value);
        }
        Ok(found)
    }

    fn whole(&self, column: usize, rows: usize, rest: bool) -> Result<(), ParquetError> {
        if rows == self.rows && rest {
            return Ok(());
        }
        let name = columns::ALL[column].0;
        Err(ParquetError::General(format!("column {name} has {rows} rows of {}", self.rows)))
    }
}
