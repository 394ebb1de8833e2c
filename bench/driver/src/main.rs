//! Drives a vhost-user-blk or NBD socket without a VM: measures it, checks its answers, and misbehaves on request.
//!
//! Owns the connection of options to parts, and the report. Invariant: the report goes to the standard output as one
//! JSON object whatever happened, and the exit code says what happened.
#![forbid(unsafe_code)]

mod args;
mod audit;
mod journal;
mod ledger;
mod load;
mod meter;
mod nbd;
mod pattern;
mod stamp;
mod target;
mod vhost;

use anyhow::{Context, Result, bail, ensure};
use args::{Address, Cli, Command, PatternName, Run};
use clap::Parser;
use load::{Book, Check, Load, Outcome, Plan};
use nbd::NbdTarget;
use pattern::{Order, Pattern, Random, Zipf};
use serde_json::json;
use stamp::SECTOR_BYTES;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;
use target::{Fault, Geometry, Target};
use undercroft_units::LatencyCounts;
use vhost::VhostTarget;

/// Exit code: the server went away or did not answer.
const GONE: u8 = 3;
/// Bytes that the warm-up reads at once, if operations are shorter.
const PREFILL_BYTES: u32 = 64 << 10;

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(run) => run_load(&run),
        Command::Probe { target } => probe(&target),
        Command::Audit(a) => audit_disk(&a),
        Command::Hostile { socket, cases } => hostile(&socket, &cases),
        Command::Cases => {
            vhost::hostile::CASES.iter().for_each(|c| println!("{}", c.name));
            Ok(0)
        }
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(e) => {
            eprintln!("undercroft-driver: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn print(value: &serde_json::Value) -> Result<()> {
    writeln!(std::io::stdout(), "{value:#}").context("cannot write the report")
}

/// Connects with `depth` buffers of `buffer_bytes`.
fn connect(address: &Address, run: Option<&Run>, depth: usize, buffer_bytes: usize) -> Result<Box<dyn Target>> {
    let queues = run.map_or(1, |r| r.queues);
    Ok(match address {
        Address::Vhost(path) => {
            let options = vhost::Options {
                queues,
                depth,
                buffer_bytes,
                segments: run.map_or(1, |r| r.segments),
                indirect: run.is_some_and(|r| r.indirect),
                poll: run.is_some_and(|r| r.poll),
                event_idx: !run.is_some_and(|r| r.no_event_idx),
            };
            Box::new(VhostTarget::connect(path, &options)?)
        }
        Address::Nbd(uri) => {
            let structured = !run.is_some_and(|r| r.simple_replies);
            let fua = run.is_some_and(|r| r.fua);
            let options = nbd::Options { connections: queues, depth, buffer_bytes, structured, fua };
            let target = NbdTarget::connect(uri, &options)?;
            ensure!(
                queues == 1 || target.geometry().queues > 1,
                "the server does not say that several connections see one disk (CAN_MULTI_CONN)"
            );
            Box::new(target)
        }
    })
}

fn plan(run: &Run) -> Result<Plan> {
    let sector = SECTOR_BYTES as u32;
    let bytes_min = u32::try_from(run.block.0).context("--block is too large")?;
    let bytes_max = run.block_max.map_or(Ok(bytes_min), |s| u32::try_from(s.0)).context("--block-max is too large")?;
    ensure!(bytes_min >= sector && bytes_min % sector == 0, "--block must be a multiple of {sector}");
    ensure!(bytes_max >= bytes_min && bytes_max % sector == 0, "--block-max must be a multiple, not below --block");
    ensure!(run.depth >= 1 && run.queues >= 1, "--depth and --queues start at 1");
    let changes = run.write_percent + run.zero_percent + run.discard_percent;
    ensure!(changes <= 100, "the percentages add up to {changes}");
    ensure!(run.verify.is_none() || changes == 0, "--verify is for loads that only read; --journal checks writes");
    ensure!(run.seconds.is_some() || run.ops.is_some(), "say how long: --seconds or --ops");
    let duration = run.seconds.map(Duration::try_from_secs_f64).transpose().context("--seconds")?;
    Ok(Plan {
        depth: run.depth,
        bytes_min,
        bytes_max,
        bytes_step: sector,
        write_percent: run.write_percent,
        zero_percent: run.zero_percent,
        discard_percent: run.discard_percent,
        flush_every: run.flush_every,
        duration,
        operations: run.ops,
        allow_errors: run.allow_errors,
    })
}

/// The working set: start and length in bytes.
fn working_set(run: &Run, geometry: &Geometry, align: u64) -> Result<(u64, u64)> {
    let size = geometry.size_bytes;
    let start = run.offset.0;
    ensure!(start < size && start.is_multiple_of(align), "--offset must be a multiple of {align} below {size}");
    let length = run.length.map_or(size - start, |l| l.0) / align * align;
    ensure!(length <= size - start, "--length reaches past the disk's {size} bytes");
    Ok((start, length))
}

fn run_load(run: &Run) -> Result<u8> {
    let plan = plan(run)?;
    let warm_bytes = plan.bytes_max.max(PREFILL_BYTES);
    let mut target = connect(&run.target, Some(run), run.depth, warm_bytes as usize)?;
    let varied = plan.bytes_max > plan.bytes_min;
    let align = if varied { SECTOR_BYTES as u64 } else { u64::from(plan.bytes_min) };
    let (start, length) = working_set(run, target.geometry(), align)?;
    ensure!(length >= u64::from(plan.bytes_max), "the working set is shorter than one operation");
    if run.prefill {
        prefill(&mut *target, run.depth, start, length, warm_bytes)?;
    }
    let order = match run.pattern {
        PatternName::Rand => Order::Uniform,
        PatternName::Seq => Order::Sequential { next: 0 },
        PatternName::Zipf => {
            ensure!(run.theta > 0.0 && run.theta < 1.0, "--theta must be between 0 and 1");
            Order::Zipf(Zipf::new(length / align, run.theta))
        }
    };
    let open = |path: &Path| File::open(path).with_context(|| format!("cannot open {}", path.display()));
    let mut check = match (&run.verify, &run.journal) {
        (Some(path), _) => Check::File(open(path)?),
        (None, Some(path)) => {
            let base = run.base.as_deref().map(open).transpose()?;
            Check::Stamps(Box::new(Book::open(path, run.seed, base)?))
        }
        (None, None) => Check::None,
    };
    let (before, counters) = (meter::read(&run.pid), target.counters());
    let pattern = Pattern::new(order, start, length, align);
    let outcome = Load::new(&mut *target, plan, pattern, Random::new(run.seed), &mut check).run();
    let (spent, after) = (meter::spent(before, meter::read(&run.pid)), target.counters());
    let resident = meter::resident(&run.pid);
    let operations: u64 = outcome.done.values().sum();
    let per = |n: f64| if operations == 0 { 0.0 } else { n / operations as f64 };
    let seconds = outcome.elapsed.as_secs_f64();
    let mut report = json!({
        "seconds": seconds,
        "operations": operations,
        "done": outcome.done,
        "errors": outcome.errors,
        "iops": operations as f64 / seconds,
        "mb_per_s": outcome.bytes as f64 / seconds / 1e6,
        "latency_us": latencies(&outcome.all),
        "read_latency_us": latencies(&outcome.reads),
        "write_latency_us": latencies(&outcome.writes),
        "kicks_per_io": per((after.kicks - counters.kicks) as f64),
        "wakes_per_io": per((after.wakes - counters.wakes) as f64),
        "fault": outcome.fault.as_ref().map(ToString::to_string),
    });
    if !run.pid.is_empty() {
        report["server"] = json!({
            "cpu_s_per_million": per(spent.cpu_s) * 1e6,
            "user_s_per_million": per(spent.user_s) * 1e6,
            "system_s_per_million": per(spent.system_s) * 1e6,
            "cpu_s": spent.cpu_s,
            "resident_bytes": resident,
        });
    }
    if let Check::Stamps(book) = &check {
        report["journal"] = json!(book.ledger().totals());
    }
    print(&report)?;
    ended(outcome, target)
}

/// In microseconds.
fn latencies(l: &LatencyCounts) -> serde_json::Value {
    let us = |ns: u64| ns as f64 / 1000.0;
    let quantile = |q| us(l.quantile_ns(q).min(l.max_ns()));
    json!({
        "count": l.count(), "mean": l.mean_ns() / 1000.0, "p50": quantile(0.5), "p99": quantile(0.99),
        "p99_9": quantile(0.999), "max": us(l.max_ns()),
    })
}

fn ended(outcome: Outcome, target: Box<dyn Target>) -> Result<u8> {
    match outcome.fault {
        None => {
            target.close()?;
            Ok(0)
        }
        Some(Fault::Gone(_) | Fault::Silent) => Ok(GONE),
        Some(other) => bail!(other),
    }
}

fn prefill(target: &mut dyn Target, depth: usize, start: u64, length: u64, bytes: u32) -> Result<()> {
    let whole = length / u64::from(bytes);
    let mut check = Check::None;
    let mut plan = Plan {
        depth,
        bytes_min: bytes,
        bytes_max: bytes,
        bytes_step: SECTOR_BYTES as u32,
        write_percent: 0,
        zero_percent: 0,
        discard_percent: 0,
        flush_every: 0,
        duration: None,
        operations: Some(whole),
        allow_errors: false,
    };
    let mut sweep = |plan: Plan, at: u64, length: u64| match length {
        0 => Ok(()),
        _ => {
            let pattern = Pattern::new(Order::Sequential { next: 0 }, at, length, u64::from(plan.bytes_min));
            let outcome = Load::new(target, plan, pattern, Random::new(0), &mut check).run();
            outcome.fault.map_or(Ok(()), |f| Err(anyhow::Error::from(f).context("while warming up")))
        }
    };
    let body = whole * u64::from(bytes);
    sweep(plan.clone(), start, body)?;
    let rest = (length - body) as u32;
    (plan.bytes_min, plan.bytes_max, plan.operations) = (rest, rest, Some(1));
    sweep(plan, start + body, u64::from(rest))
}

fn probe(address: &Address) -> Result<u8> {
    let mut report = match address {
        Address::Vhost(path) => {
            let options = vhost::Options {
                queues: 1,
                depth: 1,
                buffer_bytes: 4096,
                segments: 1,
                indirect: false,
                poll: false,
                event_idx: true,
            };
            let mut target = VhostTarget::connect(path, &options)?;
            let mut report = json!(target.geometry());
            report["serial"] = json!(target.serial()?);
            report["queues_max"] = json!(target.queues_max());
            Box::new(target).close()?;
            report
        }
        Address::Nbd(_) => {
            let target = connect(address, None, 1, 4096)?;
            let report = json!(target.geometry());
            target.close()?;
            report
        }
    };
    report["kind"] = json!(if matches!(address, Address::Vhost(_)) { "vhost-user-blk" } else { "nbd" });
    print(&report)?;
    Ok(0)
}

fn audit_disk(a: &args::Audit) -> Result<u8> {
    let open = |path: &Path| File::open(path).with_context(|| format!("cannot open {}", path.display()));
    let mut source = match (&a.image, &a.target) {
        (Some(image), _) => audit::Source::Image(open(image)?),
        (None, Some(address)) => audit::Source::Target(connect(address, None, 1, audit::CHUNK_BYTES)?),
        (None, None) => bail!("say what to audit: --image or --target"),
    };
    let base = a.base.as_deref().map(open).transpose()?;
    let findings = audit::audit(&a.journal, &mut source, base.as_ref(), a.strict)?;
    if let audit::Source::Target(target) = source {
        target.close()?;
    }
    print(&json!(findings))?;
    Ok(u8::from(!findings.ok))
}

fn hostile(socket: &Path, names: &[String]) -> Result<u8> {
    let mut reactions = Vec::new();
    let known = |n: &String| vhost::hostile::case(n).with_context(|| format!("there is no case {n}; see `cases`"));
    let cases: Vec<_> = match names {
        [] => vhost::hostile::CASES.iter().collect(),
        names => names.iter().map(known).collect::<Result<_>>()?,
    };
    for case in cases {
        reactions.push(vhost::hostile::run(socket, case).with_context(|| format!("case {}", case.name))?);
    }
    let serves_on = reactions.iter().all(|r| r.serves_on);
    print(&json!(reactions))?;
    Ok(u8::from(!serves_on))
}
