//! Verbs of instances, over TLS: what each does, when it is refused, and that it is done once.

#![allow(
    clippy::needless_update,
    reason = "requests are made by one macro, whether all of their fields are given or not"
)]

use std::os::unix::process::ExitStatusExt as _;
use std::time::{Duration, Instant};

use identity::Identity;
use model::SagaStatus;
use proto::v1;
use rpc::ErrorView;
use saga::placement::SagaReplicaRole;
use testkit::{PATIENCE, wait_until};
use tonic::{Code, Request};
use workflow::key::StoreTable;

use crate::crashes::Kept;
use crate::served::{
    ACME, ADMIN, ELSEWHERE, EXECUTOR, ORDER, OTHER, READER, Rows, STRANGER, Served, ServiceOptions, Suite,
    refused,
};

const TENANT: &str = ACME;

/// Makes a request of a verb for an instance of `order`.
macro_rules! verb {
    ($request:ident, $correlation:expr $(, $field:ident: $value:expr)*) => {
        v1::$request {
            tenant_id: TENANT.to_owned(),
            saga: "order".to_owned(),
            correlation_id: $correlation.to_owned(),
            $($field: $value,)*
            ..Default::default()
        }
    };
}

/// Calls a method of an admin, and gives the change.
macro_rules! operate {
    ($served:expr, $method:ident, $request:expr) => {
        $served.actor(ADMIN).$method($request).await.map(|answer| answer.into_inner().change.expect("given"))
    };
}

fn saga(change: &v1::SagaChange) -> &v1::Saga {
    change.saga.as_ref().expect("there is an instance")
}

