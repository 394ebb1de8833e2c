//! Every key of the configuration: name, kind, default, meaning. One source for reading, messages, manual and docs.
//!
//! Owns words and limits. Never reads a file. Invariant: a key that is not here is refused, and one that is here is
//! read (a test of `reader` holds both).

mod guests;
mod host;
mod limits;
mod nbd;
mod words;

pub use guests::{CONTAINER, DISK, SHARES, VM};
pub use host::{DAEMON, KSM, PRESSURE, SCAN, SSD, STORE};
pub use limits::*;
pub use nbd::{NBD, NBD_LISTEN};

use undercroft_units::{MIB, Size};

/// What to do where a disk of a VM is written as one of its own.
pub(crate) const DISKS_OF_VMS: &str =
    "disks of a VM stand below it: a [[vm]] table with the VM's name, and after it a [[vm.disk]] table for each disk";

/// A table of the configuration.
#[derive(Debug)]
pub struct Section {
    /// As it is written: `[store]`, `[[vm.disk]]`.
    pub header: &'static str,
    /// What it is for.
    pub doc: &'static str,
    /// Its keys.
    pub keys: &'static [Key],
}

/// A key.
#[derive(Debug)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// What its value is like.
    pub kind: Kind,
    /// What holds without it; in words where it is not a constant.
    pub default: &'static str,
    /// What is allowed.
    pub range: &'static str,
    /// Whether it changes while the daemon runs.
    pub live: Live,
    /// What it does.
    pub doc: &'static str,
}

/// What a value is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any text, or one of a few words.
    Text,
    /// A whole number.
    Number,
    /// Bytes, with a unit.
    Size,
    /// A duration, with a unit.
    Time,
    /// `true` or `false`.
    Boolean,
    /// A path of a file.
    Path,
    /// A path, or the URI of a server.
    PathOrUri,
    /// A group of users, by name or number.
    Group,
    /// An IP address with a port.
    Address,
    /// A part of a whole.
    Percentage,
    /// A list of names.
    Names,
    /// A list of paths.
    Paths,
    /// A table of keys.
    Table,
    /// Several tables.
    Tables,
}

impl Kind {
    /// As the reference has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Number => "number",
            Self::Size => "size",
            Self::Time => "time",
            Self::Boolean => "boolean",
            Self::Path => "path",
            Self::PathOrUri => "path or URI",
            Self::Group => "group",
            Self::Address => "address",
            Self::Percentage => "percentage",
            Self::Names => "list of names",
            Self::Paths => "list of paths",
            Self::Table => "table",
            Self::Tables => "tables",
        }
    }
}

/// How the value of a key changes while the daemon runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Live {
    /// It says which thing is meant, or holds other keys.
    Name,
    /// By `undercroft set` and the API, and by a reload. The word, if any, takes away what is set.
    Set(&'static str),
    /// By `undercroft set` and the API alone: a reload would do it while somebody uses what goes. The word takes away
    /// what is set.
    Hand(&'static str),
    /// By a reload.
    Reload,
    /// Of a disk: when it is detached and attached again.
    Attach,
    /// When the daemon is started again.
    Restart,
}

impl Live {
    /// The word that takes away what is set, empty if there is none; `None` for what is not set by hand.
    pub fn by_hand(self) -> Option<&'static str> {
        match self {
            Self::Set(word) | Self::Hand(word) => Some(word),
            _ => None,
        }
    }
}

macro_rules! key {
    ($name:literal, $kind:ident, $default:literal, $range:expr, $live:expr, $doc:literal) => {
        Key { name: $name, kind: Kind::$kind, default: $default, range: $range, live: $live, doc: $doc }
    };
}
use Live::Name;
use key;
use words::names;

