//! Which pools this router serves.
//!
//! The first router in a pool's order over the member list serves it. Another serves it when
//! edges went on asking it for some time although they were told who should: they reach nobody
//! better. It does so until a newer list. Without a list everything is served: whoever asks was
//! told of nobody else.

use std::collections::HashMap;
use std::time::Duration;

use domain::Moment;
use replication::{CLAIM_WAIT, Epoch, MemberList, PoolId, Process, Reign, Stream, order};

/// Edges that still want the pool ask at least once a second, when they audit.
const ASKED_AGAIN_WITHIN: Duration = Duration::from_millis(2500);

/// What this router is to a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It serves it.
    Serves(Reign),
    /// Another does, as far as is known.
    Other(Option<Process>),
}

#[derive(Debug)]
pub(crate) struct Ownership {
    me: Process,
    list: MemberList,
    pools: HashMap<PoolId, Known>,
    served: usize,
}

/// What is known of a pool under the current list.
#[derive(Debug)]
struct Known {
    first: Option<Process>,
    /// The reign's stream, while it is served.
    stream: Option<Stream>,
    /// First and last time that it was asked for without being served.
    asked: Option<(Moment, Moment)>,
}

impl Ownership {
    pub(crate) fn new(me: Process, list: MemberList) -> Self {
        Self { me, list, pools: HashMap::new(), served: 0 }
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.list.epoch
    }

    pub(crate) fn list(&self) -> &MemberList {
        &self.list
    }

    /// A list came. Returns the pools that another router serves by it, if it is newer.
    pub(crate) fn set_list(&mut self, list: &MemberList) -> Vec<PoolId> {
        if list.epoch <= self.list.epoch {
            return Vec::new();
        }
        self.list = list.clone();
        let mut lost = Vec::new();
        for (pool, known) in &mut self.pools {
            known.first = order(pool, &self.list).into_iter().next();
            known.asked = None;
            let is_ours = known.first.as_ref().is_none_or(|first| *first == self.me);
            if !is_ours && known.stream.take().is_some() {
                lost.push(pool.clone());
            }
        }
        self.served -= lost.len();
        lost
    }

    /// Pools that are served.
    pub(crate) fn served(&self) -> usize {
        self.served
    }

    /// An edge asks for a pool that exists. A reign that begins is named after `unix_millis`: it
    /// is above every one that began before it anywhere.
    pub(crate) fn asked(&mut self, pool: &PoolId, now: Moment, unix_millis: u64) -> Standing {
        let known = self.pools.entry(pool.clone()).or_insert_with(|| Known {
            first: order(pool, &self.list).into_iter().next(),
            stream: None,
            asked: None,
        });
        let epoch = self.list.epoch;
        if let Some(stream) = &known.stream {
            return Standing::Serves(Reign { epoch, stream: stream.clone() });
        }
        let is_ours = known.first.as_ref().is_none_or(|first| *first == self.me);
        if !is_ours && !known.is_wanted(now) {
            return Standing::Other(known.first.clone());
        }
        tracing::info!(pool = pool.as_str(), first = is_ours, "this router serves the pool");
        let stream = Stream { turn: unix_millis, owner: self.me.clone() };
        known.stream = Some(stream.clone());
        known.asked = None;
        self.served += 1;
        Standing::Serves(Reign { epoch, stream })
    }
}

impl Known {
    /// Whether edges have asked for so long that they cannot be reaching anybody better.
    fn is_wanted(&mut self, now: Moment) -> bool {
        let since = match self.asked {
            Some((since, last)) if now.since(last) <= ASKED_AGAIN_WITHIN => since,
            _ => now,
        };
        self.asked = Some((since, now));
        now.since(since) >= CLAIM_WAIT
    }
}

#[cfg(test)]
mod tests {
    use domain::Incarnation;
    use replication::{Member, Role};

    use super::*;

    fn process(id: &str, incarnation: u64) -> Process {
        Process { id: id.into(), incarnation: Incarnation(incarnation) }
    }

    fn list(number: u64, routers: &[Process]) -> MemberList {
        let member = |process: &Process| Member {
            process: process.clone(),
            role: Role::Router,
            address: "http://127.0.0.1:1".into(),
        };
        let epoch = Epoch { term: 1, number };
        MemberList { epoch, members: routers.iter().map(member).collect() }
    }

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(millis * 1_000_000)
    }

    fn both() -> (Process, Process, PoolId) {
        let (a, b) = (process("a", 1), process("b", 1));
        let pool = PoolId::from("pool");
        let order = order(&pool, &list(1, &[a.clone(), b.clone()]));
        (order[0].clone(), order[1].clone(), pool)
    }

    #[test]
    fn without_a_list_everything_is_served() {
        let mut alone = Ownership::new(process("a", 1), MemberList::default());
        assert!(matches!(alone.asked(&"p".into(), at(0), 1), Standing::Serves(_)));
        assert_eq!(alone.served(), 1);
    }

    #[test]
    fn the_first_in_order_serves_and_the_other_names_it() {
        let (first, second, pool) = both();
        let list = list(1, &[first.clone(), second.clone()]);
        let mut owner = Ownership::new(first.clone(), list.clone());
        let Standing::Serves(reign) = owner.asked(&pool, at(0), 7) else { panic!("it is first") };
        assert_eq!((reign.epoch, reign.stream.turn), (list.epoch, 7));
        assert_eq!(owner.asked(&pool, at(9), 99), Standing::Serves(reign), "one reign");
        let mut other = Ownership::new(second, list);
        assert_eq!(other.asked(&pool, at(0), 7), Standing::Other(Some(first)));
    }

    #[test]
    fn who_is_asked_on_and_on_serves_until_a_newer_list_names_another() {
        let (first, second, pool) = both();
        let routers = [first.clone(), second.clone()];
        let mut other = Ownership::new(second.clone(), list(1, &routers));
        assert!(matches!(other.asked(&pool, at(0), 1), Standing::Other(_)));
        assert!(matches!(other.asked(&pool, at(200), 1), Standing::Other(_)));
        // A long silence: they had found somebody.
        assert!(matches!(other.asked(&pool, at(5000), 1), Standing::Other(_)));
        let Standing::Serves(reign) = other.asked(&pool, at(5300), 5300) else {
            panic!("it was asked for long enough")
        };
        assert!(other.set_list(&list(1, &routers)).is_empty(), "no newer list");
        let restarted = Process { incarnation: Incarnation(2), ..first };
        let newer = list(2, &[restarted.clone(), second]);
        assert_eq!(other.set_list(&newer), std::slice::from_ref(&pool));
        assert_eq!(other.asked(&pool, at(5400), 5400), Standing::Other(Some(restarted.clone())));
        let mut owner = Ownership::new(restarted, newer);
        let Standing::Serves(next) = owner.asked(&pool, at(0), 5401) else { panic!("first") };
        assert!(next > reign, "edges follow the newer reign");
    }

    #[test]
    fn a_reign_moves_along_with_lists_that_name_its_owner() {
        let (first, second, pool) = both();
        let mut owner = Ownership::new(first.clone(), list(1, &[first.clone(), second]));
        let Standing::Serves(before) = owner.asked(&pool, at(0), 1) else { panic!("first") };
        assert!(owner.set_list(&list(2, &[first])).is_empty());
        let Standing::Serves(after) = owner.asked(&pool, at(1), 2) else { panic!("still first") };
        assert_eq!(after.stream, before.stream);
        assert!(after.epoch > before.epoch);
    }
}
