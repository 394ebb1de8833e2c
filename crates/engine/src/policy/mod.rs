//! The replacement policies: the list of them by name, and what an index asks of one.

use std::fmt;
use std::str::FromStr;

/// The replacement policies a disk can be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PolicyKind {
    /// First in, first out.
    Fifo,
    /// Least recently used.
    Lru,
    /// Second chance with one reference bit (Corbató, 1968).
    Clock,
    /// Adaptive replacement cache (Megiddo and Modha, FAST 2003).
    Arc,
    /// Clock with adaptive replacement (Bansal and Modha, FAST 2004).
    Car,
    /// Three static FIFO queues (Yang et al., SOSP 2023).
    S3Fifo,
    /// SIEVE (Zhang et al., NSDI 2024).
    Sieve,
    /// Window TinyLFU (Einziger, Friedman and Manes, ACM ToS 2017).
    WTinyLfu,
}

impl PolicyKind {
    /// All policies, in the order in which help and tables list them.
    pub const ALL: [PolicyKind; 8] = [
        PolicyKind::Fifo,
        PolicyKind::Lru,
        PolicyKind::Clock,
        PolicyKind::Arc,
        PolicyKind::Car,
        PolicyKind::S3Fifo,
        PolicyKind::Sieve,
        PolicyKind::WTinyLfu,
    ];

    /// The name used in configuration, on the command line and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            PolicyKind::Fifo => "fifo",
            PolicyKind::Lru => "lru",
            PolicyKind::Clock => "clock",
            PolicyKind::Arc => "arc",
            PolicyKind::Car => "car",
            PolicyKind::S3Fifo => "s3-fifo",
            PolicyKind::Sieve => "sieve",
            PolicyKind::WTinyLfu => "w-tinylfu",
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for PolicyKind {
    type Err = String;

    /// # Errors
    /// A sentence that lists the known names.
    fn from_str(s: &str) -> Result<Self, String> {
        let plain = |s: &str| s.to_ascii_lowercase().replace(['-', '_'], "");
        Self::ALL.into_iter().find(|k| plain(k.name()) == plain(s)).ok_or_else(|| {
            let known: Vec<_> = Self::ALL.iter().map(|k| k.name()).collect();
            format!("unknown policy \"{s}\"; known are {}", known.join(", "))
        })
    }
}
