//! `make sim`: runs the simulation over seeds, for as long as one likes, on all processors; a campaign's results as a
//! file.
//!
//! Owns the loop over seeds. Invariant: a failing seed is printed with the command that replays it.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use undercroft_cache::fault_injection::Bug;
use undercroft_testkit::campaign::{Campaign, NoCampaign};
use undercroft_testkit::{Plan, run};

const HELP: &str = "\
sim: the deterministic simulation of the data path, over many seeds

  --seeds N      how many seeds (default: no end, until Ctrl-C)
  --seconds S    begins no seed after so many seconds
  --start S      the first seed (default: 1, or where the report's campaign stopped)
  --steps K      events of each run (default: 20000)
  --threads T    runs at a time (default: one for each processor)
  --report FILE  writes what was done as Markdown, with steps, rate, faults and coverage; goes on with the campaign
                 if there is one in the file
  --bug NAME     plants a bug, to see it found: one of the names of undercroft_cache::fault_injection::Bug
";

/// How often a report is written while the campaign runs.
const REPORT_EVERY: Duration = Duration::from_secs(60);

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
    seconds: u64,
    start: u64,
    steps: u64,
    threads: usize,
    bug: Option<Bug>,
    report: Option<String>,
    before: Campaign,
}

/// What is wrong with the command line.
#[derive(Debug, thiserror::Error)]
enum UsageError {
    #[error("{0} needs a value")]
    NoValue(String),
    #[error("{flag} needs a number, not \"{value}\"")]
    NoNumber { flag: String, value: String },
    #[error("no bug is called \"{0}\"; there are {bugs:?}", bugs = Bug::ALL)]
    NoBug(String),
    #[error("unknown option {0}")]
    Unknown(String),
    #[error("{file}: {source}; name another file, or remove it")]
    Report { file: String, source: NoCampaign },
    #[error("{file} has a campaign with {steps} steps a run that goes on with seed {seed}")]
    OtherCampaign { file: String, steps: u64, seed: u64 },
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Option<Options>, UsageError> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (mut start, mut steps) = (None, None);
    let mut o = Options {
        seeds: u64::MAX,
        seconds: u64::MAX,
        start: 1,
        steps: 20_000,
        threads,
        bug: None,
        report: None,
        before: Campaign::default(),
    };
    while let Some(flag) = args.next() {
        if flag == "--help" || flag == "-h" {
            return Ok(None);
        }
        let value = args.next().ok_or_else(|| UsageError::NoValue(flag.clone()))?;
        let number = || {
            let not = |_| UsageError::NoNumber { flag: flag.clone(), value: value.clone() };
            value.parse::<u64>().map_err(not)
        };
        match flag.as_str() {
            "--seeds" => o.seeds = number()?,
            "--seconds" => o.seconds = number()?,
            "--start" => start = Some(number()?),
            "--steps" => steps = Some(number()?),
            "--threads" => o.threads = number()?.clamp(1, 1024) as usize,
            "--report" => o.report = Some(value),
            "--bug" => {
                let bug = Bug::ALL.into_iter().find(|b| format!("{b:?}").eq_ignore_ascii_case(&value));
                o.bug = Some(bug.ok_or(UsageError::NoBug(value))?);
            }
            _ => return Err(UsageError::Unknown(flag)),
        }
    }
    if let Some(file) = &o.report
        && let Ok(text) = std::fs::read_to_string(file)
    {
        o.before = Campaign::parse(&text).map_err(|source| UsageError::Report { file: file.clone(), source })?;
        let (next, of) = (o.before.next_seed, o.before.steps_of_run);
        if start.is_some_and(|s| s != next) || steps.is_some_and(|s| s != of) {
            return Err(UsageError::OtherCampaign { file: file.clone(), steps: of, seed: next });
        }
        (start, steps) = (Some(next), Some(of));
    }
    (o.start, o.steps) = (start.unwrap_or(1), steps.unwrap_or(20_000));
    Ok(Some(o))
}

/// What the seeds that are done come to. A campaign goes on after the last seed below which all are done.
struct Progress {
    all: Campaign,
    /// Seeds done past the next one.
    ahead: Vec<u64>,
    written: Instant,
}

