//! What a request costs in the vhost-user port (decision 0050): from its chain to its answer, and the ring and the
//! chain alone beside those of the `virtio-queue` crate.
//!
//! `cargo run --release -p undercroft-frontend --example request_cost`

#[path = "../tests/vhost/model.rs"]
mod model;

use model::{memory_of_the_model, reference_queue};
use std::hint::black_box;
use std::time::Instant;
use undercroft_frontend::Port;
use undercroft_frontend::faults::NoPortFaults;
use undercroft_frontend::turns::SEND_BYTES;
use undercroft_frontend::vhost::parts::{SplitRing, walk};
use undercroft_porttest::vhost::rig::{DATA, Guest, INDIRECT, RigWith, WRITE, geometry};
use virtio_queue::{QueueOwnedT, QueueT};

/// Requests in a round.
const N: u16 = 64;

fn main() {
    let (guest, posting) = whole_requests();
    rings(guest, posting);
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

/// What a request costs from its chain to its answer; returns the guest, and what posting takes of it in nanoseconds.
fn whole_requests() -> (Guest, f64) {
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
    (rig.guest, posting)
}

/// What the ring and the chains cost alone, beside the other crate's.
fn rings(mut guest: Guest, posting: f64) {
    let n = usize::from(N);
    let memory = memory_of_the_model(&guest.map);
    let mut ring = SplitRing::new(&guest.map, &Guest::addresses(0), 256, guest.offered(0), true).unwrap();
    let mut spans = Vec::new();
    let ours = ns_each(n, || {
        (0..N).for_each(|i| guest.offer(0, i));
        for _ in 0..N {
            ring.available().unwrap();
            let head = ring.pop().unwrap();
            black_box(walk::<NoPortFaults>(&ring, &guest.map, head, &mut 0, &mut spans).unwrap());
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
