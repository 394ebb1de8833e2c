//! Which event of a request counts as the request, in formats that record several events of each.
//!
//! Owns the three that can be chosen, and what they are called in files. Never reads one.

/// The life of a request in the kernel's block layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Event {
    /// Q: it came to the block layer.
    #[default]
    Queue,
    /// D: it went to the driver, merged with others perhaps.
    Issue,
    /// C: it was done.
    Complete,
}

impl Event {
    /// blkparse's letter.
    pub fn letter(self) -> u8 {
        match self {
            Event::Queue => b'Q',
            Event::Issue => b'D',
            Event::Complete => b'C',
        }
    }

    /// blktrace's number.
    pub fn number(self) -> u32 {
        match self {
            Event::Queue => 1,
            Event::Issue => 7,
            Event::Complete => 8,
        }
    }
}
