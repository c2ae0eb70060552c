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
        longest: 1 << 24,
        metrics: ModelMetrics::new(&Families::default(), "m"),
        retries: retries(),
        listing: Arc::from("{}"),
    }
}

fn prompt(body: &Value, kind: RouteKind, model: Option<&ModelView>) -> Prompt {
    let bytes = body.to_string();
    let view = BodyView::parse(bytes.as_bytes(), kind).unwrap();
    keyed(&view, model).0
}

/// A prompt, and where it ends, with all the memory and time it wants.
fn keyed(view: &BodyView<'_>, model: Option<&ModelView>) -> (Prompt, Option<PromptEnd>) {
    let memory = Arc::new(Semaphore::new(1 << 20));
    let means = Means { region_secret: b"secret", memory: &memory, budget: usize::MAX };
    let keyed = prompt_of(view, model, means).unwrap();
    (keyed.prompt.unwrap(), keyed.end)
}

fn within(view: &BodyView<'_>, model: &ModelView, budget: usize) -> Result<KeyedPrompt, TooLong> {
    let memory = Arc::new(Semaphore::new(1 << 20));
    prompt_of(view, Some(model), Means { region_secret: b"s", memory: &memory, budget })
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
fn a_prompt_is_keyed_no_further_than_the_longest_that_a_backend_takes() {
    let ids: Vec<u32> = (0..100).collect();
    let body = json!({"model": "m", "prompt": ids});
    let of = |longest: usize, body: &Value, kind| {
        let units = [TOKENS, BlockUnit::Tokens(32)];
        prompt(body, kind, Some(&ModelView { longest, ..model(true, &units, false) }))
    };
    let keys = |prompt: &Prompt| [prompt.keys[0].keys.len(), prompt.keys[1].keys.len()];
    let whole = of(1000, &body, RouteKind::Completions);
    assert_eq!(keys(&whole), [6, 3]);
    let cut = of(64, &body, RouteKind::Completions);
    assert_eq!((keys(&cut), cut.tokens), ([4, 2], 100));
    assert_eq!(cut.keys[0].keys[..], whole.keys[0].keys[..4]);
    let chat = chat(json!([{"role": "user", "content": long("w")}]));
    let cut = of(64, &chat, RouteKind::Chat);
    assert!(cut.tokens > 100);
    assert_eq!(keys(&cut), [4, 2]);
}

#[test]
fn an_answer_goes_on_from_where_token_ids_end_unless_they_are_cut() {
    let body = |ids: u32| {
        let ids: Vec<u32> = (0..ids).collect();
        json!({"model": "m", "token_ids": ids, "sampling_params": {}}).to_string()
    };
    let has_end = |ids: u32, longest: usize| {
        let body = body(ids);
        let view = BodyView::parse(body.as_bytes(), RouteKind::Generate).unwrap();
        keyed(&view, Some(&ModelView { longest, ..model(true, &[TOKENS], false) })).1.is_some()
    };
    assert!(has_end(100, 100));
    assert!(!has_end(101, 100));
}

/// A prompt with so much memory, what is still reserved with its keys, and what is when they are
/// gone.
fn with_memory(
    body: &str,
    kind: RouteKind,
    model: &ModelView,
    steps: usize,
) -> (Prompt, [usize; 2]) {
    let memory = Arc::new(Semaphore::new(steps));
    let means = Means { region_secret: b"s", memory: &memory, budget: usize::MAX };
    let view = BodyView::parse(body.as_bytes(), kind).unwrap();
    let keyed = prompt_of(&view, Some(model), means).unwrap();
    let held = steps - memory.available_permits();
    drop(keyed.memory);
    (keyed.prompt.unwrap(), [held, steps - memory.available_permits()])
}

#[test]
fn a_long_prompt_has_keys_only_if_there_is_memory_for_them() {
    let bytes = 200_000;
    let ids = format!(r#"{{"model":"m","prompt":[{}7]}}"#, "7,".repeat(bytes / 2));
    let text = "x y ".repeat(bytes / 4);
    let chat = chat(json!([{"role": "user", "content": text}])).to_string();
    let texts = json!({"model": "m", "prompt": [text]}).to_string();
    let model = model(true, &[TOKENS, BlockUnit::Tokens(32)], false);
    for (body, kind, steps) in [
        (&ids, RouteKind::Completions, 200),
        (&chat, RouteKind::Chat, 1600),
        (&texts, RouteKind::Completions, 1600),
    ] {
        let (prompt, [held, after]) = with_memory(body, kind, &model, steps);
        let kept: usize = prompt.keys.iter().map(|list| size_of_val(&*list.keys)).sum();
        assert!(kept > 20_000);
        assert_eq!((held, after), (kept.div_ceil(1024), 0));
        let (none, held) = with_memory(body, kind, &model, steps / 2);
        assert_eq!((none.keys.len(), held), (0, [0, 0]));
        assert!(none.tokens as usize > bytes / 5, "its length counts all the same");
    }
}

#[test]
fn a_short_prompt_is_keyed_whatever_memory_there_is() {
    let model = model(true, &[TOKENS], false);
    let body = chat(json!([{"role": "user", "content": long("w")}])).to_string();
    let (prompt, held) = with_memory(&body, RouteKind::Chat, &model, 0);
    assert!(!prompt.keys[0].keys.is_empty());
    assert_eq!(held, [0, 0]);
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
    assert_eq!(within(&view, &model, 2 * longest).err(), Some(TooLong));
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
    let (prompt, _) = keyed(&view, Some(&model));
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
    let within = |budget| within(&view, &model, budget).err();
    assert_eq!(within(100), Some(TooLong));
    assert_eq!(within(usize::MAX), None);
    assert_eq!(within(100), None);
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
            units(&keyed(&view, Some(&model)).0)
        };
        assert_eq!(units(&of(10)), [TOKENS], "{item}");
        assert_eq!(units(&of(openai_api::body::MOST_VALUES + 1)), [BlockUnit::TEXT], "{item}");
    }
}
