//! The handshake with an NBD server: fixed newstyle, structured replies, `base:allocation`, block sizes, `NBD_OPT_GO`.
//!
//! Owns what is asked for and what is made of the answers (the NBD project's doc/proto.md). Never reads past the
//! handshake, and never looks at a clock: its caller bounds how long the stream waits. Invariant: whatever the server
//! sends, at most `REPLY_BYTES_MAX` of it are kept, and at most `REPLIES_MAX` answers are read.

use std::io::{self, Read, Write};

const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
const OLDSTYLE: u64 = 0x0000_4202_8186_1253;
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

const FLAG_FIXED_NEWSTYLE: u16 = 1;
const FLAG_NO_ZEROES: u16 = 2;

const OPT_EXPORT_NAME: u32 = 1;
const OPT_GO: u32 = 7;
const OPT_STRUCTURED_REPLY: u32 = 8;
const OPT_SET_META_CONTEXT: u32 = 10;

const REP_ACK: u32 = 1;
const REP_INFO: u32 = 3;
const REP_META_CONTEXT: u32 = 4;
const REP_ERR: u32 = 1 << 31;
const REP_ERR_UNSUP: u32 = REP_ERR + 1;

const INFO_EXPORT: u16 = 0;
const INFO_BLOCK_SIZE: u16 = 3;

/// Bytes of one answer at most.
const REPLY_BYTES_MAX: u32 = 64 << 10;
/// Answers to one option at most.
const REPLIES_MAX: usize = 1000;

/// Transmission flags.
pub const READ_ONLY: u16 = 1 << 1;
/// Transmission flags.
pub const SEND_FLUSH: u16 = 1 << 2;
/// Transmission flags.
pub const SEND_FUA: u16 = 1 << 3;
/// Transmission flags.
pub const SEND_TRIM: u16 = 1 << 5;
/// Transmission flags.
pub const SEND_WRITE_ZEROES: u16 = 1 << 6;

/// What a server says about an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Export {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Transmission flags.
    pub flags: u16,
    /// Smallest block, if the server said.
    pub block_min: Option<u32>,
    /// Largest read or write.
    pub block_max: u32,
    /// Whether reads are answered in chunks.
    pub structured: bool,
    /// The server's number for `base:allocation`, if it has it.
    pub allocation: Option<u32>,
}

/// Why a handshake ends without an export: a sentence without its start.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The connection failed.
    #[error("{}", lost(.0))]
    Lost(#[from] io::Error),
    /// Something else answers.
    #[error("what answers there is not an NBD server")]
    NotNbd,
    /// A protocol that is not spoken here.
    #[error("the server speaks only the oldstyle protocol; use a newer one")]
    Oldstyle,
    /// A protocol that is not spoken here.
    #[error("the server does not speak the fixed newstyle protocol; use a newer one")]
    NotFixed,
    /// An answer that the option does not have.
    #[error("the server answers {option} with {kind:#x}")]
    Unexpected {
        /// The option.
        option: &'static str,
        /// The kind of the answer.
        kind: u32,
    },
    /// More answers than an option has.
    #[error("the server's {0} has no end")]
    Endless(&'static str),
    /// A description of the wrong length.
    #[error("the server describes the export in a malformed way")]
    Malformed,
    /// A description without a size.
    #[error("the server does not say how large the export is")]
    NoSize,
    /// The connection ended where the server would have told the size.
    #[error("{lost}; perhaps it has no export named \"{export}\"")]
    NoExport {
        /// How it ended.
        lost: Box<HandshakeError>,
        /// The export.
        export: String,
    },
    /// An answer to something else.
    #[error("the server's answer to an option makes no sense")]
    Nonsense,
    /// An answer that is too long, with its bytes.
    #[error("the server's answer to an option is too long ({0} bytes)")]
    TooLong(u32),
    /// The server says no.
    #[error("{}", refusal(*.code, .export, .words))]
    Refused {
        /// Its number.
        code: u32,
        /// The export.
        export: String,
        /// What it says, ready to follow.
        words: String,
    },
    /// A size that no disk has.
    #[error("the server says that the export has {0} bytes")]
    Size(u64),
    /// Sizes of blocks that make no sense.
    #[error("the server says that blocks have {0} to {1} bytes")]
    Blocks(u32, u32),
    /// Blocks that are too large.
    #[error(
        "the server takes only blocks of {0} bytes or more, 4096 are supported at most; put a filter before it that \
         takes smaller ones, for instance `nbdkit --filter=blocksize`"
    )]
    LargeBlocks(u32),
    /// Requests that are too small.
    #[error("the server takes at most {0} bytes at a time, 4096 are needed")]
    SmallRequests(u32),
}

