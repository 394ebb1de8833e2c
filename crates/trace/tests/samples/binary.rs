//! Samples of formats of binary records, and how such records are made.
//!
//! Owns the layout of each, as its documentation has it. Never reads one.

use super::{F, R, Sample, U, W, bytes, key};
use undercroft_trace::Format;

pub fn vscsi_1(command: u16, block: u64, bytes: u32, time_us: u64) -> Vec<u8> {
    let mut record = vec![];
    record.extend(7u32.to_le_bytes());
    record.extend(bytes.to_le_bytes());
    record.extend(1u32.to_le_bytes());
    record.extend(command.to_le_bytes());
    record.extend(0x0100u16.to_le_bytes());
    record.extend(block.to_le_bytes());
    record.extend(time_us.to_le_bytes());
    record
}

pub fn vscsi_2(command: u16, block: u64, bytes: u32, time_us: u64) -> Vec<u8> {
    let mut record = vec![];
    record.extend(command.to_le_bytes());
    record.extend(0x0200u16.to_le_bytes());
    record.extend(7u32.to_le_bytes());
    record.extend(bytes.to_le_bytes());
    record.extend(1u32.to_le_bytes());
    record.extend(block.to_le_bytes());
    record.extend(time_us.to_le_bytes());
    record.extend(123u64.to_le_bytes());
    record
}

pub fn oracle_general(seconds: u32, key: u64, size: u32, next: i64) -> Vec<u8> {
    let mut record = seconds.to_le_bytes().to_vec();
    record.extend(key.to_le_bytes());
    record.extend(size.to_le_bytes());
    record.extend(next.to_le_bytes());
    record
}

/// libCacheSim's header (libCacheSim/traceReader/customizedReader/lcs.h): start_magic, version, 8000 bytes of
/// statistics that begin with their own version and the number of requests, 21 unused numbers, end_magic.
pub fn lcs_header(version: u64, requests: u64) -> Vec<u8> {
    let mut header: Vec<u8> =
        [0x1234_5678_9abc_def0, version, 1, requests].iter().flat_map(|n: &u64| n.to_le_bytes()).collect();
    header.resize(16 + 8000 + 21 * 8, 0);
    header.extend(0x1234_5678_9abc_def0u64.to_le_bytes());
    assert_eq!(header.len(), 8192);
    header
}

/// A record of version 2 (28 bytes) or, with features, 3 to 8 (36 bytes and more).
pub fn lcs(version: u64, seconds: u32, key: u64, size: u64, op: u8, tenant: u32) -> Vec<u8> {
    let mut record = seconds.to_le_bytes().to_vec();
    record.extend(key.to_le_bytes());
    match version {
        2 => record.extend((size as u32).to_le_bytes()),
        _ => record.extend(size.to_le_bytes()),
    }
    record.extend((u32::from(op) | tenant << 8).to_le_bytes());
    if version > 2 {
        record.extend(3600u32.to_le_bytes());
    }
    record.extend((-1i64).to_le_bytes());
    let features = [0, 0, 0, 0, 1, 2, 4, 8, 16][version as usize];
    record.extend((0..features).flat_map(|n: u32| n.to_le_bytes()));
    record
}

/// linux/blktrace_api.h's blk_io_trace, with `pdu` after it.
pub fn blktrace(time_ns: u64, sector: u64, bytes: u32, action: u32, device: u32, pdu: &[u8]) -> Vec<u8> {
    let mut record = 0x6561_7407u32.to_le_bytes().to_vec();
    record.extend(1u32.to_le_bytes());
    record.extend(time_ns.to_le_bytes());
    record.extend(sector.to_le_bytes());
    record.extend(bytes.to_le_bytes());
    record.extend(action.to_le_bytes());
    record.extend(697u32.to_le_bytes());
    record.extend(device.to_le_bytes());
    record.extend(3u32.to_le_bytes());
    record.extend(0u16.to_le_bytes());
    record.extend((pdu.len() as u16).to_le_bytes());
    assert_eq!(record.len(), 48);
    record.extend(pdu);
    record
}

const S: u64 = 1_000_000_000;

pub fn all() -> Vec<Sample> {
    [vscsi(), u32le(), u64le(), oracle(), lcs_files(), blktrace_file(), memory()].into_iter().flatten().collect()
}

fn vscsi() -> Vec<Sample> {
    vec![
        Sample::binary(
            Format::Vscsi,
            &[vscsi_1(0x28, 1000, 512, 5), vscsi_1(0x2A, 7, 8192, 9), vscsi_1(0x12, 8, 0, 10)],
            vec![bytes(5000, 0, R, 512_000, 512), bytes(9000, 0, W, 3584, 8192), bytes(10_000, 0, U, 4096, 0)],
            vec![],
        ),
        Sample::binary(
            Format::Vscsi,
            &[vscsi_2(0x28, 1000, 512, 5), vscsi_2(0x2A, 7, 8192, 9)],
            vec![bytes(5000, 0, R, 512_000, 512), bytes(9000, 0, W, 3584, 8192)],
            vec![],
        ),
    ]
}

