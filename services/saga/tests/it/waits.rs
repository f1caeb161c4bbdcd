//! Reasons why work waits, as reported to operators and to callers that ask about an instance.

use identity::Identity;
use proto::v1;
use proto::v1::SagaFindingKind as Kind;
use saga::tenants::TenantRegistry;
use testkit::{NatsServer, PATIENCE, wait_until};
use tonic::Code;

use crate::process::{self, ReplicaProcess, SECRET, Upstream};
use crate::served::{ACME, ADMIN, ELSEWHERE, OTHER, READER, Served, ServiceOptions, refused};
use crate::streams::{aggregates, connect, publish_event};

async fn problems(served: &Served) -> Vec<String> {
    let answer = served.client(Identity::Admin).get_saga_server(v1::GetSagaServerRequest {}).await;
    answer.expect("described").into_inner().problems
}

async fn until_problems(served: &Served, wanted: &[&str]) {
    let are_reported = async || (problems(served).await == wanted).then_some(());
    wait_until(are_reported, PATIENCE, format!("{wanted:?} is told")).await;
}

fn explain_request(correlation: &str) -> v1::ExplainSagaRequest {
    let (tenant_id, saga) = (ACME.to_owned(), "order".to_owned());
    v1::ExplainSagaRequest { tenant_id, saga, correlation_id: correlation.to_owned() }
}

/// Waits until an instance is explained by this.
async fn until_explained(served: &Served, correlation: &str, cause: Kind) -> v1::ExplainSagaResponse {
    let explained = async || {
        let response =
            served.actor(READER).explain_saga(explain_request(correlation)).await.ok()?.into_inner();
        (response.cause() == cause).then_some(response)
    };
    wait_until(explained, PATIENCE, format!("{correlation} is explained by {cause:?}")).await
}

