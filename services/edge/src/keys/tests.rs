use std::sync::Arc;

use super::*;
use crate::metrics::{Families, ModelMetrics};
use crate::retries::{RetryBudget, RetryBudgets};

const TOKENS: BlockUnit = BlockUnit::Tokens(16);

fn retries() -> Arc<RetryBudget> {
    Arc::clone(RetryBudgets::default().others())
}

fn model(folder: bool, token_units: &[BlockUnit], by_text: bool) -> ModelView {
    ModelView {
        id: ModelId::from("m"),
        base: None,
        folder: folder.then(ModelFolder::builtin),
        token_units: token_units.to_vec(),
        by_text,
        metrics: ModelMetrics::new(&Families::default(), "m"),
        retries: retries(),
        listing: Arc::from("{}"),
    }
}

fn prompt(body: &Value, kind: RouteKind, model: Option<&ModelView>) -> Prompt {
    let bytes = body.to_string();
    let view = BodyView::parse(bytes.as_bytes(), kind).unwrap();
    prompt_of(&view, model, b"secret", usize::MAX).unwrap().0
}

fn chat(messages: Value) -> Value {
    json!({"model": "m", "messages": messages})
}

fn long(seed: &str) -> String {
    (0..200).map(|i| format!("{seed}{i} ")).collect()
}

fn units(prompt: &Prompt) -> Vec<BlockUnit> {
    prompt.keys.iter().map(|list| list.unit).collect()
}

fn shared(a: &Prompt, b: &Prompt) -> usize {
    let keys = a.keys[0].keys.iter().zip(b.keys[0].keys.iter());
    keys.take_while(|(a, b)| a == b).count()
}

#[test]
fn a_chat_is_keyed_in_every_unit_in_use() {
    let body = chat(json!([{"role": "user", "content": long("w")}]));
    let both = model(true, &[TOKENS, BlockUnit::Tokens(32)], true);
    let prompt = prompt(&body, RouteKind::Chat, Some(&both));
    assert_eq!(units(&prompt), [TOKENS, BlockUnit::Tokens(32), BlockUnit::TEXT]);
    assert_eq!(prompt.keys[0].keys.len(), prompt.tokens as usize / 16);
    assert_eq!(prompt.keys[1].keys.len(), prompt.tokens as usize / 32);
    assert_eq!(prompt.keys[2].keys.len(), prompt.text_bytes as usize / 64);
}

#[test]
fn the_next_turn_begins_with_the_keys_of_the_last_at_either_level() {
    let first = json!([{"role": "user", "content": long("w")}]);
    let next = json!([
        {"role": "user", "content": long("w")},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "and then?"},
    ]);
    for model in [model(true, &[TOKENS], false), model(false, &[TOKENS], true)] {
        let of = |messages: &Value| prompt(&chat(messages.clone()), RouteKind::Chat, Some(&model));
        let (a, b) = (of(&first), of(&next));
        assert!(a.keys[0].keys.len() > 10);
        // The last block of the first turn may hold the opening of the answer.
        assert!(shared(&a, &b) + 1 >= a.keys[0].keys.len());
    }
}

#[test]
fn models_and_salts_share_no_key() {
    let base = chat(json!([{"role": "user", "content": long("w")}]));
    let with = |name: &str, value: &str| {
        let mut body = base.clone();
        body[name] = value.into();
        body
    };
    let bodies = [
        base.clone(),
        with("model", "lora-a"),
        with("model", "lora-b"),
        with("cache_salt", "t1"),
        with("cache_salt", "t2"),
    ];
    let named = |body: &Value, mut view: ModelView| {
        view.id = ModelId::from(body["model"].as_str().unwrap());
        prompt(body, RouteKind::Chat, Some(&view))
    };
    for by_text in [false, true] {
        let view = || match by_text {
            false => model(true, &[TOKENS], false),
            true => model(false, &[], true),
        };
        let prompts: Vec<_> = bodies.iter().map(|body| named(body, view())).collect();
        for (i, a) in prompts.iter().enumerate() {
            for b in &prompts[..i] {
                assert_eq!(shared(a, b), 0);
            }
        }
    }
}

#[test]
fn token_ids_are_used_as_they_are_and_need_no_folder() {
    let ids: Vec<u32> = (0..40).collect();
    let model = model(false, &[TOKENS], false);
    let of = |given: Value| {
        prompt(&json!({"model": "m", "prompt": given}), RouteKind::Completions, Some(&model))
    };
    let (one, many) = (of(json!(ids)), of(json!([ids, [1, 2]])));
    assert_eq!((one.tokens, one.keys[0].keys.len()), (40, 2));
    assert_eq!(one.keys, many.keys);
    assert_eq!(many.tokens, 42);
}

#[test]
fn of_several_texts_the_first_has_keys_and_all_count() {
    let text = long("w");
    for (folder, units) in [(true, &[TOKENS][..]), (false, &[])] {
        let model = model(folder, units, true);
        let of = |given: Value| {
            let body = json!({"model": "m", "prompt": given});
            prompt(&body, RouteKind::Completions, Some(&model))
        };
        let (one, other) = (of(json!(text)), of(json!("another text")));
        let both = of(json!([text, "another text"]));
        assert_eq!(one.keys, both.keys);
        assert!(other.tokens > 0);
        assert_eq!(both.tokens, one.tokens + other.tokens, "folder: {folder}");
        assert_eq!(both.text_bytes, one.text_bytes + other.text_bytes);
    }
}

