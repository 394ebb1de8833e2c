//! What NBD clients see of the served disks.
//!
//! Owns a weak reference to the service. Invariant: a disk that is detaching is not found.

use super::{ServedDisk, Service};
use std::sync::{Arc, Weak};
use undercroft_config::{NbdListen, NbdListener};
use undercroft_frontend::PortHost;
use undercroft_frontend::nbd::{ExportInfo, Exports, Listed, Listen, ServedExport};
use undercroft_frontend::socket::SocketPermissions;

/// The served disks as NBD exports, under their full names.
pub(super) struct ServedExports(pub(super) Weak<Service>);

/// Where a listener of a plan listens.
pub(super) fn listen_of(listen: &NbdListen, access: SocketPermissions) -> Listen {
    match listen {
        NbdListen::Unix(path) => Listen::Unix(path.clone(), access),
        NbdListen::Tcp(addr) => Listen::Tcp(*addr),
    }
}

/// What clients of a listener see.
pub(super) fn exports_of(listener: &NbdListener, service: Weak<Service>) -> Arc<dyn Exports> {
    let all = Arc::new(ServedExports(service));
    match &listener.exports {
        Some(names) => Arc::new(Listed { all, names: names.clone() }),
        None => all,
    }
}

impl ServedExports {
    fn disks(&self) -> Vec<Arc<ServedDisk>> {
        let disks = self.0.upgrade().map(|s| s.disks()).unwrap_or_default();
        disks.into_iter().filter(|d| d.is_exported()).collect()
    }
}

impl Exports for ServedExports {
    fn list(&self) -> Vec<ExportInfo> {
        let info =
            |d: Arc<ServedDisk>| ExportInfo { name: d.info().name.clone(), description: d.description().to_string() };
        self.disks().into_iter().map(info).collect()
    }

    fn find(&self, name: &str) -> Option<ServedExport> {
        let disk = self.disks().into_iter().find(|d| d.info().name == name)?;
        let host: Arc<dyn PortHost> = disk.host().clone();
        Some(ServedExport { info: disk.info().clone(), description: disk.description().to_string(), host })
    }
}
