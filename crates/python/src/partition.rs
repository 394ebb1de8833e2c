//! The division of a memory among tenants, by their curves.
//!
//! Owns the way in and out: `undercroft_study::curves` searches.

use crate::curve::Curve;
use crate::error::said;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use undercroft_study::curves::partition::{Method, divide as divided, equal, misses, proportional};
use undercroft_study::curves::{Tenant, shared};

/// A tenant: name, curve, floor and ceiling in blocks.
type Who<'py> = (String, PyRef<'py, Curve>, u64, Option<u64>);

/// Divides `total` blocks: each tenant's part, and for comparison equal parts and parts by requests; misses of all.
#[pyfunction]
#[pyo3(signature = (tenants, total, *, method))]
pub(crate) fn divide<'py>(
    py: Python<'py>,
    tenants: Vec<Who<'py>>,
    total: u64,
    method: &str,
) -> PyResult<Bound<'py, PyDict>> {
    let method: Method = method.parse().map_err(said)?;
    let tenant = |(name, curve, floor, ceiling): Who<'_>| Tenant {
        name,
        curve: curve.0.clone(),
        floor,
        ceiling: ceiling.unwrap_or(u64::MAX),
    };
    let tenants: Vec<Tenant> = tenants.into_iter().map(tenant).collect();
    let parts = py.detach(|| {
        let parts = divided(&tenants, total, method)?;
        Ok((parts, equal(&tenants, total)?, proportional(&tenants, total)?))
    });
    let (parts, even, by_requests) =
        parts.map_err(|e: undercroft_study::curves::PartitionError| said(e.to_string()))?;
    let curves: Vec<_> = tenants.iter().map(|t| t.curve.clone()).collect();
    let dict = PyDict::new(py);
    dict.set_item("misses", misses(&tenants, &parts))?;
    dict.set_item("equal_misses", misses(&tenants, &even))?;
    dict.set_item("proportional_misses", misses(&tenants, &by_requests))?;
    dict.set_item("shared_queue_misses", py.detach(|| shared(&curves).misses_at(total)))?;
    dict.set_item("parts", parts)?;
    dict.set_item("equal", even)?;
    dict.set_item("proportional", by_requests)?;
    Ok(dict)
}
