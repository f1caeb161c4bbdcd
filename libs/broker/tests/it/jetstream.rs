//! Cases of a real server and a real connection.

use std::time::{Duration, Instant};

use broker::{
    BrokerError, CursorError, CursorStart, JetStream, JetStreamLogin, JetStreamOptions, MessageBroker as _,
    PullLimit,
};
use testkit::{PATIENCE, ProxyFault, wait_until};

use crate::harness::{ProxiedNats, connected};
use crate::{CONSUMER, ROOM, STREAM, command, next, open, publish, publish_all, spec, turn};

async fn real(heartbeat: Duration) -> ProxiedNats {
    let real = ProxiedNats::start(heartbeat).await;
    assert_eq!(real.broker.ensure_stream(&spec()).await, Ok(vec![]));
    real
}

/// Messages of this size fill what lies between a client and a server.
fn large(number: usize, bytes: usize) -> broker::Publication {
    let mut message = command(&number.to_string());
    message.payload = vec![b'x'; bytes].into();
    message
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_server_ends_deliveries() {
    let real = real(Duration::from_secs(2)).await;
    let mut deliveries = open(&*real.broker, CursorStart::After(0)).await;
    // As long as heartbeats come, nothing ends.
    let waiting = tokio::time::timeout(Duration::from_secs(5), deliveries.next(ROOM)).await;
    assert!(waiting.is_err(), "{waiting:?}");
    real.proxy.set(ProxyFault::BlackHole);
    let begin = Instant::now();
    let lost = turn(&mut *deliveries, ROOM).await.expect_err("the server is silent");
    assert_eq!(lost, CursorError::Silent { consumer: CONSUMER.to_owned(), waited: Duration::from_secs(4) });
    assert!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_silent_for_long_is_given_up() {
    let real = real(Duration::from_secs(1)).await;
    let generation = connected(&*real.broker, 0).await.generation;
    real.proxy.set(ProxyFault::BlackHole);
    let mut connection = real.broker.connection();
    let gone = connection.wait_for(|connection| !connection.connected);
    tokio::time::timeout(PATIENCE, gone).await.expect("it is given up").expect("a broker");
    real.proxy.restore();
    let _ = connected(&*real.broker, generation).await;
}

/// A client that carried on by itself would send what it had queued, though what went before is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_of_a_lost_connection_is_sent_later() {
    const COUNT: usize = 200;
    let real = real(Duration::from_secs(1)).await;
    let generation = connected(&*real.broker, 0).await.generation;
    real.proxy.set(ProxyFault::Hold);
    let mut under_way = Vec::new();
    for number in 0..COUNT {
        under_way.push(real.broker.publish(large(number, 100_000)).await.expect("it is sent"));
    }
    real.proxy.cut_once();
    let mut lost = 0;
    for publishing in under_way {
        match publishing.await {
            Ok(_) => assert_eq!(lost, 0, "one is acknowledged behind one that is lost"),
            Err(BrokerError::Unavailable { .. }) => lost += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(lost > COUNT / 2, "{lost}");
    let _ = connected(&*real.broker, generation).await;
    let last = publish(&*real.broker, command("later")).await.expect("it is stored").sequence;
    // What is there is the beginning of what was sent, and nothing of it came behind what was sent later.
    for sequence in 1..last {
        let kept = real.broker.message(STREAM, sequence).await.expect("an answer").expect("a message");
        assert_eq!(kept.subject, command(&(sequence - 1).to_string()).subject);
    }
    let state = real.broker.stream(STREAM).await.expect("an answer").expect("a stream");
    assert_eq!(state.last_sequence, last);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_takes_nothing_costs_a_bounded_memory() {
    const BYTES: usize = 1_000_000;
    let real = real(Duration::from_secs(1)).await;
    real.server.pause();
    let (mut count, begin) = (0, Instant::now());
    let mut under_way = Vec::new();
    let refused = loop {
        match real.broker.publish(large(count, BYTES)).await {
            Ok(publishing) => under_way.push(publishing),
            Err(error) => break error,
        }
        count += 1;
        assert!(count < 200, "200 MB are waiting");
    };
    assert!(matches!(refused, BrokerError::Unavailable { .. }), "{refused}");
    assert!(begin.elapsed() < PATIENCE, "{:?}", begin.elapsed());
    // What the system keeps for the connection counts besides.
    assert!((60..90).contains(&count), "{count}");
    for publishing in under_way {
        let lost = tokio::time::timeout(PATIENCE, publishing).await.expect("it ends");
        assert!(matches!(lost, Err(BrokerError::Unavailable { .. })), "{lost:?}");
    }
    real.server.resume();
    // The room comes back.
    let stored = async || {
        let mut under_way = Vec::new();
        for number in 0..60 {
            under_way.push(real.broker.publish(large(1_000 + number, BYTES)).await.ok()?);
        }
        let mut last = None;
        for publishing in under_way {
            last = Some(publishing.await.ok()?);
        }
        last
    };
    let _ = wait_until(stored, PATIENCE, "messages are stored again").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledgements_wait_behind_messages() {
    const COUNT: u64 = 100;
    let real = real(Duration::from_secs(5)).await;
    let _ = publish_all(&*real.broker, 0..COUNT).await;
    let mut deliveries = open(&*real.broker, CursorStart::After(0)).await;
    let mut receipts = Vec::new();
    for _ in 0..COUNT {
        // No more, so that what is published below is not delivered.
        let room = PullLimit { messages: COUNT as usize, ..ROOM };
        receipts.push(turn(&mut *deliveries, room).await.expect("a delivery").receipt);
    }
    // Until no more fits what lies between.
    real.proxy.set(ProxyFault::Hold);
    let mut number = 1_000;
    let fits = async |message| {
        tokio::time::timeout(Duration::from_millis(200), real.broker.publish(message)).await.is_ok()
    };
    while fits(large(number, if number < 1_020 { 1_000_000 } else { 100 })).await {
        number += 1;
        assert!(number < 10_000, "everything fits");
    }
    for receipt in &receipts {
        receipt.ack();
    }
    real.proxy.restore();
    let settled = async || {
        let state = real.broker.cursor(STREAM, CONSUMER).await.ok()??;
        (state.delivered == COUNT && state.unacknowledged == 0).then_some(())
    };
    wait_until(settled, PATIENCE, "all is acknowledged").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_connection_is_waited_for() {
    let mut server = testkit::NatsServer::start();
    server.kill9();
    let broker = JetStream::start(JetStreamOptions::new(&server.url())).expect("options that work");
    let refused = async || {
        let error = broker.server().expect_err("there is no server").to_string();
        error.contains("cannot be reached").then_some(error)
    };
    let why = wait_until(refused, PATIENCE, "it was tried").await;
    assert!(why.contains("Connection refused"), "{why}");
    assert_eq!(broker.connection().borrow().generation, 0);
    server.restart();
    assert_eq!(connected(&broker, 0).await.generation, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_server_of_the_list_is_tried() {
    let server = testkit::NatsServer::start();
    let mut options = JetStreamOptions::new("nats://127.0.0.1:1");
    options.urls.push(server.url());
    // Servers that ask nobody take everybody.
    options.login = Some(JetStreamLogin::Password { user: "ann".to_owned(), password: "secret".to_owned() });
    let broker = JetStream::start(options).expect("options that work");
    assert_eq!(connected(&broker, 0).await.generation, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deliveries_that_are_dropped_end_their_pull() {
    let real = real(Duration::from_secs(1)).await;
    let _ = publish_all(&*real.broker, 0..3).await;
    let mut deliveries = open(&*real.broker, CursorStart::After(0)).await;
    let receipt = next(&mut *deliveries).await.receipt;
    assert!(real.consumer().contains("\"num_waiting\":1"), "{}", real.consumer());
    drop(deliveries);
    let ended = async || real.consumer().contains("\"num_waiting\":0").then_some(());
    wait_until(ended, PATIENCE, "nobody waits").await;
    // Receipts may outlive deliveries, and the broker.
    receipt.ack();
    let wanted = async || {
        let state = real.broker.cursor(STREAM, CONSUMER).await.ok()??;
        (state.unacknowledged + 1 == state.delivered).then_some(())
    };
    wait_until(wanted, PATIENCE, "one is acknowledged").await;
    drop(real);
    receipt.ack();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumers_are_listed_as_they_are() {
    let real = real(Duration::from_secs(5)).await;
    assert_eq!(real.broker.consumers(STREAM).await, Ok(vec![]));
    let mut deliveries = open(&*real.broker, CursorStart::After(0)).await;
    let _ = publish_all(&*real.broker, 0..2).await;
    let _ = next(&mut *deliveries).await;
    // More than a server tells on one page.
    for number in 0..300 {
        let config = format!(
            r#"{{"durable_name":"c{number}","ack_policy":"explicit","filter_subject":"tenant.acme.effect.pay.*"}}"#
        );
        let request = format!(r#"{{"stream_name":"{STREAM}","config":{config}}}"#);
        let made = real.server.ask(&format!("$JS.API.CONSUMER.DURABLE.CREATE.{STREAM}.c{number}"), &request);
        assert!(made.contains("\"name\""), "{made}");
    }
    let listed = real.broker.consumers(STREAM).await.expect("a list");
    assert_eq!(listed.len(), 301);
    let wanted = crate::cursor(CursorStart::After(1_000));
    let as_wanted = |consumer: &broker::ConsumerListing| consumer.differences(&wanted).expect("compared");
    let ours = listed.iter().find(|consumer| consumer.name == CONSUMER).expect("it is there");
    assert_eq!(as_wanted(ours), []);
    assert_eq!(ours.filter(), Some("tenant.acme.effect.pay.*"));
    assert!(ours.unacknowledged > 0, "{ours:?}");
    let other = listed.iter().find(|consumer| consumer.name == "c7").expect("it is there");
    let named: Vec<_> = as_wanted(other).into_iter().map(|found| found.field).collect();
    assert!(named.contains(&"durable_name".to_owned()), "{named:?}");
    let absent = real.broker.consumers("NOWHERE").await;
    assert_eq!(absent, Err(BrokerError::StreamNotFound { stream: "NOWHERE".to_owned() }));
}
