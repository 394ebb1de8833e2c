//! `/proc/PID/maps` and `/proc/PID/smaps`: what a process has mapped.
//!
//! Owns the reading of that text. Never opens anything. Invariant: any bytes give a list, in which every range is not
//! empty, page-aligned and above the one before; lines that make no sense are left out.

use super::{PAGE_BYTES, PageRun};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Its pages in the address space.
    pub pages: PageRun,
    /// Writable.
    pub write: bool,
    /// Executable.
    pub execute: bool,
    /// Shared with whoever maps the same file.
    pub shared: bool,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Device of the file, as major and minor number.
    pub device: (u32, u32),
    /// Inode of the file; 0 for anonymous memory.
    pub inode: u64,
    /// The file's path, or a name in brackets; empty for plain anonymous memory.
    pub path: OsString,
    /// Two-letter flags (`dc mg`), if the text had them: only `smaps` does.
    pub flags: Option<Vec<[u8; 2]>>,
}

impl Mapping {
    /// Whether `smaps` gave this two-letter flag: `dc` (not copied on fork), `mg` (mergeable), `ht` (huge pages of
    /// hugetlb). `None` if the flags are unknown.
    pub fn flag(&self, flag: &[u8; 2]) -> Option<bool> {
        self.flags.as_ref().map(|f| f.contains(flag))
    }

    /// Bytes.
    pub fn bytes(&self) -> u64 {
        self.pages.count.saturating_mul(PAGE_BYTES as u64)
    }

    /// Whether it is memory without a file.
    pub fn is_anonymous(&self) -> bool {
        self.inode == 0
    }
}

/// Reads either file.
pub fn parse_maps(text: &[u8]) -> Vec<Mapping> {
    let mut all: Vec<Mapping> = Vec::new();
    for line in text.split(|b| *b == b'\n') {
        if let Some(flags) = line.strip_prefix(b"VmFlags:") {
            if let Some(last) = all.last_mut() {
                let words = flags.split(|b| *b == b' ').filter_map(|w| <[u8; 2]>::try_from(w).ok());
                last.flags = Some(words.collect());
            }
        } else if let Some(mapping) = line_of(line)
            && all.last().is_none_or(|last| last.pages.end() <= mapping.pages.first)
        {
            all.push(mapping);
        }
    }
    all
}

/// `START-END PERM OFFSET MAJOR:MINOR INODE PATH`; `None` for anything else.
fn line_of(line: &[u8]) -> Option<Mapping> {
    let mut rest = line;
    let mut word = || {
        let from = rest.iter().position(|b| *b != b' ')?;
        let len = rest[from..].iter().position(|b| *b == b' ').unwrap_or(rest.len() - from);
        let word = &rest[from..from + len];
        rest = &rest[from + len..];
        std::str::from_utf8(word).ok()
    };
    let hex = |s: &str| u64::from_str_radix(s, 16).ok();
    let (start, end) = word()?.split_once('-')?;
    let (start, end) = (hex(start)?, hex(end)?);
    let page = PAGE_BYTES as u64;
    if start >= end || !start.is_multiple_of(page) || !end.is_multiple_of(page) {
        return None;
    }
    let &[_, write, execute, shared] = word()?.as_bytes() else { return None };
    let offset = hex(word()?)?;
    let (major, minor) = word()?.split_once(':')?;
    let device = (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
    let inode = word()?.parse().ok()?;
    let path = rest.iter().position(|b| *b != b' ').map_or(&[][..], |from| &rest[from..]);
    Some(Mapping {
        pages: PageRun { first: start / page, count: (end - start) / page },
        write: write == b'w',
        execute: execute == b'x',
        shared: shared == b's',
        offset,
        device,
        inode,
        path: OsString::from_vec(unescaped(path)),
        flags: None,
    })
}

/// The kernel writes a line feed in a path as `\012`, and nothing else so.
fn unescaped(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    let mut at = 0;
    while at < path.len() {
        if path[at..].starts_with(b"\\012") {
            out.push(b'\n');
            at += 4;
        } else {
            out.push(path[at]);
            at += 1;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
55d0c0000000-55d0c0400000 r-xp 00001000 fd:01 1311 /usr/bin/qemu-system-x86_64
7f1000000000-7f1008000000 rw-p 00000000 00:00 0
Size:             131072 kB
VmFlags: rd wr mr mw me dc ac sd mg
7f2000000000-7f2008000000 rw-s 00001000 00:01 2050                       /memfd:memory-backend-memfd (deleted)
VmFlags: rd wr sh mr mw me ms dc sd
7f3000000000-7f3000001000 rw-s 00000000 00:19 7 /tmp/a b\\012c
";

    #[test]
    fn lines_of_a_real_process() {
        let all = parse_maps(TEXT.as_bytes());
        assert_eq!(all.len(), 4);
        assert!(all[0].execute && !all[0].write && !all[0].shared);
        assert_eq!((all[0].device, all[0].inode, all[0].flags.clone()), ((0xfd, 1), 1311, None));
        assert_eq!(all[1].pages, PageRun { first: 0x7f1000000, count: 0x8000 });
        assert!(all[1].is_anonymous() && all[1].path.is_empty());
        assert_eq!((all[1].flag(b"dc"), all[1].flag(b"ht"), all[0].flag(b"dc")), (Some(true), Some(false), None));
        assert_eq!(all[1].bytes(), 128 << 20);
        assert!(all[2].shared);
        assert_eq!((all[2].offset, all[2].path.to_str()), (4096, Some("/memfd:memory-backend-memfd (deleted)")));
        assert_eq!(all[3].path.to_str(), Some("/tmp/a b\nc"));
    }

    #[test]
    fn nonsense_is_left_out() {
        for bad in [
            "",
            "VmFlags: dc",
            "7f10-7f20 rw-p 0 0:0 0",
            "2000-1000 rw-p 0 0:0 0",
            "1000-1000 rw-p 0 0:0 0",
            "1000-2000 rw 0 0:0 0",
            "1000-2000 rw-p 0 0 0",
            "1000-2000 rw-p 0 0:0",
            "1000-2000 rw-p 0 0:0 x",
            "1000-fffffffffffffffff rw-p 0 0:0 0",
            "\u{feff}1000-2000 rw-p 0 0:0 0",
        ] {
            assert_eq!(parse_maps(bad.as_bytes()), [], "{bad}");
        }
        let twice = "2000-3000 rw-p 0 0:0 0\n1000-2000 rw-p 0 0:0 0\n2000-4000 rw-p 0 0:0 0\n3000-4000 rw-p 0 0:0 0";
        let firsts: Vec<u64> = parse_maps(twice.as_bytes()).iter().map(|m| m.pages.first).collect();
        assert_eq!(firsts, [2, 3], "only what lies above");
    }

    #[test]
    fn our_own_maps_are_understood_to_the_last_line() {
        let text = std::fs::read("/proc/self/maps").unwrap();
        let lines = text.split(|b| *b == b'\n').filter(|l| !l.is_empty()).count();
        assert_eq!(parse_maps(&text).len(), lines);
        assert!(parse_maps(&std::fs::read("/proc/self/smaps").unwrap()).iter().all(|m| m.flags.is_some()));
    }
}
