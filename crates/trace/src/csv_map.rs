//! Where the columns of a CSV file are, as a person says it.
//!
//! Owns the map, its defaults and its notation. Never reads a file: `format` looks the columns up in the first line.

use std::str::FromStr;

/// A column: its number or its name in the first line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Column {
    /// From 1.
    Number(usize),
    /// Letter case does not matter.
    Name(String),
}

/// Why a text says nothing about the columns of a CSV file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CsvMapError {
    /// The number 0.
    #[error("columns are counted from 1")]
    Zero,
    /// A number past those that are read.
    #[error("column {0} is past the {COLUMNS_MAX} that are read")]
    TooFar(usize),
    /// Neither a number nor a name.
    #[error("a column is a number from 1, or a name in the first line")]
    NoColumn,
    /// Several characters.
    #[error("\"{0}\" is no single character; write , or ; or tab")]
    NoSeparator(String),
    /// A part without `=`.
    #[error("\"{0}\" is no column: write it like time=1,offset=4,size=5,op=3,tenant=2")]
    NoPart(String),
    /// A part that is for nothing that a request has.
    #[error("there is no \"{0}\": columns are time, offset, key, text, keys, size, op, tenant")]
    NoField(String),
    /// Several columns that say where.
    #[error("a trace has offsets, keys or keys that are text: say one of them")]
    SeveralAddresses,
}

impl FromStr for Column {
    type Err = CsvMapError;

    /// # Errors
    /// It is 0, past [`COLUMNS_MAX`] or empty.
    fn from_str(text: &str) -> Result<Self, CsvMapError> {
        match text.parse::<usize>() {
            Ok(0) => Err(CsvMapError::Zero),
            Ok(n) if n > COLUMNS_MAX => Err(CsvMapError::TooFar(n)),
            Ok(n) => Ok(Column::Number(n)),
            Err(_) if text.is_empty() => Err(CsvMapError::NoColumn),
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
    pub fn set_separator(&mut self, text: &str) -> Result<(), CsvMapError> {
        self.separator = Some(match text {
            "tab" | "\\t" => b'\t',
            "blank" | "space" => b' ',
            one if one.len() == 1 => one.as_bytes()[0],
            other => return Err(CsvMapError::NoSeparator(other.to_owned())),
        });
        Ok(())
    }

    /// Reads a map as the command line has it: `time=1,offset=4,size=5,op=3,tenant=2`.
    ///
    /// # Errors
    /// What is wrong, and what there is.
    pub fn set_columns(&mut self, text: &str) -> Result<(), CsvMapError> {
        for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            let (what, column) = part.split_once('=').ok_or_else(|| CsvMapError::NoPart(part.to_owned()))?;
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
                other => return Err(CsvMapError::NoField(other.to_owned())),
            }
        }
        if [&self.offset, &self.key, &self.text].into_iter().flatten().count() > 1 {
            return Err(CsvMapError::SeveralAddresses);
        }
        Ok(())
    }
}
