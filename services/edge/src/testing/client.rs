//! A client over a raw socket.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) address: SocketAddr,
}

/// An answer as it came.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    head: String,
    /// Without the framing.
    pub(crate) body: Vec<u8>,
    /// Whether the body came to the end that its framing says.
    pub(crate) whole: bool,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The answer in all that came over a connection that has ended; `None` if not even its head
    /// is there. It is whole only if nothing comes after its end.
    pub(crate) fn of(bytes: &[u8]) -> Option<Self> {
        let (head, rest) = bytes.split_at_checked(memchr::memmem::find(bytes, b"\r\n\r\n")? + 4)?;
        let head = String::from_utf8_lossy(head).into_owned();
        let status = head.split(' ').nth(1)?.parse().ok()?;
        let mut reply = Reply { status, head, body: Vec::new(), whole: false };
        let length = reply.header("content-length").map(|length| length.parse().ok());
        (reply.body, reply.whole) = match length {
            Some(length) => (rest.to_vec(), length == Some(rest.len())),
            None => match dechunked(rest) {
                Ok(body) => (body, rest.ends_with(b"\r\n0\r\n\r\n") || rest == b"0\r\n\r\n"),
                Err(part) => (part, false),
            },
        };
        Some(reply)
    }
}

impl Client {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self { address }
    }

    /// Sends a chat request on a connection of its own and reads all of the answer.
    pub(crate) async fn chat(&self, body: &str) -> Reply {
        self.post("/v1/chat/completions", "", body).await
    }

    pub(crate) async fn post(&self, path: &str, headers: &str, body: &str) -> Reply {
        self.request("POST", path, headers, body).await
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.request("GET", path, "", "").await
    }

    pub(crate) async fn request(
        &self,
        method: &str,
        path: &str,
        headers: &str,
        body: &str,
    ) -> Reply {
        let mut stream = self.send(method, path, headers, body).await;
        read_reply(&mut stream, method).await
    }

    /// Sends a request and leaves the answer unread.
    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &str,
        body: &str,
    ) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        stream.write_all(&request_bytes(method, path, headers, body)).await.unwrap();
        stream
    }
}

pub(crate) fn request_bytes(method: &str, path: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n{headers}\r\n{body}"
    )
    .into_bytes()
}

/// Reads one answer.
pub(crate) async fn read_reply(stream: &mut TcpStream, method: &str) -> Reply {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(end) = bytes.windows(4).position(|w| w == b"\r\n\r\n") {
            break end;
        }
        let read = stream.read_buf(&mut bytes).await.unwrap_or(0);
        assert!(read > 0, "no answer; got {:?}", String::from_utf8_lossy(&bytes));
    };
    let head = String::from_utf8_lossy(&bytes[..head_end]).into_owned();
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap();
    let rest = bytes.split_off(head_end + 4);
    let mut reply = Reply { status, head, body: rest, whole: false };
    let chunked = reply.header("transfer-encoding") == Some("chunked");
    let length: Option<usize> = reply.header("content-length").and_then(|v| v.parse().ok());
    let mut raw = std::mem::take(&mut reply.body);
    loop {
        let whole = match length {
            _ if method == "HEAD" => Some(Vec::new()),
            Some(length) => (raw.len() >= length).then(|| raw.clone()),
            None if chunked => dechunked(&raw).ok(),
            None => None,
        };
        if let Some(body) = whole {
            return Reply { body, whole: true, ..reply };
        }
        if stream.read_buf(&mut raw).await.unwrap_or(0) == 0 {
            let body = if chunked { dechunked(&raw).unwrap_or_else(|part| part) } else { raw };
            return Reply { body, ..reply };
        }
    }
}

/// The content of a chunked body; an error holds what came of an unfinished one.
fn dechunked(mut raw: &[u8]) -> Result<Vec<u8>, Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let Some(end) = raw.windows(2).position(|w| w == b"\r\n") else { return Err(body) };
        let size = std::str::from_utf8(&raw[..end]).ok();
        let Some(size) = size.and_then(|s| usize::from_str_radix(s, 16).ok()) else {
            return Err(body);
        };
        if size == 0 {
            return Ok(body);
        }
        raw = &raw[end + 2..];
        if raw.len() < size + 2 {
            body.extend_from_slice(&raw[..raw.len().min(size)]);
            return Err(body);
        }
        body.extend_from_slice(&raw[..size]);
        raw = &raw[size + 2..];
    }
}
