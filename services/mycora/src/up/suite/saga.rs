//! The saga service of an all-in-one.

use std::sync::Arc;
use std::time::Duration;

use broker::{JetStream, MessageBroker, StreamSpec};
use identity::{ServiceName, TrustDomain};
use prometheus::Registry;
use rpc::{Channel, MountBuilder, TlsFiles};
use saga::FlowSuite;
use saga::command_service::{CommandService, NoGateway};
use saga::lane::gateway::Gateway;
use saga::placement::{LANES_MAX, SagaReplicaIdentity as Replica, SagaReplicaRole};
use service::Shutdown;
use store::{EmbeddedStore, WallClock};

use super::{ACTOR_KEY, LocalServers, READY_TIMEOUT, Suite, SuiteParts, build_error, channel};
use crate::up::saga::{FILES, NatsBackend, SECRETS, SagaOptions};
use crate::up::{UpError, dialed};

/// Room for its rows.
const ROWS_BYTES_MAX: usize = 16 * 1024 * 1024 * 1024;
/// The name of the one replica: its store is no one else's.
const REPLICA: &str = "local";
/// How long calls under way may take to end: what is left of the drain is enough to commit what came of them.
const CALLS_GRACE: Duration = Duration::from_secs(7);
/// How long the stream of aggregates keeps events, where it is ours to make.
const EVENTS_KEPT: Duration = Duration::from_secs(14 * 24 * 3600);
/// The secret that is the key of actor 1, so that providers of flows have one without further ado.
const ACTOR_SECRET: &str = "secrets/actor-1";

impl Suite {
    /// The saga service, where it is wanted.
    pub(super) async fn saga(
        &mut self,
        places: &LocalServers,
        parts: &SuiteParts<'_>,
        metrics: &Registry,
        mount: MountBuilder,
    ) -> Result<MountBuilder, UpError> {
        let (Some(options), Some(nats)) = (&parts.options.saga, parts.nats) else { return Ok(mount) };
        let tenants = options.tenants()?;
        let broker = broker(nats, tenants.has_tenants).await?;
        let rows = parts.dir.private(FILES)?;
        let store = EmbeddedStore::open(&rows, ROWS_BYTES_MAX, WallClock);
        let deps = saga::Deps {
            store: Arc::new(store.map_err(build_error("saga"))?),
            broker,
            gateway: gateway(options, parts)?,
            flows: Some(flows(parts)?),
            storage: Some(channel(&places.storage, ServiceName::Saga)),
            metrics,
        };
        let secrets = match &options.secrets {
            Some(directory) => directory.clone(),
            None => own_secrets(parts)?,
        };
        let config = saga::Config {
            role: SagaReplicaRole { sagas: true, effects: true },
            manifests: options.manifests.clone(),
            tenants,
            secrets: Some(secrets),
            replica: Replica::new(REPLICA, 1).map_err(UpError::SagaSettings)?,
            grace: CALLS_GRACE,
            seeing: options.seeing,
            lanes_max: LANES_MAX,
        };
        let app = saga::App::new(config, deps).map_err(build_error("saga"))?;
        let app = Arc::new(match &options.tenants {
            Some(file) => app.with_tenants_file(file.clone()),
            None => app,
        });
        app.reload().await.map_err(|error| match error {
            saga::Error::Manifests(_) => UpError::SagaSettings(error.to_string()),
            other => build_error("saga")(other),
        })?;
        self.readiness.include("saga", &app.readiness());
        let drain = Shutdown::new();
        let mount = app.mount_public(mount, drain.clone());
        let (stop, drained_alone) = (self.stop.clone(), self.readiness.impairment("saga"));
        self.spawn("saga", async move {
            let lanes = stop.child_token();
            let drained = async {
                drain.begun_owned().await;
                // The other services are as ready as before.
                app.readiness().withdraw();
                drained_alone
                    .begin("it was drained: it takes its lanes again after a restart of `mycora up`");
                lanes.cancel();
                std::future::pending().await
            };
            tokio::select! {
                () = app.run(lanes.clone()) => {}
                () = drained => {}
            }
            if lanes.is_cancelled() {
                // One that was drained has ended alone: the other services go on.
                stop.cancelled().await;
            }
        });
        Ok(mount)
    }
}

/// Connects to the server, and makes the stream of aggregates where the server is ours and has none.
async fn broker(nats: &NatsBackend, has_tenants: bool) -> Result<Arc<dyn MessageBroker>, UpError> {
    let broker = JetStream::start(nats.options()).map_err(UpError::Nats)?;
    if nats.access().is_some() {
        let mut connection = broker.connection();
        let connected = connection.wait_for(|connection| connection.connected);
        if !matches!(tokio::time::timeout(READY_TIMEOUT, connected).await, Ok(Ok(_))) {
            broker.server().map_err(UpError::Nats)?;
        }
        let events = events(has_tenants);
        if broker.stream(&events.name).await.map_err(UpError::Nats)?.is_none() {
            broker.create_stream(&events).await.map_err(UpError::Nats)?;
        }
    }
    Ok(Arc::new(broker))
}

/// The stream of aggregates as it is made for those who have none of their own.
fn events(has_tenants: bool) -> StreamSpec {
    let subject = if has_tenants { "tenant.*.aggregate.*.*" } else { "aggregate.*.*" };
    StreamSpec::managed(saga::lane::AGGREGATE_EVENTS, &[subject], EVENTS_KEPT)
}

/// Connects to the service that takes commands of aggregates; its certificate is of this process's authority.
fn gateway(options: &SagaOptions, parts: &SuiteParts<'_>) -> Result<Arc<dyn Gateway>, UpError> {
    let Some((url, method)) = &options.gateway else { return Ok(Arc::new(NoGateway)) };
    let channel =
        Channel::remote(url, &parts.certificates.server(), None).map_err(build_error("the gateway"))?;
    Ok(Arc::new(CommandService::new(channel, method.clone())))
}

/// The way to where flows are run: the own port, with nothing to show but tokens of actors, which are checked there. Within the
/// process every actor that a manifest names would be taken for one and the same.
fn flows(parts: &SuiteParts<'_>) -> Result<FlowSuite, UpError> {
    let tls: TlsFiles = parts.certificates.server().without_certificate();
    let address = format!("https://{}", dialed(parts.served));
    let channel = Channel::remote(&address, &tls, None).map_err(build_error("saga"))?;
    Ok(FlowSuite { scheduler: channel.clone(), storage: channel, trust_domain: TrustDomain::default() })
}

/// The directory of secrets within the data directory, with the key of actor 1 in it.
fn own_secrets(parts: &SuiteParts<'_>) -> Result<std::path::PathBuf, UpError> {
    let directory = parts.dir.private(SECRETS)?;
    let key = service::read_secret(&parts.dir.join(ACTOR_KEY));
    let key = key.map_err(|source| UpError::Directory { path: parts.dir.join(ACTOR_KEY), source })?;
    parts.dir.write_secret(ACTOR_SECRET, &key)?;
    Ok(directory)
}
