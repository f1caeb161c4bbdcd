//! Messages that are delivered whole.

use proto::internal::v1::held_message::Kind;
use rpc::{ErrorKind, RpcReason};
use tonic::Status;

use super::*;

/// A message that carries no nodes.
fn whole(message: u32, kind: &Kind) -> wire::TakeResponse {
    let mut response = held(message);
    for message in &mut response.messages {
        message.nodes.clear();
        message.timeout_ack_secs = 0;
        message.kind = Some(kind.clone());
    }
    response
}

async fn next_direct_message(
    gateway: &mut Link<wire::ExchangeRequest, wire::ExchangeResponse>,
) -> wire::DeliverLetter {
    match gateway.receive().await.frame {
        Some(ToGateway::Letter(letter)) => letter,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn letters_go_out_until_they_arrive_or_are_refused() {
    let mut suite = Suite::start();
    let mut storage = suite.storage().await;
    let (mut gateway, _scheduler) = (suite.gateway().await, suite.scheduler().await);
    let json = r#"{"expires_at":1060,"text":"good morning"}"#;
    let sent = |addresses: &[&str]| {
        let addresses = addresses.iter().map(ToString::to_string).collect();
        Kind::Letter(wire::HeldLetter { letter_json: json.into(), addresses })
    };
    storage.send(whole(1, &sent(&[]))).await;
    storage.send(whole(1, &sent(&[]))).await;
    let first = next_direct_message(&mut gateway).await;
    assert_eq!((&first.letter_json[..], first.addresses), (json.as_bytes(), vec![]));
    gateway.send(outcome(first.delivery_id, "nobody is there")).await;
    let again = next_direct_message(&mut gateway).await;
    assert!(again.delivery_id > first.delivery_id, "once more, although it was given twice");
    gateway.send(outcome(again.delivery_id, "")).await;
    assert_eq!(storage.receive().await, settled(1, ""));

    storage.send(whole(2, &sent(&["grpc://b:1", "mycelium:[::1]"]))).await;
    let sent_to = next_direct_message(&mut gateway).await;
    assert_eq!(sent_to.addresses, ["grpc://b:1", "mycelium:[::1]"]);
    let refused = wire::DeliveryOutcome {
        delivery_id: sent_to.delivery_id,
        error: "UNKNOWN_RECIPIENT: nobody".into(),
        lasting: true,
        ..Default::default()
    };
    gateway.send(from_gateway(FromGateway::Outcome(refused))).await;
    assert_eq!(storage.receive().await, settled(2, "UNKNOWN_RECIPIENT: nobody"));

    // Nobody answers until its time is over.
    storage.send(whole(3, &sent(&[]))).await;
    let ended = loop {
        tokio::select! {
            frame = gateway.receive() => match frame.frame {
                Some(ToGateway::Letter(letter)) => {
                    gateway.send(outcome(letter.delivery_id, "no answer")).await;
                }
                other => panic!("{other:?}"),
            },
            ended = storage.receive() => break ended,
        }
    };
    assert_eq!(ended, settled(3, "TIMEOUT_ACK: no answer"));

    // What storage gave that is no letter is not tried.
    let broken = Kind::Letter(wire::HeldLetter { letter_json: "{}".into(), addresses: Vec::new() });
    storage.send(whole(4, &broken)).await;
    let Some(ToStorage::Settle(settle)) = storage.receive().await.frame else { panic!("settled") };
    assert!(settle.settlements[0].error.starts_with("the direct message cannot be read"), "{settle:?}");
}

#[tokio::test(start_paused = true)]
async fn jobs_that_were_pushed_become_a_flow() {
    let mut suite = Suite::start();
    let mut storage = suite.storage().await;
    let (_gateway, _scheduler) = (suite.gateway().await, suite.scheduler().await);
    let submit = Some(v1::SubmitFlowRequest { request_id: "message:7:1".into(), ..Default::default() });
    let jobs = || Kind::RawJobs(wire::RawJobs { caller_id: 7, submit: submit.clone() });
    storage.send(whole(1, &jobs())).await;
    let (request, answer) = suite.submits.recv().await.expect("asked");
    assert_eq!((request.on_behalf_of, &*request.message_key, &request.submit), (7, "message:7:1", &submit));
    answer.send(Err(Status::unavailable("not now"))).expect("it waits");
    let (_, answer) = suite.submits.recv().await.expect("asked again");
    let flow = Some(v1::Flow { id: 12, ..Default::default() });
    answer.send(Ok(wire::SubmitForResponse { flow })).expect("it waits");
    assert_eq!(storage.receive().await, settled_with(1, "", 12));

    storage.send(whole(2, &jobs())).await;
    let (_, answer) = suite.submits.recv().await.expect("asked");
    let denied = rpc::Error::new(ErrorKind::PermissionDenied, RpcReason::RoleInsufficient, "actor 7 may not");
    answer.send(Err(denied.into())).expect("it waits");
    assert_eq!(storage.receive().await, settled(2, "ROLE_INSUFFICIENT: actor 7 may not"));
}
