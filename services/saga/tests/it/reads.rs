//! Reads of instances, timers, calls and letters, over TLS and with data of instances that ran.

#![expect(clippy::needless_update, reason = "some requests are made of nothing but a name")]

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use model::SagaStatus;
use proto::v1;
use proto::v1::SagaFindingKind as Kind;
use proto::v1::watch_sagas_response::Event;
use saga::effects::upstreams::Upstreams;
use saga::effects::{EffectLane, OpenCalls};
use saga::lane::{LaneEnvironment, WORKFLOW_EVENTS};
use saga::metrics::Metrics;
use saga::providers::{CallProvider, ProviderCall};
use saga::visibility::SagaVisibility;
use testkit::{PATIENCE, wait_until};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, Streaming};
use workflow::Json;
use workflow::ledger::ProviderAnswer;

use crate::served::{ACME, ADMIN, ELSEWHERE, OTHER, READER, STRANGER, Served, ServiceOptions, refused};
use crate::streams::publish_event;

/// Has timers, calls an effect, and can be parked.
pub(crate) const PAYS: &str = r#"
kind: Saga
name: order
version: 1
shards: 2
state: { id: text, count: optional int }
sources: [{ aggregate: Order }]
on_missing: { Lost: dead_letter, default: ignore }
start: { on: OrderPlaced, set: { id: "${{ event.data.id }}" }, goto: wait }
steps:
  wait:
    timers: { late: { after: 30m, raise: TooLate }, soon: { after: 10m, raise: Remind } }
    on:
      Counted: { set: { count: "${{ event.data.count }}" }, goto: wait-on }
      Go: { goto: pay }
      Remind: { compensate: nobody came }
      TooLate: { compensate: too late }
  wait-on:
    on: { Go: { goto: pay } }
  pay:
    effect: pay
    input: { id: "${{ state.id }}", card: "4111" }
    on_success: { goto: hold }
    compensate: { effect: refund, input: { card: "${{ input.card }}" } }
  hold:
    on: { Done: { end: completed }, Lost: { end: completed } }
---
kind: EffectProvider
name: bank
transport: http
http: { base_url: "https://pay.internal", allow_hosts: [pay.internal] }
effects:
  pay: { request: { method: POST, path: /pay, body: "${{ input }}" }, unknown_outcome: manual, redact: [input.card, result.token] }
  refund: { request: { method: POST, path: /refund, body: "${{ input }}" }, unknown_outcome: retry }
"#;

/// Lists texts that might be taken for something else somewhere.
fn hostile() -> Vec<String> {
    let long = [":".repeat(256), "é".repeat(128)];
    let short = ["a:b", "a.b", "*", ">", "100%", "%2A", "nul\0nul", "{x}", "a b", "-", "\u{202e}"];
    short.iter().map(|text| (*text).to_owned()).chain(long).collect()
}

/// Stands for a bank: what it answers depends on the id.
struct Bank;

#[async_trait]
impl CallProvider for Bank {
    async fn call(&self, call: &ProviderCall) -> ProviderAnswer {
        call.sent.raise();
        match call.input.get("id").and_then(Json::as_text) {
            Some("doubt") => ProviderAnswer::Unknown { why: "cut".to_owned() },
            Some("slow") => ProviderAnswer::Waiting { external: Some("elsewhere-7".to_owned()) },
            _ => {
                ProviderAnswer::Succeeded(Json::object([("token", Json::text("t")), ("paid", Json::Int(1))]))
            }
        }
    }

    async fn ask(&self, _: &ProviderCall) -> Option<ProviderAnswer> {
        None
    }

    async fn adopt(&self, _: &ProviderCall, _: &str) {}

    async fn stop(&self, _: &ProviderCall, _: &str) {}
}

