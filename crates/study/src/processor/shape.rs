//! The shape of a set-associative cache.
//!
//! Owns what is checked of it. Invariant: there is at least one set, and at least one way.

use undercroft_units::human_size;

/// The most ways that a set may have: of a fully associative cache that is all its lines.
const WAYS_MAX: u64 = 1 << 16;

/// The shape of a set-associative cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    sets: u32,
    ways: u32,
    line_bytes: u32,
}

/// Why there is no such cache.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// A line is a power of two.
    #[error("a line of {0} bytes is none: give a power of two from 1 to 4096")]
    Line(u32),
    /// A set has ways.
    #[error("{ways} ways are none: give 1 to {most}, which are the lines of the cache")]
    Ways {
        /// Those asked for.
        ways: u32,
        /// Those that there could be.
        most: u64,
    },
    /// The size is no whole number of sets.
    #[error(
        "{} is no whole number of sets of {ways} lines of {line_bytes} bytes: {} and {} are",
        human_size(*.bytes), human_size(*.below), human_size(*.above)
    )]
    Size {
        /// Bytes asked for.
        bytes: u64,
        /// Lines of a set.
        ways: u32,
        /// Bytes of a line.
        line_bytes: u32,
        /// The next smaller size.
        below: u64,
        /// The next larger one.
        above: u64,
    },
}

impl Shape {
    /// A cache of so many bytes; 0 ways stand for a single set of all lines.
    ///
    /// # Errors
    /// See [`ShapeError`].
    pub fn new(bytes: u64, ways: u32, line_bytes: u32) -> Result<Self, ShapeError> {
        if !line_bytes.is_power_of_two() || line_bytes > 4096 {
            return Err(ShapeError::Line(line_bytes));
        }
        let lines = bytes / u64::from(line_bytes);
        let all = u64::from(ways) == 0;
        let ways = if all { u32::try_from(lines).unwrap_or(u32::MAX) } else { ways };
        if ways == 0 || u64::from(ways) > lines.min(WAYS_MAX) {
            return Err(ShapeError::Ways { ways, most: lines.min(WAYS_MAX) });
        }
        let set_bytes = u64::from(ways) * u64::from(line_bytes);
        let sets = bytes / set_bytes;
        let below = sets * set_bytes;
        match u32::try_from(sets) {
            Ok(sets) if below == bytes => Ok(Self { sets, ways, line_bytes }),
            _ => Err(ShapeError::Size { bytes, ways, line_bytes, below, above: below + set_bytes }),
        }
    }

    /// Sets.
    pub fn sets(self) -> u32 {
        self.sets
    }

    /// Lines of a set.
    pub fn ways(self) -> u32 {
        self.ways
    }

    /// Bytes of a line.
    pub fn line_bytes(self) -> u32 {
        self.line_bytes
    }

    /// Lines in all.
    pub fn lines(self) -> u64 {
        u64::from(self.sets) * u64::from(self.ways)
    }

    /// The set of a block: its number modulo the number of sets.
    #[inline]
    pub(super) fn set_of(self, block: u64) -> usize {
        let sets = u64::from(self.sets);
        if sets.is_power_of_two() { (block & (sets - 1)) as usize } else { (block % sets) as usize }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_is_whole_sets_of_whole_lines() {
        let shape = Shape::new(4096, 4, 64).unwrap();
        assert_eq!((shape.sets(), shape.ways(), shape.lines()), (16, 4, 64));
        assert_eq!((shape.set_of(15), shape.set_of(16), shape.set_of(33)), (15, 0, 1));
        // Not a power of two, and one set of all lines.
        assert_eq!(Shape::new(3 * 256, 4, 64).unwrap().set_of(5), 2);
        assert_eq!(Shape::new(4096, 0, 64).unwrap().ways(), 64);
        assert_eq!(Shape::new(4096, 4, 48), Err(ShapeError::Line(48)));
        assert!(matches!(Shape::new(128, 4, 64), Err(ShapeError::Ways { ways: 4, most: 2 })));
        assert!(matches!(Shape::new(0, 0, 64), Err(ShapeError::Ways { .. })));
        let error = Shape::new(1000, 4, 64).unwrap_err();
        assert_eq!(error.to_string(), "1000B is no whole number of sets of 4 lines of 64 bytes: 768B and 1KiB are");
    }
}
