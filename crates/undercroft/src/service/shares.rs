//! How the bytes of the store become blocks of disks.
//!
//! Owns arithmetic only. Invariant: the capacities that `divide` gives need no more than the store has, metadata and
//! in-flight allowance included.

use crate::config::DiskPlan;

/// The share of each disk in bytes: what it asks for, or its part by weight of what the others leave.
pub fn divide(memory_bytes: u64, disks: &[DiskPlan]) -> Vec<u64> {
    let fixed: u64 = disks.iter().filter(|d| d.share_fixed).map(|d| d.share_bytes).sum();
    let left = memory_bytes.saturating_sub(fixed);
    let weights: u64 = disks.iter().filter(|d| !d.share_fixed).map(|d| u64::from(d.weight.max(1))).sum();
    disks
        .iter()
        .map(|d| {
            if d.share_fixed {
                d.share_bytes
            } else {
                (u128::from(left) * u128::from(d.weight.max(1)) / u128::from(weights.max(1))) as u64
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::ImageSpec;
    use std::time::Duration;
    use undercroft_engine::PolicyKind;

    fn disk(share: Option<u64>, weight: u32) -> DiskPlan {
        DiskPlan {
            name: "d".into(),
            vm: None,
            image: ImageSpec { location: "/i".into(), format: None, read_only: false },
            socket: None,
            nbd: true,
            policy: PolicyKind::Lru,
            share_bytes: share.unwrap_or(0),
            share_fixed: share.is_some(),
            weight,
            readahead_bytes: 0,
            write_allocate: true,
            serial: String::new(),
            queues: 1,
            queue_size: 128,
            poll: Duration::ZERO,
        }
    }

    #[test]
    fn fixed_shares_first_then_weights() {
        assert_eq!(divide(1000, &[disk(Some(400), 1), disk(None, 1), disk(None, 2)]), [400, 200, 400]);
        assert_eq!(divide(1000, &[disk(None, 1)]), [1000]);
        assert_eq!(divide(1000, &[]), [0u64; 0]);
    }

    #[test]
    fn never_more_than_there_is() {
        let shares = divide(10, &[disk(None, 3), disk(None, 3), disk(None, 3)]);
        assert!(shares.iter().sum::<u64>() <= 10);
        assert_eq!(divide(100, &[disk(Some(200), 1), disk(None, 1)])[1], 0);
    }
}
