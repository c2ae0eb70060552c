//! The command line of a double that runs on its own.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use lifecycle::{Lifecycle, OnHangUp};
use sim::EngineConfig;
use tokenization::ModelFolder;

use super::fault::{FORMS, Fault};
use super::{Double, config};

/// Run an engine double: an OpenAI-compatible server that behaves like one vLLM engine (prefix
/// cache, batching, metrics) but computes nothing.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Address to listen on. Anyone who reaches it can use it: it knows no keys.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    pub host: IpAddr,
    /// Port to listen on; 0 takes a free one and prints it.
    #[arg(long, default_value_t = 8000)]
    pub port: u16,
    /// Model name that requests must ask for.
    #[arg(long, default_value = config::DEFAULT_MODEL)]
    pub model: String,
    /// Name of an adapter over the model, as loaded with vLLM's --lora-modules; may be given
    /// several times. All share the model's cache, each with blocks of its own.
    #[arg(long = "adapter", value_name = "NAME")]
    pub adapters: Vec<String>,
    /// Data-parallel ranks behind the address, each with a cache of its own.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub data_parallel: u16,
    /// Folder with tokenizer.json, tokenizer_config.json and chat_template.jinja. Without it a
    /// small built-in tokenizer is used.
    #[arg(long, value_name = "DIR")]
    pub model_folder: Option<PathBuf>,
    /// KV cache blocks. One of them is never used, as in vLLM.
    #[arg(long, default_value_t = 600)]
    pub blocks: u32,
    /// KV cache blocks that the metrics name, instead of the true number.
    #[arg(long, value_name = "N")]
    pub told_blocks: Option<u32>,
    /// Tokens in a block.
    #[arg(long, default_value_t = 16)]
    pub block_size: u32,
    /// Longest prompt plus output in tokens; without it as many as the cache holds.
    #[arg(long, value_name = "TOKENS")]
    pub max_model_len: Option<u32>,
    /// Output tokens of requests that set no limit.
    #[arg(long, default_value_t = 16, value_name = "TOKENS")]
    pub default_max_tokens: u32,
    /// Speed of prefill: uncached prompt tokens per second.
    #[arg(long, default_value_t = 16_000.0, value_name = "N")]
    pub prefill_tokens_per_second: f64,
    /// Fixed time of every step that prefills, in milliseconds.
    #[arg(long, default_value_t = 0.0, value_name = "MS")]
    pub prefill_floor_ms: f64,
    /// Time between two output tokens of a lone request, in milliseconds.
    #[arg(long, default_value_t = 2.0, value_name = "MS")]
    pub itl_ms: f64,
    /// What each further running request adds to it, in milliseconds.
    #[arg(long, default_value_t = 0.0, value_name = "MS")]
    pub itl_per_running_ms: f64,
    /// Tokens that one step may compute (vLLM's max_num_batched_tokens).
    #[arg(long, default_value_t = 8192, value_name = "TOKENS")]
    pub token_budget: u32,
    /// Requests that run at once; the others wait (vLLM's max_num_seqs).
    #[arg(long, default_value_t = 256, value_name = "N")]
    pub max_running: u32,
    /// Close connections that were idle for so long, in milliseconds.
    #[arg(long, default_value_t = 5000, value_name = "MS")]
    pub keep_alive_ms: u64,
    /// Answer every generation with one canned two-event stream (or its JSON) at once, without
    /// tokenising: for measuring what stands in front of it.
    #[arg(long = "static")]
    pub static_response: bool,
    /// Faults to inject.
    #[arg(long = "fault", value_name = "SPEC", help = fault_help())]
    pub faults: Vec<Fault>,
}

fn fault_help() -> String {
    format!(
        "Inject a fault; may be given several times. One of {FORMS}. N counts content events, \
         `times=K` spares all but the next K requests, `all` hits health checks and metrics too. \
         `POST /fault {{\"faults\": [\"SPEC\", …]}}` changes them while it runs"
    )
}

impl Args {
    /// The double that these arguments describe.
    ///
    /// # Errors
    /// The model folder cannot be read.
    pub fn into_double(self) -> anyhow::Result<Double> {
        let mut double = Double::builder()
            .engine(EngineConfig {
                blocks: self.blocks,
                block_size: self.block_size,
                prefill_tokens_per_second: self.prefill_tokens_per_second,
                prefill_floor_seconds: self.prefill_floor_ms / 1e3,
                token_budget: self.token_budget,
                itl_base_seconds: self.itl_ms / 1e3,
                itl_per_running_seconds: self.itl_per_running_ms / 1e3,
                max_running: self.max_running,
                ..EngineConfig::default()
            })
            .model(self.model)
            .data_parallel(self.data_parallel)
            .default_max_tokens(self.default_max_tokens)
            .keep_alive(Duration::from_millis(self.keep_alive_ms))
            .static_response(self.static_response)
            .faults(self.faults);
        double = self.adapters.into_iter().fold(double, Double::adapter);
        if let Some(blocks) = self.told_blocks {
            double = double.told_blocks(blocks);
        }
        if let Some(tokens) = self.max_model_len {
            double = double.max_model_len(tokens);
        }
        if let Some(path) = self.model_folder {
            let folder = ModelFolder::load(&path)
                .with_context(|| format!("model folder {}", path.display()))?;
            double = double.model_folder(folder);
        }
        Ok(double)
    }
}

/// Runs a double until SIGINT or SIGTERM, then lets requests in flight finish. Blocks the thread.
///
/// # Errors
/// An argument that makes no sense, or an address that cannot be listened on.
pub fn run(args: Args) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(args))
}

async fn serve(args: Args) -> anyhow::Result<()> {
    let address = SocketAddr::new(args.host, args.port);
    let double = args.into_double()?;
    let handle = double.spawn(lifecycle::bind(address).await?)?;
    println!("engine double listens on http://{}", handle.addr());
    Lifecycle::new().run_until_signal(OnHangUp::End).await?;
    handle.shutdown().await;
    Ok(())
}
