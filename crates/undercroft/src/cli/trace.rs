//! `undercroft trace`: reads, describes, converts, cuts, joins and makes traces.
//!
//! Owns what the commands share: options, progress, Ctrl-C, warnings. Never decodes a format. Invariant: whatever ends a
//! command, a file that it was writing is whole or gone.

use super::Failure;
use super::output::{Out, complain};
use super::trace_args::{CompressArg, EventArg, InputArgs, OutputArgs, TraceArgs, TraceCommand};
use super::{trace_info, trace_parts, trace_write};
use crate::units::{human_size, human_time};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use undercroft_trace::options::{Csv, Event};
use undercroft_trace::write::{Packing, Written};
use undercroft_trace::{Blocks, Error, Format, Options, Progress, Reader, Writer};

/// Progress is shown of what takes longer.
const SHOW_AFTER: Duration = Duration::from_secs(2);
const SHOW_EVERY: Duration = Duration::from_millis(200);

/// Runs it.
///
/// # Errors
/// A trace cannot be read or written, or it was interrupted.
pub fn run(args: &TraceArgs, out: &mut Out) -> Result<(), Failure> {
    let session = Session::new()?;
    match &args.command {
        TraceCommand::Info(args) => trace_info::info(args, &session, out),
        TraceCommand::Convert(args) => trace_write::convert(args, &session),
        TraceCommand::Head(args) => trace_write::head(args, &session),
        TraceCommand::Sample(args) => trace_write::sample(args, &session),
        TraceCommand::Synth(args) => trace_write::synth(args, &session),
        TraceCommand::Split(args) => trace_parts::split(args, &session),
        TraceCommand::Merge(args) => trace_parts::merge(args, &session),
    }
}

/// What went wrong with a trace, as the command line says it.
pub(super) fn failure(error: Error) -> Failure {
    match error {
        Error::Write { source, .. } if source.kind() == std::io::ErrorKind::BrokenPipe => Failure::Output(source),
        other => Failure::Said(other.to_string()),
    }
}

/// Ctrl-C.
pub(super) struct Session {
    stop: Arc<AtomicBool>,
}

impl Session {
    fn new() -> Result<Self, Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            // the second one ends at once
            let caught = signal_hook::flag::register_conditional_shutdown(signal, 130, stop.clone())
                .and_then(|_| signal_hook::flag::register(signal, stop.clone()));
            caught.map_err(|e| Failure::Said(format!("cannot catch Ctrl-C: {e}")))?;
        }
        Ok(Session { stop })
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
pub(super) fn options(args: &InputArgs) -> Result<Options, Failure> {
    let bytes = |size: Option<crate::units::Size>, what: &str| {
        let Some(size) = size else { return Ok(None) };
        let fits = u32::try_from(size.0).ok().filter(|n| (1..=1 << 30).contains(n));
        fits.map(Some).ok_or_else(|| Failure::Said(format!("--{what} {size} makes no sense: 1B to 1GiB are possible")))
    };
    let (time_unit_ns, offset_unit, size_unit) = (args.time_unit.0, args.offset_unit.0, args.size_unit.0);
    if time_unit_ns == 0 || offset_unit == 0 || size_unit == 0 {
        return Err(Failure::Said("a unit of 0 makes no sense".into()));
    }
    let mut csv = Csv { time_unit_ns, offset_unit, size_unit, ..Csv::default() };
    if let Some(text) = &args.separator {
        csv.set_separator(text).map_err(|e| Failure::Said(format!("--separator {e}")))?;
    }
    if let Some(map) = &args.columns {
        csv.set_columns(map).map_err(|e| Failure::Said(format!("--columns: {e}")))?;
    }
    let event = match args.event {
        EventArg::Queue => Event::Queue,
        EventArg::Issue => Event::Issue,
        EventArg::Complete => Event::Complete,
    };
    Ok(Options {
        // a map of columns is only of use for CSV
        format: args.format.or(args.columns.as_ref().map(|_| Format::Csv)),
        block_bytes: bytes(args.block_size, "block-size")?,
        key_bytes: bytes(args.key_size, "key-size")?,
        lenient: args.lenient,
        ahead: true,
        event,
        csv,
    })
}

/// Opens a trace.
pub(super) fn open(path: &Path, args: &InputArgs) -> Result<Reader<'static>, Failure> {
    Reader::open_with(path, &options(args)?).map_err(failure)
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

/// Shows how far it is.
pub(super) struct Meter {
    begun: Instant,
    looked: Instant,
    bar: Option<ProgressBar>,
    progress: Vec<Progress>,
    /// What there is in all, if requests are counted and not bytes of files.
    wanted: Option<u64>,
    requests: u64,
    calls: u32,
}

impl Meter {
    /// Of files that are read.
    pub fn new(progress: Vec<Progress>) -> Self {
        let now = Instant::now();
        Self { begun: now, looked: now, bar: None, progress, wanted: None, requests: 0, calls: 0 }
    }

    /// Of a number of requests.
    pub fn of_requests(wanted: u64) -> Self {
        let mut meter = Self::new(Vec::new());
        meter.wanted = Some(wanted);
        meter
    }

    /// So many requests more are done.
    pub fn add(&mut self, requests: usize) {
        self.requests += requests as u64;
        self.calls += 1;
        // a clock is not read for each batch
        if !self.calls.is_multiple_of(16) {
            return;
        }
        let now = Instant::now();
        if now - self.begun < SHOW_AFTER || now - self.looked < SHOW_EVERY {
            return;
        }
        self.looked = now;
        let total: Option<u64> = match self.wanted {
            Some(wanted) => Some(wanted),
            None => self.progress.iter().map(Progress::total).sum(),
        };
        let done = self.wanted.map_or_else(|| self.progress.iter().map(Progress::done).sum(), |_| self.requests);
        let seconds = (now - self.begun).as_secs_f64();
        let rate = self.requests as f64 / seconds / 1e6;
        let bar = self.bar.get_or_insert_with(|| {
            let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
            let template = if total.is_some() { "{wide_bar} {percent}% {msg}" } else { "{spinner} {msg}" };
            bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        let left = total.filter(|_| done > 0).map(|t| seconds * t.saturating_sub(done) as f64 / done as f64);
        let left = left.map_or(String::new(), |s| format!(", {s:.0} s left"));
        bar.set_position(done);
        bar.set_message(format!("{:.1} M requests, {rate:.1} M/s{left}", self.requests as f64 / 1e6));
        bar.tick();
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Says what the reader passed over.
pub(super) fn warn(reader: &Reader<'_>) {
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
            "undercroft: warning: in {name}, {} requests come with a time before that of others, by up to {}, the first \
             being request {}; the order of the file is kept",
            tally.backwards,
            human_time(tally.back_ns_max),
            tally.first_backwards
        ));
    }
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
