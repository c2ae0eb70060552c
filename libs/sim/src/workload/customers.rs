//! Customers of a software service, under a ladder of rates.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use domain::{BlockKey, Moment};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde::{Deserialize, Serialize};

use super::limits;
use crate::Error;
use crate::request::{Chain, Request, RequestSet, Start};

/// The ladder of llm-d's capacity benchmark: requests per second, and for how many seconds.
const PUBLISHED: [(f64, f64); 17] = [
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

/// Requests per second and for how many seconds, step after step. Written `15x50+3x20`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Ladder(Vec<(f64, f64)>);

impl Ladder {
    /// Rates and seconds. There is at least one step.
    pub fn steps(&self) -> impl Iterator<Item = (f64, f64)> {
        self.0.iter().copied()
    }

    /// The length of the first step, in seconds: caches fill, and latencies of that time say
    /// nothing.
    pub fn warm_up_seconds(&self) -> f64 {
        self.0.first().map_or(0.0, |(_, seconds)| *seconds)
    }
}

impl Default for Ladder {
    /// The published one.
    fn default() -> Self {
        Self(PUBLISHED.to_vec())
    }
}

impl fmt::Display for Ladder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (rate, seconds)) in self.0.iter().enumerate() {
            let plus = if i == 0 { "" } else { "+" };
            write!(f, "{plus}{rate}x{seconds}")?;
        }
        Ok(())
    }
}

impl FromStr for Ladder {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let step = |step: &str| {
            let (rate, seconds) = step.split_once('x')?;
            let number = |text: &str| text.trim().parse().ok().filter(|v| *v > 0.0 && *v <= 1e6);
            Some((number(rate)?, number(seconds)?))
        };
        let steps: Option<Vec<(f64, f64)>> = text.split('+').map(step).collect();
        let expected = "requests a second x seconds, as 15x50+3x20, all above 0";
        steps.map(Self).ok_or(Error::Config { field: "ladder", expected })
    }
}

impl TryFrom<String> for Ladder {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl From<Ladder> for String {
    fn from(ladder: Ladder) -> Self {
        ladder.to_string()
    }
}

/// A software service whose customers each have a long system prompt of their own, asked by a few
/// users each. The parameters are those of llm-d's capacity benchmark; so is the ladder of rates:
/// a warm-up, then 3 to 60 requests a second.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CustomerGroups {
    /// Customers.
    pub groups: usize,
    /// Users of each; a user always asks the same.
    pub users: usize,
    /// Tokens of a customer's system prompt.
    pub system_tokens: u32,
    /// Tokens of a user's question.
    pub question_tokens: u32,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Tokens of an answer.
    pub output_tokens: u32,
    /// The first customer's share of all requests; without one, all are equal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hot_share: Option<f64>,
    /// How many requests come when.
    pub ladder: Ladder,
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
            block_tokens: super::BLOCK_TOKENS,
            output_tokens: 1_000,
            hot_share: None,
            ladder: Ladder::default(),
            rate_factor: 1.0,
        }
    }
}

impl CustomerGroups {
    /// # Errors
    /// [`Error::Config`] names the first field that makes no sense.
    pub fn check(&self) -> Result<(), Error> {
        let prompt = u64::from(self.system_tokens) + u64::from(self.question_tokens);
        let asks = self.groups as u64 * self.users as u64;
        let share = self.hot_share.is_none_or(|share| (0.0..=1.0).contains(&share));
        let steps = self.ladder.steps();
        Error::first_broken([
            limits::count("groups", self.groups),
            limits::count("users", self.users),
            limits::block_tokens(self.block_tokens),
            limits::tokens("system_tokens", prompt),
            limits::blocks("users", [asks, prompt.div_ceil(self.block_tokens.into())]),
            limits::tokens("output_tokens", self.output_tokens.into()),
            (share, "hot_share", "0 to 1"),
            limits::positive("rate_factor", self.rate_factor),
            limits::requests("ladder", steps.map(|(r, s)| r * s).sum::<f64>() * self.rate_factor),
        ])
    }

    /// The requests of one seed: Poisson arrivals, each from a random user.
    pub fn generate(&self, seed: u64) -> RequestSet {
        let mut random = StdRng::seed_from_u64(seed);
        let prompts = self.prompts();
        let mut requests = Vec::new();
        let mut begin = 0.0;
        for (rate, seconds) in self.ladder.steps() {
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
        RequestSet { block_tokens: self.block_tokens, requests, callers: 0 }
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

    /// One prompt per user, customer after customer. A block that a system prompt fills in part
    /// only has the beginning of the question in it.
    fn prompts(&self) -> Vec<Arc<[BlockKey]>> {
        let shared = self.system_tokens / self.block_tokens;
        let all = (self.system_tokens + self.question_tokens) / self.block_tokens;
        let mut prompts = Vec::with_capacity(self.groups * self.users);
        for group in 0..self.groups as u64 {
            let mut system = Chain::default();
            system.push(group << 32, shared);
            for user in 1..=self.users as u64 {
                let mut chain = system.clone();
                chain.push(group << 32 | user, all - shared);
                prompts.push(chain.keys());
            }
        }
        prompts
    }
}
