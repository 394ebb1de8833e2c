//! What is printed: buffered, and gone quietly when nobody reads on.
//!
//! Owns standard output. Invariant: an error of writing comes back to `cli::run`, which knows a broken pipe from a full
//! disk; nothing here panics, as `println!` would.

use std::io::{self, BufWriter, IsTerminal, Stdout, Write};

/// Standard output.
pub struct Out {
    to: BufWriter<Stdout>,
}

impl Out {
    /// Standard output.
    pub fn stdout() -> Self {
        Out { to: BufWriter::new(io::stdout()) }
    }

    /// Writes text as it is.
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

/// Says on standard error what went wrong; that it cannot be said is no reason to fail twice.
pub fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}
