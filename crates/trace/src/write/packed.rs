//! Output, compressed or not.
//!
//! Owns the choice of compressor. Invariant: the output is complete only after `finish`.

use super::target::Target;
use std::io::{self, BufWriter, Write};
use std::path::Path;

const ZSTD_LEVEL: i32 = 3;
const XZ_LEVEL: u32 = 6;
const BUFFER_BYTES: usize = 256 << 10;

/// How a file is compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Packing {
    /// Not at all.
    #[default]
    None,
    /// zstd.
    Zstd,
    /// gzip.
    Gzip,
    /// xz.
    Xz,
}

impl Packing {
    /// What the suffix of a name says.
    pub fn of_path(path: &Path) -> Self {
        match path.extension().map(|e| e.to_ascii_lowercase()) {
            Some(e) if e == "zst" => Packing::Zstd,
            Some(e) if e == "gz" => Packing::Gzip,
            Some(e) if e == "xz" => Packing::Xz,
            _ => Packing::None,
        }
    }
}

/// A file that is compressed while it is written.
pub(super) enum Packed {
    Plain(BufWriter<Target>),
    Zstd(BufWriter<zstd::Encoder<'static, Target>>),
    Gzip(BufWriter<flate2::write::GzEncoder<Target>>),
    Xz(BufWriter<liblzma::write::XzEncoder<Target>>),
}

impl Packed {
    pub fn new(target: Target, packing: Packing) -> io::Result<Self> {
        Ok(match packing {
            Packing::None => Packed::Plain(BufWriter::with_capacity(BUFFER_BYTES, target)),
            Packing::Zstd => {
                let mut encoder = zstd::Encoder::new(target, ZSTD_LEVEL)?;
                encoder.include_checksum(true)?;
                Packed::Zstd(BufWriter::with_capacity(BUFFER_BYTES, encoder))
            }
            Packing::Gzip => {
                let encoder = flate2::write::GzEncoder::new(target, flate2::Compression::default());
                Packed::Gzip(BufWriter::with_capacity(BUFFER_BYTES, encoder))
            }
            Packing::Xz => {
                let encoder = liblzma::write::XzEncoder::new(target, XZ_LEVEL);
                Packed::Xz(BufWriter::with_capacity(BUFFER_BYTES, encoder))
            }
        })
    }

    pub fn finish(self) -> io::Result<Target> {
        match self {
            Packed::Plain(w) => inner(w),
            Packed::Zstd(w) => inner(w)?.finish(),
            Packed::Gzip(w) => inner(w)?.finish(),
            Packed::Xz(w) => inner(w)?.finish(),
        }
    }
}

/// What a buffer wrote to, with all that it held written.
fn inner<W: Write>(w: BufWriter<W>) -> io::Result<W> {
    w.into_inner().map_err(io::IntoInnerError::into_error)
}

impl Write for Packed {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Packed::Plain(w) => w.write(buf),
            Packed::Zstd(w) => w.write(buf),
            Packed::Gzip(w) => w.write(buf),
            Packed::Xz(w) => w.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Packed::Plain(w) => w.flush(),
            Packed::Zstd(w) => w.flush(),
            Packed::Gzip(w) => w.flush(),
            Packed::Xz(w) => w.flush(),
        }
    }
}
