//! Puts the supervisor together.

use std::sync::Arc;
use std::time::Duration;

use ::rpc::MountBuilder;
use kv::Kv;
use model::supervision::COORDINATOR_TOPIC;
use mycelium::{Bus, BusPeers};
use proto::v1::supervisor_service_server::SupervisorServiceServer;
use queue::{DemandWatch, LossWatch};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::blobs::Blobs;
use crate::config::Config;
use crate::coordinators::Coordinators;
use crate::drain::Draining;
use crate::dropped::Dropped;
use crate::error::Error;
use crate::intake::{Intake, Supervisor};
use crate::legacy::{self, Bindings};
use crate::logs::Logs;
use crate::metrics::Metrics;
use crate::policy::{self, Policy};
use crate::presence::PresenceView;
use crate::rpc::SupervisorRpc;
use crate::work_dir::WorkDir;
use crate::{outbox, presence, upkeep};

/// What the supervisor needs of others.
pub struct Deps<'a> {
    /// Its own Redis; the database is the endpoint's.
    pub kv: Kv,
    /// The bus that coordinators may reach it through.
    pub bus: Option<Arc<dyn Bus>>,
    /// Where its metrics are registered.
    pub metrics: &'a prometheus::Registry,
}

/// The service.
pub struct App {
    supervisor: Supervisor,
    bus: Option<(Arc<dyn Bus>, mycelium::Inbox)>,
    legacy: Bindings,
    instance_patience: Duration,
    ready: watch::Sender<bool>,
    /// Ends the streams of coordinators.
    stop: CancellationToken,
}

impl App {
    pub(crate) fn new(config: &Config, deps: Deps<'_>) -> Result<Self, Error> {
        let database = deps.kv.endpoint().database();
        let work_dir = WorkDir::new(&config.work_dir);
        let supervisor = Supervisor {
            queue: queue::Supervisor::new(deps.kv, database).with_old_workers(config.legacy.push().to_vec()),
            blobs: Blobs::new(&work_dir, config.blob_bytes_max),
            logs: Logs::new(&work_dir, config.log_retention),
            work_dir,
            policy: Policy::load(config.policy.as_deref()).map_err(Error::Policy)?,
            draining: Draining::default(),
            coordinators: Coordinators::default(),
            presence: PresenceView::default(),
            dropped: Dropped::default(),
            metrics: Metrics::new(deps.metrics).map_err(Error::Metrics)?,
        };
        let bus = match deps.bus {
            None => None,
            Some(bus) => {
                let inbox = bus.listen(&config.topic).map_err(Error::Bus)?;
                Some((bus, inbox))
            }
        };
        Ok(Self {
            supervisor,
            bus,
            legacy: config.legacy.clone(),
            instance_patience: config.instance_patience,
            ready: watch::Sender::new(false),
            stop: CancellationToken::new(),
        })
    }

    /// Adds what gateways and actors may call.
    #[must_use]
    pub fn mount_public(&self, mount: MountBuilder) -> MountBuilder {
        let rpc = SupervisorRpc::new(self.supervisor.clone(), self.stop.clone());
        let server = SupervisorServiceServer::new(rpc)
            .max_decoding_message_size(model::limits::GRPC_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(model::limits::GRPC_MESSAGE_BYTES_MAX);
        mount.service(server)
    }

    /// True once the store was read.
    #[must_use]
    pub fn ready(&self) -> watch::Receiver<bool> {
        self.ready.subscribe()
    }

    /// Works until `shutdown`. Jobs in queues, and events that were not
    /// answered, stay in the store for the next start.
    pub async fn run(self, shutdown: CancellationToken) {
        let Self { supervisor, bus, legacy, instance_patience, ready, stop } = self;
        let serving_bus = serve_bus(supervisor.clone(), bus);
        let becoming_ready = async {
            supervisor.presence.known().await;
            ready.send_replace(true);
        };
        let work = async {
            tokio::join!(
                presence::keep(
                    supervisor.clone(),
                    LossWatch::new(instance_patience),
                    DemandWatch::new(instance_patience)
                ),
                outbox::keep(supervisor.clone(), stop.clone()),
                legacy::keep(supervisor.clone(), legacy),
                policy::keep(supervisor.policy.clone(), supervisor.metrics.clone()),
                upkeep::keep(supervisor.clone()),
                serving_bus,
                tell_of_what_runs(&supervisor),
                becoming_ready,
            );
        };
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = work => {}
        }
        stop.cancel();
    }
}

/// Tells coordinators that turn up what runs for them: while they could not hear of it they may have
/// taken it for lost, or closed it, and then they have it stopped.
async fn tell_of_what_runs(supervisor: &Supervisor) {
    let mut arrivals = supervisor.coordinators.arrivals();
    // The sender lives as long as the supervisor.
    while arrivals.changed().await.is_ok() {
        match supervisor.queue.tell_running_again().await {
            Ok(count) => tracing::debug!(count, "what runs is told again"),
            Err(error) => tracing::warn!(%error, "what runs cannot be told again"),
        }
    }
}

/// Answers whoever speaks through the bus, once the supervisor knows its name.
async fn serve_bus(supervisor: Supervisor, bus: Option<(Arc<dyn Bus>, mycelium::Inbox)>) {
    let Some((bus, inbox)) = bus else { return };
    supervisor.presence.known().await;
    let accepting = supervisor.clone();
    let accept =
        move |key| -> Arc<dyn mycelium::json_rpc::Handler> { Intake::on_bus(accepting.clone(), key) };
    let peers = BusPeers::new(bus, Arc::new(accept));
    supervisor.coordinators.set_bus(peers.clone());
    peers.run(inbox, COORDINATOR_TOPIC).await;
}
