//! What each column of a CSV file holds: by its map, by the names in its first line, or because there is only one.
//!
//! Owns the known names, and the note about the choice. Never reads a request. Invariant: a column is a key only by its
//! name, by an option, or as the only one; otherwise the error says what to specify.

use super::csv::cells;
use super::fields::{NS_PER_MS, NS_PER_S, NS_PER_US, any_base, fixed_point, is_number_too_large, shown};
use crate::blocks::{SECTOR_BYTES, Unit};
use crate::csv_map::{COLUMNS_MAX, Column, Csv};
use crate::input::HEAD_BYTES;
use crate::options_error::ColumnsError;

/// What a column holds, and what one step of it is.
pub(super) type Meaning = (Field, u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Time,
    Offset,
    /// Keys that are numbers.
    Key,
    /// Keys that are any text.
    Text,
    Keys,
    Size,
    Op,
    Tenant,
}

impl Field {
    fn name(self) -> &'static str {
        match self {
            Field::Time => "time",
            Field::Offset => "offset",
            Field::Key => "key",
            Field::Text => "key as text",
            Field::Keys => "number of keys",
            Field::Size => "size",
            Field::Op => "operation",
            Field::Tenant => "tenant",
        }
    }
}

/// The names that first lines have, in lower case, and the unit where the name tells it (0: what the options say).
const NAMES: [(&str, Field, u64); 46] = [
    ("time_ns", Field::Time, 1),
    ("timestamp_ns", Field::Time, 1),
    ("time_us", Field::Time, NS_PER_US),
    ("timestamp_us", Field::Time, NS_PER_US),
    ("time_ms", Field::Time, NS_PER_MS),
    ("time_s", Field::Time, NS_PER_S),
    ("time", Field::Time, 0),
    ("timestamp", Field::Time, 0),
    ("ts", Field::Time, 0),
    ("clock_time", Field::Time, 0),
    ("offset_bytes", Field::Offset, 1),
    ("offset", Field::Offset, 0),
    ("address", Field::Offset, 0),
    ("addr", Field::Offset, 0),
    ("lba", Field::Offset, SECTOR_BYTES as u64),
    ("sector", Field::Offset, SECTOR_BYTES as u64),
    ("key", Field::Key, 1),
    ("block", Field::Key, 1),
    ("obj_id", Field::Key, 1),
    ("object_id", Field::Key, 1),
    ("object", Field::Key, 1),
    ("obj", Field::Key, 1),
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
    ("object_size", Field::Size, 0),
    ("sectors", Field::Size, SECTOR_BYTES as u64),
    ("nsectors", Field::Size, SECTOR_BYTES as u64),
    ("op", Field::Op, 0),
    ("operation", Field::Op, 0),
    ("kind", Field::Op, 0),
    ("type", Field::Op, 0),
    ("iotype", Field::Op, 0),
    ("rw", Field::Op, 0),
    ("opcode", Field::Op, 0),
    ("tenant", Field::Tenant, 0),
    ("disk", Field::Tenant, 0),
    ("volume", Field::Tenant, 0),
];

/// What a name says; letter case does not matter, nor whether it is obj_id, obj-id or "obj id".
fn known(name: &[u8]) -> Option<Meaning> {
    let same = |a: u8, b: u8| a == b || b == b'_' && matches!(a, b'-' | b' ');
    let is =
        |n: &str| n.len() == name.len() && name.iter().zip(n.bytes()).all(|(&a, b)| same(a.to_ascii_lowercase(), b));
    NAMES.iter().find(|n| is(n.0)).map(|n| (n.1, n.2))
}

/// What a byte order mark is in UTF-8.
pub(super) const BOM: &[u8] = b"\xef\xbb\xbf";

/// A line of names without the sign of a comment before it, as libCacheSim writes: `# time, object, size`.
fn uncommented(line: &[u8]) -> &[u8] {
    line.trim_ascii_start().strip_prefix(b"#").map_or(line, <[u8]>::trim_ascii)
}

