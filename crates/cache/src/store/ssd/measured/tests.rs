//! The rule above a model of both stores: queues of block numbers, with room for `RAM` and `ROOM`.

use super::super::admission::Admitting;
use super::super::permutation::mix;
use super::super::types::Admission;
use super::*;
use std::collections::{HashSet, VecDeque};

const RAM: usize = 4000;
const ROOM: usize = 65_536;
/// A place behind every other.
const FAR: u64 = 1 << 30;

struct Model {
    rule: Admitting,
    ram: (VecDeque<u64>, HashSet<u64>),
    ssd: (VecDeque<u64>, HashSet<u64>),
    admitted: usize,
}

impl Model {
    fn new() -> Self {
        let mut rule = Admitting::new(ROOM as u32, 7);
        rule.set_rule(Admission::Measured);
        rule.attach(1);
        rule.set_room(1, ROOM as u64);
        Self { rule, ram: Default::default(), ssd: Default::default(), admitted: 0 }
    }

    fn leaves(&mut self, block: u64) {
        if self.ssd.1.contains(&block) {
            return self.rule.returns(1, block, false);
        }
        if self.rule.judge(1, block, false, self.ssd.0.len() < ROOM).admits {
            self.admitted += 1;
            self.ssd.0.push_back(block);
            self.ssd.1.insert(block);
            if self.ssd.0.len() > ROOM {
                self.ssd.0.pop_front().map(|gone| self.ssd.1.remove(&gone));
            }
        }
    }

    /// Reads blocks; of each hundred, how many were on the SSD, and of all how many were admitted.
    fn read(&mut self, blocks: impl Iterator<Item = u64>) -> (usize, usize) {
        let (mut found, mut asked) = (0, 0);
        let before = self.admitted;
        for block in blocks {
            if self.ram.1.contains(&block) {
                continue;
            }
            asked += 1;
            self.rule.asked(1, block);
            found += usize::from(self.ssd.1.contains(&block));
            self.ram.0.push_back(block);
            self.ram.1.insert(block);
            if self.ram.0.len() > RAM
                && let Some(gone) = self.ram.0.pop_front()
            {
                self.ram.1.remove(&gone);
                self.leaves(gone);
            }
        }
        (100 * found / asked.max(1), self.admitted - before)
    }

    /// Round and round from `first` on.
    fn round(&mut self, first: u64, blocks: usize, times: usize) -> (usize, usize) {
        self.read((0..blocks * times).map(|n| first + (n % blocks) as u64))
    }
}

/// Blocks of a set, at random.
fn random(from: u64, blocks: u64, n: u64) -> impl Iterator<Item = u64> {
    (0..n).map(move |n| from + 3 * (mix(n) % blocks))
}

#[test]
fn what_comes_again_in_time_is_admitted_and_what_does_not_is_not() {
    let mut model = Model::new();
    model.round(FAR, ROOM, 1);
    model.read(random(0, 48_000, 240_000));
    let (found, _) = model.read(random(0, 48_000, 240_000));
    assert!(found > 85, "{found} % of a set that fits");
    let (_, admitted) = model.read(random(FAR, 40_000_000, 400_000));
    assert!(admitted < 20_000, "{admitted} of 400,000 that do not come again");
}

#[test]
fn of_a_round_that_is_too_long_what_fits_is_kept() {
    let mut model = Model::new();
    model.round(0, ROOM * 3 / 2, 8);
    let (found, admitted) = model.round(0, ROOM * 3 / 2, 4);
    assert!(found > 25, "{found} %; everything admitted, nothing would be found");
    assert!(admitted < 6 * ROOM / 2, "{admitted} written");
}

#[test]
fn a_scan_after_a_good_record_costs_little_and_its_class_recovers() {
    let mut model = Model::new();
    let loops = ROOM * 3 / 4;
    model.round(3 * FAR, ROOM, 1);
    model.round(0, loops, 6);
    assert!(model.round(0, loops, 2).0 > 95);
    // A disk of thirty times what the store has room for is read once.
    let (_, admitted) = model.round(FAR, 30 * ROOM, 1);
    assert!(admitted < ROOM / 16, "{admitted} of a scan");
    let (found, _) = model.round(0, loops, 1);
    assert!(found > 90, "{found} % of what was there before");
    // The same class is used well from now on.
    model.round(2 * FAR, loops, 4);
    let (found, _) = model.round(2 * FAR, loops, 1);
    assert!(found > 90, "{found} % of the new round");
}

#[test]
fn a_scan_beside_a_load_takes_no_place_from_it() {
    let run = |with_scan: bool| {
        let mut model = Model::new();
        model.read(random(0, 120_000, 800_000));
        let both = random(0, 120_000, 800_000).enumerate().flat_map(|(n, block)| {
            let scanned = with_scan.then_some(FAR + n as u64);
            [Some(block), scanned].into_iter().flatten()
        });
        let (found, admitted) = model.read(both);
        (if with_scan { 2 * found } else { found }, admitted)
    };
    let ((alone, _), (beside, admitted)) = (run(false), run(true));
    assert!(beside + 6 > alone, "{beside} % beside a scan, {alone} % without; {admitted} admitted");
}

#[test]
fn changed_blocks_are_not_waited_for() {
    let mut model = Model::new();
    model.round(FAR, ROOM, 1);
    // All that left RAM is written to before it is asked for again.
    for _ in 0..6 {
        for n in 0..40_000 {
            model.rule.changes(1, n..n + 1);
            model.ssd.1.remove(&n);
            model.read(std::iter::once(n));
        }
    }
    let before = model.admitted;
    for n in 0..40_000 {
        model.rule.changes(1, n..n + 1);
        model.ssd.1.remove(&n);
        model.read(std::iter::once(n));
    }
    assert!(model.admitted - before < 2000, "{} of 40,000", model.admitted - before);
}

#[test]
fn tables_take_a_quarter_of_a_byte_for_each_slot() {
    let mut measured = Measured::new(1 << 18);
    measured.attach(0);
    let bytes = measured.bytes();
    assert!(bytes * 100 <= 26 << 18, "{bytes}");
    measured.attach(0);
    measured.detach(0);
    assert!(measured.bytes() < bytes);
}
