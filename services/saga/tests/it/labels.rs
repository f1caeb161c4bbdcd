//! Labels of metrics that stand for sagas: names of the operator's, and nothing that tenants choose.

use model::SagaStatus;
use proto::v1;
use testkit::{PATIENCE, wait_until};

use crate::served::{ACME, ADMIN, EXECUTOR, ORDER, Served};
use crate::streams::publish_event;

/// Lines of the exported metrics that contain this text.
fn metric_lines(served: &Served, part: &str) -> Vec<String> {
    let text = prometheus::TextEncoder::new().encode_to_string(&served.registry.gather()).expect("text");
    text.lines().filter(|line| line.contains(part) && !line.starts_with('#')).map(str::to_owned).collect()
}

/// Waits until a line of the metrics begins so.
async fn until_line(served: &Served, start: &str) {
    let has_line = async || {
        metric_lines(served, "mycora_saga_").iter().any(|line| line.starts_with(start)).then_some(())
    };
    wait_until(has_line, PATIENCE, start).await;
}

fn transitions(saga: &str) -> String {
    format!("mycora_saga_transitions_total{{outcome=\"applied\",saga=\"{saga}\"}} ")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sagas_of_tenants_have_one_label_and_those_that_are_left_out_another() {
    let served = Served::start().await;
    served.start_order("o-1").await;
    until_line(&served, &transitions("order")).await;
    until_line(&served, r#"mycora_saga_source_pending{saga="order",source="aggregate.Order"} "#).await;

    // Neither its name nor that of its aggregate may be visible to others.
    let text = ORDER
        .replace("name: order", "name: mine")
        .replace("shards: 2\n", "")
        .replace("aggregate: Order }]", "aggregate: Own }]");
    let file = Some(v1::ManifestFile { name: "mine.yaml".to_owned(), text });
    let apply = v1::ApplySagaRequest { tenant_id: ACME.to_owned(), file, ..Default::default() };
    served.actor(ADMIN).apply_saga(apply).await.expect("applied");
    let start = v1::StartSagaRequest {
        tenant_id: ACME.to_owned(),
        saga: "mine".to_owned(),
        correlation_id: "m-1".to_owned(),
        data_json: r#"{"id":"m-1"}"#.to_owned(),
        ..Default::default()
    };
    served.actor(EXECUTOR).start_saga(start).await.expect("started");
    until_line(&served, &transitions("own")).await;
    for source in ["aggregate", "verbs"] {
        until_line(&served, &format!("mycora_saga_source_pending{{saga=\"own\",source=\"{source}\"}} "))
            .await;
    }
    assert_eq!((metric_lines(&served, "mine"), metric_lines(&served, "Own")), (Vec::new(), Vec::new()));

    // Another saga in its place: what was counted of it goes with its name, and its instances are counted on.
    served.write(&ORDER.replace("name: order", "name: another"));
    served.app.reload().await.expect("manifests");
    assert_eq!(metric_lines(&served, &transitions("order")), Vec::<String>::new());
    publish_event(&*served.broker, "Order", "e-1", "Counted", "o-1", r#"{"count":1}"#).await;
    served.wait_at("o-1", "wait-on", SagaStatus::Running).await;
    until_line(&served, &transitions("left_out")).await;
    assert_eq!(metric_lines(&served, &transitions("order")), Vec::<String>::new());
}
