//! JSON-RPC between gateways and supervisors: payloads, the parameters and results of every method, and the secrets that go
//! with plain requests.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::LazyLock;

use model::supervision::{
    BlobGet, BlobPiece, BlobPut, ContextDrop, CoordinatorSucceed, CoordinatorSucceeded, EmptyResult,
    InfoRequest, JobAccepted, JobEvent, JobLogPiece, JobLogs, JobQuery, JobResult, JobStatus, JobStop,
    JobStopped, method,
};
use model::{ContextId, DirectMessage, DirectMessageAccepted, Execution, NodeReport, Presence};
use mycelium::json_rpc::{
    self, JsonRpcCall, JsonRpcId, JsonRpcMessage, JsonRpcPayload, JsonRpcRequest, JsonRpcResponse, parse,
};
use mycelium_gateway::secrets::{SupervisorSecrets, insert_secret};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::input::{Input, join};
use crate::{Target, Verdict, check_refusal};

/// The reader of JSON-RPC.
pub const TARGET: Target = Target { name: "json_rpc", run, seeds, dictionary: DICTIONARY };

const DICTIONARY: &[&str] = &[
    "{\"jsonrpc\":\"2.0\",",
    "\"id\":1,",
    "\"id\":\"a\",",
    "\"id\":null,",
    "\"method\":\"",
    "\"params\":{",
    "\"params\":[",
    "\"result\":",
    "\"error\":{\"code\":-32000,\"message\":\"m\",\"data\":{\"reason\":\"R\",\"lasting\":true}}",
    "supervisor.info",
    "supervisor.presence",
    "job.run",
    "job.stop",
    "job.status",
    "job.result",
    "job.logs",
    "job.event",
    "context.drop",
    "coordinator.succeed",
    "blob.get",
    "blob.put",
    "message.deliver",
    "\"job_key\":\"",
    "00000000000000000000000000000007-00000000000000000000000000000001-1-1",
    "\"kind\":\"",
    "started",
    "ended",
    "log",
    "returned",
    "\"outcome\":\"succeeded\"",
    "\"end_time\":1800000000.25",
    "\"context_id\":1",
    "\"secret\":\"x\"",
    "\"script\":{\"inline\":\"x\"}",
    "\"inline\"",
    "\"sha256\":\"",
    "\\u0000",
    "\\ud800",
    "1e400",
    "-0.0",
    "null",
    "[",
    "]",
    "{",
    "}",
    ",",
];
/// Secret that requests carry, and that stands in no refusal.
const SECRET: &str = "sesame-open-sesame";

