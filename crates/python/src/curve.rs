//! Curves: made of a trace, and queried.
//!
//! Owns neither: `undercroft_study::curves` and the engine do. Invariant: a curve never changes.

use crate::error::{of_trace, said};
use crate::size::SizeArgument;
use crate::source::Source;
use crate::watch::Watch;
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use undercroft_engine::curve::Curve as Points;
use undercroft_engine::{AnyPolicyKind, PolicyKind, UnknownName};
use undercroft_study::curves::{
    Bars, CurveMethod, Estimate, EstimateOptions, Popularity, RequestBatch, Requests, Sampled, Window, WorkingSet,
    partitioned, shared,
};
use undercroft_study::sim::Go;
use undercroft_trace::AccessKind;
use undercroft_units::CacheSize;

/// Requests of a batch: some milliseconds of work.
const BATCH: usize = 1 << 16;

/// Misses by the size of a cache in blocks.
#[pyclass(frozen, module = "undercroft._undercroft")]
pub(crate) struct Curve(pub Points);

/// An array of sizes, whole.
fn slice<'a, T: numpy::Element>(array: &'a PyReadonlyArray1<'_, T>) -> PyResult<&'a [T]> {
    array.as_slice().map_err(|_| said("the array is not contiguous"))
}

fn all(curves: &[PyRef<'_, Curve>]) -> Vec<Points> {
    curves.iter().map(|c| c.0.clone()).collect()
}

/// Above 0, and a number.
fn positive(what: &str, x: f64) -> PyResult<f64> {
    if x.is_finite() && x > 0.0 { Ok(x) } else { Err(said(format!("{what} is {x}; give more than 0"))) }
}

#[pymethods]
impl Curve {
    /// Through points.
    #[new]
    fn new(requests: f64, sizes: PyReadonlyArray1<'_, u64>, misses: PyReadonlyArray1<'_, f64>) -> PyResult<Self> {
        let (sizes, misses) = (slice(&sizes)?, slice(&misses)?);
        if sizes.len() != misses.len() {
            return Err(said(format!("there are {} sizes and {} counts of misses", sizes.len(), misses.len())));
        }
        let finite = requests.is_finite() && misses.iter().all(|m| m.is_finite());
        if !finite || requests < 0.0 {
            return Err(said("requests and misses are finite, and requests are not negative"));
        }
        Ok(Self(Points::new(requests, sizes.iter().copied().zip(misses.iter().copied()))))
    }

    /// Of one LRU queue for all, if their requests come evenly mixed.
    #[staticmethod]
    fn shared(curves: Vec<PyRef<'_, Curve>>) -> Self {
        Self(shared(&all(&curves)))
    }

    /// Of all under the best division of the space.
    #[staticmethod]
    fn partitioned(curves: Vec<PyRef<'_, Curve>>) -> Self {
        Self(partitioned(&all(&curves)))
    }

    #[getter]
    fn requests(&self) -> f64 {
        self.0.requests()
    }

    /// The points: sizes and misses.
    fn points<'py>(&self, py: Python<'py>) -> (Bound<'py, PyArray1<u64>>, Bound<'py, PyArray1<f64>>) {
        let (sizes, misses) = self.0.points().iter().copied().unzip();
        (PyArray1::from_vec(py, sizes), PyArray1::from_vec(py, misses))
    }

    fn misses_at<'py>(&self, py: Python<'py>, sizes: PyReadonlyArray1<'_, u64>) -> PyResult<Bound<'py, PyArray1<f64>>> {
        let misses = slice(&sizes)?.iter().map(|&s| self.0.misses_at(s)).collect();
        Ok(PyArray1::from_vec(py, misses))
    }

    fn miss_ratio_at<'py>(
        &self,
        py: Python<'py>,
        sizes: PyReadonlyArray1<'_, u64>,
    ) -> PyResult<Bound<'py, PyArray1<f64>>> {
        let ratios = slice(&sizes)?.iter().map(|&s| self.0.miss_ratio_at(s)).collect();
        Ok(PyArray1::from_vec(py, ratios))
    }

    fn marginal(&self, size: u64, blocks: u64) -> f64 {
        self.0.marginal(size, blocks)
    }

    fn size_for(&self, misses: f64) -> Option<u64> {
        self.0.size_for(misses)
    }

    fn working_set(&self, slack: f64) -> PyResult<u64> {
        if slack.is_nan() {
            return Err(said("slack is no number"));
        }
        Ok(self.0.working_set(slack))
    }

    fn hull(&self) -> Self {
        Self(self.0.convex_hull())
    }

    fn scaled_to(&self, requests: f64) -> PyResult<Self> {
        Ok(Self(self.0.scaled_to(positive("requests", requests)?)))
    }

    fn stretched(&self, factor: f64) -> PyResult<Self> {
        Ok(Self(self.0.stretched(positive("factor", factor)?)))
    }
}

