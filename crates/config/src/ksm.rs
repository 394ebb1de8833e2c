//! What `[ksm]` of the configuration asks for.
//!
//! Owns the wish and its translation into values of files. Never reads or writes one. Invariant: a plan without
//! `manage` changes nothing.

use std::time::Duration;

/// Who sets the scan rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Advisor {
    /// Nobody: `pages_to_scan` holds.
    None,
    /// The kernel, so that a scan of all candidates takes the wanted time.
    ScanTime,
}

impl Advisor {
    /// The kernel's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Advisor::None => "none",
            Advisor::ScanTime => "scan-time",
        }
    }
}

/// `[ksm]`: what is `None` stays as it is found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KsmPlan {
    /// Whether anything is changed at all.
    pub manage: bool,
    /// Whether the kernel scans while we manage it.
    pub run: bool,
    /// Pages looked at before each pause.
    pub pages_to_scan: Option<u64>,
    /// The pause; whole milliseconds.
    pub sleep: Option<Duration>,
    /// Who sets the scan rate (Linux 6.7).
    pub advisor: Option<Advisor>,
    /// How long a scan of all candidates should take; whole seconds (Linux 6.7).
    pub advisor_target_scan_time: Option<Duration>,
    /// Percent of one processor that the advisor may use at most (Linux 6.7).
    pub advisor_max_cpu: Option<u64>,
    /// Least pages looked at before each pause that the advisor chooses (Linux 6.7).
    pub advisor_min_pages_to_scan: Option<u64>,
    /// Most pages looked at before each pause that the advisor chooses (Linux 6.7).
    pub advisor_max_pages_to_scan: Option<u64>,
    /// Whether pages that have not merged for some scans are skipped for a while (Linux 6.7).
    pub smart_scan: Option<bool>,
    /// Whether empty pages become the kernel's zero page.
    pub use_zero_pages: Option<bool>,
}

impl KsmPlan {
    /// Files and values that it asks for, in the order in which they have to be written: the advisor before the rate
    /// that it would set, and the switch last.
    pub fn wanted(&self) -> Vec<(&'static str, String)> {
        if !self.manage {
            return Vec::new();
        }
        let flag = |b: bool| u8::from(b).to_string();
        let all = [
            ("use_zero_pages", self.use_zero_pages.map(flag)),
            ("smart_scan", self.smart_scan.map(flag)),
            ("advisor_mode", self.advisor.map(|a| a.name().to_string())),
            ("advisor_target_scan_time", self.advisor_target_scan_time.map(|t| t.as_secs().to_string())),
            ("advisor_max_cpu", self.advisor_max_cpu.map(|n| n.to_string())),
            ("advisor_min_pages_to_scan", self.advisor_min_pages_to_scan.map(|n| n.to_string())),
            ("advisor_max_pages_to_scan", self.advisor_max_pages_to_scan.map(|n| n.to_string())),
            ("sleep_millisecs", self.sleep.map(|t| t.as_millis().to_string())),
            ("pages_to_scan", self.pages_to_scan.map(|n| n.to_string())),
            ("run", Some(flag(self.run))),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }
}
