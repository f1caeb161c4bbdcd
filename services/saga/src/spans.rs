//! Spans of a lane's work for a collector of traces: transitions, work that is sent, calls, and results that come back.
//!
//! A transition and its work are in the trace of the event that led to them, at places derived from the journal: so the `traceparent`
//! of a command names the span of its sending, even if the command is sent again. A result is in the trace of its command; the
//! transition that follows from it begins a new trace, linked to the command. No span has a payload.

use model::{BlobHash, CommandId, CorrelationId, EffectName, SagaName, TenantId, TraceParent};
use serde::Deserialize;
use service::traces::{self, TARGET};
use tracing::field::Empty;
use tracing::{Span, info_span};
use workflow::WorkflowLane;
use workflow::input::{CommandResult, InstanceInput, InstanceInputKind};
use workflow::ledger::{CallRow, ProviderAnswer};
use workflow::step::{JournalRow, SagaTransition};
use workflow::trace;

use crate::lane::rows::LaneStore;
use crate::visibility::SagaVisibility;

/// Digits of a definition's hash.
const HASH_DIGITS: usize = 12;

/// A span that was begun. It is discarded unless it is put at a place.
#[derive(Debug)]
pub(crate) struct PendingSpan(Option<Span>);

/// The instance that a span is about.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SpanSubject<'a> {
    pub(crate) tenant: &'a TenantId,
    pub(crate) saga: &'a SagaName,
    pub(crate) correlation: &'a CorrelationId,
    pub(crate) seeing: SagaVisibility,
}

/// The transition that ordered a piece of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderedBy {
    /// Place of its span.
    pub transition: TraceParent,
    /// Definition that the instance is pinned to.
    pub definition: Option<BlobHash>,
}

/// Parts of a command for an effect, or of its result, that its span names.
#[derive(Deserialize)]
struct TracedMessage {
    command_id: CommandId,
    effect_name: EffectName,
    #[serde(default)]
    metadata: Metadata,
}

#[derive(Deserialize, Default)]
struct Metadata {
    #[serde(default)]
    traceparent: Option<String>,
}

/// Trace context of the command that the message of a result is about; `None` if spans are not collected.
pub(crate) fn cause_of(payload: &[u8]) -> Option<TraceParent> {
    if !tracing::enabled!(target: TARGET, tracing::Level::INFO) {
        return None;
    }
    let traced: TracedMessage = serde_json::from_slice(payload).ok()?;
    TraceParent::read(&traced.metadata.traceparent?)
}

impl<'a> SpanSubject<'a> {
    /// An instance of a saga's lane; `None` in a lane of an effect.
    pub(crate) fn of(rows: &'a LaneStore, correlation: &'a CorrelationId) -> Option<Self> {
        let WorkflowLane::Saga { tenant, saga, .. } = &rows.lane else { return None };
        Some(Self { tenant, saga, correlation, seeing: rows.around().metrics.seeing })
    }
}

impl PendingSpan {
    /// Begins the span of a transition.
    pub(crate) fn transition() -> Self {
        Self::of(info_span!(
            target: TARGET, parent: None, "transition", otel.kind = "consumer", tenant = Empty, saga = Empty,
            correlation = Empty, definition = Empty, revision = Empty, input = Empty, command = Empty, outcome = Empty,
        ))
    }

    /// Begins the span of work that is sent.
    pub(crate) fn work() -> Self {
        Self::of(info_span!(
            target: TARGET, parent: None, "work", otel.kind = "producer", tenant = Empty, saga = Empty,
            correlation = Empty, definition = Empty, command = Empty, effect = Empty,
        ))
    }

    /// Begins the span of a call of an effect.
    pub(crate) fn call() -> Self {
        Self::of(info_span!(
            target: TARGET, parent: None, "effect", otel.kind = "client", tenant = Empty, saga = Empty,
            correlation = Empty, command = Empty, effect = Empty, attempt = Empty, outcome = Empty,
        ))
    }

    /// Begins the span of a result.
    fn result() -> Self {
        Self::of(info_span!(
            target: TARGET, parent: None, "result", otel.kind = "consumer", tenant = Empty, saga = Empty,
            correlation = Empty, command = Empty, outcome = Empty,
        ))
    }

    fn of(span: Span) -> Self {
        Self(Some(span).filter(|span| !span.is_disabled()))
    }

    /// Puts the span at a place, or below another one; `None` if spans are not collected.
    fn put(
        mut self,
        about: SpanSubject<'_>,
        at: Option<TraceParent>,
        below: Option<TraceParent>,
    ) -> Option<Span> {
        let span = self.0.take()?;
        traces::set_context(&span, at, below);
        if !about.tenant.is_single() {
            span.record("tenant", about.tenant.as_str());
        }
        span.record("saga", about.saga.as_str());
        span.record("correlation", &*about.seeing.correlation(about.correlation));
        Some(span)
    }

