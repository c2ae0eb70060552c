//! The fault matrix: whatever an engine or a client does wrong, streaming or not, in every
//! dialect, with another engine at hand and without.
//!
//! [`cells`] are the faults as data, [`invariants`] what holds whatever happens. A cell says only
//! what its client must see in the end. The clock stands still while anything moves, so a time here
//! is one of limits that are waited for.

mod cells;
mod dialects;
mod invariants;

use std::collections::HashSet;
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

use self::cells::{Act, Cell, Conduct, End, Fault, When, cells};
use self::dialects::{CHAT, Dialect, MESSAGES, RESPONSES};
use self::invariants::{Heard, Said, check};
use crate::testing::*;

/// What a reader that is slow takes at once, and then waits for.
const SIP: (usize, Duration) = (64 * 1024, Duration::from_millis(5));

/// Long enough for what an engine has sent to be read.
const MOMENT: Duration = Duration::from_millis(20);

/// One cell in one dialect, as it is played.
struct Play<'a> {
    cell: &'a Cell,
    dialect: &'a Dialect,
    bed: Bed,
    /// The engine that is asked first, and breaks.
    engine: Engine,
    /// Another one.
    other: Option<Engine>,
    /// What the first one says.
    said: Said,
    /// Request bodies that can be held at once, before any was.
    body_memory: usize,
}

impl<'a> Play<'a> {
    async fn set(cell: &'a Cell, dialect: &'a Dialect, with_other: bool) -> Self {
        let good = dialect.good(cell.stream);
        let (engine, said) = match cell.engine {
            Act::Refuses => (Engine::refusing("a").await, Said::default()),
            Act::Does(script) => {
                let script = script(dialect);
                let said = Said::by(&script);
                (Engine::start("a", vec![script, good.clone()]).await, said)
            }
        };
        let other = match with_other {
            true => Some(Engine::start("b", vec![good]).await),
            false => None,
        };
        let engines: Vec<&Engine> = std::iter::once(&engine).chain(&other).collect();
        let bed = Bed::start(&engines).await;
        let body_memory = bed.gateway.body_memory.available_permits();
        Self { cell, dialect, bed, engine, other, said, body_memory }
    }

    /// How it must end here.
    fn end(&self) -> End {
        match self.cell.end {
            End::Mended(_) if self.other.is_some() => End::Elsewhere,
            End::Mended(alone) => *alone,
            end => end,
        }
    }

    /// Acts as the client, until it has seen the end or leaves.
    async fn act(&self) -> Heard {
        let body = self.dialect.body(self.cell.stream);
        let request = request_bytes("POST", self.dialect.path, "connection: close\r\n", body);
        let mut stream = TcpStream::connect(self.bed.client.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let leaves_early = matches!(self.cell.client, Conduct::Leaves { when: When::Sending, .. });
        let sent = if leaves_early { request.len() - body.len() / 2 } else { request.len() };
        stream.write_all(&request[..sent]).await.unwrap();
        match self.cell.client {
            Conduct::Reads => Heard::all(read_to_end(&mut stream, false).await),
            Conduct::ReadsSlowly => Heard::all(read_to_end(&mut stream, true).await),
            Conduct::Stops => {
                self.stall().await;
                Heard::nothing(Some(stream))
            }
            Conduct::Leaves { when, reset } => {
                self.await_phase(when, &mut stream).await;
                if reset {
                    SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
                }
                Heard::nothing(None)
            }
        }
    }

    /// Reads nothing until just before that is taken for good.
    async fn stall(&self) {
        self.engine.await_requests(1).await;
        let limit = self.bed.gateway.access.current().rules().timeouts.write_stall;
        tokio::time::sleep(limit - invariants::SOON / 2).await;
        assert_eq!(self.engine.working(), 1, "{}: given up before its time", self.cell.name);
        tokio::time::sleep(invariants::SOON / 2).await;
    }

    async fn await_phase(&self, when: When, stream: &mut TcpStream) {
        let until = match when {
            When::Sending => {
                let families = &self.bed.gateway.families;
                eventually("the request was not seen", || families.in_flight.get() == 1).await;
                return;
            }
            When::Asked => {
                self.engine.await_requests(1).await;
                return tokio::time::sleep(MOMENT).await;
            }
            When::Heard(until) => until(self.dialect),
        };
        let mut seen = Vec::new();
        while memchr::memmem::find(&seen, until.as_bytes()).is_none() {
            let read = stream.read_buf(&mut seen).await.unwrap_or(0);
            assert!(read > 0, "{}: ended after {seen:?}", self.cell.name);
        }
    }
}

/// Everything until the connection ends, however it does.
async fn read_to_end(stream: &mut TcpStream, slowly: bool) -> Vec<u8> {
    let (mut all, mut sip) = (Vec::new(), vec![0; SIP.0]);
    while let Ok(read @ 1..) = stream.read(&mut sip).await {
        all.extend_from_slice(&sip[..read]);
        if slowly {
            tokio::time::sleep(SIP.1).await;
        }
    }
    all
}

async fn play_all(dialect: &Dialect, stream: bool) {
    for cell in cells().iter().filter(|cell| cell.stream == stream) {
        for with_other in [true, false] {
            let play = Play::set(cell, dialect, with_other).await;
            let heard = play.act().await;
            check(&play, heard, Instant::now()).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn every_fault_of_a_chat_that_streams() {
    play_all(&CHAT, true).await;
}

#[tokio::test(start_paused = true)]
async fn every_fault_of_a_chat_in_one_piece() {
    play_all(&CHAT, false).await;
}

#[tokio::test(start_paused = true)]
async fn every_fault_of_a_message_that_streams() {
    play_all(&MESSAGES, true).await;
}

#[tokio::test(start_paused = true)]
async fn every_fault_of_a_message_in_one_piece() {
    play_all(&MESSAGES, false).await;
}

#[tokio::test(start_paused = true)]
async fn every_fault_of_a_response_that_streams() {
    play_all(&RESPONSES, true).await;
}

#[tokio::test(start_paused = true)]
async fn every_fault_of_a_response_in_one_piece() {
    play_all(&RESPONSES, false).await;
}

#[test]
fn the_matrix_has_every_fault_with_and_without_a_stream() {
    let cells = cells();
    let there: HashSet<_> = cells.iter().map(|cell| (cell.fault, cell.stream)).collect();
    for fault in Fault::ALL {
        assert!(there.contains(&(fault, true)), "{fault:?} in a stream");
        assert!(there.contains(&(fault, false)), "{fault:?} of an answer in one piece");
    }
    let name = |cell: &Cell| (cell.fault, cell.stream, cell.name.clone());
    assert_eq!(cells.iter().map(name).collect::<HashSet<_>>().len(), cells.len());
}
