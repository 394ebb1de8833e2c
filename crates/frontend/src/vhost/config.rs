//! What the device says about itself: features and config space (virtio 1.2, sections 5.2.3 to 5.2.5).
//!
//! Owns the translation of a disk's geometry into virtio terms. Never changes while a front end is connected.
//! Invariant: what is offered here is what `request` serves, with the same limits.

use super::limits::{
    CONFIG_BYTES_MAX, RANGE_SECTORS_MAX, RANGES_MAX, SEG_MAX, SEGMENT_BYTES_MAX, WRITTEN_ZEROES_SECTORS_MAX,
};
use super::request::SECTOR_BYTES;
use crate::DiskInfo;
use undercroft_cache::DiskId;
use undercroft_cache::Geometry;
use vhost::vhost_user::message::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_MQ, VIRTIO_BLK_F_RO,
    VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_SIZE_MAX, VIRTIO_BLK_F_TOPOLOGY, VIRTIO_BLK_F_WRITE_ZEROES, VIRTIO_BLK_ID_BYTES,
};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

/// Bytes of the cache's blocks: what guests are told to prefer.
const PREFERRED_BYTES: u32 = 4096;

/// The driver says after which entry it wants to be notified.
pub const EVENT_IDX: u64 = 1 << VIRTIO_RING_F_EVENT_IDX;
/// The driver flushes by itself; without it every write is durable before its reply.
pub const FLUSH: u64 = 1 << VIRTIO_BLK_F_FLUSH;
/// vhost-user's own features can be agreed upon.
pub const PROTOCOL_FEATURES: u64 = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();

/// What is written to the guest's memory is to be marked in a log. Offered always, agreed upon while a guest migrates.
pub const LOG_ALL: u64 = VhostUserVirtioFeatures::LOG_ALL.bits();

/// A disk as the virtio-blk protocol sees it.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Its name, for the log.
    pub name: String,
    /// Its id in the core.
    pub disk: DiskId,
    /// Bytes that guests can reach: whole logical blocks.
    pub size_bytes: u64,
    /// Bytes of a logical block.
    pub block_bytes: u32,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Sectors in one discarded range at most; 0 if discards are not served.
    pub discard_sectors_max: u32,
    /// Sectors in one zeroed range at most; 0 if write-zeroes is not served.
    pub write_zeroes_sectors_max: u32,
    /// The serial number, padded with zeroes.
    pub serial: [u8; VIRTIO_BLK_ID_BYTES as usize],
}

impl Profile {
    /// From what is known of a disk.
    pub fn new(info: &DiskInfo) -> Profile {
        let &Geometry { size_bytes, align, read_only, can_discard, can_write_zeroes } = &info.geometry;
        let block_bytes = align.max(SECTOR_BYTES as u32);
        let mut serial = [0; VIRTIO_BLK_ID_BYTES as usize];
        let bytes = info.serial.as_bytes();
        let len = bytes.len().min(serial.len());
        serial[..len].copy_from_slice(&bytes[..len]);
        Profile {
            name: info.name.clone(),
            disk: info.disk,
            size_bytes: size_bytes - size_bytes % u64::from(block_bytes),
            block_bytes,
            read_only,
            discard_sectors_max: if can_discard && !read_only { RANGE_SECTORS_MAX } else { 0 },
            write_zeroes_sectors_max: match (read_only, can_write_zeroes) {
                (true, _) => 0,
                (false, true) => RANGE_SECTORS_MAX,
                (false, false) => WRITTEN_ZEROES_SECTORS_MAX,
            },
            serial,
        }
    }

    /// The virtio features offered.
    pub fn features(&self) -> u64 {
        let mut features = 1 << VIRTIO_F_VERSION_1
            | 1 << VIRTIO_RING_F_INDIRECT_DESC
            | EVENT_IDX
            | FLUSH
            | 1 << VIRTIO_BLK_F_SIZE_MAX
            | 1 << VIRTIO_BLK_F_SEG_MAX
            | 1 << VIRTIO_BLK_F_BLK_SIZE
            | 1 << VIRTIO_BLK_F_TOPOLOGY
            | 1 << VIRTIO_BLK_F_MQ
            | PROTOCOL_FEATURES
            | LOG_ALL;
        if self.read_only {
            features |= 1 << VIRTIO_BLK_F_RO;
        }
        if self.discard_sectors_max > 0 {
            features |= 1 << VIRTIO_BLK_F_DISCARD;
        }
        if self.write_zeroes_sectors_max > 0 {
            features |= 1 << VIRTIO_BLK_F_WRITE_ZEROES;
        }
        features
    }

