//! Lanes processed again, letters applied again and calls decided, over TLS.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use model::{CorrelationId, SagaStatus};
use proto::v1;
use proto::v1::replay_lane_request::Replay;
use proto::v1::replay_lane_response::Event;
use proto::v1::saga_replay_from::Position;
use rpc::ErrorView;
use saga::lane::AGGREGATE_EVENTS;
use saga::lane::checkpoint::Checkpoint;
use saga::placement::SagaReplicaRole;
use saga::tenants::TenantRegistry;
use store::{CommitOutcome, LaneKey, RowBatch, RowKey, RowOperation};
use testkit::{PATIENCE, wait_until};
use tonic::{Code, Status};
use workflow::instance::{CorrelationEntry, CorrelationRecord, decode, encode};
use workflow::step::JournalRow;
use workflow::{Json, LaneRowKey};

use crate::process::{Request, Upstream, memory_kib};
use crate::reads::{PAYS, own_effect};
use crate::served::{ACME, ADMIN, SHARDS, Served, ServiceOptions, refused};
use crate::streams::publish_event;

/// Scales the number of instances that are verified.
const INSTANCES: &str = "MYCORA_TEST_INSTANCES";
const ORDERS: &str = "aggregate.Order";

fn shard(correlation: &str) -> u8 {
    let correlation: CorrelationId = correlation.parse().expect("a correlation");
    workflow::lane::shard(&ACME.parse().expect("a tenant"), &correlation, SHARDS)
}

fn lane(shard: u8) -> String {
    format!("s:{ACME}:order:{shard}")
}

fn verify(shard: u8, only: &str) -> v1::ReplayLaneRequest {
    replay(&lane(shard), Replay::Verify(v1::SagaReplayVerify { correlation_id: only.to_owned() }))
}

fn from(lane: &str, source: &str, position: Position) -> v1::ReplayLaneRequest {
    let from = v1::SagaReplayFrom { source: source.to_owned(), position: Some(position) };
    replay(lane, Replay::FromPosition(from))
}

fn replay(lane: &str, replay: Replay) -> v1::ReplayLaneRequest {
    v1::ReplayLaneRequest {
        tenant_id: ACME.to_owned(),
        lane: lane.to_owned(),
        confirm: lane.to_owned(),
        replay: Some(replay),
        ..Default::default()
    }
}

/// Outcome of a replay: its differences by correlation, and its end.
type Came = (BTreeMap<String, (u64, String)>, v1::SagaReplayDone);

async fn replayed(served: &Served, request: v1::ReplayLaneRequest) -> Result<Came, Status> {
    let mut answers = served.actor(ADMIN).replay_lane(request).await?.into_inner();
    let (mut differences, mut done) = (BTreeMap::new(), None);
    while let Some(answer) = answers.message().await? {
        assert_eq!(done, None, "nothing comes behind the end");
        match answer.event.expect("always given") {
            Event::Progress(_) => {}
            Event::Difference(v1::SagaReplayDifference { correlation_id, revision, detail }) => {
                differences.insert(correlation_id, (revision, detail));
            }
            Event::Done(end) => done = Some(end),
        }
    }
    Ok((differences, done.expect("it ends")))
}

/// Verifies every lane.
async fn verified(served: &Served) -> (BTreeMap<String, (u64, String)>, [u64; 3]) {
    let (mut all, mut counts) = (BTreeMap::new(), [0; 3]);
    for shard in 0..SHARDS {
        let (differences, done) = replayed(served, verify(shard, "")).await.expect("verified");
        all.extend(differences);
        let found = [done.compared_count, done.incomplete_count, done.different_count];
        for (count, found) in counts.iter_mut().zip(found) {
            *count += found;
        }
    }
    (all, counts)
}

/// Instances that have ordered something and wait.
async fn held(served: &Served, correlations: &[String]) {
    for correlation in correlations {
        place(served, correlation).await;
        event(served, correlation, "Go").await;
    }
    for correlation in correlations {
        served.wait_at(correlation, "hold", SagaStatus::Running).await;
    }
}

async fn place(served: &Served, correlation: &str) {
    event(served, correlation, "OrderPlaced").await;
}

