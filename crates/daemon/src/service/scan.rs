//! The scanner's view of the service: whose memory there is to scan, and whom to tell.
//!
//! Owns the match of guests and disks: all disks of one VM belong to one guest, and so do disks whose front ends share
//! the same memory. Never reads memory itself. Invariant: a disk hears only of contents that a guest of its own holds.

use super::{ServedDisk, Service};
use crate::worker::Worker;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use undercroft_cache::{ContentHash, ContentKey};
use undercroft_config::ServePlan;
use undercroft_host::FRAME_BYTES;
use undercroft_host::foreign::{PAGE_BYTES, PageRun, SharedFile, soft_dirty_is_built_in};
use undercroft_hostmem::scan::control::{Limits, Memory};
use undercroft_hostmem::scan::scanner::{Cache, ScanGuest, Scanner, Settings, Told};
use undercroft_hostmem::scan::source::Source;
use undercroft_hostmem::scan::vm;

/// Bytes of a pid file that are looked at.
const PID_BYTES_MAX: u64 = 64;

/// Starts the scanner if the plan wants one. That it cannot start is said in the log; the daemon serves without.
pub(super) fn start(service: &Arc<Service>, key: ContentKey) -> Option<Scanner> {
    let plan = service.plan().scan.clone();
    if !plan.enabled {
        return None;
    }
    // From the first block on: what is cached before is not known by its content until it is read again.
    for disk in service.disks() {
        let (id, wanted) = (disk.id(), may_be_held(&service.plan(), &disk.info().name));
        let _ = disk.host().worker.send(move |w| w.core().set_scanned(id, wanted));
    }
    let limits = Limits {
        period_ns_min: plan.period_min.as_nanos() as u64,
        period_ns_max: plan.period_max.as_nanos() as u64,
        ..Limits::default()
    };
    let index_bytes = usize::try_from(plan.memory_bytes).unwrap_or(usize::MAX);
    let settings = Settings { cpu_percent: plan.cpu.value(), limits, index_bytes };
    match Scanner::start(Scanned { service: Arc::downgrade(service), views: Vec::new() }, key, settings) {
        Ok(scanner) => {
            tracing::info!("guests' memory is scanned {plan}");
            Some(scanner)
        }
        Err(e) => {
            tracing::error!("guests' memory is not scanned: the kernel refuses a thread or its memory: {e}");
            None
        }
    }
}

/// The service; it may be gone before the scanner is.
struct Scanned {
    service: Weak<Service>,
    views: Vec<View>,
}

/// What a disk had cached a moment ago, by the hash of its content: looked through here, so that the worker need not.
struct View {
    disk: Weak<ServedDisk>,
    taken: Instant,
    cached: Vec<(ContentHash, u64)>,
}

/// Cached blocks whose hashes a worker is asked for in one go.
const SLOTS_PER_CALL: u32 = 4096;
/// A view older than this is taken anew.
const VIEW_MAX: Duration = Duration::from_secs(2);

impl View {
    fn of(disk: &Arc<ServedDisk>) -> Option<Self> {
        let (id, worker) = (disk.id(), disk.host().worker.clone());
        let (mut cached, mut from) = (Vec::new(), Some(0));
        while let Some(at) = from {
            let (some, next) = worker
                .call(move |w| {
                    let mut some = Vec::new();
                    let next = w.core().cached_hashes(id, at, SLOTS_PER_CALL, &mut some);
                    (some, next)
                })
                .ok()?;
            cached.extend(some);
            from = next;
        }
        cached.sort_unstable();
        Some(Self { disk: Arc::downgrade(disk), taken: Instant::now(), cached })
    }

    /// The cached blocks that have one of these contents.
    fn with(&self, contents: &[ContentHash]) -> Vec<(ContentHash, u64)> {
        let mut found = Vec::new();
        for &hash in contents {
            let first = self.cached.partition_point(|&(h, _)| h < hash);
            found.extend(self.cached[first..].iter().take_while(|&&(h, _)| h == hash));
        }
        found
    }
}

