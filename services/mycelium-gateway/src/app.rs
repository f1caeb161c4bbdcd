//! Puts the gateway together.

use std::sync::Arc;

use ::rpc::MountBuilder;
use envelope::{EnvelopeSigner, Sealer};
use model::Address;
use model::supervision::{COORDINATOR_TOPIC, SUPERVISOR_TOPIC};
use mycelium::{Bus, BusDestination, BusInbox, BusPeers, PeerAcceptor};
use service::{Readiness, ReadinessCondition};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::bus_link;
use crate::clients::{self, RegistryClient};
use crate::dialing::Dial;
use crate::error::Error;
use crate::mail::MailExchanger;
use crate::mail_policy::MailPolicy;
use crate::metrics::Metrics;
use crate::node_guard;
use crate::peers::{SupervisorDialRequest, SupervisorPeers};
use crate::ping::Pinger;
use crate::plain::SentAttempts;
use crate::presence::SupervisorPresences;
use crate::routers::ConnectedRouters;
use crate::rpc::GatewayRpc;
use crate::secrets::SupervisorSecrets;
use crate::signing::{CoordinatorIdentityWatch, SigningReloader, SigningSource};
use crate::supervisor_api::GatewayState;

/// Dependencies of the gateway.
pub struct Deps<'a> {
    /// Channel to storage.
    pub storage: ::rpc::Channel,
    /// Channel to the registry.
    pub registry: ::rpc::Channel,
    /// Bus that carries `mycelium:` addresses, if there is one.
    pub bus: Option<Arc<dyn Bus>>,
    /// Opens channels to `grpc://` addresses of supervisors.
    pub dial: Dial,
    /// Opens channels to other coordinators, for whom our certificate has no meaning.
    pub dial_others: Dial,
    /// Signing key of the gateway, and the certificate of the coordinator's root for that key.
    pub sealer: Sealer,
    /// Registry for the gateway's metrics.
    pub metrics: &'a prometheus::Registry,
}

/// The service.
pub struct App {
    state: GatewayState,
    rpc: GatewayRpc,
    registry: RegistryClient,
    dial_requests: mpsc::UnboundedReceiver<SupervisorDialRequest>,
    bus: Option<(BusPeers, BusInbox)>,
    mail: MailExchanger,
    mail_inbox: Option<BusInbox>,
    signing: Option<SigningReloader>,
    dial: Dial,
    readiness: Readiness,
    conditions: GatewayConditions,
    /// Ends the streams of routers.
    stop: CancellationToken,
}

/// Readiness conditions of the gateway.
struct GatewayConditions {
    /// Readiness as storage reports it, and the channel to storage.
    storage: (ReadinessCondition, rpc::Channel),
    /// The registry's view of runners.
    runners: ReadinessCondition,
    /// The stream of presences to the registry.
    presence: ReadinessCondition,
}

impl App {
    pub(crate) fn new(
        mut deps: Deps<'_>,
        secrets: SupervisorSecrets,
        signing: Option<SigningSource>,
        mail: MailPolicy,
    ) -> Result<Self, Error> {
        let mut changes = Vec::new();
        if let Some(source) = &signing {
            (deps.sealer, changes) = source.read().map_err(Error::Signing)?;
        }
        let metrics = Metrics::new(deps.metrics).map_err(Error::Metrics)?;
        let readiness = Readiness::new();
        let needs = GatewayConditions {
            storage: (readiness.condition("storage"), deps.storage.clone()),
            runners: readiness.condition("runners"),
            presence: readiness.condition("presence"),
        };
        let (peers, wanted) = SupervisorPeers::new(metrics.clone());
        let root = deps.sealer.root();
        let state = GatewayState {
            peers,
            routers: ConnectedRouters::new(metrics.clone()),
            presences: SupervisorPresences::default(),
            store: clients::blob_store(deps.storage.clone()),
            signer: EnvelopeSigner::new(deps.sealer.clone(), vec![root.to_string()]),
            identity: CoordinatorIdentityWatch::new(root, changes),
            secrets,
            sent: SentAttempts::default(),
            metrics: metrics.clone(),
        };
        let on_bus = deps.bus.clone();
        // Listens before mail does: the replies of plain supervisors go to the first listener.
        let bus = match deps.bus {
            None => None,
            Some(bus) => {
                let inbox = bus.listen(COORDINATOR_TOPIC).map_err(Error::Bus)?;
                let answering = state.clone();
                let side_of = Arc::clone(&bus);
                let accept: PeerAcceptor = Arc::new(move |node| {
                    node_guard::peer_endpoint(&answering, node, side_of.is_in_process(node))
                });
                Some((BusPeers::new(bus, accept), inbox))
            }
        };
        let (mail_exchanger, mail_inbox) = {
            let (storage, dial) = (clients::message_box(deps.storage), Arc::clone(&deps.dial_others));
            let mail_exchanger =
                MailExchanger::new(deps.sealer, storage, on_bus.clone(), dial, mail, metrics.clone());
            mail_exchanger.map_err(Error::Bus)?
        };
        let signing = signing.map(|source| {
            let signers = [Arc::clone(&state.signer), mail_exchanger.signer()];
            SigningReloader::new(source, signers, state.identity.clone(), metrics)
        });
        let dials = [Arc::clone(&deps.dial), deps.dial_others];
        let stop = CancellationToken::new();
        let rpc = GatewayRpc::new(
            Pinger { state: state.clone(), bus: on_bus, dials },
            mail_exchanger.clone(),
            stop.clone(),
        );
        Ok(Self {
            state,
            rpc,
            registry: clients::registry(deps.registry),
            dial_requests: wanted,
            bus,
            mail: mail_exchanger,
            mail_inbox,
            signing,
            dial: deps.dial,
            readiness,
            conditions: needs,
            stop,
        })
    }

