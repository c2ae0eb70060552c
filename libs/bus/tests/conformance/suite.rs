//! What every adapter of the bus must do.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use bus::{Bus, BusError, Delivery, MAX_PAYLOAD, Message, Pattern, Room, Subject, Subscription};
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::time::timeout;

/// What the suite waits at most for something that normally takes milliseconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// An adapter under test.
pub(crate) trait Adapter {
    /// Two ends of a new bus, connected.
    async fn ends(&self) -> Ends;
}

/// Two ends of one bus; the same handle twice where there is only one.
pub(crate) struct Ends {
    pub(crate) one: Arc<dyn Bus>,
    pub(crate) other: Arc<dyn Bus>,
    /// What must live as long as they do.
    pub(crate) ground: Box<dyn Any>,
}

pub(crate) fn subject(text: &str) -> Subject {
    Subject::new(text).unwrap()
}

pub(crate) async fn listen(bus: &Arc<dyn Bus>, pattern: &str, messages: usize) -> Subscription {
    let room = Room { messages, bytes: 64 << 20 };
    bus.subscribe(Pattern::new(pattern).unwrap(), room).await
}

/// What comes next, in time.
pub(crate) async fn next(subscription: &mut Subscription) -> Option<Delivery> {
    timeout(PATIENCE, subscription.next()).await.expect("a delivery in time")
}

/// The next message, as subject and text.
pub(crate) async fn message(subscription: &mut Subscription) -> (String, String) {
    match next(subscription).await {
        Some(Delivery::Message(Message { subject, payload })) => {
            (subject.to_string(), String::from_utf8(payload.to_vec()).unwrap())
        }
        other => panic!("{other:?}"),
    }
}

/// Waits until a subscription hears what an end publishes under a subject: a subscription at
/// another end takes a moment. Gaps on the way are passed over.
pub(crate) async fn link(bus: &Arc<dyn Bus>, subject: &Subject, subscription: &mut Subscription) {
    const LOOK: Duration = Duration::from_millis(5);
    let linked = async {
        for probe in 0_u32.. {
            let probe = Bytes::from(format!("probe {probe}"));
            // While the connection is away it is dropped, and another one is tried.
            let _ = bus.publish(subject, probe.clone());
            // Behind the newest probe there is none on its way.
            while let Ok(delivery) = timeout(LOOK, subscription.next()).await {
                match delivery.expect("it goes on") {
                    Delivery::Message(message) if message.payload == probe => return,
                    _ => {}
                }
            }
        }
    };
    timeout(PATIENCE, linked).await.expect("a link in time");
}

pub(crate) async fn a_message_reaches_everybody_whose_pattern_matches(adapter: impl Adapter) {
    let ends = adapter.ends().await;
    let probe = subject("probe.probe.probe");
    let mut exact = listen(&ends.other, "w.backends.a", 100).await;
    let mut one = listen(&ends.other, "w.*.a", 100).await;
    let mut rest = listen(&ends.other, "w.backends.>", 100).await;
    // The last one: when that is with the server, the others are.
    let mut all = listen(&ends.other, ">", 100).await;
    link(&ends.one, &probe, &mut all).await;
    for text in ["w.backends.a", "w.backends.b", "w.tenants.a", "w.backends", "w.backends.a.b"] {
        ends.one.publish(&subject(text), text.to_owned().into()).unwrap();
    }
    ends.one.publish(&subject("w.backends.a"), "last".into()).unwrap();
    let heard = async |subscription: &mut Subscription| {
        let mut heard = Vec::new();
        loop {
            let (subject, text) = message(subscription).await;
            if text == "last" {
                return heard;
            }
            assert_eq!(subject, text);
            heard.push(text);
        }
    };
    assert_eq!(heard(&mut exact).await, ["w.backends.a"]);
    assert_eq!(heard(&mut one).await, ["w.backends.a", "w.tenants.a"]);
    assert_eq!(heard(&mut rest).await, ["w.backends.a", "w.backends.b", "w.backends.a.b"]);
    let five = ["w.backends.a", "w.backends.b", "w.tenants.a", "w.backends", "w.backends.a.b"];
    assert_eq!(heard(&mut all).await, five);
}

pub(crate) async fn what_an_end_publishes_after_it_subscribed_is_heard(adapter: impl Adapter) {
    let ends = adapter.ends().await;
    for round in 0..20 {
        let mut subscription = listen(&ends.one, "s", 10).await;
        let text = round.to_string();
        ends.one.publish(&subject("s"), text.clone().into()).unwrap();
        assert_eq!(message(&mut subscription).await, ("s".to_owned(), text));
    }
}

