//! How a memory is divided among tenants: the division with the fewest misses by their curves.
//!
//! Owns floors, ceilings and the three searches. Never measures. Invariant: parts are within floor and ceiling and sum
//! to at most what there is; memory that would save no miss is not given away; tenants with equal curves get
//! equal parts, except where a curve falls steeply.
//!
//! - Dynamic programming over units: the best division there is, to the resolution of a unit.
//! - Greedy on convex hulls (Fox, Operations Research 1966; the engine's `best_partition`): the best there is for
//!   curves that are convex; on others it may end in the middle of a cliff.
//! - Look-ahead (Qureshi and Patt, MICRO 2006; the engine's `lookahead`): sees past cliffs, one tenant at a time.

use std::fmt;
use std::str::FromStr;
use undercroft_engine::control::{Appetite, lookahead};
use undercroft_engine::curve::{Curve, best_partition};

/// One that memory is divided among. Sizes in blocks.
#[derive(Clone, Debug, PartialEq)]
pub struct Tenant {
    /// What it is called.
    pub name: String,
    /// Its misses by size.
    pub curve: Curve,
    /// The least that it gets.
    pub floor: u64,
    /// The most that it gets.
    pub ceiling: u64,
}

/// How the division is searched for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// Dynamic programming with so many units, or fewer.
    #[default]
    Dp,
    /// Greedy on convex hulls.
    Greedy,
    /// Look-ahead.
    Lookahead,
}

impl Method {
    /// All.
    pub const ALL: [Method; 3] = [Method::Dp, Method::Greedy, Method::Lookahead];