async fn event(served: &Served, correlation: &str, kind: &str) {
    let (id, data) = (format!("{kind}-{correlation}"), format!("{{\"id\":\"{correlation}\"}}"));
    publish_event(&*served.broker, "Order", &id, kind, correlation, &data).await;
}

/// Pauses the tenant, and waits until its lanes have no owner.
async fn pause(served: &Served) {
    let request = v1::PauseTenantRequest { tenant_id: ACME.to_owned(), ..Default::default() };
    served.actor(ADMIN).pause_tenant(request).await.expect("paused");
    let given_up = || async {
        let request = v1::ListLanesRequest { tenant_id: ACME.to_owned(), ..Default::default() };
        let lanes = served.actor(ADMIN).list_lanes(request).await.expect("lanes").into_inner().lanes;
        lanes.iter().all(|lane| lane.owner.is_empty()).then_some(())
    };
    wait_until(given_up, PATIENCE, "the lanes are given up").await;
}

async fn resume(served: &Served) {
    let request = v1::ResumeTenantRequest { tenant_id: ACME.to_owned(), ..Default::default() };
    served.actor(ADMIN).resume_tenant(request).await.expect("resumed");
}

/// Changes rows of a lane without an owner, in a way that no owner does.
async fn tamper(served: &Served, shard: u8, ops: Vec<RowOperation>) {
    let lane = LaneKey::new(&lane(shard));
    let epoch = served.store.acquire_lane(&lane).await.expect("taken");
    let done = served.store.commit(RowBatch { lane, epoch, conditions: Vec::new(), ops }).await;
    assert!(matches!(done, Ok(CommitOutcome::Committed(_))), "{done:?}");
}

async fn kept<T: serde::de::DeserializeOwned>(served: &Served, shard: u8, key: &LaneRowKey) -> T {
    let rows = served.store.read(&LaneKey::new(&lane(shard)), &[RowKey::new(key.as_str())]).await;
    let row = rows.expect("read").pop().flatten().expect("it is there");
    decode(&row.value).expect("a row")
}

fn put<T: serde::Serialize>(key: &LaneRowKey, row: &T) -> RowOperation {
    RowOperation::Put(RowKey::new(key.as_str()), encode(row).into())
}

