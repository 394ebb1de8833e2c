//! Every limit of the engine's searches, in one place.
//!
//! Owns numbers only. Invariant: no call of the index that a request can cause takes more steps than stand here.

/// Slots under I/O that a victim search passes over before it gives up; the access is then a bypass. Before that, it
/// looks at one slot in each of the policy's queues that it has not come to.
pub const REFUSALS_MAX: u32 = 64;

/// Second chances that one victim search hands out (CLOCK, CAR, S3-FIFO, SIEVE); after that many it takes the next
/// slot that may go, marked or not. Every second chance was paid for by an earlier hit, so the bound matters only for
/// the longest pause: without it a guest that first marks all of a large cache stalls its worker for the whole sweep.
/// Far above what the reference traces need, so that their miss counts stay exact.
pub const SECOND_CHANCES_MAX: u32 = 65_536;
