//! Every limit exceeded by one: a clear error that names it, and nothing half made.

use std::collections::BTreeMap;

use model::limits;
use mycora_cli::profile::Profile;
use proto::v1::flow_service_client::FlowServiceClient;
use proto::v1::{
    AddFlowNodesRequest, BlobRef, CancelFlowRequest, CreateFlowRequest, FlowSpec, FlowStatus, JobSpec,
    ListFlowsRequest, NodePolicy, NodeSpec, RunJobRequest, Script, ScriptType, SignalFlowRequest,
    StartFlowRequest, SubmitFlowRequest, Target, script,
};
use tonic::{Code, Status};

use crate::scene::Scene;

type Client = FlowServiceClient<rpc::Channel>;

pub(crate) fn node(name: &str, text: impl Into<String>) -> NodeSpec {
    let script = Some(Script { source: Some(script::Source::Text(text.into())) });
    let job = JobSpec { script_type: ScriptType::Shell.into(), script, ..JobSpec::default() };
    NodeSpec { name: name.into(), job: Some(job), ..NodeSpec::default() }
}

pub(crate) fn flow(nodes: Vec<NodeSpec>) -> FlowSpec {
    FlowSpec { name: "limits".into(), nodes, ..FlowSpec::default() }
}

/// One node, changed so that something about it is too much.
fn with(change: impl FnOnce(&mut NodeSpec)) -> FlowSpec {
    let mut only = node("only", "true");
    change(&mut only);
    flow(vec![only])
}

fn job(node: &mut NodeSpec) -> &mut JobSpec {
    node.job.as_mut().expect("it has one")
}

fn file(size: u64) -> BlobRef {
    BlobRef { sha256: "0".repeat(64), size }
}

fn env(entries: usize, bytes: usize) -> BTreeMap<String, String> {
    (0..entries).map(|i| (format!("V{i:05}"), "x".repeat(bytes))).collect()
}

/// Returns flows that are refused for where a node may run, each with the limit that the error has to name.
fn refused_of_runs() -> Vec<(&'static str, FlowSpec, String)> {
    let max = |limit: usize| limit.to_string();
    vec![
        (
            "exit codes",
            with(|n| {
                let no_retry_exit_codes = vec![1; limits::NO_RETRY_EXIT_CODES_MAX + 1];
                n.policy = Some(NodePolicy { no_retry_exit_codes, ..NodePolicy::default() });
            }),
            max(limits::NO_RETRY_EXIT_CODES_MAX),
        ),
        (
            "labels",
            with(|n| {
                let labels = (0..=limits::LABELS_MAX).map(|i| (format!("l{i}"), String::new())).collect();
                n.target = Some(Target { labels, ..Target::default() });
            }),
            max(limits::LABELS_MAX),
        ),
        (
            "a label",
            with(|n| {
                let labels = [("l".to_owned(), "x".repeat(limits::LABEL_VALUE_BYTES_MAX + 1))].into();
                n.target = Some(Target { labels, ..Target::default() });
            }),
            max(limits::LABEL_VALUE_BYTES_MAX),
        ),
    ]
}

