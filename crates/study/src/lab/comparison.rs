//! Policies side by side: miss ratios over workloads and sizes, and how each policy stands in all of them.
//!
//! Owns the table and the figures drawn from it. Never runs anything but [`crate::lab::replay`].
//! Invariant: a comparison depends on its workloads and sizes only, not on how many threads computed it.

use crate::lab::{Workload, replay};
use rayon::prelude::*;
use undercroft_engine::PolicyKind;

/// The misses of every policy on one workload with one size.
#[derive(Clone, Debug)]
pub struct ComparisonRow {
    /// The workload.
    pub workload: String,
    /// Accesses in all.
    pub accesses: u64,
    /// Blocks that the cache may hold.
    pub capacity: u32,
    /// That as a share of the distinct blocks.
    pub share_of_footprint: f64,
    /// Misses, in the order of [`PolicyKind::ALL`].
    pub misses: [u64; PolicyKind::ALL.len()],
}

/// A policy's standing over several rows.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// The policy.
    pub policy: PolicyKind,
    /// Mean over the rows of `1 - misses / misses of LRU`.
    pub mean_reduction: f64,
    /// The least of it: how much worse than LRU at worst, if negative.
    pub worst_reduction: f64,
    /// Mean rank, from 1; equals share the mean of their ranks.
    pub mean_rank: f64,
    /// Largest `misses / misses of the best policy in that row - 1`.
    pub worst_regret: f64,
}

/// A table of rows.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// In the order in which workloads and sizes were given.
    pub rows: Vec<ComparisonRow>,
}

fn position(policy: PolicyKind) -> usize {
    PolicyKind::ALL.iter().position(|&p| p == policy).expect("every policy is in the list")
}

impl Comparison {
    /// Runs every policy with each of `capacities` on `workload`, on all processors, and adds the rows.
    pub fn add(&mut self, workload: &Workload, capacities: &[u32]) {
        self.add_with(workload, capacities, |policy, capacity| replay::misses(policy, capacity, workload));
    }

    /// The same with misses counted otherwise.
    pub fn add_with(
        &mut self,
        workload: &Workload,
        capacities: &[u32],
        misses: impl Fn(PolicyKind, u32) -> u64 + Sync,
    ) {
        let runs: Vec<(u32, PolicyKind)> =
            capacities.iter().flat_map(|&capacity| PolicyKind::ALL.map(|policy| (capacity, policy))).collect();
        // one by one: runs of one workload differ much in length
        let counts: Vec<u64> =
            runs.par_iter().with_max_len(1).map(|&(capacity, policy)| misses(policy, capacity)).collect();
        for (&capacity, misses) in capacities.iter().zip(counts.chunks_exact(PolicyKind::ALL.len())) {
            self.rows.push(ComparisonRow {
                workload: workload.name.clone(),
                accesses: workload.blocks.len() as u64,
                capacity,
                share_of_footprint: f64::from(capacity) / f64::from(workload.footprint),
                misses: misses.try_into().expect("one count for each policy"),
            });
        }
    }

    /// How each policy stands over all rows, in the order of [`PolicyKind::ALL`].
    pub fn standings(&self) -> Vec<Standing> {
        PolicyKind::ALL.into_iter().map(|policy| self.standing(policy)).collect()
    }

    fn standing(&self, policy: PolicyKind) -> Standing {
        let mut standing =
            Standing { policy, mean_reduction: 0.0, worst_reduction: 1.0, mean_rank: 0.0, worst_regret: 0.0 };
        for row in &self.rows {
            let own = row.misses[position(policy)];
            let reduction = 1.0 - own as f64 / row.misses[position(PolicyKind::Lru)] as f64;
            let better = row.misses.iter().filter(|&&m| m < own).count() as f64;
            let equal = row.misses.iter().filter(|&&m| m == own).count() as f64;
            let best = row.misses.into_iter().min().expect("there are policies");
            standing.mean_reduction += reduction / self.rows.len() as f64;
            standing.worst_reduction = standing.worst_reduction.min(reduction);
            standing.mean_rank += (better + (equal + 1.0) / 2.0) / self.rows.len() as f64;
            standing.worst_regret = standing.worst_regret.max(own as f64 / best as f64 - 1.0);
        }
        standing
    }

    /// The miss ratios as a Markdown table, the best of each row in bold.
    pub fn markdown(&self) -> String {
        let mut lines = vec![
            format!("| workload | blocks | of footprint | {} |", PolicyKind::ALL.map(PolicyKind::name).join(" | ")),
            format!("|---|--:|--:|{}", "--:|".repeat(PolicyKind::ALL.len())),
        ];
        for row in &self.rows {
            let best = row.misses.into_iter().min();
            let ratios = row.misses.map(|misses| {
                let ratio = format!("{:.4}", misses as f64 / row.accesses as f64);
                if Some(misses) == best { format!("**{ratio}**") } else { ratio }
            });
            lines.push(format!(
                "| {} | {} | {:.2} % | {} |",
                row.workload,
                row.capacity,
                row.share_of_footprint * 100.0,
                ratios.join(" | ")
            ));
        }
        lines.join("\n") + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(misses: [u64; 8]) -> ComparisonRow {
        ComparisonRow { workload: "w".into(), accesses: 200, capacity: 1, share_of_footprint: 0.1, misses }
    }

    #[test]
    fn standings_are_what_their_words_say() {
        // in the order fifo, lru, clock, arc, car, s3-fifo, sieve, w-tinylfu
        let comparison =
            Comparison { rows: vec![row([120, 100, 100, 80, 90, 50, 60, 70]), row([10, 20, 30, 40, 50, 60, 70, 80])] };
        let fifo = comparison.standing(PolicyKind::Fifo);
        assert!((fifo.mean_reduction - (-0.2 + 0.5) / 2.0).abs() < 1e-12);
        assert!((fifo.worst_reduction - -0.2).abs() < 1e-12);
        assert!((fifo.mean_rank - (8.0 + 1.0) / 2.0).abs() < 1e-12);
        assert!((fifo.worst_regret - (120.0 / 50.0 - 1.0)).abs() < 1e-12);
        let lru = comparison.standing(PolicyKind::Lru);
        assert_eq!((lru.mean_reduction, lru.mean_rank), (0.0, (6.5 + 2.0) / 2.0));
        assert!(comparison.markdown().contains("| w | 1 | 10.00 % | 0.6000 | 0.5000 |"));
        assert!(comparison.markdown().contains("| **0.2500** |"));
    }

    #[test]
    fn rows_come_in_the_order_asked_for() {
        let workload = Workload::zipf("z", 1000, 5000, 1.0, 1);
        let mut comparison = Comparison::default();
        comparison.add(&workload, &[10, 100]);
        assert_eq!(comparison.rows.iter().map(|r| r.capacity).collect::<Vec<_>>(), [10, 100]);
        for row in &comparison.rows {
            for policy in PolicyKind::ALL {
                assert_eq!(row.misses[position(policy)], replay::misses(policy, row.capacity, &workload));
            }
        }
    }
}
