//! The model folder: the files that decide how a request becomes tokens.

mod config;

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use minijinja::Value;
use serde_json::{Value as Json, json};

use crate::chat::{CONTINUE_MARK, ChatRequest, PART_MARK, TruncationSide, truncation};
use crate::dialect::Habits;
use crate::encode::{CacheStats, DEFAULT_CACHE_BYTES, Encoder};
use crate::error::{FolderError, RenderError};
use crate::template::Templates;
use config::TokenizerConfig;

const TOKENIZER: &str = "tokenizer.json";
const CONFIG: &str = "tokenizer_config.json";
const TEMPLATE: &str = "chat_template.jinja";
/// The efforts of the Messages API.
const EFFORTS: [&str; 5] = ["low", "medium", "high", "xhigh", "max"];

/// A model's tokenizer and chat template, with a memory of what was tokenised before.
///
/// The folder holds `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja`, as
/// published models do. Without the last one the template is taken from the second; a model
/// without any template serves plain prompts only. Shared by threads behind an [`Arc`].
pub struct ModelFolder {
    encoder: Encoder,
    templates: Templates,
    special_tokens: Vec<(String, Value)>,
    habits: OnceLock<Habits>,
}

/// A chat as the text the engine will tokenise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedPrompt {
    /// The text. Parts that are not text (images and the like) are left out.
    pub text: String,
    /// Bytes of `text` before the first part that was left out; all of them if none was.
    pub keyed_bytes: usize,
    special: bool,
    truncate: Option<(usize, TruncationSide)>,
}

/// The tokens of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenizedPrompt {
    /// All tokens. Of a prompt with parts that are not text, those of its text.
    pub tokens: Vec<u32>,
    /// Block keys may be made of the first so many.
    pub keyed_tokens: usize,
    /// Whether `tokens` is all the engine will see.
    pub exact: bool,
}

impl ModelFolder {
    /// Reads a folder.
    ///
    /// # Errors
    /// [`FolderError`], which names the file and what is wrong with it.
    pub fn load(path: &Path) -> Result<Arc<Self>, FolderError> {
        let read = |name: &str| {
            let path = path.join(name);
            std::fs::read(&path).map_err(|source| FolderError::Read { path, source })
        };
        let template = match read(TEMPLATE) {
            Ok(bytes) => Some(bytes),
            Err(FolderError::Read { source, .. })
                if source.kind() == std::io::ErrorKind::NotFound =>
            {
                None
            }
            Err(error) => return Err(error),
        };
        Self::of(path, &read(TOKENIZER)?, &read(CONFIG)?, template.as_deref())
    }

    /// The small tokenizer and template that come with this crate, for doubles, demos and tests.
    ///
    /// # Panics
    /// Never: a test loads the embedded files.
    pub fn builtin() -> Arc<Self> {
        let files: [&[u8]; 3] = [
            include_bytes!("../builtin/tokenizer.json"),
            include_bytes!("../builtin/tokenizer_config.json"),
            include_bytes!("../builtin/chat_template.jinja"),
        ];
        Self::of(Path::new("builtin"), files[0], files[1], Some(files[2]))
            .expect("the embedded files are loaded by a test")
    }

    fn of(
        folder: &Path,
        tokenizer: &[u8],
        config: &[u8],
        template: Option<&[u8]>,
    ) -> Result<Arc<Self>, FolderError> {
        let invalid =
            |name: &str, reason: String| FolderError::Invalid { path: folder.join(name), reason };
        let parsed = TokenizerConfig::parse(config).map_err(|e| invalid(CONFIG, e))?;
        let (from, named) = match template {
            Some(bytes) => {
                let source = std::str::from_utf8(bytes)
                    .map_err(|e| invalid(TEMPLATE, format!("is not UTF-8: {e}")))?;
                (TEMPLATE, vec![("default".to_owned(), source.to_owned())])
            }
            None => (CONFIG, parsed.templates),
        };
        let templates = Templates::compile(named)
            .map_err(|e| invalid(from, format!("the chat template does not compile: {e}")))?;
        let encoder =
            Encoder::new(tokenizer, DEFAULT_CACHE_BYTES).map_err(|e| invalid(TOKENIZER, e))?;
        let (special_tokens, habits) = (parsed.special_tokens, OnceLock::new());
        Ok(Arc::new(Self { encoder, templates, special_tokens, habits }))
    }

    /// The chat as text.
    ///
    /// # Errors
    /// [`RenderError`] if the request or the template does not allow it.
    pub fn render(&self, request: &ChatRequest<'_>) -> Result<RenderedPrompt, RenderError> {
        let chosen =
            self.templates.choose(request.own_template(), request.tools_seen().is_some())?;
        let context = request.context(chosen.traits, &self.special_tokens)?;
        let mut text = chosen.render(context)?;
        if request.continue_final_message {
            cut_continued(&mut text)?;
        }
        let keyed_bytes = match request.has_non_text() {
            false => text.len(),
            // A template that drops the part has dropped its place as well.
            true => text.find(PART_MARK).map_or(0, |at| {
                text.replace_range(at..at + PART_MARK.len(), "");
                at
            }),
        };
        let (special, truncate) = (request.add_special_tokens, request.truncate);
        Ok(RenderedPrompt { text, keyed_bytes, special, truncate })
    }

    /// As [`ModelFolder::render`], the text alone.
    ///
    /// # Errors
    /// As [`ModelFolder::render`].
    pub fn render_chat(&self, request: &ChatRequest<'_>) -> Result<String, RenderError> {
        self.render(request).map(|rendered| rendered.text)
    }

