//! The coordinator's keys: those of a context, and those that are global.

use std::fmt;

use model::{
    ActorId, Attempt, BlobHash, ContextId, FlowId, FlowStatus, JobId, MessageId, MessageKey, RunnerId,
};

use crate::Layout;
use crate::suffix::{exact, pair};

/// Subject of a context's key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ContextKey {
    /// Hash: the context itself.
    Context(ContextId),
    /// Hash: a registration.
    Runner(RunnerId),
    /// Set: ids of all runners.
    Runners,
    /// Sorted set: ids of runners that were deleted, by when.
    RunnersDeleted,
    /// Hash: a job, by caller.
    Job(ActorId, JobId),
    /// Sorted set: jobs that belong to no flow, each `<caller>:<job>`, by the revision of their making.
    Jobs,
    /// Hash: a flow.
    Flow(FlowId),
    /// Hash: job id → node as JSON.
    FlowNodes(FlowId),
    /// Hash: signal → time, actor and payload.
    FlowSignals(FlowId),
    /// Set: keys of the messages that carried the flow's nodes.
    FlowMessages(FlowId),
    /// List: what others brought for the flow and its owner has not taken up, each as JSON.
    FlowInputs(FlowId),
    /// Set: flows that wait for the end of this one, each a [`crate::FlowRef`].
    FlowWaiters(FlowId),
    /// Sorted set: ids of all flows.
    Flows,
    /// Sorted set: ids of the flows of one status, each at its place among all.
    FlowsOf(FlowStatus),
    /// Set: flows that have something to do now, each a [`crate::FlowRef`].
    FlowsActive,
    /// Set: ids of flows that have ended and whose size is not known yet.
    FlowsUnmeasured,
    /// Sorted set: ids of ended flows whose size is known, by when they ended.
    FlowsEnded,
    /// Hash: a message, by caller.
    Message(MessageKey),
    /// Sorted set: keys of chat, mail and of what was pushed by others, by the revision of their making.
    Letters,
    /// Sorted set: keys of those of them of which nothing more is expected, by the revision at which that was settled.
    LettersDone,
    /// Sorted set: keys of messages that will not arrive, by the revision at which that was settled.
    DeadLetters,
    /// List: keys of messages that wait for a router.
    MsgOut,
    /// List: keys of received messages, for plain `RPOP`.
    MsgIn,
    /// Sorted set: keys of messages that a router holds, by the end of the hold.
    MsgOutCoordinator,
    /// Sorted set: keys of messages received for an actor.
    Inbox(ActorId),
    /// Hash: actor → how many bytes wait in its inbox.
    InboxBytes,
    /// Mark of a direct message that was received already, by the hash of its origin.
    Seen(BlobHash),
    /// Hash: size and number of chunks of a blob.
    Blob(BlobHash),
    /// String: one chunk of a blob, counted from 0.
    BlobChunk(BlobHash, u32),
    /// String: a piece of a blob whose hash was not checked yet. Expires.
    BlobPart(BlobHash, u32),
    /// Set: who refers to a blob.
    BlobRefs(BlobHash),
    /// Sorted set: blobs without a reference, by since when.
    BlobIdle,
    /// The tail of an attempt's output.
    Log(FlowId, JobId, Attempt),
    /// Stream: every change of state.
    Events,
    /// Sorted set: how far the events had come, by when.
    EventMarks,
    /// Stream: who did what.
    Audit,
    /// Sorted set: flows to look at, each a [`crate::FlowRef`], by when.
    Due,
    /// Set: runner records whose supervisors have yet to forget the context. There while it is being
    /// removed.
    Drops,
    /// The answer to a request that was made, by caller and request id.
    Request(ActorId, String),
    /// Hash: id counters and the change counter.
    Ids,
}

