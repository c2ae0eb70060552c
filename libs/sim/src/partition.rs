//! The best that fixed places could do: each document always goes to one node, and the places are
//! chosen knowing every request beforehand.

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use crate::lru::PlainLru;
use crate::windowed::Windowed;

/// The most requests that a node may get, over the mean.
pub const BALANCE_LIMIT: f64 = 1.3;

/// A partition of the documents over the nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct Partition {
    /// The node of each document.
    pub nodes: Vec<usize>,
    /// The share of full prompt blocks that are found, 0 to 1.
    pub block_hit_rate: f64,
    /// Requests of the busiest node over the mean.
    pub max_over_mean: f64,
    /// Requests that each node gets.
    pub requests: Vec<u64>,
}

/// Searches for the partition with the most hits, within [`BALANCE_LIMIT`]: from an even one,
/// `steps` random moves of one document or swaps of two, each kept unless it is worse.
pub fn best_partition(run: &Windowed, draws: &[usize], steps: u32, seed: u64) -> Partition {
    let documents = draws.iter().max().map_or(0, |most| most + 1);
    let mut search = Search::new(run, draws, documents);
    let mut random = StdRng::seed_from_u64(seed);
    for _ in 0..steps {
        if documents == 0 || run.nodes < 2 {
            break;
        }
        let document = random.random_range(0..documents);
        if random.random::<bool>() {
            let node = random.random_range(0..run.nodes);
            search.consider(&[(document, node)]);
        } else {
            let other = random.random_range(0..documents);
            let (a, b) = (search.nodes[document], search.nodes[other]);
            search.consider(&[(document, b), (other, a)]);
        }
    }
    search.result()
}

struct Search<'a> {
    run: &'a Windowed,
    draws: &'a [usize],
    prompts: Vec<Vec<u32>>,
    asked: Vec<u64>,
    nodes: Vec<usize>,
    /// Hits of each node, in blocks.
    hits: Vec<u64>,
    requests: Vec<u64>,
}

impl<'a> Search<'a> {
    /// Starts with the most asked documents first, each to the node with the fewest requests.
    fn new(run: &'a Windowed, draws: &'a [usize], documents: usize) -> Self {
        let mut asked = vec![0; documents];
        draws.iter().for_each(|document| asked[*document] += 1);
        let mut order: Vec<usize> = (0..documents).collect();
        order.sort_by_key(|document| std::cmp::Reverse(asked[*document]));
        let mut nodes = vec![0; documents];
        let mut requests = vec![0; run.nodes];
        for document in order {
            let least = (0..run.nodes).min_by_key(|node| requests[*node]).unwrap_or(0);
            nodes[document] = least;
            requests[least] += asked[document];
        }
        let prompts = (0..documents).map(|document| run.prompt(document)).collect();
        let mut search = Self { run, draws, prompts, asked, nodes, hits: Vec::new(), requests };
        search.hits = (0..run.nodes).map(|node| search.count_hits(node)).collect();
        search
    }

    /// Moves documents if that is no loss and leaves the nodes balanced.
    fn consider(&mut self, moves: &[(usize, usize)]) {
        let before = (self.nodes.clone(), self.requests.clone());
        let mut touched: Vec<usize> = Vec::new();
        for (document, node) in moves {
            let from = std::mem::replace(&mut self.nodes[*document], *node);
            self.requests[from] -= self.asked[*document];
            self.requests[*node] += self.asked[*document];
            touched.extend([from, *node]);
        }
        touched.sort_unstable();
        touched.dedup();
        let even = self.max_over_mean() <= BALANCE_LIMIT;
        if touched.len() < 2 || !even {
            (self.nodes, self.requests) = before;
            return;
        }
        let old: u64 = touched.iter().map(|node| self.hits[*node]).sum();
        let new: Vec<u64> = touched.iter().map(|node| self.count_hits(*node)).collect();
        if new.iter().sum::<u64>() < old {
            (self.nodes, self.requests) = before;
            return;
        }
        touched.iter().zip(new).for_each(|(node, hits)| self.hits[*node] = hits);
    }

    fn count_hits(&self, node: usize) -> u64 {
        let mut cache = PlainLru::new(self.run.blocks, self.run.evict);
        let mut hits = 0;
        for document in self.draws.iter().filter(|document| self.nodes[**document] == node) {
            hits += u64::from(cache.matched(&self.prompts[*document]));
            cache.access(&self.prompts[*document]);
        }
        hits
    }

    fn max_over_mean(&self) -> f64 {
        let busiest = self.requests.iter().copied().max().unwrap_or(0);
        busiest as f64 * self.run.nodes as f64 / self.draws.len().max(1) as f64
    }

    fn result(self) -> Partition {
        let blocks = u64::from(self.run.shared_blocks + self.run.document_blocks);
        let all = (self.draws.len() as u64 * blocks).max(1);
        Partition {
            block_hit_rate: self.hits.iter().sum::<u64>() as f64 / all as f64,
            max_over_mean: self.max_over_mean(),
            nodes: self.nodes,
            requests: self.requests,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Draw, reference_draws};

    #[test]
    fn documents_that_fit_are_all_kept() {
        let draws = reference_draws(Draw::Uniform, 15, 3_000, 1);
        let best = best_partition(&Windowed::default(), &draws, 20, 1);
        assert!(best.block_hit_rate > 0.995, "{best:?}");
        assert!(best.max_over_mean <= BALANCE_LIMIT);
        assert_eq!(best.requests.iter().sum::<u64>(), 3_000);
    }

    #[test]
    fn searching_never_loses_hits() {
        let draws = reference_draws(Draw::Skewed, 30, 600, 3);
        let hits = |steps| best_partition(&Windowed::default(), &draws, steps, 5).block_hit_rate;
        assert!(hits(0) <= hits(20) && hits(20) <= hits(60));
        assert_eq!(hits(60), hits(60));
        let best = best_partition(&Windowed::default(), &[], 10, 1);
        assert!(best.nodes.is_empty());
    }
}