    /// Adds what actors may call.
    #[must_use]
    pub fn mount_public(&self, mount: MountBuilder) -> MountBuilder {
        self.rpc.mount_public(mount)
    }

    /// Adds what only services may call.
    #[must_use]
    pub fn mount_internal(&self, mount: MountBuilder) -> MountBuilder {
        self.rpc.mount_internal(mount)
    }

    /// Follows whether the bus is up; nothing without a bus. Ends with the bus. Must be called within a Tokio
    /// runtime.
    #[must_use]
    pub fn bus_up(&self) -> Option<watch::Receiver<bool>> {
        let bus = Arc::clone(self.bus.as_ref()?.0.bus());
        Some(mycelium::watch_up(&*bus))
    }

    /// Ready while storage serves, the registry's view is complete and followed, and the stream of presences to the registry is open.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        self.readiness.clone()
    }

    /// Works until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) {
        let Self {
            state,
            rpc: _,
            registry,
            dial_requests: mut wanted,
            bus,
            mail: mail_exchanger,
            mail_inbox,
            signing,
            dial,
            readiness: _,
            conditions: needs,
            stop,
        } = self;
        // The tasks end with this future, also when it is dropped.
        let mut tasks = JoinSet::new();
        let GatewayConditions { storage: (serves, storage), runners, presence } = needs;
        tasks.spawn(serves.while_serves(storage));
        tasks.spawn(clients::follow_registry(registry.clone(), state.peers.clone(), runners));
        tasks.spawn(clients::report_presence(registry, state.presences.clone(), presence));
        let bus_peers = bus.map(|(peers, inbox)| {
            let listening = peers.clone();
            tasks.spawn(async move { listening.run(inbox, SUPERVISOR_TOPIC).await });
            peers
        });
        if let Some(signing) = signing {
            tasks.spawn(signing.keep());
        }
        if let Some(inbox) = mail_inbox {
            tasks.spawn(async move { mail_exchanger.listen(inbox).await });
        }
        let working = async {
            while let Some(next) = wanted.recv().await {
                open(&mut tasks, &state, &dial, bus_peers.as_ref(), next);
            }
        };
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = working => {}
        }
        stop.cancel();
        tasks.shutdown().await;
    }
}

/// Opens a conversation and keeps it.
fn open(
    tasks: &mut JoinSet<()>,
    state: &GatewayState,
    dial: &Dial,
    bus: Option<&BusPeers>,
    wanted: SupervisorDialRequest,
) {
    let SupervisorDialRequest { text, address, slot } = wanted;
    let impossible = |why: &str| {
        tracing::warn!(address = text, why, "cannot open a conversation with a supervisor");
        slot.set_disconnected(why);
    };
    let to = match address {
        Address::Grpc { host, port } => {
            match dial(&host, port) {
                Ok(channel) => {
                    tasks.spawn(clients::keep_attached(channel, state.clone(), text, slot));
                }
                Err(error) => impossible(&service::error_chain(&error)),
            }
            return;
        }
        Address::MyceliumIp(ip) => BusDestination::Ip(ip),
        Address::MyceliumKey(key) => match key.parse() {
            Ok(key) => BusDestination::Key(key),
            Err(error) => return impossible(&error.to_string()),
        },
    };
    match bus {
        Some(bus) => {
            tasks.spawn(bus_link::keep(state.clone(), bus.clone(), to, text, slot));
        }
        None => impossible("this gateway has no bus"),
    }
}
