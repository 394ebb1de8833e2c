//! The macro that turns a table of policies into all that follows from it: names, parsing, construction, dispatch.
//!
//! Owns what a row means. The rows stand in `served` and `studied`. Never decides which policy is used. Invariant: a
//! row is the only place where a policy is named; help, tests and benches go through the enum made from it.
//!
//! A row is `/// what it is`, `Name(path::Of) = "name"`, and then, if the policy has a reference model, `, model
//! |capacity| expression`. Every policy is made by `new(capacity, key)`.

/// The model of one row, or none.
#[cfg(test)]
macro_rules! model {
    ($capacity:ident) => {
        None
    };
    ($capacity:ident, $make:expr) => {{
        let make: fn(usize) -> _ = $make;
        Some(Box::new(make($capacity)))
    }};
}
#[cfg(test)]
pub(super) use model;

/// The enum of a table's names, and the reference model of each where it has one.
macro_rules! kinds {
    (
        $(#[$about:meta])* $kind:ident:
        $($(#[$doc:meta])* $name:ident($of:path) = $text:literal $(, model $model:expr)?;)+
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $kind {
            $($(#[$doc])* $name,)+
        }

        impl $kind {
            /// All of them, in the order in which help and tables list them.
            pub const ALL: [$kind; [$($kind::$name),+].len()] = [$($kind::$name),+];

            /// The name used in configuration, on the command line and in metrics.
            pub const fn name(self) -> &'static str {
                match self {
                    $($kind::$name => $text,)+
                }
            }

            /// The reference model that the policy is held against, if it has one.
            #[cfg(test)]
            pub(crate) fn model(self, capacity: usize) -> Option<Box<dyn $crate::policy::model::ReferenceModel>> {
                match self {
                    $($kind::$name => $crate::policy::kinds::model!(capacity $(, $model)?),)+
                }
            }
        }

        impl std::fmt::Display for $kind {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }

        impl std::str::FromStr for $kind {
            type Err = $crate::names::UnknownName;

            /// The policy of that name. Case, `-` and `_` do not matter.
            ///
            /// # Errors
            /// If there is none.
            fn from_str(name: &str) -> Result<Self, Self::Err> {
                $crate::policy::set::named(name, &Self::ALL, Self::name)
            }
        }
    };
}
pub(super) use kinds;

/// [`kinds`], and one enum of the policies themselves: each one's code is compiled as a whole into its callers.
macro_rules! dispatched {
    (
        $(#[$about:meta])* $kind:ident, $policy:ident:
        $($(#[$doc:meta])* $name:ident($of:path) = $text:literal $(, model $model:expr)?;)+
    ) => {
        $crate::policy::kinds::kinds! {
            $(#[$about])* $kind: $($(#[$doc])* $name($of) = $text $(, model $model)?;)+
        }

        /// One of these policies. An enum rather than a trait object, so that a hit needs no call through a table; with
        /// a number of its own, so that a hit reads which one it is and computes nothing.
        #[repr(u32)]
        pub(crate) enum $policy {
            $($name($of),)+
        }

        impl $crate::policy::set::Makes for $kind {
            type Policy = $policy;
            const FIFO: Self = Self::Fifo;

            fn make(self, capacity: u32, key: HashKey) -> $policy {
                match self {
                    $($kind::$name => $policy::$name(<$of>::new(capacity, key)),)+
                }
            }

            fn of(policy: &$policy) -> Self {
                match policy {
                    $($policy::$name(_) => $kind::$name,)+
                }
            }
        }

        impl Policy for $policy {
            #[inline]
            fn access(
                &mut self,
                slots: &mut Slots,
                places: &mut Places,
                block: u64,
                hash: u64,
                limit: u32,
                may_evict: impl Fn(Slot) -> bool,
            ) -> Outcome {
                match self { $($policy::$name(p) => p.access(slots, places, block, hash, limit, may_evict),)+ }
            }
            #[inline]
            fn touch(&mut self, places: &mut Places, slot: Slot, block: u64) {
                match self { $($policy::$name(p) => p.touch(places, slot, block),)+ }
            }
            #[inline]
            fn miss(&mut self, block: u64) -> Seen {
                match self { $($policy::$name(p) => p.miss(block),)+ }
            }
            #[inline]
            fn victim(
                &mut self,
                places: &mut Places,
                keys: &[u64],
                may_evict: impl Fn(Slot) -> bool,
                seen: Seen,
            ) -> Option<Slot> {
                match self { $($policy::$name(p) => p.victim(places, keys, may_evict, seen),)+ }
            }
            #[inline]
            fn insert(&mut self, places: &mut Places, slot: Slot, block: u64, seen: Seen) {
                match self { $($policy::$name(p) => p.insert(places, slot, block, seen),)+ }
            }
            #[inline]
            fn remove(&mut self, places: &mut Places, slot: Slot) {
                match self { $($policy::$name(p) => p.remove(places, slot),)+ }
            }
            fn forget(&mut self, block: u64) {
                match self { $($policy::$name(p) => p.forget(block),)+ }
            }
            fn moved(&mut self, places: &mut Places, from: Slot, to: Slot) {
                match self { $($policy::$name(p) => p.moved(places, from, to),)+ }
            }
            fn resize(&mut self, places: &mut Places, capacity: u32, keys: &[u64]) {
                match self { $($policy::$name(p) => p.resize(places, capacity, keys),)+ }
            }
            fn step(&mut self, places: &mut Places, left: &mut u32) -> bool {
                match self { $($policy::$name(p) => p.step(places, left),)+ }
            }
            fn reserve(&mut self, most: u32) {
                match self { $($policy::$name(p) => p.reserve(most),)+ }
            }
            fn release(&mut self, by: &mut impl Release, bytes: &mut usize) {
                match self { $($policy::$name(p) => p.release(by, bytes),)+ }
            }
            fn limit(&mut self, places: &mut Places, limit: u32) {
                match self { $($policy::$name(p) => p.limit(places, limit),)+ }
            }
            fn replay(&mut self, slots: &mut ChainedSlots, places: &mut Places, blocks: &[u64]) -> u64 {
                match self { $($policy::$name(p) => p.replay(slots, places, blocks),)+ }
            }
            fn coldest_first(&self, places: &Places, visit: &mut dyn FnMut(Slot)) {
                match self { $($policy::$name(p) => p.coldest_first(places, visit),)+ }
            }
            fn memory_bytes(&self) -> usize {
                match self { $($policy::$name(p) => p.memory_bytes(),)+ }
            }
            fn check(&self, places: &Places, occupied: u32) {
                match self { $($policy::$name(p) => p.check(places, occupied),)+ }
            }
        }
    };
}
pub(super) use dispatched;

/// [`kinds`], and each policy behind a pointer: what is studied need not be compiled into every caller.
macro_rules! boxed {
    (
        $(#[$about:meta])* $kind:ident:
        $($(#[$doc:meta])* $name:ident($of:path) = $text:literal $(, model $model:expr)?;)+
    ) => {
        $crate::policy::kinds::kinds! {
            $(#[$about])* $kind: $($(#[$doc])* $name($of) = $text $(, model $model)?;)+
        }

        impl $kind {
            /// An empty policy of this kind.
            pub(crate) fn make(self, capacity: u32, key: HashKey) -> $crate::policy::any::Boxed {
                match self {
                    $($kind::$name => Box::new(<$of>::new(capacity, key)),)+
                }
            }
        }
    };
}
pub(super) use boxed;
