//! The table of all keys of a supervisor's Redis, of which [`SupervisorKey`] and the names in Lua are made.

use std::fmt::{self, Display};

use model::actor::is_key;
use model::{ContextUid, JobKey, ScriptType};

use super::{ControlScope, InstanceRef, WorkQueue};
use crate::legacy::LegacyQueue;
use crate::nonce::ActorNonce;
use crate::suffix::{KeySuffix, exact, key_parts, key_variants, write_key};

/// Makes of each row a constant with the name, or what it begins with, a local of the same name for Lua, a variant of
/// [`SupervisorKey`], and the ways to write and to read it. What a name ends with are the parts of the variant, between colons. A
/// row without a constant has its whole name in its part. Of two that begin alike, the longer one stands first.
macro_rules! supervisor_keys {
    ($(
        $(#[$doc:meta])*
        $($name:ident =)? $text:literal: $variant:ident $(($($part:ident: $type:ty),+))?;
    )+) => {
        $($(
            #[doc = concat!("What the name of [`SupervisorKey::", stringify!($variant), "`] begins with; all of it where it has no parts.")]
            pub const $name: &str = $text;
        )?)+

        /// The names as Lua: a local for each, for scripts that make keys themselves.
        pub const LUA_NAMES: &str = concat!($($("local ", stringify!($name), " = '", $text, "'\n",)?)+);

        /// Meaning of a key in a supervisor's Redis.
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        pub enum SupervisorKey {
            $($(#[$doc])* $variant $(($($type),+))?,)+
        }

        key_variants! { SupervisorKey: $($variant $(($($part: $type),+))?;)+ }

        impl SupervisorKey {
            /// Undoes `Display`; nothing for a text that is no key.
            #[must_use]
            pub fn parse(text: &str) -> Option<Self> {
                $(
                    let parts = text.strip_prefix($text).and_then(<($($($type,)+)?) as KeySuffix>::read);
                    if let Some(($($($part,)+)?)) = parts {
                        return Some(Self::$variant $(($($part),+))?);
                    }
                )+
                None
            }
        }

        impl Display for SupervisorKey {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$variant $(($($part),+))? => write_key(f, $text, &[$($($part),+)?], ""),)+
                }
            }
        }
    };
}

