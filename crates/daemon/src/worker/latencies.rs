//! The latencies of one disk, by kind of request, as its worker sees them: from taking a request to its reply.
//!
//! Owns four histograms, and what was told of the reads. Never reads a clock. Invariant: every finished read, write and
//! flush is in exactly one, and every read is told of once.

use crate::latency::Histogram;

/// Latencies since the disk was added.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    /// Reads served wholly from RAM at once.
    pub read_hit: Histogram,
    /// Reads that waited for the disk.
    pub read_miss: Histogram,
    /// Writes.
    pub write: Histogram,
    /// Flushes.
    pub flush: Histogram,
}

/// What reads of a disk were finished between two questions.
#[derive(Debug, Default)]
pub(crate) struct ReadsBetween {
    /// Reads served wholly from RAM at once.
    pub hits: u64,
    /// Nanoseconds that one of them took, on average; 0 without any.
    pub hit_ns: f64,
    /// Reads that waited for the disk; None without any.
    pub misses: Option<Box<Histogram>>,
}

/// How far a disk's reads have been told of. Of a disk that was never read it has no histograms: of a thousand idle
/// ones they would be 4 MB.
#[derive(Debug, Default)]
pub(crate) struct Told(Option<Box<(Histogram, Histogram)>>);

impl Told {
    /// The reads since this was asked last.
    pub(crate) fn between(&mut self, now: &Latencies) -> ReadsBetween {
        let nothing = Histogram::new();
        let (hits, misses) = match self.0.as_deref() {
            Some(told) => (&told.0, &told.1),
            None => (&nothing, &nothing),
        };
        if now.read_hit.is_as(hits) && now.read_miss.is_as(misses) {
            return ReadsBetween::default();
        }
        let (hits, misses) = (now.read_hit.since(hits), now.read_miss.since(misses));
        let told = self.0.get_or_insert_default();
        told.0.clone_from(&now.read_hit);
        told.1.clone_from(&now.read_miss);
        let missed = misses.count() > 0;
        ReadsBetween { hits: hits.count(), hit_ns: hits.mean_ns(), misses: missed.then(|| Box::new(misses)) }
    }
}

#[cfg(test)]
mod tests {
    use super::{Latencies, Told};

    #[test]
    fn every_read_is_told_of_once() {
        let (mut now, mut told) = (Latencies::default(), Told::default());
        assert_eq!(told.between(&now).hits, 0);
        assert!(told.0.is_none(), "a disk that was never read has histograms");
        now.read_hit.record_n(100, 3);
        now.read_miss.record(5000);
        now.write.record(7000);
        let first = told.between(&now);
        assert_eq!((first.hits, first.misses.map(|m| m.count())), (3, Some(1)));
        assert!((first.hit_ns - 100.0).abs() < 1e-9);
        now.read_hit.record(300);
        let second = told.between(&now);
        assert_eq!((second.hits, second.misses.is_none()), (1, true));
        assert!((second.hit_ns - 300.0).abs() < 1e-9, "means of all reads instead of those since");
        now.write.record(7000);
        assert_eq!(told.between(&now).hits, 0);
        // As long as none at all: it counts all the same.
        now.read_hit.record(0);
        assert_eq!(told.between(&now).hits, 1);
    }
}
