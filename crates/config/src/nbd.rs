//! `[nbd]` and `[[nbd.listen]]`: where NBD clients connect, what they reach there, and their bounds, checked and filled
//! in.
//!
//! Owns their rules. Never opens a socket; certificates are read to say early what is wrong with them. Invariant: a
//! listener that encrypts has the files for it.

use super::checks::Checker;
use super::keys;
use super::spec::{ListenSpec, NbdSpec};
use crate::tls::{self, TlsFiles, TlsMode};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use undercroft_units::Size;

/// Where NBD clients connect.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NbdListen {
    /// A unix socket.
    Unix(PathBuf),
    /// A TCP address.
    Tcp(SocketAddr),
}

/// A listener of NBD clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdListener {
    /// Where.
    pub at: NbdListen,
    /// What can be reached there: names of disks or of VMs; everything if `None`.
    pub exports: Option<Vec<String>>,
    /// Whether clients may, or must, encrypt.
    pub tls: TlsMode,
    /// With what; given unless `tls` is off.
    pub files: Option<TlsFiles>,
    /// Connections at most.
    pub connections: usize,
    /// Connections to one export at most.
    pub per_export: usize,
}

impl NbdListener {
    /// Whether a disk can be reached there, if it is exported.
    pub fn has(&self, disk: &str) -> bool {
        self.exports.as_ref().is_none_or(|names| lists(names, disk))
    }
}

impl fmt::Display for NbdListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} connections, {} per export", self.at, self.connections, self.per_export)?;
        if let Some(names) = &self.exports {
            write!(f, ", exports {}", names.join(" "))?;
        }
        if let Some(files) = &self.files {
            let mode = if self.tls == TlsMode::Require { "require" } else { "offer" };
            write!(f, ", tls {mode} with {} and {}", files.cert.display(), files.key.display())?;
            for (key, file) in [("authorities", &files.client_ca), ("revoked", &files.client_crl)] {
                if let Some(file) = file {
                    write!(f, ", {key} {}", file.display())?;
                }
            }
        }
        f.write_str(")")
    }
}

/// Bounds of all NBD clients together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NbdLimits {
    /// Bytes of data of requests under way.
    pub memory_bytes: u64,
    /// How long a client may be slow while others wait for that memory.
    pub slow_after: Duration,
    /// Handshakes under way on a listener.
    pub handshakes: usize,
    /// How long a handshake may take.
    pub handshake_timeout: Duration,
}

impl fmt::Display for NbdListen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NbdListen::Unix(path) => write!(f, "unix:{}", path.display()),
            NbdListen::Tcp(addr) => write!(f, "tcp:{addr}"),
        }
    }
}

/// Whether an export is among `names`: of exports, or of VMs, whose disks are `VM:DISK`.
pub fn lists(names: &[String], export: &str) -> bool {
    names.iter().any(|n| export.strip_prefix(&**n).is_some_and(|rest| rest.is_empty() || rest.starts_with(':')))
}

