//! Flows of jobs that were kept before.

use mycora_cli::profile::Profile;
use proto::v1::flow_service_client::FlowServiceClient;
use proto::v1::job_service_client::JobServiceClient;
use proto::v1::{
    AddFlowNodesRequest, CreateFlowRequest, CreateJobRequest, DeleteJobRequest, FlowSpec, JobSpec, NodeSpec,
    NodeState, RunJobRequest, Script, ScriptType, StartFlowRequest, SubmitFlowRequest, script,
};
use tonic::Code;

use crate::scene::Scene;

/// Prints that it ran.
fn job() -> JobSpec {
    let source = Some(script::Source::Text("echo \"ran=$WHO\" >> \"$MYCORA_RESULT\"".into()));
    JobSpec {
        script_type: ScriptType::Shell.into(),
        script: Some(Script { source }),
        env_vars: [("WHO".into(), "kept".into())].into(),
        ..JobSpec::default()
    }
}

fn node(name: &str, created_job_id: u32) -> NodeSpec {
    NodeSpec { name: name.into(), created_job_id, ..NodeSpec::default() }
}

#[test]
fn flows_take_up_jobs_that_were_kept() {
    let scene = Scene::new(&[]);
    let profile = Profile::load(&scene.up.profile()).expect("a profile");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (submitted, filled, submit) = runtime.block_on(async {
        let channel = profile.channel().expect("a channel");
        let mut jobs = JobServiceClient::new(channel.clone());
        let mut flows = FlowServiceClient::new(channel);
        let create = CreateJobRequest { context_id: 1, spec: Some(job()), ..CreateJobRequest::default() };
        let kept = jobs.create_job(create).await.expect("kept").into_inner().job.expect("given").id;

        let nodes =
            vec![node("first", kept), NodeSpec { depends: vec!["first".into()], ..node("then", kept) }];
        let flow = Some(FlowSpec { name: "taken-up".into(), nodes, ..FlowSpec::default() });
        let submit =
            SubmitFlowRequest { request_id: "one".into(), context_id: 1, flow, ..Default::default() };
        let flow = flows.submit_flow(submit.clone()).await.expect("a flow").into_inner().flow;
        let submitted = flow.expect("given").id;

        let run = RunJobRequest {
            request_id: "two".into(),
            context_id: 1,
            node: Some(node("only", kept)),
            wait_secs: 60,
            ..RunJobRequest::default()
        };
        let ran = flows.run_job(run.clone()).await.expect("it ran").into_inner().node.expect("given");
        assert_eq!((ran.state(), ran.result["ran"].as_str()), (NodeState::Completed, "kept"));

        let header = Some(FlowSpec { name: "filled".into(), ..FlowSpec::default() });
        let create = CreateFlowRequest { context_id: 1, flow: header, node_count: 1, ..Default::default() };
        let flow_id = flows.create_flow(create).await.expect("a flow").into_inner().flow.expect("it").id;
        let add = AddFlowNodesRequest {
            request_id: "three".into(),
            context_id: 1,
            flow_id,
            nodes: vec![node("only", kept)],
            ..AddFlowNodesRequest::default()
        };
        let first = flows.add_flow_nodes(add.clone()).await.expect("added").into_inner();
        let start = StartFlowRequest { request_id: "four".into(), context_id: 1, flow_id };
        flows.start_flow(start.clone()).await.expect("started");

        // A retried request needs neither the job, nor the flow as it was.
        let delete = DeleteJobRequest { context_id: 1, job_id: kept, ..DeleteJobRequest::default() };
        jobs.delete_job(delete).await.expect("deleted");
        let again = flows.submit_flow(submit.clone()).await.expect("the first answer").into_inner();
        assert_eq!(again.flow.expect("given").id, submitted);
        let again = flows.run_job(run).await.expect("the first answer").into_inner();
        assert_eq!(again.node.expect("given").job_id, ran.job_id);
        assert_eq!(flows.add_flow_nodes(add.clone()).await.expect("the first answer").into_inner(), first);
        let again = flows.start_flow(start.clone()).await.expect("the first answer").into_inner();
        assert_eq!(again.flow.expect("given").id, flow_id);

        for refused in [
            flows.submit_flow(SubmitFlowRequest { flow_id: 77, ..submit.clone() }).await.map(drop),
            flows.add_flow_nodes(AddFlowNodesRequest { first_index: 1, ..add }).await.map(drop),
            flows.start_flow(StartFlowRequest { flow_id: submitted, ..start }).await.map(drop),
        ] {
            assert_eq!(rpc::ErrorView::from(&refused.expect_err("reused")).reason, "REQUEST_ID_REUSED");
        }
        (submitted, flow_id, submit)
    });
    for (id, node) in [(submitted, "then"), (filled, "only")] {
        let ended = scene.end(id.into());
        assert_eq!(
            (ended.status.as_str(), &ended.nodes[node]["result"]["ran"]),
            ("FINISHED", &"kept".into())
        );
    }
    let another = SubmitFlowRequest { request_id: "five".into(), ..submit };
    let refused = crate::repeats::call(&scene, async |mut flows| flows.submit_flow(another).await);
    assert_eq!(refused.expect_err("it is gone").code(), Code::NotFound);
    scene.close();
}

