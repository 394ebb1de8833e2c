//! Blocks of disks that are pinned, or named by a profile: by files of the configuration, and by hand.
//!
//! Owns from whom a disk has each of these lists, and why a file's is not in force. Never locks a block: the core does.
//! Invariants: a list that is refused has changed nothing; one that was set by hand holds until the disk is detached,
//! or a file takes its place: at a reload, where the configuration names one, or when one is set by hand.

mod following;

pub(super) use following::{Kept, ListChange};

use super::disk::{self, Opened, ServedDisk};
use super::{Service, lock};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use undercroft_api::hot_set::HotSet;
use undercroft_api::{PinsStatus, ProfileTaken};
use undercroft_cache::{ByteRange, Core, DiskId, LockReport, PinError};
use undercroft_config::{ControlError, ControlErrorKind, DiskPlan, ListRead, PinList, read_list, read_lists};
use undercroft_host::FRAME_BYTES;
use undercroft_http::Caller;
use undercroft_units::human_size;

const BLOCK: u64 = FRAME_BYTES as u64;

/// From whom a disk has a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Origin {
    /// It has none.
    #[default]
    Nobody,
    /// A file of the configuration.
    File(PathBuf),
    /// Somebody at a control socket.
    Hand,
}

impl Origin {
    fn name(&self) -> Option<String> {
        match self {
            Self::Nobody => None,
            Self::File(_) => Some("file".to_owned()),
            Self::Hand => Some("hand".to_owned()),
        }
    }
}

/// The two lists of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    Pins,
    Profile,
}

/// Whether a list has been in force before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    Anew,
    /// It is taken though it may be more than can be locked now.
    Again,
}

#[derive(Clone, Debug, Default)]
struct State {
    pins: Origin,
    profile: Origin,
    /// Why a file's is not in force, of each.
    problems: [Option<String>; 2],
    /// What the file pins may be in force later: it is more than may be locked until the share has grown, or who was
    /// asked has not answered.
    is_to_be_retried: bool,
}

/// From whom a disk has its lists.
#[derive(Debug, Default)]
pub(super) struct Pinning(Mutex<State>);

impl Pinning {
    fn origin(&self, which: Which) -> Origin {
        let state = lock(&self.0);
        match which {
            Which::Pins => state.pins.clone(),
            Which::Profile => state.profile.clone(),
        }
    }

    /// The list is from `origin` now.
    fn took(&self, which: Which, origin: Origin) {
        let mut state = lock(&self.0);
        match which {
            Which::Pins => state.pins = origin,
            Which::Profile => state.profile = origin,
        }
        state.problems[which as usize] = None;
        state.is_to_be_retried &= which != Which::Pins;
    }

    fn failed(&self, which: Which, why: &ControlError) {
        let mut state = lock(&self.0);
        state.problems[which as usize] = Some(why.to_string());
        if which == Which::Pins {
            state.is_to_be_retried = matches!(why.kind, ControlErrorKind::Conflict | ControlErrorKind::Unavailable);
        }
    }

    /// Who has set its pins: `file` or `hand`.
    pub(super) fn pins_from(&self) -> Option<String> {
        self.origin(Which::Pins).name()
    }

    /// Whether its pins were set by hand.
    pub(super) fn is_by_hand(&self) -> bool {
        self.origin(Which::Pins) == Origin::Hand
    }

    /// Whether its profile was.
    pub(super) fn is_profile_by_hand(&self) -> bool {
        self.origin(Which::Profile) == Origin::Hand
    }

    /// The pins of its file are not in force.
    #[cfg(test)]
    pub(super) fn pins_failed(&self, why: &ControlError) {
        self.failed(Which::Pins, why);
    }

    /// Whether it may have the pins of its file later.
    pub(super) fn is_to_be_retried(&self) -> bool {
        let state = lock(&self.0);
        state.is_to_be_retried && state.pins != Origin::Hand
    }

    /// Why what the configuration has pinned is not.
    pub(super) fn problem(&self) -> Option<String> {
        let state = lock(&self.0);
        let all: Vec<&str> = state.problems.iter().flatten().map(String::as_str).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}

/// Lists of files, read before disks are kept from other changes: a file may be where nothing answers. One that is not
/// among them is read when it is asked for.
#[derive(Debug, Default)]
pub(super) struct Lists(BTreeMap<PathBuf, ListRead>);

impl Lists {
    fn read(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        Self(read_lists(paths))
    }

    /// Those of disks.
    pub(super) fn of<'a>(disks: impl IntoIterator<Item = &'a DiskPlan>) -> Self {
        Self::read(disks.into_iter().flat_map(|d| d.pins.iter().chain(&d.lock_profile)).cloned())
    }

