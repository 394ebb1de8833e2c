//! How much of a process's address space front ends may take: the mappings of one device, and those of all.
//!
//! Owns the counts. Never maps anything. Invariant: a mapping is counted from before it is made until nothing is mapped
//! any more, also while only a request under way still refers to it.
//!
//! The kernel allows a process `vm.max_map_count` mappings, 65,530 by default. When they are used up, the allocator
//! gets no memory either, and the process ends: so front ends together have half of them, and each a bound of its own.

use super::limits::MAPPINGS_MAX;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

/// What the kernel allows by default.
const DEFAULT_MAPS: usize = 65_530;

/// Mappings of all front ends.
static ALL: LazyLock<Count> = LazyLock::new(|| {
    let said = fs::read_to_string("/proc/sys/vm/max_map_count").ok().and_then(|s| s.trim().parse().ok());
    Count { now: AtomicUsize::new(0), most: said.unwrap_or(DEFAULT_MAPS) / 2 }
});

#[derive(Debug)]
struct Count {
    now: AtomicUsize,
    most: usize,
}

impl Count {
    fn take(&self) -> bool {
        self.now.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < self.most).then_some(n + 1)).is_ok()
    }

    fn give_back(&self) {
        self.now.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The mappings of one device, of all sessions that it has had.
#[derive(Clone, Debug)]
pub struct Mappings(Arc<Count>);

impl Default for Mappings {
    fn default() -> Mappings {
        Mappings(Arc::new(Count { now: AtomicUsize::new(0), most: MAPPINGS_MAX }))
    }
}

/// Why a front end may map nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MappingsFull {
    /// What its requests under way still use, and what it shares anew, is too much.
    #[error(
        "requests under way still use the memory that it shared before, and it shares too much anew: a front end \
         changes its memory when its disk answers again"
    )]
    Device,
    /// All devices together have too much.
    #[error(
        "all front ends together have as many memory regions as this process may map: raise vm.max_map_count, or give \
         guests their memory in fewer pieces"
    )]
    Process,
}

impl Mappings {
    /// A place for one more.
    ///
    /// # Errors
    /// Why there is none.
    pub fn take(&self) -> Result<MappingPlace, MappingsFull> {
        if !self.0.take() {
            return Err(MappingsFull::Device);
        }
        if !ALL.take() {
            self.0.give_back();
            return Err(MappingsFull::Process);
        }
        Ok(MappingPlace(self.clone()))
    }
}

/// The place of one mapping; free again when dropped.
#[derive(Debug)]
pub struct MappingPlace(Mappings);

impl Drop for MappingPlace {
    fn drop(&mut self) {
        self.0.0.give_back();
        ALL.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_bounded_for_each_device_and_come_back() {
        let (one, other) = (Mappings::default(), Mappings::default());
        let places: Vec<_> = (0..MAPPINGS_MAX).map(|_| one.take().unwrap()).collect();
        assert_eq!(one.take().unwrap_err(), MappingsFull::Device);
        assert!(other.take().is_ok(), "another device has places of its own");
        drop(places);
        assert!(one.take().is_ok());
    }
}
