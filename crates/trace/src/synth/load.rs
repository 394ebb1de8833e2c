//! Loads made of patterns: Zipf, uniform, scan, loop, phases, and mixtures of them.
//!
//! Owns which key request `i` asks for. All draws are of one counter-based generator (as in [`super::zipf`]), so that
//! any part of a load can be made without the rest. Keys count from 1.

use super::Zipf;
use crate::access::{AccessKind, TraceRequest};
use crate::hashed::finished;
use std::str::FromStr;

const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
const NS_PER_S: u64 = 1_000_000_000;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pattern {
    /// Independent requests; the key of rank r is drawn in proportion to 1 / r^alpha.
    Zipf {
        /// 0 is uniform, 1 the classic law.
        alpha: f64,
    },
    /// Independent requests, each key as likely as any other.
    Uniform,
    /// Each key once, one after the other, from 1 on; does not end at the number of keys.
    Scan,
    /// All keys one after the other, again and again.
    Loop,
    /// As Zipf, but every `length` requests the popular keys are others: key k becomes k + `keys` / 2, half of the keys
    /// being new.
    Phased {
        /// As for Zipf.
        alpha: f64,
        /// Requests of a phase, at least 1.
        length: u64,
    },
    /// Each request is of one pattern or another; each pattern has keys of its own: Zipf 1 to `keys`, loop the next
    /// `keys`, scan all after those.
    Mixed {
        /// As for Zipf.
        alpha: f64,
        /// How much of each.
        mix: Mix,
    },
}

/// Shares of a mixed load: any numbers; their sum is the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    /// Of Zipf.
    pub zipf: u32,
    /// Of the loop.
    pub cycle: u32,
    /// Of the scan.
    pub scan: u32,
}

impl Default for Mix {
    fn default() -> Self {
        Mix { zipf: 70, cycle: 20, scan: 10 }
    }
}

/// Why a text is no mixture.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MixError {
    /// A part is none.
    #[error("\"{0}\" is no share; write it like zipf=70,loop=20,scan=10")]
    Part(String),
    /// Nothing is asked for.
    #[error("nothing has a share; write it like zipf=70,loop=20,scan=10")]
    Nothing,
}

impl FromStr for Mix {
    type Err = MixError;

    /// Reads `zipf=70,loop=20,scan=10`; what is not named has no share.
    ///
    /// # Errors
    /// A sentence that says what to write instead.
    fn from_str(text: &str) -> Result<Self, MixError> {
        let mut mix = Mix { zipf: 0, cycle: 0, scan: 0 };
        for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            let share = part.split_once('=').and_then(|(name, n)| Some((name.trim(), n.trim().parse::<u32>().ok()?)));
            match share {
                Some(("zipf", n)) => mix.zipf = n,
                Some(("loop", n)) => mix.cycle = n,
                Some(("scan", n)) => mix.scan = n,
                _ => return Err(MixError::Part(part.to_owned())),
            }
        }
        if mix == (Mix { zipf: 0, cycle: 0, scan: 0 }) {
            return Err(MixError::Nothing);
        }
        Ok(mix)
    }
}

/// An endless iterator of requests for keys.
#[derive(Clone, Debug)]
pub struct Load {
    pattern: Pattern,
    keys: u32,
    seed: u64,
    zipf: Option<Zipf>,
    /// Requests a second.
    rate: u64,
    /// Of 2^64 draws, how many write.
    writes: u128,
    /// How many there have been, and how many of them of the loop and the scan of a mixture.
    drawn: u64,
    cycled: u64,
    scanned: u64,
}

impl Load {
    /// `keys` distinct keys (a scan has no end of them), `rate` requests a second (at least 1), `writes` of which (0 to
    /// 1) are writes.
    ///
    /// # Panics
    /// If there are no keys, or no requests in a second.
    pub fn new(pattern: Pattern, keys: u32, rate: u64, writes: f64, seed: u64) -> Self {
        assert!(keys > 0 && rate > 0, "a load needs at least one key, and one request a second");
        let zipf = match pattern {
            Pattern::Zipf { alpha } | Pattern::Phased { alpha, .. } | Pattern::Mixed { alpha, .. } => {
                Some(Zipf::new(keys, alpha, seed))
            }
            _ => None,
        };
        let writes = (writes.clamp(0.0, 1.0) * (u64::MAX as f64 + 1.0)) as u128;
        Self { pattern, keys, seed, zipf, rate, writes, drawn: 0, cycled: 0, scanned: 0 }
    }

    /// Draw `drawn` of stream `stream`; stream 0 is the one that Zipf draws keys from.
    fn draw(&self, stream: u64) -> u64 {
        finished(self.seed.wrapping_add(finished(stream)).wrapping_add(self.drawn.wrapping_mul(STEP)))
    }

    fn zipf(&mut self) -> u64 {
        self.zipf.as_mut().and_then(Iterator::next).unwrap_or(1)
    }