    /// Records a transition. `cause` is the place of the command whose result led to it.
    pub(crate) fn ended(
        self,
        about: SpanSubject<'_>,
        (input, change): (Option<&InstanceInput>, &SagaTransition),
        outcome: &str,
        cause: Option<TraceParent>,
    ) {
        let what = input.map(|input| &input.what);
        let (first, definition) =
            (change.journal.first(), change.record.as_ref().and_then(|it| it.definition()));
        let below =
            if let Some(InstanceInputKind::Event(event)) = what { trace::of_event(event) } else { None };
        let Some(span) = self.put(about, first.map(trace::of_row), below) else { return };
        span.record("input", what.map_or("message", kind));
        span.record("outcome", outcome);
        describe(&span, definition, first);
        if let Some(InstanceInputKind::Result(result)) = what {
            span.record("command", result.command.to_string());
            if let Some(cause) = cause {
                result_came(about, result, cause);
                traces::link(&span, cause);
            }
        }
        // Kept events are applied together with this input.
        for row in change.journal.iter().skip(1) {
            let Some(applied) = Self::transition().put(about, Some(trace::of_row(row)), None) else { return };
            applied.record("input", "kept");
            applied.record("outcome", row.fate.as_str());
            describe(&applied, definition, Some(row));
            if let Some(first) = first {
                traces::link(&applied, trace::of_row(first));
            }
        }
    }

    /// Records that a command for an effect was sent, if the message has one; otherwise discards the span.
    pub(crate) fn message_sent(self, about: SpanSubject<'_>, body: &str, by: Option<OrderedBy>) {
        if self.0.is_some()
            && let Ok(TracedMessage { command_id, effect_name, metadata }) = serde_json::from_str(body)
        {
            let at = metadata.traceparent.as_deref();
            self.work_sent(about, (command_id, Some(effect_name)), at, by);
        }
    }

    /// Records that a command was sent.
    pub(crate) fn work_sent(
        self,
        about: SpanSubject<'_>,
        (command, effect): (CommandId, Option<EffectName>),
        traceparent: Option<&str>,
        by: Option<OrderedBy>,
    ) {
        let Some(at) = traceparent.and_then(TraceParent::read) else { return };
        let Some(span) = self.put(about, Some(at), by.map(|by| by.transition)) else { return };
        span.record("command", command.to_string());
        if let Some(effect) = effect {
            span.record("effect", effect.as_str());
        }
        describe(&span, by.and_then(|by| by.definition), None);
    }

    /// Records the answer to a call of an effect of a tenant.
    pub(crate) fn answered(
        self,
        (tenant, effect, seeing): (&TenantId, &EffectName, SagaVisibility),
        call: &CallRow,
        answer: Option<&ProviderAnswer>,
    ) {
        let (saga, correlation) = (&call.reply_to.saga, &call.reply_to.correlation);
        let about = SpanSubject { tenant, saga, correlation, seeing };
        let below = call.metadata.get("traceparent").and_then(|text| TraceParent::read(text));
        let Some(span) = self.put(about, None, below) else { return };
        span.record("command", call.command.to_string());
        span.record("effect", effect.as_str());
        span.record("attempt", call.attempts);
        span.record("outcome", answer.map_or("ended_meanwhile", name));
    }
}

impl Drop for PendingSpan {
    fn drop(&mut self) {
        if let Some(span) = self.0.take() {
            traces::suppress_export(&span);
        }
    }
}

/// Records a result, in the trace of its command.
fn result_came(about: SpanSubject<'_>, result: &CommandResult, cause: TraceParent) {
    let Some(span) = PendingSpan::result().put(about, None, Some(cause)) else { return };
    span.record("command", result.command.to_string());
    span.record("outcome", result.outcome.as_str());
}

/// Adds the definition and the revision to a span.
fn describe(span: &Span, definition: Option<BlobHash>, row: Option<&JournalRow>) {
    if let Some(definition) = definition {
        let hash = definition.to_string();
        span.record("definition", hash.get(..HASH_DIGITS).unwrap_or(&hash));
    }
    if let Some(row) = row {
        span.record("revision", row.revision);
    }
}

const fn kind(what: &InstanceInputKind) -> &'static str {
    match what {
        InstanceInputKind::Event(_) => "event",
        InstanceInputKind::Result(_) => "result",
        InstanceInputKind::Timer { .. } => "timer",
        InstanceInputKind::Verb { .. } => "verb",
    }
}

const fn name(answer: &ProviderAnswer) -> &'static str {
    match answer {
        ProviderAnswer::Succeeded(_) => "succeeded",
        ProviderAnswer::Failed { .. } => "failed",
        ProviderAnswer::Passing { .. } => "passing",
        ProviderAnswer::Waiting { .. } => "waiting",
        ProviderAnswer::Unknown { .. } => "unknown",
        ProviderAnswer::Cancelled => "cancelled",
    }
}
