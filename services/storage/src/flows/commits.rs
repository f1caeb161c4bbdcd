//! Steps of flows: the hot path. One step is one script and one round trip.

use std::collections::BTreeMap;

use bytes::Bytes;
use kv::Value;
use model::flow::ResultMap;
use model::job::BlobRef;
use model::{
    ActorId, BlobHash, ContextId, ContextUid, Epoch, FlowId, FlowStatus, FlowUid, JobId, MessageKey, OwnerId,
    Revision, RunnerId, Timestamp, limits,
};
use serde::Deserialize;

use crate::error::Error;
use crate::messages::message_holds::{HOLD, RouterHeldMessage};
use crate::messages::routers::StorageRouters;
use crate::record::routed_message::{RoutedMessage, RoutedMessagePayload, job_keys, write_nodes};
use crate::scripts;
use crate::store::{Store, StoreChange, TenantStore};

/// Approximate bytes that a record's key and numbers add to a script.
pub(crate) const RECORD_OVERHEAD_BYTES: usize = 128;
/// Nodes that one commit may change.
pub(crate) const COMMIT_NODES_MAX: usize = 500;
/// Records that belong to the flow or the context and that every commit may touch.
const FLOW_RECORDS: usize = 15;

/// One step of one flow.
#[derive(Debug)]
pub(crate) struct FlowCommit {
    /// Names the step for ever.
    pub(crate) id: model::id::Uid,
    /// Where the flow runs.
    pub(crate) context: ContextId,
    /// The context's uid.
    pub(crate) context_uid: ContextUid,
    /// Flow that the step belongs to.
    pub(crate) flow: FlowId,
    /// Uid of the flow.
    pub(crate) flow_uid: FlowUid,
    /// Owner that commits.
    pub(crate) owner: OwnerId,
    /// Epoch of that owner.
    pub(crate) epoch: Epoch,
    /// Commit that the step was computed from: the previous step, or the change of owner.
    pub(crate) last_commit: String,
    /// The flow's new status.
    pub(crate) status: Option<FlowStatus>,
    /// The flow's result, with a new status.
    pub(crate) result: ResultMap,
    /// The result is incomplete.
    pub(crate) result_truncated: bool,
    /// The nodes that changed.
    pub(crate) nodes: Vec<NodeChange>,
    /// Messages to send.
    pub(crate) messages: Vec<DispatchMessage>,
    /// When to look at the flow again.
    pub(crate) due: Option<Timestamp>,
    /// How many of the pushed inputs the step has taken up.
    pub(crate) inputs_taken: u32,
    /// The flow only waits.
    pub(crate) rests: bool,
    /// Flows that a resting flow waits for.
    pub(crate) awaited: Vec<FlowId>,
}

/// A node that changed.
#[derive(Debug)]
pub(crate) struct NodeChange {
    /// Which one.
    pub(crate) job: JobId,
    /// The node's JSON, as it is to be kept.
    pub(crate) json: Bytes,
    /// The job's status for old readers.
    pub(crate) job_status: String,
    /// The result's JSON; empty when it is unchanged.
    pub(crate) result: Bytes,
    /// Events of the node, as event JSON.
    pub(crate) events: Vec<Bytes>,
    /// The message that carried the attempt which has ended.
    pub(crate) ended_message: Option<MessageKey>,
}

/// A message to send.
#[derive(Debug, Clone)]
pub(crate) struct DispatchMessage {
    /// Key of the message, with a reserved id.
    pub(crate) key: MessageKey,
    /// The runner record that it is for.
    pub(crate) runner: RunnerId,
    /// Seconds until it must be accepted, 0 for no limit.
    pub(crate) timeout_ack_secs: u32,
    /// The executions, each as JSON.
    pub(crate) nodes: Vec<Bytes>,
    /// When it was made.
    pub(crate) created_at: Timestamp,
}

impl DispatchMessage {
    /// Returns the message in the form that a router receives.
    pub(crate) fn into_held(
        self,
        flow: FlowId,
        context: ContextId,
        context_uid: ContextUid,
    ) -> RouterHeldMessage {
        let Self { key, runner, timeout_ack_secs, nodes, created_at } = self;
        let body = RoutedMessage {
            kind: RoutedMessagePayload::Nodes { flow, runner, nodes },
            timeout_ack_secs,
            created_at,
        };
        RouterHeldMessage { context, context_uid, key, body }
    }

