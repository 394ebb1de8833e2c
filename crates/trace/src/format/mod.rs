//! The formats: their names, how a file's name tells them, and what a decoder is.
//!
//! Owns the list. Each format's file owns its records; to add a format, add its file, a variant and a line in each
//! `match` here.

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
mod oracle_general;
mod qemu;
mod raw;
pub(crate) mod recording;
mod sniff;
mod vscsi;

use crate::access::Request;
use crate::blocks::{BLOCK_BYTES, Blocks, SECTOR_BYTES, Unit};
use crate::error::Error;
use crate::input::Input;
use crate::options::Options;
use crate::tally::Tally;
use crate::tenants::Tenants;
use csv_columns::{Field, Layout};
use drive::{Lines, Records, Said};
use std::fmt;
use std::path::Path;
use std::str::FromStr;

const NS_PER_US: u64 = 1_000;
const NS_PER_MS: u64 = 1_000_000;
const NS_PER_S: u64 = 1_000_000_000;

/// What a decoder works with.
pub(crate) struct Context<'c, 'i> {
    pub input: &'c mut Input<'i>,
    pub sink: Sink<'c>,
    pub tally: &'c mut Tally,
    pub lenient: bool,
    /// Requests to have in the sink before it returns, about.
    pub max: usize,
}

/// Where decoders put requests.
pub(crate) struct Sink<'c> {
    pub out: &'c mut Vec<Request>,
    pub tenants: &'c mut Tenants,
    pub blocks: Blocks,
    /// Bytes of a key, if keys are pieces of a disk.
    pub key_bytes: Option<u32>,
}

impl Sink<'_> {
    #[inline]
    fn tenant(&mut self, name: &[u8], max: usize) -> Result<u16, String> {
        self.tenants.number(name, max)
    }

    /// Adds a request for bytes.
    #[inline]
    fn bytes(&mut self, r: Request) -> Result<(), String> {
        self.blocks.fits(&r)?;
        self.out.push(r);
        Ok(())
    }

    /// Adds a request for keys.
    #[inline]
    fn key(&mut self, r: Request) -> Result<(), String> {
        let Some(bytes) = self.key_bytes else {
            if r.keys != 1 {
                self.blocks.fits(&r)?;
            }
            self.out.push(r);
            return Ok(());
        };
        let bytes = u64::from(bytes);
        let address =
            r.address.checked_mul(bytes).ok_or_else(|| format!("key {} is past any disk's end", r.address))?;
        self.bytes(Request { address, bytes: r.bytes.max(bytes * u64::from(r.keys)), keys: 1, ..r })
    }
}

/// Reads one format.
pub(crate) trait Decode: Send {
    /// Adds requests, at least one if there is any left; none at the end of the trace.
    fn fill(&mut self, cx: &mut Context<'_, '_>) -> Result<(), Error>;
}

#[inline]
fn u16_at(r: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([r[at], r[at + 1]])
}

#[inline]
fn u32_at(r: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(r[at..at + 4].try_into().expect("4 bytes"))
}

#[inline]
fn u64_at(r: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(r[at..at + 8].try_into().expect("8 bytes"))
}

/// The formats of block traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// VMware vscsi binary records, version 1 or 2 (CloudPhysics, as libCacheSim distributes them); one access to the
    /// logical block number of each record, unless a size of blocks is asked for.
    Vscsi,
    /// Lines of `start count ignored sequence`: the traces of the ARC paper; one access per block named.
    ArcLis,
    /// Little-endian u32 block numbers and nothing else.
    U32Le,
    /// Little-endian u64 block numbers and nothing else.
    U64Le,
    /// libCacheSim's oracleGeneral: u32 seconds, u64 key, u32 size, i64 next access; little-endian.
    OracleGeneral,
    /// libCacheSim's lcs, versions 1 to 8.
    Lcs,
    /// MSR Cambridge's CSV.
    Msr,
    /// Alibaba's CSV of block traces.
    Alibaba,
    /// Tencent's CSV of block traces.
    Tencent,
    /// The Storage Performance Council's CSV (UMass: Financial, WebSearch).
    Spc,
    /// fio's iolog, version 2 or 3.
    Fio,
    /// The text that blkparse prints.
    Blkparse,
    /// blktrace's binary records.
    Blktrace,
    /// QEMU's log of `blk_co_preadv` and its like.
    Qemu,
    /// Valgrind's `--tool=lackey --trace-mem=yes`.
    Lackey,
    /// CSV with names in its first line, or with a map of its columns.
    Csv,
    /// What `undercroft record` writes: Parquet, a row for each request; one access per block of a read, a write or
    /// zeroes. The number of the disk stands above bit 51 of the block.
    Recording,
}

