//! One Route, from router to router until one answers.

use std::sync::Arc;
use std::time::Duration;

use domain::{Decision, LeaseId, Moment, RejectReason, Rejected, Route};
use prost::Message;
use proto::Asked;
use proto::routing::v1::edge_message::Kind;
use proto::routing::v1::{self};
use replication::{MemberId, PoolId};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::client::Shared;
use crate::links::Open;
use crate::state::{Answer, Shape};

/// Where no stream was open for so long, none is waited for.
const DOWN_FOR: Duration = Duration::from_secs(1);
/// What an answer may take on its way after a hold.
const SLACK: Duration = Duration::from_secs(1);
/// Things that one Route is told before its decision.
const ANSWERS: usize = 16;

pub(crate) async fn route(shared: Arc<Shared>, route: Route) -> Result<Decision, Rejected> {
    let started = shared.now();
    let hold_until = started + route.hold;
    let mut fleet = shared.fleet.clone();
    loop {
        fleet.mark_unchanged();
        let result = match shared.pool_of(&route.model) {
            Some(pool) => once(&shared, &pool, &route, hold_until).await,
            None => Err(rejected(RejectReason::UnknownModel)),
        };
        let now = shared.now();
        let may_change = result.as_ref().is_err_and(|rejected| rejected.reason.may_pass());
        // A router that holds the Route answers when it is over; this is for an edge alone.
        if !may_change || now >= hold_until {
            return result;
        }
        tokio::select! {
            Ok(()) = fleet.changed() => {}
            () = tokio::time::sleep(hold_until - now) => {}
        }
    }
}

/// Asks routers, and decides alone if none answers.
async fn once(
    shared: &Arc<Shared>,
    pool: &PoolId,
    route: &Route,
    hold_until: Moment,
) -> Result<Decision, Rejected> {
    let (answers, told) = mpsc::channel(ANSWERS);
    let shape = Shape::of(route.prompt.as_ref());
    let lease = shared.state.lock().begin(pool, shape, answers);
    let asked = Asked { pool: pool.clone(), lease, route: route.clone() };
    let message = v1::Route::from(&asked);
    let mut asking = Asking {
        shared,
        pool,
        lease,
        told,
        until: shared.now() + shared.config.answer_deadline,
        hold_until,
        refused: Vec::new(),
        permit: None,
        is_over: false,
    };
    let size = message.encoded_len();
    if size > rpc::MAX_MESSAGE_BYTES {
        if let Some(held_back) = shared.lines.pass() {
            tracing::warn!(
                request.id = route.request.as_str(),
                bytes = size,
                limit = rpc::MAX_MESSAGE_BYTES,
                held_back,
                "a prompt's keys are more than a message may hold"
            );
        }
        return Err(rejected(RejectReason::TooLarge));
    }
    match asking.run(message).await {
        Some(result) => result,
        None => asking.alone(route),
    }
}

/// A Route that waits. Dropped before its end, it is given up.
struct Asking<'a> {
    shared: &'a Arc<Shared>,
    pool: &'a PoolId,
    lease: LeaseId,
    told: mpsc::Receiver<Answer>,
    /// When the edge decides by itself.
    until: Moment,
    hold_until: Moment,
    /// Routers that do not own the pool.
    refused: Vec<MemberId>,
    /// Its part of the stream's credit.
    permit: Option<OwnedSemaphorePermit>,
    is_over: bool,
}

impl Asking<'_> {
    /// `None` if no router answers.
    async fn run(&mut self, message: v1::Route) -> Option<Result<Decision, Rejected>> {
        let mut is_first = true;
        loop {
            let stream = self.stream().await?;
            if !is_first {
                self.shared.metrics.asked_again.inc();
            }
            is_first = false;
            self.shared.state.lock().asked_on(self.lease, stream.number);
            let mut message = message.clone();
            let rest = self.hold_until - self.shared.now();
            message.hold_millis = u32::try_from(rest.as_millis()).unwrap_or(u32::MAX);
            if !stream.outbox.push(Kind::Route(message)) {
                continue;
            }
            if let Some(result) = self.answer(&stream.router).await? {
                return Some(result);
            }
        }
    }

    /// A stream with credit to the first router that has one; waits for it until the time is up.
    async fn stream(&mut self) -> Option<Arc<Open>> {
        loop {
            let shared = Arc::clone(self.shared);
            let opened = shared.opened.notified();
            tokio::pin!(opened);
            opened.as_mut().enable();
            let order = shared.state.lock().holdings.ask_order(self.pool);
            let (mut credit, now) = (None, shared.now());
            for router in order.iter().filter(|router| !self.refused.contains(&router.id)) {
                if let Some((stream, permit)) = shared.links.with_credit(&router.id, self.lease.0) {
                    self.permit = Some(permit);
                    return Some(stream);
                }
                credit = credit.or_else(|| shared.links.open(&router.id, self.lease.0));
            }
            if now >= self.until || shared.links.down_for(now) >= DOWN_FOR {
                return None;
            }
            let rest = tokio::time::sleep(self.until - now);
            match credit {
                // There is a stream and no credit on it.
                Some(stream) => tokio::select! {
                    permit = Arc::clone(&stream.credit).acquire_owned() => {
                        // Without one the stream is over.
                        let Ok(permit) = permit else { continue };
                        self.permit = Some(permit);
                        return Some(stream);
                    }
                    () = rest => return None,
                },
                None => tokio::select! {
                    () = opened => {}
                    () = rest => return None,
                },
            }
        }
    }

    /// What the router says: `Some(None)` if another is to be asked, `None` if the time is up.
    async fn answer(&mut self, router: &MemberId) -> Option<Option<Result<Decision, Rejected>>> {
        loop {
            let rest = tokio::time::sleep(self.until - self.shared.now());
            let answer = tokio::select! {
                answer = self.told.recv() => answer?,
                () = rest => return None,
            };
            match answer {
                Answer::Decided(decision) => {
                    self.is_over = true;
                    self.shared.is_answered();
                    return Some(Some(Ok(*decision)));
                }
                // This router has not heard of the model yet, though we have.
                Answer::Rejected(rejected) if rejected.reason == RejectReason::UnknownModel => {
                    self.refused.push(router.clone());
                    return Some(None);
                }
                Answer::Rejected(rejected) => return Some(Some(Err(rejected))),
                Answer::Queued => {
                    self.until = self.hold_until + SLACK;
                }
                Answer::NotOwner => {
                    self.refused.push(router.clone());
                    return Some(None);
                }
                Answer::Broken => {
                    // A queued Route is asked again as a new one is.
                    let fresh = self.shared.now() + self.shared.config.answer_deadline;
                    self.until = self.until.min(fresh);
                    return Some(None);
                }
            }
        }
    }

    fn alone(&mut self, route: &Route) -> Result<Decision, Rejected> {
        let decided = self.shared.decide_alone(self.pool, self.lease, route)?;
        let answered = || {
            std::iter::from_fn(|| self.told.try_recv().ok()).find_map(|answer| match answer {
                Answer::Decided(decision) => Some(*decision),
                _ => None,
            })
        };
        let decision = decided.or_else(answered);
        self.is_over = decision.is_some();
        decision.ok_or_else(|| rejected(RejectReason::NotTaken))
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            let reported = self.shared.state.lock().give_up(self.pool, self.lease);
            self.shared.tell(&reported);
        }
    }
}

pub(crate) fn rejected(reason: RejectReason) -> Rejected {
    Rejected { reason, retry_after: None }
}
