//! Watching all flows of a context: none of their ends is missed, whenever the watch begins.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};

use mycora_cli::profile::Profile;
use proto::v1::flow_service_client::FlowServiceClient;
use proto::v1::watch_flows_response::Event;
use proto::v1::{
    FlowSnapshot, FlowSpec, FlowStatus, FlowSummary, JobSpec, NodeSpec, Script, ScriptType,
    SubmitFlowRequest, WatchFlowsRequest, WatchFlowsResponse, script,
};
use testkit::{FaultProxy, ProxyTarget};
use tonic::{Code, Status, Streaming};

use crate::scene::Scene;
use crate::suite::{PATIENCE, stdout};

type Client = FlowServiceClient<rpc::Channel>;

/// A flow whose only job runs at once, or waits for the signal `go`.
fn text(name: &str, waits: bool) -> String {
    let waits = if waits { ", prerequisites: [go]" } else { "" };
    format!("name: {name}\njobs:\n  only: {{ script_type: rhai, script: \"()\"{waits} }}\n")
}

/// Submits a flow whose only job runs at once.
async fn submit(client: &mut Client, name: &str) -> u32 {
    let script = Some(Script { source: Some(script::Source::Text("()".into())) });
    let job = Some(JobSpec { script_type: ScriptType::Rhai.into(), script, ..JobSpec::default() });
    let nodes = vec![NodeSpec { name: "only".into(), job, ..NodeSpec::default() }];
    let flow = Some(FlowSpec { name: name.into(), nodes, ..FlowSpec::default() });
    let request = SubmitFlowRequest { context_id: 1, flow, ..SubmitFlowRequest::default() };
    client.submit_flow(request).await.expect("it is good").into_inner().flow.expect("the flow").id
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

fn request(prefix: &str, from: &str) -> WatchFlowsRequest {
    let (name_prefix, resume_position) = (prefix.to_owned(), from.to_owned());
    WatchFlowsRequest { context_id: 1, name_prefix, resume_position, ..Default::default() }
}

async fn watch(
    client: &mut Client,
    request: WatchFlowsRequest,
) -> Result<Streaming<WatchFlowsResponse>, Status> {
    Ok(client.watch_flows(request).await?.into_inner())
}

/// Knowledge of one watch: each flow as it was last reported.
#[derive(Debug, Default)]
struct Known {
    flows: BTreeMap<u32, FlowSummary>,
    removed: BTreeSet<u32>,
    /// Behind the snapshot.
    changes: Vec<WatchFlowsResponse>,
    has_all: bool,
}

impl Known {
    fn take(&mut self, answer: WatchFlowsResponse) {
        match &answer.event {
            Some(Event::Flow(flow)) => {
                let before = self.flows.insert(flow.id, flow.clone());
                let before = before.map_or(0, |before| before.revision);
                assert!(before < flow.revision, "flow {} goes back from {before}", flow.id);
            }
            Some(Event::Removed(removed)) => {
                self.removed.insert(removed.flow_id);
            }
            Some(Event::SnapshotEnd(_)) => {
                assert!(!self.has_all, "a snapshot ends once");
                self.has_all = true;
                assert!(!answer.resume_position.is_empty());
                return;
            }
            Some(Event::Heartbeat(_)) | None => return,
        }
        assert_eq!(self.has_all, !answer.resume_position.is_empty(), "{answer:?}");
        if self.has_all {
            self.changes.push(answer);
        }
    }

    fn ended(&self) -> usize {
        let is_end =
            |status| matches!(status, FlowStatus::Finished | FlowStatus::Error | FlowStatus::Cancelled);
        self.flows.values().filter(|flow| is_end(flow.status())).count()
    }

    async fn until(
        &mut self,
        answers: &mut Streaming<WatchFlowsResponse>,
        is_enough: impl Fn(&Self) -> bool,
    ) {
        let reading = async {
            while !is_enough(self) {
                self.take(answers.message().await.expect("it stands").expect("it goes on"));
            }
        };
        let read = tokio::time::timeout(PATIENCE, reading).await;
        assert!(read.is_ok(), "something is not told: {} of {} have ended", self.ended(), self.flows.len());
    }
}

/// Whenever a watch begins, before, while and after flows run, it ends up with all ends; and so does one that resumes at
/// any of its answers.
#[test]
fn no_end_is_missed_whenever_a_watch_begins() {
    const FLOWS: usize = 60;
    let scene = Scene::new(&[]);
    let profile = Profile::load(&scene.up.profile()).expect("a profile");
    scene.submit(&text("other", true));
    runtime().block_on(async {
        let mut client = FlowServiceClient::new(profile.channel().expect("a channel"));
        let mut first = Known::default();
        let mut answers = watch(&mut client, request("mine-", "")).await.expect("a watch");
        first.until(&mut answers, |known| known.has_all).await;
        assert!(first.flows.is_empty(), "the other one is not meant");
        let mut submitter = client.clone();
        let submitted = tokio::spawn(async move {
            let mut ids = BTreeSet::new();
            for n in 0..FLOWS {
                ids.insert(submit(&mut submitter, &format!("mine-{n}")).await);
            }
            ids
        });
        // Others begin at each fourth answer of the first.
        let mut others = Vec::new();
        while first.ended() < FLOWS {
            let count = first.changes.len();
            first.until(&mut answers, |known| known.changes.len() > count).await;
            if count % 4 == 0 {
                let mut client = client.clone();
                others.push(tokio::spawn(async move {
                    let mut known = Known::default();
                    let mut answers = watch(&mut client, request("mine-", "")).await.expect("a watch");
                    known.until(&mut answers, |known| known.has_all && known.ended() == FLOWS).await;
                    known
                }));
            }
        }
        let ids = submitted.await.expect("they are submitted");
        assert_eq!(first.flows.keys().copied().collect::<BTreeSet<_>>(), ids);
        assert!(others.len() > 10, "{}", others.len());
        for other in others {
            let other = other.await.expect("it ends");
            assert_eq!(other.flows, first.flows, "all end with the same");
            assert!(first.changes.ends_with(&other.changes), "and were told the same on the way");
        }
        for n in (0..first.changes.len()).step_by(7) {
            let from = &first.changes[n].resume_position;
            let mut resumed = Known { has_all: true, ..Known::default() };
            let mut answers = watch(&mut client, request("mine-", from)).await.expect("a watch");
            let rest = &first.changes[n + 1..];
            resumed.until(&mut answers, |known| known.changes.len() == rest.len()).await;
            assert_eq!(resumed.changes, rest, "after {n}");
        }
    });
    scene.close();
}

#[test]
fn a_watch_of_all_begins_as_requested_and_reports_cancels_and_deletions() {
    let scene = Scene::new(&[]);
    let profile = Profile::load(&scene.up.profile()).expect("a profile");
    let (ended, _) = scene.run(&text("mine-ended", false));
    let open = scene.submit(&text("mine-open", true));
    let foreign = scene.submit(&text("foreign", true));
    runtime().block_on(async {
        let mut client = FlowServiceClient::new(profile.channel().expect("a channel"));
        let small = |id: u64| u32::try_from(id).expect("a small number");
        for (snapshot, shown) in [
            (FlowSnapshot::Unspecified, vec![small(ended), small(open)]),
            (FlowSnapshot::Open, vec![small(open)]),
            (FlowSnapshot::None, vec![]),
        ] {
            let wanted = WatchFlowsRequest { snapshot: snapshot.into(), ..request("mine-", "") };
            let mut answers = watch(&mut client, wanted).await.expect("a watch");
            let mut known = Known::default();
            known.until(&mut answers, |known| known.has_all).await;
            assert_eq!(known.flows.keys().copied().collect::<Vec<_>>(), shown, "{snapshot:?}");
        }
        let nobodys = WatchFlowsRequest { caller_id: 99, ..request("", "") };
        let mut of_nobody = watch(&mut client, nobodys).await.expect("a watch");
        let mut none = Known::default();
        none.until(&mut of_nobody, |known| known.has_all).await;

        let now = WatchFlowsRequest { snapshot: FlowSnapshot::None.into(), ..request("mine-", "") };
        let mut answers = watch(&mut client, now).await.expect("a watch");
        let mut known = Known::default();
        known.until(&mut answers, |known| known.has_all).await;
        stdout(&scene.up.mycora(&["flow", "cancel", &foreign.to_string()]), 0);
        stdout(&scene.up.mycora(&["flow", "cancel", &open.to_string()]), 0);
        known.until(&mut answers, |known| known.ended() == 1).await;
        let flow = &known.flows[&small(open)];
        assert_eq!((flow.status(), flow.name.as_str()), (FlowStatus::Cancelled, "mine-open"));
        assert!(flow.cancel_requested_time.is_some() && flow.create_time.is_some());
        stdout(&scene.up.mycora(&["flow", "delete", &open.to_string()]), 0);
        known.until(&mut answers, |known| !known.removed.is_empty()).await;
        assert_eq!(known.removed, BTreeSet::from([small(open)]));
        assert_eq!(known.flows.len(), 1, "the foreign one was cancelled as well");

        // An event of an older version, which does not name the flow's owner.
        let revision = scene.up.redis(1, &["HINCRBY", "ids", "revision", "1"]);
        let event = format!(
            r#"{{"kind":"flow","flow_id":{ended},"status":"finished","generation":1,"time":1763690000.5}}"#
        );
        let place = format!("{}-1", revision.trim());
        scene.up.redis(1, &["XADD", "events", &place, "e", &event, "b", "00000000000000aa"]);
        scene.up.redis(1, &["PUBLISH", "{1}:hint", ""]);
        known.until(&mut answers, |known| known.flows.len() == 2).await;
        let flow = &known.flows[&small(ended)];
        assert_eq!((flow.name.as_str(), flow.caller_id), ("mine-ended", 1));
        assert!(none.flows.is_empty());
    });
    scene.close();
}

#[test]
fn a_watch_of_all_that_is_cut_off_and_resumes_sees_each_change_once() {
    const FLOWS: usize = 30;
    let scene = Scene::new(&[]);
    let profile = Profile::load(&scene.up.profile()).expect("a profile");
    let ids: Vec<u64> = (0..FLOWS).map(|n| scene.submit(&text(&format!("mine-{n}"), true))).collect();
    runtime().block_on(async {
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, scene.up.port()));
        let proxy = FaultProxy::start(ProxyTarget::Tcp(server)).await;
        let through = Profile { address: Some(format!("https://{}", proxy.address())), ..profile.clone() };
        let mut straight = FlowServiceClient::new(profile.channel().expect("a channel"));
        let mut client = FlowServiceClient::new(through.channel().expect("a channel"));
        let mut all = Known::default();
        let mut answers = watch(&mut straight, request("", "")).await.expect("a watch");
        all.until(&mut answers, |known| known.has_all && known.flows.len() == FLOWS).await;
        let (mut seen, mut at, mut cuts, mut begun) = (Known::default(), String::new(), 0, false);
        'streams: loop {
            // The next call reopens a connection that was just cut.
            let Ok(mut stream) = watch(&mut client, request("", &at)).await else { continue };
            let mut read = 0;
            while let Ok(answer) = stream.message().await {
                let answer = answer.expect("it has no end of its own");
                if !answer.resume_position.is_empty() {
                    at.clone_from(&answer.resume_position);
                }
                seen.take(answer);
                if seen.ended() == FLOWS {
                    break 'streams;
                }
                if seen.has_all && !begun {
                    begun = true;
                    for id in &ids {
                        stdout(&scene.up.mycora(&["flow", "signal", &id.to_string(), "go"]), 0);
                    }
                }
                read += 1;
                if begun && read % 3 == 0 {
                    cuts += 1;
                    proxy.cut_once();
                }
            }
        }
        all.until(&mut answers, |known| known.ended() == FLOWS).await;
        assert!(cuts > 5, "it was cut {cuts} times only");
        assert!(all.changes.ends_with(&seen.changes), "no change is missing, none came twice");
        assert_eq!(all.flows, seen.flows);
    });
    scene.close();
}

