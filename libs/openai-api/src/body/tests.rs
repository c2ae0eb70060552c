use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn chat(body: &str) -> BodyView<'_> {
    BodyView::parse(body.as_bytes(), RouteKind::Chat).expect("a body that is fine")
}

fn refusal(body: &[u8]) -> BodyError {
    let refusal = BodyView::parse(body, RouteKind::Chat).expect_err("a body that is refused");
    assert_eq!(refusal.code.http_status(), 400);
    refusal
}

#[test]
fn the_fields_of_a_request_are_read() {
    let view = chat(
        r#"{"model":"org/m","messages":[{"role":"user","content":"hi"}],"stream":true,
            "stream_options":{"include_usage":true,"continuous_usage_stats":true},
            "max_tokens":5,"max_completion_tokens":7,"n":2,"best_of":3,"cache_salt":"s\u00e9"}"#,
    );
    assert_eq!(view.model, "org/m");
    assert!(view.stream);
    assert_eq!(view.include_usage, Some(true));
    assert!(view.continuous_usage);
    assert_eq!((view.max_tokens, view.n, view.best_of), (Some(7), Some(2), Some(3)));
    assert_eq!(view.cache_salt.as_deref(), Some("sé"));
    assert_eq!(view.raw(Field::Messages), Some(r#"[{"role":"user","content":"hi"}]"#));
    assert_eq!(view.raw(Field::Tools), None);
}

#[test]
fn an_older_output_limit_counts_where_the_newer_one_is_null() {
    let view = chat(r#"{"model":"m","max_completion_tokens":null,"max_tokens":5}"#);
    assert_eq!(view.max_tokens, Some(5));
}

#[test]
fn values_are_read_as_leniently_as_the_engines_read_them() {
    let boolean = |raw| read::boolean(raw);
    for yes in ["true", "1", "1.0", r#""true""#, r#""YES""#, r#""On""#, r#""1""#] {
        assert_eq!(boolean(yes), Some(true), "{yes}");
    }
    for no in ["false", "0", "0.0", "-0", r#""False""#, r#""off""#] {
        assert_eq!(boolean(no), Some(false), "{no}");
    }
    for odd in ["2", r#""maybe""#, "[]", "{}", "NaN", "null", r#""\ud800""#] {
        assert_eq!(boolean(odd), None, "{odd}");
    }
    assert_eq!(read::count("12"), Some(12));
    assert_eq!(read::count("12.0"), Some(12));
    assert_eq!(read::count("1e2"), Some(100));
    assert_eq!(read::count(r#"" 12 ""#), Some(12));
    assert_eq!(read::count("18446744073709551616"), Some(u32::MAX));
    assert_eq!(read::count("1e400"), Some(u32::MAX));
    for odd in ["-1", "1.5", "NaN", "Infinity", "true", "null", r#""inf""#, r#""""#, "[1]"] {
        assert_eq!(read::count(odd), None, "{odd}");
    }
}

#[test]
fn legal_shapes_of_messages_and_tools_are_never_refused() {
    let messages = [
        r#"[{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]}]"#,
        r#"[{"role":"assistant"}]"#,
        r#"[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":null}}]}]"#,
        r#"[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":""}}]}]"#,
        r#"[{"role":"tool","content":[{"type":"text","text":"a"}]}]"#,
        r#"[{"role":"developer","content":"a"}]"#,
        r#"[{"role":"user","content":[]}]"#,
        r#"[{"role":"user","content":""}]"#,
        r#"[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"u"}}]}]"#,
        r#"[{"role":"user","content":[{"type":"video_url","video_url":{"url":"u"}}]}]"#,
        "null",
        "{}",
        "\"text\"",
    ];
    for messages in messages {
        let body = format!(
            r#"{{"model":"m","messages":{messages},"tool_choice":{{"type":"allowed_tools","tools":[]}}}}"#
        );
        let view = chat(&body);
        assert_eq!(view.raw(Field::Messages), Some(messages));
        let expected: Value = serde_json::from_str(messages).expect("valid JSON");
        assert_eq!(view.value().expect("all of it is valid text")["messages"], expected);
    }
}

#[test]
fn a_chat_without_messages_is_refused_only_where_the_list_is_there_and_empty() {
    assert_eq!(refusal(br#"{"model":"m","messages":[ ]}"#).param, Some("messages"));
    chat(r#"{"model":"m"}"#);
    let body = br#"{"model":"m","messages":[]}"#;
    assert!(BodyView::parse(body, RouteKind::ByLoad).is_ok());
}

fn prompt_bytes(body: &str) -> Vec<u8> {
    chat(body).prompt_bytes().collect::<Vec<_>>().concat()
}

#[test]
fn a_prompt_of_too_many_values_is_not_parsed_and_still_has_its_bytes() {
    let of = |messages: usize| {
        format!(r#"{{"model":"m","messages":[{}{{}}]}}"#, "{},".repeat(messages - 1))
    };
    assert!(chat(&of(1000)).value().is_some());
    let body = of(MOST_VALUES / 2 + 1);
    assert!(chat(&body).value().is_none());
    assert!(prompt_bytes(&body).len() > MOST_VALUES);
}

#[test]
fn prompts_that_are_too_many_are_not_read() {
    let of = |item: &str, count: usize| format!("[{}]", vec![item; count].join(","));
    for item in [r#""""#, "[]", r#""a""#, "[7, 8]"] {
        let most = match read::prompt(&of(item, MOST_VALUES)) {
            PromptField::Texts(texts) => texts.len(),
            PromptField::TokenLists(lists) => lists.len(),
            other => panic!("{other:?}"),
        };
        assert_eq!(most, MOST_VALUES, "{item}");
        let more = of(item, MOST_VALUES + 1);
        assert_eq!(read::prompt(&more), PromptField::Unreadable, "{item}");
    }
    let long = of("7", 2 * MOST_VALUES);
    let PromptField::Tokens(ids) = read::prompt(&long) else { panic!("ids") };
    assert_eq!(ids.read(|id| assert_eq!(id, 7)), Some(2 * MOST_VALUES));
}

#[test]
fn a_refusal_says_what_is_wrong_and_where() {
    let message = |body: &[u8]| refusal(body).message;
    assert_eq!(
        message(b"{not json"),
        "the body is not a valid JSON object: expected a key in double quotes at byte 1"
    );
    assert_eq!(
        message(b"[1]"),
        "the body is not a valid JSON object: expected an object at byte 0"
    );
    assert_eq!(message(b"{\"model\":\"\xff\"}"), "the body is not valid UTF-8 at byte 10");
    assert_eq!(message(b"{}"), "'model' is missing; name the model to use");
    assert_eq!(message(br#"{"model":3}"#), "'model' must be a string that is not empty");
    let twice = refusal(br#"{"model":"m","\u006e":1,"n":2}"#);
    assert_eq!(
        (twice.message.as_str(), twice.param),
        ("'n' is given twice; give it once", Some("n"))
    );
}

#[test]
fn a_salt_that_is_no_text_still_tells_salts_apart() {
    let salt = |json: &str| {
        let body = format!(r#"{{"model":"m","cache_salt":{json}}}"#);
        chat(&body).cache_salt.map(Cow::into_owned)
    };
    assert_ne!(salt(r#""\ud800""#), salt(r#""\ud801""#));
    assert_eq!(salt("null"), None);
    assert_eq!(salt("7"), None);
}

#[test]
fn every_shape_of_a_prompt_is_read() {
    fn prompt(json: &str) -> PromptField<'_> {
        read::prompt(json)
    }
    assert_eq!(prompt(r#""a\u0062""#), PromptField::Text("ab".into()));
    assert_eq!(prompt(r#"["a", "b"]"#), PromptField::Texts(vec!["a".into(), "b".into()]));
    assert_eq!(prompt("[ 1, 2]"), PromptField::Tokens(TokenIds::new("[ 1, 2]")));
    let lists = ["[1]", "[2,3]"].map(TokenIds::new).to_vec();
    assert_eq!(prompt("[[1],[2,3]]"), PromptField::TokenLists(lists));
    assert_eq!(prompt("null"), PromptField::None);
    for odd in ["[]", "[-1]", "{}", "7", r#""\ud800""#, "[null]"] {
        assert_eq!(prompt(odd), PromptField::Unreadable, "{odd}");
    }
    let view = BodyView::parse(br#"{"model":"m","prompt":[7]}"#, RouteKind::Completions);
    assert_eq!(
        view.expect("a body that is fine").prompt(),
        PromptField::Tokens(TokenIds::new("[7]"))
    );
}

#[test]
fn token_ids_are_read_one_by_one_and_are_no_more_than_is_told() {
    let read = |json: &str| {
        let (ids, mut read) = (TokenIds::new(json), Vec::new());
        let count = ids.read(|id| read.push(id))?;
        assert!(count <= ids.at_most(), "{json}");
        assert_eq!(count, read.len());
        Some(read)
    };
    for json in ["[]", "[ ]", "[1]", " [1,2, 3 ]\n", "[0,4294967295]"] {
        assert_eq!(read(json), serde_json::from_str(json).ok(), "{json}");
    }
    for odd in ["[1,\"a\"]", "[1.5]", "[-1]", "[4294967296]", "[1]]", "[1", "null", "7", "[[1]]"] {
        assert_eq!(read(odd), None, "{odd}");
    }
}

#[test]
fn what_rendering_reads_is_parsed_in_the_order_of_the_request() {
    let view = chat(
        r#"{"temperature":1e400,"tools":[{"z":1,"a":{"y":1.0,"b":2}}],"model":"m",
            "messages":[{"role":"user","content":"hi"}],"chat_template_kwargs":{"x":false}}"#,
    );
    let value = view.value().expect("what rendering reads is fine");
    assert_eq!(value["tools"].to_string(), r#"[{"z":1,"a":{"y":1.0,"b":2}}]"#);
    assert_eq!(value["chat_template_kwargs"], json!({"x": false}));
    assert_eq!(value.get("model"), None);
    assert_eq!(value.get("temperature"), None);
}

#[test]
fn text_that_cannot_be_rendered_still_gives_bytes_that_grow_from_turn_to_turn() {
    let first = r#"{"model":"m","tools":[1],"messages":[{"role":"user","content":"\ud800"}]}"#;
    let second = r#"{"messages":[{"role":"user","content":"\ud800"},{"role":"user","content":"b"}],
                     "tools":[1],"model":"m","n":1}"#;
    assert_eq!(chat(first).value(), None);
    let (first, second) = (prompt_bytes(first), prompt_bytes(second));
    assert!(second.starts_with(&first));
    assert!(first.ends_with(br#""content":"\ud800"}"#));
}

#[test]
fn usage_is_asked_for_only_where_that_adds_one_event_and_nothing_else() {
    let can = |rest: &str| {
        let body = format!(r#"{{"model":"m",{rest}}}"#);
        chat(&body).can_inject_usage()
    };
    assert!(can(r#""stream":true"#));
    assert!(can(r#""stream":true,"stream_options":null"#));
    assert!(can(r#""stream":true,"stream_options":{}"#));
    assert!(can(r#""stream":true,"stream_options":{"include_usage":false}"#));
    assert!(can(r#""stream":true,"stream_options":{"include_usage":null}"#));
    assert!(can(r#""stream":true,"stream_options":{"continuous_usage_stats":false}"#));
    assert!(!can(r#""stream":true,"stream_options":{"include_usage":true}"#));
    assert!(!can(r#""stream":true,"stream_options":{"continuous_usage_stats":true}"#));
    assert!(!can(r#""stream":true,"stream_options":{"include_usage":"maybe"}"#));
    assert!(!can(r#""stream":true,"stream_options":[]"#));
    assert!(!can(r#""stream":true,"stream_options":"x""#));
    assert!(!can(r#""stream":false"#));
    assert!(!can(r#""n":1"#));
}

/// See `fixtures/python_truth.py`.
#[derive(serde::Deserialize)]
struct Case {
    body: Option<String>,
    body_hex: Option<String>,
    accepted: bool,
    fields: serde_json::Map<String, Value>,
    twice: Vec<String>,
}

impl Case {
    fn bytes(&self) -> Vec<u8> {
        if let Some(text) = &self.body {
            return text.clone().into_bytes();
        }
        let hex = self.body_hex.as_deref().expect("a case has one of the two");
        let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("two hex digits");
        (0..hex.len()).step_by(2).map(byte).collect()
    }

    /// Our own reasons to refuse what Python takes.
    fn refused_by_us(&self) -> bool {
        let dumped = |field: &str| self.fields.get(field).and_then(Value::as_str);
        let model = dumped("model").and_then(|json| serde_json::from_str::<String>(json).ok());
        !self.twice.is_empty()
            || model.is_none_or(|name| name.is_empty())
            || dumped("messages") == Some("[]")
    }
}

#[test]
fn bodies_read_as_python_reads_them() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("../../fixtures/python_truth.json"))
        .expect("the fixture is valid JSON");
    assert!(cases.len() > 500);
    for case in cases {
        let bytes = case.bytes();
        let shown = String::from_utf8_lossy(&bytes);
        let view = BodyView::parse(&bytes, RouteKind::Chat);
        let expected = case.accepted && !case.refused_by_us();
        assert_eq!(view.is_ok(), expected, "{shown}: {:?}", view.err());
        let Ok(view) = view else { continue };
        for &field in Field::ALL {
            let python = case.fields.get(field.as_str()).and_then(Value::as_str);
            let same = match (view.raw(field), python) {
                (None, None) => true,
                (Some(ours), Some(python)) => means_the_same(ours, python),
                _ => false,
            };
            assert!(
                same,
                "{} of {shown}: {:?}, Python {python:?}",
                field.as_str(),
                view.raw(field)
            );
        }
    }
}

/// Whether two JSON texts stand for one value. `python` was written by `json.dumps`.
fn means_the_same(ours: &str, python: &str) -> bool {
    let value = |json: &str| serde_json::from_str::<Value>(json).ok();
    // An integer to Python, a float to serde_json.
    let ours = if ours == "-0" { "0" } else { ours };
    let spaceless = |json: &str| json.replace([' ', '\n'], "").to_lowercase();
    match (value(ours), value(python)) {
        (Some(ours), Some(python)) => ours == python,
        // Lone surrogates, numbers out of range, depth: no value to compare, but the texts are
        // written in one way only. Python writes an infinite number as a word.
        _ => spaceless(ours) == spaceless(python) || (ours == "1e400" && python == "Infinity"),
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i32>().prop_map(|n| Value::from(f64::from(n) / 8.0)),
        ".{0,40}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((".{0,8}", inner), 0..5)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// A key of ours or a foreign one, some of its characters written as escapes.
fn any_key() -> impl Strategy<Value = (String, String)> {
    let ours = prop::sample::select(Field::ALL).prop_map(|field| field.as_str().to_owned());
    let name = prop_oneof![3 => ours, 1 => "[a-z_]{1,12}"];
    (name, any::<u64>()).prop_map(|(name, escapes)| {
        let escape = |(at, c): (usize, char)| {
            if escapes >> (2 * (at % 32)) & 3 == 0 {
                format!("\\u{:04X}", u32::from(c))
            } else {
                c.to_string()
            }
        };
        let written: String = name.chars().enumerate().map(escape).collect();
        (name, written)
    })
}

proptest! {
    /// Every field of ours in a valid body is found, and found where it stands.
    #[test]
    fn fields_are_found_as_by_the_reference(
        members in prop::collection::vec((any_key(), any_json(), "[ \n\t\r]{0,3}"), 0..12),
        pretty in any::<bool>(),
    ) {
        let mut body = r#"{"model":"m""#.to_owned();
        let mut expected = serde_json::Map::new();
        for ((name, written), value, space) in members {
            if name == "model" || expected.contains_key(&name) {
                continue;
            }
            let json = if pretty { format!("{value:#}") } else { value.to_string() };
            body += &format!("{space},{space}\"{written}\"{space}:{space}{json}{space}");
            expected.insert(name, value);
        }
        body += "} ";
        prop_assume!(expected.get("messages") != Some(&json!([])));
        let view = BodyView::parse(body.as_bytes(), RouteKind::Chat).expect("valid");
        for &field in Field::ALL.iter().filter(|field| **field != Field::Model) {
            let found = view.raw(field).map(|raw| serde_json::from_str::<Value>(raw).expect("valid"));
            prop_assert_eq!(found.as_ref(), expected.get(field.as_str()), "{:?}", field);
        }
    }

    /// No input makes it panic, and what it accepts is UTF-8 and a JSON object.
    #[test]
    fn arbitrary_bytes_are_refused_or_read(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        if BodyView::parse(&bytes, RouteKind::Completions).is_ok() {
            prop_assert!(serde_json::from_slice::<Value>(&bytes).is_ok_and(|value| value.is_object()));
        }
    }
}

#[test]
fn sampling_parameters_limit_what_is_generated_from_token_ids() {
    let body = br#"{"model":"m","token_ids":[1],"sampling_params":{"max_tokens":7,"n":2}}"#;
    let view = BodyView::parse(body, RouteKind::Generate).unwrap();
    assert_eq!((view.max_tokens, view.n), (Some(7), Some(2)));
    let body = br#"{"model":"m","token_ids":[1],"max_tokens":3,"sampling_params":[]}"#;
    let view = BodyView::parse(body, RouteKind::Generate).unwrap();
    assert_eq!((view.max_tokens, view.n), (None, None));
}

#[test]
fn usage_is_asked_for_only_where_a_stream_would_not_tell_it() {
    let injects = |kind| {
        let body = br#"{"model":"m","stream":true,"messages":[1],"input":"x","token_ids":[1]}"#;
        BodyView::parse(body, kind).unwrap().can_inject_usage()
    };
    for kind in [RouteKind::Chat, RouteKind::Completions, RouteKind::Generate] {
        assert!(injects(kind), "{kind:?}");
    }
    for kind in [RouteKind::Messages, RouteKind::Responses, RouteKind::CohereChat] {
        assert!(!injects(kind), "{kind:?}");
    }
}
