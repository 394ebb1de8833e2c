//! What more of RAM, or of a store below it, would bring a disk that uses both.
//!
//! Owns the arithmetic. Never decides a share. Invariant: nothing is said in time of which a time is not known.
//!
//! The stores are exclusive of each other: what leaves RAM goes below. So they are taken for one LRU stack, RAM its
//! upper part. A larger store below turns misses of both into hits below; a larger RAM turns hits below into hits of
//! RAM, and pushes as much further down, so that misses of both become hits below as well. What of it is not so: the
//! store below is a queue, takes what its rule of admission lets in, and keeps for a while what is in RAM again.

use super::points::Curve;

/// Mean times of a block, in microseconds; 0 if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StoreTimes {
    /// From RAM.
    pub ram_us: f64,
    /// From the store below.
    pub below_us: f64,
    /// From the image.
    pub image_us: f64,
}

/// What a number of further blocks would bring in an interval like the ones measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Benefit {
    /// Blocks read that would come from RAM instead of from below, or from the image.
    pub ram_hits: f64,
    /// Blocks read that would not come from the image.
    pub image_reads: f64,
    /// Microseconds of waiting saved; `None` if a time it takes is not known.
    pub saved_us: Option<f64>,
}

/// A disk, its curves, and what it has.
#[derive(Clone, Copy, Debug)]
pub struct Stacked<'a> {
    /// Misses by blocks of RAM.
    pub ram: &'a Curve,
    /// Misses of both by the sum of their blocks, for as many requests; `None` without a store below.
    pub both: Option<&'a Curve>,
    /// Blocks that it has of RAM.
    pub ram_blocks: u64,
    /// Blocks that it has below.
    pub below_blocks: u64,
}

impl Stacked<'_> {
    /// What so many further blocks of RAM would bring.
    pub fn next_ram(&self, blocks: u64, times: StoreTimes) -> Benefit {
        let ram_hits = saved(self.ram, self.ram_blocks, blocks);
        let image_reads = match self.both {
            Some(both) => saved(both, self.ram_blocks.saturating_add(self.below_blocks), blocks),
            None => ram_hits,
        };
        let StoreTimes { ram_us, below_us, image_us } = times;
        let saved_us = match self.both.is_some() && self.below_blocks > 0 {
            true => known([below_us, image_us])
                .then_some(ram_hits * (below_us - ram_us) + image_reads * (image_us - below_us)),
            false => known([image_us]).then_some(ram_hits * (image_us - ram_us)),
        };
        Benefit { ram_hits, image_reads, saved_us }
    }

    /// What so many further blocks below would bring; nothing without a store there.
    pub fn next_below(&self, blocks: u64, times: StoreTimes) -> Benefit {
        let Some(both) = self.both else { return Benefit::default() };
        let image_reads = saved(both, self.ram_blocks.saturating_add(self.below_blocks), blocks);
        let StoreTimes { below_us, image_us, .. } = times;
        let saved_us = known([below_us, image_us]).then_some(image_reads * (image_us - below_us));
        Benefit { ram_hits: 0.0, image_reads, saved_us }
    }
}

fn saved(curve: &Curve, from: u64, blocks: u64) -> f64 {
    (curve.misses_at(from) - curve.misses_at(from.saturating_add(blocks))).max(0.0)
}

fn known<const N: usize>(times: [f64; N]) -> bool {
    times.iter().all(|us| *us > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A curve that falls evenly from 1000 misses to none at 1000 blocks.
    fn even() -> Curve {
        Curve::new(1000.0, [(1000, 0.0)])
    }

    const TIMES: StoreTimes = StoreTimes { ram_us: 1.0, below_us: 100.0, image_us: 5000.0 };

    #[test]
    fn ram_takes_hits_from_below_and_pushes_as_much_down() {
        let both = even();
        let disk = Stacked { ram: &both, both: Some(&both), ram_blocks: 100, below_blocks: 400 };
        let ram = disk.next_ram(50, TIMES);
        assert_eq!((ram.ram_hits.round(), ram.image_reads.round()), (50.0, 50.0));
        assert_eq!(ram.saved_us.unwrap().round(), 50.0 * 99.0 + 50.0 * 4900.0);
        let below = disk.next_below(50, TIMES);
        assert_eq!((below.ram_hits, below.image_reads.round()), (0.0, 50.0));
        assert_eq!(below.saved_us.unwrap().round(), 50.0 * 4900.0);
        // Where both together have all there is, RAM still takes hits from below, and nothing else.
        let disk = Stacked { below_blocks: 900, ..disk };
        let ram = disk.next_ram(50, TIMES);
        assert_eq!((ram.ram_hits.round(), ram.image_reads), (50.0, 0.0));
        assert_eq!(disk.next_below(50, TIMES), Benefit { saved_us: Some(0.0), ..Benefit::default() });
    }

    #[test]
    fn without_a_store_below_ram_saves_reads_of_the_image() {
        let curve = even();
        let disk = Stacked { ram: &curve, both: None, ram_blocks: 100, below_blocks: 0 };
        let ram = disk.next_ram(10, StoreTimes { below_us: 0.0, ..TIMES });
        assert_eq!((ram.ram_hits.round(), ram.image_reads.round()), (10.0, 10.0));
        assert_eq!(ram.saved_us.unwrap().round(), 10.0 * 4999.0);
        assert_eq!(disk.next_below(10, TIMES), Benefit::default());
    }

    #[test]
    fn no_time_is_said_where_one_is_not_known() {
        let curve = even();
        let disk = Stacked { ram: &curve, both: Some(&curve), ram_blocks: 100, below_blocks: 100 };
        let unknown = StoreTimes { below_us: 0.0, ..TIMES };
        assert_eq!(disk.next_ram(10, unknown).saved_us, None);
        assert_eq!(disk.next_below(10, unknown).saved_us, None);
        assert!(disk.next_ram(10, unknown).image_reads > 9.0);
    }
}
