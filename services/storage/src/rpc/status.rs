//! Converts storage errors to the statuses that callers receive.

use std::time::Duration;

use ::rpc::{ErrorKind, RpcReason};
use model::Violations;
use tonic::Status;

use crate::error::{Error, WrongState};
use crate::moving::ImportRefusal;

/// Delay before a retry while a context is exported.
const RETRY_WHEN_FROZEN: Duration = Duration::from_secs(2);
/// Delay before a retry when the store has no room.
const RETRY_WHEN_FULL: Duration = Duration::from_secs(5);

impl From<Error> for ::rpc::Error {
    fn from(error: Error) -> Self {
        let new = |kind, reason| Self::new(kind, reason, error.to_string());
        match error {
            Error::NotFound(resource) => Self::not_found(resource),
            Error::Invalid(violations) => Self::invalid(violations),
            Error::Denied(denied) => {
                Self::new(ErrorKind::PermissionDenied, RpcReason::RoleInsufficient, denied.to_string())
            }
            Error::NotAllowed(_) => new(ErrorKind::PermissionDenied, RpcReason::MethodNotAllowed),
            Error::Exists(_) => new(ErrorKind::AlreadyExists, RpcReason::AlreadyExists),
            Error::RequestIdReused => new(ErrorKind::AlreadyExists, RpcReason::RequestIdReused),
            Error::WrongState { state, .. } => new(ErrorKind::FailedPrecondition, reason_of(state)),
            Error::LastAdmin { ref contexts, .. } => {
                let contexts: Vec<String> = contexts.iter().take(100).map(ToString::to_string).collect();
                new(ErrorKind::FailedPrecondition, RpcReason::LastAdmin).with("contexts", contexts.join(","))
            }
            Error::NoAdmin => new(ErrorKind::FailedPrecondition, RpcReason::LastAdmin),
            Error::BlobMissing(ref hash) => {
                new(ErrorKind::FailedPrecondition, RpcReason::BlobMissing).with("sha256", hash)
            }
            Error::ContextDeleting => new(ErrorKind::FailedPrecondition, RpcReason::ContextDeleting),
            Error::ContextFrozen => {
                new(ErrorKind::Unavailable, RpcReason::ContextFrozen).retry_after(RETRY_WHEN_FROZEN)
            }
            Error::ReaderTooSlow { .. } => new(ErrorKind::ResourceExhausted, RpcReason::SlowConsumer),
            Error::SnapshotGone => new(ErrorKind::FailedPrecondition, RpcReason::SnapshotGone),
            Error::Import(ref refusal) => of_import(refusal, error.to_string()),
            Error::ContextChanged(_) => new(ErrorKind::Aborted, RpcReason::RevisionMismatch),
            Error::Changed(_) => new(ErrorKind::Aborted, RpcReason::RevisionMismatch),
            Error::LeaseLost => new(ErrorKind::Aborted, RpcReason::LeaseLost),
            Error::StoreWentBack => new(ErrorKind::Aborted, RpcReason::StoreWentBack),
            Error::PositionGone => new(ErrorKind::OutOfRange, RpcReason::PositionGone),
            Error::TooSlow { resume } => {
                new(ErrorKind::ResourceExhausted, RpcReason::SlowConsumer).with("resume_position", resume)
            }
            Error::Limit { limit, max, requested } => {
                new(ErrorKind::ResourceExhausted, RpcReason::LimitExceeded)
                    .with("limit", limit)
                    .with("max", max)
                    .with("asked", requested)
            }
            Error::Quota { quota, max, requested } => {
                let full = new(ErrorKind::ResourceExhausted, RpcReason::LimitExceeded)
                    .with("limit", quota.name())
                    .with("max", max)
                    .with("asked", requested);
                match quota.retry_after() {
                    Some(delay) => full.retry_after(delay),
                    None => full,
                }
            }
            Error::Exhausted { limit, max, .. } => {
                new(ErrorKind::ResourceExhausted, RpcReason::LimitExceeded)
                    .with("limit", limit)
                    .with("max", max)
                    .with("asked", u64::from(max) + 1)
            }
            Error::StoreFull => store_full(),
            Error::Store(cause) => of_store(cause),
            Error::Broken(record) => unreadable(record),
        }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        ::rpc::Error::from(error).into_status()
    }
}

