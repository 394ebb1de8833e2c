//! The file that describes a hierarchy, read: TOML, with sizes and times as everywhere.
//!
//! Owns the notation; docs/simulator.md describes it. Never simulates. Invariant: what is not known is refused, with
//! the line it stands in.

use crate::cli::Failure;
use serde::Deserialize;
use std::num::NonZeroU64;
use std::path::Path;
use undercroft_engine::{AnyPolicyKind, ExclusiveMode, PolicyKind};
use undercroft_study::sim::hierarchy::{Keeps, LevelOptions, LinuxGuest, Writes};
use undercroft_study::sim::latency::{Arrivals, Device, Spread};
use undercroft_study::sim::simulate::{HierarchyPlan, HierarchyTiming};
use undercroft_units::{CacheSize, Percent, Size, Time, WrittenSize};

/// The seed of what is drawn by chance, unless the file has another.
const SEED: u64 = 1;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanText {
    name: Option<String>,
    hints: Option<Size>,
    hints_every: Option<u64>,
    level: Vec<LevelText>,
    disk: Option<DeviceText>,
    requests: Option<RequestsText>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LevelText {
    name: String,
    #[serde(deserialize_with = "parsed")]
    size: WrittenSize,
    #[serde(default, deserialize_with = "parsed_if_any")]
    policy: Option<AnyPolicyKind>,
    #[serde(default)]
    keeps: KeepsText,
    scan_every: Option<u32>,
    #[serde(default)]
    writes: WritesText,
    linux: Option<LinuxText>,
    read: Option<Time>,
    write: Option<Time>,
    channels: Option<u32>,
    #[serde(default)]
    spread: SpreadText,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LinuxText {
    #[serde(deserialize_with = "parsed")]
    free: Percent,
    #[serde(default)]
    zeroing: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceText {
    read: Time,
    write: Option<Time>,
    channels: Option<u32>,
    #[serde(default)]
    spread: SpreadText,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestsText {
    arrive: ArriveText,
    speed: Option<f64>,
    per_second: Option<f64>,
    depth: Option<u32>,
    seed: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum KeepsText {
    #[default]
    Passing,
    Demoted,
    Captured,
    Inferred,
    InferredAtReuse,
    InferredEarly,
    Scanned,
    Hinted,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum WritesText {
    #[default]
    Through,
    Back,
    Around,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum SpreadText {
    #[default]
    Fixed,
    Exponential,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "kebab-case")]
enum ArriveText {
    Trace,
    Random,
    Closed,
}

fn parsed<'de, D, T>(d: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: std::str::FromStr<Err: std::fmt::Display>,
{
    String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
}

fn parsed_if_any<'de, D, T>(d: D) -> Result<Option<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: std::str::FromStr<Err: std::fmt::Display>,
{
    parsed(d).map(Some)
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
enum PlanError {
    /// It is no such TOML.
    #[error("{}", .0.to_string().trim_end())]
    Text(#[from] toml::de::Error),
    /// It describes nothing.
    #[error("it has no [[level]]")]
    NoLevel,
    /// A level cannot be so large.
    #[error("level {level}: {source}")]
    Size {
        /// Its name.
        level: String,
        /// Why.
        source: undercroft_units::SlotsError,
    },
    /// Times of some things, and not of others.
    #[error("times need both a [disk] with read = \"8ms\" and [requests] with arrive = \"closed\"")]
    TimesAlone,
    /// How requests arrive contradicts itself.
    #[error(
        "[requests] is one of arrive = \"trace\", perhaps with speed; arrive = \"random\" with per_second; arrive = \
         \"closed\", perhaps with depth"
    )]
    Requests,
    /// A level that scans does not say how often.
    #[error("level {0}: keeps = \"scanned\" needs scan_every, in transfers")]
    NeverScanned(String),
    /// A level says how often it scans, and does not scan.
    #[error("level {0}: scan_every is for keeps = \"scanned\"")]
    ScanEvery(String),
    /// A Linux guest was given a policy.
    #[error("level {0}: a Linux guest has its own lists, no policy")]
    LinuxPolicy(String),
}

/// A hierarchy whose sizes are not blocks yet.
pub struct PlanFile {
    text: PlanText,
    name: String,
}

impl PlanFile {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or says what is not known; names the file and the line.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let shown = path.display();
        let text = std::fs::read_to_string(path).map_err(|e| Failure::Said(format!("cannot read {shown}: {e}")))?;
        let name = path.file_stem().map_or_else(|| shown.to_string(), |n| n.to_string_lossy().into_owned());
        Self::parse(&text, name)
            .map_err(|e| Failure::Said(format!("{shown}: {e}\ndocs/simulator.md describes the file, with examples")))
    }

    fn parse(text: &str, name: String) -> Result<Self, PlanError> {
        let text: PlanText = toml::from_str(text)?;
        if text.level.is_empty() {
            return Err(PlanError::NoLevel);
        }
        Ok(Self { name: text.name.clone().unwrap_or(name), text })
    }

    /// Whether a size is a share of the footprint.
    pub fn needs_footprint(&self) -> bool {
        self.text.level.iter().any(|l| l.size.size.needs_footprint())
    }

    /// Whether a size is in bytes.
    pub fn has_bytes(&self) -> bool {
        self.text.level.iter().any(|l| matches!(l.size.size, CacheSize::Bytes(_)))
    }

    /// Blocks of a range, if levels keep what is told of ranges, and accesses after which that is told anew.
    ///
    /// # Errors
    /// The levels, the size of ranges and the accesses do not go together.
    pub fn hints(&self, block_bytes: u32) -> Result<Option<(u64, Option<NonZeroU64>)>, Failure> {
        let said = |what: String| Failure::Said(format!("{}: {what}", self.name));
        let hinted = self.text.level.iter().any(|l| matches!(l.keeps, KeepsText::Hinted));
        let every = match self.text.hints_every.map(NonZeroU64::new) {
            None => None,
            Some(Some(every)) if self.text.hints.is_some() => Some(every),
            Some(Some(_)) => return Err(said("hints_every needs hints = \"1MiB\", the size of the ranges".into())),
            Some(None) => return Err(said("hints_every = 0: hints are given anew after at least 1 access".into())),
        };
        match (hinted, self.text.hints) {
            (false, None) => Ok(None),
            (true, Some(range)) if range.0 >= u64::from(block_bytes) => {
                Ok(Some((range.0 / u64::from(block_bytes), every)))
            }
            (true, Some(range)) => {
                Err(said(format!("hints = \"{range}\" is less than a block; ranges have at least one")))
            }
            _ => Err(said(
                "keeps = \"hinted\" and hints = \"1MiB\", the size of the ranges that are told of, go together".into(),
            )),
        }
    }

    /// The plan, for blocks of `block_bytes` and a trace of `footprint` distinct ones, if that is known.
    ///
    /// # Errors
    /// Sizes that cannot be had, or times that do not go together.
    pub fn plan(&self, block_bytes: u32, footprint: Option<u64>) -> Result<HierarchyPlan, Failure> {
        self.resolve(block_bytes, footprint).map_err(|e| Failure::Said(format!("{}: {e}", self.name)))
    }

    fn resolve(&self, block_bytes: u32, footprint: Option<u64>) -> Result<HierarchyPlan, PlanError> {
        let mut levels = vec![];
        for l in &self.text.level {
            let blocks = (l.size.size.slots(block_bytes, footprint))
                .map_err(|source| PlanError::Size { level: l.name.clone(), source })?;
            levels.push(l.options(blocks)?);
        }
        Ok(HierarchyPlan { name: self.name.clone(), levels, hints: None, timing: self.timing()? })
    }

    fn timing(&self) -> Result<Option<HierarchyTiming>, PlanError> {
        let timed = self.text.level.iter().any(|l| l.read.is_some() || l.write.is_some());
        let (Some(disk), Some(requests)) = (&self.text.disk, &self.text.requests) else {
            return if timed || self.text.disk.is_some() || self.text.requests.is_some() {
                Err(PlanError::TimesAlone)
            } else {
                Ok(None)
            };
        };
        let mut devices: Vec<Device> = self.text.level.iter().map(LevelText::device).collect();
        devices.push(device(Some(disk.read), disk.write, disk.channels, disk.spread));
        let arrivals = match (requests.arrive, requests.per_second, requests.depth, requests.speed) {
            (ArriveText::Trace, None, None, speed) => Arrivals::Trace(speed.unwrap_or(1.0)),
            (ArriveText::Random, Some(per_second), None, None) => Arrivals::Random(per_second),
            (ArriveText::Closed, None, depth, None) => Arrivals::Closed(depth.unwrap_or(1)),
            _ => return Err(PlanError::Requests),
        };
        Ok(Some(HierarchyTiming { devices, arrivals, seed: requests.seed.unwrap_or(SEED) }))
    }
}

impl LevelText {
    fn options(&self, blocks: u32) -> Result<LevelOptions, PlanError> {
        let keeps = match (self.keeps, self.scan_every) {
            (KeepsText::Scanned, Some(every)) => Keeps::Scanned(every.max(1)),
            (KeepsText::Scanned, None) => return Err(PlanError::NeverScanned(self.name.clone())),
            (_, Some(_)) => return Err(PlanError::ScanEvery(self.name.clone())),
            (KeepsText::Passing, None) => Keeps::Passing,
            (KeepsText::Demoted, None) => Keeps::Demoted,
            (KeepsText::Captured, None) => Keeps::Captured,
            (KeepsText::Inferred, None) => Keeps::Inferred(ExclusiveMode::Auto),
            (KeepsText::InferredAtReuse, None) => Keeps::Inferred(ExclusiveMode::Capture),
            (KeepsText::InferredEarly, None) => Keeps::Inferred(ExclusiveMode::Delayed),
            (KeepsText::Hinted, None) => Keeps::Hinted,
        };
        let writes = match self.writes {
            WritesText::Through => Writes::Through,
            WritesText::Back => Writes::Back,
            WritesText::Around => Writes::Around,
        };
        let free = |l: &LinuxText| (f64::from(blocks) * l.free.value() / 100.0) as u32;
        let linux = self.linux.as_ref().map(|l| LinuxGuest { free_pages: free(l), zeroing: l.zeroing });
        if linux.is_some() && self.policy.is_some() {
            return Err(PlanError::LinuxPolicy(self.name.clone()));
        }
        let policy = self.policy.unwrap_or(PolicyKind::Lru.into());
        Ok(LevelOptions { name: self.name.clone(), blocks, policy, keeps, writes, linux })
    }

    fn device(&self) -> Device {
        device(self.read, self.write, self.channels, self.spread)
    }
}

/// A device that takes no time unless something is said.
fn device(read: Option<Time>, write: Option<Time>, channels: Option<u32>, spread: SpreadText) -> Device {
    let read_ns = read.map_or(0, |t| t.0);
    let spread = match spread {
        SpreadText::Fixed => Spread::Fixed,
        SpreadText::Exponential => Spread::Exponential,
    };
    Device { read_ns, write_ns: write.map_or(read_ns, |t| t.0), spread, channels: channels.unwrap_or(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"
name = "guest, host, SSD"
[[level]]
name = "guest"
size = "10%"
linux = { free = "2%", zeroing = true }
read = "1us"
channels = 4
[[level]]
name = "host"
size = "400KiB"
policy = "s3-fifo"
keeps = "inferred"
read = "10us"
write = "20us"
[[level]]
name = "ssd"
size = "1000blocks"
policy = "lru"
keeps = "demoted"
writes = "back"
read = "80us"
spread = "exponential"
[disk]
read = "8ms"
[requests]
arrive = "random"
per_second = 500
"#;

    fn plan(text: &str) -> Result<HierarchyPlan, PlanError> {
        PlanFile::parse(text, "file".into())?.resolve(4096, Some(10_000))
    }

    #[test]
    fn a_whole_file_is_read() {
        let plan = plan(WHOLE).unwrap();
        assert_eq!(plan.name, "guest, host, SSD");
        assert_eq!(plan.levels.iter().map(|l| l.blocks).collect::<Vec<_>>(), [1000, 100, 1000]);
        assert_eq!(plan.levels[0].linux, Some(LinuxGuest { free_pages: 20, zeroing: true }));
        assert_eq!(plan.levels[1].keeps, Keeps::Inferred(ExclusiveMode::Auto));
        assert_eq!((plan.levels[2].keeps, plan.levels[2].writes), (Keeps::Demoted, Writes::Back));
        let timing = plan.timing.unwrap();
        assert_eq!(timing.arrivals, Arrivals::Random(500.0));
        let times: Vec<_> = timing.devices.iter().map(|d| (d.read_ns, d.write_ns, d.channels)).collect();
        assert_eq!(times, [(1000, 1000, 4), (10_000, 20_000, 1), (80_000, 80_000, 1), (8_000_000, 8_000_000, 1)]);
        undercroft_study::sim::hierarchy::Hierarchy::new(&plan.levels, None).expect("it goes together");
    }

    #[test]
    fn hints_and_levels_that_keep_by_them_go_together() {
        let level = |keeps: &str| format!("[[level]]\nname = \"a\"\nsize = \"10%\"\nkeeps = \"{keeps}\"\n");
        let ranges = |text: &str| PlanFile::parse(text, "file".into()).unwrap().hints(4096);
        assert_eq!(ranges(&level("passing")).ok(), Some(None));
        assert_eq!(ranges(&format!("hints = \"1MiB\"\n{}", level("hinted"))).ok(), Some(Some((256, None))));
        let every = |n: u64| format!("hints = \"1MiB\"\nhints_every = {n}\n{}", level("hinted"));
        assert_eq!(ranges(&every(1000)).ok(), Some(Some((256, NonZeroU64::new(1000)))));
        let wrong = [
            level("hinted"),
            format!("hints = \"1MiB\"\n{}", level("demoted")),
            format!("hints_every = 1000\n{}", level("passing")),
            format!("hints_every = 1000\n{}", level("hinted")),
            every(0),
        ];
        for text in wrong.iter().chain([&format!("hints = \"1KiB\"\n{}", level("hinted"))]) {
            let Err(Failure::Said(said)) = ranges(text) else { panic!("{text}") };
            assert!(said.starts_with("file: ") && said.contains("hints"), "{said}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let small = "[[level]]\nname = \"a\"\nsize = \"10%\"\n";
        assert!(plan(small).unwrap().timing.is_none());
        for (text, needle) in [
            ("", "missing field `level`"),
            ("level = []", "no [[level]]"),
            (&small.replace("10%", "10G"), "line 3"),
            (&format!("{small}polcy = \"lru\"\n"), "unknown field `polcy`"),
            (&format!("{small}policy = \"lur\"\n"), "known are fifo"),
            (&format!("{small}keeps = \"scanned\"\n"), "needs scan_every"),
            (&format!("{small}scan_every = 5\n"), "is for keeps"),
            (&format!("{small}keeps = \"all\"\n"), "unknown variant `all`"),
            (&format!("{small}read = \"1us\"\n"), "both a [disk]"),
            (&format!("{small}[disk]\nread = \"8ms\"\n"), "both a [disk]"),
            (&format!("{small}[disk]\nread = \"8ms\"\n[requests]\narrive = \"random\"\n"), "with per_second"),
            (
                &format!("{small}[disk]\nread = \"8ms\"\n[requests]\narrive = \"closed\"\nspeed = 2.0\n"),
                "perhaps with depth",
            ),
            (&format!("{small}linux = {{ free = \"2%\" }}\npolicy = \"arc\"\n"), "no policy"),
            (&small.replace("10%", "64TiB").replace("name = \"a\"", "name = \"big\""), "footprint"),
        ] {
            match plan(text) {
                // A size past the footprint is cut to it.
                Ok(plan) => assert!(needle == "footprint" && plan.levels[0].blocks == 10_000, "{text}"),
                Err(said) => assert!(said.to_string().contains(needle), "{text}: {said}"),
            }
        }
    }
}
