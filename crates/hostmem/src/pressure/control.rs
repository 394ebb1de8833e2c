//! How much the store may hold: a state machine from readings of the machine's memory to a number of bytes.
//!
//! Owns the rule. Never reads a clock or a file: it is a function of what it is told. Invariants: the result is between
//! floor and ceiling; it never grows while there was pressure within the time of calm; pressure that comes back while
//! it grows makes it wait longer each time, so that alternating readings do not make it swing.

use super::divide::{Holding, held_above, releasing};

/// Pressure that comes back while the store grows doubles the time of calm, up to this many times it.
const PATIENCE_MAX: u32 = 16;
/// After memory was given back, it takes this long until the kernel's estimate of available memory is trusted again.
const SETTLE_NS: u64 = 500_000_000;
/// The store grows in steps of this length.
const GROW_STEP_NS: u64 = 1_000_000_000;
/// What goes each time that a control group says it is short, in bytes, if nothing says how much is missing. Its limit
/// is known, so what is missing is seen soon; an event alone may be the recycling of a few pages.
const GROUP_STEP_BYTES: u64 = 4 << 20;
/// Leftovers below this part of the ceiling go at once, so that halving comes to an end.
const LEFTOVER_PART: u64 = 64;

/// Sizes in bytes and times in nanoseconds by which the store shrinks and grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    /// The most there can ever be.
    pub ceiling_bytes: u64,
    /// What is never given back; at most the ceiling.
    pub floor_bytes: u64,
    /// Within this, half of what is held above the floor is given back.
    pub give_within_ns: u64,
    /// How long there must be no pressure before it grows.
    pub calm_ns: u64,
    /// How long growing from nothing to the ceiling takes.
    pub regrow_ns: u64,
}

/// What was read of the machine's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// When, on a monotonic clock, in nanoseconds.
    pub now_ns: u64,
    /// Whether processes waited for memory of the machine for longer than allowed.
    pub stalled: bool,
    /// Whether our control group reclaimed memory, or waited for it, with next to nothing left below its limit.
    pub group_stalled: bool,
    /// Bytes by which less is available than there should be.
    pub short_bytes: u64,
    /// Bytes by which more is available than there should be.
    pub spare_bytes: u64,
    /// Bytes by which the store may grow until the next reading, so that it does not itself make memory short before
    /// that is seen.
    pub room_bytes: u64,
    /// Bytes of guests' memory that we may be charged for until the next reading; `None` if no control group limits us.
    pub guests_bytes: Option<u64>,
    /// Bytes of shared memory that our control group is charged for: guests' memory, but for a little.
    pub shared_bytes: Option<u64>,
}

impl Reading {
    /// Whether memory is short in any way.
    pub(crate) fn is_pressed(&self) -> bool {
        self.stalled || self.group_stalled || self.short_bytes > 0
    }
}

/// Which way the store goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// It may hold all that it is to hold at most.
    #[default]
    Full,
    /// It gives memory back.
    Giving,
    /// It keeps what it has, until there was no pressure for long enough.
    Waiting,
    /// It grows again.
    Growing,
}

/// See the head of the file.
#[derive(Clone, Debug)]
pub(crate) struct PressureControl {
    rules: Rules,
    /// What it may hold at most: the ceiling, or less by hand.
    most: u64,
    allowed: u64,
    direction: Direction,
    /// When there was pressure last.
    pressed_ns: Option<u64>,
    /// When memory was last given back.
    cut_ns: Option<u64>,
    /// When it last grew, or began to.
    grown_ns: u64,
    patience: u32,
}

impl PressureControl {
    /// A store that may hold everything.
    ///
    /// # Panics
    /// If the floor is above the ceiling.
    pub fn new(rules: Rules) -> Self {
        assert!(rules.floor_bytes <= rules.ceiling_bytes, "the floor is above the ceiling");
        let ceiling = rules.ceiling_bytes;
        PressureControl {
            rules,
            most: ceiling,
            allowed: ceiling,
            direction: Direction::Full,
            pressed_ns: None,
            cut_ns: None,
            grown_ns: 0,
            patience: 1,
        }
    }

    /// What the store may hold now, in bytes.
    pub fn allowed_bytes(&self) -> u64 {
        self.allowed
    }

