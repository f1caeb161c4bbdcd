//! Cases that every broker passes.

use std::cell::Cell;
use std::time::Duration;

use broker::{
    BrokerError, BrokerVersion, CursorError, CursorSpec, CursorStart, CursorState, MESSAGE_ID, PullLimit,
    StreamRetention, StreamSpec,
};
use bytes::Bytes;
use futures_util::FutureExt as _;
use testkit::{PATIENCE, wait_until};

use crate::harness::connected;
use crate::{
    BrokerUnderTest, CONSUMER, ROOM, STREAM, command, cursor, next, on_both_brokers, open, outgoing, publish,
    publish_all, read, spec, turn, with_stream,
};

on_both_brokers! {
    a_server_describes_itself
    a_stream_is_made_once_and_never_altered
    differences_of_a_stream_are_named
    a_message_is_kept_as_it_was_published
    messages_come_in_order_through_the_filter
    a_message_is_known_again_by_its_id
    many_messages_are_under_way_in_order
    what_cannot_be_published_is_refused_by_name
    a_cursor_begins_behind_a_sequence_or_at_a_time
    a_cursor_that_is_made_anew_is_in_order
    a_cursor_takes_the_place_of_any_other
    no_cursor_is_made_behind_the_end
    what_is_no_cursor_is_refused
    no_more_cursors_are_made_than_a_stream_may_have
    what_is_not_acknowledged_comes_again
    progress_keeps_a_message_from_coming_again
    no_more_is_pulled_than_there_is_room_for
    nothing_is_pulled_without_room
    no_more_is_under_way_than_may_be
    a_cursor_reports_delivered_pending_and_unacknowledged_messages
    a_cursor_reports_its_progress_past_messages_of_others
    a_deleted_consumer_ends_its_deliveries
    replies_come_to_the_inbox
}

async fn a_server_describes_itself(world: BrokerUnderTest) {
    let server = world.broker().server().expect("a server");
    assert_eq!(BrokerVersion::parse(&server.version_text), server.version);
    assert!(server.version >= BrokerVersion::parse("2.9.0"), "{server:?}");
    assert_eq!(server.max_payload, 1024 * 1024);
}

async fn a_stream_is_made_once_and_never_altered(world: BrokerUnderTest) {
    let broker = world.broker();
    assert_eq!(broker.stream(STREAM).await, Ok(None));
    assert_eq!(
        broker.check_stream(&spec()).await,
        Err(BrokerError::StreamNotFound { stream: STREAM.to_owned() })
    );
    assert_eq!(broker.ensure_stream(&spec()).await, Ok(vec![]));
    let made = broker.stream(STREAM).await.expect("an answer").expect("a stream");
    assert_eq!((made.first_sequence.max(1), made.last_sequence, made.messages), (1, 0, 0));
    assert_eq!(
        (made.settings.max_consumers, made.settings.duplicate_window),
        (100_000, Duration::from_secs(120))
    );
    assert!(made.incarnation > 1_600_000_000_000);
    let other = StreamSpec::managed(STREAM, &["other.*"], Duration::ZERO);
    assert_eq!(broker.ensure_stream(&other).await.map(|found| found.len()), Ok(2));
    assert_eq!(broker.create_stream(&other).await, Ok(()));
    assert_eq!(broker.stream(STREAM).await, Ok(Some(made)));
    let refused = broker.stream("a.b").await;
    assert!(matches!(refused, Err(BrokerError::Refused { .. })), "{refused:?}");
}

async fn differences_of_a_stream_are_named(world: BrokerUnderTest) {
    let broker = with_stream(&world).await;
    let wanted = StreamSpec {
        max_age: Some(Duration::from_secs(60)),
        retention: Some(StreamRetention::WorkQueue),
        subjects: None,
        ..spec()
    };
    let found = broker.check_stream(&wanted).await.expect("a stream");
    let shown: Vec<_> = found.iter().map(ToString::to_string).collect();
    assert_eq!(
        shown,
        [
            "WORKFLOW_COMMANDS: retention is limits, wanted is workqueue",
            "WORKFLOW_COMMANDS: max_age is 604800s, wanted is 60s"
        ]
    );
}

