//! Connections that are cut, and servers that die or forget.

use std::time::{Duration, Instant};

use broker::{BrokerError, CursorError, CursorStart};
use bytes::Bytes;
use futures_util::FutureExt as _;
use testkit::PATIENCE;

use crate::harness::connected;
use crate::{
    BrokerUnderTest, CONSUMER, ROOM, STREAM, command, cursor, next, on_both_brokers, open, publish,
    publish_all, read, read_to_the_end, spec, turn, with_stream,
};

on_both_brokers! {
    a_lost_connection_ends_deliveries_and_nothing_is_missing
    receipts_of_an_earlier_connection_do_nothing
    a_server_that_is_gone_is_noticed_soon
    nothing_is_missing_after_a_server_was_killed
    a_stream_that_was_made_anew_is_another_one
    a_server_that_was_wiped_has_nothing
    a_server_that_went_back_uses_sequences_again
}

fn disconnected() -> CursorError {
    CursorError::Disconnected { consumer: CONSUMER.to_owned() }
}

async fn a_lost_connection_ends_deliveries_and_nothing_is_missing(world: BrokerUnderTest) {
    let broker = with_stream(&world).await;
    let _ = publish_all(&*broker, 0..500).await;
    let mut position = 0;
    for turns in 1..=5 {
        let mut deliveries = open(&*broker, CursorStart::After(position)).await;
        let begun = read(&mut *deliveries, 10 * turns).await;
        // More are under way than were read.
        world.cut().await;
        let (rest, lost) = read_to_the_end(&mut *deliveries).await;
        assert_eq!(lost, disconnected());
        let seen = [begun, rest].concat();
        assert_eq!(seen, (position + 1..=position + seen.len() as u64).collect::<Vec<_>>());
        // It stays so, though there is another connection.
        assert_eq!(turn(&mut *deliveries, ROOM).await.map(drop), Err(disconnected()));
        position += 10 * turns as u64;
    }
    let mut deliveries = open(&*broker, CursorStart::After(position)).await;
    let rest = read(&mut *deliveries, 500 - usize::try_from(position).expect("few")).await;
    assert_eq!(rest, (position + 1..=500).collect::<Vec<_>>());
}

async fn receipts_of_an_earlier_connection_do_nothing(world: BrokerUnderTest) {
    let broker = with_stream(&world).await;
    let _ = publish_all(&*broker, 0..2).await;
    let mut deliveries = open(&*broker, CursorStart::After(0)).await;
    let receipt = next(&mut *deliveries).await.receipt;
    world.cut().await;
    receipt.ack();
    receipt.progress();
    drop(deliveries);
    let mut deliveries = open(&*broker, CursorStart::After(0)).await;
    assert_eq!(read(&mut *deliveries, 2).await, [1, 2]);
    receipt.ack();
}

async fn a_server_that_is_gone_is_noticed_soon(world: BrokerUnderTest) {
    let broker = with_stream(&world).await;
    let mut deliveries = open(&*broker, CursorStart::After(0)).await;
    let generation = connected(&*broker, 0).await.generation;
    assert!(deliveries.next(ROOM).now_or_never().is_none());
    world.leave().await;
    assert_eq!(turn(&mut *deliveries, ROOM).await.map(drop), Err(disconnected()));
    let begin = Instant::now();
    let unavailable = |error: &BrokerError| matches!(error, BrokerError::Unavailable { .. });
    for number in 0..1_000 {
        let refused = broker.publish(command(&number.to_string())).await.expect_err("there is no server");
        assert!(unavailable(&refused), "{refused}");
    }
    assert!(unavailable(&broker.server().expect_err("there is no server")));
    assert!(unavailable(&broker.stream(STREAM).await.expect_err("there is no server")));
    assert!(unavailable(&broker.message(STREAM, 1).await.expect_err("there is no server")));
    assert!(unavailable(&broker.create_stream(&spec()).await.expect_err("there is no server")));
    assert!(unavailable(
        &broker.open(&cursor(CursorStart::After(0))).await.map(drop).expect_err("there is no server")
    ));
    assert!(unavailable(&broker.delete_cursor(STREAM, CONSUMER).await.expect_err("there is no server")));
    assert!(unavailable(&broker.inbox().await.expect_err("there is no server")));
    assert!(unavailable(&broker.reply("_INBOX.a", Bytes::new()).await.expect_err("there is no server")));
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    world.come_back().await;
    assert_eq!(connected(&*broker, generation).await.generation, generation + 1);
    // Nothing of what was refused was kept to be sent later.
    assert_eq!(publish(&*broker, command("first")).await.map(|published| published.sequence), Ok(1));
}