impl Checker<'_> {
    /// All listeners, and the bounds of all of them together.
    pub(crate) fn nbd(&mut self, nbd: &NbdSpec) -> (Vec<NbdListener>, NbdLimits) {
        let at = |key: &str| nbd.lines.get(key).copied();
        let memory = nbd.memory.filter(|memory| {
            let fits = memory.0 >= keys::NBD_MEMORY_MIN;
            if !fits {
                let remedy = format!("give at least {}: two of the largest requests", Size(keys::NBD_MEMORY_MIN));
                self.error(at("memory"), "nbd", format!("memory must not be {memory}"), remedy);
            }
            fits
        });
        let slow = (at("slow_after"), "slow_after", nbd.slow_after, keys::NBD_SLOW_AFTER_RANGE);
        let shake = (at("handshake_timeout"), "handshake_timeout", nbd.handshake_timeout, keys::NBD_HANDSHAKE_RANGE);
        let most = keys::NBD_CONNECTIONS_MAX;
        let limits = NbdLimits {
            memory_bytes: memory.map_or(keys::NBD_MEMORY_DEFAULT, |m| m.0),
            slow_after: self.time("nbd", slow).unwrap_or(keys::NBD_SLOW_AFTER_DEFAULT),
            handshakes: self
                .bounded(at("handshakes"), "nbd", "handshakes", nbd.handshakes, 1, most)
                .unwrap_or(keys::NBD_CONNECTIONS_DEFAULT) as usize,
            handshake_timeout: self.time("nbd", shake).unwrap_or(keys::NBD_HANDSHAKE_DEFAULT),
        };
        let common = ListenSpec {
            connections: nbd.connections,
            connections_per_export: nbd.connections_per_export,
            lines: nbd.lines.clone(),
            ..ListenSpec::default()
        };
        let (connections, per_export) = self.connections("nbd", &common, None);
        let plain = |at| NbdListener { at, exports: None, tls: TlsMode::Off, files: None, connections, per_export };
        let mut listeners = Vec::new();
        if let Some(path) = &nbd.unix {
            let line = at("unix");
            let path = self.path(line, "nbd", "unix", path);
            self.socket("nbd", line, "the NBD listener", &path, true);
            listeners.push(plain(NbdListen::Unix(path)));
        }
        if let Some(text) = &nbd.tcp {
            let line = at("tcp");
            let address = self.address(line, "nbd", "tcp", text, "127.0.0.1:10809", TLS_REMEDY);
            listeners.extend(address.map(|a| plain(NbdListen::Tcp(a))));
        }
        for (n, one) in nbd.listen.iter().enumerate() {
            listeners.extend(self.listener(&format!("nbd.listen {}", n + 1), one, (connections, per_export)));
        }
        (listeners, limits)
    }

    fn connections(&mut self, place: &str, spec: &ListenSpec, common: Option<(usize, usize)>) -> (usize, usize) {
        let at = |key: &str| spec.lines.get(key).copied();
        let (all, per_export) = common.unwrap_or((keys::NBD_CONNECTIONS_DEFAULT as usize, usize::MAX));
        let given = spec.connections;
        let connections = self
            .bounded(at("connections"), place, "connections", given, 1, keys::NBD_CONNECTIONS_MAX)
            .map_or(all, |n| n as usize);
        let half = connections.div_ceil(2);
        let inherited = if given.is_some() || per_export == usize::MAX { half } else { per_export };
        let wanted = spec.connections_per_export;
        let key = "connections_per_export";
        let per_export = self.bounded(at(key), place, key, wanted, 1, connections as u64);
        (connections, per_export.map_or(inherited, |n| n as usize))
    }

    fn listener(&mut self, place: &str, spec: &ListenSpec, common: (usize, usize)) -> Option<NbdListener> {
        let line = |key: &str| spec.lines.get(key).copied().or(spec.line);
        let tls = self.choice(line("tls"), place, "tls", &spec.tls).unwrap_or_default();
        let files = self.tls_files(place, spec, tls);
        let (connections, per_export) = self.connections(place, spec, Some(common));
        if spec.exports.as_ref().is_some_and(Vec::is_empty) {
            let remedy = "name disks or VMs, or leave exports out for all";
            self.error(line("exports"), place, "exports is empty: nobody could reach anything".into(), remedy);
        }
        let at = match (&spec.unix, &spec.tcp) {
            (Some(path), None) => {
                let path = self.path(line("unix"), place, "unix", path);
                self.socket(place, line("unix"), "an NBD listener", &path, true);
                NbdListen::Unix(path)
            }
            (None, Some(text)) => {
                let secure = tls == TlsMode::Require && spec.tls_client_ca.is_some();
                let remedy = if secure { "" } else { TLS_REMEDY };
                NbdListen::Tcp(self.address(line("tcp"), place, "tcp", text, "127.0.0.1:10809", remedy)?)
            }
            (unix, _) => {
                let error = if unix.is_some() { "it has both unix and tcp" } else { "it has neither unix nor tcp" };
                self.error(
                    spec.line,
                    place,
                    error.into(),
                    "give one of them; write another [[nbd.listen]] for the other",
                );
                return None;
            }
        };
        Some(NbdListener { at, exports: spec.exports.clone(), tls, files, connections, per_export })
    }

    fn tls_files(&mut self, place: &str, spec: &ListenSpec, mode: TlsMode) -> Option<TlsFiles> {
        let line = |key: &str| spec.lines.get(key).copied().or(spec.line);
        let all = [
            ("tls_cert", &spec.tls_cert),
            ("tls_key", &spec.tls_key),
            ("tls_client_ca", &spec.tls_client_ca),
            ("tls_client_crl", &spec.tls_client_crl),
        ];
        let [cert, key, client_ca, client_crl] =
            all.map(|(key, path)| path.as_ref().map(|path| self.path(line(key), place, key, path)));
        if mode == TlsMode::Off {
            if let Some((key, _)) = all.iter().find(|(_, path)| path.is_some()) {
                let remedy = "set tls = \"require\" (or \"offer\"), or take the file away";
                self.error(line(key), place, format!("{key} is given, but tls is off"), remedy);
            }
            return None;
        }
        if client_crl.is_some() && client_ca.is_none() {
            let remedy = "give the authorities of clients in tls_client_ca";
            self.error(line("tls_client_crl"), place, "tls_client_crl without tls_client_ca".into(), remedy);
        }
        let (Some(cert), Some(key)) = (cert, key) else {
            let missing = if spec.tls_cert.is_none() { "tls_cert" } else { "tls_key" };
            let remedy = format!("give {missing} = \"FILE.pem\"; or take tls away");
            self.error(line("tls"), place, format!("tls is on, but there is no {missing}"), remedy);
            return None;
        };
        let files = TlsFiles { cert, key, client_ca, client_crl };
        if let Err(e) = tls::load(&files) {
            let text = e.to_string();
            let (error, remedy) = text.split_once("; ").unwrap_or((&text, "correct the file"));
            self.error(line("tls"), place, error.to_string(), remedy);
        }
        Some(files)
    }
}

/// What to do about a TCP address that others reach.
const TLS_REMEDY: &str = "nothing there is authenticated: use [[nbd.listen]] with tls = \"require\" and tls_client_ca, \
    keep it on a trusted network, or listen on 127.0.0.1";
