//! Errors of storage, grouped by what the caller can do about them.

use model::context::AccessDenied;
use model::{ActorId, ContextId, Violations, limits};

use crate::record::MalformedRecord;
use crate::store::ID_TRIES;
use crate::tenants::quotas::Quota;
use crate::watch::events::EventPosition;

/// The result of everything here.
pub(crate) type Result<T> = std::result::Result<T, Error>;

/// Why a request was not carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The object does not exist, or the caller must not learn that it does.
    #[error("{0} was not found")]
    NotFound(String),
    /// The request is wrong in itself.
    #[error("the request is wrong")]
    Invalid(#[source] Violations),
    /// The role is too small.
    #[error("not allowed")]
    Denied(#[source] AccessDenied),
    /// The identity may not do this at all.
    #[error("{0}")]
    NotAllowed(String),
    /// The id is taken.
    #[error("{0} exists already")]
    Exists(String),
    /// The request id was used with another body.
    #[error("the request id was used with another body before")]
    RequestIdReused,
    /// The object is in a state that does not allow it.
    #[error("{message}")]
    WrongState {
        /// State that refuses the change.
        state: WrongState,
        /// For people.
        message: String,
    },
    /// A context would be left without an admin.
    #[error("actor {actor} is the only admin of {}: name another one first", named(contexts))]
    LastAdmin {
        /// Actor that would cease to be admin.
        actor: ActorId,
        /// Contexts that would be left without an admin.
        contexts: Vec<ContextId>,
    },
    /// A context would be left without an admin.
    #[error("a context needs at least one admin")]
    NoAdmin,
    /// A blob that is referred to is not there.
    #[error("blob {0} is missing: put it first")]
    BlobMissing(String),
    /// The context takes no changes any more.
    #[error("the context is being deleted")]
    ContextDeleting,
    /// The context is being exported, and takes no changes until then.
    #[error("the context is being exported, and takes no changes until that is done")]
    ContextFrozen,
    /// The snapshot of an export is over.
    #[error("the snapshot of the export is over, and the context may have changed since: begin a new export")]
    SnapshotGone,
    /// The reader of an export has kept it waiting for too long.
    #[error("the export was not read fast enough: it has waited for its reader for {secs} s")]
    ReaderTooSlow {
        /// How long it waits at most.
        secs: u64,
    },
    /// An import is refused.
    #[error(transparent)]
    Import(crate::moving::ImportRefusal),
    /// The context changed concurrently each time permission was decided.
    #[error("context {0} changed meanwhile")]
    ContextChanged(ContextId),
    /// The object has changed since it was read.
    #[error("{0}")]
    Changed(String),
    /// Another start has taken the replica's name, or its heartbeats were missing for too long.
    #[error("the lease is lost: join again")]
    LeaseLost,
    /// Redis has lost changes that were already reported to others.
    #[error("the store went back: the state in memory is void")]
    StoreWentBack,
    /// The place in the event stream is gone.
    #[error("the position is gone: begin with a snapshot")]
    PositionGone,
    /// The watcher did not read fast enough.
    #[error("the watcher fell too far behind: resume from position {resume}")]
    TooSlow {
        /// After the last event that was sent to it.
        resume: EventPosition,
    },
    /// A named limit.
    #[error("{limit} is at most {max}, not {requested}")]
    Limit {
        /// Name of the limit.
        limit: &'static str,
        /// Value of the limit.
        max: u64,
        /// Requested value.
        requested: u64,
    },
    /// An actor or a context would have more than it may.
    #[error("{} is {max}, and this would be {requested}: {}", quota.name(), quota.remedy())]
    Quota {
        /// Quota that would be exceeded.
        quota: Quota,
        /// How much there may be.
        max: u64,
        /// How much there would be.
        requested: u64,
    },
    /// No more ids of a kind.
    #[error("{message}")]
    Exhausted {
        /// For people.
        message: String,
        /// The limit that it is for.
        limit: &'static str,
        /// Value of the limit.
        max: u32,
    },
    /// The store reserves its remaining room for what exists already.
    #[error("the store is full")]
    StoreFull,
    /// Redis.
    #[error("the store failed")]
    Store(#[source] kv::Error),
    /// A record in Redis cannot be read.
    #[error("a record cannot be read")]
    Broken(#[source] MalformedRecord),
}

/// States that refuse a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WrongState {
    /// The flow is not in CREATED any more.
    FlowNotCreated,
    /// The flow is in CREATED.
    FlowNotStarted,
    /// The flow has ended.
    FlowEnded,
    /// The flow runs.
    FlowNotEnded,
    /// The flow lacks nodes.
    NodesMissing,
    /// The message is on its way.
    MessageUnderWay,
    /// The message did not fail to arrive.
    NotADeadLetter,
    /// The message was made too long ago to be sent again.
    MessageTooOld,
    /// The key that the message is from is no longer valid.
    SenderKeyOver,
    /// The message belongs to a flow.
    CarriesNodes,
    /// The job belongs to a flow.
    JobInFlow,
}

/// Error code of scripts when a change that this storage has seen is gone.
pub(crate) const STORE_WENT_BACK: &str = "STORE_WENT_BACK";
/// Error code of scripts when a limit would be exceeded.
const LIMIT_EXCEEDED: &str = "LIMIT_EXCEEDED";

impl Error {
    /// Error for a record that Redis failed to return.
    pub(crate) fn of_record(error: kv::Error, what: impl std::fmt::Display) -> Self {
        if error.code() == Some("WRONGTYPE") {
            let problem = "the value under this key is not a hash".to_owned();
            return Self::Broken(MalformedRecord::Whole { what: what.to_string(), problem });
        }
        Self::Store(error)
    }

    /// Converts a store error as [`Self::of_record`] does, for a record that was read together with others.
    pub(crate) fn at_record(self, what: impl std::fmt::Display) -> Self {
        match self {
            Self::Store(error) => Self::of_record(error, what),
            other => other,
        }
    }

    /// Something that is not there.
    pub(crate) fn not_found(kind: &str, id: impl std::fmt::Display) -> Self {
        Self::NotFound(format!("{kind} {id}"))
    }

    /// One field that is wrong.
    pub(crate) fn field(field: &str, description: impl std::fmt::Display) -> Self {
        let mut violations = Violations::new();
        violations.add(field, description);
        Self::Invalid(violations)
    }

    /// Error for a context id space that is used up; `remedy` says how to free an id.
    pub(crate) fn contexts_exhausted(max: u32, remedy: &str) -> Self {
        Self::Exhausted { message: format!("every context id is taken: {remedy}"), limit: "id_max", max }
    }

    /// Error when every id of a kind is taken.
    pub(crate) const fn no_ids_left(message: String) -> Self {
        Self::Exhausted { message, limit: "id_max", max: u32::MAX }
    }

    /// Error when all ids of a kind that were tried are taken.
    pub(crate) fn no_free_id(kind: &str) -> Self {
        let message = format!("no free {kind} id was found; name one");
        Self::Exhausted { message, limit: "id_tries_max", max: ID_TRIES }
    }

    /// The code of a script's refusal, when it is one.
    pub(crate) fn code(&self) -> Option<&str> {
        match self {
            Self::Store(error) => error.code(),
            _ => None,
        }
    }

    /// Error for a refusal by a script that belongs to no context.
    pub(crate) fn of_global_script(error: kv::Error) -> Self {
        match &error {
            kv::Error::Refused { code, message } if code == LIMIT_EXCEEDED => {
                beyond(message).unwrap_or(Self::Store(error))
            }
            _ => Self::Store(error),
        }
    }

    /// Error for a refusal by a script that ran in `context`.
    pub(crate) fn of_script(error: kv::Error, context: ContextId) -> Self {
        let kv::Error::Refused { code, message } = &error else { return Self::Store(error) };
        let state = |state| Self::WrongState { state, message: message.clone() };
        match code.as_str() {
            "CONTEXT_GONE" => Self::not_found("context", context),
            "CONTEXT_DELETING" => Self::ContextDeleting,
            "CONTEXT_FROZEN" => Self::ContextFrozen,
            "SNAPSHOT_GONE" => Self::SnapshotGone,
            STORE_WENT_BACK => Self::StoreWentBack,
            "CONTEXT_CHANGED" => Self::ContextChanged(context),
            "FLOW_GONE" | "MESSAGE_GONE" | "RUNNER_GONE" => Self::NotFound(message.clone()),
            "FLOW_NOT_CREATED" => state(WrongState::FlowNotCreated),
            "FLOW_NOT_STARTED" => state(WrongState::FlowNotStarted),
            "FLOW_NOT_ENDED" => state(WrongState::FlowNotEnded),
            "FLOW_ENDED" => state(WrongState::FlowEnded),
            "NODES_MISSING" => state(WrongState::NodesMissing),
            "MESSAGE_UNDER_WAY" => state(WrongState::MessageUnderWay),
            "NOT_A_DEAD_LETTER" => state(WrongState::NotADeadLetter),
            "MESSAGE_TOO_OLD" => state(WrongState::MessageTooOld),
            "SENDER_KEY_OVER" => state(WrongState::SenderKeyOver),
            "CARRIES_NODES" => state(WrongState::CarriesNodes),
            "JOB_GONE" => Self::NotFound(message.clone()),
            "JOB_IN_FLOW" => state(WrongState::JobInFlow),
            "BLOB_MISSING" => Self::BlobMissing(message.rsplit(':').next().unwrap_or_default().to_owned()),
            "JOB_NOT_RESERVED" => Self::field("nodes", message),
            "IDS_EXHAUSTED" => Self::no_ids_left(message.clone()),
            "REQUEST_ID_REUSED" => Self::RequestIdReused,
            "FLOW_CHANGED" | "RUNNER_CHANGED" => Self::Changed(message.clone()),
            "TOO_MANY_INPUTS" => limit("inputs that wait", limits::FLOW_INPUTS_MAX, message),
            "TOO_MANY_SIGNALS" => limit("signals of a flow", limits::FLOW_SIGNALS_MAX, message),
            _ => Self::of_global_script(error),
        }
    }
}

/// The quota that a script's refusal names, as `<name> <how much there may be> <how much there would be>`.
fn beyond(message: &str) -> Option<Error> {
    let mut parts = message.split(' ');
    let mut next = || parts.next();
    let name = next()?;
    let quota = *Quota::ALL.iter().find(|quota| quota.name() == name)?;
    Some(Error::Quota { quota, max: next()?.parse().ok()?, requested: next()?.parse().ok()? })
}

/// Maximum number of contexts that a message names.
const CONTEXTS_NAMED_MAX: usize = 20;

fn named(contexts: &[ContextId]) -> String {
    let first: Vec<String> = contexts.iter().take(CONTEXTS_NAMED_MAX).map(ToString::to_string).collect();
    match contexts.len().saturating_sub(CONTEXTS_NAMED_MAX) {
        0 => format!("context {}", first.join(", ")),
        more => format!("context {} and {more} more", first.join(", ")),
    }
}

fn limit(limit: &'static str, max: usize, requested: &str) -> Error {
    Error::Limit { limit, max: max as u64, requested: requested.parse().unwrap_or_default() }
}

impl From<AccessDenied> for Error {
    fn from(denied: AccessDenied) -> Self {
        match denied {
            AccessDenied::NoRole(context) => Self::not_found("context", context),
            denied => Self::Denied(denied),
        }
    }
}

impl From<kv::Error> for Error {
    fn from(error: kv::Error) -> Self {
        Self::Store(error)
    }
}

impl From<MalformedRecord> for Error {
    fn from(error: MalformedRecord) -> Self {
        Self::Broken(error)
    }
}

impl From<Violations> for Error {
    fn from(violations: Violations) -> Self {
        Self::Invalid(violations)
    }
}
