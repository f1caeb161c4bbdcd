//! The tables of all keys of a coordinator's Redis, of which [`ContextKey`], [`GlobalKey`] and their builders are made.

use std::fmt;

use model::{
    ActorId, Attempt, BlobHash, ContextId, FlowId, FlowStatus, JobId, MessageId, MessageKey, RunnerId,
};

use super::{ContextKeys, GlobalKeys};
use crate::suffix::{KeySuffix, exact, key_parts, key_variants, write_key};

/// Type of a key in Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RedisType {
    /// Hash.
    Hash,
    /// Set.
    Set,
    /// Sorted set.
    SortedSet,
    /// List.
    List,
    /// String.
    Text,
    /// Stream.
    Stream,
}

impl RedisType {
    /// Name that `TYPE` gives the type.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hash => "hash",
            Self::Set => "set",
            Self::SortedSet => "zset",
            Self::List => "list",
            Self::Text => "string",
            Self::Stream => "stream",
        }
    }
}

/// Makes the builder of a key, where it has a name.
macro_rules! key_builder {
    ($key:ident::$variant:ident, [], $($part:ident: $type:ty),*) => {};
    ($key:ident::$variant:ident, [$builder:ident],) => {
        #[doc = concat!("The key of [`", stringify!($key), "::", stringify!($variant), "`].")]
        #[must_use]
        pub fn $builder(&self) -> String {
            self.key(&$key::$variant)
        }
    };
    ($key:ident::$variant:ident, [$builder:ident], $($part:ident: $type:ty),+) => {
        #[doc = concat!("The key of [`", stringify!($key), "::", stringify!($variant), "`].")]
        #[must_use]
        pub fn $builder(&self, $($part: $type),+) -> String {
            self.key(&$key::$variant($($part),+))
        }
    };
}

/// Makes of each row a variant, the ways to write and to read it, its type in Redis, and with a name in front a builder of that name. A
/// key begins with the row's text, has the parts of the variant between colons behind it, and ends with the text behind `..`.
macro_rules! coordinator_keys {
    ($(#[$about:meta])* $key:ident, built by $keys:ident: $(
        $(#[$doc:meta])*
        $($builder:ident =)? $begin:literal $(.. $end:literal)?: $variant:ident $(($($part:ident: $type:ty),+))?, $kind:ident;
    )+) => {
        $(#[$about])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        pub enum $key {
            $($(#[$doc])* $variant $(($($type),+))?,)+
        }

        key_variants! { $key: $($variant $(($($part: $type),+))?;)+ }

        impl $key {
            /// Type that the key has in Redis.
            #[must_use]
            #[expect(unused_variables, reason = "the parts have names so that they can be counted")]
            pub const fn redis_type(&self) -> RedisType {
                match self {
                    $(Self::$variant $(($($part),+))? => RedisType::$kind,)+
                }
            }

            /// Undoes `Display`; nothing for a text that is no key.
            #[must_use]
            pub fn parse(text: &str) -> Option<Self> {
                $(
                    let parts = text.strip_prefix($begin)$(.and_then(|text| text.strip_suffix($end)))?;
                    if let Some(($($($part,)+)?)) = parts.and_then(<($($($type,)+)?) as KeySuffix>::read) {
                        return Some(Self::$variant $(($($part),+))?);
                    }
                )+
                None
            }
        }

        impl fmt::Display for $key {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$variant $(($($part),+))? => {
                        write_key(f, $begin, &[$($($part),+)?], concat!("" $(, $end)?))
                    })+
                }
            }
        }

        impl $keys {
            $(key_builder! { $key::$variant, [$($builder)?], $($($part: $type),+)? })+
        }
    };
}

