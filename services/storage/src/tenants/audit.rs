//! Who did what: written down by the script that does it.
//!
//! An entry of a stream `audit` has its time in its id, and the fields `identity action object revision request_id`.

use std::borrow::Cow;
use std::fmt;

use kv::{Cmd, Value};
use model::{ActorId, ContextId, Timestamp, limits};
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::pages::{Page, PageOf};
use crate::requests::Request;
use crate::store::{Asker, Store};
use crate::tenants::permission::{self, Action};

/// Entries that are looked at for one page, when most of them are of others.
const ENTRIES_SCANNED_MAX: usize = 10_000;
/// Entries that are read at once.
const ENTRIES_READ: usize = 500;

/// Something that somebody asks for. Never says with which content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Deed {
    identity: String,
    action: Cow<'static, str>,
    object: String,
    request_id: String,
}

impl Deed {
    /// What an actor does, or the bootstrap identity, which has no number.
    pub(crate) fn of(actor: Option<ActorId>, action: Action, object: impl fmt::Display) -> Self {
        let identity = actor.map_or_else(|| "admin".to_owned(), |actor| format!("actor/{actor}"));
        Self {
            identity,
            action: Cow::Borrowed(action.name()),
            object: object.to_string(),
            request_id: String::new(),
        }
    }

    /// What somebody does in a context; nothing when a service does it for itself.
    pub(crate) fn by(asker: Asker, action: Action, object: impl fmt::Display) -> Option<Self> {
        match asker {
            Asker::Actor(actor) => Some(Self::of(Some(actor), action, object)),
            Asker::Service => None,
        }
    }

    /// The same with the request id that it came with.
    #[must_use]
    pub(crate) fn asked(mut self, request: Option<&Request>) -> Self {
        self.request_id = request.map(|request| request.id.clone()).unwrap_or_default();
        self
    }

    /// From what a script has kept; nothing when it is nothing of ours.
    pub(crate) fn from_json(json: &str) -> Option<Self> {
        serde_json::from_str(json).ok()
    }

    /// As scripts read it.
    pub(crate) fn json(&self) -> String {
        serde_json::to_string(self).expect("texts are JSON")
    }
}

/// An entry, as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// When.
    pub(crate) time: Timestamp,
    /// Who.
    pub(crate) identity: String,
    /// What.
    pub(crate) action: String,
    /// To what.
    pub(crate) object: String,
    /// The change counter at that change; 0 for one that has none.
    pub(crate) revision: u64,
    /// The request id of the call.
    pub(crate) request_id: String,
}

/// Which entries are listed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Filter {
    /// Only what this actor did.
    pub(crate) actor: Option<ActorId>,
    /// Only actions that begin so.
    pub(crate) action_prefix: String,
    /// Only from this moment on.
    pub(crate) since: Option<Timestamp>,
}

impl Filter {
    fn matches(&self, entry: &Entry) -> bool {
        let Self { actor, action_prefix, since: _ } = self;
        actor.is_none_or(|actor| entry.identity == format!("actor/{actor}"))
            && entry.action.starts_with(action_prefix)
    }
}

impl Store {
    /// A page of entries, the newest first; without a context of what was done to actors and contexts themselves. `asker` is
    /// nobody for the bootstrap identity.
    pub(crate) async fn list_audit(
        &self,
        context: Option<ContextId>,
        asker: Option<ActorId>,
        filter: &Filter,
        page: &Page,
    ) -> Result<(Vec<Entry>, String)> {
        let (connection, key) = match context {
            None => (self.connection().clone(), self.keys().audit()),
            Some(id) => {
                let (tenant, context) = self.context(id).await?;
                permission::allow_administrator(&context, asker, Action::ReadAudit)?;
                (tenant.connection.clone(), tenant.keys.audit())
            }
        };
        let bound_to = format!("{context:?} {asker:?} {filter:?}");
        let mut before = page.place(self.coordinator(), PageOf::Audit, &bound_to)?;
        let oldest = filter.since.map_or_else(|| "-".to_owned(), |since| since.as_millis().to_string());
        let (mut found, mut bytes, mut scanned) = (Vec::new(), 0, 0);
        loop {
            let newest = before.as_ref().map_or_else(|| "+".to_owned(), |id| format!("({id}"));
            let ask =
                Cmd::new("XREVRANGE").arg(&key).arg(&newest).arg(&oldest).arg("COUNT").arg(ENTRIES_READ);
            let entries = connection.cmd(ask).await?.array()?;
            let is_last = entries.len() < ENTRIES_READ;
            scanned += entries.len();
            for entry in entries {
                let (id, entry) = parse(entry)?;
                let size = 64 + entry.object.len() + entry.request_id.len();
                if found.len() >= page.size || bytes + size > limits::PAGE_BYTES_MAX {
                    let token =
                        page.token_at(self.coordinator(), PageOf::Audit, &bound_to, before.as_deref());
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
                let token = page.token_at(self.coordinator(), PageOf::Audit, &bound_to, before.as_deref());
                return Ok((found, token));
            }
        }
    }
}

/// An entry with its id. What others may have put there has what it has.
fn parse(entry: Value) -> Result<(String, Entry)> {
    let [id, fields] = entry.tuple()?;
    let id = id.text()?;
    let millis = id.split_once('-').and_then(|(millis, _)| millis.parse().ok()).unwrap_or_default();
    let mut fields = fields.hash()?;
    let mut text = |name: &str| fields.remove(name).unwrap_or_default();
    let entry = Entry {
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
    fn a_deed_names_who_and_what() {
        let deed = Deed::of(Some(ActorId(7)), Action::DeleteFlow, "flow 3");
        let json = r#"{"identity":"actor/7","action":"flow.delete","object":"flow 3","request_id":""}"#;
        assert_eq!(deed.json(), json);
        assert_eq!(Deed::from_json(json), Some(deed));
        assert_eq!(Deed::of(None, Action::DeleteFlow, "").identity, "admin");
        assert_eq!(Deed::by(Asker::Service, Action::DeleteFlow, ""), None);
    }
}
