//! Colours: what they are, and whether there are any.
//!
//! Owns `--color`. Never writes. Invariant: texts are made with colours, and `output` takes them away wherever there is
//! no terminal, `NO_COLOR` is set, or `--color never` was said; so no other file asks.

use anstyle::{AnsiColor, Style};
use clap::ColorChoice;
use clap::builder::Styles;
use std::ffi::OsString;

/// Headers of tables.
pub const HEADING: Style = Style::new().bold();
/// What is as it should be.
pub const GOOD: Style = AnsiColor::Green.on_default();
/// What will hurt.
pub const WARNING: Style = AnsiColor::Yellow.on_default().bold();
/// What failed.
pub const ERROR: Style = AnsiColor::Red.on_default().bold();

/// Those of help and of usage errors.
pub const HELP: Styles = Styles::styled()
    .header(HEADING)
    .usage(HEADING)
    .literal(AnsiColor::Cyan.on_default())
    .placeholder(AnsiColor::Green.on_default())
    .error(ERROR)
    .valid(GOOD)
    .invalid(WARNING);

/// A text in a style.
pub fn paint(style: Style, text: &str) -> String {
    format!("{style}{text}{style:#}")
}

/// A complaint: the word that says how bad it is stands out.
pub fn complaint(text: &str) -> String {
    let mut text = text.to_string();
    for (word, style) in [("error:", ERROR), ("warning:", WARNING)] {
        text = text.replace(word, &paint(style, word));
    }
    match text.strip_prefix("undercroft:") {
        Some(rest) => paint(ERROR, "undercroft:") + rest,
        None => text,
    }
}

/// What `--color` says, before anything is parsed: the parser's own words have colours, too.
pub fn asked(words: &[OsString]) -> ColorChoice {
    let mut before = None;
    for word in words.iter().filter_map(|w| w.to_str()).take_while(|w| *w != "--") {
        let value = if before == Some("--color") { Some(word) } else { word.strip_prefix("--color=") };
        match value {
            Some("always") => return ColorChoice::Always,
            Some("never") => return ColorChoice::Never,
            _ => before = Some(word),
        }
    }
    ColorChoice::Auto
}

/// Has everything follow a choice from now on.
pub fn choose(choice: ColorChoice) {
    let choice = match choice {
        ColorChoice::Auto => anstream::ColorChoice::Auto,
        ColorChoice::Always => anstream::ColorChoice::Always,
        ColorChoice::Never => anstream::ColorChoice::Never,
    };
    choice.write_global();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_choice_is_seen_wherever_it_stands() {
        let of = |line: &str| asked(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert_eq!(of("undercroft --color never status"), ColorChoice::Never);
        assert_eq!(of("undercroft status --color=always"), ColorChoice::Always);
        assert_eq!(of("undercroft status --color=auto web"), ColorChoice::Auto);
        assert_eq!(of("undercroft ranges --table -- --color=always"), ColorChoice::Auto);
    }

    #[test]
    fn how_bad_it_is_stands_out_and_the_words_stay() {
        let said = complaint("c.toml:2: error: no\nc.toml:3: warning: why");
        assert_eq!(anstream::adapter::strip_str(&said).to_string(), "c.toml:2: error: no\nc.toml:3: warning: why");
        assert!(said.contains(&paint(ERROR, "error:")) && said.contains(&paint(WARNING, "warning:")), "{said:?}");
    }
}
