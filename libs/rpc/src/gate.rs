//! Layers that every call passes on its way to a handler and back, in this order: the mesh's statement; its id, its trace and
//! its headers; the lookup of the method, from which its duration counts; room; its deadline; who the caller is and whether it
//! may; the handler; and on the way back the form of the answer.

pub(crate) mod actor_limits;
pub(crate) mod admission;
pub(crate) mod answer;
pub(crate) mod authenticate;
pub(crate) mod budget;
pub(crate) mod call_timer;
pub(crate) mod deadline;
pub(crate) mod fair_share;
pub(crate) mod load_shedder;
pub(crate) mod metered_answer;
pub(crate) mod metered_request;
pub(crate) mod methods;
pub(crate) mod policy;
pub(crate) mod request_headers;
pub(crate) mod revocable;
pub(crate) mod unsent_answers;

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use http::{Request, Response};
use http_body::Body as _;
use identity::Identity;
use tonic::body::Body;
use tonic::service::Routes;
use tower::Service;
use tracing::Instrument as _;
use tracing::field::Empty;

use crate::caller::mesh;
use crate::caller::{Caller, ConnectionPeer, PeerIdentity};
use crate::error::Error;
use crate::gate::actor_limits::CallRate;
use crate::gate::admission::Admission;
use crate::gate::answer::{RpcActiveCall, unknown_method};
use crate::gate::authenticate::VerifiedCaller;
use crate::gate::budget::{BudgetAccount, BytesPermit, MessageBudget};
use crate::gate::call_timer::CallTimer;
use crate::gate::deadline::{Deadline, RpcCallContext};
use crate::gate::fair_share::{FairShareScheduler, FairShareSlot};
use crate::gate::load_shedder::{CallerClass, LoadShedder, RpcCallPermit};
use crate::gate::metered_answer::MeteredAnswerBody;
use crate::gate::methods::{Methods, RpcMethodKind};
use crate::gate::request_headers::{RequestIdHeader, bound_headers};
use crate::gate::revocable::end_on_revocation;
use crate::metrics::Metrics;
use crate::server::connection_state::StrangerConnectionState;
use crate::traces::continue_trace;

/// Health and reflection: an operator needs them when nothing else is answered any more.
const ALWAYS_ANSWERED: &str = "/grpc.";

/// The routes of a service behind all that. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    routes: Routes,
    layers: Arc<GateLayers>,
}

/// Layers that calls pass.
#[derive(Debug)]
pub(crate) struct GateLayers {
    pub(crate) admission: Admission,
    pub(crate) methods: Methods,
    pub(crate) load_shedder: LoadShedder,
    pub(crate) fair_share: FairShareScheduler,
    pub(crate) budget: MessageBudget,
    pub(crate) metrics: Metrics,
}

impl Gate {
    pub(crate) fn new(routes: Routes, rooms: GateLayers) -> Self {
        Self { routes: routes.prepare(), layers: Arc::new(rooms) }
    }

    /// Bounds how often one actor may call.
    pub(crate) fn bound_actors(&self, rate: CallRate) {
        self.layers.admission.shares().set_rate(rate);
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.layers.metrics
    }
}

impl GateLayers {
    /// Checks what can be checked before the caller is identified.
    fn receive(
        &self,
        request: &Request<Body>,
        shape: Option<RpcMethodKind>,
    ) -> Result<Option<RpcCallPermit>, Error> {
        bound_headers(request)?;
        let path = request.uri().path();
        let shape = shape.ok_or_else(|| unknown_method(path))?;
        if path.starts_with(ALWAYS_ANSWERED) {
            // A sidecar carries the probes of many peers, and callers of this process have no connection.
            let of_one = request.extensions().get::<ConnectionPeer>().filter(|peer| peer.mesh.is_none());
            return of_one.map(|peer| self.load_shedder.take_probe(&peer.probes)).transpose();
        }
        self.load_shedder.take(shape, self.caller_class(request)).map(Some)
    }

