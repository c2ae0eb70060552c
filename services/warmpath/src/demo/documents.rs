//! The demo's requests: long documents, a shared system prompt, a question of its own each time.
//!
//! Every prompt is cut, after rendering and tokenising, to the same number of full blocks. The
//! question lies in the last, partial block, so that two requests about one document share all
//! full blocks and two requests about different ones share just the system prompt's.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use sim::workload::{self, Draw};
use tokenization::{ChatRequest, ModelFolder};

/// What the set is made of.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    /// Model name in the requests.
    pub(crate) model: String,
    /// How many documents.
    pub(crate) documents: usize,
    /// Full blocks of each document, without the shared ones.
    pub(crate) document_blocks: usize,
    /// Full blocks that every prompt begins with.
    pub(crate) shared_blocks: usize,
    /// Tokens in a block.
    pub(crate) block_size: usize,
    /// How many requests.
    pub(crate) requests: usize,
    /// Output tokens asked for.
    pub(crate) max_tokens: u32,
    /// How documents are drawn.
    pub(crate) draw: Draw,
    /// Seed of texts and draws.
    pub(crate) seed: u64,
}

/// The requests in sending order, and the ceiling that any router has.
pub(crate) struct DocumentSet {
    /// Request bodies.
    pub(crate) bodies: Vec<Bytes>,
    /// Block hits over all blocks in one cache without limit.
    pub(crate) ceiling_block_hit_rate: f64,
    /// Request hits over all requests in one cache without limit.
    pub(crate) ceiling_request_hit_rate: f64,
}

/// Why a set cannot be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DocumentError {
    /// The template or the tokenizer refused the text.
    #[error("the model folder cannot render the demo's prompts: {0}")]
    Folder(String),
    /// No text found that fills the blocks exactly.
    #[error(
        "document {document} cannot be cut to {blocks} blocks of {block_size} tokens with this \
         tokenizer; choose another --document-blocks"
    )]
    Cut {
        /// Which one.
        document: usize,
        /// Blocks wanted.
        blocks: usize,
        /// Tokens in a block.
        block_size: usize,
    },
}

/// Makes the set.
///
/// # Errors
/// [`DocumentError`] when the tokenizer does not allow the cut.
pub(crate) fn build(folder: &Arc<ModelFolder>, spec: &Spec) -> Result<DocumentSet, DocumentError> {
    let cutter = Cutter { folder, spec, system: system_prompt(folder, spec)? };
    let documents =
        (0..spec.documents).map(|i| cutter.cut(i)).collect::<Result<Vec<String>, _>>()?;
    let drawn = workload::draws(spec.draw, spec.documents, spec.requests, spec.seed);
    let bodies = drawn
        .iter()
        .enumerate()
        .map(|(n, document)| {
            let mut body = cutter.body(&documents[*document], n);
            body["model"] = json!(spec.model);
            body["max_tokens"] = json!(spec.max_tokens);
            body["stream"] = json!(true);
            body["stream_options"] = json!({"include_usage": true});
            Bytes::from(body.to_string())
        })
        .collect();

    let mut seen = vec![false; spec.documents];
    drawn.iter().for_each(|d| seen[*d] = true);
    let distinct = seen.iter().filter(|s| **s).count();
    let all = spec.requests * (spec.document_blocks + spec.shared_blocks);
    let cold = distinct * spec.document_blocks + spec.shared_blocks;
    Ok(DocumentSet {
        bodies,
        ceiling_block_hit_rate: 1.0 - cold as f64 / all.max(1) as f64,
        ceiling_request_hit_rate: 1.0 - distinct as f64 / spec.requests.max(1) as f64,
    })
}

struct Cutter<'a> {
    folder: &'a Arc<ModelFolder>,
    spec: &'a Spec,
    system: String,
}

