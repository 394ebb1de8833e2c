//! The front end under arbitrary input, without a socket: what the fuzz targets and the tests run.
//!
//! Owns a disk of bytes, and an independent reader of replies. Never opens a socket.
//! Invariant checked here: each request is answered exactly once, in a form the protocol allows, and with the bytes
//! that the disk held; memory stays within its bound.

use crate::faults::Switched;
pub use crate::nbd::byte_stream::{ByteStream, Wire};
use std::collections::HashMap;
use std::sync::Arc;
use undercroft_cache::{DiskId, Extent, Geometry, IoError, Op, Request};
use undercroft_frontend::nbd::handshake::{Handshake, HandshakeStep, Menu};
use undercroft_frontend::nbd::port::{NbdPort, NewPort, PortLimits};
use undercroft_frontend::nbd::rules::{ExportRules, RequestHeader, Verdict};
use undercroft_frontend::nbd::wire::{self, WireReader, command, command_flag};
use undercroft_frontend::nbd::{ExportInfo, Exports, Listed, ServedExport, TlsMode};
use undercroft_frontend::turns::SEND_BYTES;
use undercroft_frontend::{DiskInfo, MakePort, OnPort, Port, PortHost};

/// A disk in memory that serves requests at once.
#[derive(Clone, Debug)]
pub struct ByteDisk {
    /// Its contents.
    pub bytes: Vec<u8>,
    /// If set, how every request ends.
    pub fails: Option<IoError>,
}

impl ByteDisk {
    /// A disk on which every byte tells its place: they begin anew after 251.
    pub fn new(size: usize) -> Self {
        // Copied and not counted: tests make thousands of disks of some MiB.
        let mut bytes = (0..251).collect::<Vec<u8>>().repeat(size.div_ceil(251));
        bytes.truncate(size);
        Self { bytes, fails: None }
    }

    /// Does what a request asks for, and moves its data, but does not reply.
    pub fn execute(&mut self, r: &Request, port: &mut dyn Port) -> Result<(), IoError> {
        let range = r.offset as usize..(r.offset + r.len) as usize;
        if let Some(e) = self.fails {
            return Err(e);
        }
        match r.op {
            Op::Read => {
                // In pieces that end at block boundaries, as the core does it.
                let mut at = range.start;
                while at < range.end {
                    let end = (at / 4096 * 4096 + 4096).min(range.end);
                    port.copy_out(r.id.tag, at - range.start, &self.bytes[at..end]);
                    at = end;
                }
            }
            Op::Write { .. } => {
                for (n, piece) in self.bytes[range].chunks_mut(4096).enumerate() {
                    port.copy_in(r.id.tag, n * 4096, piece);
                }
            }
            Op::Discard | Op::WriteZeroes { .. } => self.bytes[range].fill(0),
            Op::Flush => {}
            Op::Status => {
                let piece = |len| Extent { len, hole: len % 3 == 0, zero: len % 2 == 0 };
                port.extents(r.id.tag, &[piece(4096), piece(512), piece(0), piece(r.len)]);
            }
        }
        Ok(())
    }

    /// Does and replies to everything in `requests`.
    pub fn serve(&mut self, requests: &mut Vec<Request>, port: &mut dyn Port) {
        for r in requests.drain(..) {
            let result = self.execute(&r, port);
            port.reply(r.id.tag, result);
        }
    }
}

/// One disk, and no worker: for handshakes only.
pub struct OneExport(pub Geometry);

struct NoHost;

impl PortHost for NoHost {
    fn attach(&self, _: MakePort) -> u32 {
        u32::MAX
    }

    fn with(&self, _: u32, _: OnPort) -> bool {
        false
    }

    fn detach(&self, _: u32) {}
}

impl Exports for OneExport {
    fn list(&self) -> Vec<ExportInfo> {
        vec![ExportInfo { name: "disk".to_owned(), description: "a disk of bytes".to_owned() }]
    }

    fn find(&self, name: &str) -> Option<ServedExport> {
        let info =
            DiskInfo { name: name.to_owned(), disk: DiskId(0), geometry: self.0.clone(), serial: "bytes".to_owned() };
        (name == "disk").then(|| ServedExport {
            info,
            description: "a disk of bytes".to_owned(),
            host: Arc::new(NoHost),
        })
    }
}

