//! How the memory of the store is divided among the disks.
//!
//! Owns the arithmetic. Invariants: the shares together never exceed the memory; every disk gets at least
//! `SHARE_BYTES_MIN`; the same disks always get the same shares.

use super::keys::SHARE_BYTES_MIN;
use super::plan::DiskPlan;
use crate::units::Size;

/// Why the disks do not fit: a sentence each for what and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// What is wrong.
    pub error: String,
    /// What to do.
    pub remedy: String,
}

/// Gives every disk without a fixed share its part, by weight, of what the fixed ones leave. Changes nothing if they do
/// not fit.
///
/// # Errors
/// The sizes add up to more than the memory, or leave less than the least share for a disk.
pub fn divide(memory_bytes: u64, disks: &mut [DiskPlan]) -> Result<(), Misfit> {
    let fixed: u128 = disks.iter().filter(|d| d.share_fixed).map(|d| u128::from(d.share_bytes)).sum();
    let memory = u128::from(memory_bytes);
    let shown = |n: u128| Size(u64::try_from(n).unwrap_or(u64::MAX));
    if fixed > memory {
        return Err(Misfit {
            error: format!("the sizes of the disks add up to {}, but memory is {}", shown(fixed), Size(memory_bytes)),
            remedy: "make sizes smaller or memory larger".to_string(),
        });
    }
    let left = memory - fixed;
    let weights: u128 = disks.iter().filter(|d| !d.share_fixed).map(|d| u128::from(d.weight)).sum();
    let part = |d: &DiskPlan| (left * u128::from(d.weight) / weights) as u64 / 4096 * 4096;
    if let Some(poor) = disks.iter().find(|d| !d.share_fixed && part(d) < SHARE_BYTES_MIN) {
        return Err(Misfit {
            error: format!(
                "the disks with a size leave {} of {} memory, too little for disk \"{}\"",
                shown(left),
                Size(memory_bytes),
                poor.name
            ),
            remedy: format!(
                "every disk needs at least {}: make memory larger, sizes smaller, or weights more alike",
                Size(SHARE_BYTES_MIN)
            ),
        });
    }
    let parts: Vec<u64> = disks.iter().map(|d| if d.share_fixed { d.share_bytes } else { part(d) }).collect();
    for (disk, part) in disks.iter_mut().zip(parts) {
        disk.share_bytes = part;
    }
    Ok(())
}