/// Returns further flows that are refused, each with what the error has to name.
fn refused() -> Vec<(&'static str, FlowSpec, String)> {
    let max = |limit: usize| limit.to_string();
    let secs = limits::TIMEOUT_SECS_MAX;
    vec![
        (
            "script",
            with(|n| *job(n) = job(&mut node("x", "x".repeat(limits::SCRIPT_BYTES_MAX + 1))).clone()),
            max(limits::SCRIPT_BYTES_MAX),
        ),
        (
            "file",
            with(|n| job(n).files = [("f".into(), file(limits::FILE_BYTES_MAX as u64 + 1))].into()),
            max(limits::FILE_BYTES_MAX),
        ),
        (
            "files together",
            with(|n| {
                job(n).files = (0..5)
                    .map(|i| (format!("f{i}"), file(limits::JOB_FILES_BYTES_MAX as u64 / 5 + 1)))
                    .collect()
            }),
            max(limits::JOB_FILES_BYTES_MAX),
        ),
        (
            "number of files",
            with(|n| {
                job(n).files = (0..=limits::JOB_FILES_MAX).map(|i| (format!("f{i}"), file(1))).collect()
            }),
            max(limits::JOB_FILES_MAX),
        ),
        (
            "number of outputs",
            with(|n| job(n).outputs = (0..=limits::JOB_FILES_MAX).map(|i| format!("o{i}")).collect()),
            max(limits::JOB_FILES_MAX),
        ),
        (
            "variables",
            with(|n| job(n).env_vars = env(limits::ENV_ENTRIES_MAX + 1, 1)),
            max(limits::ENV_ENTRIES_MAX),
        ),
        (
            "environment",
            with(|n| job(n).env_vars = env(1, limits::ENV_BYTES_MAX - 5)),
            max(limits::ENV_BYTES_MAX),
        ),
        (
            "the flow's environment",
            FlowSpec { env_vars: env(1, limits::ENV_BYTES_MAX - 5), ..with(|_| {}) },
            max(limits::ENV_BYTES_MAX),
        ),
        ("name", with(|n| n.name = "n".repeat(limits::NAME_CHARS_MAX + 1)), max(limits::NAME_CHARS_MAX)),
        (
            "retries",
            with(|n| {
                n.policy = Some(NodePolicy { retries: limits::RETRIES_MAX + 1, ..NodePolicy::default() })
            }),
            limits::RETRIES_MAX.to_string(),
        ),
        (
            "timeout",
            with(|n| n.policy = Some(NodePolicy { timeout_secs: Some(secs + 1), ..NodePolicy::default() })),
            secs.to_string(),
        ),
        ("deadline", FlowSpec { deadline_secs: secs + 1, ..with(|_| {}) }, secs.to_string()),
        (
            "prerequisites",
            with(|n| n.prerequisites = (0..=limits::PREREQUISITES_MAX).map(|i| format!("s{i}")).collect()),
            max(limits::PREREQUISITES_MAX),
        ),
        (
            "signal name",
            with(|n| n.prerequisites = vec!["s".repeat(limits::SIGNAL_CHARS_MAX + 1)]),
            max(limits::SIGNAL_CHARS_MAX),
        ),
        ("when", with(|n| n.when = "1".repeat(limits::WHEN_BYTES_MAX + 1)), max(limits::WHEN_BYTES_MAX)),
        ("an expression that loops", with(|n| n.when = "loop { }".into()), "when".into()),
        (
            "an expression that allocates",
            with(|n| n.when = "while true { x += \"aaaa\" }".into()),
            "when".into(),
        ),
        (
            "an unknown name in a template",
            with(|n| job(n).env_vars = [("X".into(), "${{ results.nobody.total }}".into())].into()),
            "nobody".into(),
        ),
        (
            "an unknown field in a template",
            with(|n| job(n).env_vars = [("X".into(), "${{ flow.owner }}".into())].into()),
            "flow.owner".into(),
        ),
        (
            "an unknown name in an expression",
            with(|n| n.when = "results.nobody.total > 1".into()),
            "nobody".into(),
        ),
    ]
}

fn all_of(status: &Status) -> String {
    let view = rpc::ErrorView::from(status);
    let violations = view.violations.iter().map(|v| format!("{}: {}", v.field, v.description));
    violations.chain([status.message().to_owned()]).collect::<Vec<_>>().join("\n")
}

async fn submit(client: &mut Client, spec: FlowSpec) -> Result<u32, Status> {
    let request = SubmitFlowRequest { context_id: 1, flow: Some(spec), ..Default::default() };
    Ok(client.submit_flow(request).await?.into_inner().flow.expect("a flow").id)
}

