//! Documents that are asked about over and over.

use std::sync::Arc;

use domain::{BlockKey, Moment};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde::{Deserialize, Serialize};

use super::{Draw, limits};
use crate::Error;
use crate::python_random::PythonRandom;
use crate::request::{Chain, Request, RequestSet, Start};

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
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct DocumentCallers {
    /// Different documents, drawn uniformly.
    pub documents: usize,
    /// Blocks of each, after the shared ones.
    pub document_blocks: u32,
    /// Blocks that all requests share.
    pub shared_blocks: u32,
    /// Tokens of the question that ends a prompt; no two are alike.
    pub question_tokens: u32,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// What an answer takes after its first token on an engine that does nothing else. It has as
    /// many tokens as that makes, whatever the inter-token latency.
    pub decode_seconds: f64,
    /// Requests.
    pub requests: usize,
    /// Requests in flight at once.
    #[serde(rename = "concurrency")]
    pub callers: usize,
    /// Blocks of 64 characters in a document, which is what the reference's rule counts.
    pub text_blocks: f64,
    /// Such blocks that the reference's rule believes an engine to have room for.
    pub reference_blocks: f64,
}

impl Default for DocumentCallers {
    fn default() -> Self {
        Self {
            documents: 30,
            document_blocks: 424,
            shared_blocks: 2,
            question_tokens: 15,
            block_tokens: super::BLOCK_TOKENS,
            decode_seconds: 0.25,
            requests: 750,
            callers: 1,
            text_blocks: 187.0,
            reference_blocks: 12_000.0,
        }
    }
}

impl DocumentCallers {
    /// # Errors
    /// [`Error::Config`] names the first field that makes no sense.
    pub fn check(&self) -> Result<(), Error> {
        let blocks = u64::from(self.shared_blocks) + u64::from(self.document_blocks);
        let prompt = blocks * u64::from(self.block_tokens) + u64::from(self.question_tokens);
        Error::first_broken([
            limits::count("documents", self.documents),
            limits::blocks("document_blocks", [self.documents as u64, self.document_blocks.into()]),
            limits::blocks("shared_blocks", [blocks, 1]),
            limits::block_tokens(self.block_tokens),
            limits::tokens("question_tokens", prompt),
            limits::time("decode_seconds", self.decode_seconds),
            limits::requests("requests", self.requests as f64),
            limits::count("concurrency", self.callers),
            limits::positive("text_blocks", self.text_blocks),
            limits::positive("reference_blocks", self.reference_blocks),
        ])
    }

    /// What the reference's rule counts an engine's block as, in its own blocks.
    pub fn text_blocks_per_block(&self) -> f64 {
        self.text_blocks / f64::from(self.document_blocks)
    }

    fn output_tokens(&self, itl_seconds: f64) -> u32 {
        let further = self.decode_seconds / itl_seconds.max(1e-4);
        1_u32.saturating_add(further.round() as u32)
    }

    /// The requests of one seed, for engines whose inter-token latency is `itl_seconds` for a lone
    /// request. Keys are small numbers, document after document.
    pub fn generate(&self, itl_seconds: f64, seed: u64) -> RequestSet {
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
        let output_tokens = self.output_tokens(itl_seconds);
        let requests = draws.into_iter().map(|document| Request {
            start: Start::WhenFree,
            keys: prompts[document].clone(),
            prompt_tokens: blocks * self.block_tokens + self.question_tokens,
            output_tokens,
        });
        RequestSet {
            block_tokens: self.block_tokens,
            requests: requests.collect(),
            callers: self.callers,
        }
    }
}

/// Documents that are asked about at a steady rate, each prompt a document and a short question.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct SteadyDocuments {
    /// Different documents, drawn uniformly.
    pub documents: usize,
    /// Blocks of each.
    pub document_blocks: u32,
    /// Tokens of the question that ends a prompt; no two are alike.
    pub question_tokens: u32,
    /// Tokens of a block.
    pub block_tokens: u32,
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
            block_tokens: super::BLOCK_TOKENS,
            output_tokens: 16,
            rate: 200.0,
            seconds: 120.0,
        }
    }
}

impl SteadyDocuments {
    /// # Errors
    /// [`Error::Config`] names the first field that makes no sense.
    pub fn check(&self) -> Result<(), Error> {
        let prompt = u64::from(self.document_blocks) * u64::from(self.block_tokens)
            + u64::from(self.question_tokens);
        Error::first_broken([
            limits::count("documents", self.documents),
            limits::blocks("document_blocks", [self.documents as u64, self.document_blocks.into()]),
            limits::block_tokens(self.block_tokens),
            limits::tokens("question_tokens", prompt),
            limits::tokens("output_tokens", self.output_tokens.into()),
            limits::positive("rate", self.rate),
            limits::positive("seconds", self.seconds),
            limits::requests("seconds", self.rate * self.seconds),
        ])
    }

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
                prompt_tokens: self.document_blocks * self.block_tokens + self.question_tokens,
                output_tokens: self.output_tokens,
            });
        }
        RequestSet { block_tokens: self.block_tokens, requests, callers: 0 }
    }
}
