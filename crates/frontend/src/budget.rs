//! Memory for the data of requests: all NBD connections of a daemon, and its disks that are files, together have one
//! limit, the sum.
//!
//! Owns the sum, and the order in which connections that wait get a part of it. Never allocates a buffer. Invariants:
//! connections are granted no more than the sum; of the exports that wait, the one that holds least is served first,
//! and within an export the connection that came first, so that small requests do not pass a large one for ever; while
//! others wait, a connection that keeps memory because its client is slow is ended.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use undercroft_host::EventFd;

/// The sum if none is given, in bytes.
pub const BUDGET_BYTES_DEFAULT: usize = 256 << 20;
/// The least sum, in bytes: room for two of the largest requests, less their connections' reserves.
pub const BUDGET_BYTES_MIN: usize = 64 << 20;
/// How long a client may be slow while others wait, if nothing else is said.
pub const PATIENCE_DEFAULT: Duration = Duration::from_secs(10);
/// While others wait, a client that is sent or sends fewer bytes than this in `patience` is too slow.
const MOVED_MIN: u64 = 1 << 20;
/// How often that is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The memory of all connections.
#[derive(Debug)]
pub struct Budget {
    bytes_max: usize,
    patience: Duration,
    state: Mutex<State>,
    /// Connections that wait. Changed under the lock only.
    waiting: AtomicUsize,
    /// Connections ended for being slow.
    ended: AtomicU64,
}

#[derive(Debug)]
struct State {
    free: usize,
    /// What each export's connections were granted.
    held: HashMap<Arc<str>, usize>,
    queue: VecDeque<(Arc<Account>, usize)>,
    accounts: Vec<Member>,
    /// Whom to wake when somebody begins to wait.
    wake_fds: Vec<EventFd>,
}

#[derive(Debug)]
struct Member {
    account: Weak<Account>,
    /// Since when the client has been slow, and what it had moved then.
    slow: Option<(Instant, u64)>,
}

/// One connection's part.
#[derive(Debug)]
pub struct Account {
    budget: Arc<Budget>,
    export: Arc<str>,
    /// Wakes the connection: it was granted memory, it should give back what it does not use, or it has to end.
    event: EventFd,
    called: AtomicBool,
    /// Granted and not yet taken notice of.
    granted: AtomicUsize,
    /// Granted in all, less what was given back.
    charged: AtomicUsize,
    /// Bytes of data moved from and to the client.
    moved: AtomicU64,
    /// The connection waits for its client.
    waits_for_client: AtomicBool,
    ended: AtomicBool,
}

