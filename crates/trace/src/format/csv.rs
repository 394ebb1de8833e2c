//! CSV with a map of its columns, or with a first line of names: among others what [`crate::write`] writes.
//!
//! Owns which column is what. Quotes around a field are taken off, and
//! what stands between them is one field; there are no quotes within quotes.

use super::drive::Line;
use super::fields::{any_base, decimal, fixed_point, number, shown};
use super::{NS_PER_MS, NS_PER_S, NS_PER_US, Sink};
use crate::Kind;
use crate::access::Request;
use crate::blocks::{DISK_TENANTS_MAX, REQUEST_KEYS_MAX, SECTOR_BYTES, Unit};
use crate::options::{COLUMNS_MAX, Column, Csv};

/// What a column holds, and what one step of it is.
type Meaning = (Field, u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Time,
    Offset,
    Key,
    Keys,
    Size,
    Op,
    Tenant,
}

/// The names that first lines have, in lower case, and the unit where the name tells it (0: what the options say).
const NAMES: [(&str, Field, u64); 41] = [
    ("time_ns", Field::Time, 1),
    ("timestamp_ns", Field::Time, 1),
    ("time_us", Field::Time, NS_PER_US),
    ("timestamp_us", Field::Time, NS_PER_US),
    ("time_ms", Field::Time, NS_PER_MS),
    ("time_s", Field::Time, NS_PER_S),
    ("time", Field::Time, 0),
    ("timestamp", Field::Time, 0),
    ("ts", Field::Time, 0),
    ("offset_bytes", Field::Offset, 1),
    ("offset", Field::Offset, 0),
    ("address", Field::Offset, 0),
    ("addr", Field::Offset, 0),
    ("lba", Field::Offset, SECTOR_BYTES as u64),
    ("sector", Field::Offset, SECTOR_BYTES as u64),
    ("key", Field::Key, 1),
    ("block", Field::Key, 1),
    ("obj_id", Field::Key, 1),
    ("object", Field::Key, 1),
    ("id", Field::Key, 1),
    ("keys", Field::Keys, 1),
    ("blocks", Field::Keys, 1),
    ("count", Field::Keys, 1),
    ("length_bytes", Field::Size, 1),
    ("size_bytes", Field::Size, 1),
    ("bytes", Field::Size, 1),
    ("size", Field::Size, 0),
    ("length", Field::Size, 0),
    ("len", Field::Size, 0),
    ("obj_size", Field::Size, 0),
    ("sectors", Field::Size, SECTOR_BYTES as u64),
    ("nsectors", Field::Size, SECTOR_BYTES as u64),
    ("op", Field::Op, 0),
    ("kind", Field::Op, 0),
    ("type", Field::Op, 0),
    ("iotype", Field::Op, 0),
    ("rw", Field::Op, 0),
    ("opcode", Field::Op, 0),
    ("tenant", Field::Tenant, 0),
    ("disk", Field::Tenant, 0),
    ("volume", Field::Tenant, 0),
];

fn known(name: &[u8]) -> Option<Meaning> {
    NAMES.iter().find(|n| name.eq_ignore_ascii_case(n.0.as_bytes())).map(|n| (n.1, n.2))
}

/// Fields of a line.
struct Cells<'l> {
    rest: Option<&'l [u8]>,
    separator: u8,
}

fn cells(line: &[u8], separator: u8) -> Cells<'_> {
    Cells { rest: Some(line), separator }
}

impl<'l> Iterator for Cells<'l> {
    type Item = &'l [u8];

    #[inline]
    fn next(&mut self) -> Option<&'l [u8]> {
        let (mut rest, separator) = (self.rest.take()?, self.separator);
        let blank = separator == b' ';
        if blank {
            rest = rest.trim_ascii_start();
            if rest.is_empty() {
                return None;
            }
        }
        let ends = |c: &u8| if blank { *c == b' ' || *c == b'\t' } else { *c == separator };
        if let Some(within) = rest.strip_prefix(b"\"")
            && let Some(quote) = within.iter().position(|&c| c == b'"')
        {
            let after = &within[quote + 1..];
            self.rest = after.iter().position(ends).map(|n| &after[n + 1..]);
            return Some(&within[..quote]);
        }
        let end = rest.iter().position(ends);
        self.rest = end.map(|n| &rest[n + 1..]);
        Some(rest[..end.unwrap_or(rest.len())].trim_ascii())
    }
}

/// Whether the first line is of names.
pub(super) fn is_names(line: &[u8], separator: u8) -> bool {
    let of = |f: Field| cells(line, separator).any(|c| known(c).is_some_and(|k| k.0 == f));
    of(Field::Offset) || of(Field::Key)
}

pub(super) struct Table {
    options: Csv,
    separator: u8,
    /// What each column is; empty before the first line.
    columns: Vec<Option<Meaning>>,
    unit: Unit,
}

impl Table {
    pub fn new(options: &Csv, separator: u8, unit: Unit) -> Self {
        Table { options: options.clone(), separator, columns: Vec::new(), unit }
    }

