//! Large submissions that come all at once.

use std::collections::BTreeMap;

use mycora_cli::profile::Profile;
use proto::v1::flow_service_client::FlowServiceClient;
use proto::v1::script::Source;
use proto::v1::{FlowSpec, JobSpec, NodeSpec, Script, ScriptType, SubmitFlowRequest};
use rpc::ErrorView;
use testkit::wait_until_blocking;
use tokio::task::JoinSet;

use crate::scene::Scene;
use crate::suite::{PATIENCE, memory_kib};

const SUBMISSIONS: usize = 120;
/// What `mycora up` may take beyond what it takes at rest, at its peak: several times what it handles of one caller at once
/// (16 MiB), and what else it has received of it (64 MiB).
const PEAK_KIB: u64 = 400 * 1024;
/// What it may keep of that.
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
