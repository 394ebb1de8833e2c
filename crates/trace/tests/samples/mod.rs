//! A small sound file of each format, as its documentation lays it out, and the requests that it holds.
//!
//! Owns the bytes. Where a tool was at hand (fio 3.33, QEMU 7.2, Valgrind 3.19), the lines are its own.
#![allow(dead_code)]

use undercroft_trace::{Format, Kind, Request};

pub const R: Kind = Kind::Read;
pub const W: Kind = Kind::Write;
pub const U: Kind = Kind::Unknown;

pub fn bytes(time_ns: u64, tenant: u16, kind: Kind, address: u64, bytes: u64) -> Request {
    Request { time_ns, address, bytes, keys: 1, tenant, kind }
}

pub fn key(time_ns: u64, tenant: u16, kind: Kind, address: u64, size: u64) -> Request {
    bytes(time_ns, tenant, kind, address, size)
}

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

pub const ARC_LIS: &[u8] = b"110765 64 0 0\n110888 1 0 1\n";
pub const MSR: &[u8] = b"128166372003061629,usr,0,Read,7014609920,24576,41286\n\
128166372016382155,usr,0,Write,1317441536,8192,1963\n\
128166372026382245,src1,1,Read,2436440064,4096,1835\n";
pub const ALIBABA: &[u8] = b"419,W,8792731648,16384,1577808144360767\n\
725,R,59110326272,360448,1577808144360813\n\
419,R,8792731648,4096,1577808144361000\n";
pub const TENCENT: &[u8] =
    b"1538323200,12910952,128,0,1063\n1538323200,6338688,8,1,1627\n1538323201,1904106,384,0,1063\n";
pub const SPC: &[u8] = b"0,303567,3584,w,0.000000\n1,55590,3072,w,0.000000\n0,303574,3584,R,0.026214\n";
pub const FIO_2: &[u8] =
    b"fio version 2 iolog\n/dev/sdb add\n/dev/sdb open\n/dev/sdb read 0 4096\n/dev/sdb wait 500 0\n\
/dev/sdb write 8192 8192\n/dev/sdb sync 0 0\n/dev/sdb close\n";
pub const FIO_3: &[u8] =
    b"fio version 3 iolog\n34 /tmp/fio.dat add\n318 /tmp/fio.dat open\n325 /tmp/fio.dat read 61440 4096\n\
2123 /tmp/fio.dat write 491520 8192\n2906 /tmp/fio.dat close\n";
pub const BLKPARSE: &[u8] = b"  8,0    3        1     0.000000000   697  G   W 223490 + 8 [kjournald]\n\
  8,0    3       11     0.009507758   697  Q   W 223490 + 56 [kjournald]\n\
  8,0    3       12     0.009508000   697  D   W 223490 + 56 [kjournald]\n\
  8,16   1       13     1.000000001   698  Q  RA 8 + 8 [cat]\n\
  8,16   1       14     1.000000002   698  Q FWS [cat]\n\
  8,16   1       15     1.000000003   698  Q   D 64 + 8 [fstrim]\n\
  8,0    3       16     2.500000000     0  C   W 223490 + 56 [0]\n\
CPU3 (8,0):\n Reads Queued:           0,        0KiB\t Writes Queued:           7,       28KiB\n\
Total (8,0):\n Reads Queued:           0,        0KiB\t Writes Queued:           7,       28KiB\n";
pub const QEMU_LOG: &[u8] =
    b"15648@1795358294.591847:blk_co_preadv blk 0x5599cac49160 bs 0x5599cac494b0 offset 0 bytes 8192 flags 0x0\n\
15648@1795358294.591900:bdrv_co_preadv_part bs 0x5599cac494b0 offset 0 bytes 8192 flags 0x0\n\
15648@1795358295.000001:blk_co_pwritev blk 0x5599cac49160 bs 0x5599cac494b0 offset 4096 bytes 512 flags 0x0\n";
pub const LACKEY: &[u8] = b"==10418== Lackey, an example Valgrind tool\n==10418== Command: /bin/true\n==10418== \n\
I  0401ab70,3\nI  0401ab73,5\n S 1fff000688,8\n L 1fff000688,4\n M 0421c7cc,4\n==10418== \n";
pub const CSV: &[u8] =
    b"time_ns,tenant,op,offset_bytes,length_bytes\n5,a,read,0,4096\n6,\"b,c\",write,8192,512\n7,a,unknown,4096,1\n";

