//! The gRPC side: parses, asks, converts.

mod actor;
mod addresses;
mod blob_store;
mod context;
mod context_check;
mod context_moving;
mod flow_parse;
mod flow_store;
mod flow_streams;
mod identity_store;
mod job;
mod message_box;
mod message_store;
mod raw_jobs;
mod runner_store;
mod status;
mod uploads;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ::rpc::{Allow, Caller, MethodPolicy, MethodTimeoutTable, MountBuilder, PolicyTable};
use futures_util::{Stream, StreamExt as _};
use identity::{Identity, ServiceName, TrustDomain};
use model::address_rules::AddressRules;
use model::{ActorId, Violations, limits};
use prost::Message;
use proto::internal::v1::blob_store_service_server::BlobStoreServiceServer;
use proto::internal::v1::flow_store_service_server::FlowStoreServiceServer;
use proto::internal::v1::identity_store_service_server::IdentityStoreServiceServer;
use proto::internal::v1::message_box_service_server::MessageBoxServiceServer;
use proto::internal::v1::message_store_service_server::MessageStoreServiceServer;
use proto::internal::v1::runner_store_service_server::RunnerStoreServiceServer;
use proto::v1::actor_service_server::ActorServiceServer;
use proto::v1::context_service_server::ContextServiceServer;
use proto::v1::job_service_server::JobServiceServer;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::error::Error;
use crate::flows::replicas::ReplicaLeases;
use crate::idempotency::IdempotencyKey;
use crate::messages::routers::StorageRouters;
use crate::tenants::context_removal::ContextRemovals;
use crate::watch::events::EventHub;

pub(crate) use flow_streams::COMMITS_IN_FLIGHT_MAX;
pub(crate) use identity_store::{Identities, invalidate_identities};
pub(crate) use uploads::{BlobUploadLimiter, PIECE_SECS_MAX, UPLOAD_SECS_MAX, UPLOADS_EACH_MAX, UPLOADS_MAX};

/// The name of a router or a scheduler replica, in bytes.
const NAME_BYTES_MAX: usize = 128;

/// Methods that actors and the bootstrap identity may call.
pub const PUBLIC_POLICY: PolicyTable<'static> = &[
    ("/mycora.v1.ActorService/RegisterActor", &[Allow::Admin]),
    ("/mycora.v1.ActorService/GetActor", &[Allow::AnyActor, Allow::Admin]),
    ("/mycora.v1.ActorService/ListActors", &[Allow::AnyActor, Allow::Admin]),
    ("/mycora.v1.ActorService/UpdateActor", &[Allow::AnyActor, Allow::Admin]),
    ("/mycora.v1.ActorService/RotateActorKey", &[Allow::AnyActor, Allow::Admin]),
    ("/mycora.v1.ActorService/DeleteActor", &[Allow::AnyActor, Allow::Admin]),
    ("/mycora.v1.ActorService/WhoAmI", &[Allow::Authenticated]),
    ("/mycora.v1.ContextService/*", &[Allow::AnyActor, Allow::Admin]),
    ("/mycora.v1.ContextService/ImportContext", &[Allow::Admin]),
    ("/mycora.v1.ContextService/CheckContext", &[Allow::Admin]),
    ("/mycora.v1.JobService/*", &[Allow::AnyActor]),
];

/// Timeouts of public methods that take long: a context has any number of records, and supervisors that must drop it.
const PUBLIC_PATIENCE: MethodTimeoutTable<'static> =
    &[("/mycora.v1.ContextService/DeleteContext", Duration::from_secs(600))];

/// Timeouts of internal methods with more to do than others.
const INTERNAL_PATIENCE: MethodTimeoutTable<'static> = &[
    ("/mycora.internal.v1.FlowStoreService/CreateFlow", Duration::from_secs(120)),
    ("/mycora.internal.v1.FlowStoreService/AddNodes", Duration::from_secs(120)),
    ("/mycora.internal.v1.FlowStoreService/StartFlow", Duration::from_secs(120)),
    ("/mycora.internal.v1.FlowStoreService/RestartFlow", Duration::from_secs(120)),
    ("/mycora.internal.v1.FlowStoreService/RemoveFlow", Duration::from_secs(120)),
];

/// Methods that change permissions: they accept a token only once.
pub const ADMINISTRATIVE: &[&str] = &[
    "/mycora.v1.ActorService/RegisterActor",
    "/mycora.v1.ActorService/UpdateActor",
    "/mycora.v1.ActorService/RotateActorKey",
    "/mycora.v1.ActorService/DeleteActor",
    "/mycora.v1.ContextService/CreateContext",
    "/mycora.v1.ContextService/UpdateContext",
    "/mycora.v1.ContextService/DeleteContext",
    "/mycora.v1.ContextService/ImportContext",
];

