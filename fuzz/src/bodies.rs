//! Bodies of requests to the control API that may contain anything.
//!
//! Owns the targets of bodies and of lists of ranges, never a parser. Invariant: as for all targets, a panic is a
//! defect of the parser: any bytes give a value, or an error with words.

use undercroft_api::body::{
    parse_change, parse_disk, parse_if_match, parse_ksm, parse_node, parse_store, parse_whole_node,
};
use undercroft_api::hot_set;
use undercroft_api::ranges::{DiskRanges, RangeBody, RangeList, RangeListBody, RangesError, parse};
use undercroft_api::record::parse_record;
use undercroft_api::{ControlError, NodeChange};
use undercroft_volumes::plugin::{Description, PluginCall, SIZE_BYTES_MAX, SIZE_BYTES_MIN, parse_call};

/// An error says what is wrong and what to do.
fn told(e: &ControlError) {
    assert!(!e.error.is_empty() && !e.remedy.is_empty(), "an error without words");
}

/// Bodies of API requests, those of nodes and `If-Match` included: any bytes give a value or an error with a remedy.
///
/// # Panics
/// If an error has no words, or a value breaks its bounds.
pub fn api(data: &[u8]) {
    match parse_change(data) {
        Ok(change) => assert!(!change.is_empty(), "an empty change was let through"),
        Err(e) => told(&e),
    }
    if let Err(e) = parse_store(data) {
        told(&e);
    }
    match parse_ksm(data) {
        Ok(body) => assert!(!(body.manage && body.unmerge), "a contradiction was let through"),
        Err(e) => told(&e),
    }
    nodes(data);
    match parse_record(data) {
        Ok(order) => assert!(order.path.is_absolute() && order.sample > 0, "an order that cannot be carried out"),
        Err(e) => told(&e),
    }
    match parse_disk(data) {
        Ok(spec) => assert!(spec.lines.is_empty(), "lines came from outside"),
        Err(e) => told(&e),
    }
}

/// Hot sets: any bytes give a list of blocks that a disk of that size can have, or an error with a remedy; a budget is
/// kept to the block.
///
/// # Panics
/// If an error has no words, or a value breaks its bounds.
pub fn hot_set(data: &[u8]) {
    match hot_set::parse(data) {
        Ok(mut set) => {
            let (bytes, most) = (set.bytes(), set.size_bytes / 4096 + 2);
            assert!(set.ranges.iter().all(|&(first, count)| count > 0 && first + count <= most), "blocks past the end");
            if bytes < u64::MAX {
                let half = bytes / 8192;
                assert_eq!(bytes - set.cut(half), half * 4096, "another budget than was given");
                assert_eq!(set.bytes(), half * 4096, "blocks that were left out count");
            }
        }
        Err(e) => told(&e),
    }
}

/// The parsers of nodes.
fn nodes(data: &[u8]) {
    match (parse_node(data), parse_whole_node(data)) {
        (Ok(part), Ok(whole)) => {
            assert_eq!(part.replacing(), whole, "PATCH and PUT read a body differently");
        }
        (Err(e), Ok(whole)) => {
            assert_eq!(whole, NodeChange::default().replacing(), "only PUT takes this: {e}");
            told(&e);
        }
        (Ok(_), Err(e)) => panic!("only PATCH takes this: {e}"),
        (Err(e), Err(also)) => {
            told(&e);
            told(&also);
        }
    }
    match std::str::from_utf8(data).map(parse_if_match) {
        Ok(Ok(versions)) => assert!(versions.is_none_or(|v| !v.is_empty()), "no version is enough"),
        Ok(Err(e)) => told(&e),
        Err(_) => {}
    }
}

