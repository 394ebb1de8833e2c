//! The kernel's files about KSM and about a process's memory, read.
//!
//! Owns their notation. Never opens a file. Invariants: any bytes give a value or nothing, never a panic; what is kept
//! is bounded whatever comes in.

use std::collections::BTreeMap;
use std::io::{self, BufRead};

/// Lines of a `ksm_stat` that are kept.
pub const STAT_LINES_MAX: usize = 32;
/// Names of shared mappings that are kept.
pub const BACKING_MAX: usize = 8;
/// Longest line of `smaps` that is looked at, in bytes; the rest of a longer one is skipped.
const LINE_BYTES_MAX: usize = 8192;

/// A file with one number.
pub fn number(text: &str) -> Option<i64> {
    text.trim().parse().ok()
}

/// A file with one word out of several, the chosen one in brackets: `[none] scan-time`.
pub fn choice(text: &str) -> Option<(String, Vec<String>)> {
    let mut chosen = None;
    let mut all = Vec::new();
    for word in text.split_whitespace().take(16) {
        let bare = word.strip_prefix('[').and_then(|w| w.strip_suffix(']'));
        if let Some(bare) = bare {
            chosen = Some(bare.to_string());
        }
        all.push(bare.unwrap_or(word).to_string());
    }
    Some((chosen?, all))
}

/// `/proc/PID/ksm_stat` (Linux 6.1): names and values, both of `name 1` and of `name: yes`.
pub fn ksm_stat(text: &str) -> BTreeMap<String, String> {
    let pair = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        Some((name.trim_end_matches(':').to_string(), value.trim().to_string()))
    };
    text.lines().take(STAT_LINES_MAX).filter_map(pair).collect()
}

/// What the RAM of a guest is made of, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ram {
    /// Private and marked for merging (`mg`): the kernel may merge it.
    pub mergeable_bytes: u64,
    /// Of that, present in memory now.
    pub mergeable_present_bytes: u64,
    /// Private, but not marked: QEMU was told `mem-merge=off`.
    pub unmarked_bytes: u64,
    /// Private huge pages of hugetlbfs, which cannot be merged.
    pub huge_bytes: u64,
    /// Shared with other processes, which cannot be merged.
    pub shared_bytes: u64,
    /// Pages of all its mappings that are merged now, as `smaps` counts them (Linux 6.7).
    pub merged_bytes: u64,
    /// What shared mappings are of: `/memfd:memory-backend-memfd`.
    pub backing: Vec<String>,
}

impl Ram {
    /// All of it that is private.
    pub fn private_bytes(&self) -> u64 {
        self.mergeable_bytes.saturating_add(self.unmarked_bytes).saturating_add(self.huge_bytes)
    }
}

/// A mapping of `smaps`, as far as it has been read.
#[derive(Default)]
struct Mapping {
    shared: bool,
    name: String,
    size: u64,
    present: u64,
    merged: u64,
    flags: Vec<[u8; 2]>,
}

impl Mapping {
    /// The first line: `7f8a-7f8b rw-p 00000000 00:00 0    [heap]`.
    fn head(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let (from, to) = words.next()?.split_once('-')?;
        u64::from_str_radix(from, 16).ok().zip(u64::from_str_radix(to, 16).ok())?;
        let mode = words.next()?.as_bytes();
        let name = words.skip(3).collect::<Vec<_>>().join(" ");
        Some(Mapping { shared: mode.get(3) == Some(&b's'), name, ..Mapping::default() })
    }

    fn field(&mut self, line: &str) {
        let Some((key, value)) = line.split_once(':') else { return };
        let bytes = || {
            let kib = value.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()?;
            kib.checked_mul(1024)
        };
        match key {
            "Size" => self.size = bytes().unwrap_or(0),
            "Rss" => self.present = bytes().unwrap_or(0),
            "KSM" => self.merged = bytes().unwrap_or(0),
            "VmFlags" => {
                self.flags = value.split_ascii_whitespace().filter_map(|f| f.as_bytes().try_into().ok()).collect()
            }
            _ => {}
        }
    }

    fn has(&self, flag: &[u8; 2]) -> bool {
        self.flags.contains(flag)
    }

    /// Adds it to `ram`, if it is RAM of a guest: QEMU takes all of that, and nothing else of any size, out of what a
    /// forked child gets (`dc`); what it marked for merging is its too. Windows of devices (`io`, `pf`) are no memory.
    fn count(self, ram: &mut Ram) {
        let of_guest = self.has(b"dc") || self.has(b"mg");
        if !of_guest || self.has(b"io") || self.has(b"pf") {
            return;
        }
        let add = |to: &mut u64, bytes: u64| *to = to.saturating_add(bytes);
        if self.shared || self.has(b"sh") {
            add(&mut ram.shared_bytes, self.size);
            let name = self.name.trim_end_matches(" (deleted)").to_string();
            if !name.is_empty() && ram.backing.len() < BACKING_MAX && !ram.backing.contains(&name) {
                ram.backing.push(name);
            }
        } else if self.has(b"ht") {
            add(&mut ram.huge_bytes, self.size);
        } else if self.has(b"mg") {
            add(&mut ram.mergeable_bytes, self.size);
            add(&mut ram.mergeable_present_bytes, self.present.min(self.size));
            add(&mut ram.merged_bytes, self.merged.min(self.size));
        } else {
            add(&mut ram.unmarked_bytes, self.size);
        }
    }
}

