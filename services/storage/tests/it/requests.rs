//! Idempotency: one request has one effect and one answer, however often it comes, also when its object is gone.

use std::future::Future;

use futures_util::future::join_all;
use identity::Identity;
use model::{ActorId, FlowInput};
use proto::internal::v1 as wire;
use proto::v1;
use tonic::Status;

use crate::actors::proof_of;
use crate::places::{Redis, scenarios};
use crate::stage::{ADMIN, CONTEXT, EXECUTOR, READER, STRANGER, Stage, create, failure, key_of, script};

const TIMES: usize = 100;
const ID: &str = "8c7f1c2e-0000-4000-8000-000000000000";
/// Asks many times at once; gives the one answer.
async fn repeated<T, F>(ask: impl Fn() -> F) -> T
where
    T: PartialEq + std::fmt::Debug,
    F: Future<Output = Result<tonic::Response<T>, Status>>,
{
    let mut answers =
        join_all((0..TIMES).map(|_| ask())).await.into_iter().map(|answer| answer.unwrap().into_inner());
    let first = answers.next().unwrap();
    assert!(answers.all(|answer| answer == first), "one answer");
    first
}

fn actor(id: u32) -> Identity {
    Identity::Actor(ActorId(id))
}

async fn what_is_made_is_made_once(stage: Stage<impl Redis>) {
    let flow = repeated(|| {
        let request =
            wire::CreateFlowRequest { request_id: ID.into(), request_hash: "aa".into(), ..create(1) };
        let mut flows = stage.flows();
        async move {
            let mut made = flows.create_flow(request).await?;
            // That one of them has made it is all that differs.
            made.get_mut().is_new = false;
            Ok(made)
        }
    });
    assert_eq!(flow.await.flow.unwrap().flow.unwrap().id, 1);
    let spec = v1::JobSpec {
        script_type: v1::ScriptType::Shell.into(),
        script: Some(v1::Script { source: Some(v1::script::Source::Text("true".into())) }),
        ..Default::default()
    };
    repeated(|| {
        let spec = Some(spec.clone());
        let request =
            v1::CreateJobRequest { request_id: "j".into(), context_id: CONTEXT, spec, ..Default::default() };
        let mut jobs = stage.jobs(ADMIN);
        async move { jobs.create_job(request).await }
    })
    .await;
    let all = v1::ListJobsRequest { context_id: CONTEXT, ..Default::default() };
    assert_eq!(stage.jobs(ADMIN).list_jobs(all).await.unwrap().into_inner().jobs.len(), 1);
    let key = identity::SigningKey::generate().verifying_key().to_string();
    let registered = repeated(|| {
        let request =
            v1::RegisterActorRequest { request_id: ID.into(), pubkey: key.clone(), ..Default::default() };
        let mut actors = stage.actors(Identity::Admin);
        async move { actors.register_actor(request).await }
    });
    let registered = registered.await.actor.unwrap();
    let made = repeated(|| {
        let request = v1::CreateContextRequest { request_id: "c".into(), ..Default::default() };
        let mut contexts = stage.contexts(actor(registered.id));
        async move { contexts.create_context(request).await }
    });
    assert_eq!(made.await.context.unwrap().admins, [registered.id]);
}

async fn what_is_changed_is_changed_once(stage: Stage<impl Redis>) {
    let next = identity::SigningKey::generate();
    let key = next.verifying_key().to_string();
    let rotated = repeated(|| {
        let request = v1::RotateActorKeyRequest {
            request_id: ID.into(),
            id: READER,
            pubkey: key.clone(),
            overlap_secs: 60,
            key_proof: proof_of(&next, READER),
            ..Default::default()
        };
        let mut actors = stage.actors(actor(READER));
        async move { actors.rotate_actor_key(request).await }
    });
    let keys: Vec<String> = rotated.await.actor.unwrap().keys.into_iter().map(|key| key.key).collect();
    assert_eq!(keys, [key_of(READER), key]);
    let flow = stage.started(1).await;
    repeated(|| {
        let push = flow.push(&FlowInput::Signal { name: "go".parse().unwrap() });
        let push = wire::PushInputRequest { request_id: ID.into(), request_hash: "bb".into(), ..push };
        let mut flows = stage.flows();
        async move { flows.push_input(push).await }
    })
    .await;
}

