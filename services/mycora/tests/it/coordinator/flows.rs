//! Flows: 5 follows the script, 6 does not exist, the others are for single commands.

use proto::v1;
use proto::v1::flow_service_server::FlowService;
use proto::v1::watch_flow_response::Event;
use proto::v1::watch_flows_response::Event as All;
use rpc::Error;
use tokio_stream::{Iter, StreamExt};
use tonic::{Request, Response, Status};

use super::{Answers, CoordinatorScript, ScriptedServices, answers, refused};

/// Number of a flow whose log never ends.
const TALKS_ON: u32 = 7;
/// Number of a flow that failed, and was another actor's.
const SIGNED: u32 = 12;
/// The flow of a job that completes, fails, never ends; by the name of the job.
const JOBS: [(&str, u32); 3] = [("good", 8), ("bad", 9), ("slow", 10)];

fn flow(id: u32, status: v1::FlowStatus) -> v1::Flow {
    let result = match status {
        v1::FlowStatus::Finished => [("a.answer".to_owned(), "42".to_owned())].into(),
        _ => Default::default(),
    };
    v1::Flow { id, name: "f".into(), context_id: 1, status: status.into(), result, ..Default::default() }
}

fn node(state: v1::NodeState) -> v1::FlowNode {
    v1::FlowNode { job_id: 1, name: "a".into(), attempt: 1, state: state.into(), ..Default::default() }
}

fn signature(node: v1::NodeSpec) -> (String, String) {
    (node.name, node.job.unwrap_or_default().signature)
}

fn answer(event: Event, resume_position: &str) -> Result<v1::WatchFlowResponse, Status> {
    Ok(v1::WatchFlowResponse { event: Some(event), resume_position: resume_position.into() })
}

fn change(state: v1::NodeState, reason: &str) -> Event {
    let reason = (!reason.is_empty()).then(|| v1::Reason { code: reason.into(), detail: String::new() });
    Event::NodeChange(v1::NodeChange {
        job_id: 1,
        attempt: 1,
        state: state.into(),
        reason,
        ..Default::default()
    })
}

#[tonic::async_trait]
impl FlowService for ScriptedServices {
    async fn submit_flow(
        &self,
        request: Request<v1::SubmitFlowRequest>,
    ) -> Result<Response<v1::SubmitFlowResponse>, Status> {
        let v1::SubmitFlowRequest { request_id, flow: spec, .. } = request.into_inner();
        self.look_for_uploads()?;
        let calls = self.note(|recorded| {
            recorded.signatures = spec.into_iter().flat_map(|flow| flow.nodes).map(signature).collect();
            recorded.request_ids.push(request_id);
            recorded.request_ids.len()
        });
        if calls == 1 {
            return Err(Status::unavailable("the answer is lost"));
        }
        Ok(Response::new(v1::SubmitFlowResponse { flow: Some(flow(5, v1::FlowStatus::Started)) }))
    }

    async fn create_flow(
        &self,
        request: Request<v1::CreateFlowRequest>,
    ) -> Result<Response<v1::CreateFlowResponse>, Status> {
        let v1::CreateFlowRequest { flow: header, node_count, .. } = request.into_inner();
        let header = header.unwrap_or_default();
        self.call(&format!("create `{}` {} of {node_count}", header.name, header.nodes.len()));
        Ok(Response::new(v1::CreateFlowResponse { flow: Some(flow(5, v1::FlowStatus::Created)) }))
    }

    async fn add_flow_nodes(
        &self,
        request: Request<v1::AddFlowNodesRequest>,
    ) -> Result<Response<v1::AddFlowNodesResponse>, Status> {
        let v1::AddFlowNodesRequest { first_index, nodes, .. } = request.into_inner();
        self.look_for_uploads()?;
        let calls = self.call(&format!("add {} at {first_index}", nodes.len()));
        match self.script {
            CoordinatorScript::RefusePart if first_index > 0 => {
                let mut violations = model::Violations::new();
                violations.add("nodes[2].policy.timeout_secs", "not today");
                Err(Error::invalid(violations).into())
            }
            // The answer is lost once, after the nodes were kept.
            _ if first_index > 0 && calls == 1 => Err(Status::unavailable("the scheduler ends")),
            _ => Ok(Response::new(v1::AddFlowNodesResponse { first_job_id: 1 + first_index })),
        }
    }

