//! `undercroft ranges`, inside a guest, and `undercroft set --ranges`, on the host.
//!
//! Owns what they say. Never looks at files itself: the library of undercroft-ranges does, and that program is the
//! same.

use super::args::RangesArgs;
use crate::cli::Failure;
use crate::cli::output::{self, Out};
use hyper::Method;
use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::Path;
use undercroft_api::RangesTaken;
use undercroft_api::client::{self, ClientError};
use undercroft_api::ranges::RangeListBody;
use undercroft_ranges::{Form, RangesError, RangesOptions, Sysfs, WalkOutcome};
use undercroft_units::human_size;

/// Runs `undercroft ranges`.
///
/// # Errors
/// A path is not there, or its file system cannot tell where files are.
pub fn ranges(args: RangesArgs, out: &mut Out) -> Result<(), Failure> {
    let RangesArgs { path, container, disk, json: _, table, watch } = args;
    let form = if table { Form::Table } else { Form::Json };
    let options = RangesOptions { paths: path, container, disk, form, watch };
    let mut complain = |text: &str| output::complain(&format!("undercroft: {text}"));
    let mut pause = |interval| {
        std::thread::sleep(interval);
        true
    };
    match undercroft_ranges::run(&options, &Sysfs::default(), &mut Lines(out), &mut complain, &mut pause) {
        Ok(WalkOutcome::Whole) => Ok(()),
        Ok(WalkOutcome::Partial) => Err(Failure::Silent),
        Err(RangesError::Output(e)) => Err(Failure::Output(e)),
        Err(e) => Err(Failure::Said(e.to_string())),
    }
}

/// The output as a place to write lists to.
struct Lines<'a>(&'a mut Out);

impl Write for Lines<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write(&String::from_utf8_lossy(bytes))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

/// Runs `undercroft set --ranges`: sends each list as it comes. One that is refused does not end it, for the next one
/// of the same container may be better.
///
/// # Errors
/// There is no daemon, what comes is no list, or the last list of some container was refused.
pub fn set(file: &Path, socket: &Path, json: bool, out: &mut Out) -> Result<(), Failure> {
    let unreadable = |e: std::io::Error| Failure::Said(format!("{} cannot be read: {e}", file.display()));
    let input: Box<dyn Read> = if file == Path::new("-") {
        Box::new(std::io::stdin().lock())
    } else {
        Box::new(File::open(file).map_err(unreadable)?)
    };
    let mut refused: Vec<(String, String)> = Vec::new();
    for list in serde_json::Deserializer::from_reader(BufReader::new(input)).into_iter::<RangeListBody>() {
        let list = list.map_err(|e| {
            let remedy = "give what `undercroft ranges` prints inside the guest";
            Failure::Said(format!("{} holds no list of ranges: {e}; {remedy}", file.display()))
        })?;
        let whose = (list.disk.clone(), list.container.clone());
        refused.retain(|r| *r != whose);
        let body = serde_json::to_string(&list).map_err(|e| Failure::Said(e.to_string()))?;
        match client::request_json::<RangesTaken>(socket, Method::PUT, "/v1/ranges", Some(body)) {
            Ok(taken) if json => {
                out.json(&taken)?;
                out.flush()?;
            }
            Ok(taken) => {
                let had = format!("had {} in {} ranges", human_size(taken.previous_bytes), taken.previous_ranges);
                let has = format!("has {} in {} ranges", human_size(taken.bytes), taken.ranges);
                out.line(&format!("container \"{}\" {has} of disk \"{}\", {had}", taken.container, taken.disk))?;
                out.flush()?;
            }
            Err(e @ ClientError::Refused(_)) => {
                output::complain(&format!("undercroft: {e}"));
                refused.push(whose);
            }
            Err(e) => return Err(e.into()),
        }
    }
    if refused.is_empty() { Ok(()) } else { Err(Failure::Silent) }
}

#[cfg(test)]
mod tests {
    use crate::cli::args::Cli;
    use clap::CommandFactory;

    #[test]
    fn the_program_for_guests_takes_the_same_options() {
        let cli = Cli::command();
        let ranges = cli.find_subcommand("ranges").expect("it is there");
        for option in ranges.get_arguments().filter_map(|a| a.get_long()).filter(|o| *o != "help") {
            let there = format!("--{option}");
            assert!(undercroft_ranges::arguments::HELP.contains(&there), "{there}");
        }
    }
}
