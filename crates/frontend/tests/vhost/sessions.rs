//! What a front end does between requests: it stops queues, changes memory, goes away and comes back.
//!
//! Owns nothing. Never uses a socket. Invariant: every test asserts what becomes of the requests that were under way,
//! or that what was set up wrongly is refused.

use super::*;

#[test]
fn a_stopping_queue_waits_for_its_requests_and_tells_its_position() {
    let mut rig = Rig::new(geometry(MIB), 2, 64, 0);
    rig.guest.header(HEADER, IN, 0);
    rig.guest.chain(0, 0, &[(HEADER, 16, 0), (BUFFER, 512, WRITE), (STATUS, 1, WRITE)]);
    rig.guest.offer(0, 0);
    let under_way = rig.take();
    rig.guest.offer(0, 0);
    let (done, base) = sync_channel(1);
    rig.port.stop(0, done).unwrap();
    assert!(base.try_recv().is_err(), "a request is under way");
    assert_eq!(rig.take(), [], "a stopped queue is not served");
    rig.serve(under_way[0]);
    assert!(base.try_recv().is_err(), "the guest cannot see the answer yet");
    rig.port.flush(SEND_BYTES);
    assert_eq!(rig.guest.used(0), [(0, 513)]);
    assert_eq!(base.try_recv(), Ok(1));
    rig.start(0, 1, false);
    assert_eq!(rig.turn(), 1, "the second chain comes after the restart");
    assert_eq!(rig.guest.used(0), [(0, 513)]);
}

/// Stops all queues, and says where each did.
fn pause(rig: &mut Rig, queues: u32) -> Vec<u32> {
    let stop = |index| {
        let (done, base) = sync_channel(1);
        rig.port.stop(index, done).unwrap();
        u32::from(base.try_recv().unwrap())
    };
    (0..queues).map(stop).collect()
}

#[test]
fn a_guest_begins_afresh_when_its_queues_do_and_not_when_it_goes_on_after_a_pause() {
    let mut rig = Rig::new(geometry(MIB), 2, 64, 0);
    rig.port.began_afresh();
    rig.guest.header(HEADER, IN, 0);
    rig.guest.chain(0, 0, &[(HEADER, 16, 0), (BUFFER, 512, WRITE), (STATUS, 1, WRITE)]);
    for _ in 0..10 {
        rig.guest.offer(0, 0);
        rig.turn();
    }
    for order in [[0, 1], [1, 0]] {
        let at = pause(&mut rig, 2);
        assert_eq!(at, [10, 0], "the second queue was never used");
        order.into_iter().for_each(|queue| rig.start(queue, at[queue as usize] as u16, false));
        assert!(!rig.port.began_afresh(), "a pause");
    }
    pause(&mut rig, 2);
    rig.start(1, 0, false);
    assert!(!rig.port.began_afresh(), "a queue that never moved says nothing");
    rig.start(0, 0, false);
    assert!(rig.port.began_afresh(), "a reboot");
    pause(&mut rig, 2);
    [0, 1].into_iter().for_each(|queue| rig.start(queue, 0, false));
    assert!(!rig.port.began_afresh(), "nothing has moved since the reboot");
}

#[test]
fn a_front_end_that_comes_back_goes_on_unless_its_guest_was_reset_meanwhile() {
    let features = port_features();
    let mut rig = Rig::new(geometry(MIB), 2, 64, 0);
    let (said, file) = InflightArea::create(2, 64).unwrap();
    let area = InflightArea::open(&said, file, ()).unwrap();
    rig.guest.header(HEADER, IN, 0);
    rig.guest.chain(0, 0, &[(HEADER, 16, 0), (BUFFER, 512, WRITE), (STATUS, 1, WRITE)]);
    let come_back = |rig: &mut Rig, base| {
        rig.port.sever();
        rig.connect(features);
        rig.port.set_inflight(&area);
        [(1, 0), (0, base)].into_iter().for_each(|(queue, base)| rig.start(queue, base, true));
        rig.port.began_afresh()
    };
    come_back(&mut rig, 0);
    rig.guest.offer(0, 0);
    rig.turn();
    // What it says of the position is nothing beside its record.
    assert!(!come_back(&mut rig, 0));
    rig.guest.offer(0, 0);
    rig.turn();
    rig.port.sever();
    rig.guest = Guest::new(2, 64);
    rig.connect(features);
    [1, 0].into_iter().for_each(|queue| rig.start(queue, 0, false));
    assert!(rig.port.began_afresh(), "rings as new");
}

