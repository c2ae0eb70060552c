//! An engine over a bare socket that does what it is told, byte for byte: its answers, its probes,
//! and the moments at which it goes on.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// One scripted engine. Dropping it closes everything.
pub struct ScriptedEngine {
    address: SocketAddr,
    state: Arc<State>,
    _tasks: JoinSet<()>,
}

/// The answer to every inference request from now on: pieces, each one write.
pub type Script = Vec<Vec<u8>>;

/// What an engine does with an inference request.
#[derive(Clone, Debug)]
pub enum Step {
    /// One write.
    Send(Bytes),
    /// Goes on when the gate lets one pass.
    Await(Gate),
    /// Ends the connection with a RST.
    Reset,
    /// Ends the connection in good order, whatever was announced.
    Close,
    /// Nothing more until the other side closes.
    Hang,
}

/// Lets answers go on, one step for each pass that was given.
#[derive(Clone, Debug)]
pub struct Gate(Arc<Semaphore>);

impl Default for Gate {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(0)))
    }
}

impl Gate {
    /// So many more may pass.
    pub fn let_pass(&self, count: usize) {
        self.0.add_permits(count);
    }

    /// All may pass, now and later.
    pub fn open(&self) {
        self.0.close();
    }

    async fn pass(&self) {
        // A gate that was opened refuses permits: it is passed all the same.
        if let Ok(permit) = self.0.acquire().await {
            permit.forget();
        }
    }
}

/// An inference request as it came.
#[derive(Clone, Debug)]
pub struct Asked {
    head: String,
    /// Its body.
    pub body: Bytes,
}

impl Asked {
    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.head, name)
    }

    /// The path and query.
    pub fn target(&self) -> &str {
        self.head.split(' ').nth(1).unwrap_or_default()
    }

    /// The body as JSON; null if it is none.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

type Answers = dyn Fn(&Asked) -> Vec<Step> + Send + Sync;

struct State {
    answers: Mutex<Arc<Answers>>,
    health: Mutex<u16>,
    listing: Mutex<String>,
    metrics: Mutex<Option<String>>,
    asked: Mutex<Vec<Asked>>,
    probes: AtomicU64,
    written: AtomicU64,
    in_course: AtomicUsize,
    frozen: AtomicBool,
}

impl ScriptedEngine {
    /// Listens, lists these models, and answers with nothing until it is told what.
    ///
    /// # Panics
    /// There is no free port.
    pub async fn start(models: &[String]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound socket");
        let state = Arc::new(State {
            answers: Mutex::new(Arc::new(|_: &Asked| Vec::new())),
            health: Mutex::new(200),
            listing: Mutex::new(listing(models)),
            metrics: Mutex::default(),
            asked: Mutex::default(),
            probes: AtomicU64::new(0),
            written: AtomicU64::new(0),
            in_course: AtomicUsize::new(0),
            frozen: AtomicBool::new(false),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, Arc::clone(&state)));
        Self { address, state, _tasks: tasks }
    }

    /// One that serves the doubles' model and answers every request with these steps.
    pub async fn with(steps: Vec<Step>) -> Self {
        let engine = Self::start(&[crate::cluster::MODEL.to_owned()]).await;
        engine.answer_by(move |_| steps.clone());
        engine
    }

    /// Its base URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Sets what it answers.
    pub fn answer(&self, script: Script) {
        let steps: Vec<Step> = script.into_iter().map(|piece| Step::Send(piece.into())).collect();
        self.answer_by(move |_| steps.clone());
    }

    /// Sets what it answers, by what it is asked.
    pub fn answer_by(&self, answers: impl Fn(&Asked) -> Vec<Step> + Send + Sync + 'static) {
        *self.state.answers.lock() = Arc::new(answers);
    }

    /// Sets the status of its health route.
    pub fn set_health(&self, status: u16) {
        *self.state.health.lock() = status;
    }

    /// Sets the models that it lists.
    pub fn set_models(&self, models: &[String]) {
        *self.state.listing.lock() = listing(models);
    }

