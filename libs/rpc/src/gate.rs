//! What every call passes before its handler: who is it, may it, how long.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use http::{Request, Response};
use tonic::Status;
use tonic::body::Body;
use tonic::service::Routes;
use tower::Service;

use crate::caller::{Caller, Peer, PeerIdentity, identity_required};
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind};
use crate::policy::{MethodPolicy, Verdict};
use crate::reason::Reason;

/// The routes of a service behind its policy. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    routes: Routes,
    policy: Arc<MethodPolicy>,
}

impl Gate {
    pub(crate) fn new(routes: Routes, policy: MethodPolicy) -> Self {
        Self { routes: routes.prepare(), policy: Arc::new(policy) }
    }

    /// Finds out who calls and whether it may; leaves the caller in the extensions.
    fn admit(&self, request: &mut Request<Body>) -> Result<(), Error> {
        let caller = caller_of(request);
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
            (_, Ok(Some(caller))) => Err(denied(request, caller)),
            (_, Ok(None)) => Err(identity_required().with("method", path)),
        }
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
        if let Err(error) = self.admit(&mut request) {
            return Box::pin(std::future::ready(Ok(Status::from(error).into_http())));
        }
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

/// A caller of this process brings its identity along; extensions cannot come over a connection.
fn caller_of(request: &Request<Body>) -> Result<Option<Caller>, Error> {
    if let Some(local) = request.extensions().get::<Caller>() {
        return Ok(Some(*local));
    }
    match request.extensions().get::<Peer>().map(|peer| &peer.identity) {
        None | Some(PeerIdentity::Anonymous) => Ok(None),
        Some(PeerIdentity::Known(caller)) => Ok(Some(*caller)),
        Some(PeerIdentity::Unusable(why)) => Err(Error::new(
            ErrorKind::Unauthenticated,
            Reason::IdentityUnusable,
            format!("the client certificate cannot be used: {why}"),
        )),
    }
}

fn denied(request: &Request<Body>, caller: Caller) -> Error {
    let (path, identity) = (request.uri().path(), caller.identity());
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