impl fmt::Display for ContextKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Context(id) => write!(f, "context:{id}"),
            Self::Runner(id) => write!(f, "runner:{id}"),
            Self::Runners => f.write_str("runners"),
            Self::RunnersDeleted => f.write_str("runners_deleted"),
            Self::Job(caller, id) => write!(f, "job:{caller}:{id}"),
            Self::Jobs => f.write_str("jobs"),
            Self::Flow(id) => write!(f, "flow:{id}"),
            Self::FlowNodes(id) => write!(f, "flow:{id}:nodes"),
            Self::FlowSignals(id) => write!(f, "flow:{id}:signals"),
            Self::FlowMessages(id) => write!(f, "flow:{id}:messages"),
            Self::FlowInputs(id) => write!(f, "flow:{id}:inputs"),
            Self::FlowWaiters(id) => write!(f, "flow:{id}:waiters"),
            Self::Flows => f.write_str("flows"),
            Self::FlowsOf(status) => write!(f, "flows:{status}"),
            Self::FlowsActive => f.write_str("flows_active"),
            Self::FlowsUnmeasured => f.write_str("flows_unmeasured"),
            Self::FlowsEnded => f.write_str("flows_ended"),
            Self::Message(key) => write!(f, "message:{}:{}", key.caller, key.id),
            Self::Letters => f.write_str("letters"),
            Self::LettersDone => f.write_str("letters_done"),
            Self::DeadLetters => f.write_str("dead_letters"),
            Self::MsgOut => f.write_str("msg_out"),
            Self::MsgIn => f.write_str("msg_in"),
            Self::MsgOutCoordinator => f.write_str("msg_out_coordinator"),
            Self::Inbox(actor) => write!(f, "inbox:{actor}"),
            Self::InboxBytes => f.write_str("inbox_bytes"),
            Self::Seen(origin) => write!(f, "seen:{origin}"),
            Self::Blob(hash) => write!(f, "blob:{hash}"),
            Self::BlobChunk(hash, n) => write!(f, "blob:{hash}:{n}"),
            Self::BlobPart(hash, n) => write!(f, "blob_part:{hash}:{n}"),
            Self::BlobRefs(hash) => write!(f, "blob_refs:{hash}"),
            Self::BlobIdle => f.write_str("blob_idle"),
            Self::Log(flow, job, attempt) => write!(f, "log:{flow}:{job}:{attempt}"),
            Self::Events => f.write_str("events"),
            Self::EventMarks => f.write_str("event_marks"),
            Self::Audit => f.write_str("audit"),
            Self::Due => f.write_str("due"),
            Self::Drops => f.write_str("drops"),
            Self::Request(caller, id) => write!(f, "requests:{caller}:{id}"),
            Self::Ids => f.write_str("ids"),
        }
    }
}

impl ContextKey {
    /// Undoes `Display`; nothing for a text that no builder gives.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let Some((kind, rest)) = text.split_once(':') else {
            return Self::parse_plain(text);
        };
        Some(match kind {
            "context" => Self::Context(exact(rest)?),
            "runner" => Self::Runner(exact(rest)?),
            "job" => pair(rest).map(|(caller, id)| Self::Job(caller, id))?,
            "flow" => match rest.split_once(':') {
                None => Self::Flow(exact(rest)?),
                Some((id, "nodes")) => Self::FlowNodes(exact(id)?),
                Some((id, "signals")) => Self::FlowSignals(exact(id)?),
                Some((id, "messages")) => Self::FlowMessages(exact(id)?),
                Some((id, "inputs")) => Self::FlowInputs(exact(id)?),
                Some((id, "waiters")) => Self::FlowWaiters(exact(id)?),
                Some(_) => return None,
            },
            "flows" => Self::FlowsOf(FlowStatus::ALL.into_iter().find(|status| status.as_str() == rest)?),
            "message" => pair(rest).map(|(caller, id)| Self::Message(MessageKey { caller, id }))?,
            "inbox" => Self::Inbox(exact(rest)?),
            "seen" => Self::Seen(exact(rest)?),
            "blob" => match rest.split_once(':') {
                None => Self::Blob(exact(rest)?),
                Some((hash, n)) => Self::BlobChunk(exact(hash)?, exact(n)?),
            },
            "blob_part" => {
                let (hash, n) = pair(rest)?;
                Self::BlobPart(hash, n)
            }
            "blob_refs" => Self::BlobRefs(exact(rest)?),
            "log" => {
                let (flow, rest) = rest.split_once(':')?;
                let (job, attempt) = pair(rest)?;
                Self::Log(exact(flow)?, job, attempt)
            }
            "requests" => {
                let (caller, id) = rest.split_once(':')?;
                Self::Request(exact(caller)?, id.to_owned())
            }
            _ => return None,
        })
    }

    fn parse_plain(text: &str) -> Option<Self> {
        Some(match text {
            "runners" => Self::Runners,
            "runners_deleted" => Self::RunnersDeleted,
            "jobs" => Self::Jobs,
            "flows" => Self::Flows,
            "flows_active" => Self::FlowsActive,
            "flows_unmeasured" => Self::FlowsUnmeasured,
            "flows_ended" => Self::FlowsEnded,
            "letters" => Self::Letters,
            "letters_done" => Self::LettersDone,
            "inbox_bytes" => Self::InboxBytes,
            "dead_letters" => Self::DeadLetters,
            "msg_out" => Self::MsgOut,
            "msg_in" => Self::MsgIn,
            "msg_out_coordinator" => Self::MsgOutCoordinator,
            "blob_idle" => Self::BlobIdle,
            "events" => Self::Events,
            "event_marks" => Self::EventMarks,
            "audit" => Self::Audit,
            "due" => Self::Due,
            "drops" => Self::Drops,
            "ids" => Self::Ids,
            _ => return None,
        })
    }
}

