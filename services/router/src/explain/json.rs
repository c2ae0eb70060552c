//! A trace as JSON.

use domain::{DecisionReason, Usage};
use serde_json::{Value, json};

use super::{Ending, Line, Record, Verdict};
use crate::pacing::Hold;

/// One attempt: what was known, what was decided, what came of it.
pub(super) fn record(record: &Record) -> Value {
    let trace = &record.trace;
    let winner = trace.scored.first();
    let candidates: Vec<Value> =
        trace.scored.iter().chain(&trace.barred).map(|l| line(l, winner, trace.reason)).collect();
    json!({
        "request": trace.request,
        "client_request": trace.client_request,
        "attempt": trace.attempt,
        "at_unix_ms": record.at_unix_ms,
        "tenant": trace.tenant,
        "model": trace.model,
        "prompt_tokens": trace.prompt_tokens,
        "decision": decision(record),
        "rejected": trace.rejected.map(|r| json!({ "reason": r, "message": r.message() })),
        "candidates": candidates,
        "candidates_omitted": trace.omitted,
        "outcome": outcome(record),
    })
}

fn decision(record: &Record) -> Option<Value> {
    let evidence = record.evidence.as_ref()?;
    let chosen = record.trace.scored.first()?;
    Some(json!({
        "backend": chosen.rank.backend,
        "rank": chosen.rank.rank,
        "incarnation": chosen.rank.incarnation,
        "reason": evidence.reason,
        "level": evidence.level,
        "matched_blocks": evidence.matched_blocks,
        "predicted_cached_tokens": evidence.predicted_cached_tokens,
        "predicted_ttft_seconds": evidence.predicted_ttft.as_secs_f64(),
    }))
}

fn line(line: &Line, winner: Option<&Line>, reason: Option<DecisionReason>) -> Value {
    let scored = matches!(line.verdict, Verdict::Chosen | Verdict::Behind { .. });
    let score = scored.then(|| {
        json!({
            "network_seconds": line.parts.network_seconds,
            "queue_delay_seconds": line.parts.queue_delay_seconds,
            "prefill_seconds": line.parts.prefill_seconds,
            "eviction_cost_seconds": line.parts.eviction_cost_seconds,
            "others_delay_seconds": line.parts.others_delay_seconds,
            "hot_prefix_seconds": line.parts.hot_prefix_seconds,
            "total_seconds": line.parts.total_seconds(),
        })
    });
    json!({
        "backend": line.rank.backend,
        "rank": line.rank.rank,
        "incarnation": line.rank.incarnation,
        "state": line.state,
        "level": line.level,
        "chosen": line.verdict == Verdict::Chosen,
        "matched_blocks": line.matched_blocks,
        "cached_tokens": scored.then_some(line.cached_tokens),
        "uncached_tokens": scored.then_some(line.uncached_tokens),
        "in_flight": line.in_flight,
        "score": score,
        "why": why(line, winner, reason),
    })
}

fn why(line: &Line, winner: Option<&Line>, reason: Option<DecisionReason>) -> String {
    let seconds = match line.verdict {
        Verdict::Chosen => {
            return format!("chosen: {}", reason.map_or("", DecisionReason::as_str));
        }
        Verdict::Excluded => return "excluded: it failed this request already".to_owned(),
        Verdict::NotReady => return format!("not ready: {}", line.state.as_str()),
        Verdict::NotServed => return "does not serve the model under this name".to_owned(),
        Verdict::BreakerOpen => return "breaker open after faults".to_owned(),
        Verdict::Held(Hold::Full { .. }) => return "its engine said that it is full".to_owned(),
        Verdict::Held(Hold::Returning) => {
            return "it is back, and has as many requests as it gets for now".to_owned();
        }
        Verdict::Behind { seconds } => seconds,
    };
    match reason {
        Some(DecisionReason::RoundRobin) => "its turn comes later".to_owned(),
        Some(DecisionReason::LeastLoad) => {
            let least = winner.map_or(0, |w| w.in_flight);
            if line.in_flight > least {
                format!("more requests in flight: {} against {least}", line.in_flight)
            } else {
                "as few in flight, but chosen more recently".to_owned()
            }
        }
        _ if seconds > 0.0 => format!("score higher by {:.3} ms", seconds * 1e3),
        _ => "tie: the winner matches more, has less booked, or was chosen longer ago".to_owned(),
    }
}

fn outcome(record: &Record) -> Value {
    let (ended, seconds) = match &record.ended {
        None if record.trace.rejected.is_some() => ("refused", None),
        None => ("open", None),
        Some((Ending::Finished(_), s)) => ("finished", Some(s)),
        Some((Ending::Failed(_), s)) => ("failed", Some(s)),
        Some((Ending::Cancelled, s)) => ("cancelled", Some(s)),
        Some((Ending::Reaped, s)) => ("never_closed", Some(s)),
    };
    let failure = match &record.ended {
        Some((Ending::Failed(class), _)) => Some(class.as_str()),
        _ => None,
    };
    let usage: Option<Usage> = match record.ended {
        Some((Ending::Finished(usage), _)) => usage,
        _ => None,
    };
    json!({
        "state": ended,
        "failure": failure,
        "first_token_seconds": record.first_token_seconds,
        "seconds": seconds,
        "usage": usage,
    })
}
