//! The handshake: from the greeting to the choice of an export, as a state machine over bytes.
//!
//! Owns what client and server have agreed on so far. Never touches a socket, a clock or a disk.
//! Invariants: input kept and output produced by one call are bounded, whatever the client sends; every option gets
//! exactly one final reply, or the connection ends.

use super::wire::{
    CONTEXT, CONTEXT_ID, GREETING_MAGIC, OPTION_HEADER, OPTION_MAGIC, OPTION_REPLY_MAGIC, STRING_MAX, WireReader,
    handshake_flag, info, option, option_reply,
};
use super::{Exports, ServedExport, TlsMode, rules::ExportRules};
use undercroft_cache::limits::REQUEST_BYTES_MAX;

/// Bytes of an option's data at most; longer ones are skipped and refused.
pub const OPTION_BYTES_MAX: usize = 16 * 1024;
/// Bytes of an option's data past which the client is cut off instead.
const OPTION_SKIP_MAX: u32 = 1024 * 1024;
/// Once this many bytes of replies wait, options wait too.
pub const REPLY_BYTES_PAUSE: usize = 64 * 1024;
/// What we call the best size of a block, in bytes: that of the cache.
const BLOCK_PREFERRED: u32 = 4096;

/// What came of some bytes.
#[derive(Debug)]
pub enum HandshakeStep {
    /// The handshake goes on. If replies were produced, push again (nothing, if need be) once they are sent.
    More,
    /// Send the replies, then close; the words say why.
    Close(&'static str),
    /// Send the replies, then begin TLS, then push what comes out of it.
    StartTls,
    /// Send the replies, then serve the export.
    Agreed(Agreed),
}

/// What a client and the server agreed on.
#[derive(Debug)]
pub struct Agreed {
    /// The export chosen.
    pub export: ServedExport,
    /// Whether replies are structured.
    pub structured: bool,
    /// Whether `base:allocation` may be asked for.
    pub block_status: bool,
    /// Bytes that followed the last option: requests already.
    pub rest: Vec<u8>,
}

/// What is served, as far as a handshake is concerned.
#[derive(Clone, Copy)]
pub struct Menu<'a> {
    /// The exports.
    pub exports: &'a dyn Exports,
    /// The export that the empty name stands for; the only one, if `None`.
    pub default: Option<&'a str>,
    /// Whether one more connection to an export may be served.
    pub room: &'a dyn Fn(&str) -> bool,
    /// Whether the client may, or must, encrypt.
    pub tls: TlsMode,
}

impl Menu<'_> {
    fn find(&self, name: &[u8]) -> Option<ServedExport> {
        let name = std::str::from_utf8(name).ok().filter(|n| n.len() <= STRING_MAX)?;
        if !name.is_empty() {
            return self.exports.find(name);
        }
        match self.default {
            Some(default) => self.exports.find(default),
            None => match self.exports.list().as_slice() {
                [only] => self.exports.find(&only.name),
                _ => None,
            },
        }
    }
}

enum Stage {
    ClientFlags,
    Option,
    Skip { option: u32, left: usize },
}

/// One client's handshake.
pub struct Handshake {
    stage: Stage,
    input: Vec<u8>,
    fixed: bool,
    no_zeroes: bool,
    structured: bool,
    /// Disk name of the export for which `base:allocation` was selected.
    context: Option<String>,
    /// TLS has begun.
    secure: bool,
}

impl Handshake {
    /// Starts a handshake; the greeting goes to `out`.
    pub fn new(out: &mut Vec<u8>) -> Self {
        out.extend(GREETING_MAGIC.to_be_bytes());
        out.extend(OPTION_MAGIC.to_be_bytes());
        out.extend((handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES).to_be_bytes());
        Self {
            stage: Stage::ClientFlags,
            input: Vec::new(),
            fixed: false,
            no_zeroes: false,
            structured: false,
            context: None,
            secure: false,
        }
    }