/// Carries the handshake out on a fresh connection.
///
/// # Errors
/// See [`HandshakeError`].
pub fn handshake<S: Read + Write>(stream: &mut S, export: &str) -> Result<Export, HandshakeError> {
    Handshake { stream }.run(export)
}

struct Handshake<'a, S> {
    stream: &'a mut S,
}

/// One answer to an option.
struct Answer {
    kind: u32,
    data: Vec<u8>,
}

impl Answer {
    /// Whether the server does not do that at all.
    fn refused(&self) -> bool {
        self.kind & REP_ERR != 0
    }

    /// The server's own words, cleaned of what does not belong on a terminal.
    fn words(&self) -> String {
        let s: String = String::from_utf8_lossy(&self.data).chars().filter(|c| !c.is_control()).take(200).collect();
        if s.is_empty() { String::new() } else { format!(" (it says: {s})") }
    }
}

fn lost(e: &io::Error) -> String {
    match e.kind() {
        io::ErrorKind::UnexpectedEof => "the server closed the connection during the handshake".to_owned(),
        io::ErrorKind::TimedOut => "the server has not finished the handshake in time".to_owned(),
        _ => format!("the connection failed during the handshake: {e}"),
    }
}

impl<S: Read + Write> Handshake<'_, S> {
    fn run(&mut self, export: &str) -> Result<Export, HandshakeError> {
        match self.u64()? {
            NBDMAGIC => {}
            _ => return Err(HandshakeError::NotNbd),
        }
        match self.u64()? {
            IHAVEOPT => {}
            OLDSTYLE => return Err(HandshakeError::Oldstyle),
            _ => return Err(HandshakeError::NotNbd),
        }
        let flags = u16::from_be_bytes(self.bytes()?);
        if flags & FLAG_FIXED_NEWSTYLE == 0 {
            return Err(HandshakeError::NotFixed);
        }
        let ours = flags & (FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES);
        self.send(&u32::from(ours).to_be_bytes())?;
        self.option(OPT_STRUCTURED_REPLY, &[])?;
        let structured = self.last_answer(OPT_STRUCTURED_REPLY)?.kind == REP_ACK;
        let allocation = if structured { self.allocation(export)? } else { None };
        self.go(export, structured, allocation, ours & FLAG_NO_ZEROES != 0)
    }

    /// Asks for the context `base:allocation`.
    fn allocation(&mut self, export: &str) -> Result<Option<u32>, HandshakeError> {
        let query = b"base:allocation";
        let mut data = string(export.as_bytes());
        data.extend_from_slice(&1u32.to_be_bytes());
        data.extend_from_slice(&string(query));
        self.option(OPT_SET_META_CONTEXT, &data)?;
        let mut id = None;
        for _ in 0..REPLIES_MAX {
            let a = self.answer(OPT_SET_META_CONTEXT)?;
            match (a.kind, a.data.split_first_chunk::<4>()) {
                (REP_META_CONTEXT, Some((number, name))) if name == query => id = Some(u32::from_be_bytes(*number)),
                (REP_META_CONTEXT, _) => {}
                (REP_ACK, _) => return Ok(id),
                // Also for an export that is not there: OPT_GO says so in words.
                _ if a.refused() => return Ok(None),
                _ => return Err(HandshakeError::Unexpected { option: "OPT_SET_META_CONTEXT", kind: a.kind }),
            }
        }
        Err(HandshakeError::Endless("list of contexts"))
    }

    fn go(
        &mut self,
        export: &str,
        structured: bool,
        allocation: Option<u32>,
        no_zeroes: bool,
    ) -> Result<Export, HandshakeError> {
        let mut data = string(export.as_bytes());
        data.extend_from_slice(&1u16.to_be_bytes());
        data.extend_from_slice(&INFO_BLOCK_SIZE.to_be_bytes());
        self.option(OPT_GO, &data)?;
        let mut found = None;
        let mut blocks = None;
        for _ in 0..REPLIES_MAX {
            let a = self.answer(OPT_GO)?;
            match a.kind {
                REP_INFO => match (info_kind(&a.data), a.data.get(2..)) {
                    (Some(INFO_EXPORT), Some(d)) if d.len() == 10 => found = Some((be(&d[..8]), be(&d[8..]) as u16)),
                    (Some(INFO_BLOCK_SIZE), Some(d)) if d.len() == 12 => {
                        blocks = Some((be(&d[..4]) as u32, be(&d[8..]) as u32));
                    }
                    (Some(INFO_EXPORT | INFO_BLOCK_SIZE) | None, _) => {
                        return Err(HandshakeError::Malformed);
                    }
                    _ => {}
                },
                REP_ACK => {
                    let (size_bytes, flags) = found.ok_or(HandshakeError::NoSize)?;
                    return finish(size_bytes, flags, blocks, structured, allocation);
                }
                REP_ERR_UNSUP => {
                    let (size_bytes, flags) = self.export_name(export, no_zeroes)?;
                    return finish(size_bytes, flags, None, structured, allocation);
                }
                _ if a.refused() => {
                    return Err(HandshakeError::Refused {
                        code: a.kind - REP_ERR,
                        export: export.to_owned(),
                        words: a.words(),
                    });
                }
                _ => return Err(HandshakeError::Unexpected { option: "OPT_GO", kind: a.kind }),
            }
        }
        Err(HandshakeError::Endless("description of the export"))
    }

    /// The older way to choose an export; the server just closes the connection if there is none of that name.
    fn export_name(&mut self, export: &str, no_zeroes: bool) -> Result<(u64, u16), HandshakeError> {
        self.option(OPT_EXPORT_NAME, export.as_bytes())?;
        let size = self.u64().map_err(|e| match e {
            // It has not closed the connection, so this says nothing about the export.
            HandshakeError::Lost(late) if late.kind() == io::ErrorKind::TimedOut => HandshakeError::Lost(late),
            e => HandshakeError::NoExport { lost: Box::new(e), export: export.to_owned() },
        })?;
        let flags = u16::from_be_bytes(self.bytes()?);
        if !no_zeroes {
            self.bytes::<124>()?;
        }
        Ok((size, flags))
    }

    fn option(&mut self, option: u32, data: &[u8]) -> Result<(), HandshakeError> {
        let mut b = Vec::with_capacity(16 + data.len());
        b.extend_from_slice(&IHAVEOPT.to_be_bytes());
        b.extend_from_slice(&option.to_be_bytes());
        b.extend_from_slice(&(data.len() as u32).to_be_bytes());
        b.extend_from_slice(data);
        self.send(&b)
    }

    /// The one answer to an option that has one.
    fn last_answer(&mut self, option: u32) -> Result<Answer, HandshakeError> {
        self.answer(option)
    }

    fn answer(&mut self, option: u32) -> Result<Answer, HandshakeError> {
        if self.u64()? != REPLY_MAGIC || u32::from_be_bytes(self.bytes()?) != option {
            return Err(HandshakeError::Nonsense);
        }
        let kind = u32::from_be_bytes(self.bytes()?);
        let len = u32::from_be_bytes(self.bytes()?);
        if len > REPLY_BYTES_MAX {
            return Err(HandshakeError::TooLong(len));
        }
        let mut data = vec![0; len as usize];
        self.stream.read_exact(&mut data)?;
        Ok(Answer { kind, data })
    }

    fn u64(&mut self) -> Result<u64, HandshakeError> {
        Ok(u64::from_be_bytes(self.bytes()?))
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], HandshakeError> {
        let mut b = [0; N];
        self.stream.read_exact(&mut b)?;
        Ok(b)
    }

    fn send(&mut self, b: &[u8]) -> Result<(), HandshakeError> {
        self.stream.write_all(b)?;
        Ok(self.stream.flush()?)
    }
}

