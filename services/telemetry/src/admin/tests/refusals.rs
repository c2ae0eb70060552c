//! What the API does not do, and how it says so.

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};

use super::kit::{Kit, TOKEN};
use crate::admin::document;

fn request(method: &str, path: &str, headers: &[(&str, &str)], body: Vec<u8>) -> Request<Body> {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(body.into()).unwrap()
}

#[tokio::test]
async fn without_a_token_nothing_is_told_whatever_the_route() {
    let kit = Kit::new();
    let paths = ["/", "/admin/v1/backends", "/admin/v1/openapi.json", "/admin/v1/nothing"];
    for path in paths {
        for token in ["", "Bearer wrong", "Basic YTpi"] {
            let answer = kit.send(request("GET", path, &[("authorization", token)], vec![])).await;
            answer.is_problem(401, "unauthorized");
            assert_eq!(answer.headers["www-authenticate"], "Bearer");
        }
    }
    let page = instrumentation::encode(&kit.registry);
    assert!(page.contains("warmpath_telemetry_admin_refused_total 12"), "{page}");
}

#[tokio::test]
async fn a_token_that_left_the_config_opens_nothing_from_then_on() {
    let kit = Kit::new();
    let mine = format!("Bearer {TOKEN}");
    let ask = |token: &str| {
        kit.send(request("GET", "/admin/v1/backends", &[("authorization", token)], vec![]))
    };
    ask(&mine).await.is(200);
    kit.set_token("another-that-nobody-guesses");
    ask(&mine).await.is_problem(401, "unauthorized");
    ask("Bearer another-that-nobody-guesses").await.is(200);
}

#[tokio::test]
async fn routes_and_methods_that_do_not_exist_are_problems_too() {
    let kit = Kit::new();
    kit.get("/nothing").await.is_problem(404, "not_found");
    let patch = kit.ask("PATCH /backends", ("", ""), Value::Null).await;
    patch.is_problem(405, "method_not_allowed");
    assert_eq!(patch.headers["allow"], "GET,HEAD");
    let page = instrumentation::encode(&kit.registry);
    let counted =
        "admin_requests_total{method=\"other\",route=\"/admin/v1/backends\",status=\"405\"} 1";
    assert!(page.contains(counted), "{page}");
}

#[tokio::test]
async fn bodies_are_bounded_json_of_known_fields() {
    let kit = Kit::new();
    let authorization = format!("Bearer {TOKEN}");
    let put = |content_type: &str, body: Vec<u8>| {
        let headers = [
            ("authorization", authorization.as_str()),
            ("if-none-match", "*"),
            ("content-type", content_type),
        ];
        kit.send(request("PUT", "/admin/v1/backends/a", &headers, body))
    };
    let json_type = "application/json; charset=utf-8";
    put("text/plain", b"{}".to_vec()).await.is_problem(415, "unsupported_media_type");
    put(json_type, b"{".to_vec()).await.is_problem(400, "malformed_body");
    put(json_type, vec![]).await.is_problem(400, "malformed_body");
    put(json_type, vec![b' '; (64 << 10) + 1]).await.is_problem(413, "body_too_large");
    put(json_type, vec![b'['; 60_000]).await.is_problem(422, "invalid_document");
    let unknown = put(json_type, br#"{"url":"http://a:1","wieght":1}"#.to_vec()).await;
    let detail = unknown.is_problem(422, "invalid_document")["detail"].as_str().unwrap();
    assert!(detail.contains("wieght"), "{detail}");
    put(json_type, br#"{"url":"http://a:1","url":"http://b:1"}"#.to_vec())
        .await
        .is_problem(422, "invalid_document");
    for url in ["ftp://a", "http://a:99999", "http://a:0", "http://a:", "a:1", "http://u@a:1"] {
        let spec = json!({ "url": url }).to_string().into_bytes();
        assert_eq!(put(json_type, spec).await.is_problem(422, "invalid_document")["field"], "url");
    }
    put(json_type, br#"{"url":"http://a:1"}"#.to_vec()).await.is(201);
}

#[tokio::test]
async fn odd_ids_and_parameters_are_refused() {
    let kit = Kit::new();
    let spec = json!({"url": "http://a:1"});
    for odd in ["a%20b", "%C3%A9", "a%0A", &"a".repeat(129)] {
        let answer = kit.add(&format!("/backends/{odd}"), spec.clone()).await;
        answer.is_problem(422, "invalid_document");
    }
    kit.add("/backends/%FF", spec).await.is_problem(400, "invalid_parameter");
    for odd in ["limit=0", "limit=1001", "limit=x", "colour=red", "limit=1&limit=2"] {
        kit.get(&format!("/keys?{odd}")).await.is_problem(400, "invalid_parameter");
    }
    let weak = kit.ask("DELETE /backends/a", ("if-match", "W/\"1\""), Value::Null).await;
    weak.is_problem(400, "invalid_parameter");
}

#[tokio::test]
async fn the_document_describes_every_route_that_is_served() {
    let kit = Kit::new();
    let served = kit.get("/openapi.json").await;
    let document = serde_json::to_value(document()).unwrap();
    assert_eq!(served.is(200)["paths"], document["paths"]);
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() >= 15, "{:?}", paths.keys());
    for (path, methods) in paths {
        for (method, operation) in methods.as_object().unwrap() {
            let asked = path.strip_prefix("/admin/v1").unwrap().replace("{id}", "a");
            let what = format!("{} {asked}", method.to_uppercase());
            let answer = kit.ask(&what, ("", ""), Value::Null).await;
            let status = answer.status.as_str();
            assert!(operation["responses"].get(status).is_some(), "{method} {path}: {status}");
            assert_ne!(status, "405", "{method} {path}");
        }
    }
}
