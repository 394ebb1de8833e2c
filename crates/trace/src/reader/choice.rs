//! How a trace is interpreted: its format, and how its requests become accesses.
//!
//! Owns the order in which content, name and options decide. Never reads: it is given the first bytes. Invariant: what
//! does not fit is refused with what to write instead, and nothing is split that has no places on a disk.

use crate::blocks::{BLOCK_BYTES, Blocks, SECTOR_BYTES, Unit};
use crate::error::TraceError;
use crate::format::{Beginning, Format};
use crate::options::{Csv, ReaderOptions};
use crate::options_error::{ColumnsError, OptionsError};
use std::path::Path;

/// The format that content and name tell.
///
/// # Errors
/// [`TraceError::UnknownFormat`].
pub(super) fn format_of(head: &[u8], path: Option<&Path>, name: &str, csv: &Csv) -> Result<Format, TraceError> {
    if let Some(format) = Format::of_magic(head) {
        return Ok(format);
    }
    let named = path.and_then(|p| Format::of_path(p).ok());
    match named {
        // each of the published traces is called .csv
        Some(Format::Csv) if *csv == Csv::default() => Ok(Format::of_content(head).unwrap_or(Format::Csv)),
        Some(format) => Ok(format),
        None => Format::of_content(head)
            .ok_or_else(|| TraceError::UnknownFormat { name: name.to_owned(), known: Format::known() }),
    }
}

/// How requests of a trace of `format` that begins so become accesses.
///
/// # Errors
/// The options do not fit it.
pub(super) fn blocks_of(format: Format, begun: &Beginning, options: &ReaderOptions) -> Result<Blocks, OptionsError> {
    if options.key_bytes.is_some() && begun.text {
        return Err(ColumnsError::TextHasNoSize.into());
    }
    if options.block_bytes == Some(0) || options.key_bytes == Some(0) {
        return Err(OptionsError::NoBytes);
    }
    let asked = options.block_bytes;
    match (begun.unit, options.key_bytes) {
        (Unit::Keys, None) if asked.is_some() && !options.keys_are_blocks => {
            Err(OptionsError::KeysAreNotSplit(format.name()))
        }
        (Unit::Keys, None) if options.sized && asked.is_none() && begun.sizes => Err(OptionsError::KeysOfManySizes),
        (Unit::Keys, None) => Ok(Blocks::KEYS),
        (Unit::Keys, Some(_)) => {
            Ok(Blocks { own_disks: begun.own_disks, ..Blocks::of_bytes(asked.unwrap_or(BLOCK_BYTES)) })
        }
        (Unit::Bytes, Some(_)) => Err(OptionsError::NoKeys(format.name())),
        (Unit::Bytes, None) => {
            let whole = begun.whole && asked.is_none() && !options.sized;
            let default = if whole { SECTOR_BYTES } else { BLOCK_BYTES };
            let own_disks = begun.own_disks;
            Ok(Blocks { whole, own_disks, ..Blocks::of_bytes(asked.unwrap_or(default)) })
        }
    }
}

/// How columns and sizes were interpreted, if neither the format nor the options say it.
pub(super) fn note_of(begun: &mut Beginning, options: &ReaderOptions, blocks: Blocks) -> Option<String> {
    let split = match blocks.unit {
        _ if !options.sized || options.block_bytes.is_some() => None,
        Unit::Bytes if begun.whole => {
            Some("sizes are in bytes, so requests are split into blocks of 4 KiB (--block-size)".to_owned())
        }
        Unit::Keys => Some("sizes are in bytes, and each key is taken for 4 KiB (--block-size)".to_owned()),
        Unit::Bytes => None,
    };
    let all: Vec<String> = begun.note.take().into_iter().chain(split).collect();
    if all.is_empty() { None } else { Some(all.join("; ")) }
}
