use std::collections::HashMap;
use std::fs;

use domain::ModelId;
use serde_json::json;

use super::*;
use crate::KeySpace;

const SMOLLM2: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/smollm2");

fn smollm2() -> Arc<ModelFolder> {
    ModelFolder::load(Path::new(SMOLLM2)).unwrap()
}

/// The built-in tokenizer with another template.
fn with_template(source: &str) -> Arc<ModelFolder> {
    let tokenizer = include_bytes!("../../builtin/tokenizer.json");
    let config =
        br#"{"bos_token": {"content": "<|begin|>", "lstrip": false}, "add_bos_token": true}"#;
    ModelFolder::of(Path::new("x"), tokenizer, config, Some(source.as_bytes())).unwrap()
}

fn template(name: &str) -> &'static str {
    match name {
        "smollm2" => include_str!("../../fixtures/smollm2/chat_template.jinja"),
        "builtin" => include_str!("../../builtin/chat_template.jinja"),
        "tools" => include_str!("../../fixtures/templates/tools.jinja"),
        "parts" => include_str!("../../fixtures/templates/parts.jinja"),
        "values" => include_str!("../../fixtures/templates/values.jinja"),
        other => panic!("no template {other}"),
    }
}

fn tokens_of(folder: &ModelFolder, body: &Json) -> TokenizedPrompt {
    folder.tokenize_chat(&ChatRequest::from_body(body).unwrap()).unwrap()
}

#[test]
fn chats_render_as_transformers_renders_them() {
    let cases: Vec<Json> =
        serde_json::from_str(include_str!("../../fixtures/rendered.json")).unwrap();
    assert!(cases.len() > 30);
    let mut wrong = Vec::new();
    let mut folders = HashMap::new();
    for case in &cases {
        let name = case["template"].as_str().unwrap();
        let folder = folders.entry(name).or_insert_with(|| with_template(template(name)));
        let request = ChatRequest::from_body(&case["body"]).unwrap();
        let got = folder.render_chat(&request);
        if got.as_deref() != Ok(case["text"].as_str().unwrap()) {
            wrong.push(format!("{name} {}\n got {got:?}\nwant {}", case["body"], case["text"]));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n\n"));
}

#[test]
fn tokens_are_those_of_a_recorded_engine() {
    let folder = smollm2();
    let cases: Vec<Json> =
        serde_json::from_str(include_str!("../../fixtures/vllm-0.32.0.json")).unwrap();
    for case in cases {
        let body = &case["body"];
        let tokens = match (&body["messages"], &body["prompt"]) {
            (Json::Array(_), _) => tokens_of(&folder, body).tokens,
            (_, Json::String(prompt)) => folder.tokenize_text(prompt, true).unwrap(),
            _ => continue,
        };
        match case["count"].as_u64() {
            Some(count) => assert_eq!(tokens.len() as u64, count, "{body}"),
            None => assert_eq!(json!(tokens), case["tokens"], "{body}"),
        }
    }
}

#[test]
fn a_later_turn_shares_the_keys_of_the_earlier_one() {
    let folder = ModelFolder::builtin();
    let space = KeySpace::new(b"s", &ModelId::new("m"), None, None);
    let long = "All of this was said before. ".repeat(40);
    let mut messages = vec![json!({"role": "user", "content": long})];
    let first = tokens_of(&folder, &json!({"messages": messages})).tokens;
    messages.push(json!({"role": "assistant", "content": "I see."}));
    messages.push(json!({"role": "user", "content": "Do you?"}));
    let second = tokens_of(&folder, &json!({"messages": messages})).tokens;
    assert!(second.starts_with(&first));
    let (first, second) = (space.keys(&first, 16), space.keys(&second, 16));
    assert!(first.len() > 10 && second.starts_with(&first));
}

#[test]
fn keys_end_before_the_first_part_that_is_not_text() {
    let question = "Please look at this picture with care and say what it shows. ".repeat(4);
    let body = |url: &str, after: &str| {
        json!({"messages": [
            {"role": "system", "content": "You see."},
            {"role": "user", "content": [
                {"type": "text", "text": question},
                {"type": "image_url", "image_url": {"url": url}},
                {"type": "text", "text": after},
            ]},
        ]})
    };
    for name in ["builtin", "parts"] {
        let folder = with_template(template(name));
        let (a, b) = (body("data:a", "One?"), body("data:b", "Two?"));
        assert!(ChatRequest::from_body(&a).unwrap().has_non_text());
        let (a, b) = (tokens_of(&folder, &a), tokens_of(&folder, &b));
        assert!(!a.exact && a.keyed_tokens == b.keyed_tokens);
        assert_eq!(a.tokens[..a.keyed_tokens], b.tokens[..b.keyed_tokens]);
        assert_ne!(a.tokens, b.tokens);
        // With a list of parts the text before the image counts; else images come first.
        let plain = folder.decode(&a.tokens[..a.keyed_tokens]);
        assert_eq!(plain.contains("Please look"), name == "parts", "{plain}");
        assert!(plain.contains("You see"));
    }
    // A template that drops the part leaves nothing to key.
    let folder = with_template("{% for m in messages %}{{ m.role }}{% endfor %}");
    assert_eq!(tokens_of(&folder, &body("x", "y")).keyed_tokens, 0);
}

#[test]
fn a_prompt_is_truncated_as_the_body_says() {
    let folder = ModelFolder::builtin();
    let body = |side: Json| {
        json!({"messages": [{"role": "user", "content": "one two three four five six"}],
            "truncate_prompt_tokens": 5, "truncation_side": side})
    };
    let mut whole = body(json!(null));
    whole.as_object_mut().unwrap().remove("truncate_prompt_tokens");
    let whole = tokens_of(&folder, &whole).tokens;
    let left = tokens_of(&folder, &body(json!(null)));
    assert_eq!(left.tokens, whole[whole.len() - 5..]);
    assert_eq!(left.keyed_tokens, 5);
    assert_eq!(tokens_of(&folder, &body(json!("right"))).tokens, whole[..5]);
    let plain = folder.tokenize_text("one two three four", true).unwrap();
    let prompt = |body: Json| folder.tokenize_prompt(&body, "one two three four").unwrap();
    assert_eq!(prompt(json!({})), plain);
    assert_eq!(prompt(json!({"truncate_prompt_tokens": 2})), plain[plain.len() - 2..]);
    assert_eq!(prompt(json!({"truncate_prompt_tokens": -1})), plain);
}

#[test]
fn special_tokens_stand_around_a_text_when_asked_for() {
    let mut file: Json =
        serde_json::from_slice(include_bytes!("../../builtin/tokenizer.json")).unwrap();
    file["post_processor"] = json!({
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|endoftext|>":
            {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}},
    });
    let file = serde_json::to_vec(&file).unwrap();
    let folder = ModelFolder::of(Path::new("x"), &file, b"{}", None).unwrap();
    let bare = folder.tokenize_text("Hello there", false).unwrap();
    let with = folder.tokenize_text("Hello there", true).unwrap();
    assert_eq!(with[0], 0);
    assert_eq!(with[1..], bare);
    assert_eq!(folder.encoder.plain("Hello there", true).unwrap(), with);
}

#[test]
fn the_template_may_stand_in_the_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &[u8]| fs::write(dir.path().join(name), text).unwrap();
    write(TOKENIZER, include_bytes!("../../builtin/tokenizer.json"));
    let body = json!({"messages": [{"role": "user", "content": "x"}]});
    let with_tools = json!({"messages": [{"role": "user", "content": "x"}], "tools": [{"a": 1}]});
    let render = |folder: &ModelFolder, body: &Json| {
        folder.render_chat(&ChatRequest::from_body(body).unwrap())
    };

    write(CONFIG, br#"{"chat_template": "plain {{ messages[0].content }}"}"#);
    let folder = ModelFolder::load(dir.path()).unwrap();
    assert_eq!(render(&folder, &body).as_deref(), Ok("plain x"));

    write(
        CONFIG,
        br#"{"chat_template": [{"name": "default", "template": "d"},
            {"name": "tool_use", "template": "t"}, {"name": "rag", "template": "r"}]}"#,
    );
    let named = ModelFolder::load(dir.path()).unwrap();
    assert_eq!(render(&named, &body).as_deref(), Ok("d"));
    assert_eq!(render(&named, &with_tools).as_deref(), Ok("t"));

    write(TEMPLATE, b"file");
    let folder = ModelFolder::load(dir.path()).unwrap();
    assert_eq!(render(&folder, &with_tools).as_deref(), Ok("file"));

    fs::remove_file(dir.path().join(TEMPLATE)).unwrap();
    write(CONFIG, b"{}");
    let folder = ModelFolder::load(dir.path()).unwrap();
    assert_eq!(render(&folder, &body), Err(RenderError::NoTemplate));
    assert!(!folder.tokenize_text("still fine", true).unwrap().is_empty());
}

