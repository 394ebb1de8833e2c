//! What is told of an SSD store to the process that goes on with it, saying anything, with a sum that holds.
//!
//! Owns the target, never a parser. Invariant: as for all targets, a panic is a defect of the store; so is a block that
//! is served and is not what the image holds.

use crate::regions::{Memory, SEGMENT_BYTES, attach_all, change_all, look_at_all, offer_all, pump, written};
use highway::{HighwayHash, HighwayHasher, Key};
use std::sync::OnceLock;
use undercroft_cache::NoFaults;
use undercroft_cache::ssd::{BootId, Media, OwnerId, Region, Ssd};

/// Bytes of one change in an input: the place, and what is written there.
const CHANGE: usize = 12;
/// Bytes of the sum at the end.
const SUM_BYTES: usize = 8;
/// Bytes before it that say which blocks are where (53 buckets of 80 bytes), and which owner has which number (a count,
/// and 150 bytes each). Entries that no summary on the device names, and whose sums are right, only this store's own
/// process could have told: what follows from them is not tried.
const INDEX_BYTES: usize = 53 * 80 + OWNERS_BYTES;
const OWNERS_BYTES: usize = 4 + 2 * 150;

/// What a store at rest has told, its device, and its owners with the numbers of their images.
type Told = (Vec<u8>, Memory, Vec<(u8, OwnerId)>);

fn told() -> &'static Told {
    static TOLD: OnceLock<Told> = OnceLock::new();
    TOLD.get_or_init(|| {
        let mut media = written().clone();
        let region = Region::recover(&mut media, SEGMENT_BYTES, BootId([1; 16]), NoFaults).expect("a region").0;
        let mut ssd = Ssd::new(vec![region]);
        let owners = attach_all(&mut ssd);
        ssd.change_begins(owners[0].1, 3..5);
        pump(&mut ssd, &mut media);
        ssd.take_released(&mut Vec::new());
        ssd.change_ended(owners[0].1, 3..5);
        ssd.rest();
        pump(&mut ssd, &mut media);
        (ssd.hand_over().expect("a store at rest"), media, owners)
    })
}

/// The bytes with the sum that they have.
fn summed(mut body: Vec<u8>) -> Vec<u8> {
    let sum = HighwayHasher::new(Key([0; 4])).hash64(&body);
    body.extend(sum.to_le_bytes());
    body
}

/// What a store at rest has told, with eight bytes changed in some places, and cut off at the last place that no value
/// follows; another process goes on with it if it is taken.
///
/// # Panics
/// If a block is found that is not what its image holds, or the store does not come to rest or is not sound.
pub fn ssd_handover(data: &[u8]) {
    let (told, media, owners) = told();
    let mut body = told[..told.len() - SUM_BYTES].to_vec();
    assert_eq!(&summed(body.clone()), told, "the sum here is the store's");
    let (changes, rest) = data.as_chunks::<CHANGE>();
    let index = body.len() - INDEX_BYTES..body.len() - OWNERS_BYTES;
    let mut is_index_told = true;
    for change in changes {
        let (place, value) = change.split_at(4);
        let place = u32::from_le_bytes(std::array::from_fn(|n| place[n])) as usize % (body.len() - value.len());
        is_index_told &= place + value.len() <= index.start || place >= index.end;
        body[place..place + value.len()].copy_from_slice(value);
    }
    if let Some(place) = rest.first_chunk::<4>() {
        body.truncate(u32::from_le_bytes(*place) as usize % body.len());
    }
    let sizes = [(media.bytes(), SEGMENT_BYTES)];
    let Ok(mut ssd) = Ssd::take_over(&summed(body), &sizes, NoFaults) else { return };
    let wanted = ssd.next_io(0).map(std::mem::ManuallyDrop::new);
    assert!(wanted.is_none(), "a store at rest wants something done");
    let mut media = media.clone();
    ssd.set_admission(undercroft_cache::ssd::Admission::All);
    ssd.go_on();
    let owners: Vec<_> = owners.iter().copied().filter(|(_, owner)| ssd.has_owner(*owner)).collect();
    look_at_all(&mut ssd, &mut media, &owners);
    if !is_index_told {
        return;
    }
    offer_all(&mut ssd, &mut media, &owners);
    change_all(&mut ssd, &mut media, &owners);
    ssd.rest();
    pump(&mut ssd, &mut media);
    assert!(ssd.hand_over().is_some(), "a store that goes on does not come to rest again");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is told here is believed: else the target would try refusals alone.
    #[test]
    fn what_is_told_is_taken_over() {
        let (told, media, owners) = told();
        let sizes = [(media.bytes(), SEGMENT_BYTES)];
        let ssd = Ssd::take_over(told, &sizes, NoFaults).expect("a store");
        assert!(owners.iter().all(|(_, owner)| ssd.owner_stats(*owner).blocks > 80));
        ssd_handover(&[]);
    }
}