    fn has(&self, path: &Path) -> bool {
        self.0.contains_key(path)
    }

    /// What a file pins of a disk that has so many bytes.
    fn ranges(&self, path: &Path, name: &str, size_bytes: u64) -> Result<Vec<ByteRange>, ControlError> {
        let list = self.0.get(path).cloned().unwrap_or_else(|| read_list(path)).map_err(|fault| {
            let kind = match fault.is_silent {
                true => ControlErrorKind::Unavailable,
                false => ControlErrorKind::Invalid,
            };
            ControlError::new(kind, format!("disk \"{name}\": {}", fault.why.error), fault.why.remedy)
        })?;
        of_size(&list, &format!("the list of blocks {}", path.display()), name, size_bytes)?;
        Ok(list.byte_ranges())
    }
}

fn conflict(error: String, remedy: String) -> ControlError {
    ControlError::new(ControlErrorKind::Conflict, error, remedy)
}

/// Why the core has not taken a list.
fn refused(name: &str, e: PinError) -> ControlError {
    match e {
        PinError::NoDisk => ControlError::no_disk(name, []),
        PinError::OverBudget { pinned_bytes, budget_bytes } => conflict(
            format!(
                "the pins of disk \"{name}\" come to {}, but {} may be locked now",
                human_size(pinned_bytes),
                human_size(budget_bytes)
            ),
            format!(
                "pin less, or give the disk a larger share or budget (`undercroft set {name} --size SIZE`, \
                 `--lock-budget PERCENT`)"
            ),
        ),
        PinError::NoRoom => conflict(
            format!("the list of blocks takes more memory than the share of disk \"{name}\" has"),
            "name fewer ranges; there is room for more in a larger share".to_owned(),
        ),
        e @ (PinError::OutOfDisk { .. } | PinError::TooMany { .. }) => ControlError::new(
            ControlErrorKind::Invalid,
            format!("disk \"{name}\": {e}"),
            "nothing has been changed; take a list of the same disk",
        ),
    }
}

/// A list of a disk of another size is of another disk.
fn of_size(list: &PinList, what: &str, name: &str, size_bytes: u64) -> Result<(), ControlError> {
    if list.size_bytes() == size_bytes {
        return Ok(());
    }
    let error = format!("{what} is of a disk of {} bytes, and disk \"{name}\" has {size_bytes}", list.size_bytes());
    let remedy = format!("make one of the same disk: `undercroft pin {name} --write FILE`");
    Err(ControlError::new(ControlErrorKind::Invalid, error, remedy))
}

/// A list that somebody sends for a disk.
fn of_disk(disk: &ServedDisk, list: HotSet, what: &str) -> Result<Vec<ByteRange>, ControlError> {
    let list = PinList::new(list.size_bytes, list.ranges)
        .map_err(|e| ControlError::new(ControlErrorKind::Invalid, format!("{what}: {}", e.error), e.remedy))?;
    of_size(&list, what, &disk.info().name, disk.info().geometry.size_bytes)?;
    Ok(list.byte_ranges())
}

/// Refuses a disk that is to be attached with lists of another one. Its lists.
pub(super) fn check(opened: &Opened) -> Result<Lists, ControlError> {
    let (plan, size_bytes) = (&opened.plan, opened.backend.geometry().size_bytes);
    let lists = Lists::of([plan]);
    for path in plan.pins.iter().chain(&plan.lock_profile) {
        lists.ranges(path, &plan.name, size_bytes)?;
    }
    Ok(lists)
}

/// What was pinned of a disk before it was given a list, and what there is to say after that.
struct Given {
    before: Vec<ByteRange>,
    now: Now,
}

/// What there is to say of a disk's pins.
struct Now {
    pins: Vec<ByteRange>,
    report: LockReport,
    /// Bytes behind each multiple of the size of a block where blocks begin.
    block_offset: u32,
}

impl Now {
    fn of(core: &mut Core, id: DiskId) -> Self {
        let block_offset = core.exclusive(id).map_or(0, |r| r.block_offset);
        Self { pins: core.pins(id), report: core.lock_summary(id), block_offset }
    }
}

/// Gives a disk a list. In one call of its worker: what was done is told, whatever becomes of it.
fn give(disk: &ServedDisk, which: Which, ranges: Vec<ByteRange>, taken: Taken) -> Result<Given, ControlError> {
    let id = disk.id();
    let given = disk.host().worker.call(move |w| {
        let core = w.core();
        let before = core.pins(id);
        let done = match (which, taken) {
            (Which::Pins, Taken::Anew) => core.set_pins(id, &ranges),
            (Which::Pins, Taken::Again) => core.set_pins_again(id, &ranges),
            (Which::Profile, _) => core.set_lock_profile(id, &ranges),
        };
        done.map(|()| Given { before, now: Now::of(core, id) })
    });
    let given = given.map_err(|e| disk::silent(e, disk.worker_number()))?;
    given.map_err(|e| refused(&disk.info().name, e))
}

