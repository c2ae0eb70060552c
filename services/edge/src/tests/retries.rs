//! How often requests are tried again, all together, and what engines that are full ask for.

use std::time::Duration;

use domain::ErrorCode;

use crate::RawRetryBudget;
use crate::config::RawConfig;
use crate::testing::*;

async fn good() -> Engine {
    Engine::start("b", vec![vec![answer("200 OK", "", "good")]]).await
}

async fn bed(engines: &[&Engine], ratio: f64, per_second: u32) -> Bed {
    let retry_budget = RawRetryBudget { ratio, per_second };
    let edge = RawConfig { retry_budget, ..RawConfig::default() };
    Setup { edge, ..Setup::default() }.start(engines).await
}

#[tokio::test]
async fn when_the_budget_is_spent_the_last_answer_passes() {
    let log = Log::start();
    let full = answer("503 Service Unavailable", "retry-after: 7\r\n", "full");
    let (bad, good) = (Engine::start("a", vec![vec![full]]).await, good().await);
    let bed = bed(&[&bad, &good], 0.5, 0).await;
    for n in 1..=8 {
        let reply = bed.client.chat(WHOLE).await;
        bed.assert_idle().await;
        match n % 2 {
            // One more retry for every other request.
            0 => assert_eq!((reply.status, reply.text().as_str()), (200, "good"), "{n}"),
            _ => {
                assert_eq!((reply.status, reply.text().as_str()), (503, "full"), "{n}");
                assert_eq!(reply.header("retry-after"), Some("7"), "{n}");
            }
        }
    }
    assert_eq!((bad.requests().len(), good.requests().len()), (8, 4));
    bed.assert_metric(r#"warmpath_edge_retries_denied_total{model="m"} 4"#);
    bed.assert_metric(r#"warmpath_edge_retries_total{class="back_pressure"} 4"#);
    let lines = log.requests();
    let denied: Vec<_> = lines.iter().filter(|line| line["retry.denied"] == "budget").collect();
    assert_eq!((lines.len(), denied.len()), (8, 4));
    assert!(denied.iter().all(|line| line["outcome"] == "back_pressure"), "{denied:?}");
}

#[tokio::test]
async fn when_the_budget_is_spent_and_there_was_no_answer_the_gateway_says_so() {
    let (bad, good) = (Engine::start("a", vec![vec![Step::Reset]]).await, good().await);
    let bed = bed(&[&bad, &good], 0.0, 0).await;
    assert_error(&bed.client.chat(STREAM).await, ErrorCode::UpstreamUnavailable);
    assert!(good.requests().is_empty());
    bed.assert_idle().await;
    bed.assert_metric(r#"warmpath_edge_retries_denied_total{model="m"} 1"#);
}

#[tokio::test]
async fn a_pool_in_trouble_is_asked_for_little_more_than_its_requests() {
    let engines = [
        Engine::start("a", vec![vec![Step::Reset]]).await,
        Engine::start("b", vec![vec![Step::Reset]]).await,
        Engine::start("c", vec![vec![Step::Reset]]).await,
    ];
    let bed = bed(&engines.each_ref(), 0.2, 1).await;
    for _ in 0..200 {
        assert_eq!(bed.client.chat(WHOLE).await.status, 502);
    }
    let asked: usize = engines.iter().map(|engine| engine.requests().len()).sum();
    assert_eq!(asked, 200 + 40 + 10, "a fifth more, and one for each second of the window");
}

#[tokio::test]
async fn requests_that_clients_send_again_are_logged_and_counted_by_model() {
    let log = Log::start();
    let good = good().await;
    let bed = Bed::start(&[&good]).await;
    let unknown = WHOLE.replace(r#""m""#, r#""not-served""#);
    // Two that repeat what came before, one that comes first, one that makes things up, and one of
    // a client that does not tell.
    for (body, header) in [
        (WHOLE, "x-stainless-retry-count: 1\r\n"),
        (&unknown, "x-stainless-retry-count: 2\r\n"),
        (WHOLE, "x-stainless-retry-count: 0\r\n"),
        (WHOLE, "x-stainless-retry-count: 18446744073709551616\r\n"),
        (WHOLE, ""),
    ] {
        bed.client.post("/v1/chat/completions", header, body).await;
        bed.assert_idle().await;
    }
    bed.assert_metric(r#"warmpath_edge_client_retries_total{model="m"} 1"#);
    bed.assert_metric(r#"warmpath_edge_client_retries_total{model="other"} 1"#);
    let told: Vec<_> =
        log.requests().iter().map(|line| line.get("client.retries").cloned()).collect();
    assert_eq!(told, [Some(1.into()), Some(2.into()), Some(0.into()), None, None]);
    let passed: Vec<_> = good.requests();
    assert_eq!(passed[0].header("x-stainless-retry-count"), Some("1"));
}

#[tokio::test]
async fn where_there_is_no_other_engine_nothing_is_spent() {
    let full = vec![answer("503 Service Unavailable", "", "full")];
    let bad = Engine::start("a", vec![full]).await;
    let bed = bed(&[&bad], 0.0, 1).await;
    for _ in 0..30 {
        assert_eq!(bed.client.chat(WHOLE).await.status, 503);
    }
    bed.assert_metric(r#"warmpath_edge_retries_denied_total{model="m"} 0"#);
}

#[tokio::test]
async fn what_a_full_engine_asks_for_is_told_to_the_router_and_nothing_else_is() {
    let answers = [
        ("429 Too Many Requests", "retry-after: 7\r\n", Some(7)),
        ("503 Service Unavailable", "retry-after: 9999\r\n", Some(60)),
        ("503 Service Unavailable", "retry-after: Sun, 06 Nov 1994 08:49:37 GMT\r\n", Some(0)),
        ("503 Service Unavailable", "", None),
        ("500 Internal Server Error", "retry-after: 7\r\n", None),
        // It does not have this edge, which says nothing of what it can take from others.
        ("401 Unauthorized", "", Some(0)),
    ];
    for (status, headers, expected) in answers {
        let bad = Engine::start("a", vec![vec![answer(status, headers, "no")]]).await;
        let good = good().await;
        let bed = Bed::start(&[&bad, &good]).await;
        assert_eq!(bed.client.chat(WHOLE).await.text(), "good");
        assert_eq!(bed.router.waits(), [expected.map(Duration::from_secs)], "{status} {headers}");
    }
}
