//! Handling of inputs by a lane.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use model::SagaStatus;
use saga::sagas::{VerbAnswerRow, VerbOutcome};
use workflow::Json;
use workflow::input::{CommandOutcome, Verb};
use workflow::key::StoreTable;
use workflow::message::EffectCommand;

use crate::everywhere::everywhere;
use crate::world::World;

const ORDER: &str = include_str!("../../../../libs/workflow/src/manifest/example.yaml");
const PLACED: &str = r#"{"order_id":"o-1","email":"a@b.example","amount_cents":1250}"#;
const CAPTURED: &str = r#"{"amount_cents":1250}"#;

everywhere! {
    an_order_is_shipped
    every_event_counts_once
    a_new_owner_goes_on
    poison_parks_its_correlation_alone
    an_operator_is_answered_once
}

/// Everything succeeds.
fn succeed(command: &EffectCommand) -> Option<(CommandOutcome, Json)> {
    let payload = match command.effect_name.as_str() {
        "payment-reserve" => r#"{"payment_id":"p-1"}"#,
        "make-label" => r#"{"label":{"code":"L-1"}}"#,
        _ => "{}",
    };
    Some((CommandOutcome::Succeeded, workflow::json::read(payload.as_bytes(), 1000).expect("JSON")))
}

async fn started(mut world: World) -> World {
    world.apply(ORDER).await;
    world.serve(succeed).await;
    world.follow().await;
    world.own();
    world
}

async fn an_order_is_shipped(world: World) {
    let mut world = started(world).await;
    world.event("Order", "e-1", "OrderPlaced", "c-1", PLACED).await;
    world.wait_for("c-1", "await-payment").await;
    world.event("Payment", "e-2", "PaymentCaptured", "c-1", CAPTURED).await;
    world.wait_for("c-1", "completed").await;
    assert_eq!(world.status("c-1").await, SagaStatus::Completed);
    assert_eq!(
        world.witness.distinct_calls(),
        ["payment-reserve", "make-label", "MarkShipped", "mail-receipt"]
    );
    let ended = world.stop().await;
    assert!(matches!(ended, saga::lane::LaneExit::Stopped { .. }), "{ended}");
    // Nothing is left to be sent, and the only timer is that after which the journal goes.
    assert_eq!((world.count(StoreTable::Outbox).await, world.count(StoreTable::Due).await), (0, 1));
    assert_eq!(world.count(StoreTable::Journal).await, 6);
}

