//! How far a disk reads ahead, and how that changes while it serves.
//!
//! Owns how far the streams may reach, and the moves of frames between requests and read-ahead. Never takes memory
//! that the core has not promised to the disk. Invariant: frames under way and blocks waiting to be used stay within
//! the allowance at every moment, so frames move only as they come free.

use crate::disk::Disk;
use crate::fault_injection::{Bug, FaultInjection};
use crate::store::ram::Store;
use undercroft_engine::shares::ReadAhead;

impl<P: FaultInjection> Disk<P> {
    /// How far the disk is to read ahead, in bytes, from now on; false if that is what it was. Frames follow with
    /// `follow_readahead`, once there is memory for their tables.
    pub(crate) fn set_readahead(&mut self, bytes: u32) -> bool {
        self.settings.set_readahead(bytes)
    }

    /// Whether read-ahead was changed since the disk was added.
    pub(crate) fn is_readahead_changed(&self) -> bool {
        self.settings.is_readahead_changed()
    }

    /// Whether frames are still to be given to read-ahead, or taken from it, as its settings ask.
    pub(crate) fn awaits_readahead(&self) -> bool {
        self.operations.ahead_target() != self.ahead_wanted()
    }

    /// Frames for read-ahead, by the settings.
    fn ahead_wanted(&self) -> usize {
        self.operations.allowance().ahead_for(self.settings.options().readahead_bytes)
    }

    /// Bytes of metadata beyond those promised that read-ahead as it is set takes.
    pub(crate) fn ahead_more_bytes(&self) -> u64 {
        self.operations.allowance().more_bytes(self.ahead_wanted()) as u64
    }

    /// Gives read-ahead the frames that its settings ask for, as they come free. The caller has promised
    /// `ahead_more_bytes` for their tables.
    pub(crate) fn follow_readahead(&mut self, arena: &mut Store) {
        let wanted = self.ahead_wanted();
        let ops = self.operations.aim_ahead(wanted);
        self.segments.allow(ops);
        self.near.allow_ahead(wanted);
        self.move_ahead(arena);
        self.limit_streams();
    }

    /// Moves frames between requests and read-ahead, as far as they are free; blocks that nobody has used yet go.
    pub(in crate::disk) fn move_ahead(&mut self, arena: &mut Store) {
        if self.operations.is_split_settled() {
            return;
        }
        let wanted = self.operations.ahead_target();
        while self.operations.ahead() + self.near.ahead() > wanted && self.drop_oldest_ahead(arena) {
            self.stats.readahead_wasted_blocks += 1;
        }
        let waiting = self.near.ahead();
        self.operations.move_ahead(waiting, self.faults.has(Bug::AheadCutUnderWay));
        self.limit_streams();
        self.note_loan(arena);
    }

    /// How far streams look, by the settings, the hint, and the frames there are for it.
    pub(in crate::disk) fn limit_streams(&mut self) {
        let bytes = self.settings.options().readahead_bytes;
        let frames = self.operations.allowance().ahead;
        match self.settings.hint().read_ahead() {
            ReadAhead::Configured => self.streams.set_max(bytes, frames / 2),
            // One stream has all frames for it; where there are several, waste makes each look less far.
            ReadAhead::Double => self.streams.set_max(bytes.saturating_mul(2), frames),
            ReadAhead::Off => self.streams.set_max(0, 0),
        }
    }
}
