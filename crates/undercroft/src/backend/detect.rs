//! What format an image has, by its first bytes.
//!
//! Owns the list of magic numbers. Never reads files. Invariant: none of the magic numbers is longer than
//! `MAGIC_BYTES_MAX`.

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
}
