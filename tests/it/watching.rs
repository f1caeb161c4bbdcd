//! Watchers that are cut off, and watchers that stop reading.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use mycora_cli::profile::Profile;
use proto::v1::flow_service_client::FlowServiceClient;
use proto::v1::watch_flow_response::Event;
use proto::v1::{FlowStatus, NodeState, WatchFlowRequest, WatchFlowResponse};
use testkit::{FaultProxy, ProxyTarget, wait_until_blocking};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Status, Streaming};

use crate::scene::Scene;
use crate::suite::{PATIENCE, memory_kib, metric, stdout};

type Client = FlowServiceClient<rpc::Channel>;

/// A change as a watcher sees it: node, state and attempt, with its place.
type Seen = (u32, i32, u32, String);

/// `width` nodes after one that waits for the signal `go`.
fn fan_out(width: usize) -> String {
    let job = "script_type: rhai, script: \"()\"";
    let mut text = format!("name: watched\njobs:\n  first: {{ {job}, prerequisites: [go] }}\n");
    for i in 0..width {
        text.push_str(&format!("  n{i}: {{ {job}, depends: [first] }}\n"));
    }
    text
}

/// Submits [`fan_out`], and waits until its first step is stored: nothing changes then until the signal.
fn submitted(scene: &Scene, width: usize) -> u64 {
    let id = scene.submit(&fan_out(width));
    let waits = || (!scene.node(id, "first")["reason"].is_null()).then_some(());
    wait_until_blocking(waits, PATIENCE, "the first node says what it waits for");
    id
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

fn request(flow: u64, from: &str) -> WatchFlowRequest {
    let flow_id = u32::try_from(flow).expect("a small number");
    WatchFlowRequest { context_id: 1, flow_id, resume_position: from.to_owned() }
}

async fn watch(client: &mut Client, flow: u64, from: &str) -> Result<Streaming<WatchFlowResponse>, Status> {
    Ok(client.watch_flow(request(flow, from)).await?.into_inner())
}

/// Position from which a watch of this flow reports changes.
async fn end_of_snapshot(client: &mut Client, flow: u64) -> String {
    let mut answers = watch(client, flow, "").await.expect("a stream");
    loop {
        let position = answers.message().await.expect("an answer").expect("more").resume_position;
        if !position.is_empty() {
            return position;
        }
    }
}

/// A client whose connection holds little that was not read: 64 KiB.
async fn narrow_client(profile: &Profile) -> FlowServiceClient<Channel> {
    const WINDOW: u32 = 65_535;
    let read = |file: &Option<PathBuf>| std::fs::read(file.as_ref().expect("it names one")).expect("a file");
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(read(&profile.ca)))
        .identity(Identity::from_pem(read(&profile.cert), read(&profile.key)));
    let endpoint = Endpoint::from_shared(profile.address.clone().expect("an address")).expect("an address");
    let endpoint = endpoint.tls_config(tls).expect("certificates");
    let endpoint = endpoint.initial_stream_window_size(WINDOW).initial_connection_window_size(WINDOW);
    FlowServiceClient::new(endpoint.connect().await.expect("a connection"))
}

fn change(answer: &WatchFlowResponse) -> Option<Seen> {
    match &answer.event {
        Some(Event::NodeChange(change)) => {
            Some((change.job_id, change.state, change.attempt, answer.resume_position.clone()))
        }
        _ => None,
    }
}

/// Reads a watch to its end, the snapshot included; reports when that is complete.
async fn see_all(
    mut stream: Streaming<WatchFlowResponse>,
    ready: tokio::sync::oneshot::Sender<()>,
) -> Vec<Seen> {
    let mut seen = Vec::new();
    let mut ready = Some(ready);
    while let Some(answer) = stream.message().await.expect("nothing breaks here") {
        if matches!(answer.event, Some(Event::SnapshotEnd(_))) {
            let _ = ready.take().expect("a snapshot ends once").send(());
        }
        seen.extend(change(&answer));
    }
    seen
}

