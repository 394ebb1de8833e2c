//! What a disk may contain: the model that every read, and the medium after a crash, is held against.
//!
//! Owns, for each 512-byte sector, the set of contents it may have now, and those it may still fall back to in a power
//! cut. Never looks at the cache or at the simulated medium, but for `restart`.
//!
//! What it allows, and nothing else:
//! - A read sees, in each sector, a content that was allowed at some moment between its start and its answer.
//! - A sector is written whole or not at all, also by a write that fails.
//! - While changes are under way, any of them may have been applied, each once, in any order.
//! - A change that was acknowledged has been applied. One that failed may have been, or not. A discard may have zeroed
//!   a sector, or not, also when it was acknowledged.
//! - What a read has seen stays: of several contents possible while nothing is under way, the first read decides.
//! - In a power cut a sector falls back to any content that was allowed since the last flush that was acknowledged had
//!   been *sent*; to none that lacks an acknowledged write with FUA.
//!
//! Time is a counter that grows with every event, so that "before" is never in doubt.

use crate::rng::{Rng, fill_pattern};
use crate::space::Space;
use std::rc::Rc;

/// Bytes of a sector.
pub const SECTOR: usize = 512;

const NOW: u64 = u64::MAX;

type Bytes = Rc<[u8; SECTOR]>;

/// What a change does to the bytes it covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Pattern number so-and-so.
    Data(u64),
    /// Zeroes.
    Zeroes,
    /// Zeroes, or nothing.
    Discard,
}

#[derive(Clone)]
struct State {
    bytes: Bytes,
    /// Which of the sector's changes under way are in it.
    applied: u8,
    /// Until when it was allowed; `NOW` if it is.
    until: u64,
    /// Whether a crash can no longer bring it back; it is kept for reads that started long ago.
    past: bool,
}

#[derive(Clone)]
struct Sector {
    states: Vec<State>,
    /// Changes under way; the place is the bit in `applied`.
    under_way: [u64; SLOTS],
    /// When a change last began or ended.
    changed: u64,
}

/// Changes of one sector that the model follows at a time.
const SLOTS: usize = 3;

struct UnderWay {
    id: u64,
    change: Change,
    offset: u64,
    len: u64,
}

/// The model of one disk.
pub struct Model {
    space: Rc<Space>,
    sectors: Vec<Sector>,
    under_way: Vec<UnderWay>,
}

impl Model {
    /// A disk with this content, which is durable.
    pub fn new(content: &[u8]) -> Self {
        Self::sparse(content, Space::dense(content.len() as u64))
    }

    /// A disk of which `space` says where on it the bytes of `content` are; the others are zeroes, and stay so.
    pub(crate) fn sparse(content: &[u8], space: Space) -> Self {
        let sectors = content
            .chunks(SECTOR)
            .map(|c| {
                let mut bytes = [0; SECTOR];
                bytes[..c.len()].copy_from_slice(c);
                let state = State { bytes: Rc::new(bytes), applied: 0, until: NOW, past: false };
                Sector { states: vec![state], under_way: [0; SLOTS], changed: 0 }
            })
            .collect();
        Self { space: Rc::new(space), sectors, under_way: Vec::new() }
    }

