//! The command line as it is shown: in `--help`, the manual and completions.
//!
//! Owns how the texts below options are laid out. Never adds a word. Invariants: prose is wrapped once, by whoever
//! knows how wide the terminal is; a line of an example fits a terminal of 80 columns, so that it can be pasted, and is
//! what a shell and this program understand: words about it stand behind ` # `.

use super::args::Cli;
use super::style::{HEADING, HELP, paint};
use clap::{Command, CommandFactory};

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
    use clap::FromArgMatches;

    #[test]
    fn paragraphs_are_joined_and_examples_are_not() {
        let text = "One line\nand another.\n\nExamples:\n  do this\n  and that\n\nEnd\n";
        let plain = anstream::adapter::strip_str(&joined(text)).to_string();
        assert_eq!(plain, "One line and another.\n\nExamples:\n  do this\n  and that\n\nEnd");
        assert!(joined(text).contains(&paint(HEADING, "Examples:")));
    }

    /// Columns of the terminal on which examples have to be whole. What is indented is not indented further by clap.
    const EXAMPLE_CHARS_MAX: usize = 80;

    /// Every command, as a terminal of that many columns shows it.
    fn commands() -> Vec<Command> {
        let mut root = command().term_width(EXAMPLE_CHARS_MAX);
        root.build();
        let (mut todo, mut all) = (vec![root], Vec::new());
        while let Some(command) = todo.pop() {
            todo.extend(command.get_subcommands().filter(|c| c.get_name() != "help").cloned());
            all.push(command);
        }
        all
    }

    fn text_of(command: &Command) -> String {
        command.get_after_long_help().map(ToString::to_string).unwrap_or_default()
    }

    #[test]
    fn examples_are_whole_on_a_terminal_of_80_columns() {
        let mut broken = Vec::new();
        let mut seen = 0;
        for mut command in commands() {
            let shown = command.render_long_help().to_string();
            let shown: Vec<&str> = shown.lines().collect();
            for line in text_of(&command).lines().filter(|l| l.starts_with(' ')) {
                seen += 1;
                if !shown.contains(&line) {
                    broken.push(format!("{}: {line}", command.get_name()));
                }
            }
        }
        assert!(seen > 200, "{seen} indented lines: where are the examples?");
        assert!(broken.is_empty(), "a terminal of 80 columns breaks:\n{}", broken.join("\n"));
    }

    /// The examples of a command, each on one line. In a paragraph, what ends with a colon is about what follows it.
    fn examples(text: &str) -> Vec<String> {
        let Some((_, after)) = text.split_once("Examples:\n") else { return Vec::new() };
        let section: Vec<&str> = after.lines().take_while(|l| l.is_empty() || l.starts_with(' ')).collect();
        let mut all = Vec::new();
        for paragraph in section.split(|l| l.is_empty()) {
            let said = |l: &&str| l.ends_with(':') && !l.starts_with("    ");
            let begin = paragraph.iter().rposition(said).map_or(0, |n| n + 1);
            let mut whole = String::new();
            for line in &paragraph[begin..] {
                match line.strip_suffix('\\') {
                    Some(part) => whole += part,
                    None => all.push(std::mem::take(&mut whole) + line),
                }
            }
            assert!(whole.is_empty(), "nothing follows: {whole}\\");
        }
        all
    }

    /// The commands of a line as a shell takes it apart, up to a comment: quotes, pipes, `$()`, and files.
    fn shell(line: &str) -> Vec<Vec<String>> {
        let (mut done, mut words, mut word): (Vec<Vec<String>>, Vec<String>, Option<String>) = Default::default();
        let mut outer: Vec<Vec<String>> = Vec::new();
        let mut chars = line.chars().peekable();
        while let Some(c) = chars.next() {
            match c {
                '\'' | '"' => {
                    let text: String = chars.by_ref().take_while(|&q| q != c).collect();
                    *word.get_or_insert_default() += &text;
                    continue;
                }
                '#' if word.is_none() => break,
                '$' if chars.next_if_eq(&'(').is_some() => {
                    outer.push(std::mem::take(&mut words));
                    continue;
                }
                ' ' | '|' | '&' | ';' | ')' | '>' | '<' => words.extend(word.take()),
                _ => word.get_or_insert_default().push(c),
            }
            match c {
                '|' | '&' | ';' => done.push(std::mem::take(&mut words)),
                ')' => done.push(std::mem::replace(&mut words, outer.pop().expect("an open parenthesis"))),
                '>' | '<' => words.push(">".into()),
                _ => {}
            }
        }
        words.extend(word);
        done.push(words);
        for words in &mut done {
            if let Some(at) = words.iter().position(|w| w == ">") {
                words.drain(at..(at + 2).min(words.len()));
            }
        }
        done
    }

    /// Has the program's own rules read what a shell would call it with; the number of its calls in the line.
    fn calls(line: &str) -> Result<usize, String> {
        let mut count = 0;
        for words in shell(line) {
            // `ssh guest undercroft ...` calls it as well.
            if let Some(at) = words.iter().position(|w| w == "undercroft") {
                let read = command().try_get_matches_from(&words[at..]);
                read.and_then(|m| Cli::from_arg_matches(&m)).map_err(|e| e.to_string())?;
                count += 1;
            }
            if let Some(at) = words.iter().position(|w| w == "undercroft-ranges") {
                let words = words[at + 1..].iter().map(std::ffi::OsString::from);
                undercroft_ranges::arguments::parse(words).map_err(|e| e.to_string())?;
                count += 1;
            }
        }
        Ok(count)
    }

    #[test]
    fn what_is_pasted_of_examples_is_understood() {
        let (mut wrong, mut count) = (Vec::new(), 0);
        let mut texts: Vec<_> = commands().iter().map(|c| (c.get_name().to_string(), text_of(c))).collect();
        let inside = undercroft_ranges::arguments::HELP;
        assert!(inside.lines().all(|l| l.chars().count() <= EXAMPLE_CHARS_MAX), "undercroft-ranges wraps nothing");
        texts.push(("undercroft-ranges".into(), inside.into()));
        for (name, text) in texts {
            for line in examples(&text) {
                match calls(&line) {
                    Ok(n) => count += n,
                    Err(e) => wrong.push(format!("{name}: {line}\n{e}")),
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(count > 100, "{count} examples: where are they?");
    }

    #[test]
    fn bare_words_behind_an_example_are_found() {
        assert_eq!(calls("  undercroft status web:root  # everything about one disk"), Ok(1));
        assert!(calls("  undercroft status --watch   again every two seconds").is_err());
        assert!(calls("  undercroft duplicates --cpu 20%    use at most a fifth").is_err());
        assert_eq!(calls("  ssh guest undercroft ranges --table /srv | undercroft set --ranges - > out"), Ok(2));
        assert!(calls("  qemu -m 4G $(undercroft attach-args web --az qemu) -M q35").is_err());
        let said = examples(
            "Examples:\n  First, `undercroft x`:\n    undercroft a \\\n        b\n\n  undercroft c\n\nEnd: \n  d",
        );
        assert_eq!(said, ["    undercroft a         b", "  undercroft c"]);
    }
}
