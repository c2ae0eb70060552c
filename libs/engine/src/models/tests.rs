use proptest::prelude::*;

use super::*;

const VLLM: &str = r#"{"object":"list","data":[{"id":"smollm2","object":"model","created":1795967077,"owned_by":"vllm","root":"models/smollm2-hf","parent":null,"max_model_len":4096,"permission":[{"id":"modelperm-9948f919080a1829"}]}]}"#;
const LLAMA: &str = r#"{"models":[{"name":"smollm2"}],"object":"list","data":[{"id":"smollm2","aliases":["smollm2"],"created":1795966455,"owned_by":"llamacpp","meta":{"vocab_type":2,"n_ctx":4096,"n_ctx_train":8192}}]}"#;

fn ids(list: &ModelList) -> Vec<&str> {
    list.models.iter().map(|model| model.id.as_str()).collect()
}

#[test]
fn both_engines_lists_give_name_and_context_length() {
    for json in [VLLM, LLAMA] {
        let list = parse(json.as_bytes()).expect("a model list");
        assert_eq!((ids(&list), list.undecoded), (vec!["smollm2"], 0));
        assert_eq!(list.models[0].max_model_len, Some(4096));
        assert_eq!(list.models[0].parity, None);
    }
}

#[test]
fn an_entrys_own_json_is_kept_to_the_byte() {
    let entry = r#"{ "id" : "a/b" , "created":9007199254740993,"max_model_len":1e400, "x":{"z":1.0,"a":null} }"#;
    let list = parse(format!(r#"{{"data":[ {entry} ]}}"#).as_bytes());
    // A number that is none to us costs nothing but itself.
    let list = list.expect("a model list");
    assert_eq!(list.undecoded + list.models.len() as u32, 1);
    let entry = entry.replace("1e400", "4096");
    let list = parse(format!(r#"{{"data":[ {entry} ]}}"#).as_bytes()).expect("a model list");
    assert_eq!(&*list.models[0].listing, entry);
    assert_eq!(list.models[0].id.as_str(), "a/b");
}

#[test]
fn entries_without_a_name_are_counted_and_the_others_kept() {
    let json = br#"{"data":[{"id":"a"},{"id":""},{"id":7},{},null,"x",{"id":"b","max_model_len":"long"},{"id":"a"}]}"#;
    let list = parse(json).expect("a model list");
    assert_eq!((ids(&list), list.undecoded), (vec!["a", "b"], 5));
    assert_eq!(list.models[1].max_model_len, None);
}

#[test]
fn names_that_are_no_label_and_entries_beyond_the_bound_are_left_out_and_counted() {
    let longest = "n".repeat(MAX_ID_BYTES);
    let names = [&longest, &format!("{longest}n"), "a\u{1b}[31m", "a\nb", "a\u{202e}b", "模型/ü 3"];
    let data: Vec<_> = names.iter().map(|id| serde_json::json!({ "id": id })).collect();
    let list = parse(serde_json::json!({ "data": data }).to_string().as_bytes());
    let list = list.expect("a model list");
    assert_eq!((ids(&list), list.left_out), (vec![&*longest, "模型/ü 3"], 4));
    let many = |n: usize| {
        let data: Vec<_> = (0..n).map(|n| serde_json::json!({ "id": format!("m{n}") })).collect();
        parse(serde_json::json!({ "data": data }).to_string().as_bytes()).expect("a model list")
    };
    assert_eq!((many(MAX_MODELS).models.len(), many(MAX_MODELS).left_out), (MAX_MODELS, 0));
    let list = many(MAX_MODELS + 7);
    assert_eq!((list.models.len(), list.left_out, list.undecoded), (MAX_MODELS, 7, 0));
}

#[test]
fn adapters_are_models_like_any_other() {
    let json = br#"{"data":[{"id":"base","max_model_len":10},{"id":"lora-a","parent":"base","max_model_len":null}]}"#;
    let list = parse(json).expect("a model list");
    assert_eq!(ids(&list), ["base", "lora-a"]);
    assert_eq!(list.models[1].max_model_len, None);
}

#[test]
fn adapters_and_other_names_belong_to_the_model_they_share_a_cache_with() {
    let json = br#"{"data":[
        {"id":"llama","root":"/models/llama","parent":null},
        {"id":"llama-latest","root":"/models/llama","parent":null},
        {"id":"sql","root":"/adapters/sql","parent":"llama-latest"},
        {"id":"same-weights","root":"/adapters/sql","parent":"llama"},
        {"id":"orphan","root":"/adapters/x","parent":"gone"},
        {"id":"own-parent","root":"r","parent":"own-parent"},
        {"id":"other","root":"/models/other"},
        {"id":"odd","root":7,"parent":{}},
        {"id":"rootless"}]}"#;
    let list = parse(json).expect("a model list");
    let bases: Vec<_> = list
        .models
        .iter()
        .filter_map(|m| {
            let base = m.base.as_ref()?;
            Some((m.id.as_str(), base.model.as_str(), base.adapter))
        })
        .collect();
    let expected =
        [("llama-latest", "llama", false), ("sql", "llama", true), ("same-weights", "llama", true)];
    assert_eq!(bases, expected);
    assert_eq!(list.models.len(), 9);
}

#[test]
fn what_is_no_model_list_is_an_error() {
    for json in ["", "[]", "{}", r#"{"data":{}}"#, r#"{"detail":"Not Found"}"#, "<html>"] {
        assert!(matches!(parse(json.as_bytes()), Err(EngineError::Models(_))), "{json}");
    }
    assert_eq!(parse(br#"{"data":[]}"#), Ok(ModelList::default()));
}

proptest! {
    #[test]
    fn no_answer_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        let _ = parse(&bytes);
        let _ = owner(&bytes);
        let _ = crate::tokens::tokenize_answer(&bytes);
    }
}
