//! Puts the gateway together.

use std::sync::Arc;

use ::rpc::MountBuilder;
use envelope::{Sealer, Voice};
use model::Address;
use model::supervision::{COORDINATOR_TOPIC, SUPERVISOR_TOPIC};
use mycelium::{Accept, Bus, BusPeers, Destination, Inbox};
use service::{Condition, Readiness};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::bus_link;
use crate::clients::{self, RegistryClient};
use crate::dialing::Dial;
use crate::error::Error;
use crate::front::Desk;
use crate::letters::Letters;
use crate::listening;
use crate::mail_policy::MailPolicy;
use crate::metrics::Metrics;
use crate::peers::{Peers, Wanted};
use crate::ping::Pinger;
use crate::plain::SentAttempts;
use crate::presence::Heard;
use crate::routers::Routers;
use crate::rpc::Rpc;
use crate::secrets::Secrets;
use crate::signing::{Root, Signing, SigningSource};

/// What the gateway needs of others.
pub struct Deps<'a> {
    /// A way to storage.
    pub storage: ::rpc::Channel,
    /// A way to the registry.
    pub registry: ::rpc::Channel,
    /// What carries `mycelium:` addresses, if anything does.
    pub bus: Option<Arc<dyn Bus>>,
    /// Makes ways to `grpc://` addresses of supervisors.
    pub dial: Dial,
    /// Makes ways to those of other coordinators, to whom our certificate says nothing.
    pub dial_others: Dial,
    /// The key that it signs with, and the certificate of the coordinator's root for it.
    pub sealer: Sealer,
    /// Where its metrics are registered.
    pub metrics: &'a prometheus::Registry,
}

/// The service.
pub struct App {
    desk: Desk,
    rpc: Rpc,
    registry: RegistryClient,
    wanted: mpsc::UnboundedReceiver<Wanted>,
    bus: Option<(BusPeers, Inbox)>,
    letters: Letters,
    letters_inbox: Option<Inbox>,
    signing: Option<Signing>,
    dial: Dial,
    readiness: Readiness,
    needs: Needs,
    /// Ends the streams of routers.
    stop: CancellationToken,
}

/// What the gateway cannot do without.
struct Needs {
    /// Storage as it says itself, and the way to it.
    storage: (Condition, rpc::Channel),
    /// The registry's view of runners.
    runners: Condition,
    /// The stream by which the registry is told who is there.
    presence: Condition,
}

