//! Accesses as columns, for numpy.
//!
//! Owns the step from one to the other, in both directions. Never keeps an array of Python's: it may change under a
//! thread that does not hold the interpreter, so what comes in is copied. Invariant: the columns are of one length.

use crate::error::said;
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use undercroft_trace::{Access, AccessKind};

/// Columns that come in; all but the blocks may be left out.
#[derive(FromPyObject)]
pub(crate) struct Columns<'py> {
    #[pyo3(item)]
    block: PyReadonlyArray1<'py, u64>,
    #[pyo3(item)]
    write: Option<PyReadonlyArray1<'py, bool>>,
    #[pyo3(item)]
    time_ns: Option<PyReadonlyArray1<'py, u64>>,
    #[pyo3(item)]
    bytes: Option<PyReadonlyArray1<'py, u32>>,
    #[pyo3(item)]
    tenant: Option<PyReadonlyArray1<'py, u16>>,
}

/// The numbers of a column, `count` of them.
fn whole<'a, T: numpy::Element>(
    array: Option<&'a PyReadonlyArray1<'_, T>>,
    name: &str,
    count: usize,
) -> PyResult<Option<&'a [T]>> {
    let Some(array) = array else { return Ok(None) };
    let values = array.as_slice().map_err(|_| said(format!("the array of {name} is not contiguous")))?;
    if values.len() != count {
        let len = values.len();
        return Err(said(format!("there are {count} blocks and {len} of {name}; give arrays of one length")));
    }
    Ok(Some(values))
}

impl Columns<'_> {
    /// As accesses.
    ///
    /// # Errors
    /// Columns of different lengths.
    pub fn accesses(&self) -> PyResult<Vec<Access>> {
        let blocks = self.block.as_slice().map_err(|_| said("the array of blocks is not contiguous"))?;
        let count = blocks.len();
        let writes = whole(self.write.as_ref(), "writes", count)?;
        let times = whole(self.time_ns.as_ref(), "times", count)?;
        let bytes = whole(self.bytes.as_ref(), "bytes", count)?;
        let tenants = whole(self.tenant.as_ref(), "tenants", count)?;
        let access = |(i, &block): (usize, &u64)| Access {
            time_ns: times.map_or(0, |t| t[i]),
            block,
            bytes: bytes.map_or(0, |b| b[i]),
            tenant: tenants.map_or(0, |t| t[i]),
            kind: match writes {
                None => AccessKind::Unknown,
                Some(writes) if writes[i] => AccessKind::Write,
                Some(_) => AccessKind::Read,
            },
        };
        Ok(blocks.iter().enumerate().map(access).collect())
    }
}

/// As a dict of arrays. What a trace does not say is a read.
pub(crate) fn columns<'py>(py: Python<'py>, accesses: &[Access]) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let all = accesses.iter();
    dict.set_item("time_ns", PyArray1::from_vec(py, all.clone().map(|a| a.time_ns).collect()))?;
    dict.set_item("block", PyArray1::from_vec(py, all.clone().map(|a| a.block).collect()))?;
    dict.set_item("bytes", PyArray1::from_vec(py, all.clone().map(|a| a.bytes).collect()))?;
    dict.set_item("tenant", PyArray1::from_vec(py, all.clone().map(|a| a.tenant).collect()))?;
    dict.set_item("write", PyArray1::from_vec(py, all.map(|a| a.kind == AccessKind::Write).collect()))?;
    Ok(dict)
}