#[test]
fn every_limit_of_a_submission() {
    let scene = Scene::new(&[]);
    let profile = Profile::load(&scene.up.profile()).expect("a profile");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut client = FlowServiceClient::new(profile.channel().expect("a channel"));
        for (what, spec, named) in refused().into_iter().chain(refused_of_runs()) {
            let status = submit(&mut client, spec).await.expect_err(what);
            let text = all_of(&status);
            assert_eq!(status.code(), Code::InvalidArgument, "{what}: {text}");
            assert!(text.contains(&named), "{what} does not name {named}:\n{text}");
        }
        // More than one message carries.
        let many = (0..5).map(|i| node(&format!("n{i}"), "x".repeat(limits::SCRIPT_BYTES_MAX))).collect();
        let status = submit(&mut client, flow(many)).await.expect_err("five MiB");
        assert!(matches!(status.code(), Code::ResourceExhausted | Code::OutOfRange), "{status}");
        // A blob that was not uploaded.
        let absent = with(|node| {
            job(node).files.insert("in.bin".into(), file(1));
        });
        let status = submit(&mut client, absent).await.expect_err("no such blob");
        assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
        assert!(status.message().contains(&"0".repeat(64)), "{status}");
        in_pieces(&mut client).await;
        calls(&mut client).await;
        let list = ListFlowsRequest { context_id: 1, ..Default::default() };
        let flows = client.list_flows(list).await.expect("a page").into_inner().flows;
        let names: Vec<_> = flows.iter().map(|flow| flow.name.as_str()).collect();
        assert_eq!(names, ["pieces"], "nothing was made by what was refused");
    });
    scene.close();
}

/// Flows that come in pieces.
async fn in_pieces(client: &mut Client) {
    let create = |node_count: u32| CreateFlowRequest {
        context_id: 1,
        flow: Some(FlowSpec { name: "pieces".into(), ..FlowSpec::default() }),
        node_count,
        ..Default::default()
    };
    let too_many = u32::try_from(limits::FLOW_NODES_MAX + 1).expect("small");
    let status = client.create_flow(create(too_many)).await.expect_err("a node too many");
    assert!(all_of(&status).contains("100000"), "{}", all_of(&status));
    let flow = client.create_flow(create(1001)).await.expect("a flow").into_inner().flow.expect("a flow");
    let add = |first_index: u32, nodes: Vec<NodeSpec>| AddFlowNodesRequest {
        context_id: 1,
        flow_id: flow.id,
        first_index,
        nodes,
        request_id: String::new(),
    };
    let nodes = |count: usize| (0..count).map(|i| node(&format!("n{i}"), "true")).collect::<Vec<_>>();
    let status =
        client.add_flow_nodes(add(0, nodes(limits::ADD_NODES_MAX + 1))).await.expect_err("1001 at once");
    assert!(all_of(&status).contains("1000"), "{}", all_of(&status));
    let status = client.add_flow_nodes(add(1000, nodes(2))).await.expect_err("beyond what was announced");
    assert!(all_of(&status).contains("1001 nodes were announced"), "{}", all_of(&status));
    client.add_flow_nodes(add(0, nodes(1000))).await.expect("they fit");
    let start = StartFlowRequest { context_id: 1, flow_id: flow.id, ..StartFlowRequest::default() };
    let status = client.start_flow(start.clone()).await.expect_err("one is missing");
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("1000 of its 1001 nodes"), "{status}");
    // The last closes a circle with one that came before, which only the whole shows.
    let mut last = node("last", "true");
    last.depends = vec!["last-but-one".into()];
    client.add_flow_nodes(add(1000, vec![last])).await.expect("it is kept");
    let status = client.start_flow(start.clone()).await.expect_err("an unknown name");
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(all_of(&status).contains("last-but-one"), "{}", all_of(&status));
    // Nothing of it was started, and it can be put right.
    let mut last = node("last", "true");
    last.depends = (0..10).map(|i| format!("n{i}")).collect();
    client.add_flow_nodes(add(1000, vec![last])).await.expect("it takes the place of the other");
    let started =
        client.start_flow(start.clone()).await.expect("all is there").into_inner().flow.expect("a flow");
    assert_eq!((started.status(), started.node_count), (FlowStatus::Started, 1001));
    let again = client.start_flow(start).await.expect("nothing changes").into_inner().flow.expect("a flow");
    assert_eq!(again.uid, started.uid);
    let cancel = CancelFlowRequest { context_id: 1, flow_id: flow.id, ..Default::default() };
    client.cancel_flow(cancel).await.expect("its end is of no interest");
}

