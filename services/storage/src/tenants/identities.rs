//! Lookups of identities for gates and streams, here and in the other services.

use std::fmt;

use directory::DirectoryInvalidation;
use identity::ActorVerifyingKey;
use kv::Cmd;
use model::{ActorId, ContextId, ContextState, Timestamp};
use rpc::{KnownActor, Membership};
use serde::Deserialize;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use crate::error::{Error, Result};
use crate::record::{self, RecordFields};
use crate::scripts;
use crate::store::Store;

/// Fields read of an actor. The first is in every actor's hash.
const FIELDS: [&str; 6] = ["id", "keys", "pubkey", "created_at", "certificates_not_before", "deleted_at"];

impl Store {
    /// Returns an actor's keys and its `certificates_not_before`; `None` for one that does not exist, or was removed.
    pub(crate) async fn known_actor(&self, id: ActorId) -> Result<Option<KnownActor>> {
        let key = self.keys().actor(id);
        let query = FIELDS.iter().fold(Cmd::new("HMGET").arg(&key), |query, field| query.arg(*field));
        let Some(fields) = RecordFields::of_some(&key, &FIELDS, self.connection().cmd(query).await?)? else {
            return Ok(None);
        };
        if fields.optional::<Timestamp>("deleted_at")?.is_some() {
            return Ok(None);
        }
        let keys = record::actor::keys(&fields)?;
        // A text that is not a key cannot have signed anything.
        let keys = keys.iter().filter_map(|key| ActorVerifyingKey::try_from(key).ok()).collect();
        let certificates_not_before = fields.optional("certificates_not_before")?;
        Ok(Some(KnownActor { keys, certificates_not_before }))
    }

    /// Returns an actor's role in a context, and whether the context is being deleted.
    pub(crate) async fn membership(&self, context: ContextId, actor: ActorId) -> Result<Membership> {
        match self.context(context).await {
            Ok((_, context)) => Ok(Membership {
                role: context.role_of(actor),
                is_deleting: context.state == ContextState::Deleting,
            }),
            Err(Error::NotFound(_)) => Ok(Membership::default()),
            Err(error) => Err(error),
        }
    }

    /// Uses up the id of a token for so many seconds; `false` when it was used up before.
    pub(crate) async fn spend_token(&self, actor: ActorId, token_id: &str, secs: u64) -> Result<bool> {
        let key = self.keys().token(actor, token_id);
        let call = self
            .begin_global(&scripts::SPEND_TOKEN, &[&key], Timestamp::now())
            .named(kv::named![keep_secs: secs.max(1)]);
        Ok(self.call_global(call).await?.int()? == 1)
    }
}

/// Parses the identity change in a hint that belongs to no context: the hint is the event itself.
pub(crate) fn identity_change_of(hint: &[u8]) -> Option<DirectoryInvalidation> {
    #[derive(Deserialize)]
    #[serde(tag = "kind", rename_all = "snake_case")]
    enum IdentityHint {
        Actor { actor_id: ActorId },
        Context { context_id: ContextId },
    }
    Some(match serde_json::from_slice(hint).ok()? {
        IdentityHint::Actor { actor_id } => DirectoryInvalidation::Actor(actor_id),
        IdentityHint::Context { context_id } => DirectoryInvalidation::Context(context_id),
    })
}

/// Subscription to identity changes, from some moment on.
pub(crate) struct IdentityChangeFeed(broadcast::Receiver<DirectoryInvalidation>);

impl fmt::Debug for IdentityChangeFeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IdentityChangeFeed")
    }
}

impl IdentityChangeFeed {
    pub(crate) const fn new(invalidations: broadcast::Receiver<DirectoryInvalidation>) -> Self {
        Self(invalidations)
    }

    /// Receives the next change; `None` when no more will come.
    pub(crate) async fn next(&mut self) -> Option<DirectoryInvalidation> {
        match self.0.recv().await {
            Ok(invalidation) => Some(invalidation),
            // Any change may have been missed.
            Err(RecvError::Lagged(_)) => Some(DirectoryInvalidation::FeedRestored),
            Err(RecvError::Closed) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_name_the_actor_or_context_that_changed() {
        assert_eq!(
            identity_change_of(br#"{"kind":"actor","actor_id":7}"#),
            Some(DirectoryInvalidation::Actor(ActorId(7)))
        );
        assert_eq!(
            identity_change_of(br#"{"kind":"context","context_id":5}"#),
            Some(DirectoryInvalidation::Context(ContextId(5)))
        );
        for other in [&b""[..], b"replicas", b"{}", br#"{"kind":"actor"}"#, b"\xff"] {
            assert_eq!(identity_change_of(other), None);
        }
    }
}
