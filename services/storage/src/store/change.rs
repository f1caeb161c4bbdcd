//! Changes: calls of scripts, and the handling of their answers.

use std::time::Instant;

use kv::{Arg, Script, ScriptCall, Value};
use model::{ContextId, ContextUid, Timestamp};

use super::{Store, TenantStore};
use crate::error::{Error, Result, STORE_WENT_BACK};
use crate::tenants::audit::AuditRecord;
use crate::watch::change_feed::ReportedChange;
use crate::watch::events::EventPosition;

/// Change that is about to be made: the call of its script, and the random bits that distinguish it from other changes.
#[derive(Debug)]
pub(crate) struct StoreChange {
    call: ScriptCall,
    bits: u64,
    uid: Option<ContextUid>,
    /// The script's answer includes the entries that the change writes into the stream.
    reports_events: bool,
}

impl StoreChange {
    fn new(call: ScriptCall, uid: Option<ContextUid>) -> Self {
        Self { call, bits: rand::random(), uid, reports_events: false }
    }

    /// Adds an argument.
    pub(crate) fn arg<'a>(mut self, value: impl Into<Arg<'a>>) -> Self {
        self.call = self.call.arg(value);
        self
    }

    /// Adds several arguments.
    pub(crate) fn args<'a, A: Into<Arg<'a>>>(mut self, values: impl IntoIterator<Item = A>) -> Self {
        self.call = self.call.args(values);
        self
    }

    /// Adds the script's named arguments after those of every change.
    pub(crate) fn named<const N: usize>(mut self, arguments: [(&'static str, Arg<'_>); N]) -> Self {
        self.call = self.call.named(arguments);
        self
    }

    /// Adds the random bits as scripts write them, followed by the audit record if a principal requested the change.
    fn with_bits(self, audit_record: Option<&AuditRecord>) -> Self {
        let bits = format!("{:016x}{}", self.bits, audit_record.map(AuditRecord::json).unwrap_or_default());
        self.arg(&bits)
    }

    /// Where its first event stands, once it has been made.
    const fn position(&self, revision: u64) -> EventPosition {
        EventPosition { revision, n: 1, bits: self.bits }
    }
}

impl Store {
    /// Begins a change outside contexts, without a principal.
    pub(crate) fn begin_global(&self, script: &'static Script, keys: &[&str], now: Timestamp) -> StoreChange {
        self.begin_global_by(None, script, keys, now)
    }

    /// Begins a change outside contexts; the script appends `audit_record`, if there is one, to the audit.
    pub(crate) fn begin_global_by(
        &self,
        audit_record: Option<&AuditRecord>,
        script: &'static Script,
        keys: &[&str],
        now: Timestamp,
    ) -> StoreChange {
        let (ids, events) = (self.0.keys.ids(), self.0.keys.events());
        let mut all: Vec<&str> = vec![&ids, &events];
        all.extend(keys);
        StoreChange::new(script.call(&all), None)
            .arg(&self.0.layout.hint_channel(ContextId(0)))
            .arg(&now.to_string())
            .with_bits(audit_record)
    }

    /// Makes a change outside contexts.
    pub(crate) async fn call_global(&self, change: StoreChange) -> kv::Result<Value> {
        let (store, call) = (&self.0, change.call);
        let seen = store.seen.text(None);
        let answer = store.confirmation.call(&store.connection, call.clone().arg(&seen)).await;
        match answer {
            Err(error) if error.code() == Some(STORE_WENT_BACK) => {
                tracing::error!(seen, "Redis has lost changes outside contexts");
                store.seen.forget();
                store.went_back.send_modify(|times| *times += 1);
                // Everyone who relied on the lost changes is notified now; this change builds on what exists.
                store.confirmation.call(&store.connection, call.arg("")).await
            }
            answer => answer,
        }
    }

    /// Makes a change outside contexts by a script that returns its revision, or 0 when nothing changed.
    pub(crate) async fn apply_global(&self, change: StoreChange) -> kv::Result<u64> {
        let unmade = change.position(0);
        let revision = self.call_global(change).await?.uint()?;
        if revision > 0 {
            self.0.seen.note(None, EventPosition { revision, ..unmade });
        }
        Ok(revision)
    }
}

