//! The order in which imago's tables reach the file: a table's cluster counts as in use before anything names it.
//!
//! Owns what imago leaves open: it writes entries of the L1 table and of the refcount table at once, but the refcount
//! of what they name with the next flush; and it believes in an entry whose write failed. Never allocates, and writes
//! nothing but refcounts of 0 that must be 1, and entries that imago wrote before. Invariant: whenever the process
//! ends, every cluster that an entry of these two tables in the file names has a refcount in the file; and while an
//! entry that could not be written is missing there, nothing else is written.

use super::refcount::Place;
use imago::Storage;
use imago::StorageExt;
use imago::io_buffers::{IoBuffer, IoVector};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockWriteGuard};

/// Bits of an entry of the L1 table or of the refcount table that are an offset.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
/// An entry of the L1 table names a table that nothing else does.
const COPIED: u64 = 1 << 63;
/// Where a header has the place and the length of the refcount table.
const REFTABLE_POINTER: Range<u64> = 48..60;

/// Where an image has the tables whose entries imago writes one by one.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Where the L1 table is.
    pub l1_offset: u64,
    /// How many entries it has.
    pub l1_entries: u32,
    /// Where the refcount table is.
    pub reftable_offset: u64,
    /// How many clusters it has.
    pub reftable_clusters: u32,
    /// Bits of a refcount.
    pub refcount_bits: u32,
}

/// Why a write did not happen.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The file would not.
    Io(io::Error),
    /// No sound image leads to it; what it was.
    Senseless(&'static str),
}

impl From<io::Error> for Trouble {
    fn from(e: io::Error) -> Self {
        Self::Io(e)
    }
}

/// What is known of an image's tables in its file.
#[derive(Debug)]
pub(super) struct Order {
    cluster_bytes: u64,
    refcount_bits: u64,
    /// Bytes of the L1 table. It stays where it is: the fence lets no write to the header change that.
    l1: Range<u64>,
    /// A bit for each entry of the L1 table: it names, in the file, a table that nothing else does.
    own: Box<[AtomicU64]>,
    /// Whether something is owed. To look at without the lock.
    owes: AtomicBool,
    /// Held for reading by every write, so that who holds it for writing is alone with the file.
    state: RwLock<State>,
}

#[derive(Debug)]
struct State {
    /// Bytes of the refcount table.
    reftable: Range<u64>,
    /// Refcounts that must not be 0 in the file: those of clusters that an entry names, until imago has written them
    /// itself. A copy of the block that imago made before may still be on its way.
    pinned: BTreeSet<Place>,
    /// Entries that could not be written, by their place in the file. imago believes that they are there.
    owed: BTreeMap<u64, u64>,
    /// The place of the refcount table could not be written. What imago believes now is unknown.
    lost: bool,
}

