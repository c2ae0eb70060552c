//! Connections that become something else than HTTP.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::{Request, StatusCode, response};
use http_body_util::{BodyExt, Limited};
use hyper::upgrade::Upgraded;
use tokio::time::timeout;

use super::{Outgoing, SendError, Upstream};

/// What is read of an engine's refusal: far more than one has.
const MAX_REFUSAL_BYTES: usize = 64 * 1024;
/// For such a refusal to come whole.
const REFUSAL_TIME: Duration = Duration::from_secs(10);

/// What an engine said to an upgrade.
pub(crate) enum Switched {
    /// It agreed: the head of its answer, and the connection.
    To(response::Parts, Upgraded),
    /// It answered something else.
    Refused(response::Parts, Bytes),
}

impl Upstream {
    /// Asks the engine at `url`, on a connection of its own, to switch protocols.
    pub(crate) async fn upgrade(
        &self,
        url: &Arc<str>,
        connect: Duration,
        mut request: Request<Outgoing>,
    ) -> Result<Switched, SendError> {
        let host = self.hosts.get(url).map_err(|e| SendError::Connect(e.to_string()))?;
        let mut live = self.connector.connect(host.uri(), connect).await?;
        request.headers_mut().insert(HOST, host.header().clone());
        let Some(connection) = live.connection.take() else {
            return Err(SendError::Connect("it closed at once".to_owned()));
        };
        let mut driver = Driver(Some(Box::pin(connection.with_upgrades())));
        let answered = driver.with(live.sender.send_request(request)).await;
        let mut response = answered.map_err(SendError::Broken)?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            let (head, body) = response.into_parts();
            let reading = timeout(REFUSAL_TIME, Limited::new(body, MAX_REFUSAL_BYTES).collect());
            let body = match driver.with(reading).await {
                Ok(Ok(body)) => body.to_bytes(),
                _ => Bytes::new(),
            };
            return Ok(Switched::Refused(head, body));
        }
        let switching = hyper::upgrade::on(&mut response);
        let io = driver.with(switching).await.map_err(SendError::Broken)?;
        Ok(Switched::To(response.into_parts().0, io))
    }
}

/// A connection that is driven by whoever waits for something of it.
struct Driver<C>(Option<Pin<Box<C>>>);

impl<C: Future> Driver<C> {
    async fn with<F: Future>(&mut self, work: F) -> F::Output {
        let mut work = pin!(work);
        poll_fn(|cx| {
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                return Poll::Ready(done);
            }
            if self.0.as_mut().is_some_and(|connection| connection.as_mut().poll(cx).is_ready()) {
                self.0 = None;
            }
            work.as_mut().poll(cx)
        })
        .await
    }
}
