//! `warmpath demo`: what prefix routing is worth, in half a minute and without a GPU.
//!
//! Three engine doubles and the gateway run in this process; the same requests go through it
//! under each policy, each time with cold engines and a cold router. Hits are counted in the
//! engines' own caches, never in the router's belief.

mod documents;
mod report;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use sim::workload::Draw;
use tokenization::ModelFolder;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use self::documents::{DocumentSet, Spec};
use self::report::{EngineTruth, PolicyReport, Report, Shape};
use crate::cli::Output;
use crate::config::{Config, RawConfig};
use crate::double::{Double, DoubleHandle};
use crate::gateway::Gateway;
use crate::load::{LoadClient, Outcome};

/// Options of `warmpath demo`. The defaults are the set that the project's headline is measured
/// on: 15 documents of 96 blocks on three caches of 600.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Policies to compare, in this order
    #[arg(long, value_delimiter = ',', default_value = "round-robin,prefix")]
    policy: Vec<scheduling::Policy>,
    /// Requests under each policy
    #[arg(long, default_value_t = 900)]
    requests: usize,
    /// Requests open at a time
    #[arg(long, default_value_t = 32)]
    concurrency: usize,
    /// Documents that the requests are about
    #[arg(long, default_value_t = 15)]
    documents: usize,
    /// Full KV-cache blocks of each document
    #[arg(long, default_value_t = 96)]
    document_blocks: usize,
    /// Draw documents by Zipf's law instead of evenly
    #[arg(long)]
    skewed: bool,
    /// Engine doubles to start
    #[arg(long, default_value_t = 3)]
    backends: usize,
    /// KV-cache blocks of each double
    #[arg(long, default_value_t = 600)]
    blocks: u32,
    /// Prefill speed of each double
    #[arg(long, default_value_t = 16_000.0)]
    prefill_tokens_per_second: f64,
    /// Seed of the documents and the order
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Use these engines instead of doubles
    #[arg(long, value_name = "URL")]
    backend: Vec<String>,
    /// Model name to ask those engines for
    #[arg(long, default_value = "double", requires = "backend")]
    model: String,
    /// Folder with that model's tokenizer.json, tokenizer_config.json and chat_template.jinja
    #[arg(long, requires = "backend", value_name = "FOLDER")]
    model_folder: Option<std::path::PathBuf>,
    /// Keep the last gateway up afterwards and print a curl line for it
    #[arg(long)]
    keep: bool,
    /// Where the result goes as JSON; `-` is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<Output>,
}

/// Tokens in a block of the doubles.
const BLOCK_SIZE: usize = 16;
/// Blocks of the system prompt that all requests share.
const SHARED_BLOCKS: usize = 2;
/// Output tokens of each request.
const MAX_TOKENS: u32 = 4;

/// Runs the demo.
///
/// # Errors
/// When something cannot be started, or requests failed.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let folder = match &args.model_folder {
        Some(path) => ModelFolder::load(path)?,
        None => ModelFolder::builtin(),
    };
    eprintln!("preparing {} requests about {} documents", args.requests, args.documents);
    let spec = args.spec();
    let set = {
        let (folder, spec) = (folder.clone(), spec.clone());
        tokio::task::spawn_blocking(move || documents::build(&folder, &spec)).await??
    };
    let mut report = Report {
        ceiling_block_hit_rate: set.ceiling_block_hit_rate,
        ceiling_request_hit_rate: set.ceiling_request_hit_rate,
        policies: BTreeMap::new(),
    };
    let mut last = None;
    for policy in &args.policy {
        if let Some(bed) = last.take() {
            Bed::stop(bed).await;
        }
        let bed = Bed::start(&args, &folder, *policy).await?;
        let result = bed.measure(&args, &set, policy.as_str()).await?;
        report.policies.insert(policy.as_str().to_owned(), result);
        last = Some(bed);
    }
    // With the JSON on standard output, the table for people goes beside it.
    eprintln!();
    eprint!("{}", report.table());
    if let Some(output) = &args.json {
        output.write_json(&report)?;
    }
    if let Some(bed) = last {
        if args.keep {
            bed.keep(&args.model).await?;
        }
        bed.stop().await;
    }
    let failed: u64 = report.policies.values().map(|p| p.failed).sum();
    if failed > 0 {
        bail!("{failed} requests failed");
    }
    Ok(())
}

impl Args {
    fn spec(&self) -> Spec {
        Spec {
            model: self.model.clone(),
            documents: self.documents,
            document_blocks: self.document_blocks,
            shared_blocks: SHARED_BLOCKS,
            block_size: BLOCK_SIZE,
            requests: self.requests,
            max_tokens: MAX_TOKENS,
            draw: if self.skewed { Draw::Skewed } else { Draw::Uniform },
            seed: self.seed,
        }
    }
}

/// Engines and a gateway before them.
struct Bed {
    doubles: Vec<DoubleHandle>,
    names: Vec<String>,
    gateway: Gateway,
}

