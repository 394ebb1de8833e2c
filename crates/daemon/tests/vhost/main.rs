//! vhost-user over real sockets, with a real worker, a real core and real images: what front ends do right, and what
//! they do to harm.
//!
//! Owns nothing. Every wait has an end, so that a lost answer is a failure and not a hang.

mod event_loop;
mod harm;
mod live;
mod migration;
mod rig;
