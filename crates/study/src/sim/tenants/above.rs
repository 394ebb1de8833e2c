//! A cache that each tenant has for itself above the divided one, such as a guest's page cache.
//!
//! Owns which accesses pass through it, and what it hands down. Never looks at the cache below, which does not change
//! its behaviour: so it is run once for all arms. Invariant: what it hands down was asked for before, and is not in
//! it then.

use super::traces::TenantTrace;
use crate::sim::reference::Reference;
use serde::Serialize;
use undercroft_engine::{Access, AnyPolicyKind, Index, Outcome};

/// The cache above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Above {
    /// Blocks that it holds.
    pub blocks: u32,
    /// Its policy.
    pub policy: AnyPolicyKind,
    /// Whether what it evicts is handed down, and what is read from below is dropped there (Wong and Wilkes, "My cache
    /// or yours?", USENIX ATC 2002); otherwise the cache below keeps what passes.
    pub hands_down: bool,
}

/// What a tenant asks of the cache that is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// A block.
    Read,
    /// It is handed a block that the tenant's own cache has evicted.
    Take,
}

/// Tenant by place, block, and what is wanted of it.
pub(super) type Asked = (usize, u64, Ask);

/// What a cache above did for its tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AboveCounts {
    /// Accesses of the tenant.
    pub accesses: u64,
    /// Of those, blocks that it had.
    pub hits: u64,
}

impl Above {
    /// What comes through of a tenant's accesses, in order, with what is handed down; and what did not.
    pub fn filter(&self, tenant: &TenantTrace) -> (Vec<(Reference, Ask)>, AboveCounts) {
        let mut index = Index::new(self.policy, self.blocks);
        let mut counts = AboveCounts::default();
        let mut through = vec![];
        for &reference in &tenant.references {
            counts.accesses += 1;
            let evicted = match index.access(reference.block, Access::Read, |_| true) {
                Outcome::Hit(_) => {
                    counts.hits += 1;
                    continue;
                }
                Outcome::Fill { evicted, .. } => evicted.map(|(block, _)| block),
                Outcome::Bypass => Some(reference.block),
            };
            through.push((reference, Ask::Read));
            if let Some(block) = evicted.filter(|_| self.hands_down) {
                through.push((Reference { block, ..reference }, Ask::Take));
            }
        }
        (through, counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use undercroft_engine::PolicyKind;

    fn through(hands_down: bool, blocks: &[u64]) -> (Vec<(u64, Ask)>, AboveCounts) {
        let tenant = TenantTrace { name: "a".into(), references: blocks.iter().map(|&b| Reference::read(b)).collect() };
        let (through, counts) = Above { blocks: 2, policy: PolicyKind::Lru.into(), hands_down }.filter(&tenant);
        (through.into_iter().map(|(r, ask)| (r.block, ask)).collect(), counts)
    }

    #[test]
    fn only_what_is_missed_comes_through_and_what_is_evicted_goes_down() {
        use Ask::{Read, Take};
        let blocks = [1, 2, 1, 3, 2];
        let counts = AboveCounts { accesses: 5, hits: 1 };
        assert_eq!(through(false, &blocks), (vec![(1, Read), (2, Read), (3, Read), (2, Read)], counts));
        let handed = vec![(1, Read), (2, Read), (3, Read), (2, Take), (2, Read), (1, Take)];
        assert_eq!(through(true, &blocks), (handed, counts));
    }
}
