//! The bus over a real NATS server: the suite of the port, cuts, and every way to be let in.

#[path = "e2e_bus/announcer.rs"]
mod announcer;
#[path = "e2e_bus/server.rs"]
mod server;
#[path = "../../libs/bus/tests/conformance/suite.rs"]
mod suite;

use std::sync::Arc;

use announcer::Announcer;
use bus::{Bus, BusError, Delivery, Gap, Metrics, NatsBus, NatsConfig, RawNatsConfig, Status};
use events::Region;
use integration_tests::environment::workspace_root;
use lifecycle::Lifecycle;
use server::{Identity, NatsServer, Tls};
use settings::HumanDuration;
use suite::{Adapter, Ends, PATIENCE, link, listen, message, next, subject};
use tokio::net::{TcpListener, TcpStream};
use warmpath::double::Double;

struct Nats;

impl Adapter for Nats {
    async fn ends(&self) -> Ends {
        let server = NatsServer::start("");
        let (one, other) = (open(raw(&server)).await, open(raw(&server)).await);
        Ends { one: Arc::new(one), other: Arc::new(other), ground: Box::new(server) }
    }
}

suite::run_on!(Nats);

fn raw(server: &NatsServer) -> RawNatsConfig {
    RawNatsConfig {
        servers: vec![format!("nats://127.0.0.1:{}", server.port())],
        // The tests wait for it.
        reconnect_limit: HumanDuration::from_millis(200),
        ..RawNatsConfig::default()
    }
}

fn start(raw: RawNatsConfig) -> NatsBus {
    let config = NatsConfig::new(raw).unwrap();
    NatsBus::start(config, Lifecycle::new().background(), Metrics::default())
}

async fn until(bus: &dyn Bus, what: &str, holds: impl FnMut(&Status) -> bool) {
    let mut status = bus.status();
    let waited = tokio::time::timeout(PATIENCE, status.wait_for(holds)).await;
    let found = bus.status().borrow().clone();
    waited.unwrap_or_else(|_| panic!("not in time: {what}; {found:?}")).unwrap();
}

async fn open(raw: RawNatsConfig) -> NatsBus {
    let bus = start(raw);
    until(&bus, "connected", |status| status.connected).await;
    bus
}

