//! Another config file while the router runs.

use domain::DecisionReason;
use scheduling::Policy;

use super::kit::{Bench, doc, fleet_of};
use crate::Config;
use crate::config::Choosing;

#[test]
fn another_policy_holds_from_the_next_decision_on_and_what_is_known_stays() {
    let mut bench = Bench::new(fleet_of(3));
    bench.serve(doc(1, 100));
    let mut policy = |policy: Policy| {
        let scheduling = scheduling::Config { policy, ..scheduling::Config::default() };
        bench.router.configure(Config { choosing: Choosing { scheduling, ..Choosing::default() } });
        bench.route(doc(1, 100)).evidence
    };
    assert_eq!(policy(Policy::RoundRobin).reason, DecisionReason::RoundRobin);
    assert_eq!(policy(Policy::LeastLoad).reason, DecisionReason::LeastLoad);
    let back = policy(Policy::Prefix);
    assert_eq!((back.reason, back.matched_blocks), (DecisionReason::WarmPrefix, 100));
}
