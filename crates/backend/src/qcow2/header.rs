//! The header of a qcow2 image, read before anything else touches the image.
//!
//! Owns what is refused: damage, unsupported features, sizes that would cost unbounded memory. Never writes. Follows
//! docs/interop/qcow2.txt of QEMU; the limits are those of QEMU's own driver. Invariant: of an image whose header was
//! accepted here, no table is larger than its limit and every table lies inside the file.

/// Bytes of the header that have a fixed meaning in version 3.
const FIXED_BYTES: usize = 104;
/// Bytes of the L1 table at most.
const L1_BYTES_MAX: u64 = 32 << 20;
/// Bytes of the refcount table at most.
const REFTABLE_BYTES_MAX: u64 = 8 << 20;
/// Bytes of a backing file's name at most.
const NAME_BYTES_MAX: u32 = 1023;

/// Incompatible feature: refcounts may be behind.
pub(super) const DIRTY: u64 = 1;
/// Incompatible feature: nothing may be written.
pub(super) const CORRUPT: u64 = 2;

/// What a header says, as far as it is needed here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// 2 or 3.
    pub version: u32,
    /// Bytes of a cluster: a power of two, 512 to 2 MiB.
    pub cluster_bytes: u64,
    /// Size of the disk in bytes.
    pub size_bytes: u64,
    /// Where the L1 table is in the file.
    pub l1_offset: u64,
    /// Entries of the L1 table.
    pub l1_entries: u32,
    /// Where the refcount table is in the file.
    pub reftable_offset: u64,
    /// Clusters of the refcount table.
    pub reftable_clusters: u32,
    /// Bits of a refcount: a power of two, 1 to 64.
    pub refcount_bits: u32,
    /// Where the snapshot table is in the file.
    pub snapshots_offset: u64,
    /// Internal snapshots.
    pub snapshots: u32,
    /// It was not closed properly: its refcounts may be behind.
    pub dirty: bool,
    /// An error was found in it: it must not be written to.
    pub corrupt: bool,
    /// It has features that a write by who does not know them ends.
    pub autoclear: bool,
    /// Name of the backing image, as it stands there.
    pub backing: Option<String>,
    /// Format of the backing image, if it stands there.
    pub backing_format: Option<String>,
}

/// Why an image is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is broken; what is wrong.
    Damaged(String),
    /// It is no qcow2 image.
    Other,
    /// It uses something not served.
    Unsupported {
        /// What.
        feature: String,
        /// What can be done.
        remedy: String,
    },
}

fn damaged<T>(what: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::Damaged(what.into()))
}

fn convert<T>(feature: impl Into<String>) -> Result<T, Refusal> {
    let remedy = "convert the image: `qemu-img convert -O qcow2 OLD NEW`".to_owned();
    Err(Refusal::Unsupported { feature: feature.into(), remedy })
}

impl Header {
    /// Bits that imago must not see, each with the place of its byte: the marks, with which it opens nothing, not even
    /// for reading, and the features that it would clear at once, before anything is verified.
    pub(super) fn hidden_bits(&self) -> Vec<(u64, u8)> {
        let marks = (self.dirty || self.corrupt).then_some((79, (DIRTY | CORRUPT) as u8));
        let autoclear = self.autoclear.then_some((88..96).map(|at| (at, u8::MAX)));
        marks.into_iter().chain(autoclear.into_iter().flatten()).collect()
    }

    /// Whether the image may be opened for writing, as far as its header says: QEMU refuses one that is marked corrupt,
    /// and repairs one that is marked dirty, which is left to it.
    ///
    /// # Errors
    /// What it is marked as, and what helps.
    pub(crate) fn may_be_written(&self) -> Result<(), Refusal> {
        let mark = match (self.corrupt, self.dirty) {
            (true, _) => "marked corrupt (an error was found in it)",
            (false, true) => "marked dirty (it was not closed properly)",
            (false, false) => return Ok(()),
        };
        damaged(format!(
            "it is {mark}, so it can only be opened read-only (`read_only = true`) until it is repaired with \
             `qemu-img check -r all` while nothing uses it"
        ))
    }
}

