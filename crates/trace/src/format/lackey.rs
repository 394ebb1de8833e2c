//! Memory traces of Valgrind's Lackey (`valgrind --tool=lackey --trace-mem=yes`): `I  0401ab70,3` fetches an
//! instruction, ` L addr,size` loads, ` S addr,size` stores, ` M addr,size` loads and stores: two requests. Addresses
//! are hexadecimal, sizes decimal. Lines of Valgrind itself begin with `==`.

use super::drive::Line;
use super::fields::{decimal, hexadecimal, number, shown};
use super::sink::Sink;
use super::sniff::second;
use super::spec::{Beginning, Looks, Spec};
use crate::access::{AccessKind, TraceRequest};
use crate::blocks::Unit;
use crate::damage::Damage;

pub(super) static SPEC: Spec = Spec {
    name: "lackey",
    about: "Valgrind's Lackey with --trace-mem=yes",
    record: "Valgrind's `--tool=lackey --trace-mem=yes`",
    access: "each block (`--block-size 64` for cache lines)",
    endings: &["lackey"],
    looks: Looks::Text(|lines| {
        let says = lines.iter().any(|l| l.starts_with(b"==") && memchr::memmem::find(l, b"Lackey").is_some());
        let sound = |(_, address, size)| hexadecimal(address).is_some() && decimal(size).is_some();
        says || parts(second(lines)).is_some_and(sound)
    }),
    begin: |_| Ok(Beginning { own_disks: false, ..Beginning::lines(Unit::Bytes, Lackey) }),
    ..Spec::BASE
};

struct Lackey;

/// What a line says: letter, address, size.
fn parts(line: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let line = line.trim_ascii();
    let (&letter, rest) = line.split_first()?;
    let rest = rest.strip_prefix(b" ")?.trim_ascii();
    let comma = rest.iter().position(|&c| c == b',')?;
    matches!(letter, b'I' | b'L' | b'S' | b'M').then_some((letter, &rest[..comma], &rest[comma + 1..]))
}

impl Line for Lackey {
    fn line(&mut self, line: &[u8], to: &mut Sink<'_>) -> Result<(), Damage> {
        if line.is_empty() || line.starts_with(b"==") || line.starts_with(b"--") {
            return Ok(());
        }
        let kind = "line of Lackey: expected is like \" L 1ffeffe7e,8\"";
        let (letter, address, size) = parts(line).ok_or_else(|| Damage::Unknown { found: shown(line), kind })?;
        let address = number(address, "address", hexadecimal)?;
        let bytes = number(size, "size", decimal)?;
        let of = |kind| TraceRequest { time_ns: 0, address, bytes, keys: 1, tenant: 0, kind };
        match letter {
            b'S' => to.bytes(of(AccessKind::Write)),
            b'M' => to.bytes(of(AccessKind::Read)).and_then(|()| to.bytes(of(AccessKind::Write))),
            _ => to.bytes(of(AccessKind::Read)),
        }
    }
}
