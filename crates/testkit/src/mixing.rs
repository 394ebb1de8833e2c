//! Patterns of bytes that depend on a number and a place.
//!
//! Owns two functions. Never draws anything. Invariant: the same arguments give the same bytes.

/// The mixing step: a bijection of 64 bits.
#[inline]
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Fills `to` with bytes that depend on the number of a write and on their place `pos`.
pub(crate) fn plain_pattern(write: u64, pos: u64, to: &mut [u8]) {
    let key = mix(write);
    let word = |n: u64| (key ^ n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xff51_afd7_ed55_8ccd).to_le_bytes();
    let (mut at, mut pos) = (0, pos);
    while at < to.len() {
        let skip = (pos % 8) as usize;
        let n = (8 - skip).min(to.len() - at);
        to[at..at + n].copy_from_slice(&word(pos / 8)[skip..skip + n]);
        at += n;
        pos += n as u64;
    }
}
