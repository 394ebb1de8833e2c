//! The keys of a plan: how the value of each is shown, compared, and taken over from another plan.
//!
//! Owns the comparison of two plans key by key. Never checks a value. Invariant: only the declaration of a key says
//! whether a difference of it can be carried out live.

use super::keys::{Live, Section};
use std::fmt;
use std::path::Path;
use std::time::Duration;
use undercroft_units::{Size, Time};

/// A key of a plan `P`.
pub(crate) struct Field<P: 'static> {
    pub(crate) key: &'static str,
    /// Its value, as it would be written.
    pub(crate) show: fn(&P) -> String,
    /// Takes it over from another plan.
    pub(crate) copy: fn(&mut P, &P),
}

/// A field by its key, its place in the plan, and how it is shown.
macro_rules! field {
    ($plan:ty, $key:ident, $($field:ident).+, $show:expr) => {
        Field {
            key: stringify!($key),
            show: |plan: &$plan| $crate::fields::shown(&plan.$($field).+, $show),
            copy: |to: &mut $plan, from: &$plan| to.$($field).+.clone_from(&from.$($field).+),
        }
    };
}
pub(crate) use field;

/// For `field`: so that what `show` takes is known from the value.
pub(crate) fn shown<T>(value: &T, show: impl Fn(&T) -> String) -> String {
    show(value)
}

/// A duration as it is written.
pub(crate) fn time(time: &Duration) -> String {
    Time::from(*time).to_string()
}

/// A path as it is written.
pub(crate) fn path<P: AsRef<Path>>(path: &P) -> String {
    path.as_ref().display().to_string()
}

/// A group of users.
pub(crate) fn group(gid: Option<u32>) -> String {
    gid.map_or("none".to_string(), |g| g.to_string())
}

/// Bytes, or the word that stands for none.
pub(crate) fn size_or(bytes: Option<u64>, none: &str) -> String {
    bytes.map_or(none.to_string(), |b| Size(b).to_string())
}

/// A value, or the word that stands for none.
pub(crate) fn word_or(value: Option<impl fmt::Display>, none: &str) -> String {
    value.map_or(none.to_string(), |v| v.to_string())
}

/// A key that has another value now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyChange {
    /// Whose key, so that `key` can follow: `daemon.`, or `disk "web:root": `.
    pub place: String,
    /// The key.
    pub key: &'static str,
    /// What it was, as it is written.
    pub from: String,
    /// What it is.
    pub to: String,
}

impl fmt::Display for KeyChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}: {} -> {}", self.place, self.key, self.from, self.to)
    }
}

/// What came of a comparison.
#[derive(Debug, Default)]
pub(crate) struct Differences {
    /// What was taken over.
    pub(crate) done: Vec<KeyChange>,
    /// What cannot change live, in words.
    pub(crate) needs_restart: Vec<String>,
    /// Somebody made these changes by hand.
    by_hand: bool,
}

impl Differences {
    /// For a plan that another one became by a change by hand.
    pub(crate) fn by_hand() -> Self {
        Self { by_hand: true, ..Self::default() }
    }

    /// Takes over from `wanted` what can change live, and tells both that and the rest.
    pub(crate) fn take_over<P>(
        &mut self,
        section: &Section,
        fields: &[Field<P>],
        place: &str,
        running: &mut P,
        wanted: &P,
    ) {
        for field in fields {
            let (from, to) = ((field.show)(running), (field.show)(wanted));
            if from == to {
                continue;
            }
            let change = KeyChange { place: place.to_string(), key: field.key, from, to };
            match section.key(field.key).map(|k| k.live) {
                Some(Live::Hand(_)) if !self.by_hand => {
                    self.needs_restart.push(format!("{change} (or `undercroft set`)"));
                }
                Some(Live::Set(_) | Live::Hand(_) | Live::Reload) => {
                    (field.copy)(running, wanted);
                    self.done.push(change);
                }
                Some(Live::Attach) => self.needs_restart.push(format!("{change} (or detach and attach it)")),
                Some(Live::Restart) => self.needs_restart.push(change.to_string()),
                Some(Live::Name) | None => {}
            }
        }
    }

    /// Tells of something that needs a restart, if it differs.
    pub(crate) fn tell(&mut self, what: &str, from: String, to: String) {
        if from != to {
            self.needs_restart.push(format!("{what}: {from} -> {to}"));
        }
    }
}

/// Keys of a plan, as they are shown, that are set by hand.
pub(crate) fn set_by_hand<P>(section: &Section, fields: &[Field<P>], plan: &P) -> Vec<(&'static str, String)> {
    let settable = |key: &str| section.key(key).is_some_and(|k| k.live.by_hand().is_some());
    fields.iter().filter(|f| settable(f.key)).map(|f| (f.key, (f.show)(plan))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys;

    /// Every key that a plan is compared by has its field, and every field is a key.
    fn complete<P>(section: &'static Section, fields: &[Field<P>], elsewhere: &[&str]) {
        for key in section.keys.iter().filter(|k| k.live != Live::Name && !elsewhere.contains(&k.name)) {
            assert!(fields.iter().any(|f| f.key == key.name), "{} {} has no field", section.header, key.name);
        }
        for field in fields {
            assert!(section.key(field.key).is_some(), "{} {} is no key", section.header, field.key);
        }
    }

    #[test]
    fn every_key_has_a_field_and_every_field_is_a_key() {
        complete(&keys::STORE, crate::store::FIELDS, &[]);
        complete(&keys::SSD, crate::ssd::FIELDS, &[]);
        complete(&keys::SHARES, crate::nodes::SHARES, &[]);
        complete(&keys::PRESSURE, crate::pressure::FIELDS, &[]);
        complete(&keys::KSM, crate::ksm::FIELDS, &[]);
        complete(&keys::DAEMON, crate::daemon::FIELDS, &[]);
        complete(&keys::SCAN, crate::scan::FIELDS, &[]);
        // A VM's disks have its trust; its sockets and files are compared as a whole.
        complete(&keys::VM, crate::nodes::NODE, &["trust", "control_socket", "control_group", "pid_file"]);
        complete(&keys::CONTAINER, crate::nodes::NODE, &[]);
        // Without a vhost-user socket there is no path of it.
        complete(&keys::DISK, crate::nodes::DISK, &["vhost_user"]);
    }
}
