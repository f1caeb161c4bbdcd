//! The reasons that programs branch on.

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal),+ $(,)?) => {
        /// Why a call failed, as `google.rpc.ErrorInfo.reason` carries it.
        ///
        /// Texts are never changed or reused: clients compare them.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Reason {
            $($(#[$doc])* $name),+
        }

        impl Reason {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// In `UPPER_SNAKE`, as it goes over the wire.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text),+ }
            }
        }
    };
}

reasons! {
    /// Fields of the request cannot be accepted; `BadRequest` lists them.
    InvalidRequest = "INVALID_REQUEST",
    /// Nothing by that id, or nothing that the caller may know of.
    NotFound = "NOT_FOUND",
    /// There is one already.
    AlreadyExists = "ALREADY_EXISTS",
    /// The same `request_id` came with another body before.
    RequestIdReused = "REQUEST_ID_REUSED",
    /// The object's state does not allow it.
    WrongState = "WRONG_STATE",
    /// The flow takes no nodes and cannot be started: it was started already, or has ended.
    FlowNotCreated = "FLOW_NOT_CREATED",
    /// The flow was not started yet.
    FlowNotStarted = "FLOW_NOT_STARTED",
    /// The flow has to end first: cancel it.
    FlowNotEnded = "FLOW_NOT_ENDED",
    /// The flow has ended.
    FlowEnded = "FLOW_ENDED",
    /// No node of the flow would be run again.
    NothingToRetry = "NOTHING_TO_RETRY",
    /// That attempt of the node is not under way.
    NodeNotRunning = "NODE_NOT_RUNNING",
    /// The flow has fewer nodes than were announced.
    NodesMissing = "NODES_MISSING",
    /// The context is being deleted; it can only be read.
    ContextDeleting = "CONTEXT_DELETING",
    /// The last admin of a context cannot be removed.
    LastAdmin = "LAST_ADMIN",
    /// A file that is referred to was not put before.
    BlobMissing = "BLOB_MISSING",
    /// The message is on its way: it can be removed when it has arrived, or will not.
    MessageUnderWay = "MESSAGE_UNDER_WAY",
    /// The message is none that will not arrive.
    NotADeadLetter = "NOT_A_DEAD_LETTER",
    /// The message was made more than 6 days ago: whether it arrived may be forgotten by now.
    MessageTooOld = "MESSAGE_TOO_OLD",
    /// The message carries nodes of a flow: it goes by the flow's policy, and with the flow.
    CarriesNodes = "CARRIES_NODES",
    /// The job is a node of a flow, and goes with it.
    JobInFlow = "JOB_IN_FLOW",
    /// The server's configuration does not allow it.
    NotConfigured = "NOT_CONFIGURED",
    /// The record changed since the caller read it.
    RevisionMismatch = "REVISION_MISMATCH",
    /// The flow has another owner now.
    Fenced = "FENCED",
    /// The lease of a scheduler replica ran out, or another start of the same name has taken it.
    LeaseLost = "LEASE_LOST",
    /// Redis lost changes; what was read of it before is void.
    StoreWentBack = "STORE_WENT_BACK",
    /// The position to resume from is gone; begin with a snapshot.
    PositionGone = "POSITION_GONE",
    /// A named limit; the metadata has its name, its value and what was asked.
    LimitExceeded = "LIMIT_EXCEEDED",
    /// The server has enough to do; try again later.
    Overloaded = "OVERLOADED",
    /// The watcher did not keep up; resume from the last revision.
    SlowConsumer = "SLOW_CONSUMER",
    /// The service is ending; another replica, or a later try, will answer.
    Draining = "DRAINING",
    /// The service has not started yet.
    NotReady = "NOT_READY",
    /// The store does not answer.
    StoreUnavailable = "STORE_UNAVAILABLE",
    /// Another service or machine that is needed does not answer.
    PeerUnavailable = "PEER_UNAVAILABLE",
    /// The deadline passed; whether the change was made is not known.
    DeadlineExceeded = "DEADLINE_EXCEEDED",
    /// The method needs a client certificate or a token.
    IdentityRequired = "IDENTITY_REQUIRED",
    /// The certificate or the token cannot be used.
    IdentityUnusable = "IDENTITY_UNUSABLE",
    /// The actor or its key was revoked.
    IdentityRevoked = "IDENTITY_REVOKED",
    /// This identity may not call this method.
    MethodNotAllowed = "METHOD_NOT_ALLOWED",
    /// The caller's role in the context is not enough.
    RoleInsufficient = "ROLE_INSUFFICIENT",
    /// The same job key came with other content before.
    KeyConflict = "KEY_CONFLICT",
    /// The attempt was stopped before it came.
    Stopped = "STOPPED",
    /// No instance takes this script type.
    UnknownType = "UNKNOWN_TYPE",
    /// The context belongs to another coordinator.
    ContextClaimed = "CONTEXT_CLAIMED",
    /// The work queue is full.
    QueueFull = "QUEUE_FULL",
    /// The job asks for the network, and the supervisor's policy says no.
    NetworkRefused = "NETWORK_REFUSED",
    /// No instance that the job is meant for gives the isolation that is demanded.
    IsolationUnavailable = "ISOLATION_UNAVAILABLE",
    /// The supervisor's policy does not take the job: for its context, its coordinator, its type or who signed it.
    PolicyRefused = "POLICY_REFUSED",
    /// The actor's signature does not fit what is to run, is over, or belongs to another job.
    SignatureRefused = "SIGNATURE_REFUSED",
    /// A signed envelope is not heard; `refusal` in the metadata says why.
    EnvelopeRefused = "ENVELOPE_REFUSED",
    /// The gateway has no bus for `mycelium:` addresses.
    NoBus = "NO_BUS",
    /// The method is not part of this server.
    Unimplemented = "UNIMPLEMENTED",
    /// The call was given up before there was an answer.
    Cancelled = "CANCELLED",
    /// A defect; the server's log has it under the id in the message.
    Internal = "INTERNAL",
}

impl std::fmt::Display for Reason {
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
        for reason in Reason::ALL {
            let text = reason.as_str();
            assert!(text.len() <= 63 && text.bytes().all(|b| b.is_ascii_uppercase() || b == b'_'), "{text}");
        }
        let texts: BTreeSet<_> = Reason::ALL.iter().map(|r| r.as_str()).collect();
        assert_eq!(texts.len(), Reason::ALL.len());
    }
}
