//! What is printed: buffered, and gone quietly when nobody reads on.
//!
//! Owns standard output, and takes colours away where nobody sees them (`style` says when). Invariant: an error of
//! writing comes back to `cli::run`, which knows a broken pipe from a full disk; nothing here panics, as `println!`
//! would.

use super::style;
use anstream::AutoStream;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};

/// Standard output.
pub struct Out {
    to: BufWriter<AutoStream<Stdout>>,
}

impl Out {
    /// Standard output.
    pub fn stdout() -> Self {
        Out { to: BufWriter::new(AutoStream::auto(io::stdout())) }
    }

    /// Writes text.
    ///
    /// # Errors
    /// Those of writing.
    pub fn write(&mut self, text: &str) -> io::Result<()> {
        self.to.write_all(text.as_bytes())
    }

    /// Writes a line.
    ///
    /// # Errors
    /// Those of writing.
    pub fn line(&mut self, text: &str) -> io::Result<()> {
        self.write(text)?;
        self.write("\n")
    }

    /// Writes a value as JSON, over several lines, with a final newline.
    ///
    /// # Errors
    /// Those of writing.
    pub fn json(&mut self, value: &impl serde::Serialize) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut self.to, value).map_err(io::Error::from)?;
        self.write("\n")
    }

    /// Writes what moves the cursor of a terminal, also where there are no colours.
    ///
    /// # Errors
    /// Those of writing.
    pub fn control(&mut self, code: &str) -> io::Result<()> {
        self.to.flush()?;
        io::stdout().write_all(code.as_bytes())
    }

    /// Sends what is buffered.
    ///
    /// # Errors
    /// Those of writing.
    pub fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }

    /// Whether somebody looks at it.
    pub fn is_terminal(&self) -> bool {
        io::stdout().is_terminal()
    }
}

/// A value as JSON with a newline at its end: on one line, or over several.
///
/// # Errors
/// Those of serde: the value has something that JSON has no form for.
pub fn json(value: &impl serde::Serialize, one_line: bool) -> io::Result<String> {
    let text = if one_line { serde_json::to_string(value) } else { serde_json::to_string_pretty(value) };
    Ok(text.map_err(io::Error::from)? + "\n")
}

/// Says on standard error what went wrong; that it cannot be said is no reason to fail twice.
pub fn complain(text: &str) {
    let _ = writeln!(AutoStream::auto(io::stderr()), "{}", style::complaint(text));
}
