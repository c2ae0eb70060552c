//! Client connections: accepting, bounding, cutting off those that stall, draining.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use domain::Moment;
use http::{Request, Version};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use lifecycle::{Acceptor, Drain, TaskSpawner};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::api;
use crate::gateway::Gateway;
use crate::response::Watchlist;
use crate::stall::{StallIo, StallLimit};

/// For a request's head to arrive, and for the next one on a kept connection. Load balancers
/// keep theirs for 60 s, and the side that closes first must be theirs.
const HEAD_TIMEOUT: Duration = Duration::from_secs(75);
/// Largest head of a request.
const HEAD_BYTES: usize = 64 * 1024;
/// Most headers of a request.
const HEADERS: usize = 128;
/// Requests open at once on one HTTP/2 connection.
const STREAMS: u32 = 256;
/// How often an HTTP/2 client is asked whether it is still there, and how long it may take.
const PING_INTERVAL: Duration = Duration::from_secs(20);
/// How often stalled HTTP/2 streams are looked for, in the time that they may stall.
const LOOKS_PER_STALL: u32 = 8;
/// Not more often than this, however short that time is.
const SHORTEST_LOOK: Duration = Duration::from_millis(1);

/// What the accept loop needs.
pub(crate) struct Server {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) spawner: TaskSpawner,
    pub(crate) max_connections: usize,
}

/// What a connection is told.
#[derive(Clone, Default)]
struct Signals {
    /// End with the answer it is in.
    stop: CancellationToken,
    /// End that answer now.
    cut: CancellationToken,
}

impl Server {
    /// Accepts until the drain's notice is over; connections then end with the answer they are
    /// in, as tasks of their own.
    pub(crate) async fn run(self, listener: TcpListener, drain: Drain) {
        let mut acceptor = Acceptor::new(listener, self.max_connections);
        let permits = Arc::clone(acceptor.permits());
        let signals = Signals::default();
        let mut over = pin!(self.notice_over(&drain));
        let limit = loop {
            let (stream, permit) = tokio::select! {
                biased;
                limit = &mut over => break limit,
                accepted = acceptor.next() => accepted,
            };
            let gateway = Arc::clone(&self.gateway);
            let serving = serve(gateway, self.spawner.clone(), stream, signals.clone(), permit);
            self.spawner.spawn("edge-connection", serving);
        };
        drop(acceptor);
        signals.stop.cancel();
        self.await_connections(&permits, &signals, limit).await;
    }

    /// Waits for the connections to end, and ends their answers when they take too long.
    async fn await_connections(
        &self,
        permits: &Semaphore,
        signals: &Signals,
        limit: Option<Duration>,
    ) {
        // Every connection holds a permit until it ends.
        let all = u32::try_from(self.max_connections).unwrap_or(u32::MAX);
        let ended = permits.acquire_many(all);
        let mut ended = pin!(ended);
        if let Some(limit) = limit {
            if tokio::time::timeout(limit, ended.as_mut()).await.is_ok() {
                return;
            }
            tracing::warn!("the drain takes too long; open answers are ended");
            self.gateway.cut.store(true, Ordering::Relaxed);
            signals.cut.cancel();
        }
        let _ = ended.await;
    }

    /// A load balancer needs a moment to see that the gateway drains; until then it still sends
    /// connections, which are served. Returns how long those may then still take.
    async fn notice_over(&self, drain: &Drain) -> Option<Duration> {
        drain.signaled().await;
        let access = self.gateway.access.current();
        let rules = access.rules();
        tokio::time::sleep(rules.drain_notice).await;
        rules.drain_limit.map(|limit| limit.saturating_sub(rules.drain_notice))
    }
}

