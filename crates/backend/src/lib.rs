//! Back ends: what serves I/O operations from a real disk. One file per kind.
//!
//! Owns the image. Never knows about caching. Invariant: every operation submitted comes back from `poll` exactly
//! once, with its buffer, whatever happens to the disk.

#![forbid(unsafe_code)]

mod detect;
mod dormant;
mod error;
mod failures;
mod layers;
pub mod nbd;
mod probe;
pub mod qcow2;
mod raw;
mod registry;
pub mod ssd;
mod stamp;

pub use dormant::Dormant;
pub use error::{OpenError, UsedBy};
pub use probe::{differs, probe};
pub use stamp::{ImageFiles, ImageStamp, boot_id};
pub use undercroft_host::EngineChoice;

use detect::Magic;
use std::os::fd::BorrowedFd;
use std::path::Path;
use undercroft_cache::{Base, Geometry, Io, IoDone, Lost};
use undercroft_config::{ImageFormat, ImageSpec};
use undercroft_host::{Direct, DiskFile, FileId};

/// A disk that serves operations asynchronously; owned and driven by one worker thread.
pub trait Backend: Send {
    /// What the disk is like.
    fn geometry(&self) -> &Geometry;

    /// Takes an operation over. Never blocks: it is queued inside if the device is busy. A failure, too, comes back
    /// through `poll`. Offsets, lengths and buffers keep to the geometry.
    fn submit(&mut self, io: Io);

    /// Hands everything submitted so far to the device: several times in a long turn of the worker, once in a short
    /// one.
    fn kick(&mut self);

    /// Whether other disks of the worker have had work lately, to be told before a `kick`: what takes long to start
    /// should not keep them waiting then.
    fn set_shared(&mut self, _shared: bool) {}

    /// Whether the last `kick` has left operations for the next one, because to start them takes long and other disks
    /// have work. They are started by and by even if nobody kicks, as others end.
    fn holds_back(&self) -> bool {
        false
    }

    /// Appends finished operations to `done`, at most `undercroft_cache::limits::BATCH`; true if there may be more.
    fn poll(&mut self, done: &mut Vec<IoDone>) -> bool;

    /// Becomes readable (level-triggered) when `poll` has something to say.
    fn wake_fd(&self) -> BorrowedFd<'_>;

    /// What it is, for `status` and the logs: `raw (io_uring, O_DIRECT)`.
    fn describe(&self) -> String;

    /// Operations submitted and not yet returned by `poll`.
    fn inflight(&self) -> usize;

    /// The image below the disk that nobody writes, and what the disk has of its own, as it was when it was opened: to
    /// be asked once, before the first operation. `None` if there is none, or nothing is known of it.
    fn take_base(&mut self) -> Option<Base> {
        None
    }

    /// Reads whole blocks at `offset` before it returns: for checks, never to serve. `None` if it cannot.
    fn read_now(&self, _offset: u64, _to: &mut [u8]) -> Option<std::io::Result<()>> {
        None
    }

    /// The open files of the image, its own first: what they say of themselves tells whether somebody else has changed
    /// it. `None` where nothing can be known: of block devices and of servers.
    fn files(&self) -> Option<ImageFiles> {
        None
    }

    /// Why requests that change the image, or all of them, fail for good; `None` if they do not.
    fn refusal(&self) -> Option<String> {
        None
    }

    /// What the disk may have lost since this was asked last. To be asked after each `poll`: it holds before any
    /// completion that the poll returned.
    fn take_lost(&mut self) -> Option<Lost> {
        None
    }

    /// Whether the image is open.
    fn is_open(&self) -> bool {
        true
    }

    /// Gives up operations that it holds and will not begin, so that the back end which takes its place serves them.
    fn take_held(&mut self) -> Vec<Io> {
        Vec::new()
    }

    /// Operations that have waited longer than the back end finds normal, where it looks.
    fn stalled_ops(&self) -> usize {
        0
    }
}

/// How to open an image, besides what the image says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// io_uring or threads.
    pub engine: EngineChoice,
    /// How long an NBD disk waits for its server.
    pub nbd: nbd::NbdOptions,
}

/// Opens an image.
///
/// # Errors
/// See [`OpenError`]; each message names the image and the remedy.
pub fn open(spec: &ImageSpec, options: &OpenOptions) -> Result<Box<dyn Backend>, OpenError> {
    if spec.format == Some(ImageFormat::Nbd) || is_nbd(&spec.location) {
        return Ok(Box::new(nbd::Nbd::open(spec, options)?));
    }
    let opening = |e| OpenError::opening(&spec.location, spec.read_only, e);
    let (file, not_direct) =
        DiskFile::open(Path::new(&spec.location), spec.read_only, Direct::Prefer).map_err(opening)?;
    match format_of(spec, &file)? {
        ImageFormat::Qcow2 => Ok(Box::new(qcow2::Qcow2::open(spec, file, not_direct)?)),
        _ => {
            let guessed = spec.format.is_none();
            let image = raw::Raw::open(spec, file, not_direct, guessed, options)?;
            if guessed {
                tracing::info!(
                    image = spec.location,
                    "no format given and none recognised: it is served as raw, and writes that would make its first \
                     sector look like another format are refused; give the format to lift that"
                );
            }
            Ok(Box::new(image))
        }
    }
}

/// The format of a file: what was given, or what its first sector and its name say.
fn format_of(spec: &ImageSpec, file: &DiskFile) -> Result<ImageFormat, OpenError> {
    if let Some(format) = spec.format {
        return Ok(format);
    }
    let failed = |source| OpenError::Io { image: spec.location.clone(), doing: "reading its first sector", source };
    let named_qcow2 = Path::new(&spec.location).extension().is_some_and(|e| e.eq_ignore_ascii_case("qcow2"));
    match detect::magic(&detect::read(file, 0, detect::MAGIC_BYTES_MAX).map_err(failed)?) {
        Magic::Qcow2 => Ok(ImageFormat::Qcow2),
        Magic::Other(format) => Err(OpenError::Format { image: spec.location.clone(), format }),
        // Opened as what its name says, it is said to be empty.
        Magic::None if file.size_bytes == 0 && named_qcow2 => Ok(ImageFormat::Qcow2),
        Magic::None if named_qcow2 => Err(OpenError::NamedQcow2 { image: spec.location.clone() }),
        Magic::None => Ok(ImageFormat::Raw),
    }
}

/// The right to write into a file that belongs to no disk; while there is one, no disk of this process opens that file.
#[derive(Debug)]
pub struct NoDisks {
    _claim: registry::InUse,
}

/// Keeps a regular file from disks of this process. `by` is whose file it is, in words, for who wants to open it.
///
/// # Errors
/// Who has it.
pub fn keep_from_disks(device: u64, inode: u64, by: &str) -> Result<NoDisks, UsedBy> {
    let id = FileId::File { device, inode };
    registry::InUse::take(id, by).map(|claim| NoDisks { _claim: claim })
}

/// Whether a location names an NBD server.
pub fn is_nbd(location: &str) -> bool {
    location.split_once(':').is_some_and(|(scheme, _)| matches!(scheme, "nbd" | "nbds" | "nbd+unix" | "nbds+unix"))
}
