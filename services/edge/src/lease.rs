//! The edge's end of a booking: exactly one closing report, on every path.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use domain::{FailureClass, LeaseId, Moment, Report, RoutingClient, Usage};
use http::HeaderMap;

use crate::answer::{Answers, Finish, PromptEnd, Text};
use crate::headers;

/// Output tokens between two progress reports: about one block.
const PROGRESS_TOKENS: u32 = 16;
/// Longest time between two progress reports while tokens come.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// A booking that is still open. Dropped open, it reports that the client went away.
pub(crate) struct Lease {
    routing: Arc<dyn RoutingClient>,
    id: LeaseId,
    open: bool,
    reported_tokens: u32,
    reported_at: Moment,
}

impl Lease {
    pub(crate) fn new(routing: Arc<dyn RoutingClient>, id: LeaseId, now: Moment) -> Self {
        Self { routing, id, open: true, reported_tokens: 0, reported_at: now }
    }

    /// Of an answer that nothing was booked for.
    pub(crate) fn none(routing: Arc<dyn RoutingClient>) -> Self {
        let reported_at = Moment::default();
        Self { routing, id: LeaseId(0), open: false, reported_tokens: 0, reported_at }
    }

    /// The first content token arrived.
    pub(crate) fn first_token(&mut self, now: Moment) {
        if self.open {
            self.reported_at = now;
            self.routing.report(Report::FirstToken { lease: self.id });
        }
    }

    /// So many output tokens exist; reported now and then.
    pub(crate) fn progress(&mut self, generated: u32, now: Moment) {
        let due = generated >= self.reported_tokens.saturating_add(PROGRESS_TOKENS)
            || (generated > self.reported_tokens && now - self.reported_at >= PROGRESS_INTERVAL);
        if self.open && due {
            self.reported_tokens = generated;
            self.reported_at = now;
            self.routing.report(Report::Progress { lease: self.id, generated });
        }
    }

    /// It lasts, whatever there is to be said of it; reported now and then.
    pub(crate) fn alive(&mut self, now: Moment) {
        if self.open && now - self.reported_at >= PROGRESS_INTERVAL {
            self.reported_at = now;
            let generated = self.reported_tokens;
            self.routing.report(Report::Progress { lease: self.id, generated });
        }
    }

    /// The engine answered to the end.
    pub(crate) fn finish(&mut self, usage: Option<Usage>) {
        self.close(Report::Finished { lease: self.id, usage, output_keys: Vec::new() });
    }

    /// As [`finish`](Self::finish); the keys of the answer's blocks go with the report if they are
    /// found at once.
    pub(crate) fn finish_with_keys(
        &mut self,
        usage: Option<Usage>,
        answers: &Answers,
        prompt: &Arc<PromptEnd>,
        text: Option<Text>,
    ) {
        if std::mem::take(&mut self.open) {
            let finish = Finish::new(Arc::clone(&self.routing), self.id, usage);
            answers.finish(finish, prompt, text);
        }
    }

    /// The attempt failed.
    pub(crate) fn fail(&mut self, class: FailureClass) {
        self.close(Report::Failed { lease: self.id, class, retry_after: None });
    }

    /// As [`fail`](Self::fail) of an engine that answered with these headers: one that is full may
    /// say for how long.
    pub(crate) fn refused(&mut self, class: FailureClass, headers: &HeaderMap) {
        let retry_after = match class {
            FailureClass::BackPressure => headers::retry_after(headers, SystemTime::now()),
            _ => None,
        };
        self.close(Report::Failed { lease: self.id, class, retry_after });
    }

    /// The engine does not have this edge: to the router as if it were full, but for no time, as
    /// that says nothing of what it can take from others.
    pub(crate) fn turned_away(&mut self) {
        let (class, retry_after) = (FailureClass::BackPressure, Some(Duration::ZERO));
        self.close(Report::Failed { lease: self.id, class, retry_after });
    }

    fn close(&mut self, report: Report) {
        if std::mem::take(&mut self.open) {
            self.routing.report(report);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.close(Report::Cancelled { lease: self.id });
    }
}
