//! The formats of block traces: the list, from which names, recognition, help and the table of the documents follow.
//!
//! Owns the list. To add a format, write its file (a decoder, and a [`Spec`] that says all there is to know of it), add
//! the file and a line to the list here, and a sample to `tests/samples`. Never knows a record.

mod arc_lis;
mod blktrace;
mod block_csv;
mod csv;
mod csv_columns;
mod drive;
mod fields;
mod fio;
mod lackey;
pub(crate) mod lcs;
mod memory;
mod oracle_general;
mod qemu;
mod raw;
pub(crate) mod recording;
mod sink;
mod sniff;
mod spec;
mod vscsi;

use crate::error::TraceError;
pub(crate) use lackey::packed_record;
pub(crate) use sink::{Context, Decode, Sink};
pub(crate) use spec::{Beginning, Spec, Told};
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// Makes the type, the list of all, and the way from one to its [`Spec`].
macro_rules! formats {
    ($($(#[$doc:meta])+ $format:ident => $spec:path,)+) => {
        /// The formats of block traces.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Format {
            $($(#[$doc])+ $format,)+
        }

        impl Format {
            /// All formats.
            pub const ALL: [Format; [$(Format::$format),+].len()] = [$(Format::$format),+];

            /// What there is to know of it.
            pub(crate) fn spec(self) -> &'static Spec {
                match self {
                    $(Format::$format => &$spec,)+
                }
            }
        }
    };
}

formats! {
    /// VMware vscsi binary records, version 1 or 2 (CloudPhysics, as libCacheSim distributes them); one access to the
    /// logical block number of each record, unless a size of blocks is asked for.
    Vscsi => vscsi::SPEC,
    /// Lines of `start count ignored sequence`: the traces of the ARC paper; one access per block named.
    ArcLis => arc_lis::SPEC,
    /// Little-endian u32 block numbers and nothing else.
    U32Le => raw::U32LE,
    /// Little-endian u64 block numbers and nothing else.
    U64Le => raw::U64LE,
    /// libCacheSim's oracleGeneral: u32 seconds, u64 key, u32 size, i64 next access; little-endian.
    OracleGeneral => oracle_general::SPEC,
    /// libCacheSim's lcs, versions 1 to 8.
    Lcs => lcs::SPEC,
    /// MSR Cambridge's CSV.
    Msr => block_csv::MSR,
    /// Alibaba's CSV of block traces.
    Alibaba => block_csv::ALIBABA,
    /// Tencent's CSV of block traces.
    Tencent => block_csv::TENCENT,
    /// The Storage Performance Council's CSV (UMass: Financial, WebSearch).
    Spc => block_csv::SPC,
    /// fio's iolog, version 2 or 3.
    Fio => fio::SPEC,
    /// The text that blkparse prints.
    Blkparse => blktrace::BLKPARSE,
    /// blktrace's binary records.
    Blktrace => blktrace::BLKTRACE,
    /// QEMU's log of `blk_co_preadv` and its like.
    Qemu => qemu::SPEC,
    /// Valgrind's `--tool=lackey --trace-mem=yes`.
    Lackey => lackey::SPEC,
    /// Packed memory accesses of a program: u64 of address, size and kind.
    Memory => memory::SPEC,
    /// CSV with names in its first line, or with a map of its columns.
    Csv => csv::SPEC,
    /// What `undercroft record` writes: Parquet, a row for each request; one access per block of a read, a write or
    /// zeroes. The number of the disk stands above bit 51 of the block.
    Recording => recording::SPEC,
}

/// A name that no format has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no format \"{name}\"; formats are {known}")]
pub struct NoSuchFormat {
    /// The name.
    pub name: String,
    /// The formats there are.
    pub known: String,
}

impl Format {
    /// The name used on the command line.
    pub fn name(self) -> &'static str {
        self.spec().name
    }

    /// What it is, for help.
    pub fn about(self) -> &'static str {
        self.spec().about
    }

    /// For documents: what a record holds, what an access is, and whose it is.
    pub fn described(self) -> [&'static str; 3] {
        let Spec { record, access, tenant, .. } = self.spec();
        [record, access, tenant]
    }

    /// Whether a trace of this format can say whose each request is.
    pub fn names_tenants(self) -> bool {
        !self.spec().tenant.is_empty()
    }

    /// The usual end of its files' names.
    pub fn suffix(self) -> &'static str {
        self.spec().endings[0]
    }

    /// The names of all, as messages list them.
    pub(crate) fn known() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    /// The format that a file's name tells, compression suffixes aside.
    ///
    /// # Errors
    /// [`TraceError::UnknownFormat`] with the formats there are.
    pub fn of_path(path: &Path) -> Result<Self, TraceError> {
        let name = path.file_name().map(|n| n.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
        let plain = [".zst", ".xz", ".gz"].iter().find_map(|s| name.strip_suffix(s)).unwrap_or(&name);
        let suffix = plain.rsplit('.').next().unwrap_or_default();
        let named =
            |s: &Spec| s.endings.contains(&suffix) || suffix == "bin" && s.bin.is_some_and(|b| plain.contains(b));
        let found = Self::ALL.into_iter().find(|f| named(f.spec()));
        found.ok_or_else(|| TraceError::UnknownFormat { name: path.display().to_string(), known: Self::known() })
    }

    /// The format that the first bytes of a trace (not compressed) tell, if they do: raw numbers have nothing to be
    /// known by, and are never guessed.
    pub fn of_content(first: &[u8]) -> Option<Self> {
        sniff::sniff(first)
    }

    /// Whether the first bytes leave no doubt, whatever a file is called.
    pub(crate) fn of_magic(first: &[u8]) -> Option<Self> {
        sniff::magic(first)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = NoSuchFormat;

    /// # Errors
    /// The formats there are.
    fn from_str(text: &str) -> Result<Self, NoSuchFormat> {
        let wanted = text.to_ascii_lowercase();
        let named = |s: &Spec| s.name == wanted || s.endings.contains(&wanted.as_str());
        let found = Self::ALL.into_iter().find(|f| named(f.spec()));
        found.ok_or_else(|| NoSuchFormat { name: text.to_owned(), known: Self::known() })
    }
}
