//! A coordinator has another root: announced by itself, signed by the root before, or said by whoever runs this machine.

use std::sync::Arc;
use std::time::Duration;

use envelope::{Envelope, Heard, Heirs, Refusal, Succession};
use identity::VerifyingKey;
use model::supervision::{CoordinatorSucceed, CoordinatorSucceeded, method};
use mycelium::json_rpc::{Answer, Message, Payload, Request, RpcError, answer, parse};
use queue::{Authority, Begun, PassedOn};

use crate::coordinators::Coordinators;
use crate::intake::{Supervisor, unavailable};
use crate::policy::Denial;

/// The pause after the store did not answer at the start.
const STORE_RETRY: Duration = Duration::from_millis(500);

/// Why one root does not take the place of another.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SuccessionError {
    /// The policy names the old root, and not the new one.
    #[error(transparent)]
    Policy(Denial),
    /// Another came after the old one, or the new one was succeeded itself.
    #[error("{0}")]
    Succeeded(String),
    /// Nothing is bound to the old one.
    #[error("no context is bound to coordinator {0} here")]
    Unknown(String),
    /// The store gives trouble. May be repeated.
    #[error("the supervisor's store gives trouble")]
    Store(#[source] kv::Error),
}

impl SuccessionError {
    fn of(error: kv::Error) -> Self {
        match error {
            kv::Error::Refused { code, message } if code == "ROOT_SUCCEEDED" => Self::Succeeded(message),
            other => Self::Store(other),
        }
    }
}

impl Supervisor {
    /// Has one root take the place of another: the old one is refused at once, and then everything of it is passed on. May be
    /// repeated.
    ///
    /// # Errors
    /// [`SuccessionError`]; after [`SuccessionError::Store`] not everything may have been passed on.
    pub(crate) async fn succeed(
        &self,
        old: &str,
        new: &str,
        by: Authority,
    ) -> Result<PassedOn, SuccessionError> {
        let followed = self.policy.rules().follows(old, new);
        followed.map_err(SuccessionError::Policy)?;
        match self.queue.begin_succession(old, new, by).await.map_err(SuccessionError::of)? {
            Begun::Unknown => return Err(SuccessionError::Unknown(old.to_owned())),
            Begun::Noted => {
                tracing::warn!(old, new, ?by, "a coordinator has another root: the old one is refused")
            }
            Begun::Known => {}
        }
        self.learn_successors().await.map_err(SuccessionError::Store)?;
        self.coordinators.end(old);
        let passed = self.queue.pass_on(old, new).await.map_err(SuccessionError::of)?;
        if passed != PassedOn::default() {
            let PassedOn { contexts, jobs } = passed;
            tracing::info!(old, new, contexts, jobs, "what was bound to a root was passed on");
        }
        Ok(passed)
    }

    async fn learn_successors(&self) -> kv::Result<()> {
        self.coordinators.set_successors(self.queue.successors().await?.into_iter().collect());
        Ok(())
    }
}

/// Answers a coordinator that says that it has this root now.
pub(crate) async fn announced(supervisor: &Supervisor, root: &str, request: &Request) -> Answer {
    let succession = read(request).map_err(|refusal| {
        tracing::warn!(coordinator = root, %refusal, "a change of root was not taken");
        RpcError::refused(refusal.code(), true, refusal.to_string())
    })?;
    if succession.last().to_string() != root {
        let message =
            format!("these changes lead to {}, and {root} has signed the request", succession.last());
        tracing::warn!(coordinator = root, message, "a change of root was not taken");
        return Err(RpcError::refused("WRONG_ROOT", true, message));
    }
    let mut contexts = 0;
    // The last change first: what came before a root is noted to lead to the one after it.
    for old in succession.before().iter().rev() {
        let old = old.to_string();
        match supervisor.succeed(&old, root, Authority::Root).await {
            Ok(passed) => contexts += passed.contexts,
            // Of a root that was never here there is nothing to pass on.
            Err(SuccessionError::Unknown(_)) => {}
            Err(SuccessionError::Store(error)) => return Err(unavailable(error)),
            Err(error @ SuccessionError::Policy(_)) => {
                tracing::error!(old, new = root, "{error}");
                return Err(RpcError::refused("POLICY_REFUSED", false, error.to_string()));
            }
            Err(error @ SuccessionError::Succeeded(_)) => {
                tracing::warn!(old, new = root, %error, "a change of root was not taken");
                return Err(RpcError::refused("ROOT_SUCCEEDED", true, error.to_string()));
            }
        }
    }
    answer(&CoordinatorSucceeded { contexts })
}

fn read(request: &Request) -> Result<Succession, Refusal> {
    let asked: CoordinatorSucceed = request.read().map_err(|error| Refusal::Malformed(error.message))?;
    let changes = asked.changes.iter().map(|change| Envelope::from_json(change.as_bytes()));
    Succession::read(&changes.collect::<Result<Vec<_>, _>>()?)
}

/// Who comes after the root that is listened to: whoever shows that with the first word, or was said to.
pub(crate) fn heirs(coordinators: Coordinators) -> Heirs {
    Arc::new(move |known: &VerifyingKey, heard: &Heard| {
        coordinators.current(&known.to_string()) == heard.root.to_string()
            || announcement(heard).is_some_and(|succession| {
                succession.last() == heard.root && succession.before().contains(known)
            })
    })
}

/// The changes of root in a payload that says nothing else.
fn announcement(heard: &Heard) -> Option<Succession> {
    let Ok(Payload::Single(Ok(Message::Request(request)))) = parse(&heard.body) else { return None };
    (request.method == method::COORDINATOR_SUCCEED).then(|| read(&request).ok()).flatten()
}

/// Learns which roots were succeeded, and goes on with what an earlier start broke off.
pub(crate) async fn restore(supervisor: &Supervisor) {
    let restoring = async || {
        supervisor.queue.index_contexts().await?;
        supervisor.learn_successors().await?;
        for (old, new) in supervisor.queue.successors().await? {
            supervisor.queue.pass_on(&old, &new).await?;
        }
        Ok::<_, kv::Error>(())
    };
    while let Err(error) = restoring().await {
        tracing::warn!(%error, "the roots of coordinators are not known yet");
        tokio::time::sleep(STORE_RETRY).await;
    }
}
