//! The stubs of the services that the registry calls.

use proto::internal::v1::runner_store_service_client::RunnerStoreServiceClient;

/// Runner records, as storage keeps them.
pub type RunnerStoreClient = RunnerStoreServiceClient<rpc::Channel>;

/// Wraps a channel to storage.
#[must_use]
pub fn runner_store(channel: rpc::Channel) -> RunnerStoreClient {
    RunnerStoreServiceClient::new(channel)
        .max_decoding_message_size(model::limits::GRPC_MESSAGE_BYTES_MAX)
        .max_encoding_message_size(model::limits::GRPC_MESSAGE_BYTES_MAX)
}