    /// The sectors that a range touches, of those that are kept.
    fn span(space: &Space, offset: u64, len: u64) -> impl Iterator<Item = usize> + '_ {
        let sectors = |(_, at, len): (u64, u64, u64)| at as usize / SECTOR..((at + len) as usize).div_ceil(SECTOR);
        space.kept(offset, len).flat_map(sectors)
    }

    /// Where on the disk a sector begins.
    fn start_of(&self, sector: usize) -> u64 {
        if self.space.is_dense() { (sector * SECTOR) as u64 } else { self.space.place((sector * SECTOR) as u64).0 }
    }

    /// Whether no change of a byte of the range is under way.
    pub fn is_quiet(&self, offset: u64, len: u64) -> bool {
        self.under_way.iter().all(|w| w.offset >= offset + len || w.offset + w.len <= offset)
    }

    /// One of the changes under way: where it begins.
    pub(crate) fn some_change(&self, rng: &mut Rng) -> Option<u64> {
        if self.under_way.is_empty() { None } else { Some(rng.pick(&self.under_way).offset) }
    }

    /// Whether the whole range may have read as zeroes at some moment since `start`.
    pub(crate) fn may_be_zero(&self, offset: u64, len: u64, start: u64) -> bool {
        self.space.kept(offset, len).all(|(_, at, len)| {
            let (from, to) = (at as usize, (at + len) as usize);
            (from / SECTOR..to.div_ceil(SECTOR)).all(|i| {
                let within = from.max(i * SECTOR) - i * SECTOR..to.min((i + 1) * SECTOR) - i * SECTOR;
                let zero = |s: &State| s.bytes[within.clone()].iter().all(|&b| b == 0);
                self.sectors[i].states.iter().any(|s| s.until >= start && zero(s))
            })
        })
    }

    /// Whether one more change of the range can be followed.
    pub fn has_room(&self, offset: u64, len: u64) -> bool {
        Self::span(&self.space, offset, len).all(|i| self.sectors[i].under_way.contains(&0))
    }

    /// Change number `id` (not 0) of a range begins.
    pub fn begin(&mut self, id: u64, change: Change, offset: u64, len: u64, now: u64) {
        self.under_way.push(UnderWay { id, change, offset, len });
        let space = self.space.clone();
        for i in Self::span(&space, offset, len) {
            let slot = self.sectors[i].under_way.iter().position(|&w| w == 0).expect("asked for room before");
            self.sectors[i].under_way[slot] = id;
            self.sectors[i].changed = now;
            // Every content allowed now, with the change; and those with changes that may follow it.
            let mut work: Vec<(Bytes, u8, usize)> = self.sectors[i]
                .states
                .iter()
                .filter(|s| s.until == NOW)
                .map(|s| (s.bytes.clone(), s.applied, slot))
                .collect();
            while let Some((bytes, applied, by)) = work.pop() {
                let id = self.sectors[i].under_way[by];
                let bytes = self.overlay(&bytes, id, i);
                let applied = applied | 1 << by;
                let sector = &mut self.sectors[i];
                for (next, &other) in sector.under_way.iter().enumerate() {
                    if other != 0 && applied & 1 << next == 0 {
                        work.push((bytes.clone(), applied, next));
                    }
                }
                sector.add(State { bytes, applied, until: NOW, past: false });
            }
        }
    }

    fn overlay(&self, old: &Bytes, id: u64, sector: usize) -> Bytes {
        let w = self.under_way.iter().find(|w| w.id == id).expect("a change under way");
        let start = self.start_of(sector);
        let lo = w.offset.max(start);
        let hi = (w.offset + w.len).min(start + SECTOR as u64);
        let mut bytes = **old;
        let part = &mut bytes[(lo - start) as usize..(hi - start) as usize];
        match w.change {
            Change::Data(n) => fill_pattern(n, lo, part),
            Change::Zeroes | Change::Discard => part.fill(0),
        }
        Rc::new(bytes)
    }

    /// Change `id` is over. `done` if it was acknowledged; `durable` if it had FUA.
    pub fn end(&mut self, id: u64, done: bool, durable: bool, now: u64) {
        let at = self.under_way.iter().position(|w| w.id == id).expect("a change under way");
        let w = self.under_way.swap_remove(at);
        let applied = done && w.change != Change::Discard;
        for i in Self::span(&self.space, w.offset, w.len) {
            let s = &mut self.sectors[i];
            let slot = s.under_way.iter().position(|&u| u == id).expect("a change under way");
            let bit = 1u8 << slot;
            s.under_way[slot] = 0;
            s.changed = now;
            if applied {
                for s in s.states.iter_mut().filter(|s| s.applied & bit == 0) {
                    s.until = s.until.min(now);
                    s.past |= durable;
                }
            }
            for st in std::mem::take(&mut s.states) {
                s.add(State { applied: st.applied & !bit, ..st });
            }
        }
    }

    /// Whether a read that started at `start` and is answered now may see `bytes` at `offset`.
    ///
    /// # Errors
    /// Which byte it may not have seen.
    pub fn check_read(&mut self, offset: u64, bytes: &[u8], start: u64, now: u64) -> Result<(), Contradiction> {
        let space = self.space.clone();
        for gap in space.pieces(offset, bytes.len() as u64).filter(|p| p.medium.is_none()) {
            if bytes[(gap.at - offset) as usize..][..gap.len as usize].iter().any(|&b| b != 0) {
                return Err(Contradiction::NotZero { offset, len: bytes.len() });
            }
        }
        for i in Self::span(&space, offset, bytes.len() as u64) {
            let at = self.start_of(i);
            let lo = offset.max(at);
            let hi = (offset + bytes.len() as u64).min(at + SECTOR as u64);
            let seen = &bytes[(lo - offset) as usize..(hi - offset) as usize];
            let within = (lo - at) as usize..(hi - at) as usize;
            let s = &mut self.sectors[i];
            let fits = |st: &State| st.bytes[within.clone()] == *seen;
            if !s.states.iter().any(|st| st.until >= start && fits(st)) {
                let old = s.states.iter().any(&fits);
                let head = |bytes: &[u8]| bytes[..8.min(bytes.len())].to_vec();
                let now = s.states.iter().filter(|st| st.until == NOW);
                return Err(Contradiction::Content {
                    offset,
                    len: bytes.len(),
                    sector: i,
                    what: if old { "an old content" } else { "a content that was never written there" },
                    saw: head(seen),
                    allowed: now.map(|st| head(&st.bytes[within.clone()])).collect(),
                    under_way: s.under_way.iter().filter(|&&w| w != 0).count(),
                });
            }
            if s.states.len() > 1 && s.changed < start && s.under_way == [0; SLOTS] {
                for st in s.states.iter_mut().filter(|st| st.until == NOW && !fits(st)) {
                    st.until = now;
                }
            }
        }
        Ok(())
    }

    /// A flush that was sent at `sent` has been acknowledged; the oldest read (or question for the
    /// allocation) under way started at `oldest_read`.
    pub fn flushed(&mut self, sent: u64, oldest_read: u64) {
        for s in self.sectors.iter_mut().filter(|s| s.states.len() > 1) {
            s.states.iter_mut().for_each(|st| st.past |= st.until < sent);
            s.states.retain(|st| !st.past || st.until >= oldest_read);
        }
    }

    /// The disk has lost what was volatile of a sector of its medium, and holds `medium` there now. No change of it is
    /// under way.
    ///
    /// # Errors
    /// Which sector has lost something that it must not.
    pub fn lose(&mut self, sector: usize, medium: &[u8], now: u64) -> Result<(), Contradiction> {
        let s = &mut self.sectors[sector];
        let Some(found) = s.states.iter().position(|st| !st.past && st.bytes[..medium.len()] == *medium) else {
            return Err(Contradiction::Lost { sector });
        };
        for (i, st) in s.states.iter_mut().enumerate() {
            st.until = if i == found { NOW } else { st.until.min(now) };
            st.past |= i != found;
        }
        s.changed = now;
        Ok(())
    }

    /// The power is back, and `medium` is what the disk now holds.
    ///
    /// # Errors
    /// Which sector has lost something that it must not.
    pub fn restart(&mut self, medium: &[u8], now: u64) -> Result<(), Contradiction> {
        for id in self.under_way.iter().map(|w| w.id).collect::<Vec<_>>() {
            self.end(id, false, false, now);
        }
        for (i, (s, c)) in self.sectors.iter_mut().zip(medium.chunks(SECTOR)).enumerate() {
            let found = s.states.iter().position(|st| !st.past && st.bytes[..c.len()] == *c);
            let Some(found) = found else {
                return Err(Contradiction::LostInCrash { sector: i });
            };
            let state = State { applied: 0, until: NOW, ..s.states.swap_remove(found) };
            s.states.clear();
            s.states.push(state);
            s.changed = now;
        }
        Ok(())
    }
}

