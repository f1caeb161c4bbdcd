//! Each key of a supervisor's Redis is written and read by one form of [`SupervisorKey`].

use std::fmt;

use model::actor::is_key;
use model::{ContextUid, JobKey, ScriptType};

use super::{
    ALONE, ASIDE, BINDING_PREFIX, CALLERS, CLAIMS_PREFIX, CONTEXTS_PREFIX, ControlScope, DONE, FOREIGN,
    HANDED_PREFIX, INSTANCES, InstanceRef, JOB_PREFIX, LINE_PREFIX, LINES_PREFIX, PRESENCE_PREFIX, QUEUES,
    REPLY_PREFIX, REQUEST_PREFIX, SEQ, STOP_PREFIX, SUCCESSORS, SUPERVISOR, TAKERS_PREFIX, TURNS_PREFIX,
    UNCLAIMED_PREFIX, WorkQueue, bound_contexts, claims, context_binding, context_jobs, handed, job,
    presence, queue_stats, reply, request, stop_mark, unclaimed,
};
use crate::nonce::{self, ActorNonce, NONCE_PREFIX};
use crate::old::{self, OldQueue};
use crate::suffix::{exact, pair};

/// Tells what a key of a supervisor's Redis is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SupervisorKey {
    /// Hash: a job.
    Job(JobKey),
    /// List: a result for whoever waits.
    Reply(JobKey),
    /// String: a stop mark.
    StopMark(JobKey),
    /// String: the job that a signature belongs to.
    Nonce(ActorNonce),
    /// String: the hash of what an operator asked for, by its request id.
    Request(String),
    /// Hash: a context's coordinator.
    ContextBinding(ContextUid),
    /// Set: a context's jobs.
    ContextJobs(ContextUid),
    /// Set: the contexts that are bound to a coordinator, by its root key.
    BoundContexts(String),
    /// Sorted set: an instance's claims.
    Claims(InstanceRef),
    /// String: an instance's presence.
    Presence(InstanceRef),
    /// List: jobs that wait.
    Work(WorkQueue),
    /// Sorted set: what a queue was given and nobody claimed.
    Unclaimed(WorkQueue),
    /// Hash: a queue's statistics.
    QueueStats(WorkQueue),
    /// List: commands.
    Control(ControlScope),
    /// List: what old workers pop.
    Old(OldQueue),
    /// Sorted set: what waits in an old queue.
    OldWaiting(OldQueue),
    /// Sorted set: what old workers took and did not end.
    OldClaims(OldQueue),
    /// Hash: a job as a `queue:<suffix>` names it, with a number of the supervisor's own.
    OldNumbered(u64),
    /// [`old::OLD_QUEUES`].
    OldQueues,
    /// [`DONE`].
    Done,
    /// [`SEQ`].
    Seq,
    /// [`QUEUES`].
    Queues,
    /// [`INSTANCES`].
    Instances,
    /// [`SUPERVISOR`].
    Supervisor,
    /// [`SUCCESSORS`].
    Successors,
    /// [`FOREIGN`].
    Foreign,
    /// [`ASIDE`].
    Aside,
    /// Sorted set: what instances have set aside of an owner in a queue, by place in line.
    AsideOf(WorkQueue, String),
    /// [`CALLERS`].
    Callers,
    /// [`ALONE`].
    Alone,
    /// Sorted set: the contexts that take turns at instances of a type.
    Turns(ScriptType),
    /// Set: the queues in which jobs of a context wait.
    Lines(ScriptType, ContextUid),
    /// Sorted set: a context's jobs that wait in a queue.
    Line(ContextUid, WorkQueue),
    /// Hash: instances of a type that would take what comes.
    Takers(ScriptType),
    /// List: jobs that an instance was handed.
    Handed(InstanceRef),
}

