//! A timer of half an hour, by a clock that tests hold: real servers, real stores.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use broker::{CursorError, CursorProgress, Deliveries, PullLimit, StreamDelivery};
use model::Timestamp;
use saga::sagas::TimerRow;
use store::{LaneKey, RowKey};
use testkit::{PATIENCE, wait_until};
use tokio::sync::watch;
use workflow::instance::{SagaInstance, decode};
use workflow::key::StoreTable;

use crate::hooked_broker::intercept;
use crate::world::{Keeps, TENANT, World};

const MINUTE: u64 = 60_000;
const STREAM: &str = "AGGREGATE_EVENTS";
/// Saga that waits half an hour from the start of its step, or from another moment, and leaves the step on each event `Held`.
const MANIFEST: &str = r#"
kind: Saga
name: order
version: 1
state: { id: text, placed: int }
sources: [{ aggregate: Order }, { aggregate: Payment }]
start: { on: OrderPlaced, set: { id: "${{ event.data.id }}", placed: "${{ event.data.placed }}" }, goto: wait }
steps:
  wait:
    timers: { pay-by: { WHEN, raise: NotPaid } }
    on: { Held: { goto: hold }, Paid: { goto: ship }, NotPaid: { goto: release } }
  hold: { on: { Resumed: { goto: wait }, Paid: { goto: ship } } }
  ship: { command: { aggregate: Order, id: "${{ state.id }}", type: Ship }, on_success: { end: completed } }
  release: { command: { aggregate: Order, id: "${{ state.id }}", type: Release }, on_success: { end: completed } }
"#;

