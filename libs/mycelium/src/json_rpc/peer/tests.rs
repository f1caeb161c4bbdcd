use super::*;
use crate::json_rpc::{METHOD_NOT_FOUND, answer};

/// Gives back the parameters of `echo`; sends `ask` back to the caller, and refuses the rest.
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
                answers.push(match request.method.as_str() {
                    "echo" => Ok(request.params),
                    "ask" => match from.call("echo", &["from the other side"], WAIT).await {
                        Ok(result) => Ok(result),
                        Err(error) => answer(&error.to_string()),
                    },
                    _ => Err(JsonRpcError::of_protocol(METHOD_NOT_FOUND, request.method)),
                });
            }
            answers
        })
    }
}

const WAIT: Duration = Duration::from_secs(20);

/// Two ends, and what went from the first to the second.
fn pair() -> (JsonRpcPeer, JsonRpcPeer, mpsc::UnboundedReceiver<Bytes>) {
    let (a_out, mut a_payloads) = mpsc::channel::<Bytes>(4);
    let (b_out, mut b_payloads) = mpsc::channel::<Bytes>(4);
    let (a, b) = (JsonRpcPeer::new(a_out, Arc::new(Echo)), JsonRpcPeer::new(b_out, Arc::new(Echo)));
    let (seen, witness) = mpsc::unbounded_channel();
    let (to_a, to_b) = (a.downgrade(), b.downgrade());
    tokio::spawn(async move {
        while let (Some(payload), Some(peer)) = (a_payloads.recv().await, to_b.upgrade()) {
            seen.send(payload.clone()).ok();
            peer.receive(&payload);
        }
    });
    tokio::spawn(async move {
        while let (Some(payload), Some(peer)) = (b_payloads.recv().await, to_a.upgrade()) {
            peer.receive(&payload);
        }
    });
    (a, b, witness)
}

#[tokio::test]
async fn calls_cross_each_other() {
    let (a, _b, _) = pair();
    let (one, two) = tokio::join!(a.call("echo", &[1], WAIT), a.call("ask", &[0], WAIT));
    assert_eq!(one.expect("answered").get(), "[1]");
    assert_eq!(two.expect("answered").get(), r#"["from the other side"]"#);
}

#[tokio::test]
async fn a_batch_is_one_payload_with_one_outcome_each() {
    let (a, _b, mut witness) = pair();
    let calls = vec![
        JsonRpcCall::new("echo", &[1]).expect("JSON"),
        JsonRpcCall::new("nothing", &[2]).expect("JSON"),
        JsonRpcCall::new("echo", &[3]).expect("JSON"),
    ];
    let outcomes = a.call_batch(calls, WAIT).await;
    assert_eq!(outcomes[0].as_ref().expect("answered").get(), "[1]");
    assert!(
        matches!(&outcomes[1], Err(CallError::Refused(e)) if e.code == METHOD_NOT_FOUND && e.is_lasting())
    );
    assert_eq!(outcomes[2].as_ref().expect("answered").get(), "[3]");
    assert_eq!(witness.recv().await.expect("sent")[0], b'[');
    assert!(witness.try_recv().is_err(), "one payload");
}

#[tokio::test]
async fn a_batch_beyond_the_size_goes_in_parts() {
    let (a, _b, mut witness) = pair();
    let long = "x".repeat(300 * 1024);
    let calls = (0..7).map(|n| JsonRpcCall::new("echo", &(n, &long)).expect("JSON")).collect();
    let outcomes = a.call_batch(calls, WAIT).await;
    assert!(outcomes.iter().all(Result::is_ok));
    let mut payloads = 0;
    while let Ok(payload) = witness.try_recv() {
        assert!(payload.len() <= crate::json_rpc::BATCH_BYTES_MAX);
        payloads += 1;
    }
    assert_eq!(payloads, 3);
    let huge = a.call("echo", &"x".repeat(PAYLOAD_BYTES_MAX), WAIT).await;
    assert!(matches!(huge, Err(CallError::TooLarge(_))));
}

#[tokio::test(start_paused = true)]
async fn who_is_not_answered_learns_why() {
    let (outbox, mut payloads) = mpsc::channel(4);
    let peer = JsonRpcPeer::new(outbox, Arc::new(Echo));
    let second = Duration::from_secs(1);
    assert_eq!(peer.call("echo", &[1], second).await.err(), Some(CallError::TimedOut));
    let (called, ()) = tokio::join!(peer.call("echo", &[1], WAIT), async {
        payloads.recv().await;
        payloads.recv().await;
        peer.close();
    });
    assert_eq!(called.err(), Some(CallError::Closed));
    assert_eq!(peer.call("echo", &[1], WAIT).await.err(), Some(CallError::Closed));
    assert!(peer.is_closed() && peer.waiting().batches.is_empty());
}

#[tokio::test]
async fn what_is_no_message_is_answered_with_an_error() {
    let (outbox, mut payloads) = mpsc::channel(4);
    let peer = JsonRpcPeer::new(outbox, Arc::new(Echo));
    for (sent, code) in [("{", "-32700"), ("[]", "-32600"), ("[7]", "-32600")] {
        peer.receive(sent.as_bytes());
        let answer = payloads.recv().await.expect("answered");
        let text = std::str::from_utf8(&answer).expect("JSON");
        assert!(text.contains(code) && text.contains(r#""id":null"#), "{sent} got {text}");
    }
    peer.receive(br#"{"jsonrpc":"2.0","method":"echo"}"#);
    peer.receive(br#"{"jsonrpc":"2.0","result":1,"id":77}"#);
    peer.receive(br#"[{"jsonrpc":"2.0","method":"echo"},{"jsonrpc":"2.0","method":"echo","id":"x"}]"#);
    let answer = payloads.recv().await.expect("answered");
    assert_eq!(&answer[..], br#"[{"jsonrpc":"2.0","id":"x","result":null}]"#, "notifications are not");
}
