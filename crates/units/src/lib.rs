//! Sizes and times as people write them: `512MiB`, `2ms`.
//!
//! Owns the two notations, in both directions: configuration, command line, API and tables all come here. Never
//! guesses: `512M` means two things, so it is refused with both named. Invariant: what `Display` writes, `FromStr`
//! reads back to the same value.
#![forbid(unsafe_code)]

mod cache_size;
mod latencies;

pub use cache_size::{CacheSize, SLOTS_MAX, SlotsError, WrittenSize};
pub use latencies::LatencyCounts;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// 1024 bytes.
pub const KIB: u64 = 1 << 10;
/// 1024 KiB.
pub const MIB: u64 = 1 << 20;
/// 1024 MiB.
pub const GIB: u64 = 1 << 30;
/// 1024 GiB.
pub const TIB: u64 = 1 << 40;

const SIZE_UNITS: [(&str, u64); 9] = [
    ("B", 1),
    ("KiB", KIB),
    ("MiB", MIB),
    ("GiB", GIB),
    ("TiB", TIB),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

const TIME_UNITS: [(&str, u64); 5] =
    [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000), ("min", 60_000_000_000)];

/// A number of bytes, written `512MiB`, `1.5GiB`, `100MB`, `4096B` or plain `4096`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(
    /// Bytes.
    pub u64,
);

/// A length of time in nanoseconds, written `50us`, `2ms`, `1.5s` or plain `0`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(
    /// Nanoseconds.
    pub u64,
);

/// Why a size or a time could not be read: a sentence that names the text and says what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}; {remedy}")]
pub struct UnitError {
    /// What is wrong, with the text in it.
    pub problem: String,
    /// What to write instead.
    pub remedy: String,
}

fn fail(problem: String, remedy: impl Into<String>) -> UnitError {
    UnitError { problem, remedy: remedy.into() }
}

/// Reads `digits[.digits][blank]suffix` into the exact number of smallest units. `unit` maps a suffix to its factor.
fn exact(
    text: &str,
    kind: &str,
    example: &str,
    unit: impl Fn(&str) -> Result<u64, UnitError>,
) -> Result<u64, UnitError> {
    let write = || format!("write it like {example}");
    let shown: String = text.chars().take(40).collect();
    let number_end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, suffix) = text.split_at(number_end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let malformed = whole.is_empty() || (number.contains('.') && fraction.is_empty()) || fraction.contains('.');
    if malformed {
        return Err(fail(format!("\"{shown}\" is not a {kind}"), write()));
    }
    let factor = unit(suffix.trim_start_matches(' '))?;
    let too_big = || fail(format!("\"{shown}\" is too large for a {kind}"), write());
    let whole: u64 = whole.parse().map_err(|_| too_big())?;
    let mut sum = u128::from(whole) * u128::from(factor);
    if !fraction.is_empty() {
        // Nine places are more than any unit here can use, so longer fractions cannot be exact unless they end in 0.
        let significant = fraction.trim_end_matches('0');
        let scale = u32::try_from(significant.len()).ok().filter(|n| *n <= 12).map(|n| 10u128.pow(n));
        let inexact = || fail(format!("\"{shown}\" is not a whole number of the smallest unit"), write());
        let scale = scale.ok_or_else(inexact)?;
        let part = if significant.is_empty() { 0 } else { significant.parse::<u128>().map_err(|_| inexact())? };
        let scaled = part * u128::from(factor);
        if !scaled.is_multiple_of(scale) {
            return Err(inexact());
        }
        sum += scaled / scale;
    }
    u64::try_from(sum).map_err(|_| too_big())
}

impl FromStr for Size {
    type Err = UnitError;