/// The same under another name, too.
struct Two(OneExport);

impl Exports for Two {
    fn list(&self) -> Vec<ExportInfo> {
        let other = ExportInfo { name: "diskette".to_owned(), description: String::new() };
        self.0.list().into_iter().chain([other]).collect()
    }

    fn find(&self, name: &str) -> Option<ServedExport> {
        let mut export = self.0.find("disk")?;
        export.info.name = name.to_owned();
        ["disk", "diskette"].contains(&name).then_some(export)
    }
}

/// A geometry without restrictions.
pub fn geometry(size_bytes: u64) -> Geometry {
    Geometry { size_bytes, align: 1, read_only: false, can_discard: true, can_write_zeroes: true }
}

/// Feeds `data` to a handshake, raw, in pieces, and once more with frames put around what it says.
pub fn fuzz_handshake(data: &[u8]) {
    shake(data);
    // Each option of the framed form: a byte for the option, one for the length of its data, the data.
    let mut framed = vec![0, 0, 0, data.first().map_or(3, |b| b & 3)];
    let mut r = WireReader(data.get(1..).unwrap_or_default());
    while let Some([option, len, ..]) = r.bytes(2) {
        let body = r.bytes(usize::from(*len).min(r.0.len())).unwrap_or_default();
        framed.extend(wire::OPTION_MAGIC.to_be_bytes());
        framed.extend(u32::from(option & 15).to_be_bytes());
        if option & 0x80 == 0 {
            framed.extend((body.len() as u32).to_be_bytes());
            framed.extend(body);
        } else {
            // A name that exists, then arbitrary queries or wishes.
            framed.extend((body.len() as u32 + 8).to_be_bytes());
            framed.extend(4u32.to_be_bytes());
            framed.extend(b"disk");
            framed.extend(body);
        }
    }
    shake(&framed);
}

fn shake(data: &[u8]) {
    let exports = Listed { all: Arc::new(Two(OneExport(geometry(1 << 20)))), names: vec!["disk".to_owned()] };
    let mut out = Vec::new();
    let mut handshake = Handshake::new(&mut out);
    let room = !data.len().is_multiple_of(7);
    let tls = [TlsMode::Off, TlsMode::Offer, TlsMode::Require][data.len() / 7 % 3];
    let menu = Menu { exports: &exports, default: None, room: &|_| room, tls };
    let mut pushed = 0;
    for piece in data.chunks(data.len() / 3 + 1) {
        let mut bytes = piece;
        pushed += piece.len();
        loop {
            let before = out.len();
            match handshake.push(bytes, menu, &mut out) {
                HandshakeStep::Close(_) => return check_option_replies(&out),
                HandshakeStep::Agreed(a) => {
                    assert!(data[..pushed].ends_with(&a.rest));
                    assert!(!a.block_status || a.structured);
                    assert!(tls != TlsMode::Require || handshake.is_secure(), "an export without TLS");
                    assert!(a.export.info.name == "disk", "an export that the listener does not have");
                    return;
                }
                // What follows is decrypted, as far as the handshake is concerned.
                HandshakeStep::StartTls => assert!(tls != TlsMode::Off && handshake.is_secure()),
                HandshakeStep::More => {}
            }
            check_option_replies(&out);
            assert!(out.len() < 1 << 20);
            if out.len() == before || bytes.is_empty() && out.len() < 18 {
                break;
            }
            // As the server does: all is sent before more is looked at.
            out.truncate(18);
            bytes = &[];
        }
    }
}

fn check_option_replies(out: &[u8]) {
    let mut r = WireReader(&out[18..]);
    while !r.0.is_empty() {
        assert_eq!(r.u64(), Some(wire::OPTION_REPLY_MAGIC));
        r.u64().expect("option and type");
        r.counted().expect("whole data");
    }
}

/// Pieces in which a stream arrives at most: each is looked at when it comes, and a few bytes of input are a stream of
/// megabytes.
const PIECES_MAX: usize = 1 << 15;

/// Bytes that arrive at a time: as many as an input says, or more where that would be too many pieces.
fn piece_of(stream: &[u8], piece: u8) -> usize {
    match piece {
        0 => 0,
        piece => usize::from(piece).max(stream.len().div_ceil(PIECES_MAX)),
    }
}