    /// Whether the client encrypts.
    pub fn is_secure(&self) -> bool {
        self.secure
    }

    /// Takes what the client sent; replies are appended to `out`. Push pieces of at most some ten KiB, and none while
    /// replies wait to be sent: what is pushed is kept.
    pub fn push(&mut self, bytes: &[u8], menu: Menu<'_>, out: &mut Vec<u8>) -> HandshakeStep {
        self.input.extend_from_slice(bytes);
        let mut input = std::mem::take(&mut self.input);
        let mut used = 0;
        let step = loop {
            if out.len() >= REPLY_BYTES_PAUSE {
                break HandshakeStep::More;
            }
            match self.next(&input[used..], menu, out) {
                Next::Starved => break HandshakeStep::More,
                Next::Used(n) => used += n,
                Next::Close(why) => break HandshakeStep::Close(why),
                Next::StartTls(n) if used + n == input.len() => {
                    // What was agreed on in the clear may be another's words: it is forgotten, as the protocol asks.
                    (self.structured, self.context, self.secure) = (false, None, true);
                    return HandshakeStep::StartTls;
                }
                // It would be taken for something said under TLS.
                Next::StartTls(_) => {
                    break HandshakeStep::Close("it sent something in the clear behind its wish for TLS");
                }
                Next::Agreed(n, mut agreed) => {
                    agreed.rest = input.split_off(used + n);
                    return HandshakeStep::Agreed(agreed);
                }
            }
        };
        input.drain(..used);
        self.input = input;
        step
    }