/// Name, what it is for people, and the endings of files' names.
const ABOUT: [(Format, &str, &str, &[&str]); 17] = [
    (Format::Vscsi, "vscsi", "VMware vscsi records (CloudPhysics)", &["vscsi"]),
    (Format::ArcLis, "arc-lis", "lines of start, count, 0, sequence (the ARC paper)", &["lis"]),
    (Format::U32Le, "u32le", "little-endian u32 numbers and nothing else", &["u32le", "u32"]),
    (Format::U64Le, "u64le", "little-endian u64 numbers and nothing else", &["u64le", "u64"]),
    (Format::OracleGeneral, "oracle-general", "libCacheSim's oracleGeneral", &["oraclegeneral", "oracle-general"]),
    (Format::Lcs, "lcs", "libCacheSim's lcs, versions 1 to 8", &["lcs"]),
    (Format::Msr, "msr", "MSR Cambridge's CSV", &["msr"]),
    (Format::Alibaba, "alibaba", "Alibaba's CSV of block traces", &["alibaba"]),
    (Format::Tencent, "tencent", "Tencent's CSV of block traces", &["tencent"]),
    (Format::Spc, "spc", "SPC's CSV (UMass: Financial, WebSearch)", &["spc"]),
    (Format::Fio, "fio", "fio's iolog, version 2 or 3", &["iolog", "fio"]),
    (Format::Blkparse, "blkparse", "the text that blkparse prints", &["blkparse"]),
    (Format::Blktrace, "blktrace", "blktrace's binary records", &["blktrace"]),
    (Format::Qemu, "qemu", "QEMU's log of blk_co_preadv and its like", &["qemu"]),
    (Format::Lackey, "lackey", "Valgrind's Lackey with --trace-mem=yes", &["lackey"]),
    (
        Format::Csv,
        "csv",
        "CSV with names in the first line or a map of columns; or a key on each line",
        &["csv", "tsv", "txt"],
    ),
    (Format::Recording, "undercroft-parquet", "what `undercroft record` writes", &["parquet"]),
];

impl Format {
    /// All formats.
    pub const ALL: [Format; 17] = [
        Format::Vscsi,
        Format::ArcLis,
        Format::U32Le,
        Format::U64Le,
        Format::OracleGeneral,
        Format::Lcs,
        Format::Msr,
        Format::Alibaba,
        Format::Tencent,
        Format::Spc,
        Format::Fio,
        Format::Blkparse,
        Format::Blktrace,
        Format::Qemu,
        Format::Lackey,
        Format::Csv,
        Format::Recording,
    ];

