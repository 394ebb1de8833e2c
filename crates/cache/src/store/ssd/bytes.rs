//! Numbers and bytes, one after another: what the store writes on devices and tells another process.
//!
//! Owns nothing. Never panics on what it reads. Invariant: numbers are little-endian; past the end there is nothing.

/// Writes them.
pub(super) struct Writer(pub Vec<u8>);

impl Writer {
    pub fn with(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }

    pub fn u8(&mut self, n: u8) -> &mut Self {
        self.bytes(&[n])
    }

    pub fn u32(&mut self, n: u32) -> &mut Self {
        self.bytes(&n.to_le_bytes())
    }

    pub fn u64(&mut self, n: u64) -> &mut Self {
        self.bytes(&n.to_le_bytes())
    }

    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }
}

/// Reads them.
pub(super) struct Reader<'a>(pub &'a [u8]);

impl Reader<'_> {
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[n]| n)
    }

    /// A yes or no.
    pub fn flag(&mut self) -> Option<bool> {
        self.u8().filter(|n| *n < 2).map(|n| n == 1)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}
