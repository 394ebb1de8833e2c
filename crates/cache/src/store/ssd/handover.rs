//! A store that another process goes on with: told as bytes, and taken over from them.
//!
//! Owns the form. Never does I/O. Invariant: bytes that are not exactly what was written, whichever of them differ, are
//! refused as a whole; so are those of another form, and of regions of another size.

use super::bytes::{Reader, Writer};
use super::format::Layout;
use super::region::Region;
use super::store::{Attached, Ssd};
use super::types::{Identity, Known, OwnerId, Pinned, Stamp, StoreId};
use crate::fault_injection::FaultInjection;
use highway::{HighwayHash, HighwayHasher, Key};
use std::fmt;

/// The first bytes.
const MAGIC: &[u8; 8] = b"ucssdpas";
/// The form of what follows, and of what it means. Another program of the same form can go on with the store.
pub const HANDOVER_FORM: u32 = 3;
/// Stands for a region in which an owner has no number.
const NO_NUMBER: u32 = u32::MAX;

/// Why a store is not taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotTakenOver {
    /// It is not what was written.
    Damaged,
    /// It has another form.
    Form,
    /// Its devices or segments have other sizes.
    Layout,
}

impl fmt::Display for NotTakenOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NotTakenOver::Damaged => "what is told of the SSD store is damaged",
            NotTakenOver::Form => "the SSD store is told by another version of the program",
            NotTakenOver::Layout => "the SSD store has other devices, or segments of another size",
        })
    }
}

impl std::error::Error for NotTakenOver {}

/// HighwayHash with a key of zeroes: against damage, not against those who may write it.
fn sum(bytes: &[u8]) -> u64 {
    HighwayHasher::new(Key([0; 4])).hash64(bytes)
}

/// A stamp, or that there is none.
pub(super) fn write_stamp(to: &mut Writer, stamp: Option<Stamp>) {
    to.u8(stamp.is_some().into()).bytes(&stamp.map_or([0; 64], |stamp| stamp.0));
}

/// The same, read.
pub(super) fn read_stamp(from: &mut Reader<'_>) -> Option<Option<Stamp>> {
    let (is_some, bytes) = (from.flag()?, from.array()?);
    Some(is_some.then_some(Stamp(bytes)))
}

impl<F: FaultInjection> Ssd<F> {
    /// Has what is under way end, and nothing else begin. No change may be under way, and none come.
    pub fn rest(&mut self) {
        self.regions.iter_mut().for_each(Region::rest);
    }

    /// Whether it has come to that.
    pub fn is_at_rest(&self) -> bool {
        // Of changes that wait, none is left: those that were given up while they waited do not matter.
        self.regions.iter().all(Region::is_at_rest)
    }

    /// The end of the rest.
    pub fn go_on(&mut self) {
        self.regions.iter_mut().for_each(Region::go_on);
    }

    /// All of it for another process; `None` if it is not at rest. This store must not go on when the other one does.
    pub fn hand_over(&self) -> Option<Vec<u8>> {
        if !self.is_at_rest() {
            return None;
        }
        let mut to = Writer::with(MAGIC);
        to.u32(HANDOVER_FORM).u32(self.regions.len() as u32);
        self.regions.iter().for_each(|region| region.hand_over(&mut to));
        to.u32(self.owners.len() as u32);
        for owner in &self.owners {
            to.u8(owner.is_some().into());
            let Some(Attached { known, share, numbers, .. }) = owner else { continue };
            to.bytes(&known.identity.0).u64(known.blocks).u64(*share);
            write_stamp(&mut to, known.stamp);
            numbers.iter().for_each(|n| _ = to.u32(n.map_or(NO_NUMBER, u32::from)));
        }
        let sum = sum(&to.0);
        to.u64(sum);
        Some(to.0)
    }

    /// The store of another process, at rest, with the owners it had under their names there. Its regions have these
    /// sizes and sizes of segments, in bytes.
    ///
    /// # Errors
    /// The bytes are not what was told of such a store.
    pub fn take_over(bytes: &[u8], regions: &[(u64, u32)], faults: F) -> Result<Self, NotTakenOver> {
        let (body, said) = bytes.split_last_chunk::<8>().ok_or(NotTakenOver::Damaged)?;
        if !body.starts_with(MAGIC) || sum(body) != u64::from_le_bytes(*said) {
            return Err(NotTakenOver::Damaged);
        }
        let mut from = Reader(&body[MAGIC.len()..]);
        if from.u32() != Some(HANDOVER_FORM) {
            return Err(NotTakenOver::Form);
        }
        let layouts: Option<Vec<_>> = regions.iter().map(|(bytes, segment)| Layout::new(*bytes, *segment)).collect();
        let layouts = layouts.filter(|all| !all.is_empty() && from.u32() == Some(all.len() as u32));
        let layouts = layouts.ok_or(NotTakenOver::Layout)?;
        let mut told = Vec::new();
        for layout in layouts {
            if !Region::<F>::is_of(&from, layout) {
                return Err(NotTakenOver::Layout);
            }
            told.push(Region::take_over(&mut from, layout, faults).ok_or(NotTakenOver::Damaged)?);
        }
        let mut ssd = Self::new(told);
        ssd.take_owners(&mut from).filter(|()| from.0.is_empty()).ok_or(NotTakenOver::Damaged)?;
        Ok(ssd)
    }

    /// What is known of an owner, as it was told when that was attached.
    pub fn known(&self, owner: OwnerId) -> Option<&Known> {
        self.owners.get(usize::from(owner.0))?.as_ref().map(|attached| &attached.known)
    }

    /// All owners that are attached.
    pub(crate) fn attached(&self) -> Vec<OwnerId> {
        (0..self.owners.len() as u16).map(OwnerId).filter(|owner| self.has_owner(*owner)).collect()
    }

    /// Names of the regions, in the order of the devices.
    pub fn names(&self) -> Vec<StoreId> {
        self.regions.iter().map(Region::store).collect()
    }

    /// Blocks of an image that nobody has attached: they are there for whoever comes with it, if it is unchanged.
    pub fn kept_of(&self, identity: &Identity) -> u64 {
        self.regions.iter().map(|region| region.kept_of(identity)).sum()
    }

    /// Whether somebody has this name.
    pub fn has_owner(&self, owner: OwnerId) -> bool {
        self.owners.get(usize::from(owner.0)).is_some_and(Option::is_some)
    }

    fn take_owners(&mut self, from: &mut Reader<'_>) -> Option<()> {
        for _ in 0..from.u32().filter(|n| *n <= 1 << 16)? {
            if !from.flag()? {
                self.owners.push(None);
                continue;
            }
            let (identity, blocks, share) = (Identity(from.array()?), from.u64()?, from.u64()?);
            let known = Known { identity, stamp: read_stamp(from)?, blocks };
            let mut numbers = Vec::with_capacity(self.regions.len());
            for region in &self.regions {
                let number = from.u32()?;
                let number = if number == NO_NUMBER { None } else { Some(u16::try_from(number).ok()?) };
                number.is_none_or(|n| region.has_owner(n, &known)).then_some(())?;
                numbers.push(number);
            }
            let is_other = |a: &Attached| a.numbers.iter().zip(&numbers).all(|(a, b)| a.is_none() || a != b);
            self.owners.iter().flatten().all(is_other).then_some(())?;
            self.owners.push(Some(Attached { known, share, domain: 0, pins: Pinned::default(), numbers }));
        }
        Some(())
    }
}