/// Builds and parses the keys of one context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContextKeys {
    layout: Layout,
    context: ContextId,
    prefix: String,
}

macro_rules! builders {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*) = $key:expr;)+) => {
        $(
            $(#[$doc])*
            #[must_use]
            pub fn $name(&self, $($arg: $type),*) -> String {
                self.key(&$key)
            }
        )+
    };
}

impl ContextKeys {
    /// The keys of `context`.
    #[must_use]
    pub fn new(layout: Layout, context: ContextId) -> Self {
        Self { layout, context, prefix: layout.prefix(context) }
    }

    /// Returns the context that the keys belong to.
    #[must_use]
    pub const fn context_id(&self) -> ContextId {
        self.context
    }

    /// The database they are in.
    #[must_use]
    pub const fn database(&self) -> u32 {
        self.layout.database(self.context)
    }

    /// The tag of all of them, as in [`Layout::tag`].
    #[must_use]
    pub fn tag(&self) -> String {
        self.layout.tag(self.context)
    }

    /// Returns the beginning of every key: the tag, or nothing. For scripts that derive keys.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The channel on which changes of this context are hinted at.
    #[must_use]
    pub fn hint_channel(&self) -> String {
        self.layout.hint_channel(self.context)
    }

    /// The key as it stands in Redis.
    #[must_use]
    pub fn key(&self, key: &ContextKey) -> String {
        format!("{}{key}", self.prefix)
    }

    /// Parses the key `text`; nothing when it is no key of this context.
    #[must_use]
    pub fn parse(&self, text: &str) -> Option<ContextKey> {
        ContextKey::parse(text.strip_prefix(self.prefix.as_str())?)
    }

    /// Hash: the context itself.
    #[must_use]
    pub fn context(&self) -> String {
        self.key(&ContextKey::Context(self.context))
    }

