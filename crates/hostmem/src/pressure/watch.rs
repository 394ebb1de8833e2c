//! The thread that watches the machine's memory and has the store shrink and grow.
//!
//! Owns the thread, the clock and the log lines. Never runs on a worker, and never makes one wait: it asks for steps of
//! bounded work. Invariant: one line of log for each change of direction, not for each step.

use super::control::{Direction, PressureControl, Rules};
use super::divide::Holding;
use super::source::{LimitsChanged, Roots, Sources};
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};
use undercroft_config::PressurePlan;
use undercroft_host::{EventFd, now_ns};
use undercroft_units::{Time, human_size};

/// How often available memory is looked at.
const LOOK: Duration = Duration::from_millis(250);
/// Part of the stated time in which memory is given back: the rest is for noticing that it has to be.
const GIVE_PART: u32 = 2;

/// The store, as the watch sees it.
pub trait Store: Send + Sync + 'static {
    /// What each disk holds of its share.
    fn holdings(&self) -> Vec<Holding>;

    /// Memory that it has from the kernel for blocks, in bytes.
    fn committed_bytes(&self) -> u64;

    /// From now on all disks together may hold what [`View::allowed_bytes`] says, divided as in
    /// [`super::allowed_bytes`], and grow by what [`View::room_bytes`] says.
    fn allow(&self);

    /// Until the machine's memory is looked at again, copies to guests may touch so many bytes first; `None` for no
    /// limit.
    fn guests_may(&self, bytes: Option<u64>);

    /// Brings the disks down to what they may hold and the memory back to the kernel, in steps spread over `within`.
    /// Returns how many bytes went back.
    fn give_back(&self, within: Duration) -> u64;

    /// The watch has failed: nobody looks at the machine's memory any more.
    fn unwatched(&self);
}

/// What the watch says about itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct View {
    /// Whether the machine is watched.
    pub watching: bool,
    /// Where shortage is seen, in words.
    pub source: String,
    /// What the store may hold now.
    pub allowed_bytes: u64,
    /// By how much it may grow until the machine's memory is looked at again; `None` if by all that it may hold.
    pub room_bytes: Option<u64>,
    /// Shared memory charged to the control group, guests' mostly; `None` if no group limits us.
    pub shared_bytes: Option<u64>,
    /// What it may hold at most: the ceiling, or less by hand.
    pub most_bytes: u64,
    /// What is never given back.
    pub floor_bytes: u64,
    /// Which way it goes.
    pub direction: Direction,
    /// How often memory was given back.
    pub given_count: u64,
    /// How many bytes that were, together.
    pub given_bytes: u64,
    /// Why memory was last given back.
    pub last_cause: Option<String>,
    /// When memory was last given back.
    pub last_at: Option<SystemTime>,
    /// Stalls of the machine that were somebody else's.
    pub others: u64,
}

struct Shared {
    control: PressureControl,
    plan: PressurePlan,
    /// The plan has changed: sources are to be looked for again.
    replanned: bool,
    stopping: bool,
    view: View,
}

