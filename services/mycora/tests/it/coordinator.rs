//! A coordinator that follows a script, over real mTLS: what the command line
//! makes of lost answers, broken streams and waiting jobs.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Mutex;
use std::sync::{Arc, PoisonError};
use std::time::SystemTime;

use identity::{Identity, IssueOptions, Pki, ServiceName, TrustDomain};
use mycora_cli::profile::Profile;
use proto::v1;
use proto::v1::flow_service_server::{FlowService, FlowServiceServer};
use proto::v1::job_service_server::{JobService, JobServiceServer};
use proto::v1::watch_flow_response::Event;
use rpc::{Allow, MethodPolicy, Mount, Server, TlsFiles};
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// How the script goes on after the first changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Script {
    /// The stream breaks once, and the flow finishes when it is resumed.
    BreakAndFinish,
    /// The job waits for a runner for ever.
    Wait,
}

/// What the coordinator was asked.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    pub(crate) request_ids: Vec<String>,
    pub(crate) resumed_from: Vec<String>,
    pub(crate) uploaded: Vec<Vec<u8>>,
}

#[derive(Clone)]
struct Scripted {
    script: Script,
    asked: Arc<Mutex<Asked>>,
}

/// A coordinator that serves until the runtime ends.
pub(crate) struct Coordinator {
    pub(crate) profile: PathBuf,
    asked: Arc<Mutex<Asked>>,
    _runtime: tokio::runtime::Runtime,
}

impl Coordinator {
    pub(crate) fn start(dir: &Path, script: Script) -> Self {
        let now = SystemTime::now();
        let pki = Pki::init(&dir.join("pki"), &TrustDomain::default(), now).expect("an authority");
        let issue = |who| pki.issue(who, &IssueOptions::from(now)).expect("issued");
        let server = issue(Identity::Service(ServiceName::Mycora));
        let actor = issue(Identity::Actor(model::ActorId(1)));
        let asked = Arc::new(Mutex::new(Asked::default()));
        let scripted = Scripted { script, asked: asked.clone() };
        let policy = MethodPolicy::new(&[&[
            ("/mycora.v1.FlowService/*", &[Allow::AnyActor]),
            ("/mycora.v1.JobService/*", &[Allow::AnyActor]),
        ]])
        .expect("a policy");
        let mount = Mount::builder(policy)
            .service(FlowServiceServer::new(scripted.clone()))
            .service(JobServiceServer::new(scripted))
            .build()
            .expect("a mount");
        let tls = TlsFiles::new(&server.ca, &server.certificate, &server.key);
        let server = Server::new(mount, &tls).expect("a server");
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = runtime.block_on(tokio::net::TcpListener::bind(any_port)).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        runtime.spawn(server.serve(listener, std::future::pending()));
        let profile = dir.join("client.toml");
        Profile::local(port, &actor.ca, &actor.certificate, &actor.key, 1, 1).save(&profile).expect("saved");
        Self { profile, asked, _runtime: runtime }
    }

