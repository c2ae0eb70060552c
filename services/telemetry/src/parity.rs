//! Whether an engine renders and tokenises as we do with the model folder at hand.
//!
//! If it does not, our block keys name other blocks than the engine caches, and every match
//! would be a guess. The samples are the project's own; nothing of a client's is sent.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use domain::ModelId;
use serde_json::Value;
use tokenization::{ChatRequest, ModelFolder};

use crate::http_client::EngineClient;

/// Tokenising waits behind the engine's own requests; there is no hurry.
const LIMIT: Duration = Duration::from_secs(5);

/// Far more than the tokens of a sample take.
const MAX_BYTES: usize = 1 << 20;

/// What each model's folder makes of the samples.
#[derive(Clone, Default)]
pub(crate) struct Parity {
    models: Arc<HashMap<ModelId, Vec<Sample>>>,
}

struct Sample {
    /// The body for the engine, without `model`.
    body: Value,
    tokens: Vec<u32>,
}

impl Parity {
    /// Renders and tokenises every sample once for all backends. A sample that a template
    /// refuses is left out for that model.
    pub(crate) fn new(folders: &HashMap<ModelId, Arc<ModelFolder>>) -> Self {
        let of = |folder: &Arc<ModelFolder>| {
            tokenization::parity::samples()
                .into_iter()
                .filter_map(|body| {
                    let tokens = tokenise(folder, &body)?;
                    Some(Sample { body, tokens })
                })
                .collect()
        };
        let models = folders.iter().map(|(id, folder)| (id.clone(), of(folder))).collect();
        Self { models: Arc::new(models) }
    }

    /// Whether the folder of `model` is at hand.
    pub(crate) fn knows(&self, model: &ModelId) -> bool {
        self.models.contains_key(model)
    }

    /// Asks the engine. `None` if it cannot be asked, or would answer none of the samples.
    pub(crate) async fn check(&self, engine: &EngineClient, model: &ModelId) -> Option<bool> {
        let mut compared = 0;
        for (number, sample) in self.models.get(model)?.iter().enumerate() {
            let answer =
                engine.post("/tokenize", sample.request(model), MAX_BYTES, LIMIT).await.ok()?;
            if answer.is_missing() {
                return None;
            }
            // An engine may refuse a sample, as a template may; that alone is no mismatch.
            let Ok(answer) = answer.success() else { continue };
            let Ok(theirs) = engine::tokens::tokenize_answer(&answer.body) else { continue };
            compared += 1;
            if theirs != sample.tokens {
                let agree = theirs.iter().zip(&sample.tokens).take_while(|(a, b)| a == b).count();
                tracing::warn!(
                    %model, sample = number, ours = sample.tokens.len(), theirs = theirs.len(),
                    agree, "the engine's tokens differ from the model folder's",
                );
                return Some(false);
            }
        }
        (compared > 0).then_some(true)
    }
}

impl Sample {
    fn request(&self, model: &ModelId) -> Vec<u8> {
        let mut body = self.body.clone();
        body["model"] = Value::from(model.as_str());
        body["add_generation_prompt"] = Value::from(true);
        body.to_string().into_bytes()
    }
}

fn tokenise(folder: &ModelFolder, body: &Value) -> Option<Vec<u32>> {
    let request = ChatRequest::from_body(body).ok()?;
    let prompt = folder.tokenize_chat(&request).ok()?;
    prompt.exact.then_some(prompt.tokens)
}