#[test]
fn a_bad_folder_is_refused_with_the_file_and_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &[u8]| fs::write(dir.path().join(name), text).unwrap();
    let error = || ModelFolder::load(dir.path()).unwrap_err().to_string();
    assert!(error().contains("tokenizer.json: "));
    write(TOKENIZER, b"{}");
    assert!(error().contains("tokenizer_config.json: "));
    write(CONFIG, b"[]");
    assert!(error().contains("tokenizer_config.json: is not an object"));
    write(CONFIG, br#"{"bos_token": 7}"#);
    assert!(error().contains("tokenizer_config.json: `bos_token` is neither"), "{}", error());
    write(CONFIG, b"{}");
    assert!(error().contains("tokenizer.json: "), "{}", error());
    write(TOKENIZER, include_bytes!("../../builtin/tokenizer.json"));
    write(TEMPLATE, b"{% for %}");
    let message = error();
    assert!(
        message.contains("chat_template.jinja: the chat template does not compile"),
        "{message}"
    );
    write(TEMPLATE, b"\xff");
    assert!(error().contains("chat_template.jinja: is not UTF-8"));
}

#[test]
fn the_builtin_folder_speaks_chat() {
    let folder = ModelFolder::builtin();
    assert_eq!(folder.token_id("<|im_end|>"), Some(2));
    assert!(folder.vocabulary_size() > 3000);
    let text = "The engine answers the request. Grüße, 世界!";
    let tokens = folder.tokenize_text(text, true).unwrap();
    assert_eq!(folder.decode(&tokens), text);
    assert!(tokens.len() < text.len() / 2);
    assert_eq!(folder.decode(&[1, 2, u32::MAX]), "");
}

#[test]
fn what_was_tokenised_is_not_tokenised_again() {
    let folder = smollm2();
    let known: String = (0..3000).map(|n| format!("word number {n}. ")).collect();
    let first = format!("{known}What is it?");
    assert_eq!(folder.estimate_uncached_bytes(&first), first.len());
    folder.tokenize_text(&first, false).unwrap();
    assert!(folder.estimate_uncached_bytes(&first) < 64);
    let second = format!("{known}And {} is that?", "why ".repeat(200));
    assert!(folder.estimate_uncached_bytes(&second) < 3000);
    let stats = folder.stats();
    assert!(stats.misses > 20 && stats.resident_bytes > 20_000);
    folder.tokenize_text(&second, false).unwrap();
    assert!(folder.stats().hit_bytes > 30_000);
    assert!(folder.stats().misses < stats.misses + 4);
}
