//! Nodes of the tree of shares: VMs, containers and disks, and how the store is divided among them, checked and filled
//! in.
//!
//! Owns the checks of one node by itself. Never divides: `shares` does, and finds what does not fit together; images
//! and sockets of disks are looked at in `disk`.

use super::checks::Checker;
use super::daemon::DaemonPlan;
use super::disk::place_of;
use super::fields::{Field, field, size_or, time, word_or};
use super::goal::GoalPlan;
use super::image::{ImageFormat, ImageSpec};
use super::keys::{self, UNIT_BYTES, WEIGHT_DEFAULT, WEIGHT_MAX};
use super::locks::LOCKS_DEFAULT;
use super::spec::{DiskSpec, Lines, NodeSpec, SharesSpec};
use super::stores::StoreChoice;
use super::written::WrittenError;
use std::path::PathBuf;
use std::time::Duration;
use undercroft_cache::DiskSettings;
use undercroft_engine::control::ControllerKind;
use undercroft_engine::locking::LockMode;
use undercroft_engine::shares::Hint;
use undercroft_engine::{ExclusiveMode, PolicyKind};
use undercroft_units::{Percent, Size, Time};

/// How the store is divided while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharesPlan {
    /// Who divides, where no VM or container says otherwise.
    pub controller: ControllerKind,
    /// Time between two divisions of the store.
    pub interval: Duration,
}

/// What is set for a VM or a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePlan {
    /// `VM` or `VM/CONTAINER`.
    pub name: String,
    /// Its weight against its siblings, where they want more than there is.
    pub weight: u32,
    /// What it gets whenever it can make use of it, however much others want; in bytes.
    pub floor_bytes: u64,
    /// The most that it may ever have, in bytes.
    pub ceiling_bytes: Option<u64>,
    /// Who divides its share; as above it if `None`.
    pub controller: Option<ControllerKind>,
    /// What it is meant to reach.
    pub goal: Option<GoalPlan>,
    /// Replacement policy of what is below it and names none.
    pub policy: Option<PolicyKind>,
    /// Which stores what is below it may be in, where it names none.
    pub store: Option<StoreChoice>,
    /// Whether the configuration does not have it: it is here because something was set for it by hand.
    pub by_hand: bool,
}

impl NodePlan {
    /// A VM or a container for which nothing is set.
    pub fn new(name: &str) -> Self {
        let weight = keys::WEIGHT_DEFAULT;
        Self {
            name: name.to_string(),
            weight,
            floor_bytes: 0,
            ceiling_bytes: None,
            controller: None,
            goal: None,
            policy: None,
            store: None,
            by_hand: false,
        }
    }
}

