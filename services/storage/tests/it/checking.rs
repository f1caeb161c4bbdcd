//! Checks of records: what breaks an invariant is found, what can be repaired is repaired, and races are no findings.

mod breaks;
mod races;

use identity::Identity;
use keys::Layout;
use kv::Cmd;
use model::limits::BLOB_CHUNK_BYTES;
use model::{BlobHash, NodeState, ScriptSource, Timestamp};
use proto::internal::v1 as wire;
use proto::v1;
use tonic::{Code, Status};

use crate::letters::{chat, send};
use crate::moving::noise;
use crate::places::{Redis, scenarios};
use crate::received::{accepted, letter};
use crate::stage::{ADMIN, CONTEXT, EXECUTOR, READER, Running, STRANGER, Stage, failure, json, script};

/// Objects of a healthy context.
pub(crate) struct Stocked {
    /// A flow that runs: its first node is at a runner, and waits behind no other.
    pub(crate) open: Running,
    /// A flow whose only node has ended.
    pub(crate) ended: Running,
    /// A flow that was not started.
    pub(crate) created: Running,
    /// Key of chat that waits for a router.
    pub(crate) sent: String,
    /// Key of chat in the inbox of the reader.
    pub(crate) received: String,
    /// Blob to which a job refers.
    pub(crate) blob: BlobHash,
    /// Number of that job.
    pub(crate) job: u32,
    /// Number of a runner record.
    pub(crate) runner: u32,
}

/// Fills a context with something of every kind, in which nothing is wrong.
pub(crate) async fn stocked(stage: &Stage<impl Redis>) -> Stocked {
    let bytes = noise(700_000);
    let blob = BlobHash::of(&bytes);
    let pieces: Vec<_> = bytes
        .chunks(BLOB_CHUNK_BYTES)
        .map(|piece| v1::PutBlobRequest {
            context_id: CONTEXT,
            data: bytes.slice_ref(piece),
            ..Default::default()
        })
        .collect();
    stage.jobs(EXECUTOR).put_blob(tokio_stream::iter(pieces)).await.unwrap();
    let source = ScriptSource::Blob(model::job::BlobRef { sha256: blob, size: bytes.len() as u64 });
    let spec = model::JobSpec { script: source, ..script("") };
    let job = v1::CreateJobRequest {
        context_id: CONTEXT,
        spec: Some(proto::convert::job::spec_to_wire(&spec)),
        ..Default::default()
    };
    let job = stage.jobs(EXECUTOR).create_job(job).await.unwrap().into_inner().job.unwrap().id;
    let idle = v1::PutBlobRequest { context_id: CONTEXT, data: noise(1000), ..Default::default() };
    stage.jobs(EXECUTOR).put_blob(tokio_stream::iter([idle])).await.unwrap();
    let runner = v1::RegisterRunnerRequest {
        context_id: CONTEXT,
        address: "mycelium:[400::1]".to_owned(),
        ..Default::default()
    };
    let runner = wire::PutRunnerRequest { runner: Some(runner), on_behalf_of: ADMIN };
    let runner = stage.runners().put_runner(runner).await.unwrap().into_inner().runner.unwrap().id;
    let sent = send(stage, EXECUTOR, chat(&READER.to_string(), "sent from here")).await.key;
    let received = accepted(stage, &letter(1)).await;
    let ended = ended(stage).await;
    let open = open(stage).await;
    let created = stage.created(2).await;
    // The ended flow is measured.
    stage.sweep(Timestamp::now()).await;
    Stocked { open, ended, created, sent, received, blob, job, runner }
}

/// A node that changes its state, and its job with it.
pub(crate) fn change(flow: &Running, place: u32, state: NodeState) -> wire::NodeCommit {
    let mut node = flow.node(place);
    (node.attempt, node.state) = (model::Attempt(1), state);
    wire::NodeCommit {
        job_id: node.job_id.0,
        node_json: json(&node),
        job_status: state.job_status().to_owned(),
        ..Default::default()
    }
}

async fn ended(stage: &Stage<impl Redis>) -> Running {
    let mut flow = stage.started(1).await;
    let step = wire::CommitRequest {
        nodes: vec![change(&flow, 0, NodeState::Running)],
        messages: vec![flow.message(101)],
        ..flow.step()
    };
    stage.apply(&mut flow, step).await;
    stage.messages().append_logs(wire::AppendLogsRequest { chunks: vec![flow.log_chunk()] }).await.unwrap();
    let end = wire::CommitRequest { nodes: vec![change(&flow, 0, NodeState::Completed)], ..flow.end() };
    stage.apply(&mut flow, end).await;
    flow
}

async fn open(stage: &Stage<impl Redis>) -> Running {
    let mut flow = stage.started(2).await;
    let step = wire::CommitRequest {
        nodes: vec![change(&flow, 0, NodeState::Running)],
        messages: vec![flow.message(102)],
        due_millis: 4_000_000_000_000,
        ..flow.step()
    };
    stage.apply(&mut flow, step).await;
    flow
}

/// Findings and totals of a check.
pub(crate) struct Checked {
    pub(crate) keys: u64,
    pub(crate) findings: Vec<v1::ContextFinding>,
    pub(crate) totals: v1::ContextCheckTotals,
}

