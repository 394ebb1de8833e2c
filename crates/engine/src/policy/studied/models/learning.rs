//! The model of CACHEUS: what is known of each block in a map, everything that can be counted counted anew.

use crate::policy::model::{MayEvict, ReferenceModel, oldest, take};
use crate::structures::table::HashKey;
use crate::structures::table::SIMULATION_SEED;
use std::cmp::Reverse;
use std::collections::BTreeMap;

struct Known {
    count: u32,
    time: u64,
    new: bool,
    demoted: bool,
}

/// A block that was evicted, its count, and whether it had come as new.
type Ghost = (u64, u32, bool);

pub(crate) struct Cacheus {
    capacity: usize,
    s: Vec<u64>,
    q: Vec<u64>,
    s_limit: usize,
    q_limit: usize,
    known: BTreeMap<u64, Known>,
    /// What SR-LRU evicted, and CR-LFU.
    histories: [Vec<Ghost>; 2],
    weights: [f64; 2],
    rate: f64,
    rate_before: f64,
    hit_rate: f64,
    hits: usize,
    left: usize,
    without_hits: u32,
    fewer_hits: u32,
    lots: HashKey,
    drawn: u64,
    time: u64,
}

fn first_rate(capacity: usize) -> f64 {
    (2.0 * 2f64.ln() / usize::max(capacity, 1) as f64).sqrt()
}

fn first_q_limit(capacity: usize) -> usize {
    usize::max(1, (0.01 * capacity as f64 + 0.5) as usize)
}

fn rounded(x: f64) -> f64 {
    (x * 1000.0).round_ties_even() / 1000.0
}

fn ratio(a: usize, b: usize) -> usize {
    usize::max(1, (a as f64 / usize::max(b, 1) as f64 + 0.5) as usize)
}

impl Cacheus {
    pub fn new(capacity: usize) -> Self {
        let q_limit = first_q_limit(capacity);
        Self {
            capacity,
            s: vec![],
            q: vec![],
            s_limit: capacity.saturating_sub(q_limit),
            q_limit,
            known: BTreeMap::new(),
            histories: [vec![], vec![]],
            weights: [0.5; 2],
            rate: first_rate(capacity),
            rate_before: 0.0,
            hit_rate: 0.0,
            hits: 0,
            left: usize::max(capacity, 1),
            without_hits: 0,
            fewer_hits: 0,
            lots: HashKey::from_seed(SIMULATION_SEED).derived(),
            drawn: 0,
            time: 0,
        }
    }

