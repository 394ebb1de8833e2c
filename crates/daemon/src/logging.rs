//! Logs: lines for people, JSON for programs, priorities for the journal; always to standard error.
//!
//! Owns the one global subscriber. Never logs on the data path (nobody may). Invariants: `set_level` changes what is
//! logged from then on, and nothing else; nobody who logs waits for who reads; no peer fills the log.

mod limit;
mod writer;

use std::fmt;
use std::io::IsTerminal;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, reload};
use undercroft_config::{LogFormat, LogLevel, LogPlan};

/// Environment variable with filter directives (`undercroft_daemon::worker=debug,info`); counts more than the level.
pub const FILTER_VARIABLE: &str = "UNDERCROFT_LOG";

static FILTER: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();

/// Why nothing can be logged.
#[derive(Debug, thiserror::Error)]
pub enum LoggingError {
    /// The variable makes no sense.
    #[error("{FILTER_VARIABLE}=\"{text}\" is no filter: {source}; write it like {FILTER_VARIABLE}=undercroft=debug")]
    Filter {
        /// What it says.
        text: String,
        /// What is wrong with that.
        source: tracing_subscriber::filter::ParseError,
    },
    /// There is no thread that writes.
    #[error("there can be no thread for the log: {0}")]
    Thread(std::io::Error),
}

/// Starts logging. Later calls only set the level: there is one log in a process.
///
/// # Errors
/// See [`LoggingError`].
pub fn init(plan: LogPlan) -> Result<(), LoggingError> {
    if FILTER.get().is_some() {
        set_level(plan.level);
        return Ok(());
    }
    let filter = match std::env::var(FILTER_VARIABLE) {
        Ok(text) if !text.is_empty() => {
            EnvFilter::try_new(&text).map_err(|source| LoggingError::Filter { text, source })?
        }
        _ => of_level(plan.level),
    };
    let (filter, handle) = reload::Layer::new(filter);
    let limits: &'static limit::Limits = Box::leak(Box::default());
    let out = writer::start(std::io::stderr(), limits).map_err(LoggingError::Thread)?;
    let lines = tracing_subscriber::fmt::layer().with_writer(out);
    let lines: Box<dyn Layer<_> + Send + Sync> = match plan.format {
        LogFormat::Json => Box::new(lines.json().flatten_event(true).with_current_span(false).with_span_list(false)),
        LogFormat::Text if is_journal() => Box::new(lines.with_ansi(false).event_format(Journal)),
        LogFormat::Text => Box::new(lines.with_ansi(std::io::stderr().is_terminal()).with_target(false)),
    };
    let lines = lines.with_filter(limit::Limiter(limits));
    if tracing_subscriber::registry().with(filter).with(lines).try_init().is_ok() {
        let _ = FILTER.set(handle);
    }
    Ok(())
}

/// Waits until what was logged is written, a second at most: before the process ends.
pub fn flush() {
    writer::flush(Duration::from_secs(1));
}

/// Lines that were not logged since the program began: those that were too many of one kind, and those that nobody
/// read.
pub(crate) fn lines_lost() -> (u64, u64) {
    (limit::LEFT_OUT.load(Ordering::Relaxed), writer::UNREAD.load(Ordering::Relaxed))
}

/// Changes the level of the running log, unless `UNDERCROFT_LOG` rules.
pub(crate) fn set_level(level: LogLevel) {
    if std::env::var_os(FILTER_VARIABLE).is_some_and(|v| !v.is_empty()) {
        return;
    }
    if let Some(handle) = FILTER.get() {
        let _ = handle.reload(of_level(level));
    }
}

fn of_level(level: LogLevel) -> EnvFilter {
    let level = match level {
        LogLevel::Error => "error",
        LogLevel::Warn => "warn",
        LogLevel::Info => "info",
        LogLevel::Debug => "debug",
        LogLevel::Trace => "trace",
    };
    // Libraries speak at their own levels; ours decides for us, and for them no lower than theirs.
    EnvFilter::new(format!("{level},hyper=warn,hyper_util=warn,tokio=warn,mio=warn"))
}

/// Whether standard error goes to the journal, by the rule of systemd.exec(5): the variable names its device and inode.
fn is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    let Ok(meta) = std::fs::metadata("/proc/self/fd/2") else { return false };
    stream == format!("{}:{}", meta.dev(), meta.ino())
}

/// Lines for the journal: `<priority>message field=value`, without the time, which it adds.
struct Journal;

impl<S, N> FormatEvent<S, N> for Journal
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, ctx: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let priority = match *event.metadata().level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            Level::DEBUG | Level::TRACE => 7,
        };
        write!(writer, "<{priority}>")?;
        ctx.field_format().format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}
