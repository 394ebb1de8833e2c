//! Regions of the SSD store that may say anything, with sums that hold: recovery believes no more than it may.
//!
//! Owns the target and a device in memory, never a parser. Invariant: as for all targets, a panic is a defect of the
//! store; so is a block that is served and is not what the image holds.

use highway::{HighwayHash, HighwayHasher, Key};
use std::io;
use std::sync::OnceLock;
use undercroft_cache::NoFaults;
use undercroft_cache::ssd::{
    Admission, BootId, Format, Hint, Identity, Known, Media, OwnerId, Region, Ssd, SsdDone, SsdFound, SsdIo, SsdIoKind,
    Stamp, StoreId, Verified,
};

pub(crate) const SEGMENT_BYTES: u32 = 256 << 10;
const SEGMENTS: usize = 6;
/// Where the parts of a region lie: header, two tables, segments.
const TABLES_AT: [usize; 2] = [64 << 10, 128 << 10];
const SEGMENTS_AT: usize = 256 << 10;
/// Bytes of a record of a table, of the head of a summary, of an entry of it.
const RECORD: usize = 256;
const SUMMARY_HEAD: usize = 192;
const ENTRY: usize = 12;
/// Blocks of each of the images, all of which are offered.
const BLOCKS: u64 = 90;
const IMAGES: u8 = 2;
/// Bytes of one change of the region in an input: part, place, what is written there.
const CHANGE: usize = 11;
/// Steps in which operations of the store have to end.
const STEPS_MAX: usize = 10_000;

/// A device in memory.
#[derive(Clone)]
pub(crate) struct Memory(pub(crate) Vec<u8>);

impl Media for Memory {
    fn bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        to.copy_from_slice(&self.0[offset as usize..][..to.len()]);
        Ok(())
    }

    fn write_at(&mut self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.0[offset as usize..][..from.len()].copy_from_slice(from);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Memory {
    fn execute(&mut self, io: &mut SsdIo) {
        let at = io.offset as usize;
        match io.kind {
            SsdIoKind::Read => {
                let mut from = &self.0[at..at + io.len as usize];
                for piece in io.buf.pieces_mut() {
                    let (now, rest) = from.split_at(piece.len());
                    piece.copy_from_slice(now);
                    from = rest;
                }
            }
            SsdIoKind::Write => io.buf.copy_to(&mut self.0[at..at + io.len as usize]),
            SsdIoKind::Flush => {}
            SsdIoKind::Discard => self.0[at..at + io.len as usize].fill(0),
        }
    }
}

/// What image `n` holds.
fn content(n: u8, block: u64) -> [u8; 4096] {
    let mut bytes = [n + 1; 4096];
    bytes[..8].copy_from_slice(&block.to_le_bytes());
    bytes
}

fn stamp(n: u8) -> Stamp {
    Stamp([n + 0x40; 64])
}

fn known(n: u8) -> Known {
    Known { identity: Identity([n + 1; 64]), stamp: Some(stamp(n)), blocks: 1 << 20 }
}

/// Has the store do what it wants done, until it wants nothing.
pub(crate) fn pump(ssd: &mut Ssd<NoFaults>, media: &mut Memory) {
    for _ in 0..STEPS_MAX {
        let Some(mut io) = ssd.next_io(0) else { return };
        media.execute(&mut io);
        ssd.io_done(SsdDone { id: io.id, device: io.device, buf: io.buf, is_done: true });
    }
    panic!("the store does not come to rest");
}

pub(crate) fn attach_all(ssd: &mut Ssd<NoFaults>) -> Vec<(u8, OwnerId)> {
    ssd.set_admission(Admission::All);
    (0..IMAGES)
        .filter_map(|n| {
            let (owner, _) = ssd.attach(&known(n)).ok()?;
            ssd.set_share(owner, 2 * BLOCKS);
            Some((n, owner))
        })
        .collect()
}

pub(crate) fn offer_all(ssd: &mut Ssd<NoFaults>, media: &mut Memory, owners: &[(u8, OwnerId)]) {
    for block in 0..BLOCKS {
        for (n, owner) in owners {
            let _ = ssd.offer(*owner, block, &content(*n, block), Hint::default(), 0);
        }
        if block % 8 == 0 {
            pump(ssd, media);
        }
    }
    pump(ssd, media);
}

pub(crate) fn stop(mut ssd: Ssd<NoFaults>, media: &mut Memory, owners: &[(u8, OwnerId)]) {
    let stamps: Vec<_> = owners.iter().map(|(n, owner)| (*owner, stamp(*n))).collect();
    ssd.stop(&stamps);
    pump(&mut ssd, media);
    assert!(ssd.is_stopped(), "an orderly stop does not end");
}

/// A region that a store has left in order, to begin with.
pub(crate) fn written() -> &'static Memory {
    static WRITTEN: OnceLock<Memory> = OnceLock::new();
    WRITTEN.get_or_init(|| {
        let mut media = Memory(vec![0; SEGMENTS_AT + SEGMENTS * SEGMENT_BYTES as usize]);
        let format = Format { store: StoreId([9; 16]), segment_bytes: SEGMENT_BYTES };
        let region = Region::format(&mut media, format, BootId([1; 16]), NoFaults).expect("a region of this size");
        let mut ssd = Ssd::new(vec![region]);
        let owners = attach_all(&mut ssd);
        offer_all(&mut ssd, &mut media, &owners);
        stop(ssd, &mut media, &owners);
        media
    })
}

