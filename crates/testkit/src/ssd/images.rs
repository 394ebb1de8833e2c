//! Simulated images: what their blocks are, and what can be known of them.
//!
//! Owns the truth. Never asks the store. Invariant: a change by others shows in the stamp; whether one by the daemon
//! does depends on the run, since the store must not rely on it.

use crate::rng::{Rng, fill_pattern};
use std::ops::Range;
use undercroft_cache::ssd::{Identity, Known, Stamp, WaitId};

/// A change of the daemon's.
#[derive(Clone, Debug)]
pub struct ImageChange {
    pub blocks: Range<u64>,
    /// It may not be submitted before this is released.
    pub wait: Option<WaitId>,
    pub is_executed: bool,
}

/// An image, and the disk that it is of.
#[derive(Clone, Debug)]
pub struct Image {
    pub identity: u64,
    /// Which write each block is of.
    pub blocks: Vec<u64>,
    stamp: u64,
    /// Earlier stamps, to which a loss of power may take it back.
    stamps: Vec<u64>,
    pub changes: Vec<ImageChange>,
    /// Blocks that were written since the last flush, and what they were.
    unflushed: Vec<(usize, u64)>,
    /// An older copy of it.
    copy: Vec<u64>,
    /// Changes of the daemon's may leave the stamp as it is.
    pub is_coarse: bool,
    /// Equal writes to a block are equal bytes, whichever image that is of; and many are equal.
    pub is_alike: bool,
}

/// Numbers of writes in a row that are one, in images that are alike.
const ALIKE: u64 = 16;

/// The last of all numbers of writes and stamps.
#[derive(Debug, Default)]
pub struct Numbers(u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }
}

/// The bytes of block `block` of image `identity` after write `write`.
pub fn page(identity: u64, block: u64, write: u64) -> [u8; 4096] {
    let mut bytes = [0; 4096];
    fill_pattern(write, (identity << 40) + block * 4096, &mut bytes);
    bytes
}

impl Image {
    pub fn new(identity: u64, blocks: usize, numbers: &mut Numbers) -> Self {
        let blocks = vec![numbers.next(); blocks];
        let stamp = numbers.next();
        let (copy, changes) = (blocks.clone(), Vec::new());
        let (stamps, unflushed, is_coarse, is_alike) = (Vec::new(), Vec::new(), false, false);
        Self { identity, blocks, stamp, stamps, changes, unflushed, copy, is_coarse, is_alike }
    }

    /// Other images may hold the same bytes, and this one begins with those of all that are so.
    pub fn become_alike(&mut self) {
        self.is_alike = true;
        self.blocks.fill(0);
        self.copy.fill(0);
    }

    /// What a store is told of it.
    pub fn known(&self) -> Known {
        let mut identity = [0; 64];
        identity[..8].copy_from_slice(&self.identity.to_le_bytes());
        Known { identity: Identity(identity), stamp: Some(self.stamp()), blocks: self.blocks.len() as u64 }
    }

    pub fn stamp(&self) -> Stamp {
        let mut stamp = [0; 64];
        stamp[..8].copy_from_slice(&self.stamp.to_le_bytes());
        Stamp(stamp)
    }

    pub fn page(&self, block: u64) -> [u8; 4096] {
        page(if self.is_alike { 0 } else { self.identity }, block, self.blocks[block as usize])
    }

    /// The change under way that a block is in.
    pub fn change_of(&self, block: u64) -> Option<&ImageChange> {
        self.changes.iter().find(|c| c.blocks.contains(&block))
    }

    fn restamp(&mut self, numbers: &mut Numbers) {
        self.stamps.push(self.stamp);
        self.stamp = numbers.next();
    }

    fn write(&mut self, blocks: Range<u64>, numbers: &mut Numbers) {
        let number = numbers.next();
        let write = if self.is_alike && !number.is_multiple_of(4) { number - number % ALIKE } else { number };
        self.blocks[blocks.start as usize..blocks.end as usize].fill(write);
    }

    /// A change of the daemon's is done.
    pub fn execute(&mut self, n: usize, numbers: &mut Numbers, rng: &mut Rng) {
        let blocks = self.changes[n].blocks.clone();
        self.changes[n].is_executed = true;
        // A write that fails may have changed nothing.
        if !rng.one_in(8) {
            self.unflushed.extend(blocks.clone().map(|n| n as usize).map(|n| (n, self.blocks[n])));
            self.write(blocks, numbers);
        }
        if !self.is_coarse || rng.one_in(2) {
            self.restamp(numbers);
        }
    }

    /// Somebody else changes it: writes to it, or puts an older copy in its place.
    pub fn change_by_others(&mut self, numbers: &mut Numbers, rng: &mut Rng) {
        match rng.below(3) {
            0 => {
                self.blocks.clone_from(&self.copy);
            }
            1 => self.copy.clone_from(&self.blocks),
            _ => {
                let first = rng.below(self.blocks.len() as u64);
                let end = (first + rng.between(1, 30)).min(self.blocks.len() as u64);
                self.write(first..end, numbers);
            }
        }
        self.restamp(numbers);
        self.flush();
        // Times that others made are durable: the rule cannot know of a change whose time is lost with the power.
        self.stamps.clear();
    }

    /// What was written is durable.
    pub fn flush(&mut self) {
        self.unflushed.clear();
    }

    /// Power is lost: what was not flushed may be as it was before, and the time of its last change may not
    /// have been written.
    pub fn lose_power(&mut self, rng: &mut Rng) {
        for (block, before) in std::mem::take(&mut self.unflushed).into_iter().rev() {
            if rng.one_in(2) {
                self.blocks[block] = before;
            }
        }
        if self.is_coarse && !self.stamps.is_empty() && rng.one_in(2) {
            self.stamp = *rng.pick(&self.stamps);
        }
    }

    /// It becomes another file with the same content.
    pub fn become_clone(&mut self, identity: u64) {
        // Content is told apart by identity in the model: every block is written anew.
        self.identity = identity;
    }
}
