//! Where the blocks to be pinned come from: lists in files, and recordings.
//!
//! Owns the reading of them. Never pins a block. Invariant: what is of another disk is refused, not pinned.

use super::super::args::PinArgs;
use super::chosen::Chosen;
use crate::cli::Failure;
use crate::cli::meter::Meter;
use crate::cli::output::complain;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;
use std::time::Duration;
use undercroft_api::hot_set::{self, BLOCK_BYTES, BODY_BYTES_MAX};
use undercroft_api::ranges::RangeListBody;
use undercroft_trace::recording::{RecordedOp, Recording, Row};
use undercroft_units::Size;

fn open(file: &Path) -> Result<Box<dyn Read>, Failure> {
    if file == Path::new("-") {
        return Ok(Box::new(std::io::stdin().lock()));
    }
    let opened = File::open(file).map_err(|e| Failure::Said(format!("{} cannot be read: {e}", file.display())))?;
    Ok(Box::new(opened))
}

fn shown(file: &Path) -> String {
    if file == Path::new("-") { "standard input".to_string() } else { file.display().to_string() }
}

/// Blocks that `undercroft hot-set` or `undercroft pin --write` wrote.
///
/// # Errors
/// It cannot be read, is no such list, or is of a disk of another size.
pub fn of_blocks(file: &Path, size_bytes: u64, to: &mut Chosen) -> Result<(), Failure> {
    let mut text = Vec::new();
    let read = open(file)?.take(BODY_BYTES_MAX as u64 + 1).read_to_end(&mut text);
    read.map_err(|e| Failure::Said(format!("{} cannot be read: {e}", shown(file))))?;
    let list =
        hot_set::parse(&text).map_err(|e| Failure::Said(format!("{}: {}; {}", shown(file), e.error, e.remedy)))?;
    if list.size_bytes != size_bytes {
        return Err(Failure::Said(format!(
            "{} is of a disk of {} bytes, and this one has {size_bytes}; take the list of the same disk",
            shown(file),
            list.size_bytes
        )));
    }
    list.ranges.iter().for_each(|&(first, count)| to.add(first, first + count));
    Ok(())
}

/// Ranges that `undercroft ranges` printed: all lists that follow each other.
///
/// # Errors
/// It cannot be read, holds no such list, or one of another disk.
pub fn of_ranges(file: &Path, disk: &str, to: &mut Chosen) -> Result<(), Failure> {
    let lists = serde_json::Deserializer::from_reader(BufReader::new(open(file)?)).into_iter::<RangeListBody>();
    let mut any = false;
    for list in lists {
        let remedy = "give what `undercroft ranges` prints inside the guest";
        let list =
            list.map_err(|e| Failure::Said(format!("{} holds no list of ranges: {e}; {remedy}", shown(file))))?;
        if list.disk != disk {
            return Err(Failure::Said(format!(
                "{} is of disk \"{}\", not of \"{disk}\"; have `undercroft ranges` say --disk {disk}",
                shown(file),
                list.disk
            )));
        }
        any = true;
        for range in &list.ranges {
            let end = range.offset_bytes.saturating_add(range.length_bytes);
            to.add(range.offset_bytes / BLOCK_BYTES, end.div_ceil(BLOCK_BYTES));
        }
    }
    match any {
        true => Ok(()),
        false => Err(Failure::Said(format!("{} holds no list of ranges: it is empty", shown(file)))),
    }
}

/// Whether a read counts.
type Counts = fn(&Row) -> bool;

/// Which blocks of a recording come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Those that were read first.
    First,
    /// Those that were read most often: so many, each read once or more.
    MostRead(u64),
    /// Those of which most reads had to go to the image.
    MostMissed(u64),
}

impl Order {
    /// What was asked for.
    pub fn of(args: &PinArgs) -> Self {
        match (args.most_read, args.most_missed) {
            (Some(most), _) => Self::MostRead(most),
            (None, Some(most)) => Self::MostMissed(most),
            (None, None) => Self::First,
        }
    }

    /// How many blocks at most, if they are counted; and whether a read counts.
    fn counts(self) -> Option<(u64, Counts)> {
        match self {
            Self::First => None,
            Self::MostRead(most) => Some((most, |_| true)),
            // A read of several blocks tells how many of them missed, not which.
            Self::MostMissed(most) => Some((most, |row| row.miss_blocks > 0)),
        }
    }
}

/// Blocks that reads of a recording asked for, of its first so many seconds, or all.
///
/// # Errors
/// It cannot be read, or has nothing of the disk.
pub fn of_recording(
    file: &Path,
    disk: &str,
    first: Option<Duration>,
    order: Order,
    to: &mut Chosen,
) -> Result<(), Failure> {
    let recording =
        Recording::open(file).map_err(|e| Failure::Said(format!("{e}; give what `undercroft record` writes")))?;
    blocks_read(recording, &shown(file), disk, first, order, to)
}

