//! The messages of a vhost-user front end, over a pair of sockets.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    undercroft::frontend::vhost::messages::fuzz_messages(data);
});
