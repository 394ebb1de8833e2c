//! The API over a real socket, with a daemon that lives in memory: routes, status codes, bodies, bounds, metrics.
//!
//! Owns the HTTP layer only; what the real daemon does is tested with it.

mod connections;
mod memory;
mod metrics;
mod rig;
mod routes;
