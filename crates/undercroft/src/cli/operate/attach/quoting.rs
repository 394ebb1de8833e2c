//! How names and paths are written for QEMU, a shell, XML and URIs.
//!
//! Owns the quoting. Invariant: whoever reads it gets the same text back, whatever it contains.

use std::fmt::Write;

/// Doubles commas, as QEMU's option parser wants them.
pub fn comma(text: &str) -> String {
    text.replace(',', ",,")
}

/// A text in the attribute of an XML element.
pub fn xml(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('\'', "&apos;").replace('"', "&quot;")
}

/// A text in a URI.
pub fn percent(text: &str) -> String {
    let mut out = String::new();
    for b in text.bytes() {
        if b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'~' | b'/' | b':') {
            out.push(b as char);
        } else {
            let _ = write!(out, "%{b:02X}");
        }
    }
    out
}

/// Quotes a word for a POSIX shell, if it needs it.
pub fn shell(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_string()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// Words on one line, quoted.
pub fn join(words: &[String]) -> String {
    words.iter().map(|w| shell(w)).collect::<Vec<_>>().join(" ")
}

/// Options on lines of their own, each with its value, joined by backslashes.
pub fn broken(words: &[String], indent: &str) -> String {
    let lines: Vec<String> = words.chunks(2).map(join).collect();
    format!("{indent}{}", lines.join(&format!(" \\\n{indent}")))
}
