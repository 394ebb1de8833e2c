//! Compressed input: zstd, gzip and xz, told by their first bytes, not by the file's name.
//!
//! Owns the choice of decompressor. Never interprets what comes out.
//! Invariant: memory is bounded whatever the input says (a window of 128 MiB, as the zstd tool has it).

use std::io::{self, Read};

const ZSTD_MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];
const XZ_MAGIC: [u8; 6] = [0xFD, b'7', b'z', b'X', b'Z', 0];
const GZIP_MAGIC: [u8; 3] = [0x1F, 0x8B, 8];
/// The largest window accepted, as a power of two.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;
/// What an xz decoder may take; level 9 needs 65 MiB.
const XZ_MEMORY_BYTES_MAX: u64 = 128 << 20;

/// A reader of what `input` holds, decompressed if it is compressed. It is read in large pieces: nothing is buffered
/// here that a decompressor does not buffer itself.
pub(crate) fn decompressed<'a>(mut input: impl Read + Send + 'a) -> io::Result<Box<dyn Read + Send + 'a>> {
    // a pipe may give its first bytes one by one, so that peeking into a buffer once is not enough
    let mut head = Vec::new();
    input.by_ref().take(XZ_MAGIC.len() as u64).read_to_end(&mut head)?;
    let (zstd, xz, gzip) = (head.starts_with(&ZSTD_MAGIC), head.starts_with(&XZ_MAGIC), head.starts_with(&GZIP_MAGIC));
    let whole = io::Cursor::new(head).chain(input);
    Ok(if zstd {
        let mut decoder = zstd::Decoder::new(whole)?;
        decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
        Box::new(decoder)
    } else if xz {
        let stream = liblzma::stream::Stream::new_stream_decoder(XZ_MEMORY_BYTES_MAX, liblzma::stream::CONCATENATED)?;
        Box::new(liblzma::read::XzDecoder::new_stream(whole, stream))
    } else if gzip {
        Box::new(flate2::read::MultiGzDecoder::new(whole))
    } else {
        Box::new(whole)
    })
}
