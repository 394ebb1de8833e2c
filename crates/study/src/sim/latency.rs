//! The time that accesses would have taken: devices with service times and queues.
//!
//! Owns the queues and the clock of the simulation. Never decides a hit: it is given the steps of each access.
//! Invariant: time never goes back, and requests reach a device in the order in which they are served there.
//!
//! The model. Every level of a hierarchy, and the disk, is a station with `channels` servers and one queue, first come
//! first served. An access is its steps, one after the other: an awaited step enters its station's queue when the one
//! before has ended, and the client has its answer when the last one ended; a step that nobody awaits (a fill, a block
//! handed down, a write-back) enters its queue at the same moment, takes a server like any other, and delays only those
//! behind it. What a hit or miss is does not depend on time: caches see accesses in the trace's order. Requests arrive
//! when the trace says (at any speed), at a rate of their own, or when one of a fixed number before has ended.

use crate::sim::hierarchy::DeviceStep;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use undercroft_units::LatencyCounts;

/// How service times vary about their mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spread {
    /// Not at all.
    #[default]
    Fixed,
    /// Exponentially.
    Exponential,
}

/// A level's, or the disk's, device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Nanoseconds of a read, on average.
    pub read_ns: u64,
    /// Nanoseconds of a write, on average.
    pub write_ns: u64,
    /// How these vary.
    pub spread: Spread,
    /// Requests that it serves at a time; at least 1.
    pub channels: u32,
}

/// When requests come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// When the trace says, so many times faster.
    Trace(f64),
    /// At random, so many a second on average (a Poisson process).
    Random(f64),
    /// Whenever fewer than so many are under way.
    Closed(u32),
}

/// Times of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Times {
    /// Requests.
    pub requests: u64,
    /// Nanoseconds on average.
    pub mean_ns: f64,
    /// Half of them took no longer; to three digits, as the others.
    pub p50_ns: u64,
    /// 99 of 100 took no longer.
    pub p99_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

impl Times {
    fn of(all: &LatencyCounts) -> Self {
        Times {
            requests: all.count(),
            mean_ns: all.mean_ns(),
            p50_ns: all.quantile_ns(0.5),
            p99_ns: all.quantile_ns(0.99),
            max_ns: all.quantile_ns(1.0),
        }
    }
}

/// The times of a whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LatencyReport {
    /// Of reads.
    pub reads: Times,
    /// Of writes.
    pub writes: Times,
    /// Requests a second, from the first's arrival to the last's end.
    pub per_second: f64,
    /// Part of the time that each device's channels were at work; the disk's is the last.
    pub busy: Vec<f64>,
    /// Seconds from the first arrival to the last end.
    pub seconds: f64,
}

/// A generator with a seed: SplitMix64 (Steele, Lea and Flood 2014).
#[derive(Clone, Copy, Debug)]
struct Chance(u64);

impl Chance {
    /// In (0, 1].
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) >> 11) as f64 / (1u64 << 53) as f64 + f64::EPSILON / 2.0
    }

    fn exponential(&mut self, mean: f64) -> u64 {
        (-self.unit().ln() * mean).round() as u64
    }
}

struct Station {
    device: Device,
    /// When each channel is free.
    free: BinaryHeap<Reverse<u64>>,
    busy_ns: u128,
}

/// A request under way.
#[derive(Default)]
struct Flight {
    steps: Vec<DeviceStep>,
    next: usize,
    came_ns: u64,
    write: bool,
}

/// The simulated devices, and the requests that are under way in them.
pub struct Queues {
    stations: Vec<Station>,
    arrivals: Arrivals,
    chance: Chance,
    flights: Vec<Flight>,
    unused: Vec<usize>,
    /// When a flight's next step begins to wait; then in the order in which they were put here.
    events: BinaryHeap<Reverse<(u64, u64, usize)>>,
    put: u64,
    now_ns: u64,
    came_ns: u64,
    first_trace_ns: Option<u64>,
    under_way: u32,
    collected: [LatencyCounts; 2],
    last_end_ns: u64,
    first_ns: Option<u64>,
}

impl Queues {
    /// Idle devices, those of the levels and at last the disk's.
    pub fn new(devices: &[Device], arrivals: Arrivals, seed: u64) -> Self {
        let station = |&device: &Device| Station {
            device,
            free: (0..device.channels.max(1)).map(|_| Reverse(0)).collect(),
            busy_ns: 0,
        };
        Self {
            stations: devices.iter().map(station).collect(),
            arrivals,
            chance: Chance(seed),
            flights: vec![],
            unused: vec![],
            events: BinaryHeap::new(),
            put: 0,
            now_ns: 0,
            came_ns: 0,
            first_trace_ns: None,
            under_way: 0,
            collected: [LatencyCounts::default(), LatencyCounts::default()],
            last_end_ns: 0,
            first_ns: None,
        }
    }

