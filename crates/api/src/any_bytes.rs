//! Any bytes, put through every parser of a body but that of ranges, which has its own: for the fuzzer and for tests.
//!
//! Owns what must hold whatever comes. Never answers anybody. Invariant: bytes give a value or an error with words.

use crate::body::{parse_change, parse_disk, parse_if_match, parse_ksm, parse_node, parse_store, parse_whole_node};
use crate::record::parse_record;
use undercroft_config::{ControlError, NodeChange};

/// Puts any bytes through every parser but that of ranges, which has its own, for the fuzzer.
///
/// # Panics
/// If an error has no words, or a value breaks its bounds: that is a bug.
pub fn check_bytes(data: &[u8]) {
    let told = |e: ControlError| assert!(!e.error.is_empty() && !e.remedy.is_empty(), "an error without words");
    match parse_change(data) {
        Ok(change) => assert!(!change.is_empty(), "an empty change was let through"),
        Err(e) => told(e),
    }
    if let Err(e) = parse_store(data) {
        told(e);
    }
    match parse_ksm(data) {
        Ok(body) => assert!(!(body.manage && body.unmerge), "a contradiction was let through"),
        Err(e) => told(e),
    }
    check_nodes(data);
    match parse_record(data) {
        Ok(order) => assert!(order.path.is_absolute() && order.sample > 0, "an order that cannot be carried out"),
        Err(e) => told(e),
    }
    match parse_disk(data) {
        Ok(spec) => assert!(spec.lines.is_empty(), "lines came from outside"),
        Err(e) => told(e),
    }
}

/// The parsers of nodes.
fn check_nodes(data: &[u8]) {
    let told = |e: ControlError| assert!(!e.error.is_empty() && !e.remedy.is_empty(), "an error without words");
    match (parse_node(data), parse_whole_node(data)) {
        (Ok(part), Ok(whole)) => {
            assert_eq!(part.replacing(), whole, "PATCH and PUT read a body differently");
        }
        (Err(e), Ok(whole)) => {
            assert_eq!(whole, NodeChange::default().replacing(), "only PUT takes this: {e}");
            told(e);
        }
        (Ok(_), Err(e)) => panic!("only PATCH takes this: {e}"),
        (Err(e), Err(also)) => {
            told(e);
            told(also);
        }
    }
    match std::str::from_utf8(data).map(parse_if_match) {
        Ok(Ok(versions)) => assert!(versions.is_none_or(|v| !v.is_empty()), "no version is enough"),
        Ok(Err(e)) => told(e),
        Err(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            check_bytes(&bytes);
        }
    }
}
