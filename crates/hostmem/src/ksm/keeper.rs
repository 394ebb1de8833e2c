//! Who changes KSM's settings, and puts back what was found.
//!
//! Owns the right to manage (one process of the machine at a time), the order of writing, and the file of what was
//! found. Never changes a setting that the plan does not name. Invariants: a setting is in the file before it is
//! changed; on release only what still has our value is put back, so that a change by somebody else meanwhile is not
//! undone.

use super::saved::{FILE, Saved};
use super::sysfs::Ksm;
use super::{SIDE_CHANNEL, parse};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use undercroft_config::KsmPlan;

/// Why KSM cannot be managed.
#[derive(Debug, thiserror::Error)]
pub enum KsmError {
    /// This kernel has none.
    #[error(
        "this kernel has no KSM ({dir} is missing); it needs a kernel built with CONFIG_KSM=y. Guests' memory is not \
         merged"
    )]
    Absent {
        /// Where it would be.
        dir: String,
    },
    /// This process may not.
    #[error(
        "KSM cannot be managed: {file} cannot be written ({source}); run the daemon as root, or let its group write \
         the files there (chgrp, chmod g+w); under systemd also set ReadWritePaths={dir}"
    )]
    NotAllowed {
        /// The file.
        file: String,
        /// The directory.
        dir: String,
        /// Why.
        source: io::Error,
    },
    /// Another process does.
    #[error("KSM is managed by another undercroft daemon on this machine; let one of them do it")]
    Taken,
    /// What was found cannot be kept for the time after a crash.
    #[error(
        "what KSM is set to cannot be kept in {file}: {source}; nothing was changed. Set daemon.runtime_dir to a \
         directory that can be written"
    )]
    NotSaved {
        /// The file.
        file: String,
        /// Why.
        source: io::Error,
    },
    /// What was found before a crash cannot be read.
    #[error(
        "{file} says what KSM was set to before a crash, but is odd: {reason}; set KSM by hand and remove the file"
    )]
    Odd {
        /// The file.
        file: String,
        /// What is odd.
        reason: String,
    },
}

/// See the head of the file.
#[derive(Debug)]
pub struct Keeper {
    ksm: Ksm,
    path: PathBuf,
    boot: String,
    /// The right to manage, while we do.
    right: Option<OwnedFd>,
    saved: Saved,
    /// What the plan wanted and the kernel refused, in words.
    refused: Vec<String>,
}

