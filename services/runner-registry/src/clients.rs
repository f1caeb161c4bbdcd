//! The stubs of the services that the registry calls, and the stream to storage.

use std::collections::BTreeSet;

use backoff::ExponentialBackoff;
use model::{ContextId, RunnerId};
use proto::convert;
use proto::internal::v1::runner_store_service_client::RunnerStoreServiceClient;
use proto::internal::v1::{RunnerRecord, WatchRunnersRequest};
use proto::v1;
use rpc::RECONNECT_MAX;
use service::ReadinessCondition;

use crate::hub::RunnerHub;

/// Maximum size of one response. A record may have been registered with a request of maximum size, and its timestamps come
/// on top of that.
const MESSAGE_BYTES_MAX: usize = model::limits::GRPC_MESSAGE_BYTES_MAX + 64 * 1024;

/// Runner records, as storage keeps them.
pub type RunnerStoreClient = RunnerStoreServiceClient<rpc::Channel>;

/// Wraps a channel to storage.
#[must_use]
pub fn runner_store(channel: rpc::Channel) -> RunnerStoreClient {
    RunnerStoreServiceClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(model::limits::GRPC_MESSAGE_BYTES_MAX)
}

/// Follows the records for ever, over every loss of the stream. `known` is met while the stream is open and its snapshot is complete.
pub(crate) async fn follow_records(mut store: RunnerStoreClient, hub: RunnerHub, known: ReadinessCondition) {
    let mut backoff = ExponentialBackoff::up_to(RECONNECT_MAX);
    loop {
        match read_records(&mut store, &hub, &known, &mut backoff).await {
            Ok(()) => {
                known.unmet("storage ended the stream");
                tracing::debug!("storage ended the stream of runner records");
            }
            Err(status) => {
                known.unmet(status.message());
                tracing::warn!(%status, "runner records cannot be read");
            }
        }
        backoff.pause().await;
    }
}

async fn read_records(
    store: &mut RunnerStoreClient,
    hub: &RunnerHub,
    known: &ReadinessCondition,
    backoff: &mut ExponentialBackoff,
) -> Result<(), tonic::Status> {
    let mut records = store.watch_runners(WatchRunnersRequest {}).await?.into_inner();
    // Records in the snapshot, until it is complete.
    let mut named = Some(BTreeSet::new());
    while let Some(part) = records.message().await? {
        backoff.reset();
        let (mut put, mut removed) = (Vec::new(), Vec::new());
        for RunnerRecord { context_id, runner } in part.runners {
            let Some(runner) = runner else { continue };
            let key = (ContextId(context_id), RunnerId(runner.id));
            if runner.address.is_empty() {
                removed.push(key);
                continue;
            }
            // A record that cannot be read exists all the same: it must not count as removed.
            if let Some(named) = &mut named {
                named.insert(key);
            }
            put.extend(read_record(key.0, runner));
        }
        hub.remove_records(&removed);
        hub.put_records(put);
        if part.snapshot_end {
            if let Some(named) = named.take() {
                hub.retain_records(&named);
            }
            hub.set_loaded();
            known.met();
        }
    }
    Ok(())
}

fn read_record(context: ContextId, runner: v1::Runner) -> Option<(ContextId, model::Runner)> {
    match convert::runner::from_wire(runner) {
        Ok(view) => Some((context, view.runner)),
        Err(error) => {
            tracing::error!(%error, %context, "a runner record cannot be read");
            None
        }
    }
}
