//! Verifies an image that nothing serves, for `undercroft check`.
//!
//! Owns nothing: opens the file for reading, under a lock, and closes it. Never writes. Invariant: what passes here is
//! what a disk of the daemon would pass before its first write.

use super::verify::{Failure, Verified, verify};
use super::{chain, header::Header};
use crate::detect::{self, Magic};
use crate::{OpenError, raw};
use std::path::Path;
use undercroft_host::{Direct, DiskFile};

/// What an image is like.
#[derive(Debug)]
pub enum Examined {
    /// Not a qcow2 image: there is nothing to verify.
    Other,
    /// It may be written to.
    Sound(Verified),
    /// It can only be read; why, and what helps.
    ReadOnly(String),
}

/// Examines the image at `location`, a file; `qcow2` if that is its format whatever its first bytes are.
/// `progress(done, of)` is told about tables read.
///
/// # Errors
/// It cannot be opened, or is in use, or is so damaged that it would not be opened.
pub fn examine(location: &str, qcow2: bool, mut progress: impl FnMut(u64, u64)) -> Result<Examined, OpenError> {
    let (file, _) =
        DiskFile::open(Path::new(location), true, Direct::Prefer).map_err(|e| OpenError::opening(location, true, e))?;
    let failed = |source| OpenError::Io { image: location.to_owned(), doing: "reading its tables", source };
    let start = detect::read(&file, 0, detect::MAGIC_BYTES_MAX).map_err(failed)?;
    if !qcow2 && detect::magic(&start) != Magic::Qcow2 {
        return Ok(Examined::Other);
    }
    raw::lock(&file, location, true, false)?;
    let header: Header = chain::read_header(location, &file)?;
    if let Err(super::Refusal::Damaged(why)) = header.may_be_written() {
        return Ok(Examined::ReadOnly(why));
    }
    let read = |offset, bytes| detect::read(&file, offset, bytes);
    let tell = |done, of| {
        progress(done, of);
        true
    };
    match verify(&header, file.size_bytes, read, tell) {
        Ok(verified) => Ok(Examined::Sound(verified)),
        Err(Failure::Io(e)) => Err(failed(e)),
        Err(Failure::Inconsistent(what)) => Ok(Examined::ReadOnly(format!("the image is damaged: {what}"))),
        Err(Failure::Beyond(what)) => Ok(Examined::ReadOnly(format!("it cannot be verified: {what}"))),
        Err(Failure::Stopped) => Ok(Examined::Other),
    }
}