async fn every_event_counts_once(world: World) {
    let mut world = started(world).await;
    // Under ids of messages that no stream knows again.
    for copy in ["a", "b", "c"] {
        let body = format!(
            r#"{{"event_id":"e-1","type":"OrderPlaced","data":{PLACED},"metadata":{{"correlation_id":"c-1"}}}}"#
        );
        world.raw("tenant.acme.aggregate.Order.x", copy, &body).await;
    }
    world.wait_for("c-1", "await-payment").await;
    world.until_measured(r#"mycora_saga_dedupe_hits_total{where="store"} 2"#).await;
    for copy in ["d", "e"] {
        let body = format!(
            r#"{{"event_id":"e-2","type":"PaymentCaptured","data":{CAPTURED},"metadata":{{"correlation_id":"c-1"}}}}"#
        );
        world.raw("tenant.acme.aggregate.Payment.x", copy, &body).await;
    }
    world.wait_for("c-1", "completed").await;
    assert_eq!(world.witness.distinct_calls().len(), 4);
}

async fn a_new_owner_goes_on(world: World) {
    let mut world = started(world).await;
    for order in 0..20 {
        world.event("Order", &format!("p-{order}"), "OrderPlaced", &format!("c-{order}"), PLACED).await;
        if order % 3 == 0 {
            // The former owner notices at its next commit, if it has one, and is none any more.
            world.crash().await;
            world.own();
        }
        world
            .event("Payment", &format!("q-{order}"), "PaymentCaptured", &format!("c-{order}"), CAPTURED)
            .await;
    }
    for order in 0..20 {
        let correlation = format!("c-{order}");
        world.wait_for(&correlation, "completed").await;
        assert_eq!(world.status(&correlation).await, SagaStatus::Completed);
    }
    // One key and one payload for each of four deeds.
    assert_eq!(world.witness.distinct_calls().len(), 80);
}

async fn poison_parks_its_correlation_alone(world: World) {
    let mut world = started(world).await;
    world.raw("tenant.acme.aggregate.Order.x", "p-1", "{").await;
    world.raw("tenant.acme.aggregate.Order.x", "p-2", r#"{"type":"OrderPlaced","type":"x"}"#).await;
    world.event("Order", "p-3", "OrderPlaced", "bad", r#"{"order_id":7}"#).await;
    world.event("Order", "p-4", "OrderPlaced", "bad", PLACED).await;
    world.event("Order", "e-1", "OrderPlaced", "good", PLACED).await;
    world.wait_for("good", "await-payment").await;
    let bad = world.record("bad").await.expect("a record");
    assert_eq!((bad.parked_by, bad.held.len(), bad.letters), (Some(0), 1, 1));
    assert_eq!(world.record("-").await.expect("letters of nobody").letters, 2);
    assert_eq!((world.count(StoreTable::Dead).await, world.count(StoreTable::Parked).await), (3, 1));
    assert_eq!(world.metrics.letters.get(), 3);
}

fn reason(answer: &VerbAnswerRow) -> Option<&str> {
    answer.refusal().map(|refusal| refusal.reason.as_str())
}

async fn an_operator_is_answered_once(world: World) {
    let mut world = started(world).await;
    let cancel = || Verb::Cancel { reason: "enough".to_owned() };
    let answer = world.ask("r-0", "c-1", cancel()).await;
    assert_eq!(reason(&answer), Some("SAGA_NOT_FOUND"));
    world.event("Order", "e-1", "OrderPlaced", "c-1", PLACED).await;
    world.wait_for("c-1", "await-payment").await;
    let answer = world.ask("r-1", "c-1", cancel()).await;
    assert_eq!(answer.outcome, VerbOutcome::Applied);
    assert_eq!(answer.instance.map(|instance| instance.status), Some(SagaStatus::Compensating));
    world.wait_for("c-1", "compensated").await;
    // A repeated request gets the same answer, whatever happened since.
    let again = world.ask("r-1", "c-1", cancel()).await;
    assert_eq!(again.instance.map(|instance| instance.status), Some(SagaStatus::Compensating));
    let late = world.ask("r-2", "c-1", cancel()).await;
    assert_eq!(reason(&late), Some("SAGA_ENDED"));
    assert_eq!(world.witness.distinct_calls(), ["payment-reserve", "payment-release", "Cancel"]);
}

#[tokio::test]
async fn work_is_traced_from_its_event() {
    let mut world = World::simulated().await;
    world.apply(ORDER).await;
    let traces: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = Arc::clone(&traces);
    world
        .serve(move |command| {
            let trace = command.metadata.get("traceparent").cloned().unwrap_or_default();
            seen.lock().expect("no panic").push(format!("{} {trace}", command.effect_name));
            succeed(command)
        })
        .await;
    world.follow().await;
    world.own();
    for (aggregate, id, kind, data, trace) in
        [("Order", "e-1", "OrderPlaced", PLACED, "a1"), ("Payment", "e-2", "PaymentCaptured", CAPTURED, "b2")]
    {
        let parent = format!("00-{}-00f067aa0ba902b7-01", trace.repeat(16));
        let body = format!(
            r#"{{"event_id":"{id}","type":"{kind}","data":{data},"metadata":{{"correlation_id":"c-1","traceparent":"{parent}"}}}}"#
        );
        world.raw(&format!("tenant.acme.aggregate.{aggregate}.x"), id, &body).await;
        let step = if kind == "OrderPlaced" { "await-payment" } else { "completed" };
        world.wait_for("c-1", step).await;
    }
    let traces = traces.lock().expect("no panic").clone();
    let [reserve, label, mail] = traces.as_slice() else { panic!("{traces:?}") };
    assert!(reserve.starts_with(&format!("payment-reserve 00-{}-", "a1".repeat(16))), "{reserve}");
    assert!(label.starts_with(&format!("make-label 00-{}-", "b2".repeat(16))), "{label}");
    // Ordered by a result, which begins a trace of its own.
    assert!(
        mail.starts_with("mail-receipt 00-") && !mail.contains("a1a1a1") && !mail.contains("b2b2b2"),
        "{mail}"
    );
    assert!(!reserve.contains("00f067aa0ba902b7"), "a span of its own: {reserve}");
}

#[tokio::test]
async fn an_order_that_is_not_paid_is_undone_when_its_time_is_over() {
    let mut world = started(World::simulated().await).await;
    world.event("Order", "e-1", "OrderPlaced", "c-1", PLACED).await;
    world.wait_for("c-1", "await-payment").await;
    world.forward(Duration::from_secs(29 * 60 + 50));
    world.event("Order", "e-2", "OrderPlaced", "c-2", PLACED).await;
    world.wait_for("c-2", "await-payment").await;
    assert_eq!(world.status("c-1").await, SagaStatus::Running);
    world.forward(Duration::from_secs(10));
    world.wait_for("c-1", "compensated").await;
    // The other one was stored later than its clock says, and may be over as well: each is released once.
    let released = world.witness.distinct_calls().iter().filter(|call| *call == "payment-release").count();
    assert_eq!(released as u64, world.metrics.timers_fired.get());
    world.until_measured(&format!("mycora_saga_timer_lag_seconds_count {released}")).await;
}

#[tokio::test]
async fn a_payment_that_was_stored_in_time_wins_over_the_timer_after_a_downtime() {
    let mut world = started(World::simulated().await).await;
    world.event("Order", "e-1", "OrderPlaced", "c-1", PLACED).await;
    world.wait_for("c-1", "await-payment").await;
    world.stop().await;
    world.event("Payment", "e-2", "PaymentCaptured", "c-1", CAPTURED).await;
    world.forward(Duration::from_secs(2 * 3600));
    world.own();
    world.wait_for("c-1", "completed").await;
    assert_eq!(world.metrics.timers_fired.get(), 0);
    // While the payment was missing, the timer waited for it, or it had come before the timer was checked.
    world.until_measured("mycora_saga_timers_waiting_for_source 0").await;
}

#[tokio::test]
async fn a_message_that_no_filter_lets_through_stops_the_lane() {
    let mut world = started(World::simulated().await).await;
    world.event("Order", "e-1", "OrderPlaced", "c-1", PLACED).await;
    world.wait_for("c-1", "await-payment").await;
    world.raw("tenant.other.aggregate.Order.x", "foreign", r#"{"type":"OrderPlaced"}"#).await;
    let simulated = world.simulated.clone().expect("a simulation");
    let consumer = "sg_order-fulfilment_0_a250518df_acme";
    simulated.deliver("AGGREGATE_EVENTS", consumer, 2);
    let ended = world.ended().await;
    assert!(
        matches!(&ended, saga::lane::LaneExit::Foreign { subject, .. } if subject == "tenant.other.aggregate.Order.x"),
        "{ended}"
    );
    assert_eq!(world.metrics.foreign_messages.get(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_timers_that_are_due_at_once_are_fired_while_others_go_on() {
    const ORDERS: usize = 600;
    let mut world = started(World::simulated().await).await;
    for order in 0..ORDERS {
        world.event("Order", &format!("p-{order}"), "OrderPlaced", &format!("c-{order}"), PLACED).await;
    }
    for order in 0..ORDERS {
        world.wait_for(&format!("c-{order}"), "await-payment").await;
    }
    // One of them waits behind a letter, and its timer with it.
    world.event("Payment", "q-0", "PaymentCaptured", "c-0", r#"{"amount_cents":1}"#).await;
    world.event("Payment", "q-1", "PaymentCaptured", "c-1", CAPTURED).await;
    world.wait_for("c-1", "completed").await;
    // Everything that was started before is due, and the journal of the one that has ended not yet.
    world.forward(Duration::from_secs(31 * 60));
    for order in 2..ORDERS {
        world.wait_for(&format!("c-{order}"), "compensated").await;
    }
    assert_eq!(world.metrics.timers_fired.get(), ORDERS as u64 - 2);
    assert_eq!(world.status("c-0").await, SagaStatus::Running);
    world.forward(Duration::from_secs(8 * 24 * 3600));
    world.event("Order", "p-last", "OrderPlaced", "last", PLACED).await;
    world.wait_for("last", "compensated").await;
    // Of those that have ended tombstones are left; the timer of the parked one waits on.
    let retired = || async { (world.count(StoreTable::Journal).await <= 30).then_some(()) };
    testkit::wait_until(retired, testkit::PATIENCE, "journals are gone").await;
    assert_eq!(world.record("c-1").await.map(|record| record.instance().is_none()), Some(true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_ended_is_forgotten_though_its_lane_had_no_owner_for_long() {
    let mut world = started(World::simulated().await).await;
    for order in ["c-1", "c-2"] {
        world.event("Order", &format!("p-{order}"), "OrderPlaced", order, PLACED).await;
        world.wait_for(order, "await-payment").await;
        world.event("Payment", &format!("q-{order}"), "PaymentCaptured", order, CAPTURED).await;
        world.wait_for(order, "completed").await;
    }
    assert_eq!(world.count(StoreTable::Due).await, 2);
    world.crash().await;
    world.forward(Duration::from_secs(31 * 24 * 3600));
    assert!(world.record("c-1").await.is_none(), "its tombstone is gone");
    world.own();
    let is_gone = || async { (world.count(StoreTable::Due).await == 0).then_some(()) };
    testkit::wait_until(is_gone, testkit::PATIENCE, "nothing more is to be done").await;
    assert_eq!(world.count(StoreTable::Journal).await, 0);
}
