//! The structures of linux/ublk_cmd.h, and the numbers of its commands.
//!
//! Owns layouts. Never calls the kernel. Invariant: whatever bytes the kernel fills in, reading them has a result.

/// Bytes of `ublksrv_ctrl_cmd`.
pub(super) const CONTROL_BYTES: usize = 32;
/// Bytes of `ublksrv_ctrl_dev_info`.
pub(super) const INFO_BYTES: usize = 64;
/// Bytes of `ublk_params` as far as it is used: header, basic, discard.
pub(super) const PARAMS_BYTES: usize = 60;
/// Bytes of `ublksrv_io_desc`.
pub(super) const DESCRIPTOR_BYTES: usize = 24;
/// Where data of requests begin in a device's node.
const DATA_OFFSET: u64 = 0x8000_0000;
/// Bits of a byte's place within a request's data.
const DATA_BITS: u32 = 25;

/// Commands, as `_IOC(direction, 'u', number, bytes)`.
pub(super) mod command {
    const READS: u32 = 2;
    const BOTH: u32 = 3;

    const fn control(direction: u32, number: u32) -> u32 {
        direction << 30 | (super::CONTROL_BYTES as u32) << 16 | (b'u' as u32) << 8 | number
    }

    const fn io(number: u32) -> u32 {
        BOTH << 30 | 16 << 16 | (b'u' as u32) << 8 | number
    }

    pub const GET_DEV_INFO: u32 = control(READS, 0x02);
    pub const ADD_DEV: u32 = control(BOTH, 0x04);
    pub const DEL_DEV: u32 = control(BOTH, 0x05);
    pub const START_DEV: u32 = control(BOTH, 0x06);
    pub const STOP_DEV: u32 = control(BOTH, 0x07);
    pub const SET_PARAMS: u32 = control(BOTH, 0x08);
    pub const GET_PARAMS: u32 = control(READS, 0x09);
    pub const START_USER_RECOVERY: u32 = control(BOTH, 0x10);
    pub const END_USER_RECOVERY: u32 = control(BOTH, 0x11);
    pub const GET_FEATURES: u32 = control(READS, 0x13);
    pub const DEL_DEV_ASYNC: u32 = control(READS, 0x14);
    pub const FETCH_REQ: u32 = io(0x20);
    pub const COMMIT_AND_FETCH_REQ: u32 = io(0x21);
}

/// Where byte `at` of the data of the request `tag` is in the device's node; there is one queue, number 0.
pub(super) fn data_offset(tag: u16, at: usize) -> u64 {
    debug_assert!(at < 1 << DATA_BITS);
    DATA_OFFSET + (u64::from(tag) << DATA_BITS) + at as u64
}

/// How a device stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceState {
    /// It was not started, or was stopped.
    Dead,
    /// It is served.
    Live,
    /// Its server is gone; whoever uses it waits for the next one.
    Quiesced,
    /// Something else: it fails what it is asked.
    Other(u16),
}

/// A device that is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewDevice {
    /// Requests under way at most.
    pub depth: u16,
    /// Bytes of one request at most.
    pub transfer_bytes_max: u32,
    /// What it is to do.
    pub features: u64,
    /// A number of the server's own, which the kernel keeps.
    pub mark: u64,
}

/// What the kernel knows of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its number.
    pub id: u32,
    /// How it stands.
    pub state: DeviceState,
    /// Queues.
    pub queues: u16,
    /// Requests under way at most, of each queue.
    pub depth: u16,
    /// Bytes of one request at most.
    pub transfer_bytes_max: u32,
    /// What it does.
    pub features: u64,
    /// The server's own number.
    pub mark: u64,
    /// The process that serves it, or did.
    pub server: i32,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

