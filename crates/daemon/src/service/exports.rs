//! The exports of NBD listeners: the served disks, as NBD clients see them.
//!
//! Owns a weak reference to the service. Invariant: a disk that is being detached is no export any more.

use super::disk::socket_access;
use super::{ServedDisk, Service, ServiceError};
use std::sync::{Arc, Weak};
use undercroft_api::NbdListenerStatus;
use undercroft_config::tls::{self, TlsMode};
use undercroft_config::{NbdListen, NbdListener, ServePlan};
use undercroft_frontend::PortHost;
use undercroft_frontend::nbd::{ExportInfo, Exports, Listed, Listen, NbdServer, NbdServerOptions, ServedExport};
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
        let running = self.running.lock();
        let shown = running.nbd.iter().zip(&plan.nbd).map(|(server, listener)| NbdListenerStatus {
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

impl Service {
    /// Starts a listener of the plan.
    pub(super) fn listen_nbd(self: &Arc<Self>, listener: &NbdListener) -> Result<NbdServer, ServiceError> {
        let access = socket_access(self.plan().daemon.disk_access);
        let exports = exports_of(listener, Arc::downgrade(self));
        let failed = |source| ServiceError::Nbd { listen: listener.at.to_string(), source: Box::new(source) };
        let keys = listener.files.as_ref().map(tls::load).transpose().map_err(|e| failed(e.into()))?;
        let limits = self.plan().nbd_limits;
        let options = NbdServerOptions {
            connections_max: listener.connections,
            connections_per_export_max: listener.per_export,
            handshakes_max: limits.handshakes,
            handshake_timeout: limits.handshake_timeout,
            budget: self.nbd_budget.clone(),
            tls: listener.tls,
            keys,
            ..NbdServerOptions::default()
        };
        NbdServer::start(listen_of(&listener.at, access), exports, options).map_err(failed)
    }

    /// Reads the certificates of the listeners again, for clients that come from now on. What cannot be read is named,
    /// and stays as it was. Whether there are any.
    pub(super) fn renew_nbd_keys(&self, failed: &mut Vec<String>) -> bool {
        let plan = self.plan();
        let mut any = false;
        for (listener, server) in plan.nbd.iter().zip(&self.running.lock().nbd) {
            let Some(files) = &listener.files else { continue };
            any = true;
            match tls::load(files) {
                Ok(keys) => server.set_keys(keys),
                Err(e) => failed.push(format!("the certificates of {}: {e}; those read before stay", listener.at)),
            }
        }
        any
    }
}
