//! Clients for tests: what becomes of the data of requests, one way each.
//!
//! Owns what came. Never sees an operation or a disk. Invariant: all that is written has been filled in.

use super::{B, Client};
use undercroft_cache::{DiskId, ReqId, Request};
use undercroft_host::FRAME_BYTES;

/// Makes nothing of what it reads, and writes bytes of 1.
#[derive(Debug, Default)]
pub struct NoData;

impl Client for NoData {
    fn take(&mut self, _req: ReqId, _at: usize, _bytes: &[u8]) {}

    fn give(&mut self, _req: ReqId, _at: usize, bytes: &mut [u8]) {
        bytes.fill(1);
    }
}

/// Reads into one buffer and writes from it: byte `n` of every request's data is byte `n` of the buffer.
#[derive(Debug)]
pub struct Buffer(pub Vec<u8>);

impl Client for Buffer {
    #[inline]
    fn take(&mut self, _req: ReqId, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn give(&mut self, _req: ReqId, at: usize, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.0[at..at + bytes.len()]);
    }
}

/// Reads and writes pieces of which all bytes have the same value, and notes the values.
#[derive(Debug, Default)]
pub struct Values {
    /// What was read: tag of the request, place of the piece in its data, value.
    pub seen: Vec<(u32, usize, u8)>,
    /// The value of what is written; `None` for that of the request's tag.
    pub write: Option<u8>,
}

impl Client for Values {
    fn take(&mut self, req: ReqId, at: usize, bytes: &[u8]) {
        assert!(bytes.iter().all(|&b| b == bytes[0]), "mixed content");
        self.seen.push((req.tag, at, bytes[0]));
    }

    fn give(&mut self, req: ReqId, _at: usize, bytes: &mut [u8]) {
        bytes.fill(self.write.unwrap_or(req.tag as u8));
    }
}

/// Reads blocks that hold their own numbers ([`number_blocks`](super::number_blocks)), one request at a time, and
/// panics if one is another's; writes bytes of 1.
#[derive(Debug, Default)]
pub struct Numbered {
    /// Blocks read so far.
    pub blocks: u64,
    first: u64,
}

impl Client for Numbered {
    fn asking(&mut self, request: &Request) {
        self.first = request.offset / B;
    }

    fn take(&mut self, _req: ReqId, at: usize, bytes: &[u8]) {
        for (n, block) in (self.first + at as u64 / B..).zip(bytes.chunks(FRAME_BYTES)) {
            assert_eq!(block.first_chunk(), Some(&n.to_le_bytes()), "not what block {n} holds");
            self.blocks += 1;
        }
    }

    fn give(&mut self, _req: ReqId, _at: usize, bytes: &mut [u8]) {
        bytes.fill(1);
    }
}

/// A client in a guest whose memory the core sees: what comes also goes to the page of the request.
#[derive(Debug, Default)]
pub struct Guest<C> {
    /// What else becomes of the data.
    pub data: C,
    /// The guest's memory.
    pub pages: Vec<[u8; FRAME_BYTES]>,
    /// The page that the next request, of one block, is for; `None` for memory that is not seen.
    pub page: Option<u32>,
    /// Requests may be of several blocks, aligned to them: the pages behind that one are for the others.
    pub runs: bool,
    /// Pages that the core has copied.
    pub copies: u32,
    /// The guest keeps something else than what it reads: its file system is encrypted.
    pub opaque: bool,
}

impl<C: Default> Guest<C> {
    /// A guest of so many pages of zeroes.
    pub fn new(pages: u32) -> Self {
        Self { pages: vec![[0; FRAME_BYTES]; pages as usize], ..Self::default() }
    }
}

impl<C: Client> Client for Guest<C> {
    #[inline]
    fn take(&mut self, req: ReqId, at: usize, bytes: &[u8]) {
        self.data.take(req, at, bytes);
        if let Some(page) = self.page {
            let (page, at) = (page as usize + at / FRAME_BYTES, at % FRAME_BYTES);
            let kept = &mut self.pages[page][at..at + bytes.len()];
            kept.copy_from_slice(bytes);
            if self.opaque {
                kept.iter_mut().for_each(|byte| *byte ^= 0x5a);
            }
        }
    }

    fn give(&mut self, req: ReqId, at: usize, bytes: &mut [u8]) {
        self.data.give(req, at, bytes);
    }

    #[inline]
    fn page(&mut self, _req: ReqId, at: usize) -> Option<u32> {
        self.page.filter(|_| at == 0 || self.runs).map(|page| page + (at / FRAME_BYTES) as u32)
    }

    fn copy_page(&mut self, _disk: DiskId, page: u32, to: &mut [u8; FRAME_BYTES]) -> bool {
        self.copies += 1;
        to.copy_from_slice(&self.pages[page as usize]);
        true
    }
}
