//! Bounds of what a context keeps of what has ended: flows are measured when they end, and the oldest go beyond the bounds.
//!
//! Flows go in small pieces, with a pause after each, so that running flows do not wait for it. While Redis is fuller than
//! [`RELIEF_PERCENT`], ended flows of the contexts that keep most go before their time: history never costs a submission.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use kv::{Cmd, Pipeline, Value};
use model::context::ContextSettings;
use model::{ContextId, ContextRetention, FlowId, JobKey, RunnerId, Timestamp};
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result};
use crate::messages::forgettable_attempts::{ForgettableAttempts, forgettable_by_runner};
use crate::messages::routers::StorageRouters;
use crate::scripts;
use crate::store::{Store, TenantStore};
use crate::sweeps::before;

/// Percentage of Redis' memory beyond which ended flows go before their time.
pub(crate) const RELIEF_PERCENT: u64 = 70;
/// How long an ended flow is kept however full Redis is: its submitter can still read the result.
pub(crate) const SPARED_SECS: u64 = 3600;
/// Pause between two passes while flows end: what ends meanwhile is measured together.
const GATHER: Duration = Duration::from_secs(2);
/// Keys that one script measures, about: a third of a millisecond of Redis.
const KEYS_MEASURED: u32 = 400;
/// Keys that one script removes, about. A flow of more keys is removed in parts.
const KEYS_REMOVED: u32 = 300;
/// Messages that one script removes.
const MESSAGES_REMOVED: u64 = 100;
/// How many times its duration a script is followed by a pause: Redis is there for others in between.
const PAUSE_FACTOR: u32 = 3;
/// Part of what a context keeps of ended flows that goes at once to relieve Redis.
const RELIEF_PART: u64 = 8;

/// Number of records that went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ExpiryCounts {
    pub(crate) flows: u64,
    pub(crate) messages: u64,
}

/// Bounds on ended flows in one pass.
#[derive(Debug, Clone, Copy)]
struct FlowBounds {
    ended_before: Timestamp,
    flows_max: u64,
    bytes_max: u64,
    /// Flows that ended later do not go for their bytes; absent: none is spared.
    spared_from: Option<Timestamp>,
}

/// Answer of the script that removes ended flows.
struct ExpiredFlows {
    removed: u64,
    /// Flow that is due and has to be removed in parts.
    large: Option<FlowId>,
    has_more: bool,
    forgets: Vec<(RunnerId, Vec<JobKey>)>,
}

