//! `undercroft trace split` and `merge`: one trace to many, many to one.
//!
//! Owns the names of parts and of merged traces. Invariant: as in [`super`]; no two parts have the same name.

use super::args::{CompressArg, MergeArgs, OrderArg, SplitArgs, SplitBy};
use super::{Session, create, failure, open, report};
use crate::cli::Failure;
use crate::cli::meter::Meter;
use crate::cli::study::reading::warn;
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use undercroft_trace::merge::Order;
use undercroft_trace::write::WRITTEN;
use undercroft_trace::{Blocks, Format, Merge, Tenants, TraceReader, TraceRequest, Writer};
use undercroft_units::Time;

/// Files that are written at once.
const PARTS_OPEN_MAX: usize = 500;

/// Writes the parts of a trace.
///
/// # Errors
/// It cannot be read, a part cannot be written, or it was interrupted.
pub(super) fn split(args: &SplitArgs, session: &Session) -> Result<(), Failure> {
    let mut reader = open(&args.trace, &args.input)?;
    let every = every(args)?;
    let mut parts = Parts::new(args, &reader);
    let mut meter = Meter::new(vec![reader.progress()]);
    let mut requests = Vec::new();
    let (mut first_ns, mut part, mut count) = (None, 0u64, 0u64);
    while reader.next_requests(&mut requests).map_err(failure)? > 0 {
        session.go_on()?;
        let names = reader.tenants();
        if names.names().is_empty() && (args.by == SplitBy::Tenant || !args.tenant.is_empty()) {
            return Err(Failure::Said(no_tenants(&reader)));
        }
        for r in &requests {
            if !args.tenant.is_empty() && !args.tenant.iter().any(|t| t == names.name(r.tenant)) {
                continue;
            }
            match args.by {
                SplitBy::Tenant => parts.of_tenant(r, names)?,
                SplitBy::Time => {
                    let from = *first_ns.get_or_insert(r.time_ns);
                    // a time that goes back stays in the part at hand
                    part = part.max(r.time_ns.saturating_sub(from) / every);
                    parts.of_number(part, r, names)?;
                }
                SplitBy::Count => {
                    parts.of_number(count / every, r, names)?;
                    count += 1;
                }
            }
        }
        meter.add(requests.len());
    }
    session.go_on()?;
    drop(meter);
    warn(&reader);
    let known = reader.tenants().names();
    if args.by == SplitBy::Tenant && !known.is_empty() && known.iter().all(|name| name.is_empty()) {
        // There is a column for them, with nothing in it: the one part would be the trace.
        return Err(Failure::Said(no_tenants(&reader)));
    }
    if parts.names.is_empty() {
        return Err(Failure::Said(no_parts(&reader, !args.tenant.is_empty())));
    }
    parts.finish()
}

/// Why a trace cannot be split by tenants, and what can be done.
fn no_tenants(reader: &TraceReader<'_>) -> String {
    let format = reader.format();
    let remedy = match format {
        Format::Csv => "say which column has them (--columns, with tenant=), or split it by time or count".to_owned(),
        _ => {
            let named: Vec<_> = Format::ALL.into_iter().filter(|f| f.names_tenants()).map(Format::name).collect();
            format!("split it by time or count; formats that can name tenants are {}", named.join(", "))
        }
    };
    format!("{} is of format {format} and names no tenants; {remedy}", reader.name())
}

/// Why there is nothing to write. `asked`: some tenants were asked for.
fn no_parts(reader: &TraceReader<'_>, asked: bool) -> String {
    let (name, known) = (reader.name(), reader.tenants().names());
    if !asked || known.is_empty() {
        return format!("{name} has no requests, so that there are no parts");
    }
    let few = known.iter().take(20).map(String::as_str).collect::<Vec<_>>().join(", ");
    format!("{name} has no requests of that tenant; its tenants are {few}")
}

/// The length of a part, in nanoseconds or requests.
fn every(args: &SplitArgs) -> Result<u64, Failure> {
    let text = args.every.as_deref().unwrap_or("1");
    let (length, expected) = match args.by {
        SplitBy::Tenant => (Some(1), ""),
        SplitBy::Time => (text.parse::<Time>().ok().map(|t| t.0), "a time like 60min or 90s"),
        SplitBy::Count => (text.parse::<u64>().ok(), "a number of requests like 1000000"),
    };
    length.filter(|&n| n > 0).ok_or_else(|| Failure::Said(format!("--every {text} is not {expected}")))
}

/// Files under way, and the names that are taken.
struct Parts<'a> {
    args: &'a SplitArgs,
    blocks: Blocks,
    format: Format,
    /// By tenant, or the one at hand by its number.
    open: BTreeMap<u64, (PathBuf, Writer, Tenants)>,
    names: HashSet<PathBuf>,
}

impl<'a> Parts<'a> {
    fn new(args: &'a SplitArgs, reader: &TraceReader<'_>) -> Self {
        let own = reader.format();
        let format = args.written.to.unwrap_or(if WRITTEN.contains(&own) { own } else { Format::Csv });
        Self { args, blocks: reader.blocks(), format, open: BTreeMap::new(), names: HashSet::new() }
    }

