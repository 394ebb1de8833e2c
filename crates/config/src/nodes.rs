//! What is set for the division of the store: `[shares]`, and weights, floors and ceilings of VMs, containers and
//! disks.
//!
//! Owns the checks of one node by itself. Never divides: `shares` does, and finds what does not fit together.

use super::goal::{GOALS, GoalPlan};
use super::keys::{self, WEIGHT_DEFAULT, WEIGHT_MAX};
use super::plan::{NodePlan, SharesPlan, VmControl};
use super::resolve::{Resolver, clip};
use super::spec::{DiskSpec, Lines, NodeSpec, SharesSpec, VmControlSpec};
use super::stores::StoreChoice;
use undercroft_engine::control::ControllerKind;
use undercroft_engine::shares::Hint;
use undercroft_units::{Size, Time};

impl Resolver<'_> {
    /// `[shares]`.
    pub(super) fn shares(&mut self, spec: &SharesSpec) -> SharesPlan {
        let controller = self.controller(&spec.lines, "shares", spec.controller.as_deref());
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

    /// A VM's own control socket.
    pub(super) fn vm_control(&mut self, spec: &VmControlSpec) -> Option<VmControl> {
        let place = format!("vm \"{}\"", clip(&spec.vm));
        let at = |key: &str| spec.lines.get(key).copied();
        self.check_name(at("name"), &place, "VM", &spec.vm);
        let access = self.group(at("control_group"), &place, "control_group", &spec.group);
        let Some(path) = &spec.socket else {
            let remedy = "add control_socket = \"PATH\", or take control_group out";
            self.error(
                at("control_group"),
                &place,
                "control_group is for control_socket, which is missing".into(),
                remedy,
            );
            return None;
        };
        let socket = self.path(at("control_socket"), &place, "control_socket", path);
        let whose = format!("the control socket of VM \"{}\"", clip(&spec.vm));
        self.socket(&place, at("control_socket"), &whose, &socket, true);
        Some(VmControl { vm: spec.vm.clone(), socket, access })
    }

    /// A VM or a container.
    pub(super) fn node(&mut self, spec: &NodeSpec) -> NodePlan {
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
            controller: self.controller(&spec.lines, &place, spec.controller.as_deref()),
            goal: self.goal(&spec.lines, &place, spec.goal.as_deref()),
            policy: spec.policy.as_deref().map(|text| self.policy(line("policy"), &place, text)),
            store: self.store(&spec.lines, &place, spec.store.as_deref()),
        }
    }

    /// Which stores its blocks may be in.
    pub(super) fn store(&mut self, lines: &Lines, place: &str, text: Option<&str>) -> Option<StoreChoice> {
        let (error, remedy) = match text?.parse() {
            Ok(choice) => return Some(choice),
            Err(wrong) => wrong,
        };
        self.error(lines.get("store").copied(), place, error, remedy);
        None
    }

    /// What a node is to reach.
    pub(super) fn goal(&mut self, lines: &Lines, place: &str, text: Option<&str>) -> Option<GoalPlan> {
        let goal = text?.parse::<GoalPlan>();
        goal.map_err(|error| {
            let (error, remedy) = error.split_once("; ").unwrap_or((&error, GOALS));
            self.error(lines.get("goal").copied(), place, format!("goal: {error}"), remedy);
        })
        .ok()
    }

    /// How a disk will be used.
    pub(super) fn hint(&mut self, lines: &Lines, place: &str, text: Option<&str>) -> Hint {
        let Some(text) = text else { return Hint::Normal };
        text.parse().unwrap_or_else(|_| {
            let known = Hint::ALL.map(Hint::name).join(", ");
            let error = format!("unknown hint \"{}\"", clip(text));
            self.error(lines.get("hint").copied(), place, error, format!("known are {known}"));
            Hint::Normal
        })
    }

    /// Whether a name can be one: it stands in paths of sockets, in `VM:DISK` and in `VM/CONTAINER`.
    pub(super) fn check_name(&mut self, line: Option<usize>, place: &str, what: &str, name: &str) {
        let mut chars = name.chars();
        let start = chars.next().is_some_and(|c| c.is_ascii_alphanumeric());
        let rest = chars.all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
        if !start || !rest || name.len() > keys::NAME_BYTES_MAX {
            let error = format!("\"{}\" cannot be the name of a {what}", clip(name));
            let remedy = format!(
                "use letters, digits, '-', '_' and '.', beginning with a letter or digit, at most {}",
                keys::NAME_BYTES_MAX
            );
            self.error(line, place, error, remedy);
        }
    }

    /// The container that a disk names.
    pub(super) fn container(&mut self, line: Option<usize>, place: &str, spec: &DiskSpec) -> Option<String> {
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
    pub(super) fn bounds(&mut self, lines: &Lines, place: &str, floor: Option<Size>, ceiling: Option<Size>) {
        if let (Some(floor), Some(ceiling)) = (floor, ceiling)
            && floor.0 > ceiling.0
        {
            let line = lines.get("ceiling").copied();
            let error = format!("its ceiling of {ceiling} is below its floor of {floor}");
            self.error(line, place, error, "raise the ceiling or lower the floor");
        }
    }

    fn controller(&mut self, lines: &Lines, place: &str, text: Option<&str>) -> Option<ControllerKind> {
        let text = text?;
        text.parse()
            .map_err(|_| {
                let line = lines.get("controller").copied();
                let error = format!("unknown controller \"{}\"", text.chars().take(60).collect::<String>());
                self.error(line, place, error, format!("known are {}", keys::CONTROLLERS.join(", ")));
            })
            .ok()
    }
}