/// Puts the sum of `bytes` where the store has it.
fn sum(store: &[u8; 16], bytes: &mut [u8]) {
    let half = |at: usize| u64::from_le_bytes(std::array::from_fn(|n| store[at + n]));
    let key = [half(0), half(8), 0x7ae1_6a3b_2f90_404f, 0x9ae1_6a3b_2f90_404f];
    bytes[8..16].fill(0);
    let sum = HighwayHasher::new(Key(key)).hash64(bytes);
    bytes[8..16].copy_from_slice(&sum.to_le_bytes());
}

/// Makes the sums right of everything that the store says about itself.
fn sum_all(media: &mut Memory) {
    let store: [u8; 16] = std::array::from_fn(|n| media.0[20 + n]);
    sum(&store, &mut media.0[..4096]);
    let count = |bytes: &[u8]| u32::from_le_bytes(std::array::from_fn(|n| bytes[36 + n])) as usize;
    for at in TABLES_AT {
        let table = &mut media.0[at..at + (64 << 10)];
        let len = count(table).saturating_add(1).saturating_mul(RECORD).min(table.len());
        sum(&store, &mut table[..len]);
    }
    for at in (0..SEGMENTS).map(|n| SEGMENTS_AT + n * SEGMENT_BYTES as usize) {
        let summary = &mut media.0[at..at + 4096];
        if summary.starts_with(b"UCSSDSUM") {
            let len = count(summary).saturating_mul(ENTRY).saturating_add(SUMMARY_HEAD).min(summary.len());
            sum(&store, &mut summary[..len]);
        }
    }
}

/// A change of each image, of blocks that the store has.
pub(crate) fn change_all(ssd: &mut Ssd<NoFaults>, media: &mut Memory, owners: &[(u8, OwnerId)]) {
    for (_, owner) in owners {
        ssd.change_begins(*owner, 3..9);
        pump(ssd, media);
        ssd.take_released(&mut Vec::new());
        ssd.change_ended(*owner, 3..9);
    }
}

/// Changes the region as an input says: eight bytes anywhere in what the store says about itself, or one part of that
/// in the place of another.
fn change(media: &mut Memory, change: &[u8; CHANGE]) {
    let part = |n: u8| match usize::from(n) % (3 + SEGMENTS) {
        0 => 0,
        n @ (1 | 2) => TABLES_AT[n - 1],
        n => SEGMENTS_AT + (n - 3) * SEGMENT_BYTES as usize,
    };
    let (at, [low, high]) = (part(change[0] & 0x7f), [change[1], change[2]]);
    if change[0] & 0x80 != 0 {
        let from = part(change[1]);
        return media.0.copy_within(from..from + 4096, at);
    }
    let place = usize::from(u16::from_le_bytes([low, high])) % (4096 - 8);
    media.0[at + place..][..8].copy_from_slice(&change[3..]);
}

/// A region that somebody has written to, taken over by a store that then goes on with it. Bit 0 of the first byte has
/// the sums made right, bit 1 is another start of the host.
///
/// # Panics
/// If a block is found that is not what its image holds, the store does not come to rest or is not sound, or what it
/// leaves cannot be taken over.
pub fn ssd_region(data: &[u8]) {
    let Some((&flags, changes)) = data.split_first() else { return };
    let mut media = written().clone();
    changes.as_chunks::<CHANGE>().0.iter().for_each(|c| change(&mut media, c));
    if flags & 1 != 0 {
        sum_all(&mut media);
    }
    let boot = BootId([1 + (flags >> 1 & 1); 16]);
    let Ok((region, recovered)) = Region::recover(&mut media, SEGMENT_BYTES, boot, NoFaults) else { return };
    let slots = (SEGMENTS * SEGMENT_BYTES as usize / 4096) as u64;
    assert!(recovered.blocks <= slots, "more blocks than the region has room for");
    let mut ssd = Ssd::new(vec![region]);
    let owners = attach_all(&mut ssd);
    look_at_all(&mut ssd, &mut media, &owners);
    // Goes on as if it were its own.
    change_all(&mut ssd, &mut media, &owners);
    offer_all(&mut ssd, &mut media, &owners);
    look_at_all(&mut ssd, &mut media, &owners);
    stop(ssd, &mut media, &owners);
    let again = Region::recover(&mut media, SEGMENT_BYTES, boot, NoFaults);
    assert!(again.is_ok(), "what the store left is not taken over: {:?}", again.err());
}

pub(crate) fn look_at_all(ssd: &mut Ssd<NoFaults>, media: &mut Memory, owners: &[(u8, OwnerId)]) {
    assert_eq!(ssd.wrong(), None);
    for (n, owner) in owners {
        for block in (0..BLOCKS + 4).chain([u64::from(u32::MAX), (1 << 40) - 1]) {
            let (offset, token) = match ssd.lookup(*owner, block) {
                None => continue,
                Some(SsdFound::Staged(bytes)) => {
                    assert_eq!(*bytes, content(*n, block), "block {block} of image {n}, in memory");
                    continue;
                }
                Some(SsdFound::Stored { offset, token, .. }) => (offset, token),
            };
            let mut bytes = [0; 4096];
            media.read_at(offset, &mut bytes).expect("memory");
            if ssd.verify(*owner, block, token, &bytes) == Verified::Good {
                assert_eq!(bytes, content(*n, block), "block {block} of image {n}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is forged here is believed: else the target would try sums alone.
    #[test]
    fn sums_here_are_the_store_s() {
        let mut media = written().clone();
        sum_all(&mut media);
        assert_eq!(media.0, written().0, "sums of what a store has written stay as they are");
        let (_, recovered) = Region::recover(&mut media, SEGMENT_BYTES, BootId([1; 16]), NoFaults).expect("a region");
        assert_eq!((recovered.blocks, recovered.owners), (u64::from(IMAGES) * BLOCKS, u64::from(IMAGES)));
    }
}
