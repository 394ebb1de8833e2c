//! Where accesses come from: a file, a synthetic load, or arrays.
//!
//! Owns the choice, and that each can be read again from its beginning. Never interprets a format: undercroft-trace
//! does.

use crate::arrays::{Columns, columns};
use crate::error::{of_trace, said};
use crate::watch::Watch;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use undercroft_study::sim::{Go, Reference};
use undercroft_trace::info::Info;
use undercroft_trace::options::{Csv, Event, MemoryRecords};
use undercroft_trace::synth::{Load, Pattern};
use undercroft_trace::{
    Access, Blocks, Format, ReaderOptions, Summary, Tenants, TraceError, TraceReader, TraceRequest, Unit,
};
use undercroft_units::{Size, Time};

/// Requests summed up at a time.
const BATCH: usize = 1 << 14;

/// A trace that can be read.
#[pyclass(frozen, module = "undercroft._undercroft")]
pub(crate) struct Source {
    name: String,
    from: From,
}

enum From {
    File { path: PathBuf, options: Box<ReaderOptions> },
    Synth { pattern: Pattern, keys: u32, requests: u64, rate: u64, writes: f64, seed: u64 },
    Arrays(Arc<Vec<Access>>),
}

/// The accesses of a source, in order.
pub(crate) enum Accesses {
    File(Box<TraceReader<'static>>),
    Synth { load: Box<Load>, left: u64 },
    Arrays { all: Arc<Vec<Access>>, at: usize },
}

impl Iterator for Accesses {
    type Item = Result<Access, TraceError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Accesses::File(reader) => reader.next(),
            Accesses::Synth { load, left } => {
                *left = left.checked_sub(1)?;
                load.next().map(|r| {
                    let TraceRequest { time_ns, address, tenant, kind, .. } = r;
                    Ok(Access { time_ns, block: address, bytes: 0, tenant, kind })
                })
            }
            Accesses::Arrays { all, at } => {
                let access = *all.get(*at)?;
                *at += 1;
                Some(Ok(access))
            }
        }
    }
}

/// A part of a whole, 0 to 1.
fn part(what: &str, part: f64) -> PyResult<f64> {
    if (0.0..=1.0).contains(&part) {
        Ok(part)
    } else {
        Err(said(format!("{what}={part} makes no sense: 0 to 1 are possible")))
    }
}

/// Bytes of a block or a key.
fn piece(what: &str, bytes: Option<u64>) -> PyResult<Option<u32>> {
    let Some(bytes) = bytes else { return Ok(None) };
    let fits = u32::try_from(bytes).ok().filter(|n| (1..=1 << 30).contains(n));
    fits.map(Some).ok_or_else(|| said(format!("{what}={bytes} makes no sense: 1 byte to 1 GiB are possible")))
}

