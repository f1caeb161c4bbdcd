//! Requests that come again after what they were checked against has changed, and what comes before its flow.

use std::collections::BTreeMap;

use mycora_cli::profile::Profile;
use proto::v1::flow_service_client::FlowServiceClient;
use proto::v1::{
    AddFlowNodesRequest, CancelNodeRequest, CreateFlowRequest, DeleteFlowRequest, FlowSpec, GetFlowRequest,
    JobSpec, NodeSpec, NodeState, RetryFlowRequest, RetryFlowResponse, RetryScope, Script, ScriptType,
    SignalFlowRequest, StartFlowRequest, SubmitFlowRequest, UpdateNodeStatusRequest, script,
};
use rpc::ErrorView;
use testkit::wait_until_blocking;
use tonic::Code;

use crate::scene::Scene;
use crate::suite::{PATIENCE, processes_in};

type Client = FlowServiceClient<rpc::Channel>;

/// Calls the suite of a scene.
pub(crate) fn call<T>(scene: &Scene, calls: impl AsyncFnOnce(Client) -> T) -> T {
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
        let add = AddFlowNodesRequest {
            context_id: 1,
            flow_id: flow.id,
            nodes: vec![node],
            ..AddFlowNodesRequest::default()
        };
        client.add_flow_nodes(add).await.expect("it is added");
        let signal =
            SignalFlowRequest { context_id: 1, flow_id: flow.id, name: "go".into(), ..Default::default() };
        client.signal_flow(signal).await.expect("it is kept");
        let start = StartFlowRequest { context_id: 1, flow_id: flow.id, ..StartFlowRequest::default() };
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

/// A flow whose node ends at once in its first generation, and is held in the next.
const HELD: &str = "name: held\nenv: { HOLD: \"\" }\njobs:\n  only: { script_type: shell, script: 'test -z \"$HOLD\" || exec sleep 600', timeout: 700 }\n";

fn run_again(flow_id: u32) -> RetryFlowRequest {
    RetryFlowRequest { context_id: 1, flow_id, scope: RetryScope::All.into(), ..Default::default() }
}

#[test]
fn a_node_that_had_ended_is_not_cancelled_in_the_next_run() {
    let scene = Scene::new(&[]);
    let (id, ended) = scene.run(HELD);
    assert_eq!(ended.status, "FINISHED");
    let flow_id = u32::try_from(id).expect("small");
    let cancel =
        CancelNodeRequest { request_id: "cancel".into(), context_id: 1, flow_id, node: "only".into() };
    let retry =
        RetryFlowRequest { env_vars: BTreeMap::from([("HOLD".into(), "1".into())]), ..run_again(flow_id) };
    call(&scene, async |mut client| {
        client.cancel_node(cancel.clone()).await.expect("it has ended: nothing changes");
        client.retry_flow(retry).await.expect("it runs again");
    });
    scene.wait_for(id, "only", "RUNNING");
    call(&scene, async |mut client| {
        client.cancel_node(cancel.clone()).await.expect("the same request, which has had its effect");
        let other = CancelNodeRequest { node: "another".into(), ..cancel.clone() };
        let refused = ErrorView::from(&client.cancel_node(other).await.expect_err("another body"));
        assert_eq!(refused.reason, "REQUEST_ID_REUSED", "{refused:?}");
        let flow = client.get_flow(GetFlowRequest { context_id: 1, flow_id }).await.expect("it is there");
        assert_eq!(flow.into_inner().flow.expect("it").generation, 2);
        // A cancel request for the second run takes effect.
        let now = CancelNodeRequest { request_id: "now".into(), ..cancel };
        client.cancel_node(now).await.expect("it runs");
    });
    let ended = scene.end(id);
    assert_eq!(ended.state("only"), "CANCELLED NODE_CANCELLED");
    scene.close();
}

#[test]
fn of_many_who_saw_the_same_revision_one_runs_the_flow_again() {
    let scene = Scene::new(&[]);
    let (id, _) = scene.run(HELD);
    let flow_id = u32::try_from(id).expect("small");
    let answers: Vec<Result<RetryFlowResponse, ErrorView>> = call(&scene, async |mut client| {
        let seen = client.get_flow(GetFlowRequest { context_id: 1, flow_id }).await.expect("it is there");
        let seen = seen.into_inner().flow.expect("it").revision;
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..8 {
            let mut client = client.clone();
            let request_id =
                if n % 2 == 0 { format!("one of them {n}").replace(' ', "-") } else { String::new() };
            let retry = RetryFlowRequest { request_id, expected_revision: seen, ..run_again(flow_id) };
            tasks.spawn(async move {
                let answer = client.retry_flow(retry).await;
                answer.map(tonic::Response::into_inner).map_err(|status| ErrorView::from(&status))
            });
        }
        tasks.join_all().await
    });
    let (done, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    assert_eq!(done.len(), 1, "{done:?}");
    for refused in refused {
        let refused = refused.expect_err("another was faster");
        assert_eq!(
            (refused.code, refused.reason.as_str()),
            (Code::Aborted, "REVISION_MISMATCH"),
            "{refused:?}"
        );
    }
    let first = done.into_iter().next().and_then(Result::ok).and_then(|answer| answer.flow).expect("a flow");
    assert_eq!((first.generation, scene.end(id).status.as_str()), (2, "FINISHED"));
    call(&scene, async |mut client| {
        // What was seen before the run is not what is there now.
        let delete = DeleteFlowRequest {
            context_id: 1,
            flow_id,
            expected_revision: first.revision,
            ..Default::default()
        };
        let refused =
            ErrorView::from(&client.delete_flow(delete.clone()).await.expect_err("it has ended since"));
        assert_eq!(
            (refused.code, refused.reason.as_str()),
            (Code::Aborted, "REVISION_MISMATCH"),
            "{refused:?}"
        );
        let request =
            RetryFlowRequest { dry_run: true, expected_revision: first.revision, ..run_again(flow_id) };
        let refused = ErrorView::from(&client.retry_flow(request).await.expect_err("it has ended since"));
        assert_eq!(refused.reason, "REVISION_MISMATCH", "{refused:?}");
        let now = client.get_flow(GetFlowRequest { context_id: 1, flow_id }).await.expect("it is there");
        let now = now.into_inner().flow.expect("it").revision;
        client
            .delete_flow(DeleteFlowRequest { expected_revision: now, ..delete })
            .await
            .expect("it is as seen");
    });
    scene.close();
}

#[test]
fn a_submission_that_comes_again_is_not_refused_for_its_signatures() {
    let scene = Scene::new(&[]);
    let submit = |request_id: &str, signature: &str| {
        let source = Some(script::Source::Text("true".into()));
        let job = JobSpec {
            script_type: ScriptType::Shell.into(),
            script: Some(Script { source }),
            signature: signature.into(),
            ..JobSpec::default()
        };
        let node = NodeSpec { name: "only".into(), job: Some(job), ..NodeSpec::default() };
        let flow = Some(FlowSpec { name: "again".into(), nodes: vec![node], ..FlowSpec::default() });
        SubmitFlowRequest { request_id: request_id.into(), context_id: 1, flow, ..Default::default() }
    };
    let id = call(&scene, async |mut client| {
        let first = client.submit_flow(submit("one", "")).await.expect("a flow").into_inner();
        let refused = client.submit_flow(submit("another", "{}")).await.expect_err("it does not fit");
        let fields: Vec<_> = ErrorView::from(&refused).violations.into_iter().map(|v| v.field).collect();
        assert_eq!(fields, ["flow.nodes[0].job.signature"]);
        // As with one that was good when the request came first, and is over by now.
        let again = client.submit_flow(submit("one", "{}")).await.expect("the same request").into_inner();
        let (first, again) = (first.flow.expect("it"), again.flow.expect("it"));
        assert_eq!((&first.uid, first.id), (&again.uid, again.id));
        let mut other = submit("one", "{}");
        other.flow.get_or_insert_default().name = "another".into();
        let reused = ErrorView::from(&client.submit_flow(other).await.expect_err("another body"));
        assert_eq!(reused.reason, "REQUEST_ID_REUSED", "{reused:?}");
        u64::from(first.id)
    });
    assert_eq!(scene.end(id).status, "FINISHED");
    call(&scene, async |mut client| {
        let flow_id = u32::try_from(id).expect("small");
        let delete = DeleteFlowRequest { context_id: 1, flow_id, ..Default::default() };
        client.delete_flow(delete).await.expect("it has ended");
        let gone = client.submit_flow(submit("one", "{}")).await.expect_err("its flow is gone");
        assert_eq!(gone.code(), Code::NotFound, "{gone}");
    });
    scene.close();
}
