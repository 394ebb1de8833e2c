//! `[ksm]`: what the kernel is set to for merging guests' RAM, checked and filled in.
//!
//! Owns its rules and its translation into values of files. Never reads or writes one. Invariant: a plan without
//! `manage` changes nothing.

use super::checks::Checker;
use super::fields::{Field, field, time};
use super::keys;
use super::spec::KsmSpec;
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

/// What is not set.
const AS_FOUND: &str = "as found";

/// Its keys.
pub(crate) const FIELDS: &[Field<KsmPlan>] = &[
    field!(KsmPlan, manage, manage, |b| b.to_string()),
    field!(KsmPlan, run, run, |b| b.to_string()),
    field!(KsmPlan, pages_to_scan, pages_to_scan, |v| v.as_ref().map_or(AS_FOUND.to_string(), u64::to_string)),
    field!(KsmPlan, sleep, sleep, |v| v.as_ref().map_or(AS_FOUND.to_string(), time)),
    field!(KsmPlan, advisor, advisor, |v| v.as_ref().map_or(AS_FOUND.to_string(), |a| a.name().to_string())),
    field!(KsmPlan, advisor_target_scan_time, advisor_target_scan_time, |v| v
        .as_ref()
        .map_or(AS_FOUND.to_string(), time)),
    field!(KsmPlan, advisor_max_cpu, advisor_max_cpu, |v| v.as_ref().map_or(AS_FOUND.to_string(), u64::to_string)),
    field!(KsmPlan, advisor_min_pages_to_scan, advisor_min_pages_to_scan, |v| v
        .as_ref()
        .map_or(AS_FOUND.to_string(), u64::to_string)),
    field!(KsmPlan, advisor_max_pages_to_scan, advisor_max_pages_to_scan, |v| v
        .as_ref()
        .map_or(AS_FOUND.to_string(), u64::to_string)),
    field!(KsmPlan, smart_scan, smart_scan, |v| v.as_ref().map_or(AS_FOUND.to_string(), bool::to_string)),
    field!(KsmPlan, use_zero_pages, use_zero_pages, |v| v.as_ref().map_or(AS_FOUND.to_string(), bool::to_string)),
];

impl Checker<'_> {
    pub(crate) fn ksm(&mut self, spec: &KsmSpec) -> KsmPlan {
        let at = |key: &str| spec.lines.get(key).copied();
        let advisor: Option<Advisor> = self.choice(at("advisor"), "ksm", "advisor", &spec.advisor);
        if advisor == Some(Advisor::ScanTime) && spec.pages_to_scan.is_some() {
            let error = "pages_to_scan is set, but the advisor sets it".to_string();
            let remedy = "take pages_to_scan away, or set advisor = \"none\"";
            self.error(at("pages_to_scan"), "ksm", error, remedy);
        }
        let mut number = |key, value, most| self.bounded(at(key), "ksm", key, value, 1, most);
        let pages = keys::KSM_PAGES_MAX;
        let pages_to_scan = number("pages_to_scan", spec.pages_to_scan, pages);
        let advisor_max_cpu = number("advisor_max_cpu", spec.advisor_max_cpu, 100);
        let least = number("advisor_min_pages_to_scan", spec.advisor_min_pages_to_scan, pages);
        let most = number("advisor_max_pages_to_scan", spec.advisor_max_pages_to_scan, pages);
        if let (Some(least), Some(most)) = (least, most)
            && least > most
        {
            let error = format!("advisor_min_pages_to_scan is {least}, more than advisor_max_pages_to_scan, {most}");
            self.error(at("advisor_min_pages_to_scan"), "ksm", error, "make it smaller");
        }
        let key = "advisor_target_scan_time";
        let scan_time = (at(key), key, spec.advisor_target_scan_time, keys::KSM_SCAN_TIME_RANGE);
        let sleep = (at("sleep"), "sleep", spec.sleep, keys::KSM_SLEEP_RANGE);
        KsmPlan {
            manage: spec.manage.unwrap_or(false),
            run: spec.run.unwrap_or(true),
            pages_to_scan,
            sleep: self.whole("ksm", sleep, Duration::from_millis(1)),
            advisor,
            advisor_target_scan_time: self.whole("ksm", scan_time, Duration::from_secs(1)),
            advisor_max_cpu,
            advisor_min_pages_to_scan: least,
            advisor_max_pages_to_scan: most,
            smart_scan: spec.smart_scan,
            use_zero_pages: spec.use_zero_pages,
        }
    }
}
