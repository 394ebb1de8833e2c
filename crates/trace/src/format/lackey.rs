//! Memory traces of Valgrind's Lackey (`valgrind --tool=lackey --trace-mem=yes`): `I  0401ab70,3` fetches an
//! instruction, ` L addr,size` loads, ` S addr,size` stores, ` M addr,size` loads and stores: two requests. Addresses
//! are hexadecimal, sizes decimal. Lines of Valgrind itself begin with `==`.

use super::Sink;
use super::drive::Line;
use super::fields::{decimal, hexadecimal, number, shown};
use crate::Kind;
use crate::access::Request;

pub(super) struct Lackey;

/// What a line says: letter, address, size.
pub(super) fn parts(line: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let line = line.trim_ascii();
    let (&letter, rest) = line.split_first()?;
    let rest = rest.strip_prefix(b" ")?.trim_ascii();
    let comma = rest.iter().position(|&c| c == b',')?;
    matches!(letter, b'I' | b'L' | b'S' | b'M').then_some((letter, &rest[..comma], &rest[comma + 1..]))
}

impl Line for Lackey {
    fn line(&mut self, line: &[u8], to: &mut Sink<'_>) -> Result<(), String> {
        if line.is_empty() || line.starts_with(b"==") || line.starts_with(b"--") {
            return Ok(());
        }
        let (letter, address, size) = parts(line)
            .ok_or_else(|| format!("\"{}\" is no line of Lackey: expected is like \" L 1ffeffe7e,8\"", shown(line)))?;
        let address = number(address, "address", hexadecimal)?;
        let bytes = number(size, "size", decimal)?;
        let of = |kind| Request { time_ns: 0, address, bytes, keys: 1, tenant: 0, kind };
        match letter {
            b'S' => to.bytes(of(Kind::Write)),
            b'M' => to.bytes(of(Kind::Read)).and_then(|()| to.bytes(of(Kind::Write))),
            _ => to.bytes(of(Kind::Read)),
        }
    }
}