/// One disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskPlan {
    /// Its name everywhere: `VM:DISK`, or the bare name of a disk without a VM. Also its NBD export name.
    pub name: String,
    /// The VM it belongs to.
    pub vm: Option<String>,
    /// The image. A location that is a path is absolute.
    pub image: ImageSpec,
    /// The vhost-user socket; none if the disk is served otherwise only.
    pub socket: Option<PathBuf>,
    /// Whether the NBD listeners export it.
    pub nbd: bool,
    /// The file of this host that it becomes.
    pub file: Option<PathBuf>,
    /// The link to the block device of this host that it becomes.
    pub device: Option<PathBuf>,
    /// Whether `file` was said by hand while it was served.
    pub file_by_hand: bool,
    /// Whether it stays when a file is read again that does not name it.
    pub kept: bool,
    /// The replacement policy: its own, or that of the nearest above it that has one.
    pub policy: PolicyKind,
    /// The policy that is set for itself.
    pub own_policy: Option<PolicyKind>,
    /// Bytes of the store that it may use, its metadata included.
    pub share_bytes: u64,
    /// Whether `share_bytes` was asked for (`size`); if not, it follows from `weight` and changes when disks come and
    /// go.
    pub share_fixed: bool,
    /// Its weight against its siblings, where they want more than there is.
    pub weight: u32,
    /// What it gets whenever it can make use of it, however much others want; in bytes.
    pub floor_bytes: u64,
    /// The most that it may ever have, in bytes.
    pub ceiling_bytes: Option<u64>,
    /// Disks that have between them what operations of one disk may have: those of its pool when it came into the plan,
    /// this one among them. It stays so while the disk is served.
    pub io_disks: u32,
    /// What containers have of it by ranges of blocks, which the API sets; their shares are in `share_bytes`.
    pub parts: Vec<PartPlan>,
    /// What it is meant to reach.
    pub goal: Option<GoalPlan>,
    /// What else of it the cache is told, at the start and when it changes.
    pub settings: DiskSettings,
    /// The file of blocks that are pinned.
    pub pins: Option<PathBuf>,
    /// The file of blocks that are locked under [`LockMode::Static`].
    pub lock_profile: Option<PathBuf>,
    /// Which stores its blocks may be in, if that is set for itself.
    pub store: Option<StoreChoice>,
    /// The container of its VM that it belongs to.
    pub container: Option<String>,
    /// Whether a written block that was not cached becomes cached.
    pub write_allocate: bool,
    /// The trust group: one that was named, or `vm:NAME`, or `disk:NAME`.
    pub trust: String,
    /// With whom it holds blocks of an image that nobody writes in common.
    pub deduplicate_base: BaseDeduplication,
    /// Whether guest memory may lie in any file, access to which may then wait.
    pub trust_memory: bool,
    /// Whether its guest runs elsewhere at first: its image is opened when the guest starts here.
    pub incoming: bool,
    /// Serial number that the guest sees: at most 20 bytes of printable ASCII.
    pub serial: String,
    /// Queues of the vhost-user device, 1 to 64.
    pub queues: u16,
    /// Entries of each queue: a power of two, 2 to 1024.
    pub queue_size: u16,
    /// How long a worker polls for the next request at most before it sleeps; zero is off.
    pub poll: Duration,
}

/// Which disks on one image that nobody writes hold its blocks in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BaseDeduplication {
    /// None: `deduplicate_base = false`.
    Nobody,
    /// Those of its trust group: the group was named, and nothing was said about bases.
    Group,
    /// All that have this: `deduplicate_base = true`, or neither that nor a group was named.
    Everybody,
}

/// What one container has of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartPlan {
    /// The container, without its VM.
    pub container: String,
    /// Its number on the disk, 1 to 255; it keeps it.
    pub number: u8,
    /// Bytes of the store that it may use.
    pub share_bytes: u64,
}

impl BaseDeduplication {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nobody => "false",
            Self::Group => "within the group",
            Self::Everybody => "true",
        }
    }
}

impl DiskPlan {
    /// A disk of which nothing is known.
    fn bare() -> Self {
        Self {
            name: String::new(),
            vm: None,
            image: ImageSpec { location: String::new(), format: None, read_only: false },
            socket: None,
            nbd: false,
            file: None,
            device: None,
            file_by_hand: false,
            kept: false,
            policy: keys::POLICY_DEFAULT,
            own_policy: None,
            share_bytes: 0,
            share_fixed: false,
            weight: WEIGHT_DEFAULT,
            floor_bytes: 0,
            ceiling_bytes: None,
            io_disks: 1,
            parts: Vec::new(),
            goal: None,
            settings: DiskSettings {
                readahead_bytes: keys::READAHEAD_BYTES_DEFAULT,
                locking: LOCKS_DEFAULT,
                ..DiskSettings::default()
            },
            pins: None,
            lock_profile: None,
            store: None,
            container: None,
            write_allocate: true,
            trust: String::new(),
            deduplicate_base: BaseDeduplication::Everybody,
            trust_memory: false,
            incoming: false,
            serial: String::new(),
            queues: keys::QUEUES_DEFAULT,
            queue_size: keys::QUEUE_SIZE_DEFAULT,
            poll: keys::POLL_DEFAULT,
        }
    }

