//! `make sim`: runs the simulation over seeds, for as long as one likes, on all processors.
//!
//! Owns the loop over seeds. Invariant: a failing seed is printed with the command that replays it.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;
use undercroft_cache::plant::Bug;
use undercroft_testkit::{Plan, run};

const HELP: &str = "\
sim: the deterministic simulation of the data path, over many seeds

  --seeds N    how many seeds (default: no end, until Ctrl-C)
  --start S    the first seed (default: 1)
  --steps K    events of each run (default: 20000)
  --threads T  runs at a time (default: one for each processor)
  --bug NAME   plants a bug, to see it found: one of the names of undercroft_cache::plant::Bug
";

fn main() -> ExitCode {
    match parse(std::env::args().skip(1)) {
        Ok(Some(o)) => simulate(&o),
        Ok(None) => {
            print!("{HELP}");
            ExitCode::SUCCESS
        }
        Err(what) => {
            eprintln!("sim: {what}\n\n{HELP}");
            ExitCode::from(2)
        }
    }
}

struct Options {
    seeds: u64,
    start: u64,
    steps: u64,
    threads: usize,
    bug: Option<Bug>,
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Option<Options>, String> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut o = Options { seeds: u64::MAX, start: 1, steps: 20_000, threads, bug: None };
    while let Some(flag) = args.next() {
        if flag == "--help" || flag == "-h" {
            return Ok(None);
        }
        let value = args.next().ok_or_else(|| format!("{flag} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{flag} needs a number, not \"{value}\""));
        match flag.as_str() {
            "--seeds" => o.seeds = number()?,
            "--start" => o.start = number()?,
            "--steps" => o.steps = number()?,
            "--threads" => o.threads = number()?.clamp(1, 1024) as usize,
            "--bug" => {
                let bug = Bug::ALL.into_iter().find(|b| format!("{b:?}").eq_ignore_ascii_case(&value));
                o.bug = Some(bug.ok_or_else(|| format!("no bug is called \"{value}\"; there are {:?}", Bug::ALL))?);
            }
            _ => return Err(format!("unknown option {flag}")),
        }
    }
    Ok(Some(o))
}

fn simulate(o: &Options) -> ExitCode {
    let (next, answers, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let began = Instant::now();
    // A line that is written over and over is for people; a log gets the last one.
    let shows = std::io::stderr().is_terminal();
    let failed = std::thread::scope(|scope| {
        let work = || {
            while !stop.load(Ordering::Relaxed) {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= o.seeds {
                    return None;
                }
                let seed = o.start.wrapping_add(n);
                match run(Plan { seed, steps: o.steps, bug: o.bug }) {
                    Ok(outcome) => {
                        let all = answers.fetch_add(outcome.answers, Ordering::Relaxed) + outcome.answers;
                        if shows && n.is_multiple_of(16) {
                            let s = began.elapsed().as_secs();
                            eprint!("\r{} seeds, {all} requests answered, {s}s, nothing wrong ", n + 1);
                            let _ = std::io::stderr().flush();
                        }
                    }
                    Err(what) => {
                        stop.store(true, Ordering::Relaxed);
                        return Some((seed, what));
                    }
                }
            }
            None
        };
        let threads: Vec<_> = (0..o.threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().filter_map(|t| t.join().ok().flatten()).min_by_key(|f| f.0)
    });
    let (seeds, s) = (next.load(Ordering::Relaxed).min(o.seeds), began.elapsed().as_secs());
    eprintln!("\r{seeds} seeds, {} requests answered, {s}s          ", answers.load(Ordering::Relaxed));
    match failed {
        Some((seed, what)) => {
            println!("FAILED {what}");
            println!(
                "replay: cargo run --release -p undercroft-testkit --bin sim -- --start {seed} --seeds 1 --steps {}",
                o.steps
            );
            ExitCode::FAILURE
        }
        None => ExitCode::SUCCESS,
    }
}