/// A guest being put together.
#[derive(Default)]
struct Draft {
    name: String,
    vm: Option<String>,
    /// Pieces of memory files: device, inode, first page, pages.
    pieces: Vec<((u64, u64), PageRun)>,
    ram: Vec<Source>,
    disks: Vec<Arc<ServedDisk>>,
    changed: Option<Vec<Vec<PageRun>>>,
}

impl Cache for Scanned {
    type Disk = Arc<ServedDisk>;

    fn guests(&mut self) -> (Vec<ScanGuest<Self::Disk>>, Vec<String>) {
        let Some(service) = self.service.upgrade() else { return Default::default() };
        let (plan, mut problems) = (service.plan(), Vec::new());
        let mut drafts: Vec<Draft> = Vec::new();
        let mut unseen: BTreeMap<String, Vec<Arc<ServedDisk>>> = BTreeMap::new();
        for disk in service.disks() {
            let name = disk.info().name.clone();
            let vm = plan.find(&name).and_then(|d| d.vm.clone());
            let id = disk.id();
            let wanted = may_be_held(&plan, &name);
            let look = move |w: &mut Worker| {
                w.core().set_scanned(id, wanted);
                w.guest_files(id)
            };
            let files = disk.host().worker.call(look).unwrap_or_default();
            let mut pieces = Vec::new();
            for f in files {
                let page = PAGE_BYTES as u64;
                let run = PageRun { first: f.offset / page, count: f.len / page };
                match f.file.try_clone().and_then(SharedFile::new) {
                    Ok(Some(file)) if run.end() <= file.pages() => pieces.push((Arc::new(file), run)),
                    Ok(_) => problems
                        .push(format!("the memory of {name}'s guest is no memory file, so it cannot be scanned")),
                    Err(e) => problems.push(format!("the memory of {name}'s guest cannot be scanned: {e}")),
                }
            }
            if pieces.is_empty() {
                unseen.entry(vm.unwrap_or_default()).or_default().push(disk);
                continue;
            }
            let same = |d: &Draft| {
                (vm.is_some() && d.vm == vm)
                    || pieces.iter().any(|(file, _)| d.pieces.iter().any(|(id, _)| *id == file.identity()))
            };
            let at = drafts.iter().position(same).unwrap_or_else(|| {
                drafts.push(Draft { name: vm.clone().unwrap_or(name), vm: vm.clone(), ..Draft::default() });
                drafts.len() - 1
            });
            let draft = &mut drafts[at];
            draft.disks.push(disk);
            for (file, run) in pieces {
                // Another disk of the same guest shares the same memory.
                let overlaps = |(id, r): &((u64, u64), PageRun)| {
                    *id == file.identity() && r.first < run.end() && run.first < r.end()
                };
                if !draft.pieces.iter().any(overlaps) {
                    draft.pieces.push((file.identity(), run));
                    draft.ram.push(Source::of_shared(file, run));
                }
            }
        }
        for (name, disks) in unseen.into_iter().filter(|(name, _)| !name.is_empty()) {
            // A VM may have one disk over vhost-user and another over NBD.
            if let Some(draft) = drafts.iter_mut().find(|d| d.vm.as_ref() == Some(&name)) {
                draft.disks.extend(disks);
            } else if let Some((_, path)) = plan.scan.pid_files.iter().find(|(vm, _)| *vm == name) {
                match by_pid_file(path) {
                    Ok(ram) => {
                        let changed = if plan.scan.track_writes { changed(&ram, &mut problems) } else { None };
                        drafts.push(Draft { name, ram, disks, changed, ..Draft::default() });
                    }
                    Err(why) => problems.push(format!("the memory of {name} cannot be scanned: {why}")),
                }
            }
        }
        problems.sort();
        problems.dedup();
        let guest = |d: Draft| ScanGuest { name: d.name, ram: d.ram, disks: d.disks, changed: d.changed };
        let guests = drafts.into_iter().map(guest);
        (guests.collect(), problems)
    }

