//! Admission of callers.

use std::sync::Arc;

use http::Request;
use identity::Identity;
use tonic::body::Body;

use crate::caller::directory::Directory;
use crate::caller::{Caller, ConnectionPeer, identity_required};
use crate::error::{Error, ErrorKind, RpcReason};
use crate::gate::actor_limits::ActorCallLimiter;
use crate::gate::authenticate::{
    ActorClaim, PresentedCredentials, VerifiedCaller, cannot_look_up, read_credentials,
};
use crate::gate::methods::RpcMethodKind;
use crate::gate::policy::{MethodPolicy, MethodPolicyDecision};

/// The policy of a mount, and who knows its actors.
#[derive(Debug)]
pub(crate) struct Admission {
    policy: MethodPolicy,
    directory: Option<Arc<dyn Directory>>,
    shares: ActorCallLimiter,
}

impl Admission {
    pub(crate) const fn new(
        policy: MethodPolicy,
        directory: Option<Arc<dyn Directory>>,
        shares: ActorCallLimiter,
    ) -> Self {
        Self { policy, directory, shares }
    }

    pub(crate) const fn shares(&self) -> &ActorCallLimiter {
        &self.shares
    }

    /// Returns true for a method that anyone may call.
    pub(crate) fn is_open(&self, path: &str) -> bool {
        self.policy.is_open(path)
    }

    /// Finds out who calls and whether it may; leaves the caller in the extensions. Gives what an actor was believed
    /// for, with its share of the server.
    pub(crate) async fn admit(
        &self,
        request: &mut Request<Body>,
        shape: RpcMethodKind,
    ) -> Result<Option<VerifiedCaller>, Error> {
        let is_open = self.is_open(request.uri().path());
        match read_credentials(request, is_open) {
            PresentedCredentials::Settled(caller) => self.judge(request, caller).map(|()| None),
            PresentedCredentials::Actor(claim) => self.admit_actor(request, &claim, shape).await.map(Some),
        }
    }

    fn judge(&self, request: &mut Request<Body>, caller: Result<Option<Caller>, Error>) -> Result<(), Error> {
        let path = request.uri().path();
        let identity = caller.as_ref().ok().copied().flatten().map(|caller| caller.identity());
        match (self.policy.decide(path, identity), caller) {
            (MethodPolicyDecision::Allowed, Ok(Some(caller))) => {
                request.extensions_mut().insert(caller);
                Ok(())
            }
            // A certificate that says nothing is no hindrance where none is needed.
            (MethodPolicyDecision::Allowed, _) => Ok(()),
            (_, Err(unusable)) => Err(unusable),
            (_, Ok(Some(caller))) => Err(denied(request, caller.identity())),
            (_, Ok(None)) => Err(identity_required().with("method", path)),
        }
    }

    /// Looks an actor up, and whether it may.
    async fn admit_actor(
        &self,
        request: &mut Request<Body>,
        claim: &ActorClaim,
        shape: RpcMethodKind,
    ) -> Result<VerifiedCaller, Error> {
        let verdict = self.policy.decide(request.uri().path(), Some(claim.identity()));
        let Some(directory) = &self.directory else {
            return Err(match verdict {
                MethodPolicyDecision::Allowed => cannot_look_up(),
                MethodPolicyDecision::Denied | MethodPolicyDecision::IdentityRequired => {
                    denied(request, claim.identity())
                }
            });
        };
        // Only for a verified caller, so that none uses up another's share.
        let believed = claim.verify(directory).await?;
        let believed = believed.sharing(self.shares.take(claim.actor(), shape)?);
        self.judge(request, Ok(Some(believed.caller)))?;
        if self.policy.is_administrative(request.uri().path()) {
            claim.consume_token(directory).await?;
        }
        Ok(believed)
    }
}

fn denied(request: &Request<Body>, identity: Identity) -> Error {
    let path = request.uri().path();
    let peer = request.extensions().get::<ConnectionPeer>().map(|peer| peer.address.to_string());
    tracing::info!(%identity, method = path, peer, "call denied by the method policy");
    Error::new(
        ErrorKind::PermissionDenied,
        RpcReason::MethodNotAllowed,
        format!("`{identity}` may not call {path}"),
    )
    .with("identity", identity)
    .with("method", path)
}
