//! Flows from creation to removal.

use std::collections::BTreeSet;

use keys::Layout;
use kv::Cmd;
use model::job::BlobRef;
use model::{BlobHash, FlowNode, JobSpec, NodeState, OwnerId, ScriptSource};
use proto::internal::v1 as wire;
use proto::v1;
use tonic::Code;

use crate::stage::{ADMIN, CONTEXT, EXECUTOR, Stage, create, failure, json, script};

#[tokio::test]
async fn a_request_id_has_one_effect() {
    let stage = Stage::new(Layout::Database).await;
    let request =
        wire::CreateFlowRequest { request_id: "6b2a".to_owned(), request_hash: "aa".to_owned(), ..create(2) };
    let calls = (0..100).map(|_| {
        let (mut flows, request) = (stage.flows(), request.clone());
        tokio::spawn(async move { flows.create_flow(request).await.unwrap().into_inner() })
    });
    let mut made = BTreeSet::new();
    for call in calls.collect::<Vec<_>>() {
        let answer = call.await.unwrap();
        made.insert((answer.flow.unwrap().flow.unwrap().uid, answer.first_job_id));
    }
    assert_eq!(made.len(), 1);
    assert_eq!(stage.command(Cmd::new("ZCARD").arg(&stage.keys().flows())).await.int(), Ok(1));
    let other = wire::CreateFlowRequest { request_hash: "bb".to_owned(), ..request };
    let refused = failure(stage.flows().create_flow(other).await);
    assert_eq!(refused, (Code::AlreadyExists, "REQUEST_ID_REUSED".to_owned()));
}

#[tokio::test]
async fn ids_are_given_once() {
    let stage = Stage::new(Layout::Database).await;
    let request = wire::CreateFlowRequest { flow_id: 2, ..create(3) };
    let first = stage.flows().create_flow(request.clone()).await.unwrap().into_inner();
    assert_eq!((first.flow.unwrap().flow.unwrap().id, first.first_job_id), (2, 1));
    assert_eq!(failure(stage.flows().create_flow(request).await).0, Code::AlreadyExists);
    let mut ids = BTreeSet::from([2]);
    let mut jobs = BTreeSet::from([1]);
    let calls = (0..30).map(|_| {
        let mut flows = stage.flows();
        tokio::spawn(async move { flows.create_flow(create(3)).await.unwrap().into_inner() })
    });
    for call in calls.collect::<Vec<_>>() {
        let answer = call.await.unwrap();
        assert!(ids.insert(answer.flow.unwrap().flow.unwrap().id));
        assert!(jobs.insert(answer.first_job_id));
        assert_eq!(answer.first_job_id % 3, 1, "ids are reserved three at a time");
    }
}

#[tokio::test]
async fn nodes_are_added_once_and_loaded_as_they_were() {
    let stage = Stage::new(Layout::Database).await;
    let flow = stage.created(3).await;
    let before = stage.revision().await;
    stage.flows().add_nodes(flow.add_nodes(&script("true"))).await.unwrap();
    assert_eq!(stage.revision().await, before, "the same nodes again change nothing");
    let request = wire::LoadFlowRequest { context_id: CONTEXT, flow_id: flow.id, on_behalf_of: 0 };
    let mut parts = stage.flows().load_flow(request).await.unwrap().into_inner();
    let part = parts.message().await.unwrap().unwrap();
    assert_eq!(part.flow.unwrap().context_uid, stage.context_uid);
    assert_eq!(part.nodes, flow.add_nodes(&script("true")).nodes);
    assert_eq!(parts.message().await.unwrap(), None);
}

#[tokio::test]
async fn nodes_that_were_not_reserved_are_refused() {
    let stage = Stage::new(Layout::Database).await;
    let mut flow = stage.created(2).await;
    flow.first_job += 1;
    assert_eq!(failure(stage.flows().add_nodes(flow.add_nodes(&script("x"))).await).0, Code::InvalidArgument);
}

