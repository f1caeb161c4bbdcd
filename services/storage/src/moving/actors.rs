//! Actors that records of an archive name: they keep their numbers, so that each record stays that of its actor.

use std::collections::BTreeSet;

use archive::ArchivedActor;
use kv::Cmd;
use model::{Actor, ActorId, Revision, Timestamp};

use super::ImportRefusal;
use crate::error::{Error, Result};
use crate::store::Store;

/// The actor as an archive names it.
pub(super) fn to_archive(actor: Actor) -> ArchivedActor {
    let Actor { id, pubkey, address, mut keys, deleted_at, .. } = actor;
    // The key in force is the last one; of a record that a program has changed it may be none of them.
    keys.sort_by_key(|key| key.key == pubkey);
    if keys.last().is_none_or(|key| key.key != pubkey) {
        keys.push(model::actor::ActorKey { key: pubkey, not_before: Timestamp::default(), revoked_at: None });
    }
    ArchivedActor { id, keys, addresses: address, deleted_at }
}

impl Store {
    /// Registers an actor of an archive, unless it is there. `accepted` are actors of this coordinator that count as those of the same
    /// numbers in the file, whatever their keys.
    ///
    /// # Errors
    /// [`ImportRefusal::ActorConflict`] when the number belongs to somebody else here, or the key does.
    pub(super) async fn import_actor(
        &self,
        archived: ArchivedActor,
        accepted: &BTreeSet<ActorId>,
        now: Timestamp,
    ) -> Result<()> {
        let ArchivedActor { id, keys, addresses, deleted_at } = archived;
        if let Some(known) = self.read_actors(&[id]).await?.pop().flatten() {
            let own: BTreeSet<&str> =
                known.keys.iter().map(|key| key.key.as_str()).chain([known.pubkey.as_str()]).collect();
            // Either side may have rotated its keys since they parted.
            if accepted.contains(&id) || keys.iter().any(|key| own.contains(key.key.as_str())) {
                return Ok(());
            }
            return Err(conflict(format!(
                "actor {id} has another key here than in the export: if both are the same principal, accept it with \
                 `--accept-actor {id}`"
            )));
        }
        let pubkey = keys.last().map(|key| key.key.clone()).unwrap_or_default();
        let holder = Cmd::new("HGET").arg(&self.keys().actor_keys()).arg(&pubkey);
        if let Some(holder) = self.connection().cmd(holder).await?.optional_text()? {
            return Err(conflict(format!(
                "the key of actor {id} of the export is that of actor {holder} here"
            )));
        }
        let actor = Actor {
            id,
            pubkey,
            address: addresses,
            keys,
            home_context: None,
            certificates_not_before: None,
            deleted_at,
            created_at: now,
            updated_at: now,
            revision: Revision(0),
        };
        match self.register(&actor, None, now).await {
            Ok(_) => {
                self.skip_actor_ids(id.0);
                Ok(())
            }
            Err(Error::Store(kv::Error::Refused { code, .. })) if code == "ACTOR_EXISTS" => {
                Err(conflict(format!("actor {id} was registered meanwhile: import again")))
            }
            Err(error) => Err(error),
        }
    }
}

fn conflict(message: String) -> Error {
    ImportRefusal::ActorConflict(message).into()
}

#[cfg(test)]
mod tests {
    use model::actor::ActorKey;

    use super::*;

    #[test]
    fn the_key_in_force_is_the_last_one() {
        let key = |name: &str| ActorKey {
            key: name.repeat(32),
            not_before: Timestamp::default(),
            revoked_at: None,
        };
        let actor = |keys: Vec<ActorKey>| Actor {
            id: ActorId(3),
            pubkey: "ab".repeat(32),
            address: Vec::new(),
            keys,
            home_context: None,
            certificates_not_before: None,
            deleted_at: None,
            created_at: Timestamp::default(),
            updated_at: Timestamp::default(),
            revision: Revision(0),
        };
        for keys in [vec![key("ab"), key("cd")], vec![key("cd"), key("ab")], vec![key("cd")]] {
            let archived = to_archive(actor(keys));
            assert_eq!(archived.keys, [key("cd"), key("ab")]);
        }
    }
}
