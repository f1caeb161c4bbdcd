//! Permission for records of other services: decided here, and recorded in the step that confirms it.

use model::{ActorId, ContextId, Timestamp, limits};

use crate::error::{Error, Result};
use crate::idempotency::{IdempotencyKey, hash_of};
use crate::scripts;
use crate::store::{PERMISSION_TRIES, Store};
use crate::tenants::audit::AuditRecord;
use crate::tenants::permission::{self, ContextAction};

/// Something that an actor wants to do.
#[derive(Debug, Clone)]
pub(crate) struct Intent {
    /// Context of the action.
    pub(crate) context: ContextId,
    /// Actor that acts.
    pub(crate) actor: ActorId,
    /// Action to be authorized.
    pub(crate) action: ContextAction,
    /// Object of the action, as the audit names it.
    pub(crate) object: String,
    /// The request, when it may be repeated.
    pub(crate) request: Option<IdempotencyKey>,
    /// The action only reads, so no audit record is written.
    pub(crate) is_read: bool,
}

impl Store {
    /// Decides whether an actor may perform an action, and writes the audit record. Returns `true` when it was written now.
    ///
    /// # Errors
    /// When there is no such context for the actor, when its role is too small, or when the context takes no changes.
    pub(crate) async fn authorize(&self, intent: &Intent, now: Timestamp) -> Result<bool> {
        let Intent { context, actor, action, object, request, is_read } = intent;
        for _ in 0..PERMISSION_TRIES {
            let (tenant, read) = self.context(*context).await?;
            permission::allow(&read, *actor, *action)?;
            if *is_read {
                return Ok(false);
            }
            let key = request.as_ref().map(|request| tenant.keys.request(*actor, &request.id));
            let audit_record =
                AuditRecord::of(Some(*actor), *action, object).with_request_id(request.as_ref());
            let call = tenant
                .begin_by(
                    Some(&audit_record),
                    &scripts::AUTHORIZE,
                    key.as_deref().as_slice(),
                    Some(read.uid),
                    now,
                )
                .named(kv::named![
                    context_revision: read.revision.0,
                    request_hash: hash_of(request.as_ref()),
                    request_secs: limits::REQUEST_ID_KEEP_SECS,
                    // Operations that end something, such as a saga, must work even when Redis is full.
                    room: if *action == ContextAction::OperateSagas { "reserve" } else { "" },
                ]);
            match tenant.call(call).await {
                Err(Error::ContextChanged(_)) => {}
                Err(error) => return Err(error),
                Ok(written) => return Ok(written.int()? == 1),
            }
        }
        Err(Error::ContextChanged(*context))
    }
}
