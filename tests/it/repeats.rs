//! Requests that come again after what they were checked against has changed, and what comes before its flow.

use std::collections::BTreeMap;

use mycora_cli::profile::Profile;
use proto::v1::flow_service_client::FlowServiceClient;
use proto::v1::{
    AddFlowNodesRequest, CreateFlowRequest, FlowSpec, JobSpec, NodeSpec, NodeState, RetryFlowRequest, Script,
    ScriptType, SignalFlowRequest, StartFlowRequest, UpdateNodeStatusRequest, script,
};
use testkit::wait_until_blocking;
use tonic::Code;

use crate::scene::Scene;
use crate::suite::{PATIENCE, processes_in};

type Client = FlowServiceClient<rpc::Channel>;

/// Calls the suite of a scene.
fn call<T>(scene: &Scene, calls: impl AsyncFnOnce(Client) -> T) -> T {
    let profile = Profile::load(&scene.up.profile()).expect("a profile");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async { calls(FlowServiceClient::new(profile.channel().expect("a channel"))).await })
}

#[test]
fn a_signal_before_the_start_is_seen_by_the_flow() {
    let scene = Scene::new(&[]);
    let id = call(&scene, async |mut client| {
        let create = CreateFlowRequest {
            context_id: 1,
            flow: Some(FlowSpec { name: "early".into(), ..FlowSpec::default() }),
            node_count: 1,
            ..Default::default()
        };
        let flow = client.create_flow(create).await.expect("a flow").into_inner().flow.expect("a flow");
        let source = Some(script::Source::Text("true".into()));
        let job = JobSpec {
            script_type: ScriptType::Shell.into(),
            script: Some(Script { source }),
            ..JobSpec::default()
        };
        let node = NodeSpec {
            name: "waits".into(),
            job: Some(job),
            prerequisites: vec!["signal:go".into()],
            ..NodeSpec::default()
        };
        let add = AddFlowNodesRequest { context_id: 1, flow_id: flow.id, first_index: 0, nodes: vec![node] };
        client.add_flow_nodes(add).await.expect("it is added");
        let signal =
            SignalFlowRequest { context_id: 1, flow_id: flow.id, name: "go".into(), ..Default::default() };
        client.signal_flow(signal).await.expect("it is kept");
        let start = StartFlowRequest { context_id: 1, flow_id: flow.id };
        client.start_flow(start).await.expect("it is started");
        u64::from(flow.id)
    });
    assert_eq!(scene.end(id).status, "FINISHED");
    scene.close();
}

#[test]
fn a_request_that_had_its_effect_is_answered_again() {
    let scene = Scene::new(&[]);
    let text = "name: repeats\nenv: { MODE: broken }\njobs:\n  decides: { script_type: shell, script: 'test -z \"$MODE\"' }\n  kept: { script_type: shell, script: \"true\" }\n  held: { script_type: shell, script: 'test -z \"$MODE\" || exec sleep 600', timeout: 700 }\n";
    let id = scene.submit(text);
    scene.wait_for(id, "held", "RUNNING");
    let flow_id = u32::try_from(id).expect("small");
    let report = UpdateNodeStatusRequest {
        request_id: "report".into(),
        context_id: 1,
        flow_id,
        node: "held".into(),
        attempt: 1,
        state: NodeState::Failed.into(),
        exit_code: Some(3),
        ..Default::default()
    };
    call(&scene, async |mut client| client.update_node_status(report.clone()).await).expect("it is kept");
    assert_eq!(scene.end(id).status, "ERROR");
    let work = scene.path().join("data/work");
    let gone = || processes_in(&work).is_empty().then_some(());
    wait_until_blocking(gone, PATIENCE, "the script was stopped, whoever told of its end");

    let retry = RetryFlowRequest {
        request_id: "retry".into(),
        context_id: 1,
        flow_id,
        unset_env_vars: vec!["MODE".into()],
        env_vars: BTreeMap::from([("NEW".into(), "1".into())]),
        ..Default::default()
    };
    let first =
        call(&scene, async |mut client| client.retry_flow(retry.clone()).await).expect("it runs again");
    assert_eq!(scene.end(id).status, "FINISHED");
    call(&scene, async |mut client| {
        client.update_node_status(report.clone()).await.expect("it was done, though the node has ended");
        let other = UpdateNodeStatusRequest { request_id: "another".into(), ..report.clone() };
        let refused = client.update_node_status(other).await.expect_err("nothing is under way");
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");

        let again = client.retry_flow(retry.clone()).await.expect("the same answer").into_inner();
        let first = first.into_inner();
        assert_eq!(again.flow.expect("it").generation, first.flow.expect("it").generation);
        assert_eq!((again.run_again, again.reused), (first.run_again, first.reused));
        let other = RetryFlowRequest { env_vars: BTreeMap::new(), ..retry.clone() };
        let refused = client.retry_flow(other).await.expect_err("another body");
        assert_eq!(refused.code(), Code::AlreadyExists, "{refused}");
    });
    scene.close();
}
