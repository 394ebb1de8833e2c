//! How often each cluster of a qcow2 image is referred to.
//!
//! Owns the counts while an image is verified. Never reads. Invariant: a cluster of the header, a refcount structure,
//! an L1 table or the snapshot table is referred to once; a cluster is an L2 table or data, never both.

use std::collections::BTreeMap;

/// Clusters whose counts are kept together.
const PAGE: u64 = 4096;
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
#[derive(Debug)]
pub(super) struct References {
    pages: BTreeMap<u64, Box<[u16; PAGE as usize]>>,
    pages_max: usize,
}

impl References {
    /// No references yet; at most `bytes_max` bytes of counts.
    pub fn new(bytes_max: usize) -> Self {
        Self { pages: BTreeMap::new(), pages_max: (bytes_max / (PAGE as usize * 2)).max(1) }
    }

    fn at(&mut self, cluster: u64) -> Result<&mut u16, Clash> {
        if !self.pages.contains_key(&(cluster / PAGE)) && self.pages.len() == self.pages_max {
            return Err(Clash::TooLarge);
        }
        let page = self.pages.entry(cluster / PAGE).or_insert_with(|| Box::new([0; PAGE as usize]));
        Ok(&mut page[(cluster % PAGE) as usize])
    }

    /// Enters a cluster of a table that nothing else may refer to.
    pub fn own(&mut self, cluster: u64) -> Result<(), Clash> {
        let n = self.at(cluster)?;
        if *n != 0 {
            return Err(Clash::Taken(what(*n)));
        }
        *n = OWNED;
        Ok(())
    }

    /// Enters a reference of an L1 table to an L2 table; true if it is the first.
    pub fn table(&mut self, cluster: u64, alone: bool) -> Result<bool, Clash> {
        let n = self.at(cluster)?;
        let first = *n == 0;
        if !first && (*n == OWNED || *n & TABLE == 0) {
            return Err(Clash::Taken(what(*n)));
        }
        *n |= TABLE;
        add(n, 1, alone)?;
        Ok(first)
    }

    /// How many L1 entries refer to the L2 table at `cluster`.
    pub fn tables_at(&self, cluster: u64) -> u64 {
        let n = self.pages.get(&(cluster / PAGE)).map_or(0, |p| p[(cluster % PAGE) as usize]);
        count(n)
    }

    /// Enters `times` references to a data cluster.
    pub fn data(&mut self, cluster: u64, times: u64, alone: bool) -> Result<(), Clash> {
        let n = self.at(cluster)?;
        if *n & TABLE != 0 {
            return Err(Clash::Taken(what(*n)));
        }
        add(n, times, alone)
    }

    /// Every cluster that is referred to, in order.
    pub fn all(&self) -> impl Iterator<Item = Referred> {
        self.pages.iter().flat_map(|(page, counts)| {
            counts.iter().enumerate().filter(|(_, n)| **n != 0).map(move |(i, n)| Referred {
                cluster: page * PAGE + i as u64,
                count: count(*n),
                alone: *n == OWNED || n & ALONE != 0,
            })
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

fn add(n: &mut u16, times: u64, alone: bool) -> Result<(), Clash> {
    let sum = count(*n).saturating_add(times);
    if sum > COUNT_MAX {
        return Err(Clash::TooMany);
    }
    *n = *n & (TABLE | ALONE) | sum as u16 | if alone { ALONE } else { 0 };
    Ok(())
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
        let mut r = References::new(16384);
        r.data(1, COUNT_MAX, false).unwrap();
        assert_eq!(r.data(1, 1, false), Err(Clash::TooMany));
        assert_eq!(r.data(2, u64::MAX, true), Err(Clash::TooMany));
        assert_eq!(r.all().next().unwrap().count, COUNT_MAX);
        r.data(1 << 40, 1, false).unwrap();
        assert_eq!(r.data(1 << 41, 1, false), Err(Clash::TooLarge));
    }
}
