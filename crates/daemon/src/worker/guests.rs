//! Which disks of a worker have the same guest: those whose ports see the same memory.
//!
//! Owns the numbers that the core knows memories by. Never reads guest memory. Invariant: two disks have one number
//! exactly if their front ends share the same pieces of the same files, at the same guest addresses, so that the pages
//! have the same numbers for both.

use super::Worker;
use super::ports::PortSlot;
use std::os::unix::fs::MetadataExt;
use undercroft_cache::MemoryId;
use undercroft_frontend::{GuestFile, GuestMemory};

/// A piece of guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    /// Device and inode of its file, and where it begins there, in bytes.
    file: (u64, u64, u64),
    /// Its first guest address, and bytes.
    guest: (u64, u64),
}

/// The memory that a port sees.
#[derive(Debug)]
pub(super) struct SeenMemory {
    id: MemoryId,
    pieces: Vec<Piece>,
}

/// What the memory is made of; empty if that cannot be told.
fn pieces(memory: &dyn GuestMemory) -> Vec<Piece> {
    let piece = |f: &GuestFile| {
        let file = f.file.metadata().ok()?;
        Some(Piece { file: (file.dev(), file.ino(), f.offset), guest: (f.guest, f.len) })
    };
    memory.files().iter().map(piece).collect::<Option<_>>().unwrap_or_default()
}

/// The number of the memory that is made of these pieces, if a port sees it already.
fn known_as<'a>(mut seen: impl Iterator<Item = &'a SeenMemory>, pieces: &[Piece]) -> Option<MemoryId> {
    seen.find(|m| m.pieces == pieces).map(|m| m.id)
}

impl Worker {
    /// Tells the core if the guest memory that a port sees is another, or if the guest begins afresh.
    pub(super) fn look_at_guest(&mut self, id: u32) {
        let Some(slot) = self.ports.get_mut(id as usize).and_then(Option::as_mut) else { return };
        let Some(memory) = slot.port.memory_mut() else { return };
        let (changed, afresh, disk) = (memory.memory_changed(), memory.began_afresh(), slot.disk);
        if let Some(pages) = changed {
            self.guest_memory_is(id, pages);
        }
        if afresh {
            self.core.restart_guest(disk);
        }
    }

    fn guest_memory_is(&mut self, id: u32, pages: u32) {
        let Some(slot) = self.ports.get_mut(id as usize).and_then(Option::as_mut) else { return };
        let disk = slot.disk;
        let Some(known) = self.disks.get_mut(disk.0 as usize).and_then(Option::as_mut) else { return };
        known.guest_port = (pages > 0).then_some(id);
        let pieces = slot.port.memory().filter(|_| pages > 0).map(pieces).unwrap_or_default();
        if pieces.is_empty() {
            slot.memory = None;
            return self.core.set_guest(disk, pages);
        }
        let seen = self.ports.iter().flatten().filter_map(|s: &PortSlot| s.memory.as_ref());
        let memory = known_as(seen, &pieces).unwrap_or(MemoryId(self.memories + 1));
        self.memories = self.memories.max(memory.0);
        if let Some(slot) = self.ports[id as usize].as_mut() {
            slot.memory = Some(SeenMemory { id: memory, pieces });
        }
        self.core.share_guest(disk, memory, pages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_pieces_at_the_same_addresses_are_the_same_memory_and_nothing_else_is() {
        let piece = |inode, offset, guest, len| Piece { file: (1, inode, offset), guest: (guest, len) };
        let low = piece(5, 0, 0, 0x8000_0000);
        let pieces = vec![low, piece(5, 0x8000_0000, 0x1_0000_0000, 0x4000_0000)];
        let seen = [
            SeenMemory { id: MemoryId(1), pieces: vec![low] },
            SeenMemory { id: MemoryId(2), pieces: pieces.clone() },
            SeenMemory { id: MemoryId(3), pieces: vec![piece(6, 0, 0, 0x8000_0000)] },
        ];
        assert_eq!(known_as(seen.iter(), &pieces), Some(MemoryId(2)));
        assert_eq!(known_as(seen.iter(), &[low]), Some(MemoryId(1)));
        for other in [piece(7, 0, 0, 0x8000_0000), piece(5, 4096, 0, 0x8000_0000), piece(5, 0, 4096, 0x8000_0000)] {
            assert_eq!(known_as(seen.iter(), &[other]), None, "another file, another place, another address");
        }
        assert_eq!(known_as(seen.iter(), &[piece(5, 0, 0, 0x4000_0000)]), None, "another length");
    }
}
