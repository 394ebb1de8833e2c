//! CSV with a map of its columns, or with a first line of names: among others what [`crate::write`] writes, and what
//! libCacheSim does. Text with one key on each line is CSV of one column.
//!
//! Owns the reading of lines; `csv_columns` says which column is what. Quotes around a field are taken off, and
//! what stands between them is one field; there are no quotes within quotes.

use super::csv_columns::{Field, Layout, is_names};
use super::drive::Line;
use super::fields::{any_base, decimal, fixed_point, number, shown};
use super::sink::Sink;
use super::spec::{Beginning, Looks, Spec};
use crate::access::{AccessKind, TraceRequest};
use crate::blocks::{DISK_TENANTS_MAX, REQUEST_KEYS_MAX, Unit};
use crate::damage::Damage;
use crate::hashed::of_text;

pub(super) static SPEC: Spec = Spec {
    name: "csv",
    about: "CSV with names in the first line or a map of columns; or a key on each line",
    record: "names in the first line, or `--columns`",
    access: "each block, or the key",
    tenant: "`tenant` column",
    endings: &["csv", "tsv", "txt"],
    looks: Looks::Text(looks_like),
    begin: |told| {
        let mut layout = Layout::of(told.csv, told.head)?;
        let (unit, text, note) = (layout.unit(), layout.has(Field::Text), layout.note.take());
        let sizes = layout.first_size.is_some_and(|bytes| bytes > 1);
        Ok(Beginning { own_disks: true, sizes, text, note, ..Beginning::lines(unit, Table::new(layout, unit)) })
    },
    ..Spec::BASE
};

/// A line of names, or nothing but numbers. Names may be a comment, and come after others.
fn looks_like(lines: &[&[u8]]) -> bool {
    let named = |l: &[u8]| [b',', b'\t', b';', b' '].iter().any(|&s| is_names(l, s));
    let Some(begun) = lines.iter().find(|l| !l.starts_with(b"#") || named(l)) else { return false };
    named(begun) || lines.len() > 1 && lines.iter().all(|l| decimal(l).is_some())
}

/// Fields of a line.
pub(super) struct Cells<'l> {
    rest: Option<&'l [u8]>,
    separator: u8,
}

pub(super) fn cells(line: &[u8], separator: u8) -> Cells<'_> {
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

struct Table {
    layout: Layout,
    unit: Unit,
    /// Lines so far, up to the first request.
    lines: usize,
}

impl Table {
    fn new(layout: Layout, unit: Unit) -> Self {
        Table { layout, unit, lines: 0 }
    }
}

impl Line for Table {
    fn line(&mut self, line: &[u8], to: &mut Sink<'_>) -> Result<(), Damage> {
        if self.lines < self.layout.lines_before {
            self.lines += 1;
            return Ok(());
        }
        // A file of comments alone has no columns.
        if line.trim_ascii().is_empty() || self.layout.columns.is_empty() {
            return Ok(());
        }
        let Layout { columns, separator, .. } = &self.layout;
        let mut r = TraceRequest { time_ns: 0, address: 0, bytes: 0, keys: 1, tenant: 0, kind: AccessKind::Unknown };
        let mut left = columns.iter().flatten().count();
        for (cell, meaning) in cells(line, *separator).zip(columns) {
            let Some((field, unit)) = *meaning else { continue };
            left -= 1;
            let scaled = |found: u64, field| found.checked_mul(unit).ok_or(Damage::Uncountable { field, found });
            match field {
                Field::Time => r.time_ns = number(cell, "time", |c| fixed_point(c, unit))?,
                Field::Offset => r.address = scaled(number(cell, "offset", any_base)?, "offset")?,
                Field::Key => r.address = number(cell, "key", any_base).map_err(of_key)?,
                Field::Text => r.address = of_text(cell),
                Field::Size => r.bytes = scaled(number(cell, "size", any_base)?, "size")?,
                Field::Keys => {
                    let n = number(cell, "number of keys", decimal)?;
                    if n > REQUEST_KEYS_MAX {
                        return Err(Damage::TooManyKeys(n));
                    }
                    r.keys = n as u32;
                }
                Field::Op => {
                    r.kind = match cell.first() {
                        Some(b'r' | b'R' | b'0') => AccessKind::Read,
                        Some(b'w' | b'W' | b'1') => AccessKind::Write,
                        _ => AccessKind::Unknown,
                    }
                }
                Field::Tenant => r.tenant = to.tenant(cell, DISK_TENANTS_MAX)?,
            }
        }
        if left > 0 {
            return Err(Damage::TooFewColumns(shown(line)));
        }
        match self.unit {
            Unit::Bytes => {
                // a trace without sizes has one sector or page a line
                r.bytes = if self.layout.has(Field::Size) { r.bytes } else { 1 };
                to.bytes(r)
            }
            Unit::Keys => to.key(r),
        }
    }
}

#[cold]
fn of_key(damage: Damage) -> Damage {
    Damage::KeyNotANumber(Box::new(damage))
}
