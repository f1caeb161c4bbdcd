//! The reasons that programs branch on.

use tonic::Code;

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal as [$($code:ident),*]),+ $(,)?) => {
        /// Why a call failed, as `google.rpc.ErrorInfo.reason` carries it.
        ///
        /// Texts are never changed or reused: clients compare them. `NOT_CONFIGURED`, `FENCED` and `UNKNOWN_TYPE` are taken:
        /// they were written down once, and never given.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum RpcReason {
            $($(#[$doc])* $name),+
        }

        impl RpcReason {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// In `UPPER_SNAKE`, as it goes over the wire.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text),+ }
            }

            /// The codes of statuses that carry it; none of what never fails a call.
            #[must_use]
            pub const fn codes(self) -> &'static [Code] {
                match self { $(Self::$name => &[$(Code::$code),*]),+ }
            }
        }
    };
}

reasons! {
    /// Fields of the request cannot be accepted; `BadRequest` lists them.
    InvalidRequest = "INVALID_REQUEST" as [InvalidArgument],
    /// Nothing by that id, or nothing that the caller may know of.
    NotFound = "NOT_FOUND" as [NotFound],
    /// There is one already.
    AlreadyExists = "ALREADY_EXISTS" as [AlreadyExists],
    /// An earlier call with the same `request_id` had another body.
    RequestIdReused = "REQUEST_ID_REUSED" as [AlreadyExists],
    /// The object's state does not allow it.
    WrongState = "WRONG_STATE" as [FailedPrecondition],
    /// The flow takes no nodes and cannot be started: it was started already, or has ended.
    FlowNotCreated = "FLOW_NOT_CREATED" as [FailedPrecondition],
    /// The flow was not started yet.
    FlowNotStarted = "FLOW_NOT_STARTED" as [FailedPrecondition],
    /// The flow has to end first: cancel it.
    FlowNotEnded = "FLOW_NOT_ENDED" as [FailedPrecondition],
    /// The flow has ended.
    FlowEnded = "FLOW_ENDED" as [FailedPrecondition],
    /// The metadata `x-tenant-id` name another tenant than the request.
    TenantMismatch = "TENANT_MISMATCH" as [InvalidArgument],
    /// The tenant is paused: resume it first.
    TenantPaused = "TENANT_PAUSED" as [FailedPrecondition],
    /// An instance of this correlation runs already.
    SagaExists = "SAGA_EXISTS" as [AlreadyExists],
    /// The instance has ended.
    SagaEnded = "SAGA_ENDED" as [FailedPrecondition],
    /// The definition cannot be applied; the message says where.
    SagaFault = "SAGA_FAULT" as [FailedPrecondition],
    /// The pivot of the instance has succeeded: there is no way back, it can be killed.
    PastPivot = "PAST_PIVOT" as [FailedPrecondition],
    /// The instance is paused: resume it first.
    SagaPaused = "SAGA_PAUSED" as [FailedPrecondition],
    /// The instance is not paused.
    SagaNotPaused = "SAGA_NOT_PAUSED" as [FailedPrecondition],
    /// The instance is stuck: have its step tried again, left out, or say that it is complete.
    SagaStuck = "SAGA_STUCK" as [FailedPrecondition],
    /// The instance is not stuck.
    SagaNotStuck = "SAGA_NOT_STUCK" as [FailedPrecondition],
    /// A dead letter stands in front of the instance: redrive or purge it first.
    SagaParked = "SAGA_PARKED" as [FailedPrecondition],
    /// The instance does not go from step to step: it is being undone, or is stuck.
    SagaNotRunning = "SAGA_NOT_RUNNING" as [FailedPrecondition],
    /// The instance cannot become one of the definition in force; the message says what does not fit.
    SagaNotMigratable = "SAGA_NOT_MIGRATABLE" as [FailedPrecondition],
    /// The operator's directory is not taken as it is; the message has the first problems.
    ManifestsRefused = "MANIFESTS_REFUSED" as [FailedPrecondition],
    /// The outcome of the call is known, or it is being made.
    EffectNotUnknown = "EFFECT_NOT_UNKNOWN" as [FailedPrecondition],
    /// The call has ended, or is not at a point where this could be done.
    EffectNotOpen = "EFFECT_NOT_OPEN" as [FailedPrecondition],
    /// The call does not wait for its answer.
    EffectNotWaiting = "EFFECT_NOT_WAITING" as [FailedPrecondition],
    /// The token is not that of the call.
    TokenRefused = "TOKEN_REFUSED" as [PermissionDenied],
    /// No node of the flow would be run again.
    NothingToRetry = "NOTHING_TO_RETRY" as [FailedPrecondition],
    /// The named attempt of the node is not under way.
    NodeNotRunning = "NODE_NOT_RUNNING" as [FailedPrecondition],
    /// The flow has fewer nodes than were announced.
    NodesMissing = "NODES_MISSING" as [FailedPrecondition],
    /// The context is being deleted; it can only be read.
    ContextDeleting = "CONTEXT_DELETING" as [FailedPrecondition],
    /// The context is being exported: it can only be read until then.
    ContextFrozen = "CONTEXT_FROZEN" as [Unavailable],
    /// The snapshot of an export is over: the context may have changed since. Begin a new export.
    SnapshotGone = "SNAPSHOT_GONE" as [FailedPrecondition],
    /// The export of a context is truncated, altered, or none at all; the message says where.
    ArchiveUnusable = "ARCHIVE_UNUSABLE" as [InvalidArgument],
    /// There is a context of this number or uid already.
    ContextExists = "CONTEXT_EXISTS" as [AlreadyExists],
    /// An actor that an export names has another key here.
    ActorConflict = "ACTOR_CONFLICT" as [FailedPrecondition],
    /// Another export of the same context is being imported: finish that import, or give it up.
    ImportUnderWay = "IMPORT_UNDER_WAY" as [FailedPrecondition],
    /// The last admin of a context cannot be removed.
    LastAdmin = "LAST_ADMIN" as [FailedPrecondition],
    /// A file that is referred to was not put before.
    BlobMissing = "BLOB_MISSING" as [FailedPrecondition, NotFound],
    /// The message is on its way: it can be removed when it has arrived, or will not.
    MessageUnderWay = "MESSAGE_UNDER_WAY" as [FailedPrecondition],
    /// The message is none that will not arrive.
    NotADeadLetter = "NOT_A_DEAD_LETTER" as [FailedPrecondition],
    /// The message was made more than 6 days ago: whether it arrived may be forgotten by now.
    MessageTooOld = "MESSAGE_TOO_OLD" as [FailedPrecondition],
    /// The key that the message is from counts no more: it is sent anew, under another.
    SenderKeyOver = "SENDER_KEY_OVER" as [FailedPrecondition],
    /// The message carries nodes of a flow: it goes by the flow's policy, and with the flow.
    CarriesNodes = "CARRIES_NODES" as [FailedPrecondition],
    /// The job is a node of a flow, and goes with it.
    JobInFlow = "JOB_IN_FLOW" as [FailedPrecondition],
    /// A record in the store cannot be read, as others have written it; the message names it, and what is wrong with it.
    RecordUnreadable = "RECORD_UNREADABLE" as [FailedPrecondition],
    /// The record changed since the caller read it.
    RevisionMismatch = "REVISION_MISMATCH" as [Aborted],
    /// The lease of a scheduler replica ran out, or another start of the same name has taken it.
    LeaseLost = "LEASE_LOST" as [Aborted],
    /// Redis lost changes; what was read of it before is void.
    StoreWentBack = "STORE_WENT_BACK" as [Aborted],
    /// The position to resume from is gone; begin with a snapshot.
    PositionGone = "POSITION_GONE" as [OutOfRange],
    /// A named limit; the metadata has its name, its value and what was asked.
    LimitExceeded = "LIMIT_EXCEEDED" as [ResourceExhausted],
    /// The server has enough to do; try again later.
    Overloaded = "OVERLOADED" as [ResourceExhausted],
    /// The watcher did not keep up; resume from the last revision.
    SlowConsumer = "SLOW_CONSUMER" as [ResourceExhausted],
    /// The service is ending; another replica, or a later try, will answer.
    Draining = "DRAINING" as [Unavailable],
    /// The service has not started yet.
    NotReady = "NOT_READY" as [Unavailable],
    /// The store does not answer.
    StoreUnavailable = "STORE_UNAVAILABLE" as [Unavailable],
    /// A disk that is needed has no room, or takes no writes. Nothing was changed; it passes when there is room.
    DiskFull = "DISK_FULL" as [Unavailable],
    /// The store has no room for anything new. What deletes works.
    StoreFull = "STORE_FULL" as [ResourceExhausted],
    /// Another service or machine that is needed does not answer.
    PeerUnavailable = "PEER_UNAVAILABLE" as [Unavailable],
    /// The deadline passed; whether the change was made is not known.
    DeadlineExceeded = "DEADLINE_EXCEEDED" as [DeadlineExceeded],
    /// The method needs a client certificate or a token.
    IdentityRequired = "IDENTITY_REQUIRED" as [Unauthenticated],
    /// The certificate or the token cannot be used.
    IdentityUnusable = "IDENTITY_UNUSABLE" as [Unauthenticated],
    /// The actor or its key was revoked.
    IdentityRevoked = "IDENTITY_REVOKED" as [Unauthenticated],
    /// The caller's identity may not call this method.
    MethodNotAllowed = "METHOD_NOT_ALLOWED" as [PermissionDenied],
    /// The caller's role in the context is not enough.
    RoleInsufficient = "ROLE_INSUFFICIENT" as [PermissionDenied],
    /// The job key came before with other content.
    KeyConflict = "KEY_CONFLICT" as [],
    /// The attempt was stopped before it came.
    Stopped = "STOPPED" as [FailedPrecondition],
    /// The context belongs to another coordinator.
    ContextClaimed = "CONTEXT_CLAIMED" as [],
    /// The work queue is full.
    QueueFull = "QUEUE_FULL" as [ResourceExhausted],
    /// The job asks for the network, and the supervisor's policy says no.
    NetworkRefused = "NETWORK_REFUSED" as [PermissionDenied],
    /// No instance that the job is meant for gives the isolation that is demanded.
    IsolationUnavailable = "ISOLATION_UNAVAILABLE" as [FailedPrecondition],
    /// The supervisor's policy does not take the job: for its context, its coordinator, its type or who signed it.
    PolicyRefused = "POLICY_REFUSED" as [PermissionDenied],
    /// The actor's signature does not fit what is to run, is over, or belongs to another job.
    SignatureRefused = "SIGNATURE_REFUSED" as [PermissionDenied],
    /// A signed envelope is not heard; `refusal` in the metadata says why.
    EnvelopeRefused = "ENVELOPE_REFUSED" as [PermissionDenied],
    /// The gateway has no bus for `mycelium:` addresses.
    NoBus = "NO_BUS" as [FailedPrecondition],
    /// The method is not part of this server.
    Unimplemented = "UNIMPLEMENTED" as [Unimplemented],
    /// The call was given up before there was an answer.
    Cancelled = "CANCELLED" as [Cancelled],
    /// A defect; the server's log has it under the id in the message.
    Internal = "INTERNAL" as [Internal],
}

impl std::fmt::Display for RpcReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn texts_are_upper_snake_and_differ() {
        // AIP-193: at most 63 characters.
        for reason in RpcReason::ALL {
            let text = reason.as_str();
            assert!(text.len() <= 63 && text.bytes().all(|b| b.is_ascii_uppercase() || b == b'_'), "{text}");
        }
        let texts: BTreeSet<_> = RpcReason::ALL.iter().map(|r| r.as_str()).collect();
        assert_eq!(texts.len(), RpcReason::ALL.len());
    }
}
