//! The form in which a worker notes requests for a recording: two words each, in buffers that the converter reads in
//! order.
//!
//! Owns that form. Never decides what is noted. Invariants: `read` returns what `put_row` and `put_end` wrote, in that
//! order; a request that does not fit in two words takes five, and nothing is rounded. A buffer holds whole notes only.

use super::tap::End;
use undercroft_cache::Found;
use undercroft_host::{ALIGNED_WORDS, AlignedBuffer, FRAME_BYTES};
use undercroft_trace::recording::{RecordedFailure, RecordedOp, Row};

/// Words of the longest note.
pub(super) const NOTE_WORDS: usize = 5;
/// Offsets and lengths are in units of so many bytes, as a power of two.
const UNIT_BITS: u32 = 9;
const OFFSET_BITS: u32 = 40;
const LENGTH_BITS: u32 = 16;
/// Where the kind of a note stands in its second word.
const KIND_AT: u32 = 56;
const NARROW: u64 = 1;
const WIDE: u64 = 2;
const END: u64 = 3;
/// Added to a row's kind if it has no answer yet.
pub(super) const WAITS: u64 = 0x80 << KIND_AT;
const LATE: u64 = 1 << 8;

/// A request as it comes. Times are in nanoseconds since the recording began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) disk: u16,
    pub(super) client: u32,
    pub(super) op: RecordedOp,
    pub(super) offset_bytes: u64,
    pub(super) length_bytes: u64,
}

/// Notes a request that came `delta_ns` after `base_ns`, at word `at`; returns the word after it. Two words:
///
/// | bits | 0 to 31 | 32 to 47 | 48 to 60 | 61 to 63 | | 0 to 39 | 40 to 55 | 56 to 63 |
/// |---|---|---|---|---|---|---|---|---|
/// | | time | client | disk | operation | | offset | length | kind |
#[inline]
pub(super) fn put_row(buffer: &mut AlignedBuffer, at: usize, base_ns: u64, delta_ns: u64, r: &Asked) -> usize {
    let who = u64::from(r.disk) << 48 | (r.op as u64) << 61;
    let too_long = r.offset_bytes >> (UNIT_BITS + OFFSET_BITS) | r.length_bytes >> (UNIT_BITS + LENGTH_BITS);
    let uneven = (r.offset_bytes | r.length_bytes) & ((1 << UNIT_BITS) - 1);
    let words = buffer.words_mut();
    if too_long | uneven | u64::from(r.client >> 16) | delta_ns >> 32 != 0 {
        return put_wide(words, at, base_ns.wrapping_add(delta_ns), who, r);
    }
    if let Some([first, second]) = words.get_mut(at..at + 2) {
        *first = delta_ns | u64::from(r.client) << 32 | who;
        *second = r.offset_bytes >> UNIT_BITS | (r.length_bytes >> UNIT_BITS) << OFFSET_BITS | NARROW << KIND_AT;
    }
    at + 2
}

#[cold]
fn put_wide(words: &mut [u64; ALIGNED_WORDS], at: usize, time_ns: u64, who: u64, r: &Asked) -> usize {
    words[at] = who;
    words[at + 1] = WIDE << KIND_AT | u64::from(r.client);
    words[at + 2..at + 5].copy_from_slice(&[r.offset_bytes, r.length_bytes, time_ns]);
    at + 5
}

/// Says at word `at` how row `row` ended; returns the word after it.
pub(super) fn put_end(buffer: &mut AlignedBuffer, at: usize, row: u64, end: &End) -> usize {
    let kind = END << KIND_AT | end.failure.map_or(0, |f| f as u64 + 1) | end.latency_ns.map_or(0, |_| LATE);
    let found = end.found;
    let pair = |a: u32, b: u32| u64::from(a) | u64::from(b) << 32;
    let words =
        [row, kind, end.latency_ns.unwrap_or(0), pair(found.hits, found.ahead), pair(found.joined, found.missed)];
    buffer.words_mut()[at..at + NOTE_WORDS].copy_from_slice(&words);
    at + NOTE_WORDS
}

/// What a buffer says.
pub enum Note {
    /// A request; [`RecordedFailure::Unanswered`] if its answer is still to come.
    Row(Row),
    /// The answer, or a part of it, to the row of that number.
    End(u64, End),
}

/// The notes in `words`, whose times count from `base_ns`. Ends with an error at what is no note.
pub fn read(words: &[u64], base_ns: u64) -> impl Iterator<Item = Result<Note, Damaged>> {
    let mut rest = words;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let note = one(rest, base_ns);
        rest = note.as_ref().map_or(&[], |(_, length)| &rest[*length..]);
        Some(note.map(|(note, _)| note).ok_or(Damaged))
    })
}

/// Notes that were read back are not what was written.
#[derive(Debug, thiserror::Error)]
#[error("rows that were put aside have been damaged")]
pub struct Damaged;

