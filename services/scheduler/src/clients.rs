//! The stubs of the services that the scheduler calls.

use proto::internal::v1::flow_store_service_client::FlowStoreServiceClient;
use proto::internal::v1::registry_view_service_client::RegistryViewServiceClient;

/// Flows, as storage keeps them.
pub type FlowStoreClient = FlowStoreServiceClient<rpc::Channel>;
/// Runners, as the registry sees them.
pub type SchedulerRegistryClient = RegistryViewServiceClient<rpc::Channel>;

/// Wraps a channel to storage. Its answers carry whole pages and snapshots.
#[must_use]
pub fn flow_store(channel: rpc::Channel) -> FlowStoreClient {
    FlowStoreServiceClient::new(channel)
        .max_decoding_message_size(model::limits::GRPC_MESSAGE_BYTES_MAX)
        // A commit is measured before it is sent; the message around it adds to its size.
        .max_encoding_message_size(model::limits::GRPC_MESSAGE_BYTES_MAX + 1024 * 1024)
}

/// Wraps a channel to the registry.
#[must_use]
pub fn registry(channel: rpc::Channel) -> SchedulerRegistryClient {
    RegistryViewServiceClient::new(channel).max_decoding_message_size(model::limits::GRPC_MESSAGE_BYTES_MAX)
}