async fn serve(
    gateway: Arc<Gateway>,
    spawner: TaskSpawner,
    stream: TcpStream,
    signals: Signals,
    permit: OwnedSemaphorePermit,
) {
    let gauge = gateway.families.connections.clone();
    gauge.inc();
    let seat = Arc::new(Seat { _permit: permit, _open: Open(gauge) });
    let access = gateway.access.current();
    let stall_limit = StallLimit::new(access.rules().timeouts.write_stall);
    drop(access);
    let io = TokioIo::new(StallIo::new(stream, stall_limit.clone()));
    let builder = builder(spawner);
    let watchlist = Watchlist::default();
    let activity = Activity::default();
    // One of its own: the requests of this connection wait for it, and no others with them.
    let cut = signals.cut.child_token();
    let service = service_fn(|mut request: Request<Incoming>| {
        request.extensions_mut().insert(Arc::clone(&seat));
        let open = activity.begin(request.version());
        let access = gateway.access.current();
        // A connection may be older than the rules that its newest request goes by.
        stall_limit.set(access.rules().timeouts.write_stall);
        let is_http_2 = request.version() == Version::HTTP_2;
        let (gateway, watchlist) = (Arc::clone(&gateway), watchlist.clone());
        let cut = is_http_2.then(|| cut.clone());
        async move {
            let answering = pin!(api::handle(gateway, access, request, watchlist));
            let answer = until_cut(answering, cut).await;
            drop(open);
            Ok::<_, Infallible>(answer)
        }
    });
    let mut connection = pin!(builder.serve_connection_with_upgrades(io, service).into_owned());
    let mut silent = pin!(tokio::time::sleep(HEAD_TIMEOUT));
    let until_look = || (stall_limit.get() / LOOKS_PER_STALL).max(SHORTEST_LOOK);
    let mut look = pin!(tokio::time::sleep(until_look()));
    let mut watching = true;
    let mut stopping = false;
    let mut cutting = false;
    loop {
        tokio::select! {
            // Errors here are the client's doing: it went away, or sent what is not HTTP.
            _ = connection.as_mut() => return,
            // The library's own limit begins with the first bytes; one that sends none, or too
            // few to tell its protocol, is cut off here.
            () = &mut silent, if watching => {
                watching = false;
                if !activity.has_begun() {
                    return;
                }
            }
            () = &mut look => {
                look.as_mut().reset(tokio::time::Instant::now() + until_look());
                let now = lifecycle::monotonic();
                watchlist.give_up_stalled(now, stall_limit.get());
                if activity.is_idle(now, watchlist.is_busy()) && !stopping {
                    stopping = true;
                    connection.as_mut().graceful_shutdown();
                }
            }
            () = signals.stop.cancelled(), if !stopping => {
                stopping = true;
                connection.as_mut().graceful_shutdown();
            }
            // Going round polls an HTTP/1.1 connection, and that its answer, which sees the cut.
            // Those of HTTP/2 are tasks of their own.
            () = cut.cancelled(), if !cutting => {
                cutting = true;
                watchlist.wake();
            }
        }
    }
}

/// An answer whose request is polled again when the cut comes, where nothing else would.
async fn until_cut<F: Future>(
    mut answering: Pin<&mut F>,
    cut: Option<CancellationToken>,
) -> F::Output {
    if let Some(cut) = cut {
        tokio::select! {
            biased;
            answer = answering.as_mut() => return answer,
            () = cut.cancelled() => {}
        }
    }
    answering.await
}

/// What a connection has been doing. HTTP/1.1 is closed by the library when no head comes; an
/// HTTP/2 client that answers pings would hold its place for ever.
#[derive(Clone, Default)]
struct Activity(Arc<State>);

#[derive(Default)]
struct State {
    begun: AtomicBool,
    is_http_2: AtomicBool,
    /// Requests without an answer yet.
    open: AtomicU32,
    /// When it was last seen with something to do, in nanoseconds.
    busy_at: AtomicU64,
}

/// A request without an answer yet.
struct Begun(Arc<State>);

impl Drop for Begun {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
        self.0.busy_at.store(lifecycle::monotonic().as_nanos(), Ordering::Relaxed);
    }
}

impl Activity {
    fn begin(&self, version: Version) -> Begun {
        self.0.begun.store(true, Ordering::Relaxed);
        self.0.is_http_2.store(version == Version::HTTP_2, Ordering::Relaxed);
        self.0.open.fetch_add(1, Ordering::Relaxed);
        Begun(Arc::clone(&self.0))
    }

    fn has_begun(&self) -> bool {
        self.0.begun.load(Ordering::Relaxed)
    }

    /// Whether an HTTP/2 connection has had nothing to do for longer than its client may take for
    /// the next request. Looked at every now and then.
    fn is_idle(&self, now: Moment, is_answering: bool) -> bool {
        if is_answering || self.0.open.load(Ordering::Relaxed) > 0 {
            self.0.busy_at.store(now.as_nanos(), Ordering::Relaxed);
            return false;
        }
        let busy_at = Moment::from_nanos(self.0.busy_at.load(Ordering::Relaxed));
        self.0.is_http_2.load(Ordering::Relaxed) && now - busy_at >= HEAD_TIMEOUT
    }
}

fn builder(spawner: TaskSpawner) -> auto::Builder<TaskSpawner> {
    let mut builder = auto::Builder::new(spawner);
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_headers(HEADERS)
        .max_buf_size(HEAD_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(HEAD_BYTES as u32)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_INTERVAL);
    builder
}

/// A connection as it counts: it may be more than HTTP, and live on when that has ended.
pub(crate) struct Seat {
    _permit: OwnedSemaphorePermit,
    _open: Open,
}

/// A connection in the gauge.
struct Open(prometheus::IntGauge);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.dec();
    }
}