    /// The next request of the trace, and its steps. Steps of devices that there are not are left out.
    pub fn offer(&mut self, trace_ns: u64, write: bool, steps: &[DeviceStep]) {
        let came_ns = match self.arrivals {
            Arrivals::Trace(speed) => {
                let first = *self.first_trace_ns.get_or_insert(trace_ns);
                ((trace_ns.saturating_sub(first)) as f64 / speed) as u64
            }
            Arrivals::Random(per_second) => self.came_ns + self.chance.exponential(1e9 / per_second),
            Arrivals::Closed(depth) => {
                while self.under_way >= depth.max(1) && self.advance() {}
                self.now_ns
            }
        };
        self.came_ns = came_ns.max(self.came_ns);
        while self.events.peek().is_some_and(|Reverse((at, ..))| *at <= self.came_ns) && self.advance() {}
        self.now_ns = self.now_ns.max(self.came_ns);
        self.first_ns.get_or_insert(self.came_ns);
        let flight = self.unused.pop().unwrap_or_else(|| {
            self.flights.push(Flight::default());
            self.flights.len() - 1
        });
        let f = &mut self.flights[flight];
        f.steps.clear();
        f.steps.extend(steps.iter().filter(|s| s.device < self.stations.len()));
        (f.next, f.came_ns, f.write) = (0, self.came_ns, write);
        self.under_way += 1;
        self.put(self.came_ns, flight);
    }

    fn put(&mut self, at_ns: u64, flight: usize) {
        self.put += 1;
        self.events.push(Reverse((at_ns, self.put, flight)));
    }

    /// The next thing that happens; false if nothing is under way.
    fn advance(&mut self) -> bool {
        let Some(Reverse((now_ns, _, flight))) = self.events.pop() else { return false };
        self.now_ns = now_ns;
        loop {
            let f = &mut self.flights[flight];
            let Some(&step) = f.steps.get(f.next) else {
                let took_ns = now_ns - f.came_ns;
                self.collected[usize::from(f.write)].record(took_ns);
                self.last_end_ns = now_ns;
                self.under_way -= 1;
                self.unused.push(flight);
                return true;
            };
            f.next += 1;
            // A step that nobody waits for must not delay the answer.
            let end_ns = self.serve(step, now_ns);
            if step.awaited && end_ns > now_ns {
                self.put(end_ns, flight);
                return true;
            }
        }
    }

    /// Puts a step into its station's queue; when it ends.
    fn serve(&mut self, step: DeviceStep, now_ns: u64) -> u64 {
        let station = &mut self.stations[step.device];
        let mean = if step.write { station.device.write_ns } else { station.device.read_ns };
        let takes = match station.device.spread {
            Spread::Fixed => mean,
            Spread::Exponential => self.chance.exponential(mean as f64),
        };
        let free = station.free.pop().map_or(0, |Reverse(at)| at);
        let end = now_ns.max(free).saturating_add(takes);
        station.free.push(Reverse(end));
        station.busy_ns += u128::from(takes);
        end
    }

