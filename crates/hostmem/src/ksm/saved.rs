//! What was found before the first change, kept in a file until it has been put back.
//!
//! Owns the file `ksm.saved` in the runtime directory. Invariants: it is whole or not there (written beside and
//! renamed); what is read from it is a setting with a value that may be written, or is refused.

use super::sysfs::may_write;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Its name in the runtime directory.
pub(super) const FILE: &str = "ksm.saved";
/// Longest such file, in bytes.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// One setting that was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    /// The setting.
    pub name: String,
    /// What stood there.
    pub found: String,
    /// What was written instead.
    pub wrote: String,
}

/// Everything that was changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Saved {
    /// Of which boot of the machine; settings do not outlive it.
    boot: String,
    entries: Vec<Entry>,
}

/// Why a file of what was found cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SavedError {
    /// The system refuses it.
    #[error("{0}")]
    Read(#[from] io::Error),
    /// It is of another form.
    #[error("{0}")]
    Form(#[from] serde_json::Error),
    /// A setting that KSM does not have.
    #[error("\"{0}\" is no setting of KSM")]
    Odd(String),
}

impl Saved {
    /// Nothing changed yet, in this boot.
    pub fn new(boot: String) -> Self {
        Saved { boot, entries: Vec::new() }
    }

    /// The changed settings, in the order of their first change.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Whether it is of another boot than `now`.
    pub fn is_of_another_boot(&self, now: &str) -> bool {
        self.boot != now
    }

    /// Notes that `wrote` is about to replace `found`; what was found first stays.
    pub fn note(&mut self, name: &str, found: &str, wrote: &str) {
        match self.entries.iter_mut().find(|e| e.name == name) {
            Some(e) => e.wrote = wrote.to_string(),
            None => self.entries.push(Entry { name: name.into(), found: found.into(), wrote: wrote.into() }),
        }
    }

    /// Forgets a setting that is as it was found.
    pub fn forget(&mut self, name: &str) {
        self.entries.retain(|e| e.name != name);
    }

    /// From the bytes of a file.
    ///
    /// # Errors
    /// It is no such file.
    pub fn parse(bytes: &[u8]) -> Result<Self, SavedError> {
        let saved: Saved = serde_json::from_slice(bytes)?;
        if let Some(odd) = saved.entries.iter().find(|e| !may_write(&e.name, &e.found)) {
            let shown: String = format!("{} = {}", odd.name, odd.found).chars().take(100).collect();
            return Err(SavedError::Odd(shown));
        }
        Ok(saved)
    }

    /// Reads the file; `None` if there is none.
    ///
    /// # Errors
    /// It cannot be read, or is no such file.
    pub fn load(path: &Path) -> Result<Option<Self>, SavedError> {
        let mut bytes = Vec::new();
        let flags = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
        let file = match fs::OpenOptions::new().read(true).custom_flags(flags).open(path) {
            Ok(f) => f,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
        Self::parse(&bytes).map(Some)
    }

    /// Replaces the file, or takes it away if there is nothing left to put back.
    ///
    /// # Errors
    /// Those of writing.
    pub fn store(&self, path: &Path) -> io::Result<()> {
        if self.entries.is_empty() {
            return match fs::remove_file(path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
                _ => Ok(()),
            };
        }
        let beside = path.with_extension("new");
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32)
            .open(&beside)?;
        file.write_all(&serde_json::to_vec_pretty(self).map_err(io::Error::from)?)?;
        file.sync_all()?;
        fs::rename(&beside, path)
    }
}