coordinator_keys! {
    /// Subject of a context's key.
    ContextKey, built by ContextKeys:
    /// Hash: the context itself.
    "context:": Context(id: ContextId), Hash;
    /// Hash: a registration.
    runner = "runner:": Runner(id: RunnerId), Hash;
    /// Set: ids of all runners.
    runners = "runners": Runners, Set;
    /// Sorted set: ids of runners that were deleted, by when.
    runners_deleted = "runners_deleted": RunnersDeleted, SortedSet;
    /// Hash: a job, by caller.
    job = "job:": Job(caller: ActorId, id: JobId), Hash;
    /// Sorted set: jobs that belong to no flow, each `<caller>:<job>`, by the revision of their making.
    jobs = "jobs": Jobs, SortedSet;
    /// Hash: a flow.
    flow = "flow:": Flow(id: FlowId), Hash;
    /// Hash: job id → node as JSON.
    flow_nodes = "flow:" .. ":nodes": FlowNodes(id: FlowId), Hash;
    /// Hash: signal → time, actor and payload.
    flow_signals = "flow:" .. ":signals": FlowSignals(id: FlowId), Hash;
    /// Set: keys of the messages that carried the flow's nodes.
    flow_messages = "flow:" .. ":messages": FlowMessages(id: FlowId), Set;
    /// List: what others brought for the flow and its owner has not taken up, each as JSON.
    flow_inputs = "flow:" .. ":inputs": FlowInputs(id: FlowId), List;
    /// Set: flows that wait for the end of this one, each a [`crate::FlowRef`].
    flow_waiters = "flow:" .. ":waiters": FlowWaiters(id: FlowId), Set;
    /// Sorted set: ids of all flows.
    flows = "flows": Flows, SortedSet;
    /// Sorted set: ids of the flows of one status, each at its place among all.
    flows_of = "flows:": FlowsOf(status: FlowStatus), SortedSet;
    /// Set: flows that have something to do now, each a [`crate::FlowRef`].
    flows_active = "flows_active": FlowsActive, Set;
    /// Set: ids of flows that have ended and whose size is not known yet.
    flows_unmeasured = "flows_unmeasured": FlowsUnmeasured, Set;
    /// Sorted set: ids of ended flows whose size is known, by when they ended.
    flows_ended = "flows_ended": FlowsEnded, SortedSet;
    /// Hash: a message, by caller.
    "message:": Message(key: MessageKey), Hash;
    /// Sorted set: keys of chat, mail and of what was pushed by others, by the revision of their making.
    letters = "letters": Letters, SortedSet;
    /// Sorted set: keys of those of them of which nothing more is expected, by the revision at which that was settled.
    letters_done = "letters_done": LettersDone, SortedSet;
    /// Sorted set: keys of messages that will not arrive, by the revision at which that was settled.
    dead_letters = "dead_letters": DeadLetters, SortedSet;
    /// List: keys of messages that wait for a router.
    msg_out = "msg_out": MsgOut, List;
    /// List: keys of received messages, for plain `RPOP`.
    msg_in = "msg_in": MsgIn, List;
    /// Sorted set: keys of messages that a router holds, by the end of the hold.
    msg_out_coordinator = "msg_out_coordinator": MsgOutCoordinator, SortedSet;
    /// Sorted set: keys of messages received for an actor.
    inbox = "inbox:": Inbox(actor: ActorId), SortedSet;
    /// Hash: actor → how many bytes wait in its inbox.
    inbox_bytes = "inbox_bytes": InboxBytes, Hash;
    /// String: mark of a direct message that was received already, by the hash of its origin. Expires.
    seen = "seen:": Seen(origin: BlobHash), Text;
    /// Hash: size and number of chunks of a blob.
    blob = "blob:": Blob(hash: BlobHash), Hash;
    /// String: one chunk of a blob, counted from 0.
    blob_chunk = "blob:": BlobChunk(hash: BlobHash, n: u32), Text;
    /// String: a piece of a blob whose hash was not checked yet. Expires.
    blob_part = "blob_part:": BlobPart(hash: BlobHash, n: u32), Text;
    /// Set: who refers to a blob.
    blob_refs = "blob_refs:": BlobRefs(hash: BlobHash), Set;
    /// Sorted set: blobs without a reference, by since when.
    blob_idle = "blob_idle": BlobIdle, SortedSet;
    /// Hash: the tail of an attempt's output.
    log = "log:": Log(flow: FlowId, job: JobId, attempt: Attempt), Hash;
    /// Stream: every change of state.
    events = "events": Events, Stream;
    /// Sorted set: how far the events had come, by when.
    event_marks = "event_marks": EventMarks, SortedSet;
    /// Stream: who did what.
    audit = "audit": Audit, Stream;
    /// Sorted set: flows to look at, each a [`crate::FlowRef`], by when.
    due = "due": Due, SortedSet;
    /// Set: runner records whose supervisors have yet to forget the context. There while it is being removed.
    drops = "drops": Drops, Set;
    /// Hash: the answer to a request that was made, by caller and request id. Expires.
    "requests:": Request(caller: ActorId, request_id: String), Hash;
    /// Hash: id counters and the change counter.
    ids = "ids": Ids, Hash;
}

coordinator_keys! {
    /// Subject of a key that belongs to no context.
    GlobalKey, built by GlobalKeys:
    /// Hash: an actor.
    actor = "actor:": Actor(id: ActorId), Hash;
    /// Set: ids of all actors.
    actors = "actors": Actors, Set;
    /// Hash: public key → id of the actor whose it is.
    actor_keys = "actor_keys": ActorKeys, Hash;
    /// Set: ids of all contexts.
    contexts = "contexts": Contexts, Set;
    /// Set: ids of the contexts that an actor created.
    contexts_of = "contexts_of:": ContextsOf(creator: ActorId), Set;
    /// Hash: context → the actor that created it.
    context_creators = "context_creators": ContextCreators, Hash;
    /// Hash: context → how many bytes of blobs it was last seen to have.
    blob_bytes = "blob_bytes": BlobBytes, Hash;
    /// Hash: who this coordinator is towards others.
    coordinator = "coordinator": Coordinator, Hash;
    /// Hash: leases of scheduler replicas.
    replicas = "replicas": Replicas, Hash;
    /// Hash: the answer to a request that was made, by caller and request id. Expires.
    "requests:": Request(caller: ActorId, request_id: String), Hash;
    /// String: a token of an actor that was used up, by its id. Expires.
    "tokens:": Token(actor: ActorId, token_id: String), Text;
    /// Stream: changes of actors and contexts.
    events = "events": Events, Stream;
    /// Sorted set: how far the events had come, by when.
    event_marks = "event_marks": EventMarks, SortedSet;
    /// Stream: who did what to actors and contexts.
    audit = "audit": Audit, Stream;
    /// Hash: id counters and the change counter.
    ids = "ids": Ids, Hash;
}

key_parts! {
    ActorId = exact,
    Attempt = exact,
    BlobHash = exact,
    ContextId = exact,
    FlowId = exact,
    FlowStatus = exact,
    JobId = exact,
    MessageId = exact,
    MessageKey = |text| {
        let (caller, id) = KeySuffix::read(text)?;
        Some(Self { caller, id })
    },
    RunnerId = exact,
    String = exact,
    u32 = exact,
}
