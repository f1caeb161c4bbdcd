//! The gRPC side.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use ::rpc::{Allow, Error, ErrorKind, MethodPolicy, MountBuilder, PolicyTable, RpcReason};
use envelope::Refusal;
use futures_util::stream::FuturesUnordered;
use futures_util::{Stream, StreamExt as _, stream};
use identity::ServiceName;
use model::limits::{GATEWAY_PEERS_MAX, GRPC_MESSAGE_BYTES_MAX, MESSAGE_TEXT_BYTES_MAX};
use model::{Address, Violations};
use mycelium::Bus;
use proto::convert::{envelope as envelope_convert, time};
use proto::internal::v1 as wire;
use proto::internal::v1::exchange_request::Frame;
use proto::internal::v1::gateway_link_service_server::{GatewayLinkService, GatewayLinkServiceServer};
use proto::pages;
use proto::v1;
use proto::v1::gateway_service_server::{GatewayService, GatewayServiceServer};
use service::Sequencer;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status, Streaming};

use crate::delivery::DeliveryRefusals;
use crate::mail::{InboundMailError, MailExchanger};
use crate::peers::SupervisorConnectionState;
use crate::ping::{PingError, Pinger, Pong};
use crate::routers::{RouterConnection, RouterItem, frames};
use crate::stops::{self, StopQueue};
use crate::supervisor_api::GatewayState;
use crate::{commands, delivery, log_reads};

/// Policy for calls from outside. Actors are excluded, because the answers show the addresses of all tenants. Other coordinators
/// deliver mail without a certificate of ours: their envelopes are signed.
pub const PUBLIC_POLICY: PolicyTable<'static> = &[
    ("/mycora.v1.GatewayService/*", &[Allow::Admin, Allow::Service(ServiceName::Mycora)]),
    ("/mycora.v1.GatewayService/Deliver", &[Allow::Anyone]),
];

/// Policy for calls that only services may make.
pub const INTERNAL_POLICY: PolicyTable<'static> = &[(
    "/mycora.internal.v1.GatewayLinkService/*",
    &[Allow::Service(ServiceName::Router), Allow::Service(ServiceName::Mycora)],
)];

/// Maximum size of a call by anyone: the longest mail text, with each character escaped as two, and its envelope.
/// A gRPC message whose header announces more is not read.
pub const MAIL_REQUEST_BYTES_MAX: usize = 2 * MESSAGE_TEXT_BYTES_MAX + 64 * 1024;
/// Delay after which a caller that was refused as too busy should retry.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Items that go out together.
const ITEMS_TOGETHER_MAX: usize = 512;

/// Policy of all methods of this service.
///
/// # Panics
/// Never: the tables are well-formed, which a test checks.
#[must_use]
pub fn policy() -> MethodPolicy {
    MethodPolicy::new(&[PUBLIC_POLICY, INTERNAL_POLICY]).expect("the tables are well-formed")
}

/// Answers both services.
#[derive(Clone)]
pub(crate) struct GatewayRpc {
    state: GatewayState,
    bus: Option<Arc<dyn Bus>>,
    pinger: Pinger,
    mail: MailExchanger,
    /// Ends the streams of routers.
    stop: CancellationToken,
}

impl GatewayRpc {
    pub(crate) fn new(pinger: Pinger, mail: MailExchanger, stop: CancellationToken) -> Self {
        Self { state: pinger.state.clone(), bus: pinger.bus.clone(), pinger, mail, stop }
    }

    pub(crate) fn mount_public(&self, mount: MountBuilder) -> MountBuilder {
        let server =
            GatewayServiceServer::new(self.clone()).max_decoding_message_size(MAIL_REQUEST_BYTES_MAX);
        mount.service(server)
    }

    /// Returns this gateway's address on its bus; empty without a bus, and until the bus was up once.
    fn own_address(&self) -> String {
        let key = self.bus.as_ref().and_then(|bus| bus.key());
        key.map(|key| format!("mycelium:{key}")).unwrap_or_default()
    }

