//! The volume plugin of Podman and Docker: volumes are images in a folder, each a disk of the running daemon.
//!
//! Owns the folder and the socket. Never deletes what it did not make. Invariants: a volume is what is in the folder,
//! so that nothing is lost with this process or the daemon; each step that can be cut off leaves a volume whole or
//! none.

mod driver;
mod folder;
mod server;
mod volume;
mod wire;

pub use driver::VolumeDriver;
pub use server::{PluginServer, serve};
pub use volume::{Description, SIZE_BYTES_MAX, SIZE_BYTES_MIN, VolumeOptions};
pub use wire::{BODY_BYTES_MAX, PluginCall, parse_call};
