//! Large submissions that come all at once, and large answers that are not read.

use std::collections::BTreeMap;
use std::time::Duration;

use mycora_cli::profile::Profile;
use proto::v1::flow_service_client::FlowServiceClient;
use proto::v1::script::Source;
use proto::v1::{
    FlowSpec, GetFlowRequest, GetFlowResponse, JobSpec, NodeSpec, Script, ScriptType, SubmitFlowRequest,
};
use rpc::ErrorView;
use testkit::wait_until_blocking;
use tokio::task::JoinSet;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Request, Streaming};
use tonic_prost::ProstCodec;

use crate::scene::Scene;
use crate::suite::{PATIENCE, memory_kib};

const SUBMISSIONS: usize = 120;
/// Memory that `mycora up` may take at its peak beyond its memory at rest, in KiB: several times what it handles of one
/// caller at once (16 MiB), and what else it has received of it (64 MiB).
const PEAK_KIB: u64 = 400 * 1024;
/// Memory of that peak that it may keep, in KiB.
const KEPT_KIB: u64 = 150 * 1024;

/// 3 MiB in scripts that are no blobs, in jobs that wait for a signal.
fn large(number: usize) -> SubmitFlowRequest {
    let script = format!("# {}", "x".repeat(15 * 1024));
    let node = |n: usize| NodeSpec {
        name: format!("n{n}"),
        prerequisites: vec!["go".to_owned()],
        job: Some(JobSpec {
            script_type: ScriptType::Shell.into(),
            script: Some(Script { source: Some(Source::Text(script.clone())) }),
            ..JobSpec::default()
        }),
        ..NodeSpec::default()
    };
    SubmitFlowRequest {
        request_id: format!("large-{number}"),
        context_id: 1,
        flow: Some(FlowSpec {
            name: format!("large-{number}"),
            nodes: (0..200).map(node).collect(),
            ..FlowSpec::default()
        }),
        ..SubmitFlowRequest::default()
    }
}

/// How many ended how.
async fn submit_all(client: &FlowServiceClient<rpc::Channel>) -> BTreeMap<String, usize> {
    let mut submissions = JoinSet::new();
    for number in 0..SUBMISSIONS {
        let mut client = client.clone();
        submissions.spawn(async move {
            match client.submit_flow(large(number)).await {
                Ok(_) => "taken".to_owned(),
                Err(status) => ErrorView::from(&status).reason,
            }
        });
    }
    let mut ends = BTreeMap::new();
    while let Some(end) = submissions.join_next().await {
        *ends.entry(end.expect("it ends")).or_default() += 1;
    }
    ends
}

#[test]
fn large_submissions_at_once_take_a_bounded_memory_and_give_it_back() {
    let scene = Scene::new(&[]);
    let profile = Profile::load(&scene.up.profile()).expect("a profile");
    let pid = scene.up.process.pid();
    let before = memory_kib(pid, "VmRSS");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let ends = runtime.block_on(async {
        let client = FlowServiceClient::new(profile.channel().expect("a channel"));
        submit_all(&client).await
    });
    let peak = memory_kib(pid, "VmHWM") - before;
    println!("{ends:?}, {peak} KiB at the peak, {} KiB after", memory_kib(pid, "VmRSS") - before);
    assert!(ends["taken"] >= 5, "{ends:?}");
    assert!(ends.keys().all(|end| end == "taken" || end == "OVERLOADED"), "{ends:?}");
    assert!(peak < PEAK_KIB, "{peak} KiB at the peak");
    let given_back = || (memory_kib(pid, "VmRSS").saturating_sub(before) < KEPT_KIB).then_some(());
    wait_until_blocking(given_back, PATIENCE, "its memory is given back");
    scene.close();
}

const ANSWERS: usize = 200;
/// Memory that `mycora up` may take for answers that one caller does not read, in KiB: what it holds of them (32 MiB),
/// and what it takes to make one.
const UNREAD_PEAK_KIB: u64 = 150 * 1024;

/// Four results of 240 KiB each.
const LARGE_RESULT: &str = "\
name: large
jobs:
  a: &job
    script_type: rhai
    script: 'let text = \"x\"; text.pad(240000, \"x\"); result(\"text\", text)'
  b: *job
  c: *job
  d: *job
";

/// How long they are requested: less than the time after which they give way to others.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Requests a flow, and leaves the answer unread.
async fn unread_answer(channel: &rpc::Channel, id: u32) -> Result<Streaming<GetFlowResponse>, tonic::Status> {
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready().await.expect("a connection");
    let mut request = Request::new(tokio_stream::iter([GetFlowRequest { context_id: 1, flow_id: id }]));
    request.set_timeout(REQUEST_TIMEOUT);
    let path = PathAndQuery::from_static("/mycora.v1.FlowService/GetFlow");
    Ok(grpc.streaming(request, path, ProstCodec::default()).await?.into_inner())
}

#[test]
fn unread_answers_take_a_bounded_memory_and_no_room_of_others() {
    let scene = Scene::new(&[]);
    let (id, end) = scene.run(LARGE_RESULT);
    assert_eq!(end.status, "FINISHED", "{end:?}");
    let id = u32::try_from(id).expect("a flow's number");
    let profile = Profile::load(&scene.up.profile()).expect("a profile");
    let pid = scene.up.process.pid();
    let before = memory_kib(pid, "VmHWM");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let channel = profile.channel().expect("a channel");
        // From now on it is known what such an answer takes.
        let first = unread_answer(&channel, id).await.expect("an answer").message().await;
        assert!(first.expect("it comes").is_some());
        let mut requests: JoinSet<_> = (0..ANSWERS)
            .map(|_| {
                let channel = channel.clone();
                async move { unread_answer(&channel, id).await }
            })
            .collect();
        let (mut unread, mut refused) = (Vec::new(), BTreeMap::<String, usize>::new());
        while let Some(answer) = requests.join_next().await {
            match answer.expect("it ends") {
                Ok(answer) => unread.push(answer),
                Err(status) => *refused.entry(ErrorView::from(&status).reason).or_default() += 1,
            }
        }
        let peak = memory_kib(pid, "VmHWM") - before;
        println!("{} unread, {refused:?}, {peak} KiB at the peak", unread.len());
        assert!((16..60).contains(&unread.len()), "{} unread, {refused:?}", unread.len());
        let waited = |reason: &String| reason == "OVERLOADED" || reason == "DEADLINE_EXCEEDED";
        assert!(refused.keys().all(waited), "{refused:?}");
        assert!(peak < UNREAD_PEAK_KIB, "{peak} KiB at the peak");

        // Callers that read are served, the same caller too.
        drop(unread);
        let answer = unread_answer(&channel, id).await.expect("there is room again").message().await;
        let flow = answer.expect("it comes").expect("an answer").flow.expect("the flow");
        assert!(flow.result.values().map(String::len).sum::<usize>() > 900_000);
    });
    scene.close();
}