impl Order {
    /// That of an image with this L1 table.
    pub fn new(cluster_bytes: u64, layout: &Layout, l1: &[u8]) -> Self {
        let own: Box<[AtomicU64]> = (0..u64::from(layout.l1_entries).div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        let order = Self {
            cluster_bytes,
            refcount_bits: u64::from(layout.refcount_bits),
            l1: layout.l1_offset..layout.l1_offset + u64::from(layout.l1_entries) * 8,
            own,
            owes: AtomicBool::new(false),
            state: RwLock::new(State {
                reftable: table(layout.reftable_offset, layout.reftable_clusters, cluster_bytes),
                pinned: BTreeSet::new(),
                owed: BTreeMap::new(),
                lost: false,
            }),
        };
        order.note_l1(l1, layout.l1_offset);
        order
    }

    /// Whether imago has to make an L2 table before something can be written to this range of the disk.
    pub fn lacks_table(&self, offset: u64, len: u64) -> bool {
        let span = self.cluster_bytes / 8 * self.cluster_bytes;
        let last = offset.saturating_add(len.saturating_sub(1)) / span;
        let owned =
            |i: u64| self.own.get((i / 64) as usize).is_some_and(|w| w.load(Ordering::Acquire) >> (i % 64) & 1 != 0);
        !(offset / span..=last).all(owned)
    }

    /// Whether entries are missing in the file because they could not be written.
    pub fn owes(&self) -> bool {
        self.owes.load(Ordering::Acquire)
    }

    /// Notes which entries of the L1 table, of those in `bytes` of the file at `offset`, name a table of their own.
    fn note_l1(&self, bytes: &[u8], offset: u64) {
        for (at, value) in entries(bytes, offset).filter(|(at, _)| self.l1.contains(at)) {
            if value & COPIED != 0 && value & OFFSET != 0 {
                let i = (at - self.l1.start) / 8;
                self.own[(i / 64) as usize].fetch_or(1 << (i % 64), Ordering::AcqRel);
            }
        }
    }

    fn alone(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a change of `range` that writes no table: beside others, but not beside a write of these tables.
    pub fn beside<S: Storage>(
        &self,
        file: &S,
        range: Range<u64>,
        change: impl FnOnce() -> io::Result<()>,
    ) -> Result<(), Trouble> {
        if self.owes() {
            self.pay(file)?;
        }
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        if self.concerns(&state, &range) {
            return Err(Trouble::Senseless("zeroing or discarding a table"));
        }
        Ok(change()?)
    }

    /// Writes; what names a cluster only after the cluster counts as in use.
    pub fn write<S: Storage>(&self, file: &S, bufv: IoVector<'_>, offset: u64) -> Result<(), Trouble> {
        if self.owes() {
            self.pay(file)?;
        }
        let range = offset..offset.saturating_add(bufv.len());
        {
            let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
            if !self.concerns(&state, &range) {
                // SAFETY: imago's promises for this call of it are passed on.
                return Ok(unsafe { file.pure_writev(bufv, offset) }?);
            }
        }
        let mut new = IoBuffer::new(bufv.len() as usize, file.mem_align().max(8))?;
        bufv.copy_into_slice(new.as_mut().into_slice());
        self.write_tables(&mut self.alone(), file, new, offset)
    }

    /// Whether a change of `range` is one of a table, or of a refcount that must not become 0.
    fn concerns(&self, state: &State, range: &Range<u64>) -> bool {
        let meets = |other: &Range<u64>| range.start < other.end && other.start < range.end;
        meets(&self.l1) || meets(&state.reftable) || meets(&REFTABLE_POINTER) || pinned(state, range).next().is_some()
    }

    /// Writes `new` over a part of the tables. What could not be written is owed.
    fn write_tables<S: Storage>(
        &self,
        state: &mut State,
        file: &S,
        mut new: IoBuffer,
        offset: u64,
    ) -> Result<(), Trouble> {
        let bytes = new.as_mut().into_slice();
        let range = offset..offset + bytes.len() as u64;
        for (&at, value) in state.owed.range(range.clone()) {
            bytes[(at - offset) as usize..][..8].copy_from_slice(&value.to_be_bytes());
        }
        let in_table = |at: &u64| self.l1.contains(at) || state.reftable.contains(at);
        let mut fresh: Vec<(u64, u64)> =
            entries(bytes, offset).filter(|(at, value)| in_table(at) && value & OFFSET != 0).collect();
        let done = self.write_fresh(state, file, &mut new, offset, &mut fresh);
        match &done {
            Ok(()) => {
                state.owed.retain(|at, _| !range.contains(at));
                self.note_l1(new.as_ref().into_slice(), offset);
            }
            // imago has entered them into its tables in memory before it wrote.
            Err(_) => state.owed.extend(fresh),
        }
        self.owes.store(state.lost || !state.owed.is_empty(), Ordering::Release);
        done
    }

    /// The steps of `write_tables`. Leaves in `fresh` the entries that are new.
    fn write_fresh<S: Storage>(
        &self,
        state: &mut State,
        file: &S,
        new: &mut IoBuffer,
        offset: u64,
        fresh: &mut Vec<(u64, u64)>,
    ) -> Result<(), Trouble> {
        let old = read(file, offset, new.len())?;
        let old = old.as_ref().into_slice();
        let was = |at: u64| word(old, (at - offset) as usize);
        fresh.retain(|&(at, value)| was(at) != value);
        for &(_, value) in fresh.iter() {
            self.secure(state, file, new, offset, (value & OFFSET) / self.cluster_bytes)?;
        }
        let bytes = new.as_mut().into_slice();
        let range = offset..offset + bytes.len() as u64;
        // A block as imago writes it, and not sectors that hold other tables beside a part of one.
        let block = offset.is_multiple_of(self.cluster_bytes) && bytes.len() as u64 == self.cluster_bytes;
        let mut settled = Vec::new();
        for place in pinned(state, &range) {
            match place.get(bytes, offset) {
                0 => place.set_one(bytes, offset),
                _ if block => settled.push(*place),
                _ => {}
            }
        }
        let pointer = (offset <= REFTABLE_POINTER.start && REFTABLE_POINTER.end <= range.end)
            .then(|| (pointer(old, offset), pointer(bytes, offset)))
            .filter(|(old, new)| old != new);
        // SAFETY: the range is one that imago asked for, or whole units of the file, and the buffer is aligned for it;
        // nothing else writes to the file now.
        let written = unsafe { file.pure_writev((&*new).into(), offset) };
        if let Some((_, (at, clusters))) = pointer {
            state.lost |= written.is_err();
            state.reftable = table(at, clusters, self.cluster_bytes);
        }
        written?;
        settled.iter().for_each(|place| _ = state.pinned.remove(place));
        Ok(())
    }

    /// Makes sure that a cluster counts as in use in the file, or will with the write of `new`, and stays so.
    fn secure<S: Storage>(
        &self,
        state: &mut State,
        file: &S,
        new: &mut IoBuffer,
        offset: u64,
        cluster: u64,
    ) -> Result<(), Trouble> {
        let range = offset..offset + new.len() as u64;
        let per_block = self.cluster_bytes * 8 / self.refcount_bits;
        let at = state.reftable.start.saturating_add(cluster / per_block * 8);
        if !state.reftable.contains(&at) {
            return Err(Trouble::Senseless("a table outside of what the refcounts cover"));
        }
        let entry = if range.contains(&at) {
            word(new.as_ref().into_slice(), (at - offset) as usize)
        } else if state.owed.contains_key(&at) {
            return Err(io::Error::other("the refcounts of a new table are not in the file yet").into());
        } else {
            word(read(file, at, 8)?.as_ref().into_slice(), 0)
        };
        if entry & OFFSET == 0 {
            return Err(Trouble::Senseless("a table in a cluster without a refcount"));
        }
        let place = Place::of(entry & OFFSET, cluster % per_block, self.refcount_bits);
        if range.contains(&place.byte) {
            let bytes = new.as_mut().into_slice();
            if place.get(bytes, offset) == 0 {
                place.set_one(bytes, offset);
            }
        } else {
            let start = place.byte / unit(file) * unit(file);
            let mut sector = read(file, start, unit(file) as usize)?;
            if place.get(sector.as_ref().into_slice(), start) == 0 {
                place.set_one(sector.as_mut().into_slice(), start);
                // SAFETY: one whole unit of the file, in a buffer aligned for it; nothing else writes to it now.
                unsafe { file.pure_writev((&sector).into(), start) }?;
            }
        }
        state.pinned.insert(place);
        Ok(())
    }

    /// Writes what is owed.
    pub fn pay<S: Storage>(&self, file: &S) -> Result<(), Trouble> {
        let mut state = self.alone();
        if state.lost {
            return Err(io::Error::other("the place of the refcount table could not be written").into());
        }
        while !state.owed.is_empty() {
            let before = state.owed.len();
            let mut why = None;
            // One may be in a cluster whose refcount another one brings, so as long as there are fewer.
            for at in state.owed.keys().copied().collect::<Vec<_>>() {
                let start = at / unit(file) * unit(file);
                let paid = read(file, start, unit(file) as usize)
                    .map_err(Trouble::Io)
                    .and_then(|now| self.write_tables(&mut state, file, now, start));
                why = paid.err().or(why);
            }
            match why {
                Some(why) if state.owed.len() >= before => return Err(why),
                _ => {}
            }
        }
        self.owes.store(false, Ordering::Release);
        Ok(())
    }
}

/// The refcounts in `range` that must not be 0.
fn pinned<'a>(state: &'a State, range: &Range<u64>) -> impl Iterator<Item = &'a Place> + use<'a> {
    state.pinned.range(Place::first_at(range.start)..Place::first_at(range.end.max(range.start)))
}

/// Bytes of a refcount table.
fn table(offset: u64, clusters: u32, cluster_bytes: u64) -> Range<u64> {
    offset..offset.saturating_add(u64::from(clusters) * cluster_bytes)
}

/// What is written to the file at a time.
fn unit<S: Storage>(file: &S) -> u64 {
    file.req_align().max(file.mem_align()).max(512) as u64
}

/// Reads; what is past the end of the file is 0.
fn read<S: Storage>(file: &S, offset: u64, len: usize) -> io::Result<IoBuffer> {
    let mut bytes = IoBuffer::new(len, file.mem_align().max(8))?;
    file.read(&mut bytes, offset)?;
    Ok(bytes)
}

/// The big-endian word at `at`; missing bytes count as 0.
fn word(bytes: &[u8], at: usize) -> u64 {
    (at..at + 8).fold(0, |n, i| n << 8 | u64::from(bytes.get(i).copied().unwrap_or(0)))
}

/// The words of `bytes`, which are in the file at `offset`, each with its place there.
fn entries(bytes: &[u8], offset: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..bytes.len() / 8).map(move |i| (offset + i as u64 * 8, word(bytes, i * 8)))
}

/// Place and length of the refcount table, in a piece of the header at `offset`.
fn pointer(bytes: &[u8], offset: u64) -> (u64, u32) {
    let at = (REFTABLE_POINTER.start - offset) as usize;
    (word(bytes, at), (word(bytes, at + 8) >> 32) as u32)
}