fn info_kind(data: &[u8]) -> Option<u16> {
    data.get(..2).map(|d| be(d) as u16)
}

fn refusal(code: u32, export: &str, words: &str) -> String {
    match code {
        2 => format!("the server's policy forbids the export \"{export}\"{words}"),
        5 => format!("the server demands TLS, which is not supported{words}; reach it through a tunnel"),
        6 => format!("the server has no export named \"{export}\"{words}; list what it has: `nbdinfo --list`"),
        7 => format!("the server is shutting down{words}"),
        n => format!("the server refuses the export \"{export}\" (error {n}){words}"),
    }
}

fn finish(
    size_bytes: u64,
    flags: u16,
    blocks: Option<(u32, u32)>,
    structured: bool,
    allocation: Option<u32>,
) -> Result<Export, HandshakeError> {
    if i64::try_from(size_bytes).is_err() {
        return Err(HandshakeError::Size(size_bytes));
    }
    let (min, max) = match blocks {
        None => (None, 32 << 20),
        Some((min, max)) => {
            if !min.is_power_of_two() || max < min {
                return Err(HandshakeError::Blocks(min, max));
            }
            if min > 4096 {
                return Err(HandshakeError::LargeBlocks(min));
            }
            // At least one cache block at a time; more than 32 MiB is never sent.
            if max < 4096 {
                return Err(HandshakeError::SmallRequests(max));
            }
            (Some(min), max.min(32 << 20) / 4096 * 4096)
        }
    };
    Ok(Export { size_bytes, flags, block_min: min, block_max: max, structured, allocation })
}

fn string(s: &[u8]) -> Vec<u8> {
    let mut b = (s.len() as u32).to_be_bytes().to_vec();
    b.extend_from_slice(s);
    b
}