    builders! {
        /// Hash: a registration.
        runner(id: RunnerId) = ContextKey::Runner(id);
        /// Set: ids of all runners.
        runners() = ContextKey::Runners;
        /// Sorted set: ids of runners that were deleted, by when.
        runners_deleted() = ContextKey::RunnersDeleted;
        /// Hash: a job.
        job(caller: ActorId, id: JobId) = ContextKey::Job(caller, id);
        /// Sorted set: jobs that belong to no flow.
        jobs() = ContextKey::Jobs;
        /// Hash: a flow.
        flow(id: FlowId) = ContextKey::Flow(id);
        /// Hash: job id → node as JSON.
        flow_nodes(id: FlowId) = ContextKey::FlowNodes(id);
        /// Hash: signal → time, actor and payload.
        flow_signals(id: FlowId) = ContextKey::FlowSignals(id);
        /// Set: keys of the messages that carried the flow's nodes.
        flow_messages(id: FlowId) = ContextKey::FlowMessages(id);
        /// List: what others brought for the flow and its owner has not taken up.
        flow_inputs(id: FlowId) = ContextKey::FlowInputs(id);
        /// Set: flows that wait for the end of this one.
        flow_waiters(id: FlowId) = ContextKey::FlowWaiters(id);
        /// Sorted set: ids of all flows.
        flows() = ContextKey::Flows;
        /// Sorted set: ids of the flows of one status.
        flows_of(status: FlowStatus) = ContextKey::FlowsOf(status);
        /// Set: flows that have something to do now.
        flows_active() = ContextKey::FlowsActive;
        /// Set: flows that have ended and were not measured yet.
        flows_unmeasured() = ContextKey::FlowsUnmeasured;
        /// Sorted set: ended flows that were measured.
        flows_ended() = ContextKey::FlowsEnded;
        /// Hash: a message.
        message(caller: ActorId, id: MessageId) = ContextKey::Message(MessageKey { caller, id });
        /// Sorted set: keys of chat, mail and of what was pushed by others.
        letters() = ContextKey::Letters;
        /// Sorted set: keys of those of them of which nothing more is expected.
        letters_done() = ContextKey::LettersDone;
        /// Sorted set: keys of messages that will not arrive.
        dead_letters() = ContextKey::DeadLetters;
        /// List: keys of messages that wait for a router.
        msg_out() = ContextKey::MsgOut;
        /// List: keys of received messages, for plain `RPOP`.
        msg_in() = ContextKey::MsgIn;
        /// Sorted set: keys of messages that a router holds, by the end of the hold.
        msg_out_coordinator() = ContextKey::MsgOutCoordinator;
        /// Sorted set: keys of messages received for an actor.
        inbox(actor: ActorId) = ContextKey::Inbox(actor);
        /// Hash: actor → how many bytes wait in its inbox.
        inbox_bytes() = ContextKey::InboxBytes;
        /// Mark of a direct message that was received already, by the hash of its origin.
        seen(origin: BlobHash) = ContextKey::Seen(origin);
        /// Hash: size and number of chunks of a blob.
        blob(hash: BlobHash) = ContextKey::Blob(hash);
        /// String: one chunk of a blob, counted from 0.
        blob_chunk(hash: BlobHash, n: u32) = ContextKey::BlobChunk(hash, n);
        /// String: a piece of a blob whose hash was not checked yet.
        blob_part(hash: BlobHash, n: u32) = ContextKey::BlobPart(hash, n);
        /// Set: who refers to a blob.
        blob_refs(hash: BlobHash) = ContextKey::BlobRefs(hash);
        /// Sorted set: blobs without a reference, by since when.
        blob_idle() = ContextKey::BlobIdle;
        /// The tail of an attempt's output.
        log(flow: FlowId, job: JobId, attempt: Attempt) = ContextKey::Log(flow, job, attempt);
        /// Stream: every change of state.
        events() = ContextKey::Events;
        /// Sorted set: how far the events had come, by when.
        event_marks() = ContextKey::EventMarks;
        /// Stream: who did what.
        audit() = ContextKey::Audit;
        /// Sorted set: flows to look at, by when.
        due() = ContextKey::Due;
        /// Set: runner records whose supervisors have yet to forget the context.
        drops() = ContextKey::Drops;
        /// The answer to a request that was made.
        request(caller: ActorId, request_id: &str) = ContextKey::Request(caller, request_id.to_owned());
        /// Hash: id counters and the change counter.
        ids() = ContextKey::Ids;
    }
}

/// Subject of a key that belongs to no context.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum GlobalKey {
    /// Hash: an actor.
    Actor(ActorId),
    /// Set: ids of all actors.
    Actors,
    /// Hash: public key → id of the actor whose it is.
    ActorKeys,
    /// Set: ids of all contexts.
    Contexts,
    /// Set: ids of the contexts that an actor created.
    ContextsOf(ActorId),
    /// Hash: context → the actor that created it.
    ContextCreators,
    /// Hash: context → how many bytes of blobs it was last seen to have.
    BlobBytes,
    /// Hash: who this coordinator is towards others.
    Coordinator,
    /// Hash: leases of scheduler replicas.
    Replicas,
    /// The answer to a request that was made, by caller and request id.
    Request(ActorId, String),
    /// Text: a token of an actor that was used up, by its id.
    Token(ActorId, String),
    /// Stream: changes of actors and contexts.
    Events,
    /// Sorted set: how far the events had come, by when.
    EventMarks,
    /// Stream: who did what to actors and contexts.
    Audit,
    /// Hash: id counters and the change counter.
    Ids,
}

