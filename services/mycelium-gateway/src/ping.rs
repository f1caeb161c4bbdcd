//! Pings addresses.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{FutureExt as _, select_ok};
use model::Address;
use model::supervision::{GATEWAY_TOPIC, InfoRequest, SUPERVISOR_TOPIC, method};
use mycelium::{Bus, BusDestination, BusError, CallError, PayloadForm, PublicKey};
use tokio::time::Instant;

use crate::clients::check_grpc_health;
use crate::delivery::call_error_text;
use crate::dialing::Dial;
use crate::error::PeerError;
use crate::supervisor_api::GatewayState;

/// Time limit of a ping. Twice what a bus needs for a node that it has to look for.
const PATIENCE: Duration = Duration::from_secs(6);

/// Answer to a ping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pong {
    /// Round-trip time.
    pub round_trip: Duration,
    /// Node behind the address, where it is on a bus.
    pub node: Option<PublicKey>,
}

/// Why an address is not known to answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PingError {
    /// There is no bus.
    #[error("this gateway has no bus, which `mycelium:` addresses need")]
    NoBus,
    /// A supervisor did not answer in the conversation with it.
    #[error("{0}")]
    Call(String),
    /// No node answered on the bus.
    #[error("no node answers on the bus: {0}")]
    Bus(BusError),
    /// No gRPC server answered.
    #[error("no gRPC server answers: {0}")]
    Grpc(String),
    /// The supervisor is not connected.
    #[error("{0}")]
    Peer(PeerError),
    /// There was no answer in time.
    #[error("there was no answer within {} s", PATIENCE.as_secs())]
    TimedOut,
}

/// Pings supervisors, nodes and servers.
#[derive(Clone)]
pub(crate) struct Pinger {
    pub(crate) state: GatewayState,
    pub(crate) bus: Option<Arc<dyn Bus>>,
    /// Two dialers: as a service of this deployment, and as anyone.
    pub(crate) dials: [Dial; 2],
}

impl Pinger {
    /// Pings an address. Dropping the future ends that.
    ///
    /// # Errors
    /// [`PingError`]
    pub(crate) async fn ping(&self, address: &Address) -> Result<Pong, PingError> {
        let pinging = tokio::time::timeout(PATIENCE, async {
            match address {
                Address::Grpc { host, port } => self.ping_server(&address.to_string(), host, *port).await,
                Address::MyceliumKey(key) => {
                    let key = key.parse().expect("an address holds 64 hex digits");
                    self.ping_node(&address.to_string(), BusDestination::Key(key)).await
                }
                Address::MyceliumIp(ip) => {
                    self.ping_node(&address.to_string(), BusDestination::Ip(*ip)).await
                }
            }
        });
        pinging.await.unwrap_or(Err(PingError::TimedOut))
    }

    /// Asks a connected supervisor for its information.
    async fn ask(&self, address: &str) -> Option<Result<Duration, PingError>> {
        let peer = self.state.peers.connected_peer(address)?;
        let begin = Instant::now();
        let answer = peer.call(method::SUPERVISOR_INFO, &InfoRequest {}, PATIENCE).await;
        Some(match answer {
            // A refusal is an answer too.
            Ok(_) | Err(CallError::Refused(_)) => Ok(begin.elapsed()),
            Err(error) => Err(PingError::Call(call_error_text(&error))),
        })
    }

    async fn ping_server(&self, address: &str, host: &str, port: u16) -> Result<Pong, PingError> {
        if let Some(Ok(round_trip)) = self.ask(address).await {
            return Ok(Pong { round_trip, node: None });
        }
        let mut problems = Vec::new();
        for dial in &self.dials {
            let channel = match dial(host, port) {
                Ok(channel) => channel,
                Err(error) => {
                    problems.push(service::error_chain(&error));
                    continue;
                }
            };
            let begin = Instant::now();
            match check_grpc_health(channel).await {
                Ok(()) => return Ok(Pong { round_trip: begin.elapsed(), node: None }),
                Err(problem) if problems.contains(&problem) => {}
                Err(problem) => problems.push(problem),
            }
        }
        Err(PingError::Grpc(problems.join("; as anybody: ")))
    }

    async fn ping_node(&self, address: &str, to: BusDestination) -> Result<Pong, PingError> {
        let bus = self.bus.as_ref().ok_or(PingError::NoBus)?;
        let key = match to {
            BusDestination::Key(key) => key,
            BusDestination::Ip(ip) => bus.key_of(ip).await.map_err(PingError::Bus)?,
        };
        let node = Some(key);
        if bus.key() == node {
            return Ok(Pong { round_trip: Duration::ZERO, node });
        }
        if self.state.peers.form(address) == PayloadForm::Plain {
            // A plain node does not answer pings on the bus, so its supervisor is asked instead.
            let wait = PATIENCE / 2;
            let peer = self.state.connected(address, &self.state.peers.topic(address), None, wait).await;
            drop(peer.map_err(PingError::Peer)?);
            let answer = self.ask(address).await.unwrap_or(Err(PingError::TimedOut));
            return answer.map(|round_trip| Pong { round_trip, node });
        }
        let (begin, deadline) = (Instant::now(), Instant::now() + PATIENCE / 2);
        let known = self.state.peers.source(address).topic;
        let mut topics = vec![SUPERVISOR_TOPIC, GATEWAY_TOPIC];
        if !known.is_empty() && !topics.contains(&known.as_str()) {
            topics.push(&known);
        }
        let pings =
            topics.into_iter().map(|topic| bus.ping(BusDestination::Key(key), topic, deadline).boxed());
        select_ok(pings).await.map_err(PingError::Bus)?;
        Ok(Pong { round_trip: begin.elapsed(), node })
    }
}
