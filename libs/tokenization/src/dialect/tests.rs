use std::path::Path;

use serde_json::{Value as Json, json};

use super::*;
use crate::{ChatRequest, ModelFolder};

/// Prints everything that a template can read.
const ALL: &str = "{{ messages | tojson }}{{ tools | tojson }}{{ reasoning_effort }}\
                   {{ enable_thinking }}{{ x }}{{ add_generation_prompt }}";

fn with_template(source: &str) -> std::sync::Arc<ModelFolder> {
    let folder = tempfile::tempdir().unwrap();
    let builtin = Path::new(env!("CARGO_MANIFEST_DIR")).join("builtin");
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(builtin.join(name), folder.path().join(name)).unwrap();
    }
    std::fs::write(folder.path().join("chat_template.jinja"), source).unwrap();
    ModelFolder::load(folder.path()).unwrap()
}

fn render(folder: &ModelFolder, chat: &Json) -> Result<(String, usize), String> {
    let request = ChatRequest::from_body(chat).map_err(|e| e.to_string())?;
    let rendered = folder.render(&request).map_err(|e| e.to_string())?;
    Ok((rendered.text, rendered.keyed_bytes))
}

#[test]
fn chats_are_those_that_the_engine_makes() {
    let cases: Vec<Json> =
        serde_json::from_str(include_str!("../../fixtures/dialects.json")).unwrap();
    assert!(cases.len() > 70);
    let parts = include_str!("../../fixtures/templates/parts.jinja");
    let tools = include_str!("../../fixtures/templates/tools.jinja");
    let (folders, mut wrong) = ([ALL, parts, tools].map(with_template), Vec::new());
    for case in &cases {
        let body = &case["body"];
        let chat = match case["route"].as_str().unwrap() {
            "messages" => {
                let system_first = case["merge"].as_bool().unwrap();
                chat_of_messages(body, Habits { system_first, ..Habits::default() })
            }
            _ => chat_of_responses(body),
        };
        let chat = chat.unwrap_or_default();
        for folder in &folders {
            let (got, want) = (render(folder, &chat), render(folder, &case["chat"]));
            if got != want {
                wrong.push(format!("{body}\n got {got:?}\nwant {want:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n\n"));
}

#[test]
fn what_is_not_known_here_gives_no_chat() {
    let user = json!([{"role": "user", "content": "hi"}]);
    for body in [
        json!({}),
        json!({"messages": "hi"}),
        json!({"messages": [{"role": "user", "content": 7}]}),
        json!({"messages": [{"role": "user", "content": [{"type": "alien"}]}]}),
        json!({"messages": user, "system": 7}),
        json!({"messages": user, "tools": {}}),
        json!({"messages": [{"role": "system", "content": [{"type": "tool_removal",
            "tool": {"type": "tool_reference", "name": "f"}}]}]}),
    ] {
        assert_eq!(chat_of_messages(&body, Habits::default()), None, "{body}");
    }
    for body in [
        json!({}),
        json!({"input": 7}),
        json!({"input": "hi", "previous_response_id": "resp_1"}),
        json!({"input": [{"type": "item_reference", "id": "x"}]}),
        json!({"input": "hi", "tools": [{"type": "web_search"}]}),
    ] {
        assert_eq!(chat_of_responses(&body), None, "{body}");
    }
}

#[test]
fn an_engines_habits_are_found_by_trying_the_template() {
    let habits = |source: &str| with_template(source).habits();
    let every = "{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}";
    assert_eq!(habits(every), Habits { system_first: false, disabled_thinking: "low" });
    let first = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}\
                 {{ raise_exception('no') }}{% endif %}{{ m.content }}{% endfor %}";
    assert!(habits(first).system_first);
    let thinks = "{% if enable_thinking is defined and not enable_thinking %}off{% endif %}";
    assert_eq!(habits(&format!("{every}{thinks}")).disabled_thinking, "none");
    let refuses = "{% if reasoning_effort == 'none' %}{{ raise_exception('no') }}{% endif %}";
    assert_eq!(habits(refuses).disabled_thinking, "low");
    assert!(habits(&format!("{every}{{{{ strftime_now('%Y') }}}}")).system_first);
    assert!(!habits(&format!("{every}{{{{ undefined_name }}}}")).system_first);
}
