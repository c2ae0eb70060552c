//! Responses as an engine keeps them, with the conversations that go on from them.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::wire::{Usage, Wire};

/// Responses kept, the newest: a bound, as everything has one. (vLLM has none.)
const MOST: usize = 4096;

/// The messages of a conversation, but for its instructions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conversation(pub(crate) Vec<Value>);

/// All responses of one engine.
#[derive(Debug, Default)]
pub(crate) struct Kept(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    by_id: HashMap<String, (String, Conversation)>,
    order: VecDeque<String>,
}

impl Kept {
    /// Keeps a response that said `text` in answer to a conversation.
    pub(crate) fn keep(&self, asked: &Conversation, wire: &Wire, text: &str, usage: Usage) {
        let response = wire.response(text, Some(usage));
        let id = response["id"].as_str().unwrap_or_default().to_owned();
        let mut conversation = asked.clone();
        conversation.0.push(json!({"role": "assistant", "content": text}));
        let mut state = self.0.lock();
        state.order.push_back(id.clone());
        state.by_id.insert(id, (response.to_string(), conversation));
        if state.order.len() > MOST
            && let Some(oldest) = state.order.pop_front()
        {
            state.by_id.remove(&oldest);
        }
    }

    /// A response as JSON.
    pub(crate) fn response(&self, id: &str) -> Option<String> {
        self.0.lock().by_id.get(id).map(|(response, _)| response.clone())
    }

    /// The conversation up to and with a response.
    pub(crate) fn conversation(&self, id: &str) -> Option<Conversation> {
        self.0.lock().by_id.get(id).map(|(_, conversation)| conversation.clone())
    }
}