#[test]
fn a_new_memory_table_keeps_rings_and_requests_under_way() {
    let mut rig = rig();
    rig.guest.header(HEADER, IN, 0);
    rig.guest.chain(0, 0, &[(HEADER, 16, 0), (BUFFER, 512, WRITE), (STATUS, 1, WRITE)]);
    rig.guest.offer(0, 0);
    let under_way = rig.take();
    // The rings' region goes and comes back, as when a hypervisor rearranges it; meanwhile the request ends.
    let whole = Arc::clone(&rig.guest.map);
    let user = Guest::addresses(0).descriptors;
    let less = Arc::new(whole.without(0, user, 0x4_0000).unwrap());
    rig.port.set_memory(less);
    rig.serve(under_way[0]);
    rig.port.flush(SEND_BYTES);
    assert_eq!(rig.guest.used(0), [], "there is no ring to write to");
    assert_eq!(rig.take(), []);
    let mapping = Arc::new(undercroft_host::Guarded::new(MmapRegion::new(0x1000).unwrap()).unwrap());
    let more = whole.with(MemoryRegion { guest: 0x40_0000, user: 0x1000, len: 0x1000, mapping }).unwrap();
    rig.port.set_memory(Arc::new(more));
    assert_eq!(rig.guest.used(0), [(0, 513)], "the answer is not lost");
    assert_eq!(rig.guest.read(BUFFER, 512), (0..512).map(disk_byte).collect::<Vec<u8>>());
    rig.guest.offer(0, 0);
    assert_eq!(rig.turn(), 1);
    assert_eq!(rig.guest.used(0), [(0, 513)]);
}

#[test]
fn after_a_disconnect_answers_go_nowhere_and_hold_up_the_next_session() {
    let mut rig = rig();
    let (said, file) = InflightArea::create(1, 64).unwrap();
    let features = port_features();
    let area = InflightArea::open(&said, file, ()).unwrap();
    rig.port.sever();
    rig.connect(features);
    rig.port.set_inflight(&area);
    rig.start(0, 0, true);
    rig.guest.header(HEADER, IN, 0);
    for head in [0, 3, 6] {
        rig.guest.chain(0, head, &[(HEADER, 16, 0), (BUFFER, 512, WRITE), (STATUS, 1, WRITE)]);
        rig.guest.offer(0, head);
    }
    let under_way = rig.take();
    rig.serve(under_way[1]);
    rig.port.flush(SEND_BYTES);
    assert_eq!(rig.guest.used(0), [(3, 513)]);

    rig.port.sever();
    rig.guest.write(BUFFER, &[0x55; 512]);
    rig.guest.write(STATUS, &[0x55]);
    rig.connect(features);
    rig.port.set_inflight(&area);
    // QEMU starts over from what it sees in the used ring.
    rig.start(0, 1, true);
    assert_eq!(rig.take(), [], "not before the requests of the last session have ended");
    assert!(!rig.port.arm());
    rig.serve(under_way[0]);
    assert_eq!(signals(&rig.wake_fd), 0);
    rig.serve(under_way[2]);
    assert_eq!(signals(&rig.wake_fd), 1, "the worker is woken when the last has ended");
    rig.port.flush(SEND_BYTES);
    assert_eq!(rig.guest.used(0), []);
    assert_eq!(rig.guest.read(BUFFER, 512), [0x55; 512], "no memory of the guest is touched");
    assert_eq!(rig.guest.read(STATUS, 1), [0x55]);
    assert!(rig.port.arm());
    assert_eq!(rig.turn(), 2, "what was under way is served again");
    assert_eq!(rig.guest.used(0), [(0, 513), (6, 513)]);
    rig.guest.offer(0, 3);
    assert_eq!(rig.turn(), 1, "and new requests come after");
    assert_eq!(rig.guest.used(0), [(3, 513)]);
}