fn of_import(refusal: &ImportRefusal, message: String) -> ::rpc::Error {
    let (kind, reason) = match refusal {
        ImportRefusal::Unusable(_) => {
            let mut violations = Violations::new();
            violations.add("data", &message);
            (ErrorKind::InvalidArgument(violations), RpcReason::ArchiveUnusable)
        }
        ImportRefusal::ContextExists(_) => (ErrorKind::AlreadyExists, RpcReason::ContextExists),
        ImportRefusal::ActorConflict(_) => (ErrorKind::FailedPrecondition, RpcReason::ActorConflict),
        ImportRefusal::UnderWay(_) => (ErrorKind::FailedPrecondition, RpcReason::ImportUnderWay),
        ImportRefusal::Gone(_) => (ErrorKind::Aborted, RpcReason::RevisionMismatch),
    };
    ::rpc::Error::new(kind, reason, message)
}

/// Error for a full store. Deletions make room, and so do records that expire.
fn store_full() -> ::rpc::Error {
    let message = "the store is full: delete flows, jobs or contexts that are not needed any more";
    ::rpc::Error::new(ErrorKind::ResourceExhausted, RpcReason::StoreFull, message)
        .retry_after(RETRY_WHEN_FULL)
}

/// Error for a record that cannot be read. This is no defect, since other programs may write into this Redis; the message names the
/// record.
fn unreadable(record: impl std::error::Error + Send + Sync + 'static) -> ::rpc::Error {
    tracing::warn!(%record, "a record cannot be read");
    let message =
        format!("{record}. What other programs may write, and how, stands in specs/redis-layout.md");
    ::rpc::Error::new(ErrorKind::FailedPrecondition, RpcReason::RecordUnreadable, message).with_cause(record)
}

/// Returns true if a script or command was refused because a key has the wrong type.
fn is_wrong_type(error: &kv::Error) -> bool {
    matches!(error, kv::Error::Refused { code, message } if code == "WRONGTYPE" || message.contains("WRONGTYPE"))
}

fn of_store(error: kv::Error) -> ::rpc::Error {
    match error {
        kv::Error::Unreachable { .. } | kv::Error::UnknownOutcome { .. } => {
            tracing::warn!(%error, "Redis does not answer");
            let message = "the store does not answer; whether a change was made is not known";
            ::rpc::Error::unavailable(RpcReason::StoreUnavailable, message).with_cause(error)
        }
        kv::Error::Unfit { .. } => {
            tracing::error!(%error, "Redis cannot keep changes as it has to");
            let message = error.to_string();
            ::rpc::Error::unavailable(RpcReason::StoreUnavailable, message).with_cause(error)
        }
        kv::Error::DiskFull(_) => {
            tracing::error!(%error, "the disk of Redis is full");
            ::rpc::Error::disk_full("the disk of the store is full: it takes no writes now").with_cause(error)
        }
        kv::Error::Oom(_) => {
            tracing::error!(%error, "Redis is out of memory");
            store_full().with_cause(error)
        }
        kv::Error::Readonly(_) => {
            tracing::error!(%error, "Redis takes no writes");
            ::rpc::Error::unavailable(RpcReason::StoreUnavailable, "the store takes no writes now")
                .with_cause(error)
        }
        error if is_wrong_type(&error) => unreadable(error),
        // Its password, or its rules for this user, were changed.
        kv::Error::Refused { ref code, .. } if ["NOAUTH", "WRONGPASS", "NOPERM"].contains(&code.as_str()) => {
            tracing::error!(%error, "Redis does not let storage in");
            let message =
                format!("the store does not let its own service in ({code}): an operator has to mend that");
            ::rpc::Error::unavailable(RpcReason::StoreUnavailable, message).with_cause(error)
        }
        kv::Error::Refused { .. } | kv::Error::Protocol(_) => ::rpc::Error::internal(error),
    }
}

const fn reason_of(state: WrongState) -> RpcReason {
    match state {
        WrongState::FlowNotCreated => RpcReason::FlowNotCreated,
        WrongState::FlowNotStarted => RpcReason::FlowNotStarted,
        WrongState::FlowEnded => RpcReason::FlowEnded,
        WrongState::FlowNotEnded => RpcReason::FlowNotEnded,
        WrongState::NodesMissing => RpcReason::NodesMissing,
        WrongState::MessageUnderWay => RpcReason::MessageUnderWay,
        WrongState::NotADeadLetter => RpcReason::NotADeadLetter,
        WrongState::MessageTooOld => RpcReason::MessageTooOld,
        WrongState::SenderKeyOver => RpcReason::SenderKeyOver,
        WrongState::CarriesNodes => RpcReason::CarriesNodes,
        WrongState::JobInFlow => RpcReason::JobInFlow,
    }
}

/// Parses one field of a request.
pub(super) fn field<T, E: std::fmt::Display>(name: &str, result: Result<T, E>) -> Result<T, Error> {
    result.map_err(|error| Error::field(name, error))
}

/// Fails when anything was found to be wrong.
pub(super) fn checked<T>(violations: Violations, value: T) -> Result<T, Error> {
    Ok(violations.into_result(Some(value))?)
}
