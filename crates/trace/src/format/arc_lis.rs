//! The traces of the ARC paper (Megiddo and Modha, FAST 2003): a line of four numbers, `start count ignored sequence`,
//! for a request for `count` blocks from `start` on.

use super::drive::Line;
use super::fields::{decimal, number, words};
use super::sink::Sink;
use super::sniff::second;
use super::spec::{Beginning, Looks, Spec};
use crate::access::{AccessKind, TraceRequest};
use crate::blocks::{REQUEST_KEYS_MAX, RangeError, Unit};
use crate::damage::Damage;

pub(super) static SPEC: Spec = Spec {
    name: "arc-lis",
    about: "lines of start, count, 0, sequence (the ARC paper)",
    record: "`start count 0 sequence`",
    access: "each block named",
    endings: &["lis"],
    looks: Looks::Text(|lines| {
        let line = second(lines);
        words(line).count() == 4 && words(line).all(|w| decimal(w).is_some())
    }),
    begin: |_| Ok(Beginning::lines(Unit::Keys, ArcLis)),
    ..Spec::BASE
};

const ONE_NUMBER: Damage = Damage::Malformed("it has one number; expected are \"start count ignored sequence\"");

struct ArcLis;

impl Line for ArcLis {
    fn line(&mut self, line: &[u8], to: &mut Sink<'_>) -> Result<(), Damage> {
        let mut fields = words(line);
        let Some(start) = fields.next() else { return Ok(()) };
        let start = number(start, "start", decimal)?;
        let count = fields.next().ok_or(ONE_NUMBER)?;
        let count = number(count, "count", decimal)?;
        if count > REQUEST_KEYS_MAX || start.checked_add(count).is_none() {
            return Err(RangeError::Keys { first: start, count }.into());
        }
        if count == 0 {
            return Ok(());
        }
        to.key(TraceRequest {
            time_ns: 0,
            address: start,
            bytes: 0,
            keys: count as u32,
            tenant: 0,
            kind: AccessKind::Unknown,
        })
    }
}
