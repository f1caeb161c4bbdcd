//! Repair of the lists of flows by status, and of those that are over, for flows that an older version without such lists has changed.
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

    /// Returns true if an older version has listed the flows by status, and none that are over.
    async fn lacks_ended(&self) -> Result<bool> {
        let listed = self.connection.cmd(Cmd::new("HGET").arg(&self.ids).arg("flows_listed")).await?;
        Ok(listed.optional_text()?.as_deref() == Some("1"))
    }

    /// Lists the flows that are in no list yet. With `looks`, whether any are is looked for where the lists were whole before.
    pub(crate) async fn list_flows(&self, looks: bool, now: Timestamp) -> Result<()> {
        let known = self.has_lists().await?;
        if known && !looks {
            return Ok(());
        }
        let lacks_ended = known && self.lacks_ended().await?;
        let is_whole = known && !lacks_ended && !self.lacks_some().await?;
        let mut changes = 0;
        if !is_whole {
            changes += self.list_all(&self.flows, now).await?;
        }
        // Only flows that have not ended change; the record of a flow shows when another version has left a wrong entry.
        for status in FlowStatus::ALL.into_iter().filter(|status| !is_whole || !status.is_end()) {
            changes += self.list_all(&self.keys.flows_of(status), now).await?;
        }
        if !known || lacks_ended {
            let done = self.begin(&scripts::LIST_FLOWS, &[], None, now).named(kv::named![kind: "done"]);
            self.call(done).await?;
            self.listed.store(true, Ordering::Relaxed);
        }
        if changes > 0 {
            tracing::info!(context = %self.id, changes, "listed flows of an earlier version by status");
        }
        Ok(())
    }

    /// Returns true if the lists together do not have as many flows as there are, or those of flows that are over lack some.
    async fn lacks_some(&self) -> Result<bool> {
        let mut pipeline = Pipeline::new();
        pipeline.cmd(Cmd::new("ZCARD").arg(&self.flows));
        pipeline.cmd(Cmd::new("ZCARD").arg(&self.keys.flows_ended()));
        pipeline.cmd(Cmd::new("SCARD").arg(&self.keys.flows_unmeasured()));
        for status in FlowStatus::ALL {
            pipeline.cmd(Cmd::new("ZCARD").arg(&self.keys.flows_of(status)));
        }
        let mut cards = Vec::new();
        for answer in self.connection.pipeline(&pipeline).await? {
            cards.push(answer?.uint()?);
        }
        let [all, measured, unmeasured, lists @ ..] = cards.as_slice() else { return Ok(true) };
        let ended = FlowStatus::ALL.into_iter().zip(lists).filter(|(status, _)| status.is_end());
        let ended: u64 = ended.map(|(_, card)| card).sum();
        Ok(*all != lists.iter().sum::<u64>() || measured + unmeasured < ended)
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