async fn with_quotas(served: &Served, quotas: &str) {
    let text = format!("acme: {{ context: 1, quotas: {quotas} }}\nother: {{ context: 2 }}\n");
    let tenants = TenantRegistry::read("t", &text).expect("good");
    let definitions = served.app.definitions();
    let revision = definitions.in_force().revision;
    assert!(definitions.replace(None, Some(&tenants), revision, Vec::new()).await.expect("kept"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn starts_that_wait_for_a_quota_are_explained_and_reported() {
    let served = Served::start().await;
    with_quotas(&served, "{ instances: 1 }").await;
    served.start_order("o-1").await;
    assert_eq!(problems(&served).await, Vec::<String>::new());
    publish_event(&*served.broker, "Order", "e-2", "OrderPlaced", "o-2", r#"{"id":"o-2"}"#).await;
    let explanation = until_explained(&served, "o-2", Kind::Tenant).await;
    assert!(explanation.saga.is_none(), "{explanation:?}");
    let figures = "for the quota `instances`: the tenant has 1, and may have 1";
    assert!(
        explanation.summary.starts_with("It has not started") && explanation.summary.contains(figures),
        "{explanation:?}"
    );
    let [quota] = explanation.findings.as_slice() else { panic!("one: {explanation:?}") };
    assert!(quota.blocks && quota.lane.starts_with("s:acme:order:"), "{explanation:?}");
    let line =
        "quota, acme: starts wait until there is room: the tenant has 1 of the quota `instances`, which is 1";
    until_problems(&served, &[line]).await;
    // Of a lane in which no start waits nothing is known of an instance that there is not.
    let mut other_lane = false;
    for number in 0..16 {
        let answer = served.actor(READER).explain_saga(explain_request(&format!("none-{number}"))).await;
        other_lane |= answer.is_err_and(|status| status.code() == Code::NotFound);
    }
    assert!(other_lane);
    let strange = served.actor(ELSEWHERE).explain_saga(explain_request("o-2")).await;
    assert_eq!(refused(strange).0, Code::NotFound);
    with_quotas(&served, "{ instances: 2 }").await;
    let explanation = until_explained(&served, "o-2", Kind::Event).await;
    assert!(explanation.saga.is_some(), "{explanation:?}");
    until_problems(&served, &[]).await;
    let gone = async || {
        let explanation = served.actor(READER).explain_saga(explain_request("none")).await;
        explanation.is_err_and(|status| status.code() == Code::NotFound).then_some(())
    };
    wait_until(gone, PATIENCE, "no start waits any more").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lanes_without_an_owner_are_listed_with_reason_and_remedy() {
    let served = Served::start().await;
    served.start_order("o-1").await;
    assert_eq!(until_explained(&served, "o-1", Kind::Event).await.cause(), Kind::Event);
    assert!(served.app.drain_tenant(&ACME.parse().expect("a tenant")));
    let why = "every replica with the role `saga` drains, or was told to give up the lanes of its tenant; start another one";
    until_problems(&served, &[&format!("no owner, acme: lanes s:acme:order:0, s:acme:order:1: {why}")]).await;
    let explanation = until_explained(&served, "o-1", Kind::Lane).await;
    let lane = explanation.findings.iter().find(|finding| finding.kind() == Kind::Lane).expect("found");
    assert_eq!(lane.detail, format!("its lane {} has no owner: {why}", lane.lane));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lanes_beyond_the_limit_of_a_replica_are_left_out_and_reported() {
    let served = Served::with(ServiceOptions { lanes_max: 3, ..ServiceOptions::default() }).await;
    let why = "its replica owns as many lanes as it may: start another replica, or have fewer sagas, shards or effects";
    until_problems(&served, &[&format!("lanes of this replica: 1 are left out, each because {why}")]).await;
    for (actor, tenant, expected) in [(ADMIN, ACME, vec!["", ""]), (ELSEWHERE, OTHER, vec!["", why])] {
        let request = v1::ListLanesRequest { tenant_id: tenant.to_owned(), ..Default::default() };
        let lanes = served.actor(actor).list_lanes(request).await.expect("listed").into_inner().lanes;
        assert_eq!(lanes.iter().map(|lane| lane.problem.as_str()).collect::<Vec<_>>(), expected, "{tenant}");
    }
    // The others work.
    served.start_order("o-1").await;
    assert!(served.app.readiness().is_ready());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_that_is_paused_is_named() {
    let served = Served::start().await;
    let request = v1::PauseTenantRequest { tenant_id: OTHER.to_owned(), ..Default::default() };
    served.actor(ELSEWHERE).pause_tenant(request).await.expect("paused");
    let paused = async || {
        let problems = problems(&served).await;
        let [line] = problems.as_slice() else { return None };
        (line.starts_with("paused, other: since ") && line.ends_with("ResumeTenant lets it go on"))
            .then_some(())
    };
    wait_until(paused, PATIENCE, "the pause is told").await;
}

const MANIFEST: &str = r#"
kind: Saga
name: order
version: 1
state: { id: text }
sources: [{ aggregate: Order }]
start: { on: OrderPlaced, set: { id: "${{ event.data.id }}" }, goto: pay }
steps:
  pay: { effect: pay, input: { order: "${{ state.id }}" }, on_success: { end: completed } }
---
kind: EffectProvider
name: upstream
transport: http
http: { base_url: "http://ADDRESS", allow_hosts: ["ADDRESS"], private: true }
effects:
  pay:
    request: { method: POST, path: /pay, body: "${{ input }}" }
    success: status == 201
    terminal: status == 202
    retry: { initial: 1ms, attempts: 100 }
    breaker: { window: 3, failure_ratio: 0.5, open: 1h }
"#;

/// A process of two tenants, whose upstream fails.
async fn alone(dir: &std::path::Path, nats: &NatsServer, role: &str) -> (ReplicaProcess, Upstream) {
    let upstream = Upstream::start();
    process::prepare(dir, MANIFEST, &upstream);
    std::fs::write(dir.join("tenants.yaml"), "acme: { context: 1 }\nother: { context: 2 }\n")
        .expect("written");
    let broker = connect(nats).await;
    broker.ensure_stream(&aggregates()).await.expect("a stream");
    let saga = ReplicaProcess::start_alone(dir, nats, role);
    let wanted = if role == "saga" { 2 } else { 4 };
    saga.until_lanes(|lanes| lanes == wanted, "it owns its lanes").await;
    publish_event(&*broker, "Order", "e-1", "OrderPlaced", "o-1", r#"{"id":"o-1"}"#).await;
    (saga, upstream)
}

fn health(saga: &ReplicaProcess, headers: &str) -> (u16, String) {
    saga.ask_with("/health", headers).expect("told")
}

fn of(tenant: &str) -> String {
    format!("authorization: Bearer {SECRET}\r\nx-tenant-id: {tenant}\r\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_names_what_is_a_tenants_to_that_tenant() {
    let (dir, nats) = (tempfile::tempdir().expect("a directory"), NatsServer::start());
    let (saga, _upstream) = alone(dir.path(), &nats, "saga").await;
    let why = "no replica that lives has the role `effect`; start one with --role effect or --role combined";
    let line = |tenant: &str| format!("no owner, {tenant}: lanes e:{tenant}:pay:0: {why}\n");
    let all = format!("healthy\n{}{}", line("acme"), line("other"));
    let is_reported = async || {
        (health(&saga, &format!("authorization: Bearer {SECRET}\r\n")) == (200, all.clone())).then_some(())
    };
    wait_until(is_reported, PATIENCE, "both lanes of the effect are told").await;
    assert_eq!(health(&saga, &of("acme")), (200, format!("healthy\n{}", line("acme"))));
    assert_eq!(health(&saga, &of("nobody")).0, 404);
    assert_eq!(health(&saga, "x-tenant-id: acme\r\n").0, 400);
    let counted = "healthy\nno owner: 2 times; GetSagaServer tells whose, and why\n";
    assert_eq!(health(&saga, ""), (200, counted.to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_effect_that_is_left_alone_is_named() {
    let (dir, nats) = (tempfile::tempdir().expect("a directory"), NatsServer::start());
    let (saga, upstream) = alone(dir.path(), &nats, "combined").await;
    let why = "too many calls have failed; calls are suspended, with occasional probes";
    let is_reported =
        async || (health(&saga, "") == (503, format!("upstream of pay: {why}\n"))).then_some(());
    wait_until(is_reported, PATIENCE, "the effect is left alone").await;
    assert!(upstream.count("/pay") >= 2, "{:?}", upstream.calls());
    let line = "effects left alone: their upstreams fail, and calls wait until one succeeds: pay\n";
    assert_eq!(health(&saga, &of("other")), (503, format!("not healthy\n{line}")));
}