    /// Sets the entries of its list of models as they are.
    pub fn set_listing(&self, entries: &[Value]) {
        *self.state.listing.lock() = json!({"object": "list", "data": entries}).to_string();
    }

    /// Sets its page of metrics. Without one it has no such route.
    pub fn set_metrics(&self, page: String) {
        *self.state.metrics.lock() = Some(page);
    }

    /// From now on connections are taken, and nothing is read or answered.
    pub fn freeze(&self) {
        self.state.frozen.store(true, Ordering::Relaxed);
    }

    /// Inference requests so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.state.asked.lock().clone()
    }

    /// How many those are.
    pub fn asked_count(&self) -> usize {
        self.state.asked.lock().len()
    }

    /// All other requests so far.
    pub fn probes(&self) -> u64 {
        self.state.probes.load(Ordering::Relaxed)
    }

    /// Inference requests whose answers have not ended.
    pub fn in_course(&self) -> usize {
        self.state.in_course.load(Ordering::Relaxed)
    }

    /// Bytes of answers to inference requests that the system has taken.
    pub fn written(&self) -> u64 {
        self.state.written.load(Ordering::Relaxed)
    }

    /// Waits until so many inference requests have come.
    ///
    /// # Panics
    /// They do not come in time.
    pub async fn await_asked(&self, count: usize) {
        let asked = || std::future::ready(self.asked_count() >= count);
        crate::wait::eventually(crate::wait::PATIENCE, "the engine is asked", asked).await;
    }

    /// Waits until so many answers are in course.
    ///
    /// # Panics
    /// It does not come to that in time.
    pub async fn await_in_course(&self, count: usize) {
        let holds = || std::future::ready(self.in_course() == count);
        crate::wait::eventually(crate::wait::PATIENCE, "answers in course", holds).await;
    }

    /// Waits until it was probed so many times more.
    ///
    /// # Panics
    /// It is not, in time.
    pub async fn await_probes(&self, count: u64) {
        let goal = self.probes() + count;
        let probed = || std::future::ready(self.probes() >= goal);
        crate::wait::eventually(crate::wait::PATIENCE, "the engine is probed", probed).await;
    }
}

