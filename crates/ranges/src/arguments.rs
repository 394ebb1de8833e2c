//! The command line of the program inside the guest: words in, options or an error out.
//!
//! Owns words. Never acts. `undercroft ranges` takes the same options; a test there holds both to that.

use crate::RangesError;
use crate::run::{Form, RangesOptions};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

/// Shortest time between two looks.
pub const WATCH_MIN: Duration = Duration::from_millis(100);
/// Longest.
pub const WATCH_MAX: Duration = Duration::from_secs(24 * 3600);

/// What `--help` prints.
pub const HELP: &str = "\
Prints where a container's files are on the virtual disk, in the form that
Undercroft's API takes

Usage: undercroft-ranges --container NAME --disk VM:DISK [OPTIONS] PATH...
       undercroft-ranges --table PATH...

Run it inside the guest. It looks at every regular file at and below each PATH:
on the same file system only, without following symbolic links, a file with
several names once. What files have not written yet is written back first.

Arguments:
  PATH...                Directories and files of the container; for an overlay
                         its upperdir and lowerdir

Options:
      --container NAME   The container on the host, without its VM
      --disk VM:DISK     The disk on the host, as `undercroft status` shows it
      --json             One line of JSON (what it does without an option)
      --table            A line for each extent, for people; needs neither
                         --container nor --disk
      --watch INTERVAL   Look again after each INTERVAL (500ms, 10s, 5min), and
                         print a new line when the list has changed
  -h, --help             Print help
  -V, --version          Print the version

Examples:
  What a container has of the disk:
    undercroft-ranges --table /var/lib/containers/shop

  Tell the daemon once, from the host:
    ssh guest undercroft-ranges --container shop --disk web:root /srv/shop \\
        | undercroft set --ranges -

  Keep it up to date:
    ssh guest undercroft-ranges --container shop --disk web:root \\
        --watch 10s /srv/shop | undercroft set --ranges -

Exit codes:
  0  done (a broken pipe counts as done)
  1  failed; the reason is on standard error
  2  used wrongly
  3  printed, but some files could not be looked at: they are named on standard
     error
";

/// What the words ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// To look and print.
    Run(RangesOptions),
    /// `--help`.
    Help,
    /// `--version`.
    Version,
}

/// Reads the words after the program's name.
///
/// # Errors
/// `Usage`, naming the word and the remedy.
pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Asked, RangesError> {
    let usage = |text: String| RangesError::Usage(text);
    let (mut options, mut words, mut only_paths) = (RangesOptions::default(), words.into_iter(), false);
    while let Some(word) = words.next() {
        let text = match word.to_str() {
            Some(text) if !only_paths && text.starts_with('-') && text.len() > 1 => text.to_string(),
            _ => {
                options.paths.push(PathBuf::from(word));
                continue;
            }
        };
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name.to_string(), Some(OsString::from(value))),
            None => (text, None),
        };
        if value.is_some() && !matches!(name.as_str(), "--container" | "--disk" | "--watch") {
            return Err(usage(format!("{name} takes no value; see --help")));
        }
        let mut value = |what: &str| {
            let value = value.clone().or_else(|| words.next());
            value.ok_or_else(|| usage(format!("{name} needs {what}; see --help")))
        };
        match name.as_str() {
            "--" => only_paths = true,
            "-h" | "--help" => return Ok(Asked::Help),
            "-V" | "--version" => return Ok(Asked::Version),
            "--json" => options.form = Form::Json,
            "--table" => options.form = Form::Table,
            "--container" => options.container = Some(utf8("--container", &value("a name")?)?),
            "--disk" => options.disk = Some(utf8("--disk", &value("a name")?)?),
            "--watch" => options.watch = Some(interval(&utf8("--watch", &value("a time")?)?)?),
            _ => {
                return Err(usage(format!(
                    "there is no option {name}; see --help, and put -- before paths that begin with -"
                )));
            }
        }
    }
    Ok(Asked::Run(options))
}

fn utf8(option: &str, value: &OsStr) -> Result<String, RangesError> {
    let text = value.to_str().map(str::to_string);
    text.ok_or_else(|| RangesError::Usage(format!("{option}: the value is no UTF-8")))
}

/// A time as everywhere in Undercroft: `500ms`, `10s`, `5min`.
///
/// # Errors
/// `Usage`: no time, or not within [`WATCH_MIN`] to [`WATCH_MAX`].
pub fn interval(text: &str) -> Result<Duration, RangesError> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let ms = match unit {
        "ms" => Some(1),
        "s" => Some(1000),
        "min" => Some(60_000),
        _ => None,
    };
    let number: Option<u64> = number.parse().ok();
    let time = number.zip(ms).and_then(|(n, ms)| n.checked_mul(ms)).map(Duration::from_millis);
    time.filter(|t| (WATCH_MIN..=WATCH_MAX).contains(t)).ok_or_else(|| {
        let shown: String = text.chars().take(40).collect();
        RangesError::Usage(format!("--watch: \"{shown}\" is no time between 100ms and 1440min; write it like 10s"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Result<Asked, RangesError> {
        parse(text.split_whitespace().map(OsString::from))
    }

    #[test]
    fn options_are_read_in_every_form() {
        let all = RangesOptions {
            paths: vec!["/a".into(), "-b".into(), "--json".into()],
            container: Some("shop".into()),
            disk: Some("web:root".into()),
            form: Form::Table,
            watch: Some(Duration::from_secs(10)),
        };
        assert_eq!(
            words("--container shop --disk=web:root /a --table --watch=10s -- -b --json").unwrap(),
            Asked::Run(all)
        );
        assert_eq!(words("--container x --help /").unwrap(), Asked::Help);
        assert_eq!(words("-V").unwrap(), Asked::Version);
        assert_eq!(
            words("- /").unwrap(),
            Asked::Run(RangesOptions { paths: vec!["-".into(), "/".into()], ..RangesOptions::default() })
        );
    }

    #[test]
    fn wrong_words_are_named() {
        for (text, said) in [
            ("--contaner x", "no option --contaner"),
            ("--container", "--container needs a name"),
            ("--json=yes /", "--json takes no value"),
            ("--watch 10", "write it like 10s"),
            ("--watch 1ms", "between 100ms"),
            ("--watch 99999999999999999999s", "no time"),
            ("--watch 18446744073709551615min", "no time"),
        ] {
            let e = words(text).unwrap_err().to_string();
            assert!(e.contains(said), "{text}: {e}");
        }
        assert_eq!(interval("1440min").unwrap(), WATCH_MAX);
    }
}
