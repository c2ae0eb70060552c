//! The engine model in real time: a lock around it, a driver that plays it at the moments it
//! asks for, and for each request an answer that its response body watches.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};

use domain::Moment;
use futures_util::task::AtomicWaker;
use lifecycle::monotonic;
use parking_lot::Mutex;
use sim::{Counters, EngineConfig, EngineModel, EventKind};
use tokio::sync::Notify;

use super::stats::{Histograms, RequestLog, SequenceRecord, Stats};

/// One prompt and one choice of a request, as the model takes it.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// Chain hashes of the prompt's full blocks and of those its output will fill.
    pub(crate) block_hashes: Vec<u64>,
    pub(crate) prompt_tokens: u32,
    pub(crate) max_output_tokens: u32,
}

/// How far a request's sequences are. Written by the driver, read by one response.
#[derive(Debug)]
pub(crate) struct Answer {
    waker: AtomicWaker,
    sequences: Box<[Progress]>,
}

#[derive(Debug, Default)]
struct Progress {
    tokens: AtomicU32,
    cached_tokens: AtomicU32,
}

impl Answer {
    /// Output tokens of a sequence so far.
    pub(crate) fn tokens(&self, sequence: usize) -> u32 {
        self.sequences[sequence].tokens.load(Ordering::Acquire)
    }

    /// Prompt tokens of a sequence that were found in the cache.
    pub(crate) fn cached_tokens(&self, sequence: usize) -> u32 {
        self.sequences[sequence].cached_tokens.load(Ordering::Acquire)
    }

    /// Registers the task that is to look again when anything changes.
    pub(crate) fn watch(&self, cx: &Context<'_>) {
        self.waker.register(cx.waker());
    }
}

/// A request in the engine. Dropping it takes out what is not finished.
#[derive(Debug)]
pub(crate) struct Ticket {
    core: Arc<Core>,
    first_id: u64,
    jobs: Vec<u32>,
    pub(crate) answer: Arc<Answer>,
}

impl Ticket {
    /// Sequences of the request.
    pub(crate) fn sequences(&self) -> usize {
        self.jobs.len()
    }

    /// Output tokens that a sequence will have.
    pub(crate) fn wanted(&self, sequence: usize) -> u32 {
        self.jobs[sequence]
    }

    /// Whether every sequence has all its tokens.
    pub(crate) fn is_finished(&self) -> bool {
        (0..self.jobs.len()).all(|i| self.answer.tokens(i) >= self.jobs[i])
    }

