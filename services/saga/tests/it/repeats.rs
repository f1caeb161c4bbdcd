//! Events that come twice, in any order, and before or behind results: the same end, and the same number of calls.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use broker::{Headers, Publication};
use bytes::Bytes;
use model::SagaStatus;
use saga::lane::AGGREGATE_EVENTS;
use testkit::{PATIENCE, wait_until};
use workflow::input::CommandOutcome;
use workflow::key::StoreTable;
use workflow::message::EffectCommand;
use workflow::subject::ConsumerSource;
use workflow::{Json, WorkflowLane};

use crate::everywhere::everywhere;
use crate::streams::publish_result;
use crate::world::{TENANT, World};

/// Three events of two aggregates follow the one that starts it, two calls lie between them, and one more event ends it.
const MANIFEST: &str = r#"
kind: Saga
name: parcel
version: 1
state: { id: text, weight: optional int, amount: optional int }
sources: [{ aggregate: Order }, { aggregate: Payment }]
on_missing: { Packed: { park: 1h }, Paid: { park: 1h }, Checked: { park: 1h }, default: ignore }
start: { on: Placed, set: { id: "${{ event.data.id }}" }, goto: pack }
steps:
  pack: { on: { Packed: { set: { weight: "${{ event.data.n }}" }, goto: reserve } } }
  reserve: { effect: reserve, input: { id: "${{ state.id }}", weight: "${{ state.weight }}" }, on_success: { goto: pay } }
  pay: { on: { Paid: { set: { amount: "${{ event.data.n }}" }, goto: check } } }
  check: { on: { Checked: { goto: ship } } }
  ship: { effect: ship, input: { id: "${{ state.id }}", amount: "${{ state.amount }}" }, on_success: { goto: close } }
  close: { on: { Closed: { end: completed } } }
---
kind: EffectProvider
name: upstream
transport: http
http: { base_url: "http://127.0.0.1:1", allow_hosts: ["127.0.0.1:1"], private: true }
effects:
  reserve: { request: { method: POST, path: / } }
  ship: { request: { method: POST, path: / } }
"#;
const EVENTS: [&str; 4] = ["Placed", "Packed", "Paid", "Checked"];

everywhere! {
    events_twice_and_in_every_order_come_to_the_same_end
    a_result_comes_before_its_event_or_behind_it
}

