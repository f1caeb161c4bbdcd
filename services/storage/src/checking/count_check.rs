//! Counters of what there is, compared with a count.
//!
//! Counting takes many reads. A count is valid only if the counters were the same before and after, since every change of what is
//! counted changes one of them, or the change counter.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use keys::ContextKey;
use kv::{Cmd, Pipeline, Value};
use model::ActorId;

use super::context_check::ContextCheck;
use super::key_pages::KeyPages;
use super::list_check::members_of;
use super::{CheckFinding, READ_AT_ONCE};
use crate::error::Result;
use crate::scripts;

/// Times that a context is counted that changes meanwhile.
const COUNT_TRIES: u32 = 3;
/// Counters of `ids` that are counted.
const COUNTERS: [&str; 4] = ["flows_open", "jobs_open", "ended_flow_bytes", "blob_bytes"];

/// Counters as they are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
struct StoredCounters {
    ids: BTreeMap<String, String>,
    inbox_bytes: BTreeMap<String, String>,
    /// Sizes of the lists that are counted.
    cards: Vec<u64>,
}

/// Counts of what a context has.
#[derive(Debug, Default)]
struct CountedRecords {
    /// By the counter.
    of_context: BTreeMap<&'static str, u64>,
    /// By the actor of the inbox.
    inbox_bytes: BTreeMap<String, u64>,
}

impl ContextCheck {
    /// Compares counters with what there is. Those of a context that keeps changing are named in the totals.
    pub(super) async fn check_counts(&mut self) -> Result<()> {
        for _ in 0..COUNT_TRIES {
            let before = self.stored_counters().await?;
            // An earlier version has counted nothing, which the next sweep makes up for.
            if !before.ids.contains_key("counted") {
                break;
            }
            let counted = self.count(&before).await?;
            if self.stored_counters().await? == before && self.compare(&before, &counted).await? {
                return Ok(());
            }
        }
        let names = COUNTERS.iter().copied().chain(["inbox_bytes"]);
        self.found.totals.uncounted = names.map(str::to_owned).collect();
        Ok(())
    }

    async fn stored_counters(&self) -> Result<StoredCounters> {
        let tenant = &self.tenant;
        let mut pipeline = Pipeline::new();
        for key in [&tenant.ids, &tenant.keys.inbox_bytes()] {
            pipeline.cmd(Cmd::new("HGETALL").arg(key));
        }
        for list in [&tenant.flows, &tenant.keys.flows_ended()] {
            pipeline.cmd(Cmd::new("ZCARD").arg(list));
        }
        for actor in &self.inboxes {
            pipeline.cmd(Cmd::new("ZCARD").arg(&tenant.keys.inbox(*actor)));
        }
        let mut answers = tenant.connection.pipeline(&pipeline).await?.into_iter();
        let mut hash = || answers.next().unwrap_or(Ok(Value::Nil)).and_then(Value::hash);
        let (ids, inbox_bytes) = (hash()?, hash()?);
        let cards = answers.map(|card| card?.uint()).collect::<kv::Result<_>>()?;
        Ok(StoredCounters { ids, inbox_bytes, cards })
    }

    async fn count(&self, before: &StoredCounters) -> Result<CountedRecords> {
        let (tenant, mut counted) = (Arc::clone(&self.tenant), CountedRecords::default());
        let of_flow = |id: &str| format!("{}flow:{id}", tenant.keys.prefix());
        let mut ended_bytes = 0;
        self.each_of(&tenant.keys.flows_ended(), of_flow, &["bytes"], |fields| {
            ended_bytes += fields.first().map_or(0, |bytes| number(bytes));
        })
        .await?;
        let [flows_open, jobs_open, blob_bytes] = self.count_marked().await?;
        counted.of_context =
            COUNTERS.into_iter().zip([flows_open, jobs_open, ended_bytes, blob_bytes]).collect();
        let named = before.inbox_bytes.keys().filter_map(|actor| actor.parse::<ActorId>().ok());
        let actors: BTreeSet<ActorId> = self.inboxes.iter().copied().chain(named).collect();
        for actor in actors {
            let (inbox, mut bytes) = (tenant.keys.inbox(actor), 0);
            self.each_of(&inbox, str::to_owned, &["inbox_bytes"], |fields| {
                bytes += fields.first().map_or(0, |bytes| number(bytes));
            })
            .await?;
            counted.inbox_bytes.insert(actor.to_string(), bytes);
        }
        Ok(counted)
    }

