//! Trace contexts of work, as `traceparent` of W3C has them.
//!
//! Work that an event orders belongs to the trace of the event; for any other input, its work starts a new trace. Traces
//! are derived from the journal, so work that is sent again has the same span.

use model::{BlobHash, CommandId, TraceParent};

use crate::Json;
use crate::input::{DomainEvent, InstanceInputKind};
use crate::step::{JournalInput, JournalRow};

/// Makes the place of a piece of work that a row of the journal ordered.
#[must_use]
pub fn of_work(row: &JournalRow, command: CommandId) -> TraceParent {
    // No two commands share their last bits.
    let span = u64::try_from(command.bits() & u128::from(u64::MAX)).unwrap_or(u64::MAX).max(1);
    TraceParent { span, ..of_row(row) }
}

/// Returns the trace context of the transition in a journal row: in the trace of its event, or in a new one.
#[must_use]
pub fn of_row(row: &JournalRow) -> TraceParent {
    // No two inputs of any instance share a chain.
    let (trace, span) = halves(row.chain);
    let own = TraceParent::sampled(trace.max(1), span.max(1));
    of_input(&row.input).map_or(own, |parent| TraceParent { span: own.span, ..parent })
}

/// Returns the trace context of an input's event; `None` for other inputs, and for an event without one.
#[must_use]
pub fn of_input(input: &JournalInput) -> Option<TraceParent> {
    match input {
        JournalInput::Came(input) => match &input.what {
            InstanceInputKind::Event(event) => of_event(event),
            InstanceInputKind::Result(_)
            | InstanceInputKind::Timer { .. }
            | InstanceInputKind::Verb { .. } => None,
        },
        JournalInput::Kept(_) => None,
    }
}

/// Returns the trace context of an event; `None` where it has no valid one.
#[must_use]
pub fn of_event(event: &DomainEvent) -> Option<TraceParent> {
    TraceParent::read(event.body.get("metadata")?.get("traceparent").and_then(Json::as_text)?)
}

/// The first 16 bytes of a hash, and the 8 behind them.
fn halves(hash: BlobHash) -> (u128, u64) {
    let number = |bytes: &[u8]| bytes.iter().fold(0_u128, |number, byte| (number << 8) | u128::from(*byte));
    let (trace, rest) = hash.as_bytes().split_at(16);
    let (span, _) = rest.split_at(8);
    (number(trace), u64::try_from(number(span)).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use model::{SagaStatus, Timestamp};

    use super::*;
    use crate::input::InstanceInput;

    fn row(traceparent: &str) -> JournalRow {
        let metadata = Json::object([("traceparent", Json::text(traceparent))]);
        let event = DomainEvent {
            body: Json::object([("metadata", metadata)]),
            ..DomainEvent::sent("r", "A", Json::Null)
        };
        let time = Timestamp::from_millis(0);
        JournalRow {
            revision: 1,
            input: JournalInput::Came(Box::new(InstanceInput {
                time,
                what: InstanceInputKind::Event(event),
            })),
            definition: None,
            now: time,
            fate: "applied".to_owned(),
            status: SagaStatus::Running,
            step: "a".parse().expect("a step"),
            reason: None,
            work: Vec::new(),
            chain: BlobHash::of(b"x"),
            state: None,
        }
    }

    #[test]
    fn work_belongs_to_the_trace_of_its_event() {
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
        let traced = of_work(&row(parent), CommandId::from_bits((9 << 64) | 0xab)).to_string();
        assert_eq!(traced, "00-4bf92f3577b34da6a3ce929d0e0e4736-00000000000000ab-00");
        let own = format!("00-{}-00000000000000ab-01", &BlobHash::of(b"x").to_string()[..32]);
        for wrong in [
            "",
            "x",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-00",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0\r",
        ] {
            assert_eq!(of_work(&row(wrong), CommandId::from_bits(0xab)).to_string(), own, "{wrong}");
        }
        // Without an event there is a trace of the input.
        let kept = JournalRow { input: JournalInput::Kept(1), ..row(parent) };
        assert_eq!(of_work(&kept, CommandId::from_bits(0xab)).to_string(), own);
    }

    #[test]
    fn a_transition_is_a_span_beside_its_work() {
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let chain = BlobHash::of(b"x").to_string();
        let (own, span) = (&chain[..32], &chain[32..48]);
        let traced = of_row(&row(parent));
        assert_eq!(traced.to_string(), format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{span}-01"));
        assert!(traced.is_sampled());
        assert_eq!(of_input(&row(parent).input), TraceParent::read(parent));
        assert_eq!(of_row(&row("")).to_string(), format!("00-{own}-{span}-01"));
    }
}
