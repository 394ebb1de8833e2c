//! `tls`, `tls_cert` and their like: whether a listener encrypts, and the files for it.
//!
//! Owns the certificates' way from files to what a connection is made with. Never sees a connection. Invariant: files
//! that are accepted here make connections that authenticate whom they say.

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Whether clients of a listener encrypt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum TlsMode {
    /// They cannot.
    #[default]
    Off,
    /// They may.
    Offer,
    /// They must: nothing is said about exports before they do.
    Require,
}

/// Files of certificates and keys, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, and those between it and the authority's.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Certificates of the authorities of which a client has to show one; without, clients show none.
    pub client_ca: Option<PathBuf>,
    /// Revoked certificates of clients.
    pub client_crl: Option<PathBuf>,
}

/// Why the files are of no use. Each message names the file and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// It cannot be read.
    #[error("cannot read {path}: {source}; give a file that the daemon's user can read")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// It holds something else.
    #[error("{path} holds no {what} in PEM format: {why}; it begins with -----BEGIN ...")]
    Pem {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
        /// What was wrong.
        why: String,
    },
    /// The certificate and the key do not go together, or are of no use.
    #[error(
        "{cert} and {key} cannot be used together: {why}; give the key that belongs to the first certificate in the \
         file"
    )]
    Pair {
        /// The file of the certificate.
        cert: PathBuf,
        /// That of the key.
        key: PathBuf,
        /// What was wrong.
        why: rustls::Error,
    },
    /// The authorities are of no use.
    #[error("{path} cannot be used to check clients: {why}; give certificates of authorities")]
    ClientCa {
        /// The file.
        path: PathBuf,
        /// What was wrong.
        why: String,
    },
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|source| TlsError::Read { path: path.to_owned(), source })
}

fn all<T: PemObject>(path: &Path, what: &'static str) -> Result<Vec<T>, TlsError> {
    let wrong = |why: String| TlsError::Pem { path: path.to_owned(), what, why };
    let found: Vec<T> =
        T::pem_slice_iter(&read(path)?).collect::<Result<_, pem::Error>>().map_err(|e| wrong(e.to_string()))?;
    if found.is_empty() { Err(wrong("there is none in it".to_owned())) } else { Ok(found) }
}

/// Reads the files.
///
/// # Errors
/// See [`TlsError`].
pub fn load(files: &TlsFiles) -> Result<Arc<ServerConfig>, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let pair = |why| TlsError::Pair { cert: files.cert.clone(), key: files.key.clone(), why };
    let builder = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
    let builder = builder.map_err(pair)?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let wrong = |why: String| TlsError::ClientCa { path: path.clone(), why };
            let mut roots = RootCertStore::empty();
            for cert in all::<CertificateDer<'_>>(path, "certificate")? {
                roots.add(cert).map_err(|e| wrong(e.to_string()))?;
            }
            let mut verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            if let Some(path) = &files.client_crl {
                verifier = verifier.with_crls(all::<CertificateRevocationListDer<'_>>(path, "revocation list")?);
                // Of the client's own certificate; authorities between publish lists of their own.
                verifier = verifier.only_check_end_entity_revocation();
            }
            builder.with_client_cert_verifier(verifier.build().map_err(|e| wrong(e.to_string()))?)
        }
    };
    let certs = all::<CertificateDer<'_>>(&files.cert, "certificate")?;
    let mut keys = all::<PrivateKeyDer<'_>>(&files.key, "private key")?;
    let mut config = builder.with_single_cert(certs, keys.swap_remove(0)).map_err(pair)?;
    // Each connection shows its certificates anew: a reload holds for all that come after it, and nothing is kept for
    // them.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}
