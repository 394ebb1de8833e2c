//! The traces of the ARC paper (Megiddo and Modha, FAST 2003): a line of four numbers, `start count ignored sequence`,
//! for a request for `count` blocks from `start` on.

use super::Sink;
use super::drive::Line;
use super::fields::{decimal, number, words};
use crate::Kind;
use crate::access::Request;
use crate::blocks::REQUEST_KEYS_MAX;

pub(super) struct ArcLis;

impl Line for ArcLis {
    fn line(&mut self, line: &[u8], to: &mut Sink<'_>) -> Result<(), String> {
        let mut fields = words(line);
        let Some(start) = fields.next() else { return Ok(()) };
        let start = number(start, "start", decimal)?;
        let count = fields.next().ok_or("it has one number; expected are \"start count ignored sequence\"")?;
        let count = number(count, "count", decimal)?;
        if count > REQUEST_KEYS_MAX || start.checked_add(count).is_none() {
            return Err(format!("{count} blocks from {start} on are too many"));
        }
        if count == 0 {
            return Ok(());
        }
        to.key(Request { time_ns: 0, address: start, bytes: 0, keys: count as u32, tenant: 0, kind: Kind::Unknown })
    }
}
