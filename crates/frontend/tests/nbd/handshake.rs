//! Tests of the handshake: what is served, refused and forgotten, byte by byte and in floods.
//!
//! Owns a client that says what it is told to. Never touches a socket.

use undercroft_frontend::nbd::handshake::{Handshake, HandshakeStep, Menu, OPTION_BYTES_MAX, REPLY_BYTES_PAUSE};
use undercroft_frontend::nbd::rules::ExportRules;
use undercroft_frontend::nbd::wire::{
    CONTEXT, OPTION_MAGIC, OPTION_REPLY_MAGIC, WireReader, export_flag, info, option, option_reply,
};
use undercroft_frontend::nbd::{ExportInfo, Exports, Listed, ServedExport, TlsMode};
use undercroft_porttest::nbd::exercise::{OneExport, fuzz_handshake, geometry};

struct Two;

impl Exports for Two {
    fn list(&self) -> Vec<ExportInfo> {
        let e = |n: &str| ExportInfo { name: n.to_owned(), description: String::new() };
        vec![e("disk"), e("other")]
    }

    fn find(&self, name: &str) -> Option<ServedExport> {
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
        assert!(matches!(self.raw(&flags.to_be_bytes()).0, HandshakeStep::More));
        self
    }

    fn raw(&mut self, bytes: &[u8]) -> (HandshakeStep, Vec<u8>) {
        let mut out = Vec::new();
        let room = self.room;
        let menu = Menu { exports: self.exports, default: self.default, room: &|_| room, tls: self.tls };
        let step = self.handshake.push(bytes, menu, &mut out);
        (step, out)
    }

    /// Types and data of the replies to one option.
    fn ask(&mut self, o: u32, data: &[u8]) -> (HandshakeStep, Vec<(u32, Vec<u8>)>) {
        let (step, out) = self.raw(&option(o, data));
        let mut r = WireReader(&out);
        let mut all = Vec::new();
        while !r.0.is_empty() {
            assert_eq!((r.u64(), r.u32()), (Some(OPTION_REPLY_MAGIC), Some(o)));
            all.push((r.u32().unwrap(), r.counted().unwrap().to_vec()));
        }
        (step, all)
    }

