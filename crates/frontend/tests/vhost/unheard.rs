//! Failures that tell of lost writes and of which the guest cannot know: it could not see them when its session ended.
//!
//! Owns nothing. Invariant: a failure is reported to the worker exactly if the next session has it served again.

use super::*;
use undercroft_cache::Request;

fn unheard(rig: &mut Rig) -> Vec<u32> {
    std::iter::from_fn(|| rig.port.take_unheard()).collect()
}

/// A rig with a record of requests under way, and a flush taken.
fn flush_taken() -> (Rig, Request) {
    let mut rig = rig();
    let (said, file) = InflightArea::create(1, 64).unwrap();
    let area = InflightArea::open(&said, file, ()).unwrap();
    connect_anew(&mut rig, &area);
    rig.guest.header(HEADER, FLUSH_T, 0);
    rig.guest.chain(0, 0, &[(HEADER, 16, 0), (STATUS, 1, WRITE)]);
    rig.guest.offer(0, 0);
    let taken = rig.take();
    assert_eq!(taken.len(), 1);
    (rig, taken[0])
}

fn connect_anew(rig: &mut Rig, area: &InflightArea) {
    rig.port.sever();
    rig.connect(Profile::new(&info(geometry(MIB))).features());
    rig.port.set_inflight(area);
    let base = rig.guest.used_index(0);
    rig.start(0, base, true);
}

fn fail(rig: &mut Rig, request: Request) {
    rig.failure = Some(IoError::Lost);
    rig.serve(request);
    rig.failure = None;
}

#[test]
fn a_failure_is_seen_once_it_is_published() {
    for published in [false, true] {
        let (mut rig, flush) = flush_taken();
        fail(&mut rig, flush);
        assert!(!rig.port.unheard());
        if published {
            rig.port.flush(SEND_BYTES);
            assert_eq!(rig.guest.used(0), [(0, 1)]);
        }
        assert!(unheard(&mut rig).is_empty(), "its session goes on");
        rig.port.sever();
        assert_eq!(unheard(&mut rig), if published { vec![] } else { vec![flush.id.tag] });
        assert!(unheard(&mut rig).is_empty(), "once");
    }
}

#[test]
fn a_failure_that_tells_of_no_loss_is_nothing_to_tell() {
    let (mut rig, flush) = flush_taken();
    rig.failure = Some(IoError::Io);
    rig.serve(flush);
    rig.port.sever();
    assert!(unheard(&mut rig).is_empty());
}

#[test]
fn a_failure_answered_after_the_session_reached_nobody() {
    let (mut rig, flush) = flush_taken();
    rig.port.sever();
    fail(&mut rig, flush);
    assert!(rig.port.unheard());
    assert!(unheard(&mut rig).is_empty(), "said once, of the answer itself");
}

/// A worker publishes before it hears of the end of a session. What waits for the memory of its ring it cannot publish.
#[test]
fn a_failure_that_waits_for_the_memory_of_its_ring_is_not_seen() {
    for comes_back in [false, true] {
        let (mut rig, flush) = flush_taken();
        let whole = Arc::clone(&rig.guest.map);
        let user = Guest::addresses(0).descriptors;
        rig.port.set_memory(Arc::new(whole.without(0, user, 0x4_0000).unwrap()));
        fail(&mut rig, flush);
        rig.port.flush(SEND_BYTES);
        assert_eq!(rig.guest.used(0), [], "there is no ring to write to");
        if comes_back {
            rig.port.set_memory(whole);
            assert_eq!(rig.guest.used(0), [(0, 1)]);
        }
        rig.port.sever();
        assert_eq!(unheard(&mut rig), if comes_back { vec![] } else { vec![flush.id.tag] });
    }
}

/// The same where the queue is stopped and started instead: the record has the chain served again.
#[test]
fn a_failure_that_waits_for_the_memory_of_its_ring_is_not_seen_when_its_queue_starts_anew() {
    let (mut rig, flush) = flush_taken();
    let whole = Arc::clone(&rig.guest.map);
    let user = Guest::addresses(0).descriptors;
    rig.port.set_memory(Arc::new(whole.without(0, user, 0x4_0000).unwrap()));
    fail(&mut rig, flush);
    let (done, base) = sync_channel(1);
    rig.port.stop(0, done).unwrap();
    assert!(base.try_recv().is_ok(), "nothing is under way");
    rig.port.set_memory(whole);
    assert!(unheard(&mut rig).is_empty());
    let base = rig.guest.used_index(0);
    rig.start(0, base, true);
    assert_eq!(unheard(&mut rig), [flush.id.tag]);
    assert_eq!(rig.take().len(), 1, "it is served again");
}

/// Of several ranges, one of which told of a loss: what counts is whether the guest saw the answer to all.
#[test]
fn a_failed_range_is_seen_with_the_answer_to_all_of_them() {
    for ends in ["before its last range", "before the answer is published", "after that"] {
        let mut rig = rig();
        rig.guest.header(HEADER, WRITE_ZEROES, 0);
        let range = |n: u64| [(8 * n).to_le_bytes().to_vec(), 8u32.to_le_bytes().to_vec(), vec![0; 4]].concat();
        rig.guest.write(BUFFER, &(0..3).flat_map(range).collect::<Vec<u8>>());
        rig.guest.chain(0, 0, &[(HEADER, 16, 0), (BUFFER, 48, 0), (STATUS, 1, WRITE)]);
        rig.guest.offer(0, 0);
        let parts = rig.take();
        assert_eq!(parts.len(), 3);
        fail(&mut rig, parts[1]);
        rig.port.flush(SEND_BYTES);
        rig.serve(parts[0]);
        if ends != "before its last range" {
            rig.serve(parts[2]);
        }
        if ends == "after that" {
            rig.port.flush(SEND_BYTES);
            assert_eq!((rig.guest.used(0), rig.guest.read(STATUS, 1)[0]), (vec![(0, 1)], IOERR));
        }
        rig.port.sever();
        let tag = parts[1].id.tag;
        assert_eq!(unheard(&mut rig), if ends == "after that" { vec![] } else { vec![tag] }, "the session ends {ends}");
    }
}