    /// As the command line writes it.
    pub fn name(self) -> &'static str {
        match self {
            Method::Dp => "dp",
            Method::Greedy => "greedy",
            Method::Lookahead => "lookahead",
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no [`Method`] has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is no way to divide; take one of {}", Method::ALL.map(Method::name).join(", "))]
pub struct NoSuchMethod {
    name: String,
}

impl FromStr for Method {
    type Err = NoSuchMethod;

    /// # Errors
    /// The names there are.
    fn from_str(text: &str) -> Result<Self, NoSuchMethod> {
        Method::ALL
            .into_iter()
            .find(|method| method.name() == text)
            .ok_or_else(|| NoSuchMethod { name: text.to_owned() })
    }
}

/// Why nothing can be divided.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartitionError {
    /// Floors ask for more than there is.
    #[error("the floors sum to {floors} blocks, and there are {total}; lower a floor or give more memory")]
    Floors {
        /// Their sum.
        floors: u64,
        /// What there is.
        total: u64,
    },
    /// A ceiling is below its floor.
    #[error("{name} has a floor of {floor} blocks above its ceiling of {ceiling}; lower one or raise the other")]
    Crossed {
        /// The tenant.
        name: String,
        /// Its floor.
        floor: u64,
        /// Its ceiling.
        ceiling: u64,
    },
}

/// Units of the search by dynamic programming: time is in proportion to their square and to the tenants, memory to
/// both.
const UNITS_MAX: u64 = 4096;

fn check(tenants: &[Tenant], total: u64) -> Result<(), PartitionError> {
    if let Some(t) = tenants.iter().find(|t| t.floor > t.ceiling) {
        return Err(PartitionError::Crossed { name: t.name.clone(), floor: t.floor, ceiling: t.ceiling });
    }
    let floors = tenants.iter().fold(0u64, |sum, t| sum.saturating_add(t.floor));
    if floors > total { Err(PartitionError::Floors { floors, total }) } else { Ok(()) }
}

/// Divides `total` blocks; the parts, in the tenants' order.
///
/// # Errors
/// Floors that do not fit.
pub fn divide(tenants: &[Tenant], total: u64, method: Method) -> Result<Vec<u64>, PartitionError> {
    check(tenants, total)?;
    let parts = match method {
        Method::Dp => {
            let free = total - tenants.iter().map(|t| t.floor).sum::<u64>();
            by_programming(tenants, free, free.div_ceil(UNITS_MAX).max(1))
        }
        Method::Greedy => {
            let free = total - tenants.iter().map(|t| t.floor).sum::<u64>();
            let above: Vec<Curve> = tenants.iter().map(above_floor).collect();
            let more = best_partition(&above, free);
            tenants.iter().zip(more).map(|(t, more)| t.floor + more).collect()
        }
        Method::Lookahead => {
            let parties: Vec<Appetite<'_>> = tenants
                .iter()
                .map(|t| Appetite { weight: 1, from: t.floor, room: t.ceiling, curve: &t.curve })
                .collect();
            lookahead(total, &parties)
        }
    };
    Ok(alike(tenants, parts))
}

/// Of the misses, what tenants may cost that are treated alike.
const ALIKE_COST: f64 = 0.001;

/// Gives tenants that are equal in all but their name equal parts, unless that costs more misses than it is worth: on a
/// curve that has a cliff, one may be better off with all that two want. What the searches find otherwise is an
/// accident of their steps.
fn alike(tenants: &[Tenant], parts: Vec<u64>) -> Vec<u64> {
    let same = |a: &Tenant, b: &Tenant| a.curve == b.curve && (a.floor, a.ceiling) == (b.floor, b.ceiling);
    let mut even = parts.clone();
    for (first, tenant) in tenants.iter().enumerate() {
        if tenants[..first].iter().any(|before| same(before, tenant)) {
            continue;
        }
        let all: Vec<usize> = (first..tenants.len()).filter(|&i| same(&tenants[i], tenant)).collect();
        let sum: u64 = all.iter().map(|&i| parts[i]).sum();
        let (each, over) = (sum / all.len() as u64, sum % all.len() as u64);
        all.iter().zip(0..).for_each(|(&i, n)| even[i] = each + u64::from(n < over));
    }
    if misses(tenants, &even) <= misses(tenants, &parts) * (1.0 + ALIKE_COST) + 1e-9 { even } else { parts }
}

/// The curve from the floor on, up to the ceiling, by what is above the floor.
fn above_floor(tenant: &Tenant) -> Curve {
    let Tenant { curve, floor, ceiling, .. } = tenant;
    let misses = curve.misses_at(*floor);
    let inside = curve.points().iter().filter(|(size, _)| size > floor && size < ceiling);
    let end = (ceiling > floor && *ceiling <= curve.max_size()).then(|| (ceiling - floor, curve.misses_at(*ceiling)));
    Curve::new(misses, inside.map(|&(size, misses)| (size - floor, misses)).chain(end))
}

/// The best division of `free` blocks above the floors, in steps of `unit`.
fn by_programming(tenants: &[Tenant], free: u64, unit: u64) -> Vec<u64> {
    let units = (free / unit) as usize;
    let size = |tenant: &Tenant, k: usize| tenant.floor + k as u64 * unit;
    // the fewest misses of the tenants so far by units, and how many units the last of them has then
    let mut fewest = vec![0.0; units + 1];
    let mut chosen: Vec<Vec<u32>> = vec![];
    for tenant in tenants {
        let room = ((tenant.ceiling - tenant.floor) / unit).min(units as u64) as usize;
        let misses: Vec<f64> = (0..=room).map(|k| tenant.curve.misses_at(size(tenant, k))).collect();
        let mut next = vec![f64::INFINITY; units + 1];
        let mut choice = vec![0u32; units + 1];
        for all in 0..=units {
            for k in 0..=room.min(all) {
                let sum = fewest[all - k] + misses[k];
                // of equals the smaller: what saves nothing is not given
                if sum < next[all] - 1e-9 {
                    (next[all], choice[all]) = (sum, k as u32);
                }
            }
        }
        fewest = next;
        chosen.push(choice);
    }
    let mut left = units;
    let mut parts: Vec<u64> = vec![0; tenants.len()];
    for (i, choice) in chosen.iter().enumerate().rev() {
        let k = choice[left] as usize;
        parts[i] = size(&tenants[i], k);
        left -= k;
    }
    parts
}

/// Equal parts, as far as floors and ceilings allow; what is left by ceilings goes to the others.
///
/// # Errors
/// Floors that do not fit.
pub fn equal(tenants: &[Tenant], total: u64) -> Result<Vec<u64>, PartitionError> {
    by_weight(tenants, total, |_| 1.0)
}

/// Parts in proportion to requests, likewise.
///
/// # Errors
/// Floors that do not fit.
pub fn proportional(tenants: &[Tenant], total: u64) -> Result<Vec<u64>, PartitionError> {
    by_weight(tenants, total, |tenant| tenant.curve.requests())
}

fn by_weight(tenants: &[Tenant], total: u64, weight: impl Fn(&Tenant) -> f64) -> Result<Vec<u64>, PartitionError> {
    check(tenants, total)?;
    let mut parts: Vec<Option<u64>> = vec![None; tenants.len()];
    // those who meet a bound are settled first, by turns: floors raise what others must give, ceilings what they get
    loop {
        let open: Vec<usize> = (0..tenants.len()).filter(|&i| parts[i].is_none()).collect();
        let left = total - parts.iter().flatten().sum::<u64>();
        let weights: f64 = open.iter().map(|&i| weight(&tenants[i])).sum();
        let wish = |i: usize| if weights > 0.0 { weight(&tenants[i]) / weights * left as f64 } else { 0.0 };
        let lifted = |&&i: &&usize| wish(i) < tenants[i].floor as f64;
        let capped = |&&i: &&usize| wish(i) > tenants[i].ceiling as f64;
        if open.iter().any(|i| lifted(&i)) {
            open.iter().filter(lifted).for_each(|&i| parts[i] = Some(tenants[i].floor));
        } else if open.iter().any(|i| capped(&i)) {
            open.iter().filter(capped).for_each(|&i| parts[i] = Some(tenants[i].ceiling));
        } else {
            open.iter().for_each(|&i| parts[i] = Some(wish(i) as u64));
            return Ok(parts.into_iter().flatten().collect());
        }
    }
}

/// Misses of all tenants together with these parts.
pub fn misses(tenants: &[Tenant], parts: &[u64]) -> f64 {
    tenants.iter().zip(parts).map(|(tenant, &part)| tenant.curve.misses_at(part)).sum()
}