/// Returns the bytes that the keys of a pattern take in Redis, with everything that a long text may stand in.
fn bytes_of(scene: &Scene, pattern: &str) -> u64 {
    let keys = scene.up.redis(1, &["KEYS", pattern]);
    let size = |key: &str| {
        let bytes = scene.up.redis(1, &["MEMORY", "USAGE", key, "SAMPLES", "0"]);
        bytes.trim().parse::<u64>().expect("a number of bytes")
    };
    keys.lines().filter(|key| !key.is_empty()).map(size).sum()
}

/// Jobs and messages name a long script, which is kept once, regardless of who submits it and how.
#[test]
fn long_scripts_that_come_by_grpc_are_kept_once() {
    const JOBS: u64 = 20;
    let scene = Scene::new(&[]);
    let profile = Profile::load(&scene.up.profile()).expect("a profile");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let text = format!("{}\necho ran=yes >> \"$MYCORA_RESULT\"\n", "# a long script\n".repeat(4000));
    let bytes = text.len() as u64;
    let node = |n: u64| {
        let source = Some(script::Source::Text(text.clone()));
        let job = JobSpec { script: Some(Script { source }), ..job() };
        NodeSpec { name: format!("n{n}"), job: Some(job), ..NodeSpec::default() }
    };
    let (submitted, filled) = runtime.block_on(async {
        let mut flows = FlowServiceClient::new(profile.channel().expect("a channel"));
        let header = Some(FlowSpec { name: "filled".into(), ..FlowSpec::default() });
        let flow = Some(FlowSpec {
            name: "long".into(),
            nodes: (0..JOBS).map(node).collect(),
            ..FlowSpec::default()
        });
        let submit = SubmitFlowRequest { context_id: 1, flow, ..Default::default() };
        let submitted = flows.submit_flow(submit).await.expect("a flow").into_inner().flow.expect("given").id;
        let create = CreateFlowRequest { context_id: 1, flow: header, node_count: 1, ..Default::default() };
        let flow_id = flows.create_flow(create).await.expect("a flow").into_inner().flow.expect("it").id;
        let add = AddFlowNodesRequest { context_id: 1, flow_id, nodes: vec![node(0)], ..Default::default() };
        flows.add_flow_nodes(add).await.expect("added");
        let start = StartFlowRequest { context_id: 1, flow_id, ..Default::default() };
        flows.start_flow(start).await.expect("started");
        (submitted, flow_id)
    });
    for id in [submitted, filled] {
        let ended = scene.end(id.into());
        assert_eq!(ended.status, "FINISHED", "{ended:?}");
    }
    let (records, blobs) = (bytes_of(&scene, "job:*"), bytes_of(&scene, "blob:*"));
    assert!(records < JOBS * bytes / 4, "{JOBS} jobs with a script of {bytes} bytes take {records}");
    assert!((bytes..2 * bytes).contains(&blobs), "the script of {bytes} bytes takes {blobs}");
    // Acknowledged at the latest when its jobs have ended, each in its own time.
    let messages = || Some(bytes_of(&scene, "message:*")).filter(|messages| *messages < JOBS * bytes / 4);
    let messages = testkit::wait_until_blocking(messages, testkit::PATIENCE, "messages keep no copies");
    println!(
        "{JOBS} jobs with a script of {bytes} bytes: {records} in records, {blobs} in blobs, {messages} in messages"
    );
    scene.close();
}
