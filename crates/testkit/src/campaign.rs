//! A campaign: many runs, what they come to, and the file that keeps it.
//!
//! Owns the numbers and how they are written and read again. Never runs anything. Invariant: a file that was written is
//! read back as the same campaign, so that it can go on.

use crate::coverage::{COLUMNS, RARE, ROWS};
use crate::outcome::Outcome;
use std::fmt::Write;

/// See the head of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Campaign {
    /// Runs that found nothing wrong.
    pub seeds: u64,
    /// The seed to go on with: all below it, from the campaign's first on, are done.
    pub next_seed: u64,
    /// Events of each run.
    pub steps_of_run: u64,
    /// Nanoseconds that processors spent on them.
    pub core_ns: u128,
    /// What the runs come to.
    pub outcome: Outcome,
    /// The programs that ran, the first one first: commit and its day. Without spaces at the end, commas or `-->`.
    pub programs: Vec<String>,
}

/// Mark the lines of the report that a campaign is read from.
const STATE: &str = "<!-- state: ";
const PROGRAMS: &str = "<!-- programs: ";

/// Why a document has no campaign that could go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCampaign {
    /// It has none.
    #[error("there is no campaign in it")]
    Missing,
    /// It is not numbers.
    #[error("its campaign is not numbers")]
    NotNumbers,
    /// The simulation has other counts now.
    #[error("its campaign is of another version of the simulation")]
    OtherVersion,
}

impl Campaign {
    /// From now on it is this program that runs.
    pub fn goes_on_with(&mut self, program: &str) {
        if self.programs.last().is_none_or(|last| last != program) {
            self.programs.push(program.to_string());
        }
    }

    /// Adds a run.
    pub fn add(&mut self, outcome: &Outcome) {
        self.seeds += 1;
        self.outcome.add(outcome);
    }

    /// Steps in a second of one processor.
    pub fn rate(&self) -> u64 {
        (u128::from(self.outcome.steps) * 1_000_000_000 / self.core_ns.max(1)) as u64
    }

    /// The campaign in one line.
    pub fn summary(&self) -> String {
        format!(
            "{} seeds, {} steps, {} requests answered, {} steps in a second of one processor",
            self.seeds,
            self.outcome.steps,
            self.outcome.answers,
            self.rate()
        )
    }

    /// The campaign as a document.
    pub fn report(&self) -> String {
        let o = &self.outcome;
        let f = &o.faults;
        let mut out = String::from("# A campaign of the simulation\n\n");
        let _ = write!(
            out,
            "Made by `cargo run --release -p undercroft-testkit --bin sim -- --report FILE`; every seed from the first \
             to the last ran {} steps, and none found anything wrong. Program: {}.{}\n\n\
             | | |\n|---|---:|\n| seeds | {} |\n| the next seed | {} |\n| steps | {} |\n| requests answered | {} |\n\
             | processor time | {} s |\n| steps in a second of one processor | {} |\n\n",
            self.steps_of_run,
            self.programs.join(", then "),
            // A seed that finds something stops a campaign, which goes on from there when that is mended.
            if self.programs.len() > 1 { " Earlier seeds were not run again with later ones." } else { "" },
            self.seeds,
            self.next_seed,
            o.steps,
            o.answers,
            self.core_ns / 1_000_000_000,
            self.rate()
        );
        out += "## Faults\n\n| fault | times |\n|---|---:|\n";
        let faults = [
            ("reads that failed", f.reads),
            ("of these, reads of bad sectors", f.bad),
            ("writes that failed", f.writes),
            ("flushes that failed", f.flushes),
            ("discards and zeroes that failed", f.clears),
            ("questions for the allocation that failed", f.statuses),
            ("crashes of the host, for each of its disks once", o.coverage.total(crate::coverage::Seen::Crash)),
            ("crashes with loss of power", f.power_cuts),
            ("writers from elsewhere, then `invalidate`", f.foreign),
            ("losses of what was not flushed", f.lost),
        ];
        for (what, n) in faults {
            let _ = writeln!(out, "| {what} | {n} |");
        }
        out += "\n## What the runs came by\n\nEvents by what their disk was in the middle of; the conditions are those \
            of `crates/testkit/src/coverage.rs`.\n\n";
        out += &o.coverage.table();
        let missing = o.coverage.missing(RARE);
        let _ = writeln!(
            out,
            "\nOf {} rare pairs that are asked for, {} were not seen. {missing:?}",
            RARE.len(),
            missing.len()
        );
        let _ = writeln!(
            out,
            "\nThe slowest request waited for {} operations of its disk for each operation that it, or one before it, \
             needed.",
            o.slowest
        );
        let numbers: Vec<String> = self.numbers().iter().map(u128::to_string).collect();
        let _ = writeln!(out, "\n{STATE}{} -->\n{PROGRAMS}{} -->", numbers.join(" "), self.programs.join(", "));
        out
    }

