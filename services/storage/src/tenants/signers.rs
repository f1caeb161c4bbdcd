//! By which keys actors sign.

use model::{ActorId, ContextId, ContextUid, Timestamp};

use crate::error::{Error, Result};
use crate::store::{RequestPrincipal, Store};
use crate::tenants::permission::{self, ContextAction};

impl Store {
    /// Reads the valid keys of an actor for whom a job is to run, and the context's uid that its signatures name.
    pub(crate) async fn signer(
        &self,
        context: ContextId,
        caller: ActorId,
        asker: RequestPrincipal,
        now: Timestamp,
    ) -> Result<(ContextUid, Vec<String>)> {
        let (_, context) = self.context(context).await?;
        permission::allow_asker(&context, asker, ContextAction::ReadSigner, caller)?;
        let actor = self.actor(caller).await.map_err(|error| match error {
            Error::NotFound(_) => Error::field("caller_id", format!("actor {caller} is not registered")),
            error => error,
        })?;
        Ok((context.uid, actor.keys_at(now).into_iter().map(str::to_owned).collect()))
    }
}
