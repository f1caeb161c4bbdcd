//! Objects that requests are about: created for each call, since a call may use them up.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use identity::{Identity, SigningKey};
use model::id::Uid;
use model::{ActorId, ContextId, ContextUid, Timestamp};
use serde_json::{Value, json};
use testkit::wait_until;

use super::stage::{ADMIN, CONTEXT, EXECUTOR, READER, STRANGER, Stage};

/// A request of each public method, for an object of the executor's. A text that is `$name` stands for something
/// made for this call.
pub(crate) fn request(method: &str) -> Value {
    let job = json!({"scriptType": "SCRIPT_TYPE_SHELL", "script": {"text": "true"}});
    let node = json!({"name": "only", "job": job});
    let flow = json!({"name": "matrix", "nodes": [node]});
    let of_flow = |flow: &str| json!({"contextId": CONTEXT, "flowId": flow});
    let of_node = |flow: &str| json!({"contextId": CONTEXT, "flowId": flow, "node": "only"});
    let of_runner = || json!({"contextId": CONTEXT, "runnerId": "$runner"});
    let of_job = || json!({"contextId": CONTEXT, "callerId": EXECUTOR, "jobId": "$job"});
    let of_context = json!({"contextId": CONTEXT});
    let place =
        json!({"contextId": CONTEXT, "address": "grpc://127.0.0.1:1", "scriptTypes": ["SCRIPT_TYPE_SHELL"]});
    match method {
        "ActorService/RegisterActor" => json!({"pubkey": "$key"}),
        "ActorService/GetActor" => json!({"id": READER}),
        "ActorService/ListActors" => of_context,
        "ActorService/UpdateActor" | "ActorService/DeleteActor" => json!({"id": "$actor"}),
        "ActorService/RotateActorKey" => json!({"id": "$actor", "pubkey": "$key"}),
        "ActorService/WhoAmI" | "ContextService/ListContexts" => json!({}),
        "ContextService/CreateContext" => json!({"admins": [ADMIN]}),
        "ContextService/GetContext" => json!({"id": CONTEXT}),
        "ContextService/UpdateContext" => {
            json!({"contextId": "$context", "settings": {"executorsMaySubmit": true}})
        }
        "ContextService/GetContextUsage" => of_context,
        "ContextService/DeleteContext" | "ContextService/ExportContext" | "ContextService/CheckContext" => {
            json!({"contextId": "$context"})
        }
        // The manifest alone, which begins an import.
        "ContextService/ImportContext" => json!({"start": {}, "data": "$manifest"}),
        "ContextService/ListAuditEntries" => of_context,
        "JobService/CreateJob" => json!({"contextId": CONTEXT, "spec": job}),
        "JobService/GetJob" | "JobService/DeleteJob" => of_job(),
        "JobService/ListJobs" => of_context,
        "JobService/PutBlob" => json!({"contextId": CONTEXT, "data": "bWF0cml4"}),
        "JobService/GetBlob" => json!({"contextId": CONTEXT, "sha256": "$blob"}),
        "FlowService/SubmitFlow" => json!({"contextId": CONTEXT, "flow": flow}),
        "FlowService/CreateFlow" => json!({"contextId": CONTEXT, "flow": {"name": "matrix"}, "nodeCount": 1}),
        "FlowService/AddFlowNodes" => json!({"contextId": CONTEXT, "flowId": "$created", "nodes": [node]}),
        "FlowService/StartFlow" => of_flow("$filled"),
        "FlowService/GetFlow"
        | "FlowService/ListFlowNodes"
        | "FlowService/WatchFlow"
        | "FlowService/GetFlowGraph"
        | "FlowService/StreamFlowLogs"
        | "FlowService/DeleteFlow" => of_flow("$ended"),
        "FlowService/RetryFlow" => {
            json!({"contextId": CONTEXT, "flowId": "$ended", "scope": "RETRY_SCOPE_ALL"})
        }
        "FlowService/ListFlows" | "FlowService/WatchFlows" => of_context,
        "FlowService/SignalFlow" => json!({"contextId": CONTEXT, "flowId": "$waiting", "name": "later"}),
        "FlowService/CancelFlow" => of_flow("$waiting"),
        "FlowService/CancelNode" | "FlowService/ExplainNode" => of_node("$waiting"),
        "FlowService/RunJob" => json!({"contextId": CONTEXT, "node": node}),
        "FlowService/UpdateNodeStatus" => json!({
            "contextId": CONTEXT, "flowId": "$running", "node": "only", "attempt": 1, "state": "NODE_STATE_COMPLETED"
        }),
        "MessageService/SendMessage" => direct_message(),
        "MessageService/GetMessage" => json!({"contextId": CONTEXT, "key": "$letter"}),
        "MessageService/DeleteMessage" => json!({"contextId": CONTEXT, "key": "$arrived"}),
        "MessageService/ResendMessage" => json!({"contextId": CONTEXT, "key": "$dead"}),
        "MessageService/ListMessages" | "MessageService/ListDeadLetters" => of_context,
        "MessageService/ReceiveMessages" => json!({"contextId": CONTEXT, "onlyPresent": true}),
        "MessageService/AcknowledgeMessage" => json!({"contextId": CONTEXT, "keys": ["message:0:1"]}),
        "RunnerService/RegisterRunner" => place,
        "RunnerService/GetRunner" | "RunnerService/DeleteRunner" | "RunnerService/DrainRunner" => of_runner(),
        "RunnerService/ListRunners" | "RunnerService/WatchRunners" => of_context,
        "RunnerService/UpdateRunner" => {
            json!({
                "contextId": CONTEXT, "runnerId": "$runner", "address": "grpc://127.0.0.1:2",
                "scriptTypes": ["SCRIPT_TYPE_SHELL"]
            })
        }
        "GatewayService/GetGateway" => json!({}),
        "GatewayService/PingPeer" => json!({"address": "$supervisor"}),
        // Asks which coordinator this is.
        "GatewayService/Deliver" => json!({}),
        other => of_supervisors(other),
    }
}

