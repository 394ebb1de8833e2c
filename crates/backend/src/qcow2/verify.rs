//! Verifies an image before the first write: whether every cluster that is in use is known to be in use.
//!
//! Owns the walk over all tables: refcounts, L1 and L2 tables of the disk and of its snapshots. Reads only, each table
//! once, with bounded memory. Invariant: in an image that passes, no cluster that allocation may return (refcount 0) is
//! in use, and a cluster that would be written in place has one owner; so writing to it damages nothing (decision
//! 0136).

use super::header::Header;
use super::references::{Clash, References};
use super::snapshots;
use std::io;
use undercroft_units::human_size;

/// Memory for counts: enough for 8 TiB of data in clusters of 64 KiB.
pub const COUNTS_BYTES_MAX: usize = 256 << 20;
/// L2 tables at most: their list takes 256 MiB then.
const L2_TABLES_MAX: usize = 32 << 20;
/// Bytes of an L1 table that are read at a time.
const PIECE_BYTES: u64 = 1 << 20;
/// Bits of an L1, L2 or refcount table entry that are an offset.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
/// The reference says that it is the only one.
const COPIED: u64 = 1 << 63;
const COMPRESSED: u64 = 1 << 62;
/// Bits of an L1 entry, of a refcount table entry, and of an L2 entry, that mean nothing.
const L1_RESERVED: u64 = 0x7f00_0000_0000_01ff;
const REFTABLE_RESERVED: u64 = 0x1ff;
const L2_RESERVED: u64 = 0x3f00_0000_0000_01fe;

/// Why an image is not written to.
#[derive(Debug)]
pub enum Failure {
    /// Its tables contradict each other; how.
    Inconsistent(String),
    /// It cannot be verified; why.
    Beyond(String),
    /// A table cannot be read.
    Io(io::Error),
    /// `progress` said so.
    Stopped,
}

/// What was found in an image that may be written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Clusters in use.
    pub clusters: u64,
    /// L2 tables, those of snapshots included.
    pub l2_tables: u64,
}

/// Verifies the image with this header, a file of `file_bytes`. `read(offset, bytes)` gives what is there, less where
/// the file ends. `progress(done, of)` is told about tables read, and stops the walk by answering false.
///
/// # Errors
/// Why the image must not be written to.
pub fn verify(
    header: &Header,
    file_bytes: u64,
    read: impl FnMut(u64, usize) -> io::Result<Vec<u8>>,
    progress: impl FnMut(u64, u64) -> bool,
) -> Result<Verified, Failure> {
    let mut walk = Walk {
        header,
        file_bytes,
        read,
        progress,
        references: References::new(COUNTS_BYTES_MAX),
        l2_tables: Vec::new(),
        shared: Vec::new(),
        done: 0,
        of: u64::from(header.reftable_clusters) + 1,
    };
    walk.own(0, header.cluster_bytes, "header")?;
    let refcount_blocks = walk.refcount_table()?;
    walk.l1_table(header.l1_offset, u64::from(header.l1_entries), true)?;
    let active = walk.l2_tables.len();
    for table in walk.snapshots()? {
        walk.l1_table(table.l1_offset, table.l1_entries, false)?;
    }
    walk.shared_tables()?;
    walk.of = walk.done + walk.l2_tables.len() as u64 + refcount_blocks.len() as u64;
    let mut tables = std::mem::take(&mut walk.l2_tables);
    // In the order of the file. Those of the disk itself came first, and are told apart.
    tables[..active].sort_unstable();
    tables[active..].sort_unstable();
    for (i, cluster) in tables.iter().enumerate() {
        walk.l2_table(*cluster, i < active)?;
    }
    let clusters = walk.refcounts(&refcount_blocks)?;
    Ok(Verified { clusters, l2_tables: tables.len() as u64 })
}

struct Walk<'a, R, P> {
    header: &'a Header,
    file_bytes: u64,
    read: R,
    progress: P,
    references: References,
    /// Clusters of all L2 tables, each once.
    l2_tables: Vec<u64>,
    /// Those of them that the disk is said to share with a snapshot.
    shared: Vec<u64>,
    done: u64,
    of: u64,
}

fn inconsistent<T>(what: String) -> Result<T, Failure> {
    Err(Failure::Inconsistent(what))
}

