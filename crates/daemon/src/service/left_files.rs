//! Files of disks on their way from one process to the next: over an upgrade, or kept by the service manager.
//!
//! Owns those that a process before has left and that are not gone on with yet. Never serves a request. Invariants:
//! what is left of a disk is gone on with, or taken away, once; while the other process is there and goes on if this
//! one does not manage, nothing is mounted, unmounted or received here.
//!
//! Why, and what becomes of a file when the daemon ends: docs/decisions/0203.

use super::disk::ServedDisk;
use super::{Service, ServiceError, lock, write};
use crate::handover::letters::{LeftFile, Origin};
use crate::systemd;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use undercroft_config::{DiskPlan, ServePlan};
use undercroft_frontend::fuse::passing::take_away;
use undercroft_frontend::fuse::{FileKeeper, FileState, FuseError, FuseOptions, FuseServer, KeptFile};
use undercroft_host::SharedMemory;

/// Under names that begin like this the service manager keeps files.
const PREFIX: &str = "undercroft-file-";
/// Bytes of a name at most: the manager takes 255.
const NAME_BYTES_MAX: usize = 200;
/// Room for what the next process is told of a file.
const ABOUT_BYTES: usize = 16 << 10;
/// How long requests under way may take to be answered before a file is left without.
const REST_WAIT: Duration = Duration::from_secs(2);
/// How long disks may take that were attached by hand, until somebody attaches them again: who uses their files waits.
const ATTACH_WAIT: Duration = Duration::from_secs(15);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(1);

/// A file that was left.
struct Left {
    about: LeftFile,
    device: OwnedFd,
    memory: Option<SharedMemory>,
}

/// See the head of the file.
#[derive(Default)]
pub(super) struct LeftFiles {
    files: Mutex<Vec<Left>>,
    /// The process that left them is there, and goes on if this one does not manage.
    watched: AtomicBool,
    /// Nobody attaches disks again any more.
    late: AtomicBool,
    problem: Mutex<Option<String>>,
}

/// Keeps files with the service manager.
struct Keeper {
    origin: Origin,
}

/// A file that is kept there.
struct Kept {
    name: String,
    origin: Origin,
    memory: SharedMemory,
}

/// Under which name the service manager keeps a file: that of the disk is for people, the number makes it the only one.
fn name_of(state: &FileState) -> String {
    let known = |c: char| if c.is_ascii_graphic() && c != ':' { c } else { '=' };
    let mut name: String = format!("{PREFIX}{:x}-", state.device);
    name.extend(state.disk.chars().map(known));
    name.truncate(NAME_BYTES_MAX);
    name
}

impl FileKeeper for Keeper {
    fn keep(&self, device: BorrowedFd<'_>, state: &FileState) -> Option<Arc<dyn KeptFile>> {
        if !systemd::can_keep() {
            return None;
        }
        let memory = SharedMemory::new(ABOUT_BYTES);
        let kept = memory.map(|memory| Kept { name: name_of(state), origin: self.origin, memory });
        let kept = kept.and_then(|kept| kept.write(state).map(|()| kept));
        match kept {
            Ok(kept) if systemd::keep_unwatched(&kept.name, &[device, kept.memory.as_fd()]) => Some(Arc::new(kept)),
            Ok(_) => None,
            Err(e) => {
                tracing::warn!(disk = state.disk, "its file does not outlive a restart: {e}");
                None
            }
        }
    }
}

impl Kept {
    fn write(&self, state: &FileState) -> io::Result<()> {
        let about = LeftFile { state: state.clone(), origin: self.origin, descriptors: 2 };
        self.memory.put(&serde_json::to_vec(&about).map_err(io::Error::other)?)
    }
}

impl KeptFile for Kept {
    fn note(&self, state: &FileState) {
        if let Err(e) = self.write(state) {
            tracing::error!(disk = state.disk, "its file may not outlive a restart: {e}");
            self.forget();
        }
    }

