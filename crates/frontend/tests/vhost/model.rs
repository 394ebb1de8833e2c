//! A rig's guest as the `virtio-queue` crate sees it; for the test beside and for `examples/request_cost.rs`.
//!
//! Owns nothing. Invariant: both see the very same memory.

use undercroft_frontend::vhost::parts::GuestMap;
use undercroft_porttest::vhost::rig::Guest;
use virtio_queue::{Queue, QueueT};
use vm_memory::{GuestAddress, GuestMemoryMmap, GuestRegionMmap, MmapRegion};

/// The same mappings, as the other crate wants them.
pub fn memory_of_the_model(map: &GuestMap) -> GuestMemoryMmap<()> {
    let regions = map
        .regions()
        .iter()
        .map(|r| {
            // The same memory, mapped once more.
            let mapping = MmapRegion::from_file(r.mapping.file_offset().unwrap().clone(), r.len as usize).unwrap();
            GuestRegionMmap::new(mapping, GuestAddress(r.guest)).unwrap()
        })
        .collect();
    GuestMemoryMmap::from_regions(regions).unwrap()
}

/// A queue of the other crate in the rings of the rig's queue.
pub fn reference_queue(queue: u16, size: u16) -> Queue {
    let mut reference = Queue::new(size).unwrap();
    let [descriptors, available, used] = Guest::ring(queue).map(|at| Some(at as u32));
    reference.set_desc_table_address(descriptors, Some(0));
    reference.set_avail_ring_address(available, Some(0));
    reference.set_used_ring_address(used, Some(0));
    reference.set_event_idx(true);
    reference.set_ready(true);
    reference
}
