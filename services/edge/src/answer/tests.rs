use super::*;

const SECRET: &[u8] = b"secret";

fn space() -> KeySpace {
    KeySpace::new(SECRET, &"m".into(), None, None)
}

fn tokens(text: &str) -> Vec<u32> {
    ModelFolder::builtin().tokenize_text(text, false).unwrap()
}

fn lists(tokens: &[u32], sizes: &[u32]) -> Vec<KeyList> {
    let list = |&size: &u32| KeyList {
        unit: BlockUnit::Tokens(size),
        keys: space().keys(tokens, size).into(),
    };
    sizes.iter().map(list).collect()
}

fn end(prompt: &[u32], sizes: &[u32]) -> PromptEnd {
    let keys = lists(prompt, sizes);
    PromptEnd::new(ModelFolder::builtin(), space(), ends(prompt, &keys), None).unwrap()
}

fn ends(prompt: &[u32], keys: &[KeyList]) -> Vec<UnitEnd> {
    let tail = |list: &KeyList| prompt[list.keys.len() * list.unit.size() as usize..].into();
    keys.iter().map(|list| UnitEnd::new(list, tail(list))).collect()
}

fn pieces(text: &str) -> Text {
    let quoted = serde_json::to_string(text).unwrap();
    Text::Pieces(quoted[1..quoted.len() - 1].into())
}

fn words(count: usize) -> String {
    std::iter::repeat_n(" the time", count).collect()
}

#[test]
fn an_answers_keys_are_those_of_the_next_prompt_that_begins_with_it() {
    let prompt = tokens(&words(23));
    let text = words(40);
    let answer = tokens(&text);
    let whole: Vec<u32> = prompt.iter().chain(&answer).copied().collect();
    let Keyed::Keys(found) = end(&prompt, &[16, 32]).keys(&pieces(&text), answer.len() as u64 + 1)
    else {
        panic!("the tokens agree")
    };
    for (found, (all, before)) in
        found.iter().zip(lists(&whole, &[16, 32]).iter().zip(lists(&prompt, &[16, 32])))
    {
        assert_eq!(found.unit, all.unit);
        assert_eq!(found.keys[..], all.keys[before.keys.len()..]);
    }
    assert_eq!(found.len(), 2);
}

#[test]
fn the_last_token_of_an_answer_that_was_cut_off_has_no_kv() {
    let text = words(8);
    let answer = tokens(&text);
    assert_eq!(answer.len(), 16);
    let of = |completion| end(&[], &[16]).keys(&pieces(&text), completion);
    assert_eq!(of(16), Keyed::Keys(Vec::new()));
    assert_eq!(of(17), Keyed::Keys(lists(&answer, &[16])));
}

#[test]
fn an_answer_with_other_tokens_than_its_text_has_none() {
    let text = words(20);
    let count = tokens(&text).len() as u64;
    for completion in [count - 1, count + 2, 0] {
        assert_eq!(end(&[], &[16]).keys(&pieces(&text), completion), Keyed::Differs);
    }
    let whole = |body: &str| {
        end(&[], &[16]).keys(&Text::Whole(body.to_owned().into(), Grammar::Choices), count)
    };
    assert_eq!(whole("not json"), Keyed::Differs);
    let two = r#"{"choices":[{"text":"a"},{"text":"b"}]}"#;
    assert_eq!(whole(two), Keyed::Differs);
}

#[test]
fn a_whole_answer_is_read_with_its_escapes() {
    let text = format!("\"é\n{}", words(20));
    let count = tokens(&text).len() as u64 + 1;
    let body = serde_json::json!({"choices": [{"index": 0,
        "message": {"role": "assistant", "content": text, "tool_calls": []}}]});
    let found =
        end(&[], &[16]).keys(&Text::Whole(body.to_string().into(), Grammar::Choices), count);
    assert_eq!(found, Keyed::Keys(lists(&tokens(&text), &[16])));
}

#[test]
fn an_answer_that_cannot_fill_a_block_is_not_followed() {
    let prompt = tokens(&words(6));
    let keys = lists(&prompt, &[16]);
    let limited =
        |max| PromptEnd::new(ModelFolder::builtin(), space(), ends(&prompt, &keys), Some(max));
    assert_eq!(prompt.len(), 12);
    assert!(limited(4).is_none());
    assert!(limited(5).is_some());
    let none = PromptEnd::new(ModelFolder::builtin(), space(), Vec::new(), None);
    assert!(none.is_none());
}
