//! What is written is read again, and nothing else is.

use super::*;

const STORE: StoreId = StoreId([3; 16]);

fn summary() -> Summary {
    let entries = (0..500).map(|n| (n * 7, n as u32)).collect();
    Summary { segment: 5, owner: 2, identity: Identity([9; 64]), sequence: 77, generation: 8, entries }
}

fn table() -> Table {
    let record = |number| Record {
        number,
        identity: Identity([number as u8; 64]),
        clean: (number % 2 == 0).then_some(Stamp([4; 64])),
        blocks: 1000,
        generation: 5,
        oldest: 6,
        digest: 7,
    };
    let records = (0..20).map(record).collect();
    Table { sequence: 3, next_segment: 9, next_generation: 7, boot: [1; 16], orderly: true, records }
}

#[test]
fn what_is_written_is_read() {
    let sums = Sums::new(STORE);
    let header = Header { store: STORE, region_bytes: 1 << 30, segment_bytes: 2 << 20 };
    assert_eq!(Header::read(&header.write(&sums)), Ok(header));
    assert_eq!(Table::read(&table().write(STORE, &sums), STORE, &sums).unwrap().0, table());
    assert_eq!(Summary::read(&summary().write(STORE, &sums), STORE, &sums).unwrap().0, summary());
}

#[test]
fn any_byte_that_is_another_makes_it_unreadable() {
    let sums = Sums::new(STORE);
    let header = Header { store: STORE, region_bytes: 1 << 30, segment_bytes: 2 << 20 }.write(&sums);
    let (table, summary) = (table().write(STORE, &sums), summary().write(STORE, &sums));
    for at in 0..8192 {
        let damaged = |bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            bytes[at] ^= 1 << (at % 8);
            bytes
        };
        if at < BLOCK {
            assert!(Header::read(&damaged(&header)).is_err(), "header, byte {at}");
        }
        // What fills the last block up is not looked at.
        if at < 21 * RECORD {
            assert_eq!(Table::read(&damaged(&table), STORE, &sums), None, "table, byte {at}");
        }
        if at < SUMMARY_HEAD + 500 * ENTRY {
            assert_eq!(Summary::read(&damaged(&summary), STORE, &sums), None, "summary, byte {at}");
        }
    }
    for cut in [0, 7, 8, 20, 40, 100, 191, 4096] {
        assert_eq!(Summary::read(&summary[..cut], STORE, &sums), None);
        assert_eq!(Table::read(&table[..cut], STORE, &sums), None);
        assert!(cut == 4096 || Header::read(&header[..cut]).is_err());
    }
    assert_eq!(Summary::read(&summary, StoreId([4; 16]), &Sums::new(StoreId([4; 16]))), None, "another store");
}

/// A store counts on from what it reads. Found by fuzzing: recovery added to the highest number that there is.
#[test]
fn numbers_that_nothing_can_be_added_to_are_broken() {
    let sums = Sums::new(STORE);
    for end in [u64::MAX, NUMBERS_END] {
        let record = |change: fn(&mut Record, u64)| {
            let mut table = table();
            change(&mut table.records[3], end);
            table
        };
        let tables = [
            Table { sequence: end, ..table() },
            Table { next_segment: end, ..table() },
            Table { next_generation: end, ..table() },
            record(|r, end| r.generation = end),
            record(|r, end| r.oldest = end),
        ];
        for table in tables {
            assert_eq!(Table::read(&table.write(STORE, &sums), STORE, &sums), None, "{table:?}");
        }
        for summary in [Summary { sequence: end, ..summary() }, Summary { generation: end, ..summary() }] {
            assert_eq!(Summary::read(&summary.write(STORE, &sums), STORE, &sums), None, "{summary:?}");
        }
    }
    let last = Summary { sequence: NUMBERS_END - 1, ..summary() };
    assert!(Summary::read(&last.write(STORE, &sums), STORE, &sums).is_some());
}

#[test]
fn another_version_is_named() {
    let sums = Sums::new(STORE);
    let mut header = Header { store: STORE, region_bytes: 1 << 30, segment_bytes: 2 << 20 }.write(&sums);
    header[16] = 9;
    assert_eq!(Header::read(&header), Err(NoHeader::Version(9)));
}

#[test]
fn summaries_have_room_for_all_blocks_of_a_segment() {
    let sums = Sums::new(STORE);
    for shift in 18..=24 {
        let layout = Layout::new(1 << 30, 1 << shift).unwrap();
        let entries = vec![(1, 1); layout.data_blocks() as usize];
        let bytes = Summary { entries, ..summary() }.write(STORE, &sums);
        assert!(bytes.len() <= layout.summary_blocks as usize * BLOCK);
        assert!(u64::from(layout.segments) << shift <= (1 << 30) - SEGMENTS_AT);
    }
    assert_eq!(Layout::new(1 << 20, 1 << 18), None, "three segments are too few");
    assert_eq!(Layout::new(1 << 30, 3 << 18), None);
    assert_eq!(Layout::new(1 << 60, 1 << 21), None);
}
