//! Messages that a bus takes out of its daemon, and those it leaves there.

use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use mycelium::bus::INBOX_LEN;
use mycelium::{Bus, BusError, PayloadForm};
use testkit::{PATIENCE, wait_until};

use crate::setup::{TOPIC, bus, bus_with, daemons, next, until};

#[tokio::test(flavor = "multi_thread")]
async fn foreign_topics_are_left_alone_unless_the_daemon_is_ours_alone() {
    for alone in [false, true] {
        let [a, b] = daemons();
        let (raw, other) = (a.raw(), b.raw());
        let receiver = bus_with(b.url("ws"), |config| config.alone = alone);
        let mut inbox = receiver.listen();
        let to = receiver.key().await;
        raw.push(to, "foreign", b"{}").await;
        raw.push(to, "", b"{}").await;
        let last = raw.push(to, TOPIC, b"{\"last\":1}").await;
        let incoming = next(&mut inbox).await;
        assert_eq!((&incoming.payload[..], incoming.form), (&b"{\"last\":1}"[..], PayloadForm::Plain));
        assert_eq!(incoming.from, raw.key().await, "{last}");
        drop(incoming);
        if alone {
            let nothing = async || other.oldest(true, None).await.is_none().then_some(());
            wait_until(nothing, PATIENCE, "all is taken out").await;
            until("it is counted", || {
                let dropped = |reason| receiver.metrics.dropped.with_label_values(&[reason]).get();
                (dropped("unheard"), dropped("foreign")) == (1, 1)
            })
            .await;
        } else {
            for topic in ["foreign", ""] {
                let there = async || other.oldest(true, Some(topic)).await;
                wait_until(there, PATIENCE, "it is left alone").await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_inbox_leaves_messages_in_the_daemon() {
    let [a, b] = daemons();
    let sender = bus(&a, "ws");
    let receiver = bus_with(b.url("ws"), |config| config.timings.hold = Duration::ZERO);
    let mut inbox = receiver.listen();
    let to = receiver.key().await;
    let total = INBOX_LEN + 10;
    let mut sends: FuturesUnordered<_> = (0..total).map(|n| sender.send(to, n.to_string())).collect();
    for _ in 0..INBOX_LEN {
        sends.next().await.unwrap().unwrap();
    }
    until("it is full", || receiver.metrics.inbox_full.get() > 0).await;
    assert_eq!(sends.len(), 10);
    assert!(b.raw().oldest(true, Some(TOPIC)).await.is_some());
    let receiving = async {
        let mut received = std::collections::HashSet::new();
        while received.len() < total {
            assert!(received.insert(next(&mut inbox).await.payload), "each comes once");
        }
    };
    let sending = async {
        while let Some(sent) = sends.next().await {
            sent.unwrap()
        }
    };
    tokio::join!(receiving, sending);
    assert_eq!(receiver.metrics.received.get(), total as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_does_not_stand_in_the_way() {
    let [a, b] = daemons();
    let raw = a.raw();
    let receiver = bus(&b, "ws");
    let to = receiver.key().await;
    // Too long to be delivered by the daemon, not a frame, not JSON.
    raw.push(to, TOPIC, &vec![b'x'; 7_864_158]).await;
    raw.push(to, TOPIC, b"\xb5M\x01 a torn frame").await;
    raw.push(to, TOPIC, b"hello").await;
    let mut inbox = receiver.listen();
    let dropped = || receiver.metrics.dropped.with_label_values(&["unreadable"]).get();
    until("all are dropped", || dropped() == 3).await;
    raw.push(to, TOPIC, b"{}").await;
    assert_eq!(&next(&mut inbox).await.payload[..], b"{}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_has_one_listener_at_a_time() {
    let [a] = daemons::<1>();
    let end = bus(&a, "http");
    let inbox = end.listen();
    assert_eq!(end.bus.listen(TOPIC).err(), Some(BusError::TopicTaken(TOPIC.to_owned())));
    drop(inbox);
    drop(end.listen());
    assert_eq!(end.bus.listen("").err(), Some(BusError::BadTopic(0)));
    assert_eq!(end.bus.listen(&"x".repeat(256)).err(), Some(BusError::BadTopic(256)));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_bus_polls_rarely_and_never_waits_in_the_daemon() {
    let [a, b] = daemons();
    let (sender, receiver) = (bus(&a, "ws"), bus(&b, "ws"));
    let mut inbox = receiver.listen();
    let to = receiver.key().await;
    // Ten pauses lead to the longest.
    until("it is idle", || receiver.metrics.empty_polls.get() > 20).await;
    let (before, begin) = (receiver.metrics.empty_polls.get(), tokio::time::Instant::now());
    until("it asks", || receiver.metrics.empty_polls.get() >= before + 20).await;
    assert!(begin.elapsed() > Duration::from_millis(400), "{:?}", begin.elapsed());
    let raw = b.raw();
    for _ in 0..20 {
        let begin = tokio::time::Instant::now();
        raw.key().await;
        assert!(begin.elapsed() < Duration::from_secs(1));
    }
    sender.send(to, "x").await.unwrap();
    next(&mut inbox).await;
}