supervisor_keys! {
    /// Stream: events that the instances send to the supervisor.
    DONE = "hero:done": Done;
    /// Counter: the place in line that the last queued job was given.
    SEQ = "hero:seq": Seq;
    /// Set: every work queue that was ever pushed to.
    QUEUES = "hero:queues": Queues;
    /// Set: every instance that ever joined and did not leave.
    INSTANCES = "hero:instances": Instances;
    /// Hash: who this supervisor is.
    SUPERVISOR = "hero:supervisor": Supervisor;
    /// Hash: roots of coordinators that have another root now, each with that.
    SUCCESSORS = "hero:successors": Successors;
    /// List: what others pushed into work queues, as `<queue> <entry>`, until the supervisor adopts or refuses it.
    FOREIGN = "hero:foreign": Foreign;
    /// Set: where something was set aside, and of whom, as `<queue> <owner>`.
    ASIDE = "hero:aside": Aside;
    /// Sorted set: what instances have set aside of an owner in a queue, by place in line.
    ASIDE_OF = "hero:aside:": AsideOf(place: AsideQueue);
    /// Sorted set: owners of jobs, by when one of theirs was last taken in.
    CALLERS = "hero:callers": Callers;
    /// Hash: of each script type the context whose jobs alone wait, or `*` while those of several do.
    ALONE = "hero:alone": Alone;
    /// Sorted set: the contexts that take turns at instances of a type, by the turns they have had.
    TURNS = "hero:turns:": Turns(of: ScriptType);
    /// Set: the queues in which jobs of a context wait for instances of a type.
    LINES = "hero:lines:": Lines(of: ScriptType, context: ContextUid);
    /// Sorted set: a context's jobs that wait in a queue, by place in line.
    LINE = "hero:line:": Line(context: ContextUid, queue: WorkQueue);
    /// Hash: instances of a type that have nothing to take, and would take what comes.
    TAKERS = "hero:takers:": Takers(of: ScriptType);
    /// List: jobs that an instance was handed and did not fetch.
    HANDED = "hero:handed:": Handed(instance: InstanceRef);
    /// Sorted set: jobs that workers of an old queue took and did not end.
    OLD_CLAIMS = "hero:claims:legacy:": OldClaims(queue: LegacyQueue);
    /// Sorted set: jobs that an instance claimed and did not end, by place in line.
    CLAIMS = "hero:claims:": Claims(instance: InstanceRef);
    /// String: an instance's presence as JSON; expires.
    PRESENCE = "hero:meta:actor:inst:": Presence(instance: InstanceRef);
    /// Sorted set: jobs that were put in a queue and not claimed, by place in line.
    UNCLAIMED = "hero:unclaimed:": Unclaimed(queue: WorkQueue);
    /// Hash: depth, oldest age and throughput of a queue.
    STATS = "hero:meta:queue:stats:": QueueStats(queue: WorkQueue);
    /// String: a job that is not to be accepted any more.
    STOP = "hero:stop:": StopMark(job: JobKey);
    /// List: a job's result for its waiting reader.
    REPLY = "hero:q:reply:": Reply(job: JobKey);
    /// String: the job that a signature of an actor belongs to, `<flow uid>-<job>`.
    NONCE = "hero:nonce:": Nonce(of: ActorNonce);
    /// String: the hash of an operator's request, by its id.
    REQUEST = "hero:request:": Request(id: String);
    /// Hash: the coordinator that a context is bound to.
    BINDING = "hero:uid:": ContextBinding(context: ContextUid);
    /// Set: the contexts that are bound to a coordinator.
    CONTEXTS = "hero:contexts:": BoundContexts(coordinator: CoordinatorRootKey);
    /// Sorted set: a context's jobs that are still kept, by when they are forgotten.
    JOBS = "hero:jobs:": ContextJobs(context: ContextUid);
    /// Set: every old queue that holds or held jobs of ours whose end is open.
    OLD_QUEUES = "hero:legacy": OldQueues;
    /// Sorted set: what waits in an old queue, by place in line.
    OLD_WAITING = "hero:legacy:": OldWaiting(queue: LegacyQueue);
    /// Hash: a job as a `queue:<suffix>` names it, with a number of the supervisor's own. No caller has the number 0.
    OLD_NUMBERED = "job:0:": OldNumbered(number: u64);
    /// Hash: a job, everything about it.
    JOB = "hero:job:": Job(job: JobKey);
    /// List: jobs that wait.
    "": Work(queue: WorkQueue);
    /// List: commands for instances.
    "": Control(scope: ControlScope);
    /// List: what old workers pop.
    "": Old(queue: LegacyQueue);
}

/// The root key of a coordinator: 64 hex digits in lower case.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CoordinatorRootKey(String);

impl CoordinatorRootKey {
    /// Undoes `Display`; nothing for another text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        is_key(text).then(|| Self(text.to_owned()))
    }
}

impl Display for CoordinatorRootKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where jobs were set aside, and whose: written `<queue> <owner>`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AsideQueue {
    /// The queue that they wait in.
    pub queue: WorkQueue,
    /// The owner of these jobs, who has as many slots as one may have.
    pub owner: String,
}

impl AsideQueue {
    /// Undoes `Display`; nothing for another text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (queue, owner) = text.split_once(' ')?;
        let is_one = !owner.is_empty() && !owner.contains(char::is_whitespace);
        is_one.then_some(Self { queue: exact(queue)?, owner: owner.to_owned() })
    }
}

impl Display for AsideQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.queue, self.owner)
    }
}

key_parts! {
    ActorNonce = Self::parse,
    AsideQueue = Self::parse,
    ContextUid = exact,
    ControlScope = Self::parse,
    InstanceRef = Self::parse,
    JobKey = exact,
    LegacyQueue = Self::parse,
    CoordinatorRootKey = Self::parse,
    ScriptType = exact,
    WorkQueue = exact,
    u64 = exact,
}
