//! The command line as it is shown: in `--help`, the manual and completions.
//!
//! Owns how the texts below options are laid out. Never adds a word. Invariants: prose is wrapped once, by whoever
//! knows how wide the terminal is; an example fits a line of [`EXAMPLE_CHARS_MAX`], so that it can be pasted.

use super::args::Cli;
use super::style::{HEADING, HELP, paint};
use clap::{Command, CommandFactory};

/// Characters of a line of an example at most: clap wraps at 100 where it knows no terminal.
#[cfg(test)]
const EXAMPLE_CHARS_MAX: usize = 100;

/// The command line with all its commands.
pub fn command() -> Command {
    laid_out(Cli::command().styles(HELP))
}

fn laid_out(mut command: Command) -> Command {
    if let Some(text) = command.get_after_long_help() {
        let text = joined(&text.to_string());
        command = command.after_long_help(text);
    }
    let names: Vec<_> = command.get_subcommands().map(|c| c.get_name().to_string()).collect();
    names.into_iter().fold(command, |c, name| c.mut_subcommand(name, laid_out))
}

/// Each paragraph of prose on one line; what is indented, and empty lines, stay as they are. A line that ends with a
/// colon and begins what is indented is a heading.
fn joined(text: &str) -> String {
    let prose = |line: &str| !line.is_empty() && !line.starts_with(' ');
    let mut out = String::with_capacity(text.len());
    let mut before = "";
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if !out.is_empty() {
            out.push(if prose(before) && prose(line) { ' ' } else { '\n' });
        }
        let heads = lines.peek().is_some_and(|next| next.starts_with(' ')) && !prose(before);
        if prose(line) && line.ends_with(':') && heads {
            out += &paint(HEADING, line);
        } else {
            out += line;
        }
        before = line;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_are_joined_and_examples_are_not() {
        let text = "One line\nand another.\n\nExamples:\n  do this\n  and that\n\nEnd\n";
        let plain = anstream::adapter::strip_str(&joined(text)).to_string();
        assert_eq!(plain, "One line and another.\n\nExamples:\n  do this\n  and that\n\nEnd");
        assert!(joined(text).contains(&paint(HEADING, "Examples:")));
    }

    #[test]
    fn examples_fit_a_line() {
        let mut wide = Vec::new();
        let mut todo = vec![command()];
        while let Some(command) = todo.pop() {
            todo.extend(command.get_subcommands().cloned());
            let text = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
            let indented = text.lines().filter(|l| l.starts_with(' ') && l.chars().count() > EXAMPLE_CHARS_MAX);
            wide.extend(indented.map(|l| format!("{}: {l}", command.get_name())));
        }
        assert!(wide.is_empty(), "lines that a terminal of 100 columns breaks:\n{}", wide.join("\n"));
    }
}
