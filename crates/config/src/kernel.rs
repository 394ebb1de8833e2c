//! `[store] floor`, `[pressure]` and `[ksm]`: what concerns the kernel's memory, checked and filled in.
//!
//! Owns their rules. Never looks at the kernel: what it has is found out when it is used. Invariant: every time and
//! number of the result is within its bounds.

use super::keys;
use super::resolve::Resolver;
use super::spec::{KsmSpec, PressureSpec, ServeSpec};
use crate::pressure::{FLOOR_PART_DEFAULT, PressurePlan};
use crate::{Advisor, KsmPlan};
use std::time::Duration;
use undercroft_units::{Size, Time, human_size};

/// A time of a section: its line, its key, its value, its bounds.
type Timed<'a> = (Option<usize>, &'a str, Option<Time>, [Duration; 2]);

impl Resolver<'_> {
    pub(super) fn floor(&mut self, spec: &ServeSpec, memory_bytes: u64) -> u64 {
        let Some(Size(floor)) = spec.floor else { return memory_bytes / FLOOR_PART_DEFAULT };
        if floor > memory_bytes {
            let error = format!("floor is {}, but the memory of the store is {}", Size(floor), Size(memory_bytes));
            self.error(spec.lines.get("floor").copied(), "store", error, "make floor smaller or memory larger");
        }
        floor.min(memory_bytes)
    }

    pub(super) fn time(&mut self, place: &str, (line, key, value, [least, most]): Timed<'_>) -> Option<Duration> {
        let time = value?;
        if time.duration() < least || time.duration() > most {
            let remedy = format!("allowed is {} to {}", Time::from(least), Time::from(most));
            self.error(line, place, format!("{key} must not be {time}"), remedy);
            return None;
        }
        Some(time.duration())
    }

    /// The same in whole units of `unit`, which is all that the kernel takes.
    fn whole(&mut self, place: &str, timed: Timed<'_>, unit: Duration) -> Option<Duration> {
        let (line, key, ..) = timed;
        let time = self.time(place, timed)?;
        if !time.as_nanos().is_multiple_of(unit.as_nanos()) {
            let error = format!("{key} is {}, which is no multiple of {}", Time::from(time), Time::from(unit));
            self.error(line, place, error, "round it: the kernel takes no fractions");
            return None;
        }
        Some(time)
    }

    pub(super) fn pressure(&mut self, spec: &PressureSpec) -> PressurePlan {
        let at = |key: &str| spec.lines.get(key).copied();
        let half = self.machine.memory_bytes / 2;
        let available_min = spec.available_min.filter(|min| {
            let fits = min.0 <= half;
            if !fits {
                let error = format!("available_min is {min}, more than half of the machine's memory");
                self.error(at("available_min"), "pressure", error, format!("give at most {}", human_size(half)));
            }
            fits
        });
        let mut time = |key, value, range, default| {
            let timed = (spec.lines.get(key).copied(), key, value, range);
            self.time("pressure", timed).unwrap_or(default)
        };
        PressurePlan {
            watch: spec.watch.unwrap_or(true),
            stall: time("stall", spec.stall, keys::STALL_RANGE, keys::STALL_DEFAULT),
            available_min_bytes: available_min.map(|m| m.0),
            give_within: time("give_within", spec.give_within, keys::GIVE_WITHIN_RANGE, keys::GIVE_WITHIN_DEFAULT),
            calm: time("calm", spec.calm, keys::CALM_RANGE, keys::CALM_DEFAULT),
            regrow: time("regrow", spec.regrow, keys::CALM_RANGE, keys::REGROW_DEFAULT),
        }
    }

    pub(super) fn ksm(&mut self, spec: &KsmSpec) -> KsmPlan {
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