    fn last(&mut self, o: u32, data: &[u8]) -> u32 {
        let (step, all) = self.ask(o, data);
        assert!(matches!(step, HandshakeStep::More));
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
        let flags = ExportRules::new(&geometry(1 << 20), false, false).export_flags();
        export.extend(flags.to_be_bytes());
        assert_eq!(all[0], (option_reply::INFO, export));
        assert_eq!(all[1], (option_reply::INFO, b"\0\x01disk".to_vec()));
        assert_eq!(all[2], (option_reply::INFO, b"\0\x02a disk of bytes".to_vec()));
        assert_eq!(all[3], (option_reply::INFO, b"\0\x03\0\0\0\x01\0\0\x10\0\x02\0\0\0".to_vec()));
        assert_eq!(all[4..], [(option_reply::ACK, vec![])]);
        assert_eq!(matches!(step, HandshakeStep::Agreed(_)), o == option::GO);
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
            (HandshakeStep::Agreed(a), _) => (a.structured, a.block_status),
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
    assert_eq!(list, [(option_reply::SERVER, b"\0\0\0\x04diska disk of bytes".to_vec()), (option_reply::ACK, vec![])]);
    let (step, all) = t.ask(option::ABORT, b"anything");
    assert!(matches!(step, HandshakeStep::Close(_)) && all == [(option_reply::ACK, vec![])]);
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
    assert!(matches!(step, HandshakeStep::StartTls) && all == [(option_reply::ACK, vec![])]);
    assert_eq!(t.last(option::STARTTLS, &[]), option_reply::ERR_INVALID, "once is enough");
    assert!(matches!(t.ask(option::GO, &go("disk", &[])).0, HandshakeStep::Agreed(_)));

    let mut t = Talk::new(&exports).flags(3);
    t.tls = TlsMode::Require;
    assert!(matches!(t.raw(&option(option::EXPORT_NAME, b"disk")).0, HandshakeStep::Close(_)));
    let mut t = Talk::new(&exports).flags(3);
    t.tls = TlsMode::Require;
    assert!(matches!(t.ask(option::ABORT, &[]).0, HandshakeStep::Close(_)));
}

#[test]
fn what_was_agreed_on_in_the_clear_is_forgotten_under_tls() {
    for secure in [false, true] {
        let mut t = Talk::new(&Two).flags(3);
        t.tls = TlsMode::Offer;
        t.ask(option::STRUCTURED_REPLY, &[]);
        t.ask(option::SET_META_CONTEXT, &meta("disk", &[CONTEXT]));
        if secure {
            assert!(matches!(t.ask(option::STARTTLS, &[]).0, HandshakeStep::StartTls));
        }
        let HandshakeStep::Agreed(a) = t.ask(option::GO, &go("disk", &[])).0 else {
            panic!("offered means not required")
        };
        assert_eq!((a.structured, a.block_status), (!secure, !secure));
    }
}

#[test]
fn what_follows_the_wish_for_tls_in_the_clear_is_not_taken_for_encrypted() {
    let exports = OneExport(geometry(1 << 20));
    let mut t = Talk::new(&exports).flags(3);
    t.tls = TlsMode::Require;
    let both = [option(option::STARTTLS, &[]), option(option::GO, &go("disk", &[]))].concat();
    assert!(matches!(t.raw(&both).0, HandshakeStep::Close(_)));
}

#[test]
fn an_export_that_is_not_listed_is_like_one_that_does_not_exist() {
    let listed =
        |names: &[&str]| Listed { all: std::sync::Arc::new(Two), names: names.iter().map(|&n| n.to_owned()).collect() };
    let mine = listed(&["disk"]);
    let mut t = Talk::new(&mine).flags(3);
    t.ask(option::STRUCTURED_REPLY, &[]);
    for o in [option::GO, option::INFO, option::SET_META_CONTEXT, option::LIST_META_CONTEXT] {
        let data = |name| if o == option::GO || o == option::INFO { go(name, &[]) } else { meta(name, &[CONTEXT]) };
        let text = |all: Vec<(u32, Vec<u8>)>, name: &str| {
            let words = String::from_utf8(all[0].1.clone()).unwrap().replace(&format!("'{name}'"), "'NAME'");
            (all.len(), all[0].0, words)
        };
        assert_eq!(text(t.ask(o, &data("other")).1, "other"), text(t.ask(o, &data("there")).1, "there"), "option {o}");
        assert_eq!(t.last(o, &data("other")), option_reply::ERR_UNKNOWN);
    }
    let (_, list) = t.ask(option::LIST, &[]);
    assert_eq!(list, [(option_reply::SERVER, b"\0\0\0\x04disk".to_vec()), (option_reply::ACK, vec![])]);
    assert!(matches!(t.ask(option::GO, &go("", &[])).0, HandshakeStep::Agreed(a) if a.export.info.name == "disk"));
    assert!(matches!(Talk::new(&mine).flags(3).raw(&option(option::EXPORT_NAME, b"other")).0, HandshakeStep::Close(_)));
    // A VM's name stands for its disks, and for nothing else that begins alike.
    let has = |name: &str, export| undercroft_config::plan::lists(&[name.to_owned()], export);
    assert!(has("vm", "vm:root") && has("vm", "vm") && !has("vm", "vm2:root") && !has("vm", "v"));
    assert!(!has("vm:root", "vm:root2") && !undercroft_config::plan::lists(&[], "disk"));
}

#[test]
fn the_empty_name_is_the_only_disk_or_the_default() {
    let exports = OneExport(geometry(1 << 20));
    assert!(matches!(Talk::new(&exports).flags(3).ask(option::GO, &go("", &[])).0, HandshakeStep::Agreed(_)));
    let mut t = Talk::new(&Two).flags(3);
    assert_eq!(t.last(option::GO, &go("", &[])), option_reply::ERR_UNKNOWN);
    t.default = Some("other");
    match t.ask(option::GO, &go("", &[])).0 {
        HandshakeStep::Agreed(a) => assert_eq!(a.export.info.name, "other"),
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
        let HandshakeStep::Agreed(a) = step else { panic!("{step:?}") };
        assert_eq!(a.rest, b"first request");
        assert!(!a.structured && !a.block_status);
        assert_eq!(out.len(), 10 + zeroes);
        assert_eq!(out[..8], (1u64 << 20).to_be_bytes());
        assert_ne!(u16::from_be_bytes([out[8], out[9]]) & export_flag::HAS_FLAGS, 0);
    }
    let step = |flags, o, name: &[u8]| Talk::new(&exports).flags(flags).raw(&option(o, name)).0;
    assert!(matches!(step(3, option::EXPORT_NAME, b"none"), HandshakeStep::Close(_)));
    assert!(matches!(step(3, option::EXPORT_NAME, &[b'x'; OPTION_BYTES_MAX + 1]), HandshakeStep::Close(_)));
    assert!(matches!(step(0, option::LIST, b""), HandshakeStep::Close(_)));
}

#[test]
fn clients_that_speak_something_else_are_cut_off() {
    let exports = OneExport(geometry(1 << 20));
    for first in [&b"GET / HTTP/1.1\r\n"[..], &[0, 0, 0, 4], &[0, 1, 0, 1]] {
        assert!(matches!(Talk::new(&exports).raw(first).0, HandshakeStep::Close(_)), "{first:?}");
    }
    assert!(matches!(Talk::new(&exports).flags(3).raw(b"12345678").0, HandshakeStep::Close(_)));
    let mut huge = option(option::LIST, &[]);
    huge[12..].copy_from_slice(&u32::MAX.to_be_bytes());
    assert!(matches!(Talk::new(&exports).flags(3).raw(&huge).0, HandshakeStep::Close(_)));
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
            HandshakeStep::More => {}
            HandshakeStep::Agreed(a) => {
                assert_eq!(n, bytes.len() - 1);
                assert!(a.structured && a.block_status);
            }
            HandshakeStep::StartTls => panic!("nobody asked for TLS"),
            HandshakeStep::Close(why) => panic!("{why}"),
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

        fn find(&self, _: &str) -> Option<ServedExport> {
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
    for n in undercroft_skips::inputs(0..5000) {
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