    /// A request to its tenant's file, where that tenant is the only one.
    fn of_tenant(&mut self, r: &TraceRequest, names: &Tenants) -> Result<(), Failure> {
        let key = u64::from(r.tenant);
        if !self.open.contains_key(&key) {
            if self.open.len() >= PARTS_OPEN_MAX {
                return Err(Failure::Said(format!(
                    "the trace has more than {PARTS_OPEN_MAX} tenants, more files than are written at once; name those \
                     you want with --tenant"
                )));
            }
            let name = names.name(r.tenant);
            let mut alone = Tenants::default();
            alone.add(name).map_err(|e| Failure::Said(e.to_string()))?;
            let name = if name.is_empty() { "none" } else { name };
            self.begin(key, name, alone)?;
        }
        self.write(key, &TraceRequest { tenant: 0, ..*r }, None)
    }

    /// A request to the file of that number; files before it are done.
    fn of_number(&mut self, number: u64, r: &TraceRequest, names: &Tenants) -> Result<(), Failure> {
        if !self.open.contains_key(&number) {
            self.finish_open()?;
            self.begin(number, &format!("{number:04}"), Tenants::default())?;
        }
        self.write(number, r, Some(names))
    }

    fn begin(&mut self, key: u64, part: &str, tenants: Tenants) -> Result<(), Failure> {
        let part: String = part.chars().map(|c| if c == '/' || c.is_control() { '_' } else { c }).collect();
        let mut n = 1;
        let path = loop {
            let same = if n == 1 { String::new() } else { format!("~{n}") };
            let path = self.path(&format!("{part}{same}"));
            if self.names.insert(path.clone()) {
                break path;
            }
            n += 1;
        };
        let written = super::args::OutputArgs { to: Some(self.format), ..self.args.written.clone() };
        let writer = create(&path, &written, self.blocks)?;
        self.open.insert(key, (path, writer, tenants));
        Ok(())
    }

    /// `PREFIX-PART.FORMAT`, with the suffix of the compression.
    fn path(&self, part: &str) -> PathBuf {
        let mut name = self.args.output.clone().into_os_string();
        let packed = match self.args.written.compress {
            Some(CompressArg::Zstd) => ".zst",
            Some(CompressArg::Gzip) => ".gz",
            Some(CompressArg::Xz) => ".xz",
            Some(CompressArg::None) | None => "",
        };
        let suffix = if self.format == Format::OracleGeneral { "oracleGeneral" } else { self.format.suffix() };
        name.push(format!("-{part}.{suffix}{packed}"));
        PathBuf::from(name)
    }

    fn write(&mut self, key: u64, r: &TraceRequest, names: Option<&Tenants>) -> Result<(), Failure> {
        let Some((_, writer, alone)) = self.open.get_mut(&key) else { return Ok(()) };
        writer.write(std::slice::from_ref(r), names.unwrap_or(alone)).map_err(failure)
    }

    fn finish_open(&mut self) -> Result<(), Failure> {
        for (path, writer, _) in std::mem::take(&mut self.open).into_values() {
            let written = writer.finish().map_err(failure)?;
            report(&path, &written);
        }
        Ok(())
    }

    fn finish(mut self) -> Result<(), Failure> {
        self.finish_open()
    }
}

/// Writes several traces as one.
///
/// # Errors
/// One cannot be read, the output cannot be written, or it was interrupted.
pub(super) fn merge(args: &MergeArgs, session: &Session) -> Result<(), Failure> {
    let mut traces = Vec::new();
    let mut taken = HashSet::new();
    for path in &args.traces {
        let reader = open(path, &args.input)?;
        let stem = stem(path);
        let mut names = std::iter::once(stem.clone()).chain((2..).map(|n| format!("{stem}~{n}")));
        let name = names.find(|n| !taken.contains(n)).unwrap_or_default();
        taken.insert(name.clone());
        traces.push((name, reader));
    }
    let order = match args.order {
        OrderArg::Time => Order::Time,
        OrderArg::Turn => Order::Turn,
    };
    let progress = traces.iter().map(|(_, r)| r.progress()).collect();
    let mut merge = Merge::new(traces, order, args.align).map_err(failure)?;
    let mut writer = create(&args.output, &args.written, merge.blocks())?;
    let mut meter = Meter::new(progress);
    let mut requests = Vec::new();
    while merge.next_requests(&mut requests).map_err(failure)? > 0 {
        session.go_on()?;
        writer.write(&requests, merge.tenants()).map_err(failure)?;
        meter.add(requests.len());
    }
    session.go_on()?;
    let written = writer.finish().map_err(failure)?;
    drop(meter);
    merge.readers().for_each(warn);
    report(&args.output, &written);
    Ok(())
}

/// What a trace is called: its file's name up to the first dot.
fn stem(path: &Path) -> String {
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let stem = name.split('.').find(|p| !p.is_empty()).unwrap_or("trace");
    if stem == "-" { "stdin".to_owned() } else { stem.to_owned() }
}