impl Checked {
    /// Codes of the findings, without what all of them begin with.
    pub(crate) fn codes(&self) -> Vec<&'static str> {
        let code = |finding: &v1::ContextFinding| {
            finding.code().as_str_name().strip_prefix("CONTEXT_FINDING_CODE_").unwrap()
        };
        self.findings.iter().map(code).collect()
    }

    pub(crate) fn assert_healthy(&self, when: &str) {
        assert!(self.findings.is_empty(), "{when}: {:#?}", self.findings);
        assert_eq!(self.totals.findings, 0, "{when}");
    }
}

pub(crate) async fn try_check(
    stage: &Stage<impl Redis>,
    context_id: u32,
    repair: bool,
) -> Result<Checked, Status> {
    let request = v1::CheckContextRequest { context_id, repair };
    let mut answers = stage.contexts(Identity::Admin).check_context(request).await?.into_inner();
    let (mut keys, mut findings, mut totals) = (0, Vec::new(), None);
    while let Some(answer) = answers.message().await? {
        assert!(totals.is_none(), "the totals come last");
        assert!(answer.keys >= keys, "keys are counted up");
        keys = answer.keys;
        findings.extend(answer.findings);
        totals = answer.totals;
    }
    Ok(Checked { keys, findings, totals: totals.expect("the last answer has the totals") })
}

pub(crate) async fn check(stage: &Stage<impl Redis>, repair: bool) -> Checked {
    try_check(stage, CONTEXT, repair).await.unwrap()
}

async fn a_healthy_context_has_no_finding(stage: Stage<impl Redis>) {
    check(&stage, false).await.assert_healthy("empty");
    let mut stocked = stocked(&stage).await;
    let checked = check(&stage, false).await;
    checked.assert_healthy("stocked");
    assert!(checked.keys > 30, "{}", checked.keys);
    assert_eq!(checked.totals.uncounted, [] as [String; 0]);
    check(&stage, true).await.assert_healthy("repaired, where nothing is wrong");
    try_check(&stage, 0, true).await.unwrap().assert_healthy("outside contexts");

    // A flow rests, is cancelled before it starts, or runs again; a router holds messages, and settles them.
    let mut router = stage.router("r").await;
    let held = router.take(3).await;
    check(&stage, false).await.assert_healthy("held");
    let end = wire::CommitRequest {
        nodes: vec![
            change(&stocked.open, 0, NodeState::Completed),
            change(&stocked.open, 1, NodeState::Completed),
        ],
        ..stocked.open.end()
    };
    stage.apply(&mut stocked.open, end).await;
    router.settle(&held, "").await;
    stage.flows().restart_flow(stocked.ended.restart()).await.unwrap();
    stage.push(&stocked.created, &model::FlowInput::Cancel { grace_secs: 0 }).await;
    check(&stage, false).await.assert_healthy("later");
    stage.sweep(Timestamp::now()).await;
    check(&stage, false).await.assert_healthy("swept");
}

async fn only_the_bootstrap_identity_checks(stage: Stage<impl Redis>) {
    stocked(&stage).await;
    for actor in [ADMIN, EXECUTOR, READER, STRANGER] {
        let request = v1::CheckContextRequest { context_id: CONTEXT, repair: false };
        let mut contexts = stage.contexts(Identity::Actor(model::ActorId(actor)));
        assert_eq!(failure(contexts.check_context(request).await).0, Code::PermissionDenied);
    }
    let refusal = |context, repair| {
        let stage = &stage;
        async move { try_check(stage, context, repair).await.err().map(|status| status.code()) }
    };
    assert_eq!(refusal(77, false).await, Some(Code::NotFound));

    // A frozen context is checked, and not repaired.
    let until = Timestamp::now() + std::time::Duration::from_secs(600);
    let freeze = Cmd::new("HSET").arg(&stage.keys().context()).arg("frozen_until").arg(&until.to_string());
    stage.command(freeze).await;
    assert_eq!(refusal(CONTEXT, false).await, None);
    assert_eq!(refusal(CONTEXT, true).await, Some(Code::Unavailable));
    stage.command(Cmd::new("HDEL").arg(&stage.keys().context()).arg("frozen_until")).await;

    let audited = || async {
        let entries = v1::ListAuditEntriesRequest {
            context_id: CONTEXT,
            action_prefix: "context.repair".to_owned(),
            ..Default::default()
        };
        stage.contexts(Identity::Admin).list_audit_entries(entries).await.unwrap().into_inner().entries.len()
    };
    assert_eq!(audited().await, 0, "a check without repair changes nothing");
    check(&stage, true).await.assert_healthy("healthy");
    assert_eq!(audited().await, 1);
}

scenarios!(a_healthy_context_has_no_finding, only_the_bootstrap_identity_checks);

/// Both layouts once more: another context in the same Redis has keys that are none of this one's business.
#[tokio::test]
async fn the_keys_of_other_contexts_are_no_findings() {
    let stage = Stage::new(Layout::HashTag).await;
    stocked(&stage).await;
    let other = v1::CreateContextRequest { admins: vec![ADMIN], ..Default::default() };
    let other = stage.contexts(Identity::Admin).create_context(other).await.unwrap().into_inner();
    check(&stage, false).await.assert_healthy("the stocked one");
    let other = other.context.unwrap().id;
    let checked = try_check(&stage, other, false).await.unwrap();
    checked.assert_healthy("the empty one");
    assert!(checked.keys < 10, "{}", checked.keys);
}
