//! Configuration: what a file, a command line or an API call asks for, made into a plan with every default filled in.
//!
//! Owns the notation and its checks. Never opens an image or a socket; `resolve` looks at files only to say early what
//! would fail later. Two steps: read low (`spec`: as written, with line numbers), then build high (`plan`).
//! Invariant: no text makes it panic, and a bad one gets all its problems named at once.

pub mod plan;
pub mod problem;
pub mod spec;

pub use plan::{DaemonPlan, DiskPlan, LogFormat, LogLevel, LogPlan, NbdListen, ServePlan, SocketAccess, StorePlan};
pub use problem::{Problem, Problems, Severity};
pub use spec::{DiskSpec, ServeSpec};