async fn a_message_is_kept_as_it_was_published(world: BrokerUnderTest) {
    let broker = with_stream(&world).await;
    let mut sent = command("1");
    sent.headers = sent.headers.with("Mycora-Correlation", "größer: a, b").with("Z", "").with("a", "1");
    let published = publish(&*broker, sent.clone()).await.expect("it is stored");
    assert_eq!((published.stream.as_str(), published.sequence, published.is_duplicate), (STREAM, 1, false));
    let kept = broker.message(STREAM, 1).await.expect("an answer").expect("a message");
    assert_eq!((&kept.subject, &kept.payload, kept.sequence), (&sent.subject, &sent.payload, 1));
    assert_eq!(kept.headers, sent.headers.with(MESSAGE_ID, "1"));
    let delivered = next(&mut *open(&*broker, CursorStart::After(0)).await).await;
    assert_eq!((delivered.subject, delivered.payload), (kept.subject, kept.payload));
    assert_eq!((delivered.headers, delivered.stored_millis), (kept.headers, kept.stored_millis));
    for sequence in [0, 2, u64::MAX] {
        assert_eq!(broker.message(STREAM, sequence).await, Ok(None), "{sequence}");
    }
    let missing = broker.message("NONE", 1).await;
    assert_eq!(missing, Err(BrokerError::StreamNotFound { stream: "NONE".to_owned() }));
}

async fn no_more_cursors_are_made_than_a_stream_may_have(world: BrokerUnderTest) {
    let broker = world.broker();
    let made = broker.ensure_stream(&StreamSpec { max_consumers: Some(1), ..spec() }).await;
    assert_eq!(made, Ok(vec![]));
    drop(open(&*broker, CursorStart::After(0)).await);
    let other = CursorSpec { consumer: "another".to_owned(), ..cursor(CursorStart::After(0)) };
    let full =
        BrokerError::ConsumerLimitReached { stream: STREAM.to_owned(), consumer: other.consumer.clone() };
    assert_eq!(broker.open(&other).await.map(drop), Err(full));
    // One that is made anew takes its own place.
    let _ = open(&*broker, CursorStart::After(0)).await;
    broker.delete_cursor(STREAM, CONSUMER).await.expect("deleted");
    assert!(broker.open(&other).await.is_ok());
}

async fn messages_come_in_order_through_the_filter(world: BrokerUnderTest) {
    let broker = with_stream(&world).await;
    let mut expected = Vec::new();
    for number in 0..60 {
        let subject = match number % 4 {
            0 => format!("tenant.acme.effect.pay.{number}"),
            1 => format!("tenant.other.effect.pay.{number}"),
            2 => format!("tenant.acme.effect.ship.{number}"),
            _ => format!("tenant.acme.workflow.pay.{number}"),
        };
        let published =
            publish(&*broker, outgoing(&subject, &number.to_string())).await.expect("it is stored");
        if number % 4 == 0 {
            expected.push(published.sequence);
        }
    }
    let mut deliveries = open(&*broker, CursorStart::After(0)).await;
    for (at, sequence) in expected.iter().enumerate() {
        let delivered = next(&mut *deliveries).await;
        assert_eq!((delivered.sequence, delivered.count, delivered.attempt), (*sequence, at as u64 + 1, 1));
        assert_eq!(delivered.pending, (expected.len() - at - 1) as u64);
        assert!(delivered.subject.starts_with("tenant.acme.effect.pay."), "{}", delivered.subject);
        delivered.receipt.ack();
    }
    // What is published later comes as well.
    let sequence = publish(&*broker, command("late")).await.expect("it is stored").sequence;
    assert_eq!(next(&mut *deliveries).await.sequence, sequence);
}

async fn a_message_is_known_again_by_its_id(world: BrokerUnderTest) {
    let broker = with_stream(&world).await;
    let first = publish(&*broker, command("1")).await.expect("it is stored");
    let other = publish(&*broker, command("2")).await.expect("it is stored");
    let again = publish(&*broker, command("1")).await.expect("it is known");
    assert_eq!((first.is_duplicate, other.is_duplicate, again.is_duplicate), (false, false, true));
    assert_eq!((first.sequence, other.sequence, again.sequence), (1, 2, 1));
    let state = broker.stream(STREAM).await.expect("an answer").expect("a stream");
    assert_eq!((state.first_sequence, state.last_sequence, state.messages), (1, 2, 2));
}

