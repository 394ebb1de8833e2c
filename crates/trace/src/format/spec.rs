//! What there is to know of one format: its names, how it is recognised, how it is read.
//!
//! Owns the form of that; each format's file has its own, and `mod.rs` lists them. Never reads a record.

use super::drive::{Fixed, Line, Lines, Records, Said, Varying};
use super::sink::Decode;
use crate::blocks::Unit;
use crate::csv_map::Csv;
use crate::event::Event;
use crate::memory::MemoryRecords;
use crate::options_error::ColumnsError;

/// All that the rest of the crate knows of one format.
pub(crate) struct Spec {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it is, in a few words, for help.
    pub about: &'static str,
    /// For documents: what a record holds.
    pub record: &'static str,
    /// For documents: what an access is.
    pub access: &'static str,
    /// For documents: whose an access is; empty where a trace does not say.
    pub tenant: &'static str,
    /// How its files' names end, in lower case and without a dot; the usual one first.
    pub endings: &'static [&'static str],
    /// What stands in the name of a file that ends with `.bin`, if that is usual.
    pub bin: Option<&'static str>,
    /// The first bytes, if they leave no doubt.
    pub magic: Option<&'static [u8]>,
    /// What else it is recognised by. Of several formats that a file looks like, the one that is listed first is taken.
    pub looks: Looks,
    /// How a trace that begins so is read.
    pub begin: fn(Told<'_>) -> Result<Beginning, ColumnsError>,
}

impl Spec {
    /// What most formats have, to be left out of their own.
    pub const BASE: Spec = Spec {
        name: "",
        about: "",
        record: "",
        access: "each block",
        tenant: "",
        endings: &[],
        bin: None,
        magic: None,
        looks: Looks::LikeNothing,
        begin: |_| Ok(Beginning { decoder: None, ..Beginning::of(Unit::Bytes) }),
    };
}

/// How a beginning without magic is recognised.
pub(crate) enum Looks {
    /// Not at all: every file could be one.
    LikeNothing,
    /// By its first lines, if it is text: up to twenty, trimmed, none of them empty, and never none.
    Text(fn(&[&[u8]]) -> bool),
    /// By its first bytes, if it is no text.
    Binary(fn(&[u8]) -> bool),
}

/// What a format is given before it reads.
#[derive(Clone, Copy)]
pub(crate) struct Told<'t> {
    /// Which event of a request counts.
    pub event: Event,
    /// Which records of a memory trace are read.
    pub memory: MemoryRecords,
    /// Where columns are.
    pub csv: &'t Csv,
    /// The first bytes of the trace, decompressed, some thousands if it has as many.
    pub head: &'t [u8],
}

/// How one trace is read.
pub(crate) struct Beginning {
    /// What addresses of its requests are.
    pub unit: Unit,
    /// Whether each tenant has a disk of its own.
    pub own_disks: bool,
    /// Whether a request counts as one access, however wide it is, unless a size of blocks is asked for.
    pub whole: bool,
    /// Whether keys have sizes, and perhaps each its own.
    pub sizes: bool,
    /// Whether keys are text.
    pub text: bool,
    /// How columns were interpreted, if the options do not say.
    pub note: Option<String>,
    /// What reads it as a stream; `None` for a format that is read from its end.
    pub decoder: Option<Box<dyn Decode>>,
}

impl Beginning {
    fn of(unit: Unit) -> Self {
        let own_disks = unit == Unit::Bytes;
        Beginning { unit, own_disks, whole: false, sizes: false, text: false, note: None, decoder: None }
    }

    /// Of a format of lines.
    pub(super) fn lines(unit: Unit, format: impl Line + 'static) -> Self {
        Beginning { decoder: Some(Box::new(Lines(format))), ..Self::of(unit) }
    }

    /// Of a format of records that all have one length.
    pub(super) fn records(unit: Unit, format: impl Fixed + 'static) -> Self {
        Beginning { decoder: Some(Box::new(Records(format))), ..Self::of(unit) }
    }

    /// Of a format of records that say their length.
    pub(super) fn varying(unit: Unit, format: impl Varying + 'static) -> Self {
        Beginning { decoder: Some(Box::new(Said(format))), ..Self::of(unit) }
    }
}