/// Owns the lane of the effect until the token is cancelled.
pub(crate) fn own_effect(served: &Served) -> CancellationToken {
    let stop = CancellationToken::new();
    let lane = EffectLane {
        tenant: ACME.parse().expect("a tenant"),
        effect: "pay".parse().expect("a name"),
        weight: 1,
        definitions: served.app.definitions(),
        provider: Arc::new(Bank),
        upstreams: Upstreams::default(),
        calls: OpenCalls::default(),
        calls_max: saga::quotas::LANE_CALLS_MAX,
        around: LaneEnvironment {
            store: Arc::clone(&served.store),
            broker: Arc::clone(&served.broker),
            metrics: Arc::new(
                Metrics::new(&prometheus::Registry::new(), SagaVisibility::default()).expect("new names"),
            ),
            health: saga::health::SagaHealth::default(),
            bounds: saga::lane::in_flight::InFlightLimits::default(),
            outbox_rows_max: saga::lane::backlog::OUTBOX_ROWS_MAX,
            ack_wait: saga::lane::source::ACK_WAIT,
            streams_made: crate::streams::made(),
            has_tenants: true,
            replica: "another".into(),
            cut: CancellationToken::new(),
            wake: Arc::default(),
        },
    };
    tokio::spawn(lane.own(stop.clone()));
    stop
}

/// Makes a request about an instance of `order`.
macro_rules! about {
    ($request:ident, $correlation:expr $(, $field:ident: $value:expr)*) => {
        v1::$request {
            tenant_id: ACME.to_owned(),
            saga: "order".to_owned(),
            correlation_id: String::from($correlation),
            $($field: $value,)*
            ..Default::default()
        }
    };
}

/// Reads all pages of a list of the first tenant; counts them.
macro_rules! pages {
    ($served:expr, $method:ident, $request:expr, $entries:ident) => {{
        let (mut request, mut all, mut pages) = ($request, Vec::new(), 0);
        request.tenant_id = ACME.to_owned();
        loop {
            let page = $served.actor(READER).$method(request.clone()).await.expect("a page").into_inner();
            let most = if request.page_size == 0 { 50 } else { request.page_size as usize };
            assert!(page.$entries.len() <= most);
            all.extend(page.$entries);
            pages += 1;
            if page.next_page_token.is_empty() {
                break (all, pages);
            }
            request.page_token = page.next_page_token;
        }
    }};
}

async fn get(served: &Served, correlation: &str) -> v1::GetSagaResponse {
    let request = about!(GetSagaRequest, correlation);
    served.actor(READER).get_saga(request).await.expect("it is there").into_inner()
}

async fn explain(served: &Served, correlation: &str) -> v1::ExplainSagaResponse {
    let request = about!(ExplainSagaRequest, correlation);
    served.actor(READER).explain_saga(request).await.expect("it is there").into_inner()
}

fn correlations(sagas: &[v1::Saga]) -> BTreeSet<String> {
    sagas.iter().map(|saga| saga.correlation_id.clone()).collect()
}

/// Starts an instance of any correlation.
pub(crate) async fn start(served: &Served, correlation: &str) {
    let data_json = serde_json::json!({ "id": correlation }).to_string();
    let request = about!(StartSagaRequest, correlation, data_json: data_json);
    served.actor(ADMIN).start_saga(request).await.expect("started");
}

