//! The simulation of the store on SSDs: images that are changed by the daemon and by others, devices on which
//! everything
//! goes wrong, and a program that dies at any moment.
//!
//! Owns the order of events, all drawn from the seed. Never uses time, threads or entropy. Invariants: every block that
//! is served, from memory or from a device, is what the image holds at that moment; a change that has to wait is not
//! executed before; the same plan gives the same run.

mod device;
mod handover;
mod images;
mod pins;
mod restart;
mod steps;

use crate::rng::Rng;
use device::{SimSsd, SsdFaults};
use images::{Image, Numbers};
use std::collections::BTreeSet;
use undercroft_cache::fault_injection::{Bug, FaultInjection, NoFaults, Planted};
use undercroft_cache::ssd::{
    Admission, BootId, Format, OwnerId, Pinned, Region, Ssd, SsdFound, SsdIo, StoreId, Token, Verified, WaitId,
};

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct SsdPlan {
    /// Fixes everything.
    pub seed: u64,
    /// Events.
    pub steps: u64,
    /// A bug to plant in the store.
    pub bug: Option<Bug>,
}

/// What runs came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct SsdOutcome {
    /// Blocks served from memory.
    pub staged: u64,
    /// Blocks read from devices that were good.
    pub good: u64,
    /// Those that had gone while they were read.
    pub gone: u64,
    /// Those that were not what had been written.
    pub corrupt: u64,
    /// Blocks taken over after the program died, and after it was stopped in order.
    pub kept: [u64; 2],
    /// Owners of whom nothing was taken over because the image was another.
    pub other_image: u64,
    /// Starts, those of them after a loss of power, and those that died themselves.
    pub starts: [u64; 3],
    /// Changes of process with the store at rest, and those that were given up.
    pub handed_over: [u64; 2],
    /// Faults of devices.
    pub faults: u64,
    /// Devices out of service, and changes that waited until their names were recorded as void.
    pub given_up: [u64; 2],
    /// Changes that waited for the table.
    pub waited: u64,
    /// Bytes written: all, and for admitted blocks, in runs without faults.
    pub written: [u64; 2],
    /// Bytes of blocks that were kept though their segment was the oldest.
    pub cleaned: u64,
    /// Of these, pinned ones.
    pub pinned: u64,
    /// Blocks refused.
    pub refused: u64,
    /// Blocks of which equal ones were there, at the ends of runs of the program.
    pub linked: u64,
}

impl SsdOutcome {
    /// Adds another run.
    pub fn add(&mut self, o: &SsdOutcome) {
        let add = |a: &mut [u64], b: &[u64]| a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
        add(&mut self.kept, &o.kept);
        add(&mut self.starts, &o.starts);
        add(&mut self.handed_over, &o.handed_over);
        add(&mut self.given_up, &o.given_up);
        add(&mut self.written, &o.written);
        self.staged += o.staged;
        self.good += o.good;
        self.gone += o.gone;
        self.corrupt += o.corrupt;
        self.other_image += o.other_image;
        self.faults += o.faults;
        self.waited += o.waited;
        self.cleaned += o.cleaned;
        self.pinned += o.pinned;
        self.refused += o.refused;
        self.linked += o.linked;
    }
}

/// Runs a plan.
///
/// # Errors
/// What went wrong, with the step.
pub fn run(plan: SsdPlan) -> Result<SsdOutcome, SsdFailed> {
    match plan.bug {
        None => Run::new(plan, NoFaults).all(),
        Some(bug) => Run::new(plan, Planted(bug)).all(),
    }
}

/// What went wrong in a run.
#[derive(Clone, Debug, thiserror::Error)]
#[error("step {step}: {what}")]
pub struct SsdFailed {
    /// In which step.
    pub step: u64,
    /// What.
    pub what: String,
}

/// A read of a block from a device, by the caller of the store.
struct UserRead {
    image: usize,
    owner: OwnerId,
    block: u64,
    device: usize,
    offset: u64,
    token: Token,
    /// What was read.
    bytes: Option<Box<[u8; 4096]>>,
}

/// One run.
struct Run<F: FaultInjection> {
    bug: F,
    rng: Rng,
    numbers: Numbers,
    step: u64,
    steps: u64,
    /// Once in so many steps the program ends.
    restarts_in: u64,
    now: u64,
    segment_bytes: u32,
    has_faults: bool,
    /// Its faults damage what was written.
    may_corrupt: bool,
    /// Free segments are discarded.
    discards: bool,
    boot: u8,
    devices: Vec<SimSsd>,
    /// Names of stores that are recorded as void.
    void: BTreeSet<[u8; 16]>,
    images: Vec<Image>,
    ssd: Option<Ssd<F>>,
    /// Of each image, if it is attached.
    owners: Vec<Option<OwnerId>>,
    /// Blocks of images are pinned in this run.
    has_pins: bool,
    /// What is pinned of each image that is attached.
    pins: Vec<Pinned>,
    /// Blocks that are held, as far as the run knows.
    held: BTreeSet<(usize, u64)>,
    /// Operations that were asked for, and those that are done.
    asked: Vec<SsdIo>,
    done: Vec<(SsdIo, bool)>,
    reads: Vec<UserRead>,
    /// Devices that are given up, which is not recorded yet.
    to_record: Vec<(u16, StoreId)>,
    /// Steps for which nothing is answered.
    stalled: u64,
    outcome: SsdOutcome,
    failure: Option<String>,
}