impl NewDevice {
    pub(super) fn encode(&self, id: u32) -> [u8; INFO_BYTES] {
        let mut bytes = [0; INFO_BYTES];
        put(&mut bytes, 0, &1u16.to_ne_bytes());
        put(&mut bytes, 2, &self.depth.to_ne_bytes());
        put(&mut bytes, 8, &self.transfer_bytes_max.to_ne_bytes());
        put(&mut bytes, 12, &id.to_ne_bytes());
        put(&mut bytes, 24, &self.features.to_ne_bytes());
        put(&mut bytes, 32, &self.mark.to_ne_bytes());
        bytes
    }
}

impl DeviceInfo {
    pub(super) fn parse(bytes: &[u8; INFO_BYTES]) -> DeviceInfo {
        DeviceInfo {
            queues: u16_at(bytes, 0),
            depth: u16_at(bytes, 2),
            state: match u16_at(bytes, 4) {
                0 => DeviceState::Dead,
                1 => DeviceState::Live,
                2 => DeviceState::Quiesced,
                other => DeviceState::Other(other),
            },
            transfer_bytes_max: u32_at(bytes, 8),
            id: u32_at(bytes, 12),
            server: u32_at(bytes, 16) as i32,
            features: u64_at(bytes, 24),
            mark: u64_at(bytes, 32),
        }
    }
}

/// What a device is like for those who use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// Sectors of 512 bytes.
    pub sectors: u64,
    /// Whether it refuses writes.
    pub read_only: bool,
    /// Bytes of a logical block, the least that can be read or written: a power of two from 512 to 4096.
    pub block_bytes: u32,
    /// Sectors of one read or write at most.
    pub transfer_sectors_max: u32,
    /// Sectors of one discard at most; 0 if there is none.
    pub discard_sectors_max: u32,
    /// Sectors of one write of zeroes at most; 0 if there is none.
    pub zeroes_sectors_max: u32,
}

/// Of the basic parameters.
const READ_ONLY: u32 = 1 << 0;
const VOLATILE_CACHE: u32 = 1 << 2;
const FUA: u32 = 1 << 3;
/// Which parameters there are.
const HAS_BASIC: u32 = 1 << 0;
const HAS_DISCARD: u32 = 1 << 1;
/// The logarithm of the bytes that are best read and written at least: a block of the cache.
const BEST_SHIFT: u8 = 12;

impl Params {
    pub(super) fn encode(&self) -> [u8; PARAMS_BYTES] {
        let mut bytes = [0; PARAMS_BYTES];
        let discards = self.discard_sectors_max > 0 || self.zeroes_sectors_max > 0;
        let types = HAS_BASIC | if discards { HAS_DISCARD } else { 0 };
        put(&mut bytes, 0, &(PARAMS_BYTES as u32).to_ne_bytes());
        put(&mut bytes, 4, &types.to_ne_bytes());
        let attributes = VOLATILE_CACHE | FUA | if self.read_only { READ_ONLY } else { 0 };
        put(&mut bytes, 8, &attributes.to_ne_bytes());
        // Logical and physical block, best and least transfer.
        let block_shift = self.block_bytes.trailing_zeros() as u8;
        put(&mut bytes, 12, &[block_shift, block_shift.max(BEST_SHIFT), BEST_SHIFT, BEST_SHIFT]);
        put(&mut bytes, 16, &self.transfer_sectors_max.to_ne_bytes());
        put(&mut bytes, 24, &self.sectors.to_ne_bytes());
        if discards {
            put(&mut bytes, 44, &(1u32 << BEST_SHIFT).to_ne_bytes());
            put(&mut bytes, 48, &self.discard_sectors_max.to_ne_bytes());
            put(&mut bytes, 52, &self.zeroes_sectors_max.to_ne_bytes());
            put(&mut bytes, 56, &u16::from(self.discard_sectors_max > 0).to_ne_bytes());
        }
        bytes
    }

