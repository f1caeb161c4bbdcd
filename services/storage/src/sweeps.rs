//! Sweeps of what is no longer needed, at a quiet pace: blobs without references, old events, old audit entries, and what a context
//! keeps beyond its bounds.
//!
//! Every storage sweeps. Each script checks again, so that no blob is removed that has come into use meanwhile.

use std::sync::Arc;
use std::time::Duration;

use kv::Cmd;
use model::{ContextRetention, Timestamp, limits};
use prometheus::IntGaugeVec;
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result};
use crate::mail::message_lists::scored_texts;
use crate::messages::routers::StorageRouters;
use crate::metrics::CONTEXTS_LABELLED_MAX;
use crate::retention::ExpiryCounts;
use crate::scripts;
use crate::store::{Store, TenantStore};

/// The pause between two sweeps: a blob goes at most this long after its time.
const PAUSE: Duration = Duration::from_secs(60);
/// Events and the audit are looked at less often: their times are days.
const TRIMS_APART: Duration = Duration::from_secs(3600);
/// How long an unreferenced blob is kept.
const BLOB_IDLE: Duration = Duration::from_secs(limits::BLOB_IDLE_SECS as u64);
/// How long events of what belongs to no context are kept.
const EVENTS_KEEP: Duration = Duration::from_secs(limits::EVENTS_KEEP_SECS as u64);
/// How long audit records are kept.
const AUDIT_KEEP: Duration = Duration::from_secs(limits::AUDIT_KEEP_SECS as u64);
/// How far marks in the stream of events are apart.
const MARKS_APART: Duration = Duration::from_secs(3600);
/// Blobs that one script removes: each has up to 32 chunks, and three records besides.
const BLOBS_MAX: usize = 25;

/// Result of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StorageSweepReport {
    /// How many blobs went.
    pub blobs: u64,
    /// How many events went.
    pub events: u64,
    /// How many ended flows went.
    pub flows: u64,
    /// How many finished messages went.
    pub messages: u64,
    /// When the next blob comes of age, as far as is known.
    pub next: Option<Timestamp>,
}