impl Store {
    /// Measures flows when they have ended, and removes what is beyond the bounds, until `stop`.
    pub(crate) async fn retain_always(self, routers: StorageRouters, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.has_ended_flows().notified() => {}
            }
            if let Err(error) = self.retain_all(&routers, Timestamp::now()).await {
                tracing::warn!(%error, "ended flows could not be looked at; the next sweep does so");
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(GATHER) => {}
            }
        }
    }

    /// Notes that a flow has ended in a context, which is measured soon.
    pub(crate) fn note_ended_flow(&self, tenant: &TenantStore) {
        if !tenant.has_ended_flows.swap(true, Ordering::Relaxed) {
            self.has_ended_flows().notify_one();
        }
    }

    /// Looks at the contexts in which flows have ended here, and relieves Redis where it is too full.
    async fn retain_all(&self, routers: &StorageRouters, now: Timestamp) -> Result<()> {
        for tenant in self.known_tenants() {
            if tenant.has_ended_flows.swap(false, Ordering::Relaxed) {
                match self.retain(&tenant, routers, now).await {
                    // The context is being removed with everything in it, or exported: the next sweep looks at it again.
                    Ok(_) | Err(Error::NotFound(_) | Error::ContextDeleting | Error::ContextFrozen) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        let excess = self.excess_bytes().load(Ordering::Relaxed);
        if excess == 0 { Ok(()) } else { self.relieve(excess, routers, now).await }
    }

    /// Measures a context's ended flows, and removes those beyond its bounds.
    pub(crate) async fn retain(
        &self,
        tenant: &TenantStore,
        routers: &StorageRouters,
        now: Timestamp,
    ) -> Result<ExpiryCounts> {
        tenant.measure_flows(now).await?;
        let bounds = tenant.retention().await?;
        let flows = FlowBounds {
            ended_before: before(now, Duration::from_secs(bounds.ended_flow_keep_secs)),
            flows_max: bounds.ended_flows_max,
            bytes_max: bounds.ended_flow_bytes_max,
            spared_from: None,
        };
        let flows = self.expire_flows(tenant, flows, routers, now).await?;
        self.metrics().flows_expired.inc_by(flows);
        let messages = tenant.expire_messages(bounds, now).await?;
        self.metrics().messages_expired.inc_by(messages);
        Ok(ExpiryCounts { flows, messages })
    }

    /// Removes ended flows of the context that keeps most of them, about as many as Redis is too full by.
    async fn relieve(&self, excess: u64, routers: &StorageRouters, now: Timestamp) -> Result<()> {
        let mut most = None;
        for tenant in self.tenants().await? {
            let bytes = tenant.ended_flow_bytes().await?;
            if most.as_ref().is_none_or(|(greatest, _)| bytes > *greatest) {
                most = Some((bytes, tenant));
            }
        }
        let Some((bytes, tenant)) = most.filter(|(bytes, _)| *bytes > 0) else { return Ok(()) };
        let bounds = FlowBounds {
            ended_before: Timestamp::default(),
            flows_max: u64::MAX,
            bytes_max: bytes - excess.min(bytes.div_ceil(RELIEF_PART)),
            spared_from: Some(before(now, Duration::from_secs(SPARED_SECS))),
        };
        let flows = match self.expire_flows(&tenant, bounds, routers, now).await {
            // Nothing goes while the context is exported.
            Err(Error::ContextFrozen) => 0,
            flows => flows?,
        };
        self.metrics().flows_relieved.inc_by(flows);
        if flows > 0 {
            tracing::warn!(
                context = %tenant.id, flows,
                "Redis uses more than {RELIEF_PERCENT} % of its memory: the oldest ended flows were removed before their time"
            );
        }
        Ok(())
    }

    /// Removes ended flows beyond the bounds, in pieces. Returns how many went.
    async fn expire_flows(
        &self,
        tenant: &TenantStore,
        bounds: FlowBounds,
        routers: &StorageRouters,
        now: Timestamp,
    ) -> Result<u64> {
        let mut removed = 0;
        loop {
            let begun = Instant::now();
            let ExpiredFlows { removed: some, large, has_more, forgets } =
                tenant.expire_some_flows(bounds, now).await?;
            removed += some;
            routers.forget_attempts(forgettable_in(tenant.id, forgets));
            if let Some(flow) = large {
                match self.remove_flow_by(tenant.id, (flow, None), None, None, now).await {
                    Ok(forgets) => routers.forget_attempts(forgets),
                    // A concurrent removal was faster.
                    Err(Error::NotFound(_)) => {}
                    Err(error) => return Err(error),
                }
                removed += 1;
            } else if !has_more {
                return Ok(removed);
            }
            tokio::time::sleep(begun.elapsed() * PAUSE_FACTOR).await;
        }
    }
}

impl TenantStore {
    /// The bounds in force of what the context keeps.
    pub(crate) async fn retention(&self) -> Result<ContextRetention> {
        let settings = self.connection.cmd(Cmd::new("HGET").arg(&self.context).arg("settings")).await?;
        let settings = settings.optional_text()?.unwrap_or_default();
        // Bounds that cannot be read are the coordinator's: a program may have written there.
        let own = serde_json::from_str::<ContextSettings>(&settings).map(|settings| settings.retention);
        Ok(own.unwrap_or_default().within(self.quotas.retention()))
    }

    /// Bytes of ended flows that were measured.
    pub(crate) async fn ended_flow_bytes(&self) -> Result<u64> {
        let bytes = self.connection.cmd(Cmd::new("HGET").arg(&self.ids).arg("ended_flow_bytes")).await?;
        Ok(bytes.optional_text()?.and_then(|bytes| bytes.parse().ok()).unwrap_or_default())
    }

    /// Measures all flows that have ended and were not measured.
    async fn measure_flows(&self, now: Timestamp) -> Result<()> {
        if self.connection.cmd(Cmd::new("SCARD").arg(&self.keys.flows_unmeasured())).await?.uint()? == 0 {
            return Ok(());
        }
        loop {
            let begun = Instant::now();
            let change = self.begin(&scripts::MEASURE_FLOWS, &[], None, now);
            if self.call(change.named(kv::named![keys_max: KEYS_MEASURED])).await?.uint()? == 0 {
                return Ok(());
            }
            tokio::time::sleep(begun.elapsed() * PAUSE_FACTOR).await;
        }
    }

    /// Removes some ended flows, the oldest first.
    async fn expire_some_flows(&self, bounds: FlowBounds, now: Timestamp) -> Result<ExpiredFlows> {
        let FlowBounds { ended_before, flows_max, bytes_max, spared_from } = bounds;
        let ended = self.keys.flows_ended();
        let touched = scripts::EXPIRE_FLOWS.keys([
            ("flows_ended", &ended),
            ("blob_idle", &self.blob_idle),
            ("held", &self.held),
            ("dead_letters", &self.dead_letters),
            ("flows_active", &self.flows_active),
        ]);
        let change = self.begin(&scripts::EXPIRE_FLOWS, &touched, None, now).named(kv::named![
            ended_before: &ended_before.to_string(),
            flows_max: flows_max,
            bytes_max: bytes_max,
            spared_from: &spared_from.map(|from| from.to_string()).unwrap_or_default(),
            keys_max: KEYS_REMOVED,
        ]);
        Ok(expired_flows(self.call(change).await?)?)
    }

    /// Removes finished messages beyond the bounds. Returns how many went.
    async fn expire_messages(&self, bounds: ContextRetention, now: Timestamp) -> Result<u64> {
        let done = self.keys.letters_done();
        let marks = self.keys.event_marks();
        let until = before(now, Duration::from_secs(bounds.message_keep_secs)).to_string();
        let mut pipeline = Pipeline::new();
        pipeline.cmd(Cmd::new("ZCARD").arg(&done));
        // The last change that is known to be older than the bound.
        let mark = Cmd::new("ZREVRANGEBYSCORE").arg(&marks).arg(&until).arg("-inf");
        pipeline.cmd(mark.arg("LIMIT").arg(0).arg(1));
        let mut answers = self.connection.pipeline(&pipeline).await?.into_iter();
        let mut next = || answers.next().unwrap_or(Ok(Value::Nil));
        if next()?.uint()? == 0 {
            return Ok(0);
        }
        let settled_by = next()?.texts()?.into_iter().next().unwrap_or_else(|| "0".to_owned());
        let mut removed = 0;
        loop {
            let begun = Instant::now();
            let touched = scripts::EXPIRE_MESSAGES.keys([("letters_done", &done)]);
            let change = self.begin(&scripts::EXPIRE_MESSAGES, &touched, None, now).named(kv::named![
                settled_by: &settled_by,
                messages_max: bounds.messages_done_max,
                most: MESSAGES_REMOVED,
            ]);
            let some = self.call(change).await?.uint()?;
            removed += some;
            if some < MESSAGES_REMOVED {
                return Ok(removed);
            }
            tokio::time::sleep(begun.elapsed() * PAUSE_FACTOR).await;
        }
    }
}

fn expired_flows(answer: Value) -> kv::Result<ExpiredFlows> {
    let mut parts = answer.array()?.into_iter();
    let mut next = || parts.next().unwrap_or(Value::Nil);
    let (removed, large, has_more) = (next().uint()?, next().text()?, next().uint()? == 1);
    let texts = parts.map(Value::text).collect::<kv::Result<Vec<_>>>()?;
    let forgets = texts.chunks_exact(3).filter_map(|message| {
        let [flow, runner, keys] = message else { return None };
        // A value that a program has put under the key names no attempts.
        let keys = keys.split(' ').filter_map(|key| key.parse::<JobKey>().ok());
        let keys = keys.filter(|key| key.flow.to_string() == *flow).collect();
        Some((runner.parse().ok()?, keys))
    });
    Ok(ExpiredFlows { removed, large: large.parse().ok(), has_more, forgets: forgets.collect() })
}

/// Notices for supervisors about attempts that messages of removed flows carried.
fn forgettable_in(context: ContextId, forgets: Vec<(RunnerId, Vec<JobKey>)>) -> Vec<ForgettableAttempts> {
    let mut by_runner = std::collections::BTreeMap::<RunnerId, Vec<JobKey>>::new();
    for (runner, keys) in forgets {
        by_runner.entry(runner).or_default().extend(keys);
    }
    forgettable_by_runner(context, by_runner)
}
