//! End of open calls when the caller loses the permission for them, or its credentials, in whichever process it is.

use std::time::Duration;

use identity::{Identity, SigningKey};
use model::ActorId;
use proto::v1;
use proto::v1::flow_service_client::FlowServiceClient;
use proto::v1::job_service_client::JobServiceClient;
use proto::v1::message_service_client::MessageServiceClient;
use proto::v1::runner_service_client::RunnerServiceClient;
use rpc::{ErrorView, TlsFiles};
use serde_json::{Value, json};
use testkit::wait_until;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status, Streaming};

use crate::matrix::stage::{ADMIN, CONTEXT, EXECUTOR, Stage};
use crate::matrix::tokens;

/// A stream that has not ended within this time does not end.
const PATIENCE: Duration = Duration::from_secs(30);
const PIECE_BYTES: usize = 512 * 1024;
/// More than an unread connection buffers, and less than the largest blob.
const PIECES: usize = 30;

/// One who calls: with a certificate, or with a token.
struct Who {
    id: u32,
    tls: TlsFiles,
    key: SigningKey,
    by_token: bool,
}

impl Who {
    /// A new actor.
    async fn new(stage: &Stage, by_token: bool) -> Self {
        let key = SigningKey::generate();
        let register = json!({"pubkey": key.verifying_key().to_string()});
        let id = stage.ask("ActorService/RegisterActor", register).await["actor"]["id"].clone();
        let id = id.as_u64().and_then(|id| id.try_into().ok()).expect("an id");
        let tls = if by_token { stage.anonymous() } else { stage.actor(id) };
        Self { id, tls, key, by_token }
    }

    fn asks<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if self.by_token {
            let value = format!("Bearer {}", tokens::of(&self.key, self.id));
            request.metadata_mut().insert("authorization", value.parse().expect("a token is ASCII"));
        }
        request
    }
}

/// Everything that an actor has under way.
struct UnderWay {
    flow: Streaming<v1::WatchFlowResponse>,
    all: Streaming<v1::WatchFlowsResponse>,
    logs: Streaming<v1::StreamFlowLogsResponse>,
    inbox: Streaming<v1::ReceiveMessagesResponse>,
    runners: Streaming<v1::WatchRunnersResponse>,
    upload: Upload,
    run: AwaitedJob,
}

/// A job whose end a caller waits for.
struct AwaitedJob {
    call: JoinHandle<Result<(), Status>>,
    name: String,
}

impl AwaitedJob {
    async fn begin(stage: &Stage, who: &Who) -> Self {
        let name = format!("of-{}", who.id);
        let script = v1::Script { source: Some(v1::script::Source::Text("true".to_owned())) };
        let job = v1::JobSpec {
            script_type: v1::ScriptType::Shell.into(),
            script: Some(script),
            ..v1::JobSpec::default()
        };
        let node = v1::NodeSpec {
            name: name.clone(),
            prerequisites: vec!["signal:go".to_owned()],
            job: Some(job),
            ..v1::NodeSpec::default()
        };
        let run = v1::RunJobRequest {
            context_id: CONTEXT,
            node: Some(node),
            wait_secs: 3600,
            ..v1::RunJobRequest::default()
        };
        let (run, mut flows) =
            (who.asks(run), FlowServiceClient::new(stage.channel("FlowService", &who.tls)));
        let call = tokio::spawn(async move { flows.run_job(run).await.map(drop) });
        let wanted = &name;
        let is_there = || async move { (!statuses(stage, wanted).await.is_empty()).then_some(()) };
        wait_until(is_there, PATIENCE, "the job is taken in").await;
        Self { call, name }
    }

    /// How the call ends. What it has begun does not.
    async fn ending(self, stage: &Stage) -> (Code, String) {
        let Self { call, name } = self;
        let ended = tokio::time::timeout(PATIENCE, call).await.expect("the call ends");
        let code_and_reason = code_and_reason(&ended.expect("no panic").expect_err("the job has not ended"));
        assert_eq!(statuses(stage, &name).await, ["FLOW_STATUS_STARTED"], "the job goes on");
        code_and_reason
    }
}

/// Where the flows of this name stand.
async fn statuses(stage: &Stage, name: &str) -> Vec<Value> {
    let list = json!({"contextId": CONTEXT, "namePrefix": name});
    let listed = stage.ask_as(Identity::Actor(ActorId(ADMIN)), "FlowService/ListFlows", list).await;
    let flows = listed["flows"].as_array().cloned().unwrap_or_default();
    flows.into_iter().map(|flow| flow["status"].clone()).collect()
}

/// A blob of which pieces are missing.
struct Upload {
    call: JoinHandle<Result<(), Status>>,
    // While it is there the blob has no end.
    _pieces: mpsc::Sender<v1::PutBlobRequest>,
}

impl Upload {
    async fn begin(stage: &Stage, who: &Who) -> Self {
        let (pieces, sent) = mpsc::channel(1);
        let mut jobs = JobServiceClient::new(stage.channel("JobService", &who.tls));
        let request = who.asks(ReceiverStream::new(sent));
        let call = tokio::spawn(async move { jobs.put_blob(request).await.map(drop) });
        for _ in 0..PIECES {
            let data = vec![7; PIECE_BYTES].into();
            let piece = v1::PutBlobRequest { context_id: CONTEXT, data, ..v1::PutBlobRequest::default() };
            pieces.send(piece).await.expect("it is read");
        }
        Self { call, _pieces: pieces }
    }

    async fn ending(self) -> (Code, String) {
        let ended = tokio::time::timeout(PATIENCE, self.call).await.expect("the upload ends");
        code_and_reason(&ended.expect("no panic").expect_err("nobody takes the blob"))
    }
}

