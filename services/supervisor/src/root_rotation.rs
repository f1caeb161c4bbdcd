//! Root key rotation of a coordinator: announced by itself and signed by the former root, or requested by the operator.

use std::sync::Arc;
use std::time::Duration;

use envelope::{Envelope, OpenedEnvelope, Refusal, RootChain, SuccessorCheck};
use identity::VerifyingKey;
use model::supervision::{CoordinatorSucceed, CoordinatorSucceeded, method};
use mycelium::json_rpc::{
    JsonRpcError, JsonRpcMessage, JsonRpcPayload, JsonRpcRequest, JsonRpcResult, answer, parse,
};
use queue::{RootTransferCounts, RotationAuthority, RotationStartOutcome};

use crate::coordinator_requests::{SupervisorState, unavailable};
use crate::coordinators::Coordinators;
use crate::policy::PolicyDenial;

/// The pause after the store did not answer at the start.
const STORE_RETRY: Duration = Duration::from_millis(500);

/// Why one root does not take the place of another.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CoordinatorRotationError {
    /// The policy names the old root, and not the new one.
    #[error(transparent)]
    Policy(PolicyDenial),
    /// The old root already has another successor, or the new one was succeeded itself.
    #[error("{0}")]
    Succeeded(String),
    /// No context is bound to the old root.
    #[error("no context is bound to coordinator {0} here")]
    Unknown(String),
    /// The store failed. May be repeated.
    #[error("the supervisor's store failed")]
    Store(#[source] kv::Error),
}

impl CoordinatorRotationError {
    fn of(error: kv::Error) -> Self {
        match error {
            kv::Error::Refused { code, message } if code == "ROOT_SUCCEEDED" => Self::Succeeded(message),
            other => Self::Store(other),
        }
    }
}

impl SupervisorState {
    /// Replaces one root by another: the old root is refused at once, and then everything bound to it is transferred. May be
    /// repeated.
    ///
    /// # Errors
    /// [`CoordinatorRotationError`]; after [`CoordinatorRotationError::Store`] the transfer may be incomplete.
    pub(crate) async fn succeed(
        &self,
        old: &str,
        new: &str,
        by: RotationAuthority,
    ) -> Result<RootTransferCounts, CoordinatorRotationError> {
        let followed = self.policy.rules().check_rotation(old, new);
        followed.map_err(CoordinatorRotationError::Policy)?;
        match self.queue.begin_root_rotation(old, new, by).await.map_err(CoordinatorRotationError::of)? {
            RotationStartOutcome::Unknown => return Err(CoordinatorRotationError::Unknown(old.to_owned())),
            RotationStartOutcome::Noted => {
                tracing::warn!(old, new, ?by, "a coordinator has another root: the old one is refused")
            }
            RotationStartOutcome::Known => {}
        }
        self.learn_successors().await.map_err(CoordinatorRotationError::Store)?;
        self.coordinators.end(old);
        let passed = self.queue.transfer_bindings(old, new).await.map_err(CoordinatorRotationError::of)?;
        if passed != RootTransferCounts::default() {
            let RootTransferCounts { contexts, jobs } = passed;
            tracing::info!(
                old,
                new,
                contexts,
                jobs,
                "everything bound to the old root was transferred to the new one"
            );
        }
        Ok(passed)
    }

    async fn learn_successors(&self) -> kv::Result<()> {
        self.coordinators.set_successors(self.queue.successors().await?.into_iter().collect());
        Ok(())
    }
}

/// Answers a coordinator that announces this root as its new one.
pub(crate) async fn announced(
    supervisor: &SupervisorState,
    root: &str,
    request: &JsonRpcRequest,
) -> JsonRpcResult {
    let succession = read(request).map_err(|refusal| {
        tracing::warn!(coordinator = root, %refusal, "a change of root was refused");
        JsonRpcError::refused(refusal.code(), true, refusal.to_string())
    })?;
    if succession.current_root().to_string() != root {
        let message =
            format!("these changes lead to {}, and {root} has signed the request", succession.current_root());
        tracing::warn!(coordinator = root, message, "a change of root was refused");
        return Err(JsonRpcError::refused("WRONG_ROOT", true, message));
    }
    let mut contexts = 0;
    // The last change goes first: the predecessors of a root are noted to lead to its successor.
    for old in succession.retired_roots().iter().rev() {
        let old = old.to_string();
        match supervisor.succeed(&old, root, RotationAuthority::Root).await {
            Ok(passed) => contexts += passed.contexts,
            // A root that was never here has nothing to transfer.
            Err(CoordinatorRotationError::Unknown(_)) => {}
            Err(CoordinatorRotationError::Store(error)) => return Err(unavailable(error)),
            Err(error @ CoordinatorRotationError::Policy(_)) => {
                tracing::error!(old, new = root, "{error}");
                return Err(JsonRpcError::refused("POLICY_REFUSED", false, error.to_string()));
            }
            Err(error @ CoordinatorRotationError::Succeeded(_)) => {
                tracing::warn!(old, new = root, %error, "a change of root was refused");
                return Err(JsonRpcError::refused("ROOT_SUCCEEDED", true, error.to_string()));
            }
        }
    }
    answer(&CoordinatorSucceeded { contexts })
}

fn read(request: &JsonRpcRequest) -> Result<RootChain, Refusal> {
    let succession: CoordinatorSucceed = request.read().map_err(|error| Refusal::Malformed(error.message))?;
    let changes = succession.changes.iter().map(|change| Envelope::from_json(change.as_bytes()));
    RootChain::read(&changes.collect::<Result<Vec<_>, _>>()?)
}

/// Returns the check for successors of an accepted root: recorded, or proven by the first message.
pub(crate) fn successor_check(coordinators: Coordinators) -> SuccessorCheck {
    Arc::new(move |known: &VerifyingKey, opened: &OpenedEnvelope| {
        coordinators.current_root(&known.to_string()) == opened.root.to_string()
            || announcement(opened).is_some_and(|succession| {
                succession.current_root() == opened.root && succession.retired_roots().contains(known)
            })
    })
}

/// Returns the changes of root in a payload that holds nothing else.
fn announcement(opened: &OpenedEnvelope) -> Option<RootChain> {
    let Ok(JsonRpcPayload::Single(Ok(JsonRpcMessage::Request(request)))) = parse(&opened.body) else {
        return None;
    };
    (request.method == method::COORDINATOR_SUCCEED).then(|| read(&request).ok()).flatten()
}

/// Reads which roots were succeeded, and continues transfers that were interrupted before this start.
pub(crate) async fn restore(supervisor: &SupervisorState) {
    let restoring = async || {
        supervisor.queue.index_contexts().await?;
        supervisor.learn_successors().await?;
        for (old, new) in supervisor.queue.successors().await? {
            supervisor.queue.transfer_bindings(&old, &new).await?;
        }
        Ok::<_, kv::Error>(())
    };
    while let Err(error) = restoring().await {
        tracing::warn!(%error, "the succeeded roots cannot be read yet; retrying");
        tokio::time::sleep(STORE_RETRY).await;
    }
}
