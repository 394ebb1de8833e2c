//! How often each cluster of a qcow2 image is referred to.
//!
//! Owns the counts while an image is verified, in memory of their own, which the kernel has back afterwards: the heap
//! would keep most of what a hostile image took. Never reads. Invariant: a cluster of the header, a refcount structure,
//! an L1 table or the snapshot table is referred to once; a cluster is an L2 table or data, never both.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use undercroft_host::{Arena, FRAME_BYTES, Frame};

/// Clusters whose counts are kept together, in a frame.
const PAGE: u64 = FRAME_BYTES as u64 / 2;
/// The count of a cluster that belongs to one table alone.
const OWNED: u16 = u16::MAX;
/// Set in the count of an L2 table.
const TABLE: u16 = 1 << 15;
/// Set if a reference says that it is the only one (QEMU's COPIED flag), so that writes go to the cluster in place.
const ALONE: u16 = 1 << 14;
/// References to one cluster that can be counted.
const COUNT_MAX: u64 = (ALONE - 2) as u64;

/// Why a reference cannot be entered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Clash {
    /// Something else is there; what.
    Taken(&'static str),
    /// More references than can be counted.
    TooMany,
    /// More memory than may be used.
    TooLarge,
}

/// One cluster that is referred to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Referred {
    pub cluster: u64,
    pub count: u64,
    /// A reference says that it is the only one.
    pub alone: bool,
}

/// Counts of references by cluster.
pub(super) struct References {
    pages: BTreeMap<u64, Frame>,
    /// Fresh frames are zeroes, and none goes back before the end.
    frames: Option<Arena>,
}

impl Drop for References {
    fn drop(&mut self) {
        for frame in std::mem::take(&mut self.pages).into_values() {
            let Some(frames) = &mut self.frames else { unreachable!("a frame of no arena") };
            frames.put(frame);
        }
    }
}

/// The place of a cluster's count in its page.
fn place(cluster: u64) -> std::ops::Range<usize> {
    let at = (cluster % PAGE) as usize * 2;
    at..at + 2
}

fn read(page: &Frame, cluster: u64) -> u16 {
    page.bytes()[place(cluster)].try_into().map_or(0, u16::from_ne_bytes)
}

impl References {
    /// No references yet; at most `bytes_max` bytes of counts.
    pub fn new(bytes_max: usize) -> Self {
        // Without address space for them, there is room for none.
        Self { pages: BTreeMap::new(), frames: Arena::new(bytes_max / FRAME_BYTES).ok() }
    }

    fn get(&self, cluster: u64) -> u16 {
        self.pages.get(&(cluster / PAGE)).map_or(0, |page| read(page, cluster))
    }

    fn set(&mut self, cluster: u64, n: u16) -> Result<(), Clash> {
        let page = match self.pages.entry(cluster / PAGE) {
            Entry::Occupied(page) => page.into_mut(),
            Entry::Vacant(page) => {
                let frame = self.frames.as_mut().and_then(Arena::take);
                page.insert(frame.ok_or(Clash::TooLarge)?)
            }
        };
        page.bytes_mut()[place(cluster)].copy_from_slice(&n.to_ne_bytes());
        Ok(())
    }

    /// Enters a cluster of a table that nothing else may refer to.
    pub fn own(&mut self, cluster: u64) -> Result<(), Clash> {
        match self.get(cluster) {
            0 => self.set(cluster, OWNED),
            n => Err(Clash::Taken(what(n))),
        }
    }

    /// Enters a reference of an L1 table to an L2 table; true if it is the first.
    pub fn table(&mut self, cluster: u64, alone: bool) -> Result<bool, Clash> {
        let n = self.get(cluster);
        let first = n == 0;
        if !first && (n == OWNED || n & TABLE == 0) {
            return Err(Clash::Taken(what(n)));
        }
        self.set(cluster, more(n | TABLE, 1, alone)?)?;
        Ok(first)
    }

    /// How many L1 entries refer to the L2 table at `cluster`.
    pub fn tables_at(&self, cluster: u64) -> u64 {
        count(self.get(cluster))
    }

    /// Enters `times` references to a data cluster.
    pub fn data(&mut self, cluster: u64, times: u64, alone: bool) -> Result<(), Clash> {
        let n = self.get(cluster);
        if n & TABLE != 0 {
            return Err(Clash::Taken(what(n)));
        }
        self.set(cluster, more(n, times, alone)?)
    }

    /// Every cluster that is referred to, in order.
    pub fn all(&self) -> impl Iterator<Item = Referred> {
        self.pages.iter().flat_map(|(page, counts)| {
            let clusters = page * PAGE..(page + 1) * PAGE;
            clusters
                .map(|cluster| (cluster, read(counts, cluster)))
                .filter(|(_, n)| *n != 0)
                .map(|(cluster, n)| Referred { cluster, count: count(n), alone: n == OWNED || n & ALONE != 0 })
        })
    }
}

fn what(n: u16) -> &'static str {
    match n {
        OWNED => "another table",
        n if n & TABLE != 0 => "an L2 table",
        _ => "data",
    }
}

fn count(n: u16) -> u64 {
    if n == OWNED { 1 } else { u64::from(n & (ALONE - 1)) }
}

/// A count with so many references more.
fn more(n: u16, times: u64, alone: bool) -> Result<u16, Clash> {
    let sum = count(n).saturating_add(times);
    if sum > COUNT_MAX {
        return Err(Clash::TooMany);
    }
    Ok(n & (TABLE | ALONE) | sum as u16 | if alone { ALONE } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_one_thing_and_counted() {
        let mut r = References::new(1 << 20);
        r.own(0).unwrap();
        assert_eq!(r.own(0), Err(Clash::Taken("another table")));
        assert_eq!(r.table(0, false), Err(Clash::Taken("another table")));
        assert_eq!(r.data(0, 1, false), Err(Clash::Taken("another table")));
        assert_eq!((r.table(5, false), r.table(5, true)), (Ok(true), Ok(false)));
        assert_eq!((r.tables_at(5), r.tables_at(6)), (2, 0));
        assert_eq!(r.data(5, 1, false), Err(Clash::Taken("an L2 table")));
        assert_eq!(r.own(5), Err(Clash::Taken("an L2 table")));
        r.data(9000, 3, false).unwrap();
        r.data(9000, 1, true).unwrap();
        assert_eq!(r.table(9000, false), Err(Clash::Taken("data")));
        let all: Vec<_> = r.all().map(|c| (c.cluster, c.count, c.alone)).collect();
        assert_eq!(all, [(0, 1, true), (5, 2, true), (9000, 4, true)]);
    }

    #[test]
    fn counts_and_memory_have_limits() {
        let mut r = References::new(2 * FRAME_BYTES);
        r.data(1, COUNT_MAX, false).unwrap();
        assert_eq!(r.data(1, 1, false), Err(Clash::TooMany));
        assert_eq!(r.data(2, u64::MAX, true), Err(Clash::TooMany));
        assert_eq!(r.all().next().unwrap().count, COUNT_MAX);
        r.data(1 << 40, 1, false).unwrap();
        assert_eq!(r.data(1 << 41, 1, false), Err(Clash::TooLarge));
    }
}
