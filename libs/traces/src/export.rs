//! From requests to the collector.

use std::time::Duration;

use opentelemetry_otlp::{SpanExporter as Otlp, WithExportConfig, WithTonicConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use prometheus::{IntCounter, IntCounterVec, Opts, Registry};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use crate::Error;
use crate::config::Config;

/// Spans that may wait: some seconds' worth of a busy edge, a few megabytes.
const MOST_WAITING: usize = 8192;
/// Spans that are sent at once.
const BATCH: usize = 512;
/// How long they are gathered.
const GATHER: Duration = Duration::from_secs(1);
/// How long a batch may take.
const EXPORT_LIMIT: Duration = Duration::from_secs(5);
/// After a batch that failed the next waits so long, and twice as long each time, up to this.
const PAUSE: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];

/// What became of spans.
#[derive(Clone, Debug)]
pub struct Metrics {
    exported: IntCounter,
    failed: IntCounter,
    dropped: IntCounter,
}

impl Metrics {
    /// Registers the family of this name.
    ///
    /// # Errors
    /// The name is taken.
    pub fn register(registry: &Registry, name: &str) -> Result<Self, prometheus::Error> {
        let help = "Spans by what became of them: exported, failed, dropped.";
        let spans = IntCounterVec::new(Opts::new(name, help), &["outcome"])?;
        registry.register(Box::new(spans.clone()))?;
        let outcome = |name| spans.with_label_values(&[name]);
        Ok(Self {
            exported: outcome("exported"),
            failed: outcome("failed"),
            dropped: outcome("dropped"),
        })
    }
}

/// Where requests hand their spans over.
#[derive(Debug)]
pub(crate) struct Inlet {
    queue: mpsc::Sender<SpanData>,
    dropped: IntCounter,
}

impl Inlet {
    /// Never waits: what finds no room is dropped.
    pub(crate) fn push(&self, span: SpanData) {
        if self.queue.try_send(span).is_err() {
            self.dropped.inc();
        }
    }
}

/// The task that sends spans.
#[derive(Debug)]
pub struct Exporter {
    queue: mpsc::Receiver<SpanData>,
    otlp: Otlp,
    metrics: Metrics,
}

impl Exporter {
    pub(crate) fn new(
        config: &Config,
        (service, version): (&'static str, &'static str),
        metrics: Metrics,
    ) -> Result<(Inlet, Self), Error> {
        let mut otlp = Otlp::builder()
            .with_tonic()
            .with_channel(config.endpoint.clone().timeout(EXPORT_LIMIT).connect_lazy())
            .with_timeout(EXPORT_LIMIT)
            .build()
            .map_err(|e| Error::Exporter(e.to_string()))?;
        let version = opentelemetry::KeyValue::new("service.version", version);
        let resource =
            Resource::builder_empty().with_service_name(service).with_attribute(version).build();
        otlp.set_resource(&resource);
        let (sender, queue) = mpsc::channel(MOST_WAITING);
        let inlet = Inlet { queue: sender, dropped: metrics.dropped.clone() };
        Ok((inlet, Self { queue, otlp, metrics }))
    }

    /// Sends what comes until `stop`, then once more what is there.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        let mut stop = std::pin::pin!(stop);
        let (mut batch, mut pause) = (Vec::with_capacity(BATCH), None);
        loop {
            tokio::select! {
                biased;
                () = &mut stop => break,
                () = self.gather(&mut batch, &mut pause) => {}
            }
            pause = self.send(&mut batch, pause).await;
        }
        self.queue.close();
        while self.queue.try_recv().map(|span| batch.push(span)).is_ok() {}
        if !batch.is_empty() {
            self.send(&mut batch, None).await;
        }
    }

    /// Waits for spans, and then a moment for more. Loses none if it is dropped.
    async fn gather(&mut self, batch: &mut Vec<SpanData>, pause: &mut Option<Duration>) {
        if let Some(time) = *pause {
            sleep(time).await;
        }
        if batch.is_empty() && self.queue.recv_many(batch, BATCH).await == 0 {
            // Nobody can hand over any more; what is left to do is to be stopped.
            std::future::pending::<()>().await;
        }
        let full = async {
            while batch.len() < BATCH {
                let room = BATCH - batch.len();
                if self.queue.recv_many(batch, room).await == 0 {
                    return;
                }
            }
        };
        let _ = timeout(GATHER, full).await;
    }

    /// How long to wait before the next one.
    async fn send(&self, batch: &mut Vec<SpanData>, paused: Option<Duration>) -> Option<Duration> {
        let count = batch.len() as u64;
        let sent = self.otlp.export(std::mem::take(batch));
        let error = match timeout(EXPORT_LIMIT, sent).await {
            Ok(Ok(())) => {
                if paused.is_some() {
                    tracing::info!("spans reach their collector again");
                }
                self.metrics.exported.inc_by(count);
                return None;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {EXPORT_LIMIT:?}"),
        };
        if paused.is_none() {
            tracing::warn!(error, "spans do not reach their collector; they are dropped");
        }
        self.metrics.failed.inc_by(count);
        Some(paused.map_or(PAUSE[0], |pause| (pause * 2).min(PAUSE[1])))
    }
}