    /// Adds it to the arguments of a script that writes messages.
    pub(crate) fn write(&self, change: StoreChange) -> StoreChange {
        change
            .arg(self.key.caller.0)
            .arg(self.key.id.0)
            .arg(self.runner.0)
            .arg(self.timeout_ack_secs)
            .arg(&write_nodes(&self.nodes))
            .arg(&self.created_at.to_string())
            .arg(self.nodes.len())
            .arg(&job_keys(&self.nodes))
    }

    /// The bytes of what it carries.
    pub(crate) fn bytes(&self) -> usize {
        self.nodes.iter().map(Bytes::len).sum()
    }
}

/// Why a step was not applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CommitRejection {
    /// The kind.
    pub(crate) kind: CommitRejectionKind,
    /// Description of the rejection, for people.
    pub(crate) detail: String,
}

/// The kinds of [`CommitRejection`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommitRejectionKind {
    /// Another owner, epoch or last commit.
    Fenced,
    /// The flow or its context is gone.
    Gone,
    /// The context is being deleted.
    ContextDeleting,
    /// The context is being exported: the commit was not applied.
    Frozen,
    /// The commit may have been applied: send it again.
    UnknownOutcome,
    /// The commit can never be applied.
    Invalid,
}

/// Errors that Redis returns temporarily: missing replicas, a failover, credentials
/// that are being changed. The commit itself is fine.
const PASSING: [&str; 9] = [
    "NOREPLICAS",
    "NOPERM",
    "NOAUTH",
    "WRONGPASS",
    "BUSY",
    "LOADING",
    "MASTERDOWN",
    "TRYAGAIN",
    "CLUSTERDOWN",
];

impl CommitRejection {
    fn new(kind: CommitRejectionKind, detail: impl std::fmt::Display) -> Self {
        Self { kind, detail: detail.to_string() }
    }

    fn of(error: &Error) -> Self {
        let kind = match error {
            Error::NotFound(_) => CommitRejectionKind::Gone,
            Error::ContextDeleting => CommitRejectionKind::ContextDeleting,
            // The commit was not applied. A resend shows what has become of its flow.
            Error::StoreWentBack => CommitRejectionKind::UnknownOutcome,
            Error::ContextFrozen => CommitRejectionKind::Frozen,
            Error::Store(kv::Error::Refused { code, message }) => {
                let kind = match code.as_str() {
                    "FENCED" => CommitRejectionKind::Fenced,
                    code if PASSING.contains(&code) => CommitRejectionKind::UnknownOutcome,
                    _ => CommitRejectionKind::Invalid,
                };
                return Self::new(kind, format!("{code} {message}"));
            }
            // Redis was not reached, or is out of memory or disk. Whether or not the commit was applied, a resend is right.
            Error::Store(cause) => return Self::new(CommitRejectionKind::UnknownOutcome, cause),
            _ => CommitRejectionKind::Invalid,
        };
        Self::new(kind, error)
    }
}

