//! `--watch`: shows something again and again.
//!
//! Owns the pauses and the screen. Never asks the daemon. Invariants: where there is no terminal, what is shown follows
//! each other and nothing else is written; Ctrl-C is the ordinary end, and leaves what was shown last.

use super::Failure;
use super::interrupt::interrupt;
use super::output::Out;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use terminal_size::{Height, Width, terminal_size};
use undercroft_units::Time;

/// Shortest pause between two looks.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// How soon Ctrl-C is noticed.
const NOTICED: Duration = Duration::from_millis(50);

/// Shows what `look` says once, or again after each `pause`; on a terminal in place of what it said before, if it is to
/// be `redrawn`.
///
/// # Errors
/// Those of `look`, and of writing.
pub fn watch(
    pause: Option<Time>,
    redrawn: bool,
    out: &mut Out,
    mut look: impl FnMut() -> Result<String, Failure>,
) -> Result<(), Failure> {
    let Some(Time(pause)) = pause else {
        out.write(&look()?)?;
        return Ok(out.flush()?);
    };
    let pause = Duration::from_nanos(pause).max(PAUSE_MIN);
    let stop = interrupt()?;
    let redrawn = redrawn && out.is_terminal();
    let mut first = true;
    while !stop.load(Ordering::Relaxed) {
        let text = look()?;
        if redrawn {
            let whole = |(columns, rows): (Width, Height)| (usize::from(columns.0), usize::from(rows.0));
            let (columns, rows) = terminal_size().map_or((usize::MAX, usize::MAX), whole);
            out.control(if std::mem::take(&mut first) { "\x1b[2J\x1b[H" } else { "\x1b[H" })?;
            for line in fitting(&text, columns, rows) {
                // Each line takes away what is left of the one that was there.
                out.write(&line)?;
                out.control("\x1b[K\n")?;
            }
            out.control("\x1b[J")?;
        } else {
            out.write(&text)?;
        }
        out.flush()?;
        let until = Instant::now() + pause;
        while !stop.load(Ordering::Relaxed) && Instant::now() < until {
            std::thread::sleep(NOTICED.min(until.saturating_duration_since(Instant::now())));
        }
    }
    Ok(())
}

/// The lines that fit a terminal of so many columns and rows, the last of which stays free for the cursor. Lines are
/// cut: those that went on in the next row would push the first ones off the screen.
fn fitting(text: &str, columns: usize, rows: usize) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let room = rows.saturating_sub(1).max(2);
    let shown = if lines.len() <= room { lines.len() } else { room - 1 };
    let mut fit: Vec<String> = lines[..shown].iter().map(|line| cut(line, columns)).collect();
    if shown < lines.len() {
        fit.push(format!("... {} lines more", lines.len() - shown));
    }
    fit
}

/// A line as far as a terminal of so many columns shows it in one row. Colours take no column, and those that begin
/// end.
fn cut(line: &str, columns: usize) -> String {
    let (mut kept, mut column, mut chars) = (String::new(), 0, line.chars());
    while let Some(c) = chars.next() {
        if c == '\x1b' {
            kept.push(c);
            for c in chars.by_ref() {
                kept.push(c);
                if c.is_ascii_alphabetic() {
                    break;
                }
            }
        } else if column < columns {
            kept.push(c);
            column += 1;
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_the_terminal_is_counted() {
        assert_eq!(fitting("a\nb\nc\n", 80, 4), ["a", "b", "c"]);
        assert_eq!(fitting("a\nb\nc\n", 80, 3), ["a", "... 2 lines more"]);
        assert_eq!(fitting("a\nb\nc\n", 80, 0), ["a", "... 2 lines more"]);
        assert_eq!(fitting("a\n", usize::MAX, usize::MAX), ["a"]);
    }

    #[test]
    fn a_line_takes_one_row_and_its_colours_end() {
        assert_eq!(fitting("DISK  VM    HITS\nwide and wider\n", 8, 24), ["DISK  VM", "wide and"]);
        assert_eq!(cut("\x1b[1;31mwarm\x1b[0m ünd\x1b[32mkühl\x1b[0m", 6), "\x1b[1;31mwarm\x1b[0m ü\x1b[32m\x1b[0m");
        assert_eq!(cut("whole", 5), "whole");
    }
}
