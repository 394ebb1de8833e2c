//! What NBD clients see of the served disks.
//!
//! Owns a weak reference to the service. Invariant: a disk that is detaching is not found.

use super::{ServedDisk, Service};
use crate::config::NbdListen;
use crate::frontend::nbd::{Export, ExportInfo, Exports, Listen};
use std::sync::{Arc, Weak};

/// The served disks as NBD exports, under their full names.
pub(super) struct ServedExports(pub(super) Weak<Service>);

/// Where a listener of a plan listens.
pub(super) fn listen_of(listen: &NbdListen) -> Listen {
    match listen {
        NbdListen::Unix(path) => Listen::Unix(path.clone()),
        NbdListen::Tcp(addr) => Listen::Tcp(*addr),
    }
}

impl ServedExports {
    fn disks(&self) -> Vec<Arc<ServedDisk>> {
        let disks = self.0.upgrade().map(|s| s.disks()).unwrap_or_default();
        disks.into_iter().filter(|d| d.is_exported()).collect()
    }
}
