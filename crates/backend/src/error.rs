//! Why an image cannot be opened: one message per reason, each naming the image and the remedy.
//!
//! Owns the wording. Never decides. Invariant: no message needs another line of the log to be understood.

use std::io;
use thiserror::Error;

/// Why an image cannot be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Nothing at that path.
    #[error("{image}: there is no such image; check the path (a relative one starts at {from})")]
    NotFound {
        /// The image.
        image: String,
        /// The working directory.
        from: String,
    },
    /// The file may not be opened.
    #[error("{image}: this process may not open it for {access}; {remedy}")]
    Permission {
        /// The image.
        image: String,
        /// `reading` or `reading and writing`.
        access: &'static str,
        /// What can be done.
        remedy: &'static str,
    },
    /// A directory, a character device, a pipe.
    #[error("{image}: {what}; name an image file or a block device")]
    NotADisk {
        /// The image.
        image: String,
        /// What it is.
        what: String,
    },
    /// No bytes.
    #[error("{image}: the image is empty; give it a size, for instance by `{by}`")]
    Empty {
        /// The image.
        image: String,
        /// The command that does.
        by: String,
    },
    /// A size that cannot be served.
    #[error(
        "{image}: its size of {size} bytes is not a multiple of {unit}, so its last sector could not be reached; \
         round it up: `truncate -s {rounded} {image}`"
    )]
    OddSize {
        /// The image.
        image: String,
        /// Its size in bytes.
        size: u64,
        /// What it has to be a multiple of.
        unit: u32,
        /// The next size that will do.
        rounded: u64,
    },
    /// A size that cannot be served, of a file that begins like an image of another format than raw, as which it is to
    /// be served.
    #[error("{image} begins like a {looks} image, and its size of {size} bytes is none that a raw disk has; {remedy}")]
    NotRaw {
        /// The image.
        image: String,
        /// What it looks like.
        looks: &'static str,
        /// Its size in bytes.
        size: u64,
        /// What to do.
        remedy: &'static str,
    },
    /// Open already by another disk of this daemon.
    #[error("{image}: disk image in use by another disk of this daemon ({other}); {remedy}")]
    InUseHere {
        /// The image.
        image: String,
        /// The location under which the other disk opened it.
        other: String,
        /// What can be done.
        remedy: &'static str,
    },
    /// Something else than a disk has the file.
    #[error("{image}: the file belongs to {by}, so it is no disk's; wait until that is over, or name another image")]
    NotForDisks {
        /// The image.
        image: String,
        /// Whose it is, in words.
        by: String,
    },
    /// Locked by another program.
    #[error(
        "{image}: the image is locked by another program{by}; stop that program first, or open the image read-only \
         there and here"
    )]
    InUse {
        /// The image.
        image: String,
        /// ` (qemu-system-x86, pid 12)`, or nothing.
        by: String,
    },
    /// A format that is known but not served.
    #[error(
        "{image}: {format} images are not served directly; let qemu-nbd open it (`qemu-nbd --socket=/run/disk.sock \
         --persistent {image}`) and name the disk `nbd+unix:///?socket=/run/disk.sock`"
    )]
    Format {
        /// The image.
        image: String,
        /// The format's name.
        format: &'static str,
    },
    /// A file that is said to be a qcow2 image, and is not.
    #[error(
        "{image} is no qcow2 image: it does not begin with the header of one; leave `format` out and it is found out, \
         or name another image"
    )]
    NotQcow2 {
        /// The file.
        image: String,
    },
    /// A file without the header of a qcow2 image that has the name of one.
    #[error(
        "{image}: the name says qcow2, but it does not begin with the header of one: a damaged image, or one that was \
         not written yet; look at a copy with `qemu-img check`, or give `format = \"raw\"` if its bytes are those of a \
         disk"
    )]
    NamedQcow2 {
        /// The file.
        image: String,
    },
    /// An image that is broken.
    #[error("{image}: the image is damaged: {what}; try `qemu-img check -r all` on a copy of it")]
    Damaged {
        /// The image.
        image: String,
        /// What is wrong.
        what: String,
    },
    /// An image that uses something not served.
    #[error("{image}: {feature} is not supported; {remedy}")]
    Unsupported {
        /// The image.
        image: String,
        /// The feature.
        feature: String,
        /// What can be done.
        remedy: String,
    },
    /// A file that the image refers to.
    #[error("{image}: its backing image cannot be opened: {source}")]
    Backing {
        /// The image that names the other.
        image: String,
        /// What is wrong with the other.
        source: Box<OpenError>,
    },
    /// An NBD location that is not one.
    #[error("{location}: {what}; write `nbd://host[:port]/export` or `nbd+unix:///export?socket=/path`")]
    Location {
        /// As given.
        location: String,
        /// What is wrong.
        what: String,
    },
    /// An NBD server that cannot be used.
    #[error("{location}: {what}")]
    Nbd {
        /// As given.
        location: String,
        /// What happened and what can be done.
        what: String,
    },
    /// Anything else the system says.
    #[error("{image}: {doing}: {source}")]
    Io {
        /// The image.
        image: String,
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl OpenError {
    /// The error for a failed `open` of the file at `image`.
    pub(super) fn opening(image: &str, read_only: bool, e: io::Error) -> Self {
        let image = image.to_owned();
        match e.kind() {
            io::ErrorKind::NotFound => {
                let from = std::env::current_dir().map_or_else(|_| ".".to_owned(), |d| d.display().to_string());
                Self::NotFound { image, from }
            }
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                let (access, remedy) = if read_only {
                    ("reading", "give its user the right to read the image")
                } else {
                    ("reading and writing", "give its user the right to write to the image, or open it read-only")
                };
                Self::Permission { image, access, remedy }
            }
            io::ErrorKind::InvalidInput | io::ErrorKind::IsADirectory => Self::NotADisk { image, what: e.to_string() },
            _ => Self::Io { image, doing: "opening the image", source: e },
        }
    }
}

/// A file that is somebody's already.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("in use by {by}")]
pub struct UsedBy {
    /// The location of the disk whose image it is, or behind whose image it is; or whose else it is, in words.
    pub by: String,
}
