//! The yardstick of the overhead bench: a reverse proxy that parses nothing, limits nothing and
//! logs nothing. What the gateway costs beyond it is the price of what the gateway does.

use std::convert::Infallible;
use std::time::Duration;

use http::uri::{Authority, Scheme};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::{Either, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use lifecycle::Lifecycle;
use tokio::net::TcpListener;

type ProxyBody = Either<Incoming, Empty<Bytes>>;

/// Options of the bare proxy.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Port on the loopback interface
    #[arg(long)]
    port: u16,
    /// Host and port that everything goes to
    #[arg(long)]
    upstream: Authority,
}

/// Serves until the process ends.
///
/// # Errors
/// When the listener breaks.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", args.port)).await?;
    let spawner = Lifecycle::new().spawner();
    let upstream = args.upstream;
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client: Client<HttpConnector, Incoming> = Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(Duration::from_secs(4))
        .build(connector);
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let (client, upstream) = (client.clone(), upstream.clone());
        let service = service_fn(move |request| forward(client.clone(), upstream.clone(), request));
        spawner.spawn("bare-proxy-connection", async move {
            // A connection that breaks concerns its client alone.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

async fn forward(
    client: Client<HttpConnector, Incoming>,
    upstream: Authority,
    mut request: Request<Incoming>,
) -> Result<Response<ProxyBody>, Infallible> {
    let mut parts = request.uri().clone().into_parts();
    parts.scheme = Some(Scheme::HTTP);
    parts.authority = Some(upstream);
    let answer = match Uri::from_parts(parts) {
        Ok(uri) => {
            *request.uri_mut() = uri;
            client.request(request).await.ok()
        }
        Err(_) => None,
    };
    Ok(answer.map_or_else(bad_gateway, |r| r.map(Either::Left)))
}

fn bad_gateway() -> Response<ProxyBody> {
    let mut response = Response::new(Either::Right(Empty::new()));
    *response.status_mut() = StatusCode::BAD_GATEWAY;
    response
}
