//! Values as they are written, and tables of them: what a file, a command line and the API have in common.
//!
//! Owns the way from a value to a field. Never checks a value: what takes the table does. Invariant: every field of a
//! table that `written!` makes is read under the name that it has.

use crate::keys::{Key, Kind};
use std::collections::BTreeMap;
use std::path::PathBuf;
use undercroft_units::{Percent, Size, Time};

/// Which line each key of a table was on, for messages; empty for command line and API.
pub type Lines = BTreeMap<&'static str, usize>;

/// One value, of the kind that its key has.
#[derive(Clone, Debug, PartialEq)]
pub enum Written {
    /// A text.
    Text(String),
    /// A whole number.
    Number(u64),
    /// Bytes.
    Size(Size),
    /// A duration.
    Time(Time),
    /// A part of a whole.
    Percent(Percent),
    /// `true` or `false`.
    Boolean(bool),
    /// What was set is taken away.
    Nothing,
}

/// Why a text is no value of a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}; {remedy}")]
pub struct WrittenError {
    /// What is wrong.
    pub error: String,
    /// What to do.
    pub remedy: String,
}

impl Written {
    /// The value of `key` that a text says, in which a number may stand, too.
    ///
    /// # Errors
    /// It is not of the key's kind.
    pub fn parse(key: &Key, text: &str) -> Result<Self, WrittenError> {
        if key.live.by_hand().is_some_and(|word| !word.is_empty() && word == text) {
            return Ok(Self::Nothing);
        }
        let shown: String = text.chars().take(60).collect();
        let wrong = |error: String, remedy: String| WrittenError { error, remedy };
        let unit = |e: undercroft_units::UnitError| wrong(format!("{}: {}", key.name, e.problem), e.remedy.to_string());
        match key.kind {
            Kind::Size => text.parse().map(Self::Size).map_err(unit),
            Kind::Time => text.parse().map(Self::Time).map_err(unit),
            Kind::Percentage => text.parse().map(Self::Percent).map_err(unit),
            Kind::Number => text.parse().map(Self::Number).map_err(|_| {
                wrong(
                    format!("{} must be a whole number, not \"{shown}\"", key.name),
                    format!("allowed is {}", key.range),
                )
            }),
            Kind::Boolean => text.parse().map(Self::Boolean).map_err(|_| {
                wrong(format!("{} must be true or false, not \"{shown}\"", key.name), "give true or false".into())
            }),
            _ => Ok(Self::Text(text.to_string())),
        }
    }
}

/// A table that values are read from.
pub trait Values {
    /// A text.
    fn text(&mut self, key: &'static str) -> Option<String>;
    /// Several texts.
    fn texts(&mut self, key: &'static str) -> Option<Vec<String>>;
    /// The name or the number of a group.
    fn group(&mut self, key: &'static str) -> Option<String>;
    /// `true` or `false`.
    fn boolean(&mut self, key: &'static str) -> Option<bool>;
    /// A whole number.
    fn number(&mut self, key: &'static str) -> Option<u64>;
    /// Bytes.
    fn size(&mut self, key: &'static str) -> Option<Size>;
    /// A duration.
    fn time(&mut self, key: &'static str) -> Option<Time>;
    /// A part of a whole.
    fn percent(&mut self, key: &'static str) -> Option<Percent>;
    /// The kind of a key.
    fn kind(&self, key: &str) -> Option<Kind>;
}

/// A table whose fields are keys.
pub(crate) trait Keys: Default {
    /// Reads the keys; the caller sees to the lines.
    fn read(values: &mut dyn Values) -> Self;
    /// The same with the lines of its keys.
    fn with_lines(self, lines: Lines) -> Self;
}

/// The values of one key, by their type.
pub(crate) trait Value: Sized {
    fn read(values: &mut dyn Values, key: &'static str) -> Option<Self>;
    fn from_written(_: Written) -> Option<Self> {
        None
    }
}

impl Value for String {
    fn read(values: &mut dyn Values, key: &'static str) -> Option<Self> {
        if values.kind(key) == Some(Kind::Group) { values.group(key) } else { values.text(key) }
    }
    fn from_written(written: Written) -> Option<Self> {
        if let Written::Text(text) = written { Some(text) } else { None }
    }
}

impl Value for PathBuf {
    fn read(values: &mut dyn Values, key: &'static str) -> Option<Self> {
        values.text(key).map(PathBuf::from)
    }
    fn from_written(written: Written) -> Option<Self> {
        if let Written::Text(text) = written { Some(text.into()) } else { None }
    }
}

impl Value for Vec<String> {
    fn read(values: &mut dyn Values, key: &'static str) -> Option<Self> {
        values.texts(key)
    }
}

macro_rules! value {
    ($($type:ty: $read:ident, $kind:ident;)*) => {
        $(impl Value for $type {
            fn read(values: &mut dyn Values, key: &'static str) -> Option<Self> {
                values.$read(key)
            }
            fn from_written(written: Written) -> Option<Self> {
                if let Written::$kind(value) = written { Some(value) } else { None }
            }
        })*
    };
}

value! {
    bool: boolean, Boolean;
    u64: number, Number;
    Size: size, Size;
    Time: time, Time;
    Percent: percent, Percent;
}

/// A table as it was asked for: a structure whose fields after `keys` are keys of the configuration, each optional.
macro_rules! written {
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $($(#[$other_meta:meta])* pub $other:ident: $other_type:ty,)*
            keys:
            $($(#[$key_meta:meta])* pub $key:ident: Option<$type:ty>,)*
            lines:
            $(#[$lines_meta:meta])* pub lines: Lines,
        }
    ) => {
        $(#[$meta])*
        pub struct $name {
            $($(#[$other_meta])* pub $other: $other_type,)*
            $($(#[$key_meta])* pub $key: Option<$type>,)*
            $(#[$lines_meta])*
            pub lines: Lines,
        }

        impl $crate::written::Keys for $name {
            #[allow(clippy::needless_update, reason = "some tables have nothing but keys")]
            fn read(values: &mut dyn $crate::written::Values) -> Self {
                Self {
                    $($key: <$type as $crate::written::Value>::read(values, stringify!($key)),)*
                    ..Self::default()
                }
            }

            fn with_lines(self, lines: Lines) -> Self {
                Self { lines, ..self }
            }
        }

        impl $name {
            /// Sets a key to a value of its kind; whether there is such a key.
            #[allow(dead_code, reason = "for the tables whose keys are set by hand")]
            pub fn put(&mut self, key: &str, value: $crate::written::Written) -> bool {
                match key {
                    $(stringify!($key) => self.$key = <$type as $crate::written::Value>::from_written(value),)*
                    _ => return false,
                }
                true
            }

            /// Whether any key is set.
            #[allow(dead_code, reason = "for the tables that may stand for nothing")]
            pub(crate) fn is_empty(&self) -> bool {
                true $(&& self.$key.is_none())*
            }
        }
    };
}
pub(crate) use written;
