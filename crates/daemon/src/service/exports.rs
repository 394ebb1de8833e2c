//! What NBD clients see of the served disks.
//!
//! Owns a weak reference to the service. Invariant: a disk that is detaching is not found.

use super::{ServedDisk, Service, lock};
use std::sync::{Arc, Weak};
use undercroft_api::NbdListenerStatus;
use undercroft_config::tls::TlsMode;
use undercroft_config::{NbdListen, NbdListener, ServePlan};
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

impl Service {
    /// What is shown of the listeners.
    pub(super) fn nbd_listeners(&self, plan: &ServePlan) -> Vec<NbdListenerStatus> {
        let exported: Vec<_> = self.disks().into_iter().filter(|d| d.is_exported()).collect();
        let names = || exported.iter().map(|d| d.info().name.clone());
        let servers = lock(&self.nbd);
        let shown = servers.iter().zip(&plan.nbd).map(|(server, listener)| NbdListenerStatus {
            address: server.local_addr().to_string(),
            tls: match listener.tls {
                TlsMode::Off => "off",
                TlsMode::Offer => "offer",
                TlsMode::Require => "require",
            }
            .to_string(),
            client_certificates: listener.files.as_ref().is_some_and(|f| f.client_ca.is_some()),
            disks: names().filter(|n| listener.has(n)).collect(),
        });
        shown.collect()
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