/// Reads the header. `start` are the first bytes of a file of `file_bytes` bytes: a whole cluster, or all of the file
/// if it is shorter; `cluster_bytes` tells how many these are.
///
/// # Errors
/// The reason to refuse the image.
pub fn parse(start: &[u8], file_bytes: u64) -> Result<Header, Refusal> {
    let version = be32(start, 4);
    if start.len() < 72 || be32(start, 0) != 0x5146_49fb {
        return Err(Refusal::Other);
    }
    if !matches!(version, 2 | 3) {
        return convert(format!("version {version} of the qcow2 format"));
    }
    if version == 3 && start.len() < FIXED_BYTES {
        return damaged("the file ends inside its header");
    }
    let bits = be32(start, 20);
    if !(9..=21).contains(&bits) {
        return damaged(format!("a cluster size of 2^{bits} bytes"));
    }
    let cluster_bytes = 1u64 << bits;
    let size_bytes = be64(start, 24);
    match be32(start, 32) {
        0 => {}
        1 | 2 => return convert("encryption"),
        n => return damaged(format!("encryption method {n}")),
    }
    if version == 3 {
        features(start)?;
    }
    let l1_entries = be32(start, 36);
    let l1_offset = be64(start, 40);
    let covered = u64::from(l1_entries).saturating_mul(cluster_bytes / 8).saturating_mul(cluster_bytes);
    if size_bytes > covered {
        return damaged("its L1 table is too small for the size of the disk");
    }
    if u64::from(l1_entries) * 8 > L1_BYTES_MAX {
        return damaged(format!("an L1 table of {l1_entries} entries"));
    }
    table(l1_offset, u64::from(l1_entries) * 8, cluster_bytes, file_bytes, "L1 table")?;
    let reftable_bytes = u64::from(be32(start, 56)) * cluster_bytes;
    if reftable_bytes > REFTABLE_BYTES_MAX.max(cluster_bytes) || reftable_bytes == 0 {
        return damaged(format!("a refcount table of {reftable_bytes} bytes"));
    }
    table(be64(start, 48), reftable_bytes, cluster_bytes, file_bytes, "refcount table")?;
    let marks = if version == 3 { be64(start, 72) } else { 0 };
    let mut header = Header {
        version,
        cluster_bytes,
        size_bytes,
        l1_offset,
        l1_entries,
        reftable_offset: be64(start, 48),
        reftable_clusters: be32(start, 56),
        refcount_bits: if version == 3 { 1 << be32(start, 96) } else { 16 },
        snapshots_offset: be64(start, 64),
        snapshots: be32(start, 60),
        dirty: marks & DIRTY != 0,
        corrupt: marks & CORRUPT != 0,
        autoclear: version == 3 && be64(start, 88) != 0,
        backing: None,
        backing_format: None,
    };
    let first_cluster = &start[..start.len().min(cluster_bytes as usize)];
    header.backing = backing_name(first_cluster)?;
    header.backing_format = backing_format(first_cluster, version)?;
    Ok(header)
}

/// How many bytes `parse` needs of an image that starts with these (at least 24, unless the file is shorter).
pub fn bytes_needed(start: &[u8]) -> usize {
    1 << be32(start, 20).clamp(9, 21)
}

/// Checks the L1 table: whether every L2 table lies inside the file.
///
/// # Errors
/// The reason to refuse the image.
pub fn check_l1(table: &[u8], header: &Header, file_bytes: u64) -> Result<(), Refusal> {
    for (i, entry) in table.chunks_exact(8).enumerate() {
        let offset = be64(entry, 0) & 0x00ff_ffff_ffff_fe00;
        if offset == 0 {
            continue;
        }
        if !offset.is_multiple_of(header.cluster_bytes) {
            return damaged(format!("entry {i} of its L1 table, {offset:#x}, is not at the start of a cluster"));
        }
        if offset >= file_bytes {
            return damaged(format!("entry {i} of its L1 table, {offset:#x}, points past the end of the file"));
        }
    }
    Ok(())
}