/// What sizes come to in blocks; parts are of `footprint`.
#[pyfunction]
pub(crate) fn blocks(sizes: Vec<SizeArgument>, block_bytes: u64, footprint: Option<u64>) -> PyResult<Vec<u64>> {
    let unknown = || said("a share of the footprint needs the footprint; give blocks or bytes");
    let one = |size: &SizeArgument| Ok(size.read()?.size.blocks(block_bytes, footprint).ok_or_else(unknown)?.max(1));
    sizes.iter().map(one).collect()
}

/// The arguments, parsed.
struct Asked {
    method: CurveMethod,
    policy: AnyPolicyKind,
    sizes: Vec<CacheSize>,
    block_bytes: u64,
    of: Requests,
    options: EstimateOptions,
    window: Option<Window>,
    zipf: bool,
}

/// The results of a pass.
struct Made {
    curve: Points,
    bars: Bars,
    sampled: Option<Sampled>,
    /// The sizes that were asked for, in blocks.
    sizes: Vec<u64>,
    requests: u64,
    writes: u64,
    footprint: Option<(u64, bool)>,
    popularity: Option<Popularity>,
    set: Option<WorkingSet>,
}

/// The curve of a trace, and what else was asked for of the same pass.
#[pyfunction]
#[pyo3(signature = (source, *, method, policy, sizes, block_bytes, rate, samples, seed, of, window, zipf, progress))]
#[expect(clippy::too_many_arguments, reason = "Python names them")]
pub(crate) fn estimate<'py>(
    py: Python<'py>,
    source: &Source,
    method: &str,
    policy: &str,
    sizes: Vec<SizeArgument>,
    block_bytes: u64,
    rate: f64,
    samples: Option<u32>,
    seed: u64,
    of: &str,
    window: Option<&str>,
    zipf: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<(Curve, Bound<'py, PyDict>)> {
    let of = match of {
        "all" => Requests::All,
        "reads" => Requests::Reads,
        "writes" => Requests::Writes,
        other => return Err(said(format!("of={other:?} counts nothing; take all, reads or writes"))),
    };
    if !(rate > 0.0 && rate <= 1.0) {
        return Err(said(format!("rate={rate} makes no sense: above 0 to 1 are possible")));
    }
    if samples.is_some_and(|n| n < 64) {
        return Err(said("samples= is 64 or more"));
    }
    let asked = Asked {
        method: method.parse().map_err(said)?,
        policy: policy.parse().map_err(|e: UnknownName| said(e.to_string()))?,
        sizes: sizes.iter().map(|s| s.read().map(|s| s.size)).collect::<PyResult<_>>()?,
        block_bytes,
        of,
        options: EstimateOptions { rate, samples, seed, footprint: None },
        window: window.map(str::parse).transpose().map_err(|e| said(format!("window: {e}")))?,
        zipf,
    };
    check(&asked)?;
    let mut watch = Watch::new(progress);
    let made = py.detach(|| make(source, &asked, &mut watch));
    watch.done()?;
    let made = made?;
    let dict = PyDict::new(py);
    dict.set_item("requests", made.requests)?;
    dict.set_item("writes", made.writes)?;
    dict.set_item("footprint_blocks", made.footprint.map(|f| f.0))?;
    dict.set_item("footprint_exact", made.footprint.is_some_and(|f| f.1))?;
    let errors = made.sizes.iter().map(|&size| made.bars.at(size)).collect();
    dict.set_item("errors", PyArray1::from_vec(py, errors))?;
    dict.set_item("sampled", made.sampled.map(|s| (s.count, s.of)))?;
    let enough_from = made.sampled.map_or(Some(0), |s| (s.too_few_below < u64::MAX).then_some(s.too_few_below));
    dict.set_item("enough_from_blocks", enough_from)?;
    dict.set_item("sizes", PyArray1::from_vec(py, made.sizes))?;
    dict.set_item("simulated", asked.method.needs_sizes(asked.policy))?;
    dict.set_item("zipf", made.popularity.and_then(|p| p.zipf()).map(|fit| law(py, &fit)).transpose()?)?;
    dict.set_item("windows", made.set.map(|set| windows(py, &set)).transpose()?)?;
    Ok((Curve(made.curve), dict))
}

