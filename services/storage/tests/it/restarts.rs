//! Running an ended flow again, starting one without an owner, and filling one again.

use std::collections::BTreeMap;

use keys::Layout;
use kv::Cmd;
use model::job::BlobRef;
use model::{BlobHash, FlowId, FlowInput, JobSpec, OwnerId, ScriptSource, Timestamp};
use proto::internal::v1 as wire;
use proto::v1;
use tonic::Code;

use crate::stage::{CONTEXT, EXECUTOR, Running, Stage, create, failure, json, script};

const RERUN: &str = r#"{"scope":"failed"}"#;

fn restart(flow: &Running, request_id: &str) -> wire::RestartFlowRequest {
    wire::RestartFlowRequest {
        request_id: request_id.to_owned(),
        request_hash: "aa".to_owned(),
        rerun_json: RERUN.to_owned(),
        env_vars: BTreeMap::from([("B".to_owned(), "2".to_owned())]),
        ..flow.restart()
    }
}

/// A flow's owner gets the trace with the flow, also after a change of owner.
#[tokio::test]
async fn each_run_belongs_to_the_trace_of_the_call_that_began_it() {
    let traces = [
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-5bf92f3577b34da6a3ce929d0e0e4736-10f067aa0ba902b7-00",
    ];
    for layout in [Layout::Database, Layout::HashTag] {
        let stage = Stage::new(layout).await;
        let request = wire::CreateFlowRequest { traceparent: traces[0].to_owned(), ..create(1) };
        let created = stage.created_by(request).await;
        let mut flow = stage.start_flow(created).await;
        let key = stage.keys().flow(FlowId(flow.id));
        assert_eq!(stage.hash(&key).await["traceparent"], traces[0]);
        let end = flow.end();
        stage.apply(&mut flow, end).await;
        let again = wire::RestartFlowRequest { traceparent: traces[1].to_owned(), ..flow.restart() };
        let again = stage.flows().restart_flow(again).await.unwrap().into_inner();
        assert_eq!(again.flow.unwrap().traceparent, traces[1]);

        let owner = OwnerId::random().to_string();
        let take = wire::TakeFlowRequest { context_id: CONTEXT, flow_id: flow.id, owner: owner.clone() };
        let taken = stage.flows().take_flow(take).await.unwrap().into_inner().flow.unwrap();
        assert_eq!(taken.traceparent, traces[1]);
        let mut flow = Running { owner, epoch: taken.epoch, last_commit: taken.last_commit, ..flow };
        let end = flow.end();
        stage.apply(&mut flow, end).await;
        let untraced = wire::RestartFlowRequest { generation: 2, ..flow.restart() };
        let untraced = stage.flows().restart_flow(untraced).await.unwrap().into_inner();
        assert_eq!(untraced.flow.unwrap().traceparent, "");
        assert!(!stage.hash(&key).await.contains_key("traceparent"));
    }
}