/// Feeds requests to a port in all manner of ways, and checks all replies.
pub fn fuzz_commands(data: &[u8]) {
    let Some((&[mode, piece, order, limits], rest)) = data.split_first_chunk() else { return };
    let mut geometry = geometry(300_000);
    geometry.read_only = mode & 0x10 != 0;
    geometry.can_discard = mode & 0x20 == 0;
    geometry.can_write_zeroes = mode & 0x40 == 0;
    let rules = ExportRules::new(&geometry, mode & 1 != 0, mode & 3 == 3);
    let (mut stream, sent) = if mode & 4 == 0 { (frame(rest), true) } else { (rest.to_vec(), false) };
    if mode & 8 != 0 {
        stream.truncate(stream.len() - stream.len().min(usize::from(order)));
    }
    let limits = PortLimits { requests_max: 1 + usize::from(limits & 15), bytes_max: usize::from(limits) << 12 };
    let fails = (mode & 0x80 != 0).then_some(IoError::NoSpace);
    let mut run = Run::new(rules, limits, piece_of(&stream, piece), u64::from(order));
    run.disk.fails = fails;
    run.all(&stream, sent && mode & 8 == 0);
}

/// Turns arbitrary bytes into requests with good magic numbers, most of them sensible.
fn frame(mut data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some((&[command, flags, place, len, fine], rest)) = data.split_first_chunk() {
        data = rest;
        let command = u16::from(command % 10);
        if command == command::DISC && fine & 3 != 0 {
            continue;
        }
        let zero = command == command::FLUSH && fine & 1 == 0;
        let offset = if zero { 0 } else { u64::from(place) * 1200 + u64::from(fine & 15) };
        let len = match fine >> 5 {
            _ if zero => 0,
            0 => u32::from(len),
            7 if command != command::WRITE => u32::MAX - u32::from(len),
            6 => u32::from(len) * 2048,
            _ => u32::from(len) * 256,
        };
        out.extend(request(u16::from(flags & 31), command, offset, len, out.len() as u64));
        if command == command::WRITE {
            out.extend((0..len).map(|n| (n as u8).wrapping_mul(fine).wrapping_add(place)));
        }
    }
    out
}

/// The header of a request.
pub fn request(flags: u16, command: u16, offset: u64, len: u32, cookie: u64) -> Vec<u8> {
    let mut h = wire::REQUEST_MAGIC.to_be_bytes().to_vec();
    h.extend(flags.to_be_bytes());
    h.extend(command.to_be_bytes());
    h.extend(cookie.to_be_bytes());
    h.extend(offset.to_be_bytes());
    h.extend(len.to_be_bytes());
    h
}

/// One reply, as an independent reader of the stream sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Success with data.
    Data(Vec<u8>),
    /// Success without.
    Done,
    /// An error.
    Error(u32),
    /// Extents: length and state.
    Extents(Vec<(u32, u32)>),
}

/// What reads have asked for, by cookie: the offset and the bytes. Without it a simple reply cannot be read, and a
/// structured one not be told from one that brings other bytes.
pub type Reads = HashMap<u64, (u64, usize)>;

/// Reads the replies in `output`. The rest that is no whole reply is returned, too.
///
/// # Panics
/// If it is not what the protocol allows.
pub fn replies<'a>(output: &'a [u8], reads: &Reads) -> (Vec<(u64, Reply)>, &'a [u8]) {
    let mut r = WireReader(output);
    let mut all = Vec::new();
    loop {
        let whole = r.0;
        let Some(magic) = r.u32() else { return (all, whole) };
        let one = if magic == wire::SIMPLE_REPLY_MAGIC { simple(&mut r, reads) } else { chunk(&mut r, magic, reads) };
        match one {
            Some(one) => all.push(one),
            None => return (all, whole),
        }
    }
}

fn simple(r: &mut WireReader<'_>, reads: &Reads) -> Option<(u64, Reply)> {
    let (error, cookie) = (r.u32()?, r.u64()?);
    let reply = match (error, reads.get(&cookie)) {
        (0, Some(&(_, n))) => Reply::Data(r.bytes(n)?.to_vec()),
        (0, None) => Reply::Done,
        (e, _) => Reply::Error(e),
    };
    Some((cookie, reply))
}

