//! Which policies an index may have: those that serve guests, or any.
//!
//! Owns the trait by which an index is made for one of the two sets, and the search for a name. Never names a policy.
//! Invariant: an index made for served policies can never come to hold one that is only studied: no value of its
//! type names one.

use crate::names::UnknownName;
use crate::policy::Policy;
use crate::structures::table::HashKey;
use std::fmt::{Debug, Display};

/// A set of policies: [`PolicyKind`](crate::PolicyKind), those that a disk may have, or
/// [`AnyPolicyKind`](crate::AnyPolicyKind), those and what is only studied. There are no others.
#[expect(private_bounds, reason = "so that only this crate adds a set: each policy's code is its own")]
pub trait PolicySet: Makes + Copy + Debug + Display + Eq + Send + Sync + 'static {}

/// How an index comes to its policy.
pub(crate) trait Makes: Sized {
    /// What holds any policy of the set.
    type Policy: Policy;

    /// The smallest policy, for places that need one and use none.
    const FIFO: Self;

    /// An empty policy of this kind for `capacity` slots. The key is for the hashes of its ghosts and for its random
    /// numbers.
    fn make(self, capacity: u32, key: HashKey) -> Self::Policy;

    /// Which policy that is.
    fn of(policy: &Self::Policy) -> Self;
}

/// The one of that name, but for case, `-` and `_`.
pub(super) fn named<K: Copy>(name: &str, known: &[K], name_of: fn(K) -> &'static str) -> Result<K, UnknownName> {
    let plain = |s: &str| s.to_ascii_lowercase().replace(['-', '_'], "");
    let found = known.iter().copied().find(|&k| plain(name_of(k)) == plain(name));
    found.ok_or_else(|| UnknownName::new("policy", name, known.iter().map(|&k| name_of(k))))
}