/// Checks the features and fields of version 3.
fn features(start: &[u8]) -> Result<(), Refusal> {
    let bits = be64(start, 72);
    let names = [
        "dirty",
        "corrupt",
        "an external data file",
        "a compression other than zlib (zstd)",
        "extended L2 entries (sub-clusters)",
    ];
    if bits & !(DIRTY | CORRUPT) != 0 {
        let all: Vec<String> = (0..64)
            .filter(|b| bits >> b & 1 != 0)
            .map(|b| names.get(b).map_or_else(|| format!("unknown incompatible feature {b}"), |n| (*n).to_owned()))
            .collect();
        return convert(all.join(", "));
    }
    let order = be32(start, 96);
    if order > 6 {
        return damaged(format!("refcounts of 2^{order} bits"));
    }
    let length = be32(start, 100);
    if (length as usize) < FIXED_BYTES || length as usize > start.len() || !length.is_multiple_of(8) {
        return damaged(format!("a header of {length} bytes"));
    }
    // QEMU refuses this, too: a compression is named that the features do not have.
    if length as usize > FIXED_BYTES && start.get(FIXED_BYTES).is_some_and(|&kind| kind != 0) {
        return damaged("its header names a compression that its features do not have");
    }
    Ok(())
}

fn table(offset: u64, bytes: u64, cluster: u64, file: u64, name: &str) -> Result<(), Refusal> {
    if bytes > 0 && (!offset.is_multiple_of(cluster) || offset == 0) {
        return damaged(format!("its {name} is at {offset:#x}, not at the start of a cluster"));
    }
    if offset.checked_add(bytes).is_none_or(|end| end > file) {
        return damaged(format!("its {name} reaches past the end of the file"));
    }
    Ok(())
}

fn backing_name(first_cluster: &[u8]) -> Result<Option<String>, Refusal> {
    let (offset, bytes) = (be64(first_cluster, 8), be32(first_cluster, 16));
    if offset == 0 {
        return Ok(None);
    }
    if bytes == 0 || bytes > NAME_BYTES_MAX {
        return damaged(format!("a name of its backing file of {bytes} bytes"));
    }
    let name = usize::try_from(offset).ok().and_then(|o| first_cluster.get(o..o.checked_add(bytes as usize)?));
    match name.map(std::str::from_utf8) {
        Some(Ok(name)) => Ok(Some(name.to_owned())),
        Some(Err(_)) => damaged("the name of its backing file is not UTF-8"),
        None => damaged("the name of its backing file is outside the first cluster"),
    }
}

/// Looks through the header extensions for the backing image's format.
fn backing_format(first_cluster: &[u8], version: u32) -> Result<Option<String>, Refusal> {
    const END: u32 = 0;
    const BACKING_FORMAT: u32 = 0xe279_2aca;
    let mut at = if version == 3 { be32(first_cluster, 100) as usize } else { 72 };
    while at + 8 <= first_cluster.len() {
        let (kind, bytes) = (be32(first_cluster, at), be32(first_cluster, at + 4) as usize);
        let Some(data) = first_cluster.get(at + 8..).and_then(|rest| rest.get(..bytes)) else {
            return if version == 2 { Ok(None) } else { damaged("a header extension that reaches past the header") };
        };
        match kind {
            END => return Ok(None),
            BACKING_FORMAT => {
                return match std::str::from_utf8(data) {
                    Ok(s) => Ok(Some(s.to_owned())),
                    Err(_) => damaged("the format of its backing file is not UTF-8"),
                };
            }
            _ => at += 8 + bytes.next_multiple_of(8),
        }
    }
    Ok(None)
}

/// The big-endian number at `at`; missing bytes count as 0.
fn be32(b: &[u8], at: usize) -> u32 {
    let mut n = [0; 4];
    for (i, to) in n.iter_mut().enumerate() {
        *to = b.get(at + i).copied().unwrap_or(0);
    }
    u32::from_be_bytes(n)
}

