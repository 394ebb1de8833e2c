//! What an image is like, without opening it: for a disk whose guest does not run here yet.
//!
//! Owns nothing: the file is closed again. Takes no lock, and reads no more than the first sectors: whoever has the
//! image now writes to it meanwhile. Invariant: nothing that is read here is used once the image is open, but to find
//! out whether it is still what guests were told.

use super::{OpenError, format_of, is_nbd, nbd, qcow2, raw};
use crate::{Backend, OpenOptions};
use std::path::Path;
use undercroft_cache::Geometry;
use undercroft_config::{ImageFormat, ImageSpec};
use undercroft_host::{Direct, DiskFile};

/// What the image at `spec` is like. A server is connected to, and disconnected from.
///
/// # Errors
/// See [`OpenError`]; not that the image is in use.
pub fn probe(spec: &ImageSpec, options: &OpenOptions) -> Result<Geometry, OpenError> {
    if spec.format == Some(ImageFormat::Nbd) || is_nbd(&spec.location) {
        return Ok(nbd::Nbd::open(spec, options)?.geometry().clone());
    }
    let opening = |e| OpenError::opening(&spec.location, spec.read_only, e);
    let (file, _) = DiskFile::open(Path::new(&spec.location), spec.read_only, Direct::Prefer).map_err(opening)?;
    match format_of(spec, &file)? {
        ImageFormat::Qcow2 => qcow2::probe(spec, &file),
        _ => raw::probe(spec, &file),
    }
}

/// Why a disk whose image is `now` cannot go on as one of which its guest was told `told`; `None` if it can.
pub fn differs(told: &Geometry, now: &Geometry) -> Option<String> {
    let said = |g: &Geometry| (g.size_bytes, g.align, g.read_only);
    (said(told) != said(now)).then(|| {
        format!(
            "the image is another than its guest knows: {} bytes in units of {}{}, where there were {} in units of \
             {}{}; detach the disk and attach it anew",
            now.size_bytes,
            now.align,
            if now.read_only { ", read-only" } else { "" },
            told.size_bytes,
            told.align,
            if told.read_only { ", read-only" } else { "" },
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open;

    fn spec(location: &Path) -> ImageSpec {
        ImageSpec { location: location.display().to_string(), format: None, read_only: false }
    }

    #[test]
    fn an_image_that_is_in_use_is_probed_and_is_what_it_is_when_open() {
        let dir = tempfile::tempdir().unwrap();
        let raw = dir.path().join("a.raw");
        std::fs::write(&raw, vec![0; 1 << 20]).unwrap();
        let told = probe(&spec(&raw), &OpenOptions::default()).unwrap();
        let other = open(&spec(&raw), &OpenOptions::default()).unwrap();
        assert_eq!(probe(&spec(&raw), &OpenOptions::default()).unwrap(), told, "also while it is in use");
        assert_eq!((&told, differs(&told, other.geometry())), (other.geometry(), None));
        assert_eq!(std::fs::metadata(&raw).unwrap().len(), 1 << 20, "nothing was changed");
        let larger = Geometry { size_bytes: 2 << 20, ..told.clone() };
        assert!(differs(&told, &larger).unwrap().contains("2097152 bytes"));
        let empty = dir.path().join("b.raw");
        std::fs::write(&empty, b"").unwrap();
        assert!(probe(&spec(&empty), &OpenOptions::default()).is_err());
        assert!(probe(&spec(&dir.path().join("none")), &OpenOptions::default()).is_err());
    }
}