    /// # Errors
    /// A sentence that names the text and what to write instead; for `512M` and `512k`, both readings.
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let trimmed = text.trim();
        exact(trimmed, "size", "512MiB or 4GiB", |suffix| {
            if suffix.is_empty() {
                return Ok(1);
            }
            if let Some((_, factor)) = SIZE_UNITS.iter().find(|(name, _)| *name == suffix) {
                return Ok(*factor);
            }
            let shown: String = trimmed.chars().take(40).collect();
            let number: String = trimmed.chars().take_while(|c| !c.is_alphabetic()).take(30).collect();
            let number = number.trim_end();
            let letter = suffix.chars().next().map_or(' ', |c| c.to_ascii_uppercase());
            if suffix.len() == 1 && "KMGT".contains(letter) {
                let decimal = if letter == 'K' { 'k' } else { letter };
                return Err(fail(
                    format!("\"{shown}\" is ambiguous"),
                    format!("write {number}{letter}iB (powers of 1024) or {number}{decimal}B (powers of 1000)"),
                ));
            }
            // Wrong case is not guessed at, but the right one is named.
            let known = SIZE_UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(suffix));
            Err(match known {
                Some((name, _)) => fail(format!("\"{shown}\" has an unknown unit"), format!("write {number}{name}")),
                None => fail(
                    format!("\"{shown}\" has an unknown unit"),
                    "units are B, KiB, MiB, GiB, TiB (powers of 1024) and kB, MB, GB, TB (powers of 1000)",
                ),
            })
        })
        .map(Size)
    }
}

impl FromStr for Time {
    type Err = UnitError;

    /// # Errors
    /// A sentence that names the text and what to write instead. A plain number other than 0 has no unit: refused.
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let trimmed = text.trim();
        exact(trimmed, "time", "50us or 2ms", |suffix| {
            let known = TIME_UNITS.iter().find(|(name, _)| *name == suffix || (*name == "us" && suffix == "µs"));
            if let Some((_, factor)) = known {
                return Ok(*factor);
            }
            if suffix.is_empty() && trimmed.chars().all(|c| c == '0') {
                return Ok(1);
            }
            let shown: String = trimmed.chars().take(40).collect();
            let what = if suffix.is_empty() { "has no unit" } else { "has an unknown unit" };
            Err(fail(format!("\"{shown}\" {what}"), "units are ns, us, ms, s, min: write it like 50us or 2ms"))
        })
        .map(Time)
    }
}

/// The largest of `units` that divides `value`; the units go up.
fn largest<'a>(value: u64, units: &'a [(&'a str, u64)]) -> (u64, &'a str) {
    let (name, factor) = units.iter().rev().find(|(_, f)| value.is_multiple_of(*f)).unwrap_or(&units[0]);
    (value / factor, name)
}

impl fmt::Display for Size {
    /// Exact: the largest binary unit that divides it; 0 is `0B`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (n, unit) = if self.0 == 0 { (0, "B") } else { largest(self.0, &SIZE_UNITS[..5]) };
        f.pad(&format!("{n}{unit}"))
    }
}

impl fmt::Display for Time {
    /// Exact: the largest unit up to seconds that divides it; 0 is `0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.pad("0");
        }
        let (n, unit) = largest(self.0, &TIME_UNITS[..4]);
        f.pad(&format!("{n}{unit}"))
    }
}

/// A part of a whole in hundredths of a percent, written `5%`, `0.5%` or plain `5`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percent(
    /// Hundredths of a percent.
    pub u32,
);

impl Percent {
    /// As a number, 5 for `5%`.
    pub fn value(self) -> f64 {
        f64::from(self.0) / 100.0
    }
}

impl FromStr for Percent {
    type Err = UnitError;

    /// # Errors
    /// It is no number, has more than two places, or is not above 0 and at most 100.
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let shown: String = text.trim().chars().take(40).collect();
        let remedy = "write it like 5%: from 0.01% to 100%";
        let number = text.trim().strip_suffix('%').unwrap_or(text.trim()).trim_end();
        let none = || fail(format!("\"{shown}\" is not a percentage"), remedy);
        let hundredths =
            exact(number, "percentage", "5%", |suffix| if suffix.is_empty() { Ok(100) } else { Err(none()) });
        let whole = number.split('.').next().unwrap_or_default();
        match hundredths {
            Ok(h @ 1..=10_000) => Ok(Percent(h as u32)),
            Ok(10_001..) => Err(fail(format!("\"{shown}\" is more than 100%"), remedy)),
            // too large to be counted: digits, and more of them than fit
            Err(_) if whole.len() > 17 && number.bytes().all(|b| b.is_ascii_digit() || b == b'.') => {
                Err(fail(format!("\"{shown}\" is more than 100%"), remedy))
            }
            Ok(_) | Err(_) => Err(none()),
        }
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}%", self.value()))
    }
}