/// Limits of single calls.
async fn calls(client: &mut Client) {
    let list = ListFlowsRequest { context_id: 1, page_size: limits::PAGE_SIZE_MAX + 1, ..Default::default() };
    let status = client.list_flows(list).await.expect_err("a page too large");
    assert!(all_of(&status).contains("1000"), "{}", all_of(&status));
    let wait_secs = limits::RUN_JOB_WAIT_SECS_MAX + 1;
    let run = RunJobRequest { context_id: 1, node: Some(node("j", "true")), wait_secs, ..Default::default() };
    let status = client.run_job(run).await.expect_err("too long a wait");
    assert!(all_of(&status).contains("3600"), "{}", all_of(&status));
    let payload = "x".repeat(limits::SIGNAL_PAYLOAD_BYTES_MAX + 1);
    let signal =
        SignalFlowRequest { context_id: 1, flow_id: 1, name: "go".into(), payload, ..Default::default() };
    let status = client.signal_flow(signal).await.expect_err("too large a payload");
    assert!(all_of(&status).contains("4096"), "{}", all_of(&status));
}

/// Checks limits that only show while a flow runs.
#[test]
fn every_limit_of_a_run() {
    let scene = Scene::new(&[]);
    let give = |bytes: usize| {
        format!("echo \"k=$(head -c {bytes} /dev/zero | tr \"\\0\" x)\" >> \"$MYCORA_RESULT\"")
    };
    // The JSON around one key and value: {"k":""}.
    let value = limits::RESULT_BYTES_MAX - 8;
    let (_, ended) = scene.run(&format!(
        "name: results\njobs:\n  fits: {{ script_type: shell, script: '{}' }}\n  large: {{ script_type: shell, script: '{}' }}\n",
        give(value),
        give(value + 1)
    ));
    assert_eq!(ended.state("fits"), "COMPLETED");
    assert_eq!(ended.state("large"), "FAILED RESULT_TOO_LARGE");

    let rendered = limits::ENV_VALUE_RENDERED_BYTES_MAX;
    let (_, ended) = scene.run(&format!(
        "name: rendered\njobs:\n  gives: {{ script_type: shell, script: '{}' }}\n  fits: {{ script_type: shell, depends: [gives], env: {{ X: \"${{{{ results.gives.k }}}}\" }}, script: 'test ${{#X}} = {rendered}' }}\n  large: {{ script_type: shell, depends: [gives], env: {{ X: \"y${{{{ results.gives.k }}}}\" }}, script: \"true\" }}\n",
        give(rendered),
    ));
    assert_eq!(ended.state("fits"), "COMPLETED", "{:?}", ended.nodes["fits"]["reason"]);
    assert_eq!(ended.state("large"), "FAILED ENV_TOO_LARGE");

    // Five nodes that nothing depends on, a little more than the flow's result holds.
    let fifth = limits::FLOW_RESULT_BYTES_MAX / 5;
    let nodes: String =
        (0..5).map(|i| format!("  n{i}: {{ script_type: shell, script: '{}' }}\n", give(fifth))).collect();
    let (_, ended) = scene.run(&format!("name: gathered\njobs:\n{nodes}"));
    assert_eq!(ended.status, "FINISHED");
    assert_eq!(ended.flow["resultTruncated"], true);
    assert_eq!(ended.flow["result"].as_object().map(serde_json::Map::len), Some(4));
    scene.close();
}
