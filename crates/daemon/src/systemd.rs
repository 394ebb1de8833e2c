//! What systemd is told: ready, reloading, stopping (sd_notify(3), by hand: one datagram).
//!
//! Owns the datagram. Never fails the daemon: outside systemd, or if it does not listen, nothing happens.

use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use undercroft_host::send_with_descriptors;

/// Everything listens: the unit is active from now on. Also ends `reloading`.
pub fn ready(status: &str) {
    notify(&format!("READY=1\nSTATUS={}", one_line(status)));
}

/// The configuration is being read again; end it with `ready`.
pub(crate) fn reloading() {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let us = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1000;
    notify(&format!("RELOADING=1\nMONOTONIC_USEC={us}"));
}

/// Another process serves from now on.
pub(crate) fn main_process(pid: u32) {
    notify(&format!("MAINPID={pid}"));
}

/// Has the manager keep a descriptor for the next start, under a name. Whether it was told.
pub(crate) fn keep(name: &str, descriptor: BorrowedFd<'_>) -> bool {
    tell_to_keep(&format!("FDSTORE=1\nFDNAME={name}"), &[descriptor])
}

fn tell_to_keep(state: &str, descriptors: &[BorrowedFd<'_>]) -> bool {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return false };
    let sent = address(&socket).and_then(|address| {
        let datagram = UnixDatagram::unbound()?;
        datagram.connect_addr(&address)?;
        Ok(send_with_descriptors(&datagram, state.as_bytes(), descriptors)?)
    });
    sent.is_ok()
}

/// Has the manager keep several descriptors for the next start under one name, and look at none of them: it would be
/// woken with each event there. Whether it was told.
pub(crate) fn keep_unwatched(name: &str, descriptors: &[BorrowedFd<'_>]) -> bool {
    tell_to_keep(&format!("FDSTORE=1\nFDPOLL=0\nFDNAME={name}"), descriptors)
}

/// Has the manager keep what it keeps under a name no longer.
pub(crate) fn keep_no_more(name: &str) {
    notify(&format!("FDSTOREREMOVE=1\nFDNAME={name}"));
}

/// Whether there is a manager that could keep something.
pub(crate) fn can_keep() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

/// The stop has begun.
pub fn stopping() {
    notify("STOPPING=1\nSTATUS=finishing requests");
}

fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

fn notify(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(e) = send(&socket, state) {
        tracing::debug!("systemd cannot be told {state:?}: {e}");
    }
}

fn address(socket: &OsStr) -> std::io::Result<SocketAddr> {
    match socket.as_bytes().split_first() {
        Some((b'@', name)) => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(socket),
    }
}

fn send(socket: &OsStr, state: &str) -> std::io::Result<()> {
    let address = address(socket)?;
    let datagram = UnixDatagram::unbound()?;
    datagram.set_nonblocking(true)?;
    datagram.send_to_addr(state.as_bytes(), &address).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_addresses_get_the_datagram() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let by_path = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), "READY=1").unwrap();
        let name = format!("undercroft-test-{}", std::process::id());
        let by_name = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        send(OsStr::new(&format!("@{name}")), "STOPPING=1").unwrap();
        let mut buf = [0; 64];
        let n = by_path.recv(&mut buf).unwrap();
        assert_eq!(&buf[..n], b"READY=1");
        let n = by_name.recv(&mut buf).unwrap();
        assert_eq!(&buf[..n], b"STOPPING=1");
        assert!(send(OsStr::new("/nowhere/notify"), "READY=1").is_err());
    }

    #[test]
    fn a_status_cannot_smuggle_in_other_assignments() {
        assert_eq!(one_line("3 disks\nMAINPID=1"), "3 disks MAINPID=1");
    }
}