impl fmt::Display for SupervisorKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Job(key) => f.write_str(&job(*key)),
            Self::Reply(key) => f.write_str(&reply(*key)),
            Self::StopMark(key) => f.write_str(&stop_mark(*key)),
            Self::Nonce(of) => f.write_str(&nonce::nonce_owner(of)),
            Self::Request(id) => f.write_str(&request(id)),
            Self::ContextBinding(context) => f.write_str(&context_binding(*context)),
            Self::ContextJobs(context) => f.write_str(&context_jobs(*context)),
            Self::BoundContexts(coordinator) => f.write_str(&bound_contexts(coordinator)),
            Self::Claims(instance) => f.write_str(&claims(instance)),
            Self::Presence(instance) => f.write_str(&presence(instance)),
            Self::Work(queue) => queue.fmt(f),
            Self::Unclaimed(queue) => f.write_str(&unclaimed(queue)),
            Self::QueueStats(queue) => f.write_str(&queue_stats(queue)),
            Self::Control(scope) => scope.fmt(f),
            Self::Old(queue) => queue.fmt(f),
            Self::OldWaiting(queue) => f.write_str(&old::old_waiting(queue)),
            Self::OldClaims(queue) => f.write_str(&old::old_claims(queue)),
            Self::OldNumbered(number) => write!(f, "{}{number}", old::OLD_NUMBERED_PREFIX),
            Self::OldQueues => f.write_str(old::OLD_QUEUES),
            Self::Done => f.write_str(DONE),
            Self::Seq => f.write_str(SEQ),
            Self::Queues => f.write_str(QUEUES),
            Self::Instances => f.write_str(INSTANCES),
            Self::Supervisor => f.write_str(SUPERVISOR),
            Self::Successors => f.write_str(SUCCESSORS),
            Self::Foreign => f.write_str(FOREIGN),
            Self::Aside => f.write_str(ASIDE),
            Self::AsideOf(queue, owner) => write!(f, "{ASIDE}:{queue} {owner}"),
            Self::Callers => f.write_str(CALLERS),
            Self::Alone => f.write_str(ALONE),
            Self::Turns(of) => write!(f, "{TURNS_PREFIX}{of}"),
            Self::Lines(of, context) => write!(f, "{LINES_PREFIX}{of}:{context}"),
            Self::Line(context, queue) => write!(f, "{LINE_PREFIX}{context}:{queue}"),
            Self::Takers(of) => write!(f, "{TAKERS_PREFIX}{of}"),
            Self::Handed(instance) => f.write_str(&handed(instance)),
        }
    }
}

impl SupervisorKey {
    /// Undoes `Display`; nothing for a text that no builder gives.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            DONE => return Some(Self::Done),
            SEQ => return Some(Self::Seq),
            QUEUES => return Some(Self::Queues),
            INSTANCES => return Some(Self::Instances),
            SUPERVISOR => return Some(Self::Supervisor),
            SUCCESSORS => return Some(Self::Successors),
            FOREIGN => return Some(Self::Foreign),
            ASIDE => return Some(Self::Aside),
            CALLERS => return Some(Self::Callers),
            ALONE => return Some(Self::Alone),
            old::OLD_QUEUES => return Some(Self::OldQueues),
            _ => {}
        }
        type Parse = fn(&str) -> Option<SupervisorKey>;
        let prefixes: [(&str, Parse); 19] = [
            (old::OLD_WAITING_PREFIX, |rest| exact(rest).map(Self::OldWaiting)),
            (old::OLD_NUMBERED_PREFIX, |rest| exact(rest).map(Self::OldNumbered)),
            (REPLY_PREFIX, |rest| exact(rest).map(Self::Reply)),
            (STOP_PREFIX, |rest| exact(rest).map(Self::StopMark)),
            (NONCE_PREFIX, |rest| ActorNonce::parse(rest).map(Self::Nonce)),
            (REQUEST_PREFIX, |rest| Some(Self::Request(rest.to_owned()))),
            (BINDING_PREFIX, |rest| exact(rest).map(Self::ContextBinding)),
            (CONTEXTS_PREFIX, |rest| root(rest).map(Self::BoundContexts)),
            ("hero:jobs:", |rest| exact(rest).map(Self::ContextJobs)),
            (CLAIMS_PREFIX, |rest| match rest.strip_prefix(old::OLD_WORKER_PREFIX) {
                Some(queue) => OldQueue::parse(queue).map(Self::OldClaims),
                None => InstanceRef::parse(rest).map(Self::Claims),
            }),
            (PRESENCE_PREFIX, |rest| InstanceRef::parse(rest).map(Self::Presence)),
            (UNCLAIMED_PREFIX, |rest| exact(rest).map(Self::Unclaimed)),
            ("hero:aside:", |rest| {
                let (queue, owner) = rest.split_once(' ')?;
                let is_one = !owner.is_empty() && !owner.contains(char::is_whitespace);
                is_one.then_some(Self::AsideOf(exact(queue)?, owner.to_owned()))
            }),
            (TURNS_PREFIX, |rest| exact(rest).map(Self::Turns)),
            (LINES_PREFIX, |rest| pair(rest).map(|(of, context)| Self::Lines(of, context))),
            (LINE_PREFIX, |rest| pair(rest).map(|(context, queue)| Self::Line(context, queue))),
            (TAKERS_PREFIX, |rest| exact(rest).map(Self::Takers)),
            (HANDED_PREFIX, |rest| InstanceRef::parse(rest).map(Self::Handed)),
            ("hero:meta:queue:stats:", |rest| exact(rest).map(Self::QueueStats)),
        ];
        for (prefix, parse) in prefixes {
            if let Some(rest) = text.strip_prefix(prefix) {
                return parse(rest);
            }
        }
        // Old queues and jobs share a prefix.
        if let Some(key) = text.strip_prefix(JOB_PREFIX).and_then(exact) {
            return Some(Self::Job(key));
        }
        let control = || ControlScope::parse(text).map(Self::Control);
        exact(text).map(Self::Work).or_else(control).or_else(|| exact(text).map(Self::Old))
    }
}

/// A root key: 64 hex digits in small letters.
fn root(text: &str) -> Option<String> {
    is_key(text).then(|| text.to_owned())
}
