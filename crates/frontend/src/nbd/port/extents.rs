//! The body of a reply to BLOCK_STATUS, from what the core said of a range.
//!
//! Owns the encoding alone: never the buffer, nor the chunk's header. Invariant: what is written describes the start of
//! the range, and never more of it than was asked for.

use super::super::wire::{CONTEXT_ID, STATE_HOLE, STATE_ZERO};
use undercroft_cache::Extent;

/// Writes context id and descriptors for the first `len` bytes of `extents`; returns the bytes written, 0 if there is
/// no extent.
pub(super) fn encode_extents(to: &mut [u8], extents: &[Extent], len: u32, one: bool) -> usize {
    let mut left = len;
    let mut at = 4;
    let mut last: Option<(usize, u32)> = None;
    to[..4].copy_from_slice(&CONTEXT_ID.to_be_bytes());
    for e in extents {
        let n = u32::try_from(e.len).unwrap_or(u32::MAX).min(left);
        if n == 0 {
            continue;
        }
        let state = u32::from(e.hole) * STATE_HOLE + u32::from(e.zero) * STATE_ZERO;
        match last {
            // Neighbours of one kind are one extent. The sum cannot overflow: both are parts of the request.
            Some((place, kind)) if kind == state => {
                let mut bytes = [0; 4];
                bytes.copy_from_slice(&to[place..place + 4]);
                to[place..place + 4].copy_from_slice(&(u32::from_be_bytes(bytes) + n).to_be_bytes());
            }
            Some(_) if one => break,
            _ => {
                let Some(entry) = to.get_mut(at..at + 8) else { break };
                entry[..4].copy_from_slice(&n.to_be_bytes());
                entry[4..].copy_from_slice(&state.to_be_bytes());
                last = Some((at, state));
                at += 8;
            }
        }
        left -= n;
    }
    if last.is_some() { at } else { 0 }
}
