//! VMware vscsi traces (CloudPhysics), as libCacheSim's sample has them: little-endian binary records.
//!
//! Version 1 is 32 bytes: u32 serial number, u32 length in bytes, u32 scatter-gather elements, u16 command,
//! u16 version, u64 logical block number (512-byte sectors), u64 microseconds. Version 2 is 40 bytes: u16 command,
//! u16 version, u32 serial number, u32 length, u32 elements, u64 block number, u64 microseconds, u64 response time.
//! The high byte of the version tells them apart.
//!
//! A record counts as one access to its block number, whatever its length: the reference counts have it so.

use super::{Decode, Run};
use crate::error::Error;
use crate::input::Input;
use crate::{Access, Kind};

const NS_PER_US: u64 = 1000;

#[derive(Default)]
pub(super) struct Vscsi {
    version: Option<Version>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Version {
    One,
    Two,
}

impl Decode for Vscsi {
    fn next(&mut self, input: &mut Input<'_>) -> Result<Option<Run>, Error> {
        let Some(record) = input.bytes::<32>()? else { return Ok(None) };
        // a version 2 record has its number of elements where version 1 has the version; it is never that large
        let found = match (record[15], record[3]) {
            (1, _) => Version::One,
            (_, 2) => Version::Two,
            _ => return Err(input.damaged("it has neither version 1 nor 2 of the vscsi format".into())),
        };
        if *self.version.get_or_insert(found) != found {
            return Err(input.damaged("its version differs from that of the records before".into()));
        }
        let u16_at = |at: usize| u16::from_le_bytes(record[at..at + 2].try_into().expect("2 bytes"));
        let u32_at = |at: usize| u32::from_le_bytes(record[at..at + 4].try_into().expect("4 bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(record[at..at + 8].try_into().expect("8 bytes"));
        let (command, bytes) = match found {
            Version::One => (u16_at(12), u32_at(4)),
            Version::Two => {
                let _response_time = input.more::<8>()?;
                (u16_at(0), u32_at(8))
            }
        };
        let first =
            Access { time_ns: u64_at(24).saturating_mul(NS_PER_US), block: u64_at(16), bytes, kind: kind(command) };
        Ok(Some(Run { first, blocks: 1 }))
    }
}

/// Reads and writes among the SCSI commands.
fn kind(command: u16) -> Kind {
    match command {
        0x08 | 0x28 | 0x88 | 0xA8 => Kind::Read,
        0x0A | 0x2A | 0x8A | 0xAA | 0x2E | 0x8E | 0xAE => Kind::Write,
        _ => Kind::Unknown,
    }
}
