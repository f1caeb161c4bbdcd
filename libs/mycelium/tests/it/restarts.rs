//! Daemons that come and go.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use mycelium::{Bus, BusError, BusInbox};
use stand_in::{Overlay, StandIn, Traps};
use testkit::{PATIENCE, wait_until};
use tokio::sync::watch;

use crate::setup::{Daemon, End, SCHEMES, bus, bus_with, daemons, next, until};

fn number(payload: &[u8]) -> u32 {
    std::str::from_utf8(payload).unwrap().parse().unwrap()
}

/// How often each number came, until the watcher hangs up.
async fn count(mut inbox: BusInbox, seen: watch::Sender<HashMap<u32, u32>>) {
    while let Some(incoming) = inbox.next().await {
        seen.send_modify(|seen| *seen.entry(number(&incoming.payload)).or_default() += 1);
    }
}

fn counting(end: &End) -> watch::Receiver<HashMap<u32, u32>> {
    let (seen, counted) = watch::channel(HashMap::new());
    tokio::spawn(count(end.listen(), seen));
    counted
}

#[tokio::test(flavor = "multi_thread")]
async fn payloads_reported_as_delivered_arrive_once_over_any_restarts() {
    const MESSAGES: u32 = 240;
    // Sent once the sender's daemon is down for the last time, however late the restarts come.
    const LATE: u32 = 200;
    for scheme in SCHEMES {
        let [mut a, mut b] = daemons();
        let (sender, receiver) = (bus(&a, scheme), bus(&b, scheme));
        let seen = counting(&receiver);
        let to = receiver.key().await;
        let (down, is_down) = watch::channel(false);
        let sending = stream::iter(0..MESSAGES).map(|n| {
            let (sent, mut is_down) = (sender.send(to, n.to_string()), is_down.clone());
            async move {
                if n >= LATE {
                    is_down.wait_for(|down| *down).await.unwrap();
                }
                (n, sent.await)
            }
        });
        // Few at a time, so that the restarts fall between them.
        let sending = sending.buffer_unordered(6).collect::<Vec<_>>();
        let restarting = async {
            for round in 1..=6 {
                until("some more came", || seen.borrow().len() >= round * 30).await;
                match round % 3 {
                    0 => a.restart(),
                    1 => b.restart(),
                    _ => {
                        a.kill();
                        b.restart();
                        a.launch();
                    }
                }
            }
            // A short restart between two calls is nothing that a client of HTTP has to see.
            b.kill();
            until("the receiver saw it", || receiver.metrics.lost.get() > 0).await;
            a.kill();
            down.send_replace(true);
            until("the sender saw it", || sender.metrics.lost.get() > 0).await;
            b.launch();
            a.launch();
        };
        let (sent, ()) = tokio::join!(sending, restarting);
        for (n, result) in &sent {
            assert_eq!(result, &Ok(()), "{n}");
        }
        let seen = seen.borrow();
        assert_eq!(seen.len(), MESSAGES as usize);
        assert!(seen.values().all(|times| *times == 1), "{seen:?}");
        assert_eq!(sender.metrics.in_flight.get(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_that_were_held_by_a_bus_that_is_gone_are_sent_again() {
    let [a, b] = daemons();
    let sender = bus(&a, "ws");
    let to = b.raw().key().await;
    let large: Bytes = vec![7; 3 * 1024 * 1024 + 5].into();
    let expected = large.clone();
    let sending = async { sender.send(to, large).await.unwrap() };
    let receiving = async {
        // Ends with some parts in its hands: one process that dies between two of them.
        let first = bus(&b, "ws");
        let inbox = first.listen();
        until("some part was taken", || first.metrics.pops.get() > 0).await;
        drop((inbox, first));
        let second = bus(&b, "ws");
        let mut inbox = second.listen();
        (next(&mut inbox).await.payload, inbox, second)
    };
    let ((), (received, ..)) = tokio::join!(sending, receiving);
    assert!(received == expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bus_waits_for_an_absent_daemon_and_shows_that_in_its_status() {
    for scheme in SCHEMES {
        let overlay = Overlay::default();
        let mut a = Daemon::StandIn(StandIn::stopped(&overlay, Traps::ARMED));
        let b = Daemon::StandIn(StandIn::start(&overlay, Traps::ARMED));
        let (sender, receiver) = (bus(&a, scheme), bus(&b, scheme));
        let mut inbox = receiver.listen();
        let to = receiver.key().await;
        let status = sender.bus.status();
        until("it says what is wrong", || status.borrow().problem.contains("refused")).await;
        assert!(!status.borrow().up && sender.bus.key().is_none() && sender.metrics.up.get() == 0);
        let late = sender.send_within(to, "late", Duration::from_millis(100)).await;
        assert!(matches!(&late, Err(BusError::Down(problem)) if problem.contains("refused")), "{late:?}");
        let launching = async {
            until("a payload waits", || sender.metrics.in_flight.get() == 1).await;
            a.launch();
        };
        let (sent, (), received) = tokio::join!(sender.send(to, "waited"), launching, inbox.next());
        assert_eq!((sent, &received.unwrap().payload[..]), (Ok(()), &b"waited"[..]));
        let node = status.borrow().node.clone().unwrap();
        assert_eq!((Some(node.key), node.ip), (sender.bus.key(), Some(a.stand_in().identity().ip)));
        assert!(node.takes_any_topic && sender.metrics.up.get() == 1);
        a.kill();
        until("it says that it is down", || !status.borrow().up && sender.metrics.up.get() == 0).await;
        assert_eq!(sender.metrics.lost.get(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_with_too_many_connections_is_come_back_to() {
    let [a] = daemons::<1>();
    let mut held = Vec::new();
    for _ in 0..100 {
        held.push(jsonrpsee_ws_client::WsClientBuilder::new().build(a.url("ws")).await.unwrap());
    }
    let end = bus(&a, "http");
    let status = end.bus.status();
    until("it says what is wrong", || status.borrow().problem.contains("too many connections")).await;
    drop(held);
    until("it is up", || status.borrow().up).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pop_by_another_client_neither_blocks_nor_loses_payloads() {
    let [a, b] = daemons();
    let (sender, receiver) = (bus(&a, "ws"), bus(&b, "ws"));
    let mut inbox = receiver.listen();
    let to = receiver.key().await;
    let raw = a.raw();
    let popping = raw.call("popMessage", serde_json::json!([false, 3, "bm9uZQ=="]));
    let sending = async {
        for n in 0..20u32 {
            sender.send(to, n.to_string()).await.unwrap();
        }
    };
    let receiving = async {
        for _ in 0..20 {
            next(&mut inbox).await;
        }
    };
    let (popped, (), ()) = tokio::join!(popping, sending, receiving);
    popped.unwrap();
    assert_eq!(receiver.metrics.received.get(), 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_not_persisted_is_handed_over_again_after_a_crash() {
    let [a, b] = daemons();
    let sender = bus(&a, "ws");
    let to = b.raw().key().await;
    let slow = |config: &mut mycelium::daemon::Config| config.timings.hold = Duration::from_secs(60);
    let sending = sender.send(to, "job");
    let receiving = async {
        let first = bus_with(b.url("ws"), slow);
        let mut inbox = first.listen();
        // It dies before it has persisted anything: what it holds it never gives back.
        let _held = next(&mut inbox).await;
        drop((inbox, first));
        let second = bus_with(b.url("ws"), slow);
        let mut inbox = second.listen();
        let again = next(&mut inbox).await;
        let raw = b.raw();
        assert!(raw.oldest(true, Some(crate::setup::TOPIC)).await.is_some(), "it is in the daemon still");
        drop(again.receipt);
        let gone = async || raw.oldest(true, Some(crate::setup::TOPIC)).await.is_none().then_some(());
        wait_until(gone, PATIENCE, "it is taken out").await;
        second
    };
    let (sent, _second) = tokio::join!(sending, receiving);
    assert_eq!(sent, Ok(()));
}