fn law<'py>(py: Python<'py>, fit: &undercroft_study::curves::ZipfFit) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("alpha", fit.alpha)?;
    dict.set_item("error", fit.error)?;
    dict.set_item("distance", fit.distance)?;
    dict.set_item("ranks", fit.ranks)?;
    dict.set_item("part", fit.part)?;
    Ok(dict)
}

fn windows<'py>(py: Python<'py>, set: &WorkingSet) -> PyResult<Bound<'py, PyDict>> {
    let all = set.windows();
    let dict = PyDict::new(py);
    let column =
        |of: fn(&undercroft_study::curves::WindowCounts) -> u64| PyArray1::from_vec(py, all.iter().map(of).collect());
    dict.set_item("first_request", column(|w| w.first_request))?;
    dict.set_item("start_ns", column(|w| w.start_ns))?;
    dict.set_item("requests", column(|w| w.requests))?;
    dict.set_item("writes", column(|w| w.writes))?;
    dict.set_item("blocks", column(|w| w.blocks))?;
    dict.set_item("new_blocks", column(|w| w.new_blocks))?;
    Ok(dict)
}

fn check(asked: &Asked) -> PyResult<()> {
    let Asked { method, policy, of, options, .. } = asked;
    let name = method.name();
    if !method.knows(*policy) {
        return Err(said(format!(
            "{name} knows LRU only, not {policy}; take method=\"mini:{policy}\", or exact:{policy}"
        )));
    }
    if *of != Requests::All && (*policy != PolicyKind::Lru || *method != CurveMethod::Exact) {
        return Err(said("of= tells reads from writes for LRU by method=\"exact\" only; leave one out"));
    }
    if options.samples.is_some() && *method != CurveMethod::Shards {
        return Err(said("samples= is for method=\"shards\"; give the others a rate="));
    }
    Ok(())
}

/// Hands the trace to `each`, batch by batch, as long as the watch lets it.
fn read(source: &Source, watch: &mut Watch, mut each: impl FnMut(&RequestBatch)) -> PyResult<()> {
    let mut accesses = source.accesses()?;
    let mut batch = RequestBatch::default();
    let mut count = 0;
    loop {
        batch.clear();
        for access in accesses.by_ref().take(BATCH) {
            let access = access.map_err(|e| of_trace(&e))?;
            batch.push(access.block, access.kind == AccessKind::Write, access.time_ns);
        }
        each(&batch);
        count += batch.blocks.len() as u64;
        if batch.blocks.len() < BATCH || watch.look(count) == Go::Stop {
            return Ok(());
        }
    }
}

fn make(source: &Source, asked: &Asked, watch: &mut Watch) -> PyResult<Made> {
    let in_parts = asked.sizes.iter().any(|s| s.needs_footprint());
    let simulated = asked.method.needs_sizes(asked.policy);
    let mut known = None;
    let helps = asked.method.needs_footprint(asked.policy) && source.reads_again();
    if simulated && (in_parts || helps) {
        if !source.reads_again() {
            return Err(said("the trace can be read only once: give sizes in blocks or bytes"));
        }
        let mut popularity = Popularity::new();
        read(source, watch, |batch| popularity.observe(&batch.blocks))?;
        known = Some((popularity.footprint(), true));
    }
    let sizes = |footprint: u64| CacheSize::rising(&asked.sizes, asked.block_bytes, footprint);
    let begun = sizes(known.map_or(0, |k| k.0));
    let options = EstimateOptions { footprint: known.map(|k: (u64, bool)| k.0), ..asked.options };
    let mut estimate = Estimate::new(asked.method, asked.policy, asked.of, &begun, &options);
    let mut popularity = asked.zipf.then(Popularity::new);
    let mut set = asked.window.map(WorkingSet::new);
    let (mut requests, mut writes) = (0, 0);
    read(source, watch, |batch| {
        requests += batch.blocks.len() as u64;
        writes += batch.writes.iter().filter(|&&w| w).count() as u64;
        estimate.observe(batch);
        if let Some(popularity) = &mut popularity {
            popularity.observe(&batch.blocks);
        }
        if let Some(set) = &mut set {
            for (i, &block) in batch.blocks.iter().enumerate() {
                set.observe(block, batch.times[i], batch.writes[i]);
            }
        }
    })?;
    let exact = popularity.as_ref().map(|p| (p.footprint(), true)).or(set.as_ref().map(|s| (s.footprint(), true)));
    let footprint = known.or(exact).or(estimate.footprint());
    let sizes = if simulated { begun } else { sizes(footprint.map_or(0, |f| f.0)) };
    let curve = estimate.curve();
    let (bars, sampled) = (estimate.bars(&curve), estimate.sampled());
    Ok(Made { curve, bars, sampled, sizes, requests, writes, footprint, popularity, set })
}
