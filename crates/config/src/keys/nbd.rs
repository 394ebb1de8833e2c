//! Keys of the NBD server: its listeners, what is reached there, its bounds.
//!
//! Owns words. Never reads a file. Invariant: as of `keys`.

use super::Live::{Name, Restart};
use super::{Key, Kind, Section, key};

/// `[nbd]`.
pub const NBD: Section = Section {
    header: "[nbd]",
    doc: "Where NBD clients connect, and limits for all of them. Each disk with `nbd = true` is exported under its \
        full name (`VM:DISK`). Whoever can connect to `unix` or `tcp` reaches all exports, without encryption; for \
        listeners of tenants and for TLS see `[[nbd.listen]]`.",
    keys: &[
        key!("unix", Path, "off", "at most 107 bytes", Restart, "A unix socket. Its group is `daemon.disk_group`."),
        key!(
            "tcp",
            Address,
            "off",
            "IP address and port: `127.0.0.1:10809`",
            Restart,
            "A TCP address. No encryption, no authentication: whoever reaches it can read and write the disks."
        ),
        key!(
            "listen",
            Tables,
            "none",
            "",
            Name,
            "More listeners, each with its own exports, TLS and bounds: `[[nbd.listen]]`."
        ),
        key!(
            "memory",
            Size,
            "`256MiB`",
            "at least `64MiB`",
            Restart,
            "The most memory that the data of requests and replies under way may take, for all NBD connections and \
             disks that are files (`fuse`) together and besides 128KiB for each; it is not part of `store.memory`. \
             Requests for which there is no room wait: the export that holds least is served first, and within an \
             export the request that came first."
        ),
        key!(
            "slow_after",
            Time,
            "`10s`",
            "`100ms` to `600s`",
            Restart,
            "If a connection waits for `memory`, another connection that holds some of it is closed if its client \
             moves less than 1MiB of data in this time."
        ),
        key!(
            "connections",
            Number,
            "`64`",
            "1 to 1024",
            Restart,
            "The most connections of each listener that are past their handshake."
        ),
        key!(
            "connections_per_export",
            Number,
            "half of `connections`",
            "1 to `connections`",
            Restart,
            "The most of those connections to one export. As many places as there are exports without a connection, \
             but no more than half of `connections`, are kept for the first connections to these: so clients of some \
             exports keep nobody from the others, unless there are more than half as many exports as `connections`."
        ),
        key!(
            "handshakes",
            Number,
            "`64`",
            "1 to 1024",
            Restart,
            "The most connections of each listener that are in their handshake. When one more comes, the oldest that \
             has had at least a second is closed."
        ),
        key!(
            "handshake_timeout",
            Time,
            "`10s`",
            "`100ms` to `60s`",
            Restart,
            "A client that has not finished its handshake, TLS included, in this time is disconnected."
        ),
    ],
};

/// `[[nbd.listen]]`.
pub const NBD_LISTEN: Section = Section {
    header: "[[nbd.listen]]",
    doc: "A listener that serves only some exports, or with TLS. With one for each tenant, tenants are kept apart: for \
        its clients, an export that it does not list does not exist.",
    keys: &[
        key!(
            "unix",
            Path,
            "this or `tcp`",
            "at most 107 bytes",
            Restart,
            "A unix socket. Its group is `daemon.disk_group`."
        ),
        key!("tcp", Address, "this or `unix`", "IP address and port: `192.0.2.1:10809`", Restart, "A TCP address."),
        key!(
            "exports",
            Names,
            "all",
            "`DISK`, `VM:DISK`, or `VM` for all of its disks",
            Restart,
            "The exports of this listener. If there is only one, the empty export name stands for it, too."
        ),
        key!(
            "tls",
            Text,
            "`off`",
            "`off`, `offer`, `require`",
            Restart,
            "Whether clients may (`offer`) or must (`require`) use TLS 1.2 or 1.3, with NBD_OPT_STARTTLS. With \
             `require` they are told nothing about exports before."
        ),
        key!(
            "tls_cert",
            Path,
            "needed for TLS",
            "PEM",
            Restart,
            "The server's certificate, followed by the intermediate certificates up to that of the authority. A reload \
             reads this file and those of the next three keys again, for connections that come afterwards."
        ),
        key!("tls_key", Path, "needed for TLS", "PEM", Restart, "The private key of that certificate."),
        key!(
            "tls_client_ca",
            Path,
            "none: clients show no certificate",
            "PEM",
            Restart,
            "Certificates of authorities: a client that encrypts must show a certificate of one of them. Every such \
             client reaches all exports of the listener."
        ),
        key!(
            "tls_client_crl",
            Path,
            "none",
            "PEM",
            Restart,
            "Lists of revoked certificates, one for each of those authorities: a client whose authority has none is \
             refused."
        ),
        key!("connections", Number, "as of `[nbd]`", "1 to 1024", Restart, "Connections past their handshake."),
        key!(
            "connections_per_export",
            Number,
            "as of `[nbd]`, or half of `connections`",
            "1 to `connections`",
            Restart,
            "Of those, to one export."
        ),
    ],
};
