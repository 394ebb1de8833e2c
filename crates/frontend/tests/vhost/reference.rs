//! The ring reader against the one of the `virtio-queue` crate: same chains, same used ring, same wishes for
//! notification. And what each costs.
//!
//! Owns nothing. Invariant: both read the very same memory.

use proptest::prelude::*;
use std::hint::black_box;
use std::time::Instant;
use undercroft_frontend::Port;
use undercroft_frontend::faults::NoPortFaults;
use undercroft_frontend::turns::SEND_BYTES;
use undercroft_frontend::vhost::parts::{GuestMap, SplitRing, walk};
use undercroft_porttest::vhost::rig::{DATA, DATA_END, Guest, INDIRECT, NEXT, RigWith, WRITE, geometry};
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{GuestAddress, GuestMemoryMmap, GuestRegionMmap, MmapRegion};

/// The same mappings, as the other crate wants them.
fn memory_of_the_model(map: &GuestMap) -> GuestMemoryMmap<()> {
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

fn reference_queue(queue: u16, size: u16) -> Queue {
    let mut reference = Queue::new(size).unwrap();
    let [descriptors, available, used] = Guest::ring(queue).map(|at| Some(at as u32));
    reference.set_desc_table_address(descriptors, Some(0));
    reference.set_avail_ring_address(available, Some(0));
    reference.set_used_ring_address(used, Some(0));
    reference.set_event_idx(true);
    reference.set_ready(true);
    reference
}

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
                let mut list: Vec<_> = buffers.iter().map(|&(at, len, w)| (at, len, if w { WRITE } else { 0 })).collect();
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
                let chain = walk(&ours, &guest.map, popped, &mut 0, &mut spans).unwrap();
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

/// Best of some rounds of `f`, which handles `n` requests, in nanoseconds for one.
fn ns_each(n: usize, mut f: impl FnMut()) -> f64 {
    let round = |f: &mut dyn FnMut()| {
        let start = Instant::now();
        f();
        start.elapsed().as_nanos() as f64 / n as f64
    };
    (0..2000).map(|_| round(&mut f)).fold(f64::INFINITY, f64::min)
}

/// A measurement for docs/decisions/0050, not a test: `cargo test --release -p undercroft-frontend --test vhost --
/// --ignored --nocapture costs_of_a_request`.
#[test]
#[ignore = "a measurement"]
fn costs_of_a_request() {
    const N: u16 = 64;
    let mut rig = RigWith::<NoPortFaults>::new(geometry(1 << 20), 1, 256, 0);
    for i in 0..N {
        let (request, table) = (DATA + 0x100 * u64::from(i), DATA + 0x2_0000 + 0x100 * u64::from(i));
        rig.guest.header(request, 0, u64::from(i) * 8);
        let data = DATA + 0x3_0000 + 4096 * u64::from(i % 64);
        rig.guest.chain(table, 0, &[(request, 16, 0), (data, 4096, WRITE), (request + 32, 1, WRITE)]);
        rig.guest.descriptor(0, i, table, 48, INDIRECT, 0);
    }
    let mut requests = Vec::new();
    let post = |rig: &mut RigWith<NoPortFaults>| (0..N).for_each(|i| rig.guest.offer(0, i));
    let n = usize::from(N);
    let (mut posting, mut whole, mut copying) = (f64::INFINITY, f64::INFINITY, f64::INFINITY);
    let page = [7u8; 4096];
    for copy in [false, true] {
        for _ in 0..2000 {
            let start = Instant::now();
            post(&mut rig);
            posting = posting.min(start.elapsed().as_nanos() as f64 / n as f64);
            let start = Instant::now();
            rig.port.take(n, &mut requests);
            assert_eq!(requests.len(), n);
            for r in requests.drain(..) {
                if copy {
                    rig.port.copy_out(r.id.tag, 0, &page);
                }
                rig.port.reply(r.id.tag, Ok(()));
            }
            rig.port.flush(SEND_BYTES);
            let took = start.elapsed().as_nanos() as f64 / n as f64;
            if copy {
                copying = copying.min(took)
            } else {
                whole = whole.min(took)
            }
            assert_eq!(rig.guest.used(0).len(), n);
        }
    }
    println!("port, take to flush, without the copy: {whole:.0} ns a request; with 4 KiB copied: {copying:.0} ns");

    let mut guest = rig.guest;
    let memory = memory_of_the_model(&guest.map);
    let mut ring = SplitRing::new(&guest.map, &Guest::addresses(0), 256, guest.offered(0), true).unwrap();
    let mut spans = Vec::new();
    let ours = ns_each(n, || {
        (0..N).for_each(|i| guest.offer(0, i));
        for _ in 0..N {
            ring.available().unwrap();
            let head = ring.pop().unwrap();
            black_box(walk(&ring, &guest.map, head, &mut 0, &mut spans).unwrap());
            ring.push_used::<NoPortFaults>(head, 1);
        }
        black_box(ring.publish::<NoPortFaults>());
    });
    let mut reference = reference_queue(0, 256);
    reference.set_next_avail(guest.offered(0));
    let theirs = ns_each(n, || {
        (0..N).for_each(|i| guest.offer(0, i));
        for _ in 0..N {
            let chain = reference.iter(&memory).unwrap().next().unwrap();
            let head = chain.head_index();
            for d in chain {
                black_box(d);
            }
            reference.add_used(&memory, head, 1).unwrap();
        }
        black_box(reference.needs_notification(&memory).unwrap());
    });
    println!("ring and chain alone, with {posting:.0} ns of posting: ours {ours:.0} ns, virtio-queue {theirs:.0} ns");
}