#[inline]
fn one(words: &[u64], base_ns: u64) -> Option<(Note, usize)> {
    let (&[first, second], rest) = words.split_first_chunk::<2>()?;
    let mask = |bits: u32| (1u64 << bits) - 1;
    let kind = second >> KIND_AT;
    let mut row = Row {
        time_ns: base_ns.wrapping_add(first & mask(32)),
        disk: (first >> 48 & mask(13)) as u16,
        client: (first >> 32 & mask(16)) as u32,
        op: RecordedOp::Flush,
        offset_bytes: (second & mask(OFFSET_BITS)) << UNIT_BITS,
        length_bytes: (second >> OFFSET_BITS & mask(LENGTH_BITS)) << UNIT_BITS,
        hit_blocks: 0,
        ahead_blocks: 0,
        joined_blocks: 0,
        miss_blocks: 0,
        latency_ns: None,
        failure: None,
    };
    let length = match kind & 0x7f {
        NARROW => 2,
        WIDE => {
            let (&[offset_bytes, length_bytes, time_ns], _) = rest.split_first_chunk::<3>()?;
            (row.offset_bytes, row.length_bytes, row.time_ns) = (offset_bytes, length_bytes, time_ns);
            row.client = second as u32;
            5
        }
        END => {
            let (&[latency_ns, a, b], _) = rest.split_first_chunk::<3>()?;
            let failure = match (second & 0xff) as usize {
                0 => None,
                n => Some(*RecordedFailure::ALL.get(n - 1)?),
            };
            let found = Found { hits: a as u32, ahead: (a >> 32) as u32, joined: b as u32, missed: (b >> 32) as u32 };
            let latency_ns = (second & LATE != 0).then_some(latency_ns);
            return Some((Note::End(first, End { latency_ns, found, failure }), 5));
        }
        _ => return None,
    };
    row.op = *RecordedOp::ALL.get((first >> 61) as usize)?;
    if second & WAITS != 0 {
        row.failure = Some(RecordedFailure::Unanswered);
    } else if row.op == RecordedOp::Read {
        row.hit_blocks = row.blocks(FRAME_BYTES as u32).1 as u32;
    }
    Some((Note::Row(row), length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn asked() -> impl Strategy<Value = Asked> {
        // Mostly what fits in two words, and what only just does or does not.
        let small = |bits: u32| {
            prop_oneof![
                any::<u64>(),
                Just(0),
                (0..=bits).prop_map(|b| 1 << b),
                (0..=bits).prop_map(|b| (1u64 << b).wrapping_sub(512))
            ]
        };
        let op = prop::sample::select(RecordedOp::ALL.to_vec());
        let client = prop_oneof![0..70_000u32, any::<u32>()];
        (0..8192u16, client, op, small(60), small(40)).prop_map(|(disk, client, op, offset_bytes, length_bytes)| {
            Asked { disk, client, op, offset_bytes, length_bytes }
        })
    }

    fn end() -> impl Strategy<Value = End> {
        let failure = prop::option::of(prop::sample::select(RecordedFailure::ALL.to_vec()));
        let found = any::<(u32, u32, u32, u32)>();
        (any::<Option<u64>>(), found, failure).prop_map(|(latency_ns, (hits, ahead, joined, missed), failure)| End {
            latency_ns,
            found: Found { hits, ahead, joined, missed },
            failure,
        })
    }

    proptest! {
        #[test]
        fn what_is_noted_is_read(
            notes in prop::collection::vec((asked(), any::<u64>(), any::<bool>(), end(), any::<u64>()), 0..100),
            base_ns: u64,
        ) {
            let mut buffer = AlignedBuffer::default();
            let mut at = 0;
            for (asked, delta_ns, waits, end, row) in &notes {
                let second = at + 1;
                at = put_row(&mut buffer, at, base_ns, *delta_ns >> (row % 64), asked);
                if *waits {
                    buffer.words_mut()[second] |= WAITS;
                }
                at = put_end(&mut buffer, at, *row, end);
            }
            let mut said = read(&buffer.words()[..at], base_ns);
            for (asked, delta_ns, waits, end, row) in notes {
                let Some(Ok(Note::Row(r))) = said.next() else { panic!("a row") };
                prop_assert_eq!(r.time_ns, base_ns.wrapping_add(delta_ns >> (row % 64)));
                let what = (r.disk, r.client, r.op, r.offset_bytes, r.length_bytes);
                prop_assert_eq!(what, (asked.disk, asked.client, asked.op, asked.offset_bytes, asked.length_bytes));
                let hits =
                    if waits || asked.op != RecordedOp::Read { 0 } else { r.blocks(FRAME_BYTES as u32).1 as u32 };
                prop_assert_eq!((r.hit_blocks, r.miss_blocks, r.latency_ns), (hits, 0, None));
                prop_assert_eq!(r.failure, waits.then_some(RecordedFailure::Unanswered));
                let Some(Ok(Note::End(of, e))) = said.next() else { panic!("an end") };
                prop_assert_eq!((of, e), (row, end));
            }
            prop_assert!(said.next().is_none());
        }

        #[test]
        fn whatever_words_are_read_there_is_no_panic(words in prop::collection::vec(any::<u64>(), 0..200)) {
            read(&words, 0).for_each(drop);
        }
    }
}
