//! Levers of the simulated broker.

use std::time::Duration;

use broker::{
    BrokerError, CursorSpec, CursorStart, ManualClock, MessageBroker as _, PullLimit, RuntimeClock,
    SimulatedBroker,
};
use serde_json::json;

use crate::{
    CONSUMER, ROOM, STREAM, command, cursor, next, open, outgoing, publish, publish_all, read, spec,
};

async fn simulated() -> (SimulatedBroker, ManualClock) {
    let clock = ManualClock::new(1_700_000_000_000);
    let broker = SimulatedBroker::new(clock.clone());
    assert_eq!(broker.ensure_stream(&spec()).await, Ok(vec![]));
    (broker, clock)
}

#[tokio::test]
async fn an_acknowledgement_that_is_lost_leaves_the_message() {
    let (broker, clock) = simulated().await;
    broker.lose_acknowledgements(1);
    let lost = publish(&broker, command("1")).await;
    assert!(matches!(lost, Err(BrokerError::Unavailable { .. })), "{lost:?}");
    let again = publish(&broker, command("1")).await.expect("it is known");
    assert_eq!((again.sequence, again.is_duplicate), (1, true));
    // Beyond the window it is another message.
    clock.advance(119_999);
    assert!(publish(&broker, command("1")).await.expect("it is known").is_duplicate);
    clock.advance(1);
    let again = publish(&broker, command("1")).await.expect("it is stored");
    assert_eq!((again.sequence, again.is_duplicate), (2, false));
}

#[tokio::test]
async fn deliveries_that_are_lost_leave_a_gap_in_their_numbers() {
    let (broker, _) = simulated().await;
    let _ = publish_all(&broker, 0..6).await;
    let mut deliveries = open(&broker, CursorStart::After(0)).await;
    let room = PullLimit { messages: 1, ..ROOM };
    let first = deliveries.next(room).await.expect("a delivery");
    broker.lose_deliveries(STREAM, CONSUMER, 2);
    let second = next(&mut *deliveries).await;
    assert_eq!([(first.sequence, first.count), (second.sequence, second.count)], [(1, 1), (4, 4)]);
}

#[tokio::test]
async fn acknowledgements_that_are_forgotten_bring_messages_again() {
    let (broker, _) = simulated().await;
    let _ = publish_all(&broker, 0..4).await;
    let mut deliveries = open(&broker, CursorStart::After(0)).await;
    for _ in 0..4 {
        next(&mut *deliveries).await.receipt.ack();
    }
    broker.forget_acks(STREAM, CONSUMER, 2);
    assert_eq!(read(&mut *deliveries, 2).await, [3, 4]);
}

#[tokio::test]
async fn messages_are_delivered_twice_and_to_strangers() {
    let (broker, _) = simulated().await;
    let foreign = publish(&broker, outgoing("tenant.other.effect.pay.x", "x")).await.expect("it is stored");
    let _ = publish_all(&broker, 0..2).await;
    let mut deliveries = open(&broker, CursorStart::After(0)).await;
    assert_eq!(read(&mut *deliveries, 1).await, [2]);
    broker.deliver(STREAM, CONSUMER, 2);
    broker.deliver(STREAM, CONSUMER, foreign.sequence);
    // The pull that was under way has brought the third already.
    let mut seen = Vec::new();
    for _ in 0..3 {
        let delivered = next(&mut *deliveries).await;
        seen.push((delivered.sequence, delivered.count, delivered.subject));
    }
    let acme = |id: &str| format!("tenant.acme.effect.pay.{id}");
    assert_eq!(seen, [(3, 2, acme("1")), (2, 3, acme("0")), (1, 4, "tenant.other.effect.pay.x".to_owned())]);
}

#[tokio::test]
async fn a_consumer_that_is_made_differently_is_refused_by_name() {
    let (broker, _) = simulated().await;
    for (field, value, expected) in [
        ("ack_wait", json!(1), "ack_wait is 1, wanted is 30000000000"),
        ("filter_subjects", json!(["a", "b"]), "filter_subjects is [\"a\",\"b\"], wanted is absent"),
    ] {
        broker.override_next_setting(field, value);
        let refused = broker.open(&cursor(CursorStart::After(0))).await.map(drop).expect_err("it differs");
        assert!(refused.to_string().contains(expected), "{refused}");
        assert!(refused.to_string().contains(CONSUMER), "{refused}");
        // Nothing of it stays.
        let state = broker.stream(STREAM).await.expect("an answer").expect("a stream");
        assert_eq!(state.consumers, 0);
    }
    assert!(broker.open(&cursor(CursorStart::After(0))).await.is_ok());
}

#[tokio::test]
async fn a_stale_acknowledgement_counts() {
    let (broker, clock) = simulated().await;
    let _ = publish_all(&broker, 0..2).await;
    let wanted = CursorSpec { ack_wait: Duration::from_secs(1), ..cursor(CursorStart::After(0)) };
    let mut deliveries = broker.open(&wanted).await.expect("a cursor");
    let stale = next(&mut *deliveries).await.receipt;
    let mut deliveries = broker.open(&wanted).await.expect("a cursor");
    for sequence in 1..=2 {
        assert_eq!(next(&mut *deliveries).await.sequence, sequence);
    }
    stale.ack();
    clock.advance(1_000);
    assert_eq!(next(&mut *deliveries).await.sequence, 2);
}

#[tokio::test]
async fn levers_change_the_answers_of_a_simulated_server() {
    let (broker, _) = simulated().await;
    let _ = publish_all(&broker, 0..5).await;
    broker.expire(STREAM, 4);
    let state = broker.stream(STREAM).await.expect("an answer").expect("a stream");
    assert_eq!((state.first_sequence, state.last_sequence, state.messages), (4, 5, 2));
    broker.alter_stream(STREAM, |settings| settings.max_consumers = -1);
    let found = broker.check_stream(&spec()).await.expect("a stream");
    assert_eq!(found.iter().map(|found| found.field.as_str()).collect::<Vec<_>>(), ["max_consumers"]);
    broker.set_version("2.15.1");
    broker.set_max_payload(64 * 1024);
    let server = broker.server().expect("a server");
    assert_eq!((server.version_text.as_str(), server.max_payload), ("2.15.1", 65_536));
    let mut large = command("large");
    large.payload = vec![0; 48 * 1024 + 1].into();
    let refused = broker.publish(large).await.map(drop);
    assert!(matches!(refused, Err(BrokerError::TooLarge { .. })), "{refused:?}");
}

/// With the clock of a runtime whose time is paused, hours pass at once.
#[tokio::test(start_paused = true)]
async fn time_may_be_that_of_the_runtime() {
    let broker = SimulatedBroker::new(RuntimeClock::new());
    assert_eq!(broker.ensure_stream(&spec()).await, Ok(vec![]));
    let _ = publish_all(&broker, 0..1).await;
    let wanted = CursorSpec { ack_wait: Duration::from_secs(3_600), ..cursor(CursorStart::After(0)) };
    let mut deliveries = broker.open(&wanted).await.expect("a cursor");
    let begin = tokio::time::Instant::now();
    for attempt in 1..=3 {
        assert_eq!(deliveries.next(ROOM).await.expect("a delivery").attempt, attempt);
    }
    assert_eq!(begin.elapsed().as_secs(), 7_200);
}
