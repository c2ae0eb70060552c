//! Deciding without a router: the next of the candidates that a router named, or the rank that
//! the prompt's beginning was sent to last.

use std::sync::Arc;
use std::time::Duration;

use domain::{
    Candidate, Decision, DecisionReason, Evidence, EvidenceLevel, Fleet, LeaseId, RankId,
    RejectReason, Rejected, Route, ScoreParts,
};
use replication::{FallbackRank, PoolId};

use crate::ask::rejected;
use crate::client::Shared;
use crate::state::{Shape, State};

/// Routers count as answering when none failed to for so long, so that one that answers half of
/// the time does not fill the log.
const ANSWERED_FOR: Duration = Duration::from_secs(1);

impl Shared {
    /// Places a Route that no router answered. `None` if one did in this moment.
    pub(crate) fn decide_alone(
        &self,
        pool: &PoolId,
        lease: LeaseId,
        route: &Route,
    ) -> Result<Option<Decision>, Rejected> {
        let fleet: Arc<Fleet> = self.fleet.borrow().clone();
        let candidates = candidates(&fleet, route);
        let shape = Shape::of(route.prompt.as_ref());
        let (told, decision) = {
            let mut state = self.state.lock();
            let Some((chosen, matched)) = choose(&mut state, &shape, candidates, route) else {
                return Err(rejected(why_none(&fleet, route)));
            };
            let Some(told) = state.moved(pool, lease, chosen.rank.clone()) else {
                return Ok(None);
            };
            (told, decision(lease, chosen, matched, &shape))
        };
        self.is_unanswered(route.attempt == 0);
        // With nobody there the next session tells it.
        self.tell(&told);
        Ok(Some(decision))
    }

    /// One line when the edge begins to decide alone, and one when it ends.
    fn is_unanswered(&self, is_first: bool) {
        self.metrics.decided_alone(is_first);
        if self.alone_at.lock().replace(self.now()).is_none() {
            self.metrics.is_alone.set(1);
            tracing::warn!("no router answers: requests go where their prefixes went last");
        }
    }

    pub(crate) fn is_answered(&self) {
        if self.metrics.is_alone.get() == 0 {
            return;
        }
        let mut alone_at = self.alone_at.lock();
        if alone_at.is_some_and(|at| self.now().since(at) >= ANSWERED_FOR) {
            *alone_at = None;
            self.metrics.is_alone.set(0);
            tracing::info!("routers answer again");
        }
    }
}

/// The ranks of ready backends that have not failed this request.
fn candidates(fleet: &Fleet, route: &Route) -> Vec<Candidate> {
    let ranks = fleet.ready_for(&route.model).flat_map(|backend| {
        backend.ranks.iter().map(|state| Candidate {
            rank: backend.rank_id(state.rank),
            url: Arc::clone(&backend.url),
            pin_rank: backend.ranks.len() > 1,
        })
    });
    ranks.filter(|candidate| !route.excluded.contains(&candidate.rank)).collect()
}

/// One of them, and how many of the prompt's blocks it is remembered for.
fn choose(
    state: &mut State,
    shape: &Shape,
    mut candidates: Vec<Candidate>,
    route: &Route,
) -> Option<(Candidate, u32)> {
    let named = route
        .ranked
        .iter()
        .find_map(|ranked| candidates.iter().position(|candidate| candidate.rank == ranked.rank));
    if let Some(at) = named {
        return Some((candidates.swap_remove(at), 0));
    }
    let in_flight: Vec<(RankId, u32)> =
        candidates.iter().map(|c| (c.rank.clone(), state.in_flight(&c.rank))).collect();
    let ranks: Vec<FallbackRank<'_>> =
        in_flight.iter().map(|(rank, n)| FallbackRank { rank, in_flight: *n }).collect();
    let choice = state.own.choose(shape.keys(), &ranks)?;
    Some((candidates.swap_remove(choice.index), choice.remembered_blocks))
}

fn decision(lease: LeaseId, chosen: Candidate, matched: u32, shape: &Shape) -> Decision {
    Decision {
        lease,
        chosen,
        others: Vec::new(),
        evidence: Evidence {
            matched_blocks: matched,
            predicted_cached_tokens: matched.saturating_mul(shape.block_tokens()),
            predicted_ttft: Duration::ZERO,
            parts: ScoreParts::default(),
            level: EvidenceLevel::Text,
            reason: DecisionReason::EdgeAlone,
        },
    }
}

fn why_none(fleet: &Fleet, route: &Route) -> RejectReason {
    if fleet.ready_for(&route.model).next().is_some() {
        RejectReason::AllExcluded
    } else if fleet.backends.iter().any(|backend| backend.serves(&route.model)) {
        RejectReason::NoReadyBackend
    } else {
        RejectReason::UnknownModel
    }
}
