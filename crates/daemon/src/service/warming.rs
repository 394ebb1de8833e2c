//! Hot sets: which blocks of a disk are hot here, and fetching those that were hot elsewhere.
//!
//! Owns the pace at which a list of them goes to the core, a part at a time. Never evicts a block for them. Invariant:
//! what is held of a list outside of the store is one list a disk at most, and goes when it is fetched.

use super::disk::{self, ServedDisk};
use super::{Service, lock};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use undercroft_api::hot_set::{BLOCK_BYTES, HotSet, RANGES_MAX, Warming};
use undercroft_config::{ControlError, ControlErrorKind};

/// Ranges that the core is given at a time.
const BATCH: usize = 1024;
/// Between two looks at how far it is.
const PAUSE: Duration = Duration::from_millis(25);
/// How long nothing may come of it until it is given up: the guest wants everything for itself, or the image does not
/// answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// How much may be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Budget {
    /// What there is room for.
    Room,
    /// So many bytes, if there is room for them.
    Bytes(u64),
}

impl Budget {
    fn blocks(self) -> u64 {
        match self {
            Self::Room => u64::MAX,
            Self::Bytes(bytes) => bytes / BLOCK_BYTES,
        }
    }
}

/// Which list a disk fetches now; a newer one takes the place of an older one.
#[derive(Debug, Default)]
pub(super) struct Round(Mutex<u64>);

impl Round {
    fn begin(&self) -> u64 {
        let mut round = lock(&self.0);
        *round += 1;
        *round
    }

    fn is(&self, round: u64) -> bool {
        *lock(&self.0) == round
    }
}

impl Service {
    /// The blocks of a disk that its cache would keep longest.
    pub(super) fn hot_set_of(&self, name: &str) -> Result<HotSet, ControlError> {
        let disk = self.find(name)?;
        let id = disk.id();
        let hottest = disk.host().worker.call(move |w| w.core().hottest(id, RANGES_MAX));
        let hottest = hottest.map_err(|e| disk::silent(e, disk.worker_number()))?;
        Ok(HotSet::new(disk.info().geometry.size_bytes, hottest))
    }

    /// Has a disk fetch what was hot elsewhere: now, or when its guest runs here.
    pub(super) fn warm_disk(
        &self,
        name: &str,
        mut set: HotSet,
        budget_bytes: Option<u64>,
    ) -> Result<Warming, ControlError> {
        let disk = self.find(name)?;
        let size = disk.info().geometry.size_bytes;
        if set.size_bytes != size {
            return Err(ControlError::new(
                ControlErrorKind::Invalid,
                format!("the hot set is of a disk of {} bytes, and disk \"{name}\" has {size}", set.size_bytes),
                "take the hot set of the same disk",
            ));
        }
        let budget = budget_bytes.map_or(Budget::Room, Budget::Bytes);
        let past = set.cut(budget.blocks());
        let warming = |set: &HotSet, left, waits| Warming { wanted_bytes: set.bytes(), left_bytes: left, waits };
        let told = warming(&set, past, true);
        let Some(mut set) = disk.residence().warm_later(set, budget) else { return Ok(told) };
        let left = past + fit(&disk, &mut set);
        let told = warming(&set, left, false);
        begin_warming(&disk, set, budget);
        Ok(told)
    }
}

/// Leaves out what the disk's cache has no room for. Returns how many bytes that is.
fn fit(disk: &ServedDisk, set: &mut HotSet) -> u64 {
    let room = disk.report().map_or(0, |r| r.stats.capacity_blocks.saturating_sub(r.stats.cached_blocks));
    set.cut(room)
}

/// Fetches what was hot elsewhere, as far as there is room, the hottest first, while all else goes on.
pub(super) fn begin_warming(disk: &Arc<ServedDisk>, mut set: HotSet, budget: Budget) {
    set.cut(budget.blocks());
    fit(disk, &mut set);
    if set.ranges.is_empty() {
        return;
    }
    let (its, round) = (Arc::downgrade(disk), disk.warming().begin());
    let name = disk.info().name.clone();
    let fetch = move || {
        let (mut at, mut since, mut before) = (0, Instant::now(), usize::MAX);
        while let Some(disk) = its.upgrade() {
            let id = disk.id();
            if disk.is_detaching() || !disk.warming().is(round) {
                return;
            }
            let batch: Vec<(u64, u64)> = set.ranges[at..].iter().take(BATCH).copied().collect();
            let step = disk.host().worker.call(move |w| {
                // The next part when the last one is nearly done, so that there is always something to do.
                let taken = if w.core().wanted(id) < BATCH / 4 { w.core().want(id, &batch) } else { 0 };
                (taken, w.core().wanted(id))
            });
            let Ok((taken, wanted)) = step else { return };
            at += taken;
            if wanted == 0 && at == set.ranges.len() {
                tracing::info!(disk = disk.info().name, "fetched what was hot: {} bytes", set.bytes());
                return;
            }
            if taken > 0 || wanted != before {
                (since, before) = (Instant::now(), wanted);
            } else if since.elapsed() > PATIENCE {
                tracing::warn!(disk = disk.info().name, "what was hot elsewhere is not fetched any further");
                return;
            }
            drop(disk);
            std::thread::sleep(PAUSE);
        }
    };
    if let Err(e) = std::thread::Builder::new().name("undercroft-warm".into()).spawn(fetch) {
        tracing::warn!(disk = name, "what was hot elsewhere is not fetched: there can be no thread: {e}");
    }
}
