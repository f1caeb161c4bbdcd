//! Usage counts for contexts made by versions that did not count what a context has.
//!
//! Every storage checks once, before its first sweep; completion is noted in the context. Each counted record
//! is marked, so that several storages may check at once, and an interrupted check is resumed.

use std::sync::atomic::Ordering;

use keys::ContextKey;
use kv::Cmd;
use model::Timestamp;

use crate::error::Result;
use crate::scripts;
use crate::store::TenantStore;

/// Records that one script looks at.
const COUNTED_AT_ONCE: usize = 200;

impl TenantStore {
    /// Counts the records of the context that were not counted when they were created.
    pub(crate) async fn count_kept(&self, now: Timestamp) -> Result<()> {
        if self.counted.load(Ordering::Relaxed) {
            return Ok(());
        }
        let counted = self.connection.cmd(Cmd::new("HGET").arg(&self.ids).arg("counted")).await?;
        if counted.is_nil() {
            let count = self.count_flows(now).await? + self.count_blobs(now).await?;
            let done = self.begin(&scripts::COUNT_KEPT, &[], None, now).named(kv::named![kind: "done"]);
            self.call(done).await?;
            tracing::info!(context = %self.id, count, "counted what an earlier version had made");
        }
        self.counted.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Flows that are made meanwhile are counted by themselves: it does not matter whether they are met here.
    async fn count_flows(&self, now: Timestamp) -> Result<u64> {
        let (mut from, mut count) = (0, 0);
        loop {
            let page = Cmd::new("ZRANGE").arg(&self.flows).arg(from).arg(from + COUNTED_AT_ONCE - 1);
            let ids = self.connection.cmd(page).await?.texts()?;
            if ids.is_empty() {
                return Ok(count);
            }
            count += self.count("flows", &ids, now).await?;
            from += ids.len();
        }
    }

    async fn count_blobs(&self, now: Timestamp) -> Result<u64> {
        let pattern = format!("{}blob:*", self.keys.prefix());
        let (mut cursor, mut count) = ("0".to_owned(), 0);
        loop {
            let scan = Cmd::new("SCAN").arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(1000);
            let [next, keys] = self.connection.cmd(scan).await?.tuple()?;
            let hashes = keys.texts()?.into_iter().filter_map(|key| match self.keys.parse(&key)? {
                ContextKey::Blob(hash) => Some(hash.to_string()),
                _ => None,
            });
            let hashes: Vec<String> = hashes.collect();
            for part in hashes.chunks(COUNTED_AT_ONCE) {
                count += self.count("blobs", part, now).await?;
            }
            cursor = next.text()?;
            if cursor == "0" {
                return Ok(count);
            }
        }
    }

    async fn count(&self, kind: &str, ids: &[String], now: Timestamp) -> Result<u64> {
        let change = self.begin(&scripts::COUNT_KEPT, &[], None, now).named(kv::named![kind: kind]).args(ids);
        Ok(self.call(change).await?.uint()?)
    }
}
