//! Tells of a router's decisions.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use bus::Bus;
use domain::{Decision, Route};

use crate::{DecisionEvent, Region, encode};

/// Tells of every so many decisions of one. Telling costs a decision nothing but making the
/// event: what the bus does not take at once is lost.
pub struct DecisionEvents {
    bus: Arc<dyn Bus>,
    region: Region,
    one_in: NonZeroU32,
    decisions: AtomicU64,
}

impl DecisionEvents {
    /// Tells of one decision in `one_in`, the first included.
    pub fn new(bus: Arc<dyn Bus>, region: Region, one_in: NonZeroU32) -> Self {
        Self { bus, region, one_in, decisions: AtomicU64::new(0) }
    }

    /// A decision was made.
    pub fn decided(&self, route: &Route, decision: &Decision) {
        let number = self.decisions.fetch_add(1, Ordering::Relaxed);
        if !number.is_multiple_of(self.one_in.get().into()) {
            return;
        }
        let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let (rank, evidence) = (&decision.chosen.rank, &decision.evidence);
        let event = DecisionEvent {
            at_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
            region: self.region.name().to_owned(),
            request: route.request.to_string(),
            attempt: route.attempt,
            tenant: route.tenant.to_string(),
            model: route.model.to_string(),
            prompt_tokens: route.prompt.as_ref().map(|prompt| prompt.tokens),
            backend: rank.backend.to_string(),
            rank: rank.rank,
            reason: evidence.reason.as_str().to_owned(),
            predicted_cached_tokens: evidence.predicted_cached_tokens,
            predicted_ttft_seconds: evidence.predicted_ttft.as_secs_f64(),
            stands_for: self.one_in.get(),
        };
        // The bus counts what it does not take.
        let _ = self.bus.publish(&self.region.decisions(&event.model), encode(&event));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bus::{Delivery, MemoryBus, Pattern, Room};
    use domain::{
        Candidate, DecisionReason, Evidence, EvidenceLevel, Incarnation, LeaseId, Prompt, RankId,
        RequestId, ScoreParts,
    };
    use futures_util::StreamExt;

    use super::*;
    use crate::decode;

    fn decision() -> Decision {
        let rank = RankId { backend: "a".into(), incarnation: Incarnation(1), rank: 2 };
        let evidence = Evidence {
            matched_blocks: 1,
            predicted_cached_tokens: 16,
            predicted_ttft: Duration::from_millis(5),
            parts: ScoreParts::default(),
            level: EvidenceLevel::Model,
            reason: DecisionReason::WarmPrefix,
        };
        let chosen = Candidate { rank, url: "http://a:1".into(), pin_rank: false };
        Decision { lease: LeaseId(1), chosen, others: Vec::new(), evidence }
    }

    fn route(request: &str) -> Route {
        Route {
            request: RequestId::new(request),
            client_request: None,
            attempt: 0,
            tenant: "t".into(),
            model: "m".into(),
            prompt: Some(Prompt { tokens: 20, text_bytes: 80, keys: Vec::new() }),
            max_output_tokens: None,
            stream: true,
            excluded: Vec::new(),
            hold: Duration::ZERO,
            ranked: Vec::new(),
        }
    }

    #[tokio::test]
    async fn one_decision_in_so_many_is_told() {
        let bus = Arc::new(MemoryBus::new(bus::Metrics::default()));
        let all = Pattern::new("warmpath.v1.eu.decisions.>").unwrap();
        let mut heard = bus.subscribe(all, Room::default()).await;
        let (region, three) = (Region::new("eu").unwrap(), NonZeroU32::new(3).unwrap());
        let events = DecisionEvents::new(bus.clone(), region, three);
        for n in 0..7 {
            events.decided(&route(&format!("r{n}")), &decision());
        }
        drop((events, bus));
        let mut told = Vec::new();
        while let Some(Delivery::Message(message)) = heard.next().await {
            let event: DecisionEvent = decode(&message.payload).unwrap();
            assert_eq!((event.rank, event.prompt_tokens, event.stands_for), (2, Some(20), 3));
            told.push(event.request);
        }
        assert_eq!(told, ["r0", "r3", "r6"]);
    }
}
