//! The official OpenAI SDK and curl, unmodified, before the gateway and before an engine double:
//! an application sees no difference.

use credentials::GeneratedKey;
use integration_tests::cluster::{Cluster, MODEL};
use integration_tests::process::conformance;

#[tokio::test(flavor = "multi_thread")]
async fn an_application_sees_no_difference_between_the_gateway_and_an_engine() {
    let key = GeneratedKey::generate("team").unwrap();
    let config = format!("[[tenants]]\nid = \"team\"\n{}", key.config_lines());
    let cluster = Cluster::builder().config(&config).build().await;
    let direct = cluster.doubles()[0].url();
    let gateway = format!("http://{}", cluster.edge());
    let secret = key.secret_text().to_owned();
    let checked = tokio::task::spawn_blocking(move || {
        conformance(&[
            "--direct",
            &direct,
            "--gateway",
            &gateway,
            "--model",
            MODEL,
            "--key",
            &secret,
            "--engine",
            "double",
        ])
    });
    let printed = checked.await.unwrap().unwrap_or_else(|printed| panic!("{printed}"));
    assert!(printed.contains(" passed, 0 failed"), "{printed}");
    cluster.assert_idle().await;
    cluster.stop().await;
}