    /// What an engine finds out about the template by trying it.
    pub fn habits(&self) -> Habits {
        *self.habits.get_or_init(|| Habits {
            system_first: self.templates.wants_system_first(),
            disabled_thinking: self.effort_for_no_thinking(),
        })
    }

    /// `none`, unless the template refuses it or cannot tell it from an effort.
    fn effort_for_no_thinking(&self) -> &'static str {
        let probe = |effort: &str| {
            let messages = json!([{"role": "user", "content": "Hi"}]);
            let body = json!({"messages": messages, "reasoning_effort": effort});
            ChatRequest::from_body(&body).and_then(|request| self.render_chat(&request)).ok()
        };
        let Some(none) = probe("none") else { return "low" };
        let is_seen = EFFORTS.iter().all(|effort| probe(effort).as_ref() != Some(&none));
        if is_seen { "none" } else { "low" }
    }

    /// The tokens of a rendered chat.
    ///
    /// # Errors
    /// [`RenderError::Tokenizer`], [`RenderError::TooLong`].
    pub fn tokenize_rendered(
        &self,
        prompt: &RenderedPrompt,
    ) -> Result<TokenizedPrompt, RenderError> {
        let exact = prompt.keyed_bytes == prompt.text.len();
        let mut tokens = self.encoder.encode(&prompt.text, prompt.special)?;
        let mut keyed_tokens = tokens.len();
        if !exact {
            let head = &prompt.text[..prompt.keyed_bytes];
            let head = &head[..self.encoder.last_cut(head)];
            let head = self.encoder.encode(head, false)?;
            // Special tokens before the text come first in both.
            let from = self.encoder.tokens_before(prompt.special);
            let same = tokens.get(from..).is_some_and(|rest| rest.starts_with(&head));
            keyed_tokens = if same { from + head.len() } else { 0 };
        }
        if let Some(kept) = kept(prompt.truncate, tokens.len()) {
            keyed_tokens = keyed_tokens.saturating_sub(kept.start).min(kept.len());
            tokens = tokens[kept].to_vec();
        }
        Ok(TokenizedPrompt { tokens, keyed_tokens, exact })
    }

    /// Renders and tokenises a chat.
    ///
    /// # Errors
    /// As [`ModelFolder::render`] and [`ModelFolder::tokenize_rendered`].
    pub fn tokenize_chat(&self, request: &ChatRequest<'_>) -> Result<TokenizedPrompt, RenderError> {
        self.tokenize_rendered(&self.render(request)?)
    }

    /// The tokens of a plain prompt. Engines add special tokens (a beginning of text, where the
    /// model has one) unless the body says `"add_special_tokens": false`.
    ///
    /// # Errors
    /// [`RenderError::Tokenizer`], [`RenderError::TooLong`].
    pub fn tokenize_text(
        &self,
        text: &str,
        add_special_tokens: bool,
    ) -> Result<Vec<u32>, RenderError> {
        self.encoder.encode(text, add_special_tokens)
    }

    /// The tokens of a plain prompt with what its body says about special tokens and truncation.
    ///
    /// # Errors
    /// [`RenderError::Tokenizer`], [`RenderError::TooLong`].
    pub fn tokenize_prompt(&self, body: &Json, text: &str) -> Result<Vec<u32>, RenderError> {
        let special = body["add_special_tokens"].as_bool().unwrap_or(true);
        let mut tokens = self.encoder.encode(text, special)?;
        if let Some(kept) = kept(truncation(body), tokens.len()) {
            tokens = tokens[kept].to_vec();
        }
        Ok(tokens)
    }

    /// How many bytes of `text` are not in memory and would have to be tokenised now: about 20 µs
    /// per KiB of common words, up to half a millisecond per KiB of words never seen (a few times
    /// more where the tokenizer cannot be cut at words). The rest costs well under a microsecond
    /// per KiB, and so does asking.
    pub fn estimate_uncached_bytes(&self, text: &str) -> usize {
        self.encoder.uncached_bytes(text)
    }

    /// The text of output tokens, without special ones. Unknown ids are skipped.
    pub fn decode(&self, tokens: &[u32]) -> String {
        self.encoder.decode(tokens)
    }

    /// The id of a token given by its text (`<|im_end|>`).
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.encoder.tokenizer().token_to_id(token)
    }

    /// One more than the highest token id, unless the vocabulary has gaps.
    pub fn vocabulary_size(&self) -> usize {
        self.encoder.tokenizer().get_vocab_size(true)
    }

    /// Figures of the memory of tokenised text.
    pub fn stats(&self) -> CacheStats {
        self.encoder.stats()
    }
}

impl fmt::Debug for ModelFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelFolder").finish_non_exhaustive()
    }
}

/// Cuts the text where the final message ends, as its mark shows. A template that trims
/// contents has taken the mark's blank; then the message's own trailing blanks go as well.
fn cut_continued(text: &mut String) -> Result<(), RenderError> {
    let mark = CONTINUE_MARK.trim_end();
    let Some(at) = text.rfind(mark) else {
        return Err(RenderError::Template("it does not print the final message".to_owned()));
    };
    let kept = text[at..].starts_with(CONTINUE_MARK);
    text.truncate(at);
    if !kept {
        text.truncate(text.trim_end().len());
    }
    Ok(())
}

/// Which of `length` tokens are left after truncation, if not all.
fn kept(truncate: Option<(usize, TruncationSide)>, length: usize) -> Option<Range<usize>> {
    let (keep, side) = truncate.filter(|(keep, _)| *keep < length)?;
    Some(match side {
        TruncationSide::Left => length - keep..length,
        TruncationSide::Right => 0..keep,
    })
}

#[cfg(test)]
mod tests;