impl Store {
    /// Sweeps until `stop`.
    pub(crate) async fn sweep_always(self, routers: StorageRouters, stop: CancellationToken) {
        let mut trimmed: Option<Timestamp> = None;
        loop {
            let now = Timestamp::now();
            let trims = trimmed.is_none_or(|trimmed| now.since(trimmed) >= TRIMS_APART);
            match self.sweep_and(&routers, now, trims).await {
                Ok(_) if trims => trimmed = Some(now),
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, "sweeping failed; the next sweep goes on with it"),
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }

    /// Removes everything that is old enough at this moment, in all contexts.
    pub(crate) async fn sweep(&self, routers: &StorageRouters, now: Timestamp) -> Result<StorageSweepReport> {
        self.sweep_and(routers, now, true).await
    }

    /// Sweeps all contexts; events and the audit only if it `trims`.
    async fn sweep_and(
        &self,
        routers: &StorageRouters,
        now: Timestamp,
        trims: bool,
    ) -> Result<StorageSweepReport> {
        let mut all = StorageSweepReport {
            events: if trims { self.trim(now).await? } else { 0 },
            ..StorageSweepReport::default()
        };
        let tenants = self.tenants().await?;
        self.show_contexts(&tenants).await?;
        for tenant in &tenants {
            let swept = match self.sweep_context(tenant, routers, now, trims).await {
                // The context is being removed with everything in it, or exported: the next sweep finds it as it is then.
                Err(Error::NotFound(_) | Error::ContextDeleting | Error::ContextFrozen) => continue,
                swept => swept?,
            };
            // The first sweep makes up for a storage that died before it recorded the sum of blob bytes.
            if trims || swept.blobs > 0 {
                match self.record_blob_bytes(tenant.id, tenant.blob_bytes().await?).await {
                    // The first sweep that finds room records the sum.
                    Err(Error::Store(kv::Error::Oom(_))) => {}
                    recorded => recorded?,
                }
            }
            all.blobs += swept.blobs;
            all.events += swept.events;
            all.flows += swept.flows;
            all.messages += swept.messages;
            all.next = all.next.into_iter().chain(swept.next).min();
        }
        self.metrics().blobs_removed.inc_by(all.blobs);
        self.metrics().events_trimmed.inc_by(all.events);
        let StorageSweepReport { blobs, events, flows, messages, next: _ } = all;
        if blobs + events + flows + messages > 0 {
            tracing::info!(blobs, events, flows, messages, "swept");
        }
        Ok(all)
    }

    async fn sweep_context(
        &self,
        tenant: &TenantStore,
        routers: &StorageRouters,
        now: Timestamp,
        trims: bool,
    ) -> Result<StorageSweepReport> {
        let swept = tenant.sweep(now, trims).await?;
        let ExpiryCounts { flows, messages } = self.retain(tenant, routers, now).await?;
        Ok(StorageSweepReport { flows, messages, ..swept })
    }

    /// Shows in metrics what the first contexts have. Those of contexts that are gone are removed.
    async fn show_contexts(&self, tenants: &[Arc<TenantStore>]) -> Result<()> {
        let metrics = self.metrics();
        metrics.context_records.reset();
        metrics.context_bytes.reset();
        for tenant in tenants.iter().take(CONTEXTS_LABELLED_MAX) {
            let counts = tenant.counts().await?;
            let context = tenant.id.to_string();
            let show = |gauge: &IntGaugeVec, kind: &str, value: u64| {
                gauge.with_label_values(&[&context, kind]).set(i64::try_from(value).unwrap_or(i64::MAX));
            };
            for (kind, records) in counts.records() {
                show(&metrics.context_records, kind, records);
            }
            for (kind, bytes) in counts.bytes() {
                show(&metrics.context_bytes, kind, bytes);
            }
        }
        Ok(())
    }

    /// Trims the global events and the global audit.
    async fn trim(&self, now: Timestamp) -> Result<u64> {
        let (marks, audit) = (self.keys().event_marks(), self.keys().audit());
        let change = self.begin_global(&scripts::TRIM_GLOBAL, &[&marks, &audit], now).named(kv::named![
            events_from: &before(now, EVENTS_KEEP).to_string(),
            audit_from_millis: before(now, AUDIT_KEEP).as_millis(),
            mark_from: &before(now, MARKS_APART).to_string(),
        ]);
        Ok(self.call_global(change).await?.uint()?)
    }
}

impl TenantStore {
    async fn sweep(&self, now: Timestamp, trims: bool) -> Result<StorageSweepReport> {
        self.count_kept(now).await?;
        self.list_flows(trims, now).await?;
        let events = if trims { self.trim(now, self.retention().await?).await? } else { 0 };
        let mut blobs = 0;
        // Mostly there are no unreferenced blobs.
        let mut next = self.next_idle().await?;
        while next.is_some_and(|next| next <= now) {
            let idle = self.idle_blobs(before(now, BLOB_IDLE)).await?;
            if idle.is_empty() {
                break;
            }
            let change = self
                .begin(&scripts::COLLECT_BLOBS, &[&self.blob_idle], None, now)
                .named(kv::named![idle_since: &before(now, BLOB_IDLE).to_string()])
                .args(&idle);
            blobs += self.call(change).await?.uint()?;
            next = self.next_idle().await?;
        }
        Ok(StorageSweepReport { blobs, events, next, ..StorageSweepReport::default() })
    }

    async fn trim(&self, now: Timestamp, bounds: ContextRetention) -> Result<u64> {
        let marks = self.keys.event_marks();
        let events_keep = Duration::from_secs(bounds.events_keep_secs);
        let change = self.begin(&scripts::TRIM, &[&marks], None, now).named(kv::named![
            events_from: &before(now, events_keep).to_string(),
            audit_from_millis: before(now, AUDIT_KEEP).as_millis(),
            mark_from: &before(now, MARKS_APART).to_string(),
        ]);
        Ok(self.call(change).await?.uint()?)
    }

    /// Some of the blobs that were idle at this moment already.
    async fn idle_blobs(&self, since: Timestamp) -> Result<Vec<String>> {
        let query = Cmd::new("ZRANGEBYSCORE").arg(&self.blob_idle).arg("-inf").arg(&since.to_string());
        Ok(self.connection.cmd(query.arg("LIMIT").arg(0).arg(BLOBS_MAX)).await?.texts()?)
    }

    /// When the blob that is idle for longest comes of age.
    async fn next_idle(&self) -> Result<Option<Timestamp>> {
        let query = Cmd::new("ZRANGE").arg(&self.blob_idle).arg(0).arg(0).arg("WITHSCORES");
        let oldest = scored_texts(self.connection.cmd(query).await?)?;
        let Some((_, since)) = oldest.first() else { return Ok(None) };
        let since: f64 = since.parse().unwrap_or_default();
        Ok(Duration::try_from_secs_f64(since).ok().map(|since| Timestamp::default() + since + BLOB_IDLE))
    }
}

/// The moment `earlier` before `now`, or the beginning of time.
pub(crate) fn before(now: Timestamp, earlier: Duration) -> Timestamp {
    let millis = u64::try_from(earlier.as_millis()).unwrap_or(u64::MAX);
    Timestamp::from_millis(now.as_millis().saturating_sub(millis))
}
