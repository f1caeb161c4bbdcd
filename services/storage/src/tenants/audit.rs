//! Audit: the script that makes a change also writes its record.
//!
//! An entry of a stream `audit` has its time in its id, and the fields `identity action object revision request_id`.

use std::borrow::Cow;
use std::fmt;

use kv::{Cmd, Value};
use model::{ActorId, ContextId, Timestamp, limits};
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::idempotency::IdempotencyKey;
use crate::pages::{PageRequest, PagedCollection};
use crate::store::{RequestPrincipal, Store};
use crate::tenants::permission::{self, ContextAction};

/// Entries that are scanned for one page, when most of them do not match.
const ENTRIES_SCANNED_MAX: usize = 10_000;
/// Entries that are read at once.
const ENTRIES_READ: usize = 500;

/// Audit record of a requested action. Never includes the content of the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AuditRecord {
    identity: String,
    action: Cow<'static, str>,
    object: String,
    request_id: String,
}

impl AuditRecord {
    /// Record of an action by an actor, or by the bootstrap identity, which has no number.
    pub(crate) fn of(actor: Option<ActorId>, action: ContextAction, object: impl fmt::Display) -> Self {
        let identity = actor.map_or_else(|| "admin".to_owned(), |actor| format!("actor/{actor}"));
        Self {
            identity,
            action: Cow::Borrowed(action.name()),
            object: object.to_string(),
            request_id: String::new(),
        }
    }

    /// Record of a principal's action in a context; `None` when a service acts for itself.
    pub(crate) fn by(
        asker: RequestPrincipal,
        action: ContextAction,
        object: impl fmt::Display,
    ) -> Option<Self> {
        match asker {
            RequestPrincipal::Actor(actor) => Some(Self::of(Some(actor), action, object)),
            RequestPrincipal::Service => None,
        }
    }

    /// Adds the request id that the action came with.
    #[must_use]
    pub(crate) fn with_request_id(mut self, request: Option<&IdempotencyKey>) -> Self {
        self.request_id = request.map(|request| request.id.clone()).unwrap_or_default();
        self
    }

    /// Parses a record that a script has stored; nothing for anything else.
    pub(crate) fn from_json(json: &str) -> Option<Self> {
        serde_json::from_str(json).ok()
    }

    /// JSON of the record, as scripts read it.
    pub(crate) fn json(&self) -> String {
        serde_json::to_string(self).expect("texts are JSON")
    }
}

/// Stored audit entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredAuditEntry {
    /// Time of the action.
    pub(crate) time: Timestamp,
    /// Identity that acted.
    pub(crate) identity: String,
    /// Name of the action.
    pub(crate) action: String,
    /// Object of the action.
    pub(crate) object: String,
    /// The change counter at that change; 0 for one that has none.
    pub(crate) revision: u64,
    /// The request id of the call.
    pub(crate) request_id: String,
}

/// Which entries are listed.
#[derive(Debug, Clone, Default)]
pub(crate) struct AuditFilter {
    /// Only what this actor did.
    pub(crate) actor: Option<ActorId>,
    /// Only actions that begin with this.
    pub(crate) action_prefix: String,
    /// Only from this moment on.
    pub(crate) since: Option<Timestamp>,
}

impl AuditFilter {
    fn matches(&self, entry: &StoredAuditEntry) -> bool {
        let Self { actor, action_prefix, since: _ } = self;
        actor.is_none_or(|actor| entry.identity == format!("actor/{actor}"))
            && entry.action.starts_with(action_prefix)
    }
}

impl Store {
    /// Reads a page of entries, newest first; without a context, those about actors and contexts themselves. `asker` is
    /// `None` for the bootstrap identity.
    pub(crate) async fn list_audit(
        &self,
        context: Option<ContextId>,
        asker: Option<ActorId>,
        filter: &AuditFilter,
        page: &PageRequest,
    ) -> Result<(Vec<StoredAuditEntry>, String)> {
        let (connection, key) = match context {
            None => (self.connection().clone(), self.keys().audit()),
            Some(id) => {
                let (tenant, context) = self.context(id).await?;
                permission::allow_administrator(&context, asker, ContextAction::ReadAudit)?;
                (tenant.connection.clone(), tenant.keys.audit())
            }
        };
        let bound_to = format!("{context:?} {asker:?} {filter:?}");
        let mut before = page.place(self.coordinator(), PagedCollection::Audit, &bound_to)?;
        let oldest = filter.since.map_or_else(|| "-".to_owned(), |since| since.as_millis().to_string());
        let (mut found, mut bytes, mut scanned) = (Vec::new(), 0, 0);
        loop {
            let newest = before.as_ref().map_or_else(|| "+".to_owned(), |id| format!("({id}"));
            let query =
                Cmd::new("XREVRANGE").arg(&key).arg(&newest).arg(&oldest).arg("COUNT").arg(ENTRIES_READ);
            let entries = connection.cmd(query).await?.array()?;
            let is_last = entries.len() < ENTRIES_READ;
            scanned += entries.len();
            for entry in entries {
                let (id, entry) = parse(entry)?;
                let size = 64 + entry.object.len() + entry.request_id.len();
                if found.len() >= page.size || bytes + size > limits::PAGE_BYTES_MAX {
                    let token = page.token_at(
                        self.coordinator(),
                        PagedCollection::Audit,
                        &bound_to,
                        before.as_deref(),
                    );
                    return Ok((found, token));
                }
                before = Some(id);
                if filter.matches(&entry) {
                    bytes += size;
                    found.push(entry);
                }
            }
            if is_last {
                return Ok((found, String::new()));
            }
            if scanned >= ENTRIES_SCANNED_MAX {
                let token =
                    page.token_at(self.coordinator(), PagedCollection::Audit, &bound_to, before.as_deref());
                return Ok((found, token));
            }
        }
    }
}

/// Parses an entry with its id. Entries written by other programs are taken as they are.
fn parse(entry: Value) -> Result<(String, StoredAuditEntry)> {
    let [id, fields] = entry.tuple()?;
    let id = id.text()?;
    let millis = id.split_once('-').and_then(|(millis, _)| millis.parse().ok()).unwrap_or_default();
    let mut fields = fields.hash()?;
    let mut text = |name: &str| fields.remove(name).unwrap_or_default();
    let entry = StoredAuditEntry {
        time: Timestamp::from_millis(millis),
        identity: text("identity"),
        action: text("action"),
        object: text("object"),
        revision: text("revision").parse().unwrap_or_default(),
        request_id: text("request_id"),
    };
    Ok((id, entry))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scripts_know_how_long_it_is_kept() {
        let line = format!("{} * 24 * 3600", limits::AUDIT_KEEP_SECS / (24 * 3600));
        for prelude in [include_str!("../scripts/prelude.lua"), include_str!("../scripts/global.lua")] {
            assert!(prelude.contains(&line), "{line}");
        }
    }

    #[test]
    fn an_audit_record_names_who_and_what() {
        let audit_record = AuditRecord::of(Some(ActorId(7)), ContextAction::DeleteFlow, "flow 3");
        let json = r#"{"identity":"actor/7","action":"flow.delete","object":"flow 3","request_id":""}"#;
        assert_eq!(audit_record.json(), json);
        assert_eq!(AuditRecord::from_json(json), Some(audit_record));
        assert_eq!(AuditRecord::of(None, ContextAction::DeleteFlow, "").identity, "admin");
        assert_eq!(AuditRecord::by(RequestPrincipal::Service, ContextAction::DeleteFlow, ""), None);
    }
}