/// What is pinned of a disk, and what its profile names.
fn lists_now(disk: &ServedDisk) -> Result<[Vec<ByteRange>; 2], ControlError> {
    let id = disk.id();
    let now = disk.host().worker.call(move |w| [w.core().pins(id), w.core().lock_profile(id)]);
    Ok(now.map_err(|e| disk::silent(e, disk.worker_number()))?)
}

fn bytes_of(ranges: &[ByteRange]) -> u64 {
    ranges.iter().map(|r| r.bytes).sum()
}

/// A number that tells one list from another, small enough for programs that count in floating point.
fn version_of(ranges: &[ByteRange]) -> u64 {
    let words = ranges.iter().flat_map(|r| [r.offset, r.bytes]).flat_map(u64::to_le_bytes);
    // FNV-1a, 64 bits.
    let hash = words
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    hash >> 11
}

fn status(disk: &ServedDisk, now: &Now) -> PinsStatus {
    let Now { pins, report, block_offset } = now;
    let origin = if pins.is_empty() { Origin::Nobody } else { disk.pinning().origin(Which::Pins) };
    PinsStatus {
        disk: disk.info().name.clone(),
        size_bytes: disk.info().geometry.size_bytes,
        ranges: pins.iter().map(|r| (r.offset / BLOCK, r.end().div_ceil(BLOCK) - r.offset / BLOCK)).collect(),
        pinned_bytes: report.pinned_blocks * BLOCK,
        locked_bytes: report.locked_blocks * BLOCK,
        budget_bytes: report.budget_blocks.saturating_sub(report.others_pinned_blocks) * BLOCK,
        version: version_of(pins),
        is_displaced: *block_offset != 0,
        file: match &origin {
            Origin::File(path) => Some(path.display().to_string()),
            Origin::Nobody | Origin::Hand => None,
        },
        origin: origin.name(),
        problem: disk.pinning().problem(),
    }
}

/// Gives a disk what its file says, in place of what it has; `None` takes away what a file has said. Whether that is
/// something else than it had.
fn follow_file(disk: &ServedDisk, which: Which, file: Option<&PathBuf>, lists: &Lists) -> Result<bool, ControlError> {
    let (pinning, info) = (disk.pinning(), disk.info());
    let Some(path) = file else {
        let was_of_file = matches!(pinning.origin(which), Origin::File(_));
        if was_of_file {
            give(disk, which, Vec::new(), Taken::Anew)?;
            pinning.took(which, Origin::Nobody);
        } else {
            // What was wrong with a file that is not asked for any more is of no interest.
            pinning.took(which, pinning.origin(which));
        }
        return Ok(was_of_file);
    };
    let given = lists.ranges(path, &info.name, info.geometry.size_bytes).and_then(|ranges| {
        let same = which == Which::Pins && lists_now(disk)?[0] == ranges;
        if !same {
            let named = |e: ControlError| {
                let error = format!("the list of blocks {}: {}", path.display(), e.error);
                ControlError { error, ..e }
            };
            give(disk, which, ranges, Taken::Anew).map_err(named)?;
        }
        Ok(!same)
    });
    match &given {
        Ok(_) => pinning.took(which, Origin::File(path.clone())),
        Err(e) => pinning.failed(which, e),
    }
    given
}

/// The file of a disk's profile, if the disk is locked by one.
fn profile_of(plan: &DiskPlan) -> Option<&PathBuf> {
    plan.lock_profile.as_ref().filter(|_| plan.is_locked_by_profile())
}

/// Has a disk that has just come have what the files of its plan say. What cannot be is said, and the disk is served
/// without.
pub(super) fn begin(disk: &ServedDisk, plan: &DiskPlan, lists: &Lists) {
    for (which, file) in [(Which::Pins, plan.pins.as_ref()), (Which::Profile, profile_of(plan))] {
        if let Some(Err(e)) = file.map(|file| follow_file(disk, which, Some(file), lists)) {
            tracing::warn!(disk = plan.name, "{e}; it is served without what the file names");
        }
    }
}

