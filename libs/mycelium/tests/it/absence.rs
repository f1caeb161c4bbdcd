//! Nodes that are not there.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::join_all;
use mycelium::{Bus, BusDestination, BusError, PublicKey};
use stand_in::Overlay;
use tokio::time::Instant;

use crate::setup::{SCHEMES, TOPIC, bus, daemons, next, stand_ins, until};

#[tokio::test(flavor = "multi_thread")]
async fn an_absent_node_holds_up_no_other() {
    for scheme in SCHEMES {
        let [a, b] = daemons();
        let (sender, receiver) = (bus(&a, scheme), bus(&b, scheme));
        let mut inbox = receiver.listen();
        let (to, nobody) = (receiver.key().await, PublicKey::random());
        let limit = Duration::from_secs(4);
        let to_nobody = join_all((0..50).map(|_| sender.send_within(nobody, "x", limit)));
        let to_somebody = async {
            until("the others wait", || sender.metrics.in_flight.get() >= 50).await;
            let begin = Instant::now();
            for n in 0..5 {
                sender.send(to, n.to_string()).await.unwrap();
                next(&mut inbox).await;
            }
            begin.elapsed()
        };
        let (failed, took) = tokio::join!(to_nobody, to_somebody);
        assert!(failed.iter().all(|sent| matches!(sent, Err(BusError::Unreachable { .. }))), "{failed:?}");
        assert!(took < limit, "{took:?}");
        // One message of the fifty, as long as the daemon tries to deliver it.
        let pushes = sender.metrics.pushes.get() - 5 - sender.metrics.resent.get();
        assert!(pushes <= 2, "{pushes} messages were pushed to nobody");
        assert_eq!((sender.metrics.absent.get(), sender.metrics.in_flight.get()), (1, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_that_are_absent_do_not_take_every_connection() {
    let [a, b] = daemons();
    let (sender, receiver) = (bus(&a, "http"), bus(&b, "http"));
    let mut inbox = receiver.listen();
    let to = receiver.key().await;
    sender.send(to, "first").await.unwrap();
    next(&mut inbox).await;
    let limit = Duration::from_secs(5);
    let to_nobody = join_all((0..80).map(|_| sender.send_within(PublicKey::random(), "x", limit)));
    let to_somebody = async {
        until("the others wait", || sender.metrics.in_flight.get() >= 80).await;
        let begin = Instant::now();
        sender.send(to, "second").await.unwrap();
        next(&mut inbox).await;
        begin.elapsed()
    };
    let (failed, took) = tokio::join!(to_nobody, to_somebody);
    assert!(failed.iter().all(Result::is_err), "{failed:?}");
    // Behind a probe it would have waited for a second.
    assert!(took < Duration::from_millis(900), "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_that_waited_arrives_once_when_a_node_returns() {
    for scheme in SCHEMES {
        let overlay = Overlay::default();
        let [a, b] = stand_ins(&overlay);
        let (sender, receiver) = (bus(&a, scheme), bus(&b, scheme));
        let mut inbox = receiver.listen();
        let to = receiver.key().await;
        sender.send(to, "first").await.unwrap();
        next(&mut inbox).await;
        overlay.cut(b.stand_in().identity());
        let sending = join_all((0..100u32).map(|n| sender.send(to, n.to_string())));
        let returning = async {
            until("it is noticed", || sender.metrics.absent.get() == 1).await;
            overlay.restore(b.stand_in().identity());
        };
        let receiving = async {
            let mut seen = HashMap::new();
            while seen.len() < 100 {
                let incoming = next(&mut inbox).await;
                *seen.entry(incoming.payload).or_insert(0) += 1;
            }
            seen
        };
        let (sent, (), seen) = tokio::join!(sending, returning, receiving);
        assert!(sent.iter().all(Result::is_ok), "{sent:?}");
        assert!(seen.values().all(|times| *times == 1));
        assert_eq!((sender.metrics.absent.get(), receiver.metrics.received.get()), (0, 101));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_after_its_deadline_is_dropped() {
    let [a, b] = daemons();
    let sender = bus(&a, "ws");
    let to = b.raw().key().await;
    let late = sender.send_within(to, "late", Duration::from_secs(1)).await;
    assert!(matches!(late, Err(BusError::Unreachable { .. })), "{late:?}");
    let receiver = bus(&b, "ws");
    let mut inbox = receiver.listen();
    until("it is dropped", || receiver.metrics.expired.get() > 0).await;
    sender.send(to, "in time").await.unwrap();
    assert_eq!(&next(&mut inbox).await.payload[..], b"in time");
    assert_eq!(receiver.metrics.received.get(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ping_succeeds_only_where_the_topic_has_a_listener() {
    let [a, b] = daemons();
    let sender = bus(&a, "ws");
    let receiver = crate::setup::bus_with(b.url("ws"), |config| config.alone = true);
    let inbox = receiver.listen();
    let (own, to) = (sender.key().await, receiver.key().await);
    let ping = async |key, topic: &str| {
        sender.bus.ping(BusDestination::Key(key), topic, Instant::now() + Duration::from_secs(3)).await
    };
    assert_eq!(ping(to, TOPIC).await, Ok(()));
    for (key, topic) in [(to, "nobody.listens"), (own, TOPIC), (PublicKey::random(), TOPIC)] {
        let failed = ping(key, topic).await;
        assert!(matches!(failed, Err(BusError::Unreachable { .. })), "{failed:?}");
    }
    assert_eq!(ping(to, "").await, Err(BusError::BadTopic(0)));
    assert_eq!(receiver.metrics.received.get(), 0);
    drop(inbox);
    let ip = receiver.bus.status().borrow().node.clone().unwrap().ip.unwrap();
    assert_eq!(sender.bus.key_of(ip).await, Ok(to));
    let unknown = sender.bus.key_of("400::1".parse().unwrap()).await;
    assert!(matches!(unknown, Err(BusError::Unreachable { .. })), "{unknown:?}");
}