impl Keeper {
    /// A keeper that changes nothing yet. What it finds is kept in `runtime_dir`, which must exist when it manages.
    pub fn new(ksm: Ksm, runtime_dir: &Path) -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        let boot = boot.ok().as_deref().and_then(parse::boot_id).unwrap_or_default();
        let saved = Saved::new(boot.clone());
        Keeper { ksm, path: runtime_dir.join(FILE), boot, right: None, saved, refused: Vec::new() }
    }

    /// The kernel's files.
    pub fn ksm(&self) -> &Ksm {
        &self.ksm
    }

    /// Whether settings are ours now.
    pub fn manages(&self) -> bool {
        self.right.is_some()
    }

    /// What the plan wanted and the kernel refused, each with its reason.
    pub fn refused(&self) -> &[String] {
        &self.refused
    }

    /// Puts back what a daemon found that was killed, if its file is there. Returns what was put back: `run 1 -> 0`.
    ///
    /// # Errors
    /// The file is odd, or another daemon manages KSM now.
    pub fn recover(&mut self) -> Result<Vec<String>, KsmError> {
        let odd = |reason| KsmError::Odd { file: self.path.display().to_string(), reason };
        let Some(saved) = Saved::load(&self.path).map_err(|e| odd(e.to_string()))? else { return Ok(Vec::new()) };
        if !self.ksm.exists() || saved.is_of_another_boot(&self.boot) {
            // The machine was started since: its settings are new, and ours are gone with the old ones.
            let _ = Saved::default().store(&self.path);
            return Ok(Vec::new());
        }
        self.right = Some(self.take_right()?);
        self.saved = saved;
        Ok(self.release(false))
    }

    fn take_right(&self) -> Result<OwnedFd, KsmError> {
        self.ksm.lock().map_err(|e| match e.kind() {
            io::ErrorKind::WouldBlock => KsmError::Taken,
            _ => KsmError::NotAllowed {
                file: self.ksm.dir().display().to_string(),
                dir: self.ksm.dir().display().to_string(),
                source: e,
            },
        })
    }

    /// Makes the kernel's settings those of `plan`; those that an earlier plan changed and this one leaves alone are
    /// put back. What this kernel does not have or refuses is left out and named in [`Keeper::refused`].
    ///
    /// # Errors
    /// Nothing was changed then.
    pub fn manage(&mut self, plan: &KsmPlan) -> Result<(), KsmError> {
        if !plan.manage {
            self.release(false);
            return Ok(());
        }
        let dir = || self.ksm.dir().display().to_string();
        if !self.ksm.exists() {
            return Err(KsmError::Absent { dir: dir() });
        }
        self.ksm.writable().map_err(|source| KsmError::NotAllowed {
            file: self.ksm.dir().join("run").display().to_string(),
            dir: dir(),
            source,
        })?;
        if self.right.is_none() {
            self.right = Some(self.take_right()?);
            self.saved = Saved::new(self.boot.clone());
            tracing::warn!("KSM is managed now: {SIDE_CHANNEL}");
        }
        let wanted = plan.wanted();
        let keeps = |name: &str| wanted.iter().any(|(w, _)| *w == name);
        let advised = keeps("advisor_mode");
        let names = self.saved.entries().iter().map(|e| e.name.clone());
        let dropped: Vec<String> = names.filter(|n| !(keeps(n) || advised && n == "pages_to_scan")).collect();
        self.put_back(dropped);
        self.refused.clear();
        for (name, value) in &wanted {
            if let Err(e) = self.change(name, value) {
                self.release(false);
                return Err(e);
            }
        }
        Ok(())
    }

    /// Changes one setting, its old value kept first.
    fn change(&mut self, name: &str, value: &str) -> Result<(), KsmError> {
        let now = match self.ksm.value(name) {
            Ok(Some(now)) => now,
            Ok(None) => {
                self.refuse(format!(
                    "{name} is left out: this kernel does not have it (advisor and smart_scan need Linux 6.7)"
                ));
                return Ok(());
            }
            Err(e) => {
                self.refuse(format!("{name} is left out: it cannot be read: {e}"));
                return Ok(());
            }
        };
        if now == value {
            return Ok(());
        }
        let before = self.saved.clone();
        self.saved.note(name, &now, value);
        if name == "advisor_mode"
            && now == "none"
            && let Ok(Some(rate)) = self.ksm.value("pages_to_scan")
        {
            // The advisor changes the rate, and the kernel forgets what it was before.
            self.saved.note("pages_to_scan", &rate, &rate);
        }
        if let Err(source) = self.saved.store(&self.path) {
            self.saved = before;
            return Err(KsmError::NotSaved { file: self.path.display().to_string(), source });
        }
        match self.ksm.set(name, value) {
            Ok(()) => tracing::info!("KSM: {name} {now} -> {value}"),
            Err(e) => {
                self.saved = before;
                let _ = self.saved.store(&self.path);
                self.refuse(format!("{name} = {value} is left out: the kernel refuses it: {e}"));
            }
        }
        Ok(())
    }

    fn refuse(&mut self, what: String) {
        tracing::warn!("KSM: {what}");
        self.refused.push(what);
    }

    /// Puts settings back, those that still are as we left them, and forgets them. What could not be put back stays in
    /// the file. Returns what was done, in words.
    fn put_back(&mut self, names: Vec<String>) -> Vec<String> {
        let advised = self.saved.entries().iter().any(|e| e.name == "advisor_mode");
        let mut done = Vec::new();
        let mut settled = Vec::new();
        for name in names {
            let Some(entry) = self.saved.entries().iter().find(|e| e.name == name).cloned() else { continue };
            let now = self.ksm.value(&name).ok().flatten().unwrap_or_default();
            if now == entry.found {
                settled.push(name);
            } else if now != entry.wrote && !(advised && name == "pages_to_scan") {
                let wrote = &entry.wrote;
                tracing::warn!(
                    "KSM: {name} is \"{now}\" and not {wrote}, as this daemon set it: somebody else did that, so it \
                     stays"
                );
                settled.push(name);
            } else {
                match self.ksm.set(&name, &entry.found) {
                    Ok(()) => {
                        done.push(format!("{name} {now} -> {}", entry.found));
                        settled.push(name);
                    }
                    Err(e) => tracing::error!("KSM: {name} cannot be set back to {}: {e}", entry.found),
                }
            }
        }
        settled.iter().for_each(|name| self.saved.forget(name));
        if let Err(e) = self.saved.store(&self.path) {
            tracing::warn!("KSM: {} cannot be brought up to date: {e}", self.path.display());
        }
        done
    }

    /// Puts back everything that was changed, and gives the right to manage up. With `unmerge`, all merged pages of the
    /// machine become private again first, which takes the memory that merging had saved. Returns what was put back.
    pub fn release(&mut self, unmerge: bool) -> Vec<String> {
        if self.right.is_none() {
            return Vec::new();
        }
        let mut done = Vec::new();
        if unmerge {
            let found = self.ksm.value("run").ok().flatten();
            match (self.ksm.set("run", "2"), found) {
                (Ok(()), Some(found)) => {
                    done.push("everything was unmerged".to_string());
                    self.saved.note("run", &found, "2");
                }
                (Ok(()), None) => {}
                (Err(e), _) => tracing::error!("KSM: pages cannot be unmerged: {e}"),
            }
        }
        // The switch first, so that nothing scans at a rate that nobody chose; then the advisor before its rate.
        let mut names: Vec<String> = self.saved.entries().iter().map(|e| e.name.clone()).collect();
        names.sort_by_key(|n| (n != "run", n != "advisor_mode"));
        done.extend(self.put_back(names));
        self.right = None;
        self.refused.clear();
        if !done.is_empty() {
            tracing::info!("KSM is as it was found again: {}", done.join(", "));
        }
        done
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.release(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::time::Duration;
    use undercroft_config::Advisor;

    /// A directory with the files of Linux 6.18, as found there.
    fn kernel() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, value) in [
            ("run", "0\n"),
            ("pages_to_scan", "500\n"),
            ("sleep_millisecs", "20\n"),
            ("advisor_mode", "[none] scan-time\n"),
            ("advisor_target_scan_time", "200\n"),
            ("smart_scan", "1\n"),
            ("use_zero_pages", "0\n"),
        ] {
            fs::write(dir.path().join(name), value).unwrap();
        }
        dir
    }

    fn value(kernel: &tempfile::TempDir, name: &str) -> String {
        Ksm::at(kernel.path()).value(name).unwrap().unwrap()
    }

    fn plan() -> KsmPlan {
        let sleep = Some(Duration::from_millis(50));
        KsmPlan { manage: true, run: true, pages_to_scan: Some(4000), sleep, ..KsmPlan::default() }
    }

    #[test]
    fn what_was_found_comes_back() {
        let (kernel, run) = (kernel(), tempfile::tempdir().unwrap());
        let mut keeper = Keeper::new(Ksm::at(kernel.path()), run.path());
        keeper.manage(&plan()).unwrap();
        assert!(keeper.manages() && keeper.refused().is_empty());
        assert_eq!((value(&kernel, "run").as_str(), value(&kernel, "pages_to_scan").as_str()), ("1", "4000"));
        assert!(run.path().join(FILE).exists());
        let done = keeper.release(false);
        assert_eq!(done[0], "run 1 -> 0", "the switch first: {done:?}");
        assert_eq!(
            (value(&kernel, "pages_to_scan").as_str(), value(&kernel, "sleep_millisecs").as_str()),
            ("500", "20")
        );
        assert!(!run.path().join(FILE).exists() && !keeper.manages());
    }

    #[test]
    fn without_manage_nothing_is_touched() {
        let (kernel, run) = (kernel(), tempfile::tempdir().unwrap());
        let mut keeper = Keeper::new(Ksm::at(kernel.path()), run.path());
        keeper.manage(&KsmPlan { manage: false, ..plan() }).unwrap();
        assert_eq!(value(&kernel, "run"), "0");
        assert!(!keeper.manages() && fs::read_dir(run.path()).unwrap().next().is_none());
    }

    #[test]
    fn the_next_start_mends_what_a_crash_left() {
        let (kernel, run) = (kernel(), tempfile::tempdir().unwrap());
        let mut keeper = Keeper::new(Ksm::at(kernel.path()), run.path());
        keeper.manage(&plan()).unwrap();
        // A crash: no release, but the kernel takes the lock away.
        keeper.right = None;
        drop(keeper);
        assert_eq!(value(&kernel, "run"), "1");
        let mut next = Keeper::new(Ksm::at(kernel.path()), run.path());
        assert_eq!(next.recover().unwrap().len(), 3);
        assert_eq!((value(&kernel, "run").as_str(), value(&kernel, "pages_to_scan").as_str()), ("0", "500"));
        assert!(next.recover().unwrap().is_empty() && !next.manages());
    }

    #[test]
    fn a_file_of_another_boot_or_with_other_contents_changes_nothing() {
        let (kernel, run) = (kernel(), tempfile::tempdir().unwrap());
        let file = run.path().join(FILE);
        let mut keeper = Keeper::new(Ksm::at(kernel.path()), run.path());
        fs::write(&file, r#"{"boot": "another", "entries": [{"name": "run", "found": "1", "wrote": "0"}]}"#).unwrap();
        assert!(keeper.recover().unwrap().is_empty() && !file.exists());
        assert_eq!(value(&kernel, "run"), "0");
        for odd in ["", "{}", r#"{"boot": "b", "entries": [{"name": "../x", "found": "1", "wrote": "0"}]}"#] {
            fs::write(&file, odd).unwrap();
            let e = keeper.recover().unwrap_err().to_string();
            assert!(e.contains("set KSM by hand and remove the file"), "{e}");
        }
    }

    #[test]
    fn what_somebody_else_set_meanwhile_stays() {
        let (kernel, run) = (kernel(), tempfile::tempdir().unwrap());
        let mut keeper = Keeper::new(Ksm::at(kernel.path()), run.path());
        keeper.manage(&plan()).unwrap();
        fs::write(kernel.path().join("pages_to_scan"), "777\n").unwrap();
        keeper.release(false);
        assert_eq!((value(&kernel, "pages_to_scan").as_str(), value(&kernel, "run").as_str()), ("777", "0"));
    }

    #[test]
    fn the_rate_comes_back_although_the_advisor_changed_it() {
        let (kernel, run) = (kernel(), tempfile::tempdir().unwrap());
        let mut keeper = Keeper::new(Ksm::at(kernel.path()), run.path());
        let advised = KsmPlan { manage: true, run: true, advisor: Some(Advisor::ScanTime), ..KsmPlan::default() };
        keeper.manage(&advised).unwrap();
        assert_eq!(value(&kernel, "advisor_mode"), "scan-time");
        // As the kernel does.
        fs::write(kernel.path().join("pages_to_scan"), "30000\n").unwrap();
        keeper.manage(&KsmPlan { run: false, ..advised }).unwrap();
        assert_eq!(value(&kernel, "pages_to_scan"), "30000", "the advisor goes on");
        keeper.release(false);
        assert_eq!(
            (value(&kernel, "advisor_mode").as_str(), value(&kernel, "pages_to_scan").as_str()),
            ("none", "500")
        );
    }

    #[test]
    fn a_plan_that_changes_puts_back_what_it_no_longer_names() {
        let (kernel, run) = (kernel(), tempfile::tempdir().unwrap());
        let mut keeper = Keeper::new(Ksm::at(kernel.path()), run.path());
        keeper.manage(&plan()).unwrap();
        keeper.manage(&KsmPlan { pages_to_scan: None, ..plan() }).unwrap();
        assert_eq!(
            (value(&kernel, "pages_to_scan").as_str(), value(&kernel, "sleep_millisecs").as_str()),
            ("500", "50")
        );
        keeper.manage(&KsmPlan::default()).unwrap();
        assert_eq!((value(&kernel, "sleep_millisecs").as_str(), keeper.manages()), ("20", false));
    }

    #[test]
    fn one_daemon_of_the_machine_manages() {
        let (kernel, a, b) = (kernel(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut first = Keeper::new(Ksm::at(kernel.path()), a.path());
        let mut second = Keeper::new(Ksm::at(kernel.path()), b.path());
        first.manage(&plan()).unwrap();
        assert!(matches!(second.manage(&plan()), Err(KsmError::Taken)));
        drop(first);
        second.manage(&plan()).unwrap();
    }

    #[test]
    fn an_older_kernel_gets_what_it_knows() {
        let (kernel, run) = (kernel(), tempfile::tempdir().unwrap());
        fs::remove_file(kernel.path().join("advisor_mode")).unwrap();
        let mut keeper = Keeper::new(Ksm::at(kernel.path()), run.path());
        keeper.manage(&KsmPlan { advisor: Some(Advisor::ScanTime), ..plan() }).unwrap();
        assert_eq!(value(&kernel, "run"), "1");
        assert!(keeper.refused()[0].contains("need Linux 6.7"), "{:?}", keeper.refused());
        let mut nowhere = Keeper::new(Ksm::at(kernel.path().join("gone")), run.path());
        assert!(matches!(nowhere.manage(&plan()), Err(KsmError::Absent { .. })));
    }

    #[test]
    fn nothing_changes_if_what_was_found_cannot_be_kept() {
        let (kernel, run) = (kernel(), tempfile::tempdir().unwrap());
        let mut keeper = Keeper::new(Ksm::at(kernel.path()), &run.path().join("gone"));
        assert!(matches!(keeper.manage(&plan()), Err(KsmError::NotSaved { .. })));
        assert_eq!((value(&kernel, "run").as_str(), keeper.manages()), ("0", false));
    }

    #[test]
    fn unmerging_ends_with_what_was_found() {
        let (kernel, run) = (kernel(), tempfile::tempdir().unwrap());
        fs::write(kernel.path().join("run"), "1\n").unwrap();
        let mut keeper = Keeper::new(Ksm::at(kernel.path()), run.path());
        keeper.manage(&plan()).unwrap();
        let done = keeper.release(true);
        assert_eq!((done[0].as_str(), done[1].as_str()), ("everything was unmerged", "run 2 -> 1"));
        assert_eq!(value(&kernel, "run"), "1");
    }
}