    /// What it may hold at most, in bytes: the ceiling, or less by hand.
    pub fn most_bytes(&self) -> u64 {
        self.most
    }

    /// Which way it goes.
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// The rules.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Other rules from now on, for the same ceiling.
    ///
    /// # Panics
    /// If the ceiling is another, or the floor above it.
    pub(crate) fn set_rules(&mut self, rules: Rules) {
        assert!(rules.ceiling_bytes == self.rules.ceiling_bytes, "a ceiling that changes");
        assert!(rules.floor_bytes <= rules.ceiling_bytes, "the floor is above the ceiling");
        self.rules = rules;
        self.most = self.most.max(rules.floor_bytes);
        self.allowed = self.allowed.clamp(rules.floor_bytes, self.most);
    }

    /// Forgets all pressure: nobody watches any more.
    pub fn forget(&mut self) {
        (self.pressed_ns, self.cut_ns, self.patience) = (None, None, 1);
        (self.allowed, self.direction) = (self.most, Direction::Full);
    }

    /// Changes by hand what it may hold at most, within floor and ceiling. A smaller value holds at once; a larger one
    /// does too, unless there was pressure lately: then the store grows towards it slowly.
    pub fn set_most(&mut self, bytes: u64) {
        let was_full = self.allowed == self.most;
        self.most = bytes.clamp(self.rules.floor_bytes, self.rules.ceiling_bytes);
        self.allowed =
            if was_full && self.direction == Direction::Full { self.most } else { self.allowed.min(self.most) };
        if self.allowed == self.most {
            self.direction = Direction::Full;
        } else if self.direction == Direction::Full {
            self.direction = Direction::Waiting;
        }
    }

    /// Takes a reading; `disks` is asked what they hold if memory has to be given back. Returns whether what the store
    /// may hold has changed.
    pub fn step(&mut self, reading: &Reading, disks: impl FnOnce() -> Vec<Holding>) -> bool {
        let before = self.allowed;
        if reading.is_pressed() {
            self.press(reading, disks);
        } else {
            self.relax(reading);
        }
        self.allowed != before
    }

    fn press(&mut self, reading: &Reading, disks: impl FnOnce() -> Vec<Holding>) {
        if self.direction == Direction::Growing {
            self.patience = (self.patience * 2).min(PATIENCE_MAX);
        }
        self.pressed_ns = Some(reading.now_ns);
        self.direction = Direction::Giving;
        let since = self.cut_ns.map_or(u64::MAX, |t| reading.now_ns.saturating_sub(t));
        if since < SETTLE_NS.min(self.rules.give_within_ns) {
            return;
        }
        let disks = disks();
        let (floor, ceiling) = (self.rules.floor_bytes, self.rules.ceiling_bytes);
        // A stall says that something is wrong, not how much is missing: half goes, and then it is seen what that does.
        // Missing bytes are known; as soon as those given are gone, what is still missing can go too. A control group
        // gets a few MiB at a time while it lasts: half of a store is far more than it can be short of at once.
        let halve = reading.stalled && since >= self.rules.give_within_ns;
        let settled = since >= self.rules.give_within_ns || held_above(&disks, self.allowed, floor, ceiling) == 0;
        let above = held_above(&disks, floor, floor, ceiling);
        let half = if halve { above.div_ceil(2) } else { 0 };
        let step = if reading.group_stalled { GROUP_STEP_BYTES } else { 0 };
        let short = reading.short_bytes.saturating_add(reading.short_bytes / 8);
        let missing = if settled { short.max(step).min(above) } else { 0 };
        let give = half.max(missing);
        if give == 0 && above > 0 {
            return;
        }
        self.cut_ns = Some(reading.now_ns);
        let leftover = above - give;
        self.allowed = if leftover < ceiling / LEFTOVER_PART {
            floor.min(self.allowed)
        } else {
            releasing(&disks, give, self.allowed, floor, ceiling)
        };
    }

