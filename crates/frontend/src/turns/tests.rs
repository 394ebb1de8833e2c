//! Whose turn it is, beside floods of every kind; that nobody is forgotten, and that parts are equal.
//!
//! Owns clients that cost what they are told to. Asserts the bounds that `turns.rs` states.

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

/// What one step of a long request costs here: more than any does there.
const STEP: i64 = 256 * 1024;

/// Bytes that disks which use their quanta up may have in one turn, beside `light` others.
fn crowd_bytes(light: usize) -> i64 {
    grants(light) as i64 * QUANTUM_BYTES
}

/// A port that has `cost` to do for each request and never runs out, or asks for one small thing per turn.
#[derive(Clone, Copy, Debug)]
struct Client {
    disk: u32,
    request: i64,
    endless: bool,
}

/// Lets the clients run for `turns` turns; calls `see` with each visit's port and cost.
fn run(clients: &[Client], turns: usize, mut see: impl FnMut(u32, i64)) {
    let mut flows: Flows = Flows::default();
    for (port, c) in clients.iter().enumerate() {
        flows.add(c.disk, port as u32);
    }
    for _ in 0..turns {
        let mut turn = flows.begin();
        while let Some((port, left)) = flows.next(&mut turn) {
            assert!(left > 0, "a visit that allows nothing");
            let c = clients[port as usize];
            let mut cost = c.request;
            while c.endless && cost < left {
                cost += c.request;
            }
            see(port, cost);
            flows.done(&mut turn, port, Visit { cost, more: c.endless, stays: true });
        }
    }
}

fn small(disk: u32) -> Client {
    Client { disk, request: REQUEST_BYTES + 4096, endless: false }
}

fn flood(disk: u32, request: i64) -> Client {
    Client { disk, request, endless: true }
}

/// The most that others have between two visits of port 0, once the classes are known.
fn longest_wait(clients: &[Client]) -> i64 {
    let (mut since, mut worst, mut seen) = (0, 0, 0);
    run(clients, 400, |port, cost| {
        if port == 0 {
            seen += 1;
            if seen > 3 {
                worst = worst.max(since);
            }
            since = 0;
        } else {
            since += cost;
        }
    });
    worst
}

#[test]
fn beside_any_flood_a_neighbour_waits_for_one_quantum_and_one_step() {
    let long: Vec<Client> = (0..64).map(|_| flood(1, STEP)).collect();
    let many: Vec<Client> = (0..64).map(|n| flood(1 + n, 64 * 1024 + REQUEST_BYTES)).collect();
    let deep: Vec<Client> = (0..64).map(|_| flood(1, REQUEST_BYTES + 4096)).collect();
    let crowd: Vec<Client> = (0..64).map(|_| small(1)).collect();
    for others in [long, many, deep, crowd] {
        let mut clients = vec![small(0)];
        clients.extend(others);
        let waited = longest_wait(&clients);
        assert!(waited <= crowd_bytes(1) + STEP, "waited for {waited} bytes of {:?}", clients[1]);
    }
}

#[test]
fn a_small_client_of_a_flooded_disk_waits_for_little_more() {
    let mut clients = vec![small(0)];
    clients.extend((0..63).map(|_| flood(0, 64 * 1024 + REQUEST_BYTES)));
    let waited = longest_wait(&clients);
    assert!(waited <= ALONE_QUANTA * QUANTUM_BYTES + 2 * 64 * 1024, "waited for {waited} bytes");
}

#[test]
fn a_thousand_quiet_disks_leave_the_busy_ones_their_part() {
    let mut clients: Vec<Client> = (0..1000).map(small).collect();
    clients.push(flood(1000, 64 * 1024));
    clients.extend((0..100).map(|n| flood(1001 + n, 64 * 1024)));
    let mut had = 0;
    run(&clients, 100, |port, cost| had += if port >= 1000 { cost } else { 0 });
    assert!(had >= 60 * crowd_bytes(1000), "100 turns had {had} bytes for those with much to do");
}

#[test]
fn a_disk_is_lone_once_others_have_been_silent_for_a_period() {
    let mut flows: Flows = Flows::default();
    let run = |flows: &mut Flows, stays| {
        let mut turn = flows.begin();
        while let Some((port, _)) = flows.next(&mut turn) {
            flows.done(&mut turn, port, Visit { cost: 1, more: false, stays });
        }
    };
    flows.add(0, 0);
    assert!(flows.is_lone(0));
    flows.add(1, 1);
    assert!(!flows.is_lone(0) && !flows.is_lone(1));
    run(&mut flows, false);
    flows.add(0, 0);
    flows.tick();
    assert!(!flows.is_lone(0), "the other one had work in the period before");
    flows.tick();
    assert!(flows.is_lone(0) && !flows.is_lone(1));
    run(&mut flows, false);
    flows.add(1, 1);
    assert!(!flows.is_lone(0) && !flows.is_lone(1));
}

