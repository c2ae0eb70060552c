//! Going on from a response that one engine keeps, when that engine cannot.

use domain::{BackendState, ErrorCode, ModelId};
use serde_json::{Value, json};

use crate::config::{RawAlias, RawConfig, RawTenant};
use crate::testing::*;

const PATH: &str = "/v1/responses/resp_2";
const KEPT: &str = r#"{"id":"resp_2","object":"response","status":"completed","output":[]}"#;
const UNKNOWN: &str = r#"{"error":{"message":"Response with id 'resp_2' not found."}}"#;

/// Keeps the response.
async fn keeper() -> Engine {
    Engine::start("keeper-7", vec![vec![answer("200 OK", "", KEPT)]]).await
}

/// Does not.
async fn stranger() -> Engine {
    Engine::start("stranger-8", vec![vec![answer("404 Not Found", "", UNKNOWN)]]).await
}

async fn make(bed: &Bed, model: &str) {
    let body = json!({"model": model, "input": "hi"}).to_string();
    assert_eq!(bed.client.post("/v1/responses", "", &body).await.text(), KEPT);
}

async fn go_on(bed: &Bed, model: &str) -> Reply {
    let body = json!({"model": model, "input": "hi", "previous_response_id": "resp_2"});
    bed.client.post("/v1/responses", "", &body.to_string()).await
}

/// Leaves one of its models to an engine.
fn serve_only(bed: &Bed, engine: &Engine, model: &str) {
    let model = ModelId::from(model);
    bed.router.change_one(&engine.id(), |backend| backend.models.retain(|m| m.id == model));
}

/// Checks that it is one that is not to be tried again, and gives its words.
fn unusable(reply: &Reply) -> String {
    assert_error(reply, ErrorCode::PreviousResponseUnusable);
    assert_eq!((reply.status, reply.header("retry-after")), (400, None));
    let body: Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!(body["error"]["param"], "previous_response_id");
    let message = body["error"]["message"].as_str().unwrap().to_owned();
    assert!(!message.contains("keeper-7") && message.contains("`input`"), "{message}");
    message
}

#[tokio::test]
async fn a_response_goes_on_with_its_own_model_and_another_one_is_refused_by_name() {
    for is_known in [true, false] {
        let (keeper, other) = (keeper().await, stranger().await);
        let bed = Bed::start(&[&keeper, &other]).await;
        serve_only(&bed, &keeper, "m");
        serve_only(&bed, &other, "org/m");
        if is_known {
            make(&bed, "m").await;
        }
        let message = unusable(&go_on(&bed, "org/m").await);
        assert!(message.contains("belongs to 'm', not to the model"), "{message}");
        assert!(other.requests().iter().all(|r| !r.line().starts_with("POST ")));
        assert_eq!(go_on(&bed, "m").await.text(), KEPT);
        bed.assert_idle().await;
    }
}

#[tokio::test]
async fn of_an_alias_the_model_is_drawn_that_the_response_belongs_to() {
    let (keeper, other) = (keeper().await, stranger().await);
    let alias = RawAlias {
        id: "both".into(),
        models: vec!["m".into(), "org/m".into()],
        weights: vec![1, 1],
    };
    let edge = RawConfig { aliases: vec![alias], ..RawConfig::default() };
    let only = |tenant: &mut RawTenant| tenant.models = Some(vec!["both".into()]);
    let tenants = vec![tenant("anonymous", only)];
    let bed = Setup { edge, tenants, ..Setup::default() }.start(&[&keeper, &other]).await;
    serve_only(&bed, &keeper, "m");
    serve_only(&bed, &other, "org/m");
    for turn in 0..20 {
        let input = format!("turn {turn}");
        let body = json!({"model": "both", "input": input, "previous_response_id": "resp_2"});
        let reply = bed.client.post("/v1/responses", "", &body.to_string()).await;
        assert_eq!(reply.text(), KEPT, "{turn}");
    }
    let asked = keeper.requests();
    let turns = asked.iter().filter(|request| request.line().starts_with("POST "));
    assert!(
        turns.clone().all(|request| request.body.windows(11).any(|part| part == br#""model":"m""#))
    );
    assert_eq!(turns.count(), 20);
    bed.assert_idle().await;
}

#[tokio::test]
async fn a_model_that_the_key_may_not_use_is_not_named() {
    let (keeper, other) = (keeper().await, stranger().await);
    let only = |tenant: &mut RawTenant| tenant.models = Some(vec!["org/m".into()]);
    let tenants = vec![tenant("anonymous", only)];
    let bed = Setup { tenants, ..Setup::default() }.start(&[&keeper, &other]).await;
    make(&bed, "org/m").await;
    serve_only(&bed, &keeper, "m");
    let message = unusable(&go_on(&bed, "org/m").await);
    assert!(message.contains("belongs to another model"), "{message}");
    // Nor is what its engine keeps.
    assert_eq!(bed.client.get(PATH).await.text(), UNKNOWN);
    bed.assert_idle().await;
}

#[tokio::test]
async fn an_engine_that_drains_is_asked_for_what_it_keeps_and_goes_on_from_nothing() {
    for is_known in [true, false] {
        let (keeper, other) = (keeper().await, stranger().await);
        let bed = Bed::start(&[&keeper, &other]).await;
        if is_known {
            make(&bed, "m").await;
        }
        bed.router.change_one(&keeper.id(), |backend| backend.state = BackendState::Draining);
        let message = unusable(&go_on(&bed, "m").await);
        assert!(message.contains("takes no more requests"), "{message}");
        assert_eq!(bed.client.get(PATH).await.text(), KEPT);
        assert_eq!(bed.client.post(&format!("{PATH}/cancel"), "", "").await.text(), KEPT);
        bed.assert_idle().await;
    }
}

#[tokio::test]
async fn what_an_engine_kept_that_left_is_not_found() {
    let (keeper, other) = (keeper().await, stranger().await);
    let bed = Bed::start(&[&keeper, &other]).await;
    make(&bed, "m").await;
    bed.router.change(|backends| backends.retain(|backend| backend.id != keeper.id()));
    for reply in [bed.client.get(PATH).await, go_on(&bed, "m").await] {
        assert_eq!((reply.status, reply.text().as_str()), (404, UNKNOWN));
    }
    bed.assert_idle().await;
}

#[tokio::test]
async fn what_an_engine_keeps_that_is_down_is_to_be_asked_for_again() {
    let (keeper, other) = (keeper().await, stranger().await);
    let bed = Bed::start(&[&keeper, &other]).await;
    make(&bed, "m").await;
    bed.router.change_one(&keeper.id(), |backend| backend.state = BackendState::Down);
    for reply in [bed.client.get(PATH).await, go_on(&bed, "m").await] {
        assert_error(&reply, ErrorCode::UpstreamUnavailable);
    }
    bed.router.change_one(&keeper.id(), |backend| backend.state = BackendState::Ready);
    assert_eq!(go_on(&bed, "m").await.text(), KEPT);
    bed.assert_idle().await;
}

#[tokio::test]
async fn a_conversation_whose_engine_may_be_one_that_cannot_be_asked_is_to_be_sent_again() {
    let (gone, other) = (Engine::refusing("gone").await, stranger().await);
    let bed = Bed::start(&[&gone, &other]).await;
    assert_error(&go_on(&bed, "m").await, ErrorCode::UpstreamUnavailable);
    assert_eq!(other.requests().len(), 1, "none is told to go on");
    bed.assert_idle().await;
}