    /// Returns the class of the caller by its certificate alone, or of this process itself.
    fn caller_class(&self, request: &Request<Body>) -> CallerClass {
        let local = request.extensions().get::<Caller>();
        let caller = local.or_else(|| match &request.extensions().get::<ConnectionPeer>()?.identity {
            PeerIdentity::Known(caller) => Some(caller),
            PeerIdentity::Anonymous | PeerIdentity::Unusable(_) => None,
        });
        match caller.map(Caller::identity) {
            Some(Identity::Service(_)) => CallerClass::Service,
            None if self.admission.is_open(request.uri().path()) => CallerClass::Stranger,
            Some(Identity::Actor(_) | Identity::Admin) | None => CallerClass::Other,
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
        mesh::resolve_caller(&mut request);
        let path = request.uri().path().to_owned();
        let method = self.layers.methods.find(&path);
        let (shape, timer) = (method.kind(), CallTimer::start(self.layers.methods.durations(method)));
        let deadline = Deadline::from_headers(request.headers(), shape.and_then(RpcMethodKind::timeout));
        let request_id = RequestIdHeader::of(request.headers());
        let span =
            tracing::info_span!("call", method = path, request_id = request_id.as_str(), trace_id = Empty);
        let trace = continue_trace(&span, request.headers());
        let ambient = RpcCallContext { deadline, request_id, trace };
        let received = self.layers.receive(&request, shape);
        let metrics = self.layers.metrics.clone();
        let open_call = connection_of(&request).map(StrangerConnectionState::begin_call);
        let mut answering = RpcActiveCall { path, ambient, span, metrics, permit: None, open_call };
        match received {
            Ok(place) => answering.permit = place,
            Err(error) => {
                let answer = answering.refuse(error);
                timer.answered(answer.headers());
                return Box::pin(std::future::ready(Ok(answer)));
            }
        }
        if let Some(deadline) = deadline {
            request.extensions_mut().insert(deadline);
        }
        let is_stream = shape == Some(RpcMethodKind::Stream);
        let handling =
            handle(self.layers.clone(), self.routes.clone(), request, shape.unwrap_or(RpcMethodKind::Quick));
        let handling = answering.ambient.scope(handling).instrument(answering.span.clone());
        Box::pin(async move {
            let handled = match deadline {
                Some(deadline) => tokio::time::timeout_at(deadline.0, handling).await,
                None => Ok(handling.await),
            };
            let answer = match handled {
                Ok(Ok(answer)) => answering.wrap(answer, is_stream),
                Ok(Err(error)) => answering.refuse(error),
                Err(_) => answering.too_late(),
            };
            timer.answered(answer.headers());
            Ok(answer)
        })
    }
}

/// The connection that a stranger's call came over.
fn connection_of(request: &Request<Body>) -> Option<&Arc<StrangerConnectionState>> {
    request.extensions().get::<ConnectionPeer>()?.connection.as_ref()
}

/// From who it is to the handler's answer.
async fn handle(
    rooms: Arc<GateLayers>,
    routes: Routes,
    mut request: Request<Body>,
    shape: RpcMethodKind,
) -> Result<Response<Body>, Error> {
    let believed = rooms.admission.admit(&mut request, shape).await?;
    let account = rooms.budget.account(&request);
    let path = request.uri().path().to_owned();
    let (answer, expected) = match &believed {
        None => {
            let expected = expect_answer(account.as_ref(), &path, shape).await?;
            (call(routes, request, account.as_ref(), shape).await, expected)
        }
        Some(believed) => {
            let turn = async {
                let expected = expect_answer(account.as_ref(), &path, shape).await?;
                begin(&rooms, &mut request, believed, shape).await.map(|turn| (turn, expected))
            };
            // The wait for a turn or for room may be long: it ends when the caller is revoked.
            let (_turn, expected) = tokio::select! {
                biased;
                begun = turn => begun?,
                revoked = believed.clone().until_revoked() => return Ok(revoked.into_http()),
            };
            let handling = call(routes, request, account.as_ref(), shape);
            let answer = if matches!(shape, RpcMethodKind::Stream | RpcMethodKind::Waiting(_)) {
                // A call may send, or wait, for a long time before its answer: it too ends when the caller is revoked.
                tokio::select! {
                    biased;
                    answer = handling => answer,
                    revoked = believed.clone().until_revoked() => return Ok(revoked.into_http()),
                }
            } else {
                handling.await
            };
            (answer, expected)
        }
    };
    let answer = count_answer(answer, account, path, expected, shape).await?;
    Ok(match believed {
        Some(believed) => end_on_revocation(answer, believed),
        None => answer,
    })
}

/// Room for the answer of a call that is carried out at once. Who waits for something cannot hold any for so long.
async fn expect_answer(
    account: Option<&BudgetAccount>,
    path: &str,
    shape: RpcMethodKind,
) -> Result<Option<BytesPermit>, Error> {
    match account {
        Some(account) if shape == RpcMethodKind::Quick => account.expect_answer(path).await,
        Some(_) | None => Ok(None),
    }
}

/// The turn of an actor's call. It lasts until there is an answer: how long its caller takes to read it is no work of this
/// server.
async fn begin(
    rooms: &GateLayers,
    request: &mut Request<Body>,
    believed: &VerifiedCaller,
    shape: RpcMethodKind,
) -> Result<Option<FairShareSlot>, Error> {
    let Some(actor) = believed.caller.actor() else { return Ok(None) };
    if let Some(connection) = connection_of(request) {
        connection.identify(actor)?;
    }
    let turn = rooms.fair_share.take(actor, shape).await?;
    request.extensions_mut().insert(turn.left());
    Ok(Some(turn))
}

/// Calls the handler. Its large messages hold their room until there is an answer.
async fn call(
    mut routes: Routes,
    request: Request<Body>,
    account: Option<&BudgetAccount>,
    shape: RpcMethodKind,
) -> Response<Body> {
    let (request, _handled) = MessageBudget::measure(request, account, shape);
    let Ok(answer) = routes.call(request).await;
    answer
}

/// Counts the large messages of an answer until its caller has taken them.
async fn count_answer(
    answer: Response<Body>,
    account: Option<BudgetAccount>,
    path: String,
    expected: Option<BytesPermit>,
    shape: RpcMethodKind,
) -> Result<Response<Body>, Error> {
    let Some(account) = account.filter(|_| !answer.body().is_end_stream()) else { return Ok(answer) };
    let (head, body) = answer.into_parts();
    let unread = match shape {
        RpcMethodKind::Stream => MeteredAnswerBody::stream(body, account, path),
        RpcMethodKind::Quick | RpcMethodKind::Waiting(_) => {
            MeteredAnswerBody::message(body, account, path, expected).await?
        }
    };
    Ok(Response::from_parts(head, Body::new(unread)))
}