fn raw<const N: usize>(parts: [Vec<u8>; N]) -> Vec<u8> {
    parts.concat()
}

/// A format, a small file of it, the requests in it, and the names of its tenants.
pub type Sample = (Format, Vec<u8>, Vec<Request>, Vec<&'static str>);

/// A file of each format that is read as a stream, and what it holds.
pub fn all() -> Vec<Sample> {
    let filetime = |n: u64| n * 100;
    let s = 1_000_000_000u64;
    let arc = |start, count| Request { keys: count, ..key(0, 0, U, start, 0) };
    let queue = |kind: u32| kind << 16 | 1;
    vec![
        (
            Format::Vscsi,
            raw([vscsi_1(0x28, 1000, 512, 5), vscsi_1(0x2A, 7, 8192, 9), vscsi_1(0x12, 8, 0, 10)]),
            vec![bytes(5000, 0, R, 512_000, 512), bytes(9000, 0, W, 3584, 8192), bytes(10_000, 0, U, 4096, 0)],
            vec![],
        ),
        (
            Format::Vscsi,
            raw([vscsi_2(0x28, 1000, 512, 5), vscsi_2(0x2A, 7, 8192, 9)]),
            vec![bytes(5000, 0, R, 512_000, 512), bytes(9000, 0, W, 3584, 8192)],
            vec![],
        ),
        (Format::ArcLis, ARC_LIS.to_vec(), vec![arc(110_765, 64), arc(110_888, 1)], vec![]),
        (
            Format::U32Le,
            [7u32, u32::MAX].iter().flat_map(|n| n.to_le_bytes()).collect(),
            vec![key(0, 0, U, 7, 0), key(0, 0, U, u64::from(u32::MAX), 0)],
            vec![],
        ),
        (
            Format::U64Le,
            [7u64, u64::MAX].iter().flat_map(|n| n.to_le_bytes()).collect(),
            vec![key(0, 0, U, 7, 0), key(0, 0, U, u64::MAX, 0)],
            vec![],
        ),
        (
            Format::OracleGeneral,
            raw([
                oracle_general(0, 1, 4096, 2),
                oracle_general(3, u64::MAX, 1, -1),
                oracle_general(4, 1, 4096, i64::MAX),
            ]),
            vec![key(0, 0, U, 1, 4096), key(3 * s, 0, U, u64::MAX, 1), key(4 * s, 0, U, 1, 4096)],
            vec![],
        ),
        (
            Format::Lcs,
            raw([lcs_header(1, 2), oracle_general(1, 5, 10, -1), oracle_general(2, 6, 11, -1)]),
            vec![key(s, 0, U, 5, 10), key(2 * s, 0, U, 6, 11)],
            vec![],
        ),
        (
            Format::Lcs,
            raw([lcs_header(2, 2), lcs(2, 1, 5, 10, 12, 0xABCDEF), lcs(2, 2, 6, 11, 13, 7)]),
            vec![key(s, 0, R, 5, 10), key(2 * s, 1, W, 6, 11)],
            vec!["11259375", "7"],
        ),
        (
            Format::Lcs,
            raw([lcs_header(3, 2), lcs(3, 1, 5, 1 << 40, 1, 0), lcs(3, 2, 6, 11, 9, 0)]),
            vec![key(s, 0, R, 5, 1 << 40), key(2 * s, 0, U, 6, 11)],
            vec!["0"],
        ),
        (
            Format::Lcs,
            raw([lcs_header(8, 2), lcs(8, 1, 5, 10, 2, 0), lcs(8, 2, 6, 11, 3, 0)]),
            vec![key(s, 0, R, 5, 10), key(2 * s, 0, W, 6, 11)],
            vec!["0"],
        ),
        (
            Format::Msr,
            MSR.to_vec(),
            vec![
                bytes(filetime(128_166_372_003_061_629), 0, R, 7_014_609_920, 24_576),
                bytes(filetime(128_166_372_016_382_155), 0, W, 1_317_441_536, 8192),
                bytes(filetime(128_166_372_026_382_245), 1, R, 2_436_440_064, 4096),
            ],
            vec!["usr_0", "src1_1"],
        ),
        (
            Format::Alibaba,
            ALIBABA.to_vec(),
            vec![
                bytes(1_577_808_144_360_767_000, 0, W, 8_792_731_648, 16_384),
                bytes(1_577_808_144_360_813_000, 1, R, 59_110_326_272, 360_448),
                bytes(1_577_808_144_361_000_000, 0, R, 8_792_731_648, 4096),
            ],
            vec!["419", "725"],
        ),
        (
            Format::Tencent,
            TENCENT.to_vec(),
            vec![
                bytes(1_538_323_200 * s, 0, R, 12_910_952 * 512, 128 * 512),
                bytes(1_538_323_200 * s, 1, W, 6_338_688 * 512, 4096),
                bytes(1_538_323_201 * s, 0, R, 1_904_106 * 512, 384 * 512),
            ],
            vec!["1063", "1627"],
        ),
        (
            Format::Spc,
            SPC.to_vec(),
            vec![
                bytes(0, 0, W, 303_567 * 512, 3584),
                bytes(0, 1, W, 55_590 * 512, 3072),
                bytes(26_214_000, 0, R, 303_574 * 512, 3584),
            ],
            vec!["0", "1"],
        ),
        (
            Format::Fio,
            FIO_2.to_vec(),
            vec![bytes(0, 0, R, 0, 4096), bytes(500_000, 0, W, 8192, 8192)],
            vec!["/dev/sdb"],
        ),
        (
            Format::Fio,
            FIO_3.to_vec(),
            vec![bytes(325_000, 0, R, 61_440, 4096), bytes(2_123_000, 0, W, 491_520, 8192)],
            vec!["/tmp/fio.dat"],
        ),
        (
            Format::Blkparse,
            BLKPARSE.to_vec(),
            vec![bytes(9_507_758, 0, W, 223_490 * 512, 56 * 512), bytes(1_000_000_001, 1, R, 4096, 4096)],
            vec!["8,0", "8,16"],
        ),
        (
            Format::Blktrace,
            raw([
                // a process's name (notify), a read and a write that are queued, an issue, a discard, a flush
                blktrace(1, 0, 0, 1 << 26, 0, b"kjournald\0"),
                blktrace(5, 8, 4096, queue(1), 8 << 20, b""),
                blktrace(6, 223_490, 28_672, queue(2) | 1 << 8, 8 << 20 | 16, b"12345678"),
                blktrace(7, 8, 4096, 1 << 16 | 7, 8 << 20, b""),
                blktrace(8, 64, 4096, queue(2) | 1 << 29, 8 << 20, b""),
                blktrace(9, 0, 0, queue(2), 8 << 20, b""),
            ]),
            vec![bytes(5, 0, R, 4096, 4096), bytes(6, 1, W, 223_490 * 512, 28_672)],
            vec!["8,0", "8,16"],
        ),
        (
            Format::Qemu,
            QEMU_LOG.to_vec(),
            vec![bytes(1_795_358_294_591_847_000, 0, R, 0, 8192), bytes(1_795_358_295_000_001_000, 0, W, 4096, 512)],
            vec!["0x5599cac49160"],
        ),
        (
            Format::Lackey,
            LACKEY.to_vec(),
            vec![
                bytes(0, 0, R, 0x0401_ab70, 3),
                bytes(0, 0, R, 0x0401_ab73, 5),
                bytes(0, 0, W, 0x1f_ff00_0688, 8),
                bytes(0, 0, R, 0x1f_ff00_0688, 4),
                bytes(0, 0, R, 0x0421_c7cc, 4),
                bytes(0, 0, W, 0x0421_c7cc, 4),
            ],
            vec![],
        ),
        (
            Format::Csv,
            CSV.to_vec(),
            vec![bytes(5, 0, R, 0, 4096), bytes(6, 1, W, 8192, 512), bytes(7, 0, U, 4096, 1)],
            vec!["a", "b,c"],
        ),
    ]
}
