//! Writes log lines to standard error, which may be a pipe that nobody reads.
//!
//! Owns a bounded queue and the thread that writes. Never lets a thread that logs wait for the reader of the pipe.
//! Invariants: lines are written whole and in order; at most [`QUEUE_LINES`] wait; a line for which there is no room is
//! dropped and counted, and the count is logged when there is room again.

use super::limit::{Limits, OWN_TARGET};
use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};
use tracing_subscriber::fmt::MakeWriter;

/// Lines that wait for the reader of the log at most.
const QUEUE_LINES: usize = 1024;
/// Bytes of a line at most; the rest is cut.
const LINE_BYTES_MAX: usize = 8 * 1024;
/// How often it is said what was left out.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// Lines dropped since the program began, because nobody read the log.
pub(super) static UNREAD: AtomicU64 = AtomicU64::new(0);

static QUEUE: OnceLock<SyncSender<Message>> = OnceLock::new();

enum Message {
    Line(Vec<u8>),
    Flush(SyncSender<()>),
}

/// Hands lines to the thread that writes them.
#[derive(Clone, Debug)]
pub(super) struct Lines(SyncSender<Message>);

impl Write for Lines {
    /// Takes a whole line: that is how they come.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut kept = line[..line.len().min(LINE_BYTES_MAX)].to_vec();
        if kept.len() < line.len() {
            kept.extend_from_slice(b"...\n");
        }
        if let Err(TrySendError::Full(_)) = self.0.try_send(Message::Line(kept)) {
            UNREAD.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Lines;
    fn make_writer(&'a self) -> Lines {
        self.clone()
    }
}

/// Starts the thread that writes to `out`.
///
/// # Errors
/// There can be no thread.
pub(super) fn start(out: impl Write + Send + 'static, limits: &'static Limits) -> io::Result<Lines> {
    let (to, from) = sync_channel(QUEUE_LINES);
    std::thread::Builder::new().name("undercroft-log".into()).spawn(move || write_all(out, &from, limits))?;
    let _ = QUEUE.set(to.clone());
    Ok(Lines(to))
}

fn write_all(mut out: impl Write, from: &Receiver<Message>, limits: &Limits) {
    let (mut unread, mut said) = (0, Instant::now());
    loop {
        match from.recv_timeout(SAY_EVERY) {
            Ok(Message::Line(line)) => {
                // Nothing can be said about a log that cannot be written.
                let _ = out.write_all(&line);
            }
            Ok(Message::Flush(done)) => {
                let _ = out.flush();
                let _ = done.try_send(());
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if said.elapsed() < SAY_EVERY {
            continue;
        }
        said = Instant::now();
        let now = UNREAD.load(Ordering::Relaxed);
        if now > unread {
            tracing::warn!(target: OWN_TARGET, lines = now - unread, "lines were dropped: nobody read the log");
            unread = now;
        }
        let (kinds, rest) = limits.left_out();
        for (lines, example) in kinds {
            tracing::warn!(target: OWN_TARGET, lines, "more like this were left out: {example}");
        }
        if rest > 0 {
            tracing::warn!(target: OWN_TARGET, lines = rest, "more of other kinds were left out");
        }
    }
}

/// Waits until what was logged is written, at most `patience`.
pub(super) fn flush(patience: Duration) {
    let Some(queue) = QUEUE.get() else { return };
    let give_up = Instant::now() + patience;
    let (done, written) = sync_channel(1);
    let mut message = Message::Flush(done);
    while let Err(TrySendError::Full(back)) = queue.try_send(message) {
        if Instant::now() >= give_up {
            return;
        }
        message = back;
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = written.recv_timeout(give_up.saturating_duration_since(Instant::now()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_log_that_nobody_reads_stops_nobody() {
        let (mut reader, writer) = io::pipe().unwrap();
        let (to, from) = sync_channel(QUEUE_LINES);
        let limits: &'static Limits = Box::leak(Box::default());
        let thread = std::thread::spawn(move || write_all(writer, &from, limits));
        let before = UNREAD.load(Ordering::Relaxed);
        let mut lines = Lines(to);
        let line = [b'x'; 999];
        // A pipe holds 64 KiB and the queue a thousand lines: most of these fit nowhere.
        for _ in 0..10_000 {
            lines.write_all(&[&line[..], b"\n"].concat()).unwrap();
        }
        let dropped = UNREAD.load(Ordering::Relaxed) - before;
        assert!(dropped > 8_000, "{dropped} lines were dropped");
        drop(lines);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        thread.join().unwrap();
        assert_eq!(text.lines().count() as u64, 10_000 - dropped, "the others were written");
        assert!(text.lines().all(|l| l.len() == 999), "whole");
    }

    #[test]
    fn a_line_without_end_is_cut() {
        let (to, from) = sync_channel(QUEUE_LINES);
        Lines(to).write_all(&vec![b'x'; 1 << 20]).unwrap();
        let Message::Line(line) = from.recv().unwrap() else { panic!("a line") };
        assert!(line.len() <= LINE_BYTES_MAX + 4 && line.ends_with(b"...\n"));
    }
}
