//! Every back end against a plain byte array, and against the real programs that share its images and protocols.
//!
//! One binary, so that there is one link. Needs qemu-utils and nbdkit for what concerns them.

mod harness;
mod nbd;
mod planted;
mod qcow2;
mod qcow2_contained;
mod qcow2_damage;
mod qcow2_metadata;
mod qcow2_order;
mod raw;
