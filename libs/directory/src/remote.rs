//! Directory of a service that asks storage.

use std::sync::Arc;
use std::time::Duration;

use identity::ActorVerifyingKey;
use model::{ActorId, ContextId, Timestamp};
use proto::convert;
use proto::internal::v1;
use proto::internal::v1::identity_store_service_client::IdentityStoreServiceClient;
use proto::internal::v1::watch_identities_response::Changed;
use rpc::{Channel, Directory, KnownActor, Membership};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use crate::directory_view::{DirectorySource, DirectoryView};
use crate::view_state::DirectoryInvalidation;

/// Storage gives a sign of life every 5 s; after so long without one changes may be missed.
const SILENCE_MAX: Duration = Duration::from_secs(15);
/// The pause before the watch is opened again.
const RETRY: Duration = Duration::from_millis(200);

/// The directory of a service that asks storage. Cheap to clone.
#[derive(Debug, Clone)]
pub struct RemoteDirectory(DirectoryView<StorageDirectorySource>);

impl RemoteDirectory {
    /// Asks storage over this way. Remembers nothing unless [`RemoteDirectory::follow`] runs.
    #[must_use]
    pub fn new(storage: Channel) -> Self {
        Self(DirectoryView::new(StorageDirectorySource(IdentityStoreServiceClient::new(storage))))
    }

    /// For gates and streams.
    #[must_use]
    pub fn directory(&self) -> Arc<dyn Directory> {
        self.0.directory()
    }

    /// Follows storage's watch of identities until `stop`, reopening it when it ends.
    pub async fn follow(self, stop: CancellationToken) {
        let follow = async {
            loop {
                let ended = self.watch().await;
                self.0.invalidate(DirectoryInvalidation::FeedLost);
                tracing::debug!(status = %ended, "the watch of identities ended; reopening it");
                tokio::time::sleep(RETRY).await;
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = follow => {}
        }
    }

    /// Watches until the stream ends; returns why it ended.
    async fn watch(&self) -> Status {
        let mut client = self.0.source().0.clone();
        let mut changes = match client.watch_identities(v1::WatchIdentitiesRequest {}).await {
            Ok(changes) => changes.into_inner(),
            Err(status) => return status,
        };
        loop {
            match tokio::time::timeout(SILENCE_MAX, changes.message()).await {
                Ok(Ok(Some(change))) => {
                    if let Some(invalidation) = change.changed.map(invalidation_of) {
                        self.0.invalidate(invalidation);
                    }
                }
                Ok(Ok(None)) => return Status::unavailable("the stream was closed"),
                Ok(Err(status)) => return status,
                Err(_) => return Status::unavailable("no sign of life"),
            }
        }
    }
}

fn invalidation_of(changed: Changed) -> DirectoryInvalidation {
    match changed {
        Changed::Everything(_) => DirectoryInvalidation::FeedRestored,
        Changed::ActorId(id) => DirectoryInvalidation::Actor(ActorId(id)),
        Changed::ContextId(id) => DirectoryInvalidation::Context(ContextId(id)),
    }
}

/// Reads from storage.
#[derive(Debug)]
struct StorageDirectorySource(IdentityStoreServiceClient<Channel>);

impl DirectorySource for StorageDirectorySource {
    async fn read_actor(&self, id: ActorId) -> Result<Option<KnownActor>, Status> {
        match self.0.clone().read_actor(v1::ReadActorRequest { actor_id: id.0 }).await {
            Ok(answer) => Ok(Some(known_actor(answer.into_inner()))),
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(status),
        }
    }

    async fn read_membership(&self, context: ContextId, actor: ActorId) -> Result<Membership, Status> {
        let request = v1::ReadRoleRequest { context_id: context.0, actor_id: actor.0 };
        let v1::ReadRoleResponse { role, deleting } = self.0.clone().read_role(request).await?.into_inner();
        // What a later version calls otherwise is no role that we know of.
        Ok(Membership { role: role.parse().ok(), is_deleting: deleting })
    }

    async fn consume_token(
        &self,
        actor: ActorId,
        token_id: String,
        until: Timestamp,
    ) -> Result<bool, Status> {
        let expire_time = Some(convert::time::to_wire(until));
        let request = v1::SpendTokenRequest { actor_id: actor.0, token_id, expire_time };
        Ok(self.0.clone().spend_token(request).await?.into_inner().fresh)
    }
}

fn known_actor(answer: v1::ReadActorResponse) -> KnownActor {
    let v1::ReadActorResponse { keys, certificates_not_before_time } = answer;
    let keys = keys.into_iter().filter_map(|key| {
        let proto::v1::ActorKey { key, not_before_time, revoke_time } = key;
        Some(ActorVerifyingKey {
            // One that is none has signed nothing.
            key: key.parse().ok()?,
            not_before: not_before_time.map(convert::time::from_wire)?,
            revoked_at: revoke_time.map(convert::time::from_wire),
        })
    });
    KnownActor {
        keys: keys.collect(),
        certificates_not_before: certificates_not_before_time.map(convert::time::from_wire),
    }
}
