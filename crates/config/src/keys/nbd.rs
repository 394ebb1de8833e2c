//! Keys of the NBD server: its listeners, what is reached there, its bounds.
//!
//! Owns words. Never reads a file. Invariant: as of `keys`.

use super::Live::{Name, Restart};
use super::{Key, Kind, Section, key};

/// `[nbd]`.
pub const NBD: Section = Section {
    header: "[nbd]",
    doc: "Where NBD clients connect, and the bounds of all of them. Each disk with `nbd = true` is exported under its full name \
          (`VM:DISK`). Whoever reaches one of these two listeners reaches all exports, in the clear; for tenants and for TLS see \
          `[[nbd.listen]]`.",
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
            "Most that the data of requests and replies under way may take, of all NBD connections together, besides 128KiB of each. Requests for which there is no room wait: the export that holds least is served first, within it who came first. Besides `store.memory`."
        ),
        key!(
            "slow_after",
            Time,
            "`10s`",
            "`100ms` to `600s`",
            Restart,
            "While a connection waits for that memory, another that holds some and whose client moves less than 1MiB of data in this time is closed."
        ),
        key!(
            "connections",
            Number,
            "`64`",
            "1 to 1024",
            Restart,
            "Connections past their handshake, of each listener."
        ),
        key!(
            "connections_per_export",
            Number,
            "half of `connections`",
            "1 to `connections`",
            Restart,
            "Of those, to one export: so that the clients of one cannot keep out those of the others."
        ),
        key!(
            "handshakes",
            Number,
            "`64`",
            "1 to 1024",
            Restart,
            "Connections in their handshake, of each listener. When there are more, the oldest that has had a second gives way."
        ),
        key!(
            "handshake_timeout",
            Time,
            "`10s`",
            "`100ms` to `60s`",
            Restart,
            "A client that is not done with its handshake by then, TLS included, is cut off."
        ),
    ],
};

/// `[[nbd.listen]]`.
pub const NBD_LISTEN: Section = Section {
    header: "[[nbd.listen]]",
    doc: "A listener that serves some exports, or with TLS: one for each tenant keeps tenants apart. What is not among its exports does \
          not exist for its clients.",
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
            "What can be reached here. The empty export name is the only one, if there is only one."
        ),
        key!(
            "tls",
            Text,
            "`off`",
            "`off`, `offer`, `require`",
            Restart,
            "Whether clients may (`offer`) or must (`require`) encrypt, as NBD_OPT_STARTTLS has it (TLS 1.2 or 1.3). Where they must, they learn nothing before."
        ),
        key!(
            "tls_cert",
            Path,
            "needed for TLS",
            "PEM",
            Restart,
            "The server's certificate, followed by those between it and the authority's. Reload reads this and the next three files again, for connections that come afterwards."
        ),
        key!("tls_key", Path, "needed for TLS", "PEM", Restart, "The private key of that certificate."),
        key!(
            "tls_client_ca",
            Path,
            "none: clients show no certificate",
            "PEM",
            Restart,
            "Certificates of authorities: a client that encrypts must show a certificate of one of them. Every such client reaches all exports of the listener."
        ),
        key!(
            "tls_client_crl",
            Path,
            "none",
            "PEM",
            Restart,
            "Lists of revoked certificates, one for each of those authorities: a client whose authority has none is refused."
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