#[pymethods]
impl Source {
    /// A file; nothing is opened yet.
    #[staticmethod]
    #[pyo3(signature = (path, *, format=None, columns=None, separator=None, time_unit="1s", offset_unit="1",
                        size_unit="1", lenient=false, block_size=None, key_size=None, event="queue"))]
    #[expect(clippy::too_many_arguments, reason = "Python names them")]
    fn file(
        path: PathBuf,
        format: Option<&str>,
        columns: Option<&str>,
        separator: Option<&str>,
        time_unit: &str,
        offset_unit: &str,
        size_unit: &str,
        lenient: bool,
        block_size: Option<u64>,
        key_size: Option<u64>,
        event: &str,
    ) -> PyResult<Self> {
        // a map of columns is only of use for CSV
        let format = format.or(columns.map(|_| "csv"));
        let bytes = |text: &str| text.parse::<Size>().map(|s| s.0).map_err(|e| said(e.to_string()));
        let mut csv = Csv {
            time_unit_ns: time_unit.parse::<Time>().map_err(|e| said(e.to_string()))?.0,
            offset_unit: bytes(offset_unit)?,
            size_unit: bytes(size_unit)?,
            ..Csv::default()
        };
        if csv.time_unit_ns == 0 || csv.offset_unit == 0 || csv.size_unit == 0 {
            return Err(said("a unit of 0 makes no sense"));
        }
        if let Some(map) = columns {
            csv.set_columns(map).map_err(|e| said(format!("columns: {e}")))?;
        }
        if let Some(text) = separator {
            csv.set_separator(text).map_err(|e| said(format!("separator: {e}")))?;
        }
        let event = match event {
            "queue" => Event::Queue,
            "issue" => Event::Issue,
            "complete" => Event::Complete,
            other => return Err(said(format!("event={other:?} is no event; take queue, issue or complete"))),
        };
        let options = ReaderOptions {
            format: format.map(|f| f.parse::<Format>().map_err(said)).transpose()?,
            block_bytes: piece("block_size", block_size)?,
            key_bytes: piece("key_size", key_size)?,
            keys_are_blocks: false,
            sized: false,
            lenient,
            ahead: true,
            event,
            memory: MemoryRecords::default(),
            csv,
        };
        Ok(Self { name: path.display().to_string(), from: From::File { path, options: Box::new(options) } })
    }

    /// A load, the same everywhere for the same arguments.
    #[staticmethod]
    #[pyo3(signature = (pattern, *, keys, requests, alpha, phase, mix, rate, writes, seed))]
    #[expect(clippy::too_many_arguments, reason = "Python names them")]
    fn synth(
        pattern: &str,
        keys: u64,
        requests: u64,
        alpha: f64,
        phase: u64,
        mix: &str,
        rate: u64,
        writes: f64,
        seed: u64,
    ) -> PyResult<Self> {
        let keys = u32::try_from(keys).ok().filter(|&k| k > 0);
        let keys = keys.ok_or_else(|| said("keys= is from 1 to 4294967295"))?;
        if !(0.0..=100.0).contains(&alpha) {
            return Err(said(format!("alpha={alpha} makes no sense: 0 (uniform) to 100 are possible")));
        }
        if rate == 0 || phase == 0 {
            return Err(said("rate= and phase= are 1 or more"));
        }
        let name = pattern.to_owned();
        let pattern = match pattern {
            "zipf" => Pattern::Zipf { alpha },
            "uniform" => Pattern::Uniform,
            "scan" => Pattern::Scan,
            "loop" => Pattern::Loop,
            "phased" => Pattern::Phased { alpha, length: phase },
            "mixed" => Pattern::Mixed { alpha, mix: mix.parse().map_err(|e| said(format!("mix: {e}")))? },
            other => {
                return Err(said(format!("{other:?} is no load; take zipf, uniform, scan, loop, phased or mixed")));
            }
        };
        let writes = part("writes", writes)?;
        Ok(Self { name, from: From::Synth { pattern, keys, requests, rate, writes, seed } })
    }

    /// Arrays, which are copied.
    #[staticmethod]
    fn arrays(columns: Columns<'_>, name: String) -> PyResult<Self> {
        Ok(Self { name, from: From::Arrays(Arc::new(columns.accesses()?)) })
    }

    /// What it is called: the path, the pattern, or as was said.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Bytes that one block stands for, as far as the trace says.
    #[getter]
    fn block_bytes(&self, py: Python<'_>) -> PyResult<Option<u32>> {
        let From::File { path, options } = &self.from else { return Ok(None) };
        if let Some(bytes) = options.block_bytes {
            return Ok(Some(bytes));
        }
        // A pipe would not come again.
        if !path.is_file() {
            return Ok(None);
        }
        let blocks = py.detach(|| TraceReader::open_with(path, options)).map_err(|e| of_trace(&e))?.blocks();
        Ok((blocks.unit == Unit::Bytes && !blocks.whole).then_some(blocks.block_bytes))
    }

    /// Refuses a trace whose accesses are no blocks of one size for caches whose sizes are in bytes.
    fn check_sized(&self, py: Python<'_>) -> PyResult<()> {
        let From::File { path, options } = &self.from else { return Ok(()) };
        if options.block_bytes.is_some() || !path.is_file() {
            return Ok(());
        }
        let sized = ReaderOptions { sized: true, keys_are_blocks: true, ..(**options).clone() };
        let blocks = |options: &ReaderOptions| {
            TraceReader::open_with(path, options).map(|r| r.blocks()).map_err(|e| of_trace(&e))
        };
        let (split, plain) = py.detach(|| Ok::<_, PyErr>((blocks(&sized)?, blocks(options)?)))?;
        if (split.unit, split.whole) == (plain.unit, plain.whole) {
            return Ok(());
        }
        Err(said(
            "each request of this trace is one access, however wide: open it with block_size= to have sizes in bytes, \
             or give sizes in blocks or in percent",
        ))
    }

    /// Whether it can be read only once.
    #[getter]
    fn only_once(&self) -> bool {
        matches!(&self.from, From::File { path, .. } if path.exists() && !path.is_file())
    }

    /// Accesses in dicts of arrays, `size` at a time.
    fn batches(&self, py: Python<'_>, size: usize) -> PyResult<Batches> {
        let accesses = py.detach(|| self.accesses())?;
        Ok(Batches { accesses: Mutex::new(accesses), size: size.clamp(1, 1 << 28) })
    }

    /// The summary of the trace, as JSON.
    #[pyo3(signature = (progress=None))]
    fn info(&self, py: Python<'_>, progress: Option<Py<PyAny>>) -> PyResult<String> {
        let mut watch = Watch::new(progress);
        let info = py.detach(|| self.summed_up(&mut watch));
        watch.done()?;
        serde_json::to_string(&info?).map_err(|e| said(e.to_string()))
    }
}

