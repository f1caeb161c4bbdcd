//! Acknowledgements that come late, or from another node.

use std::time::Duration;

use testkit::{PATIENCE, wait_until};

use crate::raw::{acknowledgement, body};
use crate::setup::{SCHEMES, TOPIC, bus, bus_with, daemons, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_strangers_reply_is_refused_and_counted() {
    for scheme in SCHEMES {
        let [a, b, c] = daemons();
        let sender = bus_with(a.url(scheme), |config| config.timings.reply_secs = 20);
        let (own, other) = (sender.key().await, b.raw());
        let to = other.key().await;
        let answering = async {
            let frame = other.popped(TOPIC).await;
            assert_eq!((body(&frame.payload), frame.from), (&b"job"[..], own));
            let reply = acknowledgement(&frame.payload);
            c.raw().reply(&frame.id, own, &reply).await;
            until("it is refused", || sender.metrics.strangers.get() == 1).await;
            assert_eq!(sender.metrics.in_flight.get(), 1, "nobody has it");
            other.reply(&frame.id, own, &reply).await;
        };
        let (sent, ()) = tokio::join!(sender.send(to, "job"), answering);
        assert_eq!(sent, Ok(()));
        // The true one came late: there is no second push.
        until("it is counted", || sender.metrics.late_replies.get() == 1).await;
        assert_eq!(sender.metrics.pushes.get(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_among_the_late_replies_is_refused_too() {
    let [a, b, c] = daemons();
    let sender = bus(&a, "ws");
    let (own, other) = (sender.key().await, b.raw());
    let to = other.key().await;
    let answering = async {
        let frame = other.popped(TOPIC).await;
        until("nobody waits in a push any more", || sender.metrics.absent.get() == 1).await;
        let reply = acknowledgement(&frame.payload);
        c.raw().reply("0123456789abcdef", own, &reply).await;
        until("it is refused", || sender.metrics.strangers.get() == 1).await;
        other.reply(&frame.id, own, &reply).await;
    };
    let (sent, ()) = tokio::join!(sender.send(to, "job"), answering);
    assert_eq!((sent, sender.metrics.strangers.get()), (Ok(()), 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn late_replies_are_found() {
    for alone in [false, true] {
        let [a, b] = daemons();
        let sender = bus_with(a.url("ws"), |config| {
            config.alone = alone;
            config.timings.probe_min = Duration::from_secs(3600);
        });
        let _inbox = sender.listen();
        let (own, other) = (sender.key().await, b.raw());
        let to = other.key().await;
        let answering = async {
            let frame = other.popped(TOPIC).await;
            until("nobody waits in a push any more", || sender.metrics.absent.get() == 1).await;
            other.reply(&frame.id, own, &acknowledgement(&frame.payload)).await;
        };
        let (sent, ()) = tokio::join!(sender.send(to, "job"), answering);
        assert_eq!(sent, Ok(()));
        until("it is counted", || sender.metrics.late_replies.get() == 1).await;
        assert_eq!((sender.metrics.pushes.get(), sender.metrics.absent.get()), (1, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_acknowledged_is_pushed_again_as_the_same() {
    let [a, b] = daemons();
    let sender = bus(&a, "ws");
    let (own, other) = (sender.key().await, b.raw());
    let to = other.key().await;
    let answering = async {
        let first = other.popped(TOPIC).await;
        let second = other.popped(TOPIC).await;
        assert!(first.id != second.id && first.payload == second.payload);
        other.reply(&second.id, own, &acknowledgement(&second.payload)).await;
    };
    let (sent, ()) = tokio::join!(sender.send(to, "job"), answering);
    assert_eq!((sent, sender.metrics.resent.get()), (Ok(()), 1));
    // A bus that had both would have taken them for one.
    let nothing = async || other.oldest(false, Some(TOPIC)).await.is_none().then_some(());
    wait_until(nothing, PATIENCE, "nothing is left").await;
}