    async fn start_flow(
        &self,
        _: Request<v1::StartFlowRequest>,
    ) -> Result<Response<v1::StartFlowResponse>, Status> {
        self.call("start");
        Ok(Response::new(v1::StartFlowResponse { flow: Some(flow(5, v1::FlowStatus::Started)) }))
    }

    async fn get_flow(
        &self,
        request: Request<v1::GetFlowRequest>,
    ) -> Result<Response<v1::GetFlowResponse>, Status> {
        match request.into_inner().flow_id {
            id @ 8.. => {
                Ok(Response::new(v1::GetFlowResponse { flow: Some(flow(id, v1::FlowStatus::Started)) }))
            }
            _ => Err(Status::not_found("flow 6 in context 1 was not found")),
        }
    }

    async fn list_flows(
        &self,
        request: Request<v1::ListFlowsRequest>,
    ) -> Result<Response<v1::ListFlowsResponse>, Status> {
        let v1::ListFlowsRequest {
            page_token,
            status,
            caller_id,
            name_prefix,
            created_from,
            created_before,
            ..
        } = request.into_inner();
        let secs = |time: Option<prost_types::Timestamp>| time.map_or(0, |time| time.seconds);
        let (from, before) = (secs(created_from), secs(created_before));
        self.call(&format!("list {status} {caller_id} {name_prefix} {from} {before}"));
        let next_page_token = if page_token == "second" { String::new() } else { "second".to_owned() };
        let flows = vec![flow(5, v1::FlowStatus::Started)];
        Ok(Response::new(v1::ListFlowsResponse { flows, next_page_token }))
    }

    async fn list_flow_nodes(
        &self,
        request: Request<v1::ListFlowNodesRequest>,
    ) -> Result<Response<v1::ListFlowNodesResponse>, Status> {
        let v1::ListFlowNodesRequest { flow_id, states, .. } = request.into_inner();
        self.call(&format!("nodes {states:?}"));
        let mut node = node(v1::NodeState::Completed);
        if flow_id == 9 {
            node.state = v1::NodeState::Failed.into();
            node.reason = Some(v1::Reason { code: "EXIT_CODE".into(), detail: "exit code 3".into() });
        }
        node.result.insert("answer".into(), "42".into());
        let nodes = vec![node];
        Ok(Response::new(v1::ListFlowNodesResponse { nodes, next_page_token: String::new() }))
    }

    type WatchFlowStream = Answers<v1::WatchFlowResponse>;

    async fn watch_flow(
        &self,
        request: Request<v1::WatchFlowRequest>,
    ) -> Result<Response<Self::WatchFlowStream>, Status> {
        let v1::WatchFlowRequest { flow_id: id, resume_position: position, .. } = request.into_inner();
        self.note(|recorded| recorded.resumed_from.push(position.clone()));
        if position == "2" {
            return Ok(Response::new(answers([
                answer(change(v1::NodeState::Completed, ""), "3"),
                answer(Event::Flow(flow(id, v1::FlowStatus::Finished)), "4"),
            ])));
        }
        let snapshot = |status, state| {
            answers([
                answer(Event::Flow(flow(id, status)), ""),
                answer(Event::Node(node(state)), ""),
                answer(Event::SnapshotEnd(v1::SnapshotEnd {}), "1"),
            ])
        };
        let waits = || snapshot(v1::FlowStatus::Started, v1::NodeState::Ready);
        let no_runner = || tokio_stream::once(answer(change(v1::NodeState::Ready, "NO_LIVE_RUNNER"), "2"));
        let broken = tokio_stream::once(Err(Status::unavailable("the scheduler ends")));
        Ok(Response::new(match (id, self.script) {
            (8, _) => snapshot(v1::FlowStatus::Finished, v1::NodeState::Completed),
            (9, _) => snapshot(v1::FlowStatus::Error, v1::NodeState::Failed),
            (_, CoordinatorScript::BreakAndFinish) => Box::pin(waits().chain(no_runner()).chain(broken)),
            _ => Box::pin(waits().chain(no_runner()).chain(tokio_stream::pending())),
        }))
    }

    type WatchFlowsStream = Iter<std::vec::IntoIter<Result<v1::WatchFlowsResponse, Status>>>;