    fn forget(&self) {
        systemd::keep_no_more(&self.name);
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

impl Left {
    fn kept(&self) -> Option<Arc<dyn KeptFile>> {
        let memory = self.memory.clone()?;
        Some(Arc::new(Kept { name: name_of(&self.about.state), origin: self.about.origin, memory }))
    }

    /// Nobody goes on with it.
    fn end(self, why: &str) {
        let state = &self.about.state;
        tracing::info!(disk = state.disk, "the file {} of a process before is taken away: {why}", state.path.display());
        // Before the descriptor is closed everywhere, since then whoever looks at the path would wait for an answer.
        take_away(state);
        if let Some(kept) = self.kept() {
            kept.forget();
        }
    }
}

impl LeftFiles {
    /// Those that the service manager has kept, which are taken out of `kept`.
    pub(super) fn kept(kept: &mut Vec<(String, OwnedFd)>) -> Self {
        let (mut files, mut rest) = (Vec::new(), Vec::new());
        for (name, fd) in std::mem::take(kept) {
            if name.starts_with(PREFIX) { files.push((name, fd)) } else { rest.push((name, fd)) }
        }
        *kept = rest;
        let mut left = Vec::new();
        // The manager passes on what it has under one name in any order.
        while let Some((name, one)) = files.pop() {
            let other = files.iter().position(|(n, _)| *n == name).map(|at| files.swap_remove(at).1);
            match other.ok_or_else(|| io::Error::other("a part is missing")).and_then(|other| read(one, other)) {
                Ok(file) => left.push(file),
                Err(e) => {
                    tracing::warn!("what the service manager has kept as {name} is of no use: {e}");
                    systemd::keep_no_more(&name);
                }
            }
        }
        Self { files: Mutex::new(left), ..Self::default() }
    }

    /// Adds others.
    pub(super) fn take_in(&self, others: Self) {
        let others = others.files.into_inner().unwrap_or_else(|p| p.into_inner());
        lock(&self.files).extend(others);
    }

    /// Those that another process tells of and that goes on with them if this one does not manage.
    pub(super) fn told(&self, told: Vec<LeftFile>, fds: &mut impl Iterator<Item = OwnedFd>) -> io::Result<()> {
        self.watched.store(true, Ordering::Release);
        for about in told {
            let own: Vec<OwnedFd> = fds.by_ref().take(about.descriptors).collect();
            if own.len() != about.descriptors {
                return Err(io::Error::other("a descriptor is missing"));
            }
            let mut own = own.into_iter();
            let device = own.next().ok_or_else(|| io::Error::other("a file has no descriptor"))?;
            let memory = own.next().map(SharedMemory::from_passed).transpose()?;
            lock(&self.files).push(Left { about, device, memory });
        }
        Ok(())
    }

    /// Makes disks of `plan` what they were by hand, where the configuration says nothing of a file.
    pub(super) fn amend(&self, plan: &mut ServePlan) {
        for left in lock(&self.files).iter().filter(|l| l.about.origin.by_hand) {
            let its = plan.disks.iter_mut().find(|d| d.name == left.about.state.disk && d.file.is_none());
            if let Some(disk) = its {
                (disk.file, disk.file_by_hand) = (Some(left.about.state.path.clone()), true);
            }
        }
    }

    /// Takes away those that are nothing that `plan` wants, or may want soon.
    pub(super) fn sort_out(&self, plan: &ServePlan) {
        let late = self.late.load(Ordering::Acquire);
        let wanted = |l: &Left| match plan.find(&l.about.state.disk) {
            Some(disk) => disk.file.as_ref() == Some(&l.about.state.path),
            None => l.about.origin.attached && !late,
        };
        let gone: Vec<Left> = lock(&self.files).extract_if(.., |l| !wanted(l)).collect();
        gone.into_iter().for_each(|l| l.end("the configuration does not name it any more"));
    }

    /// The disk of that name is not wanted any more.
    pub(super) fn forget(&self, disk: &str) {
        let gone: Vec<Left> = lock(&self.files).extract_if(.., |l| l.about.state.disk == disk).collect();
        gone.into_iter().for_each(|l| l.end("its disk is gone"));
    }

    /// Whether nothing may be mounted yet, since another process serves or goes on.
    pub(super) fn is_watched(&self) -> bool {
        self.watched.load(Ordering::Acquire)
    }

    /// Goes on with the file of a disk at `path`, if one was left there that is still what it was. While another
    /// process is there, it is begun later.
    ///
    /// # Errors
    /// It is not; only while the other process is there, which goes on with it.
    pub(super) fn go_on(
        &self,
        disk: &ServedDisk,
        path: &Path,
        options: &FuseOptions,
    ) -> Result<Option<FuseServer>, FuseError> {
        let name = &disk.info().name;
        let found = |l: &mut Left| l.about.state.disk == *name && l.about.state.path == path;
        let Some(left) = lock(&self.files).extract_if(.., found).next() else { return Ok(None) };
        let again = left.device.try_clone();
        let taken = again.map_err(|source| FuseError::Os { path: path.to_owned(), what: "serve", source });
        let taken = taken.and_then(|device| {
            let (state, host) = (left.about.state.clone(), disk.host().clone());
            FuseServer::take_over(state, device, left.kept(), disk.info(), host, options.clone())
        });
        let watched = self.is_watched();
        let begun = taken.and_then(|mut server| if watched { Ok(server) } else { server.begin().map(|()| server) });
        match begun {
            Ok(server) => Ok(Some(server)),
            Err(e) if watched => {
                *lock(&self.problem) = Some(e.to_string());
                Err(e)
            }
            Err(e) => {
                tracing::warn!(disk = name, "{e}; who has it open is disconnected, and it is made anew");
                left.end("it is made anew");
                Ok(None)
            }
        }
    }

    /// Why this process cannot go on with all that the other one has told: something that it serves, of which this one
    /// makes no file.
    fn problem(&self, served: &[Arc<ServedDisk>]) -> Option<String> {
        if let Some(problem) = lock(&self.problem).take() {
            return Some(problem);
        }
        let files = lock(&self.files);
        let left = files.iter().find(|l| served.iter().any(|d| d.info().name == l.about.state.disk))?;
        let (name, path) = (&left.about.state.disk, left.about.state.path.display());
        Some(format!(
            "disk \"{name}\" is the file {path}, and the configuration says something else of it: correct that, or \
             take the file away with `undercroft set {name} --fuse none`"
        ))
    }
}

/// What the service manager has kept of a file: the connection, and what the next process is to know.
fn read(one: OwnedFd, other: OwnedFd) -> io::Result<Left> {
    let is_device = |fd: &OwnedFd| {
        let mode = rustix::fs::fstat(fd)?.st_mode;
        io::Result::Ok(rustix::fs::FileType::from_raw_mode(mode) == rustix::fs::FileType::CharacterDevice)
    };
    let (device, memory) = if is_device(&one)? { (one, other) } else { (other, one) };
    let memory = SharedMemory::from_passed(memory)?;
    let bytes = memory.read()?;
    let text = bytes.split(|&b| b == 0).next().unwrap_or_default();
    Ok(Left { about: serde_json::from_slice(text).map_err(io::Error::other)?, device, memory: Some(memory) })
}

/// How the file of a disk is kept for the next process.
pub(super) fn keeper(origin: Origin) -> Option<Arc<dyn FileKeeper>> {
    systemd::can_keep().then(|| Arc::new(Keeper { origin }) as Arc<dyn FileKeeper>)
}

/// Where the file of a disk of a plan comes from.
pub(super) fn origin(plan: &DiskPlan) -> Origin {
    Origin { by_hand: plan.file_by_hand, attached: plan.kept }
}

/// Waits until what each disk is for programs of the host is at rest.
pub(super) fn until_at_rest(
    disks: &[Arc<ServedDisk>],
    give_up: Instant,
    what: &str,
    is_at_rest: impl Fn(&ServedDisk) -> bool,
) -> io::Result<()> {
    for disk in disks {
        while !is_at_rest(disk) {
            if Instant::now() >= give_up {
                let why = format!("disk \"{}\": requests of its {what} are not answered", disk.info().name);
                return Err(io::Error::other(why));
            }
            std::thread::sleep(PAUSE);
        }
    }
    Ok(())
}

impl Service {
    /// Has all files come to rest; those that do not until `give_up` are an error.
    pub(super) fn rest_files(&self, disks: &[Arc<ServedDisk>], give_up: Instant) -> io::Result<()> {
        disks.iter().for_each(|d| d.file().iter().for_each(|file| file.rest(true)));
        until_at_rest(disks, give_up, "file", |disk| disk.file().as_ref().is_none_or(FuseServer::is_at_rest))
    }

    /// What another process needs to go on with all files, which are at rest, and with those that were left to this one
    /// and not gone on with.
    pub(super) fn tell_files(&self, fds: &mut Vec<OwnedFd>) -> io::Result<Vec<LeftFile>> {
        let plan = self.plan();
        let mut told = Vec::new();
        for disk in self.disks() {
            let file = disk.file();
            let Some((file, now)) = file.as_ref().and_then(|file| Some((file, file.tell()?))) else { continue };
            let (state, device) = now?;
            let kept = file.kept().map(|kept| kept.descriptor().try_clone_to_owned()).transpose()?;
            let descriptors = 1 + usize::from(kept.is_some());
            let Some(origin) = plan.find(&disk.info().name).map(origin) else { continue };
            fds.push(device);
            fds.extend(kept);
            told.push(LeftFile { state, origin, descriptors });
        }
        for left in lock(&self.left_files.files).iter() {
            fds.push(left.device.try_clone()?);
            let memory = left.memory.as_ref().map(|m| m.as_fd().try_clone_to_owned()).transpose()?;
            told.push(LeftFile { descriptors: 1 + usize::from(memory.is_some()), ..left.about.clone() });
            fds.extend(memory);
        }
        Ok(told)
    }

    /// Leaves the files that the service manager keeps to the next start: they are not unmounted, and nothing of them
    /// is under way, if that can be.
    pub(super) fn leave_files(&self) {
        let kept = |d: &Arc<ServedDisk>| {
            !d.host().worker.is_silent() && d.file().as_ref().is_some_and(|file| file.kept().is_some())
        };
        let disks: Vec<_> = self.disks().into_iter().filter(kept).collect();
        if let Err(e) = self.rest_files(&disks, Instant::now() + REST_WAIT) {
            tracing::warn!("{e}");
        }
        for disk in disks {
            let left = disk.file().take().and_then(FuseServer::leave);
            left.into_iter().for_each(FuseServer::stop);
        }
    }

    /// Gives up, after a while, what nobody has attached a disk for.
    pub(super) fn expect_disks(&self) {
        if lock(&self.left_files.files).iter().all(|l| !l.about.origin.attached) {
            return;
        }
        let service = self.me.clone();
        let give_up = move || {
            std::thread::sleep(ATTACH_WAIT);
            let Some(service) = service.upgrade() else { return };
            let _change = service.change.lock();
            // What is left when the daemon stops is the next one's.
            if !service.is_stopping() {
                service.left_files.late.store(true, Ordering::Release);
                service.left_files.sort_out(&service.plan());
            }
        };
        if let Err(e) = std::thread::Builder::new().name("left-files".into()).spawn(give_up) {
            tracing::error!("files whose disks nobody attaches are not taken away: there can be no thread for it: {e}");
        }
    }

    /// Takes over what another process has told of its files; before the images are opened.
    pub(super) fn expect_files(&self, told: Vec<LeftFile>, fds: &mut impl Iterator<Item = OwnedFd>) -> io::Result<()> {
        self.left_files.told(told, fds)?;
        let mut plan = ServePlan::clone(&self.plan());
        self.left_files.amend(&mut plan);
        *write(&self.plan) = plan.into();
        Ok(())
    }

    /// Why this process cannot go on with the files of the other one.
    pub(super) fn files_problem(&self) -> Option<String> {
        self.left_files.problem(&self.disks())
    }

    /// The other process serves no more: files that were taken over are begun, and what else is to be a file is.
    pub(super) fn begin_files(&self) {
        self.left_files.watched.store(false, Ordering::Release);
        let plan = self.plan();
        for disk in self.disks() {
            let name = &disk.info().name;
            let begun = disk.file().as_mut().map_or(Ok(()), FuseServer::begin);
            let begun = begun.map_err(|source| ServiceError::Fuse { disk: name.clone(), source });
            let made = begun.and_then(|()| match plan.find(name) {
                Some(own) => disk.make_file(own, plan.daemon.disk_access, &self.ways()),
                None => Ok(()),
            });
            if let Err(e) = made {
                tracing::error!("disk \"{name}\" is no file: {e}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::silent_tests::two_vms;
    use super::*;
    use std::fs::File;

    fn state(disk: &str, path: &Path) -> FileState {
        FileState {
            disk: disk.into(),
            path: path.into(),
            made: None,
            device: 9,
            size_bytes: 1 << 20,
            read_only: false,
            others: true,
            transfer_bytes: 1 << 20,
            rest: None,
        }
    }

    fn left(disk: &str, path: &Path, by_hand: bool, attached: bool) -> Left {
        let about = LeftFile { state: state(disk, path), origin: Origin { by_hand, attached }, descriptors: 1 };
        Left { about, device: File::open("/dev/null").unwrap().into(), memory: None }
    }

    #[test]
    fn names_are_what_the_manager_takes() {
        let name = name_of(&state("two:b \u{e4}", Path::new("/x")));
        assert_eq!(name, "undercroft-file-9-two=b==");
        let long = name_of(&state(&"n".repeat(300), Path::new("/x")));
        assert_eq!(long.len(), NAME_BYTES_MAX);
    }

    /// A pair under one name is told apart whichever comes first; what is of no use is left out.
    #[test]
    fn what_the_manager_kept_is_read_back() {
        let memory = || {
            let kept = Kept {
                name: String::new(),
                origin: Origin { by_hand: true, attached: false },
                memory: SharedMemory::new(ABOUT_BYTES).unwrap(),
            };
            kept.write(&state("a", Path::new("/x"))).unwrap();
            kept.descriptor().try_clone_to_owned().unwrap()
        };
        let device = || OwnedFd::from(File::open("/dev/null").unwrap());
        let mut kept = vec![
            ("undercroft-list".to_owned(), device()),
            (format!("{PREFIX}1-a"), device()),
            (format!("{PREFIX}2-a"), memory()),
            (format!("{PREFIX}1-a"), memory()),
            (format!("{PREFIX}2-a"), device()),
            (format!("{PREFIX}3-a"), device()),
            (format!("{PREFIX}4-a"), device()),
            (format!("{PREFIX}4-a"), device()),
        ];
        let files = LeftFiles::kept(&mut kept);
        assert_eq!(kept.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["undercroft-list"]);
        let files = lock(&files.files);
        assert_eq!(files.len(), 2);
        assert!(files.iter().all(|l| l.about.state == state("a", Path::new("/x")) && l.about.origin.by_hand));
    }

    #[test]
    fn what_nobody_wants_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let mut plan = two_vms(dir.path());
        let path = dir.path().join("file");
        let files = LeftFiles::default();
        let put = |l| lock(&files.files).push(l);
        // One that the configuration says nothing of, as it was by hand; one that it never named so; one of a disk that
        // is attached again, and one of a disk that is gone.
        put(left("one:a", &path, true, false));
        put(left("two:b", &path, false, false));
        put(left("comes", &path, false, true));
        put(left("gone", &path, false, false));
        files.amend(&mut plan);
        let disk = plan.find("one:a").unwrap();
        assert!(disk.file.as_ref() == Some(&path) && disk.file_by_hand);
        assert!(plan.find("two:b").unwrap().file.is_none());
        let names = || lock(&files.files).iter().map(|l| l.about.state.disk.clone()).collect::<Vec<_>>();
        files.sort_out(&plan);
        assert_eq!(names(), ["one:a", "comes"]);
        files.late.store(true, Ordering::Release);
        files.sort_out(&plan);
        assert_eq!(names(), ["one:a"]);
        files.forget("one:a");
        assert_eq!(names(), Vec::<String>::new());
    }
}