impl<R, P> Walk<'_, R, P>
where
    R: FnMut(u64, usize) -> io::Result<Vec<u8>>,
    P: FnMut(u64, u64) -> bool,
{
    /// Reads a table, all of it.
    fn table(&mut self, offset: u64, bytes: u64, what: &str) -> Result<Vec<u8>, Failure> {
        let table = (self.read)(offset, bytes as usize).map_err(Failure::Io)?;
        if table.len() as u64 != bytes {
            return inconsistent(format!("its {what} at {offset:#x} reaches past the end of the file"));
        }
        Ok(table)
    }

    fn step(&mut self) -> Result<(), Failure> {
        self.done += 1;
        if (self.progress)(self.done.min(self.of), self.of) { Ok(()) } else { Err(Failure::Stopped) }
    }

    /// Says what is wrong with a reference to `offset` by `what`.
    fn clash<T>(&self, clash: Clash, what: &str, offset: u64) -> Result<T, Failure> {
        match clash {
            Clash::Taken(by) => inconsistent(format!("its {what} at {offset:#x} is where {by} is")),
            Clash::TooMany => {
                Err(Failure::Beyond(format!("the cluster at {offset:#x} has too many references to count")))
            }
            Clash::TooLarge => Err(Failure::Beyond(format!(
                "counting its references would take more than {} of memory",
                human_size(COUNTS_BYTES_MAX as u64)
            ))),
        }
    }

    /// Fails if bytes that are said to be somewhere are not in the file. Its last cluster may be cut short.
    fn inside(&self, offset: u64, bytes: u64, what: &str) -> Result<(), Failure> {
        let end = offset.saturating_add(bytes);
        if offset < self.file_bytes && end.saturating_sub(self.file_bytes) < self.header.cluster_bytes {
            return Ok(());
        }
        inconsistent(format!("its {what} at {offset:#x} is past the end of the file"))
    }

    /// Fails if a table is not at the start of a cluster inside the file.
    fn placed(&self, offset: u64, bytes: u64, what: &str) -> Result<(), Failure> {
        if !offset.is_multiple_of(self.header.cluster_bytes) {
            return inconsistent(format!("its {what} at {offset:#x} is not at the start of a cluster"));
        }
        self.inside(offset, bytes, what)
    }

    /// Enters the clusters of a table that nothing else refers to.
    fn own(&mut self, offset: u64, bytes: u64, what: &str) -> Result<(), Failure> {
        let size = self.header.cluster_bytes;
        for cluster in offset / size..offset.saturating_add(bytes).div_ceil(size) {
            if let Err(c) = self.references.own(cluster) {
                return self.clash(c, what, cluster * size);
            }
        }
        Ok(())
    }

    /// Walks the refcount table: where its blocks are, 0 for those that are missing.
    fn refcount_table(&mut self) -> Result<Vec<u64>, Failure> {
        const TABLE: &str = "refcount table";
        const BLOCK: &str = "refcount block";
        let (offset, size) = (self.header.reftable_offset, self.header.cluster_bytes);
        let bytes = u64::from(self.header.reftable_clusters) * size;
        self.placed(offset, bytes, TABLE)?;
        self.own(offset, bytes, TABLE)?;
        let table = self.table(offset, bytes, TABLE)?;
        let mut blocks: Vec<u64> = words(&table).collect();
        for &block in blocks.iter().filter(|b| **b != 0) {
            if block & REFTABLE_RESERVED != 0 {
                return inconsistent(format!("an entry of its refcount table, {block:#x}, has unknown bits"));
            }
            self.placed(block, size, BLOCK)?;
            self.own(block, size, BLOCK)?;
        }
        while blocks.last() == Some(&0) {
            blocks.pop();
        }
        self.step()?;
        Ok(blocks)
    }

    /// Walks an L1 table; `active` if it is that of the disk, not of a snapshot.
    fn l1_table(&mut self, offset: u64, entries: u64, active: bool) -> Result<(), Failure> {
        let what = if active { "L1 table" } else { "L1 table of a snapshot" };
        let l2 = if active { "L2 table" } else { "L2 table of a snapshot" };
        let bytes = entries * 8;
        if bytes == 0 {
            return Ok(());
        }
        self.placed(offset, bytes, what)?;
        self.own(offset, bytes, what)?;
        let mut at = 0;
        while at < bytes {
            let n = PIECE_BYTES.min(bytes - at);
            let piece = self.table(offset + at, n, what)?;
            at += n;
            for entry in words(&piece).filter(|e| *e != 0) {
                if entry & L1_RESERVED != 0 {
                    return inconsistent(format!("an entry of its {what}, {entry:#x}, has unknown bits"));
                }
                let table = entry & OFFSET;
                if table == 0 {
                    continue;
                }
                self.placed(table, self.header.cluster_bytes, l2)?;
                let cluster = table / self.header.cluster_bytes;
                if active && entry & COPIED == 0 {
                    self.shared.push(cluster);
                }
                match self.references.table(cluster, active && entry & COPIED != 0) {
                    Ok(true) if self.l2_tables.len() == L2_TABLES_MAX => {
                        return Err(Failure::Beyond("it has too many L2 tables".to_owned()));
                    }
                    Ok(true) => self.l2_tables.push(cluster),
                    Ok(false) => {}
                    Err(c) => return self.clash(c, l2, table),
                }
            }
        }
        self.step()
    }

    /// Fails if a table that is said to be shared is not. imago would copy it and take the COPIED flag from all of its
    /// entries, which QEMU calls an error in each.
    fn shared_tables(&mut self) -> Result<(), Failure> {
        let alone = self.shared.iter().find(|&&cluster| self.references.tables_at(cluster) == 1);
        match alone {
            None => Ok(()),
            Some(cluster) => {
                let at = cluster * self.header.cluster_bytes;
                inconsistent(format!("its L2 table at {at:#x} is said to be shared with a snapshot and is not"))
            }
        }
    }

    /// Reads the list of snapshots.
    fn snapshots(&mut self) -> Result<Vec<snapshots::Snapshot>, Failure> {
        const WHAT: &str = "snapshot table";
        let (offset, count) = (self.header.snapshots_offset, self.header.snapshots);
        if count == 0 {
            return Ok(Vec::new());
        }
        self.placed(offset, 1, WHAT)?;
        let read = &mut self.read;
        match snapshots::parse(count, |at, bytes| read(offset.saturating_add(at), bytes).map_err(Failure::Io))? {
            Ok((list, bytes)) => {
                self.inside(offset, bytes, WHAT)?;
                self.own(offset, bytes, WHAT)?;
                Ok(list)
            }
            Err(e) => inconsistent(e.to_string()),
        }
    }

    /// Walks an L2 table; `active` if it is reached from the disk itself.
    fn l2_table(&mut self, cluster: u64, active: bool) -> Result<(), Failure> {
        let size = self.header.cluster_bytes;
        let table = self.table(cluster * size, size, "L2 table")?;
        let times = self.references.tables_at(cluster);
        for entry in words(&table).filter(|e| *e != 0) {
            self.l2_entry(entry, times, active)?;
        }
        self.step()
    }

    /// Enters what one entry of an L2 table refers to.
    fn l2_entry(&mut self, entry: u64, times: u64, active: bool) -> Result<(), Failure> {
        let size = self.header.cluster_bytes;
        let bad = |why: &str| inconsistent(format!("an entry of an L2 table, {entry:#x}, {why}"));
        if entry & COMPRESSED != 0 {
            if entry & COPIED != 0 {
                return bad("is both compressed and written in place");
            }
            const WHAT: &str = "compressed data";
            let (offset, bytes) = compressed(entry, size);
            self.inside(offset, bytes, WHAT)?;
            for cluster in offset / size..(offset + bytes).div_ceil(size) {
                if let Err(c) = self.references.data(cluster, times, false) {
                    return self.clash(c, WHAT, offset);
                }
            }
            return Ok(());
        }
        if entry & L2_RESERVED != 0 {
            return bad("has unknown bits");
        }
        if entry & 1 != 0 && self.header.version < 3 {
            return bad("says zeroes, which version 2 has not");
        }
        let offset = entry & OFFSET;
        if offset == 0 {
            return Ok(());
        }
        self.placed(offset, size, "data")?;
        match self.references.data(offset / size, times, active && entry & COPIED != 0) {
            Ok(()) => Ok(()),
            Err(c) => self.clash(c, "data", offset),
        }
    }

    /// Compares all references with the refcounts. Returns the clusters in use.
    fn refcounts(&mut self, blocks: &[u64]) -> Result<u64, Failure> {
        let (size, bits) = (self.header.cluster_bytes, u64::from(self.header.refcount_bits));
        let per_block = size * 8 / bits;
        let references = std::mem::replace(&mut self.references, References::new(0));
        let (mut block, mut loaded, mut clusters) = (Vec::new(), None, 0);
        for r in references.all() {
            let at = r.cluster * size;
            let index = r.cluster / per_block;
            if loaded != Some(index) {
                block = match blocks.get(index as usize) {
                    None | Some(0) => Vec::new(),
                    Some(&offset) => self.table(offset, size, "refcount block")?,
                };
                loaded = Some(index);
                self.step()?;
            }
            let count = refcount(&block, r.cluster % per_block, bits);
            if count < r.count {
                let uses = r.count;
                return inconsistent(format!(
                    "the cluster at {at:#x} is in use ({uses} references) but its refcount is {count}, so a write \
                     could overwrite it"
                ));
            }
            if r.alone && r.count > 1 {
                let uses = r.count;
                return inconsistent(format!(
                    "the cluster at {at:#x} is said to have one owner but has {uses}, so a write to one would change \
                     the others"
                ));
            }
            clusters += 1;
        }
        Ok(clusters)
    }
}

/// The big-endian words of a table.
fn words(table: &[u8]) -> impl Iterator<Item = u64> {
    table.chunks_exact(8).map(|w| u64::from_be_bytes([w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]]))
}

/// Where compressed data is, in whole sectors, in an image with clusters of `cluster_bytes`.
fn compressed(entry: u64, cluster_bytes: u64) -> (u64, u64) {
    let shift = 62 - (cluster_bytes.trailing_zeros() - 8);
    let offset = entry & ((1 << shift) - 1);
    let sectors = (entry & (COMPRESSED - 1)) >> shift;
    (offset & !511, (sectors + 1) * 512)
}

/// Entry `i` of a refcount block whose entries have `bits` bits; 0 if there is no such block.
fn refcount(block: &[u8], i: u64, bits: u64) -> u64 {
    if bits < 8 {
        let byte = block.get((i * bits / 8) as usize).copied().unwrap_or(0);
        return u64::from(byte >> (i * bits % 8)) & ((1 << bits) - 1);
    }
    let bytes = (bits / 8) as usize;
    let entry = (i as usize).checked_mul(bytes).and_then(|at| block.get(at..at + bytes)).unwrap_or_default();
    entry.iter().fold(0, |n, b| n << 8 | u64::from(*b))
}