impl fmt::Display for GlobalKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Actor(id) => write!(f, "actor:{id}"),
            Self::Actors => f.write_str("actors"),
            Self::ActorKeys => f.write_str("actor_keys"),
            Self::Contexts => f.write_str("contexts"),
            Self::ContextsOf(actor) => write!(f, "contexts_of:{actor}"),
            Self::ContextCreators => f.write_str("context_creators"),
            Self::BlobBytes => f.write_str("blob_bytes"),
            Self::Coordinator => f.write_str("coordinator"),
            Self::Replicas => f.write_str("replicas"),
            Self::Request(caller, id) => write!(f, "requests:{caller}:{id}"),
            Self::Token(actor, id) => write!(f, "tokens:{actor}:{id}"),
            Self::Events => f.write_str("events"),
            Self::EventMarks => f.write_str("event_marks"),
            Self::Audit => f.write_str("audit"),
            Self::Ids => f.write_str("ids"),
        }
    }
}

impl GlobalKey {
    /// Undoes `Display`; nothing for a text that no builder gives.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "actors" => Self::Actors,
            "actor_keys" => Self::ActorKeys,
            "contexts" => Self::Contexts,
            "context_creators" => Self::ContextCreators,
            "blob_bytes" => Self::BlobBytes,
            "coordinator" => Self::Coordinator,
            "replicas" => Self::Replicas,
            "events" => Self::Events,
            "event_marks" => Self::EventMarks,
            "audit" => Self::Audit,
            "ids" => Self::Ids,
            other => match other.split_once(':')? {
                ("actor", id) => Self::Actor(exact(id)?),
                ("contexts_of", id) => Self::ContextsOf(exact(id)?),
                ("requests", rest) => {
                    let (caller, id) = rest.split_once(':')?;
                    Self::Request(exact(caller)?, id.to_owned())
                }
                ("tokens", rest) => {
                    let (actor, id) = rest.split_once(':')?;
                    Self::Token(exact(actor)?, id.to_owned())
                }
                _ => return None,
            },
        })
    }
}

/// Builds and parses the keys that belong to no context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlobalKeys {
    layout: Layout,
    prefix: String,
}

impl GlobalKeys {
    /// The keys in `layout`.
    #[must_use]
    pub fn new(layout: Layout) -> Self {
        Self { layout, prefix: layout.prefix(ContextId(0)) }
    }

    /// The database they are in.
    #[must_use]
    pub const fn database(&self) -> u32 {
        0
    }

    /// The tag of all of them, as in [`Layout::tag`].
    #[must_use]
    pub fn tag(&self) -> String {
        self.layout.tag(ContextId(0))
    }

    /// Returns the beginning of every key: the tag, or nothing. For scripts that derive keys.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The key as it stands in Redis.
    #[must_use]
    pub fn key(&self, key: &GlobalKey) -> String {
        format!("{}{key}", self.prefix)
    }

    /// Parses the key `text`; nothing when it is no global key.
    #[must_use]
    pub fn parse(&self, text: &str) -> Option<GlobalKey> {
        GlobalKey::parse(text.strip_prefix(self.prefix.as_str())?)
    }

    builders! {
        /// Hash: an actor.
        actor(id: ActorId) = GlobalKey::Actor(id);
        /// Set: ids of all actors.
        actors() = GlobalKey::Actors;
        /// Hash: public key → id of the actor whose it is.
        actor_keys() = GlobalKey::ActorKeys;
        /// Set: ids of all contexts.
        contexts() = GlobalKey::Contexts;
        /// Set: ids of the contexts that an actor created.
        contexts_of(creator: ActorId) = GlobalKey::ContextsOf(creator);
        /// Hash: context → the actor that created it.
        context_creators() = GlobalKey::ContextCreators;
        /// Hash: context → how many bytes of blobs it was last seen to have.
        blob_bytes() = GlobalKey::BlobBytes;
        /// Hash: who this coordinator is towards others.
        coordinator() = GlobalKey::Coordinator;
        /// Hash: leases of scheduler replicas.
        replicas() = GlobalKey::Replicas;
        /// The answer to a request that was made.
        request(caller: ActorId, request_id: &str) = GlobalKey::Request(caller, request_id.to_owned());
        /// Text: a token of an actor that was used up.
        token(actor: ActorId, token_id: &str) = GlobalKey::Token(actor, token_id.to_owned());
        /// Stream: changes of actors and contexts.
        events() = GlobalKey::Events;
        /// Sorted set: how far the events had come, by when.
        event_marks() = GlobalKey::EventMarks;
        /// Stream: who did what to actors and contexts.
        audit() = GlobalKey::Audit;
        /// Hash: id counters and the change counter.
        ids() = GlobalKey::Ids;
    }
}

#[cfg(test)]
mod tests;