#[test]
fn a_restarted_device_serves_again_what_the_killed_one_had_taken() {
    let mut rig = rig();
    let features = port_features();
    let (said, file) = InflightArea::create(1, 64).unwrap();
    let area = InflightArea::open(&said, file.try_clone().unwrap(), ()).unwrap();
    rig.port.sever();
    rig.connect(features);
    rig.port.set_inflight(&area);
    rig.start(0, 0, true);
    for (i, head) in [9, 3, 6, 0].into_iter().enumerate() {
        rig.guest.header(HEADER + 32 * i as u64, IN, i as u64);
        let header = (HEADER + 32 * i as u64, 16, 0);
        rig.guest.chain(0, head, &[header, (BUFFER + 512 * i as u64, 512, WRITE), (STATUS, 1, WRITE)]);
        rig.guest.offer(0, head);
    }
    let under_way = rig.take();
    rig.serve(under_way[2]);
    rig.port.flush(SEND_BYTES);
    assert_eq!(rig.guest.used(0), [(6, 513)]);

    // Another process: nothing survives but the shared memory and the guest's.
    let mut next = Rig::new(geometry(MIB), 1, 64, 0);
    next.port.sever();
    next.guest = rig.guest;
    next.connect(features);
    next.port.set_inflight(&InflightArea::open(&said, file, ()).unwrap());
    next.guest.header(HEADER + 0x80, IN, 8);
    next.guest.chain(0, 12, &[(HEADER + 0x80, 16, 0), (BUFFER + 2048, 512, WRITE), (STATUS, 1, WRITE)]);
    next.guest.offer(0, 12);
    next.start(0, 1, true);
    assert_eq!(next.turn(), 4);
    let order: Vec<u64> = next.taken.iter().map(|r| r.offset / 512).collect();
    assert_eq!(order, [0, 1, 3, 8], "in the order in which they were taken, then what is new");
    assert_eq!(next.guest.used(0), [(9, 513), (3, 513), (0, 513), (12, 513)]);
}

fn port_features() -> u64 {
    Profile::new(&info(geometry(MIB))).features()
}

#[test]
fn an_orphaned_write_still_has_its_data() {
    let mut rig = rig();
    rig.guest.header(HEADER, OUT, 0);
    rig.guest.write(BUFFER, &[0x77; 512]);
    rig.guest.chain(0, 0, &[(HEADER, 16, 0), (BUFFER, 512, 0), (STATUS, 1, WRITE)]);
    rig.guest.offer(0, 0);
    let under_way = rig.take();
    rig.port.sever();
    drop(std::mem::replace(&mut rig.guest, Guest::new(1, 64)));
    rig.serve(under_way[0]);
    assert_eq!(rig.disk[..512], [0x77; 512]);
    assert_eq!(rig.port.inflight(), 0);
}

#[test]
fn a_shut_device_takes_nothing_but_answers() {
    let mut rig = rig();
    rig.guest.header(HEADER, IN, 0);
    rig.guest.chain(0, 0, &[(HEADER, 16, 0), (BUFFER, 512, WRITE), (STATUS, 1, WRITE)]);
    rig.guest.offer(0, 0);
    let under_way = rig.take();
    rig.guest.offer(0, 0);
    rig.port.shut();
    assert_eq!(rig.take(), []);
    assert_eq!(rig.port.inflight(), 1);
    rig.serve(under_way[0]);
    rig.port.flush(SEND_BYTES);
    assert_eq!((rig.guest.used(0), rig.port.inflight()), (vec![(0, 513)], 0));
}

#[test]
fn queue_set_up_is_checked() {
    let mut rig = rig();
    let port = &mut rig.port;
    assert!(port.set_size(0, 64).is_err(), "the queue is running");
    assert!(port.set_base(0, 3).is_err());
    assert!(port.set_size(1, 64).is_err(), "there is one queue only");
    let (done, base) = sync_channel(1);
    port.stop(0, done).unwrap();
    base.recv().unwrap();
    for size in [0, 3, 48, 2048, 65536 + 64] {
        assert!(port.set_size(0, size).is_err(), "size {size}");
    }
    let mut at = Guest::addresses(0);
    at.used = 0x1234_5678;
    port.set_addresses(0, at).unwrap();
    assert!(port.start(0, eventfd(), false).is_err(), "the used ring is nowhere");
    assert_eq!(port.fds().len(), 1, "the wake_fd alone");
}