    fn key(&mut self, index: u64) -> u64 {
        let keys = u64::from(self.keys);
        match self.pattern {
            Pattern::Zipf { .. } => self.zipf(),
            Pattern::Uniform => ((u128::from(self.draw(0)) * u128::from(keys)) >> 64) as u64 + 1,
            Pattern::Scan => index + 1,
            Pattern::Loop => index % keys + 1,
            Pattern::Phased { length, .. } => self.zipf() + index / length.max(1) * keys.div_ceil(2),
            Pattern::Mixed { mix, .. } => {
                let sum = u64::from(mix.zipf) + u64::from(mix.cycle) + u64::from(mix.scan);
                let drawn = ((u128::from(self.draw(2)) * u128::from(sum.max(1))) >> 64) as u64;
                if sum == 0 || drawn < u64::from(mix.zipf) {
                    self.zipf()
                } else if drawn < u64::from(mix.zipf) + u64::from(mix.cycle) {
                    self.cycled += 1;
                    keys + (self.cycled - 1) % keys + 1
                } else {
                    self.scanned += 1;
                    2 * keys + self.scanned
                }
            }
        }
    }
}

impl Iterator for Load {
    type Item = TraceRequest;

    fn next(&mut self) -> Option<TraceRequest> {
        let index = self.drawn;
        self.drawn += 1;
        let address = self.key(index);
        let kind = if u128::from(self.draw(1)) < self.writes { AccessKind::Write } else { AccessKind::Read };
        let time_ns = (u128::from(index) * u128::from(NS_PER_S) / u128::from(self.rate)) as u64;
        Some(TraceRequest { time_ns, address, bytes: 0, keys: 1, tenant: 0, kind })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn keys(pattern: Pattern, n: usize) -> Vec<u64> {
        Load::new(pattern, 100, 10_000, 0.0, 42).take(n).map(|r| r.address).collect()
    }

    #[test]
    fn patterns_ask_for_what_they_say() {
        assert_eq!(keys(Pattern::Scan, 250), (1..=250).collect::<Vec<_>>());
        assert_eq!(
            keys(Pattern::Loop, 250)[..],
            [(1..=100).collect::<Vec<_>>(), (1..=100).collect(), (1..=50).collect()].concat()
        );
        assert_eq!(keys(Pattern::Zipf { alpha: 1.0 }, 500), Zipf::new(100, 1.0, 42).take(500).collect::<Vec<_>>());
        let uniform = keys(Pattern::Uniform, 100_000);
        let mut counts = [0u32; 101];
        uniform.iter().for_each(|&k| counts[k as usize] += 1);
        assert!(counts[0] == 0 && counts[1..].iter().all(|c| (800..1200).contains(c)), "{counts:?}");
        let phased = keys(Pattern::Phased { alpha: 1.0, length: 1000 }, 3000);
        for (phase, part) in phased.chunks(1000).enumerate() {
            let from = phase as u64 * 50;
            assert!(part.iter().all(|k| (from + 1..=from + 100).contains(k)), "phase {phase}");
        }
        let mixed = keys(Pattern::Mixed { alpha: 1.0, mix: Mix::default() }, 10_000);
        let of = |from: u64, to: u64| mixed.iter().copied().filter(|k| (from..to).contains(k)).collect::<Vec<_>>();
        let (zipf, cycle, scan) = (of(1, 101), of(101, 201), of(201, u64::MAX));
        assert!((6_700..7_300).contains(&zipf.len()) && (1_800..2_200).contains(&cycle.len()), "{}", cycle.len());
        assert_eq!(zipf, Zipf::new(100, 1.0, 42).take(zipf.len()).collect::<Vec<_>>());
        assert!(cycle.iter().enumerate().all(|(n, k)| *k == 101 + n as u64 % 100));
        assert_eq!(scan.iter().collect::<HashSet<_>>().len(), scan.len());
    }

    #[test]
    fn writes_and_times_come_as_asked_for() {
        let load = Load::new(Pattern::Uniform, 10, 10_000, 0.3, 7);
        let requests: Vec<_> = load.take(20_000).collect();
        let writes = requests.iter().filter(|r| r.kind == AccessKind::Write).count();
        assert!((5_700..6_300).contains(&writes), "{writes}");
        assert_eq!((requests[0].time_ns, requests[10_000].time_ns), (0, NS_PER_S));
        // which requests write says nothing about what they ask for
        let small = requests.iter().filter(|r| r.kind == AccessKind::Write && r.address <= 5).count();
        assert!((2_700..3_300).contains(&small), "{small}");
    }

    #[test]
    fn mixtures_are_read() {
        assert_eq!("zipf=80, scan=20".parse(), Ok(Mix { zipf: 80, cycle: 0, scan: 20 }));
        for bad in ["", "zipf", "zipf=x", "zipf=0", "lru=3", "zipf=-1"] {
            assert!(bad.parse::<Mix>().is_err_and(|e| e.to_string().contains("zipf=70,loop=20,scan=10")), "{bad}");
        }
    }
}
