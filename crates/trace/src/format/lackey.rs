//! Memory traces of Valgrind's Lackey (`valgrind --tool=lackey --trace-mem=yes`): `I  0401ab70,3` fetches an
//! instruction, ` L addr,size` loads, ` S addr,size` stores, ` M addr,size` loads and stores: two requests. Addresses
//! are hexadecimal, sizes decimal. Lines of Valgrind itself begin with `==`.

use super::drive::Line;
use super::fields::{decimal, hexadecimal, number, shown};
use super::memory::{Kind, access, packed};
use super::sink::Sink;
use super::sniff::second;
use super::spec::{Beginning, Looks, Spec};
use crate::blocks::Unit;
use crate::damage::Damage;
use crate::memory::MemoryRecords;

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
    begin: |told| Ok(Beginning { own_disks: false, ..Beginning::lines(Unit::Bytes, Lackey(told.memory)) }),
    ..Spec::BASE
};

struct Lackey(MemoryRecords);

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
        access(self.0, kind_of(letter), address, bytes, to)
    }
}

fn kind_of(letter: u8) -> Kind {
    match letter {
        b'I' => Kind::Fetch,
        b'S' => Kind::Store,
        b'M' => Kind::Modify,
        _ => Kind::Load,
    }
}

/// A line's access as a packed record; `None` for a line that has none.
pub fn packed_record(line: &[u8]) -> Option<u64> {
    let (letter, address, size) = parts(line)?;
    Some(packed(kind_of(letter), hexadecimal(address)?, decimal(size)?))
}
