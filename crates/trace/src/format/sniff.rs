//! What the first bytes of a trace look like.
//!
//! Owns the order of the questions: what leaves no doubt, then what lines look like, then what records look like; each
//! format answers for itself. Never guesses raw numbers: every file could be some. Invariant: no bytes panic here.

use super::Format;
use super::csv_columns::BOM;
use super::spec::Looks;

/// Lines that are looked at.
const LINES: usize = 20;

/// The format that says what it is.
pub(super) fn magic(first: &[u8]) -> Option<Format> {
    Format::ALL.into_iter().find(|f| f.spec().magic.is_some_and(|m| first.starts_with(m)))
}

/// What they look like, if like anything.
pub(super) fn sniff(first: &[u8]) -> Option<Format> {
    let first = first.strip_prefix(BOM).unwrap_or(first);
    if let Some(found) = magic(first) {
        return Some(found);
    }
    let is_text = |c: &u8| matches!(c, b'\t' | b'\n' | b'\r' | b' '..=b'~' | 0x80..);
    if first.is_empty() || !first.iter().all(is_text) {
        return Format::ALL.into_iter().find(|f| matches!(f.spec().looks, Looks::Binary(like) if like(first)));
    }
    // the last line may be cut
    let whole = first.iter().rposition(|&c| c == b'\n').map_or(first, |n| &first[..n]);
    let lines = whole.split(|&c| c == b'\n').map(|l| l.trim_ascii()).filter(|l| !l.is_empty());
    let lines: Vec<&[u8]> = lines.take(LINES).collect();
    if lines.is_empty() {
        return None;
    }
    Format::ALL.into_iter().find(|f| matches!(f.spec().looks, Looks::Text(like) if like(&lines)))
}

/// The second of some lines, or the only one: the first may have names.
pub(super) fn second<'l>(lines: &[&'l [u8]]) -> &'l [u8] {
    lines.get(1).or(lines.first()).copied().unwrap_or_default()
}
