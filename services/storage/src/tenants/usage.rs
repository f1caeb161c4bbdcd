//! How much a context has: counts are exact, bytes of what is not counted in bytes are extrapolated from samples.
//!
//! A look costs some hundred short commands, whatever the context has.

use std::collections::BTreeSet;

use keys::ContextKey;
use kv::{Cmd, Pipeline, Value};
use model::{ActorId, ContextId, ContextRetention, FlowId, FlowStatus, JobId, RunnerId};

use crate::error::Result;
use crate::messages::message_holds::parse_message_key;
use crate::store::{Store, TenantStore};
use crate::tenants::permission::{self, ContextAction};
use crate::tenants::quotas::Quota;

/// Records of a kind that are measured for all.
const SAMPLE: usize = 64;
/// Jobs of one flow that are measured for all.
const JOBS_SAMPLED: u32 = 16;
/// Keys of the server among which remembered request ids are counted.
const SCANNED: u64 = 5000;
/// Events that a stream keeps at most, about: `emit` in `prelude.lua`.
const EVENTS_MAX: u64 = 1_000_000;

/// Kind of what a context has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UsageKind {
    FlowsOpen,
    JobsOpen,
    FlowsEnded,
    JobsStored,
    Messages,
    Events,
    Audit,
    Blobs,
    Runners,
    Requests,
}

/// How much a context has of one kind. A maximum of 0 is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UsageEntry {
    pub(crate) kind: UsageKind,
    pub(crate) count: u64,
    pub(crate) count_max: u64,
    pub(crate) bytes: u64,
    pub(crate) bytes_max: u64,
    pub(crate) is_estimated: bool,
}

/// How much a context has of each kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ContextUsage {
    pub(crate) entries: Vec<UsageEntry>,
    pub(crate) retention: ContextRetention,
}

/// Counts of a context: numbers of records, and bytes of what is counted in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ContextCounts {
    flows_open: u64,
    jobs_open: u64,
    flows_ended: u64,
    flows_unmeasured: u64,
    jobs_stored: u64,
    messages: u64,
    events: u64,
    audit: u64,
    runners: u64,
    ended_flow_bytes: u64,
    blob_bytes: u64,
}

/// Mean size of sampled records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct SampledBytes {
    bytes: u64,
    records: u64,
}