#[tokio::test]
async fn after_a_cut_every_subscriber_sees_a_gap_and_hears_again() {
    let mut server = NatsServer::start("");
    let publisher: Arc<dyn Bus> = Arc::new(open(raw(&server)).await);
    let listener: Arc<dyn Bus> = Arc::new(open(raw(&server)).await);
    let mut one = listen(&listener, "s", 100).await;
    let mut two = listen(&listener, "t.*", 100).await;
    link(&publisher, &subject("s"), &mut one).await;
    link(&publisher, &subject("t.x"), &mut two).await;
    for round in 1..=3 {
        server.kill();
        for bus in [&publisher, &listener] {
            until(&**bus, "disconnected", |status| !status.connected).await;
        }
        assert_eq!(publisher.publish(&subject("s"), "lost".into()), Err(BusError::Away));
        server.start_again();
        for bus in [&publisher, &listener] {
            until(&**bus, "connected again", |s| s.connected && s.connects == round + 1).await;
        }
        let cut = Some(Delivery::Gap(Gap { dropped: 0, uncounted: true }));
        assert_eq!((next(&mut one).await, next(&mut two).await), (cut.clone(), cut));
        link(&publisher, &subject("s"), &mut one).await;
        link(&publisher, &subject("t.x"), &mut two).await;
        publisher.publish(&subject("s"), "again".into()).unwrap();
        assert_eq!(message(&mut one).await.1, "again");
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_yet_is_found_later() {
    let mut server = NatsServer::start("");
    server.kill();
    let bus: Arc<dyn Bus> = Arc::new(start(raw(&server)));
    until(&*bus, "an error is told", |status| status.last_error.is_some()).await;
    assert_eq!(bus.publish(&subject("s"), "lost".into()), Err(BusError::Away));
    // A subscription may be made before there is a connection.
    let mut subscription = listen(&bus, "s", 10).await;
    server.start_again();
    link(&bus, &subject("s"), &mut subscription).await;
    assert_eq!(bus.status().borrow().last_error, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_there_before_the_bus_loses_no_word() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let double = Double::builder().spawn(listener).unwrap();
    // It finds the server through a door that opens when somebody listens there.
    let door = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let announcer = Announcer::start(&double.url(), door.local_addr().unwrap().port());
    let until_there = announcer.says_until("the bus is not there yet");
    let server = NatsServer::start("");
    let bus: Arc<dyn Bus> = Arc::new(open(raw(&server)).await);
    let mut heard = listen(&bus, "warmpath.v1.default.announce.>", 10).await;
    link(&bus, &subject("warmpath.v1.default.announce.probe"), &mut heard).await;
    let (lifecycle, port) = (Lifecycle::new(), server.port());
    lifecycle.spawn("door", async move {
        loop {
            let (mut engine, _) = door.accept().await.unwrap();
            let mut server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            // The attempts that it has given up since are over at once.
            let _ = tokio::io::copy_bidirectional(&mut engine, &mut server).await;
        }
    });
    let (subject, envelope) = message(&mut heard).await;
    assert_eq!(subject, "warmpath.v1.default.announce.rack-1");
    assert!(envelope.contains("gpu-0"), "{envelope}");
    let since = announcer.says_until("the bus is there");
    for said in [until_there, since] {
        assert!(!said.contains("an announcement was not sent"), "{said}");
    }
}

#[tokio::test]
async fn a_server_that_refuses_us_for_a_while_is_found_when_it_does_not_any_more() {
    let mut server = NatsServer::start("");
    let bus: Arc<dyn Bus> = Arc::new(open(raw(&server)).await);
    let mut subscription = listen(&bus, "s", 10).await;
    server.kill();
    server.reconfigure("authorization { user: a, password: b }");
    server.start_again();
    until(&*bus, "refused", |status| !status.connected && status.last_error.is_some()).await;
    server.kill();
    server.reconfigure("");
    server.start_again();
    until(&*bus, "let in again", |status| status.connected).await;
    let cut = Some(Delivery::Gap(Gap { dropped: 0, uncounted: true }));
    assert_eq!(next(&mut subscription).await, cut);
    link(&bus, &subject("s"), &mut subscription).await;
}

/// Whether a message gets through with these settings.
async fn works(raw: RawNatsConfig) {
    let bus: Arc<dyn Bus> = Arc::new(open(raw).await);
    let mut subscription = listen(&bus, "s", 10).await;
    bus.publish(&subject("s"), "hello".into()).unwrap();
    assert_eq!(message(&mut subscription).await.1, "hello");
}

/// Waits until an end with these settings is refused.
async fn is_refused(raw: RawNatsConfig) {
    let bus = start(raw);
    until(&bus, "refused", |status| !status.connected && status.last_error.is_some()).await;
    let error = bus.status().borrow().last_error.clone().unwrap();
    assert!(!error.contains("hunter2"), "{error}");
}

#[tokio::test]
async fn a_user_with_the_right_password_is_let_in() {
    let server = NatsServer::start("authorization { user: wp, password: hunter2 }");
    let identity = Identity::new();
    let with = |password: &str| RawNatsConfig {
        user: Some("wp".to_owned()),
        password: Some(identity.secret("password", password)),
        ..raw(&server)
    };
    works(with("hunter2")).await;
    is_refused(with("hunter3")).await;
    is_refused(raw(&server)).await;
}

#[tokio::test]
async fn the_holder_of_an_nkey_is_let_in() {
    let identity = Identity::new();
    let server = NatsServer::start(&format!(
        "authorization {{ users: [ {{ nkey: {} }} ] }}",
        identity.user_public_key()
    ));
    let with =
        |seed: &str| RawNatsConfig { nkey: Some(identity.secret("nkey", seed)), ..raw(&server) };
    works(with(&identity.user_seed())).await;
    is_refused(with(&Identity::new().user_seed())).await;
}

#[tokio::test]
async fn the_holder_of_a_credentials_file_is_let_in() {
    let identity = Identity::new();
    let server = NatsServer::start(&identity.operator_config());
    let with = |text: &str| RawNatsConfig {
        credentials: Some(identity.secret("creds", text)),
        ..raw(&server)
    };
    works(with(&identity.credentials())).await;
    is_refused(with(&Identity::new().credentials())).await;
}

#[tokio::test]
async fn servers_and_clients_are_known_by_their_certificates() {
    let tls = Tls::new();
    let server = NatsServer::start(&tls.server_config());
    let mut known = raw(&server);
    known.tls.ca = Some(tls.ca());
    known.tls.cert = Some(tls.client_cert());
    known.tls.key = Some(tls.client_key());
    // The server asks for TLS; an address may ask for it as well.
    works(known.clone()).await;
    let address = format!("tls://localhost:{}", server.port());
    works(RawNatsConfig { servers: vec![address], ..known.clone() }).await;
    let mut unknown_client = known.clone();
    (unknown_client.tls.cert, unknown_client.tls.key) = (None, None);
    is_refused(unknown_client).await;
    let (mut unknown_server, others) = (known, Tls::new());
    unknown_server.tls.ca = Some(others.ca());
    is_refused(unknown_server).await;
}

#[tokio::test]
async fn a_server_without_tls_is_refused_where_tls_is_required() {
    let server = NatsServer::start("");
    let mut raw = raw(&server);
    raw.tls.required = true;
    is_refused(raw).await;
}

#[tokio::test]
async fn what_a_user_may_not_publish_or_hear_is_told() {
    let server = NatsServer::start(
        "authorization { users: [ { user: wp, password: hunter2, permissions: {
            publish: [\"ours.>\"], subscribe: [\"ours.>\"] } } ] }",
    );
    let identity = Identity::new();
    let raw = RawNatsConfig {
        user: Some("wp".to_owned()),
        password: Some(identity.secret("password", "hunter2")),
        ..raw(&server)
    };
    let bus: Arc<dyn Bus> = Arc::new(open(raw).await);
    bus.publish(&subject("theirs.x"), "x".into()).unwrap();
    let told = |status: &Status| status.last_error.as_ref().is_some_and(|e| e.contains("theirs"));
    until(&*bus, "a refused publish is told", told).await;
    let _deaf = listen(&bus, "others.>", 10).await;
    let told = |status: &Status| status.last_error.as_ref().is_some_and(|e| e.contains("others"));
    until(&*bus, "a refused subscription is told", told).await;
    let mut subscription = listen(&bus, "ours.>", 10).await;
    bus.publish(&subject("ours.x"), "x".into()).unwrap();
    assert_eq!(message(&mut subscription).await.0, "ours.x");
    assert!(bus.status().borrow().connected);
}

/// The users of `deploy/examples/apart/nats.conf`, all with one password.
fn users_of_the_example() -> String {
    let path = workspace_root().join("deploy/examples/apart/nats.conf");
    let example = std::fs::read_to_string(path).unwrap();
    let users = &example[example.find("authorization").unwrap()..];
    let words = users.split_inclusive(char::is_whitespace);
    words.map(|word| if word.starts_with("$NATS_") { "hunter2\n" } else { word }).collect()
}

#[tokio::test]
async fn every_service_of_the_example_says_and_hears_its_part_alone() {
    let server = NatsServer::start(&users_of_the_example());
    let identity = Identity::new();
    let user = async |name: &str| {
        let password = Some(identity.secret("password", "hunter2"));
        let raw = RawNatsConfig { user: Some(name.to_owned()), password, ..raw(&server) };
        let bus: Arc<dyn Bus> = Arc::new(open(raw).await);
        bus
    };
    let region = Region::new("eu").unwrap();
    let (telemetry, router) = (user("telemetry").await, user("router").await);
    let (engine, observer) = (user("engine").await, user("observer").await);
    let hears = [
        (&telemetry, "announce"),
        (&router, "pools"),
        (&engine, "answers"),
        (&observer, "backends"),
    ];
    let own = [
        (&telemetry, region.backend("gpu-0"), &observer),
        (&router, region.decisions("model"), &observer),
        (&router, region.pool("model"), &router),
        (&engine, region.announce("rack-1"), &telemetry),
        (&telemetry, region.answers("rack-1", "gpu-0"), &engine),
    ];
    for (from, subject, to) in own {
        let mut heard = listen(to, subject.as_str(), 10).await;
        link(from, &subject, &mut heard).await;
        // What anybody else says there is not heard.
        for (other, kind) in hears {
            if !Arc::ptr_eq(other, from) {
                other.publish(&subject, "forged".into()).unwrap();
                // The server has it before this returns.
                drop(listen(other, &format!("warmpath.v1.eu.{kind}.>"), 1).await);
            }
        }
        from.publish(&subject, "true".into()).unwrap();
        assert_eq!(message(&mut heard).await.1, "true", "{}", subject.as_str());
    }
}
