//! Changes of the signing files while the gateway runs.

use envelope::NewRoot;
use identity::Identity;
use model::execution::Outcome;
use proto::v1;
use proto::v1::gateway_service_client::GatewayServiceClient;
use queue::JobEndReport;
use testkit::{PATIENCE, wait_until};

use crate::conversation::{accepted, end, ended};
use crate::suite::{Front, Suite, execution, issue, key};
use crate::supervisors::peer;

async fn gateway(suite: &Suite) -> v1::GetGatewayResponse {
    let mut client = GatewayServiceClient::new(suite.channel(Identity::Admin));
    client.get_gateway(v1::GetGatewayRequest {}).await.expect("allowed").into_inner()
}

/// How often files were read again with this outcome.
async fn read(suite: &Suite, outcome: &str) {
    let read = async || {
        let families = suite.metrics.gather();
        let family = families.iter().find(|f| f.name() == "mycora_gateway_signing_files_read_total")?;
        let of_outcome = |metric: &&prometheus::proto::Metric| {
            metric.get_label().iter().any(|label| label.value() == outcome)
        };
        family.get_metric().iter().find(of_outcome).map(|metric| metric.get_counter().get_value())
    };
    wait_until(read, PATIENCE, format!("files are {outcome}")).await;
}

#[tokio::test]
async fn another_key_of_the_same_root_ends_nothing() {
    let (suite, _worker) = Suite::start(Front::Stream).await;
    let mut router = suite.router().await;
    router.says(suite.deliver(1, &[execution(1)])).await;
    assert_eq!(router.outcome(1).await, "");
    let before = gateway(&suite).await;
    assert!(peer(suite.channel(Identity::Admin)).await.connected);

    // A certificate of another key; then the key that it is for.
    let files = issue(suite.pki.path());
    let good = std::fs::read(&files.certificate).expect("there");
    std::fs::write(&files.certificate, "no certificate").expect("written");
    read(&suite, "refused").await;
    assert_eq!(gateway(&suite).await.signing_key, before.signing_key, "the one from before holds");
    router.says(suite.deliver(2, &[execution(2)])).await;
    assert_eq!(router.outcome(2).await, "");

    std::fs::write(&files.certificate, good).expect("written");
    std::fs::remove_file(&files.key).expect("there");
    issue(suite.pki.path());
    let changed = async || {
        let now = gateway(&suite).await;
        (now.signing_key != before.signing_key).then_some(now)
    };
    let now = wait_until(changed, PATIENCE, "it signs with another key").await;
    assert_eq!(now.coordinator, before.coordinator);
    assert!(now.peers[0].connected, "the conversation goes on");
    router.says(suite.deliver(3, &[execution(3)])).await;
    assert_eq!(router.outcome(3).await, "");
    router.report(key(3), accepted).await;
}

async fn jobs_go_on_under_another_root(front: Front) {
    let (suite, mut worker) = Suite::start(front).await;
    let mut router = suite.router().await;
    router.says(suite.deliver(1, &[execution(1)])).await;
    assert_eq!(router.outcome(1).await, "");
    let taken = worker.take(1).await;
    assert_eq!(taken[0].execution.job_key, key(1));

    let root = NewRoot::make(suite.pki.path()).expect("made");
    assert_eq!(root.old.to_string(), suite.coordinator);
    issue(suite.pki.path());
    let changed = async || {
        let now = gateway(&suite).await;
        (now.coordinator == root.new.to_string() && now.peers[0].connected).then_some(())
    };
    wait_until(changed, PATIENCE, "conversations start over").await;
    worker
        .instance
        .finish(&JobEndReport {
            job_key: key(1),
            end: end(Outcome::Succeeded),
            last_log: None,
            output_tail: String::new(),
        })
        .await
        .expect("recorded");
    assert_eq!(router.report(key(1), ended).await.outcome, Outcome::Succeeded);
    router.says(suite.deliver(2, &[execution(2)])).await;
    assert_eq!(router.outcome(2).await, "");
    router.report(key(2), accepted).await;
}

#[tokio::test]
async fn jobs_go_on_under_another_root_over_a_stream() {
    jobs_go_on_under_another_root(Front::Stream).await;
}

#[tokio::test]
async fn jobs_go_on_under_another_root_over_the_bus() {
    jobs_go_on_under_another_root(Front::Bus).await;
}