#[test]
fn a_disk_beside_one_that_sleeps_a_moment_has_one_quantum() {
    let mut flows: Flows = Flows::default();
    let had = |flows: &mut Flows| {
        let (mut turn, mut most) = (flows.begin(), 0);
        while let Some((port, left)) = flows.next(&mut turn) {
            most = most.max(left);
            flows.done(&mut turn, port, Visit { cost: left, more: port == 0, stays: port == 0 });
        }
        most
    };
    flows.add(0, 0);
    assert_eq!(had(&mut flows), ALONE_QUANTA * QUANTUM_BYTES);
    flows.add(1, 1);
    assert_eq!(had(&mut flows), QUANTUM_BYTES);
    assert!(flows.is_alone(0), "the neighbour sleeps");
    for _ in 0..2 {
        assert_eq!(had(&mut flows), QUANTUM_BYTES, "it would wait for more than one if it woke now");
        flows.tick();
    }
    assert_eq!(had(&mut flows), ALONE_QUANTA * QUANTUM_BYTES, "nobody is expected");
}

#[test]
fn a_port_that_goes_leaves_nothing_behind() {
    let mut flows: Flows = Flows::default();
    for port in 0..8 {
        flows.add(port % 2, port);
    }
    for port in 0..8 {
        flows.remove(port % 2, port);
    }
    assert!(flows.is_empty() && flows.next(&mut flows.begin()).is_none());
    assert!(flows.of.iter().all(|f| !f.listed && f.ports.len() == 0));
}

proptest! {
    /// Disks that never run out have equal parts, whatever their requests are like and however many ports they
    /// have; the ports of one disk nearly so.
    #[test]
    fn equal_parts_by_bytes(disks in prop::collection::vec((1usize..6, 1i64..=STEP), 2..12)) {
        let mut clients = Vec::new();
        for (disk, &(ports, request)) in disks.iter().enumerate() {
            clients.extend((0..ports).map(|_| flood(disk as u32, request)));
        }
        let mut had = vec![0i64; clients.len()];
        let turns = 400 * disks.len();
        // Counted once each port has been visited, and is known to be heavy.
        let mut visits = 0;
        run(&clients, turns, |port, cost| {
            visits += 1;
            had[port as usize] += if visits > 20 * disks.len() { cost } else { 0 };
        });
        let mut of: HashMap<u32, i64> = HashMap::new();
        for (c, had) in clients.iter().zip(&had) {
            *of.entry(c.disk).or_default() += had;
        }
        let (least, most) = (of.values().min().unwrap(), of.values().max().unwrap());
        prop_assert!(most - least <= 4 * (QUANTUM_BYTES + STEP), "{of:?}");
        for (disk, &(_, request)) in disks.iter().enumerate() {
            let of_disk = || clients.iter().zip(&had).filter(|(c, _)| c.disk == disk as u32).map(|(_, &had)| had);
            let (least, most) = (of_disk().min().unwrap(), of_disk().max().unwrap());
            let slack = 4 * (QUANTUM_BYTES + request.max(REQUEST_BYTES));
            prop_assert!(most - least <= slack, "{least} to {most}");
        }
    }

    /// Whatever comes and goes, every port with work is visited, and none that has gone.
    #[test]
    fn nobody_is_forgotten(steps in prop::collection::vec((0u32..24, 0u8..4, 0i64..2 * STEP), 1..300)) {
        let mut flows: Flows = Flows::default();
        let mut awake = [false; 24];
        for (port, what, cost) in steps {
            if !awake[port as usize] {
                flows.add(port % 5, port);
                awake[port as usize] = true;
            } else if what == 0 {
                flows.remove(port % 5, port);
                awake[port as usize] = false;
            }
            let mut turn = flows.begin();
            while let Some((p, _)) = flows.next(&mut turn) {
                prop_assert!(awake[p as usize]);
                let stays = what != 1 || p != port;
                awake[p as usize] = stays;
                flows.done(&mut turn, p, Visit { cost, more: what == 2, stays });
            }
            prop_assert_eq!(flows.is_empty(), !awake.contains(&true));
        }
        let mut seen = [false; 24];
        for _ in 0..2000 {
            let mut turn = flows.begin();
            while let Some((p, _)) = flows.next(&mut turn) {
                seen[p as usize] = true;
                flows.done(&mut turn, p, Visit { cost: 1, more: false, stays: true });
            }
        }
        prop_assert_eq!(seen, awake);
    }
}
