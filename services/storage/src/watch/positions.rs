//! Where each context's stream stood when this storage last wrote or read it.
//!
//! That position must still exist. If it does not, Redis has lost changes that were already reported to others. Every script checks
//! for it before it changes anything, so that nothing is built on the remaining state before everyone is notified. Where nothing
//! changes, it is checked after each reconnect.

use std::sync::Mutex;
use std::time::Duration;

use kv::{Cmd, KvConnection};
use model::ContextUid;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result};
use crate::store::{TenantStore, lock};
use crate::watch::events::{EventHub, EventPosition, Hint};

/// The pause after a failed look.
const RETRY: Duration = Duration::from_millis(200);

/// Latest position seen in a stream, and its context's uid: a new context of the same id has a stream of
/// its own.
#[derive(Debug, Default)]
pub(crate) struct LastSeenPosition(Mutex<Option<(Option<ContextUid>, EventPosition)>>);

impl LastSeenPosition {
    /// Notes a position, unless a later one of the same context is noted already.
    pub(crate) fn note(&self, context: Option<ContextUid>, position: EventPosition) {
        let mut seen = lock(&self.0);
        let is_later = seen.is_none_or(|(known, latest)| known != context || position.is_after(latest));
        if is_later {
            *seen = Some((context, position));
        }
    }

    /// The latest place.
    pub(crate) fn latest(&self) -> Option<(Option<ContextUid>, EventPosition)> {
        *lock(&self.0)
    }

    /// The latest place of this context's stream, as scripts look for it; empty for none.
    pub(crate) fn text(&self, context: Option<ContextUid>) -> String {
        match self.latest() {
            Some((known, at)) if known == context => format!("{} {:016x}", at.entry_id(), at.bits),
            _ => String::new(),
        }
    }

    /// Forgets the position, since the stream was replaced.
    pub(crate) fn forget(&self) {
        *lock(&self.0) = None;
    }
}

impl EventHub {
    /// Checks at every reconnect whether Redis has lost changes, until `stop`; if so, notifies everyone who relies on them.
    pub(crate) async fn check_reconnects(self, stop: CancellationToken) {
        let mut hints = self.hints();
        loop {
            let hint = tokio::select! {
                () = stop.cancelled() => return,
                hint = hints.recv() => hint,
            };
            match hint {
                Ok(Hint::Missed) | Err(RecvError::Lagged(_)) => {}
                Ok(_) => continue,
                Err(RecvError::Closed) => return,
            }
            let went_back = loop {
                match self.has_gone_back().await {
                    Ok(went_back) => break went_back,
                    Err(error) => {
                        tracing::warn!(%error, "checking Redis for lost changes failed, trying again")
                    }
                }
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(RETRY) => {}
                }
            };
            if went_back {
                self.went_back().send_modify(|times| *times += 1);
            }
        }
    }

    /// Returns true if a change is gone that was written or read before. The positions of such streams are forgotten.
    async fn has_gone_back(&self) -> Result<bool> {
        let store = self.store();
        let mut gone = false;
        if let Some((_, position)) = store.seen().latest()
            && is_gone(store.connection(), &store.keys().events(), position).await?
        {
            tracing::error!(%position, "Redis has lost changes outside contexts");
            store.seen().forget();
            gone = true;
        }
        for tenant in store.known_tenants() {
            let Some((uid, position)) = tenant.seen.latest() else { continue };
            if !is_same(&tenant, uid).await? {
                // The context was removed. If Redis lost that removal, the global stream shows it.
                tenant.forget_seen();
            } else if is_gone(&tenant.connection, &tenant.events, position).await? {
                tracing::error!(context = %tenant.id, %position, "Redis has lost changes");
                tenant.forget_seen();
                gone = true;
            }
        }
        Ok(gone)
    }
}

/// Returns true if the context is the one whose stream was seen.
async fn is_same(tenant: &TenantStore, uid: Option<ContextUid>) -> Result<bool> {
    let known = tenant.connection.cmd(Cmd::new("HGET").arg(&tenant.context).arg("uid")).await?;
    Ok(known.optional_text()? == uid.map(|uid| uid.to_string()))
}

impl TenantStore {
    /// Forgets the position and the cached context, and makes the tailer check its stream.
    pub(crate) fn forget_seen(&self) {
        self.seen.forget();
        self.last_context.forget();
        self.feed.doubt();
    }

    /// Notes the present end of the stream, for callers that rely on what they read next.
    pub(crate) async fn note_last(&self, uid: ContextUid) -> Result<()> {
        let last = self.last_position().await?;
        // The noted position is not replaced before it is checked: the present stream may lack it.
        if let Some((known, seen)) = self.seen.latest()
            && known == Some(uid)
            && seen != last
            && is_gone(&self.connection, &self.events, seen).await?
        {
            self.report_went_back();
            return Err(Error::StoreWentBack);
        }
        self.seen.note(Some(uid), last);
        Ok(())
    }
}

/// Returns true if a position is missing from the stream, unless trimming removed it.
async fn is_gone(connection: &KvConnection, stream: &str, position: EventPosition) -> Result<bool> {
    if position.is_in(connection, stream).await? {
        return Ok(false);
    }
    let Some(first) = EventPosition::first(connection, stream).await? else { return Ok(true) };
    Ok(!first.is_after(position))
}
