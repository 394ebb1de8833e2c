//! Reference models of ARC and CAR: four queues and a target.

use crate::policy::model::{MayEvict, ReferenceModel, oldest, take};
use std::collections::BTreeSet;

pub(crate) struct Adaptive {
    capacity: usize,
    t1: Vec<u64>,
    t2: Vec<u64>,
    b1: Vec<u64>,
    b2: Vec<u64>,
    p: f64,
    /// CAR's reference bits; `None` for ARC.
    referenced: Option<BTreeSet<u64>>,
}

impl Adaptive {
    pub fn new(capacity: usize, car: bool) -> Self {
        let (t1, t2, b1, b2) = Default::default();
        Self { capacity, t1, t2, b1, b2, p: 0.0, referenced: car.then(BTreeSet::new) }
    }

    fn adapt(&mut self, block: u64) {
        let (b1, b2) = (self.b1.len() as f64, self.b2.len() as f64);
        if self.b1.contains(&block) {
            self.p = f64::min(self.p + f64::max(b2 / b1, 1.0), self.capacity as f64);
        } else if self.b2.contains(&block) {
            self.p = f64::max(self.p - f64::max(b1 / b2, 1.0), 0.0);
        }
        take(&mut self.b1, block);
        take(&mut self.b2, block);
    }

    fn make_ghost(&mut self, block: u64, second: bool) {
        if self.b1.len() + self.b2.len() == self.capacity + 1 {
            let own = if second { &mut self.b2 } else { &mut self.b1 };
            if own.is_empty() { if second { &mut self.b1 } else { &mut self.b2 } } else { own }.remove(0);
        }
        if second { &mut self.b2 } else { &mut self.b1 }.push(block);
    }

    fn arc_victim(&mut self, may_evict: MayEvict, in_b2: bool) -> Option<u64> {
        let t1 = self.t1.len() as f64;
        let prefers_t1 = self.t2.is_empty() || (t1 >= 1.0 && ((in_b2 && t1 == self.p) || t1 > self.p));
        let (in_t1, in_t2) = (oldest(&self.t1, may_evict), oldest(&self.t2, may_evict));
        let (block, second) = match (in_t1, in_t2) {
            (Some(at), None) => (self.t1.remove(at), false),
            (Some(at), _) if prefers_t1 => (self.t1.remove(at), false),
            (_, Some(at)) => (self.t2.remove(at), true),
            (None, None) => return None,
        };
        self.make_ghost(block, second);
        Some(block)
    }

    fn car_victim(&mut self, may_evict: MayEvict) -> Option<u64> {
        loop {
            let (in_t1, in_t2) = (oldest(&self.t1, may_evict), oldest(&self.t2, may_evict));
            let second = match (in_t1, in_t2) {
                (None, None) => return None,
                (Some(_), None) => false,
                (None, Some(_)) => true,
                _ => (self.t1.len() as f64) < f64::max(1.0, self.p),
            };
            let block = if second { self.t2.remove(in_t2?) } else { self.t1.remove(in_t1?) };
            if self.referenced.as_mut()?.remove(&block) {
                self.t2.push(block);
            } else {
                self.make_ghost(block, second);
                return Some(block);
            }
        }
    }

    fn trim(&mut self) {
        while self.t1.len() + self.b1.len() > self.capacity && !self.b1.is_empty() {
            self.b1.remove(0);
        }
        while self.b1.len() + self.b2.len() > self.capacity {
            if self.b2.is_empty() { &mut self.b1 } else { &mut self.b2 }.remove(0);
        }
    }
}

impl ReferenceModel for Adaptive {
    fn hit(&mut self, block: u64) {
        if let Some(referenced) = &mut self.referenced {
            referenced.insert(block);
        } else {
            let _ = take(&mut self.t1, block) || take(&mut self.t2, block);
            self.t2.push(block);
        }
    }

    fn miss(&mut self, block: u64, full: bool, may_evict: MayEvict) -> Result<Option<u64>, ()> {
        let in_b2 = self.b2.contains(&block);
        let known = in_b2 || self.b1.contains(&block);
        let car = self.referenced.is_some();
        if !car {
            self.adapt(block);
        }
        let evicted = match (full, car) {
            (false, _) => None,
            (true, false) => Some(self.arc_victim(may_evict, in_b2).ok_or(())?),
            (true, true) => Some(self.car_victim(may_evict).ok_or(())?),
        };
        if car {
            self.adapt(block);
        }
        if known { &mut self.t2 } else { &mut self.t1 }.push(block);
        self.trim();
        Ok(evicted)
    }

    fn evict(&mut self, may_evict: MayEvict) -> Option<u64> {
        if self.referenced.is_some() { self.car_victim(may_evict) } else { self.arc_victim(may_evict, false) }
    }

    fn remove(&mut self, block: u64) {
        for queue in [&mut self.t1, &mut self.t2, &mut self.b1, &mut self.b2] {
            take(queue, block);
        }
        if let Some(referenced) = &mut self.referenced {
            referenced.remove(&block);
        }
    }

    fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
        self.p = self.p.min(capacity as f64);
        self.trim();
    }

    fn coldest_first(&self) -> Vec<u64> {
        let all = [&self.t1[..], &self.t2].concat();
        let marked = |b: &u64| self.referenced.as_ref().is_some_and(|r| r.contains(b));
        let (hot, cold): (Vec<_>, Vec<_>) = all.into_iter().partition(marked);
        [cold, hot].concat()
    }
}
