//! Worker threads: each owns some disks, with their core, back ends and ports.
//!
//! Owns the order in which things happen. Never blocks on a disk or a peer; holds no lock. To come.
