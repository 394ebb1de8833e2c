//! The traces of the ARC paper (Megiddo and Modha, FAST 2003): a line of four numbers, `start count ignored sequence`,
//! for a request for `count` blocks from `start` on.

use super::{Decode, Run};
use crate::error::Error;
use crate::input::Input;
use crate::{Access, Kind};

/// Blocks of one record at most: 512 GiB in pages. More is damage.
const BLOCKS_MAX: u64 = 1 << 27;

#[derive(Default)]
pub(super) struct ArcLis {
    line: Vec<u8>,
}

impl Decode for ArcLis {
    fn next(&mut self, input: &mut Input<'_>) -> Result<Option<Run>, Error> {
        loop {
            if input.line(&mut self.line)?.is_none() {
                return Ok(None);
            }
            let mut fields = self.line.split(u8::is_ascii_whitespace).filter(|f| !f.is_empty());
            let Some(start) = fields.next() else { continue };
            let start = number(start, input, "start")?;
            let count = match fields.next() {
                Some(count) => number(count, input, "count")?,
                None => {
                    return Err(
                        input.damaged("it has one number; expected are \"start count ignored sequence\"".into())
                    );
                }
            };
            if count > BLOCKS_MAX || start.checked_add(count).is_none() {
                return Err(input.damaged(format!("{count} blocks from {start} on are too many")));
            }
            if count > 0 {
                let first = Access { time_ns: 0, block: start, bytes: 0, kind: Kind::Unknown };
                return Ok(Some(Run { first, blocks: count }));
            }
        }
    }
}

fn number(field: &[u8], input: &Input<'_>, what: &str) -> Result<u64, Error> {
    std::str::from_utf8(field)
        .ok()
        .and_then(|f| f.parse().ok())
        .ok_or_else(|| input.damaged(format!("the {what} is \"{}\", not a number", field.escape_ascii())))
}