impl<F: FaultInjection> Run<F> {
    fn new(plan: SsdPlan, bug: F) -> Self {
        let mut rng = Rng::new(plan.seed ^ 0x55d);
        let mut numbers = Numbers::default();
        let kind = rng.below(6);
        let rare = |rng: &mut Rng, n: u64| if rng.one_in(2) { n } else { 0 };
        let faults = SsdFaults {
            errors: if kind == 1 { rare(&mut rng, 2000) } else { 0 },
            misdirected: if kind == 2 { *rng.pick(&[10, 60]) } else { 0 },
            lost_flushes: if kind == 3 { 2 } else { 0 },
            read_errors: if kind == 1 { rare(&mut rng, 300) } else { 0 },
            start_read_errors: if kind == 1 { *rng.pick(&[0, 12, 60]) } else { 0 },
            rot: if kind == 4 { 10 } else { 0 },
            vanishes: if kind == 5 { 200 } else { 0 },
            stalls: if kind == 1 { rare(&mut rng, 150) } else { 0 },
        };
        let segment_bytes = 256 << 10;
        let devices = (0..rng.between(1, 2)).map(|n| {
            let segments = rng.between(4, 14) as usize;
            let mut device = SimSsd::new((segments << 18) + (256 << 10), plan.seed ^ n << 50);
            device.faults = faults;
            device
        });
        let devices = devices.collect();
        let restarts_in = *rng.pick(&[30, 60, 300]);
        let most = *rng.pick(&[60, 120, 500]);
        let mut images: Vec<_> =
            (1..=rng.between(1, 3)).map(|n| Image::new(n, rng.between(20, most) as usize, &mut numbers)).collect();
        // A device that lies about flushes is forgiven only as long as times of images tell the truth.
        let is_coarse = faults.lost_flushes == 0 && rng.one_in(2);
        images.iter_mut().for_each(|image| image.is_coarse = is_coarse);
        if plan.seed % 4 == 1 {
            images.iter_mut().for_each(Image::become_alike);
        }
        let owners = vec![None; images.len()];
        let pins = vec![Pinned::default(); images.len()];
        let mut run = Self {
            bug,
            rng,
            numbers,
            step: 0,
            steps: plan.steps,
            restarts_in,
            // The clock of a machine that has run for a day: a store is not as old as it.
            now: 86_400_000_000_000,
            segment_bytes,
            has_faults: kind > 0,
            may_corrupt: (2..=4).contains(&kind),
            discards: plan.seed.is_multiple_of(3),
            boot: 1,
            devices,
            void: BTreeSet::new(),
            images,
            ssd: None,
            owners,
            has_pins: plan.seed % 4 == 3,
            pins,
            held: BTreeSet::new(),
            asked: Vec::new(),
            done: Vec::new(),
            reads: Vec::new(),
            to_record: Vec::new(),
            stalled: 0,
            outcome: SsdOutcome::default(),
            failure: None,
        };
        run.start(false);
        run
    }

    /// All steps.
    fn all(mut self) -> Result<SsdOutcome, SsdFailed> {
        while self.step < self.steps && self.failure.is_none() {
            self.step += 1;
            self.one_step();
        }
        self.count_written();
        self.outcome.faults = self.devices.iter().map(|d| d.failed).sum();
        let (step, failure) = (self.step, self.failure.take());
        self.leave_frames();
        failure.map_or(Ok(self.outcome), |what| Err(SsdFailed { step, what }))
    }

    fn fail(&mut self, what: String) {
        self.failure.get_or_insert(what);
    }

    /// Images that hold equal bytes are of one domain.
    fn set_domain(&mut self, image: usize) {
        if let Some(owner) = self.owners[image].filter(|_| self.images[image].is_alike) {
            self.ssd().set_domain(owner, 1);
        }
    }

    fn ssd(&mut self) -> &mut Ssd<F> {
        self.ssd.as_mut().expect("the store runs")
    }

    /// The frames of operations that nobody waits for go back: the process that owned them is gone.
    fn leave_frames(&mut self) {
        for io in self.asked.drain(..).chain(self.done.drain(..).map(|(io, _)| io)) {
            match &mut self.ssd {
                Some(ssd) => ssd.reclaim(io.device, io.buf),
                None => std::mem::forget(io.buf.frames),
            }
        }
        self.reads.clear();
    }

    /// What was written since the start is counted.
    fn count_written(&mut self) {
        for stats in self.ssd.iter().flat_map(Ssd::stats) {
            let (written, admitted) = (stats.written.total(), stats.written.admitted);
            self.outcome.cleaned += stats.written.cleaning;
            self.outcome.pinned += stats.written.pins;
            self.outcome.linked += stats.linked;
            if !self.has_faults {
                self.outcome.written[0] += written;
                self.outcome.written[1] += admitted;
            }
        }
    }
}
