//! Any sequence of calls against a plain model.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Book { lease: u64, tokens: u32, seconds: f64, streaming: bool },
    FirstToken { lease: u64 },
    End { lease: u64 },
    Starts,
    Wait { millis: u64 },
}

fn any_step() -> impl Strategy<Value = Step> {
    let lease = 0..12_u64;
    prop_oneof![
        4 => (lease.clone(), 0..20_000_u32, 0.0..2.0_f64, any::<bool>()).prop_map(
            |(lease, tokens, seconds, streaming)| Step::Book { lease, tokens, seconds, streaming }
        ),
        3 => lease.clone().prop_map(|lease| Step::FirstToken { lease }),
        2 => lease.prop_map(|lease| Step::End { lease }),
        2 => Just(Step::Starts),
        3 => (0..900_u64).prop_map(|millis| Step::Wait { millis }),
    ]
}

proptest! {
    /// Against a model that keeps only who is booked and what was told.
    #[test]
    fn whatever_happens_counts_and_delays_stay_right(
        steps in prop::collection::vec(any_step(), 0..120),
    ) {
        let mut book = LoadBook::new();
        let mut booked = std::collections::BTreeMap::new();
        let mut told = std::collections::BTreeSet::new();
        let mut now = Moment::from_nanos(1);
        for step in steps {
            match step {
                Step::Book { lease, tokens, seconds, streaming } => {
                    // What stands in a slow line counts for more.
                    let most = seconds * book.pace.stretch();
                    book.book(LeaseId(lease), work(tokens, seconds), streaming, now);
                    booked.insert(lease, most);
                    told.remove(&lease);
                }
                Step::FirstToken { lease } => {
                    if let Some(sample) = book.first_token(LeaseId(lease), now) {
                        prop_assert!(booked.contains_key(&lease));
                        prop_assert!(sample.seconds.is_finite() && sample.seconds > 0.0);
                        prop_assert!((0.0..=1.0).contains(&sample.shape.latencies));
                    }
                }
                Step::End { lease } => {
                    prop_assert_eq!(
                        book.end(LeaseId(lease), now),
                        booked.remove(&lease).is_some()
                    );
                    told.remove(&lease);
                }
                Step::Starts => {
                    for lease in starts(&mut book, now) {
                        prop_assert!(booked.contains_key(&lease.0), "{lease:?} has ended");
                        prop_assert!(told.insert(lease.0), "{lease:?} was told twice");
                    }
                }
                Step::Wait { millis } => now = now + Duration::from_millis(millis),
            }
            prop_assert_eq!(book.in_flight() as usize, booked.len());
            prop_assert!(book.running() <= book.in_flight());
            let delay = book.queue_delay_seconds(now);
            let all: f64 = booked.values().sum();
            prop_assert!((0.0..=all + 1e-6).contains(&delay), "{} of {}", delay, all);
            let later = book.queue_delay_seconds(now + Duration::from_millis(100));
            prop_assert!(later <= delay && later >= delay - 0.1 - 1e-9);
        }
        for lease in starts(&mut book, now) {
            told.insert(lease.0);
        }
        for lease in booked.keys() {
            book.first_token(LeaseId(*lease), now);
        }
        let rest: Vec<u64> = starts(&mut book, now).iter().map(|l| l.0).collect();
        for lease in &rest {
            prop_assert!(told.insert(*lease));
        }
        prop_assert_eq!(told.into_iter().collect::<Vec<_>>(), booked.into_keys().collect::<Vec<_>>());
        prop_assert_eq!(book.booked_seconds(now), 0.0);
    }
}

proptest! {
    #[test]
    fn asking_for_starts_only_when_due_is_asking_all_the_time(
        steps in prop::collection::vec((any_step(), any::<u8>()), 0..120),
    ) {
        let (mut asked, mut spared) = (LoadBook::new(), LoadBook::new());
        let mut now = Moment::from_nanos(1);
        for (step, room) in steps {
            let start = |book: &mut LoadBook| {
                let mut told = Vec::new();
                book.start_due(now, |lease, due| {
                    told.push((lease, due));
                    u64::from(room) % 5 != lease.0 % 5
                });
                told
            };
            let told = start(&mut asked);
            let due = spared.next_due().is_some_and(|due| due <= now);
            prop_assert_eq!(if due { start(&mut spared) } else { Vec::new() }, told);
            for book in [&mut asked, &mut spared] {
                match step {
                    Step::Book { lease, tokens, seconds, streaming } => {
                        book.book(LeaseId(lease), work(tokens, seconds), streaming, now);
                    }
                    Step::FirstToken { lease } => {
                        book.first_token(LeaseId(lease), now);
                    }
                    Step::End { lease } => {
                        book.end(LeaseId(lease), now);
                    }
                    Step::Starts | Step::Wait { .. } => {}
                }
            }
            if let Step::Wait { millis } = step {
                now = now + Duration::from_millis(millis);
            }
            prop_assert_eq!(asked.snapshot(), spared.snapshot());
        }
    }
}