#[tokio::test]
async fn a_flow_starts_complete_and_once() {
    let stage = Stage::new(Layout::Database).await;
    let answer = stage.flows().create_flow(create(1)).await.unwrap().into_inner();
    let empty = answer.flow.unwrap().flow.unwrap();
    let start = |id: u32, uid: &str, owner: &str| wire::StartFlowRequest {
        context_id: CONTEXT,
        flow_id: id,
        flow_uid: uid.to_owned(),
        owner: owner.to_owned(),
        on_behalf_of: EXECUTOR,
        ..Default::default()
    };
    let owner = OwnerId::random().to_string();
    let refused = failure(stage.flows().start_flow(start(empty.id, &empty.uid, &owner)).await);
    assert_eq!(refused, (Code::FailedPrecondition, "NODES_MISSING".to_owned()));

    let flow = stage.started(2).await;
    let again = stage.flows().start_flow(start(flow.id, &flow.uid, &flow.owner)).await.unwrap().into_inner();
    assert_eq!(again.flow.unwrap().flow.unwrap().revision, flow.revision, "the same start changes nothing");
    let refused = failure(stage.flows().start_flow(start(flow.id, &flow.uid, &owner)).await);
    assert_eq!(refused, (Code::FailedPrecondition, "FLOW_NOT_CREATED".to_owned()));
    let refused = failure(stage.flows().add_nodes(flow.add_nodes(&script("other"))).await);
    assert_eq!(refused.1, "FLOW_NOT_CREATED");
    let uid = OwnerId::random().to_string();
    assert_eq!(failure(stage.flows().start_flow(start(flow.id, &uid, &owner)).await).0, Code::NotFound);
    let active = stage.flows().list_active_flows(wire::ListActiveFlowsRequest {}).await.unwrap();
    let active = active.into_inner().message().await.unwrap().unwrap().flows;
    let only = wire::ActiveFlow { context_id: CONTEXT, flow_id: flow.id, flow_uid: flow.uid, due_millis: 0 };
    assert_eq!(active, [only]);
}

#[tokio::test]
async fn who_takes_a_flow_fences_the_former_owner() {
    let stage = Stage::new(Layout::Database).await;
    let flow = stage.started(1).await;
    let owner = OwnerId::random().to_string();
    let take = wire::TakeFlowRequest { context_id: CONTEXT, flow_id: flow.id, owner: owner.clone() };
    let taken = stage.flows().take_flow(take.clone()).await.unwrap().into_inner().flow.unwrap();
    assert_eq!((taken.owner.as_str(), taken.epoch), (owner.as_str(), flow.epoch + 1));
    assert_eq!(stage.commit(flow.step()).await.refusal(), wire::CommitRefusal::Fenced);
    let new =
        crate::stage::Running { owner, epoch: taken.epoch, last_commit: taken.last_commit, ..flow.clone() };
    assert_eq!(stage.commit(new.end()).await.refusal(), wire::CommitRefusal::Unspecified);
    assert_eq!(failure(stage.flows().take_flow(take).await).1, "FLOW_ENDED");
}

#[tokio::test]
async fn a_removed_flow_leaves_nothing() {
    let stage = Stage::new(Layout::Database).await;
    let clean: BTreeSet<String> =
        stage.command(Cmd::new("KEYS").arg("*")).await.texts().unwrap().into_iter().collect();
    let blob = put(&stage, b"echo hello").await;
    let answer = stage.flows().create_flow(create(250)).await.unwrap().into_inner();
    let mut flow = stage.created(1).await;
    let record = answer.flow.unwrap().flow.unwrap();
    (flow.id, flow.uid, flow.first_job, flow.count) = (record.id, record.uid, answer.first_job_id, 250);
    let job = JobSpec { script: ScriptSource::Blob(blob), ..script("") };
    stage.flows().add_nodes(flow.add_nodes(&job)).await.unwrap();
    let refs = stage.keys().blob_refs(blob.sha256);
    assert_eq!(stage.command(Cmd::new("SCARD").arg(&refs)).await.int(), Ok(250));
    assert_eq!(stage.command(Cmd::new("ZCARD").arg(&stage.keys().blob_idle())).await.int(), Ok(0));
    let owner = OwnerId::random().to_string();
    let start = wire::StartFlowRequest {
        context_id: CONTEXT,
        flow_id: flow.id,
        flow_uid: flow.uid.clone(),
        owner: owner.clone(),
        ..Default::default()
    };
    let started = stage.flows().start_flow(start).await.unwrap().into_inner().flow.unwrap();
    (flow.owner, flow.epoch, flow.last_commit) = (owner, started.epoch, started.last_commit);
    let step = wire::CommitRequest { messages: vec![flow.message(1), flow.message(2)], ..flow.step() };
    stage.apply(&mut flow, step).await;
    let remove = |id| wire::RemoveFlowRequest {
        context_id: CONTEXT,
        flow_id: id,
        on_behalf_of: EXECUTOR,
        ..Default::default()
    };
    let refused = failure(stage.flows().remove_flow(remove(flow.id)).await);
    assert_eq!(refused, (Code::FailedPrecondition, "FLOW_NOT_ENDED".to_owned()));
    assert_eq!(stage.commit(flow.end()).await.refusal(), wire::CommitRefusal::Unspecified);
    stage.flows().remove_flow(remove(flow.id)).await.unwrap();

    let left: BTreeSet<String> =
        stage.command(Cmd::new("KEYS").arg("*")).await.texts().unwrap().into_iter().collect();
    let left: Vec<_> = left.difference(&clean).map(String::as_str).collect();
    // What is left is the blob, which is unreferenced now, the other flow, and messages' keys in `msg_out`,
    // which are dropped when they are taken.
    let parsed = left.iter().map(|key| stage.keys().parse(key).unwrap());
    for key in parsed {
        use keys::ContextKey as K;
        let other = matches!(key, K::Flow(id) | K::FlowNodes(id) if id.0 != flow.id)
            || matches!(key, K::Flows | K::FlowsOf(_));
        let job = matches!(key, K::Job(_, id) if id.0 > 250);
        let blob = matches!(key, K::Blob(_) | K::BlobChunk(..) | K::BlobIdle);
        assert!(other || job || blob || matches!(key, K::MsgOut), "{key:?}");
    }
    assert_eq!(stage.command(Cmd::new("ZCARD").arg(&stage.keys().blob_idle())).await.int(), Ok(1));
    assert_eq!(failure(stage.flows().remove_flow(remove(flow.id)).await).0, Code::NotFound);
    let again = wire::CreateFlowRequest { flow_id: flow.id, ..create(1) };
    stage.flows().create_flow(again).await.unwrap();
}

