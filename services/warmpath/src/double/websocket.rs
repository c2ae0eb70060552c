//! The server's end of a WebSocket (RFC 6455), as much of it as a text protocol needs.

use std::io;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// What section 1.3 of the RFC appends to the client's key.
const SUFFIX: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// The longest message that is read: a bound, as everything has one.
const MAX_MESSAGE_BYTES: usize = 16 << 20;

const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// The answer to a client's key.
pub(crate) fn accept(key: &str) -> String {
    let digest = ring::digest::digest(
        &ring::digest::SHA1_FOR_LEGACY_USE_ONLY,
        (key.to_owned() + SUFFIX).as_bytes(),
    );
    STANDARD.encode(digest)
}

/// An open session.
#[derive(Debug)]
pub(crate) struct WebSocket<S> {
    io: S,
    buffer: BytesMut,
}

/// A frame as it came, unmasked.
struct Frame {
    last: bool,
    opcode: u8,
    payload: BytesMut,
}

impl<S: AsyncRead + AsyncWrite + Unpin> WebSocket<S> {
    pub(crate) fn new(io: S) -> Self {
        Self { io, buffer: BytesMut::new() }
    }

    /// The next message; `None` when the client has closed. Pings are answered on the way.
    ///
    /// # Errors
    /// The connection broke, or what came is no WebSocket.
    pub(crate) async fn next(&mut self) -> io::Result<Option<String>> {
        let mut message = Vec::new();
        loop {
            let Some(frame) = self.frame().await? else { return Ok(None) };
            match frame.opcode {
                CLOSE => {
                    self.send(CLOSE, &frame.payload).await?;
                    return Ok(None);
                }
                PING => self.send(PONG, &frame.payload).await?,
                CONTINUATION | TEXT | BINARY => {
                    message.extend_from_slice(&frame.payload);
                    if message.len() > MAX_MESSAGE_BYTES {
                        return Err(invalid("a message that is too long"));
                    }
                    if frame.last {
                        let text = String::from_utf8(message);
                        return text.map(Some).map_err(|_| invalid("a text that is not UTF-8"));
                    }
                }
                _ => {}
            }
        }
    }

    /// Sends a text.
    ///
    /// # Errors
    /// The connection broke.
    pub(crate) async fn text(&mut self, text: &str) -> io::Result<()> {
        self.send(TEXT, text.as_bytes()).await
    }

    async fn send(&mut self, opcode: u8, payload: &[u8]) -> io::Result<()> {
        let mut frame = vec![0x80 | opcode];
        match payload.len() {
            short @ 0..126 => frame.push(short as u8),
            long @ 126..0x1_0000 => {
                frame.push(126);
                frame.extend_from_slice(&(long as u16).to_be_bytes());
            }
            longest => {
                frame.push(127);
                frame.extend_from_slice(&(longest as u64).to_be_bytes());
            }
        }
        frame.extend_from_slice(payload);
        self.io.write_all(&frame).await?;
        self.io.flush().await
    }

    async fn frame(&mut self) -> io::Result<Option<Frame>> {
        if !self.fill(2).await? {
            return Ok(None);
        }
        let (first, second) = (self.buffer[0], self.buffer[1]);
        if second & 0x80 == 0 {
            return Err(invalid("a client's frame that is not masked"));
        }
        let extended = match second & 0x7f {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        if !self.fill(2 + extended + 4).await? {
            return Ok(None);
        }
        self.buffer.advance(2);
        let length = match extended {
            0 => u64::from(second & 0x7f),
            _ => self.buffer.get_uint(extended),
        };
        let length = usize::try_from(length).ok().filter(|length| *length <= MAX_MESSAGE_BYTES);
        let length = length.ok_or_else(|| invalid("a frame that is too long"))?;
        let mask = self.buffer.get_u32().to_be_bytes();
        if !self.fill(length).await? {
            return Ok(None);
        }
        let mut payload = self.buffer.split_to(length);
        for (place, byte) in payload.iter_mut().enumerate() {
            *byte ^= mask[place % 4];
        }
        Ok(Some(Frame { last: first & 0x80 != 0, opcode: first & 0x0f, payload }))
    }

    /// Reads until there are `wanted` bytes; whether there are.
    async fn fill(&mut self, wanted: usize) -> io::Result<bool> {
        while self.buffer.len() < wanted {
            self.buffer.reserve(wanted - self.buffer.len());
            if self.io.read_buf(&mut self.buffer).await? == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_to_a_key_is_that_of_the_rfc() {
        assert_eq!(accept("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[tokio::test]
    async fn pieces_are_put_together_and_pings_answered_between_them() {
        let (client, server) = tokio::io::duplex(1 << 20);
        let (mut read, mut write) = tokio::io::split(client);
        let long = "x".repeat(70_000);
        let mut frames = vec![0x01, 0x80 | 3, 1, 2, 3, 4, b'a' ^ 1, b'b' ^ 2, b'c' ^ 3];
        frames.extend([0x89, 0x80 | 1, 0, 0, 0, 0, b'?']);
        frames.extend([0x80, 0x80 | 127]);
        frames.extend(70_000u64.to_be_bytes());
        frames.extend([0; 4]);
        frames.extend(long.as_bytes());
        write.write_all(&frames).await.expect("room");
        let mut socket = WebSocket::new(server);
        let message = socket.next().await.expect("a message");
        assert_eq!(message, Some("abc".to_owned() + &long));
        let mut pong = [0; 3];
        read.read_exact(&mut pong).await.expect("a pong");
        assert_eq!(pong, [0x8a, 1, b'?']);
        write.write_all(&[0x88, 0x80, 0, 0, 0, 0]).await.expect("room");
        assert_eq!(socket.next().await.expect("an end"), None);
    }

    #[tokio::test]
    async fn what_no_client_may_send_is_an_error() {
        for frame in [&[0x81, 1, b'a'][..], &[0x81, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]] {
            let (mut client, server) = tokio::io::duplex(1 << 10);
            client.write_all(frame).await.expect("room");
            assert!(WebSocket::new(server).next().await.is_err(), "{frame:?}");
        }
    }
}