    /// Lets everything end.
    pub fn finish(mut self) -> LatencyReport {
        while self.advance() {}
        let span_ns = self.last_end_ns.saturating_sub(self.first_ns.unwrap_or(0));
        let requests = self.collected.iter().map(LatencyCounts::count).sum::<u64>();
        let last_end_ns = self.last_end_ns;
        let part = |s: &Station| {
            let there = u128::from(span_ns) * u128::from(s.device.channels.max(1));
            // What is still to be done for nobody after the last answer is not part of that time. From the answer on, a
            // channel works without a pause until it is free.
            let after: u128 = s.free.iter().map(|Reverse(at)| u128::from(at.saturating_sub(last_end_ns))).sum();
            if there == 0 { 0.0 } else { s.busy_ns.saturating_sub(after) as f64 / there as f64 }
        };
        LatencyReport {
            reads: Times::of(&self.collected[0]),
            writes: Times::of(&self.collected[1]),
            per_second: if span_ns == 0 { 0.0 } else { requests as f64 * 1e9 / span_ns as f64 },
            busy: self.stations.iter().map(part).collect(),
            seconds: span_ns as f64 / 1e9,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: DeviceStep = DeviceStep { device: 0, write: false, awaited: true };

    fn device(read_ns: u64, channels: u32, spread: Spread) -> Device {
        Device { read_ns, write_ns: read_ns, spread, channels }
    }

    fn reads(devices: &[Device], arrivals: Arrivals, n: usize, steps: &[DeviceStep]) -> LatencyReport {
        let mut queues = Queues::new(devices, arrivals, 11);
        (0..n).for_each(|_| queues.offer(0, false, steps));
        queues.finish()
    }

    #[track_caller]
    fn about(found: f64, expected: f64, part: f64) {
        assert!((found / expected - 1.0).abs() < part, "{found}, not {expected}");
    }

    #[test]
    fn one_exponential_server_is_an_m_m_1_queue() {
        // mu 10,000/s; sojourn times are exponential with mean 1 / (mu - lambda).
        for load in [0.3, 0.5, 0.8] {
            let device = [device(100_000, 1, Spread::Exponential)];
            let r = reads(&device, Arrivals::Random(10_000.0 * load), 400_000, &[READ]);
            let mean = 1e9 / (10_000.0 * (1.0 - load));
            about(r.reads.mean_ns, mean, 0.03);
            about(r.reads.p50_ns as f64, mean * std::f64::consts::LN_2, 0.03);
            about(r.reads.p99_ns as f64, mean * 100f64.ln(), 0.05);
            about(r.busy[0], load, 0.01);
            about(r.per_second, 10_000.0 * load, 0.01);
        }
    }

    #[test]
    fn a_fixed_server_is_an_m_d_1_queue_and_two_in_a_row_are_served_in_turn() {
        // Pollaczek and Khinchine: the wait is load / (2 (1 - load)) services.
        let r = reads(&[device(100_000, 1, Spread::Fixed)], Arrivals::Random(6000.0), 400_000, &[READ]);
        about(r.reads.mean_ns, 100_000.0 * (1.0 + 0.6 / (2.0 * 0.4)), 0.03);
        // Jackson: exponential servers one after the other are M/M/1 queues each.
        let both = [device(100_000, 1, Spread::Exponential), device(50_000, 1, Spread::Exponential)];
        let second = DeviceStep { device: 1, ..READ };
        let r = reads(&both, Arrivals::Random(6000.0), 400_000, &[READ, second]);
        about(r.reads.mean_ns, 1e9 / (10_000.0 - 6000.0) + 1e9 / (20_000.0 - 6000.0), 0.03);
    }

    #[test]
    fn several_channels_are_an_m_m_c_queue() {
        // Erlang C for c = 2, a = 1.5 offered: 0.6428571 wait; mean wait C / (c mu - lambda).
        let r = reads(&[device(100_000, 2, Spread::Exponential)], Arrivals::Random(15_000.0), 400_000, &[READ]);
        about(r.reads.mean_ns, 100_000.0 + 0.642_857_1 * 1e9 / (20_000.0 - 15_000.0), 0.03);
    }

    #[test]
    fn a_closed_loop_waits_for_those_before() {
        for (depth, channels, time, per_second) in
            [(1, 1, 100_000, 1e4), (4, 1, 400_000, 1e4), (4, 4, 100_000, 4e4), (2, 4, 100_000, 2e4)]
        {
            let r = reads(&[device(100_000, channels, Spread::Fixed)], Arrivals::Closed(depth), 10_000, &[READ]);
            about(r.reads.mean_ns, f64::from(time), 0.001);
            about(r.per_second, per_second, 0.001);
        }
    }

    #[test]
    fn what_nobody_awaits_delays_only_those_behind_it() {
        let devices = [device(10, 1, Spread::Fixed), device(1000, 1, Spread::Fixed)];
        let fill = DeviceStep { device: 1, write: true, awaited: false };
        let mut queues = Queues::new(&devices, Arrivals::Trace(1.0), 1);
        queues.offer(0, false, &[READ, fill]);
        queues.offer(100, false, &[DeviceStep { device: 1, ..READ }]);
        queues.offer(5000, true, &[DeviceStep { device: 0, write: true, awaited: true }]);
        let r = queues.finish();
        // The first has its answer after 10 ns; its fill then takes 10..1010, the second waits for that.
        assert_eq!((r.reads.requests, r.reads.max_ns, r.reads.mean_ns), (2, 1910, (10.0 + 1910.0) / 2.0));
        assert_eq!((r.writes.requests, r.writes.max_ns), (1, 10));
        assert_eq!(r.seconds, 5010e-9);
    }

    #[test]
    fn speed_moves_arrivals_together_and_time_does_not_go_back() {
        let mut queues = Queues::new(&[device(100, 1, Spread::Fixed)], Arrivals::Trace(10.0), 1);
        for ns in [5_000, 6_000, 5_500, 7_000] {
            queues.offer(ns, false, &[READ]);
        }
        let r = queues.finish();
        // They come at 0, 100, 100, 200: the third waits 100, and the fourth behind it.
        assert_eq!((r.reads.max_ns, r.reads.mean_ns), (200, (100.0 + 100.0 + 200.0 + 200.0) / 4.0));
    }

    #[test]
    fn nothing_is_busy_for_longer_than_it_is_looked_at() {
        // Answers come after 1 ms; what is written for nobody takes 20 ms each.
        let slow = Device { write_ns: 20_000_000, ..device(80_000, 1, Spread::Fixed) };
        let disk = device(1_000_000, 1, Spread::Fixed);
        let steps = [DeviceStep { device: 1, ..READ }, DeviceStep { device: 0, write: true, awaited: false }];
        let report = reads(&[slow, disk], Arrivals::Closed(1), 200, &steps);
        about(report.busy[0], 1.0, 0.02);
        about(report.busy[1], 1.0, 0.001);
        assert!(report.busy[0] <= 1.0, "{:?}", report.busy);
    }
}
