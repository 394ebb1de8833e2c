//! The font of plots, which the build has packed (decision 0174).
//!
//! Owns the font. Never draws. Invariant: it is unpacked once, when something is drawn first.

use flate2::read::ZlibDecoder;
use plotters::style::{FontStyle, register_font};
use std::io::Read;
use std::sync::Once;

static PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/font.zlib"));

/// Makes the font known to the library that draws.
pub(super) fn register() {
    static FONT: Once = Once::new();
    FONT.call_once(|| {
        // A font that cannot be read leaves plots without text, which no caller could mend.
        if let Ok(font) = unpacked() {
            let _ = register_font("sans-serif", FontStyle::Normal, font.leak());
        }
    });
}

fn unpacked() -> std::io::Result<Vec<u8>> {
    let mut font = Vec::new();
    ZlibDecoder::new(PACKED).read_to_end(&mut font)?;
    Ok(font)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_font_and_half_as_large_when_packed() {
        let font = unpacked().unwrap();
        assert_eq!(font[..4], [0, 1, 0, 0], "fonts of outlines begin so");
        assert!(PACKED.len() < font.len() * 6 / 10, "{} bytes of {}", PACKED.len(), font.len());
        register();
        assert!(register_font("sans-serif", FontStyle::Normal, font.leak()).is_ok(), "the library reads it");
    }
}
