//! How a trace is to be read, where its file does not say.
//!
//! Owns the choices and their defaults. Never reads a file.

use crate::format::Format;
use std::str::FromStr;

/// See the head of the file. The default is strict, and finds the format out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// The format; by default its content or its name tells it.
    pub format: Option<Format>,
    /// Split requests into blocks of so many bytes. By default 4096, what a recording says, and not at all for vscsi.
    pub block_bytes: Option<u32>,
    /// Formats of keys: a key is the number of a piece of so many bytes of a disk, so that objects can be split, too.
    pub key_bytes: Option<u32>,
    /// Formats of keys without `key_bytes`: `block_bytes` says what a key stands for, and changes nothing; by default
    /// it is refused, since keys cannot be split.
    pub keys_are_blocks: bool,
    /// Caches are counted in bytes: requests are split into blocks even where the default is one access for each, and
    /// keys whose sizes the trace records are refused, unless `block_bytes` or `key_bytes` says how large they are to
    /// be taken for.
    pub sized: bool,
    /// Leave out records that make no sense, and count them.
    pub lenient: bool,
    /// Decompress and decode on a thread of its own, ahead of whoever reads.
    pub ahead: bool,
    /// blkparse and blktrace: which event of a request counts.
    pub event: Event,
    /// Where the columns of a CSV file are.
    pub csv: Csv,
}

/// The life of a request in the kernel's block layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Event {
    /// Q: it came to the block layer.
    #[default]
    Queue,
    /// D: it went to the driver, merged with others perhaps.
    Issue,
    /// C: it was done.
    Complete,
}

impl Event {
    /// blkparse's letter.
    pub fn letter(self) -> u8 {
        match self {
            Event::Queue => b'Q',
            Event::Issue => b'D',
            Event::Complete => b'C',
        }
    }

    /// blktrace's number.
    pub fn number(self) -> u32 {
        match self {
            Event::Queue => 1,
            Event::Issue => 7,
            Event::Complete => 8,
        }
    }
}

/// A column: its number or its name in the first line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Column {
    /// From 1.
    Number(usize),
    /// Letter case does not matter.
    Name(String),
}

impl FromStr for Column {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<usize>() {
            Ok(0) => Err("columns are counted from 1".into()),
            Ok(n) if n > COLUMNS_MAX => Err(format!("column {n} is past the {COLUMNS_MAX} that are read")),
            Ok(n) => Ok(Column::Number(n)),
            Err(_) if text.is_empty() => Err("a column is a number from 1, or a name in the first line".into()),
            Err(_) => Ok(Column::Name(text.to_owned())),
        }
    }
}

/// Columns of a line that are read at most.
pub(crate) const COLUMNS_MAX: usize = 256;

/// What is in which column of a CSV file. If none is said, they are looked for by the names that are usual in the
/// first line; without such names, a single column is the key, and several are refused.
#[derive(Clone, Debug, PartialEq)]
pub struct Csv {
    /// What stands between columns; a blank stands for any number of blanks and tabs. By default the first of comma,
    /// tab, semicolon and blank that the first line has.
    pub separator: Option<u8>,
    /// When.
    pub time: Option<Column>,
    /// The first byte (see `offset_unit`).
    pub offset: Option<Column>,
    /// The key, for traces of objects: a number.
    pub key: Option<Column>,
    /// The key, where it may be any text, a number's digits as well: a hash of the text stands for it.
    pub text: Option<Column>,
    /// How many keys.
    pub keys: Option<Column>,
    /// How long (see `size_unit`).
    pub size: Option<Column>,
    /// What is done: anything that begins with r or R reads, with w or W writes; 0 reads and 1 writes.
    pub op: Option<Column>,
    /// Whose it is.
    pub tenant: Option<Column>,
    /// Nanoseconds of one step of the time.
    pub time_unit_ns: u64,
    /// Bytes of one step of the offset.
    pub offset_unit: u64,
    /// Bytes of one step of the size.
    pub size_unit: u64,
}

impl Default for Csv {
    fn default() -> Self {
        Csv {
            separator: None,
            time: None,
            offset: None,
            key: None,
            text: None,
            keys: None,
            size: None,
            op: None,
            tenant: None,
            time_unit_ns: 1_000_000_000,
            offset_unit: 1,
            size_unit: 1,
        }
    }
}

impl Csv {
    /// Whether it says what a column is.
    pub(crate) fn maps(&self) -> bool {
        let Csv { time, offset, key, text, keys, size, op, tenant, .. } = self;
        [time, offset, key, text, keys, size, op, tenant].into_iter().any(Option::is_some)
    }

    /// What stands between the columns of this line, the first.
    pub(crate) fn separator_of(&self, line: &[u8]) -> u8 {
        let found = || [b',', b'\t', b';', b' '].into_iter().find(|s| line.contains(s));
        self.separator.or_else(found).unwrap_or(b',')
    }

    /// Reads a separator: one character, or `tab` or `blank`.
    ///
    /// # Errors
    /// It is none.
    pub fn set_separator(&mut self, text: &str) -> Result<(), String> {
        self.separator = Some(match text {
            "tab" | "\\t" => b'\t',
            "blank" | "space" => b' ',
            one if one.len() == 1 => one.as_bytes()[0],
            other => return Err(format!("\"{other}\" is no single character; write , or ; or tab")),
        });
        Ok(())
    }

    /// Reads a map as the command line has it: `time=1,offset=4,size=5,op=3,tenant=2`.
    ///
    /// # Errors
    /// What is wrong, and what there is.
    pub fn set_columns(&mut self, text: &str) -> Result<(), String> {
        for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            let (what, column) = part.split_once('=').ok_or_else(|| {
                format!("\"{part}\" is no column: write it like time=1,offset=4,size=5,op=3,tenant=2")
            })?;
            let column = Some(column.trim().parse()?);
            match what.trim() {
                "time" => self.time = column,
                "offset" => self.offset = column,
                "key" => self.key = column,
                "text" => self.text = column,
                "keys" => self.keys = column,
                "size" => self.size = column,
                "op" => self.op = column,
                "tenant" => self.tenant = column,
                other => {
                    return Err(format!(
                        "there is no \"{other}\": columns are time, offset, key, text, keys, size, op, tenant"
                    ));
                }
            }
        }
        if [&self.offset, &self.key, &self.text].into_iter().flatten().count() > 1 {
            return Err("a trace has offsets, keys or keys that are text: say one of them".into());
        }
        Ok(())
    }
}