/// A world with one order, which waits.
async fn waiting(mut world: World, when: &str, placed: u64) -> World {
    world.apply(&MANIFEST.replace("WHEN", when)).await;
    world.own();
    publish(&world, "OrderPlaced", &format!(r#"{{"id":"o-1","placed":{placed}}}"#), 1).await;
    world.until_revision("o-1", 1).await;
    world
}

/// Publishes an event of the order, the first one of its kind or a later one.
async fn publish(world: &World, kind: &str, data: &str, number: u64) {
    let aggregate = if kind == "Paid" { "Payment" } else { "Order" };
    world.event(aggregate, &format!("{kind}-{number}"), kind, "o-1", data).await;
}

async fn order(world: &World) -> SagaInstance {
    let record = world.record("o-1").await.expect("a record");
    record.instance().expect("it runs").clone()
}

/// The timers that the store has of the order.
async fn timers(world: &World) -> Vec<TimerRow> {
    let (lane, range) = (LaneKey::new(&format!("s:{TENANT}:order:0")), StoreTable::Due.range());
    let range = RowKey::new(range.start.as_str())..RowKey::new(range.end.as_str());
    let page = world.store.scan(&lane, range, 100).await.expect("rows");
    let timers = page.rows.iter().map(|(_, row)| decode::<TimerRow>(&row.value).expect("a timer"));
    timers.filter(|timer| timer.name == "pay-by" && timer.correlation.as_str() == "o-1").collect()
}

async fn timer(world: &World) -> TimerRow {
    let [timer] = <[_; 1]>::try_from(timers(world).await).expect("one timer");
    timer
}

/// Sets the clock to a moment, at which it stays, until the owner has looked at it many times.
async fn stay_at(world: &World, moment: Timestamp) {
    world.clock.stop_at(moment.as_millis());
    for _ in 0..30 {
        let before = world.clock.looks();
        // Has timers looked at.
        world.forward(Duration::ZERO);
        let looked = async || (world.clock.looks() > before).then_some(());
        wait_until(looked, PATIENCE, "the owner looks at the clock").await;
    }
}

/// The order is released, and nothing else ever happens to it.
async fn assert_released_once(world: &World, due: Timestamp) {
    let ended = async || world.has_ended("o-1").await.then_some(());
    wait_until(ended, PATIENCE, "it is released").await;
    stay_at(world, due + Duration::from_secs(3600)).await;
    assert_eq!(world.metrics.timers_fired.get(), 1);
    let calls: Vec<_> = world.witness.calls().into_iter().map(|call| call.what).collect();
    assert_eq!(calls, ["Release"]);
}

/// Nothing has fired.
async fn assert_waits(world: &World, revision: u64) {
    assert_eq!(world.metrics.timers_fired.get(), 0);
    assert_eq!(order(world).await.revision, revision);
    assert!(world.witness.calls().is_empty());
}

fn less_one(moment: Timestamp) -> Timestamp {
    Timestamp::from_millis(moment.as_millis() - 1)
}

async fn it_fires_at_its_moment_and_once(world: World) {
    let world = waiting(world, "after: 30m", 0).await;
    let (due, entered) = (timer(&world).await.due, order(&world).await.entered);
    assert_eq!(due.as_millis(), entered.as_millis() + 30 * MINUTE);
    // At 29:59.999 it does not.
    stay_at(&world, less_one(due)).await;
    assert_waits(&world, 1).await;
    stay_at(&world, due).await;
    assert_released_once(&world, due).await;
}

async fn a_replaced_one_never_fires(world: World) {
    let world = waiting(world, "after: 30m", 0).await;
    let first = timer(&world).await;
    // The step is left and entered again, until that was in another millisecond.
    let (mut again, mut times) = (first.clone(), 0);
    while again.due == first.due {
        times += 1;
        publish(&world, "Held", "{}", times).await;
        publish(&world, "Resumed", "{}", times).await;
        world.until_revision("o-1", 1 + 2 * times).await;
        again = timer(&world).await;
        assert_eq!(again.generation, 1 + times);
    }
    assert!(again.due > first.due);
    stay_at(&world, first.due).await;
    stay_at(&world, less_one(again.due)).await;
    assert_waits(&world, 1 + 2 * times).await;
    stay_at(&world, again.due).await;
    assert_released_once(&world, again.due).await;
}

async fn a_cancelled_one_never_fires(world: World) {
    let now = Timestamp::now().as_millis();
    let world = waiting(world, "due: state.placed + minutes(30)", now).await;
    // Another order waits for longer than this test looks, so that the clock is looked at.
    let placed = format!(r#"{{"id":"o-2","placed":{}}}"#, now + 24 * 60 * MINUTE);
    world.event("Order", "OrderPlaced-o-2", "OrderPlaced", "o-2", &placed).await;
    world.until_revision("o-2", 1).await;
    let due = timer(&world).await.due;
    publish(&world, "Held", "{}", 1).await;
    world.until_revision("o-1", 2).await;
    assert_eq!(timers(&world).await, []);
    stay_at(&world, due).await;
    stay_at(&world, due + Duration::from_secs(7200)).await;
    assert_waits(&world, 2).await;
    publish(&world, "Paid", "{}", 1).await;
    let ended = async || world.has_ended("o-1").await.then_some(());
    wait_until(ended, PATIENCE, "it goes on").await;
    assert_eq!(world.metrics.timers_fired.get(), 0);
}

/// Deliveries that come when a test lets them.
struct Gated(Box<dyn Deliveries>, watch::Receiver<bool>);

#[async_trait]
impl Deliveries for Gated {
    async fn next(&mut self, room: PullLimit) -> Result<StreamDelivery, CursorError> {
        self.1.wait_for(|is_open| *is_open).await.expect("the test goes on");
        self.0.next(room).await
    }

    fn progress(&self) -> watch::Receiver<CursorProgress> {
        self.0.progress()
    }
}

/// The order was placed before this test began, so that its payment is stored in the tenth minute by the server's own clock.
async fn a_payment_of_the_tenth_minute_wins_after_two_hours(world: World) {
    let placed = Timestamp::now().as_millis() - 9 * MINUTE;
    let mut world = waiting(world, "due: state.placed + minutes(30)", placed).await;
    let due = timer(&world).await.due;
    assert_eq!(due.as_millis(), placed + 30 * MINUTE);
    world.stop().await;
    publish(&world, "Paid", "{}", 1).await;
    let stored = world.outside.message(STREAM, 2).await.expect("an answer").expect("the payment");
    let minute = (stored.stored_millis - placed) / MINUTE;
    assert_eq!(minute, 9, "the tenth, where the first one is 0");
    // Two hours later nothing is delivered at first: the timer is over, and has to wait.
    let gate = watch::Sender::new(false);
    let (broker, gated) = (Arc::clone(&world.broker), gate.subscribe());
    world.broker = intercept(broker, move |_, deliveries| Box::new(Gated(deliveries, gated.clone())));
    world.clock.stop_at(due.as_millis() + 120 * MINUTE);
    world.own();
    world.until_measured("mycora_saga_timers_waiting_for_source 1").await;
    stay_at(&world, Timestamp::from_millis(due.as_millis() + 120 * MINUTE)).await;
    assert_waits(&world, 1).await;
    gate.send_replace(true);
    let ended = async || world.has_ended("o-1").await.then_some(());
    wait_until(ended, PATIENCE, "the payment is applied").await;
    stay_at(&world, due + Duration::from_secs(3 * 3600)).await;
    assert_eq!(world.metrics.timers_fired.get(), 0);
    let calls: Vec<_> = world.witness.calls().into_iter().map(|call| call.what).collect();
    assert_eq!(calls, ["Ship"]);
}

macro_rules! on_real_servers {
    ($($case:ident)*) => {
        mod in_a_directory {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    super::$case(super::World::real(super::Keeps::Directory).await).await;
                }
            )*
        }

        mod in_redis {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    super::$case(super::World::real(super::Keeps::Redis).await).await;
                }
            )*
        }
    };
}

on_real_servers! {
    it_fires_at_its_moment_and_once
    a_replaced_one_never_fires
    a_cancelled_one_never_fires
    a_payment_of_the_tenth_minute_wins_after_two_hours
}