    fn memory(&mut self) -> Memory {
        let Some(service) = self.service.upgrade() else { return Memory::default() };
        let mut memory = Memory::default();
        for disk in service.disks() {
            let Some(report) = disk.report() else { continue };
            // Cold blocks are held twice already: as good as free. So is what the limit leaves unused.
            let [hot, probation, _cold] = report.exclusive.tiers.map(u64::from);
            let total = report.stats.limit_blocks;
            memory.total += total * FRAME_BYTES as u64;
            memory.cached += (hot + probation) * FRAME_BYTES as u64;
            memory.free += total.saturating_sub(hot + probation) * FRAME_BYTES as u64;
        }
        memory
    }

    fn held_by_guest(&mut self, disk: &Self::Disk, contents: &[ContentHash]) -> Option<Told> {
        if disk.is_detaching() {
            return None;
        }
        self.views.retain(|v| v.taken.elapsed() < VIEW_MAX && v.disk.strong_count() > 0);
        let at = self.views.iter().position(|v| v.disk.as_ptr() == Arc::as_ptr(disk));
        let at = match at {
            Some(at) => at,
            None => {
                self.views.push(View::of(disk)?);
                self.views.len() - 1
            }
        };
        let found = self.views[at].with(contents);
        if found.is_empty() {
            return Some(Told::default());
        }
        let (id, blocks) = (disk.id(), found.len() as u64);
        let cooled = disk.host().worker.call(move |w| w.core().cool(id, &found)).ok()?;
        Some(Told { blocks, cooled: u64::from(cooled) })
    }
}

/// Whether a guest whose memory is scanned may hold blocks of this disk: hashing what others cache would be for
/// nothing.
fn may_be_held(plan: &ServePlan, disk: &str) -> bool {
    let named = |vm: &String| plan.scan.pid_files.iter().any(|(name, _)| name == vm);
    plan.find(disk).is_some_and(|d| d.socket.is_some() || d.vm.as_ref().is_some_and(named))
}

/// What a guest has written to since the last pass, if all of its memory is private and the kernel notes it.
fn changed(ram: &[Source], problems: &mut Vec<String>) -> Option<Vec<Vec<PageRun>>> {
    let pieces: Option<Vec<_>> = ram.iter().map(Source::process).collect();
    let pieces = pieces?;
    let (process, _) = pieces.first()?;
    if !soft_dirty_is_built_in() {
        let text = "track_writes: this kernel does not note which pages are written to (CONFIG_MEM_SOFT_DIRTY), so all \
            are read";
        problems.push(text.to_string());
        return None;
    }
    let ranges: Vec<PageRun> = pieces.iter().map(|(_, range)| *range).collect();
    vm::changes(process, &ranges).ok()
}

/// Why a pid file leads to no memory.
#[derive(Debug, thiserror::Error)]
enum PidFileError {
    /// It cannot be read.
    #[error("its pid_file {0} cannot be read: {1}")]
    Unreadable(String, io::Error),
    /// It holds something else.
    #[error("its pid_file {0} holds no process number")]
    NoNumber(String),
    /// The process is none of a guest.
    #[error("process {0} of {1} has no memory that looks like a guest's")]
    NoGuest(u32, String),
    /// There is no such process.
    #[error("process {0} of {1} does not run")]
    NotRunning(u32, String),
    /// The process may not be looked at.
    #[error("{}", vm::need_ptrace())]
    Forbidden,
    /// Its memory cannot be found.
    #[error(transparent)]
    Process(io::Error),
}

/// The memory of the process that a pid file names.
fn by_pid_file(path: &Path) -> Result<Vec<Source>, PidFileError> {
    let shown = path.display().to_string();
    let unreadable = |e| PidFileError::Unreadable(path.display().to_string(), e);
    let meta = fs::metadata(path).map_err(unreadable)?;
    if !meta.is_file() || meta.len() > PID_BYTES_MAX {
        return Err(PidFileError::NoNumber(shown));
    }
    let text = fs::read_to_string(path).map_err(unreadable)?;
    let Ok(pid) = text.trim().parse() else { return Err(PidFileError::NoNumber(shown)) };
    match vm::memory_of(pid) {
        Ok(ram) if ram.is_empty() => Err(PidFileError::NoGuest(pid, shown)),
        Ok(ram) => Ok(ram),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Err(PidFileError::NotRunning(pid, shown)),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Err(PidFileError::Forbidden),
        Err(e) => Err(PidFileError::Process(e)),
    }
}
