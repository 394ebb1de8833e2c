//! `[pressure]`: when the store gives memory back, checked and filled in.
//!
//! Owns its rules. Never looks at the machine's memory. Invariant: every bound of it is within what `keys` says.

use super::checks::Checker;
use super::fields::{Field, field, time};
use super::keys;
use super::spec::PressureSpec;
use std::time::Duration;
use undercroft_units::{Size, human_size};

/// `[pressure]`: when memory is given back and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PressurePlan {
    /// Whether the machine is watched at all.
    pub watch: bool,
    /// How long, of a second, some process has to wait for memory until that is pressure.
    pub stall: Duration,
    /// How much of the machine's memory is to stay available; `None` for the defaults.
    pub available_min_bytes: Option<u64>,
    /// Within this, half of what the store holds above its floor is given back.
    pub give_within: Duration,
    /// How long there must be no pressure before the store grows again.
    pub calm: Duration,
    /// How long growing from nothing to the ceiling takes at least.
    pub regrow: Duration,
}

/// Its keys.
pub(crate) const FIELDS: &[Field<PressurePlan>] = &[
    field!(PressurePlan, watch, watch, |b| b.to_string()),
    field!(PressurePlan, stall, stall, time),
    field!(PressurePlan, available_min, available_min_bytes, |b| {
        b.map_or("default".to_string(), |b| Size(b).to_string())
    }),
    field!(PressurePlan, give_within, give_within, time),
    field!(PressurePlan, calm, calm, time),
    field!(PressurePlan, regrow, regrow, time),
];

impl Checker<'_> {
    pub(crate) fn pressure(&mut self, spec: &PressureSpec) -> PressurePlan {
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
}
