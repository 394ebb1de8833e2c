//! Packs the font of plots, which is half as large then: a program that serves disks need not carry more of it.
//!
//! Owns the form in which the font is shipped. Never changes it. Invariant: what is unpacked is the crate's font.

use flate2::Compression;
use flate2::write::ZlibEncoder;
use std::io::{Result, Write};
use std::path::PathBuf;

fn main() -> Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    let mut packed = ZlibEncoder::new(Vec::new(), Compression::best());
    packed.write_all(dejavu::sans::regular())?;
    let folder = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo says where to write"));
    std::fs::write(folder.join("font.zlib"), packed.finish()?)
}