impl Source {
    /// From the beginning.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn accesses(&self) -> PyResult<Accesses> {
        Ok(match &self.from {
            From::File { path, options } => {
                Accesses::File(Box::new(TraceReader::open_with(path, options).map_err(|e| of_trace(&e))?))
            }
            &From::Synth { pattern, keys, requests, rate, writes, seed } => {
                Accesses::Synth { load: Box::new(Load::new(pattern, keys, rate, writes, seed)), left: requests }
            }
            From::Arrays(all) => Accesses::Arrays { all: all.clone(), at: 0 },
        })
    }

    /// The same as caches take them.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn references(&self) -> PyResult<impl Iterator<Item = Result<Reference, TraceError>> + use<>> {
        Ok(self.accesses()?.map(|a| a.map(Reference::from)))
    }

    /// What it is called.
    pub fn called(&self) -> &str {
        &self.name
    }

    /// Whether a second pass is possible.
    pub fn reads_again(&self) -> bool {
        !self.only_once()
    }

    fn summed_up(&self, watch: &mut Watch) -> PyResult<Info> {
        let mut requests = Vec::with_capacity(BATCH);
        let mut accesses = match self.accesses()? {
            Accesses::File(mut reader) => {
                let mut summary = Summary::new(reader.blocks());
                while reader.next_requests(&mut requests).map_err(|e| of_trace(&e))? > 0 {
                    summary.add(&requests);
                    if watch.look(summary.all.requests) == Go::Stop {
                        break;
                    }
                }
                return Ok(Info::of(&reader, &summary));
            }
            others => others.flatten(),
        };
        let mut summary = Summary::new(Blocks::KEYS);
        loop {
            requests.clear();
            requests.extend(accesses.by_ref().take(BATCH).map(|a| TraceRequest {
                time_ns: a.time_ns,
                address: a.block,
                bytes: a.bytes.into(),
                keys: 1,
                tenant: a.tenant,
                kind: a.kind,
            }));
            summary.add(&requests);
            if requests.len() < BATCH || watch.look(summary.all.requests) == Go::Stop {
                break;
            }
        }
        let mut tenants = Tenants::default();
        if summary.tenants.len() > 1 {
            for number in 0..summary.tenants.len() {
                tenants.add(&number.to_string()).map_err(said)?;
            }
        }
        let format = if matches!(self.from, From::Arrays(_)) { "arrays" } else { "synth" };
        Ok(Info::of_requests(&self.name, format, Blocks::KEYS, &tenants, &summary))
    }
}

/// Accesses in dicts of arrays.
#[pyclass(frozen, module = "undercroft._undercroft")]
pub(crate) struct Batches {
    accesses: Mutex<Accesses>,
    size: usize,
}

#[pymethods]
impl Batches {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let batch: Result<Vec<Access>, TraceError> = py.detach(|| {
            // A thread that panicked would have said so.
            let mut accesses = self.accesses.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            accesses.by_ref().take(self.size).collect()
        });
        let batch = batch.map_err(|e| of_trace(&e))?;
        if batch.is_empty() { Ok(None) } else { columns(py, &batch).map(Some) }
    }
}
