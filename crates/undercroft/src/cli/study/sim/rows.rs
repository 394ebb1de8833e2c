//! Results as columns: one table, written as CSV or Parquet.
//!
//! Owns both encodings. Never knows what a column means. Invariant: every column has as many values as the others; a
//! file that could not be written whole is not left behind.

use crate::cli::Failure;
use crate::cli::output::Out;
use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// The values of a column.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// Texts.
    Text(Vec<String>),
    /// Counts.
    Count(Vec<u64>),
    /// Fractions, times and the like.
    Real(Vec<f64>),
}

impl Values {
    fn len(&self) -> usize {
        match self {
            Values::Text(v) => v.len(),
            Values::Count(v) => v.len(),
            Values::Real(v) => v.len(),
        }
    }

    fn text(&self, row: usize) -> String {
        match self {
            Values::Text(v) => v[row].clone(),
            Values::Count(v) => v[row].to_string(),
            Values::Real(v) => v[row].to_string(),
        }
    }
}

/// Named columns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Columns(Vec<(&'static str, Values)>);

impl Columns {
    /// With one more column.
    ///
    /// # Panics
    /// If it has not as many values as the others.
    pub fn with(mut self, name: &'static str, values: Values) -> Self {
        assert!(self.0.first().is_none_or(|c| c.1.len() == values.len()), "columns of one table are equally long");
        self.0.push((name, values));
        self
    }

    fn rows(&self) -> usize {
        self.0.first().map_or(0, |c| c.1.len())
    }

    /// Writes it as CSV, with a line of names first.
    ///
    /// # Errors
    /// Those of writing.
    pub fn csv(&self, out: &mut Out) -> Result<(), Failure> {
        let mut text = csv::Writer::from_writer(vec![]);
        let failed = |e: csv::Error| Failure::Said(format!("the results cannot be written as CSV: {e}"));
        text.write_record(self.0.iter().map(|c| c.0)).map_err(failed)?;
        for row in 0..self.rows() {
            text.write_record(self.0.iter().map(|c| c.1.text(row))).map_err(failed)?;
        }
        let bytes = text.into_inner().map_err(|e| Failure::Said(e.to_string()))?;
        Ok(out.write(&String::from_utf8_lossy(&bytes))?)
    }

    /// Writes it as a Parquet file, compressed with zstd.
    ///
    /// # Errors
    /// The file cannot be created or written; then there is none.
    pub fn parquet(&self, path: &Path) -> Result<(), Failure> {
        let failed = |e: &dyn std::fmt::Display| {
            Failure::Said(format!("{} cannot be written: {e}; name another file with --parquet", path.display()))
        };
        let file = File::create(path).map_err(|e| failed(&e))?;
        self.write_parquet(file).map_err(|e| {
            let _ = std::fs::remove_file(path);
            failed(&e)
        })
    }

    fn write_parquet(&self, file: File) -> Result<(), ParquetError> {
        let mut fields = vec![];
        for (name, values) in &self.0 {
            let (physical, logical) = match values {
                Values::Text(_) => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
                Values::Count(_) => (Physical::INT64, None),
                Values::Real(_) => (Physical::DOUBLE, None),
            };
            let field = Type::primitive_type_builder(name, physical).with_repetition(Repetition::REQUIRED);
            fields.push(Arc::new(field.with_logical_type(logical).build()?));
        }
        let schema = Arc::new(Type::group_type_builder("undercroft").with_fields(fields).build()?);
        let properties = WriterProperties::builder()
            .set_created_by(format!("undercroft version {}", env!("CARGO_PKG_VERSION")))
            .set_compression(Compression::ZSTD(ZstdLevel::try_new(1)?));
        let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties.build()))?;
        let mut group = writer.next_row_group()?;
        for (_, values) in &self.0 {
            let Some(mut column) = group.next_column()? else { break };
            match values {
                Values::Text(v) => {
                    let texts: Vec<ByteArray> = v.iter().map(|t| ByteArray::from(t.as_str())).collect();
                    column.typed::<ByteArrayType>().write_batch(&texts, None, None)?;
                }
                Values::Count(v) => {
                    // Counts of accesses do not come near 2^63.
                    let counts: Vec<i64> = v.iter().map(|&n| i64::try_from(n).unwrap_or(i64::MAX)).collect();
                    column.typed::<Int64Type>().write_batch(&counts, None, None)?;
                }
                Values::Real(v) => {
                    column.typed::<DoubleType>().write_batch(v, None, None)?;
                }
            }
            column.close()?;
        }
        group.close()?;
        writer.close().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::RowAccessor;

    fn columns() -> Columns {
        Columns::default()
            .with("trace", Values::Text(vec!["a,b".into(), "ü\"".into()]))
            .with("misses", Values::Count(vec![7, u64::MAX >> 1]))
            .with("miss_ratio", Values::Real(vec![0.25, 1.0]))
    }

    #[test]
    fn parquet_is_read_back() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("r.parquet");
        columns().parquet(&path).unwrap();
        let reader = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
        let rows: Vec<_> = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect();
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[1].get_string(0).unwrap(), "ü\"");
        assert_eq!((rows[0].get_long(1).unwrap(), rows[1].get_long(1).unwrap()), (7, i64::MAX));
        assert_eq!(rows[0].get_double(2).unwrap(), 0.25);
    }

    #[test]
    fn a_place_that_cannot_be_written_is_named() {
        let said = columns().parquet(Path::new("/nowhere/r.parquet")).unwrap_err().to_string();
        assert!(said.contains("/nowhere/r.parquet") && said.contains("--parquet"), "{said}");
    }

    #[test]
    #[should_panic(expected = "equally long")]
    fn columns_of_unequal_length_are_a_mistake() {
        let _ = columns().with("x", Values::Count(vec![1]));
    }
}