#[test]
fn one_that_is_cut_off_and_resumes_sees_each_change_once() {
    let scene = Scene::new(&[]);
    let id = submitted(&scene, 60);
    let profile = Profile::load(&scene.up.profile()).expect("a profile");
    runtime().block_on(async {
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, scene.up.port()));
        let proxy = FaultProxy::start(ProxyTarget::Tcp(server)).await;
        let through = Profile { address: Some(format!("https://{}", proxy.address())), ..profile.clone() };
        let mut straight = FlowServiceClient::new(profile.channel().expect("a channel"));
        let mut client = FlowServiceClient::new(through.channel().expect("a channel"));
        let (ready, is_ready) = tokio::sync::oneshot::channel();
        let all = tokio::spawn(see_all(watch(&mut straight, id, "").await.expect("a watch"), ready));
        is_ready.await.expect("its snapshot");

        let (mut seen, mut at, mut cuts) = (Vec::new(), String::new(), 0);
        let mut begun = false;
        'streams: loop {
            // The next call reopens a connection that was just cut.
            let Ok(mut stream) = watch(&mut client, id, &at).await else { continue };
            let mut read = 0;
            while let Ok(answer) = stream.message().await {
                let Some(answer) = answer else { break 'streams };
                if !answer.resume_position.is_empty() {
                    at.clone_from(&answer.resume_position);
                }
                seen.extend(change(&answer));
                if !begun && matches!(answer.event, Some(Event::SnapshotEnd(_))) {
                    begun = true;
                    stdout(&scene.up.mycora(&["flow", "signal", &id.to_string(), "go"]), 0);
                }
                read += 1;
                if begun && read % 9 == 0 {
                    cuts += 1;
                    proxy.cut_once();
                }
            }
        }
        let all = all.await.expect("the other watch");
        assert!(cuts > 5, "it was cut {cuts} times only");
        assert_eq!(seen, all);
        let places: BTreeSet<&String> = seen.iter().map(|(_, _, _, place)| place).collect();
        assert_eq!(places.len(), seen.len(), "no change came twice");
    });
    scene.close();
}

#[test]
fn a_watch_resumed_after_the_end_receives_the_changes_before_it() {
    let scene = Scene::new(&[]);
    let id = scene.submit(
        "name: resumed\njobs:\n  a: { script_type: rhai, script: \"()\", prerequisites: [go] }\n  b: { script_type: rhai, script: \"()\", depends: [a] }\n",
    );
    let profile = Profile::load(&scene.up.profile()).expect("a profile");
    runtime().block_on(async {
        let mut client = FlowServiceClient::new(profile.channel().expect("a channel"));
        let position = end_of_snapshot(&mut client, id).await;
        stdout(&scene.up.mycora(&["flow", "cancel", &id.to_string()]), 0);
        scene.end(id);
        let mut answers = watch(&mut client, id, &position).await.expect("a stream");
        let (mut cancelled, mut last) = (0, None);
        while let Some(answer) = answers.message().await.expect("it ends well") {
            let ended = |change: &Seen| change.1 == i32::from(NodeState::Cancelled);
            cancelled += usize::from(change(&answer).is_some_and(|change| ended(&change)));
            last = answer.event;
        }
        assert_eq!(cancelled, 2, "both were cancelled before the flow ended");
        assert!(matches!(last, Some(Event::Flow(flow)) if flow.status() == FlowStatus::Cancelled));
    });
    scene.close();
}

/// Reads a watch to its end, without snapshot and signs of life; also returns the position where the snapshot ended.
async fn read(mut answers: Streaming<WatchFlowResponse>) -> (String, Vec<WatchFlowResponse>) {
    let (mut snapshot_end, mut reported) = (String::new(), Vec::new());
    while let Some(answer) = answers.message().await.expect("it ends well") {
        match answer.event {
            Some(Event::SnapshotEnd(_)) => snapshot_end = answer.resume_position,
            Some(Event::Heartbeat(_)) => {}
            _ if answer.resume_position.is_empty() => {}
            _ => reported.push(answer),
        }
    }
    (snapshot_end, reported)
}

/// Returns the events of a watch from this position on until its end.
async fn events_after(client: &mut Client, flow: u64, from: &str) -> Vec<WatchFlowResponse> {
    read(watch(client, flow, from).await.expect("a stream")).await.1
}

/// State of the flow by the last answers of a watch.
fn last_status(answers: &[WatchFlowResponse]) -> Option<FlowStatus> {
    match &answers.last()?.event {
        Some(Event::Flow(flow)) => Some(flow.status()),
        _ => None,
    }
}

/// Property: after each answer of a watch, of the flow as well as of its nodes, a watch that resumes there gets all the others,
/// equal in every field; and so does one that watched while it happened.
#[test]
fn a_watch_resumed_after_any_answer_receives_all_the_later_ones() {
    let scene = Scene::new(&[]);
    let profile = Profile::load(&scene.up.profile()).expect("a profile");
    // One whose nodes end one after the other, and one that ends as a whole, with all its nodes in one commit.
    let ends: [(&str, &[&str], FlowStatus); 2] =
        [("signal", &["go"], FlowStatus::Finished), ("cancel", &[], FlowStatus::Cancelled)];
    for (order, arguments, end) in ends {
        let id = submitted(&scene, 12);
        runtime().block_on(async {
            let mut client = FlowServiceClient::new(profile.channel().expect("a channel"));
            let from = end_of_snapshot(&mut client, id).await;
            let live = tokio::spawn(read(watch(&mut client, id, &from).await.expect("a stream")));
            let flow = id.to_string();
            stdout(&scene.up.mycora(&[&["flow", order, &flow], arguments].concat()), 0);
            scene.end(id);
            let all = events_after(&mut client, id, &from).await;
            assert_eq!(live.await.expect("the other watch").1, all, "{order}: one that watched meanwhile");
            assert_eq!(last_status(&all), Some(end));
            let changes = all.iter().filter(|answer| change(answer).is_some()).count();
            assert!(changes >= 13, "each node has ended, at least");
            let cancels = |answer: &&WatchFlowResponse| {
                matches!(&answer.event, Some(Event::Flow(flow)) if flow.cancel_requested_time.is_some())
            };
            let cancels = all.iter().filter(cancels).count();
            assert_eq!(cancels >= 2, order == "cancel", "the wish is told, and then the end: {cancels}");
            for (n, last) in all.iter().enumerate() {
                let rest = events_after(&mut client, id, &last.resume_position).await;
                assert_eq!(rest, all[n + 1..], "{order}, after {n} of {}", all.len());
            }
        });
    }
    scene.close();
}

