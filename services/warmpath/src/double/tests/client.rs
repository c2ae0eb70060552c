//! A client that tells how a response ended, which the usual ones hide.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// No answer of a test takes longer.
const LIMIT: Duration = Duration::from_secs(20);

/// How a response ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// By its own framing.
    Complete,
    /// With a FIN before it was complete.
    Fin,
    /// With a RST.
    Reset,
}

/// What came back.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    /// 0 if there was no head.
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    /// Without the chunk framing.
    pub(super) body: Vec<u8>,
    pub(super) end: End,
}

impl Reply {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("UTF-8")
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("a JSON body")
    }

    /// The data of each event.
    pub(super) fn events(&self) -> Vec<String> {
        let text = self.text();
        text.lines().filter_map(|line| line.strip_prefix("data: ")).map(str::to_owned).collect()
    }

    /// The text of all content events.
    pub(super) fn content(&self) -> String {
        let parsed = self.events().into_iter().filter_map(|e| serde_json::from_str(&e).ok());
        let text = |event: Value| {
            let choice = &event["choices"][0];
            let text = choice["delta"]["content"].as_str().or(choice["text"].as_str());
            text.unwrap_or_default().to_owned()
        };
        parsed.map(text).collect()
    }
}

/// One connection.
pub(super) struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Client {
    pub(super) async fn connect(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).await.expect("a double that listens");
        Self { stream, buffer: Vec::new() }
    }

    pub(super) async fn get(&mut self, path: &str) -> Reply {
        self.send("GET", path, "").await;
        self.read().await
    }

    pub(super) async fn post(&mut self, path: &str, body: &str) -> Reply {
        self.send("POST", path, body).await;
        self.read().await
    }

    /// As [`post`](Self::post), with more lines in the head, each with its end.
    pub(super) async fn post_with(&mut self, path: &str, headers: &str, body: &str) -> Reply {
        self.send_with("POST", path, headers, body).await;
        self.read().await
    }

    pub(super) async fn send(&mut self, method: &str, path: &str, body: &str) {
        self.send_with(method, path, "", body).await;
    }

    async fn send_with(&mut self, method: &str, path: &str, headers: &str, body: &str) {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: double\r\ncontent-type: application/json\r\n\
             {headers}content-length: {}\r\n\r\n{body}",
            body.len()
        );
        self.stream.write_all(request.as_bytes()).await.expect("an open connection");
    }

    /// Sends bytes as they are.
    pub(super) async fn send_raw(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.expect("an open connection");
    }

    /// Reads one response to its end, whatever that is.
    pub(super) async fn read(&mut self) -> Reply {
        tokio::time::timeout(LIMIT, self.read_response()).await.expect("an answer in time")
    }

    /// Waits for the other side to close; how it did.
    pub(super) async fn closed(&mut self) -> End {
        loop {
            let more = tokio::time::timeout(LIMIT, self.fill()).await.expect("an end in time");
            if let Err(end) = more {
                return end;
            }
        }
    }

    /// Bytes received of the current response so far, once there are `count` of `pattern`.
    pub(super) async fn read_until(&mut self, pattern: &str, count: usize) -> String {
        let wait = async {
            loop {
                let text = String::from_utf8_lossy(&self.buffer).into_owned();
                if text.matches(pattern).count() >= count {
                    return text;
                }
                self.fill().await.expect("more bytes");
            }
        };
        tokio::time::timeout(LIMIT, wait).await.expect("the bytes in time")
    }

    async fn fill(&mut self) -> Result<(), End> {
        self.buffer.reserve(64 << 10);
        match self.stream.read_buf(&mut self.buffer).await {
            Ok(0) => Err(End::Fin),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Err(End::Reset),
            Err(error) => panic!("{error}"),
        }
    }

    async fn read_response(&mut self) -> Reply {
        let mut reply =
            Reply { status: 0, headers: Vec::new(), body: Vec::new(), end: End::Complete };
        let head = loop {
            if let Some(end) = self.buffer.windows(4).position(|w| w == b"\r\n\r\n") {
                break self.buffer.drain(..end + 4).collect::<Vec<u8>>();
            }
            if let Err(end) = self.fill().await {
                reply.end = end;
                return reply;
            }
        };
        let head = String::from_utf8(head).expect("a head in ASCII");
        let mut lines = head.split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
        reply.status = status.expect("a status");
        let split = |line: &str| line.split_once(": ").map(|(n, v)| (n.to_owned(), v.to_owned()));
        reply.headers = lines.filter_map(split).collect();
        match reply.header("content-length").map(|length| length.parse().expect("a length")) {
            Some(length) => self.read_sized(&mut reply, length).await,
            None => self.read_chunks(&mut reply).await,
        }
        reply
    }

    async fn read_sized(&mut self, reply: &mut Reply, length: usize) {
        while self.buffer.len() < length {
            if let Err(end) = self.fill().await {
                reply.end = end;
                break;
            }
        }
        let there = self.buffer.len().min(length);
        reply.body = self.buffer.drain(..there).collect();
    }

    async fn read_chunks(&mut self, reply: &mut Reply) {
        loop {
            let size_end = self.buffer.windows(2).position(|w| w == b"\r\n");
            let size = size_end.map(|end| {
                let size = std::str::from_utf8(&self.buffer[..end]).expect("a chunk size");
                (end + 2, usize::from_str_radix(size, 16).expect("a chunk size"))
            });
            if let Some((start, size)) = size.filter(|(s, size)| self.buffer.len() >= s + size + 2)
            {
                reply.body.extend_from_slice(&self.buffer[start..start + size]);
                self.buffer.drain(..start + size + 2);
                if size == 0 {
                    return;
                }
                continue;
            }
            if let Err(end) = self.fill().await {
                reply.end = end;
                return;
            }
        }
    }
}
