//! What the API says of kernel same-page merging (KSM).
//!
//! Owns the shapes. Never reads a file: `undercroft_hostmem::ksm` does.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The settings of the kernel. One that this kernel does not have is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Settings {
    /// 0: no scan, what is merged stays; 1: it scans; 2: no scan, and everything was unmerged.
    pub run: Option<i64>,
    /// Pages looked at before each pause.
    pub pages_to_scan: Option<i64>,
    /// The pause in milliseconds.
    pub sleep_millisecs: Option<i64>,
    /// `none` or `scan-time`: who sets `pages_to_scan` (Linux 6.7).
    pub advisor_mode: Option<String>,
    /// Seconds that a scan of all candidates should take (Linux 6.7).
    pub advisor_target_scan_time: Option<i64>,
    /// Percent of a processor that the advisor may use (Linux 6.7).
    pub advisor_max_cpu: Option<i64>,
    /// Least `pages_to_scan` that the advisor chooses (Linux 6.7).
    pub advisor_min_pages_to_scan: Option<i64>,
    /// Most `pages_to_scan` that the advisor chooses (Linux 6.7).
    pub advisor_max_pages_to_scan: Option<i64>,
    /// Whether pages that did not merge for some scans are skipped for a while (Linux 6.7).
    pub smart_scan: Option<bool>,
    /// Whether empty pages become the kernel's zero page.
    pub use_zero_pages: Option<bool>,
}

/// What merging has saved so far, on the whole machine. A number that this kernel does not have is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Numbers {
    /// Merged pages that exist.
    pub pages_shared: Option<i64>,
    /// Further places that use them: pages saved.
    pub pages_sharing: Option<i64>,
    /// Candidates whose content nobody else has.
    pub pages_unshared: Option<i64>,
    /// Candidates that change too fast.
    pub pages_volatile: Option<i64>,
    /// Candidates that `smart_scan` left out (Linux 6.7).
    pub pages_skipped: Option<i64>,
    /// Pages looked at since boot (Linux 6.7).
    pub pages_scanned: Option<i64>,
    /// Empty pages that became the kernel's zero page (Linux 6.6).
    pub ksm_zero_pages: Option<i64>,
    /// Scans of all candidates since boot.
    pub full_scans: Option<i64>,
    /// Bytes saved less bytes that the bookkeeping takes (Linux 6.4); below 0 if merging costs more than it saves.
    pub general_profit: Option<i64>,
}
