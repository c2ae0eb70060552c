//! Request sets that are generated from published parameters.

use std::sync::Arc;
use std::time::Duration;

use domain::{BlockKey, Moment};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use super::Draw;
use crate::python_random::PythonRandom;
use crate::request::{Chain, Request, RequestSet, Start};

/// Tokens in a block of every set made here.
const BLOCK_TOKENS: u32 = 16;

/// The document of each of `requests` requests, drawn as Python's `random.Random(seed).choices`
/// does. The published round-robin figures hold for these draws to the last digit.
pub fn reference_draws(draw: Draw, documents: usize, requests: usize, seed: u64) -> Vec<usize> {
    if documents == 0 {
        return Vec::new();
    }
    let mut random = PythonRandom::new(seed);
    match draw {
        Draw::Uniform => (0..requests).map(|_| random.choice_of(documents)).collect(),
        Draw::Skewed => {
            let cumulative = super::cumulative_weights(draw, documents);
            (0..requests).map(|_| random.choice_by(&cumulative)).collect()
        }
    }
}

/// Documents that a fixed number of callers ask about, over and over: the published run on two
/// GPUs, with prompts of about 6,800 tokens.
#[derive(Clone, Copy, Debug)]
pub struct DocumentCallers {
    /// Different documents, drawn uniformly.
    pub documents: usize,
    /// Blocks of each, after the shared ones.
    pub document_blocks: u32,
    /// Blocks that all requests share.
    pub shared_blocks: u32,
    /// Tokens of the question that ends a prompt; no two are alike.
    pub question_tokens: u32,
    /// Tokens of an answer.
    pub output_tokens: u32,
    /// Requests.
    pub requests: usize,
    /// Requests in flight at once.
    pub callers: usize,
}

impl Default for DocumentCallers {
    fn default() -> Self {
        Self {
            documents: 30,
            document_blocks: 424,
            shared_blocks: 2,
            question_tokens: 15,
            output_tokens: 26,
            requests: 750,
            callers: 1,
        }
    }
}

impl DocumentCallers {
    /// The requests of one seed. Keys are small numbers, document after document.
    pub fn generate(&self, seed: u64) -> RequestSet {
        let key = |block: u32| BlockKey(u64::from(block));
        let prompts: Vec<Arc<[BlockKey]>> = (0..self.documents as u32)
            .map(|document| {
                let first = self.shared_blocks + document * self.document_blocks;
                let own = first..first + self.document_blocks;
                (0..self.shared_blocks).chain(own).map(key).collect()
            })
            .collect();
        let blocks = self.shared_blocks + self.document_blocks;
        let draws = reference_draws(Draw::Uniform, self.documents, self.requests, seed);
        let requests = draws.into_iter().map(|document| Request {
            start: Start::WhenFree,
            keys: prompts[document].clone(),
            prompt_tokens: blocks * BLOCK_TOKENS + self.question_tokens,
            output_tokens: self.output_tokens,
        });
        RequestSet {
            block_tokens: BLOCK_TOKENS,
            requests: requests.collect(),
            callers: self.callers,
        }
    }
}

/// Documents that are asked about at a steady rate, each prompt a document and a short question.
#[derive(Clone, Copy, Debug)]
pub struct SteadyDocuments {
    /// Different documents, drawn uniformly.
    pub documents: usize,
    /// Blocks of each.
    pub document_blocks: u32,
    /// Tokens of the question that ends a prompt; no two are alike.
    pub question_tokens: u32,
    /// Tokens of an answer.
    pub output_tokens: u32,
    /// Requests a second.
    pub rate: f64,
    /// For so long.
    pub seconds: f64,
}

impl Default for SteadyDocuments {
    fn default() -> Self {
        Self {
            documents: 12,
            document_blocks: 110,
            question_tokens: 12,
            output_tokens: 16,
            rate: 200.0,
            seconds: 120.0,
        }
    }
}

impl SteadyDocuments {
    /// The requests of one seed: Poisson arrivals.
    pub fn generate(&self, seed: u64) -> RequestSet {
        let mut random = StdRng::seed_from_u64(seed);
        let prompts: Vec<Arc<[BlockKey]>> = (0..self.documents as u64)
            .map(|document| {
                let mut chain = Chain::default();
                chain.push(document, self.document_blocks);
                chain.keys()
            })
            .collect();
        let (mut at, mut requests) = (0.0, Vec::new());
        loop {
            at += -(1.0 - random.random::<f64>()).ln() / self.rate;
            if at >= self.seconds {
                break;
            }
            requests.push(Request {
                start: Start::At(Moment::from_secs_f64(at)),
                keys: prompts[random.random_range(0..self.documents)].clone(),
                prompt_tokens: self.document_blocks * BLOCK_TOKENS + self.question_tokens,
                output_tokens: self.output_tokens,
            });
        }
        RequestSet { block_tokens: BLOCK_TOKENS, requests, callers: 0 }
    }
}