    /// Learns the columns from the first line; whether that was of names.
    fn learn(&mut self, line: &[u8]) -> Result<bool, String> {
        let o = &self.options;
        let asked = [
            (&o.time, Field::Time, o.time_unit_ns),
            (&o.offset, Field::Offset, o.offset_unit),
            (&o.key, Field::Key, 1),
            (&o.keys, Field::Keys, 1),
            (&o.size, Field::Size, o.size_unit),
            (&o.op, Field::Op, 1),
            (&o.tenant, Field::Tenant, 1),
        ];
        let cells: Vec<&[u8]> = cells(line, self.separator).take(COLUMNS_MAX).collect();
        let mut columns = vec![None; cells.len()];
        let by_name = asked.iter().any(|(c, ..)| matches!(c, Some(Column::Name(_))));
        let none = asked.iter().all(|(c, ..)| c.is_none());
        let default_unit = |field: Field| asked.iter().find(|a| a.1 == field).map_or(1, |a| a.2);
        let mut names = by_name;
        if none {
            for (n, cell) in cells.iter().enumerate() {
                let Some((field, unit)) = known(cell) else { continue };
                let taken = columns.iter().flatten().any(|m: &Meaning| m.0 == field);
                if !taken {
                    columns[n] = Some((field, if unit == 0 { default_unit(field) } else { unit }));
                    names = true;
                }
            }
            if !names {
                columns[..1].fill(Some((Field::Key, 1)));
            }
        }
        for (column, field, unit) in asked {
            let at = match column {
                None => continue,
                Some(Column::Number(n)) if *n <= cells.len() => n - 1,
                Some(Column::Number(n)) => return Err(format!("it has {} columns, no column {n}", cells.len())),
                Some(Column::Name(name)) => {
                    let at = cells.iter().position(|c| c.eq_ignore_ascii_case(name.as_bytes()));
                    at.ok_or_else(|| format!("the first line, \"{}\", names no column {name}", shown(line)))?
                }
            };
            columns[at] = Some((field, unit));
        }
        if !none && !by_name {
            // numbered columns: a line of names has no number where the address should be
            let address = columns.iter().position(|c| matches!(c, Some((Field::Offset | Field::Key, _))));
            names = address.is_some_and(|n| !cells[n].first().is_some_and(u8::is_ascii_digit));
        }
        let has = |f: Field| columns.iter().flatten().any(|m| m.0 == f);
        let wanted = if self.unit == Unit::Bytes { Field::Offset } else { Field::Key };
        if !has(wanted) {
            return Err(format!(
                "\"{}\" names neither offsets nor keys; say which column is what, like time=1,offset=4,size=5,op=3",
                shown(line)
            ));
        }
        self.columns = columns;
        Ok(names)
    }
}

/// Whether a CSV file has offsets or keys, by its options and its first line.
pub(super) fn unit(options: &Csv, head: &[u8]) -> Unit {
    if options.offset.is_some() {
        return Unit::Bytes;
    }
    let line = head.split(|&c| c == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let offset = cells(line, options.separator_of(head)).any(|c| known(c).is_some_and(|k| k.0 == Field::Offset));
    let asked = [&options.time, &options.key, &options.size, &options.op, &options.tenant];
    if offset && asked.iter().all(|c| c.is_none()) { Unit::Bytes } else { Unit::Keys }
}

impl Line for Table {
    fn line(&mut self, line: &[u8], to: &mut Sink<'_>) -> Result<(), String> {
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
        if self.columns.is_empty() && self.learn(line)? {
            return Ok(());
        }
        let mut r = Request { time_ns: 0, address: 0, bytes: 0, keys: 1, tenant: 0, kind: Kind::Unknown };
        let mut left = self.columns.iter().flatten().count();
        for (cell, meaning) in cells(line, self.separator).zip(&self.columns) {
            let Some((field, unit)) = *meaning else { continue };
            left -= 1;
            let scaled = |n: u64, what: &str| {
                n.checked_mul(unit).ok_or_else(|| format!("the {what} of {n} is past what can be counted"))
            };
            match field {
                Field::Time => r.time_ns = number(cell, "time", |c| fixed_point(c, unit))?,
                Field::Offset => r.address = scaled(number(cell, "offset", any_base)?, "offset")?,
                Field::Key => r.address = number(cell, "key", any_base)?,
                Field::Size => r.bytes = scaled(number(cell, "size", any_base)?, "size")?,
                Field::Keys => {
                    let n = number(cell, "number of keys", decimal)?;
                    if n > REQUEST_KEYS_MAX {
                        return Err(format!("{n} keys in one request are too many"));
                    }
                    r.keys = n as u32;
                }
                Field::Op => {
                    r.kind = match cell.first() {
                        Some(b'r' | b'R' | b'0') => Kind::Read,
                        Some(b'w' | b'W' | b'1') => Kind::Write,
                        _ => Kind::Unknown,
                    }
                }
                Field::Tenant => r.tenant = to.tenant(cell, DISK_TENANTS_MAX)?,
            }
        }
        if left > 0 {
            return Err(format!("\"{}\" has too few columns", shown(line)));
        }
        match self.unit {
            Unit::Bytes => {
                // a trace without sizes has one sector or page a line
                r.bytes = if self.columns.iter().flatten().any(|m| m.0 == Field::Size) { r.bytes } else { 1 };
                to.bytes(r)
            }
            Unit::Keys => to.key(r),
        }
    }
}