    fn relax(&mut self, reading: &Reading) {
        let calm_ns = self.rules.calm_ns.saturating_mul(self.patience.into());
        let calm = self.pressed_ns.is_none_or(|t| reading.now_ns.saturating_sub(t) >= calm_ns);
        if self.allowed >= self.most {
            self.direction = Direction::Full;
            if calm {
                self.patience = 1;
            }
            return;
        }
        if !calm {
            self.direction = Direction::Waiting;
            return;
        }
        if self.direction != Direction::Growing {
            self.direction = Direction::Growing;
            self.grown_ns = reading.now_ns;
            return;
        }
        let elapsed = reading.now_ns.saturating_sub(self.grown_ns);
        if elapsed < GROW_STEP_NS {
            return;
        }
        self.grown_ns = reading.now_ns;
        // A thread that was held up does not make up for it in one leap.
        let elapsed = u128::from(elapsed.min(2 * GROW_STEP_NS));
        let step = u128::from(self.rules.ceiling_bytes) * elapsed / u128::from(self.rules.regrow_ns.max(1));
        let step = u64::try_from(step).unwrap_or(u64::MAX).max(1);
        // Never into what is to stay available: the other half of what is spare is left to the others.
        let step = step.min(reading.spare_bytes / 2);
        self.allowed = self.allowed.saturating_add(step).min(self.most);
        if self.allowed == self.most {
            self.direction = Direction::Full;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;
    const S: u64 = 1_000_000_000;
    const RULES: Rules = Rules {
        ceiling_bytes: 1024 * MIB,
        floor_bytes: 256 * MIB,
        give_within_ns: 2 * S,
        calm_ns: 30 * S,
        regrow_ns: 64 * S,
    };

    /// A store of two disks that gives at once what it must, and fills at once what it may.
    struct World {
        control: PressureControl,
        disks: Vec<Holding>,
        now_ns: u64,
    }

    impl World {
        fn full() -> Self {
            let disks = [768, 256].map(|m| Holding { share_bytes: m * MIB, held_bytes: m * MIB });
            World { control: PressureControl::new(RULES), disks: disks.to_vec(), now_ns: 100 * S }
        }

        /// Goes on by `ns` and takes a reading.
        fn after(&mut self, ns: u64, stalled: bool, short_bytes: u64) -> u64 {
            self.now_ns += ns;
            let spare_bytes = if short_bytes == 0 { 1 << 40 } else { 0 };
            let reading = Reading { now_ns: self.now_ns, stalled, short_bytes, spare_bytes, ..Reading::default() };
            self.control.step(&reading, || self.disks.clone());
            let total = self.control.allowed_bytes();
            for d in &mut self.disks {
                d.held_bytes =
                    super::super::divide::allowed_bytes(d.share_bytes, total, RULES.floor_bytes, RULES.ceiling_bytes);
            }
            total / MIB
        }
    }

    #[test]
    fn half_of_what_is_above_the_floor_goes_within_the_stated_time_and_in_the_end_all() {
        let mut w = World::full();
        assert_eq!(w.after(S, true, 0), 640, "256 + 768 / 2");
        assert_eq!(w.after(S, true, 0), 640, "the kernel says so again before it can have felt it");
        assert_eq!(w.after(S, true, 0), 448);
        let mut last = 448;
        for _ in 0..8 {
            last = w.after(2 * S, true, 0);
        }
        assert_eq!(last, 256, "the floor");
        assert_eq!(w.control.direction(), Direction::Giving);
    }

    #[test]
    fn what_is_missing_goes_at_once_and_no_more() {
        let mut w = World::full();
        assert_eq!(w.after(S, false, 80 * MIB), 1024 - 90);
        // It is gone already, so what is still missing follows without waiting for the next two seconds.
        assert_eq!(w.after(S / 2, false, 8 * MIB), 1024 - 99);
        assert_eq!(w.after(S / 2, false, 1 << 40), 256, "never below the floor");
    }

    #[test]
    fn a_control_group_that_reclaims_gets_a_few_mib_at_a_time_while_it_lasts() {
        let mut w = World::full();
        let mut event = |ns: u64, short_bytes: u64| {
            w.now_ns += ns;
            let reading = Reading { now_ns: w.now_ns, group_stalled: true, short_bytes, ..Reading::default() };
            w.control.step(&reading, || w.disks.clone());
            let total = w.control.allowed_bytes();
            for d in &mut w.disks {
                d.held_bytes =
                    super::super::divide::allowed_bytes(d.share_bytes, total, RULES.floor_bytes, RULES.ceiling_bytes);
            }
            total / MIB
        };
        assert_eq!(event(S, 0), 1024 - 4, "not half of it");
        assert_eq!(event(S / 4, 0), 1024 - 4, "the kernel says so again before it can have felt it");
        assert_eq!(event(S, 0), 1024 - 8);
        assert_eq!(event(S, 16 * MIB), 1024 - 8 - 18, "what is known to be missing goes at once");
        assert_eq!(event(S, 0), 1024 - 8 - 18 - 4);
        let last = (0..300).map(|_| event(S, 0)).last();
        assert_eq!(last, Some(256), "the floor, in the end");
    }

    #[test]
    fn memory_that_is_not_held_is_not_given_a_second_time() {
        let mut w = World::full();
        w.disks[0].held_bytes = 0;
        w.disks[1].held_bytes = 128 * MIB;
        // 64MiB are above the floor, in the second disk: half of that is what it gives.
        let total = w.after(S, true, 0);
        let allowed =
            super::super::divide::allowed_bytes(256 * MIB, total * MIB, RULES.floor_bytes, RULES.ceiling_bytes);
        assert!(allowed.abs_diff(96 * MIB) < MIB, "{allowed} of {total}");
    }

    #[test]
    fn a_store_that_holds_nothing_stays_at_the_floor_while_there_is_pressure() {
        let mut w = World::full();
        w.disks.iter_mut().for_each(|d| d.held_bytes = 0);
        assert_eq!(w.after(S, true, 0), 256);
        let mut empty = World { disks: vec![], ..World::full() };
        assert_eq!(empty.after(S, false, 1), 256);
    }

    #[test]
    fn it_grows_again_slowly_after_the_time_of_calm_and_reaches_the_ceiling() {
        let mut w = World::full();
        w.after(S, true, 0);
        for _ in 0..29 {
            assert_eq!(w.after(S, false, 0), 640);
        }
        assert_eq!(w.control.direction(), Direction::Waiting);
        assert_eq!(w.after(S, false, 0), 640);
        assert_eq!(w.control.direction(), Direction::Growing);
        assert_eq!(w.after(S, false, 0), 656, "a 64th of the ceiling in a second");
        let mut seconds = 1;
        while w.after(S, false, 0) < 1024 {
            seconds += 1;
        }
        assert_eq!((seconds, w.control.direction()), (23, Direction::Full));
    }

    #[test]
    fn it_does_not_grow_into_what_is_to_stay_available() {
        let mut w = World::full();
        w.after(S, true, 0);
        let mut now_ns = w.now_ns + 60 * S;
        for _ in 0..20 {
            let reading = Reading { now_ns, spare_bytes: 2 * MIB, ..Reading::default() };
            w.control.step(&reading, Vec::new);
            now_ns += S;
        }
        assert_eq!(w.control.allowed_bytes() / MIB, 640 + 19, "half of what is spare each time");
    }

    #[test]
    fn alternating_readings_do_not_make_it_swing() {
        let mut w = World::full();
        let mut reversals = 0;
        let mut last = w.control.allowed_bytes();
        for second in 0..3600 {
            w.after(S, second % 40 == 0, 0);
            let now = w.control.allowed_bytes();
            if now < last {
                reversals += 1;
            }
            last = now;
        }
        // Pressure every 40 s, ten of them past the calm: without patience that is one each time, 90 in all.
        assert!(reversals <= 8, "{reversals} reversals");
        let mut w = World::full();
        let mut before = w.control.allowed_bytes();
        for second in 0..600 {
            w.after(S, second % 2 == 0, 0);
            assert!(w.control.allowed_bytes() <= before, "it grew between two stalls");
            before = w.control.allowed_bytes();
        }
    }

    #[test]
    fn patience_comes_back_once_it_is_full_and_calm() {
        let mut w = World::full();
        for _ in 0..6 {
            w.after(S, true, 0);
            while w.control.direction() != Direction::Growing {
                w.after(S, false, 0);
            }
        }
        assert_eq!(w.control.patience, 16, "doubled, and doubled no further");
        for _ in 0..30 * 16 + 80 {
            w.after(S, false, 0);
        }
        assert_eq!((w.control.direction(), w.control.patience), (Direction::Full, 1));
    }

    #[test]
    fn the_hand_sets_the_most_within_floor_and_ceiling() {
        let mut c = PressureControl::new(RULES);
        c.set_most(512 * MIB);
        assert_eq!((c.allowed_bytes(), c.direction()), (512 * MIB, Direction::Full));
        c.set_most(1);
        assert_eq!(c.allowed_bytes(), 256 * MIB);
        c.set_most(u64::MAX);
        assert_eq!(
            (c.allowed_bytes(), c.direction()),
            (1024 * MIB, Direction::Full),
            "without pressure it holds at once"
        );
        let mut w = World::full();
        w.after(S, true, 0);
        w.control.set_most(900 * MIB);
        assert_eq!(w.control.allowed_bytes() / MIB, 640, "the pressure goes on");
        w.control.set_most(1024 * MIB);
        assert_eq!(w.control.allowed_bytes() / MIB, 640);
        for _ in 0..120 {
            w.after(S, false, 0);
        }
        assert_eq!(w.control.allowed_bytes(), 1024 * MIB);
    }

    proptest! {
        #[test]
        fn floor_ceiling_and_calm_hold_whatever_is_read(
            readings in proptest::collection::vec(
                (0u64..40, any::<bool>(), 0u64..1 << 31, 0u64..1 << 34, 0u64..=100),
                1..200,
            ),
            floor in 0u64..=1024, hand in proptest::option::of(0u64..2000),
        ) {
            let rules = Rules { floor_bytes: floor * MIB, ..RULES };
            let mut c = PressureControl::new(rules);
            if let Some(hand) = hand {
                c.set_most(hand * MIB);
            }
            let mut now_ns = 0;
            let mut pressed = None;
            for (quarters, stalled, short, spare, fill) in readings {
                now_ns += quarters * S / 4;
                let short_bytes = if short % 3 == 0 { short } else { 0 };
                let spare_bytes = if short_bytes > 0 { 0 } else { spare };
                let reading = Reading { now_ns, stalled, short_bytes, spare_bytes, ..Reading::default() };
                let before = c.allowed_bytes();
                let held = before / 100 * fill;
                let disks = || vec![Holding { share_bytes: RULES.ceiling_bytes, held_bytes: held }];
                c.step(&reading, disks);
                let now = c.allowed_bytes();
                prop_assert!(
                    now >= rules.floor_bytes && now <= c.most_bytes() && c.most_bytes() <= rules.ceiling_bytes
                );
                if stalled || short_bytes > 0 {
                    pressed = Some(now_ns);
                    prop_assert!(now <= before, "it grew under pressure");
                } else if pressed.is_some_and(|p| now_ns - p < rules.calm_ns) {
                    prop_assert_eq!(now, before, "it changed before it was calm");
                } else {
                    prop_assert!(now >= before && now - before <= rules.ceiling_bytes / 32 + 1);
                }
            }
        }

        #[test]
        fn under_lasting_stalls_half_goes_in_each_stated_time(
            share in 64u64..4096,
            fill in 1u64..=100,
            floor in 0u64..=100,
        ) {
            let ceiling_bytes = share * MIB;
            let rules = Rules { ceiling_bytes, floor_bytes: ceiling_bytes / 100 * floor, ..RULES };
            let mut c = PressureControl::new(rules);
            let mut held = ceiling_bytes / 100 * fill;
            for round in 0..12u64 {
                let above = held.saturating_sub(rules.floor_bytes);
                let reading = Reading { now_ns: (round + 1) * 2 * S, stalled: true, ..Reading::default() };
                c.step(&reading, || vec![Holding { share_bytes: ceiling_bytes, held_bytes: held }]);
                held = held.min(c.allowed_bytes());
                prop_assert!(held.saturating_sub(rules.floor_bytes) <= above / 2 + 1, "{} of {}", held, above);
            }
            prop_assert!(
                held <= rules.floor_bytes.max(1),
                "it came to rest at {} above the floor",
                held - rules.floor_bytes
            );
        }
    }
}
