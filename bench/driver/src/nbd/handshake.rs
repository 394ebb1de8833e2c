//! Fixed newstyle negotiation, from the client's side.
//!
//! Owns nothing past the handshake. Never sends a command. Invariant: returns with the stream at the first byte of the
//! transmission phase, or fails.

use super::wire::{self, option, reply};
use crate::target::Geometry;
use anyhow::{Context, Result, bail, ensure};
use std::io::{Read, Write};

/// Longest option reply taken, in bytes.
const REPLY_BYTES_MAX: usize = 64 << 10;

/// What was agreed on.
#[derive(Debug)]
pub struct Agreed {
    /// What the server says about the export.
    pub geometry: Geometry,
    /// Whether replies are structured.
    pub structured: bool,
}

fn read_u16(s: &mut impl Read) -> Result<u16> {
    let mut b = [0; 2];
    s.read_exact(&mut b)?;
    Ok(u16::from_be_bytes(b))
}

fn read_u32(s: &mut impl Read) -> Result<u32> {
    let mut b = [0; 4];
    s.read_exact(&mut b)?;
    Ok(u32::from_be_bytes(b))
}

fn read_u64(s: &mut impl Read) -> Result<u64> {
    let mut b = [0; 8];
    s.read_exact(&mut b)?;
    Ok(u64::from_be_bytes(b))
}

fn send_option(s: &mut impl Write, number: u32, data: &[u8]) -> Result<()> {
    let mut message = wire::OPTION_MAGIC.to_be_bytes().to_vec();
    message.extend(number.to_be_bytes());
    message.extend((data.len() as u32).to_be_bytes());
    message.extend(data);
    s.write_all(&message)?;
    Ok(())
}

fn read_reply(s: &mut impl Read, number: u32) -> Result<(u32, Vec<u8>)> {
    ensure!(read_u64(s)? == wire::OPTION_REPLY_MAGIC, "an option's reply has no magic number");
    let (of, kind, length) = (read_u32(s)?, read_u32(s)?, read_u32(s)? as usize);
    ensure!(of == number, "the reply is to option {of}, {number} was asked");
    ensure!(length <= REPLY_BYTES_MAX, "an option's reply of {length} bytes");
    let mut data = vec![0; length];
    s.read_exact(&mut data)?;
    Ok((kind, data))
}

/// Negotiates export `name`.
pub fn negotiate<S: Read + Write>(s: &mut S, name: &str, want_structured: bool) -> Result<Agreed> {
    ensure!(read_u64(s).context("no greeting")? == wire::GREETING_MAGIC, "the greeting has no magic number");
    ensure!(read_u64(s)? == wire::OPTION_MAGIC, "the server does not speak newstyle");
    let server_flags = read_u16(s)?;
    ensure!(server_flags & 1 != 0, "the server does not speak fixed newstyle");
    s.write_all(&u32::from(server_flags & 3).to_be_bytes())?;
    let mut structured = false;
    if want_structured {
        send_option(s, option::STRUCTURED_REPLY, &[])?;
        structured = read_reply(s, option::STRUCTURED_REPLY)?.0 == reply::ACK;
    }
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name.as_bytes());
    // One request for information: block sizes. A client that knows them keeps to them.
    data.extend([0, 1]);
    data.extend(wire::INFO_BLOCK_SIZE.to_be_bytes());
    send_option(s, option::GO, &data)?;
    let mut geometry = Geometry { block_bytes: 1, queues: 1, ..Geometry::default() };
    let mut seen = false;
    loop {
        let (kind, data) = read_reply(s, option::GO)?;
        match kind {
            reply::ACK => break,
            reply::INFO => match (data.get(..2), data.len()) {
                (Some([0, 0]), 12) => {
                    let flags = u16::from_be_bytes([data[10], data[11]]);
                    let has = |bit: u16| flags & bit != 0;
                    geometry.size_bytes = u64::from_be_bytes(data[2..10].try_into().expect("eight bytes"));
                    geometry.read_only = has(wire::flag::READ_ONLY);
                    geometry.flush = has(wire::flag::SEND_FLUSH);
                    geometry.discard = has(wire::flag::SEND_TRIM);
                    geometry.write_zeroes = has(wire::flag::SEND_WRITE_ZEROES);
                    geometry.queues = if has(wire::flag::CAN_MULTI_CONN) { u32::MAX } else { 1 };
                    geometry.features = format!("{flags:#x}");
                    seen = true;
                }
                (Some([0, 3]), 14) => {
                    geometry.block_bytes = u32::from_be_bytes(data[2..6].try_into().expect("four bytes"));
                }
                _ => {}
            },
            k => bail!("the server refuses export {name:?} (reply {k:#x}): {}", String::from_utf8_lossy(&data)),
        }
    }
    ensure!(seen, "the server did not say how large export {name:?} is");
    Ok(Agreed { geometry, structured })
}