/// A software service whose customers each have a long system prompt of their own, asked by a few
/// users each. The parameters are those of llm-d's capacity benchmark; so is the ladder of rates:
/// a warm-up, then 3 to 60 requests a second.
#[derive(Clone, Copy, Debug)]
pub struct CustomerGroups {
    /// Customers.
    pub groups: usize,
    /// Users of each; a user always asks the same.
    pub users: usize,
    /// Tokens of a customer's system prompt; whole blocks.
    pub system_tokens: u32,
    /// Tokens of a user's question; whole blocks.
    pub question_tokens: u32,
    /// Tokens of an answer.
    pub output_tokens: u32,
    /// The first customer's share of all requests; without one, all are equal.
    pub hot_share: Option<f64>,
    /// Factor on all rates.
    pub rate_factor: f64,
}

impl Default for CustomerGroups {
    fn default() -> Self {
        Self {
            groups: 150,
            users: 5,
            system_tokens: 6_000,
            question_tokens: 1_200,
            output_tokens: 1_000,
            hot_share: None,
            rate_factor: 1.0,
        }
    }
}

/// Requests per second, and for how many seconds.
const LADDER: [(f64, f64); 17] = [
    (15.0, 50.0),
    (3.0, 20.0),
    (10.0, 20.0),
    (15.0, 20.0),
    (20.0, 38.0),
    (22.0, 34.0),
    (25.0, 30.0),
    (30.0, 25.0),
    (35.0, 21.0),
    (40.0, 38.0),
    (43.0, 36.0),
    (46.0, 33.0),
    (49.0, 30.0),
    (52.0, 29.0),
    (55.0, 27.0),
    (57.0, 26.0),
    (60.0, 25.0),
];

/// The length of the ladder's first step, in seconds: caches fill, and latencies of that time say
/// nothing.
pub const LADDER_WARM_UP_SECONDS: f64 = LADDER[0].1;

impl CustomerGroups {
    /// The requests of one seed: Poisson arrivals, each from a random user.
    pub fn generate(&self, seed: u64) -> RequestSet {
        let mut random = StdRng::seed_from_u64(seed);
        let prompts = self.prompts();
        let mut requests = Vec::new();
        let mut begin = 0.0;
        for (rate, seconds) in LADDER {
            let (mut at, end) = (begin, begin + seconds);
            loop {
                at += -(1.0 - random.random::<f64>()).ln() / (rate * self.rate_factor);
                if at >= end {
                    break;
                }
                let group = self.draw_group(&mut random);
                let user = random.random_range(0..self.users);
                requests.push(Request {
                    start: Start::At(Moment::from_secs_f64(at)),
                    keys: prompts[group * self.users + user].clone(),
                    prompt_tokens: self.system_tokens + self.question_tokens,
                    output_tokens: self.output_tokens,
                });
            }
            begin = end;
        }
        RequestSet { block_tokens: BLOCK_TOKENS, requests, callers: 0 }
    }

    fn draw_group(&self, random: &mut StdRng) -> usize {
        match self.hot_share {
            Some(share) if self.groups > 1 => {
                if random.random::<f64>() < share {
                    0
                } else {
                    random.random_range(1..self.groups)
                }
            }
            _ => random.random_range(0..self.groups),
        }
    }

    /// One prompt per user, customer after customer.
    fn prompts(&self) -> Vec<Arc<[BlockKey]>> {
        let mut prompts = Vec::with_capacity(self.groups * self.users);
        for group in 0..self.groups as u64 {
            let mut system = Chain::default();
            system.push(group << 32, self.system_tokens / BLOCK_TOKENS);
            for user in 1..=self.users as u64 {
                let mut chain = system.clone();
                chain.push(group << 32 | user, self.question_tokens / BLOCK_TOKENS);
                prompts.push(chain.keys());
            }
        }
        prompts
    }
}

/// Agents at work: sessions that grow by some blocks with every turn, of which the answer is a
/// part, and go on a little after the last turn has ended.
#[derive(Clone, Copy, Debug)]
pub struct AgentSessions {
    /// Sessions, all at once.
    pub sessions: usize,
    /// Turns of each.
    pub turns: usize,
    /// Blocks that all prompts share.
    pub shared_blocks: u32,
    /// Blocks that a turn adds, the last answer's included.
    pub turn_blocks: u32,
    /// Tokens of an answer: a call of a tool.
    pub output_tokens: u32,
    /// Shortest and longest pause between two turns, in seconds.
    pub pause_seconds: (f64, f64),
}

impl Default for AgentSessions {
    fn default() -> Self {
        Self {
            sessions: 24,
            turns: 14,
            shared_blocks: 2,
            turn_blocks: 8,
            output_tokens: 32,
            pause_seconds: (0.05, 0.5),
        }
    }
}

