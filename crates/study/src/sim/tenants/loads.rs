//! The loads of the experiments.
//!
//! Owns their numbers, each with what it stands for. Never runs anything.

use super::load::{BlockPattern, Mix, Phase, TenantActivity, TenantLoad};

/// Blocks of the cache in the phased load: a quantum of the donor rule is then 128.
const TOTAL: u32 = 6144;

fn act(rate: u32, mix: Mix) -> TenantActivity {
    TenantActivity { rate, mix }
}

/// A file server: files read from begin to end, some again and again, some once.
fn file(rate: u32, blocks: u32) -> TenantActivity {
    act(
        rate,
        vec![
            (500, BlockPattern::Zipf { first: 0, blocks, alpha: 0.6 }),
            (350, BlockPattern::Uniform { first: 0, blocks }),
            (150, BlockPattern::Once),
        ],
    )
}

/// A web server: popular pages, and a tail.
fn web(rate: u32, blocks: u32) -> TenantActivity {
    act(rate, vec![(930, BlockPattern::Zipf { first: 0, blocks, alpha: 0.7 }), (70, BlockPattern::Once)])
}

/// A database: a hot index, tables read at random, a log.
fn database(rate: u32, blocks: u32) -> TenantActivity {
    act(
        rate,
        vec![
            (250, BlockPattern::Uniform { first: 0, blocks: blocks / 16 }),
            (650, BlockPattern::Uniform { first: 0, blocks }),
            (100, BlockPattern::Once),
        ],
    )
}

/// The three servers of the thin-provisioning thesis (sections 3.6 and 6.1): a file, a web and a database server, each
/// under heavy load while the others are nearly idle (databases by day, backups by night), with times when two are
/// busy.
pub fn phased() -> TenantLoad {
    let phase = |name, f: (u32, u32), w: (u32, u32), d: (u32, u32)| Phase {
        name,
        intervals: 160,
        activities: vec![file(f.0, f.1), web(w.0, w.1), database(d.0, d.1)],
    };
    TenantLoad {
        name: "phased".into(),
        total: TOTAL,
        tenants: vec!["file".into(), "web".into(), "database".into()],
        phases: vec![
            phase("database", (25, 400), (50, 300), (1000, 5000)),
            phase("web", (25, 400), (1000, 6000), (50, 400)),
            phase("file", (1000, 5000), (50, 300), (50, 400)),
            phase("database and web", (25, 400), (900, 3000), (900, 3000)),
        ],
        bursts: false,
    }
}

/// The first case of the paper on derivative clouds (section 2.2): a VM of low locality and a high rate (two requests
/// for each of the other's) beside one of high locality, scheduled in turn; ten times its 100 blocks.
pub fn locality() -> TenantLoad {
    TenantLoad {
        name: "locality".into(),
        total: 1000,
        tenants: vec!["low".into(), "high".into()],
        phases: vec![Phase {
            name: "all",
            intervals: 200,
            activities: vec![
                act(1000, vec![(100, BlockPattern::Uniform { first: 0, blocks: 50 }), (900, BlockPattern::Once)]),
                act(500, vec![(1000, BlockPattern::Uniform { first: 0, blocks: 900 })]),
            ],
        }],
        bursts: true,
    }
}

/// All tenants busy with the same load: no division is better than equal parts.
pub fn all_heavy() -> TenantLoad {
    let busy = || web(600, 5000);
    TenantLoad {
        name: "all heavy".into(),
        total: TOTAL,
        tenants: vec!["a".into(), "b".into(), "c".into()],
        phases: vec![Phase { name: "all", intervals: 150, activities: vec![busy(), busy(), busy()] }],
        bursts: false,
    }
}

/// Two tenants that are busy in turn for `stretch` of `intervals` intervals, each coming back to the same blocks, which
/// fit into an equal share: a controller that takes an idle tenant's blocks makes it read them again.
pub(crate) fn in_turn(name: &'static str, stretch: u32, intervals: u32) -> TenantLoad {
    taking_turns(name, stretch, intervals, 10)
}

/// The same, but the tenant whose turn it is not sends no request at all.
pub(crate) fn silent_in_turn(name: &'static str, stretch: u32, intervals: u32) -> TenantLoad {
    taking_turns(name, stretch, intervals, 0)
}

fn taking_turns(name: &'static str, stretch: u32, intervals: u32, idle: u32) -> TenantLoad {
    let busy =
        |rate| act(rate, vec![(900, BlockPattern::Uniform { first: 0, blocks: 2800 }), (100, BlockPattern::Once)]);
    let larger = |rate| {
        act(rate, vec![(900, BlockPattern::Zipf { first: 0, blocks: 8000, alpha: 0.7 }), (100, BlockPattern::Once)])
    };
    let turn = |a, b| Phase { name: "in turn", intervals: stretch, activities: vec![busy(a), larger(b)] };
    let phases =
        (0..intervals / stretch).map(|i| if i % 2 == 0 { turn(1000, idle) } else { turn(idle, 1000) }).collect();
    TenantLoad { name: name.into(), total: TOTAL, tenants: vec!["fits".into(), "larger".into()], phases, bursts: false }
}

/// Loops beside a Zipf load: a loop misses everything until all of it fits. One fits into half of the cache, one never
/// does.
pub(crate) fn loops() -> TenantLoad {
    TenantLoad {
        name: "loops".into(),
        total: TOTAL,
        tenants: vec!["small loop".into(), "large loop".into(), "popular".into()],
        phases: vec![Phase {
            name: "all",
            intervals: 200,
            activities: vec![
                act(500, vec![(1000, BlockPattern::Loop { first: 0, blocks: 3000 })]),
                act(500, vec![(1000, BlockPattern::Loop { first: 0, blocks: 9000 })]),
                web(500, 4000),
            ],
        }],
        bursts: false,
    }
}

/// A tenant that reads everything once beside two that come back to theirs.
pub fn stream() -> TenantLoad {
    TenantLoad {
        name: "stream".into(),
        total: TOTAL,
        tenants: vec!["stream".into(), "web".into(), "database".into()],
        phases: vec![Phase {
            name: "all",
            intervals: 200,
            activities: vec![act(1500, vec![(1000, BlockPattern::Once)]), web(400, 4000), database(400, 4000)],
        }],
        bursts: false,
    }
}

/// Every load.
pub fn all() -> Vec<TenantLoad> {
    vec![
        phased(),
        locality(),
        all_heavy(),
        in_turn("in turn, 2 intervals", 2, 200),
        in_turn("in turn, 8 intervals", 8, 200),
        in_turn("in turn, 40 intervals", 40, 320),
        silent_in_turn("silent in turn, 1 interval", 1, 200),
        silent_in_turn("silent in turn, 8 intervals", 8, 200),
        loops(),
        stream(),
    ]
}