/// Whether a line is of names, an offset or a key among them.
pub(super) fn is_names(line: &[u8], separator: u8) -> bool {
    cells(uncommented(line), separator).any(|c| known(c).is_some_and(|k| matches!(k.0, Field::Offset | Field::Key)))
}

/// Whether a field of a key column is no number, and none that went wrong.
fn is_text(cell: &[u8]) -> bool {
    let digits = cell.strip_prefix(b"-").unwrap_or(cell);
    !digits.is_empty() && any_base(digits).is_none() && fixed_point(digits, 1).is_none() && !is_number_too_large(digits)
}

/// What each column of one CSV file is.
#[derive(Clone, Debug, Default)]
pub(super) struct Layout {
    pub separator: u8,
    /// What each column is; empty of a file without a line.
    pub columns: Vec<Option<Meaning>>,
    /// Lines before the first request.
    pub lines_before: usize,
    /// How columns were interpreted, if the options did not say.
    pub note: Option<String>,
    /// The size in the first request, if it has one.
    pub first_size: Option<u64>,
}

/// The first lines of a file that are neither empty nor comments, with the number of lines before each; the first may
/// be a comment that has names. They are as requests are read: a tab before the first name is a column without one.
fn first_lines(head: &[u8], separator: impl Fn(&[u8]) -> u8) -> Vec<(usize, &[u8])> {
    let head = head.strip_prefix(BOM).unwrap_or(head);
    let lines = head.split(|&c| c == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let lines = lines.enumerate().filter(|(_, line)| !line.trim_ascii().is_empty());
    let comment = |line: &[u8]| {
        let line = line.trim_ascii();
        line.starts_with(b"#") && !is_names(line, separator(uncommented(line)))
    };
    let mut begun = false;
    let kept = lines.filter(|(_, line)| {
        begun |= !comment(line);
        begun
    });
    kept.take(2).collect()
}

impl Layout {
    /// That of a file that begins so.
    ///
    /// # Errors
    /// What cannot be told, and how to say it.
    pub fn of(options: &Csv, head: &[u8]) -> Result<Layout, ColumnsError> {
        let lines = first_lines(head, |line| options.separator_of(line));
        let Some(&(before, line)) = lines.first() else {
            // All of a file that ends here; of a longer one, nobody knows.
            return if head.len() < HEAD_BYTES { Ok(Layout::default()) } else { Err(ColumnsError::NoLine(HEAD_BYTES)) };
        };
        let line = uncommented(line);
        let separator = options.separator_of(line);
        let first: Vec<&[u8]> = cells(line, separator).take(COLUMNS_MAX).collect();
        let second: Vec<&[u8]> = lines.get(1).map_or(vec![], |l| cells(l.1, separator).take(COLUMNS_MAX).collect());
        let mut layout =
            Layout { separator, columns: vec![None; first.len()], lines_before: before, note: None, first_size: None };
        let named = if options.maps() {
            layout.mapped(options, line, &first)?
        } else {
            layout.found(options, line, &first, &second)?
        };
        let fields = || layout.columns.iter().flatten().map(|m| m.0);
        if !fields().any(|f| matches!(f, Field::Offset | Field::Key | Field::Text)) {
            return Err(ColumnsError::NothingAddressed(shown(line)));
        }
        layout.lines_before += usize::from(named);
        let data = if named { &second } else { &first };
        let size = layout.columns.iter().zip(data).find(|(c, _)| c.is_some_and(|c| c.0 == Field::Size));
        layout.first_size = size.and_then(|(_, cell)| any_base(cell));
        Ok(layout)
    }

    /// By the map of the options; whether the first line is of names.
    fn mapped(&mut self, o: &Csv, line: &[u8], first: &[&[u8]]) -> Result<bool, ColumnsError> {
        let mut by_name = false;
        for (column, field, unit) in asked(o) {
            let at = match column {
                None => continue,
                Some(Column::Number(n)) if *n <= first.len() => n - 1,
                Some(Column::Number(n)) => {
                    let (line, columns) = (shown(line), first.len());
                    return Err(ColumnsError::NoSuchNumber { line, columns, asked: *n });
                }
                Some(Column::Name(name)) => {
                    by_name = true;
                    let at = first.iter().position(|c| c.eq_ignore_ascii_case(name.as_bytes()));
                    at.ok_or_else(|| ColumnsError::NoSuchName { line: shown(line), asked: name.clone() })?
                }
            };
            self.columns[at] = Some((field, unit));
        }
        // numbered columns: a line of names has no number where one should be
        let number = |f: Field| matches!(f, Field::Offset | Field::Key | Field::Time | Field::Size);
        let mut numbers = self.columns.iter().zip(first).filter(|(c, _)| c.is_some_and(|c| number(c.0))).peekable();
        let none = numbers.peek().is_none();
        let words = numbers.any(|(_, cell)| cell.first().is_some_and(|c| !c.is_ascii_digit() && !b".-".contains(c)));
        Ok(by_name || words || none && is_names(line, self.separator))
    }

    /// By the names in the first line, or as the only column there is; whether there are names.
    fn found(&mut self, o: &Csv, line: &[u8], first: &[&[u8]], second: &[&[u8]]) -> Result<bool, ColumnsError> {
        let default_unit = |field: Field| asked(o).iter().find(|a| a.1 == field).map_or(1, |a| a.2);
        for (n, cell) in first.iter().enumerate() {
            let Some((field, unit)) = known(cell) else { continue };
            if let Some(other) = self.columns.iter().position(|m| m.is_some_and(|m| m.0 == field)) {
                if matches!(field, Field::Key | Field::Offset) {
                    let (one, other) = (shown(first[other]), shown(cell));
                    return Err(ColumnsError::Twice { one, other, what: field.name() });
                }
                continue;
            }
            self.columns[n] = Some((field, if unit == 0 { default_unit(field) } else { unit }));
        }
        let named = self.columns.iter().any(Option::is_some);
        if !named {
            self.alone(line, first, second)?;
        }
        let data = if named { second } else { first };
        let mut text = false;
        for (column, cell) in self.columns.iter_mut().zip(data) {
            if let Some((field @ Field::Key, _)) = column
                && is_text(cell)
            {
                (*field, text) = (Field::Text, true);
            }
        }
        let what = self.columns.iter().zip(first).enumerate().filter_map(|(n, (column, name))| {
            column.map(|(field, _)| format!("column {} (\"{}\") is the {}", n + 1, shown(name), field.name()))
        });
        let mut note = match named {
            true => what.collect::<Vec<_>>().join(", "),
            false => "no names in its first line, and one column: each line is a key".into(),
        };
        if text {
            note += "; keys are text, and their hashes stand for them";
        }
        self.note = Some(note);
        Ok(named)
    }

    /// Nothing names a column: the only one is the key, and of several none is guessed.
    fn alone(&mut self, line: &[u8], first: &[&[u8]], second: &[&[u8]]) -> Result<(), ColumnsError> {
        if first.len() > 1 {
            return Err(ColumnsError::NoNames { line: shown(line), columns: first.len() });
        }
        if is_text(first[0]) && second.first().is_some_and(|c| !is_text(c)) {
            return Err(ColumnsError::NameOrKey(shown(line)));
        }
        self.columns[0] = Some((Field::Key, 1));
        Ok(())
    }

    /// Whether there are offsets or keys.
    pub fn unit(&self) -> Unit {
        let offset = self.columns.iter().flatten().any(|m| m.0 == Field::Offset);
        if offset { Unit::Bytes } else { Unit::Keys }
    }

    /// Whether a column is this.
    pub fn has(&self, field: Field) -> bool {
        self.columns.iter().flatten().any(|m| m.0 == field)
    }
}

/// The columns of the options, with what is in them and the unit of that.
fn asked(o: &Csv) -> [(&Option<Column>, Field, u64); 8] {
    [
        (&o.time, Field::Time, o.time_unit_ns),
        (&o.offset, Field::Offset, o.offset_unit),
        (&o.key, Field::Key, 1),
        (&o.text, Field::Text, 1),
        (&o.keys, Field::Keys, 1),
        (&o.size, Field::Size, o.size_unit),
        (&o.op, Field::Op, 1),
        (&o.tenant, Field::Tenant, 1),
    ]
}