    /// How it will be used, in a word.
    pub fn hint_name(&self) -> &'static str {
        self.settings.hint.name()
    }

    /// Whether blocks are locked that a profile names.
    pub fn is_locked_by_profile(&self) -> bool {
        self.settings.locking.mode == LockMode::Static
    }

    /// What is wrong if it has a profile and locks nothing by it.
    pub(crate) fn misused_profile(&self) -> Option<WrittenError> {
        (self.lock_profile.is_some() && !self.is_locked_by_profile()).then(|| WrittenError {
            error: "it has a lock_profile, which is for lock = \"static\" alone".to_owned(),
            remedy: "set lock = \"static\" as well, or take lock_profile away".to_owned(),
        })
    }

    /// Whether all that is set of its locks is as it is set of `other`'s.
    pub fn has_locks_of(&self, other: &DiskPlan) -> bool {
        self.settings.locking == other.settings.locking
            && (&self.pins, &self.lock_profile) == (&other.pins, &other.lock_profile)
    }

    /// Its own part of its share: what its containers leave.
    pub(crate) fn rest_bytes(&self) -> u64 {
        self.share_bytes.saturating_sub(self.parts.iter().map(|p| p.share_bytes).sum())
    }

    /// Whether it is the node called `node`, or below that, or that has ranges of it.
    pub fn is_of(&self, node: &str) -> bool {
        let container = |c: &String| self.vm.as_ref().is_some_and(|vm| node == format!("{vm}/{c}"));
        self.name == node
            || self.vm.as_deref() == Some(node)
            || self.container.iter().chain(self.parts.iter().map(|p| &p.container)).any(container)
    }

    /// What a container has of it by ranges, by the full name of the container.
    pub fn part_of(&self, node: &str) -> Option<&PartPlan> {
        let (vm, container) = node.split_once('/')?;
        self.parts.iter().find(|p| self.vm.as_deref() == Some(vm) && p.container == container)
    }

    /// What has a share here, the disk itself first: number, name as a node, bytes.
    pub fn leaves(&self) -> impl Iterator<Item = (u8, String, u64)> + '_ {
        let part = |p: &PartPlan| (p.number, format!("{}[{}]", self.name, p.container), p.share_bytes);
        std::iter::once((0, self.name.clone(), self.rest_bytes())).chain(self.parts.iter().map(part))
    }

    /// Gives shares in bytes, in the order of [`DiskPlan::leaves`].
    pub fn set_leaves(&mut self, bytes: &[u64]) {
        self.share_bytes = bytes.iter().sum();
        for (part, &share) in self.parts.iter_mut().zip(&bytes[1..]) {
            part.share_bytes = share;
        }
    }
}

/// The keys of `[shares]`.
pub(crate) const SHARES: &[Field<SharesPlan>] = &[
    field!(SharesPlan, controller, controller, |c| c.name().to_string()),
    field!(SharesPlan, interval, interval, time),
];

/// The keys of VMs and containers.
pub(crate) const NODE: &[Field<NodePlan>] = &[
    field!(NodePlan, weight, weight, |w| w.to_string()),
    field!(NodePlan, floor, floor_bytes, |b| Size(*b).to_string()),
    field!(NodePlan, ceiling, ceiling_bytes, |b| size_or(*b, "none")),
    field!(NodePlan, controller, controller, |c| word_or(c.map(ControllerKind::name), "inherit")),
    field!(NodePlan, goal, goal, |g| word_or(*g, "none")),
    field!(NodePlan, policy, policy, |p| word_or(*p, "inherit")),
    field!(NodePlan, store, store, |s| word_or(*s, "inherit")),
];