/// A directory with one secret, as long as the process lives.
static SECRETS: LazyLock<(tempfile::TempDir, SupervisorSecrets)> = LazyLock::new(|| {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().expect("a directory for files");
    let path: PathBuf = dir.path().join("s");
    std::fs::write(&path, SECRET).expect("a file is written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("its owner may");
    let secrets = SupervisorSecrets::new(Some(dir.path().to_owned()));
    (dir, secrets)
});

fn run(data: &[u8]) -> Verdict {
    let payload = Input::new(data).rest();
    goes_with_its_secret(payload);
    let members = match parse(payload) {
        Ok(JsonRpcPayload::Single(member)) => vec![member],
        Ok(JsonRpcPayload::Batch(members)) => {
            assert!(!members.is_empty(), "an empty batch");
            members
        }
        Err(error) => {
            check_refusal(&error.to_string(), 512, &[]);
            return Verdict::Refused;
        }
    };
    let mut accepted = false;
    for member in members {
        accepted |= match member {
            Ok(JsonRpcMessage::Request(request)) => is_understood(&request),
            Ok(JsonRpcMessage::Response(response)) => is_answer(&response),
            Err(invalid) => {
                check_refusal(&invalid.problem, 512, &[]);
                false
            }
        };
    }
    if accepted { Verdict::Accepted } else { Verdict::Refused }
}

/// Reads the parameters as the server of the method does, and writes them again.
fn is_understood(request: &JsonRpcRequest) -> bool {
    match request.method.as_str() {
        method::SUPERVISOR_INFO => again::<InfoRequest>(request, method::SUPERVISOR_INFO),
        method::SUPERVISOR_PRESENCE => again::<Presence>(request, method::SUPERVISOR_PRESENCE),
        method::JOB_RUN => again::<Execution>(request, method::JOB_RUN),
        method::JOB_STOP => again::<JobStop>(request, method::JOB_STOP),
        method::JOB_STATUS => again::<JobQuery>(request, method::JOB_STATUS),
        method::JOB_RESULT => again::<JobQuery>(request, method::JOB_RESULT),
        method::JOB_LOGS => again::<JobLogs>(request, method::JOB_LOGS),
        method::JOB_EVENT => again::<JobEvent>(request, method::JOB_EVENT) && is_reported(request),
        method::CONTEXT_DROP => again::<ContextDrop>(request, method::CONTEXT_DROP),
        method::COORDINATOR_SUCCEED => again::<CoordinatorSucceed>(request, method::COORDINATOR_SUCCEED),
        method::BLOB_GET => again::<BlobGet>(request, method::BLOB_GET),
        method::BLOB_PUT => again::<BlobPut>(request, method::BLOB_PUT),
        method::MESSAGE_DELIVER => again::<DirectMessage>(request, method::MESSAGE_DELIVER),
        _ => false,
    }
}

fn again<T: DeserializeOwned + Serialize + PartialEq + Debug>(
    request: &JsonRpcRequest,
    name: &'static str,
) -> bool {
    let params: T = match request.read() {
        Ok(params) => params,
        Err(error) => {
            check_refusal(&error.to_string(), 512, &[]);
            return false;
        }
    };
    let call = JsonRpcCall::new(name, &params).expect("what was read can be written");
    let Ok(JsonRpcPayload::Single(Ok(JsonRpcMessage::Request(written)))) =
        parse(&json_rpc::request(7, &call))
    else {
        panic!("{params:?} is written as something that is no request");
    };
    assert_eq!((written.id.as_ref(), written.method.as_str()), (Some(&JsonRpcId::Number(7)), name));
    assert_eq!(written.read::<T>().as_ref(), Ok(&params), "it changes on its way");
    true
}

/// An event as a router, and then a scheduler, receives it.
fn is_reported(request: &JsonRpcRequest) -> bool {
    let event: JobEvent = request.read().expect("it was read before");
    if let Ok(report) = event.into_report() {
        let json = serde_json::to_vec(&report).expect("a report is JSON");
        let again: NodeReport = serde_json::from_slice(&json).expect("as it was written");
        assert_eq!(again, report, "it changes on its way");
    }
    true
}

/// Reads the result as the caller does, whatever it was.
fn is_answer(response: &JsonRpcResponse) -> bool {
    let written = json_rpc::response(response.id.as_ref(), &response.answer);
    let Ok(JsonRpcPayload::Single(Ok(JsonRpcMessage::Response(again)))) = parse(&written) else {
        panic!("{response:?} is written as something that is no response");
    };
    assert_eq!(again.id, response.id, "another question is answered");
    match (&again.answer, &response.answer) {
        (Ok(written), Ok(result)) => assert_eq!(written.get(), result.get()),
        (written, result) => assert_eq!(written.as_ref().err(), result.as_ref().err()),
    }
    let Ok(result) = &response.answer else { return true };
    let text = result.get();
    fn read<T: DeserializeOwned + Serialize + PartialEq + Debug>(text: &str) -> bool {
        let Ok(result) = serde_json::from_str::<T>(text) else { return false };
        let json = serde_json::to_string(&result).expect("what was read can be written");
        let again: T = serde_json::from_str(&json).expect("as it was written");
        assert_eq!(again, result, "it changes on its way");
        true
    }
    let mut known = read::<Presence>(text) | read::<JobAccepted>(text) | read::<JobStopped>(text);
    known |= read::<JobStatus>(text) | read::<JobResult>(text) | read::<JobLogPiece>(text);
    known |=
        read::<CoordinatorSucceeded>(text) | read::<BlobPiece>(text) | read::<DirectMessageAccepted>(text);
    known | read::<EmptyResult>(text)
}

/// Members whose values stay as they are: their content is not for intermediaries to read.
type Object = BTreeMap<String, Box<RawValue>>;

/// Puts a secret into what leaves for a plain supervisor: into every request, or nothing leaves.
fn goes_with_its_secret(payload: &[u8]) {
    let secrets = &SECRETS.1;
    match insert_secret(payload, |_| secrets.read(ContextId(1), "s").map(Some)) {
        Err(error) => check_refusal(&error.to_string(), 512, &[SECRET]),
        Ok(written) => {
            let json = written.trim_ascii_start();
            let members: Vec<Object> = if json.starts_with(b"[") {
                serde_json::from_slice(json).expect("a list of objects")
            } else {
                vec![serde_json::from_slice(json).expect("an object")]
            };
            for member in members.iter().filter(|member| member.contains_key("method")) {
                let params: Object = serde_json::from_str(member["params"].get()).expect("an object");
                assert_eq!(params["secret"].get(), format!("\"{SECRET}\""), "{member:?} goes without it");
            }
        }
    }
}

fn seeds() -> Vec<Vec<u8>> {
    const KEY: &str = "00000000000000000000000000000007-00000000000000000000000000000001-1-1";
    const HASH: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
    let end = r#"{"outcome":"failed","exit_code":2,"reason":{"code":"EXIT_CODE","detail":"2"},"result":{"a":"b"},"outputs":{"o":{"sha256":"H","size":5}},"output_bytes":3,"ended":[{"pid":1,"name":"sh"}],"instance":"shell:default:1","start_time":1800000000.5,"end_time":1800000001.25}"#;
    let execution = r#"{"job_key":"K","context_id":1,"flow_id":1,"caller_id":3,"flow_name":"f","node":"n","script_type":"python","script":{"inline":"x"},"env_vars":{"A":"b"},"files":{"in":{"sha256":"H","size":2,"inline":"eA=="}},"outputs":["o"],"inputs":{"m":{"k":"v"}},"timeout_secs":60,"priority":1,"group":"g","instance":1,"isolation":"confined","network":true,"signature":"s","traceparent":"t"}"#;
    let presence = r#"{"supervisor":"s","version":"1","instances":[{"script_type":"shell","group":"default","number":1,"slots":1,"busy":0,"isolation":"basic","version":"1"}],"queued":0,"draining":true}"#;
    let letter = r#"{"origin":{"coordinator":"H","context_uid":"00000000000000000000000000000007","caller_id":3,"message_id":1},"from":"H","to":"H","type":"chat","format":"md","text":"t","created_at":1800000000.5,"expires_at":1800003600}"#;
    let requests = [
        ("supervisor.info", "{}"),
        ("supervisor.presence", presence),
        ("job.run", execution),
        ("job.stop", r#"{"job_key":"K","grace_secs":5}"#),
        ("job.status", r#"{"job_key":"K"}"#),
        ("job.logs", r#"{"job_key":"K","offset":7,"limit":10}"#),
        (
            "job.event",
            r#"{"job_key":"K","origin":{"context_id":1,"flow_id":1},"seq":1,"event":{"kind":"log","offset":0,"text":"a"}}"#,
        ),
        (
            "job.event",
            r#"{"job_key":"K","origin":{"context_id":1,"flow_id":1},"seq":2,"event":{"kind":"ended","E":0}}"#,
        ),
        ("context.drop", r#"{"context_uid":"00000000000000000000000000000007"}"#),
        ("coordinator.succeed", r#"{"changes":["{}"]}"#),
        ("blob.get", r#"{"job_key":"K","context_id":1,"sha256":"H","offset":0}"#),
        ("blob.put", r#"{"job_key":"K","context_id":1,"sha256":"H","size":5,"offset":0,"data":"aGVsbG8="}"#),
        ("message.deliver", letter),
        ("none.such", "[1]"),
    ];
    let fill = |text: &str| {
        let fields = end.trim_start_matches('{').trim_end_matches('}');
        text.replace("\"E\":0", fields)
            .replace("\"K\"", &format!("\"{KEY}\""))
            .replace("\"H\"", &format!("\"{HASH}\""))
    };
    let request = |(name, params): &(&str, &str)| {
        fill(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{name}","params":{params}}}"#))
    };
    let mut seeds: Vec<_> = requests.iter().map(|one| join(&[], &[request(one)])).collect();
    let batch: Vec<_> = requests[3..6].iter().map(request).collect();
    seeds.push(join(&[], &[format!("[{}]", batch.join(", "))]));
    for result in [
        presence,
        r#"{"accepted":true,"supervisor":"s"}"#,
        r#"{"stopped":true,"state":"stopped","ended":[{"pid":1,"name":"sh"}]}"#,
        &format!(r#"{{"state":"finished","instance":"i","start_time":1800000000,"end":{end}}}"#),
        r#"{"offset":0,"text":"a","next_offset":1,"size":1,"complete":true}"#,
        r#"{"data":"aGVsbG8=","size":5}"#,
    ] {
        seeds.push(join(&[], &[fill(&format!(r#"{{"jsonrpc":"2.0","id":"a","result":{result}}}"#))]));
    }
    let error = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"m","data":{"reason":"R","lasting":true}}}"#;
    seeds.push(join(&[], &[error]));
    seeds.push(join(&[], &["[]"]));
    seeds.push(join(&[], &[r#"[["2.0",1,"supervisor.info",{}]]"#]));
    seeds
}
