//! Each trap, armed and not.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stand_in::{Overlay, StandIn, Traps};
use testkit::{PATIENCE, wait_until};

use crate::client::{Naive, b64};

struct Scene {
    overlay: Overlay,
    a: StandIn,
    b: StandIn,
    to_a: Naive,
    to_b: Naive,
    b_key: String,
}

async fn scene(traps: Traps) -> Scene {
    let overlay = Overlay::default();
    let (a, b) = (StandIn::start(&overlay, traps), StandIn::start(&overlay, traps));
    let (to_a, to_b) = (Naive::new(&a.url("http")), Naive::new(&b.url("http")));
    let b_key = to_b.key().await;
    Scene { overlay, a, b, to_a, to_b, b_key }
}

#[tokio::test(flavor = "multi_thread")]
async fn some_sizes_never_arrive() {
    for armed in [true, false] {
        let Scene { a, b: _b, to_a, to_b, b_key, .. } = scene(Traps { sizes: armed, ..Traps::ARMED }).await;
        let lost = to_a.push(&b_key, "t", vec![b'x'; 1301]).await;
        let fine = to_a.push(&b_key, "t", vec![b'x'; 1550]).await;
        to_a.until_state(&fine, "received").await;
        if armed {
            let stuck = json!({ "sending": { "pending": 0, "sent": 1, "acked": 1 } });
            let is_stuck = async || (to_a.state(&lost).await == stuck).then_some(());
            wait_until(is_stuck, PATIENCE, "it hangs").await;
            to_b.popped(None).await;
            assert_eq!(to_b.pop(None).await, None);
            a.advance(Duration::from_secs(300));
            assert_eq!(to_a.state(&lost).await, "aborted");
            a.advance(Duration::from_secs(300));
            assert_eq!(to_a.refused("getMessageInfo", json!([lost])).await, -32019);
        } else {
            to_a.until_state(&lost, "received").await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pop_that_waits_holds_up_everybody() {
    for armed in [true, false] {
        let Scene { a, b: _b, to_a, .. } = scene(Traps { blocking_pop: armed, ..Traps::ARMED }).await;
        let other = Naive::new(&a.url("http"));
        let popping = tokio::spawn(async move { to_a.call("popMessage", json!([false, 2, null])).await });
        let blocked = async || {
            let begin = Instant::now();
            other.call("getInfo", json!([])).await.unwrap();
            (begin.elapsed() > Duration::from_millis(500) || popping.is_finished()).then_some(())
        };
        let begin = Instant::now();
        wait_until(blocked, PATIENCE, "the pop ends, or is felt").await;
        if armed {
            assert!(begin.elapsed() > Duration::from_millis(1500), "{:?}", begin.elapsed());
        }
        let mut looks = 0;
        while !popping.is_finished() {
            other.call("getInfo", json!([])).await.unwrap();
            looks += 1;
        }
        assert!(!armed || looks < 50, "{looks}");
        popping.await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_not_popped_is_gone_after_a_restart_and_counts_as_received() {
    for armed in [true, false] {
        let traps = Traps { forgets: armed, received_early: armed, ..Traps::ARMED };
        let Scene { mut b, to_a, to_b, b_key, a: _a, .. } = scene(traps).await;
        let id = to_a.push(&b_key, "t", "x").await;
        let is_there = async || {
            let peeked = to_b.call("popMessage", json!([true, 0, null])).await.unwrap();
            (!peeked.is_null()).then_some(())
        };
        wait_until(is_there, PATIENCE, "it arrives").await;
        if armed {
            to_a.until_arrived(&id).await;
        } else {
            assert!(!["received", "aborted"].contains(&to_a.state(&id).await.as_str().unwrap_or_default()));
        }
        b.restart();
        // The earlier connection is gone, which its next user may be the first to notice.
        let to_b = Naive::new(&b.url("http"));
        if armed {
            assert_eq!(to_b.pop(None).await, None);
            to_a.until_arrived(&id).await;
        } else {
            assert_eq!(to_b.popped(None).await["id"], id);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sender_that_restarts_forgets_what_it_has_sent() {
    let Scene { overlay, mut a, b, to_a, to_b, b_key } = scene(Traps::ARMED).await;
    overlay.cut(b.identity());
    let id = to_a.push(&b_key, "t", "x").await;
    a.restart();
    let to_a = Naive::new(&a.url("http"));
    overlay.restore(b.identity());
    assert_eq!(to_a.refused("getMessageInfo", json!([id])).await, -32019);
    to_a.push(&b_key, "t", "y").await;
    assert_eq!(to_b.popped(None).await["payload"], b64("y"));
}

#[tokio::test(flavor = "multi_thread")]
async fn late_replies_lie_among_the_messages() {
    for armed in [true, false] {
        let traps = Traps { late_replies: armed, ..Traps::ARMED };
        let Scene { a: _a, b: _b, to_a, to_b, b_key, .. } = scene(traps).await;
        let a_key = to_a.key().await;
        let answer = to_a.ask(&b_key, "t", "x", 0).await;
        assert!(answer.get("payload").is_none());
        let request = to_b.popped(Some("t")).await;
        to_b.reply(&request["id"], &a_key, "late").await;
        to_a.push(&b_key, "t", "y").await;
        to_b.popped(Some("t")).await;
        to_b.push(&a_key, "t", "z").await;
        to_a.popped(Some("t")).await;
        let late = async || to_a.pop(Some("")).await;
        if armed {
            let late = wait_until(late, PATIENCE, "the reply comes").await;
            assert_eq!((&late["id"], &late["payload"]), (&answer["id"], &json!(b64("late"))));
            assert!(late.get("topic").is_none());
        } else {
            assert_eq!(late().await, None);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn anybody_may_reply() {
    for armed in [true, false] {
        let traps = Traps { strangers: armed, ..Traps::ARMED };
        let Scene { overlay, a: _a, b: _b, to_a, to_b, b_key } = scene(traps).await;
        let stranger = StandIn::start(&overlay, traps);
        let to_stranger = Naive::new(&stranger.url("http"));
        let (a_key, stranger_key) = (to_a.key().await, to_stranger.key().await);
        let answering = async {
            let request = to_b.popped(Some("t")).await;
            to_stranger.reply(&request["id"], &a_key, "mine").await;
            if !armed {
                to_b.reply(&request["id"], &a_key, "the true one").await;
            }
        };
        let (answer, ()) = tokio::join!(to_a.ask(&b_key, "t", "x", 20), answering);
        let expected = if armed { (stranger_key, b64("mine")) } else { (b_key, b64("the true one")) };
        assert_eq!(
            (answer["srcPk"].clone(), answer["payload"].clone()),
            (expected.0.into(), expected.1.into())
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_overtake_each_other() {
    let Scene { a: _a, b: _b, to_a, to_b, b_key, .. } = scene(Traps::ARMED).await;
    let mut order = Vec::new();
    for n in 0..200 {
        to_a.push(&b_key, "t", n.to_string()).await;
    }
    while order.len() < 200 {
        order.push(to_b.popped(None).await["payload"].clone());
    }
    let sorted: Vec<Value> = (0..200).map(|n: i32| b64(n.to_string()).into()).collect();
    assert_ne!(order, sorted);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_piled_up_for_an_absent_node_gets_stuck_when_it_returns() {
    for (armed, count) in [(true, 20), (true, 5), (false, 20)] {
        let traps = Traps { loss_on_return: armed, ..Traps::ARMED };
        let Scene { overlay, a: _a, b, to_a, to_b, b_key } = scene(traps).await;
        overlay.cut(b.identity());
        let mut ids = Vec::new();
        for n in 0..count {
            ids.push(to_a.push(&b_key, "t", n.to_string()).await);
        }
        // Half a second is five repetitions.
        let begin = Instant::now();
        let old = async || (begin.elapsed() > Duration::from_millis(600)).then_some(());
        wait_until(old, PATIENCE, "they are old").await;
        overlay.restore(b.identity());
        let stuck = json!({ "sending": { "pending": 0, "sent": 0, "acked": 1 } });
        if armed && count >= 20 {
            for id in &ids {
                let is_stuck = async || (to_a.state(id).await == stuck).then_some(());
                wait_until(is_stuck, PATIENCE, "it gets stuck").await;
            }
            // What is fresh goes through.
            to_a.push(&b_key, "t", "fresh").await;
            assert_eq!(to_b.popped(None).await["payload"], b64("fresh"));
        } else {
            for _ in &ids {
                to_b.popped(None).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_too_long_to_return_is_destroyed_by_the_pop() {
    let Scene { a: _a, b: _b, to_a, to_b, b_key, .. } = scene(Traps { sizes: false, ..Traps::ARMED }).await;
    let too_long = to_a.push(&b_key, "", vec![b'x'; 7_864_158]).await;
    to_a.until_state(&too_long, "received").await;
    assert_eq!(to_b.refused("popMessage", json!([false, 0, null])).await, -32008);
    assert_eq!(to_b.pop(None).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_never_receives_its_own_messages() {
    let Scene { a: _a, b: _b, to_b, b_key, .. } = scene(Traps::ARMED).await;
    let id = to_b.push(&b_key, "t", "x").await;
    to_b.push(&b_key, "t", "y").await;
    assert!(to_b.state(&id).await["sending"].is_object());
    assert_eq!(to_b.pop(None).await, None);
}
