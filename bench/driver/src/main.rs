//! Drives a vhost-user-blk or NBD socket without a VM and prints what it measured.
fn main() {}