    /// Breaks off once, behind the snapshot; goes on with an end and a deletion, and ends.
    async fn watch_flows(
        &self,
        request: Request<v1::WatchFlowsRequest>,
    ) -> Result<Response<Self::WatchFlowsStream>, Status> {
        let request = request.into_inner();
        let snapshot = request.snapshot().as_str_name();
        let v1::WatchFlowsRequest { context_id, caller_id, name_prefix, resume_position, .. } = request;
        self.call(&format!("watch {context_id} {caller_id} {name_prefix} {snapshot} {resume_position}"));
        let say = |event, position: &str| {
            Ok(v1::WatchFlowsResponse { event: Some(event), resume_position: position.to_owned() })
        };
        let flow = |status: v1::FlowStatus| {
            let update_time = Some(prost_types::Timestamp { seconds: 1_763_690_000, nanos: 0 });
            let (id, name, status) = (5, "f".to_owned(), status.into());
            All::Flow(v1::FlowSummary { id, name, caller_id: 1, status, update_time, ..Default::default() })
        };
        let answers = if resume_position.is_empty() {
            let slow =
                rpc::Error::new(rpc::ErrorKind::ResourceExhausted, rpc::RpcReason::SlowConsumer, "slow");
            vec![
                say(flow(v1::FlowStatus::Started), ""),
                say(All::SnapshotEnd(v1::SnapshotEnd {}), "7.1-00"),
                Err(slow.into()),
            ]
        } else {
            vec![
                say(flow(v1::FlowStatus::Finished), "8.1-00"),
                say(All::Removed(v1::RemovedFlow { flow_id: 5 }), "9.1-00"),
            ]
        };
        Ok(Response::new(tokio_stream::iter(answers)))
    }

    async fn signal_flow(
        &self,
        request: Request<v1::SignalFlowRequest>,
    ) -> Result<Response<v1::SignalFlowResponse>, Status> {
        let v1::SignalFlowRequest { name, payload, .. } = request.into_inner();
        let already_given = self.call(&format!("signal {name} {payload}")) > 1;
        Ok(Response::new(v1::SignalFlowResponse { already_given }))
    }

    async fn cancel_flow(
        &self,
        request: Request<v1::CancelFlowRequest>,
    ) -> Result<Response<v1::CancelFlowResponse>, Status> {
        let v1::CancelFlowRequest { flow_id, grace_secs, .. } = request.into_inner();
        self.call(&format!("cancel {flow_id} {grace_secs:?}"));
        let status = match self.script {
            CoordinatorScript::RefusePart => v1::FlowStatus::Created,
            _ => v1::FlowStatus::Cancelled,
        };
        Ok(Response::new(v1::CancelFlowResponse { flow: Some(flow(flow_id, status)) }))
    }

    async fn cancel_node(
        &self,
        request: Request<v1::CancelNodeRequest>,
    ) -> Result<Response<v1::CancelNodeResponse>, Status> {
        self.call(&format!("cancel node {}", request.into_inner().node));
        Ok(Response::new(v1::CancelNodeResponse {}))
    }

    async fn retry_flow(
        &self,
        request: Request<v1::RetryFlowRequest>,
    ) -> Result<Response<v1::RetryFlowResponse>, Status> {
        let request = request.into_inner();
        let v1::RetryFlowRequest { nodes, env_vars, unset_env_vars, dry_run, .. } = &request;
        let scope = request.scope().as_str_name();
        self.call(&format!("retry {scope} {nodes:?} {env_vars:?} {unset_env_vars:?} {dry_run}"));
        match (request.flow_id, *dry_run) {
            (8, true) => return Ok(Response::new(v1::RetryFlowResponse::default())),
            (8, false) => return Err(refused(rpc::RpcReason::NothingToRetry, "nothing of flow 8 failed")),
            (10, _) => return Err(refused(rpc::RpcReason::FlowNotEnded, "flow 10 is started")),
            (SIGNED, _) => {
                self.note(|recorded| recorded.signatures = request.signatures.clone());
                let mut again = flow(SIGNED, v1::FlowStatus::Error);
                again.caller_id = 7;
                let run_again = vec!["b".to_owned()];
                let (flow, run_again_count) = (Some(again), 1);
                let answer = v1::RetryFlowResponse { flow, run_again_count, run_again, ..Default::default() };
                return Ok(Response::new(answer));
            }
            _ => {}
        }
        let mut again = flow(5, v1::FlowStatus::Started);
        again.generation = if *dry_run { 1 } else { 2 };
        Ok(Response::new(v1::RetryFlowResponse {
            flow: Some(again),
            run_again_count: 1002,
            reused_count: 1,
            run_again: vec!["a".into(), "b".into()],
            reused: vec!["split".into()],
        }))
    }

