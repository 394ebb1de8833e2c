//! `--watch`: shows something again and again.
//!
//! Owns the pauses and the screen. Never asks the daemon. Invariants: where there is no terminal, what is shown follows
//! each other and nothing else is written; Ctrl-C is the ordinary end, and leaves what was shown last.

use super::Failure;
use super::interrupt::interrupt;
use super::output::Out;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
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
            let rows = terminal_size::terminal_size().map_or(usize::MAX, |(_, rows)| usize::from(rows.0));
            out.control(if std::mem::take(&mut first) { "\x1b[2J\x1b[H" } else { "\x1b[H" })?;
            for line in fitting(&text, rows) {
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

/// The lines that fit a terminal of so many rows, the last of which stays free for the cursor.
fn fitting(text: &str, rows: usize) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let room = rows.saturating_sub(1).max(2);
    if lines.len() <= room {
        return lines.into_iter().map(str::to_string).collect();
    }
    let shown = room - 1;
    let mut fit: Vec<String> = lines[..shown].iter().map(ToString::to_string).collect();
    fit.push(format!("... {} lines more", lines.len() - shown));
    fit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_the_terminal_is_counted() {
        assert_eq!(fitting("a\nb\nc\n", 4), ["a", "b", "c"]);
        assert_eq!(fitting("a\nb\nc\n", 3), ["a", "... 2 lines more"]);
        assert_eq!(fitting("a\nb\nc\n", 0), ["a", "... 2 lines more"]);
        assert_eq!(fitting("a\n", usize::MAX), ["a"]);
    }
}
