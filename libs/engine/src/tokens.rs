//! Answers of an engine's own tokenizer, which the parity check compares with ours.

use serde::Deserialize;

use crate::EngineError;

#[derive(Deserialize)]
struct Tokenized {
    tokens: Vec<u32>,
    count: Option<usize>,
}

/// The token ids in an answer of `/tokenize` (vLLM's, or llama.cpp's for plain text).
///
/// # Errors
/// [`EngineError::Tokens`] if there are none to compare: another shape, a count that does not
/// agree, or an empty list, which llama.cpp gives for a conversation it did not look at.
pub fn tokenize_answer(json: &[u8]) -> Result<Vec<u32>, EngineError> {
    let answer: Tokenized = decode(json)?;
    let length = answer.tokens.len();
    match answer.count {
        Some(count) if count != length => {
            Err(EngineError::Tokens(format!("{length} tokens where {count} are announced")))
        }
        _ if length == 0 => Err(EngineError::Tokens("the list of tokens is empty".to_owned())),
        _ => Ok(answer.tokens),
    }
}

fn decode<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, EngineError> {
    serde_json::from_slice(json).map_err(|fault| EngineError::Tokens(fault.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vllm_tokenize_gives_its_tokens() {
        let json = br#"{"count":2,"max_model_len":4096,"tokens":[19556,905],"token_strs":null}"#;
        assert_eq!(tokenize_answer(json), Ok(vec![19556, 905]));
    }

    #[test]
    fn an_engine_that_ignored_the_conversation_is_no_witness() {
        let empty = tokenize_answer(br#"{"tokens":[]}"#);
        assert!(matches!(empty, Err(EngineError::Tokens(_))), "{empty:?}");
        let short = tokenize_answer(br#"{"count":3,"tokens":[1,2]}"#);
        assert!(matches!(short, Err(EngineError::Tokens(_))), "{short:?}");
    }

    #[test]
    fn an_error_body_is_an_error() {
        for json in [&b"{\"error\":{\"message\":\"no\"}}"[..], b"[]", b"", b"not json", b"[{}]"] {
            assert!(tokenize_answer(json).is_err(), "{json:?}");
        }
    }
}
