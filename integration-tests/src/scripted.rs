//! An engine over a bare socket that answers inference requests byte for byte as it is told, and
//! probes like an engine that has no metrics.

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// One scripted engine. Dropping it closes everything.
pub struct ScriptedEngine {
    address: SocketAddr,
    next: Arc<Mutex<Arc<Script>>>,
    _tasks: JoinSet<()>,
}

/// The answer to every inference request from now on: pieces, each one write.
pub type Script = Vec<Vec<u8>>;

impl ScriptedEngine {
    /// Listens, and lists these models.
    ///
    /// # Panics
    /// There is no free port.
    pub async fn start(models: &[String]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound socket");
        let next = Arc::new(Mutex::new(Arc::new(Script::new())));
        let data: Vec<_> = models.iter().map(|m| json!({"id": m, "object": "model"})).collect();
        let listing = json!({"object": "list", "data": data}).to_string();
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, Arc::clone(&next), listing.into()));
        Self { address, next, _tasks: tasks }
    }

    /// Its base URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Sets what it answers.
    pub fn answer(&self, script: Script) {
        *self.next.lock() = Arc::new(script);
    }
}

async fn accept(listener: TcpListener, next: Arc<Mutex<Arc<Script>>>, listing: Arc<str>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        if stream.set_nodelay(true).is_ok() {
            connections.spawn(serve(stream, Arc::clone(&next), Arc::clone(&listing)));
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(mut stream: TcpStream, next: Arc<Mutex<Arc<Script>>>, listing: Arc<str>) {
    while let Some(head) = read_request(&mut stream).await {
        let sent = match head.as_str() {
            head if head.starts_with("POST ") => {
                let script = Arc::clone(&next.lock());
                write(&mut stream, &script).await
            }
            head if head.starts_with("GET /v1/models ") => {
                write(&mut stream, &[whole("200 OK", listing.as_bytes())]).await
            }
            head if head.starts_with("GET /health ") => {
                write(&mut stream, &[whole("200 OK", b"")]).await
            }
            _ => write(&mut stream, &[whole("404 Not Found", b"")]).await,
        };
        if sent.is_err() {
            return;
        }
    }
}

async fn write(stream: &mut TcpStream, pieces: &[Vec<u8>]) -> std::io::Result<()> {
    for piece in pieces {
        stream.write_all(piece).await?;
        // The other side may read what came so far before the rest follows.
        tokio::task::yield_now().await;
    }
    Ok(())
}

fn whole(status: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// Reads one request; its head.
async fn read_request(stream: &mut TcpStream) -> Option<String> {
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
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    });
    while bytes.len() < end + length.unwrap_or(0) {
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
    Some(head)
}

/// One piece of a chunked body.
pub fn chunk(bytes: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}