/// Methods that only services may call.
pub const INTERNAL_POLICY: PolicyTable<'static> = &[
    (
        "/mycora.internal.v1.FlowStoreService/*",
        &[Allow::Service(ServiceName::Scheduler), Allow::Service(ServiceName::Mycora)],
    ),
    (
        "/mycora.internal.v1.MessageStoreService/*",
        &[Allow::Service(ServiceName::Router), Allow::Service(ServiceName::Mycora)],
    ),
    (
        "/mycora.internal.v1.MessageBoxService/*",
        &[Allow::Service(ServiceName::Router), Allow::Service(ServiceName::Mycora)],
    ),
    (
        "/mycora.internal.v1.MessageBoxService/AcceptLetter",
        &[
            Allow::Service(ServiceName::Router),
            Allow::Service(ServiceName::MyceliumGateway),
            Allow::Service(ServiceName::Mycora),
        ],
    ),
    (
        "/mycora.internal.v1.RunnerStoreService/*",
        &[Allow::Service(ServiceName::RunnerRegistry), Allow::Service(ServiceName::Mycora)],
    ),
    (
        "/mycora.internal.v1.BlobStoreService/*",
        &[Allow::Service(ServiceName::MyceliumGateway), Allow::Service(ServiceName::Mycora)],
    ),
    (
        "/mycora.internal.v1.IdentityStoreService/*",
        &[
            Allow::Service(ServiceName::Scheduler),
            Allow::Service(ServiceName::Router),
            Allow::Service(ServiceName::RunnerRegistry),
            Allow::Service(ServiceName::MyceliumGateway),
            Allow::Service(ServiceName::Saga),
            Allow::Service(ServiceName::Mycora),
        ],
    ),
    ("/mycora.internal.v1.IdentityStoreService/Authorize", &[Allow::Service(ServiceName::Saga)]),
];

/// Everything that this service may be called for.
///
/// # Panics
/// Never: the tables are well-formed, which a test checks.
#[must_use]
pub fn policy() -> MethodPolicy {
    let policy = MethodPolicy::new(&[PUBLIC_POLICY, INTERNAL_POLICY]);
    policy.and_then(|policy| policy.with_administrative(ADMINISTRATIVE)).expect("the tables are well-formed")
}

/// The answers of a stream.
type StorageResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Answers all services.
#[derive(Clone)]
pub(crate) struct StorageRpc {
    pub(crate) hub: EventHub,
    pub(crate) routers: StorageRouters,
    pub(crate) replicas: ReplicaLeases,
    pub(crate) removals: ContextRemovals,
    pub(crate) identities: Identities,
    pub(crate) trust_domain: Arc<TrustDomain>,
    pub(crate) uploads: BlobUploadLimiter,
    /// Which addresses actors may give.
    pub(crate) addresses: Arc<AddressRules>,
    /// Ends every stream.
    pub(crate) stop: CancellationToken,
}

impl StorageRpc {
    pub(crate) fn mount_public(&self, mount: MountBuilder) -> MountBuilder {
        mount
            .service(ActorServiceServer::new(self.clone()))
            .service(ContextServiceServer::new(self.clone()))
            .service(JobServiceServer::new(self.clone()))
            .method_timeouts(PUBLIC_PATIENCE)
    }

    pub(crate) fn mount_internal(&self, mount: MountBuilder) -> MountBuilder {
        mount
            .service(FlowStoreServiceServer::new(self.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX))
            .service(MessageStoreServiceServer::new(self.clone()))
            .service(MessageBoxServiceServer::new(self.clone()))
            .service(RunnerStoreServiceServer::new(self.clone()))
            .service(BlobStoreServiceServer::new(self.clone()))
            .service(IdentityStoreServiceServer::new(self.clone()))
            .method_timeouts(INTERNAL_PATIENCE)
    }

    /// Ends a stream when the service ends, so that a drain need not wait for it.
    fn until_stop<T: Send + 'static>(
        &self,
        stream: impl Stream<Item = Result<T, Status>> + Send + 'static,
    ) -> StorageResponseStream<T> {
        let stop = self.stop.clone();
        let draining = futures_util::stream::once(async move {
            let ending = || ::rpc::Error::unavailable(::rpc::RpcReason::Draining, "storage is ending").into();
            stop.is_cancelled().then(|| Err(ending()))
        });
        let stream = stream.take_until(self.stop.clone().cancelled_owned());
        Box::pin(stream.chain(draining.filter_map(std::future::ready)))
    }
}

/// A commit has a limit of its own, which must be reached before that of the message that carries it.
const MESSAGE_BYTES_MAX: usize = limits::GRPC_MESSAGE_BYTES_MAX + 1024 * 1024;

/// Returns the calling actor; `None` for the bootstrap identity, which is no actor.
fn who(caller: Caller) -> Result<Option<ActorId>, Error> {
    match caller.identity() {
        Identity::Admin => Ok(None),
        Identity::Actor(id) => Ok(Some(id)),
        Identity::Service(_) => Err(Error::NotAllowed("services have no roles in a context".to_owned())),
    }
}

/// Parses a request id with a hash of the rest of the message and its type: messages of different types may have equal fields, such
/// as a removal and a change that names nothing but the object.
fn request_of<M: Message>(id: &str, body: &M, violations: &mut Violations) -> Option<IdempotencyKey> {
    let hash = || Sha256::new().chain_update(kind_of(body)).chain_update(body.encode_to_vec()).finalize();
    IdempotencyKey::parse(id, || hex::encode(hash()), violations)
}

/// Returns the type name of a message.
fn kind_of<M>(_: &M) -> &'static str {
    let path = std::any::type_name::<M>();
    path.rsplit_once("::").map_or(path, |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_is_well_formed() {
        drop(policy());
    }

    #[test]
    fn requests_of_two_kinds_are_two() {
        assert_eq!(kind_of(&proto::v1::DeleteActorRequest::default()), "DeleteActorRequest");
        let mut violations = Violations::new();
        let removal = proto::v1::DeleteActorRequest { id: 5, ..Default::default() };
        let change = proto::v1::UpdateActorRequest { id: 5, ..Default::default() };
        assert_eq!(removal.encode_to_vec(), change.encode_to_vec());
        assert_ne!(request_of("x", &removal, &mut violations), request_of("x", &change, &mut violations));
    }
}
