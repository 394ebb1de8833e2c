//! The columns of a recording: names, types, encodings.
//!
//! Owns the schema. Never holds a value.

use parquet::basic::{Compression, Encoding, LogicalType, Repetition, Type as Physical, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::{ColumnPath, Type, TypePtr};
use std::sync::Arc;

pub(super) const TIME: &str = "time_ns";
pub(super) const VM: &str = "vm";
pub(super) const CONTAINER: &str = "container";
pub(super) const DISK: &str = "disk";
pub(super) const CLIENT: &str = "client";
pub(super) const OP: &str = "op";
pub(super) const OFFSET: &str = "offset_bytes";
pub(super) const LENGTH: &str = "length_bytes";
pub(super) const HIT: &str = "hit_blocks";
pub(super) const AHEAD: &str = "ahead_blocks";
pub(super) const JOINED: &str = "joined_blocks";
pub(super) const MISS: &str = "miss_blocks";
pub(super) const LATENCY: &str = "latency_ns";
pub(super) const FAILURE: &str = "failure";

/// The keys of the file's metadata.
pub(super) const HEADER_KEY: &str = "undercroft.recording";
pub(super) const TRAILER_KEY: &str = "undercroft.end";

const TEXTS: [(&str, bool); 5] = [(VM, true), (CONTAINER, true), (DISK, false), (OP, false), (FAILURE, true)];

/// The columns in their order: name, physical type, whether it may be null.
pub(super) const ALL: [(&str, Physical, bool); 14] = [
    (TIME, Physical::INT64, false),
    (VM, Physical::BYTE_ARRAY, true),
    (CONTAINER, Physical::BYTE_ARRAY, true),
    (DISK, Physical::BYTE_ARRAY, false),
    (CLIENT, Physical::INT32, false),
    (OP, Physical::BYTE_ARRAY, false),
    (OFFSET, Physical::INT64, false),
    (LENGTH, Physical::INT64, false),
    (HIT, Physical::INT32, false),
    (AHEAD, Physical::INT32, false),
    (JOINED, Physical::INT32, false),
    (MISS, Physical::INT32, false),
    (LATENCY, Physical::INT64, true),
    (FAILURE, Physical::BYTE_ARRAY, true),
];

/// The schema.
pub(super) fn schema() -> Result<TypePtr, ParquetError> {
    let mut fields = Vec::with_capacity(ALL.len());
    for (name, physical, nullable) in ALL {
        let repetition = if nullable { Repetition::OPTIONAL } else { Repetition::REQUIRED };
        let mut field = Type::primitive_type_builder(name, physical).with_repetition(repetition);
        if physical == Physical::BYTE_ARRAY {
            field = field.with_logical_type(Some(LogicalType::String));
        }
        fields.push(Arc::new(field.build()?));
    }
    Ok(Arc::new(Type::group_type_builder("undercroft").with_fields(fields).build()?))
}

/// How the columns are written.
pub(super) fn properties(version: &str) -> Result<WriterProperties, ParquetError> {
    let mut properties = WriterProperties::builder()
        .set_created_by(format!("undercroft version {version}"))
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(1)?))
        .set_dictionary_enabled(false)
        .set_encoding(Encoding::DELTA_BINARY_PACKED)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_offset_index_disabled(true);
    for (name, _) in TEXTS {
        let column = ColumnPath::from(name);
        properties =
            properties.set_column_dictionary_enabled(column.clone(), true).set_column_encoding(column, Encoding::PLAIN);
    }
    Ok(properties.build())
}
