//! Which events a run has seen under which conditions: the rare pairs in which bugs hide.
//!
//! Owns the counts. Never decides anything of a run. Invariant: an event is counted once under each condition that its
//! disk was in, and once in all.

/// What can happen to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// A read all of whose blocks were cached.
    Hit,
    /// A read that the disk had to be asked for.
    Miss,
    /// A read that joined another.
    Join,
    /// A read of what was read ahead.
    Ahead,
    /// A write begins.
    Write,
    /// A flush begins.
    Flush,
    /// A discard begins.
    Discard,
    /// Zeroes begin.
    Zeroes,
    /// An allocation is asked for.
    Status,
    /// A read failed.
    ReadFailed,
    /// A write, or zeroes, failed.
    WriteFailed,
    /// A flush failed.
    FlushFailed,
    /// A copy of a guest page became cached.
    Capture,
    /// A guest came, went or was mapped anew.
    Guest,
    /// A guest began afresh.
    Restart,
    /// What is cached was invalidated.
    Invalidate,
    /// Another program wrote to the disk.
    Foreign,
    /// Unflushed writes were lost.
    Lost,
    /// The host died.
    Crash,
    /// The disk went, and came again.
    Leave,
    /// A hint was given.
    Hint,
    /// Parts came, changed or went.
    Parts,
    /// A share moved.
    Share,
    /// A limit was set.
    Limit,
    /// Another policy.
    Policy,
    /// Another capacity.
    Capacity,
    /// A meter came, went or was read.
    Measure,
    /// Hashes were asked for, and what a guest holds was told.
    Cool,
    /// Memory was given back.
    GiveBack,
    /// Another process went on.
    Successor,
}

/// The rows, by number.
pub const ROWS: [Seen; 30] = {
    use Seen::*;
    [
        Hit,
        Miss,
        Join,
        Ahead,
        Write,
        Flush,
        Discard,
        Zeroes,
        Status,
        ReadFailed,
        WriteFailed,
        FlushFailed,
        Capture,
        Guest,
        Restart,
        Invalidate,
        Foreign,
        Lost,
        Crash,
        Leave,
        Hint,
        Parts,
        Share,
        Limit,
        Policy,
        Capacity,
        Measure,
        Cool,
        GiveBack,
        Successor,
    ]
};

/// What a disk can be in the middle of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum While {
    /// Reads are under way.
    Reading,
    /// Writes are under way.
    Writing,
    /// Discards or zeroes are under way.
    Clearing,
    /// A flush is under way.
    Flushing,
    /// A read failed not long ago.
    AfterReadFailed,
    /// A write failed not long ago.
    AfterWriteFailed,
    /// The same, and a read has hit since.
    AfterWriteFailedAndHit,
    /// It was invalidated not long ago.
    AfterInvalidate,
    /// It has a guest whose memory can be seen.
    Guest,
    /// That guest has another disk.
    TwoDisks,
    /// It stands on an image.
    Base,
    /// It has parts.
    Parts,
    /// It stands on an image, and has parts.
    BaseParts,
    /// It keeps more than its share.
    Over,
    /// The same, on an image.
    BaseOver,
    /// It may keep less than its share.
    Limited,
    /// It fetches what will be needed.
    Fetching,
    /// Its guest's memory is scanned.
    Scanned,
    /// It is measured.
    Measured,
    /// It is larger than 2^32 blocks.
    Sparse,
    /// It has bad sectors.
    Bad,
}

/// The columns, by number.
pub const COLUMNS: [While; 21] = {
    use While::*;
    [
        Reading,
        Writing,
        Clearing,
        Flushing,
        AfterReadFailed,
        AfterWriteFailed,
        AfterWriteFailedAndHit,
        AfterInvalidate,
        Guest,
        TwoDisks,
        Base,
        Parts,
        BaseParts,
        Over,
        BaseOver,
        Limited,
        Fetching,
        Scanned,
        Measured,
        Sparse,
        Bad,
    ]
};

/// A set of conditions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conditions(u32);

impl Conditions {
    /// Sets one, or takes it away.
    pub fn set(&mut self, condition: While, holds: bool) {
        let bit = 1 << condition as u32;
        if holds { self.0 |= bit } else { self.0 &= !bit }
    }

    /// Whether one holds.
    pub fn has(self, condition: While) -> bool {
        self.0 >> condition as u32 & 1 != 0
    }

    /// Those of both.
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// See the head of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coverage {
    counts: [[u64; COLUMNS.len()]; ROWS.len()],
    alone: [u64; ROWS.len()],
}

impl Default for Coverage {
    fn default() -> Self {
        Self { counts: [[0; COLUMNS.len()]; ROWS.len()], alone: [0; ROWS.len()] }
    }
}

impl Coverage {
    /// Counts an event.
    pub(crate) fn saw(&mut self, what: Seen, conditions: Conditions) {
        self.alone[what as usize] += 1;
        let mut left = conditions.0;
        while left != 0 {
            self.counts[what as usize][left.trailing_zeros() as usize] += 1;
            left &= left - 1;
        }
    }

    /// Adds another run's counts.
    pub fn add(&mut self, other: &Coverage) {
        for (row, more) in self.counts.iter_mut().zip(&other.counts) {
            row.iter_mut().zip(more).for_each(|(n, m)| *n += m);
        }
        self.alone.iter_mut().zip(&other.alone).for_each(|(n, m)| *n += m);
    }

