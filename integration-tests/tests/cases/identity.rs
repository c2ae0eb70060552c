//! Who a request is: its key, and the name that its client gave it.

use std::collections::HashSet;

use bytes::Bytes;
use credentials::GeneratedKey;
use http::Method;
use integration_tests::client::Client;
use integration_tests::cluster::Cluster;
use integration_tests::scenarios::chat;
use integration_tests::scripted::{
    DONE, Gate, ROLE, ScriptedEngine, Step, part, stream_end, stream_head, token,
};
use integration_tests::wait::{PATIENCE, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::before;

/// Two tenants with a key each.
fn two_tenants() -> (String, [String; 2]) {
    let keys = ["one", "two"].map(|tenant| GeneratedKey::generate(tenant).unwrap());
    let config = format!(
        "[[tenants]]\nid = \"one\"\n[[tenants]]\nid = \"two\"\n{}{}",
        keys[0].config_lines(),
        keys[1].config_lines()
    );
    (config, keys.map(|key| key.secret_text().to_owned()))
}

/// Writes a request with these lines in its head, as they are.
async fn raw(cluster: &Cluster, lines: &[u8], body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(cluster.edge()).await.unwrap();
    let length = format!("content-length: {}\r\n", body.len());
    let head =
        [b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n", length.as_bytes(), lines].concat();
    // A server that has had enough of a head closes while it is still sent.
    let _ = stream.write_all(&[&head, &b"\r\n"[..], body.as_bytes()].concat()).await;
    stream
}

/// Reads the answer's head and as much of its body as comes with it.
async fn answered(stream: &mut TcpStream) -> String {
    let mut seen = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&seen).into_owned();
        let whole = text.split_once("\r\n\r\n").is_some_and(|(head, body)| {
            let length = head.lines().find_map(|l| l.strip_prefix("content-length: "));
            length.is_some_and(|length| body.len() >= length.trim().parse().unwrap())
        });
        if whole || stream.read_buf(&mut seen).await.unwrap_or(0) == 0 {
            return text;
        }
    }
}