    /// The campaign that a document was written from.
    ///
    /// # Errors
    /// If it is not one, or one of another version of the simulation.
    pub fn parse(text: &str) -> Result<Self, NoCampaign> {
        let line_of = |mark| text.lines().find_map(|l| l.strip_prefix(mark)?.strip_suffix(" -->"));
        let line = line_of(STATE).ok_or(NoCampaign::Missing)?;
        let numbers: Option<Vec<u128>> = line.split(' ').map(|n| n.parse().ok()).collect();
        let mut numbers = numbers.ok_or(NoCampaign::NotNumbers)?.into_iter();
        let programs = line_of(PROGRAMS).ok_or(NoCampaign::OtherVersion)?.split(", ");
        let mut campaign = Self { programs: programs.map(str::to_string).collect(), ..Self::default() };
        let size = campaign.numbers().len();
        if numbers.len() != size {
            return Err(NoCampaign::OtherVersion);
        }
        let mut next = || numbers.next().unwrap_or(0);
        campaign.core_ns = next();
        let mut small = || next().min(u128::from(u64::MAX)) as u64;
        (campaign.seeds, campaign.next_seed, campaign.steps_of_run) = (small(), small(), small());
        campaign.outcome.counts_mut().into_iter().for_each(|n| *n = small());
        for row in 0..ROWS.len() {
            for column in 0..=COLUMNS.len() {
                *campaign.outcome.coverage.cell(row, column) = small();
            }
        }
        Ok(campaign)
    }

    /// All of its numbers, in the order that they are kept in.
    fn numbers(&self) -> Vec<u128> {
        let mut copy = self.clone();
        let mut all = vec![self.core_ns];
        all.extend([self.seeds, self.next_seed, self.steps_of_run].map(u128::from));
        all.extend(copy.outcome.counts_mut().into_iter().map(|n| u128::from(*n)));
        for row in 0..ROWS.len() {
            all.extend((0..=COLUMNS.len()).map(|column| u128::from(*copy.outcome.coverage.cell(row, column))));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_campaign_is_read_back_as_it_was_written() {
        let mut c = Campaign { next_seed: 8, steps_of_run: 1000, core_ns: 7_000_000_001, ..Campaign::default() };
        let mut o = Outcome::default();
        o.counts_mut().into_iter().enumerate().for_each(|(i, n)| *n = i as u64 + 1);
        *o.coverage.cell(3, 0) = 5;
        *o.coverage.cell(4, COLUMNS.len()) = 6;
        c.add(&o);
        ["a1 of Monday", "a1 of Monday", "b2 of Friday"].iter().for_each(|program| c.goes_on_with(program));
        assert!(c.report().contains("a1 of Monday, then b2 of Friday. Earlier seeds"));
        assert_eq!(Campaign::parse(&c.report()), Ok(c.clone()));
        assert!(Campaign::parse("# something else").is_err());
        let cut = c.report().replace(STATE, "<!-- state: 1 ");
        assert!(Campaign::parse(&cut).is_err());
    }
}