#[tokio::test]
async fn nodes_with_many_files_are_added_and_removed_in_parts() {
    let stage = Stage::new(Layout::HashTag).await;
    let flow = stage.created(8).await;
    let mut request = flow.add_nodes(&script("true"));
    let mut blobs = Vec::new();
    for (n, node) in request.nodes.iter_mut().enumerate() {
        let mut job = script("true");
        for file in 0..200 {
            let blob = put(&stage, format!("{n} {file}").as_bytes()).await;
            job.files.insert(format!("f{file}"), blob);
            blobs.push(blob);
        }
        node.job_json = json(&job);
    }
    let before = stage.revision().await;
    stage.flows().add_nodes(request).await.unwrap();
    assert_eq!(stage.revision().await, before + 2, "800 references a script, about");
    let idle = Cmd::new("ZCARD").arg(&stage.keys().blob_idle());
    assert_eq!(stage.command(idle.clone()).await.int(), Ok(0));
    stage.push(&flow, &model::FlowInput::Cancel { grace_secs: 0 }).await;
    let remove = wire::RemoveFlowRequest {
        context_id: CONTEXT,
        flow_id: flow.id,
        on_behalf_of: EXECUTOR,
        ..Default::default()
    };
    stage.flows().remove_flow(remove).await.unwrap();
    assert_eq!(stage.command(idle).await.int(), Ok(1600));
}

#[tokio::test]
async fn a_missing_blob_is_named() {
    let stage = Stage::new(Layout::Database).await;
    let flow = stage.created(1).await;
    let missing = BlobRef { sha256: BlobHash::of(b"nowhere"), size: 7 };
    let job = JobSpec { script: ScriptSource::Blob(missing), ..script("") };
    let refused = failure(stage.flows().add_nodes(flow.add_nodes(&job)).await);
    assert_eq!(refused, (Code::FailedPrecondition, "BLOB_MISSING".to_owned()));
}

#[tokio::test]
async fn pages_go_through_everything_once() {
    let stage = Stage::new(Layout::Database).await;
    let flow = stage.created(120).await;
    for _ in 0..6 {
        stage.created(1).await;
    }
    let read = |token: String| wire::ReadNodesRequest {
        context_id: CONTEXT,
        flow_id: flow.id,
        on_behalf_of: EXECUTOR,
        page_size: 50,
        page_token: token,
        ..Default::default()
    };
    let (mut token, mut seen, mut pages) = (String::new(), Vec::new(), 0);
    loop {
        let page = stage.flows().read_nodes(read(token)).await.unwrap().into_inner();
        seen.extend(page.nodes.iter().map(|json| serde_json::from_slice::<FlowNode>(json).unwrap().job_id.0));
        (token, pages) = (page.next_page_token, pages + 1);
        if token.is_empty() {
            break;
        }
    }
    assert_eq!((pages, seen), (3, (flow.first_job..flow.first_job + 120).collect()));

    let read = |status, token: String, actor| wire::ReadFlowsRequest {
        context_id: CONTEXT,
        on_behalf_of: actor,
        status,
        page_size: 3,
        page_token: token,
        ..Default::default()
    };
    let mut ids = Vec::new();
    let mut token = String::new();
    loop {
        let page = stage.flows().read_flows(read(0, token, EXECUTOR)).await.unwrap().into_inner();
        ids.extend(page.flows.iter().map(|flow| flow.id));
        token = page.next_page_token;
        if token.is_empty() {
            break;
        }
        let stolen = stage.flows().read_flows(read(0, token.clone(), ADMIN)).await;
        assert_eq!(failure(stolen).0, Code::InvalidArgument, "a token belongs to its caller");
    }
    assert_eq!(ids, (flow.id..flow.id + 7).rev().collect::<Vec<_>>(), "newest first");
    let finished = v1::FlowStatus::Finished.into();
    let none = stage.flows().read_flows(read(finished, String::new(), ADMIN)).await.unwrap().into_inner();
    assert_eq!(none, wire::ReadFlowsResponse::default());
}