#[tokio::test]
async fn an_ended_flow_is_run_again_once() {
    for layout in [Layout::Database, Layout::HashTag] {
        let stage = Stage::new(layout).await;
        let mut flow = stage.started(1).await;
        let refused = failure(stage.flows().restart_flow(restart(&flow, "1")).await);
        assert_eq!(refused, (Code::FailedPrecondition, "FLOW_NOT_ENDED".to_owned()));
        stage.push(&flow, &FlowInput::Cancel { grace_secs: 7 }).await;
        let end = flow.end();
        stage.apply(&mut flow, end).await;

        let first = stage.flows().restart_flow(restart(&flow, "1")).await.unwrap().into_inner();
        assert!(first.restarted);
        let record = first.flow.unwrap();
        assert_eq!((record.owner.as_str(), record.epoch, record.cancel_grace_secs), ("", 2, 0));
        assert_eq!(record.rerun_json, RERUN);
        assert_eq!(record.last_commit.len(), 32);
        assert_ne!(record.last_commit, flow.last_commit);
        let again = record.flow.clone().unwrap();
        assert_eq!((again.status(), again.generation), (v1::FlowStatus::Started, 2));
        assert_eq!((again.cancel_requested_time, again.result.len()), (None, 0));
        assert_eq!(again.env_vars, restart(&flow, "1").env_vars);
        let deadline = again.deadline_time.unwrap();
        assert!(deadline.seconds >= i64::try_from(Timestamp::now().as_secs()).unwrap() + 55, "anew from now");
        let active = Cmd::new("SISMEMBER").arg(&stage.keys().flows_active()).arg(&flow.member());
        assert_eq!(stage.command(active).await.int(), Ok(1));
        assert_eq!(stage.commit(flow.step()).await.refusal(), wire::CommitRefusal::Fenced);

        let same = stage.flows().restart_flow(restart(&flow, "1")).await.unwrap().into_inner();
        assert_eq!((same.restarted, same.flow.unwrap()), (false, record));
        let reused = wire::RestartFlowRequest { request_hash: "bb".to_owned(), ..restart(&flow, "1") };
        assert_eq!(failure(stage.flows().restart_flow(reused).await).1, "REQUEST_ID_REUSED");

        let find = |request_id: &str, request_hash: &str, on_behalf_of| wire::FindRequestRequest {
            request_id: request_id.to_owned(),
            request_hash: request_hash.to_owned(),
            context_id: CONTEXT,
            on_behalf_of,
        };
        let found = async |request| stage.flows().find_request(request).await.map(|a| a.into_inner().found);
        assert!(found(find("1", "aa", EXECUTOR)).await.unwrap());
        assert!(!found(find("9", "aa", EXECUTOR)).await.unwrap());
        assert_eq!(failure(found(find("1", "bb", EXECUTOR)).await).1, "REQUEST_ID_REUSED");
        assert_eq!(failure(found(find("1", "aa", 999)).await).0, Code::NotFound);
        assert_eq!(failure(found(find("", "aa", EXECUTOR)).await).0, Code::InvalidArgument);

        // It is taken, ends, and what was looked at before is not what it is now.
        let take = wire::TakeFlowRequest { context_id: CONTEXT, flow_id: flow.id, owner: flow.owner.clone() };
        let taken = stage.flows().take_flow(take).await.unwrap().into_inner().flow.unwrap();
        (flow.epoch, flow.last_commit) = (taken.epoch, taken.last_commit);
        let end = flow.end();
        stage.apply(&mut flow, end).await;
        let refused = failure(stage.flows().restart_flow(restart(&flow, "2")).await);
        assert_eq!(refused, (Code::Aborted, "REVISION_MISMATCH".to_owned()));
        let unseen = flow.revision + 1;
        let second =
            wire::RestartFlowRequest { generation: 2, expected_revision: unseen, ..restart(&flow, "2") };
        let refused = failure(stage.flows().restart_flow(second.clone()).await);
        assert_eq!(refused, (Code::Aborted, "REVISION_MISMATCH".to_owned()));
        let remove = wire::RemoveFlowRequest {
            context_id: CONTEXT,
            flow_id: flow.id,
            on_behalf_of: EXECUTOR,
            expected_revision: unseen,
            ..Default::default()
        };
        let refused = failure(stage.flows().remove_flow(remove).await);
        assert_eq!(refused, (Code::Aborted, "REVISION_MISMATCH".to_owned()));
        let second = wire::RestartFlowRequest { expected_revision: flow.revision, ..second };
        assert!(stage.flows().restart_flow(second).await.unwrap().into_inner().restarted);
        let gone = wire::RestartFlowRequest { flow_id: 999, ..restart(&flow, "3") };
        assert_eq!(failure(stage.flows().restart_flow(gone).await).0, Code::NotFound);
        let wrong = wire::RestartFlowRequest { rerun_json: "{}".to_owned(), ..restart(&flow, "4") };
        assert_eq!(failure(stage.flows().restart_flow(wrong).await).0, Code::InvalidArgument);
    }
}