/// Whenever a watch begins, after its snapshot it gets the same as all the others.
#[test]
fn watches_that_begin_while_a_flow_runs_receive_the_same() {
    let scene = Scene::new(&[]);
    let profile = Profile::load(&scene.up.profile()).expect("a profile");
    let id = submitted(&scene, 60);
    runtime().block_on(async {
        let mut client = FlowServiceClient::new(profile.channel().expect("a channel"));
        let from = end_of_snapshot(&mut client, id).await;
        let mut meanwhile = Vec::new();
        let mut first = watch(&mut client, id, &from).await.expect("a stream");
        stdout(&scene.up.mycora(&["flow", "signal", &id.to_string(), "go"]), 0);
        // One watch begins at each of the first answers of another.
        for _ in 0..20 {
            first.message().await.expect("it stands").expect("it goes on");
            let another = watch(&mut client, id, "").await.expect("a stream");
            meanwhile.push(tokio::spawn(read(another)));
        }
        scene.end(id);
        let all = events_after(&mut client, id, &from).await;
        for another in meanwhile {
            let (snapshot_end, seen) = another.await.expect("it ends");
            assert!(all.ends_with(&seen), "other answers: {seen:?}");
            assert_eq!(
                events_after(&mut client, id, &snapshot_end).await,
                seen,
                "as if it had resumed there"
            );
        }
    });
    scene.close();
}

#[test]
fn a_watch_that_is_not_read_is_ended_with_the_position_to_resume_from() {
    const STALLED: u32 = 20;
    const SLOW: &str = "mycora_scheduler_slow_watchers_total";
    let scene = Scene::new(&[]);
    let id = submitted(&scene, 2500);
    let profile = Profile::load(&scene.up.profile()).expect("a profile");
    runtime().block_on(async {
        let mut client = FlowServiceClient::new(profile.channel().expect("a channel"));
        let (ready, is_ready) = tokio::sync::oneshot::channel();
        let all = tokio::spawn(see_all(watch(&mut client, id, "").await.expect("a watch"), ready));
        is_ready.await.expect("its snapshot");
        let from_start = {
            let mut stream = watch(&mut client, id, "").await.expect("a watch");
            loop {
                let answer = stream.message().await.expect("it stands").expect("it goes on");
                if matches!(answer.event, Some(Event::SnapshotEnd(_))) {
                    break answer.resume_position;
                }
            }
        };
        let before = memory_kib(scene.up.process.pid(), "VmRSS");
        let mut stalled = Vec::new();
        for _ in 0..STALLED {
            // Each on a connection of its own: one that is full must not hold up the others.
            let mut client = narrow_client(&profile).await;
            stalled.push(client.watch_flow(request(id, &from_start)).await.expect("a watch").into_inner());
        }
        stdout(&scene.up.mycora(&["flow", "signal", &id.to_string(), "go"]), 0);
        let all = all.await.expect("the other watch");
        let ended =
            || (metric(scene.up.dir(), scene.up.port() + 100, SLOW) >= f64::from(STALLED)).then_some(());
        wait_until_blocking(ended, PATIENCE, "those that do not read are ended");
        let grown = memory_kib(scene.up.process.pid(), "VmRSS").saturating_sub(before);
        assert!(grown < 200 * 1024, "{grown} KiB for {STALLED} watchers that do not read");

        // Those that come back to read find what waited for them, and then the reason of the end.
        for mut stream in stalled {
            let (mut seen, mut at) = (Vec::new(), from_start.clone());
            let status = loop {
                match stream.message().await {
                    Ok(Some(answer)) => {
                        at.clone_from(&answer.resume_position);
                        seen.extend(change(&answer));
                    }
                    Ok(None) => panic!("its stream ended well after {} changes", seen.len()),
                    Err(status) => break status,
                }
            };
            assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
            let position = rpc::ErrorView::from(&status).metadata.get("resume_position").cloned();
            assert_eq!(position.as_deref(), Some(at.as_str()));
            assert!(seen.len() < all.len(), "it was not slow");
            let mut rest = watch(&mut client, id, &at).await.expect("it resumes");
            while let Some(answer) = rest.message().await.expect("it reads now") {
                seen.extend(change(&answer));
            }
            assert_eq!(seen, all);
        }
    });
    scene.close();
}
