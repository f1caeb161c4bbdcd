//! Calls that end by the token that came with them, over TLS: once, and not by another.

use proto::v1;
use saga::placement::SagaReplicaRole;
use testkit::{PATIENCE, wait_until};
use tonic::Code;

use crate::process::Upstream;
use crate::served::{ACME, ADMIN, EXECUTOR, READER, Rows, Served, ServiceOptions, refused};

const MANIFEST: &str = r#"
kind: Saga
name: order
version: 1
shards: 2
state: { id: text, by: optional text }
sources: [{ aggregate: Order }]
start: { on: OrderPlaced, set: { id: "${{ event.data.id }}" }, goto: sign }
steps:
  sign:
    effect: sign
    input: { order: "${{ state.id }}" }
    on_success: { set: { by: "${{ result.by }}" }, goto: signed }
  signed: { on: { Filed: { end: completed } } }
---
kind: EffectProvider
name: upstream
transport: http
http: { base_url: "http://ADDRESS", allow_hosts: ["ADDRESS"], private: true }
effects:
  sign:
    callback: true
    request: { method: POST, path: /sign, headers: { x-token: "${{ callback_token }}" }, body: "${{ input }}" }
    retry: { initial: 1ms }
"#;

fn complete(command: &str, token: &str, request: &str, by: &str) -> v1::CompleteEffectRequest {
    let result_json = format!("{{\"by\":\"{by}\"}}");
    let outcome = v1::complete_effect_request::Outcome::Succeeded(v1::EffectSuccess { result_json });
    v1::CompleteEffectRequest {
        request_id: request.to_owned(),
        tenant_id: ACME.to_owned(),
        effect: "sign".to_owned(),
        command_id: command.to_owned(),
        token: token.to_owned(),
        outcome: Some(outcome),
    }
}

async fn call(served: &Served, command: &str) -> Option<v1::EffectCall> {
    let request = v1::GetEffectRequest {
        tenant_id: ACME.to_owned(),
        effect: "sign".to_owned(),
        command_id: command.to_owned(),
    };
    served.actor(READER).get_effect(request).await.ok()?.into_inner().call
}

async fn complete_by_token(rows: Rows) {
    let upstream = Upstream::start();
    let manifest = MANIFEST.replace("ADDRESS", &upstream.address);
    let role = SagaReplicaRole { sagas: true, effects: true };
    let served =
        Served::with(ServiceOptions { manifest: &manifest, role, rows, ..ServiceOptions::default() }).await;
    served.start_order("o-1").await;
    served.start_order("o-2").await;
    let both = async || (upstream.calls().len() == 2).then(|| upstream.calls());
    let calls = wait_until(both, PATIENCE, "both are called").await;
    let of = |order: &str| calls.iter().find(|call| call.body.contains(order)).expect("its call");
    let (mine, other) = (of("o-1"), of("o-2"));
    assert_eq!((mine.token.len(), other.token.len()), (32, 32));
    for command in [&mine.key, &other.key] {
        let waits = async || call(&served, command).await.filter(|call| call.waits_for_token);
        let waiting = wait_until(waits, PATIENCE, "it waits for its token").await;
        assert_eq!((waiting.state(), waiting.attempts), (v1::EffectState::Waiting, 1));
    }
    // The token of another call is refused, whoever sends it, and that uses up no token.
    let not_its_token = (Code::PermissionDenied, "TOKEN_REFUSED".to_owned());
    for (actor, token, request) in [(EXECUTOR, &other.token, "r-1"), (ADMIN, &"0".repeat(32), "r-2")] {
        let request = complete(&mine.key, token, request, "a stranger");
        assert_eq!(refused(served.actor(actor).complete_effect(request).await), not_its_token);
    }
    let request = complete(&mine.key, &mine.token, "r-3", "a person");
    let first =
        served.actor(EXECUTOR).complete_effect(request.clone()).await.expect("it is done").into_inner();
    let done = first.call.as_ref().expect("always given");
    assert_eq!((done.state(), done.outcome()), (v1::EffectState::Succeeded, v1::EffectOutcome::Succeeded));
    served.wait_at("o-1", "signed", model::SagaStatus::Running).await;

    // The same request has the same answer; the token is good for no other.
    let again = served.actor(EXECUTOR).complete_effect(request).await.expect("the same").into_inner();
    assert_eq!(again, first);
    let used = (Code::FailedPrecondition, "EFFECT_NOT_WAITING".to_owned());
    for (by, request) in [("a person", "r-4"), ("somebody else", "r-5"), ("nobody", "")] {
        let request = complete(&mine.key, &mine.token, request, by);
        assert_eq!(refused(served.actor(EXECUTOR).complete_effect(request).await), used, "{by}");
    }
    let kept = call(&served, &mine.key).await.expect("it is kept");
    assert_eq!((kept.result_json.as_str(), kept.attempts), (r#"{"by":"a person"}"#, 1));
    let found = call(&served, &other.key).await.expect("it is kept");
    assert_eq!(found.state(), v1::EffectState::Waiting, "the other one waits on");
    assert_eq!(upstream.calls().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_completes_its_call_once() {
    complete_by_token(Rows::Directory).await;
    complete_by_token(Rows::Redis).await;
}