#[tokio::test]
async fn a_step_of_500_nodes_is_one_change() {
    let stage = Stage::new(Layout::Database).await;
    let mut flow = stage.started(500).await;
    let before_it = flow.clone();
    let node = |place| {
        let mut node = before_it.node(place);
        node.state = NodeState::Completed;
        wire::NodeCommit {
            job_id: node.job_id.0,
            node_json: json(&node),
            job_status: "finished".to_owned(),
            result_json: b"{}".to_vec().into(),
            events: vec![
                format!(r#"{{"kind":"node","flow_id":{},"n":{place}}}"#, before_it.id).into_bytes().into(),
            ],
            ended_message: String::new(),
        }
    };
    let step = wire::CommitRequest { nodes: (0..500).map(node).collect(), ..flow.step() };
    let before = stage.revision().await;
    assert_eq!(stage.apply(&mut flow, step.clone()).await, before + 1);
    let again = stage.commit(step).await;
    assert_eq!((again.refusal(), again.revision), (wire::CommitRefusal::Unspecified, before + 1));
    assert_eq!(stage.revision().await, before + 1);
    // Each job, message and set of references is a record; the flow's own take some of the 1000.
    let messages = |count: u32| (1..=count).map(|id| flow.message(id)).collect::<Vec<_>>();
    let too_many = wire::CommitRequest { messages: messages(1001), ..flow.step() };
    assert_eq!(stage.commit(too_many).await.refusal(), wire::CommitRefusal::Invalid);
    let nodes: Vec<_> = (0..500).map(node).collect();
    let too_many = wire::CommitRequest { nodes: nodes.clone(), messages: messages(500), ..flow.step() };
    assert_eq!(stage.commit(too_many).await.refusal(), wire::CommitRefusal::Invalid);
    let one_more = [nodes, vec![node(0)]].concat();
    let too_many = wire::CommitRequest { nodes: one_more, ..flow.step() };
    assert_eq!(stage.commit(too_many).await.refusal(), wire::CommitRefusal::Invalid);
    let gone = wire::CommitRequest { context_uid: OwnerId::random().to_string(), ..flow.step() };
    assert_eq!(stage.commit(gone).await.refusal(), wire::CommitRefusal::Gone);
}

#[tokio::test]
async fn while_redis_is_away_outcomes_are_unknown_and_nothing_is_lost() {
    let redis = testkit::RedisServer::builder().persistent().start();
    let mut stage = Stage::over(redis, Layout::Database).await;
    let mut flow = stage.started(1).await;
    let first = flow.step();
    stage.apply(&mut flow, first.clone()).await;
    stage.redis.kill9();
    let end = flow.end();
    assert_eq!(stage.commit(end.clone()).await.refusal(), wire::CommitRefusal::UnknownOutcome);
    let refused = failure(stage.flows().create_flow(create(1)).await);
    assert_eq!(refused, (Code::Unavailable, "STORE_UNAVAILABLE".to_owned()));
    stage.redis.restart();
    let again = stage.commit(first).await;
    assert_eq!((again.refusal(), again.revision), (wire::CommitRefusal::Unspecified, flow.revision));
    let ended = stage.commit(end).await;
    assert_eq!((ended.refusal(), ended.revision), (wire::CommitRefusal::Unspecified, flow.revision + 1));
}

async fn put(stage: &Stage, bytes: &[u8]) -> BlobRef {
    let piece =
        v1::PutBlobRequest { context_id: CONTEXT, sha256: String::new(), data: bytes.to_vec().into() };
    stage.jobs(EXECUTOR).put_blob(tokio_stream::iter([piece])).await.unwrap();
    BlobRef { sha256: BlobHash::of(bytes), size: bytes.len() as u64 }
}