    /// The vhost-user protocol features offered.
    pub fn protocol_features() -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::LOG_SHMFD
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD
            | VhostUserProtocolFeatures::RESET_DEVICE
    }

    /// The config space of a device with `queues` queues: `struct virtio_blk_config`, then zeroes.
    pub(crate) fn config_space(&self, queues: u16) -> [u8; CONFIG_BYTES_MAX] {
        let mut space = [0; CONFIG_BYTES_MAX];
        let mut put = |at: usize, bytes: &[u8]| space[at..at + bytes.len()].copy_from_slice(bytes);
        let preferred_blocks = (PREFERRED_BYTES / self.block_bytes).max(1);
        put(0, &(self.size_bytes / SECTOR_BYTES).to_le_bytes());
        put(8, &SEGMENT_BYTES_MAX.to_le_bytes());
        put(12, &SEG_MAX.to_le_bytes());
        // 16..20: cylinders, heads, sectors; not offered.
        put(20, &self.block_bytes.to_le_bytes());
        put(24, &[preferred_blocks.ilog2() as u8]);
        // 25: offset of the first aligned block, 0.
        put(26, &(preferred_blocks as u16).to_le_bytes());
        // 28..32: best size of an I/O, not said. 32: the write-back switch, not offered.
        put(34, &queues.to_le_bytes());
        if self.discard_sectors_max > 0 {
            put(36, &self.discard_sectors_max.to_le_bytes());
            put(40, &(RANGES_MAX as u32).to_le_bytes());
            put(44, &(PREFERRED_BYTES / SECTOR_BYTES as u32).to_le_bytes());
        }
        if self.write_zeroes_sectors_max > 0 {
            put(48, &self.write_zeroes_sectors_max.to_le_bytes());
            put(52, &(RANGES_MAX as u32).to_le_bytes());
            put(56, &[u8::from(self.discard_sectors_max > 0)]);
        }
        space
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(geometry: Geometry) -> DiskInfo {
        DiskInfo { name: "d".into(), disk: DiskId(0), geometry, serial: "an-overlong-serial-number".into() }
    }

    fn geometry() -> Geometry {
        Geometry { size_bytes: 1 << 20, align: 1, read_only: false, can_discard: true, can_write_zeroes: true }
    }

    #[test]
    fn the_rest_of_a_ragged_disk_is_not_offered() {
        let p = Profile::new(&info(Geometry { size_bytes: 10_000, align: 1, ..geometry() }));
        assert_eq!((p.size_bytes, p.block_bytes), (9728, 512));
        let p = Profile::new(&info(Geometry { size_bytes: 10_000, align: 4096, ..geometry() }));
        assert_eq!((p.size_bytes, p.block_bytes), (8192, 4096));
        assert_eq!(p.config_space(1)[..8], 16u64.to_le_bytes());
    }

    #[test]
    fn guests_learn_to_prefer_blocks_of_4_kib() {
        let c = Profile::new(&info(geometry())).config_space(3);
        assert_eq!((c[20..24].to_vec(), c[24]), (512u32.to_le_bytes().to_vec(), 3));
        assert_eq!(c[34..36], 3u16.to_le_bytes());
        let c = Profile::new(&info(Geometry { align: 4096, ..geometry() })).config_space(3);
        assert_eq!((c[20..24].to_vec(), c[24]), (4096u32.to_le_bytes().to_vec(), 0));
    }

    #[test]
    fn a_read_only_disk_offers_nothing_that_writes() {
        let p = Profile::new(&info(Geometry { read_only: true, ..geometry() }));
        let bit = |b: u32| p.features() & 1 << b != 0;
        assert!(bit(VIRTIO_BLK_F_RO) && !bit(VIRTIO_BLK_F_DISCARD) && !bit(VIRTIO_BLK_F_WRITE_ZEROES));
        assert_eq!(p.config_space(1)[36..60], [0; 24]);
    }

    #[test]
    fn zeroes_that_must_be_written_come_in_smaller_ranges() {
        let p = Profile::new(&info(Geometry { can_write_zeroes: false, can_discard: false, ..geometry() }));
        assert_eq!(p.write_zeroes_sectors_max, WRITTEN_ZEROES_SECTORS_MAX);
        let c = p.config_space(1);
        assert_eq!(c[56], 0, "no promise to free space where it cannot be freed");
        assert_eq!(&p.serial, b"an-overlong-serial-n");
    }
}