/// Has a disk of `plan` have what another process had been given by hand. Settings by hand have ended with that one:
/// the budget may be another, and then what comes first is locked; or there is no profile any more.
pub(super) fn take_over(
    disk: &ServedDisk,
    plan: &DiskPlan,
    pins: Option<Vec<ByteRange>>,
    profile: Option<Vec<ByteRange>>,
) {
    let name = &disk.info().name;
    if profile.is_some() && !plan.is_locked_by_profile() {
        let mode = plan.settings.locking.mode;
        tracing::warn!(disk = name, "its profile by hand is of no use any more: its `lock` is `{mode}`");
    }
    let profile = profile.filter(|_| plan.is_locked_by_profile());
    for (which, ranges) in [(Which::Pins, pins), (Which::Profile, profile)] {
        match ranges.map(|ranges| give(disk, which, ranges, Taken::Again)) {
            None => {}
            Some(Ok(given)) => {
                disk.pinning().took(which, Origin::Hand);
                let LockReport { pinned_blocks, budget_blocks, .. } = given.now.report;
                if which == Which::Pins && pinned_blocks > budget_blocks {
                    let [pinned, budget] = [pinned_blocks, budget_blocks].map(|n| human_size(n * BLOCK));
                    tracing::warn!(disk = name, "{pinned} of it are pinned by hand, and {budget} may be locked now");
                }
            }
            Some(Err(e)) => tracing::warn!(disk = name, "what was locked by hand is not any more: {e}"),
        }
    }
}

/// What is pinned of a disk, and what its profile names: where each range begins, and its bytes.
pub(super) fn named(disk: &ServedDisk) -> Result<[Vec<(u64, u64)>; 2], ControlError> {
    Ok(lists_now(disk)?.map(|ranges| ranges.iter().map(|r| (r.offset, r.bytes)).collect()))
}

/// The pins have changed since they were of a version that was expected.
fn stale(name: &str, version: u64) -> ControlError {
    ControlError::new(
        ControlErrorKind::Stale,
        format!("what is pinned of disk \"{name}\" has changed meanwhile: its version is {version}"),
        "nothing has been changed; look at what is pinned now, and try again",
    )
}

impl Service {
    /// What is pinned of a disk.
    pub(super) fn pins_of(&self, name: &str) -> Result<PinsStatus, ControlError> {
        let disk = self.find(name)?;
        let id = disk.id();
        let now = disk.host().worker.call(move |w| Now::of(w.core(), id));
        Ok(status(&disk, &now.map_err(|e| disk::silent(e, disk.worker_number()))?))
    }

    /// Pins blocks of a disk by hand, if what is pinned is of one of the versions that are expected.
    pub(super) fn pin_disk(
        &self,
        name: &str,
        list: HotSet,
        expected: Option<Vec<u64>>,
        by: &Caller,
    ) -> Result<PinsStatus, ControlError> {
        // No disk comes or goes meanwhile, and nobody else pins.
        let _change = self.change.lock();
        let disk = self.find(name)?;
        let ranges = of_disk(&disk, list, "the list of blocks to be pinned")?;
        if let Some(expected) = expected {
            let version = version_of(&lists_now(&disk)?[0]);
            if !expected.contains(&version) {
                return Err(stale(&disk.info().name, version));
            }
        }
        let (count, bytes) = (ranges.len(), bytes_of(&ranges));
        let given = give(&disk, Which::Pins, ranges, Taken::Anew)?;
        // Also if that is nothing: it is not what a file says.
        disk.pinning().took(Which::Pins, Origin::Hand);
        let (was, is) = (human_size(bytes_of(&given.before)), human_size(bytes));
        let changed = format!("{was} in {} ranges -> {is} in {count} ranges", given.before.len());
        tracing::info!("changed by {by}: disk \"{name}\": pinned: {changed}");
        Ok(status(&disk, &given.now))
    }

    /// Names the blocks that are locked by a profile, by hand.
    pub(super) fn set_profile(&self, name: &str, list: HotSet, by: &Caller) -> Result<ProfileTaken, ControlError> {
        let _change = self.change.lock();
        let disk = self.find(name)?;
        if !self.plan().find(name).is_some_and(DiskPlan::is_locked_by_profile) {
            return Err(conflict(
                format!("no blocks of disk \"{name}\" are locked by a profile: its `lock` is not `static`"),
                format!("`undercroft set {name} --lock static` first; or pin the blocks"),
            ));
        }
        let ranges = of_disk(&disk, list, "the profile")?;
        let (count, named_bytes) = (ranges.len() as u64, bytes_of(&ranges));
        let given = give(&disk, Which::Profile, ranges, Taken::Anew)?;
        disk.pinning().took(Which::Profile, if count == 0 { Origin::Nobody } else { Origin::Hand });
        tracing::info!("changed by {by}: disk \"{name}\": its profile names {}", human_size(named_bytes));
        Ok(ProfileTaken { ranges: count, named_bytes, budget_bytes: given.now.report.budget_blocks * BLOCK })
    }
}