/// The keys of disks.
pub(crate) const DISK: &[Field<DiskPlan>] = &[
    field!(DiskPlan, image, image.location, String::clone),
    field!(DiskPlan, format, image.format, |f| word_or(f.map(ImageFormat::name), "found out")),
    field!(DiskPlan, read_only, image.read_only, bool::to_string),
    field!(DiskPlan, socket, socket, |s| word_or(s.as_ref().map(|s| s.display()), "none")),
    field!(DiskPlan, nbd, nbd, bool::to_string),
    field!(DiskPlan, fuse, file, |f| word_or(f.as_ref().map(|f| f.display()), "none")),
    field!(DiskPlan, ublk, device, |d| word_or(d.as_ref().map(|d| d.display()), "none")),
    field!(DiskPlan, policy, own_policy, |p| word_or(*p, "inherit")),
    Field {
        key: "size",
        show: |disk| size_or(disk.share_fixed.then_some(disk.share_bytes), "by weight"),
        copy: |to, from| (to.share_fixed, to.share_bytes) = (from.share_fixed, from.share_bytes),
    },
    field!(DiskPlan, weight, weight, |w| w.to_string()),
    field!(DiskPlan, floor, floor_bytes, |b| Size(*b).to_string()),
    field!(DiskPlan, ceiling, ceiling_bytes, |b| size_or(*b, "none")),
    field!(DiskPlan, goal, goal, |g| word_or(*g, "none")),
    field!(DiskPlan, store, store, |s| word_or(*s, "inherit")),
    field!(DiskPlan, hint, settings.hint, |h| h.to_string()),
    field!(DiskPlan, container, container, |c| word_or(c.as_ref(), "none")),
    field!(DiskPlan, readahead, settings.readahead_bytes, |b| Size(u64::from(*b)).to_string()),
    field!(DiskPlan, exclusive, settings.exclusive, |e| e.to_string()),
    field!(DiskPlan, lock, settings.locking.mode, |m| m.to_string()),
    field!(DiskPlan, lock_budget, settings.locking.budget_permille, |b| Percent(u32::from(*b) * 10).to_string()),
    field!(DiskPlan, lock_held, settings.locking.keep_held, bool::to_string),
    field!(DiskPlan, miss_table, settings.locking.miss_entries, u16::to_string),
    field!(DiskPlan, victim_buffer, settings.locking.victim_blocks, u16::to_string),
    field!(DiskPlan, pins, pins, |p| word_or(p.as_ref().map(|p| p.display()), "none")),
    field!(DiskPlan, lock_profile, lock_profile, |p| word_or(p.as_ref().map(|p| p.display()), "none")),
    field!(DiskPlan, trust, trust, String::clone),
    field!(DiskPlan, deduplicate_base, deduplicate_base, |b| b.name().to_string()),
    field!(DiskPlan, trust_memory, trust_memory, bool::to_string),
    field!(DiskPlan, incoming, incoming, bool::to_string),
    field!(DiskPlan, write_allocate, write_allocate, bool::to_string),
    field!(DiskPlan, serial, serial, String::clone),
    field!(DiskPlan, queues, queues, |q| q.to_string()),
    field!(DiskPlan, queue_size, queue_size, |q| q.to_string()),
    field!(DiskPlan, poll, poll, time),
];

