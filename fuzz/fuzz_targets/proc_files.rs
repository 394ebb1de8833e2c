//! What the scanner reads about other processes: maps, pagemap entries, command lines, KSM statistics.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| undercroft::scan::exercise(data));