async fn many_messages_are_under_way_in_order(world: BrokerUnderTest) {
    let broker = with_stream(&world).await;
    let mut under_way = std::collections::VecDeque::new();
    let mut stored = 0;
    for number in 0..2000 {
        if under_way.len() == 256 {
            let publishing: broker::PublicationFuture = under_way.pop_front().expect("one is under way");
            stored += 1;
            assert_eq!(publishing.await.expect("it is stored").sequence, stored);
        }
        under_way.push_back(broker.publish(command(&number.to_string())).await.expect("it is sent"));
    }
    for publishing in under_way {
        stored += 1;
        assert_eq!(publishing.await.expect("it is stored").sequence, stored);
    }
    let last = broker.message(STREAM, 2000).await.expect("an answer").expect("a message");
    assert_eq!(last.payload, "payload of 1999");
}

async fn what_cannot_be_published_is_refused_by_name(world: BrokerUnderTest) {
    let broker = with_stream(&world).await;
    let largest = broker.server().expect("a server").max_payload - 16 * 1024;
    let mut message = command("1");
    message.payload = vec![b'x'; largest].into();
    assert_eq!(publish(&*broker, message.clone()).await.map(|published| published.sequence), Ok(1));
    message.payload = vec![b'x'; largest + 1].into();
    let refused = publish(&*broker, message).await.expect_err("it is too large");
    let expected = "the payload of the message 1 for tenant.acme.effect.pay.1 has 1032193 bytes, at most 1032192 are allowed";
    assert_eq!(refused.to_string(), expected);
    let nowhere = publish(&*broker, outgoing("nobody.takes.it", "2")).await;
    assert_eq!(nowhere, Err(BrokerError::UnroutedSubject { subject: "nobody.takes.it".to_owned() }));
    let refused = publish(&*broker, outgoing("tenant.*.effect.pay.1", "3")).await;
    assert!(matches!(refused, Err(BrokerError::Refused { .. })), "{refused:?}");
    let state = broker.stream(STREAM).await.expect("an answer").expect("a stream");
    assert_eq!(state.last_sequence, 1);
}

async fn a_cursor_begins_behind_a_sequence_or_at_a_time(world: BrokerUnderTest) {
    let broker = with_stream(&world).await;
    let stored_millis = async |sequence| {
        broker.message(STREAM, sequence).await.expect("an answer").expect("a message").stored_millis
    };
    let (mut stored, probes) = (Vec::new(), Cell::new(0));
    for number in 0..5 {
        let sequence = publish(&*broker, command(&number.to_string())).await.expect("it is stored").sequence;
        let millis = stored_millis(sequence).await;
        stored.push(millis);
        // The next one is stored in a later millisecond, which others show to have begun.
        let later = async || {
            world.pass(1);
            probes.set(probes.get() + 1);
            let probe = outgoing("tenant.acme.workflow.order.1", &format!("probe {}", probes.get()));
            let probe = publish(&*broker, probe).await.expect("it is stored");
            (stored_millis(probe.sequence).await > millis).then_some(())
        };
        wait_until(later, PATIENCE, "the clock goes on").await;
    }
    let sequences: Vec<u64> = read(&mut *open(&*broker, CursorStart::After(0)).await, 5).await;
    for at in 0..5 {
        let behind = read(&mut *open(&*broker, CursorStart::After(sequences[at] - 1)).await, 5 - at).await;
        assert_eq!(behind, sequences[at..]);
        let since = read(&mut *open(&*broker, CursorStart::Since(stored[at])).await, 5 - at).await;
        assert_eq!(since, sequences[at..]);
    }
    // Before everything, and behind everything.
    assert_eq!(read(&mut *open(&*broker, CursorStart::Since(1_000)).await, 5).await, sequences);
    let last = broker.stream(STREAM).await.expect("an answer").expect("a stream").last_sequence;
    let mut deliveries = open(&*broker, CursorStart::After(last)).await;
    assert!(deliveries.next(ROOM).now_or_never().is_none());
    let sequence = publish(&*broker, command("late")).await.expect("it is stored").sequence;
    assert_eq!(read(&mut *deliveries, 1).await, [sequence]);
}

async fn a_cursor_that_is_made_anew_is_in_order(world: BrokerUnderTest) {
    let broker = with_stream(&world).await;
    let _ = publish_all(&*broker, 0..400).await;
    let mut position = 0;
    while position < 400 {
        let mut deliveries = open(&*broker, CursorStart::After(position)).await;
        // Many are delivered and some acknowledged, out of order, when the next cursor is made.
        let mut seen = Vec::new();
        for at in 1..=40.min(400 - position) {
            let delivered = next(&mut *deliveries).await;
            assert_eq!((delivered.sequence, delivered.count, delivered.attempt), (position + at, at, 1));
            seen.push(delivered.receipt);
        }
        for receipt in seen.iter().rev().step_by(3) {
            receipt.ack();
        }
        position += 17.min(400 - position);
    }
}