fn u32le() -> Vec<Sample> {
    vec![Sample {
        recognised: false,
        ..Sample::binary(
            Format::U32Le,
            &[7u32, u32::MAX].map(|n| n.to_le_bytes().to_vec()),
            vec![key(0, 0, U, 7, 0), key(0, 0, U, u64::from(u32::MAX), 0)],
            vec![],
        )
    }]
}

fn u64le() -> Vec<Sample> {
    vec![Sample {
        recognised: false,
        ..Sample::binary(
            Format::U64Le,
            &[7u64, u64::MAX].map(|n| n.to_le_bytes().to_vec()),
            vec![key(0, 0, U, 7, 0), key(0, 0, U, u64::MAX, 0)],
            vec![],
        )
    }]
}

fn memory() -> Vec<Sample> {
    let record = |kind: u64, bytes: u64, address: u64| (kind << 56 | bytes << 48 | address).to_le_bytes().to_vec();
    vec![Sample {
        recognised: false,
        ..Sample::binary(
            Format::Memory,
            &[record(4, 3, 0x0401_ab70), record(1, 8, (1 << 48) - 8), record(2, 255, 64), record(3, 4, 0x0421_c7cc)],
            vec![
                bytes(0, 0, F, 0x0401_ab70, 3),
                bytes(0, 0, R, (1 << 48) - 8, 8),
                bytes(0, 0, W, 64, 255),
                bytes(0, 0, R, 0x0421_c7cc, 4),
                bytes(0, 0, W, 0x0421_c7cc, 4),
            ],
            vec![],
        )
    }]
}

fn oracle() -> Vec<Sample> {
    vec![Sample::binary(
        Format::OracleGeneral,
        &[oracle_general(0, 1, 4096, 2), oracle_general(3, u64::MAX, 1, -1), oracle_general(4, 1, 4096, i64::MAX)],
        vec![key(0, 0, U, 1, 4096), key(3 * S, 0, U, u64::MAX, 1), key(4 * S, 0, U, 1, 4096)],
        vec![],
    )]
}

/// Of the statistics in the header, the last bytes are as good as all.
fn lcs_files() -> Vec<Sample> {
    let all = vec![
        Sample::binary(
            Format::Lcs,
            &[lcs_header(1, 2), oracle_general(1, 5, 10, -1), oracle_general(2, 6, 11, -1)],
            vec![key(S, 0, U, 5, 10), key(2 * S, 0, U, 6, 11)],
            vec![],
        ),
        Sample::binary(
            Format::Lcs,
            &[lcs_header(2, 2), lcs(2, 1, 5, 10, 12, 0xABCDEF), lcs(2, 2, 6, 11, 13, 7)],
            vec![key(S, 0, R, 5, 10), key(2 * S, 1, W, 6, 11)],
            vec!["11259375", "7"],
        ),
        Sample::binary(
            Format::Lcs,
            &[lcs_header(3, 2), lcs(3, 1, 5, 1 << 40, 1, 0), lcs(3, 2, 6, 11, 9, 0)],
            vec![key(S, 0, R, 5, 1 << 40), key(2 * S, 0, U, 6, 11)],
            vec!["0"],
        ),
        Sample::binary(
            Format::Lcs,
            &[lcs_header(8, 2), lcs(8, 1, 5, 10, 2, 0), lcs(8, 2, 6, 11, 3, 0)],
            vec![key(S, 0, R, 5, 10), key(2 * S, 0, W, 6, 11)],
            vec!["0"],
        ),
    ];
    all.into_iter().map(|sample| Sample { dull: 8150, ..sample }).collect()
}

fn blktrace_file() -> Vec<Sample> {
    let queue = |kind: u32| kind << 16 | 1;
    vec![Sample::binary(
        Format::Blktrace,
        &[
            // a process's name (notify), a read and a write that are queued, an issue, a discard, a flush
            blktrace(1, 0, 0, 1 << 26, 0, b"kjournald\0"),
            blktrace(5, 8, 4096, queue(1), 8 << 20, b""),
            blktrace(6, 223_490, 28_672, queue(2) | 1 << 8, 8 << 20 | 16, b"12345678"),
            blktrace(7, 8, 4096, 1 << 16 | 7, 8 << 20, b""),
            blktrace(8, 64, 4096, queue(2) | 1 << 29, 8 << 20, b""),
            blktrace(9, 0, 0, queue(2), 8 << 20, b""),
        ],
        vec![bytes(5, 0, R, 4096, 4096), bytes(6, 1, W, 223_490 * 512, 28_672)],
        vec!["8,0", "8,16"],
    )]
}