async fn nothing_is_missing_after_a_server_was_killed(mut world: BrokerUnderTest) {
    let broker = with_stream(&world).await;
    let incarnation = broker.stream(STREAM).await.expect("an answer").expect("a stream").incarnation;
    let _ = publish_all(&*broker, 0..50).await;
    let mut deliveries = open(&*broker, CursorStart::After(0)).await;
    for _ in 0..20 {
        next(&mut *deliveries).await.receipt.ack();
    }
    world.restart().await;
    let (_, lost) = read_to_the_end(&mut *deliveries).await;
    assert_eq!(lost, disconnected());
    let state = broker.stream(STREAM).await.expect("an answer").expect("a stream");
    assert_eq!((state.incarnation, state.last_sequence), (incarnation, 50));
    let _ = publish_all(&*broker, 50..60).await;
    let mut deliveries = open(&*broker, CursorStart::After(20)).await;
    assert_eq!(read(&mut *deliveries, 40).await, (21..=60).collect::<Vec<_>>());
}

async fn a_stream_that_was_made_anew_is_another_one(world: BrokerUnderTest) {
    let broker = with_stream(&world).await;
    let _ = publish_all(&*broker, 0..5).await;
    let mut deliveries = open(&*broker, CursorStart::After(5)).await;
    assert!(deliveries.next(ROOM).now_or_never().is_none());
    let before = broker.stream(STREAM).await.expect("an answer").expect("a stream");
    world.delete_stream();
    let lost = turn(&mut *deliveries, ROOM).await.expect_err("its stream is gone");
    assert_eq!(lost, CursorError::Deleted { consumer: CONSUMER.to_owned() });
    assert_eq!(broker.stream(STREAM).await, Ok(None));
    let nowhere = publish(&*broker, command("5")).await;
    assert_eq!(nowhere, Err(BrokerError::UnroutedSubject { subject: command("5").subject }));
    assert_eq!(broker.ensure_stream(&spec()).await, Ok(vec![]));
    let after = broker.stream(STREAM).await.expect("an answer").expect("a stream");
    assert!(after.incarnation > before.incarnation);
    assert_eq!((after.last_sequence, after.settings), (0, before.settings));
    assert_eq!(publish_all(&*broker, 0..1).await, [1]);
}

async fn a_server_that_was_wiped_has_nothing(mut world: BrokerUnderTest) {
    let broker = with_stream(&world).await;
    let _ = publish_all(&*broker, 0..5).await;
    let mut deliveries = open(&*broker, CursorStart::After(0)).await;
    world.wipe().await;
    assert_eq!(turn(&mut *deliveries, ROOM).await.map(drop), Err(disconnected()));
    assert_eq!(broker.stream(STREAM).await, Ok(None));
    let refused = broker.open(&cursor(CursorStart::After(5))).await.map(drop);
    assert_eq!(refused, Err(BrokerError::StreamNotFound { stream: STREAM.to_owned() }));
    assert_eq!(broker.ensure_stream(&spec()).await, Ok(vec![]));
    let refused = broker.open(&cursor(CursorStart::After(5))).await.map(drop);
    assert!(matches!(refused, Err(BrokerError::StartBeyondEnd { after: 5, last: 0, .. })), "{refused:?}");
}

async fn a_server_that_went_back_uses_sequences_again(mut world: BrokerUnderTest) {
    let broker = with_stream(&world).await;
    let _ = publish_all(&*broker, 0..5).await;
    let copy = world.copy(5).await;
    let incarnation = broker.stream(STREAM).await.expect("an answer").expect("a stream").incarnation;
    assert_eq!(publish_all(&*broker, 10..13).await, [6, 7, 8]);
    let lost = broker.message(STREAM, 6).await.expect("an answer").expect("a message");
    world.go_back(&copy).await;
    let state = broker.stream(STREAM).await.expect("an answer").expect("a stream");
    assert_eq!((state.incarnation, state.last_sequence), (incarnation, 5));
    let refused = broker.open(&cursor(CursorStart::After(8))).await.map(drop);
    assert!(matches!(refused, Err(BrokerError::StartBeyondEnd { after: 8, last: 5, .. })), "{refused:?}");
    // Only the message itself tells what is at the sequence now.
    assert_eq!(publish_all(&*broker, 20..24).await, [6, 7, 8, 9]);
    let found = broker.message(STREAM, 6).await.expect("an answer").expect("a message");
    assert_ne!((found.subject, found.payload), (lost.subject, lost.payload));
    assert!(broker.open(&cursor(CursorStart::After(8))).await.is_ok());
    let mut deliveries = open(&*broker, CursorStart::Since(lost.stored_millis.saturating_sub(60_000))).await;
    assert_eq!(read(&mut *deliveries, 9).await, (1..=9).collect::<Vec<_>>());
    let begin = tokio::time::timeout(PATIENCE, broker.stream(STREAM)).await.expect("an answer");
    assert_eq!(begin.map(|state| state.map(|state| state.last_sequence)), Ok(Some(9)));
}
