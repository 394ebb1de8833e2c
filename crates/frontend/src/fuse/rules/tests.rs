//! That no message, whatever it holds, leads to a request outside of the disk.
//!
//! Owns no state. Invariant: what is answered to good messages is tested where they are answered (crate `porttest`).

use super::super::wire::{HEADER_BYTES, Header, opcode};
use super::*;
use proptest::prelude::*;

const SIZE: u64 = 1 << 20;

fn rules() -> FileRules {
    FileRules::new(&Geometry { align: 512, ..Geometry::new(SIZE + 100) }, 128)
}

#[test]
fn what_is_past_the_last_sector_is_no_part_of_the_file() {
    assert_eq!(rules().size_bytes, SIZE);
    let endless = Geometry { align: 1, ..Geometry::new(u64::MAX) };
    assert_eq!(FileRules::new(&endless, 1).size_bytes, i64::MAX as u64, "the kernel counts in signed numbers");
}

proptest! {
    #[test]
    fn every_verdict_lies_within_the_disk(
        code in 0u32..60, node in 0u64..3, len in 0usize..700, body in prop::collection::vec(any::<u8>(), 0..600),
        fields in prop::collection::vec(0u64..SIZE * 2, 8), honest in any::<bool>(),
    ) {
        // Numbers that mean something, before whatever follows.
        let mut bytes: Vec<u8> = fields.iter().flat_map(|n| n.to_ne_bytes()).collect();
        bytes.extend(body);
        bytes.truncate(len.min(BODY_BYTES_MAX));
        let whole = HEADER_BYTES + bytes.len();
        let header = Header { len: (whole + usize::from(!honest)) as u32, opcode: code, unique: 1, node };
        let inside = |offset: u64, len: u64| len > 0 && offset.checked_add(len).is_some_and(|end| end <= SIZE);
        match rules().judge(&header, &bytes, whole) {
            FileVerdict::Read { offset, len } | FileVerdict::Write { offset, len, .. } => {
                prop_assert!(honest && inside(offset, len.into()) && len as usize <= TRANSFER_BYTES_MAX);
            }
            FileVerdict::Zeroes { offset, len, .. }
            | FileVerdict::Warm { offset, len }
            | FileVerdict::Seek { offset, len, .. } => {
                prop_assert!(honest && inside(offset, len));
            }
            FileVerdict::Silence => prop_assert!(matches!(code, opcode::FORGET | opcode::BATCH_FORGET)),
            FileVerdict::Refuse(error) => prop_assert!((1..1000).contains(&error)),
            _ => prop_assert!(honest),
        }
    }
}
