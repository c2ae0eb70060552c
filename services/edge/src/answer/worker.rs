//! Where the work is done, and the booking that waits for it.

use std::sync::Arc;

use domain::{KeyList, LeaseId, Report, RoutingClient, Usage};
use lifecycle::Drain;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::budget::Budget;
use super::{Keyed, PromptEnd, Text};
use crate::metrics::Families;

/// Answers that wait for the worker. Their bookings are open for so much longer, so there are
/// few: a tenth of a millisecond each, mostly.
const QUEUE: usize = 64;

/// The way to the worker, shared by all answers.
pub(crate) struct Answers {
    queue: mpsc::Sender<Job>,
    budget: Arc<Mutex<Budget>>,
    families: Arc<Families>,
}

/// What the worker task needs.
pub(crate) struct Worker {
    jobs: mpsc::Receiver<Job>,
    budget: Arc<Mutex<Budget>>,
    families: Arc<Families>,
}

/// One answer to key.
struct Job {
    finish: Finish,
    prompt: Arc<PromptEnd>,
    text: Text,
    completion: u64,
}

/// A booking that has ended, but for the report. Dropping it reports it without keys.
pub(crate) struct Finish {
    routing: Arc<dyn RoutingClient>,
    lease: LeaseId,
    usage: Option<Usage>,
    keys: Vec<KeyList>,
}

impl Finish {
    pub(crate) fn new(
        routing: Arc<dyn RoutingClient>,
        lease: LeaseId,
        usage: Option<Usage>,
    ) -> Self {
        Self { routing, lease, usage, keys: Vec::new() }
    }
}

impl Drop for Finish {
    fn drop(&mut self) {
        self.routing.report(Report::Finished {
            lease: self.lease,
            usage: self.usage,
            output_keys: std::mem::take(&mut self.keys),
        });
    }
}

impl Answers {
    /// The two ends of the queue.
    pub(crate) fn new(families: Arc<Families>) -> (Arc<Self>, Worker) {
        let (queue, jobs) = mpsc::channel(QUEUE);
        let budget = Arc::new(Mutex::new(Budget::new(lifecycle::monotonic())));
        let worker = Worker { jobs, budget: Arc::clone(&budget), families: Arc::clone(&families) };
        (Arc::new(Self { queue, budget, families }), worker)
    }

    /// Reports the booking's end, with the keys of its answer if there is time to find them.
    pub(crate) fn finish(&self, finish: Finish, prompt: &Arc<PromptEnd>, text: Option<Text>) {
        let Some(usage) = finish.usage else { return };
        if !prompt.is_filled_by(usage.completion_tokens) {
            return;
        }
        let Some(text) = text else { return self.families.answers.differs.inc() };
        if !self.budget.lock().is_open(lifecycle::monotonic()) {
            return self.families.answers.skipped.inc();
        }
        let completion = usage.completion_tokens;
        let job = Job { finish, prompt: Arc::clone(prompt), text, completion };
        if self.queue.try_send(job).is_err() {
            self.families.answers.skipped.inc();
        }
    }
}

/// Keys answers until the drain, then what is still in the queue.
pub(crate) async fn run(mut worker: Worker, drain: Drain) {
    let mut batch = Vec::with_capacity(QUEUE);
    loop {
        tokio::select! {
            biased;
            count = worker.jobs.recv_many(&mut batch, QUEUE) => if count == 0 { return },
            () = drain.signaled(), if !worker.jobs.is_closed() => {
                worker.jobs.close();
                continue;
            }
        }
        let (jobs, budget) = (std::mem::take(&mut batch), Arc::clone(&worker.budget));
        let families = Arc::clone(&worker.families);
        // A panic in there drops the jobs, which reports them.
        let _ = tokio::task::spawn_blocking(move || work(jobs, &budget, &families)).await;
    }
}

fn work(jobs: Vec<Job>, budget: &Mutex<Budget>, families: &Families) {
    for Job { mut finish, prompt, text, completion } in jobs {
        let started = lifecycle::monotonic();
        match prompt.keys(&text, completion) {
            Keyed::Keys(keys) => {
                finish.keys = keys;
                families.answers.keyed.inc();
            }
            Keyed::Differs => families.answers.differs.inc(),
        }
        drop(finish);
        budget.lock().spend(lifecycle::monotonic().seconds_since(started));
    }
}
