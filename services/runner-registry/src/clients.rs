//! The stubs of the services that the registry calls, and the stream to storage.

use std::time::Duration;

use proto::convert;
use proto::internal::v1::runner_store_service_client::RunnerStoreServiceClient;
use proto::internal::v1::{RunnerRecord, WatchRunnersRequest};

use crate::hub::Hub;

/// The first pause before storage is asked again; doubles up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_millis(50);
/// The longest pause.
const RETRY_MAX: Duration = Duration::from_secs(5);

/// Runner records, as storage keeps them.
pub type RunnerStoreClient = RunnerStoreServiceClient<rpc::Channel>;

/// Wraps a channel to storage.
#[must_use]
pub fn runner_store(channel: rpc::Channel) -> RunnerStoreClient {
    RunnerStoreServiceClient::new(channel)
        .max_decoding_message_size(model::limits::GRPC_MESSAGE_BYTES_MAX)
        .max_encoding_message_size(model::limits::GRPC_MESSAGE_BYTES_MAX)
}

/// Follows the records for ever, over every loss of the stream.
pub(crate) async fn follow_records(mut store: RunnerStoreClient, hub: Hub) {
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
