//! Which file systems report where files are on the disk, and what to do about those that do not.
//!
//! Owns that list. Never walks. Numbers are those of <linux/magic.h> and of the file systems' own headers.

use std::fs;
use std::path::Path;

/// Why the file system at `path`, of type `magic`, cannot tell; `None` if it may.
pub(crate) fn refusal(path: &Path, magic: u64) -> Option<(String, String)> {
    let no = |reason: &str, remedy: &str| Some((reason.to_string(), remedy.to_string()));
    let inside = "run this inside the guest that has the disk, on the directory's own file system";
    match magic & 0xFFFF_FFFF {
        0x794C_7630 => Some((
            "it is an overlay (overlayfs), whose files are those of other directories".to_string(),
            match layers(path) {
                Some(layers) => format!("name these instead, the shared ones for one container only: {layers}"),
                None => {
                    "name its upperdir and lowerdir instead, as `findmnt` shows them outside the container".to_string()
                }
            },
        )),
        0x0102_1994 | 0x8584_58F6 => no("it is in memory (tmpfs, ramfs) and on no disk", "leave it out"),
        0x9123_683E => no(
            "btrfs tells addresses of its own, not those of a disk, and may spread files over several",
            "put the container on ext4 or XFS, or on a disk of its own",
        ),
        0xCA45_1A4E | 0x2FC1_2FC1 => no(
            "its file system spreads files over devices of its own (bcachefs, ZFS)",
            "put the container on ext4 or XFS, or on a disk of its own",
        ),
        0x6969 | 0xFF53_4D42 | 0xFE53_4D42 | 0x0102_1997 => no("it is on another machine (NFS, SMB, 9p)", inside),
        0x6573_5546 => no("it is served by a program (FUSE, virtiofs)", inside),
        0x7371_7368 | 0xE0F5_E1E2 => no(
            "its file system is compressed and read-only (squashfs, EROFS), and tells no places",
            "give the image that it is in a disk of its own",
        ),
        0x9FA0 | 0x6265_6572 | 0x6367_7270 => {
            no("it is no file system on a disk (proc, sysfs, cgroup)", "leave it out")
        }
        _ => None,
    }
}

/// The directories that an overlay is made of: `upper /a, lower /b, /c`.
fn layers(path: &Path) -> Option<String> {
    layers_in(&fs::read_to_string("/proc/self/mountinfo").ok()?, &fs::canonicalize(path).ok()?)
}

/// The same, from the text of mountinfo: proc_pid_mountinfo(5).
fn layers_in(mountinfo: &str, path: &Path) -> Option<String> {
    let mut best: Option<(usize, String)> = None;
    for line in mountinfo.lines() {
        let (mount, rest) = line.split_once(" - ")?;
        let at = unescaped(mount.split(' ').nth(4)?);
        let mut rest = rest.split(' ');
        let (kind, options) = (rest.next()?, rest.nth(1).unwrap_or_default());
        // Of several mounts at one place, the last is on top.
        if !path.starts_with(&at) || best.as_ref().is_some_and(|(len, _)| at.len() < *len) {
            continue;
        }
        let mut said = Vec::new();
        for (key, word) in [("upperdir=", "upper "), ("lowerdir=", "lower ")] {
            let dirs = options.split(',').find_map(|o| o.strip_prefix(key));
            said.extend(dirs.map(|d| format!("{word}{}", unescaped(d).replace("::", ":").replace(':', ", "))));
        }
        best = Some((at.len(), if kind == "overlay" { said.join(", ") } else { String::new() }));
    }
    best.map(|(_, said)| said).filter(|said| !said.is_empty())
}

/// `\040` and the like made characters again.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, more @ ..] = rest {
        let octal = |d: &u8| (b'0'..=b'7').contains(d);
        match more {
            [a, b, c, after @ ..] if *first == b'\\' && (b'0'..=b'3').contains(a) && octal(b) && octal(c) => {
                bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            _ => {
                bytes.push(*first);
                rest = more;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
90 22 0:45 / /merged\\040web rw,relatime - overlay overlay rw,lowerdir=/l/2:/l/1,upperdir=/u\\040p,workdir=/w
91 22 0:46 / /merged rw,relatime shared:2 master:3 - overlay overlay rw,lowerdir=/x
92 91 254:2 / /merged/data rw - ext4 /dev/vda2 rw
";

    #[test]
    fn an_overlay_names_the_directories_to_use() {
        let of = |path: &str| layers_in(MOUNTS, Path::new(path));
        assert_eq!(of("/merged web/etc").as_deref(), Some("upper /u p, lower /l/2, /l/1"));
        assert_eq!(of("/merged/etc").as_deref(), Some("lower /x"));
        assert_eq!(of("/merged/data/x"), None);
        assert_eq!(of("/etc"), None);
    }

    #[test]
    fn what_cannot_tell_says_why_and_what_to_do() {
        for (magic, said) in [(0x0102_1994, "memory"), (0x9123_683E, "btrfs"), (0x6969, "another machine")] {
            let (reason, remedy) = refusal(Path::new("/"), magic).expect(said);
            assert!(reason.contains(said) && !remedy.is_empty());
        }
        // ext4, XFS, F2FS.
        for magic in [0xEF53, 0x5846_5342, 0xF2F5_2010] {
            assert_eq!(refusal(Path::new("/"), magic), None);
        }
    }
}