/// Rounded for tables, three digits at most: `1.4GiB`, `37MiB`, `512B`.
pub fn human_size(bytes: u64) -> String {
    let (unit, factor) = SIZE_UNITS[..5].iter().rev().find(|(_, f)| bytes >= *f).unwrap_or(&SIZE_UNITS[0]);
    human(bytes, *factor, unit)
}

/// Rounded for tables, three digits at most: `53us`, `1.2ms`.
pub fn human_time(ns: u64) -> String {
    let (unit, factor) = TIME_UNITS[..4].iter().rev().find(|(_, f)| ns >= *f).unwrap_or(&TIME_UNITS[0]);
    human(ns, *factor, unit)
}

fn human(value: u64, factor: u64, unit: &str) -> String {
    let scaled = value as f64 / factor as f64;
    if scaled < 10.0 && !value.is_multiple_of(factor) {
        format!("{scaled:.1}{unit}")
    } else {
        format!("{scaled:.0}{unit}")
    }
}

impl Time {
    /// As the standard library's type.
    pub fn duration(self) -> Duration {
        Duration::from_nanos(self.0)
    }
}

impl From<Duration> for Time {
    /// Saturates at 584 years.
    fn from(d: Duration) -> Self {
        Time(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
    }
}

/// What the API takes where a size or a time is due.
#[derive(Deserialize)]
#[serde(untagged)]
enum Raw {
    Number(u64),
    Text(String),
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let expected = || serde::de::Error::custom("a size is a number of bytes or a text like \"512MiB\"");
        match Raw::deserialize(d).map_err(|_| expected())? {
            Raw::Number(n) => Ok(Size(n)),
            Raw::Text(t) => t.parse().map_err(serde::de::Error::custom),
        }
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let expected = || serde::de::Error::custom("a time is a text like \"50us\", or 0");
        match Raw::deserialize(d).map_err(|_| expected())? {
            Raw::Number(0) => Ok(Time(0)),
            Raw::Number(_) => Err(expected()),
            Raw::Text(t) => t.parse().map_err(serde::de::Error::custom),
        }
    }
}

