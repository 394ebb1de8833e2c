//! What the first bytes of a trace look like.
//!
//! Owns the guesses. Never guesses raw numbers: every file could be some. Invariant: no bytes panic here.

use super::csv_columns::{BOM, is_names};
use super::fields::{decimal, fields, fixed_point, hexadecimal, words};
use super::{Format, blktrace, lackey, lcs, qemu, u32_at, u64_at, vscsi};

/// Records that must make sense together for a format without a magic number.
const RECORDS: usize = 8;

/// Formats that say what they are.
pub(super) fn magic(first: &[u8]) -> Option<Format> {
    if first.starts_with(&crate::recording::MAGIC) {
        return Some(Format::Recording);
    }
    if first.starts_with(b"fio version ") {
        return Some(Format::Fio);
    }
    if first.starts_with(&lcs::MAGIC.to_le_bytes()) {
        return Some(Format::Lcs);
    }
    first.starts_with(&blktrace::MAGIC.to_le_bytes()).then_some(Format::Blktrace)
}

/// What they look like, if like anything.
pub(super) fn sniff(first: &[u8]) -> Option<Format> {
    let first = first.strip_prefix(BOM).unwrap_or(first);
    if let Some(found) = magic(first) {
        return Some(found);
    }
    let is_text = |c: &u8| matches!(c, b'\t' | b'\n' | b'\r' | b' '..=b'~' | 0x80..);
    if !first.is_empty() && first.iter().all(is_text) {
        // the last line may be cut
        let whole = first.iter().rposition(|&c| c == b'\n').map_or(first, |n| &first[..n]);
        let lines = whole.split(|&c| c == b'\n').map(|l| l.trim_ascii()).filter(|l| !l.is_empty());
        return text(&lines.take(20).collect::<Vec<_>>());
    }
    if vscsi::looks_like(first) {
        return Some(Format::Vscsi);
    }
    is_oracle_general(first).then_some(Format::OracleGeneral)
}

/// Times that do not go back, and next accesses that come later.
fn is_oracle_general(first: &[u8]) -> bool {
    let records: Vec<&[u8]> = first.chunks_exact(24).take(RECORDS).collect();
    let mut time = 0;
    records.len() >= 2
        && records.iter().enumerate().all(|(n, r)| {
            let (next, size, before) = (u64_at(r, 16) as i64, u32_at(r, 12), time);
            time = u32_at(r, 0);
            let later = next == -1 || next == i64::MAX || (next > n as i64 && next < 1 << 40);
            later && time >= before && size < 1 << 31
        })
}

fn text(lines: &[&[u8]]) -> Option<Format> {
    let data = |n: usize| lines.get(n).copied();
    if lines.iter().any(|l| l.starts_with(b"==") && memchr::memmem::find(l, b"Lackey").is_some()) {
        return Some(Format::Lackey);
    }
    if lines.iter().any(|l| qemu::is_event(l)) {
        return Some(Format::Qemu);
    }
    let is_lackey = |l: &&[u8]| {
        lackey::parts(l).is_some_and(|(_, address, size)| hexadecimal(address).is_some() && decimal(size).is_some())
    };
    let second = data(1).or(data(0))?;
    if is_lackey(&second) {
        return Some(Format::Lackey);
    }
    let mut device = words(second);
    if device.next().is_some_and(blktrace::is_device) && device.nth(2).and_then(|t| fixed_point(t, 1)).is_some() {
        return Some(Format::Blkparse);
    }
    if let Some(found) = columns(second) {
        return Some(found);
    }
    let numbers = |l: &[u8]| words(l).count() == 4 && words(l).all(|w| decimal(w).is_some());
    if numbers(second) {
        return Some(Format::ArcLis);
    }
    let named = |l: &[u8]| [b',', b'\t', b';', b' '].iter().any(|&s| is_names(l, s));
    // names may be a comment, and come after others
    let begun = lines.iter().find(|l| !l.starts_with(b"#") || named(l))?;
    // text with a number on each line, and nothing else
    let numbers = lines.len() > 1 && lines.iter().all(|l| decimal(l).is_some());
    (named(begun) || numbers).then_some(Format::Csv)
}

/// Which of the published CSV formats a line is of.
fn columns(line: &[u8]) -> Option<Format> {
    let is_word = |f: &[u8], words: &[&str]| words.iter().any(|w| f.eq_ignore_ascii_case(w.as_bytes()));
    let is_number = |f: &[u8]| decimal(f).is_some();
    if let Some([time, _, disk, op, offset, size, _]) = fields::<7>(line, b',')
        && is_word(op, &["read", "write"])
        && [time, disk, offset, size].into_iter().all(is_number)
    {
        return Some(Format::Msr);
    }
    let [a, b, c, d, e] = fields::<5>(line, b',')?;
    let (letters, reals) = (["r", "w"], |f: &[u8]| fixed_point(f, 1).is_some());
    if is_word(b, &letters) && [a, c, d, e].into_iter().all(is_number) {
        return Some(Format::Alibaba);
    }
    if is_word(d, &letters) && [a, b, c].into_iter().all(is_number) && reals(e) {
        return Some(Format::Spc);
    }
    let tencent = [a, b, c, e].into_iter().all(is_number) && (d == b"0" || d == b"1");
    (tencent && line.split(|&c| c == b',').count() == 5).then_some(Format::Tencent)
}