fn be64(b: &[u8], at: usize) -> u64 {
    u64::from(be32(b, at)) << 32 | u64::from(be32(b, at + 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: u64 = 1 << 20;

    /// A header that is accepted: version 3, 64 KiB clusters, 1 GiB.
    fn good() -> Vec<u8> {
        let mut h = vec![0; 65536];
        let mut put = |at: usize, bytes: &[u8]| h[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, b"QFI\xfb\0\0\0\x03");
        put(20, &16u32.to_be_bytes());
        put(24, &(1u64 << 30).to_be_bytes());
        put(36, &2u32.to_be_bytes());
        put(40, &(3u64 << 16).to_be_bytes());
        put(48, &(1u64 << 16).to_be_bytes());
        put(56, &1u32.to_be_bytes());
        put(96, &4u32.to_be_bytes());
        put(100, &104u32.to_be_bytes());
        put(104, &0xe279_2acau32.to_be_bytes());
        put(108, &3u32.to_be_bytes());
        put(112, b"raw");
        put(8, &200u64.to_be_bytes());
        put(16, &8u32.to_be_bytes());
        put(200, b"base.img");
        h
    }

    fn refused(change: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut h = good();
        change(&mut h);
        match parse(&h, FILE) {
            Err(Refusal::Damaged(s)) => s,
            Err(Refusal::Other) => "no qcow2 image".to_string(),
            Err(Refusal::Unsupported { feature, .. }) => format!("unsupported {feature}"),
            Ok(h) => panic!("accepted: {h:?}"),
        }
    }

    #[test]
    fn a_good_header_is_read() {
        let h = parse(&good(), FILE).unwrap();
        assert_eq!((h.version, h.cluster_bytes, h.size_bytes, h.l1_entries), (3, 65536, 1 << 30, 2));
        assert_eq!((h.backing.as_deref(), h.backing_format.as_deref()), (Some("base.img"), Some("raw")));
        assert_eq!(bytes_needed(&good()), 65536);
    }

    #[test]
    fn damage_is_named() {
        assert!(refused(|h| h[0] = 0).contains("no qcow2 image"));
        assert!(refused(|h| h.truncate(80)).contains("header"));
        assert!(refused(|h| h[23] = 40).contains("cluster size"));
        assert!(refused(|h| h[24] = 0x7f).contains("too small"));
        assert!(refused(|h| h[36..40].fill(0xff)).contains("L1 table"));
        assert!(refused(|h| h[47] = 1).contains("L1 table"));
        assert!(refused(|h| h[40..48].fill(0xff)).contains("L1 table"));
        assert!(refused(|h| h[45] = 0x7f).contains("past the end"));
        assert!(refused(|h| h[56..60].fill(0xff)).contains("refcount table"));
        assert!(refused(|h| h[54] = 1).contains("refcount table"));
        assert!(refused(|h| h[99] = 9).contains("refcounts"));
        assert!(refused(|h| h[100] = 9).contains("header"));
        assert!(refused(|h| h[108..112].fill(0xff)).contains("extension"));
        assert!(refused(|h| h[16..20].fill(0xff)).contains("backing file"));
        assert!(refused(|h| h[8..16].fill(0xff)).contains("backing file"));
        assert!(refused(|h| h[200] = 0xff).contains("UTF-8"));
        assert!(
            refused(|h| {
                h[103] = 112;
                h[104] = 1;
            })
            .contains("compression")
        );
    }

    #[test]
    fn marked_images_are_for_reading_only() {
        for (mark, word) in [(1, "dirty"), (2, "corrupt"), (3, "corrupt")] {
            let mut h = good();
            h[79] = mark;
            let header = parse(&h, FILE).unwrap();
            let Err(Refusal::Damaged(why)) = header.may_be_written() else { panic!("it may be written") };
            assert!(why.contains(word) && why.contains("qemu-img check -r all") && why.contains("read_only"), "{why}");
        }
        assert_eq!(parse(&good(), FILE).unwrap().may_be_written(), Ok(()));
    }

    #[test]
    fn features_not_served_are_named() {
        assert!(refused(|h| h[7] = 4).contains("version 4"));
        assert!(refused(|h| h[35] = 2).contains("encryption"));
        assert!(refused(|h| h[79] = 4).contains("external data file"));
        assert!(refused(|h| h[79] = 8).contains("zstd"));
        assert!(refused(|h| h[79] = 16).contains("extended L2"));
        assert!(refused(|h| h[72] = 1).contains("feature 56"));
    }

    #[test]
    fn l2_tables_outside_the_file_are_found() {
        let h = parse(&good(), FILE).unwrap();
        let table = |entry: u64| entry.to_be_bytes();
        assert_eq!(check_l1(&table(1 << 63 | 5 << 16), &h, FILE), Ok(()));
        assert!(check_l1(&table(FILE), &h, FILE).is_err());
        assert!(check_l1(&table(5 << 16 | 512), &h, FILE).is_err());
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let mut seed = 1u64;
        for _ in 0..20_000 {
            let mut h = good();
            for _ in 0..4 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                h[(seed >> 33) as usize % 128] = (seed >> 20) as u8;
            }
            h.truncate((seed >> 40) as usize % 65536);
            let _ = (bytes_needed(&h), parse(&h, FILE));
        }
    }
}
