//! The options of `undercroft sim` for the daemon's RAM store over its SSD store, with their help.
//!
//! Owns words and how they are read. Never acts.

use clap::Args;
use std::str::FromStr;
use undercroft_study::sim::stores::{Admission, admission_named};
use undercroft_units::{Percent, Size, UnitError, WrittenSize};

/// The size of an SSD, or none.
#[derive(Clone, Debug, PartialEq)]
pub struct SsdSize(pub Option<WrittenSize>);

impl FromStr for SsdSize {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        if text.trim() == "none" { Ok(Self(None)) } else { text.parse().map(|size| Self(Some(size))) }
    }
}

/// A rule of admission.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Admit(pub Admission);

/// There is no such rule.
#[derive(Debug, thiserror::Error)]
#[error("there is no rule of admission \"{0}\"; known are measured, all, second, none")]
pub struct NoSuchAdmission(String);

impl FromStr for Admit {
    type Err = NoSuchAdmission;

    fn from_str(text: &str) -> Result<Self, NoSuchAdmission> {
        admission_named(text.trim()).map(Self).ok_or_else(|| NoSuchAdmission(text.to_string()))
    }
}

/// A place in a trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TracePlace {
    /// After so many accesses.
    Accesses(u64),
    /// After this part of them.
    Part(Percent),
}

/// A text is no place in a trace.
#[derive(Debug, thiserror::Error)]
#[error("\"{0}\" is no place in a trace; write it like 500000 (accesses) or 50%")]
pub struct NoTracePlace(String);

impl FromStr for TracePlace {
    type Err = NoTracePlace;

    fn from_str(text: &str) -> Result<Self, NoTracePlace> {
        let none = || NoTracePlace(text.to_string());
        if text.trim().ends_with('%') {
            return text.parse().map(TracePlace::Part).map_err(|_| none());
        }
        text.trim().parse().map(TracePlace::Accesses).map_err(|_| none())
    }
}

/// See the head of the file.
#[derive(Clone, Debug, Args)]
pub struct StoresArgs {
    /// Simulate the daemon's RAM store (of --size) over its SSD store of these sizes, with commas between: 8GiB, 50% of
    /// the footprint, none. No data is held
    #[arg(long, value_name = "LIST", value_delimiter = ',',
          conflicts_with_all = ["hierarchy", "tenants", "engine", "plot", "block_size"])]
    pub ssd: Vec<SsdSize>,
    /// Which blocks that leave RAM are written to the SSD, with commas between: measured (those of kinds that are asked
    /// for again while they are there), all, second (those that leave it for the second time), none
    #[arg(long, value_name = "LIST", value_delimiter = ',', requires = "ssd", default_value = "measured")]
    pub admit: Vec<Admit>,
    /// Bytes that may be written to the SSD in a day of the trace's time [default: no limit]
    #[arg(long, value_name = "SIZE", requires = "ssd")]
    pub writes_per_day: Option<Size>,
    /// Stop both stores in order after so many accesses (500000, 50%), and start them again over what the SSD has;
    /// beside it, for comparison, over an empty SSD
    #[arg(long, value_name = "PLACE", requires = "ssd")]
    pub restart_at: Option<TracePlace>,
    /// Accesses after the restart in which both are compared
    #[arg(long, value_name = "N", requires = "restart_at", default_value_t = 100_000,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub restart_for: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_rules_and_places_are_read() {
        assert_eq!("none".parse::<SsdSize>().unwrap(), SsdSize(None));
        assert_eq!("8GiB".parse::<SsdSize>().unwrap().0.unwrap().text, "8GiB");
        assert_eq!("second".parse::<Admit>().unwrap(), Admit(Admission::Second));
        assert!("some".parse::<Admit>().unwrap_err().to_string().contains("measured, all, second, none"));
        assert_eq!("50%".parse::<TracePlace>().unwrap(), TracePlace::Part(Percent(5000)));
        assert_eq!("17".parse::<TracePlace>().unwrap(), TracePlace::Accesses(17));
        assert!("half".parse::<TracePlace>().is_err() && "-1".parse::<TracePlace>().is_err());
    }
}