#[test]
fn watches_of_all_are_refused_as_others_are() {
    let scene = Scene::new(&[]);
    let profile = Profile::load(&scene.up.profile()).expect("a profile");
    runtime().block_on(async {
        let mut client = FlowServiceClient::new(profile.channel().expect("a channel"));
        let wrong = WatchFlowsRequest { context_id: 0, snapshot: 9, ..request(&"x".repeat(129), "") };
        let status = watch(&mut client, wrong).await.expect_err("it is wrong");
        let view = rpc::ErrorView::from(&status);
        let fields: Vec<&str> = view.violations.iter().map(|violation| violation.field.as_str()).collect();
        assert_eq!(
            (view.code, fields),
            (Code::InvalidArgument, vec!["context_id", "name_prefix", "snapshot"])
        );
        let gone = format!("1.1-{}", "0".repeat(16));
        for (from, code, reason) in [
            ("somewhere", Code::InvalidArgument, "INVALID_REQUEST"),
            (&gone, Code::OutOfRange, "POSITION_GONE"),
        ] {
            let mut answers = watch(&mut client, request("", from)).await.expect("a stream");
            let view = rpc::ErrorView::from(&answers.message().await.expect_err("no such position"));
            assert_eq!((view.code, view.reason.as_str()), (code, reason));
        }
        let elsewhere = WatchFlowsRequest { context_id: 77, ..request("", "") };
        let mut answers = watch(&mut client, elsewhere).await.expect("a stream");
        assert_eq!(answers.message().await.expect_err("there is no such context").code(), Code::NotFound);
    });
    scene.close();
}
