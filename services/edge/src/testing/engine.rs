//! An engine over a raw socket that answers each request by a script.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use domain::BackendId;
use parking_lot::Mutex;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::eventually;

const LAST_CHUNK: &[u8] = b"\r\n0\r\n\r\n";

/// What an engine does with a request it has read.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Writes these bytes as they are.
    Send(Vec<u8>),
    /// Waits.
    Pause(Duration),
    /// Resets the connection.
    Reset,
    /// Ends the connection in good order.
    Close,
    /// Ends its own direction in good order, and reads until the other side closes as well.
    EndWrites,
    /// Reads until the other side closes.
    AwaitClose,
    /// Writes back what it reads until then.
    Echo,
}

pub(crate) struct Engine {
    id: BackendId,
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    _task: Abort,
}

#[derive(Default)]
struct State {
    scripts: VecDeque<Vec<Step>>,
    requests: Vec<Request>,
    /// Connections accepted, and those that have ended.
    accepted: usize,
    ended: usize,
    /// Requests whose scripts have not ended.
    working: usize,
}

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    head: String,
    pub(crate) body: Vec<u8>,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    pub(crate) fn line(&self) -> &str {
        self.head.lines().next().unwrap_or_default()
    }
}

struct Abort(tokio::task::AbortHandle);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Engine {
    /// Listens; each script answers one request, and the last one all that follow.
    pub(crate) async fn start(id: &str, scripts: Vec<Vec<Step>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State { scripts: scripts.into(), ..State::default() }));
        let task = spawn(accept(listener, Arc::clone(&state)));
        Self { id: BackendId::from(id), address, state, _task: Abort(task) }
    }

    /// An address where nothing listens.
    pub(crate) async fn refusing(id: &str) -> Self {
        let engine = Self::start(id, vec![vec![]]).await;
        engine._task.0.abort();
        eventually("the listener is still open", || engine._task.0.is_finished()).await;
        engine
    }

    pub(crate) fn id(&self) -> BackendId {
        self.id.clone()
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.state.lock().requests.clone()
    }

    /// Connections ever accepted.
    pub(crate) fn accepted(&self) -> usize {
        self.state.lock().accepted
    }

    /// Connections open now.
    pub(crate) fn open(&self) -> usize {
        let state = self.state.lock();
        state.accepted - state.ended
    }

    /// Requests that it is at work on.
    pub(crate) fn working(&self) -> usize {
        self.state.lock().working
    }

    /// Waits until so many requests have been read.
    pub(crate) async fn await_requests(&self, count: usize) {
        eventually("the engine was not asked", || self.state.lock().requests.len() >= count).await;
    }

    /// Waits until every connection has ended.
    pub(crate) async fn await_all_closed(&self) {
        self.await_all_closed_but(0).await;
    }

    /// Waits until only so many connections are open.
    pub(crate) async fn await_all_closed_but(&self, open: usize) {
        eventually("a connection to the engine is open", || self.open() == open).await;
    }
}

#[expect(clippy::disallowed_methods, reason = "an engine is no part of the process under test")]
fn spawn(future: impl Future<Output = ()> + Send + 'static) -> tokio::task::AbortHandle {
    tokio::spawn(future).abort_handle()
}

async fn accept(listener: TcpListener, state: Arc<Mutex<State>>) {
    while let Ok((stream, _)) = listener.accept().await {
        state.lock().accepted += 1;
        stream.set_nodelay(true).unwrap();
        let state = Arc::clone(&state);
        spawn(async move {
            serve(stream, &state).await;
            state.lock().ended += 1;
        });
    }
}

async fn serve(mut stream: TcpStream, state: &Mutex<State>) {
    while let Some(request) = read_request(&mut stream).await {
        let script = {
            let mut state = state.lock();
            state.requests.push(request);
            state.working += 1;
            match state.scripts.len() {
                1 => state.scripts.front().cloned(),
                _ => state.scripts.pop_front(),
            }
        };
        let goes_on = play(&mut stream, script.unwrap_or_default()).await;
        state.lock().working -= 1;
        if !goes_on {
            return;
        }
    }
}

/// Whether the connection serves on.
async fn play(stream: &mut TcpStream, script: Vec<Step>) -> bool {
    for step in script {
        match step {
            Step::Send(bytes) => {
                if stream.write_all(&bytes).await.is_err() {
                    return false;
                }
            }
            Step::Pause(time) => tokio::time::sleep(time).await,
            Step::Reset => {
                SockRef::from(&*stream).set_linger(Some(Duration::ZERO)).unwrap();
                return false;
            }
            Step::Close => return false,
            Step::Echo => {
                let (mut from, mut to) = stream.split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
                return false;
            }
            Step::EndWrites => {
                let _ = stream.shutdown().await;
                read_to_end(stream).await;
                return false;
            }
            Step::AwaitClose => {
                read_to_end(stream).await;
                return false;
            }
        }
    }
    true
}

async fn read_to_end(stream: &mut TcpStream) {
    let mut rest = [0; 1024];
    while stream.read(&mut rest).await.is_ok_and(|n| n > 0) {}
}

async fn read_request(stream: &mut TcpStream) -> Option<Request> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(end) = bytes.windows(4).position(|w| w == b"\r\n\r\n") {
            break end;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8_lossy(&bytes[..head_end]).into_owned();
    let mut request = Request { head, body: bytes.split_off(head_end + 4) };
    let length = request.header("content-length").and_then(|v| v.parse().ok()).unwrap_or(0);
    while request.body.len() < length {
        if stream.read_buf(&mut request.body).await.ok()? == 0 {
            return None;
        }
    }
    // Chunks stay as they came.
    let in_chunks = request.header("transfer-encoding") == Some("chunked");
    while in_chunks && !request.body.ends_with(LAST_CHUNK) {
        if stream.read_buf(&mut request.body).await.ok()? == 0 {
            return None;
        }
    }
    Some(request)
}

/// A whole answer with a length.
pub(crate) fn answer(status: &str, headers: &str, body: &str) -> Step {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n{headers}\r\n{body}");
    Step::Send(head.into_bytes())
}

/// The head of an event stream.
pub(crate) fn sse() -> Step {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
                x-engine: yes\r\ntransfer-encoding: chunked\r\n\r\n";
    Step::Send(head.as_bytes().to_vec())
}

/// Part of a stream, as one chunk.
pub(crate) fn event(text: &str) -> Step {
    part(text.as_bytes())
}

/// The same of bytes that are no text by themselves.
pub(crate) fn part(bytes: &[u8]) -> Step {
    Step::Send([format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat())
}

/// The end of a stream in chunks.
fn end() -> Step {
    Step::Send(b"0\r\n\r\n".to_vec())
}

/// A whole stream that ends in good order.
pub(crate) fn events(parts: &[&str]) -> Vec<Step> {
    std::iter::once(sse()).chain(parts.iter().map(|p| event(p))).chain([end()]).collect()
}