/// How what the disk gave contradicts what was written to it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Contradiction {
    /// A read saw something where nothing was ever written.
    #[error("read of {len} bytes at {offset}: what was never written is not zero")]
    NotZero {
        /// First byte of the read.
        offset: u64,
        /// Its bytes.
        len: usize,
    },
    /// A read saw a content that it may not have seen.
    #[error(
        "read of {len} bytes at {offset}: sector {sector} has {what} ({saw:?}..., allowed {allowed:?}, {under_way} \
         changes under way)"
    )]
    Content {
        /// First byte of the read.
        offset: u64,
        /// Its bytes.
        len: usize,
        /// The first sector that is wrong.
        sector: usize,
        /// Whether it is what the sector held once, in words.
        what: &'static str,
        /// The first bytes of it.
        saw: Vec<u8>,
        /// Those that it might be.
        allowed: Vec<Vec<u8>>,
        /// Changes of the sector under way.
        under_way: usize,
    },
    /// A disk that lost what was volatile lost more than that.
    #[error("sector {sector} has lost acknowledged and flushed data")]
    Lost {
        /// Where.
        sector: usize,
    },
    /// A power cut took more than what was volatile.
    #[error("after the crash sector {sector} has lost acknowledged and flushed data")]
    LostInCrash {
        /// Where.
        sector: usize,
    },
}

