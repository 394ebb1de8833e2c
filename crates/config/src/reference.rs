//! The reference of the configuration, written from `keys`: a page of docs and a page of the manual.
//!
//! Owns their layout. Invariant: both name every key there is.

use super::keys::{Key, Live, SECTIONS, Section};
use std::fmt::Write;

/// A whole example, which the tests hold to be good.
pub const EXAMPLE: &str = include_str!("../../../dist/undercroft.toml");

/// docs/configuration.md.
pub fn markdown() -> String {
    let mut out = String::from(
        "<!-- Written by `undercroft reference > docs/configuration.md` from crates/config/src/keys. -->\n\n\
         # Configuration\n\n\
         `undercroft serve CONFIG` reads a TOML file; `undercroft check CONFIG` looks for everything that is wrong \
         with it without serving; `SIGHUP` or `undercroft reload` makes the daemon read it again.\n\n\
         Sizes are texts with a unit, `512MiB` (powers of 1024: KiB, MiB, GiB, TiB) or `500MB` (powers of 1000: kB, \
         MB, GB, TB); a plain number is bytes. `512M` could mean either and is refused. Times are `50us`, `2ms`, \
         `1.5s`. Relative paths are taken from the directory of the file. An unknown key is an error, never ignored.\n",
    );
    for section in SECTIONS {
        let title = if section.header.is_empty() { "The file".to_string() } else { section.header.to_string() };
        let _ = write!(out, "\n## {title}\n\n{}\n\n", section.doc);
        out.push_str("| key | value | default | allowed | meaning |\n|---|---|---|---|---|\n");
        for key in section.keys {
            let range = if key.range.is_empty() { "any" } else { key.range };
            let _ = writeln!(out, "| `{}` | {} | {} | {range} | {} |", key.name, key.kind.name(), key.default, key.doc);
        }
    }
    live_section(&mut out);
    out.push_str("\n## Example\n\n```toml\n");
    out.push_str(EXAMPLE);
    out.push_str("```\n");
    out
}

/// Which keys change while the daemon runs, and how.
fn live_section(out: &mut String) {
    out.push_str("\n## What can change live\n");
    for (title, text, live) in LIVE {
        let _ = write!(out, "\n### {title}\n\n{text}\n\n| table | keys |\n|---|---|\n");
        for section in SECTIONS {
            let keys: Vec<_> = section.keys.iter().filter(|k| live(k.live)).map(|k| format!("`{}`", k.name)).collect();
            if !keys.is_empty() {
                let _ = writeln!(out, "| `{}` | {} |", section.header.replace(" and ", "`, `"), keys.join(", "));
            }
        }
    }
}

/// Ways in which keys change: title, text, and which keys they are.
type Way = (&'static str, &'static str, fn(Live) -> bool);
const LIVE: [Way; 5] = [
    (
        "By hand",
        "`undercroft set` and the API change these at once (`PATCH /v1/nodes/NAME`, `PATCH /v1/disks/NAME`); so does a \
         reload. A value that was set by hand holds until the next reload, which takes the values of the file again. \
         `undercroft set --memory` makes the store smaller than `store.memory` and larger again, and `undercroft ksm \
         on` and `off` switch `ksm.manage`.",
        |live| matches!(live, Live::Set(_)),
    ),
    (
        "By hand alone",
        "`undercroft set` and the API change these at once. A reload names them where they differ, but does not change \
         them on a disk that is served, since somebody may use what goes; what was set by hand stays where the file \
         says nothing.",
        |live| matches!(live, Live::Hand(_)),
    ),
    (
        "By a reload",
        "`SIGHUP` or `undercroft reload` reads the file again, and changes these. It attaches disks that are new and \
         detaches those that are gone, reads the certificates of `[[nbd.listen]]` again, and names every change that \
         it made, each key with what it was, in its answer and in the log.",
        |live| live == Live::Reload,
    ),
    (
        "When the disk is attached again",
        "A reload names these keys where they differ, but does not change the disk. To change them, `undercroft \
         detach` and `attach` the disk, or start the daemon again.",
        |live| live == Live::Attach,
    ),
    (
        "By a restart only",
        "A reload names these keys where they differ, with both values, but changes nothing.",
        |live| live == Live::Restart,
    ),
];

/// undercroft.toml(5), in roff.
pub fn man_page() -> String {
    let mut out = String::from(".TH UNDERCROFT.TOML 5 \"\" \"undercroft ");
    out.push_str(env!("CARGO_PKG_VERSION"));
    out.push_str(
        "\" \"Undercroft\"\n.SH NAME\nundercroft.toml \\- configuration of the undercroft daemon\n.SH DESCRIPTION\n",
    );
    out.push_str(&roff(
        "A TOML file. Sizes are texts with a unit, `512MiB` (powers of 1024) or `500MB` (powers of 1000); a plain \
         number is bytes. Times are `50us`, `2ms`, `1.5s`. Relative paths are taken from the directory of the file. An \
         unknown key is an error. `undercroft check` names everything that is wrong with a file.",
    ));
    for section in SECTIONS {
        man_section(&mut out, section);
    }
    out.push_str(".SH EXAMPLE\n.nf\n");
    out.push_str(&roff(EXAMPLE));
    out.push_str(".fi\n.SH SEE ALSO\n.BR undercroft (1)\n");
    out
}

fn man_section(out: &mut String, section: &Section) {
    let title = if section.header.is_empty() { "TABLES" } else { section.header };
    let _ = writeln!(out, ".SH \"{title}\"");
    out.push_str(&roff(section.doc));
    for Key { name, kind, default, range, live, doc } in section.keys {
        let _ = write!(out, ".TP\n.BR {} \" ({})\"\n", roff(name).trim_end(), kind.name());
        let mut text = (*doc).to_string();
        if !default.is_empty() {
            let _ = write!(text, " Default: {default}.");
        }
        if !range.is_empty() {
            let _ = write!(text, " Allowed: {range}.");
        }
        text.push_str(match live {
            Live::Name => "",
            Live::Set(_) => " Changes by hand and by a reload.",
            Live::Hand(_) => " Changes by hand, not by a reload.",
            Live::Reload => " Changes by a reload.",
            Live::Attach => " Changes when the disk is attached again.",
            Live::Restart => " Changes by a restart only.",
        });
        out.push_str(&roff(&text));
    }
}

/// Escapes text for roff, and ends it with a newline.
fn roff(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let line = line.replace('\\', "\\e").replace('-', "\\-").replace('`', "").replace('\'', "\\(aq");
        if line.starts_with('.') {
            out.push_str("\\&");
        }
        out.push_str(&line);
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_pages_name_every_key() {
        let (markdown, man) = (markdown(), man_page());
        for section in SECTIONS {
            for key in section.keys {
                assert!(markdown.contains(&format!("| `{}` |", key.name)), "{}", key.name);
                assert!(man.contains(&format!(".BR {} ", key.name)), "{}", key.name);
                assert!(!key.doc.is_empty() && !key.default.is_empty(), "{}", key.name);
            }
        }
    }

    #[test]
    fn the_committed_page_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            committed == markdown(),
            "docs/configuration.md is out of date: run `undercroft reference > docs/configuration.md`"
        );
    }
}
