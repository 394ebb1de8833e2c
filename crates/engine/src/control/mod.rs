//! The controllers: they decide how a node's share is divided among its children, live and from one kind of telemetry.
//!
//! Owns targets and the reasons for them. Never touches an index ([`Mover`] moves limits towards targets), and reads no
//! clock: the caller says when an interval ends. Invariant: targets of the children sum to at most what their
//! parent has, floors and ceilings hold, and every difference between two targets is told by events with their reasons.

mod donor;
mod event;
mod fixed;
mod governor;
mod guard;
mod lookahead;
mod mover;
mod paper;
mod target;
#[cfg(test)]
mod tests;
mod utility;
mod view;
mod words;

pub use donor::{Donor, Thresholds};
pub use event::{Event, Events, Goal, Party, Reason};
pub use fixed::Fixed;
pub use governor::{ControllerKind, Governor, Leaf};
pub use guard::Guarded;
pub use lookahead::{Appetite, lookahead};
pub use mover::{Mover, Position};
pub use paper::Paper;
pub use target::Target;
pub use utility::{Utility, UtilitySettings};
pub use view::{Activity, ChildView, Move, Verdict};
pub use words::Words;

/// Divides one node's share. One object per node, so it may remember.
pub trait Controller: Send {
    /// `total` blocks are to be divided among `children` for the coming interval; what is told of each is of the past
    /// one.
    fn decide(&mut self, total: u64, children: &[ChildView<'_>]) -> Verdict;
}