/// The whole file.
pub const ROOT: Section = Section {
    header: "",
    doc: "The file consists of these tables. Relative paths are taken from the directory of the file.",
    keys: &[
        key!("store", Table, "all defaults", "", Name, "The RAM that caches."),
        key!("ssd", Table, "no SSD store", "", Name, "Files and devices that hold blocks beside RAM."),
        key!("pressure", Table, "all defaults", "", Name, "When memory is given back to the machine."),
        key!("ksm", Table, "not managed", "", Name, "Merging of equal pages of guests' RAM by the kernel."),
        key!("daemon", Table, "all defaults", "", Name, "The process: sockets, threads, logs."),
        key!("nbd", Table, "no listener", "", Name, "Where NBD clients connect."),
        key!("scan", Table, "off", "", Name, "The scan of guests' memory."),
        key!("shares", Table, "all defaults", "", Name, "How the store is divided."),
        key!("vm", Tables, "none", "", Name, "Virtual machines, each with its disks."),
        key!("disk", Tables, "none", "", Name, "Disks that belong to no VM."),
    ],
};

impl Section {
    /// The key of that name.
    pub fn key(&self, name: &str) -> Option<&'static Key> {
        let keys: &'static [Key] = self.keys;
        keys.iter().find(|k| k.name == name)
    }

    /// Names of the keys that are set by hand.
    pub fn set_by_hand(&self) -> impl Iterator<Item = &'static Key> {
        let keys: &'static [Key] = self.keys;
        keys.iter().filter(|k| k.live.by_hand().is_some())
    }
}

/// The key of that name that is set by hand for a VM, a container or a disk.
pub fn settable(name: &str) -> Option<&'static Key> {
    [&DISK, &VM].into_iter().find_map(|s| s.key(name)).filter(|k| k.live.by_hand().is_some())
}

/// All keys that are set by hand for VMs, containers and disks, each once; those of a disk alone come first.
pub fn all_settable() -> Vec<&'static Key> {
    let of_disk = DISK.set_by_hand().filter(|k| VM.key(k.name).is_none());
    of_disk.chain(VM.set_by_hand()).collect()
}

/// All sections, in the order in which docs list them.
pub const SECTIONS: [&Section; 13] =
    [&ROOT, &STORE, &SSD, &SHARES, &PRESSURE, &DAEMON, &NBD, &NBD_LISTEN, &KSM, &SCAN, &VM, &CONTAINER, &DISK];

/// Keys that were given another name: the former one, which is refused, and the present one.
const RENAMED: [(&str, &str); 2] = [("share", "deduplicate"), ("share_base", "deduplicate_base")];

/// What to do where a key is written that none of `known` is: its new name, if it was one of them once; else the one
/// that was probably meant.
pub fn instead_of<'a>(name: &str, known: impl Iterator<Item = &'a str> + Clone) -> Option<String> {
    let renamed = RENAMED.iter().find(|(former, now)| *former == name && known.clone().any(|k| k == *now));
    match renamed {
        Some((_, now)) => Some(format!("it is called \"{now}\" now")),
        None => nearest(name, known).map(|near| format!("did you mean \"{near}\"?")),
    }
}

/// The candidate that `text` was probably meant to be, if one is close: by letters changed, swapped, added or lost.
pub(crate) fn nearest<'a>(text: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if text.len() > 4 * NAME_BYTES_MAX {
        return None;
    }
    let plain = |s: &str| s.to_ascii_lowercase().replace(['-', '_', ' '], "");
    let wanted = plain(text);
    let distance = |c: &str| {
        let c = plain(c);
        let letters = c.chars().count().max(wanted.chars().count());
        let edits = strsim::osa_distance(&c, &wanted);
        let close = edits <= 1 + letters / 4 && edits * 2 < letters;
        (close || strsim::jaro_winkler(&c, &wanted) > 0.9).then_some(edits)
    };
    candidates.into_iter().filter_map(|c| Some((distance(c)?, c))).min_by_key(|(edits, _)| *edits).map(|(_, c)| c)
}

