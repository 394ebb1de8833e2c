//! Controllers side by side on loads of several tenants. `--json`: one line for each row, for plots; `--policy NAME`:
//! another replacement policy than LRU.
use undercroft_engine::control::{ControllerKind, UtilitySettings};
use undercroft_engine::{AnyPolicyKind, LruCurveOptions, MeterOptions, PolicyCurveOptions, PolicyKind};
use undercroft_study::sim::tenants::{Arm, ArmOptions, LabRow, Trace, loads, run};

/// What a hit and a miss take, for mean times: a copy from RAM, a read of an SSD behind a network.
const TIMES_US: (f64, f64) = (20.0, 500.0);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let json = arguments.iter().any(|a| a == "--json");
    let policy = match arguments.iter().position(|a| a == "--policy").map(|at| arguments.get(at + 1)) {
        None => AnyPolicyKind::from(PolicyKind::Lru),
        Some(name) => match name.map(|n| n.parse()) {
            Some(Ok(policy)) => policy,
            _ => {
                eprintln!("--policy takes the name of a replacement policy: lru, car, s3-fifo ...");
                std::process::exit(2);
            }
        },
    };
    // A curve of stack distances is LRU's alone; of another policy the engine's meters simulate it, here without
    // sampling.
    let meters = arguments.iter().any(|a| a == "--meters").then(|| MeterOptions {
        lru: LruCurveOptions { rate_max: 1.0, samples_max: 1 << 16, ..LruCurveOptions::default() },
        policy: PolicyCurveOptions { rates_sum_max: 6.0, slots_max: 1 << 16, ..PolicyCurveOptions::default() },
        ..MeterOptions::default()
    });
    let options = ArmOptions { policy, meters, ..ArmOptions::default() };
    let arms = [
        Arm::Strict,
        Arm::Shared,
        Arm::Governed(ControllerKind::Static),
        Arm::LiteralDonor(1),
        Arm::LiteralDonor(2),
        Arm::LiteralDonor(3),
        Arm::LiteralDonor(4),
        Arm::Governed(ControllerKind::Donor(1)),
        Arm::Governed(ControllerKind::Donor(4)),
        Arm::LiteralPaper,
        Arm::Governed(ControllerKind::Paper),
        Arm::Utility(UtilitySettings::default()),
        Arm::Governed(ControllerKind::Utility),
        Arm::KnownCurves,
    ];
    for load in loads::all() {
        let load = Trace::new(load);
        let rows: Vec<LabRow> = arms.iter().map(|arm| run(&load, arm, &options)).collect();
        if json {
            rows.iter().for_each(|row| println!("{}", row.json()));
        } else {
            table(&load, &rows);
        }
    }
}

/// One load as a Markdown table.
fn table(load: &Trace, rows: &[LabRow]) {
    let load = &load.load;
    println!("\n## {}: {} blocks, {} requests, {}\n", load.name, load.total, rows[0].requests, rows[0].policy);
    // a load of many short phases is told as a whole
    let phases = if load.phases.len() <= 6 { load.phases.len() } else { 0 };
    let names: Vec<String> = load.phases[..phases].iter().map(|p| format!("{} |", p.name)).collect();
    let tenants: Vec<String> = load.tenants.iter().map(|t| format!("{t}: hits, mean us |")).collect();
    println!("| arm | misses | against equal shares | {} {} moved |", names.join(" "), tenants.join(" "));
    println!("|---|--:|--:|{}--:|", "--:|".repeat(names.len() + tenants.len()));
    for row in rows {
        let misses: Vec<String> = row.phases[..phases].iter().map(|p| format!("{} |", p.misses)).collect();
        let tenants: Vec<String> = row
            .tenants
            .iter()
            .map(|t| format!("{:.1} %, {:.0} |", 100.0 * t.hit_ratio(), t.mean_us(TIMES_US.0, TIMES_US.1)))
            .collect();
        println!(
            "| {} | {} | {:+.1} % | {} {} {} |",
            row.arm,
            row.misses,
            -100.0 * row.saved_against(&rows[0]),
            misses.join(" "),
            tenants.join(" "),
            row.moved_blocks
        );
    }
}