async fn a_cursor_takes_the_place_of_any_other(world: BrokerUnderTest) {
    let broker = with_stream(&world).await;
    let _ = publish_all(&*broker, 0..10).await;
    // Of the same name, with another filter, start and limits: a server would give it back as it is.
    let planted = CursorSpec {
        filter: "tenant.other.effect.pay.*".to_owned(),
        max_ack_pending: 1,
        ack_wait: Duration::from_secs(1),
        description: "planted".to_owned(),
        ..cursor(CursorStart::After(9))
    };
    let mut former = broker.open(&planted).await.expect("a cursor");
    assert!(former.next(ROOM).now_or_never().is_none());
    let wanted = CursorSpec { description: "epoch 2".to_owned(), ..cursor(CursorStart::After(4)) };
    let mut deliveries = broker.open(&wanted).await.expect("a cursor");
    assert_eq!(read(&mut *deliveries, 6).await, [5, 6, 7, 8, 9, 10]);
    let lost = turn(&mut *former, ROOM).await.expect_err("it has no consumer any more");
    assert_eq!(lost, CursorError::Deleted { consumer: CONSUMER.to_owned() });
}

async fn no_cursor_is_made_behind_the_end(world: BrokerUnderTest) {
    let broker = with_stream(&world).await;
    let _ = publish_all(&*broker, 0..3).await;
    let behind = |after| BrokerError::StartBeyondEnd {
        stream: STREAM.to_owned(),
        consumer: CONSUMER.to_owned(),
        after,
        last: 3,
    };
    for after in [4, 1_000, u64::MAX] {
        assert_eq!(broker.open(&cursor(CursorStart::After(after))).await.map(drop), Err(behind(after)));
    }
    assert!(broker.open(&cursor(CursorStart::After(3))).await.is_ok());
    let nowhere = CursorSpec { stream: "NONE".to_owned(), ..cursor(CursorStart::After(0)) };
    assert_eq!(
        broker.open(&nowhere).await.map(drop),
        Err(BrokerError::StreamNotFound { stream: "NONE".to_owned() })
    );
}

async fn what_is_no_cursor_is_refused(world: BrokerUnderTest) {
    let broker = with_stream(&world).await;
    for (consumer, filter) in [("a.b", "tenant.*"), ("", "tenant.*"), ("a", ""), ("a", "tenant.>.b")] {
        let refused =
            broker.open(&CursorSpec::new(STREAM, consumer, filter, CursorStart::After(0))).await.map(drop);
        assert!(matches!(refused, Err(BrokerError::Refused { .. })), "{consumer} {filter}: {refused:?}");
    }
}

async fn what_is_not_acknowledged_comes_again(world: BrokerUnderTest) {
    let broker = with_stream(&world).await;
    let _ = publish_all(&*broker, 0..3).await;
    let spec = CursorSpec { ack_wait: Duration::from_secs(1), ..cursor(CursorStart::After(0)) };
    let mut deliveries = broker.open(&spec).await.expect("a cursor");
    for sequence in 1..=3 {
        let delivered = next(&mut *deliveries).await;
        assert_eq!((delivered.sequence, delivered.count, delivered.attempt), (sequence, sequence, 1));
        if sequence != 2 {
            delivered.receipt.ack();
        }
    }
    world.pass(1_000);
    // Behind newer messages, and counted on.
    let again = next(&mut *deliveries).await;
    assert_eq!((again.sequence, again.count, again.attempt), (2, 4, 2));
}

