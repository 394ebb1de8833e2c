//! One pass of a trace through many caches, and the count of its blocks before.
//!
//! Owns neither: `undercroft_study::sim` does both. The answer is JSON, the very document that `undercroft sim --json`
//! prints.

use crate::error::{of_simulation, said};
use crate::size::SizeArgument;
use crate::source::Source;
use crate::watch::Watch;
use pyo3::prelude::*;
use std::time::Instant;
use undercroft_engine::PolicyKind;
use undercroft_study::sim::{
    Footprint, Go, Grid, Policies, Rule, SweepOptions, TraceRun, check_memory, sweep, without_repeats,
};

/// The distinct blocks of a trace, up to `limit` accesses.
#[pyfunction]
#[pyo3(signature = (source, *, limit=None, progress=None))]
pub(crate) fn footprint(
    py: Python<'_>,
    source: &Source,
    limit: Option<u64>,
    progress: Option<Py<PyAny>>,
) -> PyResult<u64> {
    let mut watch = Watch::new(progress);
    let counted = py.detach(|| count(source, limit, &mut watch))?;
    watch.done()?;
    Ok(counted.map_or(0, |f| f.blocks()))
}

fn count(source: &Source, limit: Option<u64>, watch: &mut Watch) -> PyResult<Option<Footprint>> {
    if !source.reads_again() {
        let name = source.called();
        return Err(said(format!(
            "{name} can be read only once, so its distinct blocks cannot be counted first; give them with footprint=, \
             or give sizes in bytes or blocks"
        )));
    }
    Ok(Footprint::of(source.references()?, limit, &mut |n| watch.look(n)))
}

/// What sizes come to in blocks, each with its text.
#[pyfunction]
#[pyo3(signature = (sizes, *, block_bytes, footprint))]
pub(crate) fn cells(
    sizes: Vec<SizeArgument>,
    block_bytes: u32,
    footprint: Option<u64>,
) -> PyResult<Vec<(String, u32)>> {
    let sizes = sizes.iter().map(SizeArgument::read).collect::<PyResult<Vec<_>>>()?;
    // the policy does not matter
    let grid = Grid { policies: &[PolicyKind::Lru.into()], sizes: &sizes, block_bytes };
    let cells = grid.cells(footprint).map_err(|e| of_simulation(&e))?;
    Ok(sizes.into_iter().map(|s| s.text).zip(cells.into_iter().map(|c| c.blocks)).collect())
}

/// Every policy at every size; the document, and the exception for what could not be read.
#[pyfunction]
#[pyo3(signature = (source, *, policies, sizes, block_bytes, memory_bytes, footprint=None, warm_up=0, limit=None,
                    jobs=None, progress=None))]
#[expect(clippy::too_many_arguments, reason = "Python names them")]
pub(crate) fn simulate(
    py: Python<'_>,
    source: &Source,
    policies: Vec<String>,
    sizes: Vec<SizeArgument>,
    block_bytes: u32,
    memory_bytes: u64,
    footprint: Option<u64>,
    warm_up: u64,
    limit: Option<u64>,
    jobs: Option<usize>,
    progress: Option<Py<PyAny>>,
) -> PyResult<(String, Option<PyErr>)> {
    let mut kinds: Vec<Rule> = vec![];
    for list in &policies {
        kinds.extend(list.parse::<Policies>().map_err(said)?.0);
    }
    let kinds = without_repeats(kinds);
    let sizes = sizes.iter().map(SizeArgument::read).collect::<PyResult<Vec<_>>>()?;
    if jobs.is_some_and(|n| !(1..=1024).contains(&n)) {
        return Err(said("jobs= is from 1 to 1024 threads"));
    }
    let grid = Grid { policies: &kinds, sizes: &sizes, block_bytes };
    let options = SweepOptions { jobs, warm_up, limit, memory_bytes: Some(memory_bytes) };
    let mut watch = Watch::new(progress);
    let run = py.detach(|| run(source, &grid, footprint, memory_bytes, &options, &mut watch));
    watch.done()?;
    let (run, broken) = run?;
    let document = serde_json::to_string(&run.document(block_bytes.into())).map_err(|e| said(e.to_string()))?;
    Ok((document, broken))
}

fn run(
    source: &Source,
    grid: &Grid<'_>,
    mut footprint: Option<u64>,
    memory_bytes: u64,
    options: &SweepOptions,
    watch: &mut Watch,
) -> PyResult<(TraceRun, Option<PyErr>)> {
    if footprint.is_none() && grid.needs_footprint() {
        // Without a count, the watch has an exception, which is raised instead of what is returned here.
        let counted = count(source, options.limit, watch)?.ok_or_else(|| said("stopped"))?;
        footprint = Some(counted.blocks());
    }
    let cells = grid.cells(footprint).map_err(|e| of_simulation(&e))?;
    check_memory(cells.iter().map(|c| c.blocks), memory_bytes).map_err(|e| of_simulation(&e))?;
    let began = Instant::now();
    let done = sweep(source.references()?, cells, options, &mut |n: u64| -> Go { watch.look(n) });
    let done = done.map_err(|e| of_simulation(&e))?;
    let run = TraceRun {
        name: source.called().to_owned(),
        footprint,
        accesses: done.accesses,
        seconds: began.elapsed().as_secs_f64(),
        complete: !done.stopped && done.broken.is_none(),
        broken: done.broken.as_ref().map(ToString::to_string),
        rows: grid.rows(&done.results),
    };
    Ok((run, done.broken.as_ref().map(of_simulation)))
}