/// `/proc/PID/smaps` of a QEMU process: the RAM of its guest.
///
/// # Errors
/// Those of reading.
pub fn smaps(mut from: impl BufRead) -> io::Result<Ram> {
    let mut ram = Ram::default();
    let mut mapping: Option<Mapping> = None;
    let mut line = Vec::new();
    while next_line(&mut from, &mut line)? {
        let text = String::from_utf8_lossy(&line);
        if let Some(next) = Mapping::head(&text) {
            if let Some(done) = mapping.replace(next) {
                done.count(&mut ram);
            }
        } else if let Some(m) = &mut mapping {
            m.field(&text);
        }
    }
    if let Some(done) = mapping {
        done.count(&mut ram);
    }
    Ok(ram)
}

/// Reads a line into `line`, what is past the longest line left out. False at the end.
fn next_line(from: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let mut any = false;
    loop {
        let buffer = from.fill_buf()?;
        if buffer.is_empty() {
            return Ok(any);
        }
        any = true;
        let end = buffer.iter().position(|b| *b == b'\n');
        let part = &buffer[..end.unwrap_or(buffer.len())];
        line.extend_from_slice(&part[..part.len().min(LINE_BYTES_MAX - line.len().min(LINE_BYTES_MAX))]);
        let used = end.map_or(buffer.len(), |e| e + 1);
        from.consume(used);
        if end.is_some() {
            return Ok(true);
        }
    }
}

/// The machine's boot, which its settings do not outlive: `/proc/sys/kernel/random/boot_id`.
pub(crate) fn boot_id(text: &str) -> Option<String> {
    let id = text.trim();
    let fits = id.len() == 36 && id.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    fits.then(|| id.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn small_files_are_read() {
        assert_eq!((number("100\n"), number("-4096"), number("yes"), number("")), (Some(100), Some(-4096), None, None));
        let (chosen, all) = choice("[none] scan-time\n").unwrap();
        assert_eq!((chosen.as_str(), all), ("none", vec!["none".to_string(), "scan-time".to_string()]));
        assert_eq!(choice("none scan-time"), None);
        let stat =
            ksm_stat("ksm_rmap_items 12\nksm_merging_pages 7\nksm_process_profit -4096\nksm_mergeable: yes\nodd\n");
        assert_eq!(stat["ksm_process_profit"], "-4096");
        assert_eq!((stat["ksm_mergeable"].as_str(), stat.len()), ("yes", 4));
        assert_eq!(boot_id("0b0e1a7c-5d0f-4e9d-a4a0-5b9f3a1f0c11\n").unwrap().len(), 36);
        assert_eq!(boot_id("../../etc/passwd"), None);
    }

    // Taken from QEMU 7.2 on Linux 6.18: guests of 64MiB, `-M q35`, and with memory-backend-memfd,share=on.
    const PRIVATE: &[u8] = include_bytes!("../../tests/ksm/smaps-private");
    const SHARED: &[u8] = include_bytes!("../../tests/ksm/smaps-shared");

    #[test]
    fn the_ram_of_a_guest_is_told_from_the_rest_of_qemu() {
        let private = smaps(PRIVATE).unwrap();
        assert!(private.mergeable_bytes >= 64 * MIB && private.mergeable_bytes < 96 * MIB, "{private:?}");
        assert_eq!((private.shared_bytes, private.unmarked_bytes, private.huge_bytes), (0, 0, 0), "{private:?}");
        let shared = smaps(SHARED).unwrap();
        assert_eq!(shared.shared_bytes, 64 * MIB, "{shared:?}");
        assert_eq!(shared.backing, ["/memfd:memory-backend-memfd"]);
        // The video memory and the firmware stay private.
        assert!(shared.mergeable_bytes < 32 * MIB, "{shared:?}");
    }

    #[test]
    fn marked_unmarked_huge_and_merged_memory_are_counted_apart() {
        let text = "\
7f00-7f10 rw-p 00000000 00:00 0 \nSize:  1024 kB\nRss:  512 kB\nKSM:  256 kB\nVmFlags: rd wr dc mg \n\
7f20-7f30 rw-p 00000000 00:00 0 \nSize:  2048 kB\nVmFlags: rd wr dc \n\
7f40-7f50 rw-p 00000000 00:0e 9   /dev/hugepages/qemu (deleted)\nSize:  4096 kB\nVmFlags: rd wr ht dc \n\
7f60-7f70 rw-s 00000000 00:0e 9   anon_inode:[vfio]\nSize:  8192 kB\nVmFlags: rd wr sh pf io dc \n\
7f80-7f90 rw-p 00000000 00:00 0   [heap]\nSize: 16384 kB\nVmFlags: rd wr \n";
        let ram = smaps(text.as_bytes()).unwrap();
        assert_eq!((ram.mergeable_bytes, ram.mergeable_present_bytes, ram.merged_bytes), (MIB, MIB / 2, MIB / 4));
        assert_eq!((ram.unmarked_bytes, ram.huge_bytes, ram.shared_bytes), (2 * MIB, 4 * MIB, 0));
    }
}
