//! How commands read traces that others made: the arguments for what a file does not say itself, and the warnings after
//! it.
//!
//! Owns those words and their meaning. Never reads. Invariant: every command that takes a trace takes the same
//! arguments.

use crate::cli::Failure;
use crate::cli::output::complain;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use undercroft_trace::options::{Csv, Event};
use undercroft_trace::{Format, ReaderOptions, TraceReader};
use undercroft_units::{Size, Time, human_time};

/// Takes one of `all` by its name.
pub fn formats(all: &[Format]) -> impl TypedValueParser<Value = Format> + use<> {
    let values: Vec<_> = all.iter().map(|f| PossibleValue::new(f.name()).help(f.about())).collect();
    PossibleValuesParser::new(values).try_map(|name| name.parse::<Format>())
}

/// What a trace's file does not say itself.
#[derive(Clone, Debug, Args)]
pub struct ReadArgs {
    /// Format of the trace [default: what its beginning or its name tells]
    #[arg(short, long, value_name = "FORMAT", value_parser = formats(&Format::ALL), hide_possible_values = false)]
    pub format: Option<Format>,
    /// A key of the trace is the number of a piece of a disk of this size (oracleGeneral, lcs, .lis, u32, u64, CSV)
    #[arg(long, value_name = "SIZE")]
    pub key_size: Option<Size>,
    /// Leave out records that make no sense, and count them
    #[arg(long)]
    pub lenient: bool,
    /// Which event of a request counts (blkparse and blktrace)
    #[arg(long, value_name = "EVENT", value_enum, default_value = "queue")]
    pub event: EventArg,
    /// Columns of a CSV file, by number or name: time=1,offset=4,size=5,op=3,tenant=2; instead of offset= key= (and
    /// keys=, how many) for keys that are numbers, or text= for keys that are any text. [default: by the names in its
    /// first line; the only column there is]
    #[arg(long, value_name = "MAP")]
    pub columns: Option<String>,
    /// What stands between columns of a CSV file; "tab", "blank" [default: the first of , tab ; blank that is there]
    #[arg(long, value_name = "CHARACTER")]
    pub separator: Option<String>,
    /// One step of the time of a CSV file: 1s, 1ms, 100ns
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub time_unit: Time,
    /// One step of the offset of a CSV file: 1, 512, 4KiB
    #[arg(long, value_name = "SIZE", default_value = "1")]
    pub offset_unit: Size,
    /// One step of the size of a CSV file
    #[arg(long, value_name = "SIZE", default_value = "1")]
    pub size_unit: Size,
}

/// Events of the kernel's block layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EventArg {
    /// It came to the block layer (Q)
    Queue,
    /// It went to the driver, merged with others perhaps (D)
    Issue,
    /// It was done (C)
    Complete,
}

/// Bytes of a block or a key, as an argument has them.
///
/// # Errors
/// It makes no sense.
pub fn bytes(size: Option<Size>, argument: &str) -> Result<Option<u32>, Failure> {
    let Some(size) = size else { return Ok(None) };
    let fits = u32::try_from(size.0).ok().filter(|n| (1..=1 << 30).contains(n));
    fits.map(Some).ok_or_else(|| Failure::Said(format!("--{argument} {size} makes no sense: 1B to 1GiB are possible")))
}

impl ReadArgs {
    /// As the reader takes them.
    ///
    /// # Errors
    /// They make no sense.
    pub fn options(&self) -> Result<ReaderOptions, Failure> {
        let (time_unit_ns, offset_unit, size_unit) = (self.time_unit.0, self.offset_unit.0, self.size_unit.0);
        if time_unit_ns == 0 || offset_unit == 0 || size_unit == 0 {
            return Err(Failure::Said("a unit of 0 makes no sense".into()));
        }
        let mut csv = Csv { time_unit_ns, offset_unit, size_unit, ..Csv::default() };
        if let Some(text) = &self.separator {
            csv.set_separator(text).map_err(|e| Failure::Said(format!("--separator {e}")))?;
        }
        if let Some(map) = &self.columns {
            csv.set_columns(map).map_err(|e| Failure::Said(format!("--columns: {e}")))?;
        }
        Ok(ReaderOptions {
            // a map of columns is only of use for CSV
            format: self.format.or(self.columns.as_ref().map(|_| Format::Csv)),
            key_bytes: bytes(self.key_size, "key-size")?,
            lenient: self.lenient,
            event: match self.event {
                EventArg::Queue => Event::Queue,
                EventArg::Issue => Event::Issue,
                EventArg::Complete => Event::Complete,
            },
            csv,
            ..ReaderOptions::default()
        })
    }

    /// For commands whose sizes are counted in blocks: `block_size` is what ranges of bytes are split into, and what a
    /// block or a key of other traces stands for. `sized`: a size was given in bytes.
    ///
    /// # Errors
    /// As [`ReadArgs::options`].
    pub fn of_blocks(&self, block_size: Option<Size>, ahead: bool, sized: bool) -> Result<ReaderOptions, Failure> {
        let block_bytes = bytes(block_size, "block-size")?;
        Ok(ReaderOptions { block_bytes, keys_are_blocks: true, ahead, sized, ..self.options()? })
    }
}

/// Says what the reader took for what where the file does not say.
pub fn note(reader: &TraceReader<'_>) {
    if let Some(note) = reader.note() {
        complain(&format!("undercroft: {} ({}): {note}", reader.name(), reader.format()));
    }
}

/// Says what the reader passed over.
pub fn warn(reader: &TraceReader<'_>) {
    let (name, tally) = (reader.name(), reader.tally());
    if tally.skipped > 0 {
        complain(&format!("undercroft: warning: {} records of {name} make no sense and were left out:", tally.skipped));
        tally.first.iter().for_each(|e| complain(&format!("undercroft:   {e}")));
        if tally.skipped > tally.first.len() as u64 {
            complain("undercroft:   ...");
        }
    }
    if tally.backwards > 0 {
        complain(&format!(
            "undercroft: warning: in {name}, {} requests come with a time before that of others, by up to {}, the \
             first being request {}; the order of the file is kept",
            tally.backwards,
            human_time(tally.back_ns_max),
            tally.first_backwards
        ));
    }
}
