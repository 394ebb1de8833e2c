//! How a file or device of the SSD store is cut: a header, then one region for each worker.
//!
//! Owns the arithmetic. Never looks at a device. Invariant: regions begin on multiples of a segment, do not overlap,
//! and end within the bytes that are used.

/// Segments of a region at least, so that there is something to choose from.
pub const REGION_SEGMENTS_MIN: u64 = 8;

/// How one file or device is cut, and its place among the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Its place among the devices of the store, from 0.
    pub device: u32,
    /// How many there are.
    pub devices: u32,
    /// Regions on it: one for each worker.
    pub regions: u32,
    /// Where the first region begins.
    pub first_byte: u64,
    /// Bytes of each region: a multiple of a segment.
    pub region_bytes: u64,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Bytes of the device that are used.
    pub used_bytes: u64,
}

impl Layout {
    /// Cuts `used_bytes` of device number `device` of `devices` into regions for `regions` workers.
    pub(super) fn of(used_bytes: u64, device: u32, devices: u32, regions: u32, segment_bytes: u64) -> Self {
        let room = used_bytes.saturating_sub(segment_bytes) / u64::from(regions.max(1));
        let region_bytes = room / segment_bytes * segment_bytes;
        Self { device, devices, regions, first_byte: segment_bytes, region_bytes, segment_bytes, used_bytes }
    }

    /// Bytes that a device needs to have at least.
    pub(super) fn least_bytes(&self) -> u64 {
        (1 + REGION_SEGMENTS_MIN * u64::from(self.regions)) * self.segment_bytes
    }

    /// Whether each region has as much as it needs.
    pub(super) fn is_large_enough(&self) -> bool {
        self.region_bytes >= REGION_SEGMENTS_MIN * self.segment_bytes
    }

    /// Where a region begins.
    pub(super) fn region_start(&self, region: u32) -> u64 {
        self.first_byte + u64::from(region) * self.region_bytes
    }

    /// What of `found` is not as it is wanted, in words; `None` if it fits.
    pub(super) fn misfit(&self, found: &Layout) -> Option<String> {
        let differs = |what: &str, was: u64, is: u64| format!("it was made for {was} {what}, and there are {is}");
        if found.regions != self.regions {
            return Some(differs("workers", found.regions.into(), self.regions.into()));
        }
        if (found.devices, found.device) != (self.devices, self.device) {
            let place = |l: &Layout| format!("number {} of {}", l.device + 1, l.devices);
            return Some(format!("it was {} of the paths, and is {}", place(found), place(self)));
        }
        if found.segment_bytes != self.segment_bytes {
            return Some(differs("bytes a segment", found.segment_bytes, self.segment_bytes));
        }
        let (was, is) = (found.used_bytes, self.used_bytes);
        (found != self).then(|| format!("it was made with {was} bytes, and is to have {is}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn regions_are_apart_and_within_the_device() {
        for (used, workers, segment) in [(1 << 30, 1, 2 * MIB), (1 << 30, 7, MIB), (100 * MIB + 5, 3, 256 << 10)] {
            let l = Layout::of(used, 0, 1, workers, segment);
            assert!(l.is_large_enough(), "{l:?}");
            assert!(l.first_byte >= 4096 && l.region_start(workers - 1) + l.region_bytes <= used, "{l:?}");
            for region in 1..workers {
                assert_eq!(l.region_start(region), l.region_start(region - 1) + l.region_bytes);
                assert!(l.region_start(region).is_multiple_of(segment));
            }
        }
    }

    #[test]
    fn a_device_with_the_least_bytes_is_large_enough_and_one_with_less_is_not() {
        let l = Layout::of(MIB, 0, 1, 4, 2 * MIB);
        assert!(!l.is_large_enough());
        assert!(Layout::of(l.least_bytes(), 0, 1, 4, 2 * MIB).is_large_enough());
        assert!(!Layout::of(l.least_bytes() - 1, 0, 1, 4, 2 * MIB).is_large_enough());
        assert!(!Layout::of(0, 0, 1, 4, 2 * MIB).is_large_enough());
    }

    #[test]
    fn what_does_not_fit_is_said_with_both_numbers() {
        let l = Layout::of(1 << 30, 0, 2, 4, 2 * MIB);
        assert_eq!(l.misfit(&l), None);
        let said = |found: Layout| l.misfit(&found).unwrap();
        assert_eq!(said(Layout::of(1 << 30, 0, 2, 2, 2 * MIB)), "it was made for 2 workers, and there are 4");
        assert_eq!(
            said(Layout::of(1 << 30, 1, 2, 4, 2 * MIB)),
            "it was number 2 of 2 of the paths, and is number 1 of 2"
        );
        assert!(said(Layout::of(1 << 30, 0, 2, 4, MIB)).contains("1048576 bytes a segment"));
        assert!(said(Layout::of(1 << 29, 0, 2, 4, 2 * MIB)).contains("536870912 bytes, and is to have 1073741824"));
    }
}
