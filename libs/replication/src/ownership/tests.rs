use std::collections::BTreeMap;

use domain::Incarnation;
use proptest::prelude::*;

use super::*;
use crate::member::{Member, Role};

fn process(name: &str, incarnation: u64) -> Process {
    Process { id: name.into(), incarnation: Incarnation(incarnation) }
}

fn list(routers: &[&str]) -> MemberList {
    let member =
        |name: &&str| Member { process: process(name, 1), role: Role::Router, address: "".into() };
    MemberList { epoch: Epoch::ZERO, members: routers.iter().map(member).collect() }
}

fn names(pool: &str, list: &MemberList) -> Vec<String> {
    order(&pool.into(), list).iter().map(|p| p.id.to_string()).collect()
}

/// Members of different versions must agree: these values may never change.
#[test]
fn the_order_is_fixed() {
    let list = list(&["router-0", "router-1", "router-2", "router-3"]);
    let orders: Vec<_> = ["m", "llama", "llama/1"].map(|pool| names(pool, &list)).into();
    assert_eq!(
        orders,
        [
            ["router-2", "router-1", "router-3", "router-0"],
            ["router-2", "router-0", "router-1", "router-3"],
            ["router-0", "router-3", "router-1", "router-2"],
        ]
    );
}

#[test]
fn edges_own_nothing_and_a_restart_moves_nothing() {
    let mut members = list(&["a", "b", "c"]).members.to_vec();
    members.push(Member { process: process("edge", 1), role: Role::Edge, address: "".into() });
    members[1].process.incarnation = Incarnation(9);
    let with_edge = MemberList { epoch: Epoch::ZERO, members: members.into() };
    for pool in ["p", "q", "r", "s"] {
        assert_eq!(names(pool, &with_edge), names(pool, &list(&["a", "b", "c"])));
    }
}

#[test]
fn pools_are_spread_evenly() {
    let list = list(&["a", "b", "c", "d"]);
    let mut owned: BTreeMap<String, usize> = BTreeMap::new();
    for pool in 0..4000 {
        *owned.entry(names(&format!("pool-{pool}"), &list)[0].clone()).or_default() += 1;
    }
    assert!(owned.values().all(|n| (850..1150).contains(n)), "{owned:?}");
}

proptest! {
    #[test]
    fn a_router_that_goes_moves_only_what_it_had(
        pool in "[a-z]{1,12}",
        routers in prop::collection::btree_set("[a-z]{1,8}", 2..8),
        gone in any::<prop::sample::Index>(),
    ) {
        let routers: Vec<&str> = routers.iter().map(String::as_str).collect();
        let gone = routers[gone.index(routers.len())];
        let left: Vec<&str> = routers.iter().copied().filter(|r| *r != gone).collect();
        let mut before = names(&pool, &list(&routers));
        before.retain(|name| name != gone);
        prop_assert_eq!(before, names(&pool, &list(&left)));
    }

    #[test]
    fn a_reign_is_above_all_that_its_owner_knew(
        terms in (0_u64..4, 0_u64..4), numbers in (0_u64..4, 0_u64..4), turn in 0_u64..9,
        more in 0_u64..3,
    ) {
        let before = Reign {
            epoch: Epoch { term: terms.0, number: numbers.0 },
            stream: Stream { turn, owner: process("z", 9) },
        };
        let epoch = Epoch { term: terms.1, number: numbers.1 };
        let next = Reign::after(Some(&before), turn + more, epoch, process("a", 1));
        prop_assert!(next > before && next.stream.turn > turn + more);
    }
}
