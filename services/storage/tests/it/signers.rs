//! By which keys jobs are signed, and signatures that come later.

use std::collections::BTreeMap;

use identity::{Identity, SigningKey};
use keys::Layout;
use kv::Cmd;
use model::{ActorId, JobId, Timestamp};
use proto::internal::v1 as wire;
use proto::v1;
use tonic::Code;

use crate::letter_keys::sign;
use crate::stage::{ADMIN, CONTEXT, EXECUTOR, READER, STRANGER, Stage, failure, key_of};

#[tokio::test]
async fn an_actors_key_is_returned_to_those_who_may_run_jobs_for_it() {
    let stage = Stage::new(Layout::Database).await;
    let key = key_of(EXECUTOR);
    let ask = async |caller_id, on_behalf_of| {
        let request = wire::ReadSignerRequest { context_id: CONTEXT, caller_id, on_behalf_of };
        stage.flows().read_signer(request).await.map(tonic::Response::into_inner)
    };
    for actor in [ADMIN, EXECUTOR] {
        let signer = ask(EXECUTOR, actor).await.unwrap();
        assert_eq!((&signer.keys, &signer.context_uid), (&vec![key.clone()], &stage.context_uid));
    }
    assert_eq!(failure(ask(ADMIN, EXECUTOR).await).0, Code::PermissionDenied);
    assert_eq!(failure(ask(READER, READER).await).0, Code::PermissionDenied);
    assert_eq!(failure(ask(STRANGER, STRANGER).await).0, Code::NotFound);
    assert_eq!(failure(ask(999, ADMIN).await).0, Code::InvalidArgument, "there is no such actor");
}

/// Gives the executor another key.
async fn rotate(stage: &Stage, overlap_secs: u32) -> SigningKey {
    let key = SigningKey::generate();
    let pubkey = key.verifying_key().to_string();
    let request = v1::RotateActorKeyRequest { id: EXECUTOR, pubkey, overlap_secs, ..Default::default() };
    stage.actors(Identity::Admin).rotate_actor_key(request).await.unwrap();
    key
}

/// Ends the overlap in which former keys of the executor count.
async fn end_overlap(stage: &Stage) {
    let (keys, connection) = stage.global();
    let actor = keys.actor(ActorId(EXECUTOR));
    let known = connection.cmd(Cmd::new("HGET").arg(&actor).arg("keys")).await.unwrap();
    let mut known: serde_json::Value =
        serde_json::from_str(&known.optional_text().unwrap().unwrap()).unwrap();
    for former in known.as_array_mut().unwrap().iter_mut().filter(|key| !key["revoked_at"].is_null()) {
        former["revoked_at"] = former["not_before"].clone();
    }
    connection.cmd(Cmd::new("HSET").arg(&actor).arg("keys").arg(&known.to_string())).await.unwrap();
}

/// Returns true if storage names the key as a signer, and the sender of a message that the key has signed.
async fn count(stage: &Stage, key: &SigningKey) -> (bool, Result<String, Code>) {
    let ask = wire::ReadSignerRequest { context_id: CONTEXT, caller_id: EXECUTOR, on_behalf_of: EXECUTOR };
    let keys = stage.flows().read_signer(ask).await.unwrap().into_inner().keys;
    let expires = Timestamp::now() + std::time::Duration::from_secs(600);
    let message = v1::SendMessageRequest {
        context_id: CONTEXT,
        to: ADMIN.to_string(),
        message_type: v1::MessageType::Chat.into(),
        text: "mine".to_owned(),
        signature: sign("mine", key, expires),
        ..Default::default()
    };
    let request = wire::PublishRequest { message: Some(message), on_behalf_of: EXECUTOR };
    let sent = stage.message_box().publish(request).await;
    let from = sent.map(|sent| sent.into_inner().message.unwrap());
    let from = from.map(|message| (message.verified, message.from_pubkey));
    let from = from.map_err(|status| status.code()).map(|(verified, from)| {
        assert!(verified);
        from
    });
    (keys.contains(&key.verifying_key().to_string()), from)
}

#[tokio::test]
async fn a_former_key_signs_until_its_end() {
    for layout in [Layout::Database, Layout::HashTag] {
        let stage = Stage::new(layout).await;
        let first = rotate(&stage, 0).await;
        let name = |key: &SigningKey| key.verifying_key().to_string();
        let refused = (false, Err(Code::InvalidArgument));
        assert_eq!(count(&stage, &first).await, (true, Ok(name(&first))));
        let second = rotate(&stage, 3600).await;
        assert_eq!(count(&stage, &second).await, (true, Ok(name(&second))));
        assert_eq!(
            count(&stage, &first).await,
            (true, Ok(name(&first))),
            "it is from the key that has signed it"
        );
        end_overlap(&stage).await;
        assert_eq!(count(&stage, &first).await, refused, "its end has come");
        assert_eq!(count(&stage, &second).await, (true, Ok(name(&second))));
        // One that is revoked has no overlap.
        let third = rotate(&stage, 0).await;
        assert_eq!(count(&stage, &second).await, refused);
        assert_eq!(count(&stage, &third).await, (true, Ok(name(&third))));
        assert_eq!(count(&stage, &SigningKey::generate()).await, refused, "a stranger's");
    }
}

#[tokio::test]
async fn a_rerun_brings_new_signatures() {
    for (layout, request_id) in [(Layout::Database, "1"), (Layout::HashTag, "")] {
        let stage = Stage::new(layout).await;
        let mut flow = stage.started(3).await;
        let end = flow.end();
        stage.apply(&mut flow, end).await;
        let job = |place: u32| JobId(flow.first_job + place);
        let restart = wire::RestartFlowRequest {
            request_id: request_id.to_owned(),
            request_hash: "aa".to_owned(),
            context_id: CONTEXT,
            flow_id: flow.id,
            flow_uid: flow.uid.clone(),
            on_behalf_of: EXECUTOR,
            rerun_json: r#"{"scope":"all"}"#.to_owned(),
            env_vars: BTreeMap::new(),
            generation: 1,
            signatures: BTreeMap::from([(job(0).0, "first".to_owned()), (job(2).0, "third".to_owned())]),
            expected_revision: 0,
            traceparent: String::new(),
        };
        assert!(stage.flows().restart_flow(restart.clone()).await.unwrap().into_inner().restarted);
        for (place, expected) in [(0, "first"), (1, ""), (2, "third")] {
            let record = stage.hash(&stage.keys().job(ActorId(EXECUTOR), job(place))).await;
            assert_eq!(record["signature"], expected, "{layout}");
        }
        let again = stage.flows().restart_flow(restart).await;
        if request_id.is_empty() {
            assert_eq!(failure(again).1, "FLOW_NOT_ENDED");
        } else {
            assert!(!again.unwrap().into_inner().restarted, "the same request");
        }
    }
}