impl TenantStore {
    /// Begins a change without a principal, with the keys and arguments of every script.
    pub(crate) fn begin(
        &self,
        script: &'static Script,
        keys: &[&str],
        uid: Option<ContextUid>,
        now: Timestamp,
    ) -> StoreChange {
        self.begin_by(None, script, keys, uid, now)
    }

    /// Begins a change of the context; the script appends `audit_record`, if there is one, to the audit.
    pub(crate) fn begin_by(
        &self,
        audit_record: Option<&AuditRecord>,
        script: &'static Script,
        keys: &[&str],
        uid: Option<ContextUid>,
        now: Timestamp,
    ) -> StoreChange {
        let mut all: Vec<&str> = Vec::with_capacity(keys.len() + 3);
        all.extend([self.context.as_str(), &self.ids, &self.events]);
        all.extend(keys);
        StoreChange::new(script.call(&all), uid)
            .arg(&self.hint)
            .arg(&uid.map(|uid| uid.to_string()).unwrap_or_default())
            .arg(&now.to_string())
            .with_bits(audit_record)
    }

    /// Makes a change and gives its script's refusals a meaning.
    pub(crate) async fn call(&self, change: StoreChange) -> Result<Value> {
        let (begun, script) = (Instant::now(), change.call.script().name());
        let call = change.call.arg(change.reports_events).arg(&self.seen.text(change.uid));
        let answer = self.confirmation.call(&self.connection, call).await;
        let seconds = begun.elapsed().as_secs_f64();
        self.metrics.script_seconds.with_label_values(&[script]).observe(seconds);
        let answer = answer.map_err(|error| Error::of_script(error, self.id));
        if matches!(answer, Err(Error::StoreWentBack)) {
            self.report_went_back();
        }
        answer
    }

    /// Notifies everyone who relies on changes that Redis has lost, and forgets the position.
    pub(crate) fn report_went_back(&self) {
        tracing::error!(context = %self.id, seen = ?self.seen.latest(), "Redis has lost changes");
        self.forget_seen();
        self.went_back.send_modify(|times| *times += 1);
    }

    /// Makes a change by a script that raises the change counter: `read` finds the revision in its answer, or
    /// that nothing changed.
    pub(crate) async fn apply<T>(
        &self,
        change: StoreChange,
        read: impl FnOnce(Value) -> kv::Result<(Option<u64>, T)>,
    ) -> Result<T> {
        let (unmade, uid) = (change.position(0), change.uid);
        let (revision, answer) = read(self.call(change).await?)?;
        if let (Some(revision), Some(uid)) = (revision, uid) {
            self.seen.note(Some(uid), EventPosition { revision, ..unmade });
        }
        Ok(answer)
    }

    /// Makes a change by a script that also returns the events it wrote, which are passed to the stream's reader at once.
    pub(crate) async fn apply_and_report<T>(
        &self,
        mut change: StoreChange,
        read: impl FnOnce(Value) -> kv::Result<(Option<u64>, Value, T)>,
    ) -> Result<T> {
        // A change that must be confirmed first may take long, and the reader would wait for it.
        let reporter = if self.confirmation.is_immediate() { self.feed.begin() } else { None };
        change.reports_events = reporter.is_some();
        let bits = change.bits;
        let read = |value| read(value).map(|(revision, events, answer)| (revision, (events, answer)));
        let (events, answer) = self.apply(change, read).await?;
        // If the report cannot be parsed, the reader reads the events from the stream.
        if let Some(reporter) = reporter
            && !events.is_nil()
            && let Ok(Some(report)) = ReportedChange::read(events, bits)
        {
            reporter.report(report);
        }
        Ok(answer)
    }

    /// Makes a change by a script that gives nothing but the revision, or 0 when nothing changed.
    pub(crate) async fn apply_revision(&self, change: StoreChange) -> Result<u64> {
        let read = |value: Value| value.uint().map(|revision| ((revision > 0).then_some(revision), revision));
        self.apply(change, read).await
    }
}
