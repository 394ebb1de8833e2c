//! How one LRU cache reaches its curve's convex hull: by being split into two.
//!
//! Owns the arithmetic of Talus (Beckmann and Sanchez, HPCA 2015). Never measures.
//! Invariant: the two parts' sizes sum to the whole, and their parts of the blocks to one.

use undercroft_engine::curve::Curve;

/// Two LRU parts among which blocks are divided by a hash.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Talus {
    /// The part of all blocks that goes to the first, 0 to 1.
    pub part: f64,
    /// The first one's size in blocks. It behaves like a cache of the hull's corner below, on its part of the blocks.
    pub first: f64,
    /// The other one's size. It behaves like a cache of the hull's corner above.
    pub second: f64,
    /// Misses of both together.
    pub misses: f64,
}

/// The division of a cache of `size` blocks with which it misses what the hull of its LRU curve says. At a corner of
/// the hull, and beyond the last, there is one part only.
pub fn talus(curve: &Curve, size: u64) -> Talus {
    let hull = curve.convex_hull();
    let points = hull.points();
    let after = points.partition_point(|&(s, _)| s <= size);
    let (below, _) = points[after - 1];
    let misses = hull.misses_at(size);
    match points.get(after) {
        Some(&(above, _)) if below < size => {
            let part = (above - size) as f64 / (above - below) as f64;
            let first = part * below as f64;
            Talus { part, first, second: size as f64 - first, misses }
        }
        _ => Talus { part: 1.0, first: size as f64, second: 0.0, misses },
    }
}
