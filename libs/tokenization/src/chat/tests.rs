use serde_json::json;

use super::*;
use crate::ModelFolder;

fn render(body: &Json) -> Result<String, RenderError> {
    ModelFolder::builtin().render_chat(&ChatRequest::from_body(body)?)
}

#[test]
fn every_legal_shape_of_a_message_renders() {
    let call = json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": null}});
    let messages = [
        json!({"role": "assistant", "content": null, "tool_calls": [call]}),
        json!({"role": "assistant", "tool_calls": [call]}),
        json!({"role": "assistant", "content": "", "tool_calls": []}),
        json!({"role": "assistant", "content": "x", "tool_calls": null}),
        json!({"role": "tool", "content": [{"type": "text", "text": "a"}], "tool_call_id": "1"}),
        json!({"role": "developer", "content": "x"}),
        json!({"role": "alien", "content": "x"}),
        json!({"role": "user", "content": []}),
        json!({"role": "user", "content": ""}),
        json!({"role": "user", "content": 7}),
        json!({"role": "user", "content": [{"type": "text", "text": "a"},
            {"type": "image_url", "image_url": {"url": "u"}}]}),
        json!({"role": "user", "content": [{"type": "video_url", "video_url": {"url": "u"}}]}),
        json!({"role": "user", "content": [{"type": "text"}, {"type": 3}, null]}),
        json!({"content": "no role"}),
    ];
    for message in messages {
        for tool_choice in [json!("auto"), json!({"type": "allowed_tools", "allowed_tools": {}})] {
            let body = json!({"messages": [message], "tool_choice": tool_choice});
            assert!(render(&body).is_ok(), "{body}");
        }
    }
}

#[test]
fn what_no_engine_could_render_is_an_error() {
    for (body, field) in [
        (json!({}), "messages"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": "hi"}), "messages"),
        (json!({"messages": ["hi"]}), "messages"),
        (json!({"messages": [{}], "tools": {}}), "tools"),
        (json!({"messages": [{}], "chat_template_kwargs": []}), "chat_template_kwargs"),
        (json!({"messages": [{}], "continue_final_message": true}), "continue_final_message"),
    ] {
        match ChatRequest::from_body(&body) {
            Err(RenderError::Body { field: named, .. }) => assert_eq!(named, field),
            other => panic!("{body}: {other:?}"),
        }
    }
}

#[test]
fn the_bodys_own_template_is_read_only_when_trusted() {
    let body = json!({"messages": [{"role": "user", "content": "x"}],
        "chat_template": "own {{ messages[0].content }}"});
    let mut request = ChatRequest::from_body(&body).unwrap();
    let folder = ModelFolder::builtin();
    assert!(folder.render_chat(&request).unwrap().starts_with("<|im_start|>"));
    request.trust_chat_template = true;
    assert_eq!(folder.render_chat(&request).as_deref(), Ok("own x"));
}

#[test]
fn tools_stay_in_the_prompt_of_tool_choice_none_unless_told_otherwise() {
    let body = json!({"messages": [{"role": "user", "content": "x"}], "tool_choice": "none",
        "tools": [{"type": "function", "function": {"name": "probe"}}]});
    let mut request = ChatRequest::from_body(&body).unwrap();
    let folder = ModelFolder::builtin();
    assert!(folder.render_chat(&request).unwrap().contains("probe"));
    request.exclude_tools_when_none = true;
    assert!(!folder.render_chat(&request).unwrap().contains("probe"));
}

#[test]
fn variables_of_the_client_cannot_replace_the_conversation() {
    let body = json!({"messages": [{"role": "user", "content": "real"}],
        "chat_template_kwargs": {"messages": [{"role": "user", "content": "fake"}],
            "add_generation_prompt": false}});
    let text = render(&body).unwrap();
    assert!(text.contains("real") && !text.contains("fake"));
    assert!(text.ends_with("assistant\n"));
}