fn code_and_reason(status: &Status) -> (Code, String) {
    let view = ErrorView::from(status);
    (view.code, view.reason)
}

/// How a stream ends, after all its messages.
async fn ending<T>(name: &str, mut stream: Streaming<T>) -> (Code, String) {
    let end = async {
        loop {
            match stream.message().await {
                Ok(Some(_)) => {}
                Ok(None) => return (Code::Ok, String::new()),
                Err(status) => return code_and_reason(&status),
            }
        }
    };
    tokio::time::timeout(PATIENCE, end).await.unwrap_or_else(|_| panic!("{name} does not end"))
}

impl UnderWay {
    async fn begin(stage: &Stage, who: &Who, flow_id: u32) -> Self {
        let channel = |service| stage.channel(service, &who.tls);
        let mut flows = FlowServiceClient::new(channel("FlowService"));
        let watch = v1::WatchFlowRequest { context_id: CONTEXT, flow_id, ..Default::default() };
        let flow = flows.watch_flow(who.asks(watch)).await.expect("a reader").into_inner();
        let watch = v1::WatchFlowsRequest { context_id: CONTEXT, ..Default::default() };
        let all = flows.watch_flows(who.asks(watch)).await.expect("a reader").into_inner();
        let follow =
            v1::StreamFlowLogsRequest { context_id: CONTEXT, flow_id, follow: true, ..Default::default() };
        let logs = flows.stream_flow_logs(who.asks(follow)).await.expect("a reader").into_inner();
        let receive = v1::ReceiveMessagesRequest { context_id: CONTEXT, ..Default::default() };
        let mut messages = MessageServiceClient::new(channel("MessageService"));
        let inbox = messages.receive_messages(who.asks(receive)).await.expect("a reader").into_inner();
        let watch = v1::WatchRunnersRequest { context_id: CONTEXT, ..Default::default() };
        let mut runners = RunnerServiceClient::new(channel("RunnerService"));
        let runners = runners.watch_runners(who.asks(watch)).await.expect("a reader").into_inner();
        let (upload, run) = (Upload::begin(stage, who).await, AwaitedJob::begin(stage, who).await);
        Self { flow, all, logs, inbox, runners, upload, run }
    }

    async fn end_with(self, stage: &Stage, code: Code, reason: &str) {
        let Self { flow, all, logs, inbox, runners, upload, run } = self;
        for (name, ended) in [
            ("WatchFlow", ending("WatchFlow", flow).await),
            ("WatchFlows", ending("WatchFlows", all).await),
            ("StreamFlowLogs", ending("StreamFlowLogs", logs).await),
            ("ReceiveMessages", ending("ReceiveMessages", inbox).await),
            ("WatchRunners", ending("WatchRunners", runners).await),
            ("PutBlob", upload.ending().await),
            ("RunJob", run.ending(stage).await),
        ] {
            assert_eq!(ended, (code, reason.to_owned()), "{name}");
        }
    }
}

/// Makes these, and only the admin besides, members of the context.
async fn members(stage: &Stage, executors: &[u32], readers: &[u32]) {
    let body = json!({"contextId": CONTEXT, "executors": {"ids": executors}, "readers": {"ids": readers}});
    stage.ask("ContextService/UpdateContext", body).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_begun_ends_with_what_allowed_it() {
    let stage = Stage::new().await;
    let node = json!({
        "name": "waits",
        "prerequisites": ["signal:go"],
        "job": {"scriptType": "SCRIPT_TYPE_SHELL", "script": {"text": "true"}},
    });
    let submit = json!({"contextId": CONTEXT, "flow": {"name": "waits", "nodes": [node]}});
    let flow = stage.ask_as(Identity::Actor(ActorId(ADMIN)), "FlowService/SubmitFlow", submit).await;
    let flow = flow["flow"]["id"].as_u64().and_then(|id| id.try_into().ok()).expect("an id");

    let (demoted, certified, signing) =
        (Who::new(&stage, false).await, Who::new(&stage, false).await, Who::new(&stage, true).await);
    members(&stage, &[EXECUTOR, demoted.id, certified.id, signing.id], &[]).await;
    let of_demoted = UnderWay::begin(&stage, &demoted, flow).await;
    let of_certified = UnderWay::begin(&stage, &certified, flow).await;
    let of_signing = UnderWay::begin(&stage, &signing, flow).await;

    // Who is a reader from now on may put no blobs, and goes on to read.
    members(&stage, &[EXECUTOR, certified.id, signing.id], &[demoted.id]).await;
    let insufficient = (Code::PermissionDenied, "ROLE_INSUFFICIENT".to_owned());
    assert_eq!(of_demoted.upload.ending().await, insufficient);
    members(&stage, &[EXECUTOR, demoted.id, certified.id, signing.id], &[]).await;
    let of_demoted = UnderWay { upload: Upload::begin(&stage, &demoted).await, ..of_demoted };
    members(&stage, &[EXECUTOR, certified.id, signing.id], &[]).await;
    of_demoted.end_with(&stage, Code::NotFound, "NOT_FOUND").await;

    let next = || SigningKey::generate().verifying_key().to_string();
    let rotate = json!({"id": certified.id, "pubkey": next(), "revokeCertificates": true});
    stage.ask("ActorService/RotateActorKey", rotate).await;
    of_certified.end_with(&stage, Code::Unauthenticated, "IDENTITY_REVOKED").await;

    stage.ask("ActorService/RotateActorKey", json!({"id": signing.id, "pubkey": next()})).await;
    of_signing.end_with(&stage, Code::Unauthenticated, "IDENTITY_REVOKED").await;
}