fn listing(models: &[String]) -> String {
    let data: Vec<_> = models.iter().map(|m| json!({"id": m, "object": "model"})).collect();
    json!({"object": "list", "data": data}).to_string()
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        if stream.set_nodelay(true).is_ok() {
            connections.spawn(serve(stream, Arc::clone(&state)));
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(mut stream: TcpStream, state: Arc<State>) {
    while let Some(asked) = read_request(&mut stream).await {
        if state.frozen.load(Ordering::Relaxed) {
            // The connection stays as it is until the engine is dropped.
            std::future::pending::<()>().await;
        }
        let goes_on = if is_inference(&asked) {
            infer(&mut stream, &state, asked).await
        } else {
            state.probes.fetch_add(1, Ordering::Relaxed);
            stream.write_all(&probed(&state, &asked)).await.is_ok()
        };
        if !goes_on {
            return;
        }
    }
}

/// What telemetry asks of engines are `GET`s, and tokens of a text.
fn is_inference(asked: &Asked) -> bool {
    let target = asked.target();
    asked.head.starts_with("POST ") && target != "/tokenize" && !target.ends_with("/render")
}

fn probed(state: &State, asked: &Asked) -> Vec<u8> {
    match (asked.head.starts_with("GET "), asked.target()) {
        (true, "/v1/models") => answer("200 OK", "", state.listing.lock().as_bytes()),
        (true, "/health") => answer(&format!("{} Health", *state.health.lock()), "", b""),
        (true, "/metrics") => match &*state.metrics.lock() {
            Some(page) => answer("200 OK", "", page.as_bytes()),
            None => answer("404 Not Found", "", b""),
        },
        _ => answer("404 Not Found", "", b""),
    }
}

/// An answer in the count of those in course.
struct InCourse<'a>(&'a AtomicUsize);

impl Drop for InCourse<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether the connection serves on.
async fn infer(stream: &mut TcpStream, state: &State, asked: Asked) -> bool {
    state.in_course.fetch_add(1, Ordering::Relaxed);
    let _in_course = InCourse(&state.in_course);
    let answers = Arc::clone(&state.answers.lock());
    let steps = answers(&asked);
    state.asked.lock().push(asked);
    for step in steps {
        match step {
            Step::Send(bytes) => {
                if stream.write_all(&bytes).await.is_err() {
                    return false;
                }
                state.written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                // The other side may read what came so far before the rest follows.
                tokio::task::yield_now().await;
            }
            // A client that leaves meanwhile is noticed.
            Step::Await(gate) => {
                tokio::select! {
                    () = gate.pass() => {}
                    () = closed(stream) => return false,
                }
            }
            Step::Reset => {
                let linger = Some(Duration::ZERO);
                // A socket that cannot be told closes in good order, which breaks it as well.
                let _ = socket2::SockRef::from(&*stream).set_linger(linger);
                return false;
            }
            Step::Close => return false,
            Step::Hang => {
                closed(stream).await;
                return false;
            }
        }
    }
    true
}

/// Waits until the other side has closed. Nothing else is expected from it.
async fn closed(stream: &mut TcpStream) {
    let mut rest = [0; 1024];
    while stream.read(&mut rest).await.is_ok_and(|n| n > 0) {}
}

/// Reads one request.
async fn read_request(stream: &mut TcpStream) -> Option<Asked> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = memchr::memmem::find(&bytes, b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut body = bytes.split_off(end);
    let length = header(&head, "content-length").and_then(|v| v.parse().ok());
    while body.len() < length.unwrap_or(0) {
        if stream.read_buf(&mut body).await.ok()? == 0 {
            return None;
        }
    }
    Some(Asked { head, body: body.into() })
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().skip(1).find_map(|line| {
        let (own, value) = line.split_once(':')?;
        own.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

/// A whole answer of JSON; `headers` are lines, each with its end.
pub fn answer(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n{headers}\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// One piece of a chunked body.
pub fn chunk(bytes: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

/// The head of an event stream in chunks.
pub fn stream_head() -> Step {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
                transfer-encoding: chunked\r\n\r\n";
    Step::Send(head.into())
}

/// Part of a stream, as one chunk and one write.
pub fn part(text: &str) -> Step {
    Step::Send(chunk(text.as_bytes()).into())
}

/// The last chunk.
pub fn stream_end() -> Step {
    Step::Send("0\r\n\r\n".into())
}

/// A whole stream of these parts that ends in good order.
pub fn stream(parts: &[&str]) -> Vec<Step> {
    let parts = parts.iter().map(|text| part(text));
    std::iter::once(stream_head()).chain(parts).chain([stream_end()]).collect()
}

/// The event that names the role.
pub const ROLE: &str = "data: {\"id\":\"1\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";

/// The end marker.
pub const DONE: &str = "data: [DONE]\n\n";

/// One event with content.
pub fn token(text: &str) -> String {
    let delta = json!({"index": 0, "delta": {"content": text}});
    format!("data: {}\n\n", json!({"id": "1", "choices": [delta]}))
}

/// The event with nothing but usage.
pub fn usage(prompt: u64, completion: u64) -> String {
    let counts = json!({"prompt_tokens": prompt, "completion_tokens": completion});
    format!("data: {}\n\n", json!({"id": "1", "choices": [], "usage": counts}))
}

/// A small stream: role, a token, the end.
pub fn short_stream() -> Vec<Step> {
    stream(&[ROLE, &token("a"), DONE])
}

/// A small whole answer.
pub fn short_answer() -> Vec<Step> {
    let message = json!({"role": "assistant", "content": "a"});
    let body = json!({"id": "1", "choices": [{"index": 0, "message": message,
        "finish_reason": "stop"}], "usage": {"prompt_tokens": 1, "completion_tokens": 1}});
    vec![Step::Send(answer("200 OK", "", body.to_string().as_bytes()).into())]
}

/// A small answer in the form that was asked for.
pub fn short(asked: &Asked) -> Vec<Step> {
    if asked.json()["stream"] == true { short_stream() } else { short_answer() }
}
