//! Requests of admins and operators, over TLS: definitions, lanes, reloads; and watchers that do not read, or may not any more.

#![expect(clippy::needless_update, reason = "some requests are made of nothing but a name")]

use std::path::Path;
use std::time::{Duration, SystemTime};

use identity::{Identity, IssueOptions};
use model::ActorId;
use proto::v1;
use proto::v1::saga_service_client::SagaServiceClient;
use proto::v1::watch_sagas_response::Event;
use rpc::{Channel, ErrorView};
use testkit::{PATIENCE, wait_until};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};
use tonic::{Code, Streaming};

use crate::served::{
    ACME, ADMIN, ELSEWHERE, EXECUTOR, ORDER, OTHER, READER, REPLICA, Rows, Served, ServiceOptions, refused,
};
use crate::streams::publish_event;

/// How long a test of slow watchers may take: watchers have ten seconds to read.
const LONG: Duration = Duration::from_secs(120);

/// Each number is a step, which watchers see.
const COUNTER: &str = r#"
kind: Saga
name: order
version: 1
state: { id: text, count: optional int }
sources: [{ aggregate: Order }]
start: { on: OrderPlaced, set: { id: "${{ event.data.id }}" }, goto: wait }
steps:
  wait: { on: { Counted: { set: { count: "${{ event.data.count }}" }, goto: wait-on } } }
  wait-on: { on: { Counted: { set: { count: "${{ event.data.count }}" }, goto: wait } } }
"#;

/// Calls a method with a request of the first tenant.
macro_rules! ask {
    ($client:expr, $method:ident, $request:ident $(, $field:ident: $value:expr)*) => {
        $client
            .$method(v1::$request { tenant_id: ACME.to_owned(), $($field: $value.into(),)* ..Default::default() })
            .await
            .map(tonic::Response::into_inner)
    };
}

fn file(text: &str) -> Option<v1::ManifestFile> {
    Some(v1::ManifestFile { name: "mine.yaml".to_owned(), text: text.to_owned() })
}

/// Sagas with their versions, and whether they are in force and applied by a tenant.
fn shown(definitions: &[v1::SagaDefinition]) -> Vec<(&str, u32, bool, bool)> {
    let shown = definitions
        .iter()
        .map(|found| (found.saga.as_str(), found.version, found.in_force, found.applied_by_tenant));
    shown.collect()
}