    pub(crate) fn mount_internal(&self, mount: MountBuilder) -> MountBuilder {
        let server = GatewayLinkServiceServer::new(self.clone())
            .max_decoding_message_size(GRPC_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(GRPC_MESSAGE_BYTES_MAX);
        mount.service(server)
    }
}

/// Returns as many supervisors as a description names, ordered by address, and how many there are.
fn first_peers(mut all: Vec<(String, SupervisorConnectionState)>) -> (Vec<v1::Peer>, u32) {
    let count = u32::try_from(all.len()).unwrap_or(u32::MAX);
    all.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    let named = all.into_iter().take(GATEWAY_PEERS_MAX).map(|(address, state)| v1::Peer {
        address,
        connected: state.peer.is_some(),
        supervisor: state.supervisor,
        last_error: state.last_error,
    });
    let Ok(named) = pages::first(named.map(Ok::<_, Infallible>));
    (named, count)
}

#[tonic::async_trait]
impl GatewayService for GatewayRpc {
    async fn get_gateway(
        &self,
        _: Request<v1::GetGatewayRequest>,
    ) -> Result<Response<v1::GetGatewayResponse>, Status> {
        let (peers, peer_count) = first_peers(self.state.peers.all());
        let bus_status = self.bus.as_ref().map(|bus| bus.status().borrow().clone()).unwrap_or_default();
        Ok(Response::new(v1::GetGatewayResponse {
            bus_up: bus_status.up,
            bus_problem: bus_status.problem,
            coordinator: self.state.signer.root().to_string(),
            bus_version: bus_status.node.map(|node| node.version).unwrap_or_default(),
            signing_key: self.state.signer.key().to_string(),
            bus: self.bus.as_ref().map(|bus| bus.kind().to_owned()).unwrap_or_default(),
            address: self.own_address(),
            peers,
            peer_count,
        }))
    }

    async fn ping_peer(
        &self,
        request: Request<v1::PingPeerRequest>,
    ) -> Result<Response<v1::PingPeerResponse>, Status> {
        let mut violations = Violations::new();
        let address = violations.take("address", request.into_inner().address.parse());
        let address: Address = violations.into_result(address).map_err(Error::invalid)?;
        let Pong { round_trip, node } = self.pinger.ping(&address).await.map_err(|error| {
            let message = format!("{address}: {error}");
            match error {
                PingError::NoBus => Error::new(ErrorKind::FailedPrecondition, RpcReason::NoBus, message),
                _ => Error::unavailable(RpcReason::PeerUnavailable, message),
            }
        })?;
        Ok(Response::new(v1::PingPeerResponse {
            round_trip: Some(time::duration_to_wire(round_trip)),
            node: node.map(|node| node.to_string()).unwrap_or_default(),
        }))
    }

    async fn deliver(
        &self,
        request: Request<v1::DeliverRequest>,
    ) -> Result<Response<v1::DeliverResponse>, Status> {
        let coordinator = self.state.signer.root().to_string();
        let envelope = match request.into_inner().envelope {
            None => None,
            Some(envelope) => {
                let answer = self.mail.receive_envelope(envelope_convert::from_wire(envelope)).await;
                Some(envelope_convert::to_wire(answer.map_err(inbound_mail_status)?))
            }
        };
        Ok(Response::new(v1::DeliverResponse { envelope, coordinator }))
    }
}

/// Turns a mail error into the status for its sender.
fn inbound_mail_status(error: InboundMailError) -> Error {
    let message = error.to_string();
    let overloaded = || {
        let error = Error::new(ErrorKind::ResourceExhausted, RpcReason::Overloaded, message.clone());
        error.retry_after(RETRY_AFTER)
    };
    match error {
        InboundMailError::Busy => overloaded(),
        InboundMailError::TooFast { limit, max, wait } => {
            Error::new(ErrorKind::ResourceExhausted, RpcReason::LimitExceeded, message)
                .with("limit", limit)
                .with("max", max)
                .retry_after(wait)
        }
        InboundMailError::Refused(refusal) => {
            let error = match refusal {
                Refusal::TooMuch => overloaded(),
                _ => Error::new(ErrorKind::PermissionDenied, RpcReason::EnvelopeRefused, message),
            };
            error.with("refusal", refusal.code())
        }
        InboundMailError::NoRequest => {
            let mut violations = Violations::new();
            violations.add("envelope", message);
            Error::invalid(violations)
        }
    }
}

#[tonic::async_trait]
impl GatewayLinkService for GatewayRpc {
    type ExchangeStream = BoxStream<wire::ExchangeResponse>;