impl<'de> Deserialize<'de> for Percent {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let expected = || serde::de::Error::custom("a percentage is a text like \"5%\", or a whole number");
        let text = match Raw::deserialize(d).map_err(|_| expected())? {
            Raw::Number(n) => n.to_string(),
            Raw::Text(t) => t,
        };
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl Serialize for Percent {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn size(s: &str) -> Result<u64, UnitError> {
        s.parse::<Size>().map(|s| s.0)
    }

    fn time(s: &str) -> Result<u64, UnitError> {
        s.parse::<Time>().map(|s| s.0)
    }

    #[test]
    fn sizes_are_read_exactly() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4096B", 4096),
            ("1KiB", 1024),
            ("512MiB", 512 * MIB),
            ("1.5GiB", 3 * GIB / 2),
            (" 2 TiB ", 2 * TIB),
            ("1kB", 1000),
            ("2.5MB", 2_500_000),
            ("0.500000000000000000000GiB", GIB / 2),
            ("18446744073709551615", u64::MAX),
            ("16777215TiB", 16_777_215 * TIB),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn bad_sizes_say_what_to_write() {
        for (text, needle) in [
            ("", "\"\" is not a size; write it like 512MiB"),
            ("MiB", "\"MiB\" is not a size"),
            ("-1", "\"-1\" is not a size"),
            ("1..5GiB", "is not a size"),
            ("1.GiB", "is not a size"),
            (".5GiB", "is not a size"),
            ("512M", "ambiguous; write 512MiB (powers of 1024) or 512MB (powers of 1000)"),
            ("8k", "ambiguous; write 8KiB (powers of 1024) or 8kB (powers of 1000)"),
            ("1.5g", "ambiguous; write 1.5GiB"),
            ("512mib", "unknown unit; write 512MiB"),
            ("512KB", "unknown unit; write 512kB"),
            ("512PiB", "unknown unit; units are B, KiB"),
            ("512 pages", "unknown unit"),
            ("0.3B", "not a whole number"),
            ("0.0001KiB", "not a whole number"),
            ("16777216TiB", "too large"),
            ("99999999999999999999", "too large"),
            ("1MiB\u{1F4BE}", "unknown unit"),
        ] {
            let e = size(text).expect_err(text).to_string();
            assert!(e.contains(needle), "{text}: {e}");
        }
    }

    #[test]
    fn times_are_read_exactly() {
        for (text, ns) in
            [("0", 0), ("0s", 0), ("50us", 50_000), ("50µs", 50_000), ("2ms", 2_000_000), ("1.5s", 1_500_000_000)]
        {
            assert_eq!(time(text), Ok(ns), "{text}");
        }
        assert!(time("50").unwrap_err().to_string().contains("\"50\" has no unit; units are ns, us, ms, s, min"));
        assert!(time("5sec").unwrap_err().to_string().contains("unknown unit"));
        assert!(time("0.1ns").unwrap_err().to_string().contains("not a whole number"));
        assert!(time("fast").unwrap_err().to_string().contains("not a time"));
    }

    #[test]
    fn percentages_are_read_exactly() {
        let percent = |s: &str| s.parse::<Percent>().map(|p| p.0).map_err(|e| e.to_string());
        for (text, hundredths) in
            [("5%", 500), ("5", 500), (" 0.5 % ", 50), ("100%", 10_000), ("0.01%", 1), ("12.50%", 1250)]
        {
            assert_eq!(percent(text), Ok(hundredths), "{text}");
        }
        for bad in ["", "%", "0", "0%", "100.01%", "101", "-1%", "5%%", "five", "0.001%", "1e1%", "inf", "NaN"] {
            assert!(percent(bad).unwrap_err().contains("write it like 5%"), "{bad}");
        }
        assert_eq!((Percent(500).to_string(), Percent(1250).to_string()), ("5%".to_string(), "12.5%".to_string()));
    }

    #[test]
    fn display_picks_the_largest_exact_unit() {
        assert_eq!(Size(512 * MIB).to_string(), "512MiB");
        assert_eq!(Size(3 * GIB / 2).to_string(), "1536MiB");
        assert_eq!(Size(1000).to_string(), "1000B");
        assert_eq!(Size(0).to_string(), "0B");
        assert_eq!(Time(50_000).to_string(), "50us");
        assert_eq!(Time(120_000_000_000).to_string(), "120s");
        assert_eq!(Time(0).to_string(), "0");
    }

    #[test]
    fn tables_show_rounded_values() {
        assert_eq!(human_size(0), "0B");
        assert_eq!(human_size(1536), "1.5KiB");
        assert_eq!(human_size(GIB), "1GiB");
        assert_eq!(human_size(37 * MIB + 5), "37MiB");
        assert_eq!(human_time(1_234_000), "1.2ms");
        assert_eq!(human_time(53_400), "53us");
    }

    #[test]
    fn the_api_takes_numbers_and_texts() {
        assert_eq!(serde_json::from_str::<Size>("4096").unwrap(), Size(4096));
        assert_eq!(serde_json::from_str::<Size>("\"1GiB\"").unwrap(), Size(GIB));
        assert_eq!(serde_json::to_string(&Size(GIB)).unwrap(), "\"1GiB\"");
        assert_eq!(serde_json::from_str::<Time>("\"50us\"").unwrap(), Time(50_000));
        assert_eq!(serde_json::from_str::<Time>("0").unwrap(), Time(0));
        for bad in ["-1", "1.5", "true", "[]", "\"512M\""] {
            assert!(serde_json::from_str::<Size>(bad).is_err(), "{bad}");
        }
        assert!(serde_json::from_str::<Time>("50").unwrap_err().to_string().contains("like \"50us\""));
    }

    proptest! {
        #[test]
        fn sizes_survive_the_round_trip(n: u64) {
            prop_assert_eq!(Size(n).to_string().parse::<Size>(), Ok(Size(n)));
        }

        #[test]
        fn round_sizes_survive_the_round_trip(n in 0u64..1 << 20, shift in 0u32..44) {
            let n = n << shift;
            prop_assert_eq!(Size(n).to_string().parse::<Size>(), Ok(Size(n)));
        }

        #[test]
        fn times_survive_the_round_trip(n: u64) {
            prop_assert_eq!(Time(n).to_string().parse::<Time>(), Ok(Time(n)));
        }

        #[test]
        fn no_text_panics(text in "[0-9.]{0,30} ?\\PC{0,5}") {
            let _ = text.parse::<Size>();
            let _ = text.parse::<Time>();
        }
    }
}
