//! Lists, and the records that they name.

use std::sync::Arc;

use keys::ContextKey;
use kv::{Cmd, Pipeline, Value};
use model::{ActorId, FlowId, RunnerId};

use super::context_check::{ContextCheck, counter_of};
use super::{CHECKED_AT_ONCE, FindingCode, READ_AT_ONCE};
use crate::error::Result;
use crate::scripts;
use crate::store::TenantStore;

impl ContextCheck {
    /// Checks a list, or another key that is not checked by itself.
    ///
    /// Entries of flows that are over or gone in `flows_active` are no findings: the end of a flow for which one has waited enters
    /// it, and the next scheduler that looks at it removes it.
    pub(super) async fn check_list(&mut self, list: &ContextKey) -> Result<()> {
        let scan = match list {
            ContextKey::FlowsUnmeasured | ContextKey::Runners | ContextKey::FlowMessages(_) => "SSCAN",
            ContextKey::Flows
            | ContextKey::FlowsOf(_)
            | ContextKey::FlowsEnded
            | ContextKey::Due
            | ContextKey::Jobs
            | ContextKey::Letters
            | ContextKey::LettersDone
            | ContextKey::DeadLetters
            | ContextKey::Inbox(_) => "ZSCAN",
            _ => return Ok(()),
        };
        if let ContextKey::Inbox(actor) = list {
            self.inboxes.insert(*actor);
        }
        let tenant = Arc::clone(&self.tenant);
        let (name, mut cursor) = (tenant.keys.key(list), "0".to_owned());
        loop {
            let query = Cmd::new(scan).arg(&name).arg(&cursor).arg("COUNT").arg(READ_AT_ONCE);
            let [next, entries] = match tenant.connection.cmd(query).await {
                // The key was replaced since its type was read.
                Err(error) if error.code() == Some("WRONGTYPE") => return Ok(()),
                page => page?.tuple()?,
            };
            let entries = members_of(scan, entries)?;
            for entries in entries.chunks(READ_AT_ONCE) {
                self.check_entries(list, entries).await?;
            }
            self.found.send().await;
            cursor = next.text()?;
            if cursor == "0" || self.found.is_abandoned() {
                return Ok(());
            }
        }
    }

    async fn check_entries(&mut self, list: &ContextKey, entries: &[Vec<u8>]) -> Result<()> {
        match list {
            ContextKey::Due => self.check_due(entries).await,
            ContextKey::Runners => {
                let ids = self.numbers(list, entries);
                self.check_runners(&ids.into_iter().map(RunnerId).collect::<Vec<_>>()).await
            }
            ContextKey::Flows
            | ContextKey::FlowsOf(_)
            | ContextKey::FlowsEnded
            | ContextKey::FlowsUnmeasured => {
                let ids = self.numbers(list, entries);
                self.check_named_flows(&ids.into_iter().map(FlowId).collect::<Vec<_>>()).await
            }
            _ => self.check_named_records(list, entries).await,
        }
    }

    /// Parses entries that are ids, and notes those that are none.
    fn numbers(&mut self, list: &ContextKey, entries: &[Vec<u8>]) -> Vec<u32> {
        let mut numbers = Vec::with_capacity(entries.len());
        for entry in entries {
            let shown = String::from_utf8_lossy(entry);
            match shown.parse() {
                Ok(number) => numbers.push(number),
                Err(_) => self.note(
                    FindingCode::RecordUnreadable,
                    list.to_string(),
                    format!("entry {shown} is no id"),
                ),
            }
        }
        numbers
    }

    async fn check_due(&mut self, entries: &[Vec<u8>]) -> Result<()> {
        let tenant = Arc::clone(&self.tenant);
        let touched = scripts::CHECK_DUE.keys([("due", &tenant.due)]);
        for entries in entries.chunks(CHECKED_AT_ONCE) {
            let change = self.begin(&scripts::CHECK_DUE, &touched).args(entries);
            self.check(change).await?;
        }
        Ok(())
    }

    async fn check_named_flows(&mut self, ids: &[FlowId]) -> Result<()> {
        let keys: Vec<String> = ids.iter().map(|id| self.tenant.keys.flow(*id)).collect();
        let exist = which_exist(&self.tenant, &keys).await?;
        let gone = ids.iter().zip(exist).filter(|(_, exists)| !exists);
        let gone: Vec<(FlowId, String)> = gone.map(|(id, _)| (*id, String::new())).collect();
        self.check_flow_lists(&gone).await
    }

    /// Checks that records exist which a list names by their keys.
    async fn check_named_records(&mut self, list: &ContextKey, entries: &[Vec<u8>]) -> Result<()> {
        let tenant = Arc::clone(&self.tenant);
        let mut named = Vec::new();
        let mut suspects: Vec<&Vec<u8>> = Vec::new();
        for entry in entries {
            match key_of(&tenant, list, entry) {
                Some((key, parsed)) => named.push((entry, key, parsed)),
                None => suspects.push(entry),
            }
        }
        let keys: Vec<String> = named.iter().map(|(_, key, _)| key.clone()).collect();
        for ((entry, _, parsed), exists) in named.iter().zip(which_exist(&tenant, &keys).await?) {
            match parsed {
                ContextKey::Job(caller, id) if exists => self.note_given(counter_of("job", *caller), id.0),
                _ if !exists => suspects.push(entry),
                _ => {}
            }
        }
        let actor = match list {
            ContextKey::Inbox(ActorId(actor)) => actor.to_string(),
            _ => String::new(),
        };
        let name = tenant.keys.key(list);
        let touched = scripts::CHECK_ENTRIES.keys([("list", &name)]);
        for suspects in suspects.chunks(CHECKED_AT_ONCE) {
            let change = self
                .begin(&scripts::CHECK_ENTRIES, &touched)
                .named(kv::named![actor: &actor])
                .args(suspects.iter().copied());
            self.check(change).await?;
        }
        Ok(())
    }
}

/// Key that an entry of a list names; nothing for an entry that is none.
fn key_of(tenant: &TenantStore, list: &ContextKey, entry: &[u8]) -> Option<(String, ContextKey)> {
    let entry = std::str::from_utf8(entry).ok()?;
    let key = match list {
        ContextKey::Jobs => format!("{}job:{entry}", tenant.keys.prefix()),
        _ => entry.to_owned(),
    };
    let parsed = tenant.keys.parse(&key)?;
    let is_job = matches!(parsed, ContextKey::Job(..));
    let is_named =
        if matches!(list, ContextKey::Jobs) { is_job } else { matches!(parsed, ContextKey::Message(_)) };
    is_named.then_some((key, parsed))
}

/// Members of a set or a sorted set in a page.
pub(super) fn members_of(scan: &str, entries: Value) -> Result<Vec<Vec<u8>>> {
    let mut values = Vec::new();
    for value in entries.array()? {
        match value {
            Value::Array(pair) => values.extend(pair),
            single => values.push(single),
        }
    }
    let width = if scan == "ZSCAN" { 2 } else { 1 };
    Ok(values.into_iter().step_by(width).map(Value::bytes).collect::<kv::Result<_>>()?)
}

/// Returns for each key whether it exists.
pub(super) async fn which_exist(tenant: &TenantStore, keys: &[String]) -> Result<Vec<bool>> {
    let mut pipeline = Pipeline::new();
    for key in keys {
        pipeline.cmd(Cmd::new("EXISTS").arg(key));
    }
    let answers = tenant.connection.pipeline(&pipeline).await?;
    Ok(answers.into_iter().map(|answer| Ok(answer?.int()? == 1)).collect::<kv::Result<_>>()?)
}
