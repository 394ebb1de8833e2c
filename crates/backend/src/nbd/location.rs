//! Where an NBD export is: `nbd://host[:port]/export` or `nbd+unix:///export?socket=path`.
//!
//! Owns the syntax (the NBD project's doc/uri.md). Never connects. Invariant: an export's name is at most 4096 bytes.

use std::fmt;

/// The port that NBD servers listen on.
const PORT: u16 = 10809;
/// Bytes of an export's name at most, by the protocol.
const NAME_BYTES_MAX: usize = 4096;

/// An export of a server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location {
    /// Where the server is.
    pub server: Server,
    /// The export's name; empty for the default export.
    pub export: String,
}

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Server {
    /// TCP.
    Tcp {
        /// Name or address.
        host: String,
        /// Port.
        port: u16,
    },
    /// A unix socket's path.
    Unix(String),
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.server {
            Server::Tcp { host, port } if host.contains(':') => write!(f, "nbd://[{host}]:{port}/{}", self.export),
            Server::Tcp { host, port } => write!(f, "nbd://{host}:{port}/{}", self.export),
            Server::Unix(path) => write!(f, "nbd+unix:///{}?socket={path}", self.export),
        }
    }
}

/// What is wrong with a location: a part of a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LocationError {
    /// Something that can be said without looking at it.
    #[error("{0}")]
    Malformed(&'static str),
    /// A question that an `nbd://` location does not have.
    #[error("`?{0}` means nothing for an nbd:// location")]
    Query(String),
    /// A host where a path belongs.
    #[error("`{0}` stands where nothing may stand: write three slashes")]
    Authority(String),
    /// Another scheme.
    #[error("`{0}` is not a kind of location")]
    Scheme(String),
    /// No number of a port.
    #[error("`{0}` is not a port")]
    Port(String),
}

/// Reads a location.
///
/// # Errors
/// See [`LocationError`].
pub fn parse(uri: &str) -> Result<Location, LocationError> {
    let (scheme, rest) = uri.split_once("://").ok_or(LocationError::Malformed("it has no `://`"))?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let export = decode(path)?;
    if export.len() > NAME_BYTES_MAX {
        return Err(LocationError::Malformed("the name of the export is longer than 4096 bytes"));
    }
    let server = match scheme {
        "nbd" => {
            if !query.is_empty() {
                return Err(LocationError::Query(query.to_owned()));
            }
            tcp(authority)?
        }
        "nbd+unix" => {
            if !authority.is_empty() {
                return Err(LocationError::Authority(authority.to_owned()));
            }
            let socket = query.split('&').find_map(|p| p.strip_prefix("socket="));
            let path =
                decode(socket.ok_or(LocationError::Malformed("the path of the socket is missing (`?socket=/path`)"))?)?;
            if path.is_empty() {
                return Err(LocationError::Malformed("the path of the socket is empty"));
            }
            Server::Unix(path)
        }
        "nbds" | "nbds+unix" => {
            return Err(LocationError::Malformed("TLS is not supported; reach the server through a tunnel"));
        }
        other => return Err(LocationError::Scheme(other.to_owned())),
    };
    Ok(Location { server, export })
}

fn tcp(authority: &str) -> Result<Server, LocationError> {
    if authority.contains('@') {
        return Err(LocationError::Malformed("user names are not supported"));
    }
    let (host, port) = if let Some(rest) = authority.strip_prefix('[') {
        let (host, after) =
            rest.split_once(']').ok_or(LocationError::Malformed("the `]` after the address is missing"))?;
        (host, after.strip_prefix(':'))
    } else {
        match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        }
    };
    let port = match port {
        None | Some("") => PORT,
        Some(p) => p.parse().map_err(|_| LocationError::Port(p.to_owned()))?,
    };
    if host.is_empty() {
        return Err(LocationError::Malformed("the name of the host is missing"));
    }
    Ok(Server::Tcp { host: host.to_owned(), port })
}

/// Replaces `%41` by `A`.
fn decode(s: &str) -> Result<String, LocationError> {
    let bytes = s.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        if bytes[i] != b'%' {
            out.push(bytes[i]);
            i += 1;
            continue;
        }
        let digits = bytes.get(i + 1..i + 3).and_then(|d| std::str::from_utf8(d).ok());
        let byte = digits.and_then(|d| u8::from_str_radix(d, 16).ok());
        out.push(byte.ok_or(LocationError::Malformed("a `%` is not followed by two hexadecimal digits"))?);
        i += 3;
    }
    if out.contains(&0) {
        return Err(LocationError::Malformed("it contains a zero byte"));
    }
    String::from_utf8(out).map_err(|_| LocationError::Malformed("it is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_ones_are_read() {
        let tcp = |host: &str, port| Server::Tcp { host: host.to_owned(), port };
        for (uri, server, export) in [
            ("nbd://example.org", tcp("example.org", 10809), ""),
            ("nbd://example.org/", tcp("example.org", 10809), ""),
            ("nbd://10.0.0.1:99/disk%201", tcp("10.0.0.1", 99), "disk 1"),
            ("nbd://[::1]:99/a/b", tcp("::1", 99), "a/b"),
            ("nbd+unix:///?socket=/run/x.sock", Server::Unix("/run/x.sock".to_owned()), ""),
            ("nbd+unix:///vm1?socket=%2frun%2fx", Server::Unix("/run/x".to_owned()), "vm1"),
        ] {
            let l = parse(uri).unwrap();
            assert_eq!((&l.server, l.export.as_str()), (&server, export), "{uri}");
            assert_eq!(parse(&l.to_string()).map(|l| l.server), Ok(server), "{uri}");
        }
    }

    #[test]
    fn bad_ones_are_named() {
        for (uri, word) in [
            ("nbd:localhost", "://"),
            ("nbd://", "host is missing"),
            ("nbd://h:x/", "not a port"),
            ("nbd://h:99999/", "not a port"),
            ("nbd://[::1/", "]"),
            ("nbd://h/%4", "hexadecimal"),
            ("nbd://h/%00", "zero byte"),
            ("nbd://h/%ff", "UTF-8"),
            ("nbds://h/", "TLS"),
            ("nbd+unix:///x", "socket"),
            ("nbd+unix:///x?socket=", "empty"),
            ("nbd+unix://h/x?socket=/y", "three slashes"),
            ("http://h/", "http"),
        ] {
            let e = parse(uri).unwrap_err().to_string();
            assert!(e.contains(word), "{uri}: {e}");
        }
    }
}