    pub(super) fn parse(bytes: &[u8; PARAMS_BYTES]) -> Params {
        let discard = |at| if u32_at(bytes, 4) & HAS_DISCARD != 0 { u32_at(bytes, at) } else { 0 };
        Params {
            sectors: u64_at(bytes, 24),
            read_only: u32_at(bytes, 8) & READ_ONLY != 0,
            block_bytes: 1u32.checked_shl(bytes[12].into()).unwrap_or(0),
            transfer_sectors_max: u32_at(bytes, 16),
            discard_sectors_max: discard(48),
            zeroes_sectors_max: discard(52),
        }
    }
}

/// A control command.
pub(super) fn control(id: u32, buffer: u64, len: u16, data: u64) -> [u8; 80] {
    let mut bytes = [0; 80];
    put(&mut bytes, 0, &id.to_ne_bytes());
    // Of no queue.
    put(&mut bytes, 4, &u16::MAX.to_ne_bytes());
    put(&mut bytes, 6, &len.to_ne_bytes());
    put(&mut bytes, 8, &buffer.to_ne_bytes());
    put(&mut bytes, 16, &data.to_ne_bytes());
    bytes
}

/// A command of a queue: of queue 0, without memory of the server's.
pub(super) fn io(tag: u16, result: i32) -> [u8; 16] {
    let mut bytes = [0; 16];
    put(&mut bytes, 2, &tag.to_ne_bytes());
    put(&mut bytes, 4, &result.to_ne_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers that a C compiler makes of linux/ublk_cmd.h.
    #[test]
    fn commands_have_the_numbers_of_the_header() {
        assert_eq!(command::ADD_DEV, 0xc020_7504);
        assert_eq!(command::GET_DEV_INFO, 0x8020_7502);
        assert_eq!(command::GET_FEATURES, 0x8020_7513);
        assert_eq!(command::DEL_DEV_ASYNC, 0x8020_7514);
        assert_eq!(command::FETCH_REQ, 0xc010_7520);
        assert_eq!(command::COMMIT_AND_FETCH_REQ, 0xc010_7521);
        assert_eq!(data_offset(3, 17), 0x8000_0000 + (3 << 25) + 17);
    }

    #[test]
    fn a_device_that_was_made_reads_as_what_was_asked_for() {
        let new =
            NewDevice { depth: 128, transfer_bytes_max: 1 << 20, features: feature_bits(), mark: 0x1234_5678_9abc };
        let info = DeviceInfo::parse(&new.encode(7));
        assert_eq!((info.id, info.queues, info.depth, info.state), (7, 1, 128, DeviceState::Dead));
        assert_eq!((info.features, info.mark), (new.features, new.mark));
        let mut bytes = new.encode(7);
        for (number, state) in [(1, DeviceState::Live), (2, DeviceState::Quiesced), (9, DeviceState::Other(9))] {
            bytes[4] = number;
            assert_eq!(DeviceInfo::parse(&bytes).state, state);
        }
    }

    fn feature_bits() -> u64 {
        super::super::feature::USER_COPY | super::super::feature::USER_RECOVERY
    }

    #[test]
    fn parameters_survive_the_way_and_those_of_no_use_are_left_out() {
        let all = Params {
            sectors: 1 << 33,
            read_only: true,
            block_bytes: 512,
            transfer_sectors_max: 2048,
            discard_sectors_max: 4096,
            zeroes_sectors_max: 8192,
        };
        let none = Params { discard_sectors_max: 0, zeroes_sectors_max: 0, read_only: false, block_bytes: 4096, ..all };
        let zeroes = Params { discard_sectors_max: 0, ..all };
        for params in [all, none, zeroes] {
            assert_eq!(Params::parse(&params.encode()), params);
        }
        assert_eq!(all.encode()[4], 3);
        assert_eq!(none.encode()[4], 1);
        assert_eq!(all.encode()[12..16], [9, 12, 12, 12]);
        // The driver refuses a number of segments without discards, and a granularity of 0 with either.
        assert_eq!((zeroes.encode()[56], u32_at(&zeroes.encode(), 44)), (0, 4096));
        assert_eq!(Params::parse(&[0xff; PARAMS_BYTES]).block_bytes, 0);
    }
}