/// All orders of things.
fn orders(things: &[&'static str]) -> Vec<Vec<&'static str>> {
    if things.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (at, first) in things.iter().enumerate() {
        let rest = [&things[..at], &things[at + 1..]].concat();
        all.extend(orders(&rest).into_iter().map(|order| [vec![*first], order].concat()));
    }
    all
}

/// Publishes an event under an id of a message; says whether the stream knows that id.
async fn publish(world: &World, parcel: &str, kind: &str, message_id: &str) -> bool {
    let aggregate = if kind == "Paid" { "Payment" } else { "Order" };
    let body = format!(
        r#"{{"event_id":"{kind}-{parcel}","type":"{kind}","data":{{"id":"{parcel}","n":7}},"metadata":{{"correlation_id":"{parcel}"}}}}"#
    );
    let outgoing = Publication {
        subject: format!("tenant.{TENANT}.aggregate.{aggregate}.x"),
        message_id: message_id.to_owned(),
        headers: Headers::new(),
        payload: Bytes::from(body),
    };
    let published = world.outside.publish(outgoing).await.expect("sent").await.expect("stored");
    published.is_duplicate
}

/// Publishes an event three times: twice within the window in which its stream knows it again, and once under another id.
async fn publish_again_and_again(world: &World, parcel: &str, kind: &str) {
    let id = format!("{parcel}-{kind}");
    assert!(!publish(world, parcel, kind, &id).await);
    assert!(publish(world, parcel, kind, &id).await, "it is known within the window");
    assert!(!publish(world, parcel, kind, &format!("{id}-again")).await);
}

/// Publishes an event behind the window: the stream takes it for another one.
async fn publish_late(world: &World, parcel: &str, kind: &str) {
    let id = format!("{parcel}-{kind}");
    let forgotten = async || (!publish(world, parcel, kind, &id).await).then_some(());
    wait_until(forgotten, PATIENCE, "the window is over").await;
}

/// Has the stream know messages again for a moment only.
async fn shorten_window(world: &World) {
    let window = Duration::from_millis(100);
    if let Some(simulated) = &world.simulated {
        simulated.alter_stream(AGGREGATE_EVENTS, |settings| settings.duplicate_window = window);
        return;
    }
    let nats = world.ground.nats.as_ref().expect("a real server");
    // A server purges its known messages before it applies the window that was just set, and again only when the former window is
    // over, which at first may take two minutes. So the window is set twice: the second purge happens with a short one.
    for window in [window, window + Duration::from_millis(1)] {
        let wanted = format!(
            r#"{{"name":"{AGGREGATE_EVENTS}","subjects":["tenant.*.aggregate.*.*"],"storage":"file","retention":"limits","discard":"new","max_age":86400000000000,"duplicate_window":{},"max_consumers":100000,"num_replicas":1}}"#,
            window.as_nanos()
        );
        let reply = nats.ask(&format!("$JS.API.STREAM.UPDATE.{AGGREGATE_EVENTS}"), &wanted);
        assert!(!reply.contains("error"), "{reply}");
    }
}

/// Waits until every event was settled, and everything that follows was sent.
async fn until_settled(world: &World) {
    let (tenant, saga) = (TENANT.parse().expect("a tenant"), world.saga.parse().expect("a name"));
    let lane = WorkflowLane::Saga { tenant, saga, shard: 0 };
    for aggregate in ["Order", "Payment"] {
        let consumer = ConsumerSource::Aggregate(aggregate.to_owned()).consumer(&lane);
        let settled = async || {
            let state = world.outside.cursor(AGGREGATE_EVENTS, &consumer).await.ok()??;
            (state.pending == 0 && state.unacknowledged == 0).then_some(())
        };
        wait_until(settled, PATIENCE, format!("all events of {aggregate} are settled")).await;
    }
    let sent = async || (world.count(StoreTable::Outbox).await == 0).then_some(());
    wait_until(sent, PATIENCE, "everything is sent").await;
}

/// Calls by parcel, every one of them as often as it was made, with the name of the parcel taken out.
fn calls(world: &World) -> BTreeMap<String, Vec<String>> {
    let mut calls: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for call in world.witness.calls() {
        let payload = workflow::json::read(call.payload.as_bytes(), 1000).expect("JSON");
        let id = payload.get("id").and_then(Json::as_text).expect("the parcel").to_owned();
        calls.entry(id.clone()).or_default().push(format!(
            "{} {}",
            call.what,
            call.payload.replace(&id, "ID")
        ));
    }
    calls
}

async fn events_twice_and_in_every_order_come_to_the_same_end(mut world: World) {
    world.apply(MANIFEST).await;
    world.serve(|_| Some((CommandOutcome::Succeeded, Json::object([])))).await;
    world.own();
    // A parcel for every order of the events, and one that gets each event once, in order.
    let mut all: Vec<(String, Vec<&str>)> = vec![("calm".to_owned(), EVENTS.to_vec())];
    for kind in EVENTS {
        publish(&world, "calm", kind, &format!("calm-{kind}")).await;
    }
    let orders = orders(&EVENTS).into_iter().enumerate();
    all.extend(orders.map(|(number, order)| (format!("p-{number}"), order)));
    assert_eq!(all.len(), 1 + 24);
    for (parcel, order) in &all[1..] {
        for kind in order {
            publish_again_and_again(&world, parcel, kind).await;
        }
    }
    let is_at = async |parcel: &str, step: &str| {
        let record = world.record(parcel).await?;
        record.instance().is_some_and(|instance| instance.step.as_str() == step).then_some(())
    };
    for (parcel, order) in &all {
        wait_until(async || is_at(parcel, "close").await, PATIENCE, format!("{parcel} {order:?} is shipped"))
            .await;
    }
    // All of it once more, which the stream does not know any more: to those that still run, and to those that have ended.
    shorten_window(&world).await;
    for _ in 0..2 {
        for (parcel, order) in &all[1..] {
            for kind in order {
                publish_late(&world, parcel, kind).await;
            }
        }
        until_settled(&world).await;
        for (parcel, _) in &all {
            publish_late(&world, parcel, "Closed").await;
            let ended = async || world.has_ended(parcel).await.then_some(());
            wait_until(ended, PATIENCE, format!("{parcel} ends")).await;
        }
    }
    until_settled(&world).await;
    let calls = calls(&world);
    let calm = calls["calm"].clone();
    assert_eq!(calm.len(), 2, "{calm:?}");
    for (parcel, order) in &all {
        assert_eq!(world.status(parcel).await, SagaStatus::Completed, "{order:?}");
        assert_eq!(calls[parcel], calm, "{order:?}");
    }
    assert_eq!(world.witness.calls().len(), 2 * all.len());
    assert_eq!(world.metrics.letters.get(), 0);
}

/// `first` comes as it should, of `second` the event comes while its effect has no result, of `third` every result comes twice.
async fn a_result_comes_before_its_event_or_behind_it(mut world: World) {
    world.apply(MANIFEST).await;
    let ordered: Arc<Mutex<Vec<EffectCommand>>> = Arc::default();
    let commands = Arc::clone(&ordered);
    let answers = move |command: &EffectCommand| {
        commands.lock().expect("no panic").push(command.clone());
        None
    };
    world.serve(answers).await;
    world.own();
    let command = async |parcel: &str, effect: &str| {
        let is_it = |command: &EffectCommand| {
            command.effect_name.as_str() == effect
                && command.payload.get("id").and_then(Json::as_text) == Some(parcel)
        };
        let found = async || ordered.lock().expect("no panic").iter().find(|command| is_it(command)).cloned();
        wait_until(found, PATIENCE, format!("{effect} of {parcel} is ordered")).await
    };
    let answer = async |command: &EffectCommand| {
        publish_result(&*world.outside, command, CommandOutcome::Succeeded, Json::object([])).await;
    };
    let parcels = ["first", "second", "third"];
    for parcel in parcels {
        for kind in ["Placed", "Packed"] {
            publish(&world, parcel, kind, &format!("{parcel}-{kind}")).await;
        }
    }
    // The events behind the call come before its result, and are kept until it is there.
    let reserve = command("second", "reserve").await;
    for kind in ["Checked", "Paid"] {
        publish(&world, "second", kind, &format!("second-{kind}")).await;
    }
    let kept = async || (world.count(StoreTable::Kept).await == 2).then_some(());
    wait_until(kept, PATIENCE, "both events are kept").await;
    answer(&reserve).await;
    // The results come before the events.
    for parcel in ["first", "third"] {
        let reserve = command(parcel, "reserve").await;
        answer(&reserve).await;
        let waits = async || {
            let record = world.record(parcel).await?;
            record.instance().is_some_and(|instance| instance.step.as_str() == "pay").then_some(())
        };
        wait_until(waits, PATIENCE, format!("{parcel} waits for its payment")).await;
        for kind in ["Paid", "Checked"] {
            publish(&world, parcel, kind, &format!("{parcel}-{kind}")).await;
        }
    }
    for parcel in parcels {
        let ship = command(parcel, "ship").await;
        answer(&ship).await;
        if parcel == "third" {
            // The result of the first call comes once more, as another message, when its event is long there.
            answer_again(&world, &command(parcel, "reserve").await).await;
        }
        publish(&world, parcel, "Closed", &format!("{parcel}-Closed")).await;
        let ended = async || world.has_ended(parcel).await.then_some(());
        wait_until(ended, PATIENCE, format!("{parcel} ends")).await;
    }
    until_settled(&world).await;
    let calls = calls(&world);
    for parcel in parcels {
        assert_eq!(world.status(parcel).await, SagaStatus::Completed);
        assert_eq!((calls[parcel].len(), &calls[parcel]), (2, &calls["first"]), "{parcel}");
    }
    assert_eq!(world.metrics.letters.get(), 0);
}

/// Publishes a result once more, under another id.
async fn answer_again(world: &World, command: &EffectCommand) {
    let result = workflow::message::EffectResult {
        tenant_id: command.tenant_id.clone(),
        command_id: command.command_id,
        effect_name: command.effect_name.clone(),
        result_type: CommandOutcome::Succeeded,
        may_have_happened: false,
        payload: Json::object([]),
        timestamp: 0,
        reply_to: command.reply_to.clone(),
        metadata: BTreeMap::new(),
    };
    let subject = format!("tenant.{TENANT}.effect_result.{}.{}", command.effect_name, command.command_id);
    let body = String::from_utf8(workflow::message::write(&result)).expect("JSON");
    world.raw(&subject, &format!("again-{}", command.command_id), &body).await;
}