fn chunk(r: &mut WireReader<'_>, magic: u32, reads: &Reads) -> Option<(u64, Reply)> {
    assert_eq!(magic, wire::CHUNK_MAGIC);
    let (flags, kind, cookie) = (r.u16()?, r.u16()?, r.u64()?);
    let mut body = WireReader(r.counted()?);
    assert_eq!(flags, wire::chunk::DONE);
    let reply = match kind {
        wire::chunk::NONE => Reply::Done,
        wire::chunk::OFFSET_DATA => {
            let offset = body.u64()?;
            let data = std::mem::take(&mut body.0).to_vec();
            assert_eq!(reads.get(&cookie), Some(&(offset, data.len())), "a chunk of other bytes than were asked for");
            Reply::Data(data)
        }
        wire::chunk::ERROR => {
            let error = body.u32()?;
            let words = body.u16()?;
            assert!(std::str::from_utf8(body.bytes(usize::from(words))?).is_ok());
            Reply::Error(error)
        }
        wire::chunk::BLOCK_STATUS => {
            assert_eq!(body.u32(), Some(wire::CONTEXT_ID));
            let mut extents = Vec::new();
            while let Some(len) = body.u32() {
                extents.push((len, body.u32()?));
            }
            Reply::Extents(extents)
        }
        _ => panic!("a chunk of type {kind}"),
    };
    assert!(body.0.is_empty());
    Some((cookie, reply))
}

/// A port, its disk, and what is expected of them.
pub struct Run {
    /// The port.
    pub port: NbdPort<ByteStream, Switched>,
    /// Its disk.
    pub disk: ByteDisk,
    /// The other end of its stream.
    pub wire: ByteStream,
    rules: ExportRules,
    limits: PortLimits,
    /// Done, but not replied to yet.
    waiting: Vec<(Request, Result<(), IoError>)>,
    random: u64,
}

impl Run {
    /// A port that receives at most `piece` bytes at a time; `order` decides about the order of replies.
    pub fn new(rules: ExportRules, limits: PortLimits, piece: usize, order: u64) -> Self {
        let wire = ByteStream::default();
        wire.with(|w| w.piece = piece);
        let port = NbdPort::with_faults(NewPort {
            port: 7,
            disk: DiskId(3),
            rules,
            limits,
            peer: String::new(),
            stream: wire.clone(),
            first: Vec::new(),
            on_close: None,
            account: None,
        });
        let disk = ByteDisk::new(rules.size_bytes as usize);
        Self { port, disk, wire, rules, limits, waiting: Vec::new(), random: order | 1 }
    }

