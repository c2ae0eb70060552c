//! A client over bare sockets: it sends a request, and tells when how many events came.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

/// What ends a body in chunks, and what must stand somewhere before it.
const LAST_CHUNK: &[u8] = b"\r\n0\r\n\r\n";
const DONE: &[u8] = b"data: [DONE]\n\n";
/// Bytes of what came that are looked at again: the end of a stream.
const TAIL: usize = 64;
const READ_BYTES: usize = 64 << 10;

/// Where requests go.
#[derive(Clone, Debug)]
pub(super) struct Target {
    address: SocketAddr,
    key: String,
}

impl Target {
    pub(super) fn new(port: u16, key: &str) -> Self {
        Self { address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)), key: key.to_owned() }
    }

    pub(super) async fn connect(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// The head of a request with a body of so many bytes.
    pub(super) fn head(&self, method: &str, path: &str, length: usize) -> String {
        format!(
            "{method} {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {}\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n",
            self.key
        )
    }

    /// Sends a request and reads the head of its answer.
    ///
    /// # Errors
    /// The connection broke, or the answer is none.
    pub(super) async fn post(&self, path: &str, body: &str) -> io::Result<Answer> {
        let mut stream = self.connect().await?;
        stream.write_all(self.head("POST", path, body.len()).as_bytes()).await?;
        stream.write_all(body.as_bytes()).await?;
        Answer::read(stream).await
    }

    /// A chat that streams.
    pub(super) async fn chat(&self, body: &str) -> io::Result<Answer> {
        self.post("/v1/chat/completions", body).await
    }

    /// All that a GET brings until the connection closes.
    pub(super) async fn get(&self, path: &str) -> io::Result<String> {
        let mut stream = self.connect().await?;
        let head = self.head("GET", path, 0).replace("host:", "connection: close\r\nhost:");
        stream.write_all(head.as_bytes()).await?;
        let mut text = Vec::new();
        stream.read_to_end(&mut text).await?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

/// An answer whose head has come.
pub(super) struct Answer {
    stream: TcpStream,
    pub(super) status: u16,
    /// Of the body what came with the head.
    rest: Vec<u8>,
}

/// What came of a stream.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Came {
    pub(super) events: u64,
    /// With the framing of chunks.
    pub(super) bytes: u64,
    /// It ended with its end marker.
    pub(super) whole: bool,
}

impl Answer {
    /// # Errors
    /// The connection broke, or what came is no HTTP.
    pub(super) async fn read(mut stream: TcpStream) -> io::Result<Self> {
        let mut buffer = Vec::with_capacity(READ_BYTES);
        let end = loop {
            if let Some(end) = buffer.windows(4).position(|w| w == b"\r\n\r\n") {
                break end + 4;
            }
            if stream.read_buf(&mut buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        };
        let rest = buffer.split_off(end);
        let status =
            std::str::from_utf8(&buffer).ok().and_then(|head| head.get(9..12)?.parse().ok());
        let status = status.ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { stream, status, rest })
    }

    /// Reads to the end; `seen` is told of every read that brought events, and when.
    ///
    /// # Errors
    /// The connection broke.
    pub(super) async fn events(self, mut seen: impl FnMut(Instant, u64)) -> io::Result<Came> {
        let Self { mut stream, rest, .. } = self;
        let (mut came, mut follow) = (Came::default(), Follow::default());
        let mut buffer = rest;
        loop {
            let events = follow.feed(&buffer);
            came.bytes += buffer.len() as u64;
            if events > 0 {
                came.events += events;
                seen(Instant::now(), events);
            }
            if follow.tail.ends_with(LAST_CHUNK) {
                came.whole = contains(&follow.tail, DONE);
                return Ok(came);
            }
            buffer.clear();
            buffer.reserve(READ_BYTES);
            if stream.read_buf(&mut buffer).await? == 0 {
                return Ok(came);
            }
        }
    }

    /// Reads to the end and no faster than that; `each` is called between reads.
    ///
    /// # Errors
    /// The connection broke, or what is called says so.
    pub(super) async fn slowly(
        self,
        bytes_per_second: f64,
        mut each: impl FnMut() -> anyhow::Result<()>,
    ) -> anyhow::Result<Came> {
        let Self { mut stream, rest, .. } = self;
        let (mut came, mut follow) = (Came::default(), Follow::default());
        let (begin, mut buffer) = (Instant::now(), rest);
        loop {
            came.events += follow.feed(&buffer);
            came.bytes += buffer.len() as u64;
            if follow.tail.ends_with(LAST_CHUNK) {
                came.whole = contains(&follow.tail, DONE);
                return Ok(came);
            }
            each()?;
            let due = std::time::Duration::from_secs_f64(came.bytes as f64 / bytes_per_second);
            tokio::time::sleep_until(begin + due).await;
            buffer.clear();
            buffer.reserve(READ_BYTES);
            if stream.read_buf(&mut buffer).await? == 0 {
                return Ok(came);
            }
        }
    }
}

/// Counts the ends of events over the borders of reads, and keeps the end of what came.
#[derive(Default)]
struct Follow {
    tail: Vec<u8>,
}

impl Follow {
    fn feed(&mut self, bytes: &[u8]) -> u64 {
        let split = self.tail.last() == Some(&b'\n') && bytes.first() == Some(&b'\n');
        let ends = memchr::memmem::find_iter(bytes, b"\n\n").count() as u64;
        let kept = bytes.len().min(TAIL);
        self.tail.extend_from_slice(&bytes[bytes.len() - kept..]);
        let over = self.tail.len().saturating_sub(TAIL);
        self.tail.drain(..over);
        ends + u64::from(split)
    }
}

fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    memchr::memmem::find(bytes, wanted).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_counted_wherever_reads_end() {
        let stream = b"5\r\na\n\nb\n\nc\n\r\n1\r\n\n\r\n".to_vec();
        let whole = Follow::default().feed(&stream);
        assert_eq!(whole, 3, "an end that chunks cut in two is one as well");
        for cut in 0..stream.len() {
            let mut follow = Follow::default();
            let counted = follow.feed(&stream[..cut]) + follow.feed(&stream[cut..]);
            assert_eq!(counted, whole, "cut at {cut}");
        }
    }
}
