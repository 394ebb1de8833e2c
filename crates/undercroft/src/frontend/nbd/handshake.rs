//! The handshake: from the greeting to the choice of an export, as a state machine over bytes.
//!
//! Owns what client and server have agreed on so far. Never touches a socket, a clock or a disk.
//! Invariants: input kept and output produced by one call are bounded, whatever the client sends; every option gets
//! exactly one final reply, or the connection ends.

use super::wire::{
    CONTEXT, CONTEXT_ID, GREETING_MAGIC, OPTION_HEADER, OPTION_MAGIC, OPTION_REPLY_MAGIC, Reader, STRING_MAX,
    handshake_flag, info, option, option_reply,
};
use super::{Export, Exports, TlsMode, rules::Rules};
use undercroft_cache::limits::REQUEST_BYTES_MAX;

/// Bytes of an option's data at most; longer ones are skipped and refused.
const OPTION_BYTES_MAX: usize = 16 * 1024;
/// Bytes of an option's data past which the client is cut off instead.
const OPTION_SKIP_MAX: u32 = 1024 * 1024;
/// Once this many bytes of replies wait, options wait too.
const REPLY_BYTES_PAUSE: usize = 64 * 1024;
/// What we call the best size of a block, in bytes: that of the cache.
const BLOCK_PREFERRED: u32 = 4096;