#[tokio::test]
async fn a_flow_starts_without_an_owner() {
    let stage = Stage::new(Layout::Database).await;
    let uid = model::FlowUid::random().to_string();
    let chosen = wire::CreateFlowRequest { flow_uid: uid.clone(), ..crate::stage::create(1) };
    let made = stage.flows().create_flow(chosen).await.unwrap().into_inner();
    assert_eq!(made.flow.unwrap().flow.unwrap().uid, uid);
    let flow = stage.created(1).await;
    let start = wire::StartFlowRequest {
        context_id: CONTEXT,
        flow_id: flow.id,
        flow_uid: flow.uid.clone(),
        on_behalf_of: EXECUTOR,
        ..Default::default()
    };
    let signal = FlowInput::Signal { name: "early".parse().unwrap() };
    stage.push(&flow, &signal).await;
    let started = stage.flows().start_flow(start.clone()).await.unwrap().into_inner();
    assert_eq!(started.signals, ["early"]);
    let started = started.flow.unwrap();
    assert_eq!((started.owner.as_str(), started.epoch, started.last_commit.len()), ("", 1, 32));
    // The answer was lost, and another owner has taken the flow meanwhile.
    let owner = model::OwnerId::random().to_string();
    let take = wire::TakeFlowRequest { context_id: CONTEXT, flow_id: flow.id, owner: owner.clone() };
    let taken = stage.flows().take_flow(take).await.unwrap().into_inner().flow.unwrap();
    assert_ne!(taken.last_commit, started.last_commit);
    let again = stage.flows().start_flow(start).await.unwrap().into_inner().flow.unwrap();
    assert_eq!((again.owner, again.epoch), (owner, 2));
}

#[tokio::test]
async fn nodes_give_way_while_the_flow_is_filled() {
    for layout in [Layout::Database, Layout::HashTag] {
        let stage = Stage::new(layout).await;
        let flow = stage.created(2).await;
        let text = b"echo one".to_vec();
        let piece =
            v1::PutBlobRequest { context_id: CONTEXT, sha256: String::new(), data: text.clone().into() };
        stage.jobs(EXECUTOR).put_blob(tokio_stream::iter([piece])).await.unwrap();
        let blob = BlobRef { sha256: BlobHash::of(&text), size: text.len() as u64 };
        let of_blob = JobSpec { script: ScriptSource::Blob(blob), ..script("") };
        let other = |job: &JobSpec| {
            let mut request = flow.add_nodes(job);
            for (place, stored) in (0..).zip(&mut request.nodes) {
                let mut node = flow.node(place);
                node.depends_named = vec!["node-0".parse().unwrap()];
                stored.node_json = json(&node);
            }
            request
        };
        let references = Cmd::new("SCARD").arg(&stage.keys().blob_refs(blob.sha256));
        for request in [other(&of_blob), flow.add_nodes(&of_blob)] {
            stage.flows().add_nodes(request).await.unwrap();
            assert_eq!(stage.command(references.clone()).await.int(), Ok(2));
        }
        // Back to scripts that only look like references.
        let tricky = script(&format!("sha256:{} \"sha256\":\"{}\"", blob.sha256, blob.sha256));
        stage.flows().add_nodes(flow.add_nodes(&tricky)).await.unwrap();
        assert_eq!(stage.command(references.clone()).await.int(), Ok(0));
        assert_eq!(stage.command(Cmd::new("ZCARD").arg(&stage.keys().blob_idle())).await.int(), Ok(1));
        stage.flows().add_nodes(other(&of_blob)).await.unwrap();
        stage.flows().add_nodes(flow.add_nodes(&tricky)).await.unwrap();
        let request = wire::LoadFlowRequest { context_id: CONTEXT, flow_id: flow.id, on_behalf_of: EXECUTOR };
        let mut parts = stage.flows().load_flow(request).await.unwrap().into_inner();
        assert_eq!(parts.message().await.unwrap().unwrap().nodes, flow.add_nodes(&tricky).nodes);
        let before = stage.revision().await;
        stage.flows().add_nodes(flow.add_nodes(&tricky)).await.unwrap();
        assert_eq!(stage.revision().await, before, "the same again changes nothing");
    }
}