async fn progress_keeps_a_message_from_coming_again(world: BrokerUnderTest) {
    let broker = with_stream(&world).await;
    let _ = publish_all(&*broker, 0..2).await;
    let spec = CursorSpec { ack_wait: Duration::from_secs(2), ..cursor(CursorStart::After(0)) };
    let mut deliveries = broker.open(&spec).await.expect("a cursor");
    let first = next(&mut *deliveries).await;
    let second = next(&mut *deliveries).await;
    assert_eq!((first.sequence, second.sequence), (1, 2));
    let mut repeats = 0;
    let begin = std::time::Instant::now();
    while repeats < 2 {
        assert!(begin.elapsed() < PATIENCE, "the second message comes again");
        first.receipt.progress();
        world.pass(100);
        let wait = match &world {
            BrokerUnderTest::Simulated(..) => Duration::from_millis(1),
            BrokerUnderTest::InJetStream(_) => Duration::from_millis(100),
        };
        if let Ok(delivered) = tokio::time::timeout(wait, deliveries.next(ROOM)).await {
            assert_eq!(delivered.expect("a delivery").sequence, 2);
            repeats += 1;
        }
    }
}

async fn no_more_is_pulled_than_there_is_room_for(world: BrokerUnderTest) {
    let broker = with_stream(&world).await;
    let _ = publish_all(&*broker, 0..10).await;
    let mut deliveries = open(&*broker, CursorStart::After(0)).await;
    for sequence in 1..=3 {
        let room = PullLimit { messages: 3, ..ROOM };
        assert_eq!(turn(&mut *deliveries, room).await.map(|delivered| delivered.sequence), Ok(sequence));
    }
    assert_eq!(world.delivered().await, 3);
    // A message that is larger than the room comes alone.
    for number in 10..13 {
        let mut large = command(&number.to_string());
        large.payload = vec![b'x'; 100_000].into();
        let _ = publish(&*broker, large).await.expect("it is stored");
    }
    for sequence in 4..=13 {
        let room = PullLimit { messages: 5, bytes: 5_000 };
        assert_eq!(turn(&mut *deliveries, room).await.map(|delivered| delivered.sequence), Ok(sequence));
        assert!(world.delivered().await <= if sequence <= 10 { 10 } else { sequence }, "{sequence}");
    }
}

async fn nothing_is_pulled_without_room(world: BrokerUnderTest) {
    let broker = with_stream(&world).await;
    let mut deliveries = open(&*broker, CursorStart::After(0)).await;
    let _ = publish_all(&*broker, 0..10).await;
    for room in [PullLimit::NONE, PullLimit { messages: 0, ..ROOM }, PullLimit { bytes: 0, ..ROOM }] {
        let paused = tokio::time::timeout(Duration::from_millis(50), deliveries.next(room)).await;
        assert!(paused.is_err(), "{paused:?}");
    }
    // A server that was asked before the stream was read again would have delivered by now.
    let state = broker.stream(STREAM).await.expect("an answer").expect("a stream");
    assert_eq!((state.last_sequence, world.delivered().await), (10, 0));
    assert_eq!(read(&mut *deliveries, 10).await, (1..=10).collect::<Vec<_>>());
}

async fn no_more_is_under_way_than_may_be(world: BrokerUnderTest) {
    let broker = with_stream(&world).await;
    let _ = publish_all(&*broker, 0..10).await;
    let spec = CursorSpec { max_ack_pending: 4, ..cursor(CursorStart::After(0)) };
    let mut deliveries = broker.open(&spec).await.expect("a cursor");
    let mut receipts = Vec::new();
    for sequence in 1..=4 {
        let delivered = next(&mut *deliveries).await;
        assert_eq!(delivered.sequence, sequence);
        receipts.push(delivered.receipt);
    }
    assert!(tokio::time::timeout(Duration::from_millis(50), deliveries.next(ROOM)).await.is_err());
    assert_eq!(world.delivered().await, 4);
    receipts.remove(1).ack();
    assert_eq!(read(&mut *deliveries, 1).await, [5]);
}

async fn a_cursor_reports_delivered_pending_and_unacknowledged_messages(world: BrokerUnderTest) {
    let broker = with_stream(&world).await;
    assert_eq!(broker.cursor(STREAM, CONSUMER).await, Ok(None));
    assert_eq!(broker.cursor("NONE", CONSUMER).await, Ok(None));
    let _ = publish_all(&*broker, 0..10).await;
    let mut deliveries = open(&*broker, CursorStart::After(2)).await;
    let state = broker.cursor(STREAM, CONSUMER).await.expect("an answer").expect("a consumer");
    assert_eq!((state.delivered, state.pending, state.unacknowledged), (0, 8, 0));
    for _ in 0..3 {
        let room = PullLimit { messages: 3, ..ROOM };
        turn(&mut *deliveries, room).await.expect("a delivery").receipt.ack();
    }
    let wanted = CursorState { delivered: 3, delivered_sequence: 5, pending: 5, unacknowledged: 0 };
    let settled = async || (broker.cursor(STREAM, CONSUMER).await == Ok(Some(wanted))).then_some(());
    wait_until(settled, PATIENCE, "all is acknowledged").await;
}

