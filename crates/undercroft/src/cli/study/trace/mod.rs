//! `undercroft trace`: reads, describes, converts, cuts, joins and makes traces.
//!
//! Owns what the commands share: options, progress, Ctrl-C, warnings. Never decodes a format. Invariant: whatever ends
//! a command, a file that it was writing is whole or gone.

pub mod args;
mod info;
mod parts;
mod write;

use self::args::{CompressArg, InputArgs, OutputArgs, TraceArgs, TraceCommand};
use super::reading::{bytes, note};
use crate::cli::Failure;
use crate::cli::interrupt::interrupt;
use crate::cli::output::{Out, complain};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use undercroft_trace::write::{Packing, Written};
use undercroft_trace::{Blocks, Format, ReaderOptions, TraceError, TraceReader, Writer};
use undercroft_units::human_size;

/// Runs it.
///
/// # Errors
/// A trace cannot be read or written, or it was interrupted.
pub fn run(args: &TraceArgs, out: &mut Out) -> Result<(), Failure> {
    let session = Session::new()?;
    match &args.command {
        TraceCommand::Info(args) => info::info(args, &session, out),
        TraceCommand::Convert(args) => write::convert(args, &session),
        TraceCommand::Head(args) => write::head(args, &session),
        TraceCommand::Sample(args) => write::sample(args, &session),
        TraceCommand::Synth(args) => write::synth(args, &session),
        TraceCommand::Split(args) => parts::split(args, &session),
        TraceCommand::Merge(args) => parts::merge(args, &session),
    }
}

/// What went wrong with a trace, as the command line says it.
pub(super) fn failure(error: TraceError) -> Failure {
    match error {
        TraceError::Write { source, .. } if source.kind() == std::io::ErrorKind::BrokenPipe => Failure::Output(source),
        other => Failure::Said(other.to_string()),
    }
}

/// Ctrl-C.
pub(super) struct Session {
    stop: Arc<AtomicBool>,
}

impl Session {
    fn new() -> Result<Self, Failure> {
        Ok(Session { stop: interrupt()? })
    }

    /// Whether to go on.
    ///
    /// # Errors
    /// It was interrupted.
    pub fn go_on(&self) -> Result<(), Failure> {
        if self.stop.load(Ordering::Relaxed) { Err(Failure::Interrupted) } else { Ok(()) }
    }
}

/// What the arguments say about reading.
pub(super) fn options(args: &InputArgs) -> Result<ReaderOptions, Failure> {
    Ok(ReaderOptions { block_bytes: bytes(args.block_size, "block-size")?, ahead: true, ..args.read.options()? })
}

/// Opens a trace.
pub(super) fn open(path: &Path, args: &InputArgs) -> Result<TraceReader<'static>, Failure> {
    let reader = TraceReader::open_with(path, &options(args)?).map_err(failure)?;
    note(&reader);
    Ok(reader)
}

/// Format and compression of an output of that name.
fn output_format(path: &Path, args: &OutputArgs) -> Result<(Format, Packing), Failure> {
    let format = match args.to {
        Some(format) => format,
        None if path == Path::new("-") => Format::Csv,
        None => Format::of_path(path).map_err(|_| {
            let all = undercroft_trace::write::WRITTEN.map(Format::name).join(", ");
            let shown = path.display();
            Failure::Said(format!("the name {shown} does not tell the format to write; say which with --to: {all}"))
        })?,
    };
    let packing = match args.compress {
        None => Packing::of_path(path),
        Some(CompressArg::None) => Packing::None,
        Some(CompressArg::Zstd) => Packing::Zstd,
        Some(CompressArg::Gzip) => Packing::Gzip,
        Some(CompressArg::Xz) => Packing::Xz,
    };
    Ok((format, packing))
}

/// Begins the output.
pub(super) fn create(path: &Path, args: &OutputArgs, blocks: Blocks) -> Result<Writer, Failure> {
    let (format, packing) = output_format(path, args)?;
    Writer::create(path, format, packing, blocks, args.force).map_err(failure)
}

/// Says what was written, unless it went to standard output.
pub(super) fn report(path: &Path, written: &Written) {
    if path != Path::new("-") {
        let records = if written.records == written.requests {
            String::new()
        } else {
            format!(" as {} records", written.records)
        };
        let (shown, size) = (path.display(), human_size(written.bytes));
        complain(&format!("{shown}: {} requests{records}, {size}", written.requests));
    }
}