    /// The name used on the command line.
    pub fn name(self) -> &'static str {
        ABOUT[self as usize].1
    }

    /// What it is, for help.
    pub fn about(self) -> &'static str {
        ABOUT[self as usize].2
    }

    /// The usual end of its files' names.
    pub fn suffix(self) -> &'static str {
        ABOUT[self as usize].3[0]
    }

    /// The format that a file's name tells, compression suffixes aside.
    ///
    /// # Errors
    /// [`Error::UnknownFormat`] with the formats there are.
    pub fn of_path(path: &Path) -> Result<Self, Error> {
        let name = path.file_name().map(|n| n.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
        let plain = [".zst", ".xz", ".gz"].iter().find_map(|s| name.strip_suffix(s)).unwrap_or(&name);
        let suffix = plain.rsplit('.').next().unwrap_or_default();
        if suffix == "bin" && plain.contains("oraclegeneral") {
            return Ok(Format::OracleGeneral);
        }
        let found = ABOUT.iter().find(|a| a.3.contains(&suffix)).map(|a| a.0);
        found.ok_or_else(|| Error::UnknownFormat {
            name: path.display().to_string(),
            known: Self::ALL.map(Self::name).join(", "),
        })
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

    /// How its requests become accesses.
    ///
    /// # Errors
    /// [`Error::Options`] if it has nothing that could be split.
    pub(crate) fn blocks(self, options: &Options, head: &[u8]) -> Result<Blocks, Error> {
        let unit = match self {
            Format::ArcLis | Format::U32Le | Format::U64Le | Format::OracleGeneral | Format::Lcs => Unit::Keys,
            Format::Csv => {
                let layout = Layout::of(&options.csv, head).map_err(|what| Error::Options { what })?;
                if options.key_bytes.is_some() && layout.has(Field::Text) {
                    let what = "its keys are text, which are no pieces of a disk; leave --key-size out";
                    return Err(Error::Options { what: what.into() });
                }
                layout.unit()
            }
            _ => Unit::Bytes,
        };
        let wrong = |what: String| Err(Error::Options { what });
        if options.block_bytes == Some(0) || options.key_bytes == Some(0) {
            return wrong("a block and a key have at least one byte".into());
        }
        match (unit, options.key_bytes) {
            (Unit::Keys, None) if options.block_bytes.is_some() && !options.keys_are_blocks => wrong(format!(
                "a trace of format {self} has keys, which cannot be split into blocks; if a key is the number of a sector \
                 or a page, say how large that is (--key-size)"
            )),
            (Unit::Keys, None) if options.sized && options.block_bytes.is_none() && self.has_sizes(options, head) => wrong(
                "caches of so many bytes cannot be filled with keys whose sizes differ, as those of this trace may; give sizes in \
                 blocks or in percent, or say how large a block is that each key stands for (--block-size), or a piece of a disk \
                 that a key numbers (--key-size)"
                    .into(),
            ),
            (Unit::Keys, None) => Ok(Blocks::KEYS),
            (Unit::Bytes, Some(_)) => {
                wrong(format!("a trace of format {self} says where bytes are: its keys have no size to be told"))
            }
            (Unit::Keys, Some(_)) => {
                let own_disks = self == Format::Csv;
                Ok(Blocks { own_disks, ..Blocks::of_bytes(options.block_bytes.unwrap_or(BLOCK_BYTES)) })
            }
            (Unit::Bytes, None) => {
                let whole = self == Format::Vscsi && options.block_bytes.is_none() && !options.sized;
                let default = if whole { SECTOR_BYTES } else { BLOCK_BYTES };
                let block_bytes = options.block_bytes.unwrap_or(default);
                let own_disks = self != Format::Vscsi && self != Format::Lackey;
                Ok(Blocks { whole, own_disks, ..Blocks::of_bytes(block_bytes) })
            }
        }
    }

    /// Whether each of its keys has a size of its own: one that is not 0, which says nothing, nor 1, which counts.
    fn has_sizes(self, options: &Options, head: &[u8]) -> bool {
        match self {
            Format::OracleGeneral => head.chunks_exact(24).any(|r| oracle_general::size(r) > 1),
            Format::Lcs => true,
            Format::Csv => Layout::of(&options.csv, head).is_ok_and(|l| l.first_size.is_some_and(|bytes| bytes > 1)),
            _ => false,
        }
    }

    /// What was taken for what in a trace that begins so, if neither the format nor the options say it.
    pub(crate) fn note(self, options: &Options, head: &[u8], blocks: Blocks) -> Option<String> {
        let columns = if self == Format::Csv { Layout::of(&options.csv, head).ok().and_then(|l| l.note) } else { None };
        let split = match (blocks.unit, self) {
            _ if !options.sized || options.block_bytes.is_some() => None,
            (Unit::Bytes, Format::Vscsi) => {
                Some("sizes are in bytes, so requests are split into blocks of 4 KiB (--block-size)".to_owned())
            }
            (Unit::Keys, _) => Some("sizes are in bytes, and each key is taken for 4 KiB (--block-size)".to_owned()),
            _ => None,
        };
        let all: Vec<String> = columns.into_iter().chain(split).collect();
        if all.is_empty() { None } else { Some(all.join("; ")) }
    }

    /// What reads it in a stream; `None` for a format that is read from its end.
    pub(crate) fn decoder(self, options: &Options, head: &[u8], unit: Unit) -> Option<Box<dyn Decode>> {
        let event = options.event;
        Some(match self {
            Format::Vscsi => Box::new(Said(vscsi::Vscsi::default())),
            Format::ArcLis => Box::new(Lines(arc_lis::ArcLis)),
            Format::U32Le => Box::new(Records(raw::U32Le)),
            Format::U64Le => Box::new(Records(raw::U64Le)),
            Format::OracleGeneral => Box::new(Records(oracle_general::OracleGeneral)),
            Format::Lcs => Box::new(Said(lcs::Lcs::default())),
            Format::Msr => Box::new(Lines(block_csv::Msr::default())),
            Format::Alibaba => Box::new(Lines(block_csv::Alibaba)),
            Format::Tencent => Box::new(Lines(block_csv::Tencent)),
            Format::Spc => Box::new(Lines(block_csv::Spc)),
            Format::Fio => Box::new(Lines(fio::Fio::default())),
            Format::Blkparse => Box::new(Lines(blktrace::Blkparse { event, summary: false })),
            Format::Blktrace => Box::new(Said(blktrace::Blktrace { event })),
            Format::Qemu => Box::new(Lines(qemu::Qemu::default())),
            Format::Lackey => Box::new(Lines(lackey::Lackey)),
            Format::Csv => Box::new(Lines(csv::Table::new(Layout::of(&options.csv, head).unwrap_or_default(), unit))),
            Format::Recording => return None,
        })
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = String;

    /// # Errors
    /// The formats there are.
    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = text.to_ascii_lowercase();
        let found = ABOUT.iter().find(|a| a.1 == wanted || a.3.contains(&wanted.as_str())).map(|a| a.0);
        found.ok_or_else(|| {
            format!("there is no format \"{text}\"; formats are {}", Self::ALL.map(Self::name).join(", "))
        })
    }
}