    /// How often `what` was seen under a condition.
    pub fn count(&self, what: Seen, condition: While) -> u64 {
        self.counts[what as usize][condition as usize]
    }

    /// How often it was seen at all.
    pub fn total(&self, what: Seen) -> u64 {
        self.alone[what as usize]
    }

    /// The pairs of `wanted` that were not seen.
    pub fn missing(&self, wanted: &[(Seen, While)]) -> Vec<(Seen, While)> {
        wanted.iter().copied().filter(|&(s, w)| self.count(s, w) == 0).collect()
    }

    /// One count, for keeping it: of column 0 those in all, of the others those under a condition.
    pub(crate) fn cell(&mut self, row: usize, column: usize) -> &mut u64 {
        match column {
            0 => &mut self.alone[row],
            n => &mut self.counts[row][n - 1],
        }
    }

    /// All counts as a table in Markdown.
    pub fn table(&self) -> String {
        let mut out = "| event | in all |".to_string();
        COLUMNS.iter().for_each(|c| out += &format!(" {c:?} |"));
        out += "\n|---|---:|";
        COLUMNS.iter().for_each(|_| out += "---:|");
        for row in ROWS {
            out += &format!("\n| {row:?} | {} |", self.total(row));
            COLUMNS.iter().for_each(|&c| out += &format!(" {} |", self.count(row, c)));
        }
        out + "\n"
    }
}

/// Rare pairs that a few hundred runs must come by: each is a place where a bug was, or could be, of two things that
/// meet.
pub const RARE: &[(Seen, While)] = {
    use Seen as S;
    use While as W;
    &[
        (S::Hit, W::AfterWriteFailed),
        (S::Hit, W::Writing),
        (S::Hit, W::Clearing),
        (S::Join, W::Writing),
        (S::Join, W::AfterReadFailed),
        (S::Join, W::Fetching),
        (S::Join, W::Bad),
        (S::Ahead, W::Writing),
        (S::Ahead, W::AfterInvalidate),
        (S::Write, W::Fetching),
        (S::Write, W::AfterWriteFailed),
        (S::Write, W::BaseParts),
        (S::Write, W::Sparse),
        (S::Zeroes, W::Reading),
        (S::Zeroes, W::Fetching),
        (S::Discard, W::Reading),
        (S::Discard, W::Sparse),
        (S::Discard, W::Base),
        (S::Flush, W::Writing),
        (S::Flush, W::AfterWriteFailed),
        (S::Status, W::Clearing),
        (S::ReadFailed, W::Bad),
        (S::ReadFailed, W::Fetching),
        (S::ReadFailed, W::Guest),
        (S::WriteFailed, W::Reading),
        (S::WriteFailed, W::Guest),
        (S::WriteFailed, W::Base),
        (S::FlushFailed, W::Writing),
        (S::Capture, W::Writing),
        (S::Capture, W::AfterWriteFailed),
        (S::Capture, W::AfterWriteFailedAndHit),
        (S::Capture, W::AfterInvalidate),
        (S::Capture, W::TwoDisks),
        (S::Capture, W::Base),
        (S::Capture, W::Parts),
        (S::Guest, W::Writing),
        (S::Restart, W::Reading),
        (S::Restart, W::Writing),
        (S::Restart, W::TwoDisks),
        (S::Invalidate, W::Reading),
        (S::Invalidate, W::Writing),
        (S::Invalidate, W::Parts),
        (S::Invalidate, W::Guest),
        (S::Foreign, W::Reading),
        (S::Foreign, W::Writing),
        (S::Foreign, W::Guest),
        (S::Foreign, W::Base),
        (S::Foreign, W::Sparse),
        (S::Lost, W::Reading),
        (S::Lost, W::Writing),
        (S::Lost, W::Flushing),
        (S::Lost, W::Guest),
        (S::Crash, W::Writing),
        (S::Crash, W::Flushing),
        (S::Leave, W::Base),
        (S::Leave, W::Guest),
        (S::Hint, W::Base),
        (S::Hint, W::Parts),
        (S::Hint, W::Writing),
        (S::Parts, W::Base),
        (S::Parts, W::Measured),
        (S::Share, W::Base),
        (S::Share, W::BaseParts),
        (S::Share, W::Fetching),
        (S::Share, W::Guest),
        (S::Measure, W::Parts),
        (S::Measure, W::Guest),
        (S::Cool, W::Guest),
        (S::Cool, W::Base),
        (S::GiveBack, W::Limited),
    ]
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_counted_under_their_conditions() {
        let mut c = Conditions::default();
        c.set(While::Guest, true);
        c.set(While::Bad, true);
        c.set(While::Bad, false);
        let mut m = Coverage::default();
        m.saw(Seen::Capture, c);
        let mut both = m;
        both.add(&m);
        assert_eq!((both.count(Seen::Capture, While::Guest), both.total(Seen::Capture)), (2, 2));
        let wanted = [(Seen::Capture, While::Guest), (Seen::Capture, While::Bad)];
        assert_eq!(both.missing(&wanted), [(Seen::Capture, While::Bad)]);
        assert!(ROWS.iter().enumerate().all(|(i, &r)| r as usize == i));
        assert!(COLUMNS.iter().enumerate().all(|(i, &c)| c as usize == i));
        assert_eq!(both.table().lines().count(), ROWS.len() + 2);
    }
}
