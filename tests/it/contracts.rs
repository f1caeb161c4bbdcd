//! Contracts for clients of another make: refusals that name the field, comments in reflection, names beside numbers.

use std::collections::BTreeSet;

use model::Violation;
use prost::Message as _;
use prost_reflect::{DescriptorPool, MethodDescriptor};
use proto::v1::WatchFlowRequest;
use proto::v1::flow_service_client::FlowServiceClient;
use proto::v1::watch_flow_response::Event;
use rpc::{Channel, ErrorView, TlsFiles};
use serde_json::{Value, json};
use tonic::Code;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use crate::matrix::wire::{self, Methods, short};
use crate::scene::Scene;
use crate::suite::stdout;

/// In which a context that is not named stands for all, or for what belongs to none.
const OF_ALL_CONTEXTS: [&str; 3] =
    ["ActorService/ListActors", "ContextService/CheckContext", "ContextService/ListAuditEntries"];

fn channel(scene: &Scene) -> Channel {
    let pki = scene.up.dir().join("pki");
    let tls = TlsFiles::new(pki.join("ca.pem"), pki.join("actor-1.pem"), pki.join("actor-1.key"));
    let url = format!("https://127.0.0.1:{}", scene.up.port());
    Channel::remote(&url, &tls, Some("localhost")).expect("a way there")
}

/// The fields that a call with this body is refused for.
async fn refused(scene: &Scene, method: &MethodDescriptor, body: &Value) -> Result<Vec<String>, String> {
    let status = match wire::call(channel(scene), None, method, body).await {
        Ok(answer) => return Err(format!("{} answers {answer}", short(method))),
        Err(status) => status,
    };
    let view = ErrorView::from(&status);
    if status.code() != Code::InvalidArgument {
        return Err(format!("{}: {:?}: {view}", short(method), status.code()));
    }
    Ok(view.violations.into_iter().map(|Violation { field, .. }| field).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_without_a_context_is_refused_with_every_invalid_field() {
    let scene = Scene::new(&[]);
    let methods = Methods::new();
    let about_contexts = methods.of("mycora.v1").into_iter().filter(|method| {
        method.input().get_field_by_name("context_id").is_some()
            && !OF_ALL_CONTEXTS.contains(&short(method).as_str())
    });
    let mut wrong = Vec::new();
    for method in about_contexts {
        match refused(&scene, &method, &json!({})).await {
            Ok(fields) if fields.iter().any(|field| field == "context_id") => {}
            Ok(fields) => wrong.push(format!("{}: names only {fields:?}", short(&method))),
            Err(other) => wrong.push(other),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for (name, body, want) in [
        ("FlowService/ListFlows", json!({"pageSize": 5000}), vec!["context_id", "page_size"]),
        ("FlowService/GetFlow", json!({}), vec!["context_id", "flow_id"]),
        (
            "FlowService/StreamFlowLogs",
            json!({"contextId": 1, "attempt": 2, "offset": 3}),
            vec!["flow_id", "attempt"],
        ),
        (
            "FlowService/SubmitFlow",
            json!({"requestId": "two words", "flow": {"name": "a b", "nodes": [{"name": "only"}]}}),
            vec!["context_id", "request_id", "flow.name", "flow.nodes[0].job"],
        ),
        ("JobService/GetBlob", json!({"sha256": "x"}), vec!["context_id", "sha256"]),
    ] {
        let fields = refused(&scene, &methods.get(name), &body).await.expect(name);
        for field in want {
            assert!(fields.iter().any(|found| found == field), "{name}: no `{field}` among {fields:?}");
        }
    }
    tokio::task::spawn_blocking(move || scene.close()).await.expect("it ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reflection_returns_the_comments_of_fields_and_methods() {
    let scene = Scene::new(&[]);
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::FileContainingSymbol("mycora.v1.FlowService".to_owned())),
    };
    let mut client = ServerReflectionClient::new(channel(&scene));
    let mut answers =
        client.server_reflection_info(tokio_stream::iter([request])).await.expect("it is open").into_inner();
    let answer = answers.message().await.expect("an answer").expect("one");
    let Some(MessageResponse::FileDescriptorResponse(files)) = answer.message_response else {
        panic!("another answer: {answer:?}")
    };
    let mut pool = DescriptorPool::new();
    pool.add_file_descriptor_protos(proto_of_imports()).expect("what the file stands on");
    for file in files.file_descriptor_proto {
        pool.decode_file_descriptor_proto(file.as_slice()).expect("a descriptor");
    }
    let service = pool.get_service_by_name("mycora.v1.FlowService").expect("the service");
    let file = service.parent_file();
    let info = file.file_descriptor_proto().source_code_info.clone().unwrap_or_default();
    let comment = |path: &[i32]| {
        let location = info.location.iter().find(|location| location.path == path);
        location.map(|location| location.leading_comments().trim().to_owned()).unwrap_or_default()
    };
    for method in service.methods() {
        assert!(!comment(method.path()).is_empty(), "{} has no comment", method.name());
    }
    let list = pool.get_message_by_name("mycora.v1.ListFlowsRequest").expect("the message");
    let size = list.get_field_by_name("page_size").expect("the field");
    assert_eq!(comment(size.path()), "At most this many, up to 1000. 0: 50.");
    tokio::task::spawn_blocking(move || scene.close()).await.expect("it ends");
}

/// Returns the files that the file of flows imports; reflection gives them on request only.
fn proto_of_imports() -> Vec<prost_types::FileDescriptorProto> {
    let set = prost_types::FileDescriptorSet::decode(proto::DESCRIPTORS).expect("a good set");
    let imported = |name: &str| name.starts_with("google/protobuf/") || name == "mycora/v1/types.proto";
    set.file.into_iter().filter(|file| imported(file.name())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_and_dependencies_are_sent_with_names() {
    let scene = Scene::new(&[]);
    let job = "script_type: rhai, script: \"()\"";
    let id = scene.submit(&format!(
        "name: named\njobs:\n  first: {{ {job}, prerequisites: [go] }}\n  last: {{ {job}, depends: [first] }}\n"
    ));
    let number = id.to_string();
    let explained = scene.json(&["flow", "explain", &number, "last"], 0);
    assert_eq!(explained["node"]["dependsNames"], json!(["first"]));
    assert_eq!(scene.node(id, "last")["dependsNames"], json!(["first"]));
    let mut client = FlowServiceClient::new(channel(&scene));
    let flow_id = u32::try_from(id).expect("a small number");
    let request = WatchFlowRequest { context_id: 1, flow_id, resume_position: String::new() };
    let mut answers = client.watch_flow(request).await.expect("a stream").into_inner();
    let mut named = BTreeSet::new();
    while let Some(answer) = answers.message().await.expect("no error") {
        match answer.event.expect("one") {
            Event::Node(node) if node.name == "last" => assert_eq!(node.depends_names, ["first"]),
            Event::SnapshotEnd(_) => {
                stdout(&scene.up.mycora(&["flow", "signal", &number, "go"]), 0);
            }
            Event::NodeChange(change) => {
                named.insert((change.name, change.job_id));
            }
            _ => {}
        }
    }
    let nodes = ["first", "last"].map(|name| {
        let job = scene.node(id, name)["jobId"].as_u64().expect("a job");
        (name.to_owned(), u32::try_from(job).expect("a small number"))
    });
    assert_eq!(named, nodes.into());
    tokio::task::spawn_blocking(move || scene.close()).await.expect("it ends");
}