async fn a_deleted_consumer_ends_its_deliveries(world: BrokerUnderTest) {
    let broker = with_stream(&world).await;
    let deleted = CursorError::Deleted { consumer: CONSUMER.to_owned() };
    // While a pull is under way, and while none is.
    let mut deliveries = open(&*broker, CursorStart::After(0)).await;
    assert!(deliveries.next(ROOM).now_or_never().is_none());
    let wait = async { turn(&mut *deliveries, ROOM).await };
    let delete = async { broker.delete_cursor(STREAM, CONSUMER).await.expect("deleted") };
    let (ended, ()) = tokio::join!(wait, delete);
    assert_eq!(ended.map(drop), Err(deleted.clone()));
    let mut deliveries = open(&*broker, CursorStart::After(0)).await;
    broker.delete_cursor(STREAM, CONSUMER).await.expect("deleted");
    assert_eq!(turn(&mut *deliveries, ROOM).await.map(drop), Err(deleted));
    // Nobody minds that it is not there, nor that its stream is not.
    assert_eq!(broker.delete_cursor(STREAM, CONSUMER).await, Ok(()));
    assert_eq!(broker.delete_cursor("NONE", CONSUMER).await, Ok(()));
}

async fn replies_come_to_the_inbox(world: BrokerUnderTest) {
    let broker = world.broker();
    let (mut one, mut other) =
        (broker.inbox().await.expect("an inbox"), broker.inbox().await.expect("an inbox"));
    assert_ne!(one.subject(), other.subject());
    for number in 0..100 {
        let payload = Bytes::from(number.to_string());
        broker.reply(one.subject(), payload).await.expect("it is sent");
    }
    broker.reply(other.subject(), Bytes::from_static(b"x")).await.expect("it is sent");
    for number in 0..100 {
        let reply = tokio::time::timeout(PATIENCE, one.next()).await.expect("it comes");
        assert_eq!(reply, Some(Bytes::from(number.to_string())));
    }
    let reply = tokio::time::timeout(PATIENCE, other.next()).await.expect("it comes");
    assert_eq!(reply, Some(Bytes::from_static(b"x")));
    // To nobody, and to what is no subject.
    assert_eq!(broker.reply("_INBOX.nobody", Bytes::new()).await, Ok(()));
    let refused = broker.reply("_INBOX.*", Bytes::new()).await;
    assert!(matches!(refused, Err(BrokerError::Refused { .. })), "{refused:?}");
    let refused = broker.reply("_INBOX.nobody", vec![0; 1024 * 1024 + 1].into()).await;
    assert!(matches!(refused, Err(BrokerError::TooLarge { .. })), "{refused:?}");
    let generation = connected(&*broker, 0).await.generation;
    world.cut().await;
    assert_eq!(tokio::time::timeout(PATIENCE, one.next()).await.expect("it ends"), None);
    assert!(connected(&*broker, generation).await.generation > generation);
}

async fn a_cursor_reports_its_progress_past_messages_of_others(world: BrokerUnderTest) {
    let broker = with_stream(&world).await;
    let _ = publish_all(&*broker, 0..2).await;
    let mut deliveries = open(&*broker, CursorStart::After(0)).await;
    let mut passed = deliveries.progress();
    next(&mut *deliveries).await;
    // There is another message, of which nobody has heard.
    assert!(passed.borrow_and_update().sequence <= 1, "{passed:?}");
    next(&mut *deliveries).await;
    for number in 0..3 {
        let other = outgoing("tenant.acme.effect.other.x", &format!("other-{number}"));
        publish(&*broker, other).await.expect("it is stored");
    }
    let reached = async {
        tokio::select! {
            reached = passed.wait_for(|passed| passed.sequence == 5) => *reached.expect("it goes on"),
            other = deliveries.next(ROOM) => panic!("none of the cursor's: {other:?}"),
        }
    };
    let reached = tokio::time::timeout(PATIENCE, reached).await.expect("it is told");
    assert_eq!(reached.count, 2);
    let _ = publish_all(&*broker, 2..3).await;
    assert_eq!(next(&mut *deliveries).await.sequence, 6);
}
