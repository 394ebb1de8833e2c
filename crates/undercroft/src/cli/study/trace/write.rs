//! `undercroft trace convert`, `head`, `sample` and `synth`: one trace in, or none, and one out.
//!
//! Owns nothing but the loops. Invariant: as in [`super`].

use super::args::{ConvertArgs, HeadArgs, PatternArg, SampleArgs, SynthArgs};
use super::{Session, create, failure, open, report};
use crate::cli::Failure;
use crate::cli::meter::Meter;
use crate::cli::study::reading::warn;
use std::path::Path;
use undercroft_trace::synth::{Load, Pattern};
use undercroft_trace::{BATCH, Blocks, Sample, Tenants, TraceReader, Writer};

/// Ends an output, and says what was written, after what was wrong with what it was made from.
fn end(
    writer: Writer,
    meter: Meter,
    from: Option<&TraceReader<'_>>,
    output: &Path,
    session: &Session,
) -> Result<(), Failure> {
    // What fed a pipe may have been interrupted, too, and the end of the pipe is not that of the trace then.
    session.go_on()?;
    let written = writer.finish().map_err(failure)?;
    drop(meter);
    if let Some(reader) = from {
        warn(reader);
    }
    report(output, &written);
    Ok(())
}

/// Writes a trace in another format.
///
/// # Errors
/// It cannot be read or written, or it was interrupted.
pub(super) fn convert(args: &ConvertArgs, session: &Session) -> Result<(), Failure> {
    let mut reader = open(&args.trace, &args.input)?;
    let mut writer = create(&args.output, &args.written, reader.blocks())?;
    let mut meter = Meter::new(vec![reader.progress()]);
    let mut requests = Vec::new();
    while reader.next_requests(&mut requests).map_err(failure)? > 0 {
        session.go_on()?;
        writer.write(&requests, reader.tenants()).map_err(failure)?;
        meter.add(requests.len());
    }
    end(writer, meter, Some(&reader), &args.output, session)
}

/// Writes the first requests.
///
/// # Errors
/// As [`convert`].
pub(super) fn head(args: &HeadArgs, session: &Session) -> Result<(), Failure> {
    let mut reader = open(&args.trace, &args.input)?;
    let mut writer = create(&args.output, &args.written, reader.blocks())?;
    let mut meter = Meter::of_requests(args.requests);
    let (mut requests, mut left) = (Vec::new(), args.requests);
    while left > 0 && reader.next_requests(&mut requests).map_err(failure)? > 0 {
        session.go_on()?;
        requests.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        left -= requests.len() as u64;
        writer.write(&requests, reader.tenants()).map_err(failure)?;
        meter.add(requests.len());
    }
    end(writer, meter, Some(&reader), &args.output, session)
}

/// Writes what goes to a sample of the blocks.
///
/// # Errors
/// As [`convert`].
pub(super) fn sample(args: &SampleArgs, session: &Session) -> Result<(), Failure> {
    let mut reader = open(&args.trace, &args.input)?;
    let blocks = reader.blocks();
    let mut writer = create(&args.output, &args.written, blocks)?;
    let sample = Sample::new(f64::from(args.rate.0) / 10_000.0, args.seed);
    let mut meter = Meter::new(vec![reader.progress()]);
    let (mut requests, mut held) = (Vec::new(), Vec::new());
    while reader.next_requests(&mut requests).map_err(failure)? > 0 {
        session.go_on()?;
        held.clear();
        sample.of_requests(&requests, &blocks, &mut held);
        writer.write(&held, reader.tenants()).map_err(failure)?;
        meter.add(requests.len());
    }
    end(writer, meter, Some(&reader), &args.output, session)
}

/// Makes a trace.
///
/// # Errors
/// The arguments make no sense, it cannot be written, or it was interrupted.
pub(super) fn synth(args: &SynthArgs, session: &Session) -> Result<(), Failure> {
    let alpha = args.alpha;
    if !(0.0..=100.0).contains(&alpha) {
        return Err(Failure::Said(format!("--alpha {alpha} makes no sense: 0 (uniform) to 100 are possible")));
    }
    let pattern = match args.pattern {
        PatternArg::Zipf => Pattern::Zipf { alpha },
        PatternArg::Uniform => Pattern::Uniform,
        PatternArg::Scan => Pattern::Scan,
        PatternArg::Loop => Pattern::Loop,
        PatternArg::Phased => Pattern::Phased { alpha, length: args.phase },
        PatternArg::Mixed => {
            let mix = args.mix.parse().map_err(|e| Failure::Said(format!("--mix: {e}")))?;
            Pattern::Mixed { alpha, mix }
        }
    };
    let writes = args.writes.map_or(0.0, |p| f64::from(p.0) / 10_000.0);
    let mut writer = create(&args.output, &args.written, Blocks::KEYS)?;
    let mut load = Load::new(pattern, args.keys, args.rate, writes, args.seed);
    let mut meter = Meter::of_requests(args.requests);
    let tenants = Tenants::default();
    let (mut requests, mut left) = (Vec::with_capacity(BATCH), args.requests);
    while left > 0 {
        session.go_on()?;
        requests.clear();
        requests.extend(load.by_ref().take(usize::try_from(left).map_or(BATCH, |n| n.min(BATCH))));
        left -= requests.len() as u64;
        writer.write(&requests, &tenants).map_err(failure)?;
        meter.add(requests.len());
    }
    end(writer, meter, None, &args.output, session)
}