    fn next(&mut self, input: &[u8], menu: Menu<'_>, out: &mut Vec<u8>) -> Next {
        match self.stage {
            Stage::ClientFlags => {
                let Some(flags) = WireReader(input).u32() else { return Next::Starved };
                let known = u32::from(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
                if flags & !known != 0 {
                    return Next::Close("it sent unknown client flags");
                }
                self.fixed = flags & u32::from(handshake_flag::FIXED_NEWSTYLE) != 0;
                self.no_zeroes = flags & u32::from(handshake_flag::NO_ZEROES) != 0;
                self.stage = Stage::Option;
                Next::Used(4)
            }
            Stage::Skip { option, left } => {
                let n = left.min(input.len());
                if n < left {
                    self.stage = Stage::Skip { option, left: left - n };
                    return if n == 0 { Next::Starved } else { Next::Used(n) };
                }
                self.stage = Stage::Option;
                refuse(out, option, option_reply::ERR_TOO_BIG, "the option is too long");
                Next::Used(n)
            }
            Stage::Option => {
                let mut r = WireReader(input);
                match r.u64() {
                    None => return Next::Starved,
                    Some(OPTION_MAGIC) => {}
                    Some(_) => return Next::Close("it does not speak NBD"),
                }
                let (Some(option), Some(len)) = (r.u32(), r.u32()) else { return Next::Starved };
                if len > OPTION_SKIP_MAX {
                    return Next::Close("it sent an option of more than 1 MiB");
                }
                let len = len as usize;
                if len > OPTION_BYTES_MAX {
                    if !self.fixed || option == option::EXPORT_NAME {
                        return Next::Close("it sent an export name that is too long");
                    }
                    self.stage = Stage::Skip { option, left: len };
                    return Next::Used(OPTION_HEADER);
                }
                let Some(data) = r.bytes(len) else { return Next::Starved };
                self.answer(option, data, menu, out)
            }
        }
    }

    /// Answers one whole option.
    fn answer(&mut self, option: u32, data: &[u8], menu: Menu<'_>, out: &mut Vec<u8>) -> Next {
        let used = OPTION_HEADER + data.len();
        if !self.fixed && option != option::EXPORT_NAME {
            return Next::Close("it does not speak the fixed newstyle protocol");
        }
        if menu.tls == TlsMode::Require && !self.secure && !matches!(option, option::STARTTLS | option::ABORT) {
            if option == option::EXPORT_NAME {
                return Next::Close("it asked for an export without TLS");
            }
            refuse(out, option, option_reply::ERR_TLS_REQD, "TLS is required here: begin with it");
            return Next::Used(used);
        }
        match option {
            option::EXPORT_NAME => return self.export_name(data, menu, out),
            option::ABORT => {
                reply(out, option, option_reply::ACK, &[]);
                return Next::Close("it ended the session");
            }
            option::LIST if data.is_empty() => {
                for e in menu.exports.list() {
                    let name = e.name.as_bytes();
                    let Ok(n) = u32::try_from(name.len()) else { continue };
                    reply(out, option, option_reply::SERVER, &[&n.to_be_bytes(), name, e.description.as_bytes()]);
                }
                reply(out, option, option_reply::ACK, &[]);
            }
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                reply(out, option, option_reply::ACK, &[]);
            }
            option::LIST | option::STRUCTURED_REPLY => {
                refuse(out, option, option_reply::ERR_INVALID, "the option takes no data");
            }
            option::INFO | option::GO => {
                if let Some(export) = self.info(option, data, menu, out)
                    && option == option::GO
                {
                    return Next::Agreed(used, self.agree(export));
                }
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.contexts(option, data, menu, out),
            option::STARTTLS if menu.tls == TlsMode::Off => {
                refuse(out, option, option_reply::ERR_UNSUP, "TLS is not served here");
            }
            option::STARTTLS if self.secure => {
                refuse(out, option, option_reply::ERR_INVALID, "TLS has begun already");
            }
            option::STARTTLS if data.is_empty() => {
                reply(out, option, option_reply::ACK, &[]);
                return Next::StartTls(used);
            }
            option::STARTTLS => refuse(out, option, option_reply::ERR_INVALID, "the option takes no data"),
            _ => refuse(out, option, option_reply::ERR_UNSUP, "the option is not supported"),
        }
        Next::Used(used)
    }

    fn agree(&mut self, export: ServedExport) -> Agreed {
        let block_status = self.structured && self.context.as_deref() == Some(&*export.info.name);
        Agreed { export, structured: self.structured, block_status, rest: Vec::new() }
    }

    fn export_name(&mut self, name: &[u8], menu: Menu<'_>, out: &mut Vec<u8>) -> Next {
        let Some(export) = menu.find(name) else { return Next::Close("it asked for an export that does not exist") };
        if !(menu.room)(&export.info.name) {
            return Next::Close("too many connections are open");
        }
        let rules = ExportRules::new(&export.info.geometry, self.structured, false);
        out.extend(rules.size_bytes.to_be_bytes());
        out.extend(rules.export_flags().to_be_bytes());
        if !self.no_zeroes {
            out.extend([0; 124]);
        }
        Next::Agreed(OPTION_HEADER + name.len(), self.agree(export))
    }

    /// Answers INFO and GO; the export if there was no error.
    fn info(&mut self, option: u32, data: &[u8], menu: Menu<'_>, out: &mut Vec<u8>) -> Option<ServedExport> {
        let mut r = WireReader(data);
        let name = r.counted();
        let wanted = r.u16().and_then(|n| r.bytes(2 * usize::from(n)));
        let (Some(name), Some(wanted), true) = (name, wanted, r.0.is_empty()) else {
            refuse(out, option, option_reply::ERR_INVALID, "the option's lengths do not fit together");
            return None;
        };
        let Some(export) = menu.find(name) else {
            refuse_export(out, option, name);
            return None;
        };
        if option == option::GO && !(menu.room)(&export.info.name) {
            refuse(
                out,
                option,
                option_reply::ERR_POLICY,
                "too many connections are open; close one, or raise the limit",
            );
            return None;
        }
        let rules = ExportRules::new(&export.info.geometry, self.structured, false);
        let export_info = [&rules.size_bytes.to_be_bytes()[..], &rules.export_flags().to_be_bytes()];
        fact(out, option, info::EXPORT, &export_info);
        for kind in wanted.chunks_exact(2).map(|b| u16::from_be_bytes([b[0], b[1]])) {
            match kind {
                info::NAME => fact(out, option, kind, &[export.info.name.as_bytes()]),
                info::DESCRIPTION => fact(out, option, kind, &[export.description.as_bytes()]),
                info::BLOCK_SIZE => {
                    let sizes = [1, BLOCK_PREFERRED, REQUEST_BYTES_MAX].map(u32::to_be_bytes);
                    fact(out, option, kind, &[&sizes[0], &sizes[1], &sizes[2]]);
                }
                _ => {}
            }
            // A client may not ask twice for the same; one that does gets no more than a bounded answer.
            if out.len() >= 4 * REPLY_BYTES_PAUSE {
                break;
            }
        }
        reply(out, option, option_reply::ACK, &[]);
        Some(export)
    }

    /// Answers LIST_META_CONTEXT and SET_META_CONTEXT.
    fn contexts(&mut self, option: u32, data: &[u8], menu: Menu<'_>, out: &mut Vec<u8>) {
        let set = option == option::SET_META_CONTEXT;
        if set {
            self.context = None;
        }
        if !self.structured {
            return refuse(out, option, option_reply::ERR_INVALID, "structured replies must be agreed on first");
        }
        let Some((name, found)) = matching(data, set) else {
            return refuse(out, option, option_reply::ERR_INVALID, "the option's lengths do not fit together");
        };
        let Some(export) = menu.find(name) else { return refuse_export(out, option, name) };
        if found {
            let id = if set { CONTEXT_ID } else { 0 };
            reply(out, option, option_reply::META_CONTEXT, &[&id.to_be_bytes(), CONTEXT.as_bytes()]);
        }
        if set && found {
            self.context = Some(export.info.name);
        }
        reply(out, option, option_reply::ACK, &[]);
    }
}

/// The export's name, and whether a query asks for `base:allocation`; `None` if malformed.
fn matching(data: &[u8], set: bool) -> Option<(&[u8], bool)> {
    let mut r = WireReader(data);
    let name = r.counted()?;
    let queries = r.u32()?;
    // No query at all lists everything and selects nothing.
    let mut found = queries == 0 && !set;
    for _ in 0..queries {
        let query = r.counted()?;
        found |= query == CONTEXT.as_bytes() || (!set && query == b"base:");
    }
    r.0.is_empty().then_some((name, found))
}

enum Next {
    Starved,
    Used(usize),
    Close(&'static str),
    /// TLS comes behind so many bytes.
    StartTls(usize),
    Agreed(usize, Agreed),
}

fn reply(out: &mut Vec<u8>, option: u32, kind: u32, parts: &[&[u8]]) {
    let len: usize = parts.iter().map(|p| p.len()).sum();
    out.extend(OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend(option.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend((len as u32).to_be_bytes());
    parts.iter().for_each(|p| out.extend_from_slice(p));
}

fn refuse(out: &mut Vec<u8>, option: u32, error: u32, words: &str) {
    reply(out, option, error, &[words.as_bytes()]);
}

fn refuse_export(out: &mut Vec<u8>, option: u32, name: &[u8]) {
    let words = if name.is_empty() {
        "there is no default export: name one of those that the server lists".to_owned()
    } else {
        let shown: String = String::from_utf8_lossy(name).chars().take(64).flat_map(char::escape_debug).collect();
        format!("there is no export '{shown}': name one of those that the server lists")
    };
    refuse(out, option, option_reply::ERR_UNKNOWN, &words);
}

fn fact(out: &mut Vec<u8>, option: u32, kind: u16, parts: &[&[u8]]) {
    let payload = parts.concat();
    reply(out, option, option_reply::INFO, &[&kind.to_be_bytes(), &payload]);
}