    pub(crate) fn asked<T>(&self, look: impl FnOnce(&Asked) -> T) -> T {
        look(&self.asked.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Scripted {
    fn note<T>(&self, change: impl FnOnce(&mut Asked) -> T) -> T {
        change(&mut self.asked.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn flow(status: v1::FlowStatus) -> v1::Flow {
    let result = match status {
        v1::FlowStatus::Finished => [("a.answer".to_owned(), "42".to_owned())].into(),
        _ => Default::default(),
    };
    v1::Flow { id: 5, name: "f".into(), context_id: 1, status: status.into(), result, ..Default::default() }
}

fn node(state: v1::NodeState) -> v1::FlowNode {
    v1::FlowNode { job_id: 1, name: "a".into(), attempt: 1, state: state.into(), ..Default::default() }
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
impl FlowService for Scripted {
    async fn submit_flow(
        &self,
        request: Request<v1::SubmitFlowRequest>,
    ) -> Result<Response<v1::SubmitFlowResponse>, Status> {
        let request_id = request.into_inner().request_id;
        let calls = self.note(|asked| {
            asked.request_ids.push(request_id);
            asked.request_ids.len()
        });
        if calls == 1 {
            return Err(Status::unavailable("the answer is lost"));
        }
        Ok(Response::new(v1::SubmitFlowResponse { flow: Some(flow(v1::FlowStatus::Started)) }))
    }

    async fn get_flow(
        &self,
        _: Request<v1::GetFlowRequest>,
    ) -> Result<Response<v1::GetFlowResponse>, Status> {
        Err(Status::not_found("flow 6 in context 1 was not found"))
    }

    async fn list_flows(
        &self,
        request: Request<v1::ListFlowsRequest>,
    ) -> Result<Response<v1::ListFlowsResponse>, Status> {
        let second = request.into_inner().page_token == "second";
        let next_page_token = if second { String::new() } else { "second".to_owned() };
        let flows = vec![flow(v1::FlowStatus::Started)];
        Ok(Response::new(v1::ListFlowsResponse { flows, next_page_token }))
    }

    async fn list_flow_nodes(
        &self,
        _: Request<v1::ListFlowNodesRequest>,
    ) -> Result<Response<v1::ListFlowNodesResponse>, Status> {
        let nodes = vec![node(v1::NodeState::Completed)];
        Ok(Response::new(v1::ListFlowNodesResponse { nodes, next_page_token: String::new() }))
    }

    type WatchFlowStream = Answers<v1::WatchFlowResponse>;

    async fn watch_flow(
        &self,
        request: Request<v1::WatchFlowRequest>,
    ) -> Result<Response<Self::WatchFlowStream>, Status> {
        let position = request.into_inner().resume_position;
        self.note(|asked| asked.resumed_from.push(position.clone()));
        if position == "2" {
            return Ok(Response::new(Box::pin(tokio_stream::iter([
                answer(change(v1::NodeState::Completed, ""), "3"),
                answer(Event::Flow(flow(v1::FlowStatus::Finished)), "4"),
            ]))));
        }
        let begin = tokio_stream::iter([
            answer(Event::Flow(flow(v1::FlowStatus::Started)), ""),
            answer(Event::Node(node(v1::NodeState::Ready)), ""),
            answer(Event::SnapshotEnd(v1::SnapshotEnd {}), "1"),
            answer(change(v1::NodeState::Ready, "NO_LIVE_RUNNER"), "2"),
        ]);
        Ok(Response::new(match self.script {
            Script::BreakAndFinish => {
                Box::pin(begin.chain(tokio_stream::once(Err(Status::unavailable("the scheduler ends")))))
            }
            Script::Wait => Box::pin(begin.chain(tokio_stream::pending())),
        }))
    }

    async fn cancel_flow(
        &self,
        _: Request<v1::CancelFlowRequest>,
    ) -> Result<Response<v1::CancelFlowResponse>, Status> {
        Ok(Response::new(v1::CancelFlowResponse { flow: Some(flow(v1::FlowStatus::Cancelled)) }))
    }

    async fn delete_flow(
        &self,
        _: Request<v1::DeleteFlowRequest>,
    ) -> Result<Response<v1::DeleteFlowResponse>, Status> {
        Err(Status::permission_denied("actor 1 may not"))
    }

    type StreamFlowLogsStream = Answers<v1::StreamFlowLogsResponse>;

    async fn stream_flow_logs(
        &self,
        _: Request<v1::StreamFlowLogsRequest>,
    ) -> Result<Response<Self::StreamFlowLogsStream>, Status> {
        let piece = |offset, data: &'static str| {
            Ok(v1::StreamFlowLogsResponse { node: "a".into(), attempt: 1, offset, data: data.into() })
        };
        Ok(Response::new(Box::pin(tokio_stream::iter([piece(0, "one\nt"), piece(5, "wo\n")]))))
    }
}

#[tonic::async_trait]
impl JobService for Scripted {
    async fn put_blob(
        &self,
        request: Request<Streaming<v1::PutBlobRequest>>,
    ) -> Result<Response<v1::PutBlobResponse>, Status> {
        let mut pieces = request.into_inner();
        let mut bytes = Vec::new();
        let mut sha256 = String::new();
        while let Some(piece) = pieces.message().await? {
            bytes.extend(&piece.data);
            sha256.push_str(&piece.sha256);
        }
        let size = bytes.len() as u64;
        self.note(|asked| asked.uploaded.push(bytes));
        Ok(Response::new(v1::PutBlobResponse { blob: Some(v1::BlobRef { sha256, size }) }))
    }

    type GetBlobStream = Answers<v1::GetBlobResponse>;

    async fn get_blob(
        &self,
        _: Request<v1::GetBlobRequest>,
    ) -> Result<Response<Self::GetBlobStream>, Status> {
        Err(Status::not_found("there are no blobs here"))
    }
}
