//! The model of LIRS2: of each block known, the times of its last two requests.

use crate::policy::model::{MayEvict, ReferenceModel, oldest, take};
use std::collections::BTreeMap;

#[derive(Clone, Copy, PartialEq)]
enum State {
    Lir,
    Hir,
    Absent,
}

struct Known {
    state: State,
    /// When it was asked for last, and when before, as long as LIRS2 is to know.
    last: Option<u64>,
    before: Option<u64>,
}

pub(crate) struct Lirs2 {
    capacity: usize,
    known: BTreeMap<u64, Known>,
    /// Blocks that are HIR and present.
    q: Vec<u64>,
    time: u64,
    latest: Option<u64>,
}

impl Lirs2 {
    pub fn new(capacity: usize) -> Self {
        Self { capacity, known: BTreeMap::new(), q: vec![], time: 0, latest: None }
    }

    fn lir_target(&self) -> usize {
        self.capacity - usize::min(self.capacity, usize::max(4, self.capacity / 100))
    }

    fn lirs(&self) -> Vec<u64> {
        let mut lirs: Vec<u64> = self.known.iter().filter(|(_, k)| k.state == State::Lir).map(|(b, _)| *b).collect();
        lirs.sort_by_key(|b| self.known[b].before);
        lirs
    }

    fn entries(&self) -> usize {
        self.known.values().map(|k| usize::from(k.last.is_some()) + usize::from(k.before.is_some())).sum()
    }

    /// What is known of HIR blocks from before some time is forgotten.
    fn forget_before(&mut self, horizon: u64) {
        for known in self.known.values_mut().filter(|k| k.state != State::Lir) {
            known.last = known.last.filter(|&t| t >= horizon);
            known.before = known.before.filter(|&t| t >= horizon);
        }
        self.known.retain(|_, k| k.state != State::Absent || k.last.is_some());
    }

    /// Forgets the oldest that is known of a HIR block.
    fn forget_one(&mut self) -> bool {
        let hir = self.known.values().filter(|k| k.state != State::Lir);
        let Some(oldest) = hir.filter_map(|k| k.before.or(k.last)).min() else { return false };
        self.forget_before(oldest + 1);
        true
    }

    /// LIR blocks become as few as they may be, and HIR blocks are known as far back as the coldest of them.
    fn tidy(&mut self) {
        let mut lirs = self.lirs();
        while lirs.len() > self.lir_target() {
            let coldest = lirs.remove(0);
            let known = self.known.get_mut(&coldest).expect("it is known");
            (known.state, known.before) = (State::Hir, None);
            self.q.push(coldest);
            // blocks that become HIR later are known from then on
            self.forget_before(lirs.first().map_or(u64::MAX, |b| self.known[b].before.expect("two times")));
        }
        self.forget_before(lirs.first().map_or(u64::MAX, |b| self.known[b].before.expect("two times")));
        while self.entries() > 8 * self.capacity && self.forget_one() {}
    }

    /// The block is asked for and is present from now on.
    fn ask(&mut self, block: u64) {
        self.latest = Some(block);
        self.time += 2;
        let new = Known { state: State::Absent, last: None, before: None };
        let known = self.known.entry(block).or_insert(new);
        let proved = known.before.is_some();
        let absent = known.state == State::Absent;
        (known.before, known.last) = (known.last, Some(self.time));
        take(&mut self.q, block);
        let room = absent && self.lirs().len() < self.lir_target();
        let known = self.known.get_mut(&block).expect("it is known");
        if proved || room {
            known.state = State::Lir;
            known.before = known.before.or(Some(self.time - 1));
        } else if known.state != State::Lir {
            known.state = State::Hir;
            self.q.push(block);
        }
        self.tidy();
    }

    fn victim(&mut self, may_evict: MayEvict) -> Option<u64> {
        let block = *self.coldest_first().get(oldest(&self.coldest_first(), may_evict)?)?;
        let ghosts_limit = 8 * self.capacity - 2 * self.lir_target();
        let is_hir_in_s = |model: &Self| model.known[&block].state == State::Hir && model.known[&block].last.is_some();
        let ghosts = |model: &Self| model.known.values().filter(|k| k.state == State::Absent).count();
        while is_hir_in_s(self) && ghosts(self) == ghosts_limit && self.forget_one() {}
        if is_hir_in_s(self) {
            self.known.get_mut(&block).expect("it is known").state = State::Absent;
            take(&mut self.q, block);
            self.latest = self.latest.filter(|&b| b != block);
        } else {
            self.remove(block);
        }
        Some(block)
    }
}

impl ReferenceModel for Lirs2 {
    fn hit(&mut self, block: u64) {
        if self.latest != Some(block) {
            self.ask(block);
        }
    }

    fn miss(&mut self, block: u64, full: bool, may_evict: MayEvict) -> Result<Option<u64>, ()> {
        self.latest = None;
        let evicted = if full { Some(self.victim(may_evict).ok_or(())?) } else { None };
        self.ask(block);
        Ok(evicted)
    }

    fn evict(&mut self, may_evict: MayEvict) -> Option<u64> {
        self.victim(may_evict)
    }

    fn remove(&mut self, block: u64) {
        take(&mut self.q, block);
        self.known.remove(&block);
        self.latest = self.latest.filter(|&b| b != block);
        self.tidy();
    }

    fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
        self.known.retain(|_, k| k.state != State::Absent);
        self.tidy();
    }

    fn coldest_first(&self) -> Vec<u64> {
        [&self.q[..], &self.lirs()].concat()
    }
}
