//! Failures that tell of lost writes and of which the client cannot know: they were not sent when its connection ended.
//!
//! Owns nothing. Invariant: a failure is reported to the worker exactly if its client may not have received it.

use super::*;

fn unheard(f: &mut Fixture) -> Vec<u32> {
    std::iter::from_fn(|| f.port.take_unheard()).collect()
}

/// A flush that has been taken, under the tag returned.
fn flush_taken(structured: bool) -> (Fixture, u32) {
    flush_taken_by(Fixture::new(structured))
}

fn flush_taken_by(mut f: Fixture) -> (Fixture, u32) {
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

#[test]
fn a_failure_that_the_stream_keeps_has_not_reached_its_client() {
    for room in [0, 7, usize::MAX] {
        for peaceful in [false, true] {
            // As in a server, which sends what is left behind the port's back.
            let on_close: OnClose<ByteStream> = Box::new(|_, _| ());
            let f = Fixture::closed_by(Some(on_close), true, PortLimits::default());
            let (mut f, tag) = flush_taken_by(f);
            f.wire.with(|w| (w.keeps, w.room) = (true, room));
            f.port.reply(tag, Err(IoError::Lost));
            f.flush();
            assert_eq!(f.port.bytes_to_send(), 0, "the stream takes everything");
            assert!(unheard(&mut f).is_empty(), "its connection goes on");
            if peaceful {
                f.port.shut();
                f.flush();
                assert!(f.port.is_closed());
            } else {
                cut(&mut f);
            }
            let left = if room == usize::MAX { vec![] } else { vec![tag] };
            assert_eq!(unheard(&mut f), left, "{room} bytes of room");
        }
    }
}

#[test]
fn a_failure_that_the_stream_kept_has_reached_its_client_once_there_was_room() {
    let (mut f, tag) = flush_taken(true);
    f.wire.with(|w| (w.keeps, w.room) = (true, 3));
    f.port.reply(tag, Err(IoError::Lost));
    f.flush();
    f.wire.with(|w| w.room = usize::MAX);
    f.flush();
    cut(&mut f);
    assert!(unheard(&mut f).is_empty());
}

#[test]
fn a_process_that_ends_sends_nothing_more() {
    let (mut f, tag) = flush_taken(true);
    f.wire.with(|w| w.room = 7);
    f.port.reply(tag, Err(IoError::Lost));
    f.port.flush(SEND_BYTES);
    f.port.shut();
    f.port.process_ends();
    assert!(f.port.is_closed());
    assert_eq!(unheard(&mut f), vec![tag]);
}