fn of_supervisors(method: &str) -> Value {
    match method {
        "SupervisorService/Attach" => json!({"hello": {"coordinator": "$key"}}),
        "SupervisorService/GetSupervisor"
        | "SupervisorService/ListInstances"
        | "SupervisorService/Resume" => json!({}),
        // Not at once: it is resumed before anything of this machine has to go.
        "SupervisorService/Drain" => json!({"deadlineSecs": 3600}),
        "SupervisorService/SucceedCoordinator" => {
            json!({"oldCoordinator": "$coordinator", "newCoordinator": "$key"})
        }
        "SupervisorService/RunAttempt" => json!({"scriptType": "SCRIPT_TYPE_SHELL", "script": "echo hello"}),
        "SupervisorService/GetAttempt"
        | "SupervisorService/WaitAttempt"
        | "SupervisorService/StopAttempt"
        | "SupervisorService/StreamAttemptLogs" => json!({"jobKey": "$attempt"}),
        other => panic!("{other} has no request: write one, and its row in specs/permissions.md"),
    }
}

fn direct_message() -> Value {
    json!({
        "contextId": CONTEXT, "to": READER.to_string(), "targetContext": CONTEXT, "messageType": "MESSAGE_TYPE_CHAT",
        "format": "MESSAGE_FORMAT_TEXT", "text": "hello"
    })
}

/// The request with everything made that it names.
pub(crate) async fn filled(stage: &Stage, request: Value) -> Value {
    let mut names = Vec::new();
    find(&request, &mut names);
    let mut made = BTreeMap::new();
    for name in names {
        let value = make(stage, &name).await;
        made.insert(name, value);
    }
    with(request, &made)
}

fn find(value: &Value, names: &mut Vec<String>) {
    match value {
        Value::String(text) => names.extend(text.strip_prefix('$').map(str::to_owned)),
        Value::Array(all) => all.iter().for_each(|one| find(one, names)),
        Value::Object(all) => all.values().for_each(|one| find(one, names)),
        _ => {}
    }
}

fn with(value: Value, made: &BTreeMap<String, Value>) -> Value {
    match value {
        Value::String(text) => {
            let found = text.strip_prefix('$').and_then(|name| made.get(name)).cloned();
            found.unwrap_or(Value::String(text))
        }
        Value::Array(all) => all.into_iter().map(|one| with(one, made)).collect(),
        Value::Object(all) => all.into_iter().map(|(name, one)| (name, with(one, made))).collect(),
        other => other,
    }
}

const OWNER: Identity = Identity::Actor(ActorId(EXECUTOR));