    async fn explain_node(
        &self,
        request: Request<v1::ExplainNodeRequest>,
    ) -> Result<Response<v1::ExplainNodeResponse>, Status> {
        let name = request.into_inner().node;
        let finding = |kind: v1::FindingKind, blocks, detail: &str| v1::Finding {
            kind: kind.into(),
            blocks,
            detail: detail.into(),
        };
        Ok(Response::new(v1::ExplainNodeResponse {
            node: Some(node(v1::NodeState::Pending)),
            summary: format!("`{name}` is pending: it waits for signal:go"),
            findings: vec![
                finding(v1::FindingKind::Dependencies, false, "all 2 before it completed"),
                finding(v1::FindingKind::Prerequisites, true, "signal:go was not given"),
            ],
        }))
    }

    async fn get_flow_graph(
        &self,
        request: Request<v1::GetFlowGraphRequest>,
    ) -> Result<Response<v1::GetFlowGraphResponse>, Status> {
        let graph = request.into_inner().format().as_str_name().to_owned();
        Ok(Response::new(v1::GetFlowGraphResponse { graph }))
    }

    async fn run_job(
        &self,
        request: Request<v1::RunJobRequest>,
    ) -> Result<Response<v1::RunJobResponse>, Status> {
        let v1::RunJobRequest { node: job, wait_secs, .. } = request.into_inner();
        self.look_for_uploads()?;
        let job = job.unwrap_or_default();
        let name = job.name.clone();
        self.note(|recorded| recorded.signatures = [signature(job)].into());
        self.call(&format!("run {name} {wait_secs}"));
        let id = JOBS.iter().find(|(job, _)| *job == name).map_or(5, |(_, id)| *id);
        let flow = Some(flow(id, v1::FlowStatus::Started));
        Ok(Response::new(v1::RunJobResponse { flow, node: Some(node(v1::NodeState::Ready)) }))
    }

    async fn update_node_status(
        &self,
        request: Request<v1::UpdateNodeStatusRequest>,
    ) -> Result<Response<v1::UpdateNodeStatusResponse>, Status> {
        let request = request.into_inner();
        let v1::UpdateNodeStatusRequest { node, attempt, result, .. } = &request;
        self.call(&format!("report {node} {attempt} {} {result:?}", request.state().as_str_name()));
        Ok(Response::new(v1::UpdateNodeStatusResponse {}))
    }

    async fn delete_flow(
        &self,
        request: Request<v1::DeleteFlowRequest>,
    ) -> Result<Response<v1::DeleteFlowResponse>, Status> {
        let id = request.into_inner().flow_id;
        self.call(&format!("delete {id}"));
        match (id, self.script) {
            (5, CoordinatorScript::Wait) => Err(Status::permission_denied("actor 1 may not")),
            _ => Ok(Response::new(v1::DeleteFlowResponse {})),
        }
    }

    type StreamFlowLogsStream = Answers<v1::StreamFlowLogsResponse>;

    async fn stream_flow_logs(
        &self,
        request: Request<v1::StreamFlowLogsRequest>,
    ) -> Result<Response<Self::StreamFlowLogsStream>, Status> {
        let v1::StreamFlowLogsRequest { flow_id, node, attempt, offset, tail, .. } = request.into_inner();
        self.call(&format!("logs {node} {attempt} {offset}{}", if tail { " tail" } else { "" }));
        let piece = |offset, data: &'static str| {
            let (node, data) = ("a".into(), data.into());
            Ok(v1::StreamFlowLogsResponse { node, attempt: 1, offset, data, ..Default::default() })
        };
        if attempt == 9 {
            return Ok(Response::new(answers([])));
        }
        if tail {
            let gap = v1::LogGap {
                end: 9,
                reason: v1::LogGapReason::TailOnly.into(),
                detail: "only the tail was asked for".into(),
            };
            let gap = v1::StreamFlowLogsResponse { gap: Some(gap), ..piece(0, "")? };
            return Ok(Response::new(answers([Ok(gap), piece(9, "e\ntwo\n")])));
        }
        let pieces = answers([piece(0, "one\nt"), piece(5, "wo\n")]);
        Ok(Response::new(match flow_id {
            TALKS_ON | 10 => Box::pin(pieces.chain(tokio_stream::pending())),
            _ => pieces,
        }))
    }
}
