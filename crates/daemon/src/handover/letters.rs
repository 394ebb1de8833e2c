//! The letters between two daemons, in their order: who serves what, ready to be told, what is left, ready to serve,
//! and the word to begin.
//!
//! Owns their form. Invariant: a daemon of another form refuses the first one.

use super::channel::{Channel, Letter};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Instant;
use undercroft_backend::ssd::SetId;
use undercroft_frontend::fuse::FileState;

/// The form of these letters; another one is not understood.
pub(crate) const FORM: u32 = 2;

/// The first one, from whoever serves: what there is to take over. With the memory of each worker's cache, if it stays.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Offer {
    pub(crate) form: u32,
    /// The program's version.
    pub(crate) version: String,
    pub(crate) memory_bytes: u64,
    pub(crate) workers: usize,
    /// Names and sizes in bytes of the disks that are served.
    pub(crate) disks: Vec<(String, u64)>,
    /// The worker of each.
    pub(crate) places: Vec<usize>,
    /// The SSD store, if one is in service.
    pub(crate) ssd: Option<OfferedSsd>,
}

/// What there is to know of an SSD store before it is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OfferedSsd {
    /// Of what will be told.
    pub(crate) form: u32,
    pub(crate) paths: Vec<PathBuf>,
    pub(crate) size_bytes: Option<u64>,
    pub(crate) segment_bytes: u64,
}

/// The answer: it serves these disks, too, and is ready to be told what is left. Or why not.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Prepared {
    pub(crate) refusal: Option<String>,
}

/// Nobody serves any more: what there is to go on with. The descriptors stand in the order of the fields. With the list
/// of what is cached.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Left {
    /// Where listeners listen.
    pub(crate) listeners: Vec<String>,
    pub(crate) sessions: Vec<LeftSession>,
    pub(crate) ssd: Option<LeftSsd>,
    pub(crate) files: Vec<LeftFile>,
    /// Of disks that have lost something: who has not been told yet.
    #[serde(default)]
    pub(crate) untold: Vec<LeftUntold>,
    /// What was pinned by hand, or named by a profile, which no file says.
    #[serde(default)]
    pub(crate) pins: Vec<LeftPins>,
}

/// What was pinned of a disk, or named by its profile, by hand: where each range begins, and its bytes.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct LeftPins {
    pub(crate) disk: String,
    pub(crate) pins: Option<Vec<(u64, u64)>>,
    pub(crate) profile: Option<Vec<(u64, u64)>>,
}

/// So many ports of a disk are to be told that it has lost something.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct LeftUntold {
    pub(crate) disk: String,
    pub(crate) ports: u32,
}

/// An SSD store. Its descriptors: what each worker's store has told, then those of its files and devices.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct LeftSsd {
    /// Which store.
    pub(crate) id: SetId,
    /// How many descriptors each file or device has.
    pub(crate) devices: Vec<usize>,
    pub(crate) disks: Vec<LeftUse>,
}

/// How a disk uses it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct LeftUse {
    pub(crate) disk: String,
    pub(crate) worker: usize,
    pub(crate) owner: u16,
    pub(crate) base: Option<u16>,
    pub(crate) share: u64,
    /// What the files of its image said when it was closed, if they tell anything.
    pub(crate) image: Option<Vec<u8>>,
}

/// The session of a front end. Its connection is the first of its descriptors.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct LeftSession {
    pub(crate) disk: String,
    pub(crate) numbers: Vec<u64>,
    pub(crate) descriptors: usize,
}

/// A file: its connection is the first of its descriptors, the memory that the service manager keeps beside it the
/// second, if it does. There it is written, too, for the next start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LeftFile {
    pub(crate) state: FileState,
    #[serde(flatten)]
    pub(crate) origin: Origin,
    pub(crate) descriptors: usize,
}

/// Where a file and its disk come from, if not from the configuration.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Origin {
    /// The file was made by hand.
    pub(crate) by_hand: bool,
    /// The disk was attached by hand, to stay: whoever did that does so again after a restart.
    pub(crate) attached: bool,
}

/// All is ready to begin.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Ready {
    pub(crate) form: u32,
}

/// Begin: whoever served before does not any more, whatever happens.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Begin {
    pub(crate) form: u32,
}

/// Sends one of the letters.
pub(crate) fn send(
    to: &Channel,
    letter: &impl Serialize,
    list: Vec<u8>,
    descriptors: Vec<OwnedFd>,
    give_up: Instant,
) -> io::Result<()> {
    let text = serde_json::to_vec(letter).map_err(io::Error::other)?;
    to.send(&Letter { text, list, descriptors }, give_up)
}

/// Receives one, which must be the one that is its turn.
pub(crate) fn receive<T: DeserializeOwned>(from: &Channel, give_up: Instant) -> io::Result<(T, Vec<u8>, Vec<OwnedFd>)> {
    let Letter { text, list, descriptors } = from.receive(give_up)?;
    let letter = serde_json::from_slice(&text).map_err(io::Error::other)?;
    Ok((letter, list, descriptors))
}
