//! Who was heard when, and who is to go. Pure: the time is an argument.

use std::collections::HashMap;
use std::time::Duration;

use domain::desired::{Backend as Wanted, LifecycleWish};
use domain::{Backend, BackendId, BackendState, Moment};

/// An announced engine that is not heard for so long is drained: it missed three announcements.
pub const SILENT_AFTER: Duration = Duration::from_secs(15);

/// A drain takes at least so long: routers have to hear of it, and what they sent has to show in
/// the engine's load.
pub const SHORTEST_DRAIN: Duration = Duration::from_secs(5);

/// An engine that is neither idle nor down by then is removed all the same.
pub const LONGEST_DRAIN: Duration = Duration::from_secs(300);

/// What is known of one announced engine.
#[derive(Debug)]
struct Known {
    heard: Moment,
    /// When the newest announcement was signed, in milliseconds since 1970.
    signed_ms: u64,
    /// Since when it drains on its own account.
    leaving: Option<Moment>,
}

/// Announced engines. After a start all count as heard just then.
#[derive(Debug, Default)]
pub(super) struct Lifetimes(HashMap<BackendId, Known>);

/// What is due for a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Nothing,
    Drain,
    Remove,
}

impl Lifetimes {
    /// Takes down an announcement; `false` if a newer one was heard before.
    pub(super) fn heard(&mut self, id: &BackendId, signed_ms: u64, now: Moment) -> bool {
        let fresh = Known { heard: now, signed_ms: 0, leaving: None };
        let known = self.0.entry(id.clone()).or_insert(fresh);
        if signed_ms <= known.signed_ms {
            return false;
        }
        (known.heard, known.signed_ms) = (now, signed_ms);
        true
    }

    /// What is due for a backend that is wanted so and was seen so last.
    pub(super) fn due(&mut self, wanted: &Wanted, seen: Option<&Backend>, now: Moment) -> Due {
        let Some(announced) = &wanted.announced else { return Due::Nothing };
        let fresh = Known { heard: now, signed_ms: 0, leaving: None };
        let known = self.0.entry(wanted.id.clone()).or_insert(fresh);
        if announced.withdrawn {
            let since = *known.leaving.get_or_insert(now);
            let over = now - since >= SHORTEST_DRAIN && is_idle(seen, since);
            return if over || now - since >= LONGEST_DRAIN { Due::Remove } else { Due::Nothing };
        }
        known.leaving = None;
        // What an operator took out stays as it is: they know about it.
        let silent = now - known.heard > SILENT_AFTER && wanted.wish == LifecycleWish::Ready;
        if silent { Due::Drain } else { Due::Nothing }
    }

    /// Forgets all but these.
    pub(super) fn keep(&mut self, exists: impl Fn(&BackendId) -> bool, now: Moment) {
        // One that was refused or is being probed has no document yet.
        self.0.retain(|id, known| exists(id) || now - known.heard <= SILENT_AFTER);
    }
}

/// Whether nothing runs there that we know of: a reading from after the drain's begin says so, or
/// there is nobody to run anything.
fn is_idle(seen: Option<&Backend>, since: Moment) -> bool {
    let Some(seen) = seen else { return true };
    let idle = |rank: &domain::RankState| {
        rank.load.is_some_and(|load| {
            load.at > since + SHORTEST_DRAIN / 2 && load.running == 0 && load.waiting == 0
        })
    };
    seen.state == BackendState::Down || seen.ranks.iter().all(idle)
}

#[cfg(test)]
mod tests {
    use domain::desired::Announced;
    use domain::{EngineKind, Incarnation, LoadSample, RankState};

    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::ZERO + Duration::from_secs(1000 + seconds)
    }

    fn wanted(wish: LifecycleWish, withdrawn: bool) -> Wanted {
        let announced = Announced { token: "t".to_owned(), withdrawn };
        Wanted {
            id: "a".into(),
            url: "http://a:1".to_owned(),
            engine: None,
            credential: None,
            wish,
            announced: Some(announced),
            unknown: Default::default(),
        }
    }

    fn seen(state: BackendState, read: u64, running: u32) -> Backend {
        let load = LoadSample {
            at: at(read),
            running,
            waiting: 0,
            kv_usage: None,
            preemptions: None,
            prefix_cache: None,
            prefills: None,
        };
        Backend {
            id: "a".into(),
            incarnation: Incarnation(1),
            url: "http://a:1".into(),
            engine: EngineKind::Vllm,
            state,
            models: Vec::new(),
            ranks: vec![RankState { rank: 0, cache: None, slots: None, load: Some(load) }],
            network: Duration::ZERO,
            credential: None,
        }
    }

    #[test]
    fn silence_drains_what_was_wanted_ready_and_nothing_else() {
        let mut lifetimes = Lifetimes::default();
        let ready = wanted(LifecycleWish::Ready, false);
        assert_eq!(lifetimes.due(&ready, None, at(0)), Due::Nothing, "just started");
        assert_eq!(lifetimes.due(&ready, None, at(15)), Due::Nothing);
        assert_eq!(lifetimes.due(&ready, None, at(16)), Due::Drain);
        let maintained = wanted(LifecycleWish::Maintenance, false);
        assert_eq!(lifetimes.due(&maintained, None, at(99)), Due::Nothing);
        assert!(lifetimes.heard(&"a".into(), 7, at(100)));
        assert_eq!(lifetimes.due(&ready, None, at(115)), Due::Nothing);
        let operators = Wanted { announced: None, ..ready };
        assert_eq!(lifetimes.due(&operators, None, at(999)), Due::Nothing);
    }

    #[test]
    fn a_drained_one_goes_when_it_is_idle_or_down_or_at_last() {
        let leaving = wanted(LifecycleWish::Draining, true);
        let due = |backend: &Backend, seconds: u64| {
            let mut lifetimes = Lifetimes::default();
            lifetimes.due(&leaving, Some(backend), at(0));
            lifetimes.due(&leaving, Some(backend), at(seconds))
        };
        let ready = BackendState::Ready;
        assert_eq!(due(&seen(ready, 4, 0), 4), Due::Nothing, "too early");
        assert_eq!(due(&seen(ready, 4, 0), 5), Due::Remove);
        assert_eq!(due(&seen(ready, 1, 0), 5), Due::Nothing, "read before the drain was heard of");
        assert_eq!(due(&seen(ready, 299, 3), 299), Due::Nothing);
        assert_eq!(due(&seen(ready, 299, 3), 300), Due::Remove);
        assert_eq!(due(&seen(BackendState::Down, 1, 3), 5), Due::Remove);
    }

    #[test]
    fn announcements_out_of_order_are_told() {
        let mut lifetimes = Lifetimes::default();
        assert!(lifetimes.heard(&"a".into(), 7, at(0)));
        assert!(!lifetimes.heard(&"a".into(), 7, at(1)) && !lifetimes.heard(&"a".into(), 6, at(1)));
        assert!(lifetimes.heard(&"a".into(), 8, at(1)) && lifetimes.heard(&"b".into(), 1, at(1)));
        lifetimes.keep(|_| false, at(17));
        assert!(lifetimes.heard(&"a".into(), 1, at(17)), "forgotten");
    }
}