/// What came of some bytes.
#[derive(Debug)]
pub enum Step {
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
    pub export: Export,
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
    fn find(&self, name: &[u8]) -> Option<Export> {
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
    pub fn push(&mut self, bytes: &[u8], menu: Menu<'_>, out: &mut Vec<u8>) -> Step {
        self.input.extend_from_slice(bytes);
        let mut input = std::mem::take(&mut self.input);
        let mut used = 0;
        let step = loop {
            if out.len() >= REPLY_BYTES_PAUSE {
                break Step::More;
            }
            match self.next(&input[used..], menu, out) {
                Next::Starved => break Step::More,
                Next::Used(n) => used += n,
                Next::Close(why) => break Step::Close(why),
                Next::StartTls(n) if used + n == input.len() => {
                    // What was agreed on in the clear may be another's words: it is forgotten, as the protocol asks.
                    (self.structured, self.context, self.secure) = (false, None, true);
                    return Step::StartTls;
                }
                // It would be taken for something said under TLS.
                Next::StartTls(_) => break Step::Close("it sent something in the clear behind its wish for TLS"),
                Next::Agreed(n, mut agreed) => {
                    agreed.rest = input.split_off(used + n);
                    return Step::Agreed(agreed);
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
                let Some(flags) = Reader(input).u32() else { return Next::Starved };
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
                let mut r = Reader(input);
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

    fn agree(&mut self, export: Export) -> Agreed {
        let block_status = self.structured && self.context.as_deref() == Some(&*export.info.name);
        Agreed { export, structured: self.structured, block_status, rest: Vec::new() }
    }

    fn export_name(&mut self, name: &[u8], menu: Menu<'_>, out: &mut Vec<u8>) -> Next {
        let Some(export) = menu.find(name) else { return Next::Close("it asked for an export that does not exist") };
        if !(menu.room)(&export.info.name) {
            return Next::Close("too many connections are open");
        }
        let rules = Rules::new(&export.info.geometry, self.structured, false);
        out.extend(rules.size_bytes.to_be_bytes());
        out.extend(rules.export_flags().to_be_bytes());
        if !self.no_zeroes {
            out.extend([0; 124]);
        }
        Next::Agreed(OPTION_HEADER + name.len(), self.agree(export))
    }

    /// Answers INFO and GO; the export if there was no error.
    fn info(&mut self, option: u32, data: &[u8], menu: Menu<'_>, out: &mut Vec<u8>) -> Option<Export> {
        let mut r = Reader(data);
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
        let rules = Rules::new(&export.info.geometry, self.structured, false);
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
    let mut r = Reader(data);
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

#[cfg(test)]
mod tests {
    use super::super::exercise::{OneExport, fuzz_handshake, geometry};
    use super::super::wire::export_flag;
    use super::super::{ExportInfo, Exports};
    use super::*;

    struct Two;

    impl Exports for Two {
        fn list(&self) -> Vec<ExportInfo> {
            let e = |n: &str| ExportInfo { name: n.to_owned(), description: String::new() };
            vec![e("disk"), e("other")]
        }

        fn find(&self, name: &str) -> Option<Export> {
            let mut e = OneExport(geometry(1 << 20)).find("disk")?;
            e.info.name = name.to_owned();
            ["disk", "other"].contains(&name).then_some(e)
        }
    }

    fn option(option: u32, data: &[u8]) -> Vec<u8> {
        let mut b = OPTION_MAGIC.to_be_bytes().to_vec();
        b.extend(option.to_be_bytes());
        b.extend((data.len() as u32).to_be_bytes());
        b.extend(data);
        b
    }

    fn go(name: &str, wishes: &[u16]) -> Vec<u8> {
        let mut b = (name.len() as u32).to_be_bytes().to_vec();
        b.extend(name.as_bytes());
        b.extend((wishes.len() as u16).to_be_bytes());
        wishes.iter().for_each(|w| b.extend(w.to_be_bytes()));
        b
    }

    fn meta(name: &str, queries: &[&str]) -> Vec<u8> {
        let mut b = (name.len() as u32).to_be_bytes().to_vec();
        b.extend(name.as_bytes());
        b.extend((queries.len() as u32).to_be_bytes());
        for q in queries {
            b.extend((q.len() as u32).to_be_bytes());
            b.extend(q.as_bytes());
        }
        b
    }

    struct Talk<'a> {
        handshake: Handshake,
        exports: &'a dyn Exports,
        default: Option<&'a str>,
        room: bool,
        tls: TlsMode,
    }

    impl<'a> Talk<'a> {
        fn new(exports: &'a dyn Exports) -> Self {
            let mut out = Vec::new();
            let handshake = Handshake::new(&mut out);
            assert_eq!(out, b"NBDMAGICIHAVEOPT\0\x03");
            Self { handshake, exports, default: None, room: true, tls: TlsMode::Off }
        }

        fn flags(mut self, flags: u32) -> Self {
            assert!(matches!(self.raw(&flags.to_be_bytes()).0, Step::More));
            self
        }

        fn raw(&mut self, bytes: &[u8]) -> (Step, Vec<u8>) {
            let mut out = Vec::new();
            let room = self.room;
            let menu = Menu { exports: self.exports, default: self.default, room: &|_| room, tls: self.tls };
            let step = self.handshake.push(bytes, menu, &mut out);
            (step, out)
        }

        /// Types and data of the replies to one option.
        fn ask(&mut self, o: u32, data: &[u8]) -> (Step, Vec<(u32, Vec<u8>)>) {
            let (step, out) = self.raw(&option(o, data));
            let mut r = Reader(&out);
            let mut all = Vec::new();
            while !r.0.is_empty() {
                assert_eq!((r.u64(), r.u32()), (Some(OPTION_REPLY_MAGIC), Some(o)));
                all.push((r.u32().unwrap(), r.counted().unwrap().to_vec()));
            }
            (step, all)
        }

        fn last(&mut self, o: u32, data: &[u8]) -> u32 {
            let (step, all) = self.ask(o, data);
            assert!(matches!(step, Step::More));
            all.last().unwrap().0
        }
    }

    #[test]
    fn go_tells_what_was_asked_for_and_agrees() {
        let exports = OneExport(geometry(1 << 20));
        let mut t = Talk::new(&exports).flags(3);
        let wishes = [info::NAME, info::DESCRIPTION, info::BLOCK_SIZE, 999];
        for o in [option::INFO, option::GO] {
            let (step, all) = t.ask(o, &go("disk", &wishes));
            let mut export = vec![0, 0];
            export.extend((1u64 << 20).to_be_bytes());
            let flags = Rules::new(&geometry(1 << 20), false, false).export_flags();
            export.extend(flags.to_be_bytes());
            assert_eq!(all[0], (option_reply::INFO, export));
            assert_eq!(all[1], (option_reply::INFO, b"\0\x01disk".to_vec()));
            assert_eq!(all[2], (option_reply::INFO, b"\0\x02a disk of bytes".to_vec()));
            assert_eq!(all[3], (option_reply::INFO, b"\0\x03\0\0\0\x01\0\0\x10\0\x02\0\0\0".to_vec()));
            assert_eq!(all[4..], [(option_reply::ACK, vec![])]);
            assert_eq!(matches!(step, Step::Agreed(_)), o == option::GO);
        }
    }

    #[test]
    fn structured_replies_and_contexts_are_agreed_on_for_one_export() {
        let select = |before: &[(u32, Vec<u8>)], name: &str| {
            let mut t = Talk::new(&Two).flags(3);
            for (o, d) in before {
                t.ask(*o, d);
            }
            match t.ask(option::GO, &go(name, &[])) {
                (Step::Agreed(a), _) => (a.structured, a.block_status),
                (step, _) => panic!("{step:?}"),
            }
        };
        let structured = (option::STRUCTURED_REPLY, vec![]);
        let set = |name, queries: &[&str]| (option::SET_META_CONTEXT, meta(name, queries));
        let both = ["x:y", CONTEXT];
        assert_eq!(select(&[], "disk"), (false, false));
        assert_eq!(select(std::slice::from_ref(&structured), "disk"), (true, false));
        assert_eq!(select(&[structured.clone(), set("disk", &both)], "disk"), (true, true));
        // For another export, before structured replies, replaced, by a wildcard, for nothing: no.
        assert_eq!(select(&[structured.clone(), set("disk", &both)], "other"), (true, false));
        assert_eq!(select(&[set("disk", &both), structured.clone()], "disk"), (true, false));
        assert_eq!(select(&[structured.clone(), set("disk", &both), set("disk", &["x:y"])], "disk"), (true, false));
        assert_eq!(select(&[structured.clone(), set("disk", &["base:"])], "disk"), (true, false));
        assert_eq!(select(&[structured.clone(), set("disk", &[])], "disk"), (true, false));
        assert_eq!(select(&[structured.clone(), set("disk", &both), set("none", &both)], "disk"), (true, false));
    }

    #[test]
    fn contexts_are_listed() {
        let mut t = Talk::new(&Two).flags(3);
        assert_eq!(t.last(option::LIST_META_CONTEXT, &meta("disk", &[])), option_reply::ERR_INVALID);
        t.ask(option::STRUCTURED_REPLY, &[]);
        let mut listed = |o, queries: &[&str]| {
            let (_, all) = t.ask(o, &meta("disk", queries));
            assert_eq!(all.last().unwrap().0, option_reply::ACK);
            all[..all.len() - 1].iter().map(|a| String::from_utf8(a.1[4..].to_vec()).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(listed(option::LIST_META_CONTEXT, &[]), [CONTEXT]);
        assert_eq!(listed(option::LIST_META_CONTEXT, &["base:", CONTEXT]), [CONTEXT]);
        assert!(listed(option::LIST_META_CONTEXT, &["qemu:"]).is_empty());
        assert_eq!(listed(option::SET_META_CONTEXT, &[CONTEXT, CONTEXT]), [CONTEXT]);
        assert_eq!(t.last(option::SET_META_CONTEXT, &meta("none", &[CONTEXT])), option_reply::ERR_UNKNOWN);
        let mut short = meta("disk", &[CONTEXT]);
        short.pop();
        assert_eq!(t.last(option::SET_META_CONTEXT, &short), option_reply::ERR_INVALID);
        short.extend([0, 0]);
        assert_eq!(t.last(option::SET_META_CONTEXT, &short), option_reply::ERR_INVALID);
    }

    #[test]
    fn what_is_not_served_is_refused_and_the_handshake_goes_on() {
        let exports = OneExport(geometry(1 << 20));
        let mut t = Talk::new(&exports).flags(3);
        assert_eq!(t.last(option::STARTTLS, &[]), option_reply::ERR_UNSUP);
        for unknown in [0, 4, 11, 12, u32::MAX] {
            assert_eq!(t.last(unknown, &[1; 100]), option_reply::ERR_UNSUP);
        }
        assert_eq!(t.last(option::LIST, &[0]), option_reply::ERR_INVALID);
        assert_eq!(t.last(option::STRUCTURED_REPLY, &[0]), option_reply::ERR_INVALID);
        assert_eq!(t.last(option::GO, &[]), option_reply::ERR_INVALID);
        assert_eq!(t.last(option::GO, &[0xff; 20]), option_reply::ERR_INVALID);
        assert_eq!(t.last(option::GO, &go("disk ", &[])), option_reply::ERR_UNKNOWN);
        assert_eq!(t.last(option::GO, b"\0\0\0\x02\xff\xfe\0\0"), option_reply::ERR_UNKNOWN);
        assert_eq!(t.last(option::INFO, &go(&"x".repeat(5000), &[])), option_reply::ERR_UNKNOWN);
        assert_eq!(t.last(option::GO, &[0; OPTION_BYTES_MAX + 1]), option_reply::ERR_TOO_BIG);
        t.room = false;
        assert_eq!(t.last(option::GO, &go("disk", &[])), option_reply::ERR_POLICY);
        assert_eq!(t.last(option::INFO, &go("disk", &[])), option_reply::ACK);
        t.room = true;
        let (_, list) = t.ask(option::LIST, &[]);
        assert_eq!(
            list,
            [(option_reply::SERVER, b"\0\0\0\x04diska disk of bytes".to_vec()), (option_reply::ACK, vec![])]
        );
        let (step, all) = t.ask(option::ABORT, b"anything");
        assert!(matches!(step, Step::Close(_)) && all == [(option_reply::ACK, vec![])]);
    }

    #[test]
    fn tls_that_is_required_comes_before_everything() {
        let exports = OneExport(geometry(1 << 20));
        let mut t = Talk::new(&exports).flags(3);
        t.tls = TlsMode::Require;
        for o in [option::LIST, option::INFO, option::GO, option::STRUCTURED_REPLY, option::LIST_META_CONTEXT, 99] {
            assert_eq!(t.last(o, &go("disk", &[])), option_reply::ERR_TLS_REQD, "option {o}");
        }
        assert_eq!(t.last(option::STARTTLS, &[0]), option_reply::ERR_INVALID);
        let (step, all) = t.ask(option::STARTTLS, &[]);
        assert!(matches!(step, Step::StartTls) && all == [(option_reply::ACK, vec![])]);
        assert_eq!(t.last(option::STARTTLS, &[]), option_reply::ERR_INVALID, "once is enough");
        assert!(matches!(t.ask(option::GO, &go("disk", &[])).0, Step::Agreed(_)));

        let mut t = Talk::new(&exports).flags(3);
        t.tls = TlsMode::Require;
        assert!(matches!(t.raw(&option(option::EXPORT_NAME, b"disk")).0, Step::Close(_)));
        let mut t = Talk::new(&exports).flags(3);
        t.tls = TlsMode::Require;
        assert!(matches!(t.ask(option::ABORT, &[]).0, Step::Close(_)));
    }

    #[test]
    fn what_was_agreed_on_in_the_clear_is_forgotten_under_tls() {
        for secure in [false, true] {
            let mut t = Talk::new(&Two).flags(3);
            t.tls = TlsMode::Offer;
            t.ask(option::STRUCTURED_REPLY, &[]);
            t.ask(option::SET_META_CONTEXT, &meta("disk", &[CONTEXT]));
            if secure {
                assert!(matches!(t.ask(option::STARTTLS, &[]).0, Step::StartTls));
            }
            let Step::Agreed(a) = t.ask(option::GO, &go("disk", &[])).0 else { panic!("offered means not required") };
            assert_eq!((a.structured, a.block_status), (!secure, !secure));
        }
    }

    #[test]
    fn what_follows_the_wish_for_tls_in_the_clear_is_not_taken_for_encrypted() {
        let exports = OneExport(geometry(1 << 20));
        let mut t = Talk::new(&exports).flags(3);
        t.tls = TlsMode::Require;
        let both = [option(option::STARTTLS, &[]), option(option::GO, &go("disk", &[]))].concat();
        assert!(matches!(t.raw(&both).0, Step::Close(_)));
    }

    #[test]
    fn an_export_that_is_not_listed_is_like_one_that_does_not_exist() {
        use super::super::Listed;
        let listed = |names: &[&str]| Listed {
            all: std::sync::Arc::new(Two),
            names: names.iter().map(|&n| n.to_owned()).collect(),
        };
        let mine = listed(&["disk"]);
        let mut t = Talk::new(&mine).flags(3);
        t.ask(option::STRUCTURED_REPLY, &[]);
        for o in [option::GO, option::INFO, option::SET_META_CONTEXT, option::LIST_META_CONTEXT] {
            let data = |name| if o == option::GO || o == option::INFO { go(name, &[]) } else { meta(name, &[CONTEXT]) };
            let text = |all: Vec<(u32, Vec<u8>)>, name: &str| {
                let words = String::from_utf8(all[0].1.clone()).unwrap().replace(name, "NAME");
                (all.len(), all[0].0, words)
            };
            assert_eq!(
                text(t.ask(o, &data("other")).1, "other"),
                text(t.ask(o, &data("there")).1, "there"),
                "option {o}"
            );
            assert_eq!(t.last(o, &data("other")), option_reply::ERR_UNKNOWN);
        }
        let (_, list) = t.ask(option::LIST, &[]);
        assert_eq!(list, [(option_reply::SERVER, b"\0\0\0\x04disk".to_vec()), (option_reply::ACK, vec![])]);
        assert!(matches!(t.ask(option::GO, &go("", &[])).0, Step::Agreed(a) if a.export.info.name == "disk"));
        assert!(matches!(Talk::new(&mine).flags(3).raw(&option(option::EXPORT_NAME, b"other")).0, Step::Close(_)));
        // A VM's name stands for its disks, and for nothing else that begins alike.
        let has = |name: &str, export| super::super::lists(&[name.to_owned()], export);
        assert!(has("vm", "vm:root") && has("vm", "vm") && !has("vm", "vm2:root") && !has("vm", "v"));
        assert!(!has("vm:root", "vm:root2") && !super::super::lists(&[], "disk"));
    }

    #[test]
    fn the_empty_name_is_the_only_disk_or_the_default() {
        let exports = OneExport(geometry(1 << 20));
        assert!(matches!(Talk::new(&exports).flags(3).ask(option::GO, &go("", &[])).0, Step::Agreed(_)));
        let mut t = Talk::new(&Two).flags(3);
        assert_eq!(t.last(option::GO, &go("", &[])), option_reply::ERR_UNKNOWN);
        t.default = Some("other");
        match t.ask(option::GO, &go("", &[])).0 {
            Step::Agreed(a) => assert_eq!(a.export.info.name, "other"),
            step => panic!("{step:?}"),
        }
    }

    #[test]
    fn export_name_is_served_to_old_clients_too() {
        let exports = OneExport(geometry(1 << 20));
        for (flags, zeroes) in [(0, 124), (1, 124), (2, 0), (3, 0)] {
            let mut t = Talk::new(&exports).flags(flags);
            let mut bytes = option(option::EXPORT_NAME, b"disk");
            bytes.extend(b"first request");
            let (step, out) = t.raw(&bytes);
            let Step::Agreed(a) = step else { panic!("{step:?}") };
            assert_eq!(a.rest, b"first request");
            assert!(!a.structured && !a.block_status);
            assert_eq!(out.len(), 10 + zeroes);
            assert_eq!(out[..8], (1u64 << 20).to_be_bytes());
            assert_ne!(u16::from_be_bytes([out[8], out[9]]) & export_flag::HAS_FLAGS, 0);
        }
        let step = |flags, o, name: &[u8]| Talk::new(&exports).flags(flags).raw(&option(o, name)).0;
        assert!(matches!(step(3, option::EXPORT_NAME, b"none"), Step::Close(_)));
        assert!(matches!(step(3, option::EXPORT_NAME, &[b'x'; OPTION_BYTES_MAX + 1]), Step::Close(_)));
        assert!(matches!(step(0, option::LIST, b""), Step::Close(_)));
    }

    #[test]
    fn clients_that_speak_something_else_are_cut_off() {
        let exports = OneExport(geometry(1 << 20));
        for first in [&b"GET / HTTP/1.1\r\n"[..], &[0, 0, 0, 4], &[0, 1, 0, 1]] {
            assert!(matches!(Talk::new(&exports).raw(first).0, Step::Close(_)), "{first:?}");
        }
        assert!(matches!(Talk::new(&exports).flags(3).raw(b"12345678").0, Step::Close(_)));
        let mut huge = option(option::LIST, &[]);
        huge[12..].copy_from_slice(&u32::MAX.to_be_bytes());
        assert!(matches!(Talk::new(&exports).flags(3).raw(&huge).0, Step::Close(_)));
    }

    #[test]
    fn bytes_may_come_one_by_one() {
        let exports = OneExport(geometry(1 << 20));
        let mut bytes = vec![0, 0, 0, 3];
        bytes.extend(option(option::STRUCTURED_REPLY, &[]));
        bytes.extend(option(99, &[7; OPTION_BYTES_MAX + 3]));
        bytes.extend(option(option::SET_META_CONTEXT, &meta("disk", &[CONTEXT])));
        bytes.extend(option(option::GO, &go("disk", &[])));
        let mut t = Talk::new(&exports);
        let mut replies = 0;
        for (n, b) in bytes.iter().enumerate() {
            let (step, out) = t.raw(&[*b]);
            replies += usize::from(!out.is_empty());
            match step {
                Step::More => {}
                Step::Agreed(a) => {
                    assert_eq!(n, bytes.len() - 1);
                    assert!(a.structured && a.block_status);
                }
                Step::StartTls => panic!("nobody asked for TLS"),
                Step::Close(why) => panic!("{why}"),
            }
        }
        assert_eq!(replies, 4);
    }

    #[test]
    fn a_flood_of_options_does_not_pile_up_replies() {
        struct Many;
        impl Exports for Many {
            fn list(&self) -> Vec<ExportInfo> {
                (0..500).map(|n| ExportInfo { name: format!("disk{n}"), description: "x".repeat(100) }).collect()
            }

            fn find(&self, _: &str) -> Option<Export> {
                None
            }
        }
        let mut t = Talk::new(&Many).flags(3);
        let flood: Vec<u8> = std::iter::repeat_n(option(option::LIST, &[]), 1000).flatten().collect();
        let (_, mut out) = t.raw(&flood);
        let mut lists = 0;
        while !out.is_empty() {
            assert!(out.len() < REPLY_BYTES_PAUSE + 500 * 200);
            lists += out.windows(8).filter(|w| *w == [0, 0, 0, 1, 0, 0, 0, 0]).count();
            out = t.raw(&[]).1;
        }
        assert_eq!(lists, 1000, "every option is answered in the end");
    }

    #[test]
    fn arbitrary_input_gets_well_formed_replies() {
        let mut x = 0x9e37_79b9_7f4a_7c15_u64;
        for n in 0..5000 {
            let data: Vec<u8> = std::iter::repeat_with(|| {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                if x >> 62 == 0 { (x >> 24) as u8 } else { (x >> 24) as u8 & 0x8f }
            })
            .take(n % 200)
            .collect();
            fuzz_handshake(&data);
        }
    }
}
