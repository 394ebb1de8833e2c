//! The image of a disk as the configuration names it, before it is opened.
//!
//! Owns the notation. Never opens an image. Invariant: a format that is not given stays open until the image is.

/// Which image to open, and how.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ImageSpec {
    /// A path, or the URI of an NBD server: `nbd://host[:port]/export`, `nbd+unix:///export?socket=path`.
    pub location: String,
    /// The format; found out from the location and the first bytes if `None` (raw is only guessed for files without a
    /// known magic number, and said in the log).
    pub format: Option<ImageFormat>,
    /// Whether to open without the right to write.
    pub read_only: bool,
}

/// Formats of images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ImageFormat {
    /// Bytes as they are: a file or a block device.
    Raw,
    /// QEMU's copy-on-write format, with its backing chain.
    Qcow2,
    /// Served by an NBD server.
    Nbd,
}

impl ImageFormat {
    /// As configuration and API write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
            Self::Nbd => "nbd",
        }
    }
}
