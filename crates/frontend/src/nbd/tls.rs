//! TLS: the socket of one encrypted connection.
//!
//! Owns keys and the record layer. Never blocks, never knows what the bytes mean. Invariants: nothing a client sends
//! leaves here before it was authenticated; what is kept for a connection, in each direction, is bounded.

use super::stream::{SocketStream, Stream};
use rustix::io::Errno;
use rustls::{ServerConfig, ServerConnection};
use std::fmt;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use undercroft_host::ClientSocket;

/// Bytes of records that wait to be sent on one connection, about: four of the largest.
const SEND_BYTES_MAX: usize = 64 << 10;
/// Records without data that are looked at in one call.
const RECORDS_PER_CALL: u32 = 16;

/// The socket of an encrypted connection.
pub(crate) struct TlsStream {
    socket: SocketStream,
    tls: ServerConnection,
}

impl fmt::Debug for TlsStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsStream").field("socket", &self.socket).finish_non_exhaustive()
    }
}

/// The encrypted side, as rustls wants it.
struct Raw<'a>(&'a mut SocketStream);

impl Read for Raw<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        Ok(self.0.receive(to, &mut [])?)
    }
}

impl Write for Raw<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(self.0.send(&[IoSlice::new(bytes)])?)
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        Ok(self.0.send(parts)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn errno(e: &io::Error) -> Errno {
    Errno::from_io_error(e).unwrap_or(match e.kind() {
        io::ErrorKind::WouldBlock => Errno::AGAIN,
        io::ErrorKind::Interrupted => Errno::INTR,
        _ => Errno::CONNABORTED,
    })
}

impl TlsStream {
    /// Begins TLS on a connected, nonblocking socket: the client speaks next.
    ///
    /// # Errors
    /// If the kernel has no descriptor left, or the library refuses.
    pub fn new(socket: ClientSocket, config: Arc<ServerConfig>) -> io::Result<Self> {
        let mut tls = ServerConnection::new(config).map_err(io::Error::other)?;
        tls.set_buffer_limit(Some(SEND_BYTES_MAX));
        Ok(Self { socket: SocketStream::new(socket)?, tls })
    }

    /// The socket, to wait for.
    pub fn socket(&self) -> &ClientSocket {
        self.socket.socket()
    }

    /// Receives and throws away what the client still sends, as it is.
    pub fn discard(&mut self, to: &mut [u8]) -> Result<usize, Errno> {
        self.socket.receive(to, &mut [])
    }

    /// The version agreed on, for people; `None` before.
    pub fn version(&self) -> Option<&'static str> {
        (!self.tls.is_handshaking()).then(|| match self.tls.protocol_version() {
            Some(rustls::ProtocolVersion::TLSv1_2) => "TLS 1.2",
            _ => "TLS 1.3",
        })
    }

    /// Says that nothing more will be sent.
    pub fn end(&mut self) {
        self.tls.send_close_notify();
    }

    /// Takes records from the socket once. False if the socket was at its end.
    fn fetch(&mut self) -> Result<bool, Errno> {
        if self.tls.read_tls(&mut Raw(&mut self.socket)).map_err(|e| errno(&e))? == 0 {
            return Ok(false);
        }
        let result = self.tls.process_new_packets();
        // Answers of the handshake; or, after an error, an alert that says what was wrong.
        let sent = self.flush();
        if let Err(e) = result {
            tracing::debug!("TLS of an NBD client: {e}");
            return Err(Errno::CONNABORTED);
        }
        match sent {
            Err(e) if e != Errno::AGAIN && e != Errno::INTR => Err(e),
            _ => Ok(true),
        }
    }

    /// Reads what has been decrypted; `None` if nothing is there.
    fn decrypted(&mut self, to: &mut [u8]) -> Option<usize> {
        match self.tls.reader().read(to) {
            Ok(n) => Some(n),
            // The client closed without saying so: an end like any other, since half a request is never carried out.
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Some(0),
            Err(_) => None,
        }
    }
}

impl Stream for TlsStream {
    fn receive(&mut self, first: &mut [u8], second: &mut [u8]) -> Result<usize, Errno> {
        for _ in 0..RECORDS_PER_CALL {
            let to = if first.is_empty() { &mut *second } else { &mut *first };
            match self.decrypted(to) {
                Some(0) => return Ok(0),
                Some(n) if n == first.len() && !second.is_empty() => {
                    return Ok(n + self.decrypted(second).unwrap_or(0));
                }
                Some(n) => return Ok(n),
                None if !self.fetch()? => return Ok(0),
                None => {}
            }
        }
        // Records without data, one after the other: others are served first.
        Err(Errno::INTR)
    }

    fn send(&mut self, parts: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let total: usize = parts.iter().map(|p| p.len()).sum();
        let mut taken = 0;
        loop {
            // Never more than there is room for among what waits.
            let mut came = 0;
            let mut skip = taken;
            for part in parts {
                let from = skip.min(part.len());
                skip -= from;
                if from == part.len() {
                    continue;
                }
                let n = self.tls.writer().write(&part[from..]).map_err(|e| errno(&e))?;
                came += n;
                if n < part.len() - from {
                    break;
                }
            }
            taken += came;
            match self.flush() {
                Ok(()) if came > 0 && taken < total => {}
                Err(e) if e != Errno::AGAIN && e != Errno::INTR => return Err(e),
                Err(_) if taken == 0 => return Err(Errno::AGAIN),
                _ => return Ok(taken),
            }
        }
    }

    fn flush(&mut self) -> Result<(), Errno> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut Raw(&mut self.socket)).map_err(|e| errno(&e))?;
        }
        Ok(())
    }

    fn is_pending(&self) -> bool {
        self.tls.wants_write()
    }

    fn watch_room(&mut self) {
        self.socket.watch_room();
    }

    fn unwatch_room(&mut self) {
        self.socket.unwatch_room();
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.socket.fds()
    }

    fn close(&mut self) {
        self.socket.close();
    }

    fn take_leave(mut self, bytes: Vec<u8>) -> (Option<ClientSocket>, Vec<u8>) {
        self.tls.set_buffer_limit(None);
        let mut rest = Vec::new();
        // A vector takes everything.
        let _ = self.tls.writer().write_all(&bytes);
        self.tls.send_close_notify();
        while self.tls.wants_write() && self.tls.write_tls(&mut rest).is_ok() {}
        self.socket.take_leave(rest)
    }
}

impl AsFd for TlsStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket().as_fd()
    }
}