impl Progress {
    fn done(&mut self, seed: u64) {
        self.ahead.push(seed);
        while let Some(at) = self.ahead.iter().position(|&s| s == self.all.next_seed) {
            self.ahead.swap_remove(at);
            self.all.next_seed += 1;
        }
    }
}

fn simulate(o: &Options) -> ExitCode {
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let began = Instant::now();
    let mut all = o.before.clone();
    (all.next_seed, all.steps_of_run) = (o.start, o.steps);
    all.goes_on_with(&program());
    let progress = Mutex::new(Progress { all, ahead: Vec::new(), written: began });
    // A line that is written over and over is for people; a log gets the last one.
    let shows = std::io::stderr().is_terminal();
    let work = || {
        while !stop.load(Ordering::Relaxed) && began.elapsed().as_secs() < o.seconds {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= o.seeds {
                return None;
            }
            let seed = o.start.wrapping_add(n);
            let outcome = run(Plan { seed, steps: o.steps, bug: o.bug });
            let mut p = progress.lock().unwrap_or_else(|e| e.into_inner());
            p.all.core_ns = o.before.core_ns + processor_ns(began, o.threads);
            match outcome {
                Ok(outcome) => {
                    p.all.add(&outcome);
                    p.done(seed);
                    if shows && n.is_multiple_of(16) {
                        let (seeds, steps) = (p.all.seeds, p.all.outcome.steps);
                        eprint!("\r{seeds} seeds, {steps} steps, {}s, nothing wrong ", began.elapsed().as_secs());
                        let _ = std::io::stderr().flush();
                    }
                    if p.written.elapsed() > REPORT_EVERY {
                        p.written = Instant::now();
                        write(o, &p.all);
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
    let failed = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..o.threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().filter_map(|t| t.join().ok().flatten()).min_by_key(|f| f.0)
    });
    let all = progress.into_inner().unwrap_or_else(|e| e.into_inner()).all;
    eprint!("\r");
    println!("{}", all.summary());
    let written = write(o, &all);
    match failed {
        Some((seed, what)) => {
            println!("FAILED {what}");
            println!(
                "replay: cargo run --release -p undercroft-testkit --bin sim -- --start {seed} --seeds 1 --steps {}",
                o.steps
            );
            ExitCode::FAILURE
        }
        None if !written => ExitCode::FAILURE,
        None => ExitCode::SUCCESS,
    }
}

/// Which program this is: the commit that is checked out and its day, and whether something is changed.
fn program() -> String {
    let said = |words: &[&str]| {
        let done = std::process::Command::new("git").args(words).output().ok().filter(|done| done.status.success())?;
        String::from_utf8(done.stdout).ok().map(|text| text.trim().to_string())
    };
    let commit = said(&["log", "-1", "--abbrev=10", "--format=%h of %cs"]);
    let changed = said(&["status", "--porcelain", "--untracked-files=no"]).is_none_or(|text| !text.is_empty());
    commit.map_or("unknown".into(), |commit| commit + if changed { " and changes" } else { "" })
}

/// Nanoseconds that processors have spent on this program; without /proc, as if its threads had never waited for one.
fn processor_ns(began: Instant, threads: usize) -> u128 {
    // proc_pid_stat(5): fields 14 and 15, in ticks of a hundredth of a second, counted behind the name in brackets.
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let ticks = stat
        .rsplit_once(')')
        .map(|(_, rest)| rest.split_whitespace().skip(11).take(2).flat_map(str::parse::<u128>).sum());
    ticks.map_or(began.elapsed().as_nanos() * threads as u128, |t: u128| t * 10_000_000)
}

/// Writes the report, if one is wanted. False if that failed.
fn write(o: &Options, all: &Campaign) -> bool {
    let Some(file) = &o.report else { return true };
    let part = format!("{file}.part");
    let done = std::fs::write(&part, all.report()).and_then(|()| std::fs::rename(&part, file));
    if let Err(e) = &done {
        eprintln!("sim: {file} cannot be written: {e}");
    }
    done.is_ok()
}