/// Something new that belongs to the executor.
async fn make(stage: &Stage, name: &str) -> Value {
    match name {
        "key" => SigningKey::generate().verifying_key().to_string().into(),
        "actor" => {
            let request = request_of(stage, "ActorService/RegisterActor");
            stage.ask("ActorService/RegisterActor", request).await["actor"]["id"].clone()
        }
        "context" => {
            let members = json!({"admins": [ADMIN], "executors": [EXECUTOR], "readers": [READER]});
            stage.ask("ContextService/CreateContext", members).await["context"]["id"].clone()
        }
        "manifest" => manifest(stage).await,
        "runner" => {
            let admin = Identity::Actor(ActorId(ADMIN));
            let answer =
                stage.ask_as(admin, "RunnerService/RegisterRunner", request("RunnerService/RegisterRunner"));
            answer.await["runner"]["id"].clone()
        }
        "job" => of_owner(stage, "JobService/CreateJob").await["job"]["id"].clone(),
        "blob" => of_owner(stage, "JobService/PutBlob").await["blob"]["sha256"].clone(),
        "created" => of_owner(stage, "FlowService/CreateFlow").await["flow"]["id"].clone(),
        "filled" => {
            let flow = of_owner(stage, "FlowService/CreateFlow").await["flow"]["id"].clone();
            let mut nodes = request("FlowService/AddFlowNodes");
            nodes["flowId"] = flow.clone();
            stage.ask_as(OWNER, "FlowService/AddFlowNodes", nodes).await;
            flow
        }
        "ended" => ended(stage).await,
        "running" => running(stage).await,
        "waiting" => {
            let mut submit = request("FlowService/SubmitFlow");
            submit["flow"]["nodes"][0]["prerequisites"] = json!(["signal:go", "signal:later"]);
            stage.ask_as(OWNER, "FlowService/SubmitFlow", submit).await["flow"]["id"].clone()
        }
        "letter" => of_owner(stage, "MessageService/SendMessage").await["message"]["key"].clone(),
        "arrived" => settled(stage, READER, "MESSAGE_STATUS_ACKNOWLEDGED").await,
        // It has no role in the context that receives the mail.
        "dead" => settled(stage, STRANGER, "MESSAGE_STATUS_ERROR").await,
        // Ours. The machine knows it from the jobs that it was given for the methods before.
        "coordinator" => stage.ask("GatewayService/GetGateway", json!({})).await["coordinator"].clone(),
        "supervisor" => stage.supervisor_address().into(),
        "attempt" => {
            let run = request("SupervisorService/RunAttempt");
            let key = stage.ask("SupervisorService/RunAttempt", run).await["attempt"]["jobKey"].clone();
            let wait = json!({"jobKey": key, "timeoutSecs": 20});
            stage.ask("SupervisorService/WaitAttempt", wait).await;
            key
        }
        other => panic!("nobody knows how to make ${other}"),
    }
}

/// Beginning of an export of a context whose number is free here.
async fn manifest(stage: &Stage) -> Value {
    let members = json!({"admins": [ADMIN]});
    let made = stage.ask("ContextService/CreateContext", members).await["context"]["id"].clone();
    stage.ask("ContextService/DeleteContext", json!({"contextId": made})).await;
    let id = u32::try_from(made.as_u64().expect("a number")).expect("a context's");
    let manifest = archive::ArchiveManifest {
        coordinator: Uid::random().to_string(),
        context: ContextId(id),
        uid: ContextUid::random(),
        snapshot: Uid::random().to_string(),
        time: Timestamp::now(),
        revision: 1,
        without_secrets: false,
    };
    let frame = archive::ArchiveFrame::Manifest(manifest);
    let (frame, _) = archive::encode(archive::ArchivePlace::start(), frame).expect("a small frame");
    STANDARD.encode([archive::HEADER, &frame].concat()).into()
}

fn request_of(_: &Stage, method: &str) -> Value {
    let mut body = request(method);
    body["pubkey"] = SigningKey::generate().verifying_key().to_string().into();
    body
}

async fn of_owner(stage: &Stage, method: &str) -> Value {
    stage.ask_as(OWNER, method, request(method)).await
}

/// A flow that has finished.
async fn ended(stage: &Stage) -> Value {
    let mut run = request("FlowService/RunJob");
    run["waitSecs"] = 20.into();
    let answer = stage.ask_as(OWNER, "FlowService/RunJob", run).await;
    assert_eq!(answer["flow"]["status"], "FLOW_STATUS_FINISHED", "{answer}");
    answer["flow"]["id"].clone()
}

/// A flow whose script runs until its end is reported.
async fn running(stage: &Stage) -> Value {
    let mut submit = request("FlowService/SubmitFlow");
    submit["flow"]["nodes"][0]["job"]["script"]["text"] = "exec tail -f /dev/null".into();
    let flow = stage.ask_as(OWNER, "FlowService/SubmitFlow", submit).await["flow"]["id"].clone();
    let ask = json!({"contextId": CONTEXT, "flowId": flow});
    let look = || async {
        let answer = stage.ask_as(OWNER, "FlowService/ListFlowNodes", ask.clone()).await;
        (answer["nodes"][0]["state"] == "NODE_STATE_RUNNING").then_some(())
    };
    wait_until(look, testkit::PATIENCE, "the script runs").await;
    flow
}

/// A message to this actor that is not on its way any more.
async fn settled(stage: &Stage, to: u32, status: &str) -> Value {
    let mut send = request("MessageService/SendMessage");
    send["to"] = to.to_string().into();
    let key = stage.ask_as(OWNER, "MessageService/SendMessage", send).await["message"]["key"].clone();
    let ask = json!({"contextId": CONTEXT, "key": key});
    let look = || async {
        let message = stage.ask_as(OWNER, "MessageService/GetMessage", ask.clone()).await;
        (message["message"]["status"] == status).then_some(())
    };
    wait_until(look, testkit::PATIENCE, status).await;
    key
}