/// A big-endian number of up to eight bytes.
fn be(b: &[u8]) -> u64 {
    b.iter().take(8).fold(0, |n, &b| n << 8 | u64::from(b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    /// A server that says what it says whatever it is asked.
    struct Script {
        says: Cursor<Vec<u8>>,
        heard: Vec<u8>,
    }

    impl Read for Script {
        fn read(&mut self, b: &mut [u8]) -> io::Result<usize> {
            self.says.read(b)
        }
    }

    impl Write for Script {
        fn write(&mut self, b: &[u8]) -> io::Result<usize> {
            self.heard.extend_from_slice(b);
            Ok(b.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn answer(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
        let mut b = REPLY_MAGIC.to_be_bytes().to_vec();
        b.extend_from_slice(&option.to_be_bytes());
        b.extend_from_slice(&kind.to_be_bytes());
        b.extend_from_slice(&string(data));
        b
    }

    fn greeting() -> Vec<u8> {
        [&NBDMAGIC.to_be_bytes()[..], &IHAVEOPT.to_be_bytes(), &3u16.to_be_bytes()].concat()
    }

    fn shake(parts: &[Vec<u8>]) -> Result<Export, HandshakeError> {
        handshake(&mut Script { says: Cursor::new(parts.concat()), heard: Vec::new() }, "disk")
    }

    /// Why a handshake fails, as it is shown.
    fn refusal_of(parts: &[Vec<u8>]) -> String {
        shake(parts).unwrap_err().to_string()
    }

    fn info_export() -> Vec<u8> {
        [&0u16.to_be_bytes()[..], &(1u64 << 30).to_be_bytes(), &0x6du16.to_be_bytes()].concat()
    }

    fn info_blocks(min: u32, max: u32) -> Vec<u8> {
        [&3u16.to_be_bytes()[..], &min.to_be_bytes(), &4096u32.to_be_bytes(), &max.to_be_bytes()].concat()
    }

    #[test]
    fn a_modern_server_is_understood() {
        let context = [&7u32.to_be_bytes()[..], b"base:allocation"].concat();
        let e = shake(&[
            greeting(),
            answer(8, REP_ACK, &[]),
            answer(10, REP_META_CONTEXT, &context),
            answer(10, REP_ACK, &[]),
            answer(7, REP_INFO, &info_export()),
            answer(7, REP_INFO, &info_blocks(512, 1 << 20)),
            answer(7, REP_ACK, &[]),
        ]);
        let expected = Export {
            size_bytes: 1 << 30,
            flags: 0x6d,
            block_min: Some(512),
            block_max: 1 << 20,
            structured: true,
            allocation: Some(7),
        };
        assert_eq!(e.unwrap(), expected);
    }

    #[test]
    fn an_old_server_is_understood() {
        let old = [&4096u64.to_be_bytes()[..], &1u16.to_be_bytes()].concat();
        let e = shake(&[greeting(), answer(8, REP_ERR_UNSUP, &[]), answer(7, REP_ERR_UNSUP, &[]), old]).unwrap();
        assert_eq!((e.size_bytes, e.structured, e.allocation, e.block_min), (4096, false, None, None));
    }

    #[test]
    fn refusals_are_put_into_words() {
        let tail = |last: Vec<u8>| refusal_of(&[greeting(), answer(8, REP_ERR_UNSUP, &[]), last]);
        assert!(
            tail(answer(7, REP_ERR + 6, b"no such\x1b thing"))
                .contains("no export named \"disk\" (it says: no such thing)")
        );
        assert!(tail(answer(7, REP_ERR + 5, b"")).contains("TLS"));
        assert!(tail(answer(7, REP_ERR + 99, b"")).contains("error 99"));
        assert!(tail(answer(7, REP_ACK, b"")).contains("how large"));
        assert!(tail(answer(7, REP_INFO, &[0, 0, 1])).contains("malformed"));
        assert!(tail(answer(99, REP_ACK, b"")).contains("no sense"));
        assert!(tail(Vec::new()).contains("closed the connection"));
        assert!(refusal_of(&[b"SSH-2.0-OpenSSH_9.2p1 Debian".to_vec()]).contains("not an NBD server"));
        let blocks = |min, max| {
            shake(&[
                greeting(),
                answer(8, REP_ERR_UNSUP, &[]),
                answer(7, REP_INFO, &info_export()),
                answer(7, REP_INFO, &info_blocks(min, max)),
                answer(7, REP_ACK, &[]),
            ])
        };
        assert!(blocks(65536, 1 << 20).unwrap_err().to_string().contains("blocks of 65536 bytes"));
        assert!(blocks(3, 1 << 20).is_err());
        assert!(blocks(1, 512).is_err());
        let mut long = answer(7, REP_INFO, &[]);
        long[16..20].fill(0xff);
        assert!(tail(long).contains("too long"));
    }
}
