//! All mistakes of a request are reported at once.

use proto::v1::{
    AddFlowNodesRequest, CreateFlowRequest, FlowSpec, GetFlowGraphRequest, JobSpec, NodeSpec,
    RetryFlowRequest, RetryScope, RunJobRequest, Script, ScriptType, SignalFlowRequest, StartFlowRequest,
    SubmitFlowRequest, UpdateNodeStatusRequest, WatchFlowRequest, script,
};
use rpc::ErrorView;
use tonic::Status;

use crate::repeats::call;
use crate::scene::Scene;

/// A request id is one word.
const BAD_ID: &str = "two words";

fn node(name: &str, depends: &[&str]) -> NodeSpec {
    let script = Some(Script { source: Some(script::Source::Text("true".into())) });
    let job = JobSpec { script_type: ScriptType::Shell.into(), script, ..JobSpec::default() };
    let depends = depends.iter().map(|name| (*name).to_owned()).collect();
    NodeSpec { name: name.into(), depends, job: Some(job), ..NodeSpec::default() }
}

fn fields<T: std::fmt::Debug>(result: Result<T, Status>) -> Vec<String> {
    let view = ErrorView::from(&result.expect_err("something is wrong"));
    assert_eq!(view.reason, "INVALID_REQUEST", "{view:?}");
    view.violations.into_iter().map(|violation| violation.field).collect()
}

#[test]
fn all_that_is_wrong_is_listed_at_once() {
    let scene = Scene::new(&[]);
    call(&scene, async |mut client| {
        let mut both = node("both", &["unknown", "both"]);
        both.created_job_id = 7;
        both.job.get_or_insert_default().script_type = 99;
        let nodes = vec![node("a b", &["nobody"]), both, node("x", &["y"]), node("y", &["x", "c d"])];
        let flow =
            Some(FlowSpec { name: "bad".into(), nodes, deadline_secs: u32::MAX, ..Default::default() });
        let submit =
            SubmitFlowRequest { request_id: BAD_ID.into(), context_id: 1, flow, ..Default::default() };
        let expected = [
            "request_id",
            "flow.deadline_secs",
            "flow.nodes[0].name",
            "flow.nodes[1].created_job_id",
            "flow.nodes[1].job.script_type",
            "flow.nodes[3].depends[1]",
            "flow.nodes[0].depends[0]",
            "flow.nodes[1].depends[0]",
            "flow.nodes[1].depends[1]",
            "flow.nodes[2].depends",
        ];
        assert_eq!(fields(client.submit_flow(submit).await), expected);

        let mut alone = node("a b", &["c"]);
        alone.job.get_or_insert_default().env_vars = [("X".into(), "${{ results.c.k }}".into())].into();
        let run = RunJobRequest {
            request_id: BAD_ID.into(),
            context_id: 1,
            node: Some(alone),
            wait_secs: u32::MAX,
            ..Default::default()
        };
        let expected = ["node.depends", "wait_secs", "request_id", "node.name", "node.job.env_vars[X]"];
        assert_eq!(fields(client.run_job(run).await), expected);

        // What was added piece by piece, each of them good.
        let header = Some(FlowSpec { name: "pieces".into(), ..FlowSpec::default() });
        let create =
            CreateFlowRequest { context_id: 1, flow: header, node_count: 3, ..CreateFlowRequest::default() };
        let flow_id = client.create_flow(create).await.expect("a flow").into_inner().flow.expect("it").id;
        let nodes = vec![node("x", &["y"]), node("y", &["x"]), node("z", &["unknown"])];
        let add = AddFlowNodesRequest { context_id: 1, flow_id, nodes, ..AddFlowNodesRequest::default() };
        client.add_flow_nodes(add).await.expect("each is good");
        let start = StartFlowRequest { context_id: 1, flow_id, ..StartFlowRequest::default() };
        assert_eq!(fields(client.start_flow(start).await), ["nodes[2].depends[0]", "nodes[0].depends"]);
    });
    scene.close();
}

#[test]
fn a_bad_request_id_is_listed_with_everything_else() {
    let scene = Scene::new(&[]);
    let (ended, _) = scene.run("name: ended\njobs:\n  only: { script_type: shell, script: \"true\" }\n");
    let ended = u32::try_from(ended).expect("small");
    call(&scene, async |mut client| {
        let request_id = || BAD_ID.to_owned();
        let header = Some(FlowSpec { name: "a b".into(), ..FlowSpec::default() });
        let create =
            CreateFlowRequest { request_id: request_id(), context_id: 1, flow: header, ..Default::default() };
        assert_eq!(fields(client.create_flow(create).await), ["request_id", "flow.name", "node_count"]);

        let header = Some(FlowSpec { name: "good".into(), ..FlowSpec::default() });
        let create = CreateFlowRequest { context_id: 1, flow: header, node_count: 1, ..Default::default() };
        let flow_id = client.create_flow(create).await.expect("a flow").into_inner().flow.expect("it").id;
        let nodes = vec![node("a b", &[])];
        let add =
            AddFlowNodesRequest { context_id: 1, flow_id, first_index: 7, nodes, request_id: request_id() };
        assert_eq!(fields(client.add_flow_nodes(add).await), ["request_id", "first_index", "nodes[0].name"]);

        let flow_id = ended;
        let name = "x".repeat(129);
        let signal = SignalFlowRequest {
            request_id: request_id(),
            context_id: 1,
            flow_id,
            name,
            ..Default::default()
        };
        assert_eq!(fields(client.signal_flow(signal).await), ["request_id", "name"]);
        let report = UpdateNodeStatusRequest {
            request_id: request_id(),
            context_id: 1,
            flow_id,
            ..Default::default()
        };
        assert_eq!(fields(client.update_node_status(report).await), ["node", "request_id", "state"]);
        let retry = RetryFlowRequest {
            request_id: request_id(),
            context_id: 1,
            flow_id,
            scope: RetryScope::From.into(),
            unset_env_vars: vec!["NONE".into()],
            ..Default::default()
        };
        assert_eq!(fields(client.retry_flow(retry).await), ["request_id", "nodes", "unset_env_vars"]);

        let graph = GetFlowGraphRequest { context_id: 1, flow_id, format: 99 };
        assert_eq!(fields(client.get_flow_graph(graph).await), ["format"]);
        let watch = WatchFlowRequest { context_id: 1, flow_id, resume_position: "somewhere".into() };
        let mut answers = client.watch_flow(watch).await.expect("a stream").into_inner();
        assert_eq!(fields(answers.message().await), ["resume_position"]);
    });
    scene.close();
}
