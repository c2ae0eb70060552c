//! Chat templates and the chats that they render.

use std::sync::{Arc, LazyLock};

use serde_json::{Value, json};
use tokenization::{ChatRequest, ModelFolder, canonical_text};

/// The most that a template of a request's may write.
const MOST_WRITTEN: usize = 16 << 20;

/// A template of a request's own ends, within its bounds, or is refused; so does the model's with
/// any chat. That it ends in time is for the fuzzer's own limit to show.
///
/// # Panics
/// Where that does not hold. A NUL parts the template from a JSON body; without one the whole is
/// the template.
pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (template, body) = text.split_once('\0').unwrap_or((text, ""));
    // Made once: it takes half a second here.
    static FOLDER: LazyLock<Arc<ModelFolder>> = LazyLock::new(ModelFolder::builtin);
    let folder = &*FOLDER;
    let body: Value = serde_json::from_str(body)
        .ok()
        .filter(Value::is_object)
        .unwrap_or_else(|| json!({ "messages": [{ "role": "user", "content": "hello" }] }));
    let render = |body: &Value| {
        let request = ChatRequest::from_body(body).ok()?;
        folder.render_chat(&request).ok()
    };
    let _ = (render(&body), canonical_text(&body, true));
    let mut own = body;
    own["chat_template"] = template.into();
    if let Some(written) = render(&own) {
        assert!(written.len() <= MOST_WRITTEN, "{} bytes", written.len());
    }
}
