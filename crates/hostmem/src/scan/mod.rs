//! What guests keep in their memory: the scanner, its index, when it runs, and the report of what is held twice.
//!
//! Owns the search for guests and the walk over their memory, at the lowest priority and under a ceiling of processor
//! time. Never writes to a guest, never brings a page into memory that was not there. Invariant: a page is copied
//! first; what is hashed and compared is the copy.

pub mod arguments;
pub mod control;
pub mod duplicates;
pub mod hash;
pub mod index;
pub mod scanner;
pub mod source;
pub mod tally;
pub mod throttle;
pub mod vm;

/// Gives arbitrary bytes to every parser of this module and of `undercroft_host::foreign`, for fuzzing.
pub fn exercise(data: &[u8]) {
    use undercroft_host::foreign;
    let maps = foreign::parse_maps(data);
    for pair in maps.windows(2) {
        assert!(pair[0].pages.end() <= pair[1].pages.first, "mappings in order");
    }
    assert!(maps.iter().all(|m| m.pages.count > 0));
    for word in data.as_chunks::<8>().0 {
        let entry = u64::from_ne_bytes(*word);
        let flags = foreign::entry_flags(entry);
        assert_eq!(foreign::entry_frame(entry).is_some(), flags.has(foreign::PageFlags::PRESENT) && entry << 9 != 0);
    }
    let said = arguments::Arguments::parse(data);
    assert!(said.images.iter().all(|i| !i.as_os_str().is_empty()));
    vm::ksm_pages(data);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        /// What the fuzz target does at length.
        #[test]
        fn no_bytes_break_a_parser(data in proptest::collection::vec(any::<u8>(), 0..400),
                                   words in "(-drive|-name|-blockdev|file=|[,{}\":a0= \\-\\n\\x00rw:]){0,60}") {
            super::exercise(&data);
            super::exercise(words.as_bytes());
        }
    }
}
