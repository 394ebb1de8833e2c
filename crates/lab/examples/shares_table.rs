//! Controllers side by side on loads of several tenants. `--json`: one line for each row, for plots.
use undercroft_engine::control::Kind;
use undercroft_lab::tenants::{Arm, LabRow, Options, loads, run};

fn main() {
    let json = std::env::args().any(|a| a == "--json");
    let arms = [
        Arm::Strict,
        Arm::Shared,
        Arm::Governed(Kind::Static),
        Arm::Governed(Kind::Donor(1)),
        Arm::Governed(Kind::Donor(2)),
        Arm::Governed(Kind::Donor(3)),
        Arm::Governed(Kind::Donor(4)),
        Arm::Governed(Kind::Paper),
        Arm::Governed(Kind::Utility),
        Arm::KnownCurves,
    ];
    for load in [loads::phased()] {
        let rows: Vec<LabRow> = arms.iter().map(|arm| run(&load, arm, &Options::default())).collect();
        if json {
            rows.iter().for_each(|row| println!("{}", row.json()));
            continue;
        }
        println!("\n## {}: {} blocks, {} requests\n", load.name, load.total, rows[0].requests);
        let phases: Vec<&str> = load.phases.iter().map(|p| p.name).collect();
        println!("| arm | misses | against equal shares | {} | moved |", phases.join(" | "));
        println!("|---|--:|--:|{}--:|", "--:|".repeat(phases.len()));
        for row in &rows {
            let phases: Vec<String> = row.phases.iter().map(|p| p.misses.to_string()).collect();
            println!(
                "| {} | {} | {:+.1} % | {} | {} |",
                row.arm,
                row.misses,
                -100.0 * row.saved_against(&rows[0]),
                phases.join(" | "),
                row.moved_blocks
            );
        }
    }
}
