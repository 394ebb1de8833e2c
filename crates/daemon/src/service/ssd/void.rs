//! Names of stores that are void: what their devices say of themselves is not to be believed any more.
//!
//! Owns the file of them, in the runtime directory, which is as old as the host's start or older. Never reads a device.
//! Invariant: a name that was added is durable before that is said.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use undercroft_cache::ssd::StoreId;

/// The file.
const NAME: &str = "ssd-void";

/// The names, and where they are kept.
#[derive(Debug)]
pub(super) struct VoidNames {
    path: PathBuf,
    names: BTreeSet<[u8; 16]>,
}

impl VoidNames {
    /// Reads them. A line that is none is of no store.
    pub(super) fn load(runtime_dir: &Path) -> Self {
        let path = runtime_dir.join(NAME);
        let text = fs::read_to_string(&path).unwrap_or_default();
        let name = |line: &str| u128::from_str_radix(line, 16).ok().filter(|_| line.len() == 32).map(u128::to_be_bytes);
        Self { path, names: text.lines().filter_map(name).collect() }
    }

    /// Whether a store is void.
    pub(super) fn has(&self, store: StoreId) -> bool {
        self.names.contains(&store.0)
    }

    /// Adds names, durably.
    ///
    /// # Errors
    /// What the file system says: nothing is known then of what a start would read.
    pub(super) fn add(&mut self, stores: impl IntoIterator<Item = StoreId>) -> io::Result<()> {
        let new: Vec<_> = stores.into_iter().filter(|store| !self.has(*store)).collect();
        if new.is_empty() {
            return Ok(());
        }
        let mut file = File::options().create(true).append(true).open(&self.path)?;
        let lines: String = new.iter().map(|store| format!("{:032x}\n", u128::from_be_bytes(store.0))).collect();
        file.write_all(lines.as_bytes())?;
        file.sync_all()?;
        if let Some(dir) = self.path.parent() {
            File::open(dir)?.sync_all()?;
        }
        self.names.extend(new.iter().map(|store| store.0));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_there_after_a_start_and_other_lines_are_none() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b, c) = (StoreId([1; 16]), StoreId(*b"0123456789abcdef"), StoreId([0xff; 16]));
        let mut names = VoidNames::load(dir.path());
        assert!(!names.has(a));
        names.add([a, b]).unwrap();
        names.add([b]).unwrap();
        fs::write(dir.path().join(NAME), fs::read_to_string(dir.path().join(NAME)).unwrap() + "what\n\n12\n").unwrap();
        let again = VoidNames::load(dir.path());
        assert!(again.has(a) && again.has(b) && !again.has(c));
        assert_eq!(again.names.len(), 2);
        assert!(VoidNames::load(&dir.path().join("none")).add([a]).is_err(), "nothing is said to be kept that is not");
    }
}