    fn dice(&mut self, sides: usize) -> usize {
        self.random = self.random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.random >> 33) as usize % sides
    }

    /// Sends all of `input` and has it served; checks every reply. If `whole`, every request must have got one.
    pub fn all(&mut self, input: &[u8], whole: bool) {
        let (expected, disconnects) = expectations(input, &self.rules);
        self.wire.with(|w| w.input = input.to_vec());
        let asked = expected.iter().filter(|e| e.1 == Verdict::Read);
        let reads: Reads = asked.map(|e| (e.0.cookie, (e.0.offset, e.0.len as usize))).collect();
        let mut contents: HashMap<u64, Vec<u8>> = HashMap::new();
        let mut requests = Vec::new();
        let mut idle = 0;
        while idle < 4 {
            let news = self.wire.with(Wire::arrive);
            let budget = 1 + self.dice(8);
            let more = self.port.take(budget, &mut requests);
            assert!(requests.len() <= budget);
            for r in std::mem::take(&mut requests) {
                assert_eq!((r.id.port, r.disk), (7, DiskId(3)));
                assert!(r.offset.checked_add(r.len).is_some_and(|end| end <= self.rules.size_bytes));
                let result = self.disk.execute(&r, &mut self.port);
                self.waiting.push((r, result));
            }
            assert_eq!(self.port.inflight(), self.waiting.len() + self.port.steps_to_go());
            assert!(self.waiting.len() <= self.limits.requests_max);
            let full = self.waiting.len() == self.limits.requests_max;
            let n = if idle > 0 || full { self.waiting.len() } else { self.dice(self.waiting.len() + 1) };
            for _ in 0..n {
                let k = self.dice(self.waiting.len());
                let (r, result) = self.waiting.swap_remove(k);
                self.port.reply(r.id.tag, result);
            }
            let room = if idle > 1 { 1 << 30 } else { self.dice(5000) };
            self.wire.with(|w| w.room = room);
            self.port.flush(SEND_BYTES);
            let more = more || self.port.has_more_to_send();
            let quiet = !news && !more && n == 0 && !self.port.arm();
            idle = if quiet { idle + 1 } else { 0 };
            if quiet && idle == 3 {
                self.wire.with(|w| w.ended = true);
            }
        }
        let closed = self.wire.with(|w| w.closed);
        let output = self.wire.with(|w| std::mem::take(&mut w.output));
        let (got, rest) = replies(&output, &reads);
        assert!(rest.is_empty() || !whole, "half a reply at the end");
        assert_eq!(self.port.inflight(), 0);
        if whole {
            assert!(closed || !disconnects);
            assert_eq!(got.len(), expected.len(), "as many replies as requests");
        }
        for (cookie, reply) in got {
            let (h, verdict) = expected.iter().find(|e| e.0.cookie == cookie).expect("a reply to a request");
            contents.entry(cookie).or_default();
            match (verdict, &reply) {
                (Verdict::Refuse(e), Reply::Error(got)) => assert_eq!(e, got),
                (Verdict::Refuse(_), _) => panic!("{h:?} should be refused: {reply:?}"),
                (_, Reply::Error(_)) => assert!(self.disk.fails.is_some(), "{h:?} failed: {reply:?}"),
                (Verdict::Read, Reply::Data(d)) => assert_eq!(d.len(), h.len as usize),
                (Verdict::Status { one }, Reply::Extents(x)) => {
                    let sum: u64 = x.iter().map(|e| u64::from(e.0)).sum();
                    assert!(!x.is_empty() && x.iter().all(|e| e.0 > 0) && sum <= u64::from(h.len));
                    assert!(!one || x.len() == 1);
                }
                (Verdict::Read | Verdict::Status { .. }, _) => panic!("{h:?}: {reply:?}"),
                (_, Reply::Done) => assert!(self.disk.fails.is_none() || *verdict == Verdict::Done),
                _ => panic!("{h:?}: {reply:?}"),
            }
        }
    }
}

/// The requests in `input` and what should become of them, until it ends or makes no sense; whether it ends with a
/// goodbye.
fn expectations(input: &[u8], rules: &ExportRules) -> (Vec<(RequestHeader, Verdict)>, bool) {
    let mut r = WireReader(input);
    let mut all = Vec::new();
    while let Some(bytes) = r.bytes(wire::REQUEST_HEADER) {
        let Some(h) = bytes.try_into().ok().and_then(RequestHeader::parse) else { break };
        let verdict = rules.judge(&h);
        if verdict == Verdict::Disconnect {
            return (all, true);
        }
        assert!(
            h.flags & command_flag::FAST_ZERO == 0 || h.command == command::WRITE_ZEROES || verdict_is_error(verdict)
        );
        all.push((h, verdict));
        if r.bytes(h.payload() as usize).is_none() {
            break;
        }
    }
    (all, false)
}

fn verdict_is_error(v: Verdict) -> bool {
    matches!(v, Verdict::Refuse(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_of_megabytes_arrives_in_a_bounded_number_of_pieces() {
        for (bytes, piece) in [(4_500_000, 1), (4_500_000, 255), (100, 1), (0, 1), (4_500_000, 0)] {
            let input = vec![0; bytes];
            let mut wire = Wire { piece: piece_of(&input, piece), input, ..Wire::default() };
            let pieces = std::iter::from_fn(|| wire.arrive().then_some(())).count();
            assert!(pieces <= PIECES_MAX, "{bytes} bytes by {piece}: {pieces} pieces");
            assert_eq!(wire.arrived, bytes, "all of it has arrived");
            assert!(bytes != 100 || pieces == 100, "a short stream arrives as the input says");
        }
    }
}
