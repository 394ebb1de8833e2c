//! What format an image has, by its first bytes.
//!
//! Owns the list of magic numbers, and reads before an image is served. Never writes. Invariant: none of the magic
//! numbers is longer than `MAGIC_BYTES_MAX`.

use std::io;
use std::os::unix::fs::FileExt;
use undercroft_host::{DiskFile, FRAME_BYTES};

/// Bytes that suffice to tell every format.
pub(super) const MAGIC_BYTES_MAX: usize = 8;

/// What the first bytes of an image say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Magic {
    /// No known magic number.
    None,
    /// QEMU's format, version 2 or 3.
    Qcow2,
    /// A format that is not served; its name.
    Other(&'static str),
}

/// Reads `len` bytes at `offset`; fewer if the file ends before.
pub(super) fn read(file: &DiskFile, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    // Place, length and memory as direct I/O needs them.
    let unit = FRAME_BYTES as u64;
    let start = offset / unit * unit;
    let before = (offset - start) as usize;
    let bytes = (before + len).next_multiple_of(FRAME_BYTES);
    let mut memory = vec![0u8; bytes + FRAME_BYTES];
    let at = memory.as_ptr().align_offset(FRAME_BYTES);
    let mut done = 0;
    while done < bytes {
        match file.file.read_at(&mut memory[at + done..at + bytes], start + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            // The rest after an end of file that is not aligned.
            Err(e) if done > 0 && e.kind() == io::ErrorKind::InvalidInput => break,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    let end = (before + len).min(done);
    Ok(memory[at + before.min(end)..at + end].to_vec())
}

/// Whether a file begins like a text: what people read, and no byte that only programs do.
pub(super) fn is_text(start: &[u8]) -> bool {
    let odd = |b: &u8| b.is_ascii_control() && !b.is_ascii_whitespace();
    // A character may be cut at the end.
    let whole = match std::str::from_utf8(start) {
        Ok(_) => true,
        Err(e) => e.error_len().is_none(),
    };
    !start.is_empty() && whole && !start.iter().any(odd)
}

/// Looks at the first bytes of an image, at least [`MAGIC_BYTES_MAX`] of them unless it is shorter.
pub(super) fn magic(start: &[u8]) -> Magic {
    match start {
        [b'Q', b'F', b'I', 0xfb, 0, 0, 0, 1, ..] => Magic::Other("qcow (version 1)"),
        [b'Q', b'F', b'I', 0xfb, ..] => Magic::Qcow2,
        [b'Q', b'E', b'D', 0, ..] => Magic::Other("QED"),
        [b'K', b'D', b'M', b'V', ..] | [b'C', b'O', b'W', b'D', ..] => Magic::Other("VMDK"),
        [b'v', b'h', b'd', b'x', b'f', b'i', b'l', b'e', ..] => Magic::Other("VHDX"),
        [b'c', b'o', b'n', b'e', b'c', b't', b'i', b'x', ..] => Magic::Other("VHD"),
        [b'L', b'U', b'K', b'S', 0xba, 0xbe, ..] => Magic::Other("LUKS"),
        _ => Magic::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_told_apart() {
        assert_eq!(magic(b"QFI\xfb\0\0\0\x03"), Magic::Qcow2);
        assert_eq!(magic(b"QFI\xfb\0\0\0\x01"), Magic::Other("qcow (version 1)"));
        assert_eq!(magic(b"KDMV\x01\0\0\0"), Magic::Other("VMDK"));
        assert_eq!(magic(b"\xeb\x63\x90\0\0\0\0\0"), Magic::None);
        assert_eq!(magic(b"QF"), Magic::None);
        assert_eq!(magic(b""), Magic::None);
    }

    #[test]
    fn texts_are_told_from_disks() {
        assert!(is_text(b"root:x:0:0:root:/root:/bin/bash\n") && is_text("caf\u{e9}\tau lait".as_bytes()));
        assert!(is_text(&"\u{e9}".as_bytes()[..1]), "cut within a character");
        assert!(!is_text(b"") && !is_text(&[0; 512]) && !is_text(b"\x7fELF\x02\x01") && !is_text(b"\xff\xfe\xff"));
    }
}