fn lock(budget: &Budget) -> MutexGuard<'_, State> {
    budget.state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Budget {
    /// A sum of `bytes_max`, at least [`BUDGET_BYTES_MIN`]; a client that moves next to nothing for `patience` is too
    /// slow.
    pub fn new(bytes_max: usize, patience: Duration) -> Arc<Self> {
        let bytes_max = bytes_max.max(BUDGET_BYTES_MIN);
        let state = State {
            free: bytes_max,
            held: HashMap::new(),
            queue: VecDeque::new(),
            accounts: Vec::new(),
            wake_fds: Vec::new(),
        };
        Arc::new(Self {
            bytes_max,
            patience,
            state: Mutex::new(state),
            waiting: AtomicUsize::new(0),
            ended: AtomicU64::new(0),
        })
    }

    /// The sum, in bytes.
    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Bytes granted now.
    pub fn used_bytes(&self) -> usize {
        self.bytes_max - lock(self).free
    }

    /// Connections ended because they were slow while others waited.
    pub fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    /// Whether a connection waits for memory.
    #[inline]
    pub(crate) fn is_short(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// `wake_fd` is signalled when somebody begins to wait: then [`Budget::look`] has to be called from time to time.
    pub(crate) fn add_wake_fd(&self, wake_fd: EventFd) {
        lock(self).wake_fds.push(wake_fd);
    }

    /// The part of a new connection to `export`.
    ///
    /// # Errors
    /// If the kernel has no descriptor left.
    pub fn open(self: &Arc<Self>, export: &str) -> io::Result<Arc<Account>> {
        let account = Arc::new(Account {
            budget: self.clone(),
            export: export.into(),
            event: EventFd::new()?,
            called: AtomicBool::new(false),
            granted: AtomicUsize::new(0),
            charged: AtomicUsize::new(0),
            moved: AtomicU64::new(0),
            waits_for_client: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        });
        let mut state = lock(self);
        state.accounts.retain(|m| m.account.strong_count() > 0);
        state.accounts.push(Member { account: Arc::downgrade(&account), slow: None });
        Ok(account)
    }

    /// Ends connections whose clients keep others waiting. Returns after what time to look again, if somebody waits.
    pub fn look(&self, now: Instant) -> Option<Duration> {
        if !self.is_short() {
            return None;
        }
        let mut state = lock(self);
        for m in &mut state.accounts {
            let Some(account) = m.account.upgrade() else { continue };
            let holds = account.charged.load(Ordering::Relaxed) > 0 && account.waits_for_client.load(Ordering::Relaxed);
            let moved = account.moved.load(Ordering::Relaxed);
            m.slow = match m.slow {
                _ if !holds => None,
                Some((since, before)) if now.duration_since(since) < self.patience => Some((since, before)),
                Some((_, before)) if moved - before < MOVED_MIN => {
                    if !account.ended.swap(true, Ordering::Relaxed) {
                        self.ended.fetch_add(1, Ordering::Relaxed);
                    }
                    account.call();
                    None
                }
                _ => Some((now, moved)),
            };
        }
        Some(LOOK_EVERY.min(self.patience))
    }

    /// Grants what is free to those who have waited longest.
    fn serve(&self, state: &mut State) {
        loop {
            let held = |a: &Account| state.held.get(&a.export).copied().unwrap_or(0);
            // The first of several that are equal.
            let next = state.queue.iter().enumerate().min_by_key(|(_, (a, _))| held(a));
            let Some((at, &(_, bytes))) = next.filter(|(_, (_, bytes))| *bytes <= state.free) else { break };
            let Some((account, _)) = state.queue.remove(at) else { break };
            state.grant(&account, bytes);
            account.granted.fetch_add(bytes, Ordering::Relaxed);
            account.call();
        }
        self.waiting.store(state.queue.len(), Ordering::Relaxed);
    }
}

impl State {
    fn grant(&mut self, account: &Account, bytes: usize) {
        self.free -= bytes;
        *self.held.entry(account.export.clone()).or_default() += bytes;
        account.charged.fetch_add(bytes, Ordering::Relaxed);
    }

    fn take_back(&mut self, account: &Account, bytes: usize) {
        self.free += bytes;
        account.charged.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(held) = self.held.get_mut(&account.export) {
            *held -= bytes;
            if *held == 0 {
                self.held.remove(&account.export);
            }
        }
    }
}

impl Account {
    fn call(&self) {
        self.called.store(true, Ordering::Release);
        self.event.signal();
    }

    /// Becomes readable when the connection should look after its memory.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Whether the connection was called since this was asked last.
    #[inline]
    pub(crate) fn was_called(&self) -> bool {
        if !self.called.load(Ordering::Relaxed) {
            return false;
        }
        self.event.drain();
        self.called.swap(false, Ordering::Acquire)
    }

    /// Whether others wait for memory.
    #[inline]
    pub(crate) fn is_short(&self) -> bool {
        self.budget.is_short()
    }

    /// Whether the connection has to end: its client was slow while others waited.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Bytes granted since this was asked last, to one that waited.
    pub fn granted(&self) -> usize {
        self.granted.swap(0, Ordering::Relaxed)
    }

    /// Takes `bytes`; if they are not to be had now, `wait` says whether to wait for them behind others. Whether it has
    /// them.
    pub fn take(self: &Arc<Self>, bytes: usize, wait: bool) -> bool {
        let budget = &self.budget;
        let mut state = lock(budget);
        if state.queue.iter().any(|(a, _)| Arc::ptr_eq(a, self)) {
            return false;
        }
        if state.queue.is_empty() && bytes <= state.free {
            state.grant(self, bytes);
            return true;
        }
        if !wait {
            return false;
        }
        state.queue.push_back((self.clone(), bytes));
        // It may be served at once, if the others wait for more than is free.
        budget.serve(&mut state);
        // Others may keep buffers that they do not use.
        for member in &state.accounts {
            if let Some(a) = member.account.upgrade().filter(|a| a.charged.load(Ordering::Relaxed) > 0) {
                a.call();
            }
        }
        state.wake_fds.iter().for_each(EventFd::signal);
        false
    }

    /// Gives `bytes` back.
    pub fn give(&self, bytes: usize) {
        if bytes > 0 {
            let mut state = lock(&self.budget);
            state.take_back(self, bytes);
            self.budget.serve(&mut state);
        }
    }

    /// Gives everything back and waits no longer: the connection has ended.
    pub fn close(&self) {
        let mut state = lock(&self.budget);
        state.queue.retain(|(a, _)| !std::ptr::eq(&**a, self));
        self.granted.store(0, Ordering::Relaxed);
        state.take_back(self, self.charged.load(Ordering::Relaxed));
        self.budget.serve(&mut state);
    }

    /// So many bytes came from the client or went to it.
    pub fn moved(&self, bytes: usize) {
        self.moved.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Says whether the connection waits for its client.
    pub(crate) fn set_waits_for_client(&self, waits: bool) {
        self.waits_for_client.store(waits, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn budget() -> Arc<Budget> {
        Budget::new(BUDGET_BYTES_MIN, Duration::from_secs(10))
    }

    #[test]
    fn what_is_granted_never_passes_the_sum_and_all_come_back() {
        let budget = budget();
        let accounts: Vec<_> = (0..8).map(|_| budget.open("disk").unwrap()).collect();
        let mut held = [0usize; 8];
        let mut x = 1u64;
        for _ in 0..10_000 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let n = (x >> 60 & 7) as usize;
            held[n] += accounts[n].granted();
            let bytes = (x >> 20) as usize % (20 * MIB) + 1;
            match x >> 40 & 3 {
                0 if accounts[n].take(bytes, true) => held[n] += bytes,
                1 => accounts[n].give(std::mem::take(&mut held[n])),
                2 if x >> 50 & 31 == 0 => (accounts[n].close(), held[n] = 0).1,
                _ => {}
            }
            let granted: usize = accounts.iter().map(|a| a.charged.load(Ordering::Relaxed)).sum();
            assert!(granted == budget.used_bytes() && granted <= budget.bytes_max());
        }
        accounts.iter().for_each(|a| a.close());
        assert!(budget.used_bytes() == 0 && !budget.is_short());
    }

    #[test]
    fn a_large_request_is_not_passed_by_small_ones() {
        let budget = budget();
        let [first, large, small] = [(); 3].map(|()| budget.open("disk").unwrap());
        assert!(first.take(40 * MIB, true));
        assert!(!large.take(32 * MIB, true));
        assert!(!small.take(MIB, true), "there is memory, but another came before");
        assert!(first.was_called(), "it may have memory that it does not use");
        first.give(10 * MIB);
        assert!(large.was_called() && large.granted() == 32 * MIB);
        assert!(small.was_called() && small.granted() == MIB);
        assert_eq!(budget.used_bytes(), 63 * MIB);
    }

    #[test]
    fn many_clients_of_one_export_do_not_pass_those_of_another() {
        let budget = budget();
        let crowd: Vec<_> = (0..20).map(|_| budget.open("crowd").unwrap()).collect();
        let granted = crowd.iter().filter(|a| a.take(32 * MIB, true)).count();
        assert_eq!(granted, 2);
        let other = budget.open("other").unwrap();
        assert!(!other.take(32 * MIB, true));
        crowd[0].close();
        assert_eq!(other.granted(), 32 * MIB, "eighteen came before, of an export that holds some");
        other.close();
        assert_eq!(crowd[2].granted(), 32 * MIB);
    }

    #[test]
    fn slow_clients_are_ended_only_while_others_wait() {
        let budget = budget();
        let [slow, busy, disk, waiting] = [(); 4].map(|()| budget.open("disk").unwrap());
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for a in [&slow, &busy, &disk] {
            assert!(a.take(20 * MIB, true));
            a.set_waits_for_client(true);
        }
        // The third waits for its disk.
        disk.set_waits_for_client(false);
        assert_eq!(budget.look(at(100)), None);
        assert!(!waiting.take(20 * MIB, true));
        assert!(budget.look(at(200)).is_some());
        busy.moved(2 * MIB);
        slow.moved(100);
        budget.look(at(209));
        assert!(!slow.has_ended());
        budget.look(at(211));
        assert!(slow.has_ended() && slow.was_called() && !busy.has_ended() && !disk.has_ended());
        slow.close();
        assert_eq!((waiting.granted(), budget.ended(), budget.look(at(212))), (20 * MIB, 1, None));
    }
}
