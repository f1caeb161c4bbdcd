//! Puts the registry together, reads the records, and keeps the time.

use std::sync::Arc;
use std::time::Duration;

use model::Timestamp;
use proto::convert;
use proto::internal::v1::{RunnerRecord, WatchRunnersRequest};
use rpc::MountBuilder;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::clients::{self, RunnerStoreClient};
use crate::config::Config;
use crate::error::Error;
use crate::hub::Hub;
use crate::metrics::Metrics;
use crate::rpc::Rpc;
use crate::view::View;

/// The first pause before storage is asked again; doubles up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_millis(50);
/// The longest pause.
const RETRY_MAX: Duration = Duration::from_secs(5);

/// Tells the time that people read.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// What the registry needs of others.
pub struct Deps<'a> {
    /// A way to storage.
    pub storage: rpc::Channel,
    /// The wall clock.
    pub clock: Clock,
    /// Where its metrics are registered.
    pub metrics: &'a prometheus::Registry,
}

/// The service.
#[derive(Clone)]
pub struct App {
    hub: Hub,
    store: RunnerStoreClient,
    rpc: Rpc,
}

impl App {
    pub(crate) fn new(config: &Config, deps: Deps<'_>) -> Result<Self, Error> {
        let metrics = Metrics::new(deps.metrics).map_err(Error::Metrics)?;
        let hub = Hub::new(View::new(config.dead_after), metrics);
        let store = clients::runner_store(deps.storage);
        let rpc = Rpc::new(hub.clone(), store.clone(), deps.clock);
        Ok(Self { hub, store, rpc })
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

    /// True once the records were read for the first time.
    #[must_use]
    pub fn ready(&self) -> watch::Receiver<bool> {
        self.hub.loaded()
    }

    /// Works until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) {
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = self.hub.keep_time() => {}
            () = follow_records(self.store.clone(), self.hub.clone()) => {}
        }
    }
}

/// Follows the records for ever, over every loss of the stream.
async fn follow_records(mut store: RunnerStoreClient, hub: Hub) {
    let mut pause = RETRY_MIN;
    loop {
        match read_records(&mut store, &hub, &mut pause).await {
            Ok(()) => tracing::debug!("storage ended the stream of runner records"),
            Err(status) => tracing::warn!(%status, "runner records cannot be read"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_MAX);
    }
}

async fn read_records(
    store: &mut RunnerStoreClient,
    hub: &Hub,
    pause: &mut Duration,
) -> Result<(), tonic::Status> {
    let mut records = store.watch_runners(WatchRunnersRequest {}).await?.into_inner();
    while let Some(part) = records.message().await? {
        *pause = RETRY_MIN;
        hub.put_records(part.runners.into_iter().filter_map(read_record).collect());
        if part.snapshot_end {
            hub.set_loaded();
        }
    }
    Ok(())
}

fn read_record(record: RunnerRecord) -> Option<(model::ContextId, model::Runner)> {
    let RunnerRecord { context_id, runner } = record;
    match convert::runner::from_wire(runner?) {
        Ok(view) => Some((model::ContextId(context_id), view.runner)),
        Err(error) => {
            tracing::error!(%error, context_id, "a runner record cannot be read");
            None
        }
    }
}
