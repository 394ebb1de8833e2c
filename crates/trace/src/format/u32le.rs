//! Little-endian u32 block numbers and nothing else (the CloudPhysics traces as Caffeine's simulator has them).

use super::{Decode, Run};
use crate::error::Error;
use crate::input::Input;
use crate::{Access, Kind};

pub(super) struct U32Le;

impl Decode for U32Le {
    fn next(&mut self, input: &mut Input<'_>) -> Result<Option<Run>, Error> {
        let Some(bytes) = input.bytes::<4>()? else { return Ok(None) };
        let block = u64::from(u32::from_le_bytes(bytes));
        Ok(Some(Run { first: Access { time_ns: 0, block, bytes: 0, kind: Kind::Unknown }, blocks: 1 }))
    }
}
