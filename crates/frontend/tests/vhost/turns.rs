//! Turns of the worker: notifications in both directions, fairness among queues, and bounds on what is taken.
//!
//! Owns nothing. Never posts a chain that is wrong. Invariant: every test asserts who is notified or served, and when
//! the worker may sleep.

use super::*;

#[test]
fn one_notification_for_all_answers_of_a_turn_if_the_driver_wants_one() {
    let mut rig = rig();
    rig.guest.header(HEADER, IN, 0);
    let post = |rig: &mut Rig, n: u16| {
        for head in (0..n).map(|i| 3 * i) {
            rig.guest.chain(0, head, &[(HEADER, 16, 0), (BUFFER, 512, WRITE), (STATUS, 1, WRITE)]);
            rig.guest.offer(0, head);
        }
        rig.turn();
        rig.guest.used(0).len()
    };
    rig.guest.set_used_event(0, 0);
    assert_eq!(post(&mut rig, 4), 4);
    assert_eq!(signals(&rig.calls[0]), 1, "entry 0 was to be notified, four came at once");
    assert_eq!(post(&mut rig, 4), 4);
    assert_eq!(signals(&rig.calls[0]), 0, "the driver has not asked again");
    rig.guest.set_used_event(0, 9);
    assert_eq!(post(&mut rig, 1), 1);
    assert_eq!(signals(&rig.calls[0]), 0, "entry 8 was not asked for");
    assert_eq!(post(&mut rig, 1), 1);
    assert_eq!(signals(&rig.calls[0]), 1, "entry 9 was");
}

#[test]
fn without_event_indices_the_flags_count() {
    let mut rig = Rig::new(geometry(MIB), 1, 64, EVENT_IDX);
    rig.guest.set_used_event(0, 500);
    rig.request(IN, 0, &[(BUFFER, 512, WRITE)]);
    assert_eq!(signals(&rig.calls[0]), 1);
    rig.guest.write(Guest::ring(0)[1], &1u16.to_le_bytes());
    rig.request(IN, 0, &[(BUFFER, 512, WRITE)]);
    assert_eq!(signals(&rig.calls[0]), 0, "the driver polls");
    rig.port.disarm();
    assert_eq!(rig.guest.used_flags(0), 1, "no kicks, please");
    assert!(!rig.port.arm());
    assert_eq!(rig.guest.used_flags(0), 0);
}

#[test]
fn arming_sees_what_came_before_it() {
    let mut rig = rig();
    rig.request(IN, 0, &[(BUFFER, 512, WRITE)]);
    assert!(!rig.port.arm());
    assert_eq!(rig.guest.available_event(0), 1, "a kick for the next one");
    rig.guest.offer(0, 0);
    assert!(rig.port.arm(), "do not sleep: this one may have come without a kick");
    rig.turn();
    assert!(!rig.port.arm());
    assert_eq!(rig.guest.available_event(0), 2);
}

#[test]
fn queues_take_turns() {
    let mut rig = Rig::new(geometry(MIB), 3, 64, 0);
    rig.guest.header(HEADER, IN, 0);
    for queue in 0..3 {
        rig.guest.chain(Guest::ring(queue)[0], 0, &[(HEADER, 16, 0), (BUFFER, 512, WRITE), (STATUS, 1, WRITE)]);
        (0..20).for_each(|_| rig.guest.offer(queue, 0));
    }
    let mut served = [0; 3];
    for _ in 0..3 {
        let mut out = Vec::new();
        assert!(rig.port.take(16, &mut out));
        assert_eq!(out.len(), 16);
        out.into_iter().for_each(|r| rig.port.reply(r.id.tag, Ok(())));
        rig.port.flush(SEND_BYTES);
        (0..3).for_each(|q| served[usize::from(q)] += rig.guest.used(q).len());
    }
    assert_eq!(served, [16; 3], "a queue that always has more does not starve the others");
}

#[test]
fn a_guest_that_never_stops_posting_is_held_at_the_size_of_its_queue() {
    let mut rig = rig();
    rig.guest.header(HEADER, IN, 0);
    rig.guest.chain(0, 0, &[(HEADER, 16, 0), (BUFFER, 512, WRITE), (STATUS, 1, WRITE)]);
    (0..64).for_each(|_| rig.guest.offer(0, 0));
    let first = rig.take();
    assert_eq!(first.len(), 64);
    (0..64).for_each(|_| rig.guest.offer(0, 0));
    assert_eq!(rig.take(), [], "no more than the queue's size at a time");
    assert!(!rig.port.arm(), "and the worker may sleep: answers make room");
    assert_eq!(signals(&rig.wake_fd), 0);
    rig.serve(first[0]);
    assert_eq!(signals(&rig.wake_fd), 1, "no kick will come for what was posted before the ring was armed");
    rig.serve(first[1]);
    assert_eq!(signals(&rig.wake_fd), 0, "once is enough");
    rig.port.flush(SEND_BYTES);
    assert!(rig.port.arm());
    assert_eq!(rig.take().len(), 2);
}

#[test]
fn many_queues_share_a_bound_on_requests_under_way() {
    let mut rig = Rig::new(geometry(MIB), 3, 512, 0);
    rig.guest.header(HEADER, IN, 0);
    for queue in 0..3 {
        rig.guest.chain(Guest::ring(queue)[0], 0, &[(HEADER, 16, 0), (BUFFER, 512, WRITE), (STATUS, 1, WRITE)]);
        (0..512).for_each(|_| rig.guest.offer(queue, 0));
    }
    let first = rig.take();
    assert_eq!(first.len(), 1024 - RANGES_MAX);
    assert!(!rig.port.arm());
    first.into_iter().for_each(|r| rig.serve(r));
    assert_eq!(signals(&rig.wake_fd), 1, "the worker is woken for those that had to wait");
    assert_eq!(rig.take().len(), 3 * 512 - (1024 - RANGES_MAX));
}

#[test]
fn a_queue_that_was_held_up_comes_first_when_there_is_room() {
    let mut rig = Rig::new(geometry(MIB), 3, 512, 0);
    rig.guest.header(HEADER, IN, 0);
    for queue in 0..3 {
        rig.guest.chain(Guest::ring(queue)[0], 0, &[(HEADER, 16, 0), (BUFFER, 512, WRITE), (STATUS, 1, WRITE)]);
        (0..512).for_each(|_| rig.guest.offer(queue, 0));
    }
    rig.take().into_iter().for_each(|r| rig.serve(r));
    rig.port.flush(SEND_BYTES);
    let served: Vec<usize> = (0..3).map(|q| rig.guest.used(q).len()).collect();
    assert_eq!(served.iter().sum::<usize>(), 1024 - RANGES_MAX);
    // The first queues post as much again; the one that got least must not fall back further.
    for queue in 0..2 {
        (0..served[usize::from(queue)]).for_each(|_| rig.guest.offer(queue, 0));
    }
    rig.take().into_iter().for_each(|r| rig.serve(r));
    rig.port.flush(SEND_BYTES);
    assert!(rig.guest.used(2).len() >= 512 - served[2], "all that the third queue had posted");
}
