//! Samples of formats of lines.
//!
//! Owns the files and what is in them. Never reads one.

use super::{F, R, Sample, U, W, bytes, key};
use undercroft_trace::{Format, TraceRequest};

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

const S: u64 = 1_000_000_000;

pub fn all() -> Vec<Sample> {
    [arc_lis(), msr(), alibaba(), tencent(), spc(), fio(), blkparse(), qemu(), lackey(), csv()]
        .into_iter()
        .flatten()
        .collect()
}

fn arc_lis() -> Vec<Sample> {
    let arc = |start, count| TraceRequest { keys: count, ..key(0, 0, U, start, 0) };
    vec![Sample::text(Format::ArcLis, ARC_LIS, vec![arc(110_765, 64), arc(110_888, 1)], vec![])]
}

fn msr() -> Vec<Sample> {
    let filetime = |n: u64| n * 100;
    vec![Sample::text(
        Format::Msr,
        MSR,
        vec![
            bytes(filetime(128_166_372_003_061_629), 0, R, 7_014_609_920, 24_576),
            bytes(filetime(128_166_372_016_382_155), 0, W, 1_317_441_536, 8192),
            bytes(filetime(128_166_372_026_382_245), 1, R, 2_436_440_064, 4096),
        ],
        vec!["usr_0", "src1_1"],
    )]
}

fn alibaba() -> Vec<Sample> {
    vec![Sample::text(
        Format::Alibaba,
        ALIBABA,
        vec![
            bytes(1_577_808_144_360_767_000, 0, W, 8_792_731_648, 16_384),
            bytes(1_577_808_144_360_813_000, 1, R, 59_110_326_272, 360_448),
            bytes(1_577_808_144_361_000_000, 0, R, 8_792_731_648, 4096),
        ],
        vec!["419", "725"],
    )]
}

fn tencent() -> Vec<Sample> {
    vec![Sample::text(
        Format::Tencent,
        TENCENT,
        vec![
            bytes(1_538_323_200 * S, 0, R, 12_910_952 * 512, 128 * 512),
            bytes(1_538_323_200 * S, 1, W, 6_338_688 * 512, 4096),
            bytes(1_538_323_201 * S, 0, R, 1_904_106 * 512, 384 * 512),
        ],
        vec!["1063", "1627"],
    )]
}

fn spc() -> Vec<Sample> {
    vec![Sample::text(
        Format::Spc,
        SPC,
        vec![
            bytes(0, 0, W, 303_567 * 512, 3584),
            bytes(0, 1, W, 55_590 * 512, 3072),
            bytes(26_214_000, 0, R, 303_574 * 512, 3584),
        ],
        vec!["0", "1"],
    )]
}

fn fio() -> Vec<Sample> {
    vec![
        Sample::text(
            Format::Fio,
            FIO_2,
            vec![bytes(0, 0, R, 0, 4096), bytes(500_000, 0, W, 8192, 8192)],
            vec!["/dev/sdb"],
        ),
        Sample::text(
            Format::Fio,
            FIO_3,
            vec![bytes(325_000, 0, R, 61_440, 4096), bytes(2_123_000, 0, W, 491_520, 8192)],
            vec!["/tmp/fio.dat"],
        ),
    ]
}

fn blkparse() -> Vec<Sample> {
    vec![Sample::text(
        Format::Blkparse,
        BLKPARSE,
        vec![bytes(9_507_758, 0, W, 223_490 * 512, 56 * 512), bytes(1_000_000_001, 1, R, 4096, 4096)],
        vec!["8,0", "8,16"],
    )]
}

fn qemu() -> Vec<Sample> {
    vec![Sample::text(
        Format::Qemu,
        QEMU_LOG,
        vec![bytes(1_795_358_294_591_847_000, 0, R, 0, 8192), bytes(1_795_358_295_000_001_000, 0, W, 4096, 512)],
        vec!["0x5599cac49160"],
    )]
}

fn lackey() -> Vec<Sample> {
    vec![Sample::text(
        Format::Lackey,
        LACKEY,
        vec![
            bytes(0, 0, F, 0x0401_ab70, 3),
            bytes(0, 0, F, 0x0401_ab73, 5),
            bytes(0, 0, W, 0x1f_ff00_0688, 8),
            bytes(0, 0, R, 0x1f_ff00_0688, 4),
            bytes(0, 0, R, 0x0421_c7cc, 4),
            bytes(0, 0, W, 0x0421_c7cc, 4),
        ],
        vec![],
    )]
}

fn csv() -> Vec<Sample> {
    vec![Sample::text(
        Format::Csv,
        CSV,
        vec![bytes(5, 0, R, 0, 4096), bytes(6, 1, W, 8192, 512), bytes(7, 0, U, 4096, 1)],
        vec!["a", "b,c"],
    )]
}