fn counted(served: &Served, name: &str) -> f64 {
    let families = served.registry.gather();
    let family = families.iter().find(|family| family.name() == name).expect("it is counted");
    family.get_metric().iter().map(|metric| metric.get_counter().get_value()).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_differs_from_its_journal_is_found_and_nothing_else() {
    let served = Served::start().await;
    let instances = std::env::var(INSTANCES).ok().and_then(|count| count.parse().ok()).unwrap_or(50);
    let all: Vec<_> = (0..instances).map(|number| format!("o-{number}")).collect();
    held(&served, &all).await;
    event(&served, "o-1", "Ship").await;
    served.wait_at("o-1", "shipped", SagaStatus::Running).await;
    let (begin, (before, _)) = (Instant::now(), memory_kib(std::process::id()));
    assert_eq!(verified(&served).await, (BTreeMap::new(), [instances, 0, 0]));
    let (_, most) = memory_kib(std::process::id());
    println!(
        "{instances} instances were verified in {:?}; {before} KiB before, {most} at most",
        begin.elapsed()
    );
    let (_, one) = replayed(&served, verify(shard("o-4"), "o-4")).await.expect("verified");
    assert_eq!((one.compared_count, one.different_count), (1, 0));

    pause(&served).await;
    let correlation = |text: &str| text.parse::<CorrelationId>().expect("a correlation");
    let journal = LaneRowKey::journal(&correlation("o-7"), 2);
    let mut row: JournalRow = kept(&served, shard("o-7"), &journal).await;
    row.step = "ship".parse().expect("a step");
    tamper(&served, shard("o-7"), vec![put(&journal, &row)]).await;
    let key = LaneRowKey::saga(&correlation("o-9"));
    let mut record: CorrelationRecord = kept(&served, shard("o-9"), &key).await;
    let CorrelationEntry::Live(instance) = &mut record.entry else { panic!("it runs: {record:?}") };
    let revision = instance.revision;
    instance.state = Json::object([("id", Json::text("another")), ("count", Json::Null)]);
    tamper(&served, shard("o-9"), vec![put(&key, &record)]).await;
    let broken = LaneRowKey::journal(&correlation("o-11"), 3);
    let garbage = RowOperation::Put(RowKey::new(broken.as_str()), bytes::Bytes::from_static(b"{"));
    tamper(&served, shard("o-11"), vec![garbage]).await;
    let delete = |correlation: &CorrelationId, revision| {
        RowOperation::Delete(RowKey::new(LaneRowKey::journal(correlation, revision).as_str()))
    };
    tamper(&served, shard("o-13"), vec![delete(&correlation("o-13"), 1)]).await;
    tamper(&served, shard("o-15"), vec![delete(&correlation("o-15"), 2)]).await;

    // Comparing needs no owner.
    let (differences, counts) = verified(&served).await;
    let reported: Vec<_> =
        differences.iter().map(|(name, (revision, _))| (name.as_str(), *revision)).collect();
    assert_eq!(reported, [("o-11", 3), ("o-15", 2), ("o-7", 2), ("o-9", revision)]);
    assert!(differences["o-7"].1.contains("the step"), "{differences:?}");
    assert_eq!(differences["o-9"].1, "the instance is not what its journal gives");
    assert_eq!(counts, [instances - 1, 1, 4]);
    assert!((counted(&served, "mycora_saga_replay_differences_total") - 4.0).abs() < 0.1);
    let again = from(&lane(0), ORDERS, Position::Sequence(1));
    let paused = (Code::FailedPrecondition, "TENANT_PAUSED".to_owned());
    assert_eq!(refused(replayed(&served, again).await), paused);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_missed_is_found_and_nothing_is_called_again() {
    let served = Served::start().await;
    let all: Vec<_> = (0..10).map(|number| format!("o-{number}")).collect();
    held(&served, &all).await;
    pause(&served).await;
    place(&served, "missed").await;
    let stream = served.broker.stream(AGGREGATE_EVENTS).await.expect("an answer").expect("it is there");
    let (shard, checkpoint) = (shard("missed"), LaneRowKey::checkpoint(ORDERS));
    let read: Checkpoint = kept(&served, shard, &checkpoint).await;
    assert!(read.position < stream.last_sequence);
    let over = Checkpoint { position: stream.last_sequence, anchor: None, ..read };
    tamper(&served, shard, vec![put(&checkpoint, &over)]).await;
    resume(&served).await;
    let next = (0..).map(|number| format!("next-{number}")).find(|next| self::shard(next) == shard);
    let next = next.expect("one of them");
    place(&served, &next).await;
    served.wait_at(&next, "wait", SagaStatus::Running).await;
    assert!(served.summary("missed").await.is_none(), "it was passed over");

    let calls = served.aggregates.submitted();
    let mut request = from(&lane(shard), ORDERS, Position::Sequence(1));
    request.request_id = "again-1".to_owned();
    let (differences, done) = replayed(&served, request.clone()).await.expect("read again");
    assert!(differences.is_empty());
    let [source] = done.sources.as_slice() else { panic!("one: {done:?}") };
    assert_eq!(source.name, ORDERS);
    assert!(source.sequence > stream.last_sequence, "{source:?}");
    served.wait_at("missed", "wait", SagaStatus::Running).await;
    // A repeat changes nothing; another request under its id is refused.
    replayed(&served, request.clone()).await.expect("done before");
    let other = v1::ReplayLaneRequest { request_id: request.request_id, ..verify(shard, "") };
    assert_eq!(refused(replayed(&served, other).await).0, Code::AlreadyExists);
    // All of the lane, from a moment.
    let since = Position::Time(moment(-3600));
    let (_, done) = replayed(&served, from(&lane(shard), "", since)).await.expect("read again");
    assert_eq!(done.sources.len(), 1);
    assert_eq!(served.aggregates.submitted(), calls);
    assert_eq!(verified(&served).await.1, [12, 0, 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_request_waits_for_the_same_end() {
    let served = Served::start().await;
    held(&served, &["o-1".to_owned()]).await;
    let (shard, checkpoint) = (shard("o-1"), LaneRowKey::checkpoint(ORDERS));
    let mut others = (0..).map(|number| format!("n-{number}")).filter(|name| self::shard(name) == shard);
    let (missed, last) = (others.next().expect("one of them"), others.next().expect("another"));
    pause(&served).await;
    place(&served, &missed).await;
    let stream = served.broker.stream(AGGREGATE_EVENTS).await.expect("an answer").expect("it is there");
    let read: Checkpoint = kept(&served, shard, &checkpoint).await;
    let over = Checkpoint { position: stream.last_sequence, anchor: None, ..read };
    tamper(&served, shard, vec![put(&checkpoint, &over)]).await;
    resume(&served).await;
    place(&served, &last).await;
    served.wait_at(&last, "wait", SagaStatus::Running).await;
    // There is no room for the one that is found: reading stays in front of it.
    quota(&served, 2).await;
    let request = v1::ReplayLaneRequest {
        request_id: "again-1".to_owned(),
        ..from(&lane(shard), ORDERS, Position::Sequence(1))
    };
    let mut replays = Box::pin(replayed(&served, request.clone()));
    assert!(tokio::time::timeout(Duration::from_secs(1), &mut replays).await.is_err(), "it is under way");
    let is_before = async || {
        let now: Checkpoint = kept(&served, shard, &checkpoint).await;
        (now.position + 1 == stream.last_sequence).then_some(())
    };
    wait_until(is_before, PATIENCE, "it was read up to the one that there is no room for").await;
    let mut repeats = Box::pin(replayed(&served, request));
    assert!(tokio::time::timeout(Duration::from_secs(1), &mut repeats).await.is_err(), "as the first one");
    assert!(served.summary(&missed).await.is_none());
    quota(&served, 3).await;
    for replay in [replays, repeats] {
        let (_, done) = tokio::time::timeout(PATIENCE, replay).await.expect("in time").expect("read again");
        assert!(done.sources[0].sequence > stream.last_sequence, "{done:?}");
    }
    served.wait_at(&missed, "wait", SagaStatus::Running).await;
}

/// Lets the tenant have so many instances.
async fn quota(served: &Served, instances: u32) {
    let text =
        format!("acme: {{ context: 1, quotas: {{ instances: {instances} }} }}\nother: {{ context: 2 }}\n");
    let tenants = TenantRegistry::read("t", &text).expect("good");
    let definitions = served.app.definitions();
    let revision = definitions.in_force().revision;
    assert!(definitions.replace(None, Some(&tenants), revision, Vec::new()).await.expect("kept"));
}

fn moment(secs: i64) -> prost_types::Timestamp {
    let now = model::Timestamp::now().as_millis() / 1000;
    prost_types::Timestamp { seconds: i64::try_from(now).expect("not so late") + secs, nanos: 0 }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replays_that_make_no_sense_are_refused() {
    let served = Served::start().await;
    held(&served, &["o-1".to_owned()]).await;
    let lane = lane(shard("o-1"));
    let fields = async |request| {
        let status = replayed(&served, request).await.expect_err("refused");
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
        let violations = ErrorView::from(&status).violations;
        violations.into_iter().map(|violation| violation.field).collect::<Vec<_>>()
    };
    let confirmed = v1::ReplayLaneRequest { confirm: "s".to_owned(), ..verify(0, "") };
    assert_eq!(fields(confirmed).await, ["confirm"]);
    assert_eq!(fields(from(&lane, "", Position::Sequence(0))).await.len(), 2);
    assert_eq!(fields(from(&lane, "verbs.order", Position::Sequence(1))).await, ["from_position.source"]);
    assert_eq!(fields(from(&lane, ORDERS, Position::Sequence(999))).await, ["from_position.sequence"]);
    assert_eq!(fields(verify(1 - shard("o-1"), "o-1")).await, ["verify.correlation_id"]);
    let not_found = (Code::NotFound, "NOT_FOUND".to_owned());
    let nobody = replayed(&served, verify(shard("nobody"), "nobody")).await;
    assert_eq!(refused(nobody), not_found);
    for foreign in ["s:acme:order:2", "s:other:order:0", "e:acme:pay:0"] {
        let request = replay(foreign, Replay::Verify(v1::SagaReplayVerify::default()));
        assert_eq!(refused(replayed(&served, request).await), not_found, "{foreign}");
    }
    let long_ago = Position::Time(moment(-30 * 86_400));
    let gone = (Code::OutOfRange, "POSITION_GONE".to_owned());
    assert_eq!(refused(replayed(&served, from(&lane, ORDERS, long_ago)).await), gone);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letters_and_calls_are_decided_over_the_wire() {
    let served = Served::with(ServiceOptions { manifest: PAYS, ..ServiceOptions::default() }).await;
    let owned = own_effect(&served);
    // A letter of one that has not started yet.
    publish_event(&*served.broker, "Order", "lost-1", "Lost", "doubt", "{}").await;
    let letters = || async {
        let request = v1::ListSagaDeadLettersRequest { tenant_id: ACME.to_owned(), ..Default::default() };
        let page = served.actor(ADMIN).list_saga_dead_letters(request).await.expect("letters").into_inner();
        page.dead_letters.into_iter().next()
    };
    let letter = wait_until(letters, PATIENCE, "there is a letter").await;
    held_at_pay(&served).await;
    let calls = |attempts: u32| {
        let request = v1::ListEffectsRequest { tenant_id: ACME.to_owned(), ..Default::default() };
        let served = &served;
        move || {
            let request = request.clone();
            async move {
                let page = served.actor(ADMIN).list_effects(request).await.expect("calls").into_inner();
                let is_it = |call: &v1::EffectCall| {
                    call.state == i32::from(v1::EffectState::Manual) && call.attempts >= attempts
                };
                page.calls.into_iter().find(is_it)
            }
        }
    };
    let call = wait_until(calls(1), PATIENCE, "nobody knows whether it happened").await;
    let tenant_id = ACME.to_owned();
    let command_id = call.command_id;
    let retry = v1::RetryEffectRequest {
        tenant_id: tenant_id.clone(),
        command_id: command_id.clone(),
        request_id: "retry-1".to_owned(),
        ..Default::default()
    };
    served.actor(ADMIN).retry_effect(retry.clone()).await.expect("made again");
    wait_until(calls(call.attempts + 1), PATIENCE, "nobody knows again").await;
    // A repeat does not make it once more.
    let again = served.actor(ADMIN).retry_effect(retry).await.expect("known").into_inner();
    assert_eq!(again.call.expect("always given").attempts, call.attempts + 1);
    let success = v1::EffectSuccess { result_json: r#"{"paid":1}"#.to_owned() };
    let resolve = v1::ResolveEffectRequest {
        tenant_id: tenant_id.clone(),
        command_id,
        outcome: Some(v1::resolve_effect_request::Outcome::Succeeded(success)),
        ..Default::default()
    };
    let resolved = served.actor(ADMIN).resolve_effect(resolve).await.expect("resolved").into_inner();
    assert_eq!(resolved.call.expect("always given").state, i32::from(v1::EffectState::Succeeded));
    served.wait_at("doubt", "hold", SagaStatus::Running).await;
    let redrive =
        v1::RedriveSagaDeadLettersRequest { tenant_id, keys: vec![letter.key], ..Default::default() };
    let redriven =
        served.actor(ADMIN).redrive_saga_dead_letters(redrive).await.expect("applied").into_inner();
    let [redriven] = redriven.redrives.as_slice() else { panic!("one: {redriven:?}") };
    assert_eq!(redriven.fate, i32::from(v1::SagaInputFate::Applied));
    served.wait_at("doubt", "hold", SagaStatus::Completed).await;
    assert_eq!(verified(&served).await.1, [1, 0, 0]);
    // Commands are read again, and known.
    let effect = format!("e:{ACME}:pay:0");
    let (_, done) =
        replayed(&served, from(&effect, "commands.pay", Position::Sequence(1))).await.expect("known");
    assert_eq!(done.sources.len(), 1);
    let request = v1::ListEffectsRequest { tenant_id: ACME.to_owned(), ..Default::default() };
    let page = served.actor(ADMIN).list_effects(request).await.expect("calls").into_inner();
    assert_eq!(page.calls.iter().map(|call| call.attempts).sum::<u32>(), call.attempts + 1);
    owned.cancel();
}

/// Makes an instance whose call has an unknown outcome.
async fn held_at_pay(served: &Served) {
    place(served, "doubt").await;
    event(served, "doubt", "Go").await;
    served.wait_at("doubt", "pay", SagaStatus::Running).await;
}

/// A manifest like [`PAYS`] whose bank is a server of this machine.
fn pays_at(upstream: &Upstream) -> String {
    let there = "base_url: \"https://pay.internal\", allow_hosts: [pay.internal]";
    assert!(PAYS.contains(there));
    let address = &upstream.address;
    PAYS.replace(
        there,
        &format!("base_url: \"http://{address}\", allow_hosts: [\"{address}\"], private: true"),
    )
}

/// Orders of which some are done, some are undone, and some wait.
async fn paid(served: &Served, correlations: &[String]) {
    for correlation in correlations {
        place(served, correlation).await;
        event(served, correlation, "Go").await;
    }
    for (at, correlation) in correlations.iter().enumerate() {
        served.wait_at(correlation, "hold", SagaStatus::Running).await;
        match at % 3 {
            0 => {
                event(served, correlation, "Done").await;
                served.wait_at(correlation, "hold", SagaStatus::Completed).await;
            }
            1 => {
                let request = v1::CancelSagaRequest {
                    tenant_id: ACME.to_owned(),
                    saga: "order".to_owned(),
                    correlation_id: correlation.clone(),
                    reason: "a test".to_owned(),
                    ..Default::default()
                };
                served.actor(ADMIN).cancel_saga(request).await.expect("cancelled");
                served.wait_at(correlation, "hold", SagaStatus::Compensated).await;
            }
            _ => {}
        }
    }
}

/// Reads all sources of all lanes again, from their first message on; gives how many were read.
async fn all_read_again(served: &Served) -> usize {
    let request = v1::ListLanesRequest { tenant_id: ACME.to_owned(), ..Default::default() };
    let lanes = served.actor(ADMIN).list_lanes(request).await.expect("lanes").into_inner().lanes;
    assert_eq!(lanes.len(), usize::from(SHARDS) + 2, "those of the saga, and one for each effect: {lanes:?}");
    let mut sources = 0;
    for lane in lanes {
        for source in lane.sources.iter().filter(|source| !source.name.starts_with("verbs.")) {
            let again = from(&lane.name, &source.name, Position::Sequence(1));
            let (_, done) =
                replayed(served, again).await.unwrap_or_else(|status| panic!("{source:?}: {status:?}"));
            let [read] = done.sources.as_slice() else { panic!("one: {done:?}") };
            assert!(read.sequence >= source.sequence, "{source:?} was read to {read:?}");
            sources += 1;
        }
    }
    sources
}

async fn attempts(served: &Served) -> BTreeMap<String, (i32, u32)> {
    let request =
        v1::ListEffectsRequest { tenant_id: ACME.to_owned(), page_size: 1000, ..Default::default() };
    let page = served.actor(ADMIN).list_effects(request).await.expect("calls").into_inner();
    page.calls.into_iter().map(|call| (call.command_id, (call.state, call.attempts))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reading_everything_again_makes_no_call() {
    let upstream = Upstream::start();
    let (manifest, role) = (pays_at(&upstream), SagaReplicaRole { sagas: true, effects: true });
    let served =
        Served::with(ServiceOptions { manifest: &manifest, role, ..ServiceOptions::default() }).await;
    let all: Vec<_> = (0..18).map(|number| format!("o-{number}")).collect();
    paid(&served, &all).await;
    let (calls, tried) = (upstream.calls(), attempts(&served).await);
    assert_eq!((calls.len(), tried.len()), (24, 24), "each was paid, and a third of them paid back");
    let revisions = async || {
        let mut revisions = BTreeMap::new();
        for correlation in &all {
            let summary = served.summary(correlation).await.expect("it is there");
            revisions.insert(correlation.clone(), (summary.status, summary.revision));
        }
        revisions
    };
    let before = revisions().await;
    // Events and results of two shards, and commands of two effects.
    assert!(all_read_again(&served).await >= 6);
    // Behind all of it something new is done in each lane.
    let markers: Vec<_> = (0..SHARDS)
        .map(|wanted| (0..).map(|at| format!("marker-{at}")).find(|marker| shard(marker) == wanted))
        .map(|marker| marker.expect("one of them"))
        .collect();
    for marker in &markers {
        paid(&served, std::slice::from_ref(marker)).await;
    }
    let (of_markers, of_others): (Vec<Request>, Vec<Request>) =
        upstream.calls().into_iter().partition(|call| call.body.contains("marker-"));
    assert_eq!(of_others, calls, "nothing was called again");
    assert_eq!(of_markers.len(), markers.len());
    let mut now = attempts(&served).await;
    now.retain(|command, _| tried.contains_key(command));
    assert_eq!((now, revisions().await), (tried, before));
    assert_eq!(verified(&served).await, (BTreeMap::new(), [all.len() as u64 + 2, 0, 0]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letters_are_removed_over_the_wire_with_what_waits_behind_them() {
    let served = Served::start().await;
    for correlation in ["o-1", "o-2", "o-3"] {
        place(&served, correlation).await;
        for (id, data) in [("bad", r#"{"count":"many"}"#), ("good", r#"{"count":7}"#)] {
            let id = format!("{id}-{correlation}");
            publish_event(&*served.broker, "Order", &id, "Counted", correlation, data).await;
        }
        event(&served, correlation, "Go").await;
    }
    let list = async || {
        let mut letters = Vec::new();
        let mut request =
            v1::ListSagaDeadLettersRequest { tenant_id: ACME.to_owned(), page_size: 1, ..Default::default() };
        loop {
            let page = served.actor(ADMIN).list_saga_dead_letters(request.clone()).await.expect("a page");
            let page = page.into_inner();
            assert!(page.dead_letters.len() <= 1);
            letters.extend(page.dead_letters);
            if page.next_page_token.is_empty() {
                letters.sort_by(|one, other| one.correlation_id.cmp(&other.correlation_id));
                return letters;
            }
            request.page_token = page.next_page_token;
        }
    };
    let are = || async {
        let letters = list().await;
        (letters.len() == 3 && letters.iter().all(|letter| letter.held_count == 2)).then_some(letters)
    };
    let letters = wait_until(are, PATIENCE, "there are three, each with two inputs behind it").await;
    assert!(letters.iter().all(|letter| letter.parks && letter.code == "KIND"), "{letters:?}");
    let keys: Vec<_> = letters.into_iter().map(|letter| letter.key).collect();
    let purge = |keys: &[String], id: &str| v1::PurgeSagaDeadLettersRequest {
        request_id: id.to_owned(),
        tenant_id: ACME.to_owned(),
        keys: keys.to_vec(),
    };
    let purged = async |request| served.actor(ADMIN).purge_saga_dead_letters(request).await;
    let answer = purged(purge(&keys[..2], "purge-1")).await.expect("removed").into_inner();
    assert_eq!((answer.letter_count, answer.held_count), (2, 4));
    // The one that was not named still stands in front of its instance.
    let left = list().await;
    assert_eq!(
        left.iter().map(|letter| (&letter.key, letter.held_count)).collect::<Vec<_>>(),
        [(&keys[2], 2)]
    );
    // The same request has the same answer, and its id is that of no other one.
    let again = purged(purge(&keys[..2], "purge-1")).await.expect("known").into_inner();
    assert_eq!(again, answer);
    assert_eq!(refused(purged(purge(&keys[2..], "purge-1")).await).0, Code::AlreadyExists);
    let nothing = purged(purge(&["s:acme:order:0/dead:x".to_owned()], "purge-2")).await;
    assert_eq!(refused(nothing).0, Code::NotFound);
    assert_eq!(list().await.len(), 1);
    // What waited behind is gone, and what comes now is applied.
    for correlation in ["o-1", "o-2"] {
        let summary = served.summary(correlation).await.expect("it is there");
        assert_eq!((summary.step.as_str(), summary.revision), ("wait", 1));
        publish_event(&*served.broker, "Order", &format!("new-{correlation}"), "Go", correlation, "{}").await;
        served.wait_at(correlation, "hold", SagaStatus::Running).await;
    }
    let skip = v1::RedriveSagaDeadLettersRequest {
        tenant_id: ACME.to_owned(),
        keys: keys[2..].to_vec(),
        skip: true,
        ..Default::default()
    };
    served.actor(ADMIN).redrive_saga_dead_letters(skip).await.expect("left out");
    served.wait_at("o-3", "hold", SagaStatus::Running).await;
    assert_eq!((list().await, verified(&served).await.1), (Vec::new(), [3, 0, 0]));
}