    /// Reads fields of every hash that a sorted set names.
    async fn each_of(
        &self,
        list: &str,
        key_of: impl Fn(&str) -> String,
        fields: &[&str],
        mut add: impl FnMut(&[String]),
    ) -> Result<()> {
        let (connection, mut cursor, mut seen) = (&self.tenant.connection, "0".to_owned(), HashSet::new());
        loop {
            let query = Cmd::new("ZSCAN").arg(list).arg(&cursor).arg("COUNT").arg(READ_AT_ONCE);
            let [next, entries] = connection.cmd(query).await?.tuple()?;
            let mut pipeline = Pipeline::new();
            for entry in members_of("ZSCAN", entries)? {
                let Ok(entry) = String::from_utf8(entry) else { continue };
                if self.tenant.keys.parse(&key_of(&entry)).is_some() && seen.insert(entry.clone()) {
                    pipeline.cmd(Cmd::new("HMGET").arg(&key_of(&entry)).args(fields.iter().copied()));
                }
            }
            for answer in connection.pipeline(&pipeline).await? {
                // A value of another type has no such fields.
                let Ok(values) = answer.and_then(Value::array) else { continue };
                let texts = values.into_iter().map(|value| value.text().unwrap_or_default());
                add(&texts.collect::<Vec<_>>());
            }
            cursor = next.text()?;
            if cursor == "0" {
                return Ok(());
            }
        }
    }

    /// Counts flows that have not ended, their nodes, and bytes of blobs, by the marks that say what counts.
    async fn count_marked(&self) -> Result<[u64; 3]> {
        let tenant = &self.tenant;
        let pattern = format!("{}*", tenant.keys.prefix());
        let (mut pages, mut seen) = (KeyPages::new(&tenant.connection, pattern), HashSet::new());
        let (mut flows_open, mut jobs_open, mut blob_bytes) = (0, 0, 0);
        while let Some(names) = pages.next().await? {
            let (mut pipeline, mut are_flows) = (Pipeline::new(), Vec::new());
            for name in names {
                let Ok(name) = String::from_utf8(name) else { continue };
                let Some(key) = tenant.keys.parse(&name) else { continue };
                let size = match key {
                    ContextKey::Flow(_) => "node_count",
                    ContextKey::Blob(_) => "size",
                    _ => continue,
                };
                let is_flow = matches!(key, ContextKey::Flow(_));
                if seen.insert(key) {
                    are_flows.push(is_flow);
                    pipeline.cmd(Cmd::new("HMGET").arg(&name).arg("counted").arg(size));
                }
            }
            for (is_flow, answer) in are_flows.into_iter().zip(tenant.connection.pipeline(&pipeline).await?) {
                let Ok([counted, size]) = answer.and_then(Value::tuple) else { continue };
                if counted.text().is_ok_and(|counted| counted == "1") {
                    let size = size.text().map_or(0, |size| number(&size));
                    if is_flow {
                        flows_open += 1;
                        jobs_open += size;
                    } else {
                        blob_bytes += size;
                    }
                }
            }
        }
        Ok([flows_open, jobs_open, blob_bytes])
    }

    /// Compares what was counted with what is stored. Returns false when something has changed meanwhile.
    async fn compare(&mut self, before: &StoredCounters, counted: &CountedRecords) -> Result<bool> {
        let (tenant, inbox_bytes) = (Arc::clone(&self.tenant), self.tenant.keys.inbox_bytes());
        let none = String::new();
        let revision = before.ids.get("revision").map_or("0", String::as_str);
        let of_context =
            counted.of_context.iter().map(|(field, count)| (&tenant.ids, *field, *count, &before.ids));
        let of_inboxes = counted
            .inbox_bytes
            .iter()
            .map(|(actor, count)| (&inbox_bytes, actor.as_str(), *count, &before.inbox_bytes));
        for (key, field, count, stored) in of_context.chain(of_inboxes) {
            let seen = stored.get(field).unwrap_or(&none);
            // A counter that is right is compared by no script.
            if number(seen) == count && (seen.is_empty() || seen.parse::<u64>().is_ok()) {
                continue;
            }
            let touched = scripts::CHECK_COUNT.keys([("counters", key)]);
            let change = self.begin(&scripts::CHECK_COUNT, &touched).named(kv::named![
                field: field,
                seen: seen,
                counted: &count.to_string(),
                revision: revision,
            ]);
            match super::checked(self.tenant.call(change).await)? {
                Value::Int(_) => return Ok(false),
                answer => self.found.add(CheckFinding::of_answer(answer)?),
            }
        }
        Ok(true)
    }
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_default()
}