    async fn exchange(
        &self,
        request: Request<Streaming<wire::ExchangeRequest>>,
    ) -> Result<Response<Self::ExchangeStream>, Status> {
        let mut incoming = request.into_inner();
        let (state, mail, stop) = (self.state.clone(), self.mail.clone(), self.stop.clone());
        let (session, items) = state.routers.join();
        let serving = async move {
            tokio::select! {
                ended = receive(&state, &mail, &session, &mut incoming) => {
                    if let Err(status) = ended {
                        tracing::info!(%status, "a router's stream ended");
                    }
                    Ok(())
                }
                () = stop.cancelled() => {
                    Err(Error::unavailable(RpcReason::Draining, "the gateway is ending; connect elsewhere").into())
                }
            }
        };
        Ok(Response::new(Box::pin(rpc::bidirectional(answers(items), serving))))
    }
}

/// Handles a router's requests. They end with its stream, and the router repeats them. Deliveries run here, since there are many; all
/// other requests run in tasks.
async fn receive(
    state: &GatewayState,
    mail: &MailExchanger,
    session: &RouterConnection,
    incoming: &mut Streaming<wire::ExchangeRequest>,
) -> Result<(), Status> {
    let mut deliveries = FuturesUnordered::new();
    let mut tasks = JoinSet::new();
    let stops = StopQueue::default();
    let sending = Sequencer::default();
    loop {
        let message = tokio::select! {
            message = incoming.message() => message?,
            Some(outcome) = deliveries.next(), if !deliveries.is_empty() => {
                session.answers().ended(RouterItem::Outcome(outcome));
                continue;
            }
            Some(_) = tasks.join_next(), if !tasks.is_empty() => continue,
        };
        let Some(wire::ExchangeRequest { frame }) = message else { return Ok(()) };
        let (state, answers) = (state.clone(), session.answers());
        match frame {
            Some(Frame::Deliver(deliver)) => {
                // A small message must not overtake a large one of its flow.
                let turn = sending.ticket(delivery::order_of(&deliver));
                deliveries.push(delivery::deliver(state, answers, deliver, turn));
            }
            Some(Frame::Stop(stop)) => {
                if let Some(place) = stops.add(stop) {
                    tasks.spawn(stops::run(state, answers, stops.clone(), place));
                }
            }
            Some(Frame::Query(query)) => {
                tasks.spawn(async move { commands::query(&state, &answers, query).await });
            }
            Some(Frame::Drop(drop)) => {
                tasks.spawn(async move {
                    let outcome = commands::drop_context(&state, drop).await;
                    answers.ended(RouterItem::Dropped(outcome));
                });
            }
            Some(Frame::Forget(forget)) => {
                tasks.spawn(async move { commands::forget_attempts(&state, forget).await });
            }
            Some(Frame::ReadLog(read)) => {
                tasks.spawn(async move {
                    let outcome = log_reads::read(&state, read).await;
                    answers.ended(RouterItem::LogRead(outcome));
                });
            }
            Some(Frame::Letter(mail_request)) => {
                let mail = mail.clone();
                tasks.spawn(async move {
                    answers.ended(RouterItem::Outcome(send_mail(&mail, mail_request).await));
                });
            }
            Some(Frame::Handled(handled)) => session.acknowledge(&handled.report_ids),
            None => {}
        }
    }
}

async fn send_mail(mail: &MailExchanger, message: wire::DeliverLetter) -> wire::DeliveryOutcome {
    let wire::DeliverLetter { delivery_id, addresses, letter_json, timeout_millis } = message;
    let timeout = Duration::from_millis(timeout_millis);
    let ended = mail.deliver(&letter_json, &addresses, timeout).await;
    delivery::outcome(delivery_id, ended.map(|()| DeliveryRefusals::default()))
}

/// Packs all items that are ready into as few messages as possible.
fn answers(items: mpsc::UnboundedReceiver<RouterItem>) -> impl Stream<Item = wire::ExchangeResponse> {
    let together = stream::unfold(items, |mut items| async move {
        let mut ready = Vec::with_capacity(ITEMS_TOGETHER_MAX);
        let count = items.recv_many(&mut ready, ITEMS_TOGETHER_MAX).await;
        (count > 0).then(|| (stream::iter(frames(ready)), items))
    });
    together.flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_make_a_policy() {
        drop(policy());
    }

    #[test]
    fn a_description_names_as_many_supervisors_as_it_may() {
        let peers = |count: usize, error: usize| -> Vec<(String, SupervisorConnectionState)> {
            let state = SupervisorConnectionState {
                last_error: "e".repeat(error),
                ..SupervisorConnectionState::default()
            };
            (0..count).rev().map(|number| (format!("grpc://h{number:04}:1"), state.clone())).collect()
        };
        let (named, count) = first_peers(peers(1003, 10));
        assert_eq!((named.len(), count), (GATEWAY_PEERS_MAX, 1003));
        assert!(named.is_sorted_by_key(|peer| peer.address.clone()) && named[0].address == "grpc://h0000:1");
        let (named, count) = first_peers(peers(10, 300_000));
        assert_eq!((named.len(), count), (3, 10), "they end at the bytes of a page, too");
    }
}