impl AgentSessions {
    /// The requests of one seed. Sessions begin within the first longest pause.
    pub fn generate(&self, seed: u64) -> RequestSet {
        let mut random = StdRng::seed_from_u64(seed);
        let (shortest, longest) = self.pause_seconds;
        let mut begins: Vec<f64> =
            (0..self.sessions).map(|_| longest * random.random::<f64>()).collect();
        begins.sort_by(f64::total_cmp);
        let keys: Vec<Arc<[BlockKey]>> =
            (0..self.sessions as u64).map(|session| self.keys(session)).collect();
        let mut requests = Vec::with_capacity(self.sessions * self.turns);
        for turn in 0..self.turns {
            for session in 0..self.sessions {
                let start = if turn == 0 {
                    Start::At(Moment::from_secs_f64(begins[session]))
                } else {
                    let pause = shortest + (longest - shortest) * random.random::<f64>();
                    let gap = Duration::from_secs_f64(pause);
                    Start::After { parent: requests.len() - self.sessions, gap }
                };
                let blocks = self.shared_blocks + self.turn_blocks * (turn as u32 + 1);
                requests.push(Request {
                    start,
                    keys: keys[session].clone(),
                    prompt_tokens: blocks * BLOCK_TOKENS,
                    output_tokens: self.output_tokens,
                });
            }
        }
        RequestSet { block_tokens: BLOCK_TOKENS, requests, callers: 0 }
    }

    /// All that a session will ever hold; a turn's prompt is the beginning of it, and goes on
    /// with its answer.
    fn keys(&self, session: u64) -> Arc<[BlockKey]> {
        let mut chain = Chain::default();
        chain.push(u64::MAX, self.shared_blocks);
        chain.push(session, self.turn_blocks * self.turns as u32);
        chain.push(u64::MAX - 1 - session, self.output_tokens.div_ceil(BLOCK_TOKENS));
        chain.keys()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn customers_ask_what_the_published_benchmark_asks() {
        let set = CustomerGroups::default().generate(1);
        let count = set.requests.len() as f64;
        assert!((count / 17_084.0 - 1.0).abs() < 0.03, "{count}");
        let distinct: std::collections::HashSet<BlockKey> =
            set.requests.iter().flat_map(|request| request.keys.iter().copied()).collect();
        assert_eq!(distinct.len(), 112_500);
        assert!((set.ceiling() - 0.986).abs() < 0.001, "{}", set.ceiling());
        assert_eq!(set.requests[0].prompt_blocks(16), 450);
        let seconds: f64 = LADDER.iter().map(|(_, seconds)| seconds).sum();
        assert_eq!(seconds, 502.0);
    }

    #[test]
    fn a_hot_customer_gets_its_share() {
        let set = CustomerGroups { hot_share: Some(0.6), ..Default::default() }.generate(3);
        let hot = set.requests[0].keys[0];
        let first = |request: &Request| request.keys[0];
        let mut counts = std::collections::HashMap::new();
        set.requests.iter().for_each(|request| *counts.entry(first(request)).or_insert(0) += 1);
        let most = counts.values().max().copied().unwrap_or(0);
        assert!((f64::from(most) / set.requests.len() as f64 - 0.6).abs() < 0.02);
        assert!(counts.contains_key(&hot));
    }

    #[test]
    fn a_turn_repeats_the_session_and_its_answer() {
        let sessions = AgentSessions::default();
        let set = sessions.generate(1);
        assert_eq!(set.requests.len(), 24 * 14);
        for (index, request) in set.requests.iter().enumerate() {
            let Start::After { parent, .. } = request.start else {
                assert!(index < 24);
                continue;
            };
            let before = &set.requests[parent];
            assert_eq!(request.prompt_blocks(16), before.prompt_blocks(16) + 8);
            assert_eq!(&before.keys[..2], &request.keys[..2]);
        }
        // 2 shared blocks; 8 more per turn.
        assert_eq!(set.requests[24 * 13].prompt_blocks(16), 2 + 8 * 14);
        assert!((set.ceiling() - 0.871).abs() < 0.01, "{}", set.ceiling());
    }

    #[test]
    fn a_seed_fixes_a_set() {
        let times = |seed| {
            let set = CustomerGroups::default().generate(seed);
            set.requests.iter().map(|request| request.start).collect::<Vec<_>>()
        };
        assert_eq!(times(5), times(5));
        assert_ne!(times(5), times(6));
    }

    #[test]
    fn the_two_gpu_run_shares_its_first_blocks_only() {
        let set = DocumentCallers::default().generate(1);
        assert_eq!(set.requests.len(), 750);
        assert_eq!(set.requests[0].prompt_tokens, 426 * 16 + 15);
        assert_eq!(set.requests[0].keys.len(), 426);
        assert_eq!(set.requests[0].keys[..2], [BlockKey(0), BlockKey(1)]);
        assert_eq!(reference_draws(Draw::Skewed, 15, 5, 2), [12, 12, 0, 0, 8]);
    }
}