/// Parks an instance: a letter that nothing can be done with.
async fn park(served: &Served, correlation: &str) {
    let id = format!("bad-{correlation}");
    publish_event(&*served.broker, "Order", &id, "Counted", correlation, r#"{"count":"many"}"#).await;
    let parked = || async { get(served, correlation).await.saga.filter(|saga| saga.parked) };
    wait_until(parked, PATIENCE, "it is parked").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_are_listed_in_pages_and_found_by_what_they_are() {
    let served = Served::with(ServiceOptions { manifest: PAYS, ..ServiceOptions::default() }).await;
    let all: BTreeSet<_> = hostile().into_iter().collect();
    for correlation in &all {
        start(&served, correlation).await;
    }
    let list = v1::ListSagasRequest { page_size: 3, ..Default::default() };
    let (found, pages) = pages!(served, list_sagas, list.clone(), sagas);
    assert_eq!((found.len(), correlations(&found)), (all.len(), all.clone()), "each once");
    assert!(pages > 4, "{pages}");
    for correlation in &all {
        let instance = get(&served, correlation).await;
        let saga = instance.saga.expect("always given");
        assert_eq!((&saga.correlation_id, saga.step.as_str(), saga.revision), (correlation, "wait", 1));
        let timers: Vec<_> = instance.timers.iter().map(|timer| timer.name.as_str()).collect();
        assert_eq!((timers, instance.chain_hash.len()), (vec!["late", "soon"], 64));
    }

    // Filters.
    park(&served, "a b").await;
    let now = || Some(proto::convert::time::to_wire(model::Timestamp::now()));
    let running = v1::SagaStatus::Running.into();
    for (filter, expected) in [
        (
            v1::ListSagasRequest { statuses: vec![running], step: "wait".to_owned(), ..list.clone() },
            all.len(),
        ),
        (v1::ListSagasRequest { step: "hold".to_owned(), ..list.clone() }, 0),
        (v1::ListSagasRequest { statuses: vec![v1::SagaStatus::Killed.into()], ..list.clone() }, 0),
        (v1::ListSagasRequest { saga: "order".to_owned(), ..list.clone() }, all.len()),
        (v1::ListSagasRequest { saga: "nobody".to_owned(), ..list.clone() }, 0),
        (v1::ListSagasRequest { started_before: now(), step_before: now(), ..list.clone() }, all.len()),
        (v1::ListSagasRequest { started_from: now(), ..list.clone() }, 0),
        (v1::ListSagasRequest { blocked: true, ..list.clone() }, 1),
    ] {
        let (found, _) = pages!(served, list_sagas, filter.clone(), sagas);
        assert_eq!(found.len(), expected, "{filter:?}");
    }

    // A token is that of one caller and filter.
    let first = v1::ListSagasRequest { tenant_id: ACME.to_owned(), ..list };
    let page = served.actor(READER).list_sagas(first.clone()).await.expect("a page").into_inner();
    let next = v1::ListSagasRequest { page_token: page.next_page_token, ..first.clone() };
    for (actor, request) in [
        (ADMIN, next.clone()),
        (READER, v1::ListSagasRequest { blocked: true, ..next.clone() }),
        (READER, v1::ListSagasRequest { page_token: "x".to_owned(), ..first.clone() }),
        (READER, v1::ListSagasRequest { page_size: 1001, ..first.clone() }),
        (READER, v1::ListSagasRequest { statuses: vec![0], ..first.clone() }),
    ] {
        let answer = served.actor(actor).list_sagas(request).await;
        assert_eq!(refused(answer).0, Code::InvalidArgument);
    }

    // A foreign tenant gives the same message as an unknown one.
    let refusal = |answer: Result<_, Status>| answer.map(drop).expect_err("refused").message().to_owned();
    let unknown = v1::ListSagasRequest { tenant_id: "nobody".to_owned(), ..first.clone() };
    let unknown = refusal(served.actor(READER).list_sagas(unknown).await).replace("nobody", ACME);
    for actor in [STRANGER, ELSEWHERE] {
        assert_eq!(refusal(served.actor(actor).list_sagas(first.clone()).await), unknown);
    }
    let foreign = v1::GetSagaRequest { tenant_id: OTHER.to_owned(), ..about!(GetSagaRequest, "a:b") };
    assert_eq!(refused(served.actor(ELSEWHERE).get_saga(foreign).await).0, Code::NotFound);
    assert_eq!(refused(served.actor(READER).get_saga(about!(GetSagaRequest, "no")).await).0, Code::NotFound);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timelines_timers_and_letters_are_read() {
    let served = Served::with(ServiceOptions { manifest: PAYS, ..ServiceOptions::default() }).await;
    for correlation in ["o-1", "o-2", "o-3", "o-4"] {
        start(&served, correlation).await;
    }
    publish_event(&*served.broker, "Order", "c", "Counted", "o-1", r#"{"count":7}"#).await;
    served.wait_at("o-1", "wait-on", SagaStatus::Running).await;

    let all = about!(GetSagaTimelineRequest, "o-1", with_payloads: true, page_size: 1);
    let (rows, pages) = pages!(served, get_saga_timeline, all, entries);
    let shown: Vec<_> = rows.iter().map(|row| (row.revision, row.step.as_str(), row.fate())).collect();
    let applied = v1::SagaInputFate::Applied;
    assert_eq!((shown, pages), (vec![(1, "wait", applied), (2, "wait-on", applied)], 2));
    let Some(v1::saga_input::Input::Event(event)) =
        rows[1].input.as_ref().and_then(|input| input.input.clone())
    else {
        panic!("{:?}", rows[1])
    };
    assert_eq!((event.event_id.as_str(), event.event_type.as_str()), ("c", "Counted"));
    assert!(event.event_json.contains("\"count\":7"), "{}", event.event_json);
    let bare = about!(GetSagaTimelineRequest, "o-1");
    let page = served.actor(READER).get_saga_timeline(bare).await.expect("a page").into_inner();
    assert_eq!((page.first_revision, page.entries.len()), (1, 2));
    assert!(!format!("{page:?}").contains("\\\"count\\\""), "without payloads");

    // Timers of all lanes are in one order, and those of instances that went on are gone.
    let (timers, pages) = pages!(
        served,
        list_saga_timers,
        v1::ListSagaTimersRequest { page_size: 2, ..Default::default() },
        timers
    );
    let due = |timer: &v1::SagaTimer| timer.due_time.map(|due| (due.seconds, due.nanos));
    let names: Vec<_> = timers.iter().map(|timer| timer.name.as_str()).collect();
    assert_eq!(names, ["soon", "soon", "soon", "late", "late", "late"]);
    assert!(timers.is_sorted_by_key(due) && pages >= 3);
    assert!(timers.iter().all(|timer| timer.of_step && timer.correlation_id != "o-1"));
    let before = v1::ListSagaTimersRequest { due_before: timers[3].due_time, ..Default::default() };
    assert_eq!(pages!(served, list_saga_timers, before, timers).0.len(), 3);
    let one = about!(ListSagaTimersRequest, "o-2", page_size: 1);
    let (of_one, pages) = pages!(served, list_saga_timers, one, timers);
    let names: Vec<_> = of_one.iter().map(|timer| timer.event_type.as_str()).collect();
    assert_eq!((names, pages), (vec!["Remind", "TooLate"], 2));
    let nowhere = v1::ListSagaTimersRequest { saga: String::new(), ..about!(ListSagaTimersRequest, "o-2") };
    assert_eq!(refused(served.actor(READER).list_saga_timers(nowhere).await).0, Code::InvalidArgument);

    // Letters: one that parks, with an input behind it, and others that do not.
    park(&served, "o-3").await;
    publish_event(&*served.broker, "Order", "behind", "Go", "o-3", "{}").await;
    for number in 0..3 {
        let (id, correlation) = (format!("lost-{number}"), format!("nobody-{number}"));
        publish_event(&*served.broker, "Order", &id, "Lost", &correlation, "{}").await;
    }
    let request = v1::ListSagaDeadLettersRequest { page_size: 1, ..Default::default() };
    let letters = || async {
        let (letters, pages) = pages!(served, list_saga_dead_letters, request.clone(), dead_letters);
        let is_behind = letters.iter().any(|letter| letter.held_count == 1);
        (letters.len() == 4 && is_behind).then_some((letters, pages))
    };
    let (letters, pages) = wait_until(letters, PATIENCE, "all letters are there").await;
    assert!(pages >= 4, "{pages}");
    let parking: Vec<_> = letters.iter().filter(|letter| letter.parks).collect();
    let [letter] = parking.as_slice() else { panic!("{letters:?}") };
    assert_eq!((letter.correlation_id.as_str(), letter.code.as_str()), ("o-3", "KIND"));
    let parked = get(&served, "o-3").await;
    assert_eq!(parked.dead_letter_key, letter.key);
    assert!(parked.saga.is_some_and(|saga| saga.parked && saga.held_count == 1));
    let lost = v1::ListSagaDeadLettersRequest { code: "NO_INSTANCE".to_owned(), ..Default::default() };
    assert_eq!(pages!(served, list_saga_dead_letters, lost, dead_letters).0.len(), 3);
    let of_one = about!(ListSagaDeadLettersRequest, "o-3");
    assert_eq!(pages!(served, list_saga_dead_letters, of_one, dead_letters).0.len(), 1);
    let named = |tenant: &str, key: &str| v1::GetSagaDeadLetterRequest {
        tenant_id: tenant.to_owned(),
        key: key.to_owned(),
    };
    let found = served.actor(READER).get_saga_dead_letter(named(ACME, &letter.key)).await.expect("there");
    let found = found.into_inner().dead_letter.expect("always given");
    assert!(format!("{:?}", found.input).contains("many"), "{found:?}");
    let foreign = served.actor(ELSEWHERE).get_saga_dead_letter(named(OTHER, &letter.key)).await;
    assert_eq!(refused(foreign).0, Code::NotFound);
    let none = served.actor(READER).get_saga_dead_letter(named(ACME, "s:order:0:x")).await;
    assert_eq!(refused(none).0, Code::NotFound);

    // The cause comes first.
    let explanation = explain(&served, "o-3").await;
    assert_eq!(explanation.cause(), Kind::DeadLetter, "{explanation:?}");
    assert!(
        explanation.summary.contains("a dead letter stands in front of 1 inputs (KIND: "),
        "{}",
        explanation.summary
    );
    let explanation = explain(&served, "o-2").await;
    assert_eq!(explanation.cause(), Kind::Event, "{explanation:?}");
    assert!(
        explanation.summary.contains("it waits for an event: Counted or Go; the timer `soon` fires at"),
        "{explanation:?}"
    );
    let kinds: Vec<_> = explanation.findings.iter().map(|finding| i32::from(finding.kind())).collect();
    assert!(kinds.is_sorted(), "{kinds:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_are_listed_and_read_without_what_is_redacted() {
    let served = Served::with(ServiceOptions { manifest: PAYS, ..ServiceOptions::default() }).await;
    let stop = own_effect(&served);
    for correlation in ["doubt", "slow", "o-1", "o-2", "a:b*%"] {
        start(&served, correlation).await;
        served.send(correlation, "Go").await.expect("applied");
    }
    for correlation in ["o-1", "o-2", "a:b*%"] {
        served.wait_at(correlation, "hold", SagaStatus::Running).await;
    }
    let request = v1::ListEffectsRequest { page_size: 2, ..Default::default() };
    let in_state =
        |state: v1::EffectState| v1::ListEffectsRequest { states: vec![state.into()], ..request.clone() };
    for (state, correlation) in [(v1::EffectState::Manual, "doubt"), (v1::EffectState::Waiting, "slow")] {
        let listed = || async {
            let (calls, _) = pages!(served, list_effects, in_state(state), calls);
            calls.into_iter().next()
        };
        let call = wait_until(listed, PATIENCE, "the call is in its state").await;
        assert_eq!((call.correlation_id.as_str(), call.state()), (correlation, state));
    }
    let (calls, pages) = pages!(served, list_effects, request.clone(), calls);
    let found: BTreeSet<_> = calls.iter().map(|call| call.correlation_id.as_str()).collect();
    assert_eq!((calls.len(), found.len(), pages >= 3), (5, 5, true), "{calls:?}");
    assert!(calls.iter().all(|call| call.input_json.is_empty() && call.provider == "bank"));
    let (done, _) = pages!(served, list_effects, in_state(v1::EffectState::Succeeded), calls);
    assert_eq!(done.len(), 3);
    let (of_one, _) = pages!(served, list_effects, about!(ListEffectsRequest, "a:b*%"), calls);
    let [call] = of_one.as_slice() else { panic!("{of_one:?}") };
    assert_eq!((call.step.as_str(), call.attempts), ("pay", 1));
    assert!(call.end_time.is_some() && call.due_time.is_none());

    // With and without the name of the effect.
    for effect in ["", "pay"] {
        let request = v1::GetEffectRequest {
            tenant_id: ACME.to_owned(),
            effect: effect.to_owned(),
            command_id: call.command_id.clone(),
        };
        let read = served.actor(READER).get_effect(request).await.expect("there").into_inner().call;
        let read = read.expect("always given");
        assert_eq!(
            (read.input_json.as_str(), read.result_json.as_str()),
            (r#"{"id":"a:b*%"}"#, r#"{"paid":1}"#)
        );
        assert_eq!(read.outcome(), v1::EffectOutcome::Succeeded);
    }
    let nobody = v1::GetEffectRequest {
        tenant_id: ACME.to_owned(),
        effect: String::new(),
        command_id: "00000000-0000-0000-0000-000000000007".to_owned(),
    };
    assert_eq!(refused(served.actor(READER).get_effect(nobody).await).0, Code::NotFound);
    // What may have to be undone says no more of it.
    let held = get(&served, "a:b*%").await;
    assert_eq!(held.undo_stack[0].input_json, r#"{"id":"a:b*%"}"#, "{held:?}");

    let explanation = explain(&served, "doubt").await;
    assert_eq!(explanation.cause(), Kind::Effect, "{explanation:?}");
    assert!(explanation.summary.contains("settle it with ResolveEffect"), "{}", explanation.summary);
    stop.cancel();
}

/// The next answer that is no sign of life.
async fn next(watch: &mut Streaming<v1::WatchSagasResponse>) -> v1::WatchSagasResponse {
    loop {
        let answer = tokio::time::timeout(PATIENCE, watch.message()).await.expect("in time");
        let answer = answer.expect("no error").expect("no end");
        if !matches!(answer.event, Some(Event::Heartbeat(_))) {
            return answer;
        }
    }
}

async fn next_saga(watch: &mut Streaming<v1::WatchSagasResponse>) -> (v1::Saga, String) {
    let v1::WatchSagasResponse { event, resume_position } = next(watch).await;
    let Some(Event::Saga(saga)) = event else { panic!("no instance: {event:?}") };
    (saga, resume_position)
}

async fn watch(
    served: &Served,
    request: v1::WatchSagasRequest,
) -> Result<Streaming<v1::WatchSagasResponse>, Status> {
    let request = v1::WatchSagasRequest { tenant_id: ACME.to_owned(), ..request };
    Ok(served.actor(READER).watch_sagas(request).await?.into_inner())
}

/// Counts the readers of facts.
fn readers(served: &Served) -> usize {
    let names = served.suite.nats.ask(&format!("$JS.API.CONSUMER.NAMES.{WORKFLOW_EVENTS}"), "");
    names.matches("\"watch-").count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_sends_a_snapshot_then_each_change_and_resumes_without_a_gap() {
    let served = Served::with(ServiceOptions { manifest: PAYS, ..ServiceOptions::default() }).await;
    for correlation in ["o-1", "o-2", "o-3"] {
        start(&served, correlation).await;
    }
    let mut all = watch(&served, v1::WatchSagasRequest::default()).await.expect("a watch");
    let mut shown = Vec::new();
    let end = loop {
        let answer = next(&mut all).await;
        match answer.event {
            Some(Event::Saga(saga)) => shown.push(saga),
            other => break (other, answer.resume_position),
        }
    };
    assert!(matches!(end.0, Some(Event::SnapshotEnd(_))) && !end.1.is_empty());
    assert_eq!(correlations(&shown).len(), 3);
    // Everybody of this process shares one reader.
    let one = v1::WatchSagasRequest {
        saga: "order".to_owned(),
        correlation_id: "o-2".to_owned(),
        snapshot: v1::SagaSnapshot::None.into(),
        ..Default::default()
    };
    let mut of_one = watch(&served, one).await.expect("a watch");
    assert!(matches!(next(&mut of_one).await.event, Some(Event::SnapshotEnd(_))));
    assert_eq!(readers(&served), 1);

    // Changes of steps, of pauses, of letters.
    publish_event(&*served.broker, "Order", "c", "Counted", "o-1", r#"{"count":7}"#).await;
    let (changed, _) = next_saga(&mut all).await;
    assert_eq!((changed.correlation_id.as_str(), changed.step.as_str()), ("o-1", "wait-on"));
    let pause = about!(PauseSagaRequest, "o-2");
    served.actor(ADMIN).pause_saga(pause).await.expect("paused");
    let (paused, position) = next_saga(&mut all).await;
    assert_eq!((paused.correlation_id.as_str(), paused.paused), ("o-2", true));
    assert!(next_saga(&mut of_one).await.0.paused);
    drop(all);

    // Changes while there is no watcher are sent to one that resumes.
    served.actor(ADMIN).resume_saga(about!(ResumeSagaRequest, "o-2")).await.expect("resumed");
    park(&served, "o-3").await;
    assert!(!next_saga(&mut of_one).await.0.paused);
    let resumed = v1::WatchSagasRequest { resume_position: position.clone(), ..Default::default() };
    let mut all = watch(&served, resumed).await.expect("a watch");
    let (first, _) = next_saga(&mut all).await;
    assert_eq!((first.correlation_id.as_str(), first.paused), ("o-2", false));
    let (second, _) = next_saga(&mut all).await;
    assert_eq!((second.correlation_id.as_str(), second.parked), ("o-3", true));
    let kill = about!(KillSagaRequest, "o-3", reason: "enough".to_owned());
    served.actor(ADMIN).kill_saga(kill).await.expect("killed");
    let (ended, _) = next_saga(&mut all).await;
    assert_eq!(
        (ended.status(), ended.reason.as_str(), ended.parked),
        (v1::SagaStatus::Killed, "enough", false)
    );

    // Places that are none, or are gone.
    for (position, code) in [
        ("x".to_owned(), Code::InvalidArgument),
        ("1.1".to_owned(), Code::OutOfRange),
        (format!("{position}000000"), Code::OutOfRange),
    ] {
        let request = v1::WatchSagasRequest { resume_position: position, ..Default::default() };
        let refused = watch(&served, request).await.map(drop).expect_err("refused");
        assert_eq!(refused.code(), code, "{refused}");
    }
    let nowhere = v1::WatchSagasRequest { correlation_id: "o-1".to_owned(), ..Default::default() };
    assert_eq!(watch(&served, nowhere).await.map(drop).expect_err("refused").code(), Code::InvalidArgument);
    let foreign = v1::WatchSagasRequest { tenant_id: ACME.to_owned(), ..Default::default() };
    let foreign = served.actor(ELSEWHERE).watch_sagas(foreign).await.map(drop);
    assert_eq!(foreign.expect_err("refused").code(), Code::NotFound);

    // Nothing is left behind.
    drop((all, of_one));
    let is_gone = || async { (readers(&served) == 0).then_some(()) };
    wait_until(is_gone, PATIENCE, "no reader is left").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_graph_has_the_place_of_an_instance() {
    let served = Served::with(ServiceOptions { manifest: PAYS, ..ServiceOptions::default() }).await;
    start(&served, "o-1").await;
    publish_event(&*served.broker, "Order", "c", "Counted", "o-1", r#"{"count":7}"#).await;
    served.wait_at("o-1", "wait-on", SagaStatus::Running).await;
    let graph = |request| async { served.actor(READER).get_saga_graph(request).await };
    let drawn = graph(about!(GetSagaGraphRequest, "o-1")).await.expect("drawn").into_inner();
    let definition = drawn.definition.expect("always given");
    assert!(definition.in_force && drawn.saga.is_some_and(|saga| saga.step == "wait-on"));
    let place: Vec<_> = drawn.nodes.iter().filter(|node| node.current).map(|node| &node.name).collect();
    assert_eq!(place, ["wait-on"]);
    let visited: BTreeSet<_> =
        drawn.nodes.iter().filter(|node| node.visited).map(|node| node.name.as_str()).collect();
    assert_eq!(visited, BTreeSet::from([":start", "wait", "wait-on"]));
    let pay = drawn.nodes.iter().find(|node| node.name == "pay").expect("a node");
    assert_eq!((pay.kind(), pay.orders[0].compensation.as_str()), (v1::SagaNodeKind::Work, "refund"));
    let of_hash = |hash: &str| v1::GetSagaGraphRequest {
        definition_hash: hash.to_owned(),
        ..about!(GetSagaGraphRequest, "")
    };
    let same = graph(of_hash(&definition.definition_hash)).await.expect("drawn").into_inner();
    assert_eq!((same.edges, same.saga), (drawn.edges, None));
    assert_eq!(refused(graph(of_hash(&"0".repeat(64))).await).0, Code::NotFound);
    let both = about!(GetSagaGraphRequest, "o-1", definition_hash: definition.definition_hash);
    assert_eq!(refused(graph(both).await).0, Code::InvalidArgument);
    assert_eq!(refused(graph(about!(GetSagaGraphRequest, "no")).await).0, Code::NotFound);
}
