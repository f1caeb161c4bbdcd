//! Repair of the lists of flows by status, for flows that an older version without such lists has changed.
//!
//! Scripts update the lists when they change a flow's status. Every storage checks once, before its first sweep, whether a context
//! has the lists at all, and from time to time whether they are complete: during an upgrade, a storage that does not know the lists
//! may have changed a flow.

use std::sync::atomic::Ordering;

use kv::{Cmd, Pipeline};
use model::{FlowStatus, Timestamp};

use crate::error::Result;
use crate::mail::message_lists::scored_texts;
use crate::scripts;
use crate::store::TenantStore;

/// Flows that one script looks at.
const LISTED_AT_ONCE: usize = 200;

impl TenantStore {
    /// Returns true if every flow is in the list of its status.
    pub(crate) async fn has_lists(&self) -> Result<bool> {
        if self.listed.load(Ordering::Relaxed) {
            return Ok(true);
        }
        let query = Cmd::new("HGET").arg(&self.ids).arg("flows_listed");
        let listed = !self.connection.cmd(query).await?.is_nil();
        self.listed.store(listed, Ordering::Relaxed);
        Ok(listed)
    }

    /// Lists the flows that are in no list yet. With `looks`, whether any are is looked for where the lists were whole before.
    pub(crate) async fn list_flows(&self, looks: bool, now: Timestamp) -> Result<()> {
        let known = self.has_lists().await?;
        if known && !looks {
            return Ok(());
        }
        let is_whole = known && !self.lacks_some().await?;
        let mut changes = 0;
        if !is_whole {
            changes += self.list_all(&self.flows, now).await?;
        }
        // Only flows that have not ended change; the record of a flow shows when another version has left a wrong entry.
        for status in FlowStatus::ALL.into_iter().filter(|status| !is_whole || !status.is_end()) {
            changes += self.list_all(&self.keys.flows_of(status), now).await?;
        }
        if !known {
            let done = self.begin(&scripts::LIST_FLOWS, &[], None, now).named(kv::named![kind: "done"]);
            self.call(done).await?;
            self.listed.store(true, Ordering::Relaxed);
        }
        if changes > 0 {
            tracing::info!(context = %self.id, changes, "listed flows of an earlier version by status");
        }
        Ok(())
    }

    /// Returns true if the lists together do not have as many flows as there are.
    async fn lacks_some(&self) -> Result<bool> {
        let mut pipeline = Pipeline::new();
        pipeline.cmd(Cmd::new("ZCARD").arg(&self.flows));
        for status in FlowStatus::ALL {
            pipeline.cmd(Cmd::new("ZCARD").arg(&self.keys.flows_of(status)));
        }
        let mut cards = Vec::new();
        for answer in self.connection.pipeline(&pipeline).await? {
            cards.push(answer?.uint()?);
        }
        let (all, lists) = cards.split_first().map_or((0, &[][..]), |(all, lists)| (*all, lists));
        Ok(all != lists.iter().sum::<u64>())
    }

    /// Has the flows of a list stand in the right ones. Flows that change meanwhile are listed by themselves: it does not
    /// matter whether they are met here.
    async fn list_all(&self, list: &str, now: Timestamp) -> Result<u64> {
        let (mut after, mut changes) = ("-inf".to_owned(), 0);
        loop {
            let page = Cmd::new("ZRANGEBYSCORE").arg(list).arg(&after).arg("+inf").arg("WITHSCORES");
            let page = page.arg("LIMIT").arg(0).arg(LISTED_AT_ONCE);
            let flows = scored_texts(self.connection.cmd(page).await?)?;
            let Some((_, last)) = flows.last() else { return Ok(changes) };
            after = format!("({last}");
            let ids = flows.iter().map(|(id, _)| id);
            let call = self.begin(&scripts::LIST_FLOWS, &[], None, now).named(kv::named![kind: "flows"]);
            changes += self.call(call.args(ids)).await?.uint()?;
        }
    }
}