impl Sector {
    /// Adds a state, or lets one that is the same live longer.
    fn add(&mut self, new: State) {
        let same =
            |s: &&mut State| s.applied == new.applied && (Rc::ptr_eq(&s.bytes, &new.bytes) || s.bytes == new.bytes);
        match self.states.iter_mut().find(same) {
            Some(s) => {
                s.until = s.until.max(new.until);
                s.past &= new.past;
            }
            None => self.states.push(new),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(write: u64, pos: u64, len: usize) -> Vec<u8> {
        let mut v = vec![0; len];
        fill_pattern(write, pos, &mut v);
        v
    }

    #[test]
    fn an_acknowledged_write_is_all_a_later_read_may_see() {
        let mut m = Model::new(&[0; 1024]);
        m.begin(1, Change::Data(1), 0, 512, 1);
        let (old, new) = (vec![0; 512], pattern(1, 0, 512));
        assert!(m.check_read(0, &old, 2, 3).is_ok() && m.check_read(0, &new, 2, 3).is_ok());
        m.end(1, true, false, 4);
        assert!(m.check_read(0, &old, 3, 5).is_ok(), "started before the acknowledgement");
        assert!(m.check_read(0, &old, 5, 6).is_err());
        assert!(m.check_read(0, &new, 5, 6).is_ok());
        assert!(m.check_read(512, &new, 5, 6).is_err(), "another place");
    }

    #[test]
    fn the_first_read_after_a_failed_write_decides() {
        let mut m = Model::new(&[0; 512]);
        m.begin(1, Change::Data(1), 0, 512, 1);
        m.end(1, false, false, 2);
        assert!(m.check_read(0, &pattern(1, 0, 512), 3, 4).is_ok());
        assert!(m.check_read(0, &[0; 512], 5, 6).is_err());
    }

    #[test]
    fn concurrent_writes_may_land_in_any_order_but_both_land() {
        let mut m = Model::new(&[0; 512]);
        m.begin(1, Change::Data(1), 0, 512, 1);
        m.begin(2, Change::Data(2), 0, 100, 2);
        m.end(1, true, false, 3);
        m.end(2, true, false, 4);
        let one = pattern(1, 0, 512);
        let mut both = one.clone();
        both[..100].copy_from_slice(&pattern(2, 0, 100));
        let mut only_two = vec![0; 512];
        only_two[..100].copy_from_slice(&both[..100]);
        assert!(m.check_read(0, &only_two, 5, 6).is_err());
        let mut n = Model { space: m.space.clone(), sectors: m.sectors.clone(), under_way: Vec::new() };
        assert!(n.check_read(0, &one, 5, 6).is_ok());
        assert!(m.check_read(0, &both, 5, 6).is_ok());
        assert!(m.check_read(0, &one, 7, 8).is_err(), "decided");
    }

    #[test]
    fn a_flush_makes_durable_what_was_acknowledged_before_it_was_sent() {
        let mut m = Model::new(&[0; 1024]);
        for (id, at) in [(1, 0), (2, 512)] {
            m.begin(id, Change::Data(id), at, 512, id);
        }
        m.end(1, true, false, 3);
        let sent = 4;
        m.end(2, true, false, 5);
        m.flushed(sent, u64::MAX);
        let both = [pattern(1, 0, 512), pattern(2, 512, 512)].concat();
        let mut lost_second = both.clone();
        lost_second[512..].fill(0);
        let mut lost_first = both.clone();
        lost_first[..512].fill(0);
        let fresh = |m: &Model| Model { space: m.space.clone(), sectors: m.sectors.clone(), under_way: Vec::new() };
        assert!(fresh(&m).restart(&both, 6).is_ok());
        assert!(fresh(&m).restart(&lost_second, 6).is_ok());
        assert!(fresh(&m).restart(&lost_first, 6).is_err());
    }

    #[test]
    fn fua_is_durable_alone() {
        let mut m = Model::new(&[0; 512]);
        m.begin(1, Change::Data(1), 0, 512, 1);
        m.end(1, true, true, 2);
        assert!(m.restart(&[0; 512], 3).is_err());
    }

    #[test]
    fn a_discard_leaves_old_or_zero() {
        let mut m = Model::new(&pattern(9, 0, 512));
        m.begin(1, Change::Discard, 0, 512, 1);
        m.end(1, true, false, 2);
        assert!(m.check_read(0, &[0; 512], 3, 4).is_ok());
        assert!(m.check_read(0, &pattern(9, 0, 512), 5, 6).is_err(), "zero was seen");
    }
}