impl SampledBytes {
    /// Bytes of `count` such records.
    fn of(self, count: u64) -> u64 {
        let bytes = u128::from(self.bytes) * u128::from(count) / u128::from(self.records.max(1));
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

impl ContextUsage {
    /// Bytes that the context takes.
    pub(crate) fn bytes(&self) -> u64 {
        self.entries.iter().map(|entry| entry.bytes).sum()
    }

    /// Bytes that it takes at most; of what has no bound in bytes what it has now.
    pub(crate) fn bytes_max(&self) -> u64 {
        let most = |entry: &UsageEntry| if entry.bytes_max > 0 { entry.bytes_max } else { entry.bytes };
        self.entries.iter().map(most).fold(0, u64::saturating_add)
    }
}

impl ContextCounts {
    /// Numbers of records, each with the name of its kind.
    pub(crate) const fn records(&self) -> [(&'static str, u64); 8] {
        [
            ("flows_open", self.flows_open),
            ("jobs_open", self.jobs_open),
            ("flows_ended", self.flows_ended + self.flows_unmeasured),
            ("jobs_stored", self.jobs_stored),
            ("messages", self.messages),
            ("events", self.events),
            ("audit", self.audit),
            ("runners", self.runners),
        ]
    }

    /// Bytes of what is counted in bytes, each with the name of its kind.
    pub(crate) const fn bytes(&self) -> [(&'static str, u64); 2] {
        [("flows_ended", self.ended_flow_bytes), ("blobs", self.blob_bytes)]
    }
}

impl Store {
    /// How much a context has; for its readers, and for the bootstrap identity.
    pub(crate) async fn context_usage(&self, id: ContextId, asker: Option<ActorId>) -> Result<ContextUsage> {
        let (tenant, context) = self.context(id).await?;
        permission::allow_administrator(&context, asker, ContextAction::Read)?;
        let counts = tenant.counts().await?;
        let retention = context.settings.retention.within(tenant.quotas.retention());
        Ok(ContextUsage { entries: tenant.usage_entries(&counts, retention).await?, retention })
    }
}

impl TenantStore {
    /// Counts what the context has, in one round trip.
    pub(crate) async fn counts(&self) -> Result<ContextCounts> {
        let keys = &self.keys;
        let mut pipeline = Pipeline::new();
        let counters = Cmd::new("HMGET").arg(&self.ids).arg("flows_open").arg("jobs_open");
        pipeline.cmd(counters.arg("ended_flow_bytes").arg("blob_bytes"));
        pipeline.cmd(Cmd::new("ZCARD").arg(&keys.flows_ended()));
        pipeline.cmd(Cmd::new("SCARD").arg(&keys.flows_unmeasured()));
        pipeline.cmd(Cmd::new("ZCARD").arg(&keys.jobs()));
        pipeline.cmd(Cmd::new("ZCARD").arg(&self.letters));
        pipeline.cmd(Cmd::new("XLEN").arg(&self.events));
        pipeline.cmd(Cmd::new("XLEN").arg(&keys.audit()));
        pipeline.cmd(Cmd::new("SCARD").arg(&keys.runners()));
        let mut answers = self.connection.pipeline(&pipeline).await?.into_iter();
        let mut next = || answers.next().unwrap_or(Ok(Value::Nil));
        let [flows_open, jobs_open, ended_flow_bytes, blob_bytes] = next()?.tuple()?;
        // Counters that other programs broke count as 0.
        let number = |value: Value| value.uint().unwrap_or_default();
        Ok(ContextCounts {
            flows_open: number(flows_open),
            jobs_open: number(jobs_open),
            ended_flow_bytes: number(ended_flow_bytes),
            blob_bytes: number(blob_bytes),
            flows_ended: number(next()?),
            flows_unmeasured: number(next()?),
            jobs_stored: number(next()?),
            messages: number(next()?),
            events: number(next()?),
            audit: number(next()?),
            runners: number(next()?),
        })
    }

    async fn usage_entries(
        &self,
        counts: &ContextCounts,
        retention: ContextRetention,
    ) -> Result<Vec<UsageEntry>> {
        let keys = &self.keys;
        let entry = |kind, count, count_max, bytes| UsageEntry {
            kind,
            count,
            count_max,
            bytes,
            bytes_max: 0,
            is_estimated: true,
        };
        let quota = |quota| self.quotas.of(quota);
        let ended = SampledBytes { bytes: counts.ended_flow_bytes, records: counts.flows_ended };
        let flows = counts.flows_ended + counts.flows_unmeasured;
        let [events, audit] = [self.events.clone(), keys.audit()];
        let [events, audit] =
            [self.measure(vec![events]).await?.bytes, self.measure(vec![audit]).await?.bytes];
        let events_each = SampledBytes { bytes: events, records: counts.events };
        let (requests, request_bytes) = self.remembered_requests().await?;
        let open = self.open_flow_bytes().await?.of(counts.flows_open);
        let jobs = self.stored_job_bytes().await?.of(counts.jobs_stored);
        let messages = self.message_bytes().await?.of(counts.messages);
        let runners = self.runner_bytes().await?.of(counts.runners);
        Ok(vec![
            entry(UsageKind::FlowsOpen, counts.flows_open, quota(Quota::ContextFlowsOpen), open),
            UsageEntry {
                is_estimated: false,
                ..entry(UsageKind::JobsOpen, counts.jobs_open, quota(Quota::ContextJobsOpen), 0)
            },
            UsageEntry {
                bytes_max: retention.ended_flow_bytes_max,
                is_estimated: counts.flows_unmeasured > 0,
                ..entry(UsageKind::FlowsEnded, flows, retention.ended_flows_max, ended.of(flows))
            },
            entry(UsageKind::JobsStored, counts.jobs_stored, quota(Quota::ContextJobsKept), jobs),
            entry(UsageKind::Messages, counts.messages, 0, messages),
            UsageEntry {
                bytes_max: events_each.of(EVENTS_MAX),
                ..entry(UsageKind::Events, counts.events, EVENTS_MAX, events)
            },
            entry(UsageKind::Audit, counts.audit, 0, audit),
            UsageEntry {
                bytes_max: quota(Quota::ContextBlobBytes),
                is_estimated: false,
                ..entry(UsageKind::Blobs, 0, 0, counts.blob_bytes)
            },
            entry(UsageKind::Runners, counts.runners, quota(Quota::ContextRunners), runners),
            entry(UsageKind::Requests, requests, 0, request_bytes),
        ])
    }

    /// Bytes of these keys together, and how many of them exist.
    async fn measure(&self, keys: Vec<String>) -> Result<SampledBytes> {
        let mut sampled = SampledBytes::default();
        if keys.is_empty() {
            return Ok(sampled);
        }
        let mut pipeline = Pipeline::new();
        for key in &keys {
            pipeline.cmd(Cmd::new("MEMORY").arg("USAGE").arg(key));
        }
        for answer in self.connection.pipeline(&pipeline).await? {
            if let Ok(bytes) = answer?.uint() {
                sampled.bytes += bytes;
                sampled.records += 1;
            }
        }
        Ok(sampled)
    }

    /// Some members of a set or a sorted set.
    async fn sample_of(&self, command: &str, key: &str, count: usize) -> Result<Vec<String>> {
        let members = self.connection.cmd(Cmd::new(command).arg(key).arg(count)).await?.texts()?;
        Ok(members.into_iter().collect::<BTreeSet<_>>().into_iter().collect())
    }

    async fn stored_job_bytes(&self) -> Result<SampledBytes> {
        let jobs = self.sample_of("ZRANDMEMBER", &self.keys.jobs(), SAMPLE).await?;
        let key = |job: &String| {
            let (caller, id) = job.split_once(':')?;
            Some(self.keys.job(caller.parse().ok()?, id.parse().ok()?))
        };
        self.measure(jobs.iter().filter_map(key).collect()).await
    }

    async fn message_bytes(&self) -> Result<SampledBytes> {
        let messages = self.sample_of("ZRANDMEMBER", &self.letters, SAMPLE).await?;
        let known = messages
            .into_iter()
            .filter(|key| key.strip_prefix(self.keys.prefix()).and_then(parse_message_key).is_some());
        self.measure(known.collect()).await
    }

    async fn runner_bytes(&self) -> Result<SampledBytes> {
        let runners = self.sample_of("SRANDMEMBER", &self.keys.runners(), SAMPLE).await?;
        let keys = runners.iter().filter_map(|id| id.parse::<RunnerId>().ok()).map(|id| self.keys.runner(id));
        self.measure(keys.collect()).await
    }

    /// Mean size of flows that have not ended, with their nodes, jobs and messages.
    async fn open_flow_bytes(&self) -> Result<SampledBytes> {
        let mut all = SampledBytes::default();
        for status in FlowStatus::ALL.into_iter().filter(|status| !status.is_end()) {
            for flow in self.sample_of("ZRANDMEMBER", &self.keys.flows_of(status), SAMPLE / 4).await? {
                let Ok(flow) = flow.parse::<FlowId>() else { continue };
                all.bytes += self.one_open_flow_bytes(flow).await?;
                all.records += 1;
            }
        }
        Ok(all)
    }

    async fn one_open_flow_bytes(&self, flow: FlowId) -> Result<u64> {
        let (keys, record) = (&self.keys, self.keys.flow(flow));
        let query = Cmd::new("HMGET").arg(&record).arg("caller_id").arg("first_job_id").arg("node_count");
        let [caller, first, count] = self.connection.cmd(query).await?.tuple()?;
        let own = vec![record, keys.flow_nodes(flow), keys.flow_messages(flow), keys.flow_signals(flow)];
        let own = self.measure(own).await?.bytes;
        let (Ok(caller), Ok(first), Ok(count)) = (caller.uint(), first.uint(), count.uint()) else {
            return Ok(own);
        };
        let number = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        let (caller, first) = (ActorId(number(caller)), number(first));
        let jobs = (0..number(count).min(JOBS_SAMPLED)).map(|n| JobId(first.saturating_add(n)));
        let jobs = self.measure(jobs.map(|job| keys.job(caller, job)).collect()).await?;
        let carriers = self.sample_of("SRANDMEMBER", &keys.flow_messages(flow), SAMPLE / 4).await?;
        let carriers = self.measure(carriers).await?.of(count);
        Ok(own + jobs.of(count) + carriers)
    }

    /// Number and bytes of remembered request ids, and of marks of received messages: their share of some keys of the server.
    async fn remembered_requests(&self) -> Result<(u64, u64)> {
        let mut pipeline = Pipeline::new();
        pipeline.cmd(Cmd::new("SCAN").arg("0").arg("COUNT").arg(SCANNED));
        pipeline.cmd(Cmd::new("DBSIZE"));
        let mut answers = self.connection.pipeline(&pipeline).await?.into_iter();
        let mut next = || answers.next().unwrap_or(Ok(Value::Nil));
        let [_, scanned] = next()?.tuple()?;
        let (scanned, all) = (scanned.texts()?, next()?.uint()?);
        let is_one = |key: &&String| {
            matches!(self.keys.parse(key), Some(ContextKey::Request(..) | ContextKey::Seen(_)))
        };
        let found: Vec<String> = scanned.iter().filter(is_one).cloned().collect();
        let share = SampledBytes { bytes: found.len() as u64, records: scanned.len() as u64 };
        let count = share.of(all);
        let sample = found.into_iter().take(SAMPLE).collect();
        Ok((count, self.measure(sample).await?.of(count)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_stands_for_all() {
        assert_eq!(SampledBytes { bytes: 300, records: 3 }.of(1000), 100_000);
        assert_eq!(SampledBytes::default().of(1000), 0);
        assert_eq!(SampledBytes { bytes: u64::MAX, records: 1 }.of(2), u64::MAX);
    }

    #[test]
    fn the_bound_of_all_counts_what_has_none_as_it_is() {
        let entry = |bytes, bytes_max| UsageEntry {
            kind: UsageKind::Audit,
            count: 1,
            count_max: 0,
            bytes,
            bytes_max,
            is_estimated: false,
        };
        let entries = vec![entry(10, 0), entry(5, 100)];
        let usage = ContextUsage { entries, retention: ContextRetention::default() };
        assert_eq!((usage.bytes(), usage.bytes_max()), (15, 110));
    }
}