async fn what_is_removed_is_removed_once_and_stays_answered(stage: Stage<impl Redis>) {
    let mut flow = stage.started(2).await;
    let end = flow.end();
    stage.apply(&mut flow, end).await;
    let remove = wire::RemoveFlowRequest {
        context_id: CONTEXT,
        flow_id: flow.id,
        on_behalf_of: EXECUTOR,
        request_id: ID.into(),
        request_hash: "cc".into(),
        expected_revision: 0,
    };
    repeated(|| {
        let (mut flows, remove) = (stage.flows(), remove.clone());
        async move { flows.remove_flow(remove).await }
    })
    .await;
    // Another one of that number is another one.
    let again = wire::CreateFlowRequest { flow_id: flow.id, ..create(1) };
    stage.flows().create_flow(again).await.unwrap();
    stage.flows().remove_flow(remove.clone()).await.unwrap();
    let read =
        wire::ReadFlowRequest { context_id: CONTEXT, flow_id: flow.id, on_behalf_of: READER, purpose: 0 };
    stage.flows().read_flow(read).await.unwrap();
    let other = wire::RemoveFlowRequest { request_hash: "dd".into(), ..remove };
    assert_eq!(failure(stage.flows().remove_flow(other).await).1, "REQUEST_ID_REUSED");

    repeated(|| {
        let request = v1::DeleteActorRequest { request_id: "a".into(), id: STRANGER, ..Default::default() };
        let mut actors = stage.actors(Identity::Admin);
        async move { actors.delete_actor(request).await }
    })
    .await;
    repeated(|| {
        let request =
            v1::DeleteContextRequest { request_id: "x".into(), context_id: CONTEXT, expected_revision: 0 };
        let mut contexts = stage.contexts(actor(ADMIN));
        async move { contexts.delete_context(request).await }
    })
    .await;
}

async fn nodes_are_added_and_flows_started_once(stage: Stage<impl Redis>) {
    let flow = stage.created(2).await;
    let add = |hash: &str| wire::AddNodesRequest {
        request_id: ID.into(),
        request_hash: hash.into(),
        request_first_job_id: flow.first_job,
        request_ends: true,
        ..flow.add_nodes(&script("true"))
    };
    let find = |id: &str| {
        let request = wire::FindRequestRequest {
            request_id: id.into(),
            request_hash: "aa".into(),
            context_id: CONTEXT,
            on_behalf_of: EXECUTOR,
        };
        let mut flows = stage.flows();
        async move { flows.find_request(request).await.unwrap().into_inner() }
    };
    let part = wire::AddNodesRequest { request_ends: false, ..add("aa") };
    stage.flows().add_nodes(part).await.unwrap();
    assert!(!find(ID).await.found, "its other nodes are to come");
    let added = || {
        let mut flows = stage.flows();
        async move { flows.add_nodes(add("aa")).await }
    };
    repeated(added).await;
    assert_eq!((find(ID).await.found, find(ID).await.first_job_id), (true, flow.first_job));
    let reused = (tonic::Code::AlreadyExists, "REQUEST_ID_REUSED".to_owned());
    assert_eq!(failure(stage.flows().add_nodes(add("bb")).await), reused);

    let start = |hash: &str| wire::StartFlowRequest {
        context_id: CONTEXT,
        flow_id: flow.id,
        flow_uid: flow.uid.clone(),
        on_behalf_of: EXECUTOR,
        request_id: "s".into(),
        request_hash: hash.into(),
        ..Default::default()
    };
    assert!(!find("s").await.found);
    let started = || {
        let mut flows = stage.flows();
        async move { flows.start_flow(start("aa")).await }
    };
    repeated(started).await;
    let found = find("s").await;
    assert_eq!((found.flow_id, &found.flow_uid), (flow.id, &flow.uid));
    assert_eq!(failure(stage.flows().start_flow(start("bb")).await), reused);
    // Nodes that were added before the flow began: a caller that lost the answer gets it again.
    added().await.unwrap();
    let other = wire::AddNodesRequest { request_id: "other".into(), ..add("aa") };
    assert_eq!(failure(stage.flows().add_nodes(other).await).1, "FLOW_NOT_CREATED");
}

scenarios!(
    what_is_made_is_made_once,
    what_is_changed_is_changed_once,
    what_is_removed_is_removed_once_and_stays_answered,
    nodes_are_added_and_flows_started_once
);
