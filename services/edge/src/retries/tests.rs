use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn at(millis: u64) -> Moment {
    Moment::ZERO + Duration::from_millis(millis)
}

/// A budget with its terms.
struct Bench(Arc<RetryBudget>, RetryTerms);

impl Bench {
    fn turn(&self, attempt: u32, now: Moment) -> Option<Turn> {
        self.0.turn(self.1, attempt, now)
    }

    fn unused(&self, turn: Turn) {
        self.0.unused(turn);
    }

    /// Retries that are allowed at once.
    fn allowed(&self, now: Moment) -> usize {
        std::iter::from_fn(|| self.turn(1, now)).take(1000).count()
    }
}

fn budget(ratio: f64, per_second: u32) -> Bench {
    Bench(Arc::default(), RetryTerms { ratio, per_second })
}

#[test]
fn retries_are_a_share_of_the_requests_and_a_few_more() {
    let budget = budget(0.2, 1);
    assert_eq!(budget.allowed(at(0)), 10, "one a second, over the window");
    for _ in 0..100 {
        assert!(budget.turn(0, at(500)).is_some(), "a first attempt is always made");
    }
    assert_eq!(budget.allowed(at(900)), 20);
    assert_eq!(budget.allowed(at(9_900)), 0);
    assert_eq!(budget.allowed(at(10_000)), 10, "what is past counts neither way");
}

#[test]
fn without_a_share_and_a_floor_nothing_is_tried_again() {
    let budget = budget(0.0, 0);
    for _ in 0..100 {
        assert!(budget.turn(0, at(0)).is_some());
    }
    assert_eq!(budget.allowed(at(0)), 0);
}

#[test]
fn a_turn_that_was_not_used_is_another_ones() {
    let budget = budget(1.0, 0);
    assert!(budget.turn(0, at(0)).is_some());
    let turn = budget.turn(1, at(10)).expect("one for one");
    assert!(budget.turn(1, at(20)).is_none());
    budget.unused(turn);
    let turn = budget.turn(1, at(30)).expect("given back");
    // Its second is out of sight by then, and its place another one's.
    assert!(budget.turn(0, at(10_000)).is_some() && budget.turn(1, at(10_000)).is_some());
    budget.unused(turn);
    assert!(budget.turn(1, at(10_000)).is_none());
}

#[test]
fn every_pool_has_its_own_up_to_a_number() {
    let budgets = RetryBudgets::default();
    let terms = RetryTerms { ratio: 0.0, per_second: 1 };
    let of = |pool: &str| Bench(budgets.of(&ModelId::from(pool)), terms);
    assert_eq!(of("a").allowed(at(0)), 10);
    assert_eq!(of("a").allowed(at(0)), 0, "the same again");
    assert_eq!(of("b").allowed(at(0)), 10);
    let a = budgets.of(&"a".into());
    for pool in 0..2 * MAX_POOLS {
        budgets.of(&ModelId::from(pool.to_string().as_str()));
    }
    assert!(Arc::ptr_eq(&budgets.of(&"one more".into()), budgets.others()));
    assert!(Arc::ptr_eq(&budgets.of(&"a".into()), &a));
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Wait {
        millis: u64,
    },
    Request,
    Retry,
    /// Gives a turn back that was taken, by its place among them.
    Unused(prop::sample::Index),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        2 => prop_oneof![0..1500u64, Just(30_000)].prop_map(|millis| Op::Wait { millis }),
        4 => Just(Op::Request),
        4 => Just(Op::Retry),
        1 => any::<prop::sample::Index>().prop_map(Op::Unused),
    ]
}

/// Everything that ever happened, by its second.
#[derive(Default)]
struct Naive {
    requests: Vec<u64>,
    retries: Vec<u64>,
}

impl Naive {
    fn seen(events: &[u64], second: u64) -> usize {
        events.iter().filter(|at| **at + WINDOW_SECONDS as u64 > second).count()
    }

    fn may_retry(&self, terms: RetryTerms, second: u64) -> bool {
        let reserve = f64::from(terms.per_second) * WINDOW_SECONDS as f64;
        let share = terms.ratio * Self::seen(&self.requests, second) as f64;
        (Self::seen(&self.retries, second) + 1) as f64 <= reserve + share
    }
}

proptest! {
    #[test]
    fn the_budget_is_that_of_remembering_everything(
        ratio in prop_oneof![Just(0.0), Just(0.2), 0.0..2.0f64],
        per_second in 0..3u32,
        ops in prop::collection::vec(op(), 0..400),
    ) {
        let terms = RetryTerms { ratio, per_second };
        let budget = Bench(Arc::default(), terms);
        let (mut naive, mut millis, mut turns) = (Naive::default(), 0, Vec::new());
        for op in ops {
            let second = millis / 1000;
            match op {
                Op::Wait { millis: more } => millis += more,
                Op::Request => {
                    prop_assert!(budget.turn(0, at(millis)).is_some());
                    naive.requests.push(second);
                }
                Op::Retry => {
                    let turn = budget.turn(1, at(millis));
                    prop_assert_eq!(turn.is_some(), naive.may_retry(terms, second));
                    if let Some(turn) = turn {
                        naive.retries.push(second);
                        turns.push((turn, second));
                    }
                }
                Op::Unused(which) if !turns.is_empty() => {
                    let (turn, second) = turns.swap_remove(which.index(turns.len()));
                    budget.unused(turn);
                    let taken = naive.retries.iter().position(|at| *at == second);
                    naive.retries.swap_remove(taken.expect("it was taken"));
                }
                Op::Unused(_) => {}
            }
        }
    }
}