fn fate(change: &v1::SagaChange) -> v1::SagaInputFate {
    change.fate()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_is_started_paused_resumed_and_finished_by_hand() {
    let served = Served::start().await;
    let started = served.start_order("o-1").await;
    assert_eq!((fate(&started), started.commands.len()), (v1::SagaInputFate::Applied, 0));
    let instance = saga(&started);
    assert_eq!((instance.status(), instance.step.as_str()), (v1::SagaStatus::Running, "wait"));
    assert_eq!((instance.tenant_id.as_str(), instance.correlation_id.as_str()), (ACME, "o-1"));
    assert_eq!((instance.revision, instance.version, instance.run), (1, 1, 0));
    assert!(instance.start_time.is_some() && instance.step_time.is_some() && instance.end_time.is_none());

    let gone_on = served.send("o-1", "Go").await.expect("applied");
    let [command] = gone_on.commands.as_slice() else { panic!("one command: {gone_on:?}") };
    assert_eq!((command.step.as_str(), command.branch.as_str()), ("act", "act"));
    assert_eq!(command.purpose(), v1::SagaCommandPurpose::Forward);
    assert_eq!((command.aggregate_type.as_str(), command.aggregate_id.as_str()), ("Order", "o-1"));
    assert_eq!((command.command_type.as_str(), command.payload_json.as_str()), ("Act", r#"{"n":1}"#));
    served.wait_at("o-1", "hold", SagaStatus::Running).await;

    let paused = operate!(served, pause_saga, verb!(PauseSagaRequest, "o-1")).expect("paused");
    assert!(saga(&paused).paused);
    let held = served.send("o-1", "Ship").await.expect("held");
    assert_eq!((fate(&held), saga(&held).held_count), (v1::SagaInputFate::Held, 1));
    let resumed = operate!(served, resume_saga, verb!(ResumeSagaRequest, "o-1")).expect("resumed");
    assert!(!saga(&resumed).paused);
    served.wait_at("o-1", "shipped", SagaStatus::Running).await;

    served.send("o-1", "Tell").await.expect("applied");
    served.wait_at("o-1", "tell", SagaStatus::Stuck).await;
    // The command is refused once more, and after that accepted.
    let tried = operate!(served, retry_saga_step, verb!(RetrySagaStepRequest, "o-1")).expect("tried again");
    assert_eq!((saga(&tried).status(), tried.commands.len()), (v1::SagaStatus::Running, 1));
    served.wait_at("o-1", "tell", SagaStatus::Stuck).await;
    served.aggregates.take_all();
    operate!(served, retry_saga_step, verb!(RetrySagaStepRequest, "o-1")).expect("tried again");
    served.wait_at("o-1", "tell", SagaStatus::Completed).await;
    assert_eq!(served.aggregates.done("o-1").len(), 3, "Act, Ship and Fail");

    let wanted = [
        "SendSagaEvent acme/order/o-1",
        "PauseSaga acme/order/o-1",
        "ResumeSaga acme/order/o-1",
        "RetrySagaStep acme/order/o-1",
    ];
    let audit = served.suite.audit().await;
    assert_eq!(audit.first().map(String::as_str), Some("StartSaga acme/order/o-1"));
    for entry in wanted {
        assert!(audit.iter().any(|found| found == entry), "{entry}: {audit:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_are_cancelled_killed_skipped_and_completed() {
    let served = Served::start().await;
    served.start_order("undone").await;
    served.send("undone", "Go").await.expect("applied");
    served.wait_at("undone", "hold", SagaStatus::Running).await;
    let request = verb!(CancelSagaRequest, "undone", reason: "enough".to_owned());
    let cancelled = operate!(served, cancel_saga, request).expect("cancelled");
    assert_eq!(saga(&cancelled).status(), v1::SagaStatus::Compensating);
    assert_eq!((saga(&cancelled).reason.as_str(), cancelled.commands.len()), ("enough", 1));
    assert_eq!(cancelled.commands[0].purpose(), v1::SagaCommandPurpose::Undo);
    served.wait_at("undone", "hold", SagaStatus::Compensated).await;

    served.start_order("killed").await;
    operate!(served, pause_saga, verb!(PauseSagaRequest, "killed")).expect("paused");
    let request = verb!(KillSagaRequest, "killed", reason: "a mistake".to_owned());
    let killed = operate!(served, kill_saga, request).expect("killed");
    assert_eq!((saga(&killed).status(), saga(&killed).paused), (v1::SagaStatus::Killed, false));
    assert!(saga(&killed).end_time.is_some() && saga(&killed).step_time.is_none());

    for correlation in ["skipped", "complete"] {
        served.start_order(correlation).await;
        served.send(correlation, "Go").await.expect("applied");
        served.wait_at(correlation, "hold", SagaStatus::Running).await;
        served.send(correlation, "Ship").await.expect("applied");
        served.wait_at(correlation, "shipped", SagaStatus::Running).await;
        served.send(correlation, "Tell").await.expect("applied");
        served.wait_at(correlation, "tell", SagaStatus::Stuck).await;
    }
    let request = verb!(SkipSagaStepRequest, "skipped", result_json: r#"{"ok":true}"#.to_owned());
    let skipped = operate!(served, skip_saga_step, request).expect("skipped");
    assert_eq!(saga(&skipped).status(), v1::SagaStatus::Completed);
    let request = verb!(CompleteSagaRequest, "complete", reason: "told by phone".to_owned());
    let completed = operate!(served, complete_saga, request).expect("completed");
    assert_eq!(saga(&completed).status(), v1::SagaStatus::Completed);
    assert_eq!(saga(&completed).reason, "told by phone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_becomes_one_of_the_definition_in_force() {
    let served = Served::start().await;
    served.start_order("o-1").await;
    let request = verb!(MigrateSagaRequest, "o-1");
    let refusal = refused(operate!(served, migrate_saga, request.clone()));
    assert_eq!(refusal, (Code::FailedPrecondition, "SAGA_NOT_MIGRATABLE".to_owned()));
    let second = ORDER.replace("version: 1", "version: 2\nmigrate: { from: 1 }");
    served.write(&second);
    served.app.reload().await.expect("taken");
    operate!(served, pause_saga, verb!(PauseSagaRequest, "o-1")).expect("paused");
    let migrated = operate!(served, migrate_saga, request.clone()).expect("migrated");
    assert_eq!((saga(&migrated).version, saga(&migrated).paused), (2, true));
    let refusal = refused(operate!(served, migrate_saga, request));
    assert_eq!(refusal, (Code::FailedPrecondition, "SAGA_NOT_MIGRATABLE".to_owned()));
    let request = verb!(MigrateSagaRequest, "nobody");
    assert_eq!(refused(operate!(served, migrate_saga, request)).0, Code::NotFound);
}

/// Every verb but those that start and send, each refused for the same reason.
macro_rules! all_refused {
    ($served:expr, $correlation:expr, $wanted:expr, [$($method:ident $request:ident { $($field:ident: $value:expr)? }),+]) => {
        $({
            let request = verb!($request, $correlation $(, $field: $value)?);
            assert_eq!(refused(operate!($served, $method, request)), $wanted, stringify!($method));
        })+
    };
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_done_is_refused_by_its_reason() {
    let served = Served::start().await;
    let failed = |reason: &str| (Code::FailedPrecondition, reason.to_owned());
    let not_found = (Code::NotFound, "NOT_FOUND".to_owned());
    let why = || "why".to_owned();
    all_refused!(served, "nobody", not_found, [
        pause_saga PauseSagaRequest {},
        resume_saga ResumeSagaRequest {},
        cancel_saga CancelSagaRequest { reason: why() },
        kill_saga KillSagaRequest { reason: why() },
        retry_saga_step RetrySagaStepRequest {},
        skip_saga_step SkipSagaStepRequest {},
        complete_saga CompleteSagaRequest {},
        migrate_saga MigrateSagaRequest {}
    ]);

    served.start_order("o-1").await;
    let again = served.actor(EXECUTOR).start_saga(verb!(StartSagaRequest, "o-1")).await;
    assert_eq!(refused(again), (Code::AlreadyExists, "SAGA_EXISTS".to_owned()));
    all_refused!(served, "o-1", failed("SAGA_NOT_PAUSED"), [resume_saga ResumeSagaRequest {}]);
    all_refused!(served, "o-1", failed("SAGA_NOT_STUCK"), [
        retry_saga_step RetrySagaStepRequest {},
        skip_saga_step SkipSagaStepRequest {},
        complete_saga CompleteSagaRequest {}
    ]);
    let wrong = verb!(SendSagaEventRequest, "o-1", event_type: "Counted".to_owned(), data_json: r#"{"count":"x"}"#.to_owned());
    assert_eq!(refused(served.actor(EXECUTOR).send_saga_event(wrong).await), failed("SAGA_FAULT"));
    assert_eq!(served.summary("o-1").await.map(|saga| (saga.revision, saga.is_parked)), Some((1, false)));

    operate!(served, pause_saga, verb!(PauseSagaRequest, "o-1")).expect("paused");
    all_refused!(served, "o-1", failed("SAGA_PAUSED"), [
        pause_saga PauseSagaRequest {},
        cancel_saga CancelSagaRequest { reason: why() },
        retry_saga_step RetrySagaStepRequest {},
        skip_saga_step SkipSagaStepRequest {},
        complete_saga CompleteSagaRequest {}
    ]);
    operate!(served, resume_saga, verb!(ResumeSagaRequest, "o-1")).expect("resumed");

    for (kind, step) in [("Go", "hold"), ("Ship", "shipped")] {
        served.send("o-1", kind).await.expect("applied");
        served.wait_at("o-1", step, SagaStatus::Running).await;
    }
    all_refused!(served, "o-1", failed("PAST_PIVOT"), [cancel_saga CancelSagaRequest { reason: why() }]);
    served.send("o-1", "Tell").await.expect("applied");
    served.wait_at("o-1", "tell", SagaStatus::Stuck).await;
    all_refused!(served, "o-1", failed("SAGA_STUCK"), [pause_saga PauseSagaRequest {}]);
    operate!(served, kill_saga, verb!(KillSagaRequest, "o-1", reason: why())).expect("killed");
    all_refused!(served, "o-1", failed("SAGA_ENDED"), [
        pause_saga PauseSagaRequest {},
        resume_saga ResumeSagaRequest {},
        cancel_saga CancelSagaRequest { reason: why() },
        kill_saga KillSagaRequest { reason: why() },
        retry_saga_step RetrySagaStepRequest {},
        skip_saga_step SkipSagaStepRequest {},
        complete_saga CompleteSagaRequest {},
        migrate_saga MigrateSagaRequest {}
    ]);
    assert_eq!(refused(served.send("o-1", "Go").await), failed("SAGA_ENDED"));
    let again = served.actor(EXECUTOR).start_saga(verb!(StartSagaRequest, "o-1")).await;
    assert_eq!(refused(again), failed("SAGA_ENDED"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_without_an_instance_is_answered_with_its_fate() {
    let served = Served::start().await;
    let ignored = served.send("nobody", "Unheard").await.expect("ignored");
    assert_eq!(
        (fate(&ignored), ignored.ignored_reason.as_str()),
        (v1::SagaInputFate::Ignored, "no_instance")
    );
    assert!(ignored.saga.is_none());
    let kept = served.send("early", "Early").await.expect("kept");
    assert_eq!(fate(&kept), v1::SagaInputFate::Kept);
    let poison = served.send("poison", "Poison").await.expect("a letter");
    assert_eq!(fate(&poison), v1::SagaInputFate::DeadLetter);
    let request = verb!(SendSagaEventRequest, "o-1", event_type: "OrderPlaced".to_owned(), data_json: r#"{"id":"o-1"}"#.to_owned());
    let answer = served.actor(EXECUTOR).send_saga_event(request).await.expect("it starts one").into_inner();
    assert_eq!(answer.change.as_ref().map(|change| saga(change).step.as_str()), Some("wait"));
    let unwanted = served.send("o-1", "Unheard").await.expect("ignored");
    assert_eq!((fate(&unwanted), unwanted.ignored_reason.as_str()), (v1::SagaInputFate::Ignored, "unwanted"));
    assert_eq!(saga(&unwanted).revision, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_comes_again_has_one_effect_and_one_answer() {
    let served = Served::start().await;
    let start = verb!(
        StartSagaRequest, "o-1",
        request_id: "0b7f1a3e-0000-4000-8000-000000000001".to_owned(),
        data_json: r#"{"id":"o-1"}"#.to_owned()
    );
    // Two at a time: neither is refused, and both get the answer of one start.
    let (mut one, mut two) = (served.actor(EXECUTOR), served.actor(EXECUTOR));
    let (one, two) = tokio::join!(one.start_saga(start.clone()), two.start_saga(start.clone()));
    let first = one.expect("started").into_inner();
    assert_eq!(first, two.expect("the same").into_inner());
    served.send("o-1", "Go").await.expect("applied");
    served.wait_at("o-1", "hold", SagaStatus::Running).await;
    // A repeat gets the first answer, whatever happened since.
    let again = served.actor(EXECUTOR).start_saga(start.clone()).await.expect("the same").into_inner();
    assert_eq!(again, first);
    let other = v1::StartSagaRequest { data_json: r#"{"id":"o-2"}"#.to_owned(), ..start.clone() };
    let reused = (Code::AlreadyExists, "REQUEST_ID_REUSED".to_owned());
    assert_eq!(refused(served.actor(EXECUTOR).start_saga(other).await), reused);
    // Whose request it is belongs to it: that of another actor is none of theirs.
    assert_eq!(refused(served.actor(ADMIN).start_saga(start.clone()).await), reused);
    let audit = served.suite.audit().await;
    let entries = audit.iter().filter(|entry| *entry == "StartSaga acme/order/o-1").count();
    assert_eq!(entries, 2, "one of each actor: {audit:?}");

    // A refusal is remembered as well.
    let resume = verb!(ResumeSagaRequest, "o-1", request_id: "r-2".to_owned());
    let not_paused = (Code::FailedPrecondition, "SAGA_NOT_PAUSED".to_owned());
    assert_eq!(refused(operate!(served, resume_saga, resume.clone())), not_paused);
    operate!(served, pause_saga, verb!(PauseSagaRequest, "o-1")).expect("paused");
    assert_eq!(refused(operate!(served, resume_saga, resume)), not_paused);
    assert!(served.summary("o-1").await.is_some_and(|saga| saga.is_paused));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_requests_of_one_id_at_once_have_one_answer() {
    let served = Served::start().await;
    served.start_order("o-1").await;
    let go = verb!(SendSagaEventRequest, "o-1", request_id: "go".to_owned(), event_type: "Go".to_owned());
    let requests = (0..16).map(|_| {
        let (mut client, go) = (served.actor(EXECUTOR), go.clone());
        tokio::spawn(async move { client.send_saga_event(go).await.expect("applied").into_inner() })
    });
    let requests: Vec<_> = requests.collect();
    let mut answers = Vec::new();
    for request in requests {
        answers.push(request.await.expect("no panic"));
    }
    assert!(answers.windows(2).all(|pair| pair[0] == pair[1]), "{answers:?}");
    served.wait_at("o-1", "hold", SagaStatus::Running).await;
    assert_eq!(served.aggregates.done("o-1"), ["Act"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revision_that_is_not_expected_is_a_lost_race() {
    let served = Served::start().await;
    served.start_order("o-1").await;
    let pause = |expected_revision| verb!(PauseSagaRequest, "o-1", expected_revision: expected_revision);
    let lost = (Code::Aborted, "REVISION_MISMATCH".to_owned());
    assert_eq!(refused(operate!(served, pause_saga, pause(7))), lost);
    let paused = operate!(served, pause_saga, pause(1)).expect("as expected");
    assert_eq!(saga(&paused).revision, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dry_run_returns_the_outcome_and_stores_nothing() {
    let served = Served::start().await;
    served.start_order("o-1").await;
    served.send("o-1", "Go").await.expect("applied");
    served.wait_at("o-1", "hold", SagaStatus::Running).await;
    let (before, audit) = (served.rows().await, served.suite.audit().await);
    let cancel = verb!(
        CancelSagaRequest, "o-1", reason: "perhaps".to_owned(), dry_run: true, request_id: "dry".to_owned()
    );
    for _ in 0..2 {
        let would = operate!(served, cancel_saga, cancel.clone()).expect("told");
        assert_eq!(saga(&would).status(), v1::SagaStatus::Compensating);
        assert_eq!(would.commands.len(), 1);
    }
    let refusal = operate!(served, resume_saga, verb!(ResumeSagaRequest, "o-1", dry_run: true));
    assert_eq!(refused(refusal).1, "SAGA_NOT_PAUSED");
    let now = served.rows().await;
    // What was under way before may have been sent meanwhile; nothing came to it.
    let is_new = |row: &&(String, bytes::Bytes)| row.0.starts_with("outbox:") && !before.contains(row);
    assert_eq!(now.iter().filter(is_new).count(), 0);
    for table in
        [StoreTable::Saga, StoreTable::Journal, StoreTable::Request, StoreTable::Dedupe, StoreTable::Due]
    {
        let of = |rows: &[(String, bytes::Bytes)]| {
            let range = table.range();
            let of = rows
                .iter()
                .filter(|(key, _)| range.start.as_str() <= key.as_str() && key.as_str() < range.end.as_str());
            of.cloned().collect::<Vec<_>>()
        };
        assert_eq!(of(&before), of(&now), "{table:?}");
    }
    assert_eq!(served.suite.audit().await, audit);
    assert_eq!(served.aggregates.done("o-1"), ["Act"]);
    // The id is free.
    operate!(served, cancel_saga, v1::CancelSagaRequest { dry_run: false, ..cancel }).expect("cancelled");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn roles_are_those_of_the_tenants_context() {
    let served = Served::start().await;
    served.start_order("o-1").await;
    let start = || verb!(StartSagaRequest, "o-2", data_json: r#"{"id":"o-2"}"#.to_owned());
    let pause = || verb!(PauseSagaRequest, "o-1");
    let no_role = (Code::PermissionDenied, "ROLE_INSUFFICIENT".to_owned());
    assert_eq!(refused(served.actor(READER).start_saga(start()).await), no_role);
    assert_eq!(refused(served.actor(EXECUTOR).pause_saga(pause()).await), no_role);
    // Dry runs are for those who may do it.
    let dry = v1::PauseSagaRequest { dry_run: true, ..pause() };
    assert_eq!(refused(served.actor(EXECUTOR).pause_saga(dry).await), no_role);
    // Every caller gets the same answer for a foreign tenant as for an unknown one.
    let mut refusals = Vec::new();
    for (who, tenant) in [(STRANGER, ACME), (ELSEWHERE, ACME), (ADMIN, OTHER), (ADMIN, "acme2")] {
        let request = v1::PauseSagaRequest { tenant_id: tenant.to_owned(), ..pause() };
        let status = served.actor(who).pause_saga(request).await.expect_err("refused");
        assert_eq!(status.code(), Code::NotFound);
        refusals.push((ErrorView::from(&status).reason, status.message().replace(tenant, "T")));
    }
    assert!(refusals.windows(2).all(|pair| pair[0] == pair[1]), "{refusals:?}");
    // The other tenant has sagas of its own, under the same names.
    let request = v1::StartSagaRequest { tenant_id: OTHER.to_owned(), ..start() };
    let other = served.actor(ELSEWHERE).start_saga(request).await.expect("started").into_inner();
    assert_eq!(other.change.map(|change| saga(&change).tenant_id.clone()).as_deref(), Some(OTHER));
    assert!(served.summary("o-2").await.is_none());
    // Bootstrap and services have no roles.
    let admin = served.client(Identity::Admin).pause_saga(pause()).await;
    assert_eq!(refused(admin), (Code::PermissionDenied, "METHOD_NOT_ALLOWED".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metadata_name_the_same_tenant_or_none() {
    let served = Served::start().await;
    served.start_order("o-1").await;
    let pause_with = |header: &'static str| {
        let mut request = Request::new(verb!(PauseSagaRequest, "o-1", dry_run: true));
        request.metadata_mut().insert("x-tenant-id", header.parse().expect("ASCII"));
        request
    };
    served.actor(ADMIN).pause_saga(pause_with(ACME)).await.expect("the same");
    let mismatch = (Code::InvalidArgument, "TENANT_MISMATCH".to_owned());
    for header in [OTHER, "", "acme2"] {
        assert_eq!(refused(served.actor(ADMIN).pause_saga(pause_with(header)).await), mismatch, "{header:?}");
    }
    let mut twice = pause_with(ACME);
    twice.metadata_mut().append("x-tenant-id", OTHER.parse().expect("ASCII"));
    assert_eq!(refused(served.actor(ADMIN).pause_saga(twice).await), mismatch);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_tenants_wants_none() {
    let served = Served::with(ServiceOptions { tenants: false, ..ServiceOptions::default() }).await;
    let start = |tenant: &str| v1::StartSagaRequest {
        tenant_id: tenant.to_owned(),
        data_json: r#"{"id":"o-1"}"#.to_owned(),
        ..verb!(StartSagaRequest, "o-1")
    };
    let started = served.actor(EXECUTOR).start_saga(start("")).await.expect("started").into_inner();
    assert_eq!(started.change.map(|change| saga(&change).tenant_id.clone()).as_deref(), Some(""));
    let refusal = refused(served.actor(EXECUTOR).start_saga(start(ACME)).await);
    assert_eq!(refusal, (Code::InvalidArgument, "INVALID_REQUEST".to_owned()));
    let mut named = Request::new(start(""));
    named.metadata_mut().insert("x-tenant-id", ACME.parse().expect("ASCII"));
    let mismatch = (Code::InvalidArgument, "TENANT_MISMATCH".to_owned());
    assert_eq!(refused(served.actor(EXECUTOR).start_saga(named).await), mismatch);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_problem_of_a_request_is_listed_at_once() {
    let served = Served::start().await;
    let wrong = v1::SendSagaEventRequest {
        request_id: "two words".to_owned(),
        saga: "no saga".to_owned(),
        data_json: "{".to_owned(),
        event_type: "x".repeat(129),
        ..Default::default()
    };
    let status = served.actor(EXECUTOR).send_saga_event(wrong).await.expect_err("refused");
    let fields: Vec<_> =
        ErrorView::from(&status).violations.into_iter().map(|violation| violation.field).collect();
    assert_eq!(fields, ["correlation_id", "request_id", "tenant_id", "saga", "event_type", "data_json"]);
    let unknown = v1::StartSagaRequest { saga: "other".to_owned(), ..verb!(StartSagaRequest, "o-1") };
    assert_eq!(refused(served.actor(EXECUTOR).start_saga(unknown).await).0, Code::NotFound);
    let long = verb!(CancelSagaRequest, "o-1", reason: "é".repeat(301));
    assert_eq!(refused(operate!(served, cancel_saga, long)).0, Code::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_are_taken_up_to_their_limit_and_as_deep_as_they_are_read() {
    let served = Served::start().await;
    let start = |correlation: &str, data: String| verb!(StartSagaRequest, correlation, data_json: data);
    let padded = |bytes: usize| {
        let (begin, end) = (r#"{"id":"o","x":""#, r#""}"#);
        format!("{begin}{}{end}", "x".repeat(bytes - begin.len() - end.len()))
    };
    served.actor(EXECUTOR).start_saga(start("largest", padded(524_288))).await.expect("taken");
    let nested = |depth: usize| format!(r#"{{"id":"o","x":{}{}}}"#, "[".repeat(depth), "]".repeat(depth));
    served.actor(EXECUTOR).start_saga(start("deep", nested(50))).await.expect("taken");
    // Numbers with a point become texts, which are longer, and have room all the same.
    let numbers = format!(r#"{{"id":"o","x":[{}1.5]}}"#, "1.5,".repeat(131_000));
    served.actor(EXECUTOR).start_saga(start("numbers", numbers)).await.expect("taken");
    for wrong in [padded(524_289), nested(63), nested(70)] {
        let answer = served.actor(EXECUTOR).start_saga(start("wrong", wrong)).await;
        assert_eq!(refused(answer), (Code::InvalidArgument, "INVALID_REQUEST".to_owned()));
    }
    assert!(served.summary("wrong").await.is_none());
    served.start_order("after").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lane_without_an_owner_answers_when_it_has_one() {
    let with =
        ServiceOptions { role: SagaReplicaRole { sagas: false, effects: true }, ..ServiceOptions::default() };
    let served = Served::with(with).await;
    let start = verb!(
        StartSagaRequest, "o-1", request_id: "r-1".to_owned(), data_json: r#"{"id":"o-1"}"#.to_owned()
    );
    let with_deadline = || {
        let mut request = Request::new(start.clone());
        request.set_timeout(Duration::from_secs(2));
        request
    };
    let late = (Code::DeadlineExceeded, "DEADLINE_EXCEEDED".to_owned());
    assert_eq!(refused(served.actor(EXECUTOR).start_saga(with_deadline()).await), late);
    assert!(served.summary("o-1").await.is_none());
    // The next owner of the lane finds the request, and its repeat gets the first answer.
    let owner = served.own_lanes();
    let answer = served.actor(EXECUTOR).start_saga(start.clone()).await.expect("started").into_inner();
    assert_eq!(answer.change.as_ref().map(|change| saga(change).revision), Some(1));
    assert_eq!(answer, served.actor(EXECUTOR).start_saga(start).await.expect("the same").into_inner());
    owner.cancel();
}

/// Lets the process die behind the publish of a verb, the first, the second and the third of its life.
async fn die_behind_the_publish(rows: Rows) {
    let suite = Suite::start().await;
    let kept = Kept::new(suite.dir(), rows);
    let start = |order: &str, request: String| {
        let data = format!("{{\"id\":\"{order}\"}}");
        verb!(StartSagaRequest, order, request_id: request, data_json: data)
    };
    let mut started = Vec::new();
    for nth in 1..=3 {
        let mut process = suite.process_over(&kept, Some(&format!("verb.published:{nth}")));
        for before in 1..nth {
            let order = format!("o-{nth}-{before}");
            let start = start(&order, format!("r-{nth}-{before}"));
            process.actor(&suite, EXECUTOR).start_saga(start).await.expect("started");
            started.push(format!("StartSaga acme/order/{order}"));
        }
        let order = format!("o-{nth}");
        let start = start(&order, format!("r-{nth}"));
        // On a machine that has other things to do a process may say that it cannot, before it comes to what it dies of.
        let begin = Instant::now();
        while process.process.is_running() {
            let lost = process.actor(&suite, EXECUTOR).start_saga(start.clone()).await.expect_err("it dies");
            assert_eq!(lost.code(), Code::Unavailable, "{lost:?}");
            assert!(begin.elapsed() < PATIENCE, "it lives on: {}", process.process.output());
        }
        assert_eq!(process.process.wait(PATIENCE).signal(), Some(9), "{}", process.process.output());
        started.push(format!("StartSaga acme/order/{order}"));

        let mut process = suite.process_over(&kept, None);
        let first = process.actor(&suite, EXECUTOR).start_saga(start.clone()).await.expect("started");
        let first = first.into_inner();
        let change = first.change.as_ref().map(|change| (saga(change).revision, saga(change).run));
        assert_eq!(change, Some((1, 0)), "{nth}");
        let again = process.actor(&suite, EXECUTOR).start_saga(start.clone()).await.expect("the same");
        assert_eq!(again.into_inner(), first);
        assert_eq!(suite.audit().await, started, "each once");
        let other = v1::StartSagaRequest { request_id: String::new(), ..start };
        let other = process.actor(&suite, EXECUTOR).start_saga(other).await;
        assert_eq!(refused(other), (Code::AlreadyExists, "SAGA_EXISTS".to_owned()));
        // It was asked for, and is written down.
        started.push(format!("StartSaga acme/order/{order}"));
        assert_eq!(suite.audit().await, started);
        process.process.terminate();
        assert!(process.process.wait(PATIENCE).success(), "{}", process.process.output());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_dies_behind_the_publish_has_done_it_once() {
    die_behind_the_publish(Rows::Directory).await;
    die_behind_the_publish(Rows::Redis).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_come_again_after_the_broker_was_away() {
    let mut served = Served::start().await;
    served.start_order("o-1").await;
    // The inbox that was opened for it has ended with its connection.
    served.suite.nats.kill9();
    let away = Request::new(verb!(PauseSagaRequest, "o-1"));
    assert_eq!(operate!(served, pause_saga, away).map_err(|status| status.code()), Err(Code::Unavailable));
    served.suite.nats.restart();
    let pause = verb!(PauseSagaRequest, "o-1", request_id: "r-1".to_owned());
    let paused = || async { operate!(served, pause_saga, pause.clone()).ok() };
    let paused = wait_until(paused, PATIENCE, "it is asked again").await;
    assert!(saga(&paused).paused);
    served.start_order("o-2").await;
}
