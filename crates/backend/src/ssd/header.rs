//! The first sector of a file or device of the SSD store: whose it is, and how it is cut.
//!
//! Owns its bytes. Never reads or writes a device. Invariants: it lies in 512 bytes, which a disk writes as a whole or
//! not at all; any bytes give a header, an empty place, or the reason why they are neither.

use super::layout::Layout;

/// Bytes that are read and written of it: a unit of any device.
pub(super) const HEADER_BYTES: usize = 4096;
/// Bytes of it that say something.
const USED_BYTES: usize = 128;
const MAGIC: [u8; 16] = *b"undercroft ssd\r\n";
/// Of the header and of how a device is cut; what stands in a region has a version of its own.
const VERSION: u32 = 1;
/// Where the sum over what is before it stands.
const SUM_AT: usize = USED_BYTES - 8;

/// A number that tells the files and devices of one store from those of every other, made when they are.
pub type SetId = [u8; 16];

/// What a header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub id: SetId,
    pub layout: Layout,
}

/// What is at the start of a file or device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// Zeroes, or nothing at all.
    Empty,
    /// A header.
    Header(Header),
    /// A header of ours that this version does not understand, and why.
    Other(String),
    /// Something else.
    Foreign,
}

impl Header {
    /// The bytes of it, zeroes behind.
    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let l = &self.layout;
        let words = [VERSION, l.device, l.devices, l.regions];
        let longs = [l.first_byte, l.region_bytes, l.segment_bytes, l.used_bytes];
        let mut at = 0;
        let mut put = |part: &[u8]| {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        };
        put(&MAGIC);
        words.iter().for_each(|w| put(&w.to_le_bytes()));
        put(&self.id);
        longs.iter().for_each(|l| put(&l.to_le_bytes()));
        let sum = sum(&bytes[..SUM_AT]);
        bytes[SUM_AT..USED_BYTES].copy_from_slice(&sum.to_le_bytes());
        bytes
    }
}

/// What `bytes` at the start of a file or device are; there are fewer than a header has where it ends.
pub(super) fn decode(bytes: &[u8]) -> Start {
    if bytes.iter().all(|b| *b == 0) {
        return Start::Empty;
    }
    let Some(bytes) = bytes.get(..HEADER_BYTES).filter(|b| b[..MAGIC.len()] == MAGIC) else { return Start::Foreign };
    let word = |n: usize| u32::from_le_bytes(array(&bytes[16 + 4 * n..]));
    let long = |n: usize| u64::from_le_bytes(array(&bytes[48 + 8 * n..]));
    if word(0) != VERSION {
        return Start::Other(format!("it is of version {}, and this program knows {VERSION}", word(0)));
    }
    if u64::from_le_bytes(array(&bytes[SUM_AT..])) != sum(&bytes[..SUM_AT]) {
        return Start::Other("its first sector is damaged".to_owned());
    }
    let layout = Layout {
        device: word(1),
        devices: word(2),
        regions: word(3),
        first_byte: long(0),
        region_bytes: long(1),
        segment_bytes: long(2),
        used_bytes: long(3),
    };
    Start::Header(Header { id: array(&bytes[32..]), layout })
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    std::array::from_fn(|n| bytes[n])
}

/// FNV-1a of 64 bits: finds what a device mixed up, and is not meant against anybody.
fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, b| (sum ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        let layout = Layout::of(1 << 30, 2, 3, 4, 2 << 20);
        Header { id: *b"0123456789abcdef", layout }
    }

    #[test]
    fn a_header_comes_back_and_every_bit_of_it_counts() {
        let bytes = header().encode();
        assert_eq!(decode(&bytes), Start::Header(header()));
        for bit in 0..USED_BYTES * 8 {
            let mut other = bytes;
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(!matches!(decode(&other), Start::Header(_)), "bit {bit}");
        }
    }

    #[test]
    fn what_is_no_header_is_told() {
        assert_eq!(decode(&[]), Start::Empty);
        assert_eq!(decode(&[0; HEADER_BYTES]), Start::Empty);
        assert_eq!(decode(b"text"), Start::Foreign);
        assert_eq!(decode(&header().encode()[..512]), Start::Foreign, "cut off");
        let mut bytes = header().encode();
        bytes[16] = 9;
        assert!(matches!(decode(&bytes), Start::Other(why) if why.contains("version 9")));
        bytes[16] = 1;
        bytes[60] ^= 1;
        assert!(matches!(decode(&bytes), Start::Other(why) if why.contains("damaged")));
    }
}