#[test]
fn a_budget_is_for_all_prompts_together() {
    let model = model(true, &[TOKENS], false);
    let texts: Vec<String> = (0..10).map(|i| long(&format!("together{i}"))).collect();
    let longest = texts.iter().map(String::len).max().unwrap();
    let body = json!({"model": "m", "prompt": texts}).to_string();
    let view = BodyView::parse(body.as_bytes(), RouteKind::Completions).unwrap();
    assert_eq!(prompt_of(&view, Some(&model), b"s", 2 * longest).unwrap_err(), TooLong);
}

#[test]
fn a_prompt_that_cannot_be_rendered_is_keyed_by_its_text() {
    let model = model(true, &[TOKENS], false);
    let odd = [
        chat(json!("no list")),
        chat(json!([{"role": "user", "content": {"deep": [1, {"er": null}]}}])),
        chat(json!([7])),
    ];
    for body in odd {
        let prompt = prompt(&body, RouteKind::Chat, Some(&model));
        assert!(!prompt.keys.is_empty(), "{body}");
    }
    let lone = br#"{"model":"m","messages":[{"role":"user","content":"\ud800"}]}"#;
    let view = BodyView::parse(lone, RouteKind::Chat).unwrap();
    let (prompt, _) = prompt_of(&view, Some(&model), b"s", usize::MAX).unwrap();
    assert_eq!(units(&prompt), [BlockUnit::TEXT]);
}

#[test]
fn keys_end_before_the_first_part_that_is_not_text() {
    let model = model(true, &[TOKENS], false);
    let image = |url: &str| {
        chat(json!([{"role": "user", "content": [
            {"type": "text", "text": long("w")},
            {"type": "image_url", "image_url": {"url": url}},
            {"type": "text", "text": long("v")},
        ]}]))
    };
    let (a, b) = (image("data:a"), image("data:b"));
    let (a, b) =
        (prompt(&a, RouteKind::Chat, Some(&model)), prompt(&b, RouteKind::Chat, Some(&model)));
    assert_eq!(a.keys, b.keys);
    assert!(a.keys[0].keys.len() < a.tokens as usize / 16);
}

#[test]
fn an_unknown_model_is_keyed_by_text() {
    let body = chat(json!([{"role": "user", "content": long("w")}]));
    let prompt = prompt(&body, RouteKind::Chat, None);
    assert_eq!(units(&prompt), [BlockUnit::TEXT]);
    assert_eq!(prompt.tokens, prompt.text_bytes / 4);
}

#[test]
fn a_budget_is_kept_until_the_text_is_known() {
    let model = model(true, &[TOKENS], false);
    let body = chat(json!([{"role": "user", "content": long("budget")}])).to_string();
    let view = BodyView::parse(body.as_bytes(), RouteKind::Chat).unwrap();
    let within = |budget| prompt_of(&view, Some(&model), b"s", budget);
    assert_eq!(within(100).unwrap_err(), TooLong);
    within(usize::MAX).unwrap();
    within(100).unwrap();
}

#[test]
fn names_of_one_model_share_their_keys_and_adapters_do_not() {
    let body = chat(json!([{"role": "user", "content": long("w")}]));
    let named = |id: &str, base: Option<bool>| {
        let mut view = model(true, &[TOKENS], true);
        view.id = ModelId::from(id);
        view.base = base.map(|adapter| domain::Base { model: ModelId::from("m"), adapter });
        prompt(&body, RouteKind::Chat, Some(&view)).keys
    };
    let own = named("m", None);
    assert_eq!(named("m-latest", Some(false)), own);
    let adapters = [named("sql", Some(true)), named("law", Some(true))];
    for (a, b) in [(&own, &adapters[0]), (&own, &adapters[1]), (&adapters[0], &adapters[1])] {
        for (a, b) in a.iter().zip(b) {
            assert!(a.keys.iter().zip(b.keys.iter()).all(|(a, b)| a != b));
        }
    }
}

#[test]
fn what_conversations_of_one_request_share_is_read_once() {
    let messages: Vec<Value> =
        (0..1000).map(|i| json!([{"role": "user", "content": format!("question {i}")}])).collect();
    let shared = "x".repeat(100_000);
    let body = json!({"model": "m", "chat_template_kwargs": {"a": shared}, "messages": messages});
    let first =
        json!({"model": "m", "chat_template_kwargs": {"a": shared}, "messages": messages[0]});
    for model in [model(true, &[TOKENS], true), model(false, &[], true)] {
        let (all, first) = (
            prompt(&body, RouteKind::ChatBatch, Some(&model)),
            prompt(&first, RouteKind::Chat, Some(&model)),
        );
        assert_eq!(all.keys, first.keys, "the first decides");
        let (bytes, tokens) = (all.text_bytes - first.text_bytes, all.tokens - first.tokens);
        assert!((10_000..40_000).contains(&bytes), "{bytes} of the other 999");
        assert!((2_500..10_000).contains(&tokens), "{tokens}");
    }
}

#[test]
fn more_prompts_than_are_read_are_keyed_by_their_text() {
    let model = model(true, &[TOKENS], false);
    for item in ["\"\"", "[]"] {
        let of = |count: usize| {
            let list = vec![item; count].join(",");
            format!(r#"{{"model":"m","prompt":[{list}]}}"#)
        };
        let units = |body: &str| {
            let view = BodyView::parse(body.as_bytes(), RouteKind::Completions).unwrap();
            units(&prompt_of(&view, Some(&model), b"s", usize::MAX).unwrap().0)
        };
        assert_eq!(units(&of(10)), [TOKENS], "{item}");
        assert_eq!(units(&of(openai_api::body::MOST_VALUES + 1)), [BlockUnit::TEXT], "{item}");
    }
}