impl Cutter<'_> {
    fn body(&self, document: &str, question: usize) -> Value {
        // Fixed width, so that every question takes the same number of tokens in tokenizers
        // that split digits.
        let user = format!("{document} #{question:05}");
        json!({"messages": [
            {"role": "system", "content": self.system},
            {"role": "user", "content": user},
        ]})
    }

    fn tokens(&self, document: &str, question: usize) -> Result<Vec<u32>, DocumentError> {
        tokens(self.folder, &self.body(document, question))
    }

    /// The longest text that leaves the question in the partial block behind the full ones.
    fn cut(&self, document: usize) -> Result<String, DocumentError> {
        let spec = self.spec;
        let blocks = spec.document_blocks + spec.shared_blocks;
        let full = blocks * spec.block_size;
        let most = full + spec.block_size - 1;
        // A word takes at least one token, so this many words are always enough.
        let text = workload::document_text(spec.seed, document, full);
        let ends: Vec<usize> =
            text.match_indices(' ').map(|(at, _)| at).chain([text.len()]).collect();
        let (mut fits, mut over) = (0, ends.len());
        while over - fits > 1 {
            let middle = fits.midpoint(over);
            if self.tokens(&text[..ends[middle]], 0)?.len() <= most {
                fits = middle;
            } else {
                over = middle;
            }
        }
        let mut cut = text[..ends[fits]].to_owned();
        loop {
            let padded = format!("{cut} a");
            if self.tokens(&padded, 0)?.len() > most {
                break;
            }
            cut = padded;
        }
        let (one, other) = (self.tokens(&cut, 12_345)?, self.tokens(&cut, 67_890)?);
        let common = one.iter().zip(&other).take_while(|(a, b)| a == b).count();
        if common >= full && one.len() <= most && other.len() <= most {
            Ok(cut)
        } else {
            Err(DocumentError::Cut { document, blocks, block_size: spec.block_size })
        }
    }
}

/// A system prompt that fills the shared blocks: the user's text begins in the block after.
fn system_prompt(folder: &Arc<ModelFolder>, spec: &Spec) -> Result<String, DocumentError> {
    let wanted = spec.shared_blocks * spec.block_size;
    let mut system = "Answer from the document alone.".to_owned();
    loop {
        let head = |user: &str| {
            let body = json!({"messages": [
                {"role": "system", "content": system},
                {"role": "user", "content": user},
            ]});
            tokens(folder, &body)
        };
        let (one, other) = (head("xylophone")?, head("quartz")?);
        if one.iter().zip(&other).take_while(|(a, b)| a == b).count() >= wanted {
            return Ok(system);
        }
        system.push_str(" a");
    }
}

fn tokens(folder: &Arc<ModelFolder>, body: &Value) -> Result<Vec<u32>, DocumentError> {
    let error = |e: &dyn std::fmt::Display| DocumentError::Folder(e.to_string());
    let request = ChatRequest::from_body(body).map_err(|e| error(&e))?;
    Ok(folder.tokenize_chat(&request).map_err(|e| error(&e))?.tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> Spec {
        Spec {
            model: "double".into(),
            documents: 3,
            document_blocks: 10,
            shared_blocks: 2,
            block_size: 16,
            requests: 30,
            max_tokens: 4,
            draw: Draw::Uniform,
            seed: 1,
        }
    }

    #[test]
    fn prompts_share_all_full_blocks_of_their_document_and_only_the_system_prompt_beyond() {
        let folder = ModelFolder::builtin();
        let set = build(&folder, &spec()).unwrap();
        assert_eq!(set.bodies.len(), 30);
        let prompts: Vec<Vec<u32>> = set
            .bodies
            .iter()
            .map(|b| tokens(&folder, &serde_json::from_slice(b).unwrap()).unwrap())
            .collect();
        let mut distinct = std::collections::HashSet::new();
        for prompt in &prompts {
            assert_eq!(prompt.len() / 16, 12);
            assert_eq!(prompt[..32], prompts[0][..32]);
            distinct.insert(prompt[..192].to_vec());
        }
        let third: std::collections::HashSet<_> =
            distinct.iter().map(|p| p[32..48].to_vec()).collect();
        assert_eq!(third.len(), distinct.len(), "documents differ from their first own block on");
        assert_eq!(set.ceiling_request_hit_rate, 1.0 - distinct.len() as f64 / 30.0);
    }
}
