//! A steady load on a suite that others restart meanwhile: what calls come to, and whether each flow ends exactly once.
//!
//! Calls that fail are repeated with the same request id, as a client should. A watch of all flows counts their ends, and resumes
//! where its stream broke.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mycora_cli::profile::Profile;
use proto::v1::watch_flows_response::Event;
use proto::v1::{FlowSnapshot, FlowStatus, FlowSummary, WatchFlowsRequest};
use serde_json::json;
use tokio::task::JoinSet;
use tonic::Code;

use crate::client::{Client, no_op};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// How long one call is repeated.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long flows may take to end once the last was submitted.
const ENDS: Duration = Duration::from_secs(120);
/// Pause before a call is repeated, and before a watch resumes.
const PAUSE: Duration = Duration::from_millis(200);
const NAME: &str = "steady";

/// Outcome of the calls.
#[derive(Debug, Default)]
struct Calls {
    made: AtomicU64,
    failed: AtomicU64,
    repeated: AtomicU64,
    unhealed: AtomicU64,
}

/// Ends that the watch reported: of each flow the changes at which it had ended, and its last status.
#[derive(Debug, Default)]
struct Ends {
    revisions: BTreeMap<u32, BTreeSet<u64>>,
    statuses: BTreeMap<u32, FlowStatus>,
}

/// Submits `per_second` flows of one job a second for `secs`; gives the outcome as JSON.
pub(crate) async fn measure(profile: &Path, secs: u64, per_second: u32) -> Result<String, Error> {
    let client = Client::connect(&Profile::load(profile)?)?;
    let (calls, ends) = (Arc::new(Calls::default()), Arc::new(Mutex::new(Ends::default())));
    let watching = tokio::spawn(watch(client.clone(), Arc::clone(&ends)));
    let mut tasks = JoinSet::new();
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / per_second.max(1));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(secs) {
        ticks.tick().await;
        tasks.spawn(submit(client.clone(), Arc::clone(&calls)));
    }
    let mut submitted = BTreeSet::new();
    while let Some(id) = tasks.join_next().await {
        submitted.extend(id?);
    }
    let all_ended = || async {
        let ends = ends.lock().ok()?;
        submitted.iter().all(|id| ends.revisions.contains_key(id)).then_some(())
    };
    // What has not ended by then is counted as lost below.
    let _ = tokio::time::timeout(ENDS, async {
        while all_ended().await.is_none() {
            tokio::time::sleep(PAUSE).await;
        }
    })
    .await;
    watching.abort();
    let ends = ends.lock().map_err(|_| "the watch failed")?;
    let of = |id: &u32| ends.revisions.get(id).map_or(0, BTreeSet::len);
    let finished = submitted.iter().filter(|id| ends.statuses.get(id) == Some(&FlowStatus::Finished));
    let outcome = json!({
        "submitted": submitted.len(),
        "calls": calls.made.load(Ordering::Relaxed),
        "failed_calls": calls.failed.load(Ordering::Relaxed),
        "repeated_calls": calls.repeated.load(Ordering::Relaxed),
        "unhealed_calls": calls.unhealed.load(Ordering::Relaxed),
        "finished": finished.count(),
        "lost_flows": submitted.iter().filter(|id| of(id) == 0).count(),
        "doubled_ends": submitted.iter().filter(|id| of(id) > 1).count(),
    });
    Ok(outcome.to_string())
}

/// Submits one flow, with one request id however often it takes. Gives its number.
async fn submit(client: Client, calls: Arc<Calls>) -> Option<u32> {
    let request_id = uuid::Uuid::new_v4().to_string();
    let begin = Instant::now();
    loop {
        calls.made.fetch_add(1, Ordering::Relaxed);
        match client.submit_as(NAME, vec![no_op("only".into(), Vec::new())], &request_id).await {
            Ok(flow) => return Some(flow.id),
            Err(status) => {
                calls.failed.fetch_add(1, Ordering::Relaxed);
                let may_heal = !matches!(status.code(), Code::InvalidArgument | Code::PermissionDenied);
                if !may_heal || begin.elapsed() > PATIENCE {
                    eprintln!("a call was not healed: {status}");
                    calls.unhealed.fetch_add(1, Ordering::Relaxed);
                    return None;
                }
                calls.repeated.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Watches all flows of this load, and resumes where a stream broke.
async fn watch(client: Client, ends: Arc<Mutex<Ends>>) {
    let mut position = String::new();
    loop {
        let request = WatchFlowsRequest {
            name_prefix: NAME.into(),
            snapshot: FlowSnapshot::Open.into(),
            resume_position: position.clone(),
            ..Default::default()
        };
        if let Ok(mut answers) = client.watch_all(request).await {
            while let Ok(Some(answer)) = answers.message().await {
                if !answer.resume_position.is_empty() {
                    position = answer.resume_position;
                }
                if let (Some(Event::Flow(flow)), Ok(mut ends)) = (answer.event, ends.lock()) {
                    ends.note(&flow);
                }
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

impl Ends {
    fn note(&mut self, flow: &FlowSummary) {
        let is_end =
            matches!(flow.status(), FlowStatus::Finished | FlowStatus::Error | FlowStatus::Cancelled);
        if is_end {
            self.revisions.entry(flow.id).or_default().insert(flow.revision);
            self.statuses.insert(flow.id, flow.status());
        }
    }
}