/// Lists of ranges: any bytes give a list whose invariants hold, beside another container too, or an error with a
/// remedy.
///
/// # Panics
/// If an error has no words, or an invariant is broken.
pub fn ranges(data: &[u8]) {
    let refused = |e: RangesError| told(&ControlError::from(e));
    let list = match parse(data) {
        Ok(list) => list,
        Err(e) => return refused(e),
    };
    let ranges = list.ranges();
    let apart = ranges.windows(2).all(|w| w[0].end() < w[1].offset());
    assert!(apart && ranges.iter().all(|r| r.offset() < r.end()), "ranges out of order");
    let text = serde_json::to_vec(&list.body()).unwrap_or_default();
    assert_eq!(parse(&text).as_ref(), Ok(&list), "a list does not survive being written");
    for size_bytes in [1u64 << 20, (1 << 40) + 512] {
        let mut disk = DiskRanges::new(list.disk(), size_bytes);
        let beside = RangeBody { offset_bytes: size_bytes / 2 + 1024, length_bytes: 2048 };
        let other = RangeListBody { disk: list.disk().into(), container: "Beside".into(), ranges: vec![beside] };
        let other = RangeList::new(other).expect("a list of one range");
        if list.container() != other.container() {
            assert_eq!(disk.put(&other), Ok(()), "one range is refused");
        }
        let before = disk.clone();
        match disk.put(&list) {
            Ok(()) => disk.check(),
            Err(e) => {
                assert_eq!(disk, before, "what was refused left something behind");
                refused(e);
            }
        }
    }
}

/// Requests of volume engines, and what is written down of volumes: the first byte says which. Any bytes give a call
/// with a name that can be a folder's and a disk's, or an error with words; what is written down is read back.
///
/// # Panics
/// If an error has no words, or a value breaks its bounds.
pub fn volume_plugin(data: &[u8]) {
    const CALLS: [&str; 9] = [
        "/Plugin.Activate",
        "/VolumeDriver.Capabilities",
        "/VolumeDriver.List",
        "/VolumeDriver.Get",
        "/VolumeDriver.Path",
        "/VolumeDriver.Create",
        "/VolumeDriver.Remove",
        "/VolumeDriver.Mount",
        "/VolumeDriver.Unmount",
    ];
    let Some((&first, body)) = data.split_first() else { return };
    let named = |name: &str| {
        let known = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
        assert!(name.bytes().all(known) && !name.starts_with('.') && (1..=64).contains(&name.len()), "{name:?}");
    };
    let Some(path) = CALLS.get(usize::from(first) % (CALLS.len() + 1)) else {
        match Description::parse("db", body) {
            Ok(volume) => {
                let text = serde_json::to_vec(&volume).expect("what was read can be written");
                assert_eq!(Description::parse("db", &text).expect("and read again"), volume);
            }
            Err(e) => assert!(!e.to_string().is_empty()),
        }
        return;
    };
    match parse_call(path, body).expect("a call of the protocol") {
        Err(e) => assert!(!e.to_string().is_empty(), "an error without words"),
        Ok(PluginCall::Create(name, options)) => {
            named(&name);
            assert!((SIZE_BYTES_MIN..=SIZE_BYTES_MAX).contains(&options.size_bytes), "a size that no volume has");
        }
        Ok(PluginCall::Get(name) | PluginCall::Path(name) | PluginCall::Remove(name)) => named(&name),
        Ok(PluginCall::Mount { name, id } | PluginCall::Unmount { name, id }) => {
            named(&name);
            assert!(id.len() <= body.len(), "an ID from nowhere");
        }
        Ok(PluginCall::Activate | PluginCall::Capabilities | PluginCall::List) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            api(&bytes);
            super::ranges(&bytes);
        }

        #[test]
        fn lists_of_any_ranges_hold_or_say_why(some in proptest::collection::vec((any::<u64>(), any::<u64>()), 0..8)) {
            let some = some.into_iter().map(|(offset_bytes, length_bytes)| RangeBody { offset_bytes, length_bytes });
            let body = RangeListBody { disk: "vm:root".into(), container: "web".into(), ranges: some.collect() };
            super::ranges(&serde_json::to_vec(&body).unwrap());
        }
    }
}
