//! Contexts: made in two places, in an order that can be taken up again.
//!
//! First the id is reserved, together with the request id, then the context is written where it is kept,
//! then its id enters the set by which everybody finds it.

use std::time::Duration;

use model::{ActorId, Context, ContextId, ContextState, ContextUid, Revision, Timestamp, limits};
use proto::convert::context::NewContext;

use crate::error::{Error, Result};
use crate::record;
use crate::requests::{Request, hash_of};
use crate::scripts;
use crate::store::{ID_TRIES, Store};

/// A reservation whose maker did not write the context within this time lapses.
const RESERVATION: Duration = Duration::from_secs(60);

impl Store {
    /// Creates a context, or gives the one that the same request made before. `creator` is nobody for the
    /// bootstrap identity, else becomes one of the admins.
    pub(crate) async fn create_context(
        &self,
        mut new: NewContext,
        creator: Option<ActorId>,
        request: Option<&Request>,
        now: Timestamp,
    ) -> Result<Context> {
        if let Some(creator) = creator {
            self.actor(creator).await.map_err(|error| match error {
                Error::NotFound(_) => Error::NotAllowed(format!("actor {creator} is not registered")),
                error => error,
            })?;
            new.admins.insert(creator);
        }
        if new.admins.is_empty() {
            return Err(Error::field("admins", "a context needs at least one admin"));
        }
        for _ in 0..ID_TRIES {
            let id = match new.id {
                Some(id) => id,
                None => ContextId(self.next_context_id().await?),
            };
            if let Some(problem) = self.refuses_id(id) {
                return Err(Error::field("id", problem));
            }
            match self.reserve_and_write(id, &new, creator, request, now).await {
                Ok(context) => return Ok(context),
                Err(Error::Store(kv::Error::Refused { code, message }))
                    if code == "CONTEXT_EXISTS" || code == "CONTEXT_RESERVED" =>
                {
                    if new.id.is_some() {
                        return Err(Error::Exists(format!("context {id}")));
                    }
                    self.skip_context_ids(message.parse().unwrap_or_default());
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::Exhausted("no free context id was found; name one".to_owned()))
    }

    async fn reserve_and_write(
        &self,
        id: ContextId,
        new: &NewContext,
        creator: Option<ActorId>,
        request: Option<&Request>,
        now: Timestamp,
    ) -> Result<Context> {
        let (id, uid) = self.reserve_context(id, creator, request, now).await?;
        let NewContext { id: _, admins, readers, executors, settings } = new.clone();
        let context = Context {
            id,
            uid,
            state: ContextState::Active,
            admins,
            readers,
            executors,
            settings,
            created_at: now,
            updated_at: now,
            revision: Revision(0),
        };
        let tenant = self.place(id);
        let call = tenant
            .begin(&scripts::CREATE_CONTEXT, &[], Some(uid), now)
            .arg(id.0)
            .args(record::context::write(&context).args());
        let written = tenant.apply_revision(call).await;
        // One that its maker wrote and did not come to publish is complete: it is published for him.
        if written.is_ok() || written.as_ref().is_err_and(|error| error.code() == Some("CONTEXT_EXISTS")) {
            self.publish_context(id, now).await?;
        }
        written?;
        Ok(self.context(id).await?.1)
    }

    async fn reserve_context(
        &self,
        id: ContextId,
        creator: Option<ActorId>,
        request: Option<&Request>,
        now: Timestamp,
    ) -> Result<(ContextId, ContextUid)> {
        let keys = self.keys();
        let mut touched = vec![keys.contexts()];
        let creator = creator.unwrap_or(ActorId(0));
        touched.extend(request.map(|request| keys.request(creator, &request.id)));
        let touched: Vec<&str> = touched.iter().map(String::as_str).collect();
        let lapsed =
            now.as_millis().saturating_sub(u64::try_from(RESERVATION.as_millis()).unwrap_or(u64::MAX));
        let call = self
            .begin_global(&scripts::RESERVE_CONTEXT, &touched, now)
            .arg(id.0)
            .arg(&ContextUid::random().to_string())
            .arg(hash_of(request))
            .arg(limits::REQUEST_ID_KEEP_SECS)
            .arg(&Timestamp::from_millis(lapsed).to_string());
        let answer = self.call_global(call).await.map_err(|error| match error.code() {
            Some("REQUEST_ID_REUSED") => Error::RequestIdReused,
            Some("CONTEXT_GONE") => Error::not_found("the context that this request made, context", id),
            _ => Error::Store(error),
        })?;
        let [id, uid] = answer.tuple()?;
        let bad = |error: &dyn std::fmt::Display| kv::Error::Protocol(format!("a reservation: {error}"));
        let id = id.text()?.parse().map_err(|error| bad(&error))?;
        let uid = uid.text()?.parse().map_err(|error| bad(&error))?;
        Ok((id, uid))
    }

    async fn publish_context(&self, id: ContextId, now: Timestamp) -> Result<()> {
        let contexts = self.keys().contexts();
        let call = self.begin_global(&scripts::PUBLISH_CONTEXT, &[&contexts], now).arg(id.0);
        self.apply_global(call).await?;
        Ok(())
    }
}
