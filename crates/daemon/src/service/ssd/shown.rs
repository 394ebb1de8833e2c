//! What is shown of the SSD store, from the numbers of the workers' stores.
//!
//! Owns the sums. Never asks a worker. Invariant: what a disk counted that is gone is still counted.

use undercroft_api::{SsdClass, SsdCounters, SsdDiskStatus, SsdStatus, SsdWritten};
use undercroft_cache::ssd::{Class, OutOfService, OwnerStats, Refusal, SsdStats};

const BLOCK: u64 = 4096;

/// Adds what a disk has counted.
pub(super) fn count(sum: &mut SsdCounters, stats: &OwnerStats) {
    let refused = |why: Refusal| Refusal::ALL.iter().position(|r| *r == why).map_or(0, |n| stats.refused[n]);
    sum.hits += stats.hits;
    sum.misses += stats.misses;
    sum.admitted += stats.admitted;
    sum.deduplicated += stats.linked;
    sum.refused_guest_holds += refused(Refusal::GuestHolds);
    sum.refused_rule += refused(Refusal::Rule);
    sum.refused_budget += refused(Refusal::Budget);
    sum.refused_no_room += refused(Refusal::NoRoom);
    sum.refused_staging += refused(Refusal::Staging);
    sum.refused_range += refused(Refusal::Range);
    sum.refused_out_of_service += refused(Refusal::OutOfService);
    sum.refused_no_share += refused(Refusal::NoShare);
    sum.mismatches += stats.mismatches;
    let classes = &mut sum.classes;
    let add = |to: &mut SsdClass, class: Class| {
        to.admitted += stats.classes[class as usize].admitted;
        to.refused += stats.classes[class as usize].refused;
    };
    add(&mut classes.first, Class::First);
    add(&mut classes.first_sequential, Class::FirstSequential);
    add(&mut classes.again, Class::Again);
    add(&mut classes.again_sequential, Class::AgainSequential);
    add(&mut classes.reused, Class::Reused);
}

/// What a disk has.
pub(super) fn disk(name: &str, stats: &OwnerStats) -> SsdDiskStatus {
    SsdDiskStatus {
        disk: name.to_owned(),
        share_bytes: stats.share_blocks * BLOCK,
        target_bytes: 0,
        cached_bytes: stats.blocks * BLOCK,
        hits: stats.hits,
        misses: stats.misses,
        admitted: stats.admitted,
    }
}

/// Adds what the store of worker `worker` says of its devices.
pub(super) fn add(status: &mut SsdStatus, worker: usize, devices: &[SsdStats]) {
    for (n, stats) in devices.iter().enumerate() {
        status.capacity_bytes += stats.room * BLOCK;
        status.cached_bytes += stats.blocks * BLOCK;
        status.held_bytes += stats.held * BLOCK;
        status.deduplicated_bytes += stats.linked * BLOCK;
        status.memory_bytes += stats.memory;
        let SsdWritten { admitted_bytes, cleaning_bytes, summaries_bytes, tables_bytes } = &mut status.written;
        *admitted_bytes += stats.written.admitted;
        *cleaning_bytes += stats.written.cleaning;
        *summaries_bytes += stats.written.summaries;
        *tables_bytes += stats.written.tables;
        if let Some(left) = stats.budget_left {
            *status.budget_left_bytes.get_or_insert(0) += left;
        }
        let Some(device) = status.devices.get_mut(n) else { continue };
        match stats.out_of_service {
            None => device.regions_in_service += 1,
            Some(why) => {
                let what = format!("{}, worker {worker}: {}", device.path, words(why));
                status.reason = Some(status.reason.take().map_or(what.clone(), |before| format!("{before}; {what}")));
            }
        }
    }
    let w = &status.written;
    let all = w.admitted_bytes + w.cleaning_bytes + w.summaries_bytes + w.tables_bytes;
    status.write_amplification = (w.admitted_bytes > 0).then(|| all as f64 / w.admitted_bytes as f64);
}

/// Why a device is out of service.
pub(super) fn words(why: OutOfService) -> &'static str {
    match why {
        OutOfService::Write => "a write failed: it is full, gone or broken",
        OutOfService::Flush => "a flush failed",
        OutOfService::Mismatches => "blocks were not what was written, too often for chance",
        OutOfService::Stalled => "it did not answer for too long",
        OutOfService::Operator => "an operator took it out of service",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use undercroft_api::SsdDeviceStatus;
    use undercroft_cache::ssd::Written;

    #[test]
    fn workers_are_summed_and_a_region_out_of_service_is_named() {
        let device = |path: &str| SsdDeviceStatus { path: path.into(), ..SsdDeviceStatus::default() };
        let mut status = SsdStatus { devices: vec![device("/a"), device("/b")], ..SsdStatus::default() };
        let (admitted, cleaning, summaries) = (100 * BLOCK, 4 * BLOCK, 5 * BLOCK);
        let written = Written { admitted, cleaning, pins: 0, summaries, tables: BLOCK };
        let good =
            SsdStats { blocks: 7, held: 2, linked: 3, room: 10, written, budget_left: Some(9), ..SsdStats::default() };
        let bad = SsdStats { room: 10, out_of_service: Some(OutOfService::Flush), ..SsdStats::default() };
        add(&mut status, 0, &[good, good]);
        add(&mut status, 1, &[good, bad]);
        let told = [status.cached_bytes, status.capacity_bytes, status.held_bytes, status.deduplicated_bytes];
        assert_eq!(told, [21 * BLOCK, 40 * BLOCK, 6 * BLOCK, 9 * BLOCK]);
        assert_eq!(status.devices.iter().map(|d| d.regions_in_service).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(status.reason.as_deref(), Some("/b, worker 1: a flush failed"));
        assert_eq!((status.budget_left_bytes, status.write_amplification), (Some(27), Some(1.1)));
    }

    #[test]
    fn every_refusal_is_counted_in_its_place() {
        let mut stats = OwnerStats { hits: 1, linked: 4, ..OwnerStats::default() };
        stats.refused = [1, 2, 3, 4, 5, 6, 7, 8];
        let mut sum = SsdCounters::default();
        count(&mut sum, &stats);
        count(&mut sum, &stats);
        let all = [
            (sum.refused_guest_holds, Refusal::GuestHolds),
            (sum.refused_rule, Refusal::Rule),
            (sum.refused_budget, Refusal::Budget),
            (sum.refused_no_room, Refusal::NoRoom),
            (sum.refused_staging, Refusal::Staging),
            (sum.refused_range, Refusal::Range),
            (sum.refused_out_of_service, Refusal::OutOfService),
            (sum.refused_no_share, Refusal::NoShare),
        ];
        for (counted, why) in all {
            let place = Refusal::ALL.iter().position(|r| *r == why).unwrap() as u64;
            assert_eq!(counted, 2 * (place + 1), "{why:?}");
        }
        assert_eq!((sum.hits, sum.deduplicated), (2, 8));
    }
}
