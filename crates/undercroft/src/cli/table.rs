//! Tables for people: without lines, names to the left, numbers to the right.
//!
//! Owns how they look. Never a column. Invariant: no blanks at the ends of lines.

use super::style::{HEADING, paint};
use anstyle::Style;
use comfy_table::{CellAlignment, Table, presets};

/// A table all of whose columns but the first `left` go to the right.
pub fn plain(header: &[impl AsRef<str>], left: usize) -> Table {
    with_left(header, |column| column < left)
}

/// A table whose columns go to the left where `left` says so.
pub fn with_left(header: &[impl AsRef<str>], left: impl Fn(usize) -> bool) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let names: Vec<&str> = header.iter().map(|name| name.as_ref()).collect();
    table.set_header(names);
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if !left(i) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Its lines.
pub fn lines(table: &Table) -> String {
    toned(table, |_| None)
}

/// Its lines, of which some rows (counted from 0) have a colour.
pub fn toned(table: &Table, tone: impl Fn(usize) -> Option<Style>) -> String {
    let mut text = String::new();
    for (i, line) in table.lines().enumerate() {
        let style = i.checked_sub(1).map_or(Some(HEADING), &tone);
        let line = line.trim_end();
        text += &style.map_or_else(|| line.to_string(), |style| paint(style, line));
        text.push('\n');
    }
    text
}