    fn draw(&mut self) -> f64 {
        self.drawn += 1;
        (self.lots.hash(self.drawn) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn tick(&mut self) {
        self.time += 1;
        self.left -= 1;
        if self.left > 0 {
            return;
        }
        let period = usize::max(self.capacity, 1);
        self.left = period;
        let hit_rate = rounded(self.hits as f64 / period as f64);
        let gain = rounded(hit_rate - self.hit_rate);
        let change = rounded(rounded(self.rate) - rounded(self.rate_before));
        self.hit_rate = hit_rate;
        self.hits = 0;
        self.rate_before = self.rate;
        if change * gain != 0.0 {
            let step = self.rate * change.abs();
            self.rate =
                if change * gain > 0.0 { f64::min(self.rate + step, 1.0) } else { f64::max(self.rate - step, 0.001) };
            self.without_hits = 0;
            self.fewer_hits = 0;
        } else if gain < 0.0 || gain == 0.0 && hit_rate == 0.0 {
            self.without_hits += 1;
            if gain < 0.0 {
                self.fewer_hits += 1;
            }
            let again = first_rate(period).clamp(0.001, 1.0);
            if self.without_hits >= 10 {
                self.rate = again;
                self.without_hits = 0;
            } else if gain < 0.0 && self.fewer_hits >= 10 {
                self.rate = again;
                self.fewer_hits = 0;
            } else if gain < 0.0 {
                if self.rate >= 1.0 {
                    self.rate = 0.9;
                } else if self.rate <= 0.001 {
                    self.rate = 0.005;
                } else if self.draw() < 0.5 {
                    self.rate = f64::min(self.rate * 1.25, 1.0);
                } else {
                    self.rate = f64::max(self.rate * 0.75, 0.001);
                }
            }
        }
    }

    fn demoted(&self) -> usize {
        self.known.values().filter(|k| k.demoted).count()
    }

    fn new_in_history(&self) -> usize {
        self.histories[0].iter().filter(|g| g.2).count()
    }

    fn demote_oldest(&mut self) {
        let block = self.s.remove(0);
        self.known.get_mut(&block).expect("it is there").demoted = true;
        self.q.push(block);
    }

    /// After a miss S keeps one place less than it may have.
    fn leave_a_place_in_s(&mut self) {
        while self.s.len() >= self.s_limit && !self.s.is_empty() {
            self.demote_oldest();
        }
    }

    fn punish(&mut self, expert: usize) {
        self.weights[expert] *= (-self.rate).exp();
        let sum = self.weights[0] + self.weights[1];
        self.weights = self.weights.map(|w| (w / sum).clamp(0.01, 0.99));
    }

    fn victim(&mut self, may_evict: MayEvict) -> Option<u64> {
        let recency =
            oldest(&self.q, may_evict).map(|at| self.q[at]).or_else(|| oldest(&self.s, may_evict).map(|at| self.s[at]));
        let candidates = self.known.iter().filter(|(block, _)| may_evict(**block));
        let frequency = candidates.min_by_key(|(_, k)| (k.count, Reverse(k.time))).map(|(block, _)| *block);
        let expert = if self.draw() < self.weights[0] { 0 } else { 1 };
        let block = [recency, frequency][expert]?;
        let known = self.known.remove(&block)?;
        let _ = take(&mut self.s, block) || take(&mut self.q, block);
        if recency != frequency {
            let history = &mut self.histories[expert];
            history.push((block, known.count, known.new));
            if history.len() > self.capacity / 2 {
                history.remove(0);
            }
        }
        Some(block)
    }
}

impl ReferenceModel for Cacheus {
    fn hit(&mut self, block: u64) {
        self.tick();
        self.hits += 1;
        let grown = ratio(self.new_in_history(), self.demoted());
        let known = self.known.get_mut(&block).expect("a hit is on what is there");
        known.count += 1;
        known.time = self.time;
        if take(&mut self.s, block) {
            return self.s.push(block);
        }
        if std::mem::take(&mut known.demoted) {
            self.s_limit = usize::min(self.s_limit + grown, self.capacity - 1);
            self.q_limit = self.capacity - self.s_limit;
        }
        take(&mut self.q, block);
        self.s.push(block);
        // more than one if Q was enlarged by a miss for which no block could go
        while self.s.len() > self.s_limit {
            self.demote_oldest();
        }
    }

    fn miss(&mut self, block: u64, full: bool, may_evict: MayEvict) -> Result<Option<u64>, ()> {
        self.tick();
        let in_history = |g: &Vec<Ghost>| g.iter().position(|g| g.0 == block);
        let ghost = (0..2).find_map(|expert| Some((expert, in_history(&self.histories[expert])?)));
        let ghost = ghost.map(|(expert, at)| (expert, self.histories[expert].remove(at)));
        if let Some((expert, (_, _, new))) = ghost {
            if expert == 0 && new {
                let grown = ratio(self.demoted(), self.new_in_history());
                self.q_limit = usize::min(self.q_limit + grown, self.capacity - 1);
                self.s_limit = self.capacity - self.q_limit;
            }
            self.punish(expert);
        }
        let s_has_room = !full && self.q.is_empty() && self.s.len() < self.s_limit;
        let q_has_room = !full && self.q.len() < self.q_limit;
        let evicted = if full { Some(self.victim(may_evict).ok_or(())?) } else { None };
        let count = ghost.map_or(1, |(_, (_, count, _))| count);
        let new = ghost.is_none() && !s_has_room && !q_has_room;
        self.known.insert(block, Known { count, time: self.time, new, demoted: false });
        if ghost.is_some() || s_has_room { &mut self.s } else { &mut self.q }.push(block);
        if ghost.is_some() || new {
            self.leave_a_place_in_s();
        }
        Ok(evicted)
    }

    fn evict(&mut self, may_evict: MayEvict) -> Option<u64> {
        self.victim(may_evict)
    }

    fn remove(&mut self, block: u64) {
        let _ = take(&mut self.s, block) || take(&mut self.q, block);
        self.known.remove(&block);
        self.histories.iter_mut().for_each(|h| h.retain(|g| g.0 != block));
    }

    fn resize(&mut self, capacity: usize) {
        self.q_limit = match self.capacity {
            0 | 1 => first_q_limit(capacity),
            before => usize::max(1, usize::min(self.q_limit * capacity / before, capacity.saturating_sub(1))),
        };
        self.capacity = capacity;
        self.s_limit = capacity.saturating_sub(self.q_limit);
        self.left = usize::min(self.left, usize::max(capacity, 1));
        self.histories.iter_mut().for_each(|h| _ = h.drain(..h.len().saturating_sub(capacity / 2)));
        while self.s.len() > self.s_limit {
            self.demote_oldest();
        }
    }

    fn coldest_first(&self) -> Vec<u64> {
        [&self.q[..], &self.s].concat()
    }
}