impl Checker<'_> {
    /// A disk.
    pub(crate) fn disk(&mut self, spec: &DiskSpec, daemon: &DaemonPlan, memory_bytes: u64, has_nbd: bool) -> DiskPlan {
        let place = &place_of(spec.vm.as_deref(), &spec.name);
        let at = |key: &str| spec.lines.get(key).copied();
        let name = self.name(spec, place);
        let image = self.image(spec, place, spec.read_only.unwrap_or(false));
        let socket = self.disk_socket(spec, place, &name, daemon);
        let file = self.disk_file(spec, place, daemon);
        let device = self.disk_device(spec, place, daemon);
        let is_reached = socket.is_some() || file.is_some() || device.is_some();
        let nbd = self.export(spec, place, is_reached, has_nbd);
        self.size(spec, place, memory_bytes);
        let queues = self.bounded(at("queues"), place, "queues", spec.queues, 1, keys::QUEUES_MAX.into());
        let settings = self.disk_settings(spec, place, daemon.poll);
        if let Some(misuse) = settings.misused_profile() {
            self.error(at("lock_profile"), place, misuse.error, misuse.remedy);
        }
        DiskPlan {
            serial: self.serial(at("serial"), place, &name, spec.serial.as_deref()),
            trust: self.trust(at("trust"), place, &name, spec),
            deduplicate_base: match (spec.deduplicate_base, &spec.trust) {
                (Some(false), _) => BaseDeduplication::Nobody,
                // Who names a group means that others are to learn nothing.
                (None, Some(_)) => BaseDeduplication::Group,
                (Some(true), _) | (None, None) => BaseDeduplication::Everybody,
            },
            trust_memory: spec.trust_memory.unwrap_or(false),
            incoming: self.incoming(spec, place, socket.is_some()),
            name,
            vm: spec.vm.clone(),
            image,
            socket,
            nbd,
            file,
            device,
            kept: spec.keep,
            container: self.container(at("container"), place, spec),
            write_allocate: spec.write_allocate.unwrap_or(true),
            queues: queues.map_or(keys::QUEUES_DEFAULT, |q| q as u16),
            queue_size: self.queue_size(at("queue_size"), place, spec.queue_size),
            ..settings
        }
    }

    /// What is set by hand of a disk, too; everything else of the result stands for nothing.
    pub(crate) fn disk_settings(&mut self, spec: &DiskSpec, place: &str, poll: Duration) -> DiskPlan {
        let at = |key: &str| spec.lines.get(key).copied();
        self.bounds(&spec.lines, place, spec.floor, spec.ceiling);
        let weight = self.bounded(at("weight"), place, "weight", spec.weight, 1, WEIGHT_MAX.into());
        let readahead = spec.readahead.filter(|r| {
            let fits = r.0 <= keys::READAHEAD_BYTES_MAX.into();
            if !fits {
                let remedy = format!("give at most {}; 0 turns it off", Size(keys::READAHEAD_BYTES_MAX.into()));
                self.error(at("readahead"), place, format!("readahead is {r}, too far ahead"), remedy);
            }
            fits
        });
        let settings = DiskSettings {
            hint: spec.hint.as_deref().and_then(|text| self.hint(&spec.lines, place, text)).unwrap_or_default(),
            readahead_bytes: readahead.map_or(keys::READAHEAD_BYTES_DEFAULT, |r| r.0 as u32),
            exclusive: spec
                .exclusive
                .as_deref()
                .and_then(|text| self.exclusive(&spec.lines, place, text))
                .unwrap_or_default(),
            locking: self.locks(spec, place),
        };
        DiskPlan {
            own_policy: spec.policy.as_deref().and_then(|text| self.policy(&spec.lines, place, text)),
            // In whole units, here and nowhere else: what is not a unit's is for nobody, and shares add up.
            share_bytes: spec.size.map_or(0, |s| s.0 / UNIT_BYTES * UNIT_BYTES),
            share_fixed: spec.size.is_some(),
            weight: weight.map_or(WEIGHT_DEFAULT, |w| w as u32),
            floor_bytes: spec.floor.map_or(0, |s| s.0),
            ceiling_bytes: spec.ceiling.map(|s| s.0),
            goal: self.goal(&spec.lines, place, spec.goal.as_deref()),
            store: self.store_choice(&spec.lines, place, spec.store.as_deref()),
            settings,
            pins: self.pin_list(at("pins"), place, "pins", spec.pins.as_deref()),
            lock_profile: self.pin_list(at("lock_profile"), place, "lock_profile", spec.lock_profile.as_deref()),
            poll: self.poll(at("poll"), place, spec.poll).unwrap_or(poll),
            ..DiskPlan::bare()
        }
    }

    /// A size, and what means nothing beside one.
    fn size(&mut self, spec: &DiskSpec, place: &str, memory_bytes: u64) {
        let at = |key: &str| spec.lines.get(key).copied();
        let Some(size) = spec.size else { return };
        if size.0 < keys::SHARE_BYTES_MIN {
            let error = format!("size is {size}, too little to cache in");
            self.error(at("size"), place, error, format!("give at least {}", Size(keys::SHARE_BYTES_MIN)));
        } else if size.0 > memory_bytes {
            let error = format!("size is {size}, but the memory of the store is {}", Size(memory_bytes));
            self.error(at("size"), place, error, "make size smaller or store.memory larger");
        }
        for key in ["weight", "floor", "ceiling"].into_iter().filter(|key| spec.lines.contains_key(key)) {
            let remedy = format!("a size is floor and ceiling in one: take size or {key} away");
            self.warning(at(key), place, format!("it has a size, so its {key} means nothing"), remedy);
        }
    }

    /// `[shares]`.
    pub(crate) fn shares(&mut self, spec: &SharesSpec) -> SharesPlan {
        let controller = spec.controller.as_deref().and_then(|text| self.controller(&spec.lines, "shares", text));
        let [least, most] = keys::SHARES_INTERVAL_RANGE;
        let interval = spec.interval.filter(|t| {
            let fits = (least..=most).contains(&t.duration());
            if !fits {
                let remedy = format!("give {} to {}", Time::from(least), Time::from(most));
                let line = spec.lines.get("interval").copied();
                self.error(line, "shares", format!("interval must not be {t}"), remedy);
            }
            fits
        });
        SharesPlan {
            controller: controller.unwrap_or_default(),
            interval: interval.map_or(keys::SHARES_INTERVAL_DEFAULT, Time::duration),
        }
    }

    /// A VM or a container.
    pub(crate) fn node(&mut self, spec: &NodeSpec) -> NodePlan {
        let (kind, name) = match spec.name.split_once('/') {
            Some((_, container)) => ("container", container),
            None => ("VM", spec.name.as_str()),
        };
        let place = format!("{} \"{}\"", kind.to_lowercase(), spec.name.chars().take(160).collect::<String>());
        let line = |key: &str| spec.lines.get(key).copied();
        self.check_name(line("name"), &place, kind, name);
        let weight = self.bounded(line("weight"), &place, "weight", spec.weight, 1, WEIGHT_MAX.into());
        self.bounds(&spec.lines, &place, spec.floor, spec.ceiling);
        NodePlan {
            name: spec.name.clone(),
            weight: weight.map_or(WEIGHT_DEFAULT, |w| w as u32),
            floor_bytes: spec.floor.map_or(0, |s| s.0),
            ceiling_bytes: spec.ceiling.map(|s| s.0),
            controller: spec.controller.as_deref().and_then(|text| self.controller(&spec.lines, &place, text)),
            goal: self.goal(&spec.lines, &place, spec.goal.as_deref()),
            policy: spec.policy.as_deref().and_then(|text| self.policy(&spec.lines, &place, text)),
            store: self.store_choice(&spec.lines, &place, spec.store.as_deref()),
            by_hand: false,
        }
    }

    /// Which stores its blocks may be in.
    pub(crate) fn store_choice(&mut self, lines: &Lines, place: &str, text: Option<&str>) -> Option<StoreChoice> {
        let wrong: WrittenError = match StoreChoice::among(text?, self.has_ssd) {
            Ok(choice) => return Some(choice),
            Err(wrong) => wrong,
        };
        self.error(lines.get("store").copied(), place, wrong.error, wrong.remedy);
        None
    }

    /// What a node is to reach.
    pub(crate) fn goal(&mut self, lines: &Lines, place: &str, text: Option<&str>) -> Option<GoalPlan> {
        let goal = text?.parse::<GoalPlan>();
        goal.map_err(|e| self.error(lines.get("goal").copied(), place, format!("goal: {}", e.error), e.remedy)).ok()
    }

    /// How a disk will be used.
    fn hint(&mut self, lines: &Lines, place: &str, text: &str) -> Option<Hint> {
        self.named(lines.get("hint").copied(), place, "unknown hint", text, &Hint::ALL.map(Hint::name))
    }

    /// A replacement policy.
    fn policy(&mut self, lines: &Lines, place: &str, text: &str) -> Option<PolicyKind> {
        self.named(lines.get("policy").copied(), place, "unknown policy", text, &PolicyKind::ALL.map(PolicyKind::name))
    }

    /// How a cache is kept exclusive of its guest's.
    fn exclusive(&mut self, lines: &Lines, place: &str, text: &str) -> Option<ExclusiveMode> {
        let known = ExclusiveMode::ALL.map(ExclusiveMode::name);
        self.named(lines.get("exclusive").copied(), place, "exclusive: unknown mode", text, &known)
    }

    /// The container that a disk names.
    pub(crate) fn container(&mut self, line: Option<usize>, place: &str, spec: &DiskSpec) -> Option<String> {
        let name = spec.container.as_ref()?;
        if spec.vm.is_none() {
            let remedy = "write it as [[vm.disk]] below its [[vm]], or take container away";
            self.error(line, place, "it has a container, but it belongs to no VM".into(), remedy);
            return None;
        }
        self.check_name(line, place, "container", name);
        Some(name.clone())
    }

    /// Whether a floor and a ceiling go together.
    pub(crate) fn bounds(&mut self, lines: &Lines, place: &str, floor: Option<Size>, ceiling: Option<Size>) {
        if let (Some(floor), Some(ceiling)) = (floor, ceiling)
            && floor.0 > ceiling.0
        {
            let line = lines.get("ceiling").copied();
            let error = format!("its ceiling of {ceiling} is below its floor of {floor}");
            self.error(line, place, error, "raise the ceiling or lower the floor");
        }
    }

    fn controller(&mut self, lines: &Lines, place: &str, text: &str) -> Option<ControllerKind> {
        let known = ControllerKind::ALL.map(ControllerKind::name);
        self.named(lines.get("controller").copied(), place, "unknown controller", text, &known)
    }
}
