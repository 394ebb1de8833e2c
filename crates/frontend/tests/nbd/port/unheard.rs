//! Failures that tell of lost writes and of which the client cannot know: they were not sent when its connection ended.
//!
//! Owns nothing. Invariant: a failure is reported to the worker exactly if its client may not have received it.

use super::*;

fn unheard(f: &mut Fixture) -> Vec<u32> {
    std::iter::from_fn(|| f.port.take_unheard()).collect()
}

/// A flush that has been taken, under the tag returned.
fn flush_taken(structured: bool) -> (Fixture, u32) {
    let mut f = Fixture::new(structured);
    f.ask(0, command::FLUSH, 0, 0, 5);
    f.take();
    assert_eq!((f.requests.len(), f.requests[0].op), (1, Op::Flush));
    let tag = f.requests.remove(0).id.tag;
    (f, tag)
}

/// The client sends what ends its connection at once.
fn cut(f: &mut Fixture) {
    f.send(&[0x55; 28]);
    f.take();
    assert!(f.port.is_closed());
}

#[test]
fn a_failure_answered_after_the_connection_reached_nobody() {
    let (mut f, tag) = flush_taken(true);
    cut(&mut f);
    f.port.reply(tag, Err(IoError::Lost));
    assert!(f.port.unheard());
    assert!(unheard(&mut f).is_empty() && f.port.inflight() == 0);
}

#[test]
fn a_failure_reached_its_client_once_all_of_the_reply_was_sent() {
    for structured in [false, true] {
        for room in [0, 7, usize::MAX] {
            let (mut f, tag) = flush_taken(structured);
            f.wire.with(|w| w.room = room);
            f.port.reply(tag, Err(IoError::Lost));
            f.port.flush(SEND_BYTES);
            assert!(!f.port.unheard());
            assert!(unheard(&mut f).is_empty(), "its connection goes on");
            cut(&mut f);
            let left = if room == usize::MAX { vec![] } else { vec![tag] };
            assert_eq!(unheard(&mut f), left, "{room} bytes of room");
            assert!(unheard(&mut f).is_empty(), "once");
        }
    }
}
