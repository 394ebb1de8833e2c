//! A client that says exactly what it is told to, right or wrong.
//!
//! Owns a connection. Never retries, never repairs. Reads with a time limit, so that a silent server fails a test.

use crate::rig::PATIENCE;
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use undercroft_frontend::nbd::wire::{self, command, option};
use undercroft_porttest::nbd::exercise::{Reads, Reply, replies, request};

/// A connection to an NBD server.
pub struct Client {
    pub stream: UnixStream,
    reads: Reads,
    pending: Vec<u8>,
}

/// The bytes of an option.
pub fn option_bytes(option: u32, data: &[u8]) -> Vec<u8> {
    let mut b = wire::OPTION_MAGIC.to_be_bytes().to_vec();
    b.extend(option.to_be_bytes());
    b.extend((data.len() as u32).to_be_bytes());
    b.extend(data);
    b
}

impl Client {
    /// Connects and receives the greeting.
    pub fn greet(path: &Path) -> Self {
        let mut stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting, b"NBDMAGICIHAVEOPT\0\x03");
        Self { stream, reads: Reads::new(), pending: Vec::new() }
    }

    /// Connects and enters transmission with `disk`.
    pub fn new(path: &Path, structured: bool) -> Self {
        Self::named(path, "disk", structured)
    }

    /// Connects and enters transmission.
    pub fn named(path: &Path, name: &str, structured: bool) -> Self {
        let mut c = Self::greet(path);
        c.send(&[0, 0, 0, 3]);
        if structured {
            assert_eq!(c.option(option::STRUCTURED_REPLY, &[]), wire::option_reply::ACK);
        }
        assert_eq!(c.go(name), wire::option_reply::ACK);
        c
    }

    /// Asks for `disk`, to enter transmission; returns the type of the last reply.
    pub fn go(&mut self, disk: &str) -> u32 {
        let mut data = (disk.len() as u32).to_be_bytes().to_vec();
        data.extend(disk.as_bytes());
        data.extend([0, 0]);
        self.option(option::GO, &data)
    }

    /// The same connection, for another thread to send on.
    pub fn sender(&self) -> Self {
        Self { stream: self.stream.try_clone().unwrap(), reads: Reads::new(), pending: Vec::new() }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Sends an option and returns the type of its last reply.
    pub fn option(&mut self, option: u32, data: &[u8]) -> u32 {
        self.send(&option_bytes(option, data));
        self.option_reply()
    }

    /// The type of the last reply to an option that was sent.
    pub fn option_reply(&mut self) -> u32 {
        loop {
            let mut header = [0; 20];
            self.stream.read_exact(&mut header).unwrap();
            let kind = u32::from_be_bytes(header[12..16].try_into().unwrap());
            let mut data = vec![0; u32::from_be_bytes(header[16..].try_into().unwrap()) as usize];
            self.stream.read_exact(&mut data).unwrap();
            if kind == wire::option_reply::ACK || kind & 0x8000_0000 != 0 {
                return kind;
            }
        }
    }

    /// Sends the header of a request.
    pub fn ask(&mut self, flags: u16, command: u16, offset: u64, len: u32, cookie: u64) {
        if command == command::READ {
            self.reads.insert(cookie, (offset, len as usize));
        }
        self.send(&request(flags, command, offset, len, cookie));
    }

    /// Receives `n` replies.
    pub fn answers(&mut self, n: usize) -> HashMap<u64, Reply> {
        let mut got = HashMap::new();
        let mut piece = vec![0; 1 << 20];
        while got.len() < n {
            // A read with a time limit is not begun again by the kernel when something interrupts it, as a ring does.
            let k = match self.stream.read(&mut piece) {
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                read => read.expect("a reply in time"),
            };
            assert!(k > 0, "the server closed after {} of {n} replies and {} bytes", got.len(), self.pending.len());
            self.pending.extend(&piece[..k]);
            let (some, rest) = replies(&self.pending, &self.reads);
            let used = self.pending.len() - rest.len();
            got.extend(some);
            self.pending.drain(..used);
        }
        assert!(self.pending.is_empty() && got.len() == n);
        got.keys().for_each(|cookie| _ = self.reads.remove(cookie));
        got
    }

    /// Reads and compares.
    pub fn expect(&mut self, offset: u64, want: &[u8]) {
        self.ask(0, command::READ, offset, want.len() as u32, 1);
        let got = self.answers(1).remove(&1).unwrap();
        assert!(got == Reply::Data(want.to_vec()), "{} bytes at {offset}", want.len());
    }

    /// Whether the server closes the connection, with or without bytes before.
    pub fn is_cut(&mut self) -> bool {
        let mut piece = [0; 4096];
        loop {
            match self.stream.read(&mut piece) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::ConnectionReset => return true,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
    }
}
