//! What real engines answered arrives as they answered it.

use integration_tests::recorded::Exchange;
use integration_tests::scenarios::bytes::{self, Bed, Cuts};

#[tokio::test]
async fn recorded_streams_arrive_byte_for_byte_however_they_are_cut() {
    let report = bytes::run(Cuts::Random(12)).await;
    assert_eq!(report.different, 0, "{:?}", report.differences);
    assert!(report.transcripts >= 14, "{report:?}");
    assert!(report.usage_events_removed > 0, "{report:?}");
}

#[tokio::test]
async fn recorded_answers_arrive_with_status_headers_and_body() {
    let exchanges = Exchange::all();
    let bed = Bed::start(&exchanges).await;
    let client = bed.cluster.client();
    let (good, answers): (Vec<_>, Vec<_>) =
        exchanges.iter().partition(|e| e.name.ends_with("0.32.0/chat"));
    let good = good[0];
    let mut errors = 0;
    for answer in answers.into_iter().filter(|answer| !answer.is_stream) {
        // Whatever it was an answer to, here it is the answer to a request that is passed on.
        bed.engine.answer(answer.script(&[answer.body.len() / 2]));
        let reply = client.post(&good.path, good.request.clone()).await;
        assert_eq!(reply.status.as_u16(), answer.status, "{}", answer.name);
        assert!(reply.whole, "{}", answer.name);
        assert_eq!(reply.body, answer.body, "{}", answer.name);
        for (name, value) in answer.end_to_end_headers() {
            assert_eq!(reply.header(&name), value, "{} {name}", answer.name);
        }
        errors += usize::from(answer.status >= 400);
        // So that faults of an engine do not add up to one that is taken out.
        bed.engine.answer(good.script(&[]));
        assert_eq!(client.post(&good.path, good.request.clone()).await.status, 200);
    }
    assert!(errors >= 18, "{errors} recorded errors");
    bed.cluster.assert_idle().await;
    bed.cluster.stop().await;
}

#[tokio::test]
async fn recorded_errors_of_a_stream_arrive_too() {
    let exchanges = Exchange::all();
    let bed = Bed::start(&exchanges).await;
    let stream = exchanges.iter().find(|e| e.name.ends_with("0.32.0/chat_stream_usage")).unwrap();
    for error in exchanges.iter().filter(|e| (400..500).contains(&e.status)) {
        bed.engine.answer(error.script(&[]));
        let reply = bed.cluster.client().post(&stream.path, stream.request.clone()).await;
        assert_eq!((reply.status.as_u16(), &reply.body[..]), (error.status, &error.body[..]));
    }
    bed.cluster.stop().await;
}

#[tokio::test]
async fn an_empty_conversation_is_refused_before_an_engine_sees_it() {
    let cluster = integration_tests::cluster::Cluster::builder().engines(1).build().await;
    let before = cluster.requests();
    for body in [
        r#"{"model":"warmpath-double","messages":[]}"#,
        r#"{"model":"warmpath-double","messages":[],"stream":true}"#,
    ] {
        let reply = cluster.client().chat(body).await;
        assert_eq!(reply.status, 400);
        assert_eq!(reply.json()["error"]["param"], "messages");
    }
    assert_eq!(cluster.requests(), before);
    cluster.stop().await;
}
