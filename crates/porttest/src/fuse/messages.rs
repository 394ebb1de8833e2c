//! Messages of a kernel to a file, and replies as it reads them: written anew, apart from the code that is tested.
//!
//! Owns the layouts of `linux/fuse.h` once more. Never keeps state. Invariant: a reply is taken only whole.

use rustix::io::Errno;
use std::collections::VecDeque;
use undercroft_frontend::fuse::wire::{self, Fields, opcode};

/// A message with the header of `linux/fuse.h` before `body`.
pub(crate) fn message(opcode: u32, unique: u64, node: u64, body: &[u8]) -> Vec<u8> {
    let mut m = ((wire::HEADER_BYTES + body.len()) as u32).to_ne_bytes().to_vec();
    m.extend(opcode.to_ne_bytes());
    m.extend(unique.to_ne_bytes());
    m.extend(node.to_ne_bytes());
    // Who asks: user, group, process, and extensions.
    m.extend([0; 16]);
    m.extend(body);
    m
}

/// What a device gives whoever receives: the next message, first into `head`, then into `data`; its length.
pub(crate) fn receive(queue: &mut VecDeque<Vec<u8>>, head: &mut [u8], data: &mut [u8]) -> Result<usize, Errno> {
    let message = queue.pop_front().ok_or(Errno::AGAIN)?;
    let n = message.len().min(head.len());
    head[..n].copy_from_slice(&message[..n]);
    data[..message.len() - n].copy_from_slice(&message[n..]);
    Ok(message.len())
}

/// The body of a read, or of a write without its data.
pub(crate) fn transfer(offset: u64, len: u32, flags: u32) -> Vec<u8> {
    let mut b = 0u64.to_ne_bytes().to_vec();
    b.extend(offset.to_ne_bytes());
    b.extend(len.to_ne_bytes());
    b.extend(0u32.to_ne_bytes());
    b.extend(0u64.to_ne_bytes());
    b.extend(flags.to_ne_bytes());
    b.extend(0u32.to_ne_bytes());
    b
}

/// The body of FALLOCATE.
pub(crate) fn allocate(offset: u64, len: u64, mode: u32) -> Vec<u8> {
    let mut b = 0u64.to_ne_bytes().to_vec();
    b.extend(offset.to_ne_bytes());
    b.extend(len.to_ne_bytes());
    b.extend(mode.to_ne_bytes());
    b.extend(0u32.to_ne_bytes());
    b
}

/// The body of LSEEK.
pub(crate) fn seek(offset: u64, whence: u32) -> Vec<u8> {
    let mut b = 0u64.to_ne_bytes().to_vec();
    b.extend(offset.to_ne_bytes());
    b.extend(whence.to_ne_bytes());
    b.extend(0u32.to_ne_bytes());
    b
}

/// The body of SETXATTR.
pub(crate) fn attribute(name: &[u8], value: &[u8]) -> Vec<u8> {
    let mut b = (value.len() as u32).to_ne_bytes().to_vec();
    b.extend(0u32.to_ne_bytes());
    b.extend(name);
    b.push(0);
    b.extend(value);
    b
}

/// The body of GETXATTR, with room for so many bytes.
pub(crate) fn wanted(name: &[u8], room: u32) -> Vec<u8> {
    let mut b = [room.to_ne_bytes(), [0; 4]].concat();
    b.extend(name);
    b.push(0);
    b
}

/// The body of INIT.
pub(crate) fn init(major: u32, minor: u32, flags: u32) -> Vec<u8> {
    let mut b = major.to_ne_bytes().to_vec();
    b.extend(minor.to_ne_bytes());
    b.extend(131_072u32.to_ne_bytes());
    b.extend(flags.to_ne_bytes());
    b.extend([0; 48]);
    b
}

/// A reply: the kernel's name for the request, a number of errno or 0, and what follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub unique: u64,
    pub error: i32,
    pub body: Vec<u8>,
}

/// Reads a reply as the kernel does.
///
/// # Panics
/// If the kernel would refuse it.
pub(crate) fn reply(bytes: &[u8]) -> Reply {
    let mut f = Fields(bytes);
    let header = (f.u32(), f.u32(), f.u64());
    let (Some(len), Some(error), Some(unique)) = header else { panic!("a reply of {} bytes", bytes.len()) };
    let error = error as i32;
    assert_eq!(len as usize, bytes.len(), "the length in a reply is not its length");
    assert!((-1000..=0).contains(&error), "{error} is no negative number of errno");
    assert!(error == 0 || f.0.is_empty(), "a failure with data");
    Reply { unique, error: -error, body: f.0.to_vec() }
}

/// Whether the kernel waits for an answer to a message.
pub(crate) fn is_answered(message: &[u8]) -> bool {
    let code = message.get(4..8).and_then(|b| b.try_into().ok()).map_or(0, u32::from_ne_bytes);
    !matches!(code, opcode::FORGET | opcode::BATCH_FORGET)
}