impl Store {
    /// Applies a step, and hands its messages to a router that is connected.
    ///
    /// # Errors
    /// The reason why the step was not applied, or that the outcome is not known.
    pub(crate) async fn commit(
        &self,
        commit: FlowCommit,
        routers: &StorageRouters,
        now: Timestamp,
    ) -> Result<Revision, CommitRejection> {
        let (outputs, ended) = (outputs_of(&commit.nodes), ended_messages(&commit.nodes));
        check_size(&commit, outputs.len() + ended.len())?;
        let tenant = self.tenant(commit.context).await.map_err(|error| CommitRejection::of(&error))?;
        let caller = self.caller(&tenant, commit.flow, commit.flow_uid).await;
        let caller = caller.map_err(|error| CommitRejection::of(&error))?;
        let router = if commit.messages.is_empty() { None } else { routers.pick() };
        let name = router.as_ref().map(|router| router.name()).unwrap_or_default();
        let change = change_of(&tenant, &commit, (&outputs, &ended), caller, name, now);
        // A commit that was applied before has its events in the stream from that change, so none are reported.
        let read = |value: Value| {
            let mut parts = value.array()?.into_iter();
            let mut next = || parts.next().unwrap_or(Value::Nil);
            let revision = next().int()?;
            Ok((u64::try_from(revision).ok(), next(), revision))
        };
        service::crash_point("storage.commit.before");
        let answer = tenant.apply_and_report(change, read).await;
        service::crash_point("storage.commit.after");
        let revision = answer.map_err(|error| CommitRejection::of(&error))?;
        if commit.status.is_some_and(FlowStatus::is_end) {
            self.note_ended_flow(&tenant);
        }
        if revision < 0 && router.is_some() {
            // The router that was chosen at that time may not have received the messages, and no other router holds them.
            let keys: Vec<_> = commit.messages.iter().map(|message| message.key).collect();
            if let Err(error) = self.send_held(&tenant, routers, &keys, now).await {
                tracing::warn!(
                    context = %tenant.id, %error,
                    "messages committed before are sent when their holds end"
                );
            }
        } else if let Some(router) = &router {
            for message in commit.messages {
                routers.hand(router, message.into_held(commit.flow, commit.context, commit.context_uid));
            }
        }
        Ok(Revision(revision.unsigned_abs()))
    }
}

/// Checks the size of a commit. Each record is one Redis key that the script writes: a job, a message, or one of `others` (the set of
/// references to a blob, or a message sent before). All nodes of a flow are in one key. The number of its fields that change has a
/// limit of its own, and each field comes with the job that mirrors it.
fn check_size(commit: &FlowCommit, others: usize) -> Result<(), CommitRejection> {
    let nodes = commit.nodes.len();
    let records = nodes + commit.messages.len() + others + FLOW_RECORDS;
    for (what, max, requested) in [
        ("nodes", COMMIT_NODES_MAX, nodes),
        ("records", limits::COMMIT_RECORDS_MAX, records),
        ("awaited flows", limits::AWAITED_FLOWS_MAX, commit.awaited.len()),
    ] {
        if requested > max {
            let detail = format_args!("a commit names at most {max} {what}, this one {requested}");
            return Err(CommitRejection::new(CommitRejectionKind::Invalid, detail));
        }
    }
    let of_node = |node: &NodeChange| {
        node.json.len() + node.result.len() + node.events.iter().map(Bytes::len).sum::<usize>()
    };
    let bytes = records * RECORD_OVERHEAD_BYTES
        + commit.nodes.iter().map(of_node).sum::<usize>()
        + commit.messages.iter().map(DispatchMessage::bytes).sum::<usize>()
        + commit.result.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
    if bytes > limits::COMMIT_BYTES_MAX {
        let max = limits::COMMIT_BYTES_MAX;
        return Err(CommitRejection::new(
            CommitRejectionKind::Invalid,
            format_args!("a commit has at most {max} bytes, this one {bytes}"),
        ));
    }
    Ok(())
}

