//! `[nbd]` and `[[nbd.listen]]`: where NBD clients connect, what they reach there, and their bounds, checked and filled
//! in.
//!
//! Owns their rules. Never opens a socket; certificates are read to say early what is wrong with them. Invariant: a
//! listener that encrypts has the files for it.

use super::keys;
use super::plan::{NbdLimits, NbdListen, NbdListener, ServePlan};
use super::resolve::{Resolver, clip};
use super::spec::{ListenSpec, ServeSpec};
use crate::tls::{self, TlsFiles, TlsMode};
use undercroft_units::Size;

impl Resolver<'_> {
    /// All listeners, and the bounds of all of them together.
    pub(super) fn nbd(&mut self, spec: &ServeSpec) -> (Vec<NbdListener>, NbdLimits) {
        let nbd = &spec.nbd;
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
        if let Some(path) = &spec.nbd_unix {
            let line = spec.lines.get("unix").copied();
            let path = self.path(line, "nbd", "unix", path);
            self.socket("nbd", line, "the NBD listener", &path, true);
            listeners.push(plain(NbdListen::Unix(path)));
        }
        if let Some(text) = &spec.nbd_tcp {
            let line = spec.lines.get("tcp").copied();
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

    /// Looks for names of listeners that no disk has. They may come later, so that is no error.
    pub(super) fn listed_exports(&mut self, spec: &ServeSpec, plan: &ServePlan) {
        let exported: Vec<&str> = plan.disks.iter().filter(|d| d.nbd).map(|d| &*d.name).collect();
        let vms = exported.iter().filter_map(|n| Some(n.split_once(':')?.0));
        let known: Vec<&str> = exported.iter().copied().chain(vms).collect();
        for (n, one) in spec.nbd.listen.iter().enumerate() {
            let names = one.exports.iter().flatten();
            for name in names.filter(|n| !known.contains(&n.as_str())) {
                let error = format!("no disk with nbd = true, and no VM with one, is called \"{}\"", clip(name));
                let remedy = match keys::nearest(name, known.iter().copied()) {
                    Some(near) => format!("did you mean \"{near}\"? It may also be attached later"),
                    None => "name one that there is, as VM, VM:DISK or DISK; it may also be attached later".to_string(),
                };
                let line = one.lines.get("exports").copied().or(one.line);
                self.warning(line, &format!("nbd.listen {}", n + 1), error, remedy);
            }
        }
    }
}

/// What to do about a TCP address that others reach.
const TLS_REMEDY: &str = "nothing there is authenticated: use [[nbd.listen]] with tls = \"require\" and tls_client_ca, keep it on a \
                          trusted network, or listen on 127.0.0.1";