/// Memory of a store if none is given, for a machine with `machine_bytes`.
pub(crate) fn memory_default(machine_bytes: u64) -> Size {
    let quarter = machine_bytes / 4 / MIB * MIB;
    Size(quarter.clamp(MEMORY_BYTES_MIN, MEMORY_BYTES_DEFAULT_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use undercroft_units::Time;

    fn key(section: &Section, name: &str) -> &'static Key {
        let keys: &'static [Key] = section.keys;
        keys.iter().find(|k| k.name == name).expect(name)
    }

    #[test]
    fn the_words_agree_with_the_numbers() {
        let size = |b: u64| format!("`{}`", Size(b));
        assert_eq!(key(&DISK, "readahead").default, size(READAHEAD_BYTES_DEFAULT.into()));
        assert!(key(&DISK, "readahead").range.ends_with(&size(READAHEAD_BYTES_MAX.into())));
        assert!(key(&DISK, "size").range.starts_with(&size(SHARE_BYTES_MIN)));
        assert!(key(&STORE, "memory").range.starts_with(&size(MEMORY_BYTES_MIN)));
        assert!(key(&STORE, "memory").default.ends_with(&size(MEMORY_BYTES_DEFAULT_MAX)));
        let time = |d: Duration| format!("`{}`", Time::from(d));
        let times = |[a, b]: [Duration; 2]| format!("{} to {}", time(a), time(b));
        for (section, name, default, range) in [
            (&PRESSURE, "stall", STALL_DEFAULT, STALL_RANGE),
            (&PRESSURE, "give_within", GIVE_WITHIN_DEFAULT, GIVE_WITHIN_RANGE),
            (&PRESSURE, "calm", CALM_DEFAULT, CALM_RANGE),
            (&PRESSURE, "regrow", REGROW_DEFAULT, CALM_RANGE),
        ] {
            assert_eq!(
                (key(section, name).default, key(section, name).range),
                (time(default).as_str(), times(range).as_str())
            );
        }
        assert_eq!(key(&KSM, "sleep").range, times(KSM_SLEEP_RANGE));
        assert_eq!(key(&KSM, "advisor_target_scan_time").range, times(KSM_SCAN_TIME_RANGE));
        assert!(key(&KSM, "pages_to_scan").range.ends_with(&KSM_PAGES_MAX.to_string()));
        assert_eq!(key(&DAEMON, "poll").default, format!("`{}`", Time::from(POLL_DEFAULT)));
        assert!(key(&DISK, "poll").range.ends_with(&format!("`{}`", Time::from(POLL_MAX))));
        let time = |d: Duration| format!("`{}`", Time::from(d));
        assert_eq!(key(&SCAN, "cpu").default, format!("`{SCAN_CPU_DEFAULT}`"));
        assert_eq!(key(&SCAN, "period_min").default, time(SCAN_PERIOD_MIN_DEFAULT));
        assert_eq!(key(&SCAN, "period_max").default, time(SCAN_PERIOD_MAX_DEFAULT));
        assert!(key(&SCAN, "period_min").range.starts_with(&time(SCAN_PERIODS[0])));
        assert_eq!("1440min".parse::<Time>().unwrap().duration(), SCAN_PERIODS[1]);
        assert_eq!(key(&SCAN, "memory").default, size(SCAN_MEMORY_DEFAULT));
        assert!(key(&SCAN, "memory").range.ends_with(&size(SCAN_MEMORY_MIN)));
        assert_eq!(key(&NBD, "memory").default, size(NBD_MEMORY_DEFAULT));
        assert!(key(&NBD, "memory").range.ends_with(&size(NBD_MEMORY_MIN)));
        for (name, default, range) in [
            ("slow_after", NBD_SLOW_AFTER_DEFAULT, NBD_SLOW_AFTER_RANGE),
            ("handshake_timeout", NBD_HANDSHAKE_DEFAULT, NBD_HANDSHAKE_RANGE),
        ] {
            assert_eq!((key(&NBD, name).default, key(&NBD, name).range), (&*time(default), &*times(range)));
        }
        for name in ["connections", "handshakes"] {
            assert_eq!(key(&NBD, name).default, format!("`{NBD_CONNECTIONS_DEFAULT}`"));
            assert!(key(&NBD, name).range.ends_with(&NBD_CONNECTIONS_MAX.to_string()));
        }
        let [least, most] = LOCK_BUDGET_RANGE;
        assert_eq!(key(&DISK, "lock_budget").default, format!("`{LOCK_BUDGET_DEFAULT}`"));
        assert_eq!(key(&DISK, "lock_budget").range, format!("`{least}` to `{most}`"));
        assert_eq!(most.0 / 10, u32::from(undercroft_engine::LOCK_PERMILLE_MAX), "no more than the engine takes");
        assert_eq!(key(&DISK, "miss_table").default, format!("`{MISS_TABLE_DEFAULT}`"));
        assert!(key(&DISK, "miss_table").range.ends_with(&MISS_TABLE_MAX.to_string()));
        assert!(key(&DISK, "victim_buffer").range.ends_with(&VICTIM_BUFFER_MAX.to_string()));
        assert_eq!(key(&DISK, "weight").default, format!("`{WEIGHT_DEFAULT}`"));
        assert!(key(&DISK, "weight").range.ends_with(&WEIGHT_MAX.to_string()));
        assert_eq!(key(&DISK, "queues").default, format!("`{QUEUES_DEFAULT}`"));
        assert!(key(&DISK, "queues").range.ends_with(&QUEUES_MAX.to_string()));
        assert_eq!(key(&DISK, "queue_size").default, format!("`{QUEUE_SIZE_DEFAULT}`"));
        assert!(key(&DISK, "queue_size").range.ends_with(&format!("{QUEUE_SIZE_MIN} to {QUEUE_SIZE_MAX}")));
        assert!(key(&DAEMON, "workers").range.ends_with(&WORKERS_MAX.to_string()));
        assert!(key(&DAEMON, "workers").default.ends_with(&WORKERS_DEFAULT_MAX.to_string()));
        assert!(key(&DISK, "policy").default.ends_with(&format!("`{POLICY_DEFAULT}`")));
    }

    #[test]
    fn the_least_share_holds_a_cache_worth_the_name() {
        for readahead in [0, READAHEAD_BYTES_DEFAULT] {
            let options = undercroft_cache::CoreOptions::new(SHARE_BYTES_MIN);
            let blocks = undercroft_cache::blocks_per_disk_max(&options, 1, readahead);
            assert!(
                u64::from(blocks) * 4096 >= SHARE_BYTES_MIN / 2,
                "{blocks} blocks with {readahead} bytes read ahead"
            );
        }
        let options = undercroft_cache::CoreOptions::new(SHARE_BYTES_MIN);
        assert!(undercroft_cache::blocks_per_disk_max(&options, 1, READAHEAD_BYTES_MAX) > 0);
    }

    #[test]
    fn the_nearest_key_is_found_only_if_near() {
        let keys = || DISK.keys.iter().map(|k| k.name);
        assert_eq!(nearest("sise", keys()), Some("size"));
        assert_eq!(nearest("readonly", keys()), Some("read_only"));
        assert_eq!(nearest("queue-size", keys()), Some("queue_size"));
        assert_eq!(nearest("lur", ["fifo", "lru", "arc"]), Some("lru"));
        assert_eq!(nearest("xyz", ["fifo", "lru", "arc"]), None);
        assert_eq!(nearest("quantum", keys()), None);
        assert_eq!(nearest("", keys()), None);
    }

    #[test]
    fn default_memory_is_a_quarter_within_bounds() {
        assert_eq!(memory_default(64 << 30), Size(MEMORY_BYTES_DEFAULT_MAX));
        assert_eq!(memory_default(2 << 30), Size(512 * MIB));
        assert_eq!(memory_default(1 << 20), Size(MEMORY_BYTES_MIN));
    }
}