/// The same of one that is open.
///
/// # Errors
/// It cannot be read, or has nothing of the disk.
pub fn blocks_read(
    mut recording: Recording,
    name: &str,
    disk: &str,
    first: Option<Duration>,
    order: Order,
    to: &mut Chosen,
) -> Result<(), Failure> {
    let header = recording.header().clone();
    let Some(number) = header.disks.iter().position(|d| d.name == disk) else {
        let known: Vec<_> = header.disks.iter().map(|d| format!("\"{}\"", d.name)).collect();
        let known = if known.is_empty() { "no disk".to_string() } else { known.join(", ") };
        return Err(Failure::Said(format!("{name} has nothing of disk \"{disk}\": it is of {known}")));
    };
    if header.sample > 1 {
        complain(&format!(
            "undercroft: warning: {name} has only one of {} blocks; record without --sample for all of them",
            header.sample
        ));
    }
    if recording.trailer().dropped > 0 {
        let dropped = recording.trailer().dropped;
        complain(&format!("undercroft: warning: {dropped} requests are not in {name}: there was no place for them"));
    }
    let until = first.map_or(u64::MAX, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX));
    let mut counted: HashMap<u64, u64> = HashMap::new();
    let mut meter = Meter::of_requests(recording.trailer().rows).named(format!("reading {name}"), "requests");
    while let Some(rows) = recording.next_group().map_err(|e| Failure::Said(e.to_string()))? {
        meter.read(rows.len() as u64);
        let of_disk = rows.iter().filter(|r| usize::from(r.disk) == number && r.op == RecordedOp::Read);
        for row in of_disk.filter(|r| r.failure.is_none() && r.time_ns <= until && r.length_bytes > 0) {
            let end = row.offset_bytes.saturating_add(row.length_bytes);
            let (first, end) = (row.offset_bytes / BLOCK_BYTES, end.div_ceil(BLOCK_BYTES));
            match order.counts() {
                None => to.add(first, end),
                Some((_, counts)) if !counts(row) => {}
                Some(_) => (first..end).for_each(|block| *counted.entry(block).or_default() += 1),
            }
        }
    }
    if let Some((most, _)) = order.counts() {
        most_counted(counted, most).for_each(|block| to.add(block, block + 1));
    }
    Ok(())
}

/// The blocks that were counted most often, so many at most: of those that were equally often, the lower ones.
fn most_counted(counted: HashMap<u64, u64>, most: u64) -> impl Iterator<Item = u64> {
    let mut all: Vec<(u64, u64)> = counted.into_iter().collect();
    all.sort_unstable_by_key(|&(block, count)| (Reverse(count), block));
    all.truncate(usize::try_from(most).unwrap_or(usize::MAX));
    all.into_iter().map(|(block, _)| block)
}

/// How many bytes a list has, in words.
pub fn amount(bytes: u64, ranges: usize) -> String {
    let what = if ranges == 1 { "range" } else { "ranges" };
    format!("{} in {ranges} {what}", Size(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use undercroft_trace::recording::{RecordedDisk, RecordingHeader, RecordingWriter, Trailer, VERSION};

    const SIZE: u64 = 1000 * BLOCK_BYTES;

    /// A recording of reads: when, the first block, how many, and how many of them missed.
    fn recorded(reads: &[(u64, u64, u64, u32)]) -> File {
        let disk = RecordedDisk { name: "d".into(), size_bytes: SIZE, ..RecordedDisk::default() };
        let header = RecordingHeader {
            format: VERSION,
            version: "1.0.0".into(),
            block_bytes: 4096,
            sample: 1,
            disks: vec![disk],
            ..RecordingHeader::default()
        };
        let row = |&(time_ns, first, count, miss_blocks): &(u64, u64, u64, u32)| Row {
            time_ns,
            disk: 0,
            client: 0,
            op: RecordedOp::Read,
            offset_bytes: first * BLOCK_BYTES,
            length_bytes: count * BLOCK_BYTES,
            hit_blocks: count as u32 - miss_blocks,
            ahead_blocks: 0,
            joined_blocks: 0,
            miss_blocks,
            latency_ns: None,
            failure: None,
        };
        let rows: Vec<Row> = reads.iter().map(row).collect();
        let file = tempfile::tempfile().unwrap();
        let mut writer = RecordingWriter::new(file.try_clone().unwrap(), header).unwrap();
        writer.write(&rows).unwrap();
        writer.finish(Trailer::default()).unwrap();
        file
    }

    fn chosen(file: &File, first: Option<Duration>, order: Order) -> Vec<(u64, u64)> {
        let recording = Recording::of_file(file.try_clone().unwrap(), "it").unwrap();
        let mut chosen = Chosen::new(SIZE);
        blocks_read(recording, "it", "d", first, order, &mut chosen).unwrap();
        chosen.list().ranges
    }

    #[test]
    fn blocks_of_a_recording_come_as_they_were_read_or_by_how_often() {
        let second = 1_000_000_000;
        let file = recorded(&[(0, 50, 2, 2), (second, 50, 2, 0), (3 * second, 7, 1, 1), (4 * second, 7, 1, 1)]);
        let first = |n: u64| Some(Duration::from_secs(n));
        assert_eq!(chosen(&file, None, Order::First), [(50, 2), (7, 1)]);
        assert_eq!(chosen(&file, first(2), Order::First), [(50, 2)]);
        assert_eq!(chosen(&file, first(3), Order::First), [(50, 2), (7, 1)], "its last moment is of it");
        // Equally often: the lower one; then those of which fewer reads missed.
        assert_eq!(chosen(&file, None, Order::MostRead(2)), [(7, 1), (50, 1)]);
        assert_eq!(chosen(&file, None, Order::MostMissed(9)), [(7, 1), (50, 1), (51, 1)]);
        assert_eq!(chosen(&file, None, Order::MostMissed(1)), [(7, 1)]);
        assert_eq!(chosen(&file, first(2), Order::MostMissed(1)), [(50, 1)]);
    }
}