pub(crate) async fn messages_of_one_publisher_come_in_order(adapter: impl Adapter) {
    let ends = adapter.ends().await;
    let mut subscription = listen(&ends.other, "s.*", 5000).await;
    link(&ends.one, &subject("s.x"), &mut subscription).await;
    for at in 0..2000 {
        let subject = subject(&format!("s.{}", at % 7));
        ends.one.publish(&subject, at.to_string().into()).unwrap();
    }
    for at in 0..2000 {
        assert_eq!(message(&mut subscription).await.1, at.to_string());
    }
}

pub(crate) async fn a_slow_subscriber_loses_the_oldest_and_sees_how_many(adapter: impl Adapter) {
    const SENT: u64 = 2000;
    let ends = adapter.ends().await;
    let mut slow = listen(&ends.other, "s", 10).await;
    let mut quick = listen(&ends.other, "s", 5000).await;
    link(&ends.one, &subject("s"), &mut quick).await;
    // The slow one heard the probes, too.
    let mut missed = Vec::new();
    for at in 0..SENT {
        ends.one.publish(&subject("s"), at.to_string().into()).unwrap();
    }
    for at in 0..SENT {
        assert_eq!(message(&mut quick).await.1, at.to_string());
    }
    let (mut heard, mut last) = (0, None);
    while last != Some(SENT - 1) {
        match next(&mut slow).await {
            Some(Delivery::Gap(gap)) => {
                assert!(!gap.uncounted && gap.dropped > 0);
                missed.push(gap.dropped);
            }
            Some(Delivery::Message(message)) => {
                let text = std::str::from_utf8(&message.payload).unwrap();
                if let Ok(number) = text.parse::<u64>() {
                    assert!(last < Some(number), "they come in order");
                    last = Some(number);
                    heard += 1;
                }
            }
            None => panic!("it ended"),
        }
    }
    assert!(!missed.is_empty());
    // Some probes may be among the dropped.
    assert!(heard + missed.iter().sum::<u64>() >= SENT, "{heard} heard, {missed:?} missed");
}

pub(crate) async fn a_publisher_never_waits(adapter: impl Adapter) {
    let ends = adapter.ends().await;
    let mut subscription = listen(&ends.other, "s", 10).await;
    link(&ends.one, &subject("s"), &mut subscription).await;
    // Nobody reads and no other task gets a turn: each is taken or dropped there and then.
    let payload = Bytes::from(vec![7; 1000]);
    for _ in 0..50_000 {
        let sent = ends.one.publish(&subject("s"), payload.clone());
        assert!(matches!(sent, Ok(()) | Err(BusError::Busy)), "{sent:?}");
    }
    link(&ends.one, &subject("s"), &mut subscription).await;
}

pub(crate) async fn payloads_are_bytes_up_to_a_limit(adapter: impl Adapter) {
    let ends = adapter.ends().await;
    let mut subscription = listen(&ends.other, "s", 10).await;
    link(&ends.one, &subject("s"), &mut subscription).await;
    let payloads =
        [Bytes::new(), Bytes::from_iter(0..=u8::MAX), Bytes::from(vec![0xff; MAX_PAYLOAD])];
    for payload in payloads {
        ends.one.publish(&subject("s"), payload.clone()).unwrap();
        match next(&mut subscription).await {
            Some(Delivery::Message(message)) => assert_eq!(message.payload, payload),
            other => panic!("{other:?}"),
        }
    }
    let large = ends.one.publish(&subject("s"), Bytes::from(vec![0; MAX_PAYLOAD + 1]));
    let (size, limit) = (MAX_PAYLOAD + 1, MAX_PAYLOAD);
    assert_eq!(large, Err(BusError::TooLarge { size, limit }));
}

pub(crate) async fn a_subscription_ends_with_its_bus(adapter: impl Adapter) {
    let ends = adapter.ends().await;
    let mut subscription = listen(&ends.one, ">", 10).await;
    drop(ends.one);
    drop(ends.other);
    assert_eq!(next(&mut subscription).await, None);
}

pub(crate) async fn the_status_tells_of_the_connection(adapter: impl Adapter) {
    let ends = adapter.ends().await;
    let status = ends.one.status().borrow().clone();
    assert!(status.connected && status.connects == 1 && status.last_error.is_none());
    drop(ends.ground);
}

macro_rules! run_on {
    ($adapter:expr) => {
        $crate::suite::run_on!($adapter;
            a_message_reaches_everybody_whose_pattern_matches,
            what_an_end_publishes_after_it_subscribed_is_heard,
            messages_of_one_publisher_come_in_order,
            a_slow_subscriber_loses_the_oldest_and_sees_how_many,
            a_publisher_never_waits,
            payloads_are_bytes_up_to_a_limit,
            a_subscription_ends_with_its_bus,
            the_status_tells_of_the_connection,
        );
    };
    ($adapter:expr; $($name:ident),* $(,)?) => {
        $(#[tokio::test]
        async fn $name() {
            $crate::suite::$name($adapter).await;
        })*
    };
}
pub(crate) use run_on;