impl Bed {
    async fn start(
        args: &Args,
        folder: &Arc<ModelFolder>,
        policy: scheduling::Policy,
    ) -> anyhow::Result<Self> {
        let mut doubles = Vec::new();
        let mut urls = args.backend.clone();
        if urls.is_empty() {
            for _ in 0..args.backends {
                let double = start_double(args).await?;
                urls.push(format!("http://{}", double.addr()));
                doubles.push(double);
            }
        }
        let backends: Vec<(String, String)> =
            urls.into_iter().enumerate().map(|(n, url)| (format!("engine-{n}"), url)).collect();
        let names = backends.iter().map(|(name, _)| name.clone()).collect();
        let models = [(args.model.as_str().into(), folder.clone())].into();
        let config = Config::with_models(raw_config(policy, &backends)?, models)?;
        let gateway = Gateway::start(config).await?;
        gateway.ready(Duration::from_secs(30)).await.context("the engines")?;
        Ok(Self { doubles, names, gateway })
    }

    async fn measure(
        &self,
        args: &Args,
        set: &DocumentSet,
        policy: &str,
    ) -> anyhow::Result<PolicyReport> {
        let started = Instant::now();
        let outcomes = self.drive(set, args.concurrency, policy).await?;
        let seconds = started.elapsed().as_secs_f64();
        if let Some(Err(first)) = outcomes.iter().find(|o| o.is_err()) {
            eprintln!("{policy}: the first failure: {first}");
        }
        let truth = (!self.doubles.is_empty()).then(|| self.truth());
        let shape = Shape { block_size: BLOCK_SIZE as u64, shared_blocks: SHARED_BLOCKS as u64 };
        Ok(PolicyReport::new(&outcomes, &self.names, truth, shape, seconds))
    }

    async fn drive(
        &self,
        set: &DocumentSet,
        concurrency: usize,
        policy: &str,
    ) -> anyhow::Result<Vec<Outcome>> {
        let client = LoadClient::new(None);
        let url: Arc<str> = format!("http://{}/v1/chat/completions", self.gateway.edge()).into();
        let permits = Arc::new(Semaphore::new(concurrency));
        let mut requests = JoinSet::new();
        let mut outcomes = Vec::with_capacity(set.bodies.len());
        let progress = |done: usize| {
            if done.is_multiple_of(100) || done == set.bodies.len() {
                eprintln!("{policy:<12} {done:>5} of {} requests", set.bodies.len());
            }
        };
        for body in &set.bodies {
            let permit = permits.clone().acquire_owned().await?;
            let (client, url, body) = (client.clone(), url.clone(), body.clone());
            requests.spawn(async move {
                let outcome = client.stream(&url, body).await;
                drop(permit);
                outcome
            });
            while let Some(outcome) = requests.try_join_next() {
                outcomes.push(outcome?);
                progress(outcomes.len());
            }
        }
        while let Some(outcome) = requests.join_next().await {
            outcomes.push(outcome?);
            progress(outcomes.len());
        }
        Ok(outcomes)
    }

    fn truth(&self) -> EngineTruth {
        self.doubles.iter().map(DoubleHandle::stats).fold(EngineTruth::default(), |sum, s| {
            EngineTruth {
                prompt_blocks: sum.prompt_blocks + s.prompt_blocks,
                hit_blocks: sum.hit_blocks + s.hit_blocks,
            }
        })
    }

    async fn keep(&self, model: &str) -> anyhow::Result<()> {
        let (edge, admin) = (self.gateway.edge(), self.gateway.admin());
        eprintln!(
            "\nThe gateway stays up; Ctrl-C ends it. Try:\n\n\
             curl -i http://{edge}/v1/chat/completions -H 'content-type: application/json' \\\n  \
             -d '{{\"model\":\"{model}\",\"messages\":[{{\"role\":\"user\",\"content\":\"Hello\"}}],\"max_tokens\":8}}'\n\n\
             and then, with the x-request-id of the answer:\n\n\
             curl http://{admin}/admin/v1/explain/REQUEST_ID\n"
        );
        tokio::signal::ctrl_c().await.context("waiting for Ctrl-C")
    }

    async fn stop(self) {
        self.gateway.stop(Duration::from_secs(5)).await;
        for double in self.doubles {
            double.shutdown().await;
        }
    }
}

async fn start_double(args: &Args) -> anyhow::Result<DoubleHandle> {
    let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = TcpListener::bind(any_port).await.context("a port for an engine double")?;
    Double::builder()
        .model(&args.model)
        .blocks(args.blocks)
        .block_size(BLOCK_SIZE as u32)
        .prefill_tokens_per_second(args.prefill_tokens_per_second)
        .spawn(listener)
        .context("an engine double")
}

/// The gateway's config: any free ports, and headers that tell what it believed.
fn raw_config(
    policy: scheduling::Policy,
    backends: &[(String, String)],
) -> anyhow::Result<RawConfig> {
    let mut text = format!(
        r#"
        edge.listen = "127.0.0.1:0"
        admin.listen = "127.0.0.1:0"
        router.policy = "{}"
        tenants = [{{ id = "anonymous", debug_headers = true }}]
        "#,
        policy.as_str()
    );
    for (id, url) in backends {
        text.push_str(&format!("[[backends]]\nid = \"{id}\"\nurl = \"{url}\"\n"));
    }
    Ok(settings::load_str("the demo's config", &text)?)
}
