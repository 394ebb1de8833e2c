//! Man pages, completions and the version, from the arguments themselves.
//!
//! Owns where pages go. Invariant: there is no second description of a flag.

use super::Failure;
use super::output::Out;

use clap_mangen::Man;
use std::path::Path;
use undercroft_api::API_VERSION;
use undercroft_api::VersionInfo;
use undercroft_config::reference;

/// Prints the completions for a shell.
///
/// # Errors
/// Those of writing.
pub fn completions(shell: clap_complete::Shell, out: &mut Out) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut super::help::command(), "undercroft", &mut text);
    out.write(&String::from_utf8_lossy(&text))?;
    Ok(())
}

/// Prints undercroft(1), or writes every page below `dir`.
///
/// # Errors
/// Those of writing; names the file.
pub fn man(dir: Option<&Path>, out: &mut Out) -> Result<(), Failure> {
    let mut command = super::help::command();
    command.build();
    let Some(dir) = dir else {
        out.write(&page(&command, "undercroft")?)?;
        return Ok(());
    };
    let mut pages = vec![];
    with_subcommands(&command, "undercroft", &mut pages)?;
    pages.push(("man5/undercroft.toml.5".to_string(), reference::man_page()));
    for (name, text) in pages {
        let path = dir.join(name);
        let parent = path.parent().unwrap_or(dir);
        std::fs::create_dir_all(parent)
            .and_then(|()| std::fs::write(&path, text))
            .map_err(|e| Failure::Said(format!("{} cannot be written: {e}; choose another --dir", path.display())))?;
    }
    Ok(())
}

/// The page of a command and those of all below it.
fn with_subcommands(command: &clap::Command, name: &str, pages: &mut Vec<(String, String)>) -> Result<(), Failure> {
    pages.push((format!("man1/{name}.1"), page(command, name)?));
    for sub in command.get_subcommands().filter(|s| !s.is_hide_set() && s.get_name() != "help") {
        with_subcommands(sub, &format!("{name}-{}", sub.get_name()), pages)?;
    }
    Ok(())
}

fn page(command: &clap::Command, name: &str) -> Result<String, Failure> {
    // The long text after the options holds examples: man shows them as they are, unfilled.
    let examples = command.get_after_long_help().map(ToString::to_string);
    let named = command.clone().display_name(name.to_string()).after_long_help("").after_help("");
    let mut text = Vec::new();
    let man =
        Man::new(named).section("1").manual("Undercroft").source(format!("undercroft {}", env!("CARGO_PKG_VERSION")));
    man.render(&mut text).map_err(Failure::Output)?;
    // The emptied text still has its heading.
    let mut text = String::from_utf8_lossy(&text).replace(".SH EXTRA\n", "");
    if let Some(examples) = examples {
        let (before, version) = match text.find(".SH VERSION") {
            Some(at) => text.split_at(at),
            None => (text.as_str(), ""),
        };
        text = format!("{before}.SH NOTES\n.nf\n{}.fi\n{version}", escape(&examples));
    }
    Ok(text)
}

fn escape(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let line = line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
        out += &if line.starts_with('.') { format!("\\&{line}\n") } else { format!("{line}\n") };
    }
    out
}

/// Prints the version.
///
/// # Errors
/// Those of writing.
pub fn version(json: bool, out: &mut Out) -> Result<(), Failure> {
    let info = VersionInfo { version: env!("CARGO_PKG_VERSION").to_string(), api: API_VERSION.to_string() };
    if json {
        out.json(&info)?;
    } else {
        out.line(&format!("undercroft {}", info.version))?;
    }
    Ok(())
}
