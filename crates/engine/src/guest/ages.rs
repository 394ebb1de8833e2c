//! At which ages a guest evicts its pages, and from which age on pages should be copied early. The age of a page is the
//! number of page transfers since it was filled.
//!
//! Owns a histogram of the latest ages seen at eviction. Never sees pages or blocks. Invariant: the counts add up to
//! the total, and older ones weigh less and less.

/// Buckets, from age 0 to the oldest age that is told apart.
const BUCKETS: usize = 512;
/// Evictions after which all counts are halved.
const MEMORY: u32 = 512;
/// Evictions from which on something is known.
const SURE: u32 = 64;
/// How much earlier than need be copies are made: one in so many of those that there is room for.
const EARLY_PART: u32 = 16;
/// Evictions that may come before their copy to spare copies that are not needed: one in so many.
const LATE_PART: u32 = 32;

/// See the head of the file.
#[derive(Clone, Debug)]
pub(crate) struct Ages {
    counts: [u32; BUCKETS],
    /// Ages in a bucket: two to the power of this, since a division at each eviction would cost more than the rest.
    width_bits: u32,
    total: u32,
}

impl Ages {
    /// For ages below `oldest`: what is older is too old to be copied, and leaves no trace.
    pub fn new(oldest: u32) -> Self {
        let width = oldest.div_ceil(BUCKETS as u32).max(1).next_power_of_two();
        Self { counts: [0; BUCKETS], width_bits: width.trailing_zeros(), total: 0 }
    }

    /// How finely ages are told apart.
    #[inline]
    pub fn step(&self) -> u32 {
        1 << self.width_bits
    }

    /// A page was evicted at this age.
    #[inline]
    pub fn add(&mut self, age: u32) {
        let Some(count) = self.counts.get_mut((age >> self.width_bits) as usize) else { return };
        *count += 1;
        self.total += 1;
        if self.total >= MEMORY {
            self.halve();
        }
    }

    #[cold]
    fn halve(&mut self) {
        self.counts.iter_mut().for_each(|c| *c /= 2);
        self.total = self.counts.iter().sum();
    }

    /// Where there is room for so many copies, the age at which to make them so that most evictions come while the copy
    /// is there. At most one is made for each transfer, so a copy lasts as many transfers as there is room for.
    /// Where several ages are as good, nearly the oldest: the later a copy, the shorter it waits. `None` if too little
    /// was seen.
    pub fn best(&self, room: u32) -> Option<u32> {
        if self.total < SURE {
            return None;
        }
        let mut below = [0u32; BUCKETS + 1];
        let mut sum = 0;
        for (below, &count) in below[1..].iter_mut().zip(&self.counts) {
            sum += count;
            *below = sum;
        }
        // What is paid by copies from each age on. Past the last age that has room for all, there is less and less.
        let width = ((room >> self.width_bits) as usize).clamp(1, BUCKETS);
        let mut paid = [0u32; BUCKETS];
        for (start, paid) in paid.iter_mut().enumerate() {
            *paid = below[(start + width).min(BUCKETS)] - below[start];
        }
        let most = paid.iter().copied().max().unwrap_or(0);
        let densest = paid.iter().rposition(|&p| p == most).unwrap_or(0);
        let enough = most - most / LATE_PART;
        let last = (densest..BUCKETS).rfind(|&s| paid[s] >= enough).unwrap_or(densest);
        Some((last as u32 * self.step()).saturating_sub(room / EARLY_PART))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ages: impl Iterator<Item = u32>) -> Ages {
        let mut a = Ages::new(65_536);
        ages.for_each(|age| a.add(age));
        a
    }

    #[test]
    fn nothing_is_known_of_a_few() {
        assert_eq!(of((0..SURE - 1).map(|_| 30_000)).best(1000), None);
        assert!(of((0..SURE).map(|_| 30_000)).best(1000).is_some());
    }

    #[test]
    fn copies_are_made_shortly_before_a_single_age() {
        let a = of((0..1000).map(|_| 30_000));
        for room in [512, 8192, 20_000] {
            let at = a.best(room).unwrap();
            let early = room / EARLY_PART;
            assert!((30_000 - early - a.step()..=30_000 - early).contains(&at), "{room}: {at}");
        }
    }

    #[test]
    fn the_larger_hump_wins_however_young_the_smaller_is() {
        // One in ten leaves young, the rest between 28,000 and 32,000.
        let a = of((0..5000).map(|i| if i % 10 == 0 { 900 } else { 28_000 + i * 7 % 4000 }));
        let at = a.best(6000).unwrap();
        assert!((27_000..28_200).contains(&at), "{at}");
        // Where there is room for both, copies are made for both.
        assert!(a.best(40_000).unwrap() <= 900);
    }

    #[test]
    fn what_is_too_old_is_no_hump() {
        let a = of((0..5000).map(|i| if i % 4 == 0 { 20_000 + i % 1000 } else { 65_536 + i * 97 }));
        let at = a.best(2000).unwrap();
        assert!((19_000..=20_000).contains(&at), "{at}");
    }

    #[test]
    fn what_was_is_forgotten() {
        let a = of((0..20_000).map(|i| if i < 10_000 { 5000 } else { 40_000 }));
        let at = a.best(2000).unwrap();
        assert!((39_500..40_000).contains(&at), "{at}");
    }

    #[test]
    fn any_age_and_any_length_will_do() {
        for oldest in [1, 64, 1000, u32::MAX] {
            let mut a = Ages::new(oldest);
            for i in 0..20_000u32 {
                a.add(i.wrapping_mul(2_654_435_769));
                a.add(i % oldest);
            }
            for room in [0, 1, 1000, u32::MAX] {
                assert!(a.best(room).unwrap() <= oldest.saturating_add(a.step()));
            }
        }
    }
}
