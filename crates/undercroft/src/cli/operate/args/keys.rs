//! The options of `undercroft set` that are keys of the configuration: one for each key that is set by hand.
//!
//! Owns the way from the declaration of a key to its option. Never lists a key. Invariant: what an option takes is a
//! value of its key's kind.

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use undercroft_config::Written;
use undercroft_config::keys::{self, Key, Kind};
use undercroft_engine::PolicyKind;

/// Keys with the texts that were given for them.
#[derive(Debug, Default)]
pub struct KeyArgs {
    /// In the order of the declarations.
    pub given: Vec<(&'static Key, String)>,
}

/// The options, for groups and conflicts.
pub fn names() -> Vec<&'static str> {
    keys::all_settable().iter().map(|k| k.name).collect()
}

/// The option of a key.
fn option(key: &'static Key) -> Arg {
    let none = match key.live.by_hand() {
        Some(word) if !word.is_empty() => format!("; `{word}` takes it away"),
        _ => String::new(),
    };
    // The first sentence says what it is; the reference has the rest.
    let what = key.doc.split(". ").next().unwrap_or(key.doc).trim_end_matches('.').replace('`', "");
    let value = match key.kind {
        Kind::Size => "SIZE",
        Kind::Time => "TIME",
        Kind::Number => "N",
        Kind::Path => "PATH",
        Kind::Percentage => "PERCENT",
        _ => "VALUE",
    };
    let mut option = Arg::new(key.name)
        .long(dashed(key.name))
        .value_name(value)
        .help(format!("{what}: {}{none}", key.range.replace('`', "")));
    if dashed(key.name) != key.name {
        // As the configuration writes it.
        option = option.alias(key.name);
    }
    if key.name == "policy" {
        let policies = PolicyKind::ALL.map(|k| k.name()).into_iter().chain(["inherit"]);
        return option.ignore_case(true).value_parser(PossibleValuesParser::new(policies));
    }
    option.value_parser(move |text: &str| Written::parse(key, text).map(|_| text.to_string()))
}

/// The name of a key as that of an option.
fn dashed(name: &'static str) -> &'static str {
    match name {
        "lock_budget" => "lock-budget",
        "lock_held" => "lock-held",
        "lock_profile" => "lock-profile",
        "miss_table" => "miss-table",
        "victim_buffer" => "victim-buffer",
        name => name,
    }
}

/// What is given for a key; a path from the root, since the daemon has a directory of its own.
fn whole(key: &Key, text: &str) -> String {
    let takes_away = key.live.by_hand().is_some_and(|word| word == text);
    let path = (key.kind == Kind::Path && !takes_away).then(|| std::path::absolute(text).ok()).flatten();
    path.and_then(|path| path.to_str().map(str::to_owned)).unwrap_or_else(|| text.to_owned())
}

impl Args for KeyArgs {
    fn augment_args(command: Command) -> Command {
        command.args(keys::all_settable().into_iter().map(option))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for KeyArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |key: &'static Key| Some((key, whole(key, matches.get_one::<String>(key.name)?)));
        Ok(Self { given: keys::all_settable().into_iter().filter_map(given).collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl KeyArgs {
    /// As the body of a change.
    pub fn body(&self) -> String {
        let object: serde_json::Map<String, serde_json::Value> =
            self.given.iter().map(|(key, text)| (key.name.to_string(), text.as_str().into())).collect();
        serde_json::Value::Object(object).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_option_has_an_underscore_and_what_the_file_says_is_understood() {
        for key in keys::all_settable() {
            assert_eq!(dashed(key.name), key.name.replace('_', "-"));
        }
        let command = KeyArgs::augment_args(Command::new("set"));
        for words in [["set", "--lock-budget", "30%"], ["set", "--lock_budget", "30%"]] {
            let matches = command.clone().try_get_matches_from(words).unwrap();
            let given = KeyArgs::from_arg_matches(&matches).unwrap();
            assert_eq!(given.body(), r#"{"lock_budget":"30%"}"#);
        }
    }
}
