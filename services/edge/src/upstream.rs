//! The HTTP/1.1 client towards the engines.
//!
//! A connection has no task of its own: whoever waits for the answer drives it, first the
//! handler and then the response body. That saves two thread hops per chunk, lets the client's
//! back-pressure reach the engine's socket by itself, and makes "close the upstream at once"
//! the plain meaning of dropping the body.

mod body;
mod connect;
mod outgoing;
mod pace;
mod pieces;
mod pool;
mod upgrade;

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use domain::Moment;
use http::header::HOST;
use http::{Request, Response};
use hyper::body::Incoming;

pub(crate) use self::body::UpstreamBody;
use self::connect::{Connector, Live, drive};
pub(crate) use self::outgoing::{BodyFault, Outgoing, StreamedBody};
pub(crate) use self::pace::ClientPace;
pub(crate) use self::pieces::Pieces;
use self::pool::{Host, Hosts};
pub(crate) use self::upgrade::Switched;

/// Engines on uvicorn close an idle connection after 5 s; ours end before that.
const IDLE_LIMIT: Duration = Duration::from_millis(3500);
/// A reused connection that closes within this time without a byte of answer had been closed by
/// the engine before our request came. A later close is an engine that broke while it worked:
/// asking the same one again would only break it again.
const STALE_WINDOW: Duration = Duration::from_secs(1);

/// The pool of connections to all engines.
#[derive(Default)]
pub(crate) struct Upstream {
    connector: Connector,
    hosts: Hosts,
}

/// Why a request got no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    /// No connection could be made.
    #[error("no connection: {0}")]
    Connect(String),
    /// The connection broke before the answer's head was complete.
    #[error("the connection broke before an answer: {0}")]
    Broken(#[source] hyper::Error),
}

impl Upstream {
    /// Sends a request to the engine at `url` and waits for the head of its answer. An attempt to
    /// connect, TLS included, ends after `connect`.
    ///
    /// `make` builds the request, and is called again if it has to be sent again because the
    /// engine had closed a pooled connection: at most once after it may have been read.
    /// Dropping the future closes the connection.
    pub(crate) async fn send(
        &self,
        url: &Arc<str>,
        connect: Duration,
        mut make: impl FnMut() -> Request<Outgoing> + Send,
    ) -> Result<Response<UpstreamBody>, SendError> {
        let host = self.hosts.get(url).map_err(|e| SendError::Connect(e.to_string()))?;
        let mut fresh_only = false;
        loop {
            let pooled = if fresh_only { None } else { checkout(&host).await };
            let reused = pooled.is_some();
            let mut live = match pooled {
                Some(live) => live,
                None => self.connector.connect(host.uri(), connect).await?,
            };
            let mut request = make();
            request.headers_mut().insert(HOST, host.header().clone());
            live.io.reset();
            let sent_at = lifecycle::monotonic();
            match exchange(&mut live, request).await {
                Ok(response) => {
                    return Ok(response.map(|body| UpstreamBody::new(body, live, host)));
                }
                // Not a byte of it was written: the connection had closed in the pool.
                Err(failure) if failure.unsent && reused => {}
                Err(failure) => {
                    let stale = reused && !live.io.has_received() && is_recent(sent_at);
                    if fresh_only || !stale {
                        return Err(SendError::Broken(failure.error));
                    }
                    fresh_only = true;
                }
            }
        }
    }

    /// As [`send`](Self::send), for a request that can be sent once: on a new connection, which no
    /// engine can have closed, and `make` is called only when it is there.
    pub(crate) async fn send_once(
        &self,
        url: &Arc<str>,
        connect: Duration,
        make: impl FnOnce() -> Request<Outgoing> + Send,
    ) -> Result<Response<UpstreamBody>, SendError> {
        let host = self.hosts.get(url).map_err(|e| SendError::Connect(e.to_string()))?;
        let mut live = self.connector.connect(host.uri(), connect).await?;
        let mut request = make();
        request.headers_mut().insert(HOST, host.header().clone());
        live.io.reset();
        let answered = exchange(&mut live, request).await;
        let response = answered.map_err(|failure| SendError::Broken(failure.error))?;
        Ok(response.map(|body| UpstreamBody::new(body, live, host)))
    }

    /// Closes what has been idle for too long. To be called about once a second.
    pub(crate) fn close_idle(&self, now: Moment) {
        self.hosts.close_idle(now, IDLE_LIMIT);
    }
}

fn is_recent(sent_at: Moment) -> bool {
    lifecycle::monotonic() - sent_at < STALE_WINDOW
}

/// An idle connection that is still open as far as can be seen.
async fn checkout(host: &Arc<Host>) -> Option<Box<Live>> {
    poll_fn(|cx| {
        let now = lifecycle::monotonic();
        while let Some(mut live) = host.take_idle(now, IDLE_LIMIT) {
            // Polling reads the socket, so a close that has arrived is seen here.
            if live.drive(cx).is_pending() && live.sender.is_ready() {
                return Poll::Ready(Some(live));
            }
        }
        Poll::Ready(None)
    })
    .await
}

struct Failure {
    error: hyper::Error,
    /// Whether the request had not been begun.
    unsent: bool,
}

async fn exchange(
    live: &mut Live,
    request: Request<Outgoing>,
) -> Result<Response<Incoming>, Failure> {
    let mut answer = pin!(live.sender.try_send_request(request));
    poll_fn(|cx| {
        if let Poll::Ready(result) = answer.as_mut().poll(cx) {
            return Poll::Ready(result);
        }
        // The connection's own result is not needed: it tells the waiting request first.
        let _ = drive(&mut live.connection, cx);
        answer.as_mut().poll(cx)
    })
    .await
    .map_err(|mut e| {
        let unsent = e.take_message().is_some();
        Failure { error: e.into_error(), unsent }
    })
}