impl App {
    pub(crate) fn new(
        mut deps: Deps<'_>,
        secrets: Secrets,
        signing: Option<SigningSource>,
        mail: MailPolicy,
    ) -> Result<Self, Error> {
        let mut changes = Vec::new();
        if let Some(source) = &signing {
            (deps.sealer, changes) = source.read().map_err(Error::Signing)?;
        }
        let metrics = Metrics::new(deps.metrics).map_err(Error::Metrics)?;
        let readiness = Readiness::new();
        let needs = Needs {
            storage: (readiness.condition("storage"), deps.storage.clone()),
            runners: readiness.condition("runners"),
            presence: readiness.condition("presence"),
        };
        let (peers, wanted) = Peers::new(metrics.clone());
        let root = deps.sealer.root();
        let desk = Desk {
            peers,
            routers: Routers::new(metrics.clone()),
            heard: Heard::default(),
            store: clients::blob_store(deps.storage.clone()),
            voice: Voice::new(deps.sealer.clone(), vec![root.to_string()]),
            root: Root::new(root, changes),
            secrets,
            sent: SentAttempts::default(),
            metrics: metrics.clone(),
        };
        let on_bus = deps.bus.clone();
        // In front of letters: what plain supervisors reply comes to whoever listens first.
        let bus = match deps.bus {
            None => None,
            Some(bus) => {
                let inbox = bus.listen(COORDINATOR_TOPIC).map_err(Error::Bus)?;
                let answering = desk.clone();
                let side_of = Arc::clone(&bus);
                let accept: Accept = Arc::new(move |node| {
                    listening::side(&answering, node, side_of.is_within_one_program(node))
                });
                Some((BusPeers::new(bus, accept), inbox))
            }
        };
        let (letters, letters_inbox) = {
            let (storage, dial) = (clients::message_box(deps.storage), Arc::clone(&deps.dial_others));
            let letters = Letters::new(deps.sealer, storage, on_bus.clone(), dial, mail, metrics.clone());
            letters.map_err(Error::Bus)?
        };
        let signing = signing.map(|source| {
            let voices = [Arc::clone(&desk.voice), letters.voice()];
            Signing::new(source, voices, desk.root.clone(), metrics)
        });
        let dials = [Arc::clone(&deps.dial), deps.dial_others];
        let stop = CancellationToken::new();
        let rpc = Rpc::new(Pinger { desk: desk.clone(), bus: on_bus, dials }, letters.clone(), stop.clone());
        Ok(Self {
            desk,
            rpc,
            registry: clients::registry(deps.registry),
            wanted,
            bus,
            letters,
            letters_inbox,
            signing,
            dial: deps.dial,
            readiness,
            needs,
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

    /// Whether the bus carries anything now; nothing without one. Ends with the bus. Has to be called within a Tokio
    /// runtime.
    #[must_use]
    pub fn bus_up(&self) -> Option<watch::Receiver<bool>> {
        let bus = Arc::clone(self.bus.as_ref()?.0.bus());
        Some(mycelium::is_up(&*bus))
    }

    /// Ready while storage serves, the registry's view is complete and followed, and the registry is told who is there.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        self.readiness.clone()
    }

    /// Works until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) {
        let Self {
            desk,
            rpc: _,
            registry,
            mut wanted,
            bus,
            letters,
            letters_inbox,
            signing,
            dial,
            readiness: _,
            needs,
            stop,
        } = self;
        // Ended with this future, also when it is dropped.
        let mut tasks = JoinSet::new();
        let Needs { storage: (serves, storage), runners, presence } = needs;
        tasks.spawn(serves.while_serves(storage));
        tasks.spawn(clients::follow_registry(registry.clone(), desk.peers.clone(), runners));
        tasks.spawn(clients::tell_registry(registry, desk.heard.clone(), presence));
        let bus_peers = bus.map(|(peers, inbox)| {
            let listening = peers.clone();
            tasks.spawn(async move { listening.run(inbox, SUPERVISOR_TOPIC).await });
            peers
        });
        if let Some(signing) = signing {
            tasks.spawn(signing.keep());
        }
        if let Some(inbox) = letters_inbox {
            tasks.spawn(async move { letters.listen(inbox).await });
        }
        let working = async {
            while let Some(next) = wanted.recv().await {
                open(&mut tasks, &desk, &dial, bus_peers.as_ref(), next);
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
fn open(tasks: &mut JoinSet<()>, desk: &Desk, dial: &Dial, bus: Option<&BusPeers>, wanted: Wanted) {
    let Wanted { text, address, seat } = wanted;
    let impossible = |why: &str| {
        tracing::warn!(address = text, why, "a supervisor cannot be spoken to");
        seat.leave(why);
    };
    let to = match address {
        Address::Grpc { host, port } => {
            match dial(&host, port) {
                Ok(channel) => {
                    tasks.spawn(clients::keep_attached(channel, desk.clone(), text, seat));
                }
                Err(error) => impossible(&service::error_chain(&error)),
            }
            return;
        }
        Address::MyceliumIp(ip) => Destination::Ip(ip),
        Address::MyceliumKey(key) => match key.parse() {
            Ok(key) => Destination::Key(key),
            Err(error) => return impossible(&error.to_string()),
        },
    };
    match bus {
        Some(bus) => {
            tasks.spawn(bus_link::keep(desk.clone(), bus.clone(), to, text, seat));
        }
        None => impossible("this gateway has no bus"),
    }
}
