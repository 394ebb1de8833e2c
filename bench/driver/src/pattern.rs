//! Where the load goes: sequential, uniform or Zipf over a working set.
//!
//! Owns the random numbers of a run. Never does I/O. Invariant: the same seed gives the same offsets; every offset is
//! inside the working set and aligned.

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Starts from a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// 64 random bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Below `bound`, which is not 0 (Lemire's multiplication; the bias is below 2^-32 for all bounds used here).
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// In [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// The mixing function of SplitMix64.
pub fn mix(x: u64) -> u64 {
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// Zipf-distributed ranks in constant time (Gray et al.: Quickly generating billion-record synthetic databases,
/// SIGMOD 1994), as YCSB does it.
#[derive(Clone, Debug)]
pub struct Zipf {
    items: u64,
    theta: f64,
    alpha: f64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    /// Over `items` ranks; `theta` in (0, 1).
    pub fn new(items: u64, theta: f64) -> Zipf {
        let zeta_to = |n: u64| (1..=n).map(|i| (i as f64).powf(-theta)).sum::<f64>();
        let (zeta, zeta_two) = (zeta_to(items), zeta_to(2.min(items)));
        let eta = (1.0 - (2.0 / items as f64).powf(1.0 - theta)) / (1.0 - zeta_two / zeta);
        Zipf { items, theta, alpha: 1.0 / (1.0 - theta), zeta, eta }
    }

    /// A rank from 0, the most popular, up.
    pub fn rank(&self, random: &mut Random) -> u64 {
        let u = random.unit();
        let uz = u * self.zeta;
        if uz < 1.0 || self.items == 1 {
            0
        } else if uz < 1.0 + 0.5f64.powf(self.theta) {
            1
        } else {
            let rank = self.items as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha);
            (rank as u64).min(self.items - 1)
        }
    }
}

/// How offsets are chosen.
#[derive(Clone, Debug)]
pub enum Order {
    /// One after the other, and round again.
    Sequential {
        /// The next place, in units of the alignment.
        next: u64,
    },
    /// Uniform.
    Uniform,
    /// Zipf, with the popular places scattered over the working set.
    Zipf(Zipf),
}

/// Chooses offsets.
#[derive(Clone, Debug)]
pub struct Pattern {
    order: Order,
    start: u64,
    length: u64,
    align: u64,
}

impl Pattern {
    /// Over `length` bytes from `start` on, aligned to `align`; both multiples of `align`, `length` not 0.
    pub fn new(order: Order, start: u64, length: u64, align: u64) -> Pattern {
        assert!(align > 0 && length >= align && length.is_multiple_of(align));
        Pattern { order, start, length, align }
    }

    /// The next offset for `bytes` bytes, at most the working set's length.
    pub fn next(&mut self, bytes: u64, random: &mut Random) -> u64 {
        let places = (self.length - bytes) / self.align + 1;
        let place = match &mut self.order {
            Order::Sequential { next } => {
                let place = if *next < places { *next } else { 0 };
                *next = place + bytes.div_ceil(self.align);
                place
            }
            Order::Uniform => random.below(places),
            Order::Zipf(zipf) => {
                // A bijection on the working set's places: multiplication by a prime larger than any count of them.
                let scattered = u128::from(zipf.rank(random)) * 0xffff_ffff_ffff_ffc5 % u128::from(zipf.items);
                (scattered as u64).min(places - 1)
            }
        };
        self.start + place * self.align
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn sequential_covers_the_working_set_and_goes_round() {
        let mut p = Pattern::new(Order::Sequential { next: 0 }, 8192, 16384, 4096);
        let mut r = Random::new(1);
        let got: Vec<u64> = (0..6).map(|_| p.next(4096, &mut r)).collect();
        assert_eq!(got, [8192, 12288, 16384, 20480, 8192, 12288]);
    }

    #[test]
    fn uniform_reaches_both_ends_and_never_passes_them() {
        let mut p = Pattern::new(Order::Uniform, 512, 64 * 512, 512);
        let mut r = Random::new(7);
        let got: Vec<u64> = (0..4000).map(|_| p.next(1024, &mut r)).collect();
        assert_eq!(*got.iter().min().unwrap(), 512);
        assert_eq!(*got.iter().max().unwrap(), 512 + 62 * 512);
    }

    #[test]
    fn zipf_has_the_frequencies_of_its_law() {
        let (items, theta, draws) = (1000, 0.9, 400_000);
        let zipf = Zipf::new(items, theta);
        let mut r = Random::new(3);
        let mut counts = HashMap::new();
        for _ in 0..draws {
            *counts.entry(zipf.rank(&mut r)).or_insert(0u64) += 1;
        }
        for rank in [0u64, 1] {
            let want = ((rank + 1) as f64).powf(-theta) / zipf.zeta;
            let got = counts[&rank] as f64 / f64::from(draws);
            assert!((got / want - 1.0).abs() < 0.05, "rank {rank}: {got} instead of {want}");
        }
        // The approximation is exact only for the first two ranks; the mass of the first tenth must still be right.
        let want = (1..=100).map(|i| f64::from(i).powf(-theta)).sum::<f64>() / zipf.zeta;
        let got = counts.iter().filter(|(k, _)| **k < 100).map(|(_, n)| *n).sum::<u64>() as f64 / f64::from(draws);
        assert!((got / want - 1.0).abs() < 0.05, "{got} instead of {want}");
    }

    #[test]
    fn zipf_places_are_a_bijection() {
        let items = 4096u128;
        let mut seen: Vec<u128> = (0..items).map(|k| k * 0xffff_ffff_ffff_ffc5 % items).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len() as u128, items);
    }
}