    /// Waits for the last token.
    pub(crate) async fn finished(&self) {
        std::future::poll_fn(|cx| {
            self.answer.watch(cx);
            if self.is_finished() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.is_finished() {
            self.core.cancel(self.first_id..self.first_id + self.jobs.len() as u64);
        }
    }
}

/// A live sequence.
#[derive(Debug)]
struct Live {
    answer: Arc<Answer>,
    sequence: usize,
    request_id: Arc<str>,
    prompt_tokens: u32,
    cached_tokens: u32,
    submitted: Moment,
    scheduled: Option<Moment>,
    first_token: Option<Moment>,
}

impl Live {
    fn tokens(&self) -> u32 {
        self.answer.tokens(self.sequence)
    }

    fn record(self, block_size: u32, finished: bool) -> SequenceRecord {
        let since = |at: Option<Moment>| at.map(|at| at.seconds_since(self.submitted));
        SequenceRecord {
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens,
            prompt_blocks: self.prompt_tokens / block_size,
            hit_blocks: self.cached_tokens / block_size,
            output_tokens: self.tokens(),
            queue_seconds: since(self.scheduled),
            ttft_seconds: since(self.first_token),
            finished,
            request_id: self.request_id,
        }
    }
}

#[derive(Debug)]
struct State {
    model: EngineModel,
    live: HashMap<u64, Live>,
    log: RequestLog,
    histograms: Histograms,
    next_id: u64,
}

/// The engine behind the HTTP skin.
#[derive(Debug)]
pub(crate) struct Core {
    state: Mutex<State>,
    /// Rung when the model has something to do sooner than the driver knows.
    wake: Notify,
}

impl Core {
    pub(crate) fn new(config: EngineConfig, log_capacity: usize) -> Result<Self, sim::Error> {
        let state = State {
            model: EngineModel::new(config)?,
            live: HashMap::new(),
            log: RequestLog::new(log_capacity),
            histograms: Histograms::new(),
            next_id: 0,
        };
        Ok(Self { state: Mutex::new(state), wake: Notify::new() })
    }

    /// Plays the model until the end of time. Run by one task.
    pub(crate) async fn drive(self: Arc<Self>) {
        loop {
            let now = monotonic();
            let next = self.state.lock().advance(now);
            match next {
                None => self.wake.notified().await,
                Some(at) => tokio::select! {
                    () = tokio::time::sleep(at - now) => {}
                    () = self.wake.notified() => {}
                },
            }
        }
    }

    /// Queues a request: all its sequences or none.
    ///
    /// # Errors
    /// One of them could never run.
    pub(crate) fn submit(
        self: &Arc<Self>,
        request_id: &Arc<str>,
        jobs: Vec<Job>,
    ) -> Result<Ticket, sim::Error> {
        let answer = Arc::new(Answer {
            waker: AtomicWaker::new(),
            sequences: jobs.iter().map(|_| Progress::default()).collect(),
        });
        let wanted = jobs.iter().map(|job| job.max_output_tokens).collect();
        let mut state = self.state.lock();
        let now = monotonic();
        let first_id = state.next_id;
        for (sequence, job) in jobs.into_iter().enumerate() {
            let id = first_id + sequence as u64;
            let prompt_tokens = job.prompt_tokens;
            let submitted =
                state.model.submit(id, job.block_hashes, prompt_tokens, job.max_output_tokens, now);
            if let Err(error) = submitted {
                (first_id..id).for_each(|id| state.remove(id, now));
                return Err(error);
            }
            let answer = Arc::clone(&answer);
            let request_id = Arc::clone(request_id);
            state.live.insert(
                id,
                Live {
                    answer,
                    sequence,
                    request_id,
                    prompt_tokens,
                    cached_tokens: 0,
                    submitted: now,
                    scheduled: None,
                    first_token: None,
                },
            );
            state.next_id = id + 1;
        }
        let idle = state.model.next_event_at().is_some_and(|at| at <= now);
        drop(state);
        if idle {
            self.wake.notify_one();
        }
        Ok(Ticket { core: Arc::clone(self), first_id, jobs: wanted, answer })
    }

    fn cancel(&self, ids: std::ops::Range<u64>) {
        let mut state = self.state.lock();
        let now = monotonic();
        ids.for_each(|id| state.remove(id, now));
    }

    /// Drops the prefix cache, if nothing runs.
    pub(crate) fn reset_prefix_cache(&self) -> bool {
        self.state.lock().model.reset_prefix_cache()
    }

    pub(crate) fn counters(&self) -> Counters {
        self.state.lock().model.counters()
    }

    /// Sequences that run or wait.
    pub(crate) fn load(&self) -> u32 {
        let state = self.state.lock();
        state.model.running() + state.model.waiting()
    }

    /// What the engine counts. Requests and connections are not its business.
    pub(crate) fn stats(&self) -> Stats {
        let state = self.state.lock();
        let counters = state.model.counters();
        Stats {
            requests: 0,
            scheduled: counters.scheduled_requests,
            finished: counters.finished_requests,
            cancelled: counters.cancelled_requests,
            prompt_blocks: counters.queried_blocks,
            hit_blocks: counters.hit_blocks,
            prompt_tokens: counters.queried_tokens,
            cached_tokens: counters.hit_tokens,
            generated_tokens: counters.generated_tokens,
            preemptions: counters.preemptions,
            running: state.model.running(),
            waiting: state.model.waiting(),
            kv_usage: state.model.kv_usage(),
            cached_blocks: state.model.cached_blocks() as u64,
            open_sockets: 0,
        }
    }

    /// The newest records, oldest first.
    pub(crate) fn records(&self) -> Vec<SequenceRecord> {
        self.state.lock().log.copy()
    }

    /// As [`records`](Self::records), and forgets them.
    pub(crate) fn take_records(&self) -> Vec<SequenceRecord> {
        self.state.lock().log.take()
    }

    /// Reads the histograms under the lock.
    pub(crate) fn with_histograms<T>(&self, read: impl FnOnce(&Histograms) -> T) -> T {
        read(&self.state.lock().histograms)
    }
}

impl State {
    /// Plays the model up to `now` and tells the answers; returns when to come again.
    fn advance(&mut self, now: Moment) -> Option<Moment> {
        for event in self.model.advance(now) {
            let Some(live) = self.live.get_mut(&event.id) else { continue };
            let progress = &live.answer.sequences[live.sequence];
            match event.kind {
                EventKind::Scheduled { cached_tokens } => {
                    live.scheduled = Some(event.at);
                    live.cached_tokens = cached_tokens;
                    progress.cached_tokens.store(cached_tokens, Ordering::Release);
                }
                EventKind::FirstToken => {
                    live.first_token = Some(event.at);
                    progress.tokens.store(1, Ordering::Release);
                    live.answer.waker.wake();
                }
                EventKind::Token { index } => {
                    progress.tokens.store(index + 1, Ordering::Release);
                    live.answer.waker.wake();
                }
                EventKind::Finished { .. } => self.finish(event.id, event.at),
                EventKind::Preempted | EventKind::Resumed { .. } => {}
            }
        }
        self.model.next_event_at()
    }

    fn finish(&mut self, id: u64, at: Moment) {
        let Some(live) = self.live.remove(&id) else { return };
        let histograms = &mut self.histograms;
        histograms.e2e_latency.observe(at.seconds_since(live.submitted));
        if let (Some(scheduled), Some(first_token)) = (live.scheduled, live.first_token) {
            histograms.time_to_first_token.observe(first_token.seconds_since(live.submitted));
            histograms.queue_time.observe(scheduled.seconds_since(live.submitted));
            histograms.prefill_time.observe(first_token.seconds_since(scheduled));
        }
        let computed = live.prompt_tokens - live.cached_tokens;
        histograms.prefill_kv_computed_tokens.observe(f64::from(computed));
        self.log.push(live.record(self.model.config().block_size, true));
    }

    /// Takes a sequence out that is not finished.
    fn remove(&mut self, id: u64, now: Moment) {
        // Whatever happened by now is told first: it may just have finished.
        self.advance(now);
        if let Some(live) = self.live.remove(&id) {
            self.model.cancel(id, now);
            self.log.push(live.record(self.model.config().block_size, false));
        }
    }
}
