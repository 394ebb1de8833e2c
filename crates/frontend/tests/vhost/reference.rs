//! The ring reader against the one of the `virtio-queue` crate: same chains, same used ring, same wishes for
//! notification. What each costs: `examples/request_cost.rs`.
//!
//! Owns nothing. Invariant: both read the very same memory.

use super::model::{memory_of_the_model, reference_queue};
use proptest::prelude::*;
use undercroft_frontend::faults::NoPortFaults;
use undercroft_frontend::vhost::parts::{SplitRing, walk};
use undercroft_porttest::vhost::rig::{DATA, DATA_END, Guest, INDIRECT, NEXT, WRITE};
use virtio_queue::QueueT;

/// One buffer of a chain: where, how long, writable, and whether a table follows it in place of a buffer.
type Buffer = (u64, u32, bool);

fn chains() -> impl Strategy<Value = Vec<(Vec<Buffer>, bool)>> {
    let buffer = (DATA..DATA_END - 64, 1u32..64, any::<bool>());
    let chain = (prop::collection::vec(buffer, 1..4), any::<bool>());
    prop::collection::vec(chain, 1..20)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn well_formed_chains_are_read_alike(batches in prop::collection::vec((chains(), any::<u16>()), 1..12)) {
        // Two rings with the same content: what one device writes must not be seen by the other.
        let mut guest = Guest::new(3, 64);
        let memory = memory_of_the_model(&guest.map);
        let mut ours = SplitRing::new(&guest.map, &Guest::addresses(0), 64, 0, true).unwrap();
        let mut reference = reference_queue(1, 64);
        for (chains, used_event) in batches {
            let mut want = Vec::new();
            for (i, (buffers, indirect)) in chains.iter().enumerate() {
                let mut list: Vec<_> =
                    buffers.iter().map(|&(at, len, w)| (at, len, if w { WRITE } else { 0 })).collect();
                // Readable ones first, and a place for a status last.
                list.sort_by_key(|&(_, _, flags)| flags);
                list.push((DATA, 1, WRITE));
                let head = 3 * i as u16;
                let table = Guest::ring(2)[0] + 0x100 * i as u64;
                for queue in 0..2 {
                    let ring = Guest::ring(queue)[0];
                    if *indirect || list.len() > 3 {
                        guest.chain(table, 0, &list);
                        guest.descriptor(ring, head, table, 16 * list.len() as u32, INDIRECT, 0);
                    } else {
                        guest.chain(ring, head, &list);
                    }
                    guest.offer(queue, head);
                }
                want.push((head, list));
            }
            for (head, list) in want {
                prop_assert!(ours.available().unwrap() > 0);
                let popped = ours.pop().unwrap();
                prop_assert_eq!(popped, head);
                let mut spans = Vec::new();
                let chain = walk::<NoPortFaults>(&ours, &guest.map, popped, &mut 0, &mut spans).unwrap();
                let other = reference.pop_descriptor_chain(&memory).unwrap();
                prop_assert_eq!(other.head_index(), head);
                let theirs: Vec<_> = other.map(|d| (d.addr().0, d.len(), d.flags() & !NEXT)).collect();
                prop_assert_eq!(&theirs, &list);
                let bytes = |writable: bool| -> u64 {
                    list.iter().filter(|d| (d.2 == WRITE) == writable).map(|d| u64::from(d.1)).sum()
                };
                prop_assert_eq!((chain.readable_bytes, chain.writable_bytes + 1), (bytes(false), bytes(true)));
                let total: u64 = spans.iter().map(|s| u64::from(s.len)).sum();
                prop_assert_eq!(total, bytes(false) + bytes(true) - 1);
                ours.push_used::<NoPortFaults>(popped, 7);
                reference.add_used(&memory, head, 7).unwrap();
            }
            prop_assert_eq!(ours.available().unwrap(), 0);
            prop_assert!(reference.pop_descriptor_chain(&memory).is_none());
            guest.set_used_event(0, used_event);
            guest.set_used_event(1, used_event);
            prop_assert_eq!(ours.publish::<NoPortFaults>(), reference.needs_notification(&memory).unwrap());
            prop_assert_eq!(guest.used(0), guest.used(1));
            prop_assert_eq!(ours.arm::<NoPortFaults>().unwrap(), reference.enable_notification(&memory).unwrap());
            prop_assert_eq!(guest.available_event(0), guest.available_event(1));
        }
    }
}