/// The running watch.
pub struct Watch {
    shared: Arc<Mutex<Shared>>,
    wake_fd: Arc<EventFd>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The rules of a plan.
pub fn rules(plan: &PressurePlan, floor_bytes: u64, ceiling_bytes: u64) -> Rules {
    let ns = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
    Rules {
        ceiling_bytes,
        floor_bytes: floor_bytes.min(ceiling_bytes),
        give_within_ns: ns(plan.give_within),
        calm_ns: ns(plan.calm),
        regrow_ns: ns(plan.regrow),
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(|p| p.into_inner())
}

impl Watch {
    /// A watch that does not run yet; until then the store may hold everything.
    ///
    /// # Errors
    /// If the kernel has no descriptor left.
    pub fn new(plan: PressurePlan, floor_bytes: u64, ceiling_bytes: u64) -> std::io::Result<Self> {
        let control = PressureControl::new(rules(&plan, floor_bytes, ceiling_bytes));
        let shared = Shared { control, plan, replanned: true, stopping: false, view: View::default() };
        Ok(Watch { shared: Arc::new(Mutex::new(shared)), wake_fd: Arc::new(EventFd::new()?), thread: Mutex::default() })
    }

    /// Starts the thread over `store`.
    ///
    /// # Errors
    /// If there can be no thread.
    pub fn start(&self, store: Arc<dyn Store>, roots: Roots) -> std::io::Result<()> {
        let (shared, wake_fd) = (self.shared.clone(), self.wake_fd.clone());
        let run = move || {
            let runner = Runner { shared, wake_fd, store: Arc::clone(&store), roots };
            if catch_unwind(AssertUnwindSafe(|| runner.run())).is_err() {
                store.unwatched();
            }
        };
        let thread = std::thread::Builder::new().name("pressure".into()).spawn(run)?;
        *self.thread.lock().unwrap_or_else(|p| p.into_inner()) = Some(thread);
        Ok(())
    }

    /// What the store may hold now.
    pub fn allowed_bytes(&self) -> u64 {
        lock(&self.shared).control.allowed_bytes()
    }

    /// What it says about itself.
    pub fn view(&self) -> View {
        let s = lock(&self.shared);
        View {
            watching: s.plan.watch,
            allowed_bytes: s.control.allowed_bytes(),
            most_bytes: s.control.most_bytes(),
            floor_bytes: s.control.rules().floor_bytes,
            direction: s.control.direction(),
            ..s.view.clone()
        }
    }

    /// Changes by hand what the store may hold at most. What it may hold now follows, and is returned; the thread then
    /// brings the disks there.
    pub fn set_most(&self, bytes: u64) -> u64 {
        let allowed = {
            let mut s = lock(&self.shared);
            s.control.set_most(bytes);
            s.control.allowed_bytes()
        };
        self.wake_fd.signal();
        allowed
    }

    /// Another plan from now on.
    pub fn set_plan(&self, plan: PressurePlan, floor_bytes: u64) {
        {
            let mut s = lock(&self.shared);
            let rules = rules(&plan, floor_bytes, s.control.rules().ceiling_bytes);
            s.control.set_rules(rules);
            if !plan.watch {
                s.control.forget();
            }
            s.replanned |= s.plan != plan;
            s.plan = plan;
        }
        self.wake_fd.signal();
    }

    /// Ends the thread.
    pub fn stop(&self) {
        lock(&self.shared).stopping = true;
        self.wake_fd.signal();
        if let Some(t) = self.thread.lock().unwrap_or_else(|p| p.into_inner()).take() {
            let _ = t.join();
        }
    }
}

struct Runner {
    shared: Arc<Mutex<Shared>>,
    wake_fd: Arc<EventFd>,
    store: Arc<dyn Store>,
    roots: Roots,
}

impl Runner {
    fn run(self) {
        let mut sources = None;
        let mut told = u64::MAX;
        let mut said = Said::default();
        loop {
            let (plan, replanned, stopping) = {
                let mut s = lock(&self.shared);
                (s.plan.clone(), std::mem::take(&mut s.replanned), s.stopping)
            };
            if stopping {
                return;
            }
            if replanned {
                sources = plan.watch.then(|| Sources::probe(self.roots.clone(), &plan));
                let text = sources.as_ref().map_or("not watched".to_string(), Sources::describe);
                tracing::info!("memory pressure: {text}");
                lock(&self.shared).view.source = text;
            }
            let room = self.look(sources.as_mut(), &mut said);
            if let Some(sources) = &mut sources {
                self.tell_of_limits(sources);
            }
            let (allowed, had) = {
                let mut s = lock(&self.shared);
                (s.control.allowed_bytes(), std::mem::replace(&mut s.view.room_bytes, room))
            };
            if allowed != told || room.is_some() || had.is_some() {
                self.store.allow();
                if allowed < told {
                    let given = self.store.give_back(plan.give_within / GIVE_PART);
                    let view = &mut lock(&self.shared).view;
                    view.given_bytes += given;
                    if given > 0 {
                        tracing::debug!("{} went back to the kernel", human_size(given));
                    }
                }
                told = allowed;
            }
            match &mut sources {
                Some(s) => s.wait(LOOK, self.wake_fd.as_fd()),
                None => Sources::idle(self.wake_fd.as_fd()),
            }
            self.wake_fd.drain();
        }
    }

    /// Limits of control groups can change at any time, and come and go: status then says so, and for those that come
    /// and go the log.
    fn tell_of_limits(&self, sources: &mut Sources) {
        let changed = sources.limits_changed();
        if changed != LimitsChanged::No {
            let text = sources.describe();
            if changed == LimitsChanged::Groups {
                tracing::info!("memory pressure: {text}");
            }
            lock(&self.shared).view.source = text;
        }
    }

    /// Takes a reading and lets the control act on it; says when the direction changes. Returns by how much the store
    /// may grow until the next reading, if that is less than what it is allowed.
    fn look(&self, sources: Option<&mut Sources>, said: &mut Said) -> Option<u64> {
        let Some(sources) = sources else {
            self.store.guests_may(None);
            return None;
        };
        let (reading, cause) = sources.read(now_ns());
        self.store.guests_may(reading.guests_bytes);
        // Disks are asked without the lock: their workers may be busy for a moment, and status must not wait for that.
        let holdings = if reading.is_pressed() { self.store.holdings() } else { Vec::new() };
        let mut s = lock(&self.shared);
        // What was read counts by the plan that it was read for: the next look, which comes at once, is by the new one.
        if s.replanned {
            return s.view.room_bytes;
        }
        let before = s.control.allowed_bytes();
        let changed = s.control.step(&reading, || holdings);
        let (now, direction) = (s.control.allowed_bytes(), s.control.direction());
        s.view.others = sources.others();
        s.view.shared_bytes = reading.shared_bytes;
        if changed && now < before {
            s.view.given_count += 1;
            s.view.last_cause = Some(cause.0.clone());
            s.view.last_at = Some(SystemTime::now());
        }
        let rules = *s.control.rules();
        let most = s.control.most_bytes();
        drop(s);
        let size = human_size;
        let words = match direction {
            Direction::Giving => format!(
                "memory is short ({}): the store gives back, {} -> {} allowed, floor {}",
                cause.0,
                size(before),
                size(now),
                size(rules.floor_bytes)
            ),
            Direction::Growing => format!(
                "no pressure on memory for {}: the store grows again from {} towards {}",
                Time(rules.calm_ns),
                size(now),
                size(most)
            ),
            Direction::Full => format!("the store may hold {} again", size(most)),
            Direction::Waiting => String::new(),
        };
        said.turned(direction, &words);
        // The store is asked only if what is available could be less than it may still take.
        let room = Some(reading.room_bytes).filter(|&r| r < now);
        let room = room.filter(|&r| r < now.saturating_sub(self.store.committed_bytes()));
        if let Some(room) = room {
            said.bounded(now, room);
        }
        room
    }
}

/// What the log says already.
#[derive(Default)]
struct Said {
    direction: Direction,
    bounded: bool,
}

impl Said {
    /// The store goes this way now: a line for each change, but not for each pause of a descent.
    fn turned(&mut self, direction: Direction, words: &str) {
        let down = |d| matches!(d, Direction::Giving | Direction::Waiting);
        if direction == self.direction || direction == Direction::Waiting || (down(self.direction) && down(direction)) {
            return;
        }
        tracing::info!("{words}");
        self.direction = direction;
    }

    /// Little is available for a store that may hold so much: once.
    fn bounded(&mut self, allowed_bytes: u64, room_bytes: u64) {
        if !std::mem::replace(&mut self.bounded, true) {
            tracing::info!(
                "the store may hold {}, for which too little memory is available: it grows by half of what there is at \
                 a time, now by {}",
                human_size(allowed_bytes),
                human_size(room_bytes)
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::OnceLock;
    use std::time::Instant;

    const MIB: u64 = 1 << 20;

    /// A full store whose watch is switched off by hand while its disks are asked what they hold.
    struct SwitchedOff {
        watch: OnceLock<Arc<Watch>>,
        off: PressurePlan,
    }

    impl Store for SwitchedOff {
        fn holdings(&self) -> Vec<Holding> {
            if let Some(watch) = self.watch.get() {
                watch.set_plan(self.off.clone(), 16 * MIB);
            }
            vec![Holding { share_bytes: 64 * MIB, held_bytes: 64 * MIB }]
        }

        fn committed_bytes(&self) -> u64 {
            64 * MIB
        }

        fn allow(&self) {}

        fn guests_may(&self, _: Option<u64>) {}

        fn give_back(&self, _: Duration) -> u64 {
            0
        }

        fn unwatched(&self) {}
    }

    #[test]
    fn a_reading_that_the_change_of_the_plan_overtook_takes_nothing_from_the_store() {
        let dir = tempfile::tempdir().unwrap();
        let kib = |mib: u64| mib << 10;
        let text = format!("MemTotal: {} kB\nMemFree: {} kB\nMemAvailable: {} kB\n", kib(1000), kib(5), kib(5));
        std::fs::write(dir.path().join("meminfo"), text).unwrap();
        let plan = PressurePlan {
            watch: true,
            stall: Duration::from_millis(150),
            available_min_bytes: Some(500 * MIB),
            give_within: Duration::from_secs(2),
            calm: Duration::from_secs(30),
            regrow: Duration::from_secs(64),
        };
        let off = PressurePlan { watch: false, ..plan.clone() };
        let watch = Arc::new(Watch::new(plan, 16 * MIB, 64 * MIB).unwrap());
        let store = Arc::new(SwitchedOff { watch: OnceLock::new(), off });
        assert!(store.watch.set(watch.clone()).is_ok());
        watch.start(store, Roots { proc: dir.path().into() }).unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        while watch.view().source != "not watched" {
            assert!(Instant::now() < end, "the plan was not taken up: {:?}", watch.view());
            std::thread::sleep(Duration::from_millis(1));
        }
        let view = watch.view();
        watch.stop();
        assert_eq!((view.allowed_bytes, view.direction), (64 * MIB, Direction::Full), "nobody would ever let it grow");
    }
}
