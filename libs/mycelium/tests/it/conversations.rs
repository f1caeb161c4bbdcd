//! JSON-RPC over the bus, with nodes that know frames and with those that do not.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use mycelium::json_rpc::{CallError, JsonRpcRequest, JsonRpcResult};
use mycelium::{
    Bus, BusDestination, BusPeers, JsonRpcHandler, JsonRpcPeer, PayloadForm, PeerEndpoint, Unguarded,
};

use crate::setup::{SCHEMES, TOPIC, bus, daemons};

/// Gives parameters back; `ask` asks the other side the same first.
struct Echo;

impl JsonRpcHandler for Echo {
    fn handle(
        &self,
        from: &JsonRpcPeer,
        requests: Vec<JsonRpcRequest>,
    ) -> BoxFuture<'static, Vec<JsonRpcResult>> {
        let from = from.clone();
        Box::pin(async move {
            let mut answers = Vec::new();
            for request in requests {
                if request.method == "ask" {
                    let answer = from.call("echo", &["blob"], WAIT).await;
                    answers.push(Ok(answer.expect("the other side answers")));
                } else {
                    answers.push(Ok(request.params));
                }
            }
            answers
        })
    }
}

const WAIT: Duration = Duration::from_secs(30);
const BACK: &str = "coordinator.rpc";

fn peers(bus: &Arc<mycelium::DaemonBus>, own: &str, theirs: &'static str) -> BusPeers {
    let inbox = bus.listen(own).unwrap();
    let side = |_| PeerEndpoint { handler: Arc::new(Echo), guard: Arc::new(Unguarded) };
    let peers = BusPeers::new(Arc::clone(bus) as Arc<dyn Bus>, Arc::new(side));
    let running = peers.clone();
    tokio::spawn(async move { running.run(inbox, theirs).await });
    peers
}

#[tokio::test(flavor = "multi_thread")]
async fn both_sides_call_and_a_handler_may_ask_back() {
    for scheme in SCHEMES {
        let [a, b] = daemons();
        let (here, there) = (bus(&a, scheme), bus(&b, scheme));
        let (coordinator, _supervisor) = (peers(&here.bus, BACK, TOPIC), peers(&there.bus, TOPIC, BACK));
        let peer = coordinator.peer(BusDestination::Key(there.key().await), TOPIC).await.unwrap();
        let answers = join_all((0..40).map(|n| {
            let peer = peer.clone();
            async move { (n, peer.call("echo", &[n], WAIT).await.unwrap()) }
        }));
        for (n, answer) in answers.await {
            assert_eq!(answer.get(), format!("[{n}]"));
        }
        // More of them than may be under way: none of them waits for its own answer.
        let answers = join_all((0..40).map(|_| peer.call("ask", &[0], WAIT))).await;
        assert!(answers.into_iter().all(|answer| answer.unwrap().get() == r#"["blob"]"#));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_to_an_absent_node_fails_in_time() {
    let [a] = daemons::<1>();
    let here = bus(&a, "ws");
    let coordinator = peers(&here.bus, BACK, TOPIC);
    let to = BusDestination::Key(mycelium::PublicKey::random());
    let peer = coordinator.peer(to, TOPIC).await.unwrap();
    let called = peer.call("echo", &[1], Duration::from_secs(2)).await;
    assert_eq!(called.err(), Some(CallError::TimedOut));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_knows_only_json_answers_by_reply_or_by_push() {
    let [a, b] = daemons();
    let (here, other) = (bus(&a, "ws"), b.raw());
    let coordinator = peers(&here.bus, BACK, TOPIC);
    let (own, key) = (here.key().await, other.key().await);
    let peer = coordinator.peer_in(BusDestination::Key(key), TOPIC, PayloadForm::Plain).await.unwrap();
    for way in ["reply", "late reply", "push"] {
        let answering = async {
            let request = other.popped(TOPIC).await;
            let text: serde_json::Value = serde_json::from_slice(&request.payload).unwrap();
            assert_eq!((&text["method"], request.from), (&"echo".into(), own));
            let answer = serde_json::json!({ "jsonrpc": "2.0", "id": text["id"], "result": way }).to_string();
            match way {
                "reply" => other.reply(&request.id, own, answer.as_bytes()).await,
                "late reply" => {
                    crate::setup::until("nobody waits in a push any more", || {
                        here.metrics.in_flight.get() == 0
                    })
                    .await;
                    other.reply(&request.id, own, answer.as_bytes()).await;
                }
                _ => drop(other.push(own, BACK, answer.as_bytes()).await),
            }
        };
        let (called, ()) = tokio::join!(peer.call("echo", &[1], WAIT), answering);
        assert_eq!(called.unwrap().get(), format!("\"{way}\""));
    }
    // The other side may ask as well, and is answered by a reply; the reply waits without a topic for a node that does not wait for it.
    let question = br#"{"jsonrpc":"2.0","method":"echo","params":[7],"id":"x"}"#;
    let expected = br#"{"jsonrpc":"2.0","id":"x","result":[7]}"#;
    assert_eq!(&other.ask(own, BACK, question).await[..], expected);
    let question_id = other.push(own, BACK, question).await;
    // A node sends an answer until its daemon has it, so that the answer to the first question may come once more.
    let mut answer = other.popped("").await;
    while answer.id != question_id {
        assert_eq!(&answer.payload[..], expected);
        answer = other.popped("").await;
    }
    assert_eq!(&answer.payload[..], expected);
}
