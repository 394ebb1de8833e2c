//! Compares pages that are kept from guests with their images (`daemon.check_captures`): for tests, or if an error of
//! the cache is suspected.
//!
//! Owns the comparison and its counts. Never runs unless it was asked for, because it waits for the image. Invariant: a
//! page that differs is counted, logged and not kept.

use super::Disk;
use undercroft_host::FRAME_BYTES;

/// What was compared of a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compared {
    /// Blocks compared.
    pub blocks: u64,
    /// Of those, blocks that differed.
    pub wrong: u64,
}

/// A block in memory as direct I/O needs it.
#[repr(align(4096))]
struct Aligned([u8; FRAME_BYTES]);

/// Whether `bytes` may be kept for what the disk holds from byte `place` on: false if the image holds something else.
/// True where it cannot be read: then nothing is counted.
#[cold]
pub(super) fn with_image(disk: &mut Disk, place: u64, bytes: &[u8; FRAME_BYTES]) -> bool {
    let mut image = Aligned([0; FRAME_BYTES]);
    match disk.backend.read_now(place, &mut image.0) {
        None => return true,
        Some(Err(e)) => {
            tracing::warn!(disk = disk.name, place, "cannot be compared with its image: {e}");
            return true;
        }
        Some(Ok(())) => disk.compared.blocks += 1,
    }
    let same = image.0 == *bytes;
    if !same {
        disk.compared.wrong += 1;
        let at = image.0.iter().zip(bytes).position(|(a, b)| a != b).unwrap_or(0);
        tracing::error!(
            disk = disk.name,
            place,
            "a page of the guest was about to be kept for a block that differs from byte {at} on: it is not kept. This \
             is a fault of this program; set exclusive = \"off\" and report it"
        );
    }
    same
}
