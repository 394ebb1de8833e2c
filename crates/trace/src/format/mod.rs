//! The formats: their names, how a file's name tells them, and what a decoder is.
//!
//! Owns the list. Each format's file owns its records; to add a format, add its file, a variant and a line in each
//! `match` here.

mod arc_lis;
mod oracle_general;
pub(crate) mod recording;
mod u32le;
mod vscsi;

use crate::Access;
use crate::error::Error;
use crate::input::Input;
use crate::recording::MAGIC;
use std::fmt;
use std::path::Path;

/// A run of accesses to consecutive blocks, the first of them being `first`: what one record names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub first: Access,
    /// At least 1.
    pub blocks: u64,
}

/// Reads one format, record by record.
pub(crate) trait Decode {
    /// The next record; `None` at the end of the trace.
    fn next(&mut self, input: &mut Input<'_>) -> Result<Option<Run>, Error>;
}

/// The formats of block traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// VMware vscsi binary records, version 1 or 2 (CloudPhysics, as libCacheSim distributes them); one access to the
    /// logical block number of each record.
    Vscsi,
    /// Lines of `start count ignored sequence`: the traces of the ARC paper; one access per block named.
    ArcLis,
    /// Little-endian u32 block numbers and nothing else.
    U32Le,
    /// libCacheSim's oracleGeneral: u32 seconds, u64 key, u32 size, i64 next access; little-endian.
    OracleGeneral,
    /// What `undercroft record` writes: Parquet, a row for each request; one access per block of a read, a write or
    /// zeroes. Of several disks, the number of the disk stands above bit 51 of the block.
    Recording,
}

impl Format {
    /// All formats.
    pub const ALL: [Format; 5] =
        [Format::Vscsi, Format::ArcLis, Format::U32Le, Format::OracleGeneral, Format::Recording];

    /// The name used on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Format::Vscsi => "vscsi",
            Format::ArcLis => "arc-lis",
            Format::U32Le => "u32le",
            Format::OracleGeneral => "oracle-general",
            Format::Recording => "undercroft-parquet",
        }
    }

    /// The format that a file's name tells, compression suffixes aside.
    ///
    /// # Errors
    /// [`Error::UnknownFormat`] with the formats there are.
    pub fn of_path(path: &Path) -> Result<Self, Error> {
        let name = path.file_name().map(|n| n.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
        let plain = [".zst", ".xz"].iter().find_map(|s| name.strip_suffix(s)).unwrap_or(&name);
        let suffix = plain.rsplit('.').next().unwrap_or_default();
        match suffix {
            "vscsi" => Ok(Format::Vscsi),
            "lis" => Ok(Format::ArcLis),
            "u32le" => Ok(Format::U32Le),
            "bin" if plain.contains("oraclegeneral") => Ok(Format::OracleGeneral),
            "oraclegeneral" => Ok(Format::OracleGeneral),
            "parquet" => Ok(Format::Recording),
            _ => Err(Error::UnknownFormat {
                name: path.display().to_string(),
                known: Self::ALL.map(Self::name).join(", "),
            }),
        }
    }

    /// The format that a file's first bytes tell, if they do; most formats have nothing to be known by.
    pub fn of_content(first: &[u8]) -> Option<Self> {
        first.starts_with(&MAGIC).then_some(Format::Recording)
    }

    /// What reads it in a stream; `None` for a format that is read from its end.
    pub(crate) fn decoder(self) -> Option<Box<dyn Decode>> {
        Some(match self {
            Format::Vscsi => Box::new(vscsi::Vscsi::default()),
            Format::ArcLis => Box::new(arc_lis::ArcLis::default()),
            Format::U32Le => Box::new(u32le::U32Le),
            Format::OracleGeneral => Box::new(oracle_general::OracleGeneral),
            Format::Recording => return None,
        })
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