fn change_of(
    tenant: &TenantStore,
    commit: &FlowCommit,
    (outputs, ended): (&[(usize, BlobHash)], &BTreeMap<MessageKey, String>),
    caller: ActorId,
    router: &str,
    now: Timestamp,
) -> StoreChange {
    let keys = &tenant.keys;
    let own = [keys.flow(commit.flow), keys.flow_nodes(commit.flow), keys.flow_messages(commit.flow)];
    let inbox = [keys.flow_inputs(commit.flow), keys.flow_waiters(commit.flow)];
    let jobs = commit.nodes.iter().map(|node| keys.job(caller, node.job));
    let messages = commit.messages.iter().map(|message| keys.message(message.key.caller, message.key.id));
    let blobs = outputs.iter().flat_map(|(_, hash)| [keys.blob(*hash), keys.blob_refs(*hash)]);
    let awaited = commit.awaited.iter().map(|flow| keys.flow_waiters(*flow));
    let over = ended.keys().map(|key| keys.message(key.caller, key.id));
    let varying: Vec<String> = jobs.chain(messages).chain(blobs).chain(awaited).chain(over).collect();
    let mut touched: Vec<&str> = Vec::with_capacity(varying.len() + FLOW_RECORDS);
    touched.extend(scripts::COMMIT.keys([
        ("flow", &own[0]),
        ("nodes", &own[1]),
        ("carriers", &own[2]),
        ("flows_active", &tenant.flows_active),
        ("due", &tenant.due),
        ("out", &tenant.msg_out),
        ("held", &tenant.held),
        ("blob_idle", &tenant.blob_idle),
        ("inputs", &inbox[0]),
        ("waiters", &inbox[1]),
    ]));
    touched.extend(varying.iter().map(String::as_str));

    let result = match commit.status {
        Some(_) => serde_json::to_string(&commit.result).expect("a map of texts is JSON"),
        None => String::new(),
    };
    let events: usize = commit.nodes.iter().map(|node| node.events.len()).sum();
    let begun = tenant.begin(&scripts::COMMIT, &touched, Some(commit.context_uid), now);
    let mut change = begun.named(kv::named![
        flow: commit.flow.0,
        flow_uid: &commit.flow_uid.to_string(),
        owner: &commit.owner.to_string(),
        epoch: commit.epoch.0,
        last_commit: &commit.last_commit,
        commit: &commit.id.to_string(),
        status: commit.status.map_or("", FlowStatus::as_str),
        result: &result,
        is_incomplete: if commit.result_truncated { "true" } else { "false" },
        due: &commit.due.map(|due| due.to_string()).unwrap_or_default(),
        router: router,
        hold_end: &(now + HOLD).to_string(),
        nodes: commit.nodes.len(),
        messages: commit.messages.len(),
        events: events,
        blobs: outputs.len(),
        context: commit.context.0,
        inputs_taken: commit.inputs_taken,
        rests: commit.rests,
        awaited: commit.awaited.len(),
        ended: ended.len(),
        prefix: keys.prefix(),
    ]);
    for node in &commit.nodes {
        change = change.arg(node.job.0).arg(&node.json[..]).arg(&node.job_status).arg(&node.result[..]);
    }
    change = commit.messages.iter().fold(change, |change, message| message.write(change));
    let events = commit.nodes.iter().flat_map(|node| &node.events);
    change.args(events.map(|event| &event[..])).args(outputs.iter().map(|(job, _)| *job)).args(ended.values())
}

/// The messages that carried attempts which have ended, each with their jobs.
fn ended_messages(nodes: &[NodeChange]) -> BTreeMap<MessageKey, String> {
    let mut ended = BTreeMap::<_, String>::new();
    for (key, job) in nodes.iter().filter_map(|node| Some((node.ended_message?, node.job))) {
        let jobs = ended.entry(key).or_default();
        if !jobs.is_empty() {
            jobs.push(' ');
        }
        jobs.push_str(&job.to_string());
    }
    ended
}

/// The files that nodes made, each with the number, from 1 on, of the node that made it.
fn outputs_of(nodes: &[NodeChange]) -> Vec<(usize, BlobHash)> {
    #[derive(Deserialize)]
    struct NodeOutputs {
        outputs: std::collections::BTreeMap<String, BlobRef>,
    }
    const FIELD: &[u8] = b"\"outputs\":{";
    let mut found = Vec::new();
    for (i, node) in nodes.iter().enumerate() {
        // Only completed nodes have outputs; the others are not even searched.
        if node.job_status != "finished" || !node.json.windows(FIELD.len()).any(|part| part == FIELD) {
            continue;
        }
        if let Ok(NodeOutputs { outputs }) = serde_json::from_slice::<NodeOutputs>(&node.json) {
            found.extend(outputs.values().map(|blob| (i + 1, blob.sha256)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_found() {
        let hash = BlobHash::of(b"x");
        let node = |status: &str, json: String| NodeChange {
            job: JobId(1),
            json: json.into(),
            job_status: status.to_owned(),
            result: Bytes::new(),
            events: Vec::new(),
            ended_message: None,
        };
        let with = format!(r#"{{"job_id":1,"outputs":{{"a":{{"sha256":"{hash}","size":1}}}}}}"#);
        let nodes = [
            node("started", with.clone()),
            node("finished", r#"{"result":{"a":"\"outputs\":{"}}"#.to_owned()),
            node("finished", with),
        ];
        assert_eq!(outputs_of(&nodes), [(3, hash)]);
    }
}