#[tokio::test]
async fn tenants_that_use_one_request_id_each_get_their_own_answer_and_end_only_their_own() {
    let gate = Gate::default();
    let engine = ScriptedEngine::with(Vec::new()).await;
    let of_test = gate.clone();
    engine.answer_by(move |asked| {
        let text = asked.json()["messages"][0]["content"].as_str().unwrap_or("").to_owned();
        vec![
            stream_head(),
            part(ROLE),
            part(&token(&text)),
            Step::Await(of_test.clone()),
            part(&token("end")),
            part(DONE),
            stream_end(),
        ]
    });
    let (config, keys) = two_tenants();
    let cluster = before(&[&engine]).config(&config).build().await;
    let mut streams = Vec::new();
    for (key, id, text) in
        [(&keys[0], "a", "first"), (&keys[1], "a", "second"), (&keys[0], "ab", "third")]
    {
        let lines = format!("authorization: Bearer {key}\r\nx-request-id: {id}\r\n");
        let stream = raw(&cluster, lines.as_bytes(), &chat(text, 9, true)).await;
        streams.push((stream, id, text));
    }
    engine.await_in_course(3).await;
    // The first one leaves: the others do not notice.
    streams.remove(0);
    engine.await_in_course(2).await;
    gate.let_pass(2);
    for (mut stream, id, text) in streams {
        let mut seen = Vec::new();
        while !seen.ends_with(b"0\r\n\r\n") {
            assert!(stream.read_buf(&mut seen).await.unwrap() > 0, "it broke");
        }
        let seen = String::from_utf8(seen).unwrap();
        assert!(seen.contains(&format!("x-request-id: {id}\r\n")), "{seen}");
        assert!(seen.contains(text) && seen.contains("end") && seen.contains(DONE), "{seen}");
        let others = ["first", "second", "third"].into_iter().filter(|other| *other != text);
        assert!(others.into_iter().all(|other| !seen.contains(other)), "{seen}");
    }
    let asked = engine.asked();
    let ids: HashSet<_> = asked.iter().filter_map(|a| a.header("x-request-id")).collect();
    assert_eq!(ids.len(), 3, "{ids:?}");
    assert!(!ids.contains("a") && !ids.contains("ab"));
    cluster.assert_idle().await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_request_sent_to_a_second_engine_has_another_id_there() {
    let (bad, good) =
        (ScriptedEngine::with(vec![Step::Reset]).await, ScriptedEngine::with(Vec::new()).await);
    good.answer_by(integration_tests::scripted::short);
    let cluster = before(&[&bad, &good]).build().await;
    let mut ids = Vec::new();
    for n in 0..6 {
        let headers = [("x-request-id", "the-same")];
        let body = Bytes::from(chat(&format!("{n}"), 1, n % 2 == 0));
        let path = "/v1/chat/completions";
        let reply = cluster.client().send(Method::POST, path, &headers, body).await;
        assert_eq!((reply.status.as_u16(), reply.header("x-request-id")), (200, "the-same"));
    }
    for asked in bad.asked().iter().chain(&good.asked()) {
        ids.push(asked.header("x-request-id").unwrap().to_owned());
    }
    let distinct: HashSet<_> = ids.iter().collect();
    assert!(ids.len() > 6 && distinct.len() == ids.len(), "{ids:?}");
    cluster.stop().await;
}

#[tokio::test]
async fn a_request_id_that_is_no_plain_word_is_neither_repeated_nor_passed_on() {
    let engine = ScriptedEngine::with(Vec::new()).await;
    engine.answer_by(integration_tests::scripted::short);
    let cluster = before(&[&engine]).build().await;
    let long = "a".repeat(60_000);
    for (id, repeated) in [
        (&b"trace-1 %0a"[..], true),
        (b"a\tb", false),
        ("é".as_bytes(), false),
        (&[b'a'; 129], false),
        (long.as_bytes(), false),
        (b"", false),
    ] {
        let lines = [b"x-request-id: ", id, b"\r\n"].concat();
        let mut stream = raw(&cluster, &lines, &chat("x", 1, false)).await;
        let seen = answered(&mut stream).await;
        assert!(seen.starts_with("HTTP/1.1 200"), "{seen}");
        let own = seen.lines().find_map(|l| l.strip_prefix("x-request-id: ")).expect("an id");
        assert_eq!(own.as_bytes() == id, repeated, "{own}");
        assert!(repeated || own.starts_with("req-"), "{own}");
        let sent = engine.asked().pop().unwrap();
        assert!(sent.header("x-request-id").unwrap().starts_with("req-"));
    }
    cluster.stop().await;
}

#[tokio::test]
async fn odd_credentials_are_refused_alike_and_before_the_body_is_read() {
    let (config, keys) = two_tenants();
    let engine = ScriptedEngine::with(Vec::new()).await;
    engine.answer_by(integration_tests::scripted::short);
    let cluster = before(&[&engine]).config(&config).build().await;
    let good = format!("authorization: Bearer {}", keys[0]);
    let odd: Vec<Vec<u8>> = vec![
        b"authorization: \r\n".to_vec(),
        b"authorization: Bearer\r\n".to_vec(),
        b"authorization: Bearer \r\n".to_vec(),
        format!("{good}\r\n{good}\r\n").into_bytes(),
        format!("{good}\r\nauthorization: Bearer {}\r\n", keys[1]).into_bytes(),
        format!("{}\r\n", good.replace("Bearer ", "Bearer\t")).into_bytes(),
        format!("{}\r\n", &good[..good.len() - 1]).into_bytes(),
        format!("{good}0\r\n").into_bytes(),
        format!("authorization: Bearer {}\r\n", "a".repeat(50_000)).into_bytes(),
        format!("x-api-key: {0}\r\nx-api-key: {0}\r\n", keys[0]).into_bytes(),
        format!("authorization: Basic x\r\nx-api-key: {}\r\n", keys[0]).into_bytes(),
        [good.as_bytes(), b"\xff\r\n"].concat(),
    ];
    let mut bodies = HashSet::new();
    for lines in &odd {
        let mut stream = raw(&cluster, lines, &chat("x", 1, false)).await;
        let seen = answered(&mut stream).await;
        let (head, body) = seen.split_once("\r\n\r\n").expect("an answer");
        assert!(head.starts_with("HTTP/1.1 401"), "{}: {head}", String::from_utf8_lossy(lines));
        assert!(head.contains("www-authenticate: Bearer"), "{head}");
        bodies.insert(body.to_owned());
    }
    assert_eq!(bodies.len(), 1, "{bodies:?}");
    // What is no HTTP is not answered as a request.
    for lines in [format!("{good}\0\r\n").into_bytes(), vec![b'a'; 1 << 20]] {
        let mut stream = raw(&cluster, &lines, "{}").await;
        let seen = answered(&mut stream).await;
        assert!(!seen.starts_with("HTTP/1.1 2"), "{seen}");
    }
    assert_eq!(engine.asked_count(), 0);
    let holder: Client = cluster.client().with_key(&keys[0]);
    assert_eq!(holder.chat(chat("x", 1, false)).await.status, 200);
    let idle = || async { cluster.held().await.edge_in_flight == 0 };
    eventually(PATIENCE, "nothing is open", idle).await;
    cluster.stop().await;
}
