//! The device below a simulated SSD store: it keeps blocks that are not all zeroes, and nothing of the others.
//!
//! Owns what the store writes about itself: header, tables of owners, summaries. Never holds a byte of data: the blocks
//! of a simulated disk are zeroes. Invariant: what is read is what was written last, or zeroes.

use rustc_hash::FxHashMap;
use std::io;
use undercroft_cache::ssd::Media;
use undercroft_cache::{Io, IoKind};

/// Bytes of a block.
const BLOCK: usize = 4096;
/// One of zeroes.
static ZEROES: [u8; BLOCK] = [0; BLOCK];

/// See the head of the file.
pub(super) struct Flash {
    bytes: u64,
    blocks: FxHashMap<u64, Box<[u8]>>,
}

impl Flash {
    /// A device of so many bytes, with nothing on it.
    pub fn new(bytes: u64) -> Self {
        Self { bytes, blocks: FxHashMap::default() }
    }

    /// Bytes that it keeps in memory.
    pub fn kept_bytes(&self) -> u64 {
        (self.blocks.len() * BLOCK) as u64
    }

    fn put(&mut self, block: u64, bytes: &[u8]) {
        if bytes == &ZEROES[..bytes.len()] {
            self.blocks.remove(&block);
        } else {
            self.blocks.insert(block, bytes.into());
        }
    }

    /// Fills `to`, and leaves memory alone that has the same bytes: pages that nobody wrote to take no memory.
    fn get(&self, block: u64, to: &mut [u8]) {
        match self.blocks.get(&block) {
            Some(bytes) => to.copy_from_slice(&bytes[..to.len()]),
            None if to != &ZEROES[..to.len()] => to.fill(0),
            None => {}
        }
    }

    /// Does what an operation asks for.
    pub fn serve(&mut self, io: &mut Io) {
        let first = io.offset / BLOCK as u64;
        match io.kind {
            IoKind::Read => (first..).zip(io.buf.pieces_mut()).for_each(|(block, piece)| self.get(block, piece)),
            IoKind::Write { .. } => (first..).zip(io.buf.pieces()).for_each(|(block, piece)| self.put(block, piece)),
            IoKind::Discard => (first..first + io.len / BLOCK as u64).for_each(|block| _ = self.blocks.remove(&block)),
            _ => {}
        }
    }
}

impl Media for Flash {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        (offset / BLOCK as u64..).zip(to.chunks_mut(BLOCK)).for_each(|(block, piece)| self.get(block, piece));
        Ok(())
    }

    fn write_at(&mut self, offset: u64, from: &[u8]) -> io::Result<()> {
        (offset / BLOCK as u64..).zip(from.chunks(BLOCK)).for_each(|(block, piece)| self.put(block, piece));
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_zeroes_take_no_memory_and_end_what_was_there() {
        let mut flash = Flash::new(1 << 40);
        let mut bytes = vec![0; 3 * BLOCK];
        bytes[BLOCK] = 7;
        flash.write_at(1 << 39, &bytes).unwrap();
        assert_eq!(flash.kept_bytes(), BLOCK as u64);
        let mut read = vec![9; 3 * BLOCK];
        flash.read_at(1 << 39, &mut read).unwrap();
        assert_eq!(read, bytes);
        flash.write_at((1 << 39) + BLOCK as u64, &[0; BLOCK]).unwrap();
        flash.read_at(1 << 39, &mut read).unwrap();
        assert!(flash.kept_bytes() == 0 && read.iter().all(|byte| *byte == 0));
    }
}
