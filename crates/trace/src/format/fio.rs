//! fio's I/O logs, versions 2 and 3 (`write_iolog`): a first line that says so, then `file action [offset length]`, in
//! version 3 after a time in microseconds. A tenant is a file.
//!
//! Version 2 has no times but `wait` lines, which say how long after the wait before them what follows comes.

use super::drive::Line;
use super::fields::{NS_PER_US, decimal, number, shown, words};
use super::sink::Sink;
use super::spec::{Beginning, Spec};
use crate::access::{AccessKind, TraceRequest};
use crate::blocks::{DISK_TENANTS_MAX, Unit};
use crate::damage::Damage;

pub(super) static SPEC: Spec = Spec {
    name: "fio",
    about: "fio's iolog, version 2 or 3",
    record: "`write_iolog`, version 2 or 3",
    tenant: "file",
    endings: &["iolog", "fio"],
    magic: Some(b"fio version "),
    begin: |_| Ok(Beginning::lines(Unit::Bytes, Fio::default())),
    ..Spec::BASE
};

#[derive(Default)]
struct Fio {
    version: u8,
    waited_ns: u64,
}

impl Line for Fio {
    fn line(&mut self, line: &[u8], to: &mut Sink<'_>) -> Result<(), Damage> {
        if self.version == 0 {
            self.version = match line.trim_ascii() {
                b"fio version 2 iolog" => 2,
                b"fio version 3 iolog" => 3,
                other => {
                    let found = format!("\"{}\"", shown(other));
                    return Err(Damage::Beginning { found, expected: "\"fio version 2 iolog\" or 3" });
                }
            };
            return Ok(());
        }
        let mut all = words(line);
        let Some(mut file) = all.next() else { return Ok(()) };
        let mut time_ns = self.waited_ns;
        if self.version == 3 {
            time_ns = number(file, "time", decimal)?.saturating_mul(NS_PER_US);
            file = all.next().ok_or(Damage::Malformed("it ends after the time; expected are time, file and action"))?;
        }
        let action = all.next().ok_or(Damage::Malformed("it has no action"))?;
        let kind = match action {
            b"read" => AccessKind::Read,
            b"write" => AccessKind::Write,
            b"wait" => {
                let wait = number(all.next().unwrap_or_default(), "time to wait", decimal)?;
                self.waited_ns = self.waited_ns.saturating_add(wait.saturating_mul(NS_PER_US));
                return Ok(());
            }
            b"add" | b"open" | b"close" | b"sync" | b"datasync" | b"trim" => return Ok(()),
            other => return Err(Damage::Unknown { found: shown(other), kind: "action of fio" }),
        };
        let address = number(all.next().unwrap_or_default(), "offset", decimal)?;
        let bytes = number(all.next().unwrap_or_default(), "length", decimal)?;
        let tenant = to.tenant(file, DISK_TENANTS_MAX)?;
        to.bytes(TraceRequest { time_ns, address, bytes, keys: 1, tenant, kind })
    }
}
