//! Who is who: what gates and streams ask, here and in the other services.

use std::fmt;

use directory::News;
use identity::ActorKey;
use kv::Cmd;
use model::{ActorId, ContextId, ContextState, Timestamp};
use rpc::{KnownActor, Membership};
use serde::Deserialize;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use crate::error::{Error, Result};
use crate::record::{self, Fields};
use crate::scripts;
use crate::store::Store;

/// What is read of an actor. The first is in every actor's hash.
const FIELDS: [&str; 6] = ["id", "keys", "pubkey", "created_at", "certificates_not_before", "deleted_at"];

impl Store {
    /// What makes an actor believable; nothing for one that does not exist, or no more.
    pub(crate) async fn known_actor(&self, id: ActorId) -> Result<Option<KnownActor>> {
        let key = self.keys().actor(id);
        let ask = FIELDS.iter().fold(Cmd::new("HMGET").arg(&key), |ask, field| ask.arg(*field));
        let Some(fields) = Fields::of_some(&key, &FIELDS, self.connection().cmd(ask).await?)? else {
            return Ok(None);
        };
        if fields.optional::<Timestamp>("deleted_at")?.is_some() {
            return Ok(None);
        }
        let keys = record::actor::keys(&fields)?;
        // One that is none has signed nothing.
        let keys = keys.iter().filter_map(|key| ActorKey::try_from(key).ok()).collect();
        let certificates_not_before = fields.optional("certificates_not_before")?;
        Ok(Some(KnownActor { keys, certificates_not_before }))
    }

    /// What an actor is in a context.
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

/// What a hint of what belongs to no context says of identities: the event itself.
pub(crate) fn news_of(hint: &[u8]) -> Option<News> {
    #[derive(Deserialize)]
    #[serde(tag = "kind", rename_all = "snake_case")]
    enum Hinted {
        Actor { actor_id: ActorId },
        Context { context_id: ContextId },
    }
    Some(match serde_json::from_slice(hint).ok()? {
        Hinted::Actor { actor_id } => News::Actor(actor_id),
        Hinted::Context { context_id } => News::Context(context_id),
    })
}

/// What happens to identities, from some moment on.
pub(crate) struct NewsFeed(broadcast::Receiver<News>);

impl fmt::Debug for NewsFeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NewsFeed")
    }
}

impl NewsFeed {
    pub(crate) const fn new(news: broadcast::Receiver<News>) -> Self {
        Self(news)
    }

    /// What comes next; nothing when nothing will come any more.
    pub(crate) async fn next(&mut self) -> Option<News> {
        match self.0.recv().await {
            Ok(news) => Some(news),
            // What was missed may have been anything.
            Err(RecvError::Lagged(_)) => Some(News::Everything),
            Err(RecvError::Closed) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_say_who_changed() {
        assert_eq!(news_of(br#"{"kind":"actor","actor_id":7}"#), Some(News::Actor(ActorId(7))));
        assert_eq!(news_of(br#"{"kind":"context","context_id":5}"#), Some(News::Context(ContextId(5))));
        for other in [&b""[..], b"replicas", b"{}", br#"{"kind":"actor"}"#, b"\xff"] {
            assert_eq!(news_of(other), None);
        }
    }
}
