//! Keys of answers.

use std::collections::HashMap;

use tokenization::ModelFolder;

use crate::testing::*;

const WORDS: [&str; 4] = [" the", " time", " of", " to"];

/// A stream of `words` words, whose usage counts `counted` output tokens.
fn stream(words: usize, counted: usize) -> Vec<Step> {
    let mut all = vec![ROLE.to_owned()];
    all.extend((0..words).map(|i| token(WORDS[i % 4])));
    all.push(format!(
        "data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":9,\"completion_tokens\":{counted}}}}}\n\n"
    ));
    all.push(DONE.to_owned());
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    events(&all)
}

fn text(words: usize) -> String {
    (0..words).map(|i| WORDS[i % 4]).collect()
}

async fn bed(engine: &Engine) -> Bed {
    let models = HashMap::from([("m".into(), ModelFolder::builtin())]);
    Setup { models, ..Setup::default() }.start(&[engine]).await
}

fn completion(prompt: &str, stream: bool) -> String {
    serde_json::json!({"model": "m", "prompt": prompt, "stream": stream}).to_string()
}

#[tokio::test]
async fn the_keys_of_a_streamed_answer_are_those_of_the_prompt_that_repeats_it() {
    let engine = Engine::start("e", vec![stream(64, 65), stream(1, 2)]).await;
    let bed = bed(&engine).await;
    let prompt = text(40);
    bed.client.post("/v1/completions", "", &completion(&prompt, true)).await;
    bed.assert_idle().await;
    let next = format!("{prompt}{}", text(64));
    bed.client.post("/v1/completions", "", &completion(&next, true)).await;
    bed.assert_idle().await;
    let routes = bed.router.routes();
    let keys = |i: usize| routes[i].prompt.as_ref().unwrap().keys[0].clone();
    let output = bed.router.output_keys();
    assert_eq!((keys(0).keys.len(), output[0].len(), output[0][0].unit), (2, 1, keys(0).unit));
    assert_eq!(output[0][0].keys.len(), 4);
    assert_eq!([&keys(0).keys[..], &output[0][0].keys].concat(), keys(1).keys[..]);
    assert!(output[1].is_empty(), "one word fills no block");
    bed.assert_metric(r#"warmpath_edge_answer_keys_total{result="keyed"} 1"#);
    bed.assert_metric(r#"warmpath_edge_answer_keys_total{result="differs"} 0"#);
}

#[tokio::test]
async fn an_answer_that_is_not_streamed_is_keyed_too() {
    let body = serde_json::json!({
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text(64)}}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 65},
    });
    let script = vec![answer("200 OK", "content-type: application/json\r\n", &body.to_string())];
    let engine = Engine::start("e", vec![script]).await;
    let bed = bed(&engine).await;
    bed.client.chat(WHOLE).await;
    bed.assert_idle().await;
    assert!(bed.router.output_keys()[0][0].keys.len() >= 4);
}

#[tokio::test]
async fn an_answer_whose_tokens_are_not_its_texts_gets_no_keys() {
    let reasoning = "data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"hm\"}}]}\n\n";
    let mut hidden = stream(64, 65);
    hidden.insert(1, event(reasoning));
    let engine = Engine::start("e", vec![stream(64, 70), hidden]).await;
    let bed = bed(&engine).await;
    for _ in 0..2 {
        bed.client.chat(STREAM).await;
        bed.assert_idle().await;
    }
    assert_eq!(bed.router.output_keys(), [vec![], vec![]]);
    bed.assert_metric(r#"warmpath_edge_answer_keys_total{result="differs"} 2"#);
}