/// A saga of the tenant's own.
fn mine() -> String {
    ORDER.replace("name: order", "name: mine").replace("shards: 2\n", "")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn manifest_problems_are_listed_with_their_positions_and_nothing_is_kept() {
    let served = Served::start().await;
    let (mut admin, mut reader) = (served.actor(ADMIN), served.actor(READER));
    let mine = mine();
    // Everything that is wrong is the answer, with its place.
    let wrong = mine.replace("goto: wait }", "goto: wat }").replace("on: OrderPlaced", "one: OrderPlaced");
    let response = ask!(reader, validate_saga, ValidateSagaRequest, file: file(&wrong)).expect("answered");
    assert!(response.definitions.is_empty() && response.problems.len() >= 2, "{response:?}");
    for problem in &response.problems {
        assert_eq!(problem.file, "mine.yaml");
        let line = wrong.lines().nth(problem.line as usize - 1).expect("such a line");
        assert!(problem.column as usize <= line.len() && problem.line > 0, "{problem:?}");
    }
    let step = response.problems.iter().find(|problem| problem.message.contains("`wat`"));
    let line = wrong.lines().position(|line| line.contains("goto: wat }")).expect("it is there") + 1;
    assert_eq!(step.map(|problem| problem.line as usize), Some(line), "{response:?}");
    let good = ask!(reader, validate_saga, ValidateSagaRequest, file: file(&mine)).expect("answered");
    assert_eq!(shown(&good.definitions), [("mine", 1, false, false)]);
    let list = ask!(reader, list_saga_definitions, ListSagaDefinitionsRequest).expect("a page");
    assert_eq!(shown(&list.definitions), [("order", 1, true, false)], "nothing was kept");
    let refusal = refused(ask!(admin, apply_saga, ApplySagaRequest, file: file(&wrong)));
    assert_eq!(refusal, (Code::InvalidArgument, "INVALID_REQUEST".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_has_sagas_of_its_own_which_no_other_sees() {
    let served = Served::start().await;
    let (mut admin, mut reader, mine) = (served.actor(ADMIN), served.actor(READER), mine());
    let applied = ask!(admin, apply_saga, ApplySagaRequest, file: file(&mine), request_id: "r-1");
    let applied = applied.expect("applied");
    assert_eq!(shown(&applied.definitions), [("mine", 1, true, true)]);
    let again = ask!(admin, apply_saga, ApplySagaRequest, file: file(&mine), request_id: "r-1");
    assert_eq!(again.expect("the same"), applied);
    let newer = mine.replace("version: 1", "version: 2");
    let other = ask!(admin, apply_saga, ApplySagaRequest, file: file(&newer), request_id: "r-1");
    assert_eq!(refused(other), (Code::AlreadyExists, "REQUEST_ID_REUSED".to_owned()));
    ask!(admin, apply_saga, ApplySagaRequest, file: file(&newer)).expect("applied");

    // In pages, and by filter.
    let mut pages = (Vec::new(), String::new());
    loop {
        let page = ask!(reader, list_saga_definitions, ListSagaDefinitionsRequest, page_size: 1u32, page_token: pages.1);
        let page = page.expect("a page");
        assert_eq!(page.definitions.len(), 1);
        pages.0.extend(page.definitions);
        pages.1 = page.next_page_token;
        if pages.1.is_empty() {
            break;
        }
    }
    assert_eq!(
        shown(&pages.0),
        [("mine", 2, true, true), ("mine", 1, false, true), ("order", 1, true, false)]
    );
    let found = ask!(reader, get_saga_definition, GetSagaDefinitionRequest, saga: "mine").expect("there");
    assert_eq!(found.definition.as_ref().map(|found| found.version), Some(2));
    let hash = pages.0[1].definition_hash.clone();
    let first =
        ask!(reader, get_saga_definition, GetSagaDefinitionRequest, saga: "mine", definition_hash: hash);
    let first = first.expect("it is kept");
    assert!(first.manifest.contains("version") && first.definition.is_some_and(|found| found.version == 1));
    // Its text is a manifest again, of the same content.
    let same =
        ask!(reader, validate_saga, ValidateSagaRequest, file: file(&found.manifest)).expect("answered");
    assert_eq!(same.definitions[0].definition_hash, found.definition.expect("given").definition_hash);

    // No other tenant has it.
    let theirs = v1::GetSagaDefinitionRequest {
        tenant_id: OTHER.to_owned(),
        saga: "mine".to_owned(),
        ..Default::default()
    };
    assert_eq!(refused(served.actor(ELSEWHERE).get_saga_definition(theirs).await).0, Code::NotFound);
    let theirs = v1::ListSagaDefinitionsRequest { tenant_id: OTHER.to_owned(), ..Default::default() };
    let theirs = served.actor(ELSEWHERE).list_saga_definitions(theirs).await.expect("a page").into_inner();
    assert_eq!(shown(&theirs.definitions), [("order", 1, true, false)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_instance_starts_on_a_saga_that_is_retired_and_those_that_run_go_on() {
    let served = Served::start().await;
    let mut admin = served.actor(ADMIN);
    ask!(admin, apply_saga, ApplySagaRequest, file: file(&mine())).expect("applied");
    let start = |correlation: &str| v1::StartSagaRequest {
        tenant_id: ACME.to_owned(),
        saga: "mine".to_owned(),
        correlation_id: correlation.to_owned(),
        data_json: r#"{"id":"m-1"}"#.to_owned(),
        ..Default::default()
    };
    served.actor(EXECUTOR).start_saga(start("m-1")).await.expect("started");
    let refusal = ask!(admin, retire_saga, RetireSagaRequest, saga: "mine", expected_version: 9u32);
    assert_eq!(refused(refusal).0, Code::Aborted);
    let retired =
        ask!(admin, retire_saga, RetireSagaRequest, saga: "mine", expected_version: 1u32).expect("retired");
    assert_eq!(shown(retired.definition.as_slice()), [("mine", 1, false, true)]);
    ask!(admin, retire_saga, RetireSagaRequest, saga: "mine").expect("a repeat changes nothing");
    assert_eq!(refused(served.actor(EXECUTOR).start_saga(start("m-2")).await).0, Code::NotFound);
    let go = v1::SendSagaEventRequest {
        tenant_id: ACME.to_owned(),
        saga: "mine".to_owned(),
        correlation_id: "m-1".to_owned(),
        event_type: "Counted".to_owned(),
        data_json: r#"{"count":1}"#.to_owned(),
        ..Default::default()
    };
    let change = served.actor(EXECUTOR).send_saga_event(go).await.expect("it goes on").into_inner().change;
    assert_eq!(change.and_then(|change| change.saga).map(|saga| saga.step).as_deref(), Some("wait-on"));
    let refusal = refused(ask!(admin, retire_saga, RetireSagaRequest, saga: "order"));
    assert_eq!(refusal, (Code::FailedPrecondition, "WRONG_STATE".to_owned()));
    assert_eq!(refused(ask!(admin, retire_saga, RetireSagaRequest, saga: "none")).0, Code::NotFound);
}

/// Lanes of the first tenant, as its admin is shown them.
async fn lanes(served: &Served, size: u32) -> Vec<v1::SagaLane> {
    let (mut admin, mut all, mut token) = (served.actor(ADMIN), Vec::new(), String::new());
    loop {
        let page =
            ask!(admin, list_lanes, ListLanesRequest, page_size: size, page_token: token).expect("a page");
        assert!(page.lanes.len() <= size as usize);
        all.extend(page.lanes);
        token = page.next_page_token;
        if token.is_empty() {
            return all;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lanes_are_listed_and_moved_where_the_store_is_shared() {
    let served = Served::with(ServiceOptions { rows: Rows::Redis, ..ServiceOptions::default() }).await;
    served.start_order("o-1").await;
    let names = ["s:acme:order:0", "s:acme:order:1"];
    let owned = || async {
        let lanes = lanes(&served, 1).await;
        lanes.iter().all(|lane| lane.owner == REPLICA).then_some(lanes)
    };
    let found = wait_until(owned, PATIENCE, "they are owned").await;
    assert_eq!(found.iter().map(|lane| lane.name.as_str()).collect::<Vec<_>>(), names);
    for lane in &found {
        assert_eq!((lane.tenant_id.as_str(), lane.saga.as_str(), lane.effect.as_str()), (ACME, "order", ""));
        assert!(lane.epoch > 0 && lane.problem.is_empty(), "{lane:?}");
        let mut sources: Vec<_> = lane.sources.iter().map(|source| source.name.as_str()).collect();
        sources.sort_unstable();
        assert_eq!(sources, ["aggregate.Order", "verbs.order"]);
    }
    // Somewhere the start was settled, and nothing is left to be read.
    let settled = || async {
        let sources: Vec<_> = lanes(&served, 50).await.into_iter().flat_map(|lane| lane.sources).collect();
        let is_settled = sources.iter().any(|source| source.name == "verbs.order" && source.sequence > 0);
        (is_settled && sources.iter().all(|source| source.pending_count == Some(0))).then_some(())
    };
    wait_until(settled, PATIENCE, "sources are settled").await;
    let mut admin = served.actor(ADMIN);
    let both = ask!(admin, list_lanes, ListLanesRequest, saga: "order", effect: "pay");
    assert_eq!(refused(both).0, Code::InvalidArgument);
    let none = ask!(admin, list_lanes, ListLanesRequest, effect: "pay").expect("a page");
    assert_eq!(none.lanes, []);

    let mut operator = served.client(Identity::Admin);
    let moved =
        ask!(operator, move_lane, MoveLaneRequest, lane: names[0], replica: REPLICA, request_id: "r-1");
    let moved = moved.expect("moved").lane.expect("always given");
    assert_eq!((moved.name.as_str(), moved.wanted_owner.as_str()), (names[0], REPLICA));
    let again =
        ask!(operator, move_lane, MoveLaneRequest, lane: names[0], replica: REPLICA, request_id: "r-1");
    assert_eq!(again.expect("the same").lane.map(|lane| lane.name).as_deref(), Some(names[0]));
    let other =
        ask!(operator, move_lane, MoveLaneRequest, lane: names[1], replica: REPLICA, request_id: "r-1");
    assert_eq!(refused(other), (Code::AlreadyExists, "REQUEST_ID_REUSED".to_owned()));
    let is_listed = || async { (lanes(&served, 50).await[0].wanted_owner == REPLICA).then_some(()) };
    wait_until(is_listed, PATIENCE, "it is told to whoever lists").await;
    ask!(operator, move_lane, MoveLaneRequest, lane: names[0]).expect("its place decides again");
    let is_listed = || async { lanes(&served, 50).await[0].wanted_owner.is_empty().then_some(()) };
    wait_until(is_listed, PATIENCE, "it is told to whoever lists").await;
    for (lane, replica) in [("s:other:order:0", REPLICA), ("s:acme:order:7", REPLICA), (names[0], "two")] {
        let refusal = ask!(operator, move_lane, MoveLaneRequest, lane: lane, replica: replica);
        assert_eq!(refused(refusal).0, Code::NotFound, "{lane} {replica}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lanes_of_a_store_of_one_process_do_not_move() {
    let served = Served::start().await;
    let mut operator = served.client(Identity::Admin);
    let refusal = ask!(operator, move_lane, MoveLaneRequest, lane: "s:acme:order:0", replica: REPLICA);
    assert_eq!(refused(refusal), (Code::FailedPrecondition, "WRONG_STATE".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_operators_files_are_read_again_over_the_served_api() {
    let served = Served::start().await;
    let mut operator = served.client(Identity::Admin);
    let reload = |dry_run: bool, request_id: &str| v1::SagaServiceReloadRequest {
        dry_run,
        request_id: request_id.to_owned(),
        ..Default::default()
    };
    let newer = ORDER.replace("version: 1", "version: 2\nmigrate: { from: 1 }");
    served.write(&newer);
    let would = operator.reload(reload(true, "")).await.expect("told").into_inner();
    let change = v1::SagaReloadChange {
        kind: v1::SagaReloadKind::Saga.into(),
        name: "order".to_owned(),
        was_in_force: true,
        in_force: true,
        old_version: 1,
        new_version: 2,
    };
    assert_eq!((would.changes, would.problems), (vec![change.clone()], vec![]));
    let mut reader = served.actor(READER);
    let in_force = async |reader: &mut SagaServiceClient<Channel>| {
        let found =
            ask!(reader, get_saga_definition, GetSagaDefinitionRequest, saga: "order").expect("there");
        found.definition.expect("always given").version
    };
    assert_eq!(in_force(&mut reader).await, 1, "nothing was changed");
    let done = operator.reload(reload(false, "r-1")).await.expect("done").into_inner();
    assert_eq!(done.changes, std::slice::from_ref(&change));
    assert_eq!(in_force(&mut reader).await, 2);
    // A repeated request gets its first answer, whatever the files say by now.
    served.write(&newer.replace("goto: wait }", "goto: wat }"));
    let again = operator.reload(reload(false, "r-1")).await.expect("the same").into_inner();
    assert_eq!(again.changes, [change]);
    let status = operator.reload(reload(false, "")).await.expect_err("refused");
    let view = ErrorView::from(&status);
    assert_eq!((view.code, view.reason.as_str()), (Code::FailedPrecondition, "MANIFESTS_REFUSED"));
    assert!(
        status.message().starts_with("nothing was changed: ") && status.message().contains("order.yaml:"),
        "{status}"
    );
    let response = operator.reload(reload(true, "")).await.expect("told").into_inner();
    assert!(
        response.changes.is_empty() && response.problems.iter().any(|problem| problem.line > 0),
        "{response:?}"
    );
    assert_eq!(in_force(&mut reader).await, 2, "what was in force is");
    let unknown = v1::SagaServiceReloadRequest { tenant_id: "nobody".to_owned(), ..Default::default() };
    assert_eq!(refused(operator.reload(unknown).await).0, Code::NotFound);
}

/// Asks for all changes of instances of the first tenant from there on.
fn changes_from(resume_position: &str) -> v1::WatchSagasRequest {
    v1::WatchSagasRequest {
        tenant_id: ACME.to_owned(),
        snapshot: v1::SagaSnapshot::None.into(),
        resume_position: resume_position.to_owned(),
        ..Default::default()
    }
}

async fn watch(served: &Served, actor: u32, resume_position: &str) -> Streaming<v1::WatchSagasResponse> {
    served.actor(actor).watch_sagas(changes_from(resume_position)).await.expect("a watch").into_inner()
}

/// Watches as [`watch`] does, over a connection that buffers little.
async fn watch_narrowly(served: &Served, actor: u32) -> Streaming<v1::WatchSagasResponse> {
    const WINDOW: u32 = 65_535;
    let (actor, options) = (Identity::Actor(ActorId(actor)), IssueOptions::from(SystemTime::now()));
    let files = served.suite.pki.issue(actor, &options).expect("a certificate");
    let read = |file: &Path| std::fs::read(file).expect("a file");
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(read(&files.ca)))
        .identity(tonic::transport::Identity::from_pem(read(&files.certificate), read(&files.key)));
    let endpoint = Endpoint::from_shared(format!("https://{}", served.address)).expect("an address");
    let endpoint = endpoint.tls_config(tls).expect("certificates");
    let endpoint = endpoint.initial_stream_window_size(WINDOW).initial_connection_window_size(WINDOW);
    let mut client = SagaServiceClient::new(endpoint.connect().await.expect("a connection"));
    client.watch_sagas(changes_from("")).await.expect("a watch").into_inner()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_watcher_is_cut_off_and_resumes_while_others_get_every_change() {
    const LAST: u64 = 7_000;
    let served =
        Served::with(ServiceOptions { manifest: COUNTER, rows: Rows::Redis, ..ServiceOptions::default() })
            .await;
    // Long names, so that what a connection holds is soon full.
    let names: Vec<_> = (10..26).map(|number| format!("{number}{}", "x".repeat(254))).collect();
    for name in &names {
        served.start_order(name).await;
    }
    let mut slow = watch_narrowly(&served, READER).await;
    let mut quick = watch(&served, ADMIN, "").await;
    let broker = std::sync::Arc::clone(&served.broker);
    let publishing = tokio::spawn({
        let names = names.clone();
        async move {
            for number in 1..=LAST {
                let name = &names[(number % 16) as usize];
                let data = format!(r#"{{"count":{number}}}"#);
                publish_event(&*broker, "Order", &format!("c-{number}"), "Counted", name, &data).await;
            }
        }
    });
    // One watcher reads, and gets every change up to the last one.
    let revisions = |seen: &std::collections::BTreeMap<String, u64>| seen.values().sum::<u64>();
    let mut seen = std::collections::BTreeMap::new();
    let all = LAST + names.len() as u64;
    let reading = async {
        while revisions(&seen) < all {
            let answer = quick.message().await.expect("it is not cut off").expect("it goes on");
            if let Some(Event::Saga(saga)) = answer.event {
                let before = seen.insert(saga.correlation_id, saga.revision).unwrap_or_default();
                assert!(before < saga.revision, "never something earlier");
            }
        }
    };
    tokio::time::timeout(LONG, reading).await.expect("it is told all");
    publishing.await.expect("no panic");
    let cut = || async { (served.metric("slow_watchers_total") == 1.0).then_some(()) };
    wait_until(cut, PATIENCE, "the other one is cut off").await;
    let (mut position, mut received) = (String::new(), std::collections::BTreeMap::new());
    let status = loop {
        match slow.message().await {
            Ok(Some(answer)) => {
                if let Some(Event::Saga(saga)) = answer.event {
                    received.insert(saga.correlation_id, saga.revision);
                }
                position = answer.resume_position;
            }
            Ok(None) => panic!("it is told why it ends"),
            Err(status) => break status,
        }
    };
    assert!(revisions(&received) < all, "what was kept for it has a bound");
    let view = ErrorView::from(&status);
    assert_eq!((view.code, view.reason.as_str()), (Code::ResourceExhausted, "SLOW_CONSUMER"));
    let mut slow = watch(&served, READER, &position).await;
    let reading = async {
        while received != seen {
            let answer = slow.message().await.expect("it reads now").expect("it goes on");
            if let Some(Event::Saga(saga)) = answer.event {
                received.insert(saga.correlation_id, saga.revision);
            }
        }
    };
    tokio::time::timeout(LONG, reading).await.expect("nothing was left out");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_ends_when_its_role_is_taken_away() {
    let served = Served::start().await;
    let mut of_reader = watch(&served, READER, "").await;
    let mut of_executor = watch(&served, EXECUTOR, "").await;
    served.suite.set_readers(&[]).await;
    let status = loop {
        match tokio::time::timeout(PATIENCE, of_reader.message()).await.expect("in time") {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it is told why it ends"),
            Err(status) => break status,
        }
    };
    // With the same message as for a caller that never had a role.
    assert_eq!((status.code(), status.message()), (Code::NotFound, "tenant acme was not found"));
    let request = v1::WatchSagasRequest { tenant_id: ACME.to_owned(), ..Default::default() };
    let refusal =
        served.actor(READER).watch_sagas(request).await.map(drop).expect_err("it may not begin again");
    assert_eq!((refusal.code(), refusal.message()), (status.code(), status.message()));
    served.start_order("o-1").await;
    let received = async {
        loop {
            let answer = of_executor.message().await.expect("no error").expect("no end");
            if let Some(Event::Saga(saga)) = answer.event {
                return saga.correlation_id;
            }
        }
    };
    let received = tokio::time::timeout(PATIENCE, received).await.expect("the other one goes on");
    assert_eq!(received, "o-1");
}
