//! What every call passes before its handler: who is it, may it, how long.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use http::{Request, Response};
use identity::Identity;
use tonic::Status;
use tonic::body::Body;
use tonic::service::Routes;
use tower::Service;

use crate::authenticate::{Believed, Claim, Shown, cannot_look_up, shown};
use crate::caller::{Caller, Peer, identity_required};
use crate::deadline::Deadline;
use crate::directory::Directory;
use crate::error::{Error, ErrorKind};
use crate::policy::{MethodPolicy, Verdict};
use crate::reason::Reason;
use crate::revocable::while_believed;

/// The routes of a service behind its policy. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    routes: Routes,
    policy: Arc<MethodPolicy>,
    directory: Option<Arc<dyn Directory>>,
}

impl Gate {
    pub(crate) fn new(routes: Routes, policy: MethodPolicy, directory: Option<Arc<dyn Directory>>) -> Self {
        Self { routes: routes.prepare(), policy: Arc::new(policy), directory }
    }

    /// Whether who calls may; leaves the caller in the extensions.
    fn admit(&self, request: &mut Request<Body>, caller: Result<Option<Caller>, Error>) -> Result<(), Error> {
        let path = request.uri().path();
        let identity = caller.as_ref().ok().copied().flatten().map(|caller| caller.identity());
        match (self.policy.decide(path, identity), caller) {
            (Verdict::Allowed, Ok(Some(caller))) => {
                request.extensions_mut().insert(caller);
                Ok(())
            }
            // A certificate that says nothing is no hindrance where none is needed.
            (Verdict::Allowed, _) => Ok(()),
            (_, Err(unusable)) => Err(unusable),
            (_, Ok(Some(caller))) => Err(denied(request, caller.identity())),
            (_, Ok(None)) => Err(identity_required().with("method", path)),
        }
    }

    /// Looks an actor up, and whether it may.
    async fn admit_actor(&self, request: &mut Request<Body>, claim: &Claim) -> Result<Believed, Error> {
        let verdict = self.policy.decide(request.uri().path(), Some(claim.identity()));
        let Some(directory) = &self.directory else {
            return Err(match verdict {
                Verdict::Allowed => cannot_look_up(),
                Verdict::Denied | Verdict::IdentityRequired => denied(request, claim.identity()),
            });
        };
        let believed = claim.verify(directory).await?;
        self.admit(request, Ok(Some(believed.caller)))?;
        if self.policy.is_administrative(request.uri().path()) {
            claim.spend(directory).await?;
        }
        Ok(believed)
    }

    /// What follows for a call that was let in.
    fn answer(
        &mut self,
        mut request: Request<Body>,
    ) -> BoxFuture<'static, Result<Response<Body>, Infallible>> {
        let Some(deadline) = Deadline::from_headers(request.headers()) else {
            return Box::pin(self.routes.call(request));
        };
        request.extensions_mut().insert(deadline);
        let path = request.uri().path().to_owned();
        let answer = self.routes.call(request);
        Box::pin(async move {
            match tokio::time::timeout_at(deadline.0, answer).await {
                Ok(answer) => answer,
                Err(_) => Ok(deadline_exceeded(&path).into_http()),
            }
        })
    }
}

impl Service<Request<Body>> for Gate {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Service::<Request<Body>>::poll_ready(&mut self.routes, cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let is_open = self.policy.is_open(request.uri().path());
        match shown(&request, is_open) {
            Shown::Settled(caller) => match self.admit(&mut request, caller) {
                Ok(()) => self.answer(request),
                Err(error) => Box::pin(std::future::ready(Ok(Status::from(error).into_http()))),
            },
            Shown::Actor(claim) => {
                // The routes are always ready, the copy's as well.
                let mut gate = self.clone();
                Box::pin(async move {
                    match gate.admit_actor(&mut request, &claim).await {
                        Ok(believed) => {
                            gate.answer(request).await.map(|answer| while_believed(answer, believed))
                        }
                        Err(error) => Ok(Status::from(error).into_http()),
                    }
                })
            }
        }
    }
}

fn denied(request: &Request<Body>, identity: Identity) -> Error {
    let path = request.uri().path();
    let peer = request.extensions().get::<Peer>().map(|peer| peer.address.to_string());
    tracing::info!(%identity, method = path, peer, "call denied by the method policy");
    Error::new(
        ErrorKind::PermissionDenied,
        Reason::MethodNotAllowed,
        format!("`{identity}` may not call {path}"),
    )
    .with("identity", identity)
    .with("method", path)
}

/// `who` is the method or the server that did not answer.
pub(crate) fn deadline_exceeded(who: &str) -> Status {
    Error::new(
        ErrorKind::DeadlineExceeded,
        Reason::DeadlineExceeded,
        format!(
            "{who} did not answer within the deadline of the call; whether it had an effect is not known"
        ),
    )
    .into_status()
}
